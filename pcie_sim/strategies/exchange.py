"""What joins the ranks around an MLP or MoE layer, by the strategy's exchange.

Tensor parallel: an AllReduce after o_proj and one after the MLP. Attention data parallel with ``ag_rs`` (SGLang dp_attention.py:
_dp_gather_via_all_gather, dp_reduce_scatter_tensor): with attention tp above one a ReduceScatter inside it, then an AllGather over
all ranks; afterwards a ReduceScatter over all ranks and, with attention tp above one, an AllGather inside it. ``allreduce`` there: a
zero-filled buffer of all tokens is summed, twice. ``a2a``: MoE layers take scattered tokens, dense layers do not.
"""

from __future__ import annotations

from pcie_sim.specs.ops import StepOp
from pcie_sim.strategies.context import PlanContext


def _local(p: PlanContext, *, dense: bool) -> bool:
    """Whether a layer works on this dp rank's tokens only."""
    return p.strategy.dp == 1 or (dense and p.runtime.moe.dense_with_dp == "local")


def before_mlp(p: PlanContext, stage: int, *, dense: bool) -> list[StepOp]:
    """From o_proj's partial sums to the tokens that the MLP works on."""
    s, comm = p.strategy, p.resolved.moe_comm
    own, tp = p.batch_dp * p.hidden_bytes, p.tp_groups(stage)
    scatter = [p.comm("attention reduce_scatter", "reduce_scatter", own, tp)] if s.tp > 1 else []
    if comm == "a2a" and not dense:
        return scatter
    if _local(p, dense=dense):
        if comm == "ag_rs" and s.dp == 1 and s.tp > 1:
            return [*scatter, p.comm("attention all_gather", "all_gather", own, tp)]
        return [p.comm("attention all_reduce", "all_reduce", own, tp)] if s.tp > 1 else []
    everyone, whole = p.width_groups(stage), p.padded * p.hidden_bytes
    if comm == "allreduce":
        return [p.comm("dp all_reduce (gather)", "all_reduce", whole, everyone)]
    routing = 0 if dense else p.runtime.moe.ag_rs_routing_bytes_per_choice * p.model.mlp.top_k
    return [*scatter, p.comm("dp all_gather", "all_gather", whole + p.padded * float(routing), everyone)]


def after_mlp(p: PlanContext, stage: int, *, dense: bool) -> list[StepOp]:
    """From the ranks' parts to what the next attention needs (All-to-All apart)."""
    s, comm = p.strategy, p.resolved.moe_comm
    name = "mlp" if dense else "moe"
    own, tp = p.batch_dp * p.hidden_bytes, p.tp_groups(stage)
    gather = [p.comm(f"{name} all_gather", "all_gather", own, tp)] if s.tp > 1 else []
    if _local(p, dense=dense):
        if comm == "ag_rs" and s.dp == 1 and s.tp > 1:
            return [p.comm(f"{name} reduce_scatter", "reduce_scatter", own, tp), *gather]
        return [p.comm(f"{name} all_reduce", "all_reduce", own, tp)] if s.tp > 1 else []
    everyone, whole = p.width_groups(stage), p.padded * p.hidden_bytes
    if comm == "allreduce":
        return [p.comm(f"{name} all_reduce", "all_reduce", whole, everyone)]
    return [p.comm(f"{name} reduce_scatter", "reduce_scatter", whole, everyone), *gather]
