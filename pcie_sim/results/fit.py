"""What a fit found and how far it may be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.results.base import Result, plain


@dataclass(frozen=True)
class FittedParameter:
    """One fitted number; ``stderr`` None when it could not be estimated."""

    name: str
    value: float
    unit: str
    stderr: float | None
    at_bound: bool = False


@dataclass(frozen=True)
class FitReport(Result):
    """One fit: its parameters, and its error on the rows it saw and on those held out (shares, 0.05 = 5 %)."""

    name: str
    parameters: tuple[FittedParameter, ...]
    rows: int
    held_out_rows: int
    median_ape: float
    p90_ape: float
    held_out_median_ape: float | None
    held_out_p90_ape: float | None
    sigma_log: float
    range_bytes: tuple[float, float] | None
    success: bool
    message: str
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Rows not used, by reason."""
    correlations: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found: dict[str, Any] = plain({**self.__dict__, "parameters": [dict(p.__dict__) for p in self.parameters]})
        return found
