"""The algebra behind the error bars, against explicit computations: leaving points out, the misfit's covariance, what it teaches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_box import FOUR, PAIR, Run, measured, truth

from pcie_sim.calibration.fit import Fit
from pcie_sim.calibration.make import calibrate
from pcie_sim.calibration.misfit import Left, covariance
from pcie_sim.calibration.model import COPY, FLOOR, Rows
from pcie_sim.calibration.points import OPS
from pcie_sim.topology import load_topology

SIZES = tuple(1 << power for power in range(3, 28, 2))


@pytest.fixture(scope="module")
def fit() -> Fit:
    """Three curves with one wild point on four GPUs: 39 points."""
    box = load_topology(FOUR)
    values = truth(seed=3)
    runs = [Run(sizes=SIZES, noise=0.02), Run("all_gather", sizes=SIZES, noise=0.02), Run(ranks=2, sizes=SIZES, noise=0.02)]
    return calibrate(box, [measured(box, values, runs)], prior="none").fit


def refit(fit: Fit, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of ``block`` from all others by generalised least squares for the constants (prior included), then kriging of what
    they leave: measured less predicted, and the standard deviation of that.
    """
    rest = ~block
    between = fit.scale**2 * covariance(fit.rows, fit.rows)
    noise = np.diag(fit.noise**2)
    weight = np.linalg.inv((between + noise)[np.ix_(rest, rest)])
    slopes = fit.jacobian[rest]
    # linearised about the fit: constants' errors d from fit.vector, believed at prior_mean - vector
    precision = slopes.T @ weight @ slopes + np.diag(fit.prior_sigma**-2.0)
    of_constants = np.linalg.inv(precision)
    moved = of_constants @ (slopes.T @ weight @ fit.error[rest] + (fit.prior_mean - fit.vector) / fit.prior_sigma**2)
    gain = between[np.ix_(block, rest)] @ weight
    off = fit.error[block] - fit.jacobian[block] @ moved - gain @ (fit.error[rest] - slopes @ moved)
    spread = between[np.ix_(block, block)] + noise[np.ix_(block, block)] - gain @ between[np.ix_(rest, block)]
    lever = fit.jacobian[block] - gain @ slopes
    return off, np.sqrt(np.diagonal(spread + lever @ of_constants @ lever.T))


def test_each_point_left_out(fit: Fit) -> None:
    for place in range(len(fit.error)):
        block = np.arange(len(fit.error)) == place
        off, spread = refit(fit, block)
        assert fit.left_out_error[place] == pytest.approx(off[0], abs=1e-8)
        assert fit.left_out_sigma[place] == pytest.approx(spread[0], abs=1e-8)


@given(st.data())
def test_any_block_left_out(fit: Fit, data: st.DataObject) -> None:
    count = len(fit.error)
    block = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    if not block.any() or block.all():
        block[0], block[-1] = True, False
    for got, expected in zip(fit.without(block), refit(fit, block), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-8)


def test_everything_left_out_is_the_prior(fit: Fit) -> None:
    """With no point kept, the prediction is the model at the prior's mean (linearised) with all its variance."""
    off, spread = fit.without(np.ones(len(fit.error), dtype=bool))
    np.testing.assert_allclose(off, fit.error + fit.jacobian @ (fit.vector - fit.prior_mean), atol=1e-8)
    total = (
        fit.scale**2 * covariance(fit.rows, fit.rows) + np.diag(fit.noise**2) + fit.jacobian @ np.diag(fit.prior_sigma**2) @ fit.jacobian.T
    )
    np.testing.assert_allclose(spread, np.sqrt(np.diagonal(total)), rtol=1e-8)


def test_the_jacobian_is_the_derivative(fit: Fit) -> None:
    step = 1e-4
    for place, name in enumerate(fit.model.names):
        up, down = fit.vector.copy(), fit.vector.copy()
        up[place] += step
        down[place] -= step
        slope = (fit.model.ln_times(up) - fit.model.ln_times(down)) / (2 * step)
        assert np.abs(slope - fit.jacobian[:, place]).max() < 0.05, name


def test_standard_errors_are_the_sandwich(fit: Fit) -> None:
    """Errors of a robust estimate whose points err together (Huber 1967): H^-1 M H^-1, with the weights of a soft L1 loss."""
    scale = np.maximum(0.08, fit.model.noise)
    weights = np.diag(1 / scale**2 / np.sqrt(1 + (fit.error / scale) ** 2))
    believed = np.diag(fit.prior_sigma**-2.0)
    bread = np.linalg.inv(fit.jacobian.T @ weights @ fit.jacobian + believed)
    inside = fit.scale**2 * covariance(fit.rows, fit.rows) + np.diag(fit.noise**2)
    meat = fit.jacobian.T @ weights @ inside @ weights @ fit.jacobian + believed
    np.testing.assert_allclose(fit.covariance, bread @ meat @ bread, atol=1e-10)
    assert np.all(fit.sigma <= fit.prior_sigma * 1.05)


@st.composite
def some_rows(draw: st.DrawFn, least: int = 1) -> Rows:
    """Points of any op, number of ranks, size, regime and transport."""
    count = draw(st.integers(least, 12))

    def some(what: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(what, min_size=count, max_size=count))

    regime = st.sampled_from(["LL", "LL128", "Simple", FLOOR, COPY])
    return Rows(
        tuple(some(st.sampled_from([*OPS, COPY]))),  # type: ignore[arg-type]
        np.array(some(st.integers(2, 16)), dtype=float),
        np.array(some(st.floats(1, 2**33))),
        tuple(some(regime)),  # type: ignore[arg-type]
        tuple(some(st.sampled_from(["P2P", "SHM", "NET", "P2P+SHM"]))),  # type: ignore[arg-type]
        np.zeros(count, dtype=int),
    )


