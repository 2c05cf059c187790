"""What a kernel call has to do: bytes moved, floating-point operations, independent items, serial length.

Everything broadcasts to one shape; nothing here knows a GPU. Activations are bf16 (two bytes); weights are read once per call,
which holds for decode: a step's working set passes through the last-level cache between two uses of the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcie_sim.specs.ops import (
    Array,
    Axis,
    BatchedGemm,
    DecodeAttention,
    Elementwise,
    Experts,
    Gemm,
    KernelCall,
    LinearAttentionStep,
    Sampling,
)

ACTIVATION_BYTES = 2.0
"""bf16 activations between kernels (what SGLang and vLLM pass around whatever the weight format)."""
LOGIT_BYTES = 4.0
"""Samplers work on fp32 logits."""


@dataclass(frozen=True)
class Work:
    """Totals of one call, all of one shape.

    ``serial`` is a length (GEMM: k, attention: context tokens); ``crowded`` is 1 where an expert kernel is handed more tokens
    than the rank holds experts, else 0.
    """

    bytes: Array
    flops: Array
    items: Array
    serial: Array
    crowded: Array


def _axis(value: Axis) -> Array:
    return np.asarray(value, dtype=np.float64)


def bytes_moved(call: KernelCall) -> Array:
    """Bytes that ``call`` must move to and from device memory: weights or KV once, activations in and out.

    Returns:
        An array of the call's broadcast shape, bytes.
    """
    match call:
        case Gemm(m=m, n=n, k=k, weight=weight):
            return n * k * weight.bytes_per_weight + _axis(m) * ((k + n) * ACTIVATION_BYTES)
        case BatchedGemm(m=m, heads=heads, n=n, k=k):
            return heads * ACTIVATION_BYTES * (n * k + _axis(m) * (k + n))
        case DecodeAttention():
            cache = _axis(call.batch) * _axis(call.context) * (call.kv_elements * call.kv_bytes_per_element)
            return cache + _axis(call.batch) * (call.heads * (call.qk_dim + call.v_dim) * ACTIVATION_BYTES)
        case LinearAttentionStep(batch=batch, state_bytes=state):
            return _axis(batch) * (2.0 * state)
        case Experts():
            return _expert_bytes(call)
        case Elementwise(bytes=moved):
            return _axis(moved) + 0.0
        case Sampling(rows=rows, vocab=vocab):
            return _axis(rows) * (vocab * LOGIT_BYTES)


def _expert_bytes(call: Experts) -> Array:
    weights = _axis(call.distinct) * (3.0 * call.hidden * call.inter * call.weight.bytes_per_weight)
    # gate+up write 2 x inter and the activation reads them, the activation writes inter and down reads it; down writes
    # hidden and the weighted sum reads it
    per_slot = (6.0 * call.inter + 2.0 * call.hidden) * ACTIVATION_BYTES
    per_token = 2.0 * call.hidden * ACTIVATION_BYTES
    return weights + _axis(call.slots) * per_slot + _axis(call.tokens) * per_token


def flops(call: KernelCall) -> Array:
    """Multiply-adds of ``call``, two operations each (array of the call's broadcast shape)."""
    match call:
        case Gemm(m=m, n=n, k=k):
            return _axis(m) * (2.0 * n * k)
        case BatchedGemm(m=m, heads=heads, n=n, k=k):
            return _axis(m) * (2.0 * heads * n * k)
        case DecodeAttention():
            return _axis(call.batch) * _axis(call.context) * (2.0 * call.heads * (call.qk_dim + call.v_dim))
        case Experts():
            return _axis(call.slots) * (6.0 * call.hidden * call.inter) + 0.0 * (_axis(call.tokens) + _axis(call.distinct))
        case LinearAttentionStep() | Elementwise() | Sampling():
            return np.zeros_like(bytes_moved(call))


def _items(call: KernelCall, heads_per_item: int) -> Array:
    match call:
        case Experts():
            return _axis(call.distinct)
        case DecodeAttention(kind="mla"):
            return _axis(call.batch) * float(-(-call.heads // heads_per_item))
        case DecodeAttention():
            return _axis(call.batch) * (call.kv_elements / (call.qk_dim + call.v_dim))
        case _:
            return np.zeros(())


def _serial(call: KernelCall) -> Array:
    match call:
        case Gemm(k=k):
            return np.asarray(float(k))
        case DecodeAttention(context=context):
            return _axis(context)
        case _:
            return np.zeros(())


def _crowded(call: KernelCall) -> Array:
    if not isinstance(call, Experts):
        return np.zeros(())
    return np.asarray(_axis(call.tokens) > call.local, dtype=np.float64)


def work_of(call: KernelCall, *, heads_per_item: int = 1) -> Work:
    """All totals of ``call``, broadcast to one shape. ``heads_per_item``: query heads that one MLA thread block handles."""
    found = np.broadcast_arrays(bytes_moved(call), flops(call), _items(call, heads_per_item), _serial(call), _crowded(call))
    return Work(*(np.asarray(part, dtype=np.float64) for part in found))
