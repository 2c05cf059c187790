"""What a serving engine sends and computes per decode step, as a data file (``catalog/runtimes/*.yaml``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcie_sim.specs.base import Name, Quantity, Spec, Text
from pcie_sim.specs.strategy import MoeComm

Whole = Annotated[int, Field(ge=0, le=10**7)]


class MoeRules(Spec):
    """Which exchange the MoE layers use when the strategy does not say, and what an All-to-All carries."""

    tp_only: MoeComm
    """Attention dp = 1 (``--tp-size N --ep-size N`` included)."""
    with_dp: MoeComm
    """Attention dp > 1."""
    dispatch_bytes_per_element: Quantity
    """Bytes per hidden element of a dispatched token, its scales included."""
    combine_bytes_per_element: Quantity
    copies_per: Literal["rank", "expert"]
    """A token is sent once per destination rank, or once per chosen expert."""
    a2a_replicates_shared: bool
    """With a real All-to-All the shared experts are whole on every rank."""
    ag_rs_routing_bytes_per_choice: Whole = 0
    """ag_rs: bytes per token and chosen expert that travel beside the hidden state (id and weight)."""
    dense_with_dp: Literal["gather", "local"]
    """Attention dp > 1: dense MLPs and lm_head run on all tokens over tp x dp (gather), or per dp rank over tp (local)."""
    fp8_block_must_divide: bool
    """The engine refuses an expert width per rank that is not a multiple of the fp8 block."""
    hides_shared_experts: bool
    """The shared experts run on a second stream beside the routed ones while CUDA graphs are used."""


class PipelineRules(Spec):
    """Pipeline parallelism."""

    boundary_tensors: Annotated[int, Field(ge=1, le=4)]
    """Tensors of (tokens, hidden) per boundary: hidden state and residual make 2."""
    split_over_tp: bool
    """Each TP rank sends 1/tp and the receivers all-gather."""
    remainder_to: Literal["first", "last", "middle"]
    """Which stages take the layers that are left over."""
    hop_cpu: Quantity
    """CPU-side cost of one boundary (metadata over a CPU group, scheduling) that no GPU work hides, s."""
    overlap_scheduling: bool
    """False: the CPU's part of a step is exposed once per micro-batch and stage, not once per step."""


class MemoryRules(Spec):
    """How much of a GPU weights and KV may take.

    ``static_fraction`` (vLLM: gpu_memory_utilization) of the reported memory minus ``reserve``; None: SGLang's rule
    ``1 - (constant + max(chunk, 2048) x per_chunk_token + graph_max_batch x per_graph_batch + tp x pp / 8 x per_rank) / memory``,
    all MiB, the reserve at least ``minimum_reserve_MiB`` on GPUs above 60 GB.
    """

    static_fraction: Annotated[float, Field(gt=0, le=1)] | None
    per_dp_graph_batch_MiB: Annotated[float, Field(ge=0)] = 0.0
    """Attention dp > 1: more reserve, per dp rank and graph batch."""
    per_dp_large_graph_batch_MiB: Annotated[float, Field(ge=0)] = 0.0
    """As before, once more where the largest graph batch exceeds ``large_graph_batch``."""
    large_graph_batch: Whole = 0
    piecewise_graph_MiB: Whole = 0
    """Reserve for piecewise CUDA graphs (off with pipelines, attention dp, an All-to-All backend or a vision tower)."""
    multimodal_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the static fraction for models with a vision tower."""
    activation_reserve: Quantity
    """Left free inside the static part whatever the model (activations at profiling, vLLM), bytes."""
    activation_bytes_per_hidden: Annotated[float, Field(ge=0)] = 0.0
    """More per token of a prefill chunk and hidden element, bytes."""
    activation_bytes_per_intermediate: Annotated[float, Field(ge=0)] = 0.0
    """More per token of a prefill chunk and MLP element of this rank, bytes."""
    constant_MiB: Whole = 0
    per_chunk_token_MiB: Annotated[float, Field(ge=0)] = 0.0
    per_graph_batch_MiB: Annotated[float, Field(ge=0)] = 0.0
    per_eight_ranks_MiB: Whole = 0
    minimum_reserve_MiB: Whole = 0
    ccl_buffers: Quantity
    """What the collective library and the CUDA context take outside the static part, bytes."""
    source: Text


class GraphTier(Spec):
    """Defaults by GPU memory: chunked prefill, largest graph batch, cap on running requests."""

    below_MiB: Whole | None
    """Upper bound of the tier; None for the last."""
    chunk: Whole
    max_batch_tp_below_4: Whole
    max_batch: Whole
    max_running: Annotated[int, Field(ge=1, le=10**6)] | None = None


class SmallKernels(Spec):
    """Number of small kernels besides the GEMMs, attention and experts, per layer or per step."""

    mla_attention: Annotated[float, Field(ge=0, le=200)]
    gqa_attention: Annotated[float, Field(ge=0, le=200)]
    linear_attention: Annotated[float, Field(ge=0, le=200)]
    moe: Annotated[float, Field(ge=0, le=200)]
    dense: Annotated[float, Field(ge=0, le=200)]
    step: Annotated[float, Field(ge=0, le=200)]
    source: Text


class CustomAllReduce(Spec):
    """The engine's own AllReduce kernel for small messages."""

    world_sizes: tuple[int, ...]
    max_pcie_gpus: Whole
    """Refused above this many GPUs without NVLink."""
    max_bytes: Whole
    one_stage_below: dict[int, int]
    """Largest message, bytes, that goes in one exchange, by the most ranks that it holds for; two ranks always do."""
    needs_p2p: bool
    source: Text


class RuntimeSpec(Spec):
    """A serving engine."""

    schema_: Literal["pcie-sim/runtime/1"] = Field(alias="schema")
    name: Name
    title: Text
    version: Text
    aliases: tuple[Name, ...] = ()
    launch: Literal["graph", "eager"]
    embedding_all_reduce: bool
    embedding_with_dp: Literal["replicated", "tp"]
    """Attention dp > 1: the embedding is whole on every rank (no AllReduce), or still cut over tp."""
    logits: Literal["all_gather", "none"]
    moe: MoeRules
    pipeline: PipelineRules
    memory: MemoryRules
    graph_tiers: tuple[GraphTier, ...]
    decode_context_parallel: Text | None = None
    """None: the engine has it. Else a remark that answers carry."""
    custom_all_reduce: CustomAllReduce | None = None
    small_kernels: SmallKernels
    collective_issue: Quantity
    """CPU time of issuing one collective without CUDA graphs, s."""
    model_error: Quantity
    """What this model of a decode step leaves out, as a factor (1 with low and high): shared by no two strategies."""
    step_cpu: Quantity
    """CPU time per step that the GPU waits for (overlap scheduling leaves little), s."""
    sources: Annotated[tuple[Text, ...], Field(min_length=1)]
    notes: tuple[Text, ...] = ()
