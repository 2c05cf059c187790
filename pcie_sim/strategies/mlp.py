"""One layer's MLP on one rank: dense, or router + routed experts + shared experts, and the exchange around it."""

from __future__ import annotations

import math

import numpy as np

from pcie_sim.specs.ops import Array, Elementwise, Experts, Gemm, StepOp
from pcie_sim.specs.quantisation import BF16, WeightFormat
from pcie_sim.specs.routing import Popularity, distinct_destinations, expected_distinct, rank_load
from pcie_sim.strategies.context import PlanContext
from pcie_sim.strategies.exchange import after_mlp, before_mlp

Z90 = 1.2815515655446004
"""90 % point of the standard normal."""


def dense_ops(p: PlanContext, stage: int) -> list[StepOp]:
    """A dense MLP layer (gate and up, activation, down)."""
    rows = p.batch if p.cut.dense == p.strategy.tp * p.strategy.dp else p.batch_dp
    ops = before_mlp(p, stage, dense=True)
    ops += _two_gemms(p, "mlp", "dense", rows, p.model.mlp.dense_intermediate / p.cut.dense, p.model.quantisation.linear)
    ops.append(StepOp("mlp small kernels", "dense", Elementwise(p.runtime.small_kernels.dense, rows * p.hidden_bytes * 4)))
    return ops + after_mlp(p, stage, dense=True)


def moe_ops(p: PlanContext, stage: int) -> list[StepOp]:
    """A mixture-of-experts layer."""
    if p.resolved.moe_comm == "a2a":
        return _a2a(p, stage)
    rows = p.batch
    ops = before_mlp(p, stage, dense=False)
    ops += _router(p, rows)
    ops += _shared(p, rows, p.cut.shared)
    ops.append(_experts(p, rows))
    ops.append(StepOp("moe small kernels", "experts", Elementwise(p.runtime.small_kernels.moe, rows * p.hidden_bytes * 4)))
    return ops + after_mlp(p, stage, dense=False)


def _router(p: PlanContext, rows: Array) -> list[StepOp]:
    return [StepOp("router", "experts", Gemm(rows, p.model.mlp.experts, p.model.hidden_size, BF16))]


def _two_gemms(p: PlanContext, name: str, bucket: str, rows: Array, inter: float, weight: WeightFormat) -> list[StepOp]:
    width, h = math.ceil(inter), p.model.hidden_size
    where = "dense" if bucket == "dense" else "experts"
    return [
        StepOp(f"{name} gate_up", where, Gemm(rows, 2 * width, h, weight)),  # type: ignore[arg-type]
        StepOp(f"{name} down", where, Gemm(rows, h, width, weight)),  # type: ignore[arg-type]
    ]


def _shared(p: PlanContext, rows: Array, cut: int) -> list[StepOp]:
    """Shared experts: a dense MLP beside the routed ones, on a second stream where the engine does so under CUDA graphs."""
    mlp = p.model.mlp
    if not mlp.shared_experts or not mlp.shared_intermediate:
        return []
    inter = mlp.shared_experts * mlp.shared_intermediate / cut
    hidden = "experts" if p.runtime.moe.hides_shared_experts else None
    ops = _two_gemms(p, "shared", "experts", rows, inter, p.model.quantisation.shared_format)
    return [StepOp(op.name, op.bucket, op.call, op.count, hidden) for op in ops]


def _experts(p: PlanContext, rows: Array) -> StepOp:
    """Routed experts. Under expert parallelism the step waits for the fullest rank: the exchange after it joins all ranks."""
    mlp, s = p.model.mlp, p.strategy
    if s.ep == 1:
        distinct = expected_distinct(rows, mlp.experts, mlp.top_k, p.popularity)
        slots = rows * mlp.top_k
    else:
        load = rank_load(rows, mlp.experts, mlp.top_k, s.ep, p.popularity)
        distinct, slots = load.fullest_distinct, load.fullest_slots
    # How experts are chosen is not known unless it was said: Zipf with exponent 1 is taken as the 10 % point of what is plausible.
    spread = np.zeros_like(rows)
    if p.popularity == Popularity():
        skewed = expected_distinct(rows, mlp.experts, mlp.top_k, Popularity("zipf", 1.0))
        spread = np.log(expected_distinct(rows, mlp.experts, mlp.top_k) / skewed) / Z90
    call = Experts(
        tokens=rows,
        distinct=distinct,
        slots=slots,
        local=mlp.experts // s.ep,
        hidden=p.model.hidden_size,
        inter=math.ceil(mlp.moe_intermediate / s.expert_tp),
        weight=p.model.quantisation.experts,
        distinct_sigma=np.maximum(spread, 0.0),
    )
    return StepOp("experts", "experts", call)


def _a2a(p: PlanContext, stage: int) -> list[StepOp]:
    """Dispatch, local experts, combine. Both AllReduces of the layer are gone; so is the sharding of what they joined.

    A rank hands in its share of the tokens (rounded up); one copy goes to each rank that holds one of the token's experts
    (or one per chosen expert), its own included; combine brings the same number of rows back.
    """
    mlp, s, rules = p.model.mlp, p.strategy, p.runtime.moe
    own = np.ceil(p.batch_dp / s.tp)
    copies = distinct_destinations(mlp.experts, mlp.top_k, s.ep) if rules.copies_per == "rank" else float(mlp.top_k)
    rows = own * copies
    groups = p.width_groups(stage)
    h = p.model.hidden_size
    out_bytes = rows * (h * rules.dispatch_bytes_per_element.value)
    back_bytes = rows * (h * rules.combine_bytes_per_element.value)
    shared_cut = p.cut.shared if p.cut.shared <= s.tp else 1
    shared_rows = own if shared_cut == 1 else p.batch_dp
    ops = before_mlp(p, stage, dense=False) + _router(p, own)
    ops.append(p.comm("dispatch", "all_to_all", out_bytes, groups))
    ops += _shared(p, shared_rows, shared_cut)
    ops.append(_experts(p, p.batch))
    ops.append(StepOp("moe small kernels", "experts", Elementwise(p.runtime.small_kernels.moe + 2, rows * p.hidden_bytes * 2)))
    ops.append(p.comm("combine", "all_to_all", back_bytes, groups))
    if s.tp > 1:
        size = p.batch_dp * p.hidden_bytes
        if shared_cut > 1:
            ops.append(p.comm("shared experts all_reduce", "all_reduce", size, p.tp_groups(stage)))
        ops.append(p.comm("moe all_gather", "all_gather", size, p.tp_groups(stage)))
    return ops
