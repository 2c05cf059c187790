"""The report on a fit: sick boxes are called sick and healthy ones are not; errors, cross-checks and doubts are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from made_box import EIGHT, FOUR, PAIR, SWEEP, Run, measured, measurement, noisy, rows_of, shipped_set, true_times, truth

from pcie_sim.calibration.checks import stats
from pcie_sim.calibration.constants import constants, start
from pcie_sim.calibration.make import Made, calibrate
from pcie_sim.results.calibration import CalibrationReport
from pcie_sim.topology import load_topology

PIX = "rtx-2080-ti-2x-switch"
SWITCHES = "rtx-pro-6000-8x-2switch"
SICK: dict[str, tuple[str, dict[str, float]]] = {
    "links to host memory": (PAIR, {"wire_host.LL": 0.1, "wire_host.LL128": 0.1, "wire_host.Simple": 0.1}),
    "a GPU's ports both ways": (FOUR, {"duplex": 0.1}),
    "links between peers": (PIX, {"wire.Simple": 0.1, "wire.LL": 0.1}),
    "the socket link": (EIGHT, {"socket.rate": 0.1}),
    "host memory": (FOUR, {"memory.rate": 0.02}),
    "steps through host memory": (FOUR, {"host_step": 10}),
    "every call": (FOUR, {"base.all_reduce": 10}),
    "large steps": (FOUR, {"step.Simple": 8}),
}
"""One class of links or steps ten times too slow (host memory: fifty, it has room to spare)."""


def sick(report: CalibrationReport) -> list[str]:
    return [text for text in report.warnings if "looks sick" in text]


@pytest.mark.parametrize("launch", ["graph", pytest.param("eager", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", SICK)
def test_a_sick_box_is_called_sick(case: str, launch: str) -> None:
    name, slower = SICK[case]
    box = load_topology(name)
    values = {**start(), **{key: max(start()[key] * factor, constants()[key].low * 1.01) for key, factor in slower.items()}}
    report = calibrate(box, [measured(box, values, [Run(launch=launch, noise=0.01)])], prior="none").report
    assert sick(report)
    assert not report.calibration.topology.healthy
    assert any("pcie-sim topology doctor" in text for text in report.warnings)
    assert report.calibration.warnings == report.warnings


@pytest.mark.parametrize("launch", ["graph", pytest.param("eager", marks=pytest.mark.long)])
@pytest.mark.parametrize("prior", ["auto", "none"])
@pytest.mark.parametrize("name", [PAIR, FOUR])
def test_an_ordinary_box_is_not(name: str, prior: str, launch: str) -> None:
    box = load_topology(name)
    report = calibrate(box, [measured(box, start(), [Run(launch=launch, noise=0.01)])], prior=prior).report
    assert report.warnings == ()
    assert report.calibration.topology.healthy


@pytest.mark.parametrize("topology", ["rtx-pro-6000-8x-4switch-2xeon", SWITCHES, "rtx-pro-6000-8x-direct-2socket"])
def test_the_published_205_us_are_called_sick(topology: str) -> None:
    """12,288 B over eight RTX PRO 6000, where others show 17 to 27 us (validation/small-all-reduce-8x-rtx-pro-6000)."""
    box = load_topology(topology)
    published = shipped_set("small-all-reduce-8x-rtx-pro-6000").measured
    (row,) = [row for row in published.rows if row.value == 205.1]
    report = calibrate(box, [measurement(box, [row.model_dump()])]).report
    assert sick(report)
    assert any("8-GPU all_reduce" in text and "times what such a box should" in text for text in sick(report))
    assert not report.calibration.topology.healthy


@pytest.mark.parametrize("time", [17.3, 27.0])
def test_the_published_good_ones_are_not(time: float) -> None:
    box = load_topology(SWITCHES)
    published = shipped_set("small-all-reduce-8x-rtx-pro-6000").measured
    (row,) = [row for row in published.rows if row.value == time]
    assert not sick(calibrate(box, [measurement(box, [row.model_dump()])]).report)


def test_205_us_are_sick_eagerly_too() -> None:
    """Eight launches take 20 to 40 us from one thread; 205 us are six times the floor that the constants begin with."""
    box = load_topology(SWITCHES)
    times = np.maximum(true_times(box, start(), Run(launch="eager")), 205e-6)
    assert sick(calibrate(box, [measurement(box, rows_of(Run(launch="eager"), box, times))]).report)


HEALTHY = {
    "all-reduce-rtx-4090-8x-rome": (EIGHT, "rtx-4090-8x-rome"),
    "all-reduce-h200-2x-host-staged": (PAIR, "h200-2x-host-staged"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_published_boxes_are_healthy(name: str) -> None:
    topology, profile = HEALTHY[name]
    report = calibrate(load_topology(topology), [shipped_set(name)], leave_out=[profile]).report
    assert not sick(report)
    assert report.calibration.topology.healthy


def test_our_pair_is_healthy_without_profiles() -> None:
    assert not sick(calibrate(load_topology(PAIR), [shipped_set("all-reduce-h200-2x-host-staged")], prior="none").report)


def test_eight_rtx_4090_are_healthy_without_profiles() -> None:
    assert not sick(calibrate(load_topology(EIGHT), [shipped_set("all-reduce-rtx-4090-8x-rome")], prior="none").report)


# What the report says of errors.


@pytest.fixture(scope="module")
def made() -> Made:
    """Two ops on two and four GPUs, one wild point, one sweep eager."""
    box = load_topology(FOUR)
    values = truth(seed=1)
    runs = [Run(noise=0.02), Run("all_gather", noise=0.02, sizes=SWEEP[5:]), Run(ranks=2, noise=0.02, launch="eager")]
    rows = []
    for seed, run in enumerate(runs):
        times = noisy(true_times(box, values, run), run.noise, seed)
        if run.op == "all_gather":
            times[6] *= 2.5
        rows += rows_of(run, box, times)
    return calibrate(box, [measurement(box, rows)], prior="none")


def test_stats_are_of_relative_errors() -> None:
    """By hand: predicted 10 % high, exact, 20 % low, 30 % high of 100."""
    predicted = np.array([110.0, 100.0, 80.0, 130.0])
    found = stats(np.log(100.0 / predicted), np.array([0.2, 0.2, 0.1, 0.1]))
    assert found.points == 4
    assert found.median == pytest.approx(0.15)
    assert found.p90 == pytest.approx(0.27)  # between 0.2 and 0.3, linearly
    assert found.bias == pytest.approx(0.05)
    assert found.coverage == pytest.approx(0.5)  # |ln 0.8| = 0.223 > 0.128, |ln 1.3| = 0.262 > 0.128
    assert stats(np.array([0.1])).coverage is None


def test_every_point_stands_beside_its_fit(made: Made) -> None:
    report, box = made.report, load_topology(FOUR)
    measured_times = [time * 1e-6 for curve in report.calibration.curves for time in curve.time_us]
    np.testing.assert_allclose([point.measured_s for point in report.points], measured_times, rtol=1e-5)
    values = {parameter.name: parameter.value for parameter in report.calibration.parameters}
    for index, curve in enumerate(report.calibration.curves):
        mine = [point for point in report.points if point.curve == index]
        run = Run(curve.op, curve.ranks, curve.bytes, str(curve.launch))
        np.testing.assert_allclose([point.fitted_s for point in mine], true_times(box, values, run), rtol=1e-3)
        assert [point.bytes for point in mine] == list(curve.bytes)
        assert {(point.op, point.ranks, point.launch) for point in mine} == {(curve.op, curve.ranks, curve.launch)}
        assert [point.bytes for point in mine if point.outlier] == list(curve.outliers)


def test_groups_of_errors_are_those_of_their_points(made: Made) -> None:
    report = made.report
    for groups, key in ((report.by_op, "op"), (report.by_regime, "regime")):
        assert sum(group.points for group in groups.values()) == len(report.points)
        for name, group in groups.items():
            errors = [abs(point.fitted_s / point.measured_s - 1) for point in report.points if getattr(point, key) == name]
            assert group.points == len(errors)
            assert group.median == pytest.approx(float(np.median(errors)), abs=1e-9)
    assert set(report.by_op) == {"all_reduce", "all_gather"}
    assert {"LL", "Simple", "floor"} <= set(report.by_regime)


def test_left_out_bands_cover(made: Made) -> None:
    points = [point for point in made.report.points if not point.outlier]
    assert all(point.left_out_p10_s < point.left_out_s < point.left_out_p90_s for point in points)  # type: ignore[operator]
    inside = [point.left_out_p10_s <= point.measured_s <= point.left_out_p90_s for point in points]  # type: ignore[operator]
    assert np.mean(inside) > 0.75
    assert made.report.answered.points == len(made.report.points)


def test_crosschecks_name_what_was_left_out(made: Made) -> None:
    found = {(check.what, check.left_out) for check in made.report.crosschecks}
    assert {("op", "all_reduce"), ("op", "all_gather"), ("ranks", "4 ranks"), ("ranks", "2 ranks")} <= found
    assert next(check.what for check in made.report.crosschecks) == "sizes"
    assert all(check.errors is not None and check.reason is None for check in made.report.crosschecks)
    by_name = {(check.what, check.left_out): check.errors for check in made.report.crosschecks}
    ops = by_name["op", "all_gather"]
    assert ops is not None
    assert ops.points == len(SWEEP[5:])
    assert ops.median > made.report.answered.median  # a whole op is harder than a size


def test_correlations_are_between_what_was_told(made: Made) -> None:
    told = {
        name
        for name, error, before in zip(made.fit.model.names, made.fit.sigma, made.fit.prior_sigma, strict=True)
        if error < 0.85 * before
    }
    found = made.report.correlations
    assert found
    assert all(a in told and b in told and -1 <= value <= 1 for a, b, value in found)
    sizes = [abs(value) for _, _, value in found]
    assert sizes == sorted(sizes, reverse=True)
    # a sweep tells the fixed cost and the steps' as a sum: more of one is less of the other
    assert {tuple(sorted(pair[:2])): pair[2] for pair in found}["base.all_reduce", "host_step"] < -0.3


def test_what_cannot_be_told_is_listed_with_its_doubt(made: Made) -> None:
    names = [name for name, _ in made.report.unidentified]
    assert {"memory.rate", "wire.Simple"} <= set(names)
    assert all(f"{100 * constants()[name].spread:.0f} %" in text for name, text in made.report.unidentified)


def test_a_constant_at_its_bound_is_named() -> None:
    """Times that no value inside the bounds explains: calls of 3 ms, thirty times the largest fixed cost."""
    box = load_topology(PAIR)
    run = Run(sizes=SWEEP[:12])
    report = calibrate(box, [measurement(box, rows_of(run, box, [3e-3] * 12))], prior="none").report
    assert report.at_bounds
    for name in report.at_bounds:
        parameter = report.calibration.value_of(name)
        assert parameter is not None
        assert parameter.at_bound
        assert parameter.value == pytest.approx(constants()[name].high, rel=1e-2) or parameter.value == pytest.approx(
            constants()[name].low, rel=1e-2
        )
        assert any(f"({name}) ended at its bound" in text for text in report.warnings)


def test_rows_that_are_not_used_are_said() -> None:
    """An engine's own kernel, faults, unreliable rows, unknown ops: left, counted and named."""
    box = load_topology(FOUR)
    good = rows_of(Run(sizes=(1024, 4096)), box, [20e-6, 21e-6])
    extra = [
        {**good[0], "arm": "custom"},
        {**good[0], "arm": "fault"},
        {**good[0], "quality": "unreliable"},
        {**good[0], "op": "gather"},
        {**good[0], "bytes": 0},
        {**good[0], "ranks": 16},
    ]
    arms = {"custom": {"all_reduce": "one-shot"}, "fault": {"conditions": ["posted-write-collapse"]}}
    report = calibrate(box, [measurement(box, [*good, *extra], arms=arms)], prior="none").report
    assert report.overall.points == 2
    for word in ("one-shot", "under a fault", "unreliable", "gather", "without a size", "16 ranks"):
        assert any(word in text and "1 row" in text for text in report.unused), word


