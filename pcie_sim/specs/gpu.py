"""A GPU as a data file (``catalog/gpus/*.yaml``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcie_sim.evidence import Evidence
from pcie_sim.specs.base import Name, Quantity, Spec, Text

PciId = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}( [0-9a-f]{4}:[0-9a-f]{4})?$")]
"""``vendor:device`` as lspci -nn prints it, lower case, and after a blank the board's own pair where only that tells products apart."""
PcieGen = Annotated[int, Field(ge=1, le=7)]
PcieWidth = Literal[1, 2, 4, 8, 16, 32]


class PcieLink(Spec):
    """A PCIe port: generation and lanes."""

    gen: PcieGen
    width: PcieWidth


class P2PSupport(Spec):
    """Whether the vendor's stock driver grants peer access between two GPUs of this kind over PCIe."""

    stock_driver: Literal["yes", "no", "unknown"]
    source: Text
    evidence: Evidence
    note: Text | None = None


class GpuSpec(Spec):
    """One GPU model.

    Units: bytes, B/s, flop/s (dense, fp32 accumulation). ``memory`` is what the driver reports as total.
    ``peak_flops`` is keyed by the operand format of the matrix unit: fp16, bf16, fp8, fp4, int8.
    """

    schema_: Literal["pcie-sim/gpu/1"] = Field(alias="schema")
    name: Name
    title: Text
    vendor: Literal["nvidia", "amd", "intel"]
    aliases: tuple[Name, ...] = ()
    pci_ids: tuple[PciId, ...] = ()
    printed_names: tuple[Text, ...] = ()
    """What tools print for it (nvidia-smi, lspci), where that is not the title."""
    architecture: Text
    compute_capability: Text
    memory: Quantity
    memory_bandwidth: Quantity
    l2_cache: Quantity
    multiprocessors: Quantity
    boost_clock: Quantity
    power: Quantity
    pcie: PcieLink
    peak_flops: dict[Literal["fp16", "bf16", "fp8", "fp4", "int8"], Quantity]
    p2p: P2PSupport
    kernel_profile: Name | None = None
    """Name of a ``catalog/profiles`` kernel profile fitted on this GPU; None means the nominal one."""
    force_p2p_needed: bool = False
    """SM loads and stores to peers on root ports go through system memory unless the driver's ForceP2P keys are set."""
    notes: tuple[Text, ...] = ()
