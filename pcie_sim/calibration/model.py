"""The cost model of one box as a function of its constants: times of all measured points, and how they change with each constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, cast

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.constants import constants, parts_with, used_parts
from pcie_sim.calibration.points import Copies, Curve, State
from pcie_sim.network import call_times, copy_rates
from pcie_sim.network.call_times import CallTimes
from pcie_sim.specs.calibration import CurveLaunch
from pcie_sim.specs.ops import Array, BoolArray, CollectiveCall, CollectiveOp
from pcie_sim.topology import Topology, from_spec

STEP = 1e-3
"""Step in ln(constant) of the difference quotients."""
FLOOR = "floor"
"""Regime of eager calls that the CPU's launches hold up."""
COPY = "copy"
THREAD_FLOOR = "floor_threads"
FEW = 6
"""Curves that are cheap enough to fit from two starts, and again with a derivative at every step. More of them, from threads of their
own, are fitted without a floor: with one the 24 curves of eight RTX PRO 6000 end at twice the error (whatever is below it has no
derivative)."""
KEPT = 64
"""Times of a curve that are kept, by the constants' values."""


def priced_as(launch: CurveLaunch | None) -> Literal["graph", "eager"]:
    """Calls whose launch is not known, and those from a thread for every GPU, are priced without the issue floor of one thread for all
    (:func:`price` has the latter's own).
    """
    return "eager" if launch == "eager" else "graph"


def way_of(op: str) -> str:
    """The schedule behind an op of nccl-tests: its sendrecv sends from every rank to the next one."""
    return "shift" if op == "send_recv" else "auto"


@dataclass(frozen=True, eq=False)
class Rows:
    """What the misfit needs to know of each point."""

    op: tuple[str, ...]
    ranks: Array
    size: Array
    regime: tuple[str, ...]
    transport: tuple[str, ...]
    curve: np.ndarray

    def __len__(self) -> int:
        return len(self.op)

    def of(self, mask: np.ndarray) -> Rows:
        """Some of them (boolean mask)."""
        keep = np.flatnonzero(mask)
        return Rows(
            tuple(self.op[i] for i in keep),
            self.ranks[keep],
            self.size[keep],
            tuple(self.regime[i] for i in keep),
            tuple(self.transport[i] for i in keep),
            self.curve[keep],
        )


def regimes(times: CallTimes, floor_holds: BoolArray | None, shape: tuple[int, ...]) -> list[str]:
    """The protocol of each size, or :data:`FLOOR`."""
    names = [str(name) for name in np.broadcast_to(np.asarray(times.protocol, dtype=object), shape).flat]
    if floor_holds is None:
        return names
    return [FLOOR if held else name for name, held in zip(names, floor_holds.flat, strict=True)]


