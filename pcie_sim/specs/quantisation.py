"""How weights are stored: bits per weight, and what scales add."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcie_sim.specs.base import Spec

FormatName = Literal["bf16", "fp16", "fp8", "fp8_block", "int4", "int8", "nvfp4", "mxfp4"]


class WeightFormat(Spec):
    """A storage format of weights.

    ``bytes_per_weight = bits/8 + scale_bits/8/group`` with ``group`` weights to one scale (0: no scales, or one per tensor).
    ``block`` is the edge of the square block of fp8_block formats (group = block x block).
    """

    format: FormatName
    bits: Annotated[int, Field(ge=1, le=32)]
    group: Annotated[int, Field(ge=0, le=65536)] = 0
    scale_bits: Annotated[int, Field(ge=0, le=64)] = 0
    block: Annotated[int, Field(ge=0, le=1024)] = 0

    @property
    def bytes_per_weight(self) -> float:
        """Bytes that one weight takes, its share of the scales included."""
        return self.bits / 8 + (self.scale_bits / 8 / self.group if self.group else 0.0)


BF16 = WeightFormat(format="bf16", bits=16)


class Quantisation(Spec):
    """The format of each part of a model.

    ``experts``: routed experts; ``linear``: dense MLP, and ``attention`` / ``shared`` where they are not named;
    ``attention_out``: the attention's output projection where it differs from the rest of the attention; ``lm_head`` and
    ``embedding``; the router and norms are bf16.
    """

    method: str
    experts: WeightFormat = BF16
    linear: WeightFormat = BF16
    attention: WeightFormat | None = None
    attention_out: WeightFormat | None = None
    shared: WeightFormat | None = None
    lm_head: WeightFormat = BF16
    embedding: WeightFormat = BF16

    @property
    def attention_format(self) -> WeightFormat:
        """The attention projections' format."""
        return self.attention or self.linear

    @property
    def attention_out_format(self) -> WeightFormat:
        """The attention's output projection's format."""
        return self.attention_out or self.attention_format

    @property
    def shared_format(self) -> WeightFormat:
        """The shared experts' format."""
        return self.shared or self.linear