@given(some_rows())
def test_the_covariance_is_one(rows: Rows) -> None:
    """Symmetric, positive semidefinite, and no point is more like another than like itself (Cauchy, Schwarz)."""
    found = covariance(rows, rows)
    np.testing.assert_allclose(found, found.T, atol=1e-15)
    assert np.linalg.eigvalsh(found).min() > -1e-12
    own = np.sqrt(np.diagonal(found))
    assert np.all(own > 0)
    assert np.all(found <= np.outer(own, own) * (1 + 1e-12))
    assert np.all(found >= 0)


@given(some_rows(), some_rows())
def test_covariance_of_two_lists_is_a_block_of_the_whole(a: Rows, b: Rows) -> None:
    both = Rows(
        a.op + b.op,
        np.concatenate([a.ranks, b.ranks]),
        np.concatenate([a.size, b.size]),
        a.regime + b.regime,
        a.transport + b.transport,
        np.concatenate([a.curve, b.curve]),
    )
    np.testing.assert_allclose(covariance(a, b), covariance(both, both)[: len(a), len(a) :], atol=1e-15)


@given(some_rows(), some_rows(), st.floats(0.3, 10), st.integers(0, 2**32 - 1))
def test_teaching_is_gaussian_process_regression(known: Rows, asked: Rows, scale: float, seed: int) -> None:
    """Rasmussen and Williams (2006), algorithm 2.1: by the Cholesky factor of the covariance with noise."""
    draw = np.random.default_rng(seed)
    error, noise = 0.2 * draw.standard_normal(len(known)), draw.uniform(0.005, 0.3, len(known))
    lower = np.linalg.cholesky(scale**2 * covariance(known, known) + np.diag(noise**2))
    across = scale**2 * covariance(known, asked)
    weights = np.linalg.solve(lower.T, np.linalg.solve(lower, error))
    half = np.linalg.solve(lower, across)
    variance = np.diagonal(scale**2 * covariance(asked, asked)) - np.sum(half**2, axis=0)
    got = Left(known, error, noise, scale).teach(asked)
    np.testing.assert_allclose(got.mean, across.T @ weights, atol=1e-8)
    np.testing.assert_allclose(got.sigma**2, np.maximum(variance, 0), atol=1e-8)


def line(
    op: str = "all_reduce", ranks: float = 4, regime: str = "LL", transport: str = "SHM", sizes: tuple[float, ...] = (4096.0,)
) -> Rows:
    count = len(sizes)
    return Rows((op,) * count, np.full(count, ranks), np.array(sizes), (regime,) * count, (transport,) * count, np.zeros(count, dtype=int))


def test_a_well_measured_point_teaches_itself() -> None:
    rows = line(sizes=(1024.0, 4096.0, 65536.0, 2.0**22))
    error = np.array([0.1, -0.2, 0.05, 0.3])
    got = Left(rows, error, np.full(4, 1e-6), 1.0).teach(rows)
    np.testing.assert_allclose(got.mean, error, atol=1e-6)
    assert np.all(got.sigma < 1e-5)


def test_what_is_less_alike_is_taught_less() -> None:
    """One point 20 % slow: its own op at the next size hears most of it, then another ring, a chain, a send; far sizes, other ranks and
    protocols less; the issue floor and copies tell nothing of wires.
    """
    left = Left(line(), np.array([0.2]), np.array([0.01]), 1.0)

    def mean(rows: Rows) -> float:
        return float(left.teach(rows).mean[0])

    by_op = [mean(line(op)) for op in ("all_reduce", "all_gather", "broadcast", "send_recv")]
    by_size = [mean(line(sizes=(4096.0 * 2**octaves,))) for octaves in range(0, 20, 2)]
    by_ranks = [mean(line(ranks=count)) for count in (4, 8, 16)]
    for falling in (by_op, by_size, by_ranks):
        assert all(more > less > 0 for more, less in itertools.pairwise(falling)), falling
    assert mean(line(sizes=(1024.0,))) == pytest.approx(mean(line(sizes=(16384.0,))))  # octaves up and down count alike
    assert 0 < mean(line(regime="Simple")) < mean(line())
    assert 0 < mean(line(transport="P2P")) < mean(line())
    assert mean(line(regime=FLOOR)) == 0
    assert mean(line(COPY, regime=COPY)) == 0


@given(some_rows(least=2), st.floats(0.3, 3))
def test_one_more_point_never_makes_less_sure(rows: Rows, scale: float) -> None:
    keep = np.arange(len(rows)) < len(rows) - 1
    asked = line()
    error = np.zeros(len(rows))
    noise = np.full(len(rows), 0.02)
    all_of_them = Left(rows, error, noise, scale).teach(asked).sigma
    fewer = Left(rows.of(keep), error[keep], noise[keep], scale).teach(asked).sigma
    assert np.all(all_of_them <= fewer + 1e-9)


def test_the_scale_follows_the_box() -> None:
    """A box whose times scatter by 15 % from size to size gets a wider misfit than one that scatters by 1 %."""
    box = load_topology(PAIR)
    scales = [calibrate(box, [measured(box, truth(seed=1), [Run(noise=noise)])], prior="none").fit.scale for noise in (0.01, 0.15)]
    assert scales[0] < 1 < scales[1]
