"""Measurement sets -> curves on one box: times of one op over sizes, and single copies by the kind of way they take."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from pcie_sim.errors import InputError
from pcie_sim.importers.relate import RelatedMeasurement
from pcie_sim.network import copy_rates, rank_order
from pcie_sim.specs.calibration import CurveLaunch, MeasuredCurve
from pcie_sim.specs.measurement import ArmSpec, MeasuredRow, MeasurementSet, SoftwareRef
from pcie_sim.specs.ops import Array, CollectiveOp
from pcie_sim.topology import Topology
from pcie_sim.units import counted

OPS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,3}(?:\.[0-9]{1,3})?")
MOST_CURVES = 256
MOST_SIZES = 2000
FEWEST = 8
"""Points that a thinned curve keeps."""
MOST_POINTS = 1200
"""Points that a fit takes (its matrices grow with their square)."""
RUN_NOISE = 0.02
"""Spread of ln(time) from run to run that is taken where a size was measured once."""
LEAST_NOISE = 0.005


@dataclass(frozen=True)
class State:
    """The software of a run where its file says it; None and empty: as the topology has it."""

    p2p: str | None = None
    acs: str | None = None
    ccl: str | None = None
    env: tuple[tuple[str, str], ...] = ()

    def of(self, box: Topology) -> Topology:
        """``box`` in this state."""
        settings: dict[str, Any] = {
            key: value for key, value in (("p2p", self.p2p), ("acs", self.acs), ("ccl", self.ccl)) if value is not None
        }
        if self.env:
            settings["env"] = dict(self.env)
        return box.with_settings(**settings) if settings else box


@dataclass(frozen=True, eq=False)
class Curve:
    """Times (s) of one op on some GPUs over rising sizes (bytes). ``noise``: spread of ln(time) from run to run."""

    op: str
    gpus: tuple[str, ...]
    launch: CurveLaunch | None
    sizes: Array
    times: Array
    state: State
    sources: tuple[str, ...]
    noise: float = RUN_NOISE
    points: int = 0
    """Rows that were read for it, ..."""
    by_source: Mapping[str, int] = field(default_factory=dict)
    """... by file."""
    repeated: float | None = None
    """Median spread of ln(time) of sizes that were measured more than once."""

    @property
    def ranks(self) -> int:
        """GPUs in it."""
        return len(self.gpus)

    @property
    def title(self) -> str:
        """``8-GPU all_reduce (eager)``."""
        return f"{self.ranks}-GPU {self.op}" + (f" ({self.launch})" if self.launch else "")

    def spec(self, outliers: Iterable[int] = ()) -> MeasuredCurve:
        """As it stands in a calibration file."""
        return MeasuredCurve(
            op=cast(CollectiveOp, self.op),
            ranks=self.ranks,
            launch=self.launch,
            ccl=self.state.ccl,
            bytes=tuple(int(size) for size in self.sizes),
            time_us=tuple(float(f"{time * 1e6:.6g}") for time in self.times),
            sigma_log=round(self.noise, 5),
            gpus=self.gpus,
            p2p=cast(Any, self.state.p2p if self.state.p2p in ("on", "off") else None),
            env=dict(self.state.env),
            outliers=tuple(sorted(outliers)),
            file=", ".join(map(short_name, self.sources)) or None,
        )


def thinned(curves: Sequence[Curve], most: int) -> list[Curve]:
    """At most about ``most`` points of ``curves``, every curve keeping its ends; more curves than that make room for lose the last."""
    if sum(len(curve.sizes) for curve in curves) <= most:
        return list(curves)
    kept = list(curves)[: max(1, most // FEWEST)]
    each = max(FEWEST, most // len(kept))
    found = []
    for curve in kept:
        places = np.unique(np.linspace(0, len(curve.sizes) - 1, min(each, len(curve.sizes))).round().astype(int))
        found.append(replace(curve, sizes=curve.sizes[places], times=curve.times[places]))
    return found


@dataclass(frozen=True)
class Copies:
    """Single copies between GPUs whose ways are of one kind: their median rate, B/s, and its spread (ln)."""

    pair: tuple[str, str]
    access: str
    state: State
    rate: float
    noise: float
    pairs: int
    source: str
    kind: str


@dataclass
class Gathered:
    """What measurement sets give: ``unused`` says what was left and why."""

    curves: list[Curve] = field(default_factory=list)
    copies: list[Copies] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def short_name(source: str) -> str:
    """A file's name without its folders: a calibration that is shared tells nothing of the machine it was made on."""
    return source.replace("\\", "/").rpartition("/")[2]


