"""The step plan: what every rank computes and sends for one decode step, in order, with counts.

What is sent follows the engines' code (sgl-project/sglang 0.5.10/0.5.23, vllm-project/vllm 0.33.0):

* tensor parallel: one AllReduce of tokens x hidden x 2 B after the embedding and two per layer (after o_proj and after the
  MLP or MoE), one AllGather of the logits. ``ep`` with ``allreduce`` changes none of them.
* attention data parallel with ``ag_rs``: AllGather of all tokens before the MLP, ReduceScatter after it (see ``exchange``).
* ``a2a``: ReduceScatter of the attention output over tp, dispatch, local experts, combine, AllGather over tp.
* pipeline: hidden state (and residual) once per boundary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pcie_sim.specs.model import AttentionKind, MlpKind, ModelSpec
from pcie_sim.specs.ops import Array, Axis, CollectiveCall, CollectiveOp, Elementwise, Gemm, Sampling, StepOp
from pcie_sim.specs.routing import Popularity
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.strategies.attention import attention_ops
from pcie_sim.strategies.context import PlanContext
from pcie_sim.strategies.legal import Resolved
from pcie_sim.strategies.mlp import dense_ops, moe_ops
from pcie_sim.strategies.weights import cut_of

ACTIVATION_BYTES = 2
"""bf16 activations."""


@dataclass(frozen=True, eq=False)
class Load:
    """How requests become tokens of a step; all arrays of one shape.

    ``running`` requests in the whole box; ``micro_batches`` in flight per replica, ``fuller`` of which hold ``batch`` tokens and the
    others one less; ``batch_dp`` tokens of one attention data-parallel rank (the fullest: ranks pad to it).
    """

    running: Array
    micro_batches: Array
    fuller: Array
    batch: Array
    batch_dp: Array


@dataclass(frozen=True, eq=False)
class Stage:
    """One pipeline stage: its number of layers and its ops for one micro-batch."""

    index: int
    layers: int
    ops: tuple[StepOp, ...]


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One decode step. ``boundaries[i]`` is what stage i sends to stage i + 1 (empty for one stage)."""

    resolved: Resolved
    load: Load
    stages: tuple[Stage, ...]
    boundaries: tuple[tuple[StepOp, ...], ...]
    notes: tuple[str, ...] = ()

    def collectives(self) -> list[tuple[CollectiveOp, float, Axis]]:
        """Every collective of the step over all stages: (op, how often, bytes of one call), equal lines merged."""
        found: dict[tuple[str, str], tuple[CollectiveOp, float, Axis]] = {}
        every = [op for stage in self.stages for op in stage.ops] + [op for ops in self.boundaries for op in ops]
        for op in every:
            if isinstance(op.call, CollectiveCall):
                key = (op.call.op, np.asarray(op.call.bytes).tobytes().hex())
                count = found[key][1] if key in found else 0.0
                found[key] = (op.call.op, count + op.count, op.call.bytes)
        return list(found.values())

    def count(self, op: CollectiveOp) -> float:
        """How often ``op`` is called in one step, over all stages."""
        return sum(count for name, count, _ in self.collectives() if name == op)


def spread(resolved: Resolved, running: Array) -> Load:
    """Requests over replicas and data-parallel ranks (shares rounded up) and over micro-batches (as evenly as they go)."""
    s = resolved.strategy
    per_replica = np.ceil(running / s.replicas)
    micro = np.minimum(float(s.pp), np.maximum(per_replica, 1.0))
    batch = np.ceil(per_replica / micro)
    fuller = per_replica - (batch - 1) * micro
    return Load(running, micro, np.minimum(fuller, micro), batch, np.ceil(batch / s.dp))


