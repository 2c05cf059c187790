"""From a step plan to times: each line's exposed time, its cause of uncertainty and its evidence.

Without CUDA graphs the CPU is a parallel track of its own: GPU work takes what it takes inside a graph, and what the CPU needs to
issue it beyond that is exposed as ``launch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pcie_sim.compute import KernelModel, bytes_moved, class_key
from pcie_sim.evidence import Evidence
from pcie_sim.network import call_times
from pcie_sim.network.call_times import CallTimer
from pcie_sim.results.comparison import BREAKDOWN_KEYS
from pcie_sim.serving.uncertainty import Causes
from pcie_sim.specs.ops import (
    Array,
    BoolArray,
    CollectiveCall,
    Elementwise,
    Experts,
    KernelCall,
    StepOp,
)
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.strategies import Stage, StepPlan
from pcie_sim.topology import Topology


@dataclass(frozen=True, eq=False)
class Line:
    """One line of the step with its exposed time in all (count included), seconds, shape of the plan."""

    op: StepOp
    stage: int
    time_s: Array
    evidence: Evidence
    extrapolated: BoolArray


@dataclass(eq=False)
class Part:
    """Sums over some lines (a stage, a boundary)."""

    total: Array
    buckets: dict[str, Array]
    extrapolated: BoolArray
    causes: Causes = field(default_factory=Causes)
    by_evidence: dict[Evidence, Array] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    cpu_s: float = 0.0

    @staticmethod
    def empty(shape: tuple[int, ...]) -> Part:
        """Nothing yet."""
        return Part(np.zeros(shape), {key: np.zeros(shape) for key in BREAKDOWN_KEYS}, np.zeros(shape, dtype=np.bool_))

    def book(self, bucket: str, time: Array, evidence: Evidence) -> None:
        """Add exposed time."""
        self.total = self.total + time
        self.buckets[bucket] = self.buckets[bucket] + time
        self.by_evidence[evidence] = self.by_evidence.get(evidence, np.zeros_like(time)) + time

    def merge(self, other: Part) -> None:
        """Add another part's sums and lines."""
        self.total = self.total + other.total
        for key, value in other.buckets.items():
            self.buckets[key] = self.buckets[key] + value
        for cause, time in other.causes.time.items():
            self.causes.time[cause] = self.causes.time.get(cause, 0.0) + time
            self.causes.weighted[cause] = self.causes.weighted.get(cause, 0.0) + other.causes.weighted[cause]
        for label, time in other.by_evidence.items():
            self.by_evidence[label] = self.by_evidence.get(label, np.zeros_like(time)) + time
        self.extrapolated = self.extrapolated | other.extrapolated
        self.lines += other.lines
        self.cpu_s += other.cpu_s


