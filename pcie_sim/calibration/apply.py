"""A calibrated box: its collectives priced with the fitted constants, with what the misfit teaches, and as measured inside a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.constants import Z80, Fitted, constants, parts_with, used_parts
from pcie_sim.calibration.curves import Known, answer, same_state
from pcie_sim.calibration.doubt import Doubt, own_sigma
from pcie_sim.calibration.misfit import Left
from pcie_sim.calibration.model import FLOOR, THREAD_FLOOR, Rows, price_curves, regimes, way_of
from pcie_sim.calibration.points import MOST_POINTS, State, curve_of, thinned
from pcie_sim.errors import InputError
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.network import call_times, rank_order, time_collective
from pcie_sim.network.call_times import Booked, CallTimes
from pcie_sim.network.timing import FLOOR_DECIDES, floor_text
from pcie_sim.results.timing import Timing
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.ops import Array, BoolArray, CollectiveCall, CollectiveOp
from pcie_sim.topology import Topology, from_spec

if TYPE_CHECKING:
    from pcie_sim.specs.runtime import CustomAllReduce

DRIFT = 0.03
"""Standard deviation of ln(time) that each octave beyond the measured sizes, or factor two beyond the measured ranks, adds."""
_TOO_FAST = "faster than the links of the topology file allow: they are taken for less than they are"
SMALL = 512.0
"""Bytes below which a call's time does not depend on its size."""
PROTOCOLS = ("LL", "LL128", "Simple")


@dataclass(frozen=True)
class CalibratedTimes(CallTimes):
    """:class:`CallTimes` of a calibrated box. ``measured`` marks sizes that are interpolated in a measured curve (of these GPUs, or of
    GPUs that are joined alike: then ``curve_evidence`` is *fitted*), ``sigma`` is the standard deviation of ln(time).
    """

    op: str = ""
    ranks: int = 0
    measured: BoolArray | None = None
    curve_evidence: Evidence = "measured"
    sigma: Array | None = None

    def booked(self) -> tuple[Booked, ...]:
        """Measured sizes by themselves; all calls of one op on as many ranks vary together."""
        if self.sigma is None or self.measured is None:
            return super().booked()
        inside = self.measured
        cause = f"net:{self.op}:{self.ranks}"
        return (
            Booked(np.where(inside, self.time_s, 0.0), self.curve_evidence, f"{cause}:measured", self.sigma),
            Booked(np.where(inside, 0.0, self.latency_s), self.evidence_latency, cause, self.sigma),
            Booked(np.where(inside, 0.0, self.bytes_s), self.evidence_bytes, cause, self.sigma),
        )