def test_the_report_as_data_has_everything(made: Made) -> None:
    import json

    data = json.loads(made.report.to_json())
    assert data["schema"] == "pcie-sim/calibrate/1"
    assert len(data["fitted"]) == data["report"]["points"] == len(made.report.points)
    assert data["report"]["range_bytes"] == [8, SWEEP[-1]]
    assert data["calibration"]["schema"] == "pcie-sim/calibration/1"
    assert data["warnings"] == list(made.report.warnings)
    assert {row["what"] for row in data["report"]["crosschecks"]} == {"sizes", "op", "ranks"}


def test_a_wild_curve_is_known_no_better_for_one_run_a_size() -> None:
    box = load_topology(PAIR)
    wild = calibrate(box, [measured(box, start(), [Run(launch="graph", noise=0.3)])], prior="none").report.calibration
    calm = calibrate(box, [measured(box, start(), [Run(launch="graph", noise=0.01)])], prior="none").report.calibration
    assert wild.curves[0].sigma_log == pytest.approx(0.3, rel=0.6)
    assert calm.curves[0].sigma_log == pytest.approx(0.02)


def apart(factor: float) -> CalibrationReport:
    """Two runs of one sweep whose times differ by a factor."""
    box = load_topology(PAIR)
    run = Run(launch="graph")
    times = true_times(box, start(), run)
    sets = [measurement(box, [row | {"launch": "graph"} for row in rows_of(run, box, times * more)]) for more in (1.0, factor)]
    return calibrate(box, sets, prior="none").report


