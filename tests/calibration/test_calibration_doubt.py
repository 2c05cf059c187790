"""How sure an answer outside the curves is: the constants by simulation, the misfit by the textbook, both together as they say."""

from __future__ import annotations

import numpy as np
import pytest
from made_box import FOUR, Run, asked, measured, true_times, truth

from pcie_sim.calibration.apply import Calibrated
from pcie_sim.calibration.make import Made, calibrate
from pcie_sim.calibration.misfit import Left
from pcie_sim.calibration.model import Rows
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.topology import load_topology

DRAWS = 400
SIZES = (1024, 65536, 1 << 22, 1 << 26)


@pytest.fixture(scope="module")
def made() -> Made:
    """An AllReduce of four and of two GPUs, 6 % off from size to size: there is a misfit to teach."""
    box = load_topology(FOUR)
    runs = [Run(noise=0.06), Run(ranks=2, noise=0.06)]
    return calibrate(box, [measured(box, truth(seed=1), runs, seed=3)], prior="none")


@pytest.fixture(scope="module")
def box(made: Made) -> Calibrated:
    return Calibrated(made.report.calibration, load_topology(FOUR))


def fitted(spec: CalibrationSpec) -> dict[str, float]:
    return {parameter.name: parameter.value for parameter in spec.parameters}


def taught(made: Made, run: Run, regimes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """What the misfit says of a run's sizes, from the points of the report alone."""
    points, spec = made.report.points, made.report.calibration
    held = true_times_of(made)
    error = np.log([point.measured_s for point in points]) - np.log(held)
    noise = np.array([max(spec.curves[point.curve].sigma_log, 1e-3) for point in points])
    noise = np.where([point.outlier for point in points], np.maximum(noise, np.abs(error)), noise)

    def rows(op: list[str], ranks: list[int], sizes: list[int], names: list[str]) -> Rows:
        count = len(op)
        return Rows(tuple(op), np.array(ranks, float), np.array(sizes, float), tuple(names), ("SHM",) * count, np.zeros(count, dtype=int))

    known = rows([p.op for p in points], [p.ranks for p in points], [p.bytes for p in points], [p.regime for p in points])
    count = len(run.sizes)
    new = rows([run.op] * count, [run.ranks or 4] * count, list(run.sizes), regimes)
    found = Left(known, error, noise, spec.residual.scale).teach(new)
    return found.mean, found.sigma


def true_times_of(made: Made) -> np.ndarray:
    """The constants' own times (s) of every point."""
    spec, box = made.report.calibration, load_topology(FOUR)
    return np.concatenate([true_times(box, fitted(spec), Run(curve.op, curve.ranks, curve.bytes)) for curve in spec.curves])


@pytest.mark.parametrize(
    "run", [Run("all_gather", sizes=SIZES), Run("send_recv", sizes=SIZES), Run(ranks=3, sizes=SIZES)], ids=["op", "send", "ranks"]
)
def test_an_answer_is_the_constants_times_what_the_misfit_teaches(made: Made, box: Calibrated, run: Run) -> None:
    got = asked(box, run)
    mean, _ = taught(made, run, [str(name) for name in np.broadcast_to(got.protocol, len(SIZES))])
    expected = true_times(load_topology(FOUR), fitted(made.report.calibration), run) * np.exp(mean)
    np.testing.assert_allclose(got.time_s, expected, rtol=1e-4)
    assert np.abs(mean).max() > 0.004  # there is something to teach


@pytest.mark.parametrize(
    "run", [Run("all_gather", sizes=SIZES), Run("all_to_all", sizes=SIZES), Run(ranks=3, sizes=SIZES)], ids=["op", "sends", "ranks"]
)
def test_doubt_is_that_of_constants_drawn_together(made: Made, box: Calibrated, run: Run) -> None:
    """Constants drawn by the file: values, errors and correlations: the spread of ln(time) beside the misfit."""
    spec = made.report.calibration
    names = [parameter.name for parameter in spec.parameters]
    sigma = np.array([parameter.sigma_log for parameter in spec.parameters], dtype=float)
    matrix = np.eye(len(names))
    for pair, value in spec.correlations.items():
        a, b = (names.index(name) for name in pair.split(" ~ "))
        matrix[a, b] = matrix[b, a] = value
    # an eighth of the errors: derivatives, not the bends of limits that begin to bind
    small = 0.125
    root = np.linalg.cholesky(matrix + 0.02 * np.eye(len(names))) / np.sqrt(1.02)
    draws = small * (root @ np.random.default_rng(0).standard_normal((len(names), DRAWS))).T * sigma
    plain = load_topology(FOUR)
    base = np.array([fitted(spec)[name] for name in names])
    spread = np.std([np.log(true_times(plain, dict(zip(names, base * np.exp(draw), strict=True)), run)) for draw in draws], axis=0) / small
    got = asked(box, run)
    _, left = taught(made, run, [str(name) for name in np.broadcast_to(got.protocol, len(SIZES))])
    assert got.sigma is not None
    np.testing.assert_allclose(got.sigma, np.hypot(spread, left), rtol=0.15)
    apart = np.sqrt(np.maximum(got.sigma**2 - left**2, 0))
    assert apart.max() > 0.02  # the constants' share is not lost beside the misfit's


def test_constants_that_make_up_for_each_other_leave_less_doubt(made: Made) -> None:
    """The same file without its correlations is less sure of the op that was measured, at another number of GPUs."""
    spec = made.report.calibration
    with_them, without = (
        asked(Calibrated(one, load_topology(FOUR)), Run(ranks=3, sizes=SIZES)).sigma
        for one in (spec, spec.model_copy(update={"correlations": {}}))
    )
    assert with_them is not None
    assert without is not None
    assert with_them[0] < 0.9 * without[0]  # small calls: fixed cost against steps


def test_far_sizes_drift(box: Calibrated) -> None:
    """3 % an octave beyond the measured sizes, beside all else."""
    octaves = np.arange(1, 9)
    got = asked(box, Run(sizes=tuple(1 << (27 + int(beyond)) for beyond in octaves)))
    assert got.sigma is not None
    assert np.all(got.sigma**2 - got.sigma[0] ** 2 >= 0.03**2 * (octaves**2 - 1) * 0.98)
