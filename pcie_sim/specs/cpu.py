"""Which processors a socket part stands for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pcie_sim.specs.base import Spec, Text


class CpuRule(Spec):
    """Processors that a socket part stands for: by family and model as ``/proc/cpuinfo`` counts them, or by model name.

    ``name`` is compared in lower case without ``(r)``, ``(tm)`` and doubled blanks; ``*`` and ``?`` as in file names.
    """

    family: Annotated[int, Field(ge=0, le=4095)] | None = None
    models: tuple[Annotated[int, Field(ge=0, le=4095)], Annotated[int, Field(ge=0, le=4095)]] | None = None
    """First and last model of the family."""
    name: Annotated[str, Field(min_length=3, max_length=80)] | None = None
    near: bool = False
    """Not the part itself, but its nearest: what tells them apart is not modelled."""
    also: Text | None = None
    """Other processors with the same numbers."""

    @model_validator(mode="after")
    def _one_kind(self) -> CpuRule:
        if (self.name is None) == (self.family is None and self.models is None):
            raise ValueError("give either a name or family and models")
        if (self.family is None) != (self.models is None):
            raise ValueError("family and models go together")
        if self.name is not None and (self.name.count("*") > 3 or "[" in self.name or self.name != self.name.lower()):
            raise ValueError("name: lower case, at most three *, no [")
        return self
