"""The fit of one kernel class: robust least squares in log time, whole shapes held out.

Published kernel tables loop over one problem, so small working sets stay in the last-level cache and read faster than memory
ever can. A decode step does not: its weights pass through the cache between two uses. So only *cold* rows (too large for the
cache) tell the bandwidth share and are scored; *resident* rows get a read rate of their own (a nuisance parameter that is not
shipped) and tell latencies only; rows in between are left out. The shipped class predicts the cold time of every size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pcie_sim.calibration.kernel_tables import Row, totals
from pcie_sim.compute.roofline import Efficiencies, roofline
from pcie_sim.compute.work import Work
from pcie_sim.errors import InputError
from pcie_sim.results.fit import FitReport, FittedParameter
from pcie_sim.specs.ops import Array

BOUNDS: dict[str, tuple[float, float, float]] = {
    # name: (low, start, high); seconds and shares
    "fixed_s": (2e-7, 5e-6, 2e-4),
    "bandwidth_share": (0.05, 0.8, 1.05),
    "crowded_factor": (0.3, 0.8, 1.0),
    "flops_share": (0.005, 0.4, 1.05),
    "sharpness": (1.0, 3.0, 20.0),
    "per_item_s": (1e-10, 2e-7, 1e-5),
    "serial_s": (1e-12, 4e-9, 1e-7),
    "serial_cap": (256.0, 8192.0, 1e6),
    "resident_share": (0.3, 2.0, 10.0),
}
"""Limits of what a kernel can be: above 1.05 of the datasheet's bandwidth a row was not read from memory."""
UNITS = {"fixed_s": "s", "per_item_s": "s", "serial_s": "s", "serial_cap": "tokens"}

RESIDENT_RATE = 1.05
"""A row that moves its working set faster than this share of the memory's peak read it from the cache."""
COLD_FROM = 1.25
RESIDENT_UP_TO = 0.7
"""Working sets between these factors of the largest resident one may be partly resident and are left out."""
RESIDENT_WEIGHT = 0.5
"""Weight of a resident row's residual: they inform latencies but are not what is predicted."""
SOFT = 0.1
"""Scale of the soft_l1 loss in ln(time): beyond 10 % a row pulls linearly."""
HELD_OUT_OF = 4
"""One shape in four is held out."""


@dataclass(frozen=True)
class Guess(Efficiencies):
    """Efficiencies while they are fitted, and the share of the memory's bandwidth at which resident rows read."""

    resident_share: float = 1.0


@dataclass(frozen=True)
class ClassSpec:
    """What to fit: free parameters, fixed ones, and the row selection of one class."""

    key: str
    free: tuple[str, ...]
    given: Mapping[str, float] = field(default_factory=dict)
    heads_per_item: int = 1
    resident_bytes: float | None = None
    """Largest working set known to stay in the cache (bytes); None: found from the rows."""


@dataclass(frozen=True)
class ClassResult:
    """A fitted class: its numbers, its report, and the threshold below which rows ran hot (bytes)."""

    spec: ClassSpec
    guess: Guess
    report: FitReport
    resident_bytes: float
    cold_from_bytes: float


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


def largest_resident(rows: Iterable[Row], bandwidth: float) -> float:
    """Largest working set (bytes) that stayed in the last-level cache from run to run.

    Derived from the rows themselves: no kernel reads memory faster than its peak, so a working set that passes faster was
    resident. 0 when none did.
    """
    return max((row.working_set for row in rows if row.working_set > RESIDENT_RATE * bandwidth * row.time_s), default=0.0)


def sort_by_residence(rows: Sequence[Row], resident: float) -> tuple[list[Row], list[Row], int]:
    """Cold rows, resident rows, and how many are neither for sure."""
    cold = [row for row in rows if row.working_set > COLD_FROM * resident]
    warm = [row for row in rows if row.working_set <= RESIDENT_UP_TO * resident]
    return cold, warm, len(rows) - len(cold) - len(warm)


def _guess(spec: ClassSpec, free: Sequence[str], logs: Array) -> Guess:
    values = dict(spec.given)
    values.update({name: float(np.exp(value)) for name, value in zip(free, logs, strict=True)})
    return Guess(**values)


def _predict(guess: Guess, table: Array, warm: NDArray[np.bool_], peaks: tuple[float, float]) -> Array:
    moved = np.where(warm, table[0] * (guess.bandwidth_share / guess.resident_share), table[0])
    return roofline(Work(moved, *table[1:5]), guess, *peaks)


