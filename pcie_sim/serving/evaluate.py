"""One strategy over a whole grid of concurrencies and contexts, in one evaluation.

One replica, p stages, m micro-batches in flight, T_s the time of stage s for one micro-batch, H_i of boundary i:

    latency = sum T_s + sum H_i + launch                      (a micro-batch passes the stages one after the other)
    cycle   = max_s sum over micro-batches (T_s + H_s + CPU)  (the slowest stage serves every micro-batch once per token)
    TPOT    = max(latency, cycle); the excess of the cycle over the latency is booked as bubble.

Requests are spread over the micro-batches as evenly as they go: some hold one request more than the others; the latency is that of the
fuller ones. The CPU's part of a step is in the cycle unless the engine overlaps scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcie_sim.compute import KernelModel, kernel_model
from pcie_sim.evidence import Evidence, label_of_sum, share_by_label
from pcie_sim.network import call_times, rank_order
from pcie_sim.network.call_times import CallTimer
from pcie_sim.results.comparison import OpTime, Point
from pcie_sim.serving.memory import Capacity, capacity, graph_max_batch
from pcie_sim.serving.step import Line, Part, Timer, time_plan
from pcie_sim.serving.uncertainty import Causes
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.ops import Array, BoolArray, CollectiveCall
from pcie_sim.specs.routing import parse_popularity
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.specs.workload import Workload
from pcie_sim.strategies import Resolved, StepPlan, build_plan
from pcie_sim.topology import Topology


@dataclass(frozen=True, eq=False)
class StrategyResult:
    """One strategy on one grid: axes (concurrency, context). ``samples`` are TPOTs in plausible worlds, s."""

    resolved: Resolved
    plan: StepPlan
    capacity: Capacity
    tpot_s: Array
    samples: Array
    running: Array
    parts: Part
    causes: Causes
    eager: BoolArray
    hop_s: Array
    """All boundaries together, CPU cost included (0 without a pipeline)."""

    @property
    def strategy(self) -> str:
        """As asked."""
        return self.resolved.strategy.text

    def point(self, i: int, j: int, workload: Workload) -> Point:
        """The answer at concurrency ``i`` and context ``j``."""
        tpot, running = float(self.tpot_s[i, j]), float(self.running[i, j])
        low, high = np.quantile(self.samples[:, i, j], (0.1, 0.9))
        low, high = min(float(low), tpot), max(float(high), tpot)
        by_label = [(float(time[i, j]), label) for label, time in self.parts.by_evidence.items()]
        concurrency = workload.concurrency[i]
        fits = bool(self.capacity.cap[j] >= 1)
        return Point(
            strategy=self.strategy,
            canonical=self.resolved.strategy.with_moe_comm(None).canonical,
            moe_comm=self.resolved.moe_comm,
            concurrency=concurrency,
            context=workload.context[j],
            fits=fits,
            queued=fits and running < concurrency,
            running=running,
            tpot_ms=tpot * 1e3,
            tpot_ms_p10=low * 1e3,
            tpot_ms_p90=high * 1e3,
            tokens_per_s=running / tpot,
            tokens_per_s_p10=running / high,
            tokens_per_s_p90=running / low,
            breakdown_ms={key: float(value[i, j]) * 1e3 for key, value in self.parts.buckets.items()},
            evidence=label_of_sum(by_label),
            evidence_share={str(label): share for label, share in share_by_label(by_label).items()},
            extrapolated=bool(self.parts.extrapolated[i, j]),
            memory=self.capacity.memory(j, concurrency=concurrency),
            launch="eager" if self.eager[i, j] else "graph",
            micro_batches=int(self.plan.load.micro_batches[i, j]),
        )

    def ops(self, i: int, j: int) -> tuple[OpTime, ...]:
        """The lines of the step at one point, equal names of all stages merged, longest first."""
        merged: dict[tuple[str, str], _Merged] = {}
        for line in self.parts.lines:
            call = line.op.call
            size = float(np.broadcast_to(call.bytes, self.tpot_s.shape)[i, j]) if isinstance(call, CollectiveCall) else None
            name = "hop" if line.op.bucket == "send_recv" and line.op.name.startswith("hop") and " to " in line.op.name else line.op.name
            entry = merged.setdefault(
                (name, line.op.bucket), _Merged(size, line.evidence, line.op.hidden_by if not self.eager[i, j] else None)
            )
            entry.count += line.op.count
            entry.ms += float(line.time_s[i, j]) * 1e3
        found = [OpTime(name, kind, e.count, e.bytes, e.ms, e.evidence, hidden_by=e.hidden_by) for (name, kind), e in merged.items()]
        for key in ("launch", "bubble", "send_recv"):
            booked = float(self.parts.buckets[key][i, j]) * 1e3 - sum(op.ms for op in found if op.kind == key)
            if booked > 1e-9:
                name = {"launch": "CPU exposed", "bubble": "waiting for other micro-batches", "send_recv": "hop CPU"}[key]
                found.append(OpTime(name, key, 1.0, None, booked, "assumed"))
        return tuple(sorted(found, key=lambda op: -op.ms))


@dataclass
class _Merged:
    bytes: float | None
    evidence: Evidence
    hidden_by: str | None = None
    count: float = 0.0
    ms: float = 0.0


def evaluate(
    topology: Topology,
    model: ModelSpec,
    runtime: RuntimeSpec,
    resolved: Resolved,
    workload: Workload,
    calls: CallTimer = call_times,
) -> StrategyResult:
    """Times, memory and error bars of one strategy for every point of ``workload``.

    ``calls`` prices collective calls: :func:`pcie_sim.network.call_times`, or that of a calibrated box.
    """
    s = resolved.strategy
    order = rank_order(topology, s.world)
    gpus = [topology.gpu_spec(node) for node in order]
    held = capacity(model, resolved, runtime, gpus, workload)
    asked = np.asarray(workload.concurrency, dtype=np.float64)[:, None] + np.zeros((1, len(workload.context)))
    running = held.running(asked)
    contexts = np.asarray(workload.context, dtype=np.float64)[None, :]
    popularity = parse_popularity(workload.popularity)
    plan = build_plan(model, resolved, runtime, running=running, context=contexts, popularity=popularity)
    lighter = None
    if s.pp > 1 and np.any(plan.load.fuller < plan.load.micro_batches):
        lean = (plan.load.batch - 1) * plan.load.micro_batches * s.replicas
        lean = np.where(plan.load.fuller < plan.load.micro_batches, lean, running)
        lighter = build_plan(model, resolved, runtime, running=lean, context=contexts, popularity=popularity)
    # The slowest memory decides where GPUs are mixed: every exchange waits for it.
    kernels = kernel_model(min(gpus, key=lambda gpu: gpu.memory_bandwidth.value))
    launch = workload.launch or runtime.launch
    over_cap = plan.load.batch_dp > min(graph_max_batch(gpu, runtime, s.tp * s.dp) for gpu in gpus)
    eager = np.full(asked.shape, launch == "eager") | over_cap
    box = _Box(topology, kernels, runtime, order, calls)
    whole, tpot, hop = _step(plan, lighter, box, eager)
    # Several causes that no part shows (clocks, kernels in between): one factor per strategy.
    plan_name = s.with_moe_comm(resolved.moe_comm).canonical  # equal plans have equal doubts, however they were asked for
    samples = whole.causes.samples(common={f"engine:{plan_name}": runtime.model_error.sigma_log})
    return StrategyResult(resolved, plan, held, tpot, samples, running, whole, whole.causes, eager, hop)


@dataclass(frozen=True, eq=False)
class _Box:
    """Where and with what a plan runs."""

    topology: Topology
    kernels: KernelModel
    runtime: RuntimeSpec
    order: tuple[str, ...]
    calls: CallTimer

    def timed(self, plan: StepPlan, launch: str) -> tuple[list[Part], list[Part]]:
        """Stages and boundaries of the plan; a boundary carries its CPU cost."""
        shape = plan.load.running.shape
        stages, hops = time_plan(plan, Timer(self.topology, self.kernels, self.runtime, self.order, launch, shape, self.calls))
        hop_cpu = self.runtime.pipeline.hop_cpu
        for hop in hops:
            hop.book("send_recv", np.full(shape, hop_cpu.value), hop_cpu.evidence)
            hop.causes.add("cpu:hop", np.full(shape, hop_cpu.value), hop_cpu.sigma_log)
        return stages, hops

    def occupied(self, stages: list[Part], hops: list[Part]) -> Array:
        """Seconds that each stage needs for one micro-batch, shape (stages, ...)."""
        cpu = 0.0 if self.runtime.pipeline.overlap_scheduling else self.runtime.step_cpu.value
        return np.stack([part.total + (hops[i].total if i < len(hops) else 0.0) + cpu for i, part in enumerate(stages)])


def _step(plan: StepPlan, lighter: StepPlan | None, box: _Box, eager: BoolArray) -> tuple[Part, Array, Array]:
    if eager.all() or not eager.any():
        return _one_launch(plan, lighter, box, "eager" if eager.all() else "graph")
    graph = _one_launch(plan, lighter, box, "graph")
    slow = _one_launch(plan, lighter, box, "eager")
    return _mixed(graph[0], slow[0], eager), np.where(eager, slow[1], graph[1]), np.where(eager, slow[2], graph[2])


def _one_launch(plan: StepPlan, lighter: StepPlan | None, box: _Box, launch: str) -> tuple[Part, Array, Array]:
    shape = plan.load.running.shape
    stages, hops = box.timed(plan, launch)
    whole = Part.empty(shape)
    for part in (*stages, *hops):
        whole.merge(part)
    step_cpu = box.runtime.step_cpu
    whole.book("launch", np.full(shape, step_cpu.value), step_cpu.evidence)
    whole.causes.add("cpu:step", np.full(shape, step_cpu.value), step_cpu.sigma_log)
    latency = whole.total
    hop_total = sum((hop.total for hop in hops), np.zeros(shape))
    if not hops:
        return whole, latency, hop_total
    full = box.occupied(stages, hops)
    lean = full if lighter is None else box.occupied(*box.timed(lighter, launch))
    load = plan.load
    cycle = np.max(load.fuller * full + (load.micro_batches - load.fuller) * lean, axis=0)
    tpot = np.maximum(latency, cycle)
    waiting = tpot - latency
    # Waiting is other micro-batches' work: as uncertain, and with the same evidence, as the work itself.
    whole.causes = whole.causes.scaled(tpot / latency)
    whole.by_evidence = {label: time * (tpot / latency) for label, time in whole.by_evidence.items()}
    whole.buckets["bubble"] = whole.buckets["bubble"] + waiting
    whole.total = whole.total + waiting
    return whole, tpot, hop_total


def _mixed(graph: Part, slow: Part, eager: BoolArray) -> Part:
    """Point by point the one or the other."""
    zeros = np.zeros(eager.shape)

    def pick(a: Array | None, b: Array | None) -> Array:
        return np.where(eager, zeros if b is None else b, zeros if a is None else a)

    causes = Causes()
    for name in {**graph.causes.time, **slow.causes.time}:
        causes.time[name] = pick(graph.causes.time.get(name), slow.causes.time.get(name))
        causes.weighted[name] = pick(graph.causes.weighted.get(name), slow.causes.weighted.get(name))
    labels = {**graph.by_evidence, **slow.by_evidence}
    return Part(
        total=pick(graph.total, slow.total),
        buckets={key: pick(graph.buckets[key], slow.buckets[key]) for key in graph.buckets},
        causes=causes,
        by_evidence={label: pick(graph.by_evidence.get(label), slow.by_evidence.get(label)) for label in labels},
        extrapolated=np.where(eager, slow.extrapolated, graph.extrapolated),
        lines=_mixed_lines(graph.lines, slow.lines, eager),
    )


def _mixed_lines(graph: list[Line], slow: list[Line], eager: BoolArray) -> list[Line]:
    """The same lines of the two launch modes (their order differs where streams overlap), point by point."""
    other = {id(line.op): line for line in slow}
    found = []
    for line in graph:
        twin = other[id(line.op)]
        beyond = np.where(eager, twin.extrapolated, line.extrapolated)
        found.append(Line(line.op, line.stage, np.where(eager, twin.time_s, line.time_s), line.evidence, beyond))
    return found