def build_plan(
    model: ModelSpec,
    resolved: Resolved,
    runtime: RuntimeSpec,
    *,
    running: Array,
    context: Array,
    popularity: Popularity = Popularity(),
) -> StepPlan:
    """The plan of one decode step for arrays of running requests and contexts (they broadcast to one shape).

    Args:
        running: requests in decode in the whole box.
        context: cached tokens of each.
    """
    shape = np.broadcast_shapes(np.shape(running), np.shape(context))
    load = spread(resolved, np.broadcast_to(np.asarray(running, dtype=np.float64), shape))
    contexts = np.broadcast_to(np.asarray(context, dtype=np.float64), shape)
    plans = PlanContext(model, resolved, runtime, cut_of(resolved, runtime), load.batch, load.batch_dp, contexts, popularity)
    stages: list[Stage] = []
    start = 0
    layer_ops: dict[str, list[StepOp]] = {}
    for index, count in enumerate(resolved.stage_layers):
        ops = _stage_ops(plans, index, start, count, layer_ops)
        stages.append(Stage(index, count, tuple(ops)))
        start += count
    boundaries = tuple(tuple(_boundary(plans, index)) for index in range(len(stages) - 1))
    return StepPlan(resolved, load, tuple(stages), boundaries, tuple(resolved.notes))


def _stage_ops(p: PlanContext, index: int, start: int, count: int, layer_ops: dict[str, list[StepOp]]) -> list[StepOp]:
    """``layer_ops`` keeps one layer's lines per kind: stages share the call objects, so each is timed once."""
    first, last = index == 0, index == len(p.resolved.stage_layers) - 1
    ops: list[StepOp] = []
    cut_embedding = p.strategy.dp == 1 or p.runtime.embedding_with_dp == "tp"
    if first and p.strategy.tp > 1 and cut_embedding and p.runtime.embedding_all_reduce:
        ops.append(p.comm("embedding all_reduce", "all_reduce", p.batch_dp * p.hidden_bytes, p.tp_groups(index)))
    attention: dict[AttentionKind, int] = {}
    mlps: dict[MlpKind, int] = {}
    for kind, mlp in p.model.layers[start : start + count]:
        attention[kind] = attention.get(kind, 0) + 1
        mlps[mlp] = mlps.get(mlp, 0) + 1
    offset = index * p.strategy.tp * p.strategy.dp
    for kind, layers in attention.items():
        if kind not in layer_ops:
            layer_ops[kind] = attention_ops(p, kind, 0)
        ops += [p.shifted(op, layers, offset) for op in layer_ops[kind]]
    for mlp_kind, layers in mlps.items():
        if mlp_kind not in layer_ops:
            layer_ops[mlp_kind] = moe_ops(p, 0) if mlp_kind == "moe" else dense_ops(p, 0)
        ops += [p.shifted(op, layers, offset) for op in layer_ops[mlp_kind]]
    ops.append(StepOp("step small kernels", "other", Elementwise(p.runtime.small_kernels.step / len(p.resolved.stage_layers))))
    if last:
        ops += _head(p, index)
    return ops


def _head(p: PlanContext, index: int) -> list[StepOp]:
    """lm_head, the exchange of logits, and sampling."""
    model, s = p.model, p.strategy
    gathered = s.dp > 1 and p.cut.lm_head == s.tp * s.dp
    rows = p.batch if gathered else p.batch_dp
    ops: list[StepOp] = []
    if gathered:
        size = p.batch_dp * s.dp * p.hidden_bytes
        ops.append(p.comm("lm_head all_gather", "all_gather", size, p.width_groups(index)))
    weight = model.quantisation.lm_head
    ops.append(StepOp("lm_head", "dense", Gemm(rows, math.ceil(model.vocab / p.cut.lm_head), model.hidden_size, weight)))
    if p.cut.lm_head > 1 and p.runtime.logits == "all_gather":
        groups = p.width_groups(index) if gathered else p.tp_groups(index)
        ops.append(p.comm("logits all_gather", "all_gather", rows * float(model.vocab * ACTIVATION_BYTES), groups))
    ops.append(StepOp("sampling", "sampling", Sampling(p.batch_dp, model.vocab)))
    return ops


def _boundary(p: PlanContext, index: int) -> list[StepOp]:
    """One pipeline boundary: hidden state and residual, cut over tp where the engine does so."""
    s, rules = p.strategy, p.runtime.pipeline
    tensor = p.batch_dp * p.hidden_bytes
    pieces = s.tp if rules.split_over_tp else 1
    hop = StepOp(
        f"hop {index} to {index + 1}",
        "send_recv",
        CollectiveCall("send_recv", tensor / pieces, p.hop_groups(index)),
        float(rules.boundary_tensors),
    )
    if pieces == 1:
        return [hop]
    gather = p.comm(f"hop {index} all_gather", "all_gather", tensor, p.tp_groups(index + 1))
    return [hop, p.repeat(gather, rules.boundary_tensors)]
