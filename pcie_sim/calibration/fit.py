"""The fit: robust least squares in log time for the constants, then errors that know that neighbouring sizes err together.

1. scipy's trust-region least squares on ln(measured / model) over the noise of a point, with a loss that grows linearly beyond it
   (soft L1), and the prior of every constant as one more residual. Limits that may bind only far below their start (a slow memory, a
   sick link) are also tried from low values first.
2. The misfit (:mod:`pcie_sim.calibration.misfit`) makes errors of neighbouring sizes correlated, so that forty sizes of one curve are
   not forty witnesses: the standard errors are those of the robust estimate under that covariance (the sandwich formula). Generalised
   least squares with it was tried: no better on left-out ops, and it fits the points themselves less well. Points that lie far from
   what all others say of them are outliers: named, and weighed down.

Leaving points out needs no second fit: with S the covariance of the errors (misfit, noise and constants together) the prediction of a
block B from the rest is off by (S^-1)_BB^-1 (S^-1 e)_B with covariance (S^-1)_BB^-1 (e: measured less model at the prior's mean,
linearised).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.misfit import covariance
from pcie_sim.calibration.model import FEW, BoxModel, Rows
from pcie_sim.calibration.prior import Prior
from pcie_sim.calibration.search import POINT, Search
from pcie_sim.specs.ops import Array

OUTLIER = 4.0
"""Standard deviations from what all others say of a point."""
OUTLIER_FROM = 0.12
"""... and so much in ln(time): what is nearer is no use to name."""
WITNESSES = 3
NEAR_OCTAVES = 3.0
"""An outlier has at least so many other points of its op and ranks within so many octaves."""
FRESH = 8
"""Every so many steps the derivative is taken anew; in between it follows the steps (Broyden 1965). With few curves, which cost little,
a last fit takes it anew every time, until the cost stands still."""
CLEARLY = 4.0
"""What a fit without the CPU's floor must save of the cost (half the sum of squares) to be believed where there may be one."""
MOST_ROUNDS = 2
"""Fits in a row, each with other switch points."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted box.

    Attributes:
        vector, covariance: constants (ln of value over start) and their posterior covariance, in the order of ``model.names``.
        prior_mean, prior_sigma: of the same.
        error: ln(measured / model) of every point at ``vector``.
        jacobian: d ln(time) / d ln(constant) there.
        noise: standard deviation of each point by itself (outliers widened).
        scale: how much larger this box's misfit is than boxes' in general.
        left_out_error, left_out_sigma: ln(measured / predicted) of each point from all others, and its standard deviation.
    """

    model: BoxModel
    rows: Rows
    vector: Array
    covariance: Array
    prior_mean: Array
    prior_sigma: Array
    error: Array
    jacobian: Array
    noise: Array
    scale: float
    outliers: np.ndarray
    left_out_error: Array
    left_out_sigma: Array
    at_bound: np.ndarray
    expected: Array
    """ln(time) of each point by the prior alone, ..."""
    expected_sigma: Array
    """... and its standard deviation."""
    switch: float
    """Factor on the sizes at which the library changes protocol, and whether the measurements tell it."""
    switch_told: bool
    seconds: float
    message: str
    success: bool

    @property
    def sigma(self) -> Array:
        """Standard errors of ln(constant)."""
        return np.sqrt(np.diagonal(self.covariance))

    def total_covariance(self) -> Array:
        """S: of the errors at the prior's mean."""
        return _total(self.rows, self.jacobian, self.prior_sigma, self.noise, self.scale)

    def without(self, block: np.ndarray) -> tuple[Array, Array]:
        """ln(measured / predicted) of the points of ``block`` (boolean) from all others, and standard deviations."""
        inverse = np.linalg.inv(self.total_covariance())
        start = self.error + self.jacobian @ (self.vector - self.prior_mean)
        pulled = inverse @ start
        part = np.linalg.inv(inverse[np.ix_(block, block)])
        return part @ pulled[block], np.sqrt(np.maximum(np.diagonal(part), 0.0))


