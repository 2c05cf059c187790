"""The fit of one kernel class: robust least squares in log time, cold rows only, whole shapes held out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pcie_sim.calibration.kernel_tables import Row, totals
from pcie_sim.compute.roofline import roofline
from pcie_sim.compute.work import Work
from pcie_sim.errors import InputError
from pcie_sim.results.fit import FitReport, FittedParameter
from pcie_sim.specs.ops import Array

BOUNDS: dict[str, tuple[float, float, float]] = {
    # name: (low, start, high); seconds and shares
    "fixed_s": (2e-7, 5e-6, 2e-4),
    "bandwidth_share": (0.05, 0.8, 1.05),
    "flops_share": (0.005, 0.4, 1.05),
    "sharpness": (1.0, 3.0, 20.0),
    "per_item_s": (1e-10, 2e-7, 1e-5),
    "serial_s": (1e-12, 4e-9, 1e-7),
    "serial_cap": (256.0, 8192.0, 1e6),
}
"""Limits of what a kernel can be: above 1.05 of the datasheet's bandwidth a row was not read from memory."""
UNITS = {"fixed_s": "s", "per_item_s": "s", "serial_s": "s", "serial_cap": "tokens"}

RESIDENT_RATE = 1.05
"""A row that moves its working set faster than this share of the memory's peak read it from the cache."""
RESIDENT_MARGIN = 1.15
"""Working sets up to this factor above the largest such row may still be partly resident."""
LATENCY_SHARE = 0.2
"""Rows whose whole working set passes in this share of the class's shortest time tell of latency, hot or cold."""
SOFT = 0.1
"""Scale of the soft_l1 loss in ln(time): beyond 10 % a row pulls linearly."""
HELD_OUT_OF = 4
"""One shape in four is held out."""


@dataclass(frozen=True)
class Guess:
    """Efficiencies while they are fitted; the fields are those of ``KernelClassFit``."""

    fixed_s: float
    bandwidth_share: float
    flops_share: float
    per_item_s: float = 0.0
    serial_s: float = 0.0
    serial_cap: float | None = None
    sharpness: float | None = None


@dataclass(frozen=True)
class ClassSpec:
    """What to fit: free parameters, fixed ones, and the row selection of one class."""

    key: str
    free: tuple[str, ...]
    given: Mapping[str, float] = field(default_factory=dict)
    heads_per_item: int = 1
    resident_floor: float = 0.0
    """Working sets up to this may be resident whatever the rows say (bytes)."""


@dataclass(frozen=True)
class ClassResult:
    """A fitted class: its numbers, its report, and the threshold below which rows ran hot (bytes)."""

    spec: ClassSpec
    guess: Guess
    report: FitReport
    resident_bytes: float


def is_held_out(shape: str) -> bool:
    """Whether a shape is held out: by a hash of its name, the same on every machine.

    >>> is_held_out("7168x8192"), is_held_out("1024x7168")
    (False, False)
    """
    return hashlib.sha256(shape.encode()).digest()[0] % HELD_OUT_OF == 0


def held_out_shapes(shapes: Sequence[str]) -> frozenset[str]:
    """The shapes that are not fitted: by hash, at least one and never all (when there are two or more)."""
    names = sorted(set(shapes), key=lambda name: (hashlib.sha256(name.encode()).digest(), name))
    chosen = [name for name in names if is_held_out(name)]
    if len(names) < 2:
        return frozenset()
    if not chosen:
        return frozenset(names[:1])
    return frozenset(chosen if len(chosen) < len(names) else chosen[:-1])


def resident_limit(rows: Sequence[Row], bandwidth: float, floor: float = 0.0) -> float:
    """Largest working set (bytes) that may have stayed in the last-level cache between runs.

    Derived from the rows themselves: reading faster than the memory's peak is impossible, so the largest working set that does
    was resident; with a margin for partly resident ones. ``floor``: a limit known from elsewhere.
    """
    fast = [row.working_set for row in rows if row.working_set > RESIDENT_RATE * bandwidth * row.time_s]
    return max(RESIDENT_MARGIN * max(fast, default=0.0), floor)


def select_cold(rows: Sequence[Row], bandwidth: float, floor: float) -> tuple[list[Row], int, float]:
    """Rows that tell of decode: cold ones, and ones so small that memory does not matter; how many were hot; the limit."""
    limit = resident_limit(rows, bandwidth, floor)
    shortest = min((row.time_s for row in rows), default=0.0)
    tiny = LATENCY_SHARE * shortest * bandwidth
    kept = [row for row in rows if row.working_set > limit or row.working_set <= tiny]
    return kept, len(rows) - len(kept), limit


def _guess(spec: ClassSpec, logs: Array) -> Guess:
    values = dict(spec.given)
    values.update({name: float(np.exp(value)) for name, value in zip(spec.free, logs, strict=True)})
    return Guess(**values)