def test_files_that_disagree_are_named() -> None:
    assert any("disagree by" in text for text in apart(2.0).warnings)
    assert not any("disagree by" in text for text in apart(1.05).warnings)


@pytest.mark.parametrize("factor", [0.1, 1.0])
def test_what_is_too_fast_for_such_a_box_is_named(factor: float) -> None:
    box = load_topology(PAIR)
    run = Run(launch="graph")
    times = true_times(box, start(), run) * factor
    report = calibrate(box, [measurement(box, [row | {"launch": "graph"} for row in rows_of(run, box, times)])]).report
    assert any("too fast" in text for text in report.warnings) == (factor < 1)


def test_small_eager_calls_alone_leave_a_graph_to_the_prior() -> None:
    """A CPU that takes 30 us a launch: nothing in the runs tells what a small call takes in a graph, so its base stays the prior's."""
    box = load_topology(PAIR)
    values = {**start(), "floor": 1e-5}
    made = calibrate(box, [measured(box, values, [Run(launch="eager", noise=0.01)])], prior="none").report
    base = next(item for item in made.calibration.parameters if item.name == "base.all_reduce")
    assert base.value == pytest.approx(start()["base.all_reduce"], rel=0.25)
    assert any("launched eagerly only" in text for text in made.calibration.notes)
