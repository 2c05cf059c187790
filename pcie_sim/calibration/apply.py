"""A calibrated box: its collectives priced with the fitted constants, with what the misfit teaches, and as measured inside a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.constants import Z80, Fitted, constants, parts_with, used_parts
from pcie_sim.calibration.misfit import Left
from pcie_sim.calibration.model import FLOOR, STEP, Rows, met, price_curves, priced_as, regimes, way_between, way_of
from pcie_sim.calibration.points import Curve, State, curve_of
from pcie_sim.errors import InputError
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.network import call_times, rank_order, time_collective
from pcie_sim.network.call_times import Booked, CallTimes
from pcie_sim.network.nccl_rules import version_pair
from pcie_sim.results.timing import Timing
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.ops import Array, BoolArray, CollectiveCall, CollectiveOp
from pcie_sim.specs.part import Part
from pcie_sim.topology import Topology, from_spec

if TYPE_CHECKING:
    from pcie_sim.specs.runtime import CustomAllReduce

DRIFT = 0.03
"""Standard deviation of ln(time) that each octave beyond the measured sizes, or factor two beyond the measured ranks, adds."""
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


@dataclass(frozen=True, eq=False)
class _Known:
    """A measured curve with what the model says of its points."""

    curve: Curve
    box: Topology
    free: BoolArray
    """Points that the CPU's launches do not hold up: they tell what a call takes inside a graph, too."""


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
        self._doubts: dict[tuple[Any, ...], Array] = {}
        self._twins: WeakKeyDictionary[Topology, dict[str, Topology]] = WeakKeyDictionary()
        self.parts = parts_with(_values(spec, source), used_parts(box.spec))
        with self.in_force():
            self._base = from_spec(box.spec, source=box.name)
            self.curves = [curve_of(held, box) for held in spec.curves]
            self.settings = _settings([curve.state for curve in self.curves])
            self.box = self.settings.of(self._base)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside the block the fitted parts stand in place of the catalog's."""
        with catalog.using_parts(self.parts):
            yield

    def with_settings(self, **settings: Any) -> Topology:
        """The box with other settings than the runs had."""
        with self.in_force():
            return self.box.with_settings(**settings)

    @cached_property
    def launch(self) -> Literal["graph", "eager"]:
        """How the measured runs were launched: what a single collective is answered for when nothing is asked."""
        first = next((curve.launch for curve in self.curves if curve.launch is not None), None)
        return "graph" if first == "graph" else "eager"

    @cached_property
    def _known(self) -> list[_Known]:
        boxes = {curve.state: curve.state.of(self._base) for curve in self.curves}
        found = []
        for index, curve in enumerate(self.curves):
            mine = np.array([self._rows.regime[i] != FLOOR for i in np.flatnonzero(self._rows.curve == index)], dtype=bool)
            found.append(_Known(curve, boxes[curve.state], mine))
        return found

    @cached_property
    def _fitted(self) -> tuple[Rows, Array]:
        """Rows of every measured point, and ln of the constants' time there."""
        with self.in_force():
            times, rows = price_curves({curve.state: curve.state.of(self._base) for curve in self.curves}, self.curves)
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
        return Left(rows, error, noise, self.spec.residual.scale)

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
            inside, times, noise, label = self._measured(topology, call, gpu_of_rank, launch, algorithm, protocol, size, library)
            base = np.zeros(size.shape) if inside.all() else self._doubt(topology, call, found, launch, asked)
            sigma = np.sqrt(base**2 + more**2 + (DRIFT * beyond) ** 2)
        ratio = np.divide(times, latency + moved, out=np.ones(size.shape), where=inside & (latency + moved > 0))
        latency, moved = np.where(inside, latency * ratio, latency), np.where(inside, moved * ratio, moved)
        labels = [label] if inside.all() else ([found.evidence, label] if inside.any() else [found.evidence])
        return CalibratedTimes(
            time_s=latency + moved,
            latency_s=latency,
            bytes_s=moved,
            sigma_latency=np.where(inside, noise, sigma),
            sigma_bytes=np.where(inside, noise, sigma),
            evidence=weakest(labels),
            evidence_latency=found.evidence_latency,
            evidence_bytes=found.evidence_bytes,
            extrapolated=np.where(inside, False, (beyond > 0) | found.extrapolated),
            protocol=found.protocol,
            transport=found.transport,
            sources=tuple(dict.fromkeys((self.source, *found.sources))),
            notes=found.notes,
            op=call.op,
            ranks=ranks,
            measured=np.broadcast_to(inside, size.shape),
            curve_evidence=label,
            sigma=np.where(inside, noise, sigma),
        )

    @cached_property
    def _moved(self) -> dict[str, dict[str, Part]]:
        """The box's parts with one constant at a time a little larger."""
        used, given = used_parts(self._base.spec), _values(self.spec, self.source)
        return {
            name: parts_with({**given, name: Fitted(one.value * math.exp(STEP), one.sigma, one.evidence)}, used)
            for name, one in given.items()
        }

    @cached_property
    def _covariance(self) -> Array:
        """Of ln(constant), in the order of the file's parameters."""
        names = [parameter.name for parameter in self.spec.parameters]
        given = _values(self.spec, self.source)
        sigma = np.array([given[name].sigma for name in names])
        matrix = np.eye(len(names))
        place = {name: index for index, name in enumerate(names)}
        for pair, value in self.spec.correlations.items():
            a, _, b = pair.partition(" ~ ")
            if a in place and b in place and a != b:
                matrix[place[a], place[b]] = matrix[place[b], place[a]] = value
        return np.asarray(matrix * np.outer(sigma, sigma))

    def _doubt(
        self, topology: Topology, call: CollectiveCall, found: CallTimes, launch: Literal["graph", "eager"], asked: dict[str, Any]
    ) -> Array:
        """Standard deviation of ln(time) that the constants' covariance gives: their errors make up for each other where a curve tells
        only their sum. Kept for calls of one op whose GPUs are joined alike.
        """
        size = np.asarray(call.bytes, dtype=float)
        key = (
            call.op,
            tuple(_signature(topology, [asked["gpu_of_rank"][rank] for rank in group]) for group in call.groups),
            call.fractions,
            launch,
            asked["algorithm"],
            asked["protocol"],
            size.tobytes(),
            tuple(sorted(topology.settings.env.items())),
            topology.settings.p2p,
        )
        known = self._doubts.get(key)
        if known is not None:
            return known
        names = [parameter.name for parameter in self.spec.parameters]
        kinds = {
            kind for group in call.groups for a in group for b in group if a != b
            for kind in way_between(topology, asked["gpu_of_rank"][a], asked["gpu_of_rank"][b], len(group))
        } | {f"op:{call.op}", "LL128"} | ({"eager"} if launch == "eager" else set())  # fmt: skip
        base = np.log(np.maximum(found.time_s, 1e-12))
        slopes = np.zeros((len(names), size.size))
        for index, name in enumerate(names):
            if not all(met(need, kinds) for need in constants()[name].needs):
                continue
            with catalog.using_parts(self._moved[name]):
                box = self._twin(topology, name)
                after = call_times(box, call, launch=launch, **asked)
            slopes[index] = ((np.log(np.maximum(after.time_s, 1e-12)) - base) / STEP).reshape(-1)
        variance = np.einsum("ik,ij,jk->k", slopes, self._covariance, slopes)
        self._doubts[key] = np.sqrt(np.maximum(variance, 0.0)).reshape(size.shape)
        return self._doubts[key]

    def _twin(self, topology: Topology, name: str) -> Topology:
        """``topology`` built from the parts with one constant moved."""
        twins = self._twins.setdefault(topology, {})
        if name not in twins:
            twins[name] = from_spec(topology.spec, source=topology.name)
        return twins[name]

    def _beyond(self, op: str, ranks: int, size: Array) -> Array:
        """Octaves beyond the measured sizes (of this op where it was measured) and numbers of ranks; 0 inside."""
        same = [curve for curve in self.curves if curve.op == op] or self.curves
        low, high = min(curve.sizes[0] for curve in same), max(curve.sizes[-1] for curve in same)
        least, most = min(curve.ranks for curve in self.curves), max(curve.ranks for curve in self.curves)
        at = np.maximum(size, 1.0)
        out = np.maximum(np.log2(at / high), 0.0) + np.maximum(np.log2(low / at), 0.0)
        small = size < 512  # below, a call's time does not depend on its size
        out = np.where(small, 0.0, out)
        return np.asarray(out + max(math.log2(ranks / most), 0.0) + max(math.log2(least / ranks), 0.0))

    def _measured(
        self,
        topology: Topology,
        call: CollectiveCall,
        gpu_of_rank: Sequence[str],
        launch: str,
        algorithm: str,
        protocol: str,
        size: Array,
        library: BoolArray,
    ) -> tuple[BoolArray, Array, Array, Evidence]:
        """(sizes inside a measured curve, times there, spread from run to run, label)."""
        none = np.zeros(size.shape, dtype=bool), np.ones(size.shape), np.zeros(size.shape), "measured"
        if len(call.groups) != 1 or call.fractions is not None or protocol != "auto" or algorithm not in ("auto", way_of(call.op)):
            return none  # type: ignore[return-value]  # "measured" is a label
        if call.op == "send_recv" and algorithm != way_of("send_recv"):
            return none  # type: ignore[return-value]  # a hop goes one way, nccl-tests' sends both
        gpus = tuple(gpu_of_rank[rank] for rank in call.groups[0])
        inside, times, noise, label = none
        for known, own in self._candidates(topology, call.op, gpus, launch):
            usable = known.free if launch == "graph" or priced_as(known.curve.launch) != "eager" else np.ones(len(known.free), dtype=bool)
            sizes, values = known.curve.sizes[usable], known.curve.times[usable]
            if len(sizes) == 0:
                continue
            here = library & ~inside & (size >= sizes[0]) & (size <= sizes[-1])
            if not here.any():
                continue
            there = np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), np.log(values)))
            inside, times = inside | here, np.where(here, there, times)
            noise = np.where(here, max(known.curve.noise, 0.005), noise)
            label = weakest((label, "measured" if own else "fitted"))  # type: ignore[arg-type]
        return inside, times, noise, label  # type: ignore[return-value]

    def _candidates(self, topology: Topology, op: str, gpus: tuple[str, ...], launch: str) -> list[tuple[_Known, bool]]:
        """Curves that answer for ``gpus``, the best first, and whether they are of these very GPUs."""
        found: list[tuple[tuple[int, int], _Known, bool]] = []
        for known in self._known:
            curve = known.curve
            if curve.op != op or curve.ranks != len(gpus) or not _same_state(topology, known.box, gpus):
                continue
            if launch == "eager" and curve.launch != "eager":
                continue
            own = set(curve.gpus) == set(gpus)
            if not own and not _joined_alike(topology, curve.gpus, gpus):
                continue
            order = ("graph", "threads", None, "eager").index(curve.launch)
            found.append(((0 if own else 1, order), known, own))
        return [(known, own) for _, known, own in sorted(found, key=lambda item: item[0])]

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
        evidence: Evidence = times.curve_evidence if measured else plain.evidence
        rest = time - sum(plain.parts_s.values())
        where = f"interpolated in a measured curve ({self.source})" if measured else f"constants and misfit of {self.source}"
        return replace(
            plain,
            time_s=time,
            time_s_p10=time * math.exp(-Z80 * sigma),
            time_s_p90=time * math.exp(Z80 * sigma),
            evidence=evidence,
            extrapolated=bool(times.extrapolated),
            parts_s={**plain.parts_s, "misfit": rest},
            sources=tuple(dict.fromkeys((self.source, *plain.sources))),
            notes=(*plain.notes, where),
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


def _same_state(asked: Topology, run: Topology, gpus: Sequence[str]) -> bool:
    """Whether the library would do the same in both states: its version's rules, its modelled environment, the transports."""
    a, b = asked.settings, run.settings
    if a.ccl.name != b.ccl.name or version_pair(a.ccl.version) != version_pair(b.ccl.version):
        return False
    part = catalog.load_part("nccl")
    tuning = getattr(part, "tuning", None)
    modelled = tuning.environment.modelled if tuning is not None else ()
    if any(a.env.get(name) != b.env.get(name) for name in modelled if not name.startswith(("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM"))):
        return False
    return all(
        asked.transport(x, y, gpus=len(gpus)).kind == run.transport(x, y, gpus=len(gpus)).kind for x in gpus for y in gpus if x != y
    )


def _signature(box: Topology, gpus: Sequence[str]) -> tuple[str, ...]:
    """How a group's GPUs are joined, rank by rank."""
    count = len(gpus)
    return tuple(f"{box.path_type(a, b)} {box.transport(a, b, gpus=count).kind}" for a in gpus for b in gpus if a != b)


def _joined_alike(box: Topology, first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two groups of GPUs are of one model and joined alike, rank by rank."""
    if [box.gpu_spec(gpu).name for gpu in first] != [box.gpu_spec(gpu).name for gpu in second]:
        return False
    pairs = [(i, j) for i in range(len(first)) for j in range(len(first)) if i != j]
    count = len(first)
    return all(
        box.path_type(first[i], first[j]) == box.path_type(second[i], second[j])
        and box.transport(first[i], first[j], gpus=count).kind == box.transport(second[i], second[j], gpus=count).kind
        for i, j in pairs
    )
