"""The analytic engine: the time of a placed schedule as the upper envelope of a few lines a + b x size, for arrays of sizes.

Each round (step) is solved once: how long each of its transfers takes at size 1 when all of the round start together
(max-min sharing). The schedule's dependencies turn these into the longest path: a transfer ends at
max(latest dependency + latency, previous in its stream) + size x its unit time. The latest end is piecewise linear and convex
in the size, so a handful of lines gives it for every size. Exact when transfers of one round stay together or share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pcie_sim.network.channels import Lanes, pass_filled
from pcie_sim.network.events import FlowSet, simulate
from pcie_sim.network.placement import Placement
from pcie_sim.network.views import View
from pcie_sim.specs.part import Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SAME = 1e-12
_MOST_LINES = 64


@dataclass(frozen=True)
class Lines:
    """``time(size) = max over i of latency[i] + size x slope[i]`` (s, s/B), without the call's base cost.

    ``bound`` is the bandwidth bound of the busiest link (s per byte) and ``busiest`` its index; ``rounds`` are the (longest
    start-up, longest unit time) of each step; ``exact`` says whether the event engine gives the same. With ``quick`` messages move in
    whole passes of ``pass_bytes`` message bytes: these lines hold right after a pass has begun, ``quick`` at its end.
    """

    latency: tuple[float, ...]
    slope: tuple[float, ...]
    bound: float
    busiest: int | None
    rounds: tuple[tuple[float, float], ...]
    exact: bool
    quick: Lines | None = None
    pass_bytes: float = 0.0
    uneven: bool = False
    """Passes of several lengths (by transport): between the ends of a pass the lines in between are taken."""

    def step_times(self, size: float) -> tuple[float, ...]:
        """Seconds of each step on its own."""
        own = tuple(start + unit * size for start, unit in self.rounds)
        if self.quick is None:
            return own
        early = pass_filled(size, self.pass_bytes)
        return tuple((1 - early) * a + early * b for a, b in zip(own, self.quick.step_times(size), strict=True))

    def evaluate(self, size: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Latency part and bytes part (s) for each size."""
        if self.quick is None:
            return self._upper(size)
        early = pass_filled(size, self.pass_bytes)
        (start, moved), (quick_start, quick_moved) = self._upper(size), self.quick._upper(size)
        # a first pass is moved while a step's start-up passes: only what comes after it is time for bytes
        return start, moved + early * (quick_start + quick_moved - start - moved)

    def _upper(self, size: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        import numpy as np

        if len(self.slope) == 1:
            return np.full(size.shape, self.latency[0]), size * self.slope[0]
        latency, slope = np.asarray(self.latency), np.asarray(self.slope)
        values = latency[:, None] + slope[:, None] * size.reshape(1, -1)
        best = np.argmax(values, axis=0)
        return latency[best].reshape(size.shape), (slope[best] * size.reshape(-1)).reshape(size.shape)


def solve(placed: Placement, protocol: Protocol, lanes: Lanes | None = None) -> Lines:
    """The lines of ``placed`` with ``protocol`` on ``lanes`` (kept on the placement)."""
    key = (protocol, lanes)
    known = placed._lines.get(key)
    if known is None:
        known = placed._lines[key] = _solve(placed, protocol, lanes)
    return known


def _solve(placed: Placement, protocol: Protocol, lanes: Lanes | None) -> Lines:
    loads = placed.wire_load(protocol)
    busiest = max(range(len(loads)), key=loads.__getitem__) if loads else None
    bound = loads[busiest] if busiest is not None else 0.0
    if not placed.of_class:
        return Lines((0.0,), (0.0,), 0.0, None, (), True)
    view = placed.view(protocol, lanes)
    unit, longest, together = _unit_times(placed, view)
    quick = None
    if view.pass_bytes:
        starts = tuple(start - wait for start, wait in zip(view.latency, view.flight, strict=True))
        quick = _lines(placed, starts, unit, longest, together, bound, busiest)
    found = _lines(placed, view.latency, unit, longest, together, bound, busiest)
    if quick is None:
        return found
    uneven = _spread(list(view.flight))
    return replace(found, exact=found.exact and quick.exact and not uneven, quick=quick, pass_bytes=view.pass_bytes, uneven=uneven)


def _uneven(placed: Placement, values: tuple[float, ...]) -> bool:
    return any(_spread([values[index] for index in items]) for items in placed.rounds)


def _lines(
    placed: Placement,
    starts: tuple[float, ...],
    unit: list[float],
    longest: list[float],
    together: bool,
    bound: float,
    busiest: int | None,
) -> Lines:
    rounds = tuple((max((starts[index] for index in items), default=0.0), most) for items, most in zip(placed.rounds, longest, strict=True))
    lines = _Longest(placed, starts, unit).envelope()
    # a line that no engine may fall below: the busiest link has to carry its bytes
    if all(slope < bound for _, slope in lines):
        lines.append((0.0, bound))
    exact = not placed.shares_links or (together and not _uneven(placed, starts) and _lockstep(placed))
    return Lines(tuple(line[0] for line in lines), tuple(line[1] for line in lines), bound, busiest, rounds, exact)


def _unit_times(placed: Placement, view: View) -> tuple[list[float], list[float], bool]:
    """Seconds per message byte of each transfer within its round; the longest by round; and whether the transfers of every round
    take the same, so that (with equal start-ups) rounds never overlap.
    """
    unit = [0.0] * len(placed.of_class)
    solved: dict[tuple[tuple[int, float], ...], list[float]] = {}
    longest: list[float] = []
    together = True
    for items in placed.rounds:
        key = tuple((placed.of_class[index], view.wire[index]) for index in items)
        times = solved.get(key)
        if times is None:
            flows = FlowSet(placed.capacity, placed.routes, view.caps, [index for index, _ in key], [size for _, size in key])
            times = solved[key] = simulate(flows).finish
        for index, time in zip(items, times, strict=True):
            unit[index] = time
        longest.append(max(times, default=0.0))
        if len(placed.rounds) > 1 and _spread(times):
            together = False
    return unit, longest, together


def _spread(values: list[float]) -> bool:
    return bool(values) and max(values) - min(values) > _SAME * max(values)


def _lockstep(placed: Placement) -> bool:
    """Whether every transfer after the first round waits for one of the round just before: then equal rounds never drift apart."""
    step_of = {index: step for step, items in enumerate(placed.rounds) for index in items}
    return all(
        step == 0 or any(step_of[dep] == step - 1 for dep in placed.deps[index])
        for step, items in enumerate(placed.rounds)
        for index in items
    )


Line = tuple[float, float]


class _Longest:
    """The longest path through the transfers, as a line (start-ups on it, unit times on it), at a given size."""

    def __init__(self, placed: Placement, latency: tuple[float, ...], unit: list[float]) -> None:
        self.placed, self.latency, self.unit = placed, latency, unit

    def at(self, size: float) -> Line:
        """The line that rules at ``size`` (infinity allowed); ties go to the steeper one, at infinity to the longer start."""
        if size == float("inf"):
            slope, start = self._run(0.0, 1.0)
            return start, slope
        start, slope = self._run(1.0, size)
        return start, slope

    def _run(self, by_start: float, by_slope: float) -> Line:
        placed, latency, unit = self.placed, self.latency, self.unit
        starts = [0.0] * len(unit)
        slopes = [0.0] * len(unit)
        reverse = by_start == 0.0
        best: tuple[float, float, float, float] = (-1.0, 0.0, 0.0, 0.0)
        for index in placed.order:
            start, slope = latency[index], 0.0
            key = (start * by_start, start if reverse else slope)
            for dep in placed.deps[index]:
                other, other_slope = starts[dep] + latency[index], slopes[dep]
                value = (other * by_start + other_slope * by_slope, other if reverse else other_slope)
                if value > key:
                    key, start, slope = value, other, other_slope
            before = placed.previous[index]
            if before >= 0:
                other, other_slope = starts[before], slopes[before]
                value = (other * by_start + other_slope * by_slope, other if reverse else other_slope)
                if value > key:
                    start, slope = other, other_slope
            slope += unit[index]
            starts[index], slopes[index] = start, slope
            final = (start * by_start + slope * by_slope, start if reverse else slope, start, slope)
            if final[:2] > best[:2]:
                best = final
        return (best[3], best[2]) if reverse else (best[2], best[3])

    def envelope(self) -> list[Line]:
        """All lines that rule somewhere, flattest first."""
        first, last = self.at(0.0), self.at(float("inf"))
        found = [first]
        self._between(first, last, found)
        if last[1] > first[1] * (1 + _SAME):
            found.append(last)
        return found

    def _between(self, left: Line, right: Line, found: list[Line]) -> None:
        if right[1] <= left[1] * (1 + _SAME) or len(found) >= _MOST_LINES:
            return
        size = (left[0] - right[0]) / (right[1] - left[1])
        if size <= 0:
            return
        middle = self.at(size)
        if middle[0] + middle[1] * size <= (left[0] + left[1] * size) * (1 + _SAME):
            return
        self._between(left, middle, found)
        found.append(middle)
        self._between(middle, right, found)
