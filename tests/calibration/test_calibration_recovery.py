"""A calibration finds the constants that made its measurements, says how well, and predicts what it did not see."""

from __future__ import annotations

import numpy as np
import pytest
from made_box import EIGHT, FOUR, PAIR, SWEEP, SWITCHED, Run, asked, measured, true_times, truth

from pcie_sim.calibration.apply import Calibrated
from pcie_sim.calibration.constants import start
from pcie_sim.calibration.fit import Fit
from pcie_sim.calibration.make import Made, calibrate
from pcie_sim.topology import load_topology

NOISE = 0.015
RINGS = (Run(noise=NOISE), Run("all_gather", noise=NOISE))
ALL = (*RINGS, Run("send_recv", noise=NOISE), Run("all_to_all", noise=NOISE))
CASES = {PAIR: ALL, FOUR: ALL, EIGHT: RINGS, SWITCHED: RINGS}
TELLS = {
    PAIR: {"base.all_reduce", "base_ratio.all_gather", "step.Simple", "last_receive", "host_step", "duplex"},
    FOUR: {"base.all_reduce", "base_ratio.all_gather", "peer_issue", "step.Simple", "host_step", "duplex"},
    EIGHT: {"step.Simple", "host_step", "duplex"},
    SWITCHED: {"step.Simple", "host_step"},
}
"""What such sweeps must tell, as their times depend on it at many sizes: fixed costs, steps, and the limit of large messages."""


def logs(fit: Fit, values: dict[str, float]) -> np.ndarray:
    """ln of the true constants over their start, in the order of the fit."""
    return np.array([np.log(values[name] / start()[name]) for name in fit.model.names])


def identified(fit: Fit) -> np.ndarray:
    return fit.sigma < 0.5 * fit.prior_sigma


@pytest.fixture(scope="module", params=list(CASES))
def made(request: pytest.FixtureRequest) -> tuple[str, dict[str, float], Made]:
    box = load_topology(request.param)
    values = truth(seed=1)
    return request.param, values, calibrate(box, [measured(box, values, CASES[request.param], seed=1)], prior="none")


def test_constants_come_back(made: tuple[str, dict[str, float], Made]) -> None:
    name, values, result = made
    fit = result.fit
    off = (fit.vector - logs(fit, values)) / fit.sigma
    told = identified(fit)
    assert TELLS[name] <= {fit.model.names[place] for place in np.flatnonzero(told)}
    assert np.abs(off[told]).max() < 3, dict(zip(np.array(fit.model.names)[told], off[told], strict=True))
    assert np.sqrt(np.mean(off[told] ** 2)) < 1.5
    assert np.all(np.abs(off[~told]) < 3)  # what is not told stays inside what was believed


def test_the_file_says_what_the_fit_found(made: tuple[str, dict[str, float], Made]) -> None:
    fit, spec = made[2].fit, made[2].report.calibration
    for place, name in enumerate(fit.model.names):
        parameter = spec.value_of(name)
        assert parameter is not None
        assert parameter.value == pytest.approx(start()[name] * np.exp(fit.vector[place]), rel=1e-4)
        assert parameter.sigma_log == pytest.approx(fit.sigma[place], rel=1e-3)
        assert (parameter.evidence == "fitted") == bool(fit.sigma[place] < 0.85 * fit.prior_sigma[place])
    matrix = fit.covariance / np.outer(fit.sigma, fit.sigma)
    strong = {(a, b) for a in range(len(matrix)) for b in range(a) if abs(matrix[a, b]) > 0.0501}
    held = {frozenset(pair.split(" ~ ")): value for pair, value in spec.correlations.items()}
    assert len(strong) > 2
    for a, b in strong:
        assert held[frozenset((fit.model.names[a], fit.model.names[b]))] == pytest.approx(matrix[a, b], abs=1e-3)
    assert {name for name, _ in made[2].report.unidentified} == {
        name for name, error, before in zip(fit.model.names, fit.sigma, fit.prior_sigma, strict=True) if error >= 0.85 * before
    }


def test_points_are_reproduced_to_the_noise(made: tuple[str, dict[str, float], Made]) -> None:
    report = made[2].report
    assert report.overall.median < NOISE
    assert report.overall.p90 < 4 * NOISE  # half normal: the 90 % point of |error| at 1.6 sd; beside it what the prior pulls
    assert report.answered.coverage is not None
    assert report.answered.coverage >= 0.75
    assert not any(point.outlier for point in report.points)


def test_a_clean_box_is_reproduced_closely() -> None:
    """Without noise only the prior's pull is left."""
    box = load_topology(PAIR)
    report = calibrate(box, [measured(box, truth(seed=2), [Run(), Run("all_gather")])], prior="none").report
    assert report.overall.median < 0.005
    assert report.overall.p90 < 0.03


