"""Where a fit begins, and what has no derivative: limits that do not bind yet, the CPU's floor below the wire, switch points."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.model import THREAD_FLOOR, BoxModel
from pcie_sim.specs.ops import Array

POINT = 0.08
"""Scale of a residual in ln(time): beyond it a point pulls linearly."""
LOW = (-0.8, -1.6, -2.4)
"""Where limits are tried first, ln of start."""
BAD = 0.15
"""Median error from which they are."""
WORTH = 0.9
"""A start is taken when its cost is below this share of the best so far."""
FACTORS = (*(2.0 ** (k / 2) for k in range(-4, 5)), 8.0, 32.0, 128.0, 512.0)
"""Switch points over those of the library's own search: by half octaves, and far up (where its search found nothing, its rates are off
by hundreds)."""
GAIN = 6.0
"""What another switch point must save of the cost (twice the log likelihood of a few points)."""
MOST_CURVES = 4
SMALL, FLAT, LEAST = 4096, 0.35, 3
"""Calls up to so many bytes, whose ln(time) differs by less, may be held up by the CPU, if there are so many of them."""


class Search:
    """Tries values on the curves of one op (AllReduce where it was measured): eager and graph runs, at most :data:`MOST_CURVES`."""

    def __init__(self, model: BoxModel, mean: Array, sigma: Array, low: Array, high: Array) -> None:
        self.model, self.mean, self.sigma, self.low, self.high = model, mean, sigma, low, high

    @cached_property
    def which(self) -> list[int]:
        """Indices of the curves that are looked at."""
        counts: dict[str, int] = {}
        for curve in self.model.curves:
            counts[curve.op] = counts.get(curve.op, 0) + len(curve.sizes)
        if not counts:
            return []
        op = max(counts, key=lambda name: (name == "all_reduce", counts[name]))
        mine = [index for index, curve in enumerate(self.model.curves) if curve.op == op]
        longest = sorted(mine, key=lambda index: -len(self.model.curves[index].sizes))[:MOST_CURVES]
        return sorted(longest)

    @cached_property
    def _measured(self) -> Array:
        return np.concatenate([np.log(self.model.curves[index].times) for index in self.which])

    def _error(self, vector: Array) -> Array:
        return self.model.ln_times(vector, self.which) - self._measured

    def cost(self, vector: Array) -> float:
        """Soft-L1 cost of the curves, and the prior's."""
        return float(np.sum(self._loss(vector)) + np.sum(((vector - self.mean) / self.sigma) ** 2))

    def _loss(self, vector: Array) -> Array:
        return 2 * (np.sqrt(1 + (self._error(vector) / POINT) ** 2) - 1)

    def begin(self) -> Array:
        """The prior's mean, or a start that fits clearly better: the floor where the small eager calls stand, limits that bind far below
        the prior, other switch points.
        """
        current = self.mean
        if not self.which:
            return current
        best = self.cost(current)
        floor = self._floor()
        if floor is not None:
            least = self.cost(floor)
            if least < best or self.held_up:
                best, current = least, floor
        if float(np.median(np.abs(self._error(current)))) < BAD:
            return current
        self.switch(current)
        best = self.cost(current)
        for _ in range(2):
            tried = [(self.cost(vector), index, vector) for index, vector in enumerate(self._lower(current))]
            least, _, vector = min(tried, key=lambda item: item[:2], default=(math.inf, 0, current))
            if least > WORTH * best:
                break
            best, current = least, vector
        return current

    def _lower(self, current: Array) -> list[Array]:
        """``current`` with one limit lower."""
        found = []
        for place, name in enumerate(self.model.names):
            if constants()[name].ceiling:
                found += [self._with(current, place, float(current[place]) + down) for down in LOW]
        return found

    def _with(self, vector: Array, place: int, value: float) -> Array:
        moved = vector.copy()
        moved[place] = np.clip(value, self.low[place] + 1e-6, self.high[place] - 1e-6)
        return moved

    def _floor(self) -> Array | None:
        """The prior's mean with the CPU's floors at the small calls: below the wire's time they have no derivative."""
        shape = catalog.load_constants().eager_shape
        seen: dict[str, list[float]] = {"floor": [], THREAD_FLOOR: []}
        for curve in self.model.curves:
            small = float(np.median(curve.times[:3]))
            if curve.launch == "eager" and curve.op != "send_recv":
                fits = [count for count in shape if count <= curve.ranks]
                seen["floor"].append(small / shape[max(fits) if fits else min(shape)])
            elif curve.launch == "threads":
                seen[THREAD_FLOOR].append(small)
        found = self.mean
        for name, floors in seen.items():
            if floors and name in self.model.names:
                found = self._with(found, self.model.names.index(name), math.log(float(np.median(floors)) / constants()[name].value))
        return None if found is self.mean else found

    @cached_property
    def held_up(self) -> bool:
        """Whether all runs are of one operation on as many GPUs, launched eagerly by one thread, and their small calls take one time:
        then they may be the CPU's, and what a call takes in a graph is left to the prior. Other operations or GPUs tell the two apart.
        """
        small = [curve.times[curve.sizes <= SMALL] for curve in self.model.curves]
        eager = all(curve.launch == "eager" for curve in self.model.curves)
        one = len({(curve.op, curve.ranks) for curve in self.model.curves}) == 1
        return eager and one and all(len(times) >= LEAST and float(np.ptp(np.log(times))) < FLAT for times in small)

    def switch(self, vector: Array) -> bool:
        """Take other switch points where they fit clearly better; whether they changed."""
        if not self.which or not self.model.switches:
            return False
        losses = self._losses(vector, FACTORS)
        costs = [float(np.sum(loss)) for loss in losses]
        best = int(np.argmin(costs))
        saved = self._losses(vector, (self.model.switch,))[0] - losses[best]
        # what one point alone would save does not count: a wild one is no switch
        if np.sum(saved) - max(0.0, float(np.max(saved))) < GAIN or math.isclose(FACTORS[best], self.model.switch):
            return False
        # of equals, the one nearest to the library's own
        ties = [factor for factor, cost in zip(FACTORS, costs, strict=True) if cost < costs[best] + 0.5]
        self.model.switch = min(ties, key=lambda factor: abs(math.log(factor)))
        return True

    def _losses(self, vector: Array, factors: tuple[float, ...]) -> list[Array]:
        """Soft-L1 loss of each point with the switch points at each of ``factors``."""
        before, found = self.model.switch, []
        for factor in factors:
            self.model.switch = factor
            found.append(self._loss(vector))
        self.model.switch = before
        return found

    def told(self, vector: Array) -> bool:
        """Whether the measurements tell the switch points: an octave less and an octave more both fit worse."""
        if not self.which or not self.model.switches:
            return False
        less, own, more = self._losses(vector, (self.model.switch / 2, self.model.switch, self.model.switch * 2))
        return all(float(np.sum(other - own) - max(0.0, float(np.max(other - own)))) > GAIN for other in (less, more))
