"""Fitted (or nominal) kernel efficiencies of a GPU as a data file (``catalog/profiles/kernels-*.yaml``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcie_sim.evidence import Evidence
from pcie_sim.specs.base import Name, Spec, Text

Share = Annotated[float, Field(gt=0, le=1.5)]


class KernelClassFit(Spec):
    """One kernel class: a roofline with a smooth corner,

    ``time = fixed_s + (sum of term^p)^(1/p)``, ``p = sharpness`` (None: the largest term alone), over the terms

    - memory: ``bytes / (bandwidth_share x BW)``; times ``crowded_factor`` once an expert kernel is handed more tokens than the
      rank holds experts (SGLang's untuned Triton MoE then takes larger tiles and reads slower),
    - compute: ``flops / (flops_share x peak)``, ``peak`` naming the operand format of the GPU's matrix unit,
    - items: ``per_item_s x items``, independent pieces of work that a fixed number of SMs works off (attention: requests x
      KV heads, or requests x blocks of ``heads_per_item`` query heads for MLA; experts: distinct experts),
    - serial: ``serial_s x min(length, serial_cap)``, the loop that one thread block walks alone (GEMM without split-K: k;
      attention: the context, until the kernel splits it further).

    ``sigma_log`` is the standard deviation of ln(measured/predicted) on held-out shapes; ``range_bytes`` what the fit covered
    (bytes moved per call). ``kernels`` is how many kernels one call launches (it matters without CUDA graphs).
    """

    fixed_s: Annotated[float, Field(ge=0, le=1e-2)]
    bandwidth_share: Share
    crowded_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    flops_share: Share
    peak: Literal["fp16", "bf16", "fp8", "fp4", "int8"]
    per_item_s: Annotated[float, Field(ge=0, le=1e-2)] = 0.0
    heads_per_item: Annotated[int, Field(ge=1, le=1024)] = 1
    serial_s: Annotated[float, Field(ge=0, le=1e-3)] = 0.0
    serial_cap: Annotated[float, Field(gt=0, le=1e9)] | None = None
    sharpness: Annotated[float, Field(ge=1, le=100)] | None = None
    kernels: Annotated[int, Field(ge=1, le=100)] = 1
    sigma_log: Annotated[float, Field(gt=0, le=3)]
    cold_from_bytes: Annotated[float, Field(ge=0)] | None = None
    """Bytes per call of the smallest row that was measured out of the cache; below it the memory term was never measured cold."""
    cold_doubt: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Standard deviation of the logarithm that the memory term gains below ``cold_from_bytes``."""
    evidence: Evidence
    rows: Annotated[int, Field(ge=0)] = 0
    held_out_rows: Annotated[int, Field(ge=0)] = 0
    median_ape: float | None = None
    held_out_median_ape: float | None = None
    range_bytes: tuple[float, float] | None = None
    source: Text
    note: Text | None = None


class KernelProfile(Spec):
    """Every kernel class of one GPU. Keys: ``gemm:<format>``, ``bmm``, ``attention:gqa``, ``attention:gqa:fp8``,
    ``attention:mla``, ``attention:mla:fp8`` (KV of one byte or less), ``experts:<format>``, ``elementwise``,
    ``linear_attention``, ``sampling``; ``default`` for the rest.
    """

    schema_: Literal["pcie-sim/kernel-profile/1"] = Field(alias="schema")
    name: Name
    title: Text
    gpu: Name | None
    aliases: tuple[Name, ...] = ()
    classes: dict[str, KernelClassFit]
    small_kernel_graph_s: Annotated[float, Field(ge=0, le=1e-3)]
    """Least time of a small kernel inside a CUDA graph."""
    small_kernel_eager_s: Annotated[float, Field(ge=0, le=1e-3)]
    """Least time of a small kernel launched one by one by the engine."""
    sources: tuple[Text, ...]
    notes: tuple[Text, ...] = ()
