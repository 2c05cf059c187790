"""A language model's dimensions as a data file (``catalog/models/*.yaml``), and what follows from them by arithmetic.

Counts follow the published configs: totals are all text weights with the input embedding and lm_head, without
multi-token-prediction layers and vision towers; active is what one decoded token touches, lm_head included, the
embedding row left out. Biases and norms (well under 0.5 %) are not counted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pcie_sim.evidence import Evidence
from pcie_sim.specs.base import Name, Provenance, Spec, Text
from pcie_sim.specs.quantisation import Quantisation

Count = Annotated[int, Field(ge=1, le=10**7)]
CountOrZero = Annotated[int, Field(ge=0, le=10**7)]
AttentionKind = Literal["full", "sliding", "linear"]
MlpKind = Literal["dense", "moe"]


class SlidingWindow(Spec):
    """Layers whose attention sees only the last ``window`` tokens, and which layers see everything.

    Layer i (counted from 0) is full where ``i < first_k_full`` or ``i + 1`` is a multiple of ``full_every``.
    """

    window: Count
    full_every: Annotated[int, Field(ge=2, le=1000)]
    first_k_full: CountOrZero = 0
    kv_heads: Count | None = None
    """KV heads of the sliding layers where they differ from the full ones (MiMo-V2)."""


class Indexer(Spec):
    """DeepSeek sparse attention: a small indexer picks the ``topk`` tokens that attention reads."""

    heads: Count
    head_dim: Count
    topk: Count


class LinearAttention(Spec):
    """Gated delta-net layers (Qwen3-Next): a fixed recurrent state per request instead of a KV cache."""

    key_heads: Count
    value_heads: Count
    key_head_dim: Count
    value_head_dim: Count
    conv_kernel: Count


class GqaAttention(Spec):
    """Grouped-query (or multi-head) attention; with ``linear`` a hybrid whose other layers are linear."""

    kind: Literal["gqa"]
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    output_gate: bool = False
    """q_proj is twice as wide (Qwen3-Next)."""
    sliding: SlidingWindow | None = None
    full_layers: Count | None = None
    """Hybrid only: how many layers are full attention, evenly spread, the last of each group."""
    linear: LinearAttention | None = None

    @model_validator(mode="after")
    def _consistent(self) -> GqaAttention:
        for kv_heads in (self.kv_heads, self.kv_heads_of("sliding")):
            if self.heads % kv_heads:
                raise ValueError(f"heads must be a multiple of kv_heads ({self.heads} and {kv_heads})")
        if (self.linear is None) != (self.full_layers is None):
            raise ValueError("linear and full_layers go together: give both or neither")
        if self.linear is not None and self.sliding is not None:
            raise ValueError("linear and sliding exclude each other")
        return self

    def kv_heads_of(self, kind: AttentionKind) -> int:
        """KV heads of the layers of this kind."""
        own = self.sliding.kv_heads if kind == "sliding" and self.sliding is not None else None
        return own or self.kv_heads

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim or self.head_dim


class MlaAttention(Spec):
    """Multi-head latent attention."""

    kind: Literal["mla"]
    heads: Count
    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    indexer: Indexer | None = None

    @property
    def latent_dim(self) -> int:
        """Width of what the KV cache keeps per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class MlpSpec(Spec):
    """The feed-forward part. ``experts: 0`` is a dense model."""

    dense_intermediate: CountOrZero = 0
    moe_intermediate: CountOrZero = 0
    experts: CountOrZero = 0
    top_k: CountOrZero = 0
    shared_experts: CountOrZero = 0
    shared_intermediate: CountOrZero = 0
    first_k_dense: CountOrZero = 0
    moe_every: Count = 1
    """MoE where (layer + 1) is a multiple of this (layers counted from 0), after the first dense ones."""

    @model_validator(mode="after")
    def _consistent(self) -> MlpSpec:
        if self.experts and not (self.moe_intermediate and 1 <= self.top_k <= self.experts):
            raise ValueError("a model with experts needs moe_intermediate and 1 <= top_k <= experts")
        if not self.experts and not self.dense_intermediate:
            raise ValueError("a dense model needs dense_intermediate")
        if bool(self.shared_experts) != bool(self.shared_intermediate):
            raise ValueError("shared_experts and shared_intermediate go together: give both or neither")
        return self


class Published(Spec):
    """What the maker or a page says, in 1e9 parameters."""

    total_B: float | None = None
    active_B: float | None = None
    source: Text
    verified: bool

    @property
    def evidence(self) -> Evidence:
        """``nominal`` where the figure was read at its source, else ``assumed``."""
        return "nominal" if self.verified else "assumed"