def _predict(guess: Guess, table: Array, bandwidth: float, peak: float) -> Array:
    return roofline(Work(table[0], table[1], table[2], table[3]), guess, bandwidth, peak)


def fit_class(spec: ClassSpec, rows: Sequence[Row], left: Mapping[str, int], *, bandwidth: float, peak: float) -> ClassResult:
    """Fit one class and report its error on the shapes it saw and on those it did not.

    Args:
        bandwidth: B/s and ``peak`` flop/s of the GPU's datasheet; the shares are relative to them.

    Raises:
        InputError: too few usable rows for the number of parameters.
    """
    from scipy.optimize import least_squares

    kept, hot, limit = select_cold(rows, bandwidth, spec.resident_floor)
    out = held_out_shapes([row.shape for row in kept])
    seen = [row for row in kept if row.shape not in out]
    if len(seen) < 2 * len(spec.free):
        raise InputError(f"{spec.key}: {len(seen)} usable rows for {len(spec.free)} parameters; the tables hold too little")
    table = totals(seen, spec.heads_per_item)
    bounds = np.log([BOUNDS[name] for name in spec.free])

    def residuals(logs: Array) -> Array:
        return np.asarray(np.log(table[4] / _predict(_guess(spec, logs), table, bandwidth, peak)))

    fits = []
    for scale in (1.0, 0.5, 2.0):  # three starts: the corner of a roofline makes local minima
        start = np.clip(bounds[:, 1] + np.log(scale), bounds[:, 0] + 1e-9, bounds[:, 2] - 1e-9)
        fits.append(least_squares(residuals, start, bounds=(bounds[:, 0], bounds[:, 2]), loss="soft_l1", f_scale=SOFT, x_scale=1.0))
    found = min(fits, key=lambda fit: float(fit.cost))
    guess = _guess(spec, found.x)
    report = _report(spec, guess, found, table, [row for row in kept if row.shape in out], (bandwidth, peak))
    reasons = {**left, **({f"may have run in the cache (working set up to {limit / 1e6:.0f} MB)": hot} if hot else {})}
    moved = totals(kept, spec.heads_per_item)[0]
    report = FitReport(**{**report.__dict__, "left_out": reasons, "range_bytes": (float(moved.min()), float(moved.max()))})
    return ClassResult(spec, guess, report, limit)


def _report(
    spec: ClassSpec, guess: Guess, found: object, table: Array, held: Sequence[Row], peaks: tuple[float, float]
) -> FitReport:
    logs = np.asarray(found.x)  # type: ignore[attr-defined]
    jacobian = np.asarray(found.jac)  # type: ignore[attr-defined]
    active = np.asarray(found.active_mask)  # type: ignore[attr-defined]
    ape = np.abs(_predict(guess, table, *peaks) / table[4] - 1)
    errors = _stderr(jacobian, np.log(table[4] / _predict(guess, table, *peaks)))
    parameters = tuple(
        FittedParameter(
            name, float(np.exp(logs[i])), UNITS.get(name, "share"), None if errors is None else float(np.exp(logs[i]) * errors[i]), bool(active[i])
        )
        for i, name in enumerate(spec.free)
    )
    median_out = p90_out = None
    residual = np.log(table[4] / _predict(guess, table, *peaks))
    if held:
        other = totals(held, spec.heads_per_item)
        predicted = _predict(guess, other, *peaks)
        ape_out = np.abs(predicted / other[4] - 1)
        median_out, p90_out = float(np.median(ape_out)), float(np.quantile(ape_out, 0.9))
        residual = np.log(other[4] / predicted)
    return FitReport(
        name=spec.key,
        parameters=parameters,
        rows=table.shape[1],
        held_out_rows=len(held),
        median_ape=float(np.median(ape)),
        p90_ape=float(np.quantile(ape, 0.9)),
        held_out_median_ape=median_out,
        held_out_p90_ape=p90_out,
        sigma_log=max(float(np.sqrt(np.mean(residual**2))), 0.01),
        range_bytes=None,
        success=bool(found.success),  # type: ignore[attr-defined]
        message=str(found.message),  # type: ignore[attr-defined]
    )


def _stderr(jacobian: Array, residual: Array) -> Array | None:
    """Standard errors in ln(parameter) from the Jacobian at the solution; None when it does not determine them."""
    freedom = residual.size - jacobian.shape[1]
    if freedom <= 0:
        return None
    try:
        covariance = np.linalg.inv(jacobian.T @ jacobian) * float(residual @ residual) / freedom
    except np.linalg.LinAlgError:
        return None
    diagonal = np.diag(covariance)
    if not np.all(np.isfinite(diagonal)) or np.any(diagonal < 0):
        return None
    return np.asarray(np.sqrt(diagonal))