def _total(rows: Rows, jacobian: Array, prior_sigma: Array, noise: Array, scale: float) -> Array:
    spread = scale**2 * covariance(rows, rows) + np.diag(noise**2)
    return np.asarray(spread + (jacobian * prior_sigma**2) @ jacobian.T)


def fit(model: BoxModel, prior: Prior) -> Fit:
    """The constants of ``model``'s box from its curves and copies, and ``prior``.

    Raises:
        numpy.linalg.LinAlgError: never for finite measurements (the noise keeps every matrix positive).
    """
    began = time.perf_counter()
    beliefs = [prior.beliefs[name] for name in model.names]
    mean, sigma = np.array([item.mean for item in beliefs]), np.array([item.sigma for item in beliefs])
    low, high = _bounds(model.names)
    mean = np.clip(mean, low + 1e-6, high - 1e-6)
    search = Search(model, mean, sigma, low, high)
    few = len(model.curves) <= FEW
    first = search.begin()
    vector, ended, cost = _least_squares(model, mean, sigma, low, high, first)
    if few and not np.array_equal(first, mean):  # limits make several minima: the prior's mean is a start, too
        other, ends, costs = _least_squares(model, mean, sigma, low, high, mean)
        # small calls that may be the CPU's are, unless the times say clearly that they are the wire's
        vector, ended = (vector, ended) if cost <= costs + (CLEARLY if search.held_up else 0.0) else (other, ends)
    for _ in range(MOST_ROUNDS):
        if not search.switch(vector):
            break
        vector, ended, _ = _least_squares(model, mean, sigma, low, high, vector)
    if few:
        vector, ended, _ = _least_squares(model, mean, sigma, low, high, vector, last=True)
    return _refined(model, mean, sigma, vector, model.jacobian(vector), (low, high), began, ended, search.told(vector))


def _least_squares(
    model: BoxModel, mean: Array, sigma: Array, low: Array, high: Array, first: Array, *, last: bool = False
) -> tuple[Array, tuple[str, bool], float]:
    """(constants, how it ended, the cost)."""
    from scipy.optimize import least_squares

    kept: dict[str, Array] = {}
    turns = [0]
    fresh, least, most = (1, 1e-5, 30) if last else (FRESH, 1e-3, 20)
    scale = np.maximum(POINT, model.noise)

    def residuals(vector: Array) -> Array:
        kept["at"], kept["ln"] = vector.copy(), model.ln_times(vector)
        return np.concatenate([(kept["ln"] - model.measured) / scale, (vector - mean) / sigma])

    def slopes(vector: Array) -> Array:
        at = kept["ln"] if np.array_equal(kept.get("at", np.zeros(0)), vector) else model.ln_times(vector)
        if "jacobian" in kept and turns[0] % fresh:
            step, change = vector - kept["there"], at - kept["ln there"]
            kept["jacobian"] = kept["jacobian"] + np.outer(change - kept["jacobian"] @ step, step) / max(float(step @ step), 1e-12)
        else:
            kept["jacobian"] = model.jacobian(vector, at)
        turns[0] += 1
        kept["there"], kept["ln there"] = vector.copy(), at
        return np.vstack([kept["jacobian"] / scale[:, None], np.diag(1.0 / sigma)])

    found = least_squares(
        residuals, first, jac=slopes, bounds=(low, high), loss="soft_l1", x_scale=sigma, xtol=least, ftol=least, gtol=1e-6, max_nfev=most
    )
    return found.x, (str(found.message), bool(found.success)), float(found.cost)


def _bounds(names: Sequence[str]) -> tuple[Array, Array]:
    items = [constants()[name] for name in names]
    return (
        np.array([math.log(item.low / item.value) for item in items]),
        np.array([math.log(item.high / item.value) for item in items]),
    )