class BoxModel:
    """The curves and copies of one box, priced with any values of the constants.

    ``names`` are the constants that matter for what was measured, in the order of the vector (ln of value over start).
    """

    def __init__(self, box: Topology, curves: Sequence[Curve], copies: Sequence[Copies] = ()) -> None:
        self.box, self.curves, self.copies = box, list(curves), list(copies)
        self.used = used_parts(box.spec)
        self.states = list(dict.fromkeys([curve.state for curve in curves] + [copy.state for copy in copies]))
        self.measured = np.concatenate(
            [np.log(curve.times) for curve in self.curves] + ([np.log([1.0 / item.rate for item in self.copies])] if self.copies else [])
        )
        self.noise = np.concatenate(
            [np.full(len(curve.sizes), curve.noise) for curve in self.curves]
            + ([np.array([item.noise for item in self.copies])] if self.copies else [])
        )
        ends = np.cumsum([0, *(len(curve.sizes) for curve in self.curves)])
        self.places = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        """Where each curve's points stand."""
        self._copies_from = int(ends[-1])
        relevant = self._relevant()
        self.names = [name for name in relevant if not constants()[name].discrete]
        self.switches = len(relevant) > len(self.names)
        """Whether switch points matter for what was measured."""
        self.switch = 1.0
        """Factor on the sizes at which the library changes protocol (``believed_rate``)."""
        have = self._have([], self.copies)
        self._of_copies = {name for name in relevant if self.copies and all(met(need, have) for need in constants()[name].needs)}
        self._own_names = [self._of_curve(curve, relevant) for curve in self.curves]
        self._kept: list[dict[tuple[float, ...], Array]] = [{} for _ in self.curves]
        self.evaluations = 0

    @cached_property
    def start(self) -> Array:
        """Start values of :attr:`names`, SI."""
        return np.array([constants()[name].value for name in self.names])

    def values(self, vector: Array) -> dict[str, float]:
        """Constants by name at ``vector``."""
        found = {name: float(value) for name, value in zip(self.names, self.start * np.exp(vector), strict=True)}
        return {**found, "believed_rate": self.switch}

    def ln_times(self, vector: Array, which: Sequence[int] | None = None) -> Array:
        """Ln of seconds of every point (of the curves ``which``; copies: ln of seconds per byte)."""
        found, _ = self._run(vector, which, rows=False)
        return found

    def rows(self, vector: Array) -> Rows:
        """What every point is, with the regime that the model has there."""
        _, rows = self._run(vector, None, rows=True)
        assert rows is not None  # noqa: S101 - asked for
        return rows

    def _run(self, vector: Array, which: Sequence[int] | None, *, rows: bool) -> tuple[Array, Rows | None]:
        self.evaluations += 1
        values = self.values(vector)
        parts = parts_with(values, self.used)
        chosen = list(range(len(self.curves)) if which is None else which)
        copies = self.copies if which is None else []
        with catalog.using_parts(parts):
            base = from_spec(self.box.spec, source=self.box.name)
            boxes = {state: state.of(base) for state in self.states}
            if rows:
                mine = [self.curves[index] for index in chosen]
                times, found = price_curves(boxes, mine, numbers=chosen, thread_floor=values.get(THREAD_FLOOR, 0.0))
            else:
                priced = [self._priced(boxes, index, values) for index in chosen]
                times, found = np.concatenate(priced) if priced else np.zeros(0), None
            if copies:
                rates = [copy_rates(boxes[item.state], [item.pair], access=_access(item)).total for item in copies]
                times = np.concatenate([times, -np.log(rates)])
        return times, self._with_copies(found) if found is not None else None

    def shipped(self) -> Array:
        """Ln of seconds (copies: per byte) of every point by the catalog's own constants, which no measurement of this box moved."""
        with catalog.without_replacements():
            base = from_spec(self.box.spec, source=self.box.name)
            boxes = {state: state.of(base) for state in self.states}
            times, _ = price_curves(boxes, self.curves, rows=False)
            rates = [copy_rates(boxes[item.state], [item.pair], access=_access(item)).total for item in self.copies]
        return np.concatenate([times, -np.log(rates)]) if rates else times

    def _priced(self, boxes: Mapping[State, Topology], index: int, values: Mapping[str, float]) -> Array:
        """ln(seconds) of one curve, kept by the constants that it can depend on."""
        known = self._kept[index]
        key = tuple([values[name] for name in self._own_names[index]])
        if key not in known:
            if len(known) >= KEPT:
                known.clear()
            curve = self.curves[index]
            floor = values.get(THREAD_FLOOR, 0.0)  # no floor where it is not fitted
            known[key] = np.log(price(boxes[curve.state], curve, curve.sizes, thread_floor=floor).time_s)
        return known[key]

    def _with_copies(self, rows: Rows) -> Rows:
        count = len(self.copies)
        if not count:
            return rows
        kinds = tuple("SHM" if "host memory" in item.kind else "P2P" for item in self.copies)
        return Rows(
            (*rows.op, *[COPY] * count),
            np.concatenate([rows.ranks, np.full(count, 2.0)]),
            np.concatenate([rows.size, np.full(count, 2.0**28)]),
            (*rows.regime, *[COPY] * count),
            (*rows.transport, *kinds),
            np.concatenate([rows.curve, np.full(count, -1, dtype=int)]),
        )

    def jacobian(self, vector: Array, at: Array | None = None) -> Array:
        """D ln(time) / d ln(constant), shape (points, constants), by forward differences; only curves that can depend on a constant are
        priced for it.
        """
        base = self.ln_times(vector) if at is None else at
        found = np.zeros((len(base), len(vector)))
        for index, name in enumerate(self.names):
            which = [number for number, own in enumerate(self._own_names) if name in own]
            moved = vector.copy()
            moved[index] += STEP
            if name in self._of_copies:
                found[:, index] = (self.ln_times(moved) - base) / STEP
            elif which:
                keep = np.concatenate([np.arange(self.places[number].start, self.places[number].stop) for number in which])
                found[keep, index] = (self.ln_times(moved, which) - base[keep]) / STEP
        return found

    def _of_curve(self, curve: Curve, names: Sequence[str]) -> list[str]:
        """Those of ``names`` that one curve can depend on."""
        have = self._have([curve], [])
        return [name for name in names if all(met(need, have) for need in constants()[name].needs)]

    def _relevant(self) -> list[str]:
        """Constants that what was measured can depend on."""
        have = self._have(self.curves, self.copies)
        return [name for name, item in constants().items() if all(met(need, have) for need in item.needs)]

    def _have(self, curves: Sequence[Curve], copies: Sequence[Copies]) -> set[str]:
        have = {f"op:{curve.op}" for curve in curves}
        if self.copies:
            have.add("copies")  # the links' own rates are told apart from the library's, and then count in every curve
        if copies:
            have.add("op:copy")
        for curve in curves:
            at = curve.state.of(self.box)
            if priced_as(curve.launch) == "eager":
                have.add("eager")
            if curve.launch == "threads" and len(self.curves) <= FEW:
                have.add("threads")
            for a in curve.gpus:
                for b in curve.gpus:
                    if a != b:
                        have |= way_between(at, a, b, len(curve.gpus))
            if "LL128" in dict(curve.state.env).get("NCCL_PROTO", at.settings.env.get("NCCL_PROTO", "")):
                have.add("LL128")
        for item in copies:
            have |= way_between(item.state.of(self.box), *item.pair, 2)
        return have


