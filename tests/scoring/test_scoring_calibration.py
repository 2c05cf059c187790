"""The score of calibrations against its bars, as `python -m pcie_sim.scoring.calibration` makes it."""

import re

import numpy as np
import pytest

from pcie_sim import catalog
from pcie_sim.scoring import calibration
from pcie_sim.scoring.calibration_table import bar_values, table


@pytest.fixture(scope="module")
def figures():
    return calibration.figures()


@pytest.mark.parametrize("name", [name for name in calibration.BARS if not name.startswith("seconds")])
def test_a_bar_holds(figures, name):
    assert bar_values(figures)[name] <= calibration.MISSED.get(name, calibration.BARS[name])


@pytest.mark.parametrize("name", calibration.MISSED)
def test_a_bar_that_is_reached_is_not_listed_as_missed(figures, name):
    assert bar_values(figures)[name] > calibration.BARS[name]
    assert f"| {name} | " in table(figures, calibration.BARS, calibration.COVERAGE)


def test_four_ranks_from_two_and_eight_beat_the_geometric_mean(figures):
    ranks = figures["scores"]["ranks"]
    assert ranks["all"]["median"] < ranks["plain"]["median"]


def test_intervals_are_honest(figures):
    low, high = calibration.COVERAGE
    assert low <= figures["coverage"]["all"] <= high
    assert low <= figures["coverage"]["left_out_sizes"] <= high
    assert figures["coverage"]["points"] > 1000


def test_the_floor_is_told_apart_from_the_wire(figures):
    """Two H200: about 20 us eager and 10 us in a graph (validation/nccl-tests-h200-2x), of which the fit sees the eager runs alone."""
    floors = figures["floors"]
    assert floors["eager_us"] == pytest.approx(20, rel=0.1)
    assert floors["measured_graph_us"] == pytest.approx(10, rel=0.1)
    assert floors["graph_p10_us"] < floors["graph_us"] < floors["graph_p90_us"]
    # from the prior, and 30 % off: nearer to what a graph takes than to the eager call that it saw, no more is claimed
    assert abs(np.log(floors["graph_us"] / floors["measured_graph_us"])) < 0.4
    assert abs(floors["graph_us"] - floors["measured_graph_us"]) < 0.5 * abs(floors["graph_us"] - floors["eager_us"])


def test_the_plain_rule_is_beaten_where_it_is_given(figures):
    """(AllReduce + base) / 2, and AllReduce's own time for a send."""
    for key in ("rings", "send_recv"):
        score = figures["scores"][key]
        assert score["all"]["median"] < score["plain"]["median"], key
        assert score["all"]["p90"] < score["plain"]["p90"], key


def test_no_prediction_uses_a_profile_of_its_box():
    for machine in calibration.machines():
        if machine.id in ("h200-2x-processes", "rtx-5090-4x-genoa", "a100-pcie-4x-xeon"):
            made = calibration.fitted(machine, lambda row: row.op == "all_reduce")
            weights = made.report.calibration.prior_weights
            assert len(weights) > 4
            assert {machine.id, machine.same_box}.isdisjoint(weights)


def test_every_machine_has_its_profile():
    with_profile = {machine.id for machine in calibration.machines() if machine.profile}
    assert with_profile == set(catalog.calibration_names())


@pytest.mark.parametrize("name", ["rtx-5090-4x-genoa", "h200-2x-host-staged"])
def test_a_shipped_profile_is_what_the_command_makes(tmp_path, monkeypatch, name):
    """Numbers to 1 in 1000: a fit may end a little elsewhere on another machine."""
    one = [machine for machine in calibration.machines() if machine.id == name]
    monkeypatch.setattr(calibration, "machines", lambda: one)
    (path,) = calibration.make_profiles(tmp_path)
    numbers = re.compile(r"(?<![0-9a-f])[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?(?![0-9a-f])")
    shipped = (catalog.lookup.folder("profiles") / path.name).read_text(encoding="utf-8")
    made = path.read_text(encoding="utf-8")
    assert numbers.sub("#", made) == numbers.sub("#", shipped)
    pairs = zip(numbers.findall(made), numbers.findall(shipped), strict=True)
    far = [(a, b) for a, b in pairs if not np.isclose(float(a), float(b), rtol=1e-3, atol=2e-3)]
    assert not far


def test_the_table_names_failures_as_plainly_as_successes(figures):
    text = table(figures, {**calibration.BARS, "all ops, median": 1e-6}, calibration.COVERAGE)
    assert "**not reached**" in text
    assert "| all ops, p90 |" in text
    for machine in calibration.machines():
        assert f"| {machine.id} |" in text


def test_the_shipped_table_is_of_these_figures(figures):
    text = (catalog.shipped_dir("validation") / calibration.TABLE).read_text(encoding="utf-8")
    assert text.splitlines()[0] == table(figures, calibration.BARS, calibration.COVERAGE).splitlines()[0]
    said = re.search(r"\| all ops, median \| ([0-9.]+) %", text)
    assert said is not None
    assert float(said.group(1)) / 100 == pytest.approx(figures["scores"]["all"]["all"]["median"], abs=0.002)
