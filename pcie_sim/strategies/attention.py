"""One layer's attention on one rank: projections, cache read, output. What joins the ranks after it is in ``exchange``."""

from __future__ import annotations

import numpy as np

from pcie_sim.specs.model import AttentionKind, GqaAttention, MlaAttention
from pcie_sim.specs.ops import BatchedGemm, DecodeAttention, Elementwise, Gemm, LinearAttentionStep, StepOp
from pcie_sim.strategies.context import PlanContext
from pcie_sim.strategies.weights import kv_elements_on_rank, kv_heads_per_rank

FP32_BYTES = 4


def attention_ops(p: PlanContext, kind: AttentionKind, stage: int) -> list[StepOp]:
    """The lines of one layer of ``kind`` (full, sliding, linear)."""
    att = p.model.attention
    if isinstance(att, MlaAttention):
        ops = _mla(p, att, stage)
        small = p.runtime.small_kernels.mla_attention
    elif kind == "linear":
        ops = _linear(p, att)
        small = p.runtime.small_kernels.linear_attention
    else:
        ops = _gqa(p, att, kind, stage)
        small = p.runtime.small_kernels.gqa_attention
    ops.append(StepOp("attention small kernels", "attention", Elementwise(small, p.batch_dp * p.hidden_bytes * 4)))
    return ops


def _gemm(p: PlanContext, name: str, n: float, k: float) -> StepOp:
    return StepOp(name, "attention", Gemm(p.batch_dp, int(n), int(k), p.model.quantisation.attention_format))


def _out(p: PlanContext, k: int) -> StepOp:
    return StepOp("o_proj", "attention", Gemm(p.batch_dp, p.model.hidden_size, k, p.model.quantisation.attention_out_format))


def _mla(p: PlanContext, att: MlaAttention, stage: int) -> list[StepOp]:
    """Absorbed decode form: queries are projected into the latent space, the cache is read once for all heads."""
    h, heads = p.model.hidden_size, att.heads // p.strategy.tp
    qk = att.qk_nope_head_dim + att.qk_rope_head_dim
    ops: list[StepOp] = []
    if att.q_lora_rank:
        ops.append(_gemm(p, "qkv_a (replicated)", att.q_lora_rank + att.latent_dim, h))
        ops.append(_gemm(p, "q_b", heads * qk, att.q_lora_rank))
    else:
        ops.append(_gemm(p, "q", heads * qk, h))
        ops.append(_gemm(p, "kv_a (replicated)", att.latent_dim, h))
    seen = p.context
    if att.indexer is not None:
        ops += _indexer(p, att)
        seen = np.minimum(p.context, float(att.indexer.topk))
    ops.append(StepOp("absorb q", "attention", BatchedGemm(p.batch_dp, heads, att.kv_lora_rank, att.qk_nope_head_dim)))
    ops += _cache_read(p, "mla", heads, att.latent_dim, att.latent_dim, att.kv_lora_rank, seen, stage)
    ops.append(StepOp("absorb v", "attention", BatchedGemm(p.batch_dp, heads, att.v_head_dim, att.kv_lora_rank)))
    ops.append(_out(p, heads * att.v_head_dim))
    return ops


def _indexer(p: PlanContext, att: MlaAttention) -> list[StepOp]:
    """DeepSeek sparse attention: score every cached token with a small fp8 key, keep the top k (replicated on tp ranks)."""
    ix = att.indexer
    if ix is None:
        return []
    ops = [
        _gemm(p, "indexer q", ix.heads * ix.head_dim, att.q_lora_rank or p.model.hidden_size),
        # weights_proj is not quantised, and fused with wk: bf16 for both
        StepOp("indexer k and weights", "attention", Gemm(p.batch_dp, ix.head_dim + ix.heads, p.model.hidden_size)),
    ]
    scores = DecodeAttention(p.batch_dp, p.context / p.strategy.dcp, "gqa", ix.heads, ix.head_dim, ix.head_dim, 1, 1.0)
    ops.append(StepOp("indexer scores", "attention", scores))
    ops.append(StepOp("indexer top-k", "attention", Elementwise(1.0, p.batch_dp * p.context * FP32_BYTES)))
    return ops


def _gqa(p: PlanContext, att: GqaAttention, kind: AttentionKind, stage: int) -> list[StepOp]:
    h, tp = p.model.hidden_size, p.strategy.tp
    heads, kv = att.heads // tp, kv_heads_per_rank(att, kind, tp)
    gate = 2 if att.output_gate else 1
    ops = [_gemm(p, "qkv", heads * att.head_dim * gate + kv * (att.head_dim + att.value_dim), h)]
    seen = p.context
    if kind == "sliding" and att.sliding is not None:
        seen = np.minimum(p.context, float(att.sliding.window))
    elements = kv_elements_on_rank(p.model, kind, tp)
    ops += _cache_read(p, "gqa", heads, elements, att.head_dim, att.value_dim, seen, stage)
    ops.append(_out(p, heads * att.value_dim))
    return ops


def _cache_read(
    p: PlanContext, kind: str, heads: int, elements: float, qk_dim: int, v_dim: int, seen: np.ndarray, stage: int
) -> list[StepOp]:
    """The attention kernel; with decode context parallelism each rank reads 1/dcp of the tokens for dcp times the heads.

    vLLM's exchange: AllGather of the queries, then AllGather of the log-sum-exps and ReduceScatter of the outputs
    (vllm-project/vllm attention/ops/common.py cp_lse_ag_out_rs).
    """
    dcp = p.strategy.dcp
    wide = heads * dcp
    call = DecodeAttention(
        p.batch_dp, seen / dcp, "mla" if kind == "mla" else "gqa", wide, elements, qk_dim, v_dim, p.model.kv_bytes_per_element
    )
    kernel = StepOp("attention", "attention", call)
    if dcp == 1:
        return [kernel]
    groups = p.dcp_groups(stage)
    return [
        p.comm("dcp all_gather q", "all_gather", p.batch_dp * float(wide * qk_dim * 2), groups),
        kernel,
        p.comm("dcp all_gather lse", "all_gather", p.batch_dp * float(wide * dcp * FP32_BYTES), groups),
        p.comm("dcp reduce_scatter", "reduce_scatter", p.batch_dp * float(wide * v_dim * 2), groups),
    ]


def _linear(p: PlanContext, att: GqaAttention) -> list[StepOp]:
    lin, h, tp = att.linear, p.model.hidden_size, p.strategy.tp
    if lin is None:
        return []
    keys, values = lin.key_heads * lin.key_head_dim, lin.value_heads * lin.value_head_dim
    return [
        _gemm(p, "linear in_proj", (2 * keys + 2 * values + 2 * lin.value_heads) / tp, h),
        StepOp("linear attention", "attention", LinearAttentionStep(p.batch_dp, p.model.linear_state_bytes / tp)),
        _gemm(p, "linear out_proj", h, values / tp),
    ]