class ModelSpec(Spec):
    """One model."""

    schema_: Literal["pcie-sim/model/1"] = Field(alias="schema")
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    hidden_size: Count
    num_layers: Annotated[int, Field(ge=1, le=1000)]
    attention: Annotated[GqaAttention | MlaAttention, Field(discriminator="kind")]
    mlp: MlpSpec
    vocab: Count
    tie_embeddings: bool = False
    max_position: Annotated[int, Field(ge=1, le=2**30)] | None = None
    mtp_layers: CountOrZero = 0
    quantisation: Quantisation
    kv_bytes_per_element: Annotated[float, Field(gt=0, le=8)] = 2.0
    extra_params: Annotated[int, Field(ge=0, le=10**12)] = 0
    """Weights that every rank loads and no decode step reads (vision tower)."""
    published: Published | None = None
    provenance: Annotated[tuple[Provenance, ...], Field(min_length=1)]
    notes: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        if self.count_layers("dense") and not self.mlp.dense_intermediate:
            raise ValueError("mlp: its dense layers need dense_intermediate")
        if self.attention.kind == "gqa" and (self.attention.full_layers or 1) > self.num_layers:
            raise ValueError("attention: full_layers is more than num_layers")
        return self

    @property
    def is_moe(self) -> bool:
        """True when routed experts exist."""
        return self.mlp.experts > 0

    @cached_property
    def layers(self) -> tuple[tuple[AttentionKind, MlpKind], ...]:
        """Per layer, in order: which attention and which MLP."""
        return tuple((self._attention_kind(i), self._mlp_kind(i)) for i in range(self.num_layers))

    def _attention_kind(self, layer: int) -> AttentionKind:
        att = self.attention
        if att.kind == "gqa" and att.linear is not None and att.full_layers:
            return "full" if (layer + 1) * att.full_layers // self.num_layers > layer * att.full_layers // self.num_layers else "linear"
        if att.kind == "gqa" and att.sliding is not None:
            return "full" if layer < att.sliding.first_k_full or (layer + 1) % att.sliding.full_every == 0 else "sliding"
        return "full"

    def _mlp_kind(self, layer: int) -> MlpKind:
        mlp = self.mlp
        if not mlp.experts or layer < mlp.first_k_dense or (layer + 1) % mlp.moe_every:
            return "dense"
        return "moe"

    def attention_params(self, kind: AttentionKind) -> int:
        """Weights of one layer's attention."""
        att, h = self.attention, self.hidden_size
        if att.kind == "mla":
            qk = att.qk_nope_head_dim + att.qk_rope_head_dim
            q = h * att.q_lora_rank + att.q_lora_rank * att.heads * qk if att.q_lora_rank else h * att.heads * qk
            kv = h * att.latent_dim + att.kv_lora_rank * att.heads * (att.qk_nope_head_dim + att.v_head_dim)
            out = att.heads * att.v_head_dim * h
            return q + kv + out + self.indexer_params
        if kind == "linear" and att.linear is not None:
            lin = att.linear
            keys, values = lin.key_heads * lin.key_head_dim, lin.value_heads * lin.value_head_dim
            in_proj = h * (2 * keys + 2 * values) + h * 2 * lin.value_heads
            return in_proj + (2 * keys + values) * lin.conv_kernel + values * h
        gate = 2 if att.output_gate else 1
        keys_values = h * att.kv_heads_of(kind) * (att.head_dim + att.value_dim)
        return h * att.heads * att.head_dim * gate + keys_values + att.heads * att.value_dim * h

    @property
    def indexer_params(self) -> int:
        """Weights of one layer's sparse-attention indexer (wq_b, wk, weights_proj)."""
        att = self.attention
        if att.kind != "mla" or att.indexer is None:
            return 0
        ix = att.indexer
        return (att.q_lora_rank or self.hidden_size) * ix.heads * ix.head_dim + self.hidden_size * (ix.head_dim + ix.heads)

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert (gate, up, down)."""
        return 3 * self.hidden_size * self.mlp.moe_intermediate

    @property
    def shared_params(self) -> int:
        """Weights of one layer's shared experts together."""
        return 3 * self.hidden_size * self.mlp.shared_intermediate * self.mlp.shared_experts

    @property
    def router_params(self) -> int:
        """Weights of one layer's router."""
        return self.hidden_size * self.mlp.experts

    @property
    def dense_params(self) -> int:
        """Weights of one dense MLP (gate, up, down)."""
        return 3 * self.hidden_size * self.mlp.dense_intermediate

    def count_layers(self, kind: AttentionKind | MlpKind) -> int:
        """How many layers have this attention (full, sliding, linear) or MLP (dense, moe)."""
        return sum(kind in layer for layer in self.layers)

    @cached_property
    def total_params(self) -> int:
        """All text weights, embedding and lm_head included."""
        return self._body_params(self.mlp.experts) + self.vocab * self.hidden_size * (1 if self.tie_embeddings else 2)

    @cached_property
    def active_params(self) -> int:
        """Weights that one decoded token touches, lm_head included, embedding row not."""
        return self._body_params(self.mlp.top_k) + self.vocab * self.hidden_size

    def _body_params(self, experts_per_layer: int) -> int:
        attention = sum(self.attention_params(kind) for kind, _ in self.layers)
        moe = self.count_layers("moe") * (experts_per_layer * self.expert_params + self.shared_params + self.router_params)
        return attention + moe + self.count_layers("dense") * self.dense_params

    def kv_elements_per_token(self, kind: AttentionKind) -> int:
        """Elements that one token adds to one layer's KV cache (linear layers: none); the indexer's keys apart."""
        att = self.attention
        if kind == "linear":
            return 0
        if att.kind == "mla":
            return att.latent_dim
        return att.kv_heads_of(kind) * (att.head_dim + att.value_dim)

    @property
    def linear_state_bytes(self) -> int:
        """Recurrent state of one request in one linear layer, fp32 state and bf16 convolution window, in bytes."""
        att = self.attention
        if att.kind != "gqa" or att.linear is None:
            return 0
        lin = att.linear
        conv = (2 * lin.key_heads * lin.key_head_dim + lin.value_heads * lin.value_head_dim) * (lin.conv_kernel - 1)
        return lin.value_heads * lin.key_head_dim * lin.value_head_dim * 4 + conv * 2

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache of one token over all layers on one GPU (no parallelism), long context, in bytes."""
        return self.kv_bytes_per_element * sum(self.kv_elements_per_token(kind) for kind, _ in self.layers)
