"""The words in which a step plan speaks to compute and network: kernel calls and collective calls.

They hold shapes and bytes, never a time and never a link. Every array broadcasts to one shape, (concurrency, context) in
predictions; a plain number is an array of no axes. Kernel calls are frozen and hashable by identity only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pcie_sim.specs.quantisation import BF16, WeightFormat

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Axis = Array | float
Breakdown = Literal[
    "attention",
    "experts",
    "dense",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "launch",
    "bubble",
    "sampling",
    "other",
]
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"]


@dataclass(frozen=True, eq=False)
class Gemm:
    """A dense matrix product with resident weights: (m, k) x (k, n). ``m`` = tokens in the step."""

    m: Axis
    n: int
    k: int
    weight: WeightFormat = BF16


@dataclass(frozen=True, eq=False)
class BatchedGemm:
    """Per-head products with weights (MLA's absorbed up-projections): ``heads`` x (m, k) x (k, n), bf16."""

    m: Axis
    heads: int
    n: int
    k: int


@dataclass(frozen=True, eq=False)
class DecodeAttention:
    """One decode step of one layer's attention on one rank.

    ``batch`` requests with ``context`` cached tokens each; ``kv_elements`` is what one cached token holds on this rank in
    this layer (GQA: kv heads here x (head_dim + v_dim); MLA: latent); ``heads`` are this rank's query heads;
    ``qk_dim`` and ``v_dim`` are the widths used by the score and value products (MLA absorbed: latent and kv_lora).
    """

    batch: Axis
    context: Axis
    kind: Literal["gqa", "mla"]
    heads: int
    kv_elements: float
    qk_dim: int
    v_dim: int
    kv_bytes_per_element: float = 2.0


@dataclass(frozen=True, eq=False)
class LinearAttentionStep:
    """One decode step of a gated delta-net layer: the whole state of ``batch`` requests is read and written."""

    batch: Axis
    state_bytes: float


@dataclass(frozen=True, eq=False)
class Experts:
    """The routed experts of one layer on one rank (gate+up, activation, down, weighted sum).

    ``distinct`` expert weight sets read on this rank (expected number, or that of the fullest rank) of ``local`` that it
    holds; ``slots`` token-expert pairs computed here; ``tokens`` rows that the kernel is handed. ``inter`` is the width of
    an expert on this rank (sliced by expert TP).
    """

    tokens: Axis
    distinct: Axis
    slots: Axis
    local: int
    hidden: int
    inter: int
    weight: WeightFormat
    distinct_sigma: Axis = 0.0
    """Standard deviation of ln(distinct) that the unknown popularity of experts leaves open."""


@dataclass(frozen=True, eq=False)
class Elementwise:
    """``kernels`` small kernels one after the other (norms, rope, KV write, routing), moving ``bytes`` in all."""

    kernels: float
    bytes: Axis = 0.0


@dataclass(frozen=True, eq=False)
class Sampling:
    """Softmax and sampling over ``rows`` x ``vocab`` logits."""

    rows: Axis
    vocab: int


KernelCall = Gemm | BatchedGemm | DecodeAttention | LinearAttentionStep | Experts | Elementwise | Sampling


@dataclass(frozen=True, eq=False)
class CollectiveCall:
    """One collective of the step.

    ``bytes`` is the message size as nccl-tests counts it for ``op`` (all_reduce: the buffer; all_gather and
    reduce_scatter: the whole buffer; all_to_all: what one rank sends in all, its own part included; send_recv: the
    message). ``groups`` are rank numbers; all groups run at the same time. ``fractions`` (all_to_all only) is an n x n
    matrix of what each rank sends to each as a share of ``bytes`` (None: 1/n each).
    """

    op: CollectiveOp
    bytes: Axis
    groups: tuple[tuple[int, ...], ...]
    fractions: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, eq=False)
class StepOp:
    """A line of a step plan: a call, how often it happens per step, and where its time is booked.

    ``hidden_by`` names an op of the same stage whose time covers this one (a second stream under CUDA graphs): only what
    exceeds it is exposed.
    """

    name: str
    bucket: Breakdown
    call: KernelCall | CollectiveCall
    count: float = 1.0
    hidden_by: str | None = None
    notes: tuple[str, ...] = field(default=())
