"""What :func:`pcie_sim.calibrate` answers: the calibration and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.results.base import Result, plain


@dataclass(frozen=True)
class ErrorStats:
    """Relative errors of a group of points (shares: 0.05 = 5 %). ``bias`` is the median of predicted / measured - 1; ``coverage`` the
    share inside p10-p90 (None where no intervals were made).
    """

    points: int
    median: float
    p90: float
    bias: float
    coverage: float | None = None


@dataclass(frozen=True)
class FittedPoint:
    """One measured point beside the fit: seconds; ``fitted`` by the constants alone, ``left_out`` by everything but this point
    (with its p10 and p90).
    """

    op: str
    ranks: int
    launch: str | None
    bytes: int
    measured_s: float
    fitted_s: float
    left_out_s: float | None
    left_out_p10_s: float | None
    left_out_p90_s: float | None
    regime: str
    """Protocol that the model has here, or ``floor`` where the CPU's launches decide."""
    outlier: bool
    curve: int
    """Index into the calibration's curves."""


@dataclass(frozen=True)
class Crosscheck:
    """Errors of predictions of what was left out of the fit: ``what`` is ``sizes`` (one size at a time), ``op`` or ``ranks`` (a whole
    op or number of ranks, ``left_out`` naming it). None where it could not be estimated; ``reason`` says why.
    """

    what: str
    left_out: str
    errors: ErrorStats | None
    reason: str | None = None


@dataclass(frozen=True)
class CalibrationReport(Result):
    """One calibration with everything to judge it by.

    Attributes:
        calibration: the file's content (a ``pcie_sim.specs.calibration.CalibrationSpec``).
        points: every point that was fitted, in the order of the curves.
        by_op, by_regime: errors of the constants alone.
        overall: the same over all points; ``answered``: with what the misfit teaches, each size left out in turn.
        crosschecks: leave-one-size-out, leave-one-op-out, leave-one-rank-count-out.
        correlations: pairs of fitted parameters, ``(a, b, correlation)``, strongest first.
        unidentified: parameters that the measurements say nothing about, and what would tell.
        unused: what was read and not used, with the reason.
        warnings: what looks wrong with the box or the measurements.
        fit_s: seconds that the fit took.
    """

    calibration: Any
    topology: str
    points: tuple[FittedPoint, ...]
    by_op: Mapping[str, ErrorStats]
    by_regime: Mapping[str, ErrorStats]
    overall: ErrorStats
    answered: ErrorStats
    crosschecks: tuple[Crosscheck, ...]
    correlations: tuple[tuple[str, str, float], ...]
    unidentified: tuple[tuple[str, str], ...]
    at_bounds: tuple[str, ...]
    unused: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    fit_s: float
    message: str
    titles: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, schema ``pcie-sim/calibrate/1``."""
        held = self.calibration.model_dump(mode="json", by_alias=True)
        return {
            "schema": "pcie-sim/calibrate/1",
            "topology": self.topology,
            "calibration": plain(held),
            "report": {
                "points": self.overall.points,
                "range_bytes": self._range(),
                "overall": _stats(self.overall),
                "answered": _stats(self.answered),
                "by_op": {name: _stats(item) for name, item in self.by_op.items()},
                "by_regime": {name: _stats(item) for name, item in self.by_regime.items()},
                "crosschecks": [
                    {"what": item.what, "left_out": item.left_out, "errors": _stats(item.errors), "reason": item.reason}
                    for item in self.crosschecks
                ],
                "correlations": [plain(list(item)) for item in self.correlations],
                "unidentified": [{"parameter": name, "reason": text} for name, text in self.unidentified],
                "at_bounds": list(self.at_bounds),
                "unused": list(self.unused),
                "fit_s": plain(self.fit_s),
                "message": self.message,
            },
            "fitted": self.to_records(),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """One row a measured point."""
        return [plain(dict(item.__dict__)) for item in self.points]

    def _range(self) -> list[int] | None:
        sizes = [point.bytes for point in self.points]
        return [min(sizes), max(sizes)] if sizes else None


def _stats(item: ErrorStats | None) -> dict[str, Any] | None:
    return None if item is None else plain(dict(item.__dict__))