def curve_of(held: MeasuredCurve, box: Topology, source: str) -> Curve:
    """A curve of a calibration file on ``box``.

    Raises:
        InputError: a GPU that the box does not have.
    """
    gpus = held.gpus or rank_order(box, held.ranks)
    for gpu in gpus:
        if gpu not in box.gpus:
            raise InputError(f"{source}: curves: one is of {gpu}, which {box.name} does not have")
    state = State(held.p2p, None, held.ccl, tuple(sorted(held.env.items())))
    times = np.asarray(held.time_us) * 1e-6
    return Curve(
        held.op,
        tuple(gpus),
        held.launch,
        np.asarray(held.bytes, dtype=float),
        times,
        state,
        (held.file,) if held.file else (),
        held.sigma_log,
    )


def gather(box: Topology, measured: Sequence[RelatedMeasurement]) -> Gathered:
    """The curves and copies of ``measured`` on ``box``: runs of one op on the same GPUs under one state are put together (median of
    each size), out-of-place times first.
    """
    found = Gathered()
    groups: dict[tuple[Any, ...], list[tuple[MeasuredRow, str]]] = {}
    copies: dict[tuple[Any, ...], list[tuple[MeasuredRow, str]]] = {}
    dropped: dict[str, int] = {}
    for one in measured:
        if one.measured.kind not in ("collective", "copy"):
            dropped[f"{one.source}: {one.measured.kind} rows"] = len(one.measured.rows)
            continue
        for row in one.measured.rows:
            arm = _arm(one.measured, row)
            state = state_of(box, arm.software or one.measured.software)
            if one.measured.kind == "copy":
                _put_copy(box, row, arm, state, one.source, copies, dropped)
                continue
            why = _why_not(row, arm)
            gpus = None if why else _gpus(box, row, arm, one)
            if why is None and gpus is None:
                why = f"runs of {row.ranks} ranks, which this box does not have or whose GPUs it does not know"
            if why is not None or gpus is None:
                dropped[f"{one.source}: {why}"] = dropped.get(f"{one.source}: {why}", 0) + 1
                continue
            groups.setdefault((row.op, gpus, launch_of(row, arm), state), []).append((row, one.source))
    for (op, gpus, launch, state), rows in list(groups.items())[:MOST_CURVES]:
        good = [pair for pair in rows if pair[0].quality == "good"]
        if good and len(good) < len(rows):
            text = f"{rows[0][1]}: {op} rows marked doubtful, beside good ones"
            dropped[text] = dropped.get(text, 0) + len(rows) - len(good)
        found.curves.append(_curve(op, gpus, launch, state, good or rows))
    if len(groups) > MOST_CURVES:
        found.unused.append(f"{len(groups) - MOST_CURVES} more curves than the {MOST_CURVES} that are fitted")
    found.copies = [_copies(key, rows) for key, rows in copies.items()]
    found.unused += [f"{text}: {counted(count, 'row')}" for text, count in dropped.items()]
    return found


def _arm(measured: MeasurementSet, row: MeasuredRow) -> ArmSpec:
    return measured.arms[row.arm] if row.arm is not None else ArmSpec()


def launch_of(row: MeasuredRow, arm: ArmSpec) -> CurveLaunch | None:
    """How the calls were launched."""
    launch = row.launch or arm.launch
    return "threads" if arm.own_threads and launch != "graph" else launch


def _why_not(row: MeasuredRow, arm: ArmSpec) -> str | None:
    if row.metric != "time" or not row.bytes:
        return "rows without a size or time"
    if row.quality == "unreliable":
        return "rows marked unreliable"
    if arm.all_reduce is not None:
        return f"an engine's own kernel ({arm.all_reduce[:40]}), not the collective library"
    if arm.conditions:
        return f"rows under a fault ({', '.join(arm.conditions)})"
    if row.op not in OPS:
        return f"{str(row.op)[:40]}, which has no cost model"
    return None