def met(need: str, have: set[str]) -> bool:
    """Whether a constant's ``needs`` entry is among what there is (``op:a|b``: either of them)."""
    prefix, colon, names = need.partition(":")
    if not colon:
        return need in have
    return any(f"{prefix}:{name}" in have for name in names.split("|"))


def way_between(box: Topology, a: str, b: str, gpus: int) -> set[str]:
    """What a constant may need of the way from ``a`` to ``b`` in a group of ``gpus``: its transport, a root complex, sockets."""
    kind = box.transport(a, b, gpus=gpus).kind
    found: set[str] = {kind}
    if box.path_type(a, b) == "NVL":
        found.add("NVL")
    if kind == "P2P" and box.path_type(a, b) in ("PHB", "SYS"):
        found.add("root")
    if len(box.sockets) > 1 and box.socket_of(a) != box.socket_of(b) and kind != "NET":
        found.add("sockets")
    return found


def price_curves(
    boxes: Mapping[State, Topology],
    curves: Sequence[Curve],
    *,
    numbers: Sequence[int] | None = None,
    rows: bool = True,
    thread_floor: float = 0.0,
) -> tuple[Array, Rows | None]:
    """ln(seconds) of every point of ``curves`` with the parts in force, and what each point is; ``numbers``: the curves' own,
    ``thread_floor`` as :func:`price` takes it.
    """
    times: list[Array] = []
    ops: list[str] = []
    names: list[str] = []
    transports: list[str] = []
    counts = [len(curve.sizes) for curve in curves]
    for curve in curves:
        found = price(boxes[curve.state], curve, curve.sizes, thread_floor=thread_floor)
        times.append(np.log(found.time_s))
        if rows:
            held = None
            if curve.launch in ("eager", "threads"):
                held = found.time_s > price(boxes[curve.state], curve, curve.sizes, launch="graph").time_s * (1 + 1e-9)
            names += regimes(found, held, curve.sizes.shape)
            ops += [curve.op] * len(curve.sizes)
            transports += [found.transport] * len(curve.sizes)
    joined = np.concatenate(times) if times else np.zeros(0)
    if not rows:
        return joined, None
    index = np.repeat(np.asarray(numbers if numbers is not None else range(len(curves)), dtype=int), counts)
    sizes = np.concatenate([curve.sizes for curve in curves]) if curves else np.zeros(0)
    ranks = np.repeat(np.array([float(curve.ranks) for curve in curves]), counts)
    return joined, Rows(tuple(ops), ranks, sizes, tuple(names), tuple(transports), index)


def price(
    box: Topology, curve: Curve, sizes: Array, launch: Literal["graph", "eager"] | None = None, *, thread_floor: float = 0.0
) -> CallTimes:
    """Times of the curve's op at ``sizes`` on ``box`` with the parts in force, launched as the curve was (or as ``launch`` says).

    Args:
        thread_floor: seconds that a thread (or process) of each GPU's own takes at least to launch a call.
    """
    call = CollectiveCall(cast(CollectiveOp, curve.op), sizes, (tuple(range(curve.ranks)),))
    found = call_times(box, call, gpu_of_rank=curve.gpus, launch=launch or priced_as(curve.launch), algorithm=way_of(curve.op))
    if launch is None and curve.launch == "threads":
        return replace(found, time_s=np.maximum(found.time_s, thread_floor))
    return found


def _access(item: Copies) -> Literal["write", "read"]:
    return "read" if item.access == "read" else "write"


def state_text(state: State) -> str:
    """A state in words, for notes."""
    words = [f"p2p {state.p2p}" if state.p2p else "", state.ccl or "", *(f"{key}={value}" for key, value in state.env)]
    return ", ".join(word for word in words if word) or "as the topology has it"