def fit_class(spec: ClassSpec, rows: Sequence[Row], left: Mapping[str, int], *, bandwidth: float, peak: float) -> ClassResult:
    """Fit one class and report its error on the cold shapes it saw and on those it did not.

    Args:
        left: rows that the reader already left out, by reason.
        bandwidth: B/s and ``peak`` flop/s of the GPU's datasheet; the shares are relative to them.

    Raises:
        InputError: too few usable rows for the number of parameters.
    """
    from scipy.optimize import least_squares

    resident = largest_resident(rows, bandwidth) if spec.resident_bytes is None else spec.resident_bytes
    cold, warm, between = sort_by_residence(rows, resident)
    out = held_out_shapes([row.shape for row in cold])
    seen = [row for row in cold if row.shape not in out]
    helpers = [row for row in warm if row.shape not in out]
    free = (*spec.free, "resident_share") if helpers else spec.free
    if len(seen) < 2 * len(free):
        raise InputError(f"{spec.key}: {len(seen)} usable rows for {len(free)} parameters; the tables hold too little")
    table = totals([*seen, *helpers], spec.heads_per_item)
    is_warm = np.arange(table.shape[1]) >= len(seen)
    weight = np.where(is_warm, RESIDENT_WEIGHT, 1.0)
    bounds = np.log([BOUNDS[name] for name in free])
    peaks = (bandwidth, peak)

    def residuals(logs: Array) -> Array:
        return np.asarray(weight * np.log(table[5] / _predict(_guess(spec, free, logs), table, is_warm, peaks)))

    fits = []
    for scale in (1.0, 0.5, 2.0):  # three starts: the corner of a roofline makes local minima
        start = np.clip(bounds[:, 1] + np.log(scale), bounds[:, 0] + 1e-9, bounds[:, 2] - 1e-9)
        fits.append(least_squares(residuals, start, bounds=(bounds[:, 0], bounds[:, 2]), loss="soft_l1", f_scale=SOFT))
    found = min(fits, key=lambda fit: float(fit.cost))
    guess = _guess(spec, free, found.x)
    errors = _stderr(np.asarray(found.jac), residuals(found.x))
    reasons = dict(left)
    if between:
        reasons["working set may be partly in the cache"] = between
    if warm:
        reasons["in the cache: used for latency only"] = len(warm)
    report = _report(spec, guess, seen, [row for row in cold if row.shape in out], peaks)
    moved = totals([*cold, *warm], spec.heads_per_item)[0]
    cold_from = float(totals(cold, spec.heads_per_item)[0].min())
    report = replace(
        report,
        parameters=_parameters(free, np.asarray(found.x), errors, np.asarray(found.active_mask)),
        left_out=reasons,
        range_bytes=(float(moved.min()), float(moved.max())),
        success=bool(found.success),
        message=str(found.message),
    )
    return ClassResult(spec, guess, report, resident, cold_from if warm else 0.0)


def _parameters(free: Sequence[str], logs: Array, errors: Array | None, active: Array) -> tuple[FittedParameter, ...]:
    """The parameters with standard errors; one at its bound has none that means anything."""
    found = []
    for i, name in enumerate(free):
        value, stuck = float(np.exp(logs[i])), bool(active[i])
        error = None if errors is None or stuck else float(value * errors[i])
        found.append(FittedParameter(name, value, UNITS.get(name, "share"), error, stuck))
    return tuple(found)


def _errors(spec: ClassSpec, guess: Guess, rows: Sequence[Row], peaks: tuple[float, float]) -> Array:
    """ln(measured / predicted) of cold rows."""
    table = totals(rows, spec.heads_per_item)
    predicted = _predict(guess, table, np.zeros(table.shape[1], dtype=np.bool_), peaks)
    return np.asarray(np.log(table[5] / predicted))


def _report(spec: ClassSpec, guess: Guess, seen: Sequence[Row], held: Sequence[Row], peaks: tuple[float, float]) -> FitReport:
    inside = _errors(spec, guess, seen, peaks)
    outside = _errors(spec, guess, held, peaks) if held else None
    ape = np.abs(np.expm1(-inside))
    ape_out = None if outside is None else np.abs(np.expm1(-outside))
    decides = inside if outside is None else outside
    return FitReport(
        name=spec.key,
        parameters=(),
        rows=len(seen),
        held_out_rows=len(held),
        median_ape=float(np.median(ape)),
        p90_ape=float(np.quantile(ape, 0.9)),
        held_out_median_ape=None if ape_out is None else float(np.median(ape_out)),
        held_out_p90_ape=None if ape_out is None else float(np.quantile(ape_out, 0.9)),
        sigma_log=max(float(np.sqrt(np.mean(decides**2))), 0.01),
        range_bytes=None,
        success=True,
        message="",
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