def _gpus(box: Topology, row: MeasuredRow, arm: ArmSpec, one: RelatedMeasurement) -> tuple[str, ...] | None:
    ranks = row.ranks
    if ranks is None or not 2 <= ranks <= len(box.gpus):
        return None
    known = arm.gpus or one.nodes
    gpus = tuple(known[:ranks]) if len(known) >= ranks else rank_order(box, ranks)
    return gpus if len(set(gpus)) == ranks and all(gpu in box.gpus for gpu in gpus) else None


def state_of(box: Topology, run: SoftwareRef) -> State:
    """The state of a run where its file says it, as far as the box's rules take it (a log may hold any value)."""
    found = State(run.p2p, run.acs, None, ())
    version = _VERSION.match(run.ccl.version or "")
    name = (run.ccl.name or "nccl").lower()
    if version is not None and name in ("nccl", "rccl"):
        found = _taken(box, found, ccl=f"{name} {version.group()}")
    for key, value in sorted(run.env.items()):
        found = _taken(box, found, env=(*found.env, (key, value)))
    return found


def _taken(box: Topology, state: State, **more: Any) -> State:
    other = replace(state, **more)
    try:
        other.of(box)
    except InputError:
        return state
    return other


def _curve(op: str, gpus: tuple[str, ...], launch: CurveLaunch | None, state: State, rows: Sequence[tuple[MeasuredRow, str]]) -> Curve:
    by_size: dict[int, list[float]] = {}
    aside: dict[int, list[float]] = {}
    for row, _ in rows:
        size = cast(int, row.bytes)
        (aside if row.in_place else by_size).setdefault(size, []).append(row.si_value)
    for size, times in aside.items():
        by_size.setdefault(size, times)
    sizes = sorted(by_size)
    if len(sizes) > MOST_SIZES:
        sizes = sizes[:: math.ceil(len(sizes) / MOST_SIZES)]
    spreads = [statistics.stdev([math.log(value) for value in by_size[size]]) for size in sizes if len(by_size[size]) > 2]
    twice = [abs(math.log(a / b)) / math.sqrt(2) for size in sizes if len(by_size[size]) == 2 for a, b in (by_size[size],)]
    seen = spreads + twice
    noise = max(LEAST_NOISE, statistics.median(seen)) if len(seen) > 2 else RUN_NOISE
    counts: dict[str, int] = {}
    for _, source in rows:
        counts[source] = counts.get(source, 0) + 1
    return Curve(
        op,
        gpus,
        launch,
        np.asarray(sizes, dtype=float),
        np.asarray([statistics.median(by_size[size]) for size in sizes]),
        state,
        tuple(counts),
        noise,
        len(rows),
        counts,
        statistics.median(seen) if seen else None,
    )


def _put_copy(
    box: Topology,
    row: MeasuredRow,
    arm: ArmSpec,
    state: State,
    source: str,
    copies: dict[tuple[Any, ...], list[tuple[MeasuredRow, str]]],
    dropped: dict[str, int],
) -> None:
    why = None
    if len(row.flows) != 1 or arm.conditions or row.quality == "unreliable":
        why = "copies of several flows at once (the doctor looks at them)" if len(row.flows) != 1 else "copies under a fault or unreliable"
    elif any(gpu not in box.gpus for gpu in row.flows[0]):
        why = "copies between GPUs that this box does not have"
    if why is not None:
        dropped[f"{source}: {why}"] = dropped.get(f"{source}: {why}", 0) + 1
        return
    src, dst = row.flows[0]
    at = state.of(box)
    rates = copy_rates(at, [(src, dst)], access=row.access)
    kind = f"{at.path_type(src, dst)}{' through host memory' if rates.staged else ''}"
    copies.setdefault((kind, row.access, state, round(math.log(rates.total), 6)), []).append((row, source))


def _copies(key: tuple[Any, ...], rows: Sequence[tuple[MeasuredRow, str]]) -> Copies:
    values = [row.si_value for row, _ in rows]
    kind, access, state, _ = key
    logs = [math.log(value) for value in values]
    noise = max(0.02, statistics.stdev(logs) if len(logs) > 2 else 0.05)
    pair = rows[0][0].flows[0]
    return Copies(pair, access, state, math.exp(statistics.median(logs)), noise, len(values), rows[0][1], kind)
