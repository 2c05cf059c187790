"""Bytes of weights and of KV cache on one rank. What is replicated and what is cut follows the engines' code.

Replicated on every rank of a tensor-parallel group: router, MLA down-projections, the sparse-attention indexer, KV heads when
there are fewer than ranks, MLA's latent KV cache (unless decode context parallelism splits it).
Sources: vllm-project/vllm model_executor/models/deepseek_v2.py (ReplicatedLinear, disable_tp), sgl-project/sglang the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcie_sim.specs.model import AttentionKind, GqaAttention, MlaAttention, MlpKind, ModelSpec
from pcie_sim.specs.ops import Array, Axis
from pcie_sim.specs.quantisation import BF16
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.strategies.legal import Resolved


@dataclass(frozen=True)
class Cut:
    """How a strategy cuts one layer: ranks over which each part is divided."""

    attention: int
    dense: int
    shared: int
    experts: int
    expert_tp: int
    lm_head: int


def cut_of(resolved: Resolved, runtime: RuntimeSpec) -> Cut:
    """The cut that ``resolved`` makes under ``runtime``'s rules."""
    s = resolved.strategy
    gather = runtime.moe.dense_with_dp == "gather"
    across = s.tp * s.dp if gather else s.tp
    a2a = resolved.moe_comm == "a2a"
    shared = 1 if a2a and runtime.moe.a2a_replicates_shared else (s.tp if a2a else across)
    return Cut(attention=s.tp, dense=across, shared=shared, experts=s.ep, expert_tp=s.expert_tp, lm_head=across)


def attention_weight_bytes(model: ModelSpec, kind: AttentionKind, tp: int) -> float:
    """Bytes of one layer's attention weights on one rank of ``tp``."""
    per = model.quantisation.attention_format.bytes_per_weight
    att, h = model.attention, model.hidden_size
    if isinstance(att, MlaAttention):
        replicated = h * att.latent_dim + (h * att.q_lora_rank if att.q_lora_rank else 0) + model.indexer_params
        return (replicated + (model.attention_params(kind) - replicated) / tp) * per
    if kind == "linear":
        return model.attention_params(kind) / tp * per
    kv = h * (att.head_dim + att.value_dim)
    out = att.heads * att.value_dim * h
    own = (model.attention_params(kind) - kv * att.kv_heads_of(kind) - out) / tp + kv * kv_heads_per_rank(att, kind, tp)
    return own * per + out / tp * model.quantisation.attention_out_format.bytes_per_weight


def kv_heads_per_rank(att: GqaAttention, kind: AttentionKind, tp: int) -> int:
    """KV heads on one rank: cut when there are enough, else one, replicated."""
    return max(1, att.kv_heads_of(kind) // tp)


def mlp_weight_bytes(model: ModelSpec, kind: MlpKind, cut: Cut) -> float:
    """Bytes of one layer's MLP (router and shared experts included) on one rank."""
    quant = model.quantisation
    if kind == "dense":
        return model.dense_params / cut.dense * quant.linear.bytes_per_weight
    width = -(-model.mlp.moe_intermediate // cut.expert_tp)
    routed = model.mlp.experts / cut.experts * 3 * model.hidden_size * width * quant.experts.bytes_per_weight
    return routed + model.shared_params / cut.shared * quant.shared_format.bytes_per_weight + model.router_params * BF16.bytes_per_weight


def rank_weights(model: ModelSpec, resolved: Resolved, runtime: RuntimeSpec) -> tuple[float, ...]:
    """Bytes of weights on one rank of each pipeline stage (all ranks of a stage hold the same amount)."""
    cut = cut_of(resolved, runtime)
    embed = model.vocab * model.hidden_size * model.quantisation.embedding.bytes_per_weight
    head = model.vocab * model.hidden_size * model.quantisation.lm_head.bytes_per_weight
    embed /= resolved.strategy.tp if resolved.strategy.dp == 1 or runtime.embedding_with_dp == "tp" else 1
    found: list[float] = []
    start = 0
    for stage, count in enumerate(resolved.stage_layers):
        layers = model.layers[start : start + count]
        start += count
        total = sum(attention_weight_bytes(model, a, cut.attention) + mlp_weight_bytes(model, m, cut) for a, m in layers)
        first, last = stage == 0, stage == len(resolved.stage_layers) - 1
        if first:
            total += embed + model.extra_params * BF16.bytes_per_weight
        if last:
            total += 0.0 if model.tie_embeddings and first else head / cut.lm_head
        found.append(total)
    return tuple(found)


def kv_elements_on_rank(model: ModelSpec, kind: AttentionKind, tp: int) -> float:
    """Elements that one cached token holds on one rank of ``tp`` in one layer (before any context split)."""
    att = model.attention
    if kind == "linear":
        return 0.0
    if isinstance(att, MlaAttention):
        return float(att.latent_dim)
    return float(kv_heads_per_rank(att, kind, tp) * (att.head_dim + att.value_dim))


def kv_bytes_per_request(model: ModelSpec, resolved: Resolved, context: Axis) -> list[Array]:
    """Bytes of KV cache (and recurrent state) of one request on one rank, per stage; shape of ``context``.

    Decode context parallelism splits the tokens over its ranks; sliding layers keep their window; the sparse-attention
    indexer keeps one more key of ``head_dim`` (fp8, 1 B) per token.
    """
    s = resolved.strategy
    tokens = np.asarray(context, dtype=np.float64)
    att = model.attention
    found: list[Array] = []
    start = 0
    for count in resolved.stage_layers:
        total = np.zeros_like(tokens)
        for kind, _ in model.layers[start : start + count]:
            if kind == "linear":
                total = total + model.linear_state_bytes / s.tp
                continue
            seen = tokens
            if kind == "sliding" and isinstance(att, GqaAttention) and att.sliding is not None:
                seen = np.minimum(tokens, att.sliding.window)
            total = total + seen / s.dcp * kv_elements_on_rank(model, kind, s.tp) * model.kv_bytes_per_element
            if isinstance(att, MlaAttention) and att.indexer is not None:
                total = total + seen / s.dcp * att.indexer.head_dim
        start += count
        found.append(np.asarray(total))
    return found