SEEN = {
    PAIR: (Run(noise=NOISE), Run("all_gather", noise=NOISE, sizes=SWEEP[3:-3])),
    FOUR: (Run(noise=NOISE), Run("all_gather", noise=NOISE, sizes=SWEEP[3:-3]), Run(ranks=2, noise=NOISE, sizes=SWEEP[5:])),
    EIGHT: (Run(noise=NOISE), Run(ranks=2, noise=NOISE)),
}
UNSEEN = {
    PAIR: ((Run("reduce_scatter"), 0.04), (Run("all_gather", sizes=(1 << 25, 1 << 26, 1 << 27)), 0.03), (Run("send_recv"), 0.12)),
    FOUR: (
        (Run("reduce_scatter"), 0.04),
        (Run("reduce_scatter", ranks=2), 0.05),
        (Run("all_gather", sizes=(1 << 25, 1 << 26, 1 << 27)), 0.03),
        (Run(ranks=3), 0.05),
        (Run("all_to_all"), 0.12),
    ),
    EIGHT: ((Run(ranks=4), 0.03), (Run("reduce_scatter"), 0.05), (Run("all_gather", ranks=4), 0.05)),
}
"""Left-out sweeps and the median error that is asked for. Grouped sends are another kernel: only their wires are told."""


@pytest.fixture(scope="module", params=list(SEEN))
def predicting(request: pytest.FixtureRequest) -> tuple[str, dict[str, float], Calibrated]:
    box = load_topology(request.param)
    # an op's own constants are what no other op can tell: the truth has them where a fit begins
    shared = {name: value for name, value in truth(seed=2).items() if "ratio" not in name and "send" not in name and name != "peer_issue"}
    values = {**start(), **shared}
    report = calibrate(box, [measured(box, values, SEEN[request.param], seed=2)], prior="none").report
    return request.param, values, Calibrated(report.calibration, box)


def test_left_out_ops_ranks_and_sizes_are_predicted(predicting: tuple[str, dict[str, float], Calibrated]) -> None:
    name, values, box = predicting
    for run, within in UNSEEN[name]:
        got = asked(box, run)
        error = np.log(got.time_s / true_times(box.base, values, run))
        assert got.measured is not None
        assert not got.measured.any(), run
        assert np.median(np.abs(error)) < within, run
        assert np.mean(np.abs(error) < 1.2816 * got.sigma) > 0.7, run  # p10 to p90


@pytest.mark.parametrize("name", [PAIR, FOUR])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_another_op_narrows(name: str, seed: int) -> None:
    """A second op never makes a constant much less sure (2 %: derivatives are those of another optimum)."""
    box = load_topology(name)
    values = truth(seed=seed)
    one, two = (calibrate(box, [measured(box, values, ALL[:count], seed=seed)], prior="none").fit for count in (1, 4))
    after = dict(zip(two.model.names, two.sigma, strict=True))
    ratio = {known: after[known] / error for known, error in zip(one.model.names, one.sigma, strict=True)}
    assert max(ratio.values()) < 1.02, ratio
    assert ratio["base.all_reduce"] < 0.9
    assert ratio["step.Simple"] < 0.9


def test_more_noise_makes_less_sure() -> None:
    box = load_topology(PAIR)
    values = truth(seed=1)
    quiet, loud = (calibrate(box, [measured(box, values, [Run(noise=noise)], seed=5)], prior="none").fit for noise in (0.01, 0.15))
    told = identified(quiet)
    assert np.all(loud.sigma[told] > 1.3 * quiet.sigma[told])
    assert loud.scale > quiet.scale


@pytest.mark.long
@pytest.mark.parametrize("name", [PAIR, FOUR])
def test_standard_errors_cover_the_truth(name: str) -> None:
    """Over made boxes, at least 80 % of the constants that are told lie inside 1.28 standard errors."""
    box = load_topology(name)
    off: list[float] = []
    for seed in range(20):
        values = truth(seed=seed)
        fit = calibrate(box, [measured(box, values, ALL, seed=seed)], prior="none").fit
        told = identified(fit)
        off += list(np.abs((fit.vector - logs(fit, values)) / fit.sigma)[told])
    assert len(off) > 100
    assert np.mean(np.array(off) < 1.2816) > 0.8


@pytest.mark.parametrize(("name", "seed"), [(FOUR, 14), (FOUR, 22), (PAIR, 26)])
def test_which_limit_binds_is_not_claimed(name: str, seed: int) -> None:
    """One AllReduce sweep of host-staged GPUs: host memory, the GPUs' ports and the wire bound large messages in the same way. Three
    boxes where a fit that tries the wrong one first would be sure of it.
    """
    box = load_topology(name)
    values = truth(seed=seed)
    fit = calibrate(box, [measured(box, values, [Run(noise=NOISE)], seed=seed)], prior="none").fit
    off = np.abs((fit.vector - logs(fit, values)) / fit.sigma)
    assert off[identified(fit)].max() < 3