class Calibrated:
    """A box with a calibration in force.

    Attributes:
        box: the topology under the settings of the measured runs (where they say them), built from the fitted parts.
        spec: the calibration.
    """

    def __init__(self, spec: CalibrationSpec, box: Topology, *, source: str = "the calibration") -> None:
        """Raises InputError where the calibration is of another box (GPUs or their number), or names what this version does not know."""
        _check(spec, box, source)
        self.spec, self.source = spec, source
        given, used = _values(spec, source), used_parts(box.spec)
        self.parts = parts_with(given, used)
        floor = given.get(THREAD_FLOOR)
        self._thread_floor = floor.value if floor is not None and floor.evidence == "fitted" else 0.0
        self._doubt = Doubt(spec, given, used)
        with self.in_force():
            self.base = from_spec(box.spec, source=box.name)
            self.curves = [curve_of(held, box, source) for held in spec.curves]
            self.settings = _settings([curve.state for curve in self.curves])
            self.box = self.settings.of(self.base)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside the block the fitted parts stand in place of the catalog's."""
        with catalog.using_parts(self.parts):
            yield

    def with_settings(self, **settings: Any) -> Topology:
        """The box with other settings than the runs had."""
        with self.in_force():
            return self.box.with_settings(**settings)

    def answers(self, box: Topology) -> bool:
        """Whether some measured curve is of the state that ``box`` is in: else nothing is read off a curve."""
        with self.in_force():
            return any(same_state(box, known.box, known.curve.gpus) for known in self._known)

    @cached_property
    def launch(self) -> Literal["graph", "eager"]:
        """How the measured runs were launched: what a single collective is answered for when nothing is asked. Calls from a thread
        for every GPU, and those whose launch is not known, count as in a graph.
        """
        first = next((curve.launch for curve in self.curves), "eager")
        return "eager" if first == "eager" else "graph"

    @cached_property
    def _known(self) -> list[Known]:
        boxes = {curve.state: curve.state.of(self.base) for curve in self.curves}
        found = []
        for index, curve in enumerate(self.curves):
            places = np.flatnonzero(self._rows.curve == index)
            mine = np.array([self._rows.regime[i] != FLOOR for i in places], dtype=bool)
            modelled = self._fitted[1][places]
            out = np.isin(curve.sizes, self.spec.curves[index].outliers)
            wild = np.where(out, np.abs(np.log(curve.times) - modelled), 0.0)
            found.append(Known(curve, boxes[curve.state], mine, modelled, self.spec.residual.scale, wild))
        return found

    @cached_property
    def _fitted(self) -> tuple[Rows, Array]:
        """Rows of every measured point, and ln of the constants' time there."""
        with self.in_force():
            boxes = {curve.state: curve.state.of(self.base) for curve in self.curves}
            times, rows = price_curves(boxes, self.curves, thread_floor=self._thread_floor)
        assert rows is not None  # noqa: S101 - asked for
        return rows, times

    @property
    def _rows(self) -> Rows:
        return self._fitted[0]

    @cached_property
    def _left(self) -> Left | None:
        if not self.curves:
            return None
        rows, fitted = self._fitted
        measured = np.concatenate([np.log(curve.times) for curve in self.curves])
        noise = np.concatenate([np.full(len(curve.sizes), max(curve.noise, 1e-3)) for curve in self.curves])
        error = measured - fitted
        out = np.concatenate([np.isin(curve.sizes, held.outliers) for curve, held in zip(self.curves, self.spec.curves, strict=True)])
        noise = np.where(out, np.maximum(noise, np.abs(error)), noise)
        seen = thinned(self.curves, MOST_POINTS)
        empty = np.zeros(0)
        kept = [np.isin(curve.sizes, empty if one is None else one.sizes) for curve, one in zip_longest(self.curves, seen)]
        mask = np.concatenate(kept)
        return Left(rows.of(mask), error[mask], noise[mask], self.spec.residual.scale)

    def call_times(
        self,
        topology: Topology,
        call: CollectiveCall,
        *,
        gpu_of_rank: Sequence[str],
        launch: Literal["graph", "eager"] = "graph",
        algorithm: str = "auto",
        protocol: str = "auto",
        custom: CustomAllReduce | None = None,
    ) -> CallTimes:
        """As :func:`pcie_sim.network.call_times`, calibrated. ``topology``: :attr:`box`, or what :meth:`with_settings` gave.

        Raises:
            InputError, NoDataError: as there.
        """
        with self.in_force():
            asked: dict[str, Any] = {"gpu_of_rank": gpu_of_rank, "algorithm": algorithm, "protocol": protocol, "custom": custom}
            found = call_times(topology, call, launch=launch, **asked)
            if self._left is None:
                return found
            size = np.asarray(call.bytes, dtype=float)
            if launch == "eager":
                bare = call_times(topology, call, launch="graph", **asked)
                floors = found.time_s > bare.time_s * (1 + 1e-9)
            else:
                floors = np.zeros(size.shape, dtype=bool)
            names = regimes(found, floors, size.shape)
            library = np.array([name in PROTOCOLS or name == FLOOR for name in names]).reshape(size.shape) & (size > 0)
            if not library.any():
                return found
            ranks = max(len(group) for group in call.groups)
            rows = _rows_of(call.op, ranks, np.maximum(size, 1.0), names, found.transport)
            taught = self._left.teach(rows)
            factor = np.where(library, np.exp(taught.mean.reshape(size.shape)), 1.0)
            more = np.where(library, taught.sigma.reshape(size.shape), 0.0)
            beyond = self._beyond(call.op, ranks, size)
            latency, moved = found.latency_s * factor, found.bytes_s * factor
            known = answer(self._known, topology, call, found, gpu_of_rank, launch, algorithm, protocol)
            inside = known.mask & library
            base = np.zeros(size.shape) if inside.all() else self._doubt.sigma(topology, call, found, launch, asked)
            # an engine's own kernel has no constant that was fitted
            sigma = np.where(library, np.sqrt(base**2 + more**2 + (DRIFT * beyond) ** 2), own_sigma(found))
        ratio = np.divide(known.times, latency + moved, out=np.ones(size.shape), where=inside & (latency + moved > 0))
        latency, moved = np.where(inside, latency * ratio, latency), np.where(inside, moved * ratio, moved)
        told = self._told(call.op, rows, inside.reshape(-1))
        latency_label: Evidence = "fitted" if told else found.evidence_latency
        bytes_label: Evidence = "fitted" if told else found.evidence_bytes
        modelled: Evidence = "fitted" if told else found.evidence
        labels = [known.label] if inside.all() else ([modelled, known.label] if inside.any() else [modelled])
        return CalibratedTimes(
            time_s=latency + moved,
            latency_s=latency,
            bytes_s=moved,
            sigma_latency=np.where(inside, known.noise, sigma),
            sigma_bytes=np.where(inside, known.noise, sigma),
            evidence=weakest(labels),
            evidence_latency=latency_label,
            evidence_bytes=bytes_label,
            extrapolated=np.where(inside, False, (beyond > 0) | found.extrapolated),
            protocol=found.protocol,
            transport=found.transport,
            sources=tuple(dict.fromkeys((self.source, *found.sources))),
            notes=found.notes,
            op=call.op,
            ranks=ranks,
            measured=np.broadcast_to(inside, size.shape),
            curve_evidence=known.label,
            sigma=np.where(inside, known.noise, sigma),
        )

    def _told(self, op: str, asked: Rows, inside: BoolArray) -> bool:
        """Whether the measurements of this very op, by the same protocols and transport, tell the sizes outside measured curves: then
        the answer is fitted whatever single constants it rests on.
        """
        known = {(self._rows.regime[i], self._rows.transport[i]) for i in range(len(self._rows)) if self._rows.op[i] == op}
        return all((asked.regime[i], asked.transport[i]) in known for i in np.flatnonzero(~inside))

    def _beyond(self, op: str, ranks: int, size: Array) -> Array:
        """Octaves beyond the measured sizes (of this op where it was measured) and numbers of ranks; 0 inside."""
        same = [curve for curve in self.curves if curve.op == op] or self.curves
        low, high = min(curve.sizes[0] for curve in same), max(curve.sizes[-1] for curve in same)
        least, most = min(curve.ranks for curve in self.curves), max(curve.ranks for curve in self.curves)
        at, least_size = np.maximum(size, SMALL), max(low, SMALL)
        out = np.maximum(np.log2(at / high), 0.0) + np.maximum(np.log2(least_size / at), 0.0)
        return np.asarray(out + max(math.log2(ranks / most), 0.0) + max(math.log2(least / ranks), 0.0))

    def time_collective(self, topology: Topology, op: str, size_bytes: int | str, **options: Any) -> Timing:
        """As :func:`pcie_sim.network.time_collective`, calibrated. With the event engine its time is taken in place of the analytic
        one, and corrected by the same factor.

        Raises:
            InputError, NoDataError: as there.
        """
        with self.in_force():
            plain = time_collective(topology, op, size_bytes, **options)
        gpus = tuple(options["order"]) if options.get("order") is not None else rank_order(topology, plain.ranks)
        asked = options.get("protocol", "auto")
        algorithm = options.get("algorithm", "auto")
        algorithm = way_of(op) if op == "send_recv" and algorithm == "auto" else algorithm
        shape: Any = {"gpu_of_rank": gpus, "launch": plain.launch, "algorithm": algorithm, "protocol": asked}
        whole = options.get("fractions")
        call = CollectiveCall(_op(op), np.asarray(float(plain.bytes)), (tuple(range(plain.ranks)),), fractions=whole)
        if options.get("chunks") is not None or options.get("channels") is not None:
            return plain
        times = self.call_times(topology, call, **shape)
        if not isinstance(times, CalibratedTimes) or times.sigma is None or times.measured is None:
            return plain
        with self.in_force():
            bare = call_times(topology, call, **shape)
        measured = bool(times.measured)
        time = float(times.time_s)
        if plain.engine == "event" and not measured and float(bare.time_s) > 0:
            time = plain.time_s * time / float(bare.time_s)
        sigma = float(times.sigma)
        evidence: Evidence = times.curve_evidence if measured else times.evidence
        rest = time - sum(plain.parts_s.values())
        notes = tuple(note for note in plain.notes if not note.startswith(FLOOR_DECIDES))
        low = time * math.exp(-Z80 * sigma)
        if plain.launch == "eager":
            inside = self.call_times(topology, call, **{**shape, "launch": "graph"})
            if float(inside.time_s) < 0.999 * time:
                notes = (*notes, floor_text(time, float(inside.time_s)))
            if isinstance(inside, CalibratedTimes) and inside.sigma is not None:
                low = max(low, min(time, float(inside.time_s) * math.exp(-Z80 * float(inside.sigma))))
        faster = () if time >= plain.lower_bound_s else (_TOO_FAST,)
        where = f"interpolated in a measured curve ({self.source})" if measured else f"constants and misfit of {self.source}"
        return replace(
            plain,
            time_s=time,
            time_s_p10=low,
            time_s_p90=time * math.exp(Z80 * sigma),
            evidence=evidence,
            extrapolated=bool(times.extrapolated),
            parts_s={**plain.parts_s, "misfit": rest},
            sources=tuple(dict.fromkeys((self.source, *plain.sources))),
            notes=(*notes, where, *faster),
            calibration=self.source,
        )