class Timer:
    """Times lines on one box for one launch mode; kernel calls that several stages share are timed once."""

    def __init__(
        self,
        topology: Topology,
        kernels: KernelModel,
        runtime: RuntimeSpec,
        gpu_of_rank: Sequence[str],
        launch: str,
        shape: tuple[int, ...],
        calls: CallTimer = call_times,
    ) -> None:
        self.topology, self.kernels, self.runtime = topology, kernels, runtime
        self.gpu_of_rank = tuple(gpu_of_rank)
        self.launch = launch
        self.shape = shape
        self.calls = calls
        self._kernel_cache: dict[int, tuple[KernelCall, Array, Evidence, Array, BoolArray]] = {}

    def stage(self, stage: Stage) -> Part:
        """One stage's exposed time for one micro-batch, the CPU's part in eager mode included."""
        part = self.lines(stage.ops, stage.index)
        if self.launch == "eager":
            exposed = np.maximum(part.cpu_s - part.total, 0.0)
            part.book("launch", exposed, "assumed")
            part.causes.add("cpu:launch", exposed, self.runtime.collective_issue.sigma_log)
        return part

    def lines(self, ops: Sequence[StepOp], index: int) -> Part:
        """Some lines one after the other; those hidden by another only as far as they exceed it."""
        part = Part.empty(self.shape)
        hidden: dict[str, list[StepOp]] = {}
        for op in ops:
            if op.hidden_by and self.launch == "graph":
                hidden.setdefault(op.hidden_by, []).append(op)
            elif isinstance(op.call, CollectiveCall):
                self._collective(part, op, op.call, index)
            else:
                self._kernel(part, op, op.call, index)
        for host_name, guests in hidden.items():
            host = next((op for op in ops if op.name == host_name), None)
            self._beside(part, host, guests, index)
        return part

    def _time(self, call: KernelCall) -> tuple[KernelCall, Array, Evidence, Array, BoolArray]:
        found = self._kernel_cache.get(id(call))
        if found is None:
            timed = self.kernels.time(call, launch="graph")
            time = np.broadcast_to(timed.time_s, self.shape)
            sigma = np.broadcast_to(timed.sigma_log, self.shape)
            if isinstance(call, Experts):
                sigma = np.hypot(sigma, call.distinct_sigma)
            found = (call, time, timed.evidence, sigma, np.broadcast_to(timed.extrapolated, self.shape))
            self._kernel_cache[id(call)] = found
        return found

    def _kernel(self, part: Part, op: StepOp, call: KernelCall, index: int, *, exposed: Array | None = None) -> None:
        _, time, evidence, sigma, beyond = self._time(call)
        total = (time if exposed is None else exposed) * op.count
        part.book(op.bucket, total, evidence)
        part.causes.add(f"kernel:{op.bucket}:{type(call).__name__}", total, sigma)
        part.extrapolated = part.extrapolated | beyond
        part.lines.append(Line(op, index, total, evidence, beyond))
        launched = call.kernels if isinstance(call, Elementwise) else self.kernels.kernel_class(class_key(call)).kernels
        part.cpu_s += op.count * launched * self.kernels.profile.small_kernel_eager_s

    def _collective(self, part: Part, op: StepOp, call: CollectiveCall, index: int) -> None:
        custom = self.runtime.custom_all_reduce if self.launch == "graph" else None
        timed = self.calls(self.topology, call, gpu_of_rank=self.gpu_of_rank, launch="graph", custom=custom)
        total = np.zeros(self.shape)
        for piece in timed.booked():
            time = np.broadcast_to(piece.time_s, self.shape) * op.count
            total = total + time
            part.book(op.bucket, time, piece.evidence)
            part.causes.add(piece.cause, time, np.broadcast_to(piece.sigma, self.shape))
        beyond = np.broadcast_to(timed.extrapolated, self.shape)
        part.extrapolated = part.extrapolated | beyond
        part.lines.append(Line(op, index, total, timed.evidence, beyond))
        part.cpu_s += op.count * self.runtime.collective_issue.value

    def _stream_bandwidth(self) -> float:
        """The memory rate that a large bf16 GEMM of this GPU reaches, B/s."""
        share = self.kernels.kernel_class("gemm:bf16").bandwidth_share
        return share * self.kernels.gpu.memory_bandwidth.value

    def _beside(self, part: Part, host: StepOp | None, guests: Sequence[StepOp], index: int) -> None:
        """Guests run on a second stream beside the host: together they cannot read memory faster than one kernel can.

        Exposed = max(host, guests, all bytes / achievable bandwidth) - host, shared among the guests by their own time.
        """
        if host is None or isinstance(host.call, CollectiveCall):
            for op in guests:
                if not isinstance(op.call, CollectiveCall):
                    self._kernel(part, op, op.call, index)
            return
        calls = [op.call for op in guests if not isinstance(op.call, CollectiveCall)]
        alone = sum((self._time(call)[1] for call in calls), np.zeros(self.shape))
        moved = bytes_moved(host.call) + sum(bytes_moved(call) for call in calls)
        host_time = self._time(host.call)[1]
        together = np.maximum(np.maximum(host_time, alone), np.broadcast_to(moved, self.shape) / self._stream_bandwidth())
        share = np.clip((together - host_time) / np.maximum(alone, 1e-12), 0.0, 1.0)
        for op, call in zip(guests, calls, strict=True):
            self._kernel(part, op, call, index, exposed=self._time(call)[1] * share)


def time_plan(plan: StepPlan, timer: Timer) -> tuple[list[Part], list[Part]]:
    """Every stage and every boundary of the plan."""
    stages = [timer.stage(stage) for stage in plan.stages]
    return stages, [timer.lines(ops, index) for index, ops in enumerate(plan.boundaries)]
