"""Measured collectives as curves over sizes, beside what the box should give."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from pcie_sim.errors import InputError, NoDataError
from pcie_sim.network import call_times, rank_order
from pcie_sim.network.costs import library_costs
from pcie_sim.results.timing import BUS_FACTORS
from pcie_sim.specs.measurement import ArmSpec, MeasuredRow, MeasurementSet, SoftwareRef
from pcie_sim.specs.ops import Array, CollectiveCall, CollectiveOp
from pcie_sim.topology import Topology

if TYPE_CHECKING:
    from pcie_sim.doctor.exam import Exam

_Z90 = 1.2816
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,3}(?:\.[0-9]{1,3})?")
_MOST_RUNS = 24
Launch = Literal["graph", "eager", "threads"]
"""Inside a CUDA graph; launched call by call; likewise, but with a thread or process for every GPU."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One run: sizes (bytes, rising) and times (s) of one op on some GPUs.

    ``launch``: None where the file does not say (then the CPU may be in it, as in an eager run).
    """

    op: str
    gpus: tuple[str, ...]
    sizes: Array
    times: Array
    launch: Launch | None
    box: Topology
    source: str
    arm: str

    @property
    def by_cpu(self) -> bool:
        """The CPU's launches may be in the times."""
        return self.launch != "graph"

    def busbw(self, times: Array) -> Array:
        """nccl-tests bus bandwidth of ``times``, B/s."""
        return self.sizes / times * BUS_FACTORS[self.op](len(self.gpus))

    @property
    def title(self) -> str:
        """``8-GPU all_reduce``."""
        return f"{len(self.gpus)}-GPU {self.op}"


@dataclass(frozen=True, eq=False)
class Expected:
    """What a box should give for a curve: times and their upper decile; ``floor``: the launch floor's upper decile (0: in a graph)."""

    times: Array
    p90: Array
    floor: float


def curves(exam: Exam) -> list[Curve]:
    """Every run of the related measurements that this box has the GPUs for, out-of-place times first."""
    found: list[Curve] = []
    for one in exam.related.measurements:
        if one.measured.kind != "collective":
            continue
        groups: dict[tuple[Any, ...], list[MeasuredRow]] = {}
        for row in one.measured.rows:
            arm = _arm(one.measured, row)
            if (
                row.metric != "time"
                or not row.bytes
                or row.quality == "unreliable"
                or arm.all_reduce is not None
                or row.op not in BUS_FACTORS
            ):
                continue
            groups.setdefault((row.arm, row.op, row.ranks, _launch(arm, row)), []).append(row)
        for (name, op, ranks, launch), rows in groups.items():
            if len(found) >= _MOST_RUNS:
                return found
            arm = _arm(one.measured, rows[0])
            known = arm.gpus or one.nodes
            gpus = tuple(known[:ranks]) if known else _first(exam.box, ranks)
            if gpus is None or len(gpus) < 2 or any(gpu not in exam.box.gpus for gpu in gpus):
                continue
            sizes, times = _sorted(rows)
            box = _box_of(exam, one.measured, arm)
            found.append(Curve(op, tuple(gpus), sizes, times, launch, box, one.source, name or ""))
    return found


def _arm(measured: MeasurementSet, row: MeasuredRow) -> ArmSpec:
    return measured.arms[row.arm] if row.arm is not None else ArmSpec()


def _launch(arm: ArmSpec, row: MeasuredRow) -> Launch | None:
    launch = row.launch or arm.launch
    return "threads" if arm.own_threads and launch != "graph" else launch


def _first(box: Topology, ranks: int | None) -> tuple[str, ...] | None:
    if ranks is None or not 2 <= ranks <= len(box.gpus):
        return None
    return tuple(rank_order(box, ranks))


def _sorted(rows: list[MeasuredRow]) -> tuple[Array, Array]:
    """Sizes and times, one of each size: the best out-of-place time, else the best."""
    best: dict[int, tuple[bool, float]] = {}
    for row in rows:
        size = cast(int, row.bytes)
        best[size] = min(best.get(size, (True, math.inf)), (bool(row.in_place), row.si_value))
    sizes = sorted(best)
    return np.asarray(sizes, dtype=float), np.asarray([best[size][1] for size in sizes])


def _box_of(exam: Exam, measured: MeasurementSet, arm: ArmSpec) -> Topology:
    """The box under the settings of the run, where the set says them."""
    run: SoftwareRef = arm.software or measured.software
    settings: dict[str, Any] = {}
    if run.p2p is not None:
        settings["p2p"] = run.p2p
    if run.acs is not None:
        settings["acs"] = run.acs
    version = _VERSION.match(run.ccl.version or "")
    if version is not None and (run.ccl.name or "nccl").lower() in ("nccl", "rccl"):
        settings["ccl"] = f"{(run.ccl.name or 'nccl').lower()} {version.group()}"
    if run.env:
        settings["env"] = {key: value for key, value in run.env.items() if _takes(exam, env={key: value})}
    kept = {key: value for key, value in settings.items() if key == "env" or _takes(exam, **{key: value})}
    return exam.set(**kept) if kept else exam.box


def _takes(exam: Exam, **setting: Any) -> bool:
    """The box's rules take this value (a log may hold any)."""
    try:
        exam.box.with_settings(**setting)
    except InputError:
        return False
    return True


def expected(curve: Curve, box: Topology | None, *, protocol: str = "auto") -> Expected | None:
    """What ``box`` should give at the sizes of ``curve``; None where it cannot be predicted.

    Calls launched one by one from one thread are no faster than the CPU's issue floor; with a thread for each GPU they are priced as in a
    graph. In both the floor is kept: no host's CPU is known.
    """
    if box is None:
        return None
    call = CollectiveCall(cast(CollectiveOp, curve.op), curve.sizes, (tuple(range(len(curve.gpus))),))
    try:
        found = call_times(box, call, gpu_of_rank=curve.gpus, protocol=protocol)
    except (InputError, NoDataError):
        return None
    times = found.time_s
    sigma = np.sqrt((found.latency_s * found.sigma_latency) ** 2 + (found.bytes_s * found.sigma_bytes) ** 2) / times
    p90 = times * np.exp(_Z90 * sigma)
    if not curve.by_cpu:
        return Expected(times, p90, 0.0)
    floor = library_costs(box.settings.ccl).floor(len(curve.gpus), curve.op)
    high = floor.value * math.exp(_Z90 * floor.sigma)
    if curve.launch == "threads":
        return Expected(times, p90, high)
    return Expected(np.maximum(times, floor.value), np.maximum(p90, high), high)
