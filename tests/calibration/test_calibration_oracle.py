"""An independent optimiser on the same residuals: lmfit's own bounds and MINPACK's Levenberg-Marquardt instead of scipy's trust region."""

from __future__ import annotations

import numpy as np
import pytest
from made_box import FOUR, PAIR, Run, measured, shipped_set, truth

from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.fit import Fit
from pcie_sim.calibration.make import calibrate
from pcie_sim.topology import load_topology

POINT = 0.08
"""Scale of a point's residual (ln): the documented one, written again."""


def lost(residuals: np.ndarray) -> np.ndarray:
    """Residuals whose squares are the soft L1 loss 2 (sqrt(1 + r^2) - 1)."""
    return np.sign(residuals) * np.sqrt(2 * (np.sqrt(1 + residuals**2) - 1))


def weighted(fit: Fit, vector: np.ndarray) -> np.ndarray:
    """The residuals of the fit: points in units of their scale, constants in standard deviations of their prior."""
    scale = np.maximum(POINT, fit.model.noise)
    points = (fit.model.ln_times(vector) - fit.model.measured) / scale
    return lost(np.concatenate([points, (vector - fit.prior_mean) / fit.prior_sigma]))


def oracle(fit: Fit) -> np.ndarray:
    """Where lmfit ends, begun at the prior's mean."""
    lmfit = pytest.importorskip("lmfit")
    items = [constants()[name] for name in fit.model.names]
    parameters = lmfit.Parameters()
    for place, item in enumerate(items):
        low, high = np.log(item.low / item.value), np.log(item.high / item.value)
        parameters.add(f"c{place}", value=float(fit.prior_mean[place]), min=float(low), max=float(high))

    def residuals(given: object) -> np.ndarray:
        return weighted(fit, np.array([given[f"c{place}"].value for place in range(len(items))]))  # type: ignore[index]

    found = lmfit.minimize(residuals, parameters, method="leastsq", epsfcn=1e-6, ftol=1e-9, xtol=1e-9, max_nfev=4000)
    return np.array([found.params[f"c{place}"].value for place in range(len(items))])


CASES = {
    "one sweep": (PAIR, (Run(),), 0.015),
    "graph and eager": (PAIR, (Run(), Run(launch="eager")), 0.015),
    "four ops": (PAIR, (Run(), Run("all_gather"), Run("send_recv"), Run("all_to_all")), 0.015),
    "four GPUs": (FOUR, (Run(), Run("all_gather")), 0.015),
    "wild": (FOUR, (Run(), Run(ranks=2)), 0.15),
}


@pytest.mark.parametrize(
    "case", ["graph and eager", "four GPUs", *(pytest.param(name, marks=pytest.mark.long) for name in ("one sweep", "four ops", "wild"))]
)
def test_lmfit_ends_where_the_fit_does(case: str) -> None:
    name, runs, noise = CASES[case]
    box = load_topology(name)
    noisy = [Run(run.op, run.ranks, run.sizes, run.launch, noise) for run in runs]
    same_end(calibrate(box, [measured(box, truth(seed=4), noisy, seed=4)], prior="none").fit)


STALE = "points that a constant begins to move during the fit keep a derivative of 0 (BoxModel.jacobian finds its pattern once)"


def test_lmfit_ends_where_the_fit_does_on_our_pair() -> None:
    same_end(calibrate(load_topology(PAIR), [shipped_set("all-reduce-h200-2x-host-staged")], prior="none").fit)


@pytest.fixture(scope="module")
def eager() -> Fit:
    """Two RTX 2080 Ti, five ops from one thread: most small calls are held up by the CPU at first."""
    return calibrate(load_topology("rtx-2080-ti-2x-switch"), [shipped_set("collectives-rtx-2080-ti-2x")], prior="none").fit


def test_lmfit_ends_where_the_fit_does_on_eager_runs(eager: Fit) -> None:
    same_end(eager)


def test_the_jacobian_is_the_derivative(eager: Fit) -> None:
    """Between the difference quotients up and down at the fit's end: they differ where a limit just begins to bind."""
    here, step = eager.model.ln_times(eager.vector), 1e-3
    for place, name in enumerate(eager.model.names):
        moved = np.zeros(len(eager.vector))
        moved[place] = step
        up, down = ((eager.model.ln_times(eager.vector + sign * moved) - here) / (sign * step) for sign in (1, -1))
        slope = eager.jacobian[:, place]
        assert np.all((slope > np.minimum(up, down) - 0.05) & (slope < np.maximum(up, down) + 0.05)), name


def same_end(fit: Fit) -> None:
    """lmfit's end costs the same to 1 %, and has the same constants to 2 % or 0.3 standard errors."""
    other = oracle(fit)
    ours, theirs = (float(np.sum(weighted(fit, vector) ** 2)) for vector in (fit.vector, other))
    assert ours == pytest.approx(theirs, rel=0.01)
    apart = np.abs(fit.vector - other)
    same = (apart < 0.02) | (apart < 0.3 * fit.sigma)
    assert same.all(), [name for name, one in zip(fit.model.names, same, strict=True) if not one]
