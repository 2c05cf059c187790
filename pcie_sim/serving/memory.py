"""Does it fit, and how many requests does the KV cache hold: weights and KV of the fullest rank against the engine's budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcie_sim.results.comparison import Memory
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.ops import Array
from pcie_sim.specs.runtime import GraphTier, RuntimeSpec
from pcie_sim.specs.workload import Workload
from pcie_sim.strategies import Resolved, kv_bytes_per_request, rank_weights
from pcie_sim.units import MIB, counted, format_gb

NO_LIMIT = 10**9


@dataclass(frozen=True, eq=False)
class Capacity:
    """Memory of one strategy, per context: ``cap`` requests of the whole box, 0 where not even one fits.

    Arrays have the shape of the contexts; ``weights`` and ``budget`` are of the stage that binds, ``rank`` its first rank.
    """

    budget_bytes: float
    weights_bytes: Array
    kv_bytes_per_request: Array
    kv_free_bytes: Array
    cap: Array
    rank: Array
    engine_cap: int | None

    def running(self, concurrency: Array) -> Array:
        """Requests in decode at once for ``concurrency`` asked (where nothing fits: as asked, 'if it fitted')."""
        limit = np.where(self.cap >= 1, self.cap, np.inf)
        if self.engine_cap is not None:
            limit = np.minimum(limit, float(self.engine_cap))
        return np.minimum(concurrency, limit)

    def memory(self, index: int, *, concurrency: int) -> Memory:
        """The answer's memory part for context ``index``."""
        cap = int(self.cap[index])
        weights, free, per = float(self.weights_bytes[index]), float(self.kv_free_bytes[index]), float(self.kv_bytes_per_request[index])
        reason = None
        if cap < 1:
            reason = (
                f"weights {format_gb(weights)} + {format_gb(per)} KV of one request exceed the {format_gb(self.budget_bytes)} "
                f"that a rank may use by the engine's memory rule (by {format_gb(weights + per - self.budget_bytes)})"
            )
        elif concurrency > cap:
            reason = f"KV holds {counted(cap, 'request')} at once ({format_gb(free)} free, {per / 1e6:.0f} MB each); the rest queue"
        elif self.engine_cap is not None and concurrency > self.engine_cap:
            reason = f"the engine's cap is {counted(self.engine_cap, 'running request')}; the rest queue"
        return Memory(self.budget_bytes, weights, per, max(free, 0.0), min(cap, NO_LIMIT), int(self.rank[index]), reason)


def graph_tier(gpu: GpuSpec, runtime: RuntimeSpec) -> GraphTier:
    """The engine's defaults for a GPU of this size."""
    mib = gpu.memory.value / MIB
    for tier in runtime.graph_tiers:
        if tier.below_MiB is None or mib < tier.below_MiB:
            return tier
    return runtime.graph_tiers[-1]


def graph_max_batch(gpu: GpuSpec, runtime: RuntimeSpec, tp: int) -> int:
    """Largest decode batch that the engine captures in a CUDA graph; larger ones run eager."""
    tier = graph_tier(gpu, runtime)
    return tier.max_batch_tp_below_4 if tp < 4 else tier.max_batch


def static_budget(model: ModelSpec, gpu: GpuSpec, runtime: RuntimeSpec, resolved: Resolved, *, mem_fraction: float | None) -> float:
    """Bytes of one GPU that weights and KV together may take."""
    rules = runtime.memory
    fraction = mem_fraction if mem_fraction is not None else rules.static_fraction
    if fraction is None:
        fraction = _derived_fraction(model, gpu, runtime, resolved)
    held_back = _activations(model, gpu, runtime, resolved)
    if resolved.strategy.engine_world > 1:
        held_back += rules.ccl_buffers.value
    return max(0.0, gpu.memory.value * fraction - held_back)


def _derived_fraction(model: ModelSpec, gpu: GpuSpec, runtime: RuntimeSpec, resolved: Resolved) -> float:
    """The static fraction by SGLang's rule (server_args.py, _handle_gpu_memory_settings and adjust_mem_fraction_for_vlm)."""
    rules, s = runtime.memory, resolved.strategy
    tier = graph_tier(gpu, runtime)
    batch = graph_max_batch(gpu, runtime, s.tp * s.dp)
    reserve = rules.constant_MiB + max(tier.chunk, 2048) * rules.per_chunk_token_MiB + batch * rules.per_graph_batch_MiB
    reserve += s.tp * s.dp * s.pp / 8 * rules.per_eight_ranks_MiB
    if s.dp > 1:
        reserve += batch * s.dp * rules.per_dp_graph_batch_MiB
        if batch > rules.large_graph_batch:
            reserve += batch * s.dp * rules.per_dp_large_graph_batch_MiB
    multimodal = model.extra_params > 0
    if s.pp == 1 and s.dp == 1 and resolved.moe_comm != "a2a" and not multimodal:
        reserve += rules.piecewise_graph_MiB
    total = gpu.memory.value / MIB
    if total > 60 * 1024:
        reserve = max(reserve, rules.minimum_reserve_MiB)
    return max(0.0, (total - reserve) / total) * (rules.multimodal_factor if multimodal else 1.0)


def _activations(model: ModelSpec, gpu: GpuSpec, runtime: RuntimeSpec, resolved: Resolved) -> float:
    """Bytes left free inside the static part for the activations of one prefill chunk."""
    rules, mlp = runtime.memory, model.mlp
    wide = max(mlp.dense_intermediate, mlp.moe_intermediate * mlp.top_k) / resolved.strategy.tp
    per_token = rules.activation_bytes_per_hidden * model.hidden_size + rules.activation_bytes_per_intermediate * wide
    return rules.activation_reserve.value + graph_tier(gpu, runtime).chunk * per_token


def capacity(model: ModelSpec, resolved: Resolved, runtime: RuntimeSpec, gpus: list[GpuSpec], workload: Workload) -> Capacity:
    """Memory of ``resolved`` for every context of the workload; the smallest GPU decides."""
    s = resolved.strategy
    contexts = np.asarray(workload.context, dtype=np.float64)
    weights = rank_weights(model, resolved, runtime)
    per_request = kv_bytes_per_request(model, resolved, contexts)
    smallest = min(gpus, key=lambda gpu: gpu.memory.value)
    budget = static_budget(model, smallest, runtime, resolved, mem_fraction=workload.mem_fraction)
    caps = np.empty((len(weights), contexts.size))
    for stage, (held, per) in enumerate(zip(weights, per_request, strict=True)):
        free = budget - held
        caps[stage] = np.where(free >= per, np.floor(np.minimum(free / np.maximum(per, 1e-9), NO_LIMIT)), 0.0)
    stage_of = np.argmin(caps, axis=0)
    fit = caps[stage_of, np.arange(contexts.size)] * s.dp * s.replicas
    held_at = np.asarray(weights)[stage_of]
    per_at = np.stack(per_request)[stage_of, np.arange(contexts.size)]
    # The engine's own cap is per scheduler: per data-parallel rank and replica.
    own_cap = graph_tier(smallest, runtime).max_running
    engine_cap = workload.max_running if workload.max_running is not None else own_cap and own_cap * s.dp * s.replicas
    return Capacity(budget, held_at, per_at, budget - held_at, fit, stage_of * s.tp * s.dp, engine_cap)