def _refined(
    model: BoxModel,
    mean: Array,
    sigma: Array,
    vector: Array,
    jacobian: Array,
    bounds: tuple[Array, Array],
    began: float,
    end: tuple[str, bool],
    switch_told: bool,
) -> Fit:
    """Standard errors, the misfit's scale and outliers around ``vector``."""
    low, high = bounds
    plain = np.maximum(model.noise, 1e-3)
    rows = model.rows(vector)
    at = model.ln_times(vector)
    error = model.measured - at
    start = error + jacobian @ (vector - mean)
    scale, noise, outliers = 1.0, plain, np.zeros(len(error), dtype=bool)
    witnessed = _witnessed(rows)
    for _ in range(4):
        off, spread = _each_left_out(rows, jacobian, sigma, noise, scale, start)
        alone = np.sqrt(np.maximum(spread**2 - noise**2, 0.0) + plain**2)
        far = (np.abs(off) > OUTLIER * alone) & (np.abs(off) > OUTLIER_FROM) & witnessed
        scale = _scale(scale, off[~far], spread[~far])
        if np.array_equal(far, outliers):
            break
        outliers = far
        noise = np.where(outliers, np.maximum(plain, np.abs(off)), plain)
    cov = _sandwich(jacobian, error, sigma, scale**2 * covariance(rows, rows) + np.diag(noise**2), np.maximum(POINT, plain))
    off, spread = _each_left_out(rows, jacobian, sigma, noise, scale, error + jacobian @ (vector - mean))
    at_bound = (vector <= low + 1e-3) | (vector >= high - 1e-3)
    return Fit(
        model=model,
        rows=rows,
        vector=vector,
        covariance=cov,
        prior_mean=mean,
        prior_sigma=sigma,
        error=error,
        jacobian=jacobian,
        noise=noise,
        scale=scale,
        outliers=outliers,
        left_out_error=off,
        left_out_sigma=spread,
        at_bound=at_bound,
        expected=model.ln_times(mean),
        expected_sigma=np.sqrt(np.diagonal(covariance(rows, rows)) + np.einsum("ij,j,ij->i", jacobian, sigma**2, jacobian)),
        seconds=time.perf_counter() - began,
        switch=model.switch,
        switch_told=switch_told,
        message=end[0],
        success=end[1],
    )


def _witnessed(rows: Rows) -> np.ndarray:
    """Points that enough others of their op and number of ranks stand near: only those can be called far from the others."""
    same = np.array([[a == b for b in rows.op] for a in rows.op]) & (rows.ranks[:, None] == rows.ranks[None, :])
    near = np.abs(np.log2(rows.size)[:, None] - np.log2(rows.size)[None, :]) <= NEAR_OCTAVES
    return np.asarray(np.sum(same & near, axis=1) > WITNESSES)


def _sandwich(jacobian: Array, error: Array, sigma: Array, inside: Array, scale: Array) -> Array:
    """Covariance of the robust estimate when errors have the covariance ``inside``: H^-1 (J'WSWJ + P) H^-1, H = J'WJ + P."""
    weight = 1.0 / scale**2 / np.sqrt(1.0 + (error / scale) ** 2)
    prior = np.diag(1.0 / sigma**2)
    inverse = np.linalg.inv((jacobian.T * weight) @ jacobian + prior)
    pulled = jacobian.T * weight
    return np.asarray(inverse @ (pulled @ inside @ pulled.T + prior) @ inverse)


def _each_left_out(rows: Rows, jacobian: Array, sigma: Array, noise: Array, scale: float, start: Array) -> tuple[Array, Array]:
    inverse = np.linalg.inv(_total(rows, jacobian, sigma, noise, scale))
    own = np.diagonal(inverse)
    return (inverse @ start) / own, np.sqrt(1.0 / own)


MOST_KNOWN = 20.0
"""The general scale 1 counts as so many points when a box's own is estimated."""


def _scale(scale: float, off: Array, spread: Array) -> float:
    """The misfit's scale by how far left-out points fall from their predictions, robustly (what lies beyond 2.5 sd counts as 2.5)."""
    if not len(off):
        return scale
    ratio = np.minimum((off / spread) ** 2, 6.25)
    grown = (MOST_KNOWN + float(np.sum(ratio))) / (MOST_KNOWN + len(ratio))
    return float(np.clip(scale * math.sqrt(grown), 0.3, 10.0))