def _op(op: str) -> CollectiveOp:
    return op  # type: ignore[return-value]  # checked by time_collective


def _values(spec: CalibrationSpec, source: str) -> dict[str, Fitted]:
    known = constants()
    found = {}
    for parameter in spec.parameters:
        item = known.get(parameter.name)
        if item is None:
            raise InputError(f"{source}: parameters: {parameter.name} is not known to this version; calibrate again")
        if parameter.unit != item.unit:
            raise InputError(f"{source}: parameters: {parameter.name} in {parameter.unit!r}; its unit is {item.unit!r}")
        if not item.low * 0.99 <= parameter.value <= item.high * 1.01:
            raise InputError(f"{source}: parameters: {parameter.name} = {parameter.value:g} is outside {item.low:g} to {item.high:g}")
        sigma = parameter.sigma_log
        found[parameter.name] = Fitted(parameter.value, item.spread if sigma is None else min(sigma, 3.0), parameter.evidence)
    return found


def _check(spec: CalibrationSpec, box: Topology, source: str) -> None:
    counts = ", ".join(f"{count}x {name}" for name, count in box.gpu_counts().items())
    held = spec.topology
    if held.gpus != len(box.gpus) or (held.gpu is not None and held.gpu != counts):
        theirs = held.gpu or f"{held.gpus} GPUs"
        raise InputError(f"{source}: made on {held.name} ({theirs}), the topology {box.name} has {counts}; calibrate on this box")


def _settings(states: Sequence[State]) -> State:
    """The state that all runs share, setting by setting; what they do not agree on stays as the topology has it."""

    def shared(values: Sequence[Any]) -> Any:
        said = {value for value in values if value is not None}
        return said.pop() if len(said) == 1 else None

    env: dict[str, str] = {}
    for key in dict.fromkeys(key for state in states for key, _ in state.env):
        value = {dict(state.env).get(key) for state in states}
        if len(value) == 1 and None not in value:
            env[key] = str(value.pop())
    return State(
        shared([state.p2p for state in states]),
        shared([state.acs for state in states]),
        shared([state.ccl for state in states]),
        tuple(sorted(env.items())),
    )


def _rows_of(op: str, ranks: int, size: Array, names: Sequence[str], transport: str) -> Rows:
    count = size.size
    return Rows(
        (op,) * count, np.full(count, float(ranks)), size.reshape(-1), tuple(names), (transport,) * count, np.full(count, -1, dtype=int)
    )
