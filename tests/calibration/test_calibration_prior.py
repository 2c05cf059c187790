"""What other boxes teach: weights by likeness, what is left out, and the random-effects mean by direct computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_box import FOUR, PAIR, SWITCHED, Run, measured, truth

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.make import calibrate
from pcie_sim.calibration.prior import LEAST_WEIGHT, LOSS, SEEN_BEFORE, _pooled, alike, make_prior, nothing_known, traits
from pcie_sim.errors import InputError
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.topology import load_topology

HASH = "ab" * 32


def profile(
    name: str,
    values: dict[str, tuple[float, float, str]],
    *,
    box: str = FOUR,
    of: str | None = None,
    healthy: bool = True,
    sha256: str = "0" * 64,
    **changed: str,
) -> CalibrationSpec:
    """A profile of ``box`` (its traits, some of them changed) with constants (times start, standard error of ln, label)."""
    known = constants()
    parameters = [
        {
            "name": key,
            "value": known[key].value * factor,
            "unit": known[key].unit,
            "stderr": known[key].value * factor * error,
            "evidence": label,
        }
        for key, (factor, error, label) in values.items()
    ]
    return CalibrationSpec.model_validate(
        {
            "schema": "pcie-sim/calibration/1",
            "name": name,
            "topology": {
                "name": of or box,
                "gpus": 4,
                "id": f"{name}-id",
                "healthy": healthy,
                "traits": traits(load_topology(box)) | changed,
            },
            "inputs": [{"file": "x.log", "sha256": sha256, "op": "all_reduce", "points": 3}],
            "parameters": parameters,
        }
    )


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts profiles in place of the shipped ones."""

    def put(*profiles: CalibrationSpec) -> None:
        held = {str(one.name): one for one in profiles}
        monkeypatch.setattr(catalog, "calibration_names", lambda: tuple(held))
        monkeypatch.setattr(catalog, "load_calibration_profile", held.__getitem__)

    return put


BOX = load_topology(FOUR)


@pytest.mark.parametrize("trait", LOSS)
def test_a_difference_costs_likeness(trait: str) -> None:
    own = traits(BOX)
    assert set(own) == set(LOSS)
    assert alike(own, own) == 1.0
    assert alike(own, own | {trait: "other"}) == pytest.approx(math.exp(-LOSS[trait]))


def test_nothing_alike_still_counts_a_little() -> None:
    assert alike(traits(BOX), {}) == max(LEAST_WEIGHT, math.exp(-sum(LOSS.values())))


def test_traits_are_those_of_the_box() -> None:
    known = {"transport": "SHM", "pcie": "gen5", "cpu": "epyc-genoa", "vendor": "amd", "architecture": "GB202", "sockets": "1"}
    assert known.items() <= traits(BOX).items()
    two = traits(load_topology("rtx-4090-8x-rome-2socket"))
    assert (two["pcie"], two["sockets"], two["cpu"]) == ("gen4", "2", "epyc-rome")


def test_the_more_alike_the_more_weight(shelf: Any) -> None:
    """Two boxes that disagree: the prior lies nearer to the twin, and the twin gives it its name."""
    twin = profile("twin", {"host_step": (2.0, 0.05, "fitted")})
    stranger = profile("stranger", {"host_step": (0.5, 0.05, "fitted")}, transport="P2P", cpu="xeon", vendor="intel", pcie="gen3")
    shelf(stranger, twin)
    found = make_prior(BOX)
    assert found.name == "twin"
    assert found.weights["twin"] == 1.0
    assert found.weights["stranger"] == pytest.approx(math.exp(-(1.0 + 0.4 * 3)), abs=1e-4)
    assert list(found.weights) == ["twin", "stranger"]
    belief = found.beliefs["host_step"]
    assert 0.1 < belief.mean < math.log(2)
    assert belief.evidence == "profile"


def test_only_what_a_box_measured_counts(shelf: Any) -> None:
    """A profile's own priors (nominal, assumed, profile) are nobody's evidence."""
    shelf(profile("one", {"host_step": (3.0, 0.05, "profile"), "step.Simple": (2.0, 0.05, "fitted"), "duplex": (1.5, 0.1, "assumed")}))
    found, alone = make_prior(BOX).beliefs, nothing_known()
    assert found["host_step"] == alone["host_step"]
    assert found["duplex"] == alone["duplex"]
    assert found["step.Simple"].mean > 0
    assert found["step.Simple"].sigma < alone["step.Simple"].sigma


def test_each_profile_can_be_left_out_by_name_box_or_id(shelf: Any) -> None:
    one = profile("one", {"host_step": (2.0, 0.05, "fitted")}, of="box-one")
    two = profile("two", {"host_step": (0.5, 0.05, "fitted")}, of="box-two")
    shelf(one, two)
    for name in ("one", "box-one", "one-id"):
        found = make_prior(BOX, leave_out=[name])
        assert list(found.weights) == ["two"]
        assert found.left_out == ("one",)
        assert found.beliefs["host_step"].mean < 0
    nothing = make_prior(BOX, leave_out=["one", "two-id"])
    assert nothing.name == "none"
    assert nothing.beliefs == nothing_known()
    assert nothing.left_out == ("one", "two")


def test_a_profile_of_the_very_measurements_is_left_out(shelf: Any) -> None:
    """Its data would count twice: by the hash of a file, whatever the file is called."""
    shelf(profile("mine", {"host_step": (2.0, 0.05, "fitted")}, sha256=HASH), profile("other", {"host_step": (0.5, 0.05, "fitted")}))
    assert list(make_prior(BOX).weights) == ["mine", "other"]
    found = make_prior(BOX, inputs=["cd" * 32, HASH])
    assert list(found.weights) == ["other"]
    assert found.left_out == ("mine",)
    with pytest.raises(InputError, match="--prior mine: left out"):
        make_prior(BOX, "mine", inputs=[HASH])


def test_sick_boxes_teach_only_when_asked_for(shelf: Any) -> None:
    shelf(profile("sick", {"host_step": (9.0, 0.05, "fitted")}, healthy=False), profile("well", {"host_step": (1.1, 0.05, "fitted")}))
    assert list(make_prior(BOX).weights) == ["well"]
    asked = make_prior(BOX, "sick")
    assert asked.name == "sick"
    assert asked.weights == {"sick": 1.0}
    assert asked.beliefs["host_step"].mean > 0.3


def test_one_named_profile_counts_fully_however_strange(shelf: Any) -> None:
    strange = profile("strange", {"host_step": (2.0, 0.05, "fitted")}, transport="P2P", pcie="gen3", cpu="x", vendor="y")
    shelf(strange, profile("other", {"host_step": (0.5, 0.05, "fitted")}))
    assert make_prior(BOX, "strange").beliefs["host_step"].mean > make_prior(BOX).beliefs["host_step"].mean


@pytest.mark.parametrize("name", [*catalog.calibration_names()])
def test_every_shipped_profile_can_be_asked_for_and_left_out(name: str) -> None:
    assert make_prior(BOX, name).weights == {name: 1.0}
    left = make_prior(BOX, leave_out=[name])
    assert name not in left.weights
    assert name in left.left_out
    with pytest.raises(InputError, match="left out"):
        make_prior(BOX, name, leave_out=[name])


def test_none_knows_nothing_of_other_boxes() -> None:
    found = make_prior(BOX, "none", leave_out=["whatever"])
    assert found.beliefs == nothing_known()
    assert found.weights == {}
    for name, item in constants().items():
        assert found.beliefs[name].mean == 0
        assert found.beliefs[name].sigma == item.spread
        assert found.beliefs[name].evidence == item.evidence


@pytest.mark.parametrize(
    ("asked", "leave_out", "said"),
    [
        ("rtx-4090-8x-roma", (), "--prior rtx-4090-8x-roma: no such profile; nearest: rtx-4090-8x-rome"),
        ("auto", ("rtx-5090-4x-genova",), "--leave-out rtx-5090-4x-genova: no profile of that name or box; nearest: rtx-5090-4x-genoa"),
        ("kernels-l40s", (), "--prior kernels-l40s: no such profile"),
        ("../secret", (), "no such profile"),
        ("x" * 5000, (), "no such profile"),
    ],
)
def test_unknown_names_offer_the_nearest(asked: str, leave_out: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError) as caught:
        make_prior(BOX, asked, leave_out=leave_out)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.exit_code == 2


def test_the_calibration_says_what_its_prior_was(shelf: Any) -> None:
    shelf(profile("one", {"host_step": (2.0, 0.05, "fitted")}), profile("two", {"host_step": (0.5, 0.05, "fitted")}, pcie="gen4"))
    made = calibrate(BOX, [measured(BOX, truth(seed=1), [Run(ranks=2, sizes=(1024, 4096))])], leave_out=["two"])
    spec = made.report.calibration
    assert (spec.prior, spec.prior_weights) == ("one", {"one": 1.0})
    assert any("profiles left out: two" in note for note in made.report.notes)
    step = spec.value_of("host_step")
    assert step is not None
    belief = make_prior(BOX, leave_out=["two"]).beliefs["host_step"]
    assert step.prior == pytest.approx(constants()["host_step"].value * math.exp(belief.mean), rel=1e-4)
    assert step.prior_stderr == pytest.approx(step.prior * belief.sigma, rel=1e-4)


def test_a_good_prior_helps_where_little_was_measured(shelf: Any) -> None:
    """One size of one op: the steps of large messages come from the profile, and nearer to the truth than from no profile."""
    values = truth(seed=1)
    names = ("step.Simple", "simple_extra", "duplex", "host_step", "base.all_reduce", "wire.Simple", "channel.shm", "memory.rate")
    shelf(profile("twin", {name: (values[name] / constants()[name].value, 0.03, "fitted") for name in names}))
    runs = [measured(BOX, values, [Run(sizes=(4096,), noise=0.01)])]
    for name in ("step.Simple", "duplex"):
        off = []
        for prior in ("auto", "none"):
            found = calibrate(BOX, runs, prior=prior).report.calibration.value_of(name)
            assert found is not None
            off.append((abs(math.log(found.value / values[name])), found.sigma_log))
        assert off[0] < off[1]
        assert off[0][1] is not None
        assert off[1][1] is not None
        assert off[0][1] < off[1][1]


seen_boxes = st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 1.0), st.floats(0.02, 1.0)), min_size=1, max_size=12)


def between_boxes(seen: list[tuple[float, float, float]], spread: float, variance: float) -> float:
    """The tau^2 behind a new box's variance = tau^2 + 1 / (1 / spread^2 + sum weight / (tau^2 + error^2)): it grows with tau^2."""
    low, high = 0.0, variance
    for _ in range(200):
        middle = (low + high) / 2
        whole = middle + 1 / (spread**-2 + sum(weight / (middle + error**2) for _, error, weight in seen))
        low, high = (middle, high) if whole < variance else (low, middle)
    return (low + high) / 2


@given(seen_boxes, st.floats(0.05, 1.0), st.floats(0.05, 0.5))
def test_pooled_is_the_random_effects_posterior(seen: list[tuple[float, float, float]], spread: float, between: float) -> None:
    """Mean by quadrature over the mean of boxes: its prior times the likelihood of every box to the power of its weight."""
    mean, variance = _pooled(seen, spread, between)
    tau2 = between_boxes(seen, spread, variance)
    at = np.linspace(-4, 4, 160_001)
    log = -0.5 * (at / spread) ** 2
    for value, error, weight in seen:
        log -= 0.5 * weight * (value - at) ** 2 / (tau2 + error**2)
    density = np.exp(log - log.max())
    density /= density.sum()
    expected = float(np.sum(density * at))
    assert mean == pytest.approx(expected, abs=2e-3)  # the mean is that of the tau^2 before the last of twenty rounds
    assert variance == pytest.approx(tau2 + float(np.sum(density * (at - expected) ** 2)), rel=1e-3)


@given(seen_boxes, st.floats(0.05, 1.0), st.floats(0.05, 0.5))
def test_pooled_is_bounded(seen: list[tuple[float, float, float]], spread: float, between: float) -> None:
    """The mean lies between nothing and the farthest box; a new box is never surer than the file's spread between boxes allows."""
    mean, variance = _pooled(seen, spread, between)
    values = [value for value, _, _ in seen] + [0.0]
    assert min(values) - 1e-12 <= mean <= max(values) + 1e-12
    assert variance > between**2 * SEEN_BEFORE / (SEEN_BEFORE + len(seen)) * (1 - 1e-9)
    assert math.isfinite(variance)


def test_one_exact_box_moves_the_mean_part_of_the_way() -> None:
    """By hand: weight 1 / tau^2 against 1 / spread^2, tau^2 held up by the box's own distance."""
    mean, variance = _pooled([(1.0, 0.01, 1.0)], 0.5, 0.3)
    tau2 = between_boxes([(1.0, 0.01, 1.0)], 0.5, variance)
    assert mean == pytest.approx((1 / (tau2 + 1e-4)) / (1 / 0.25 + 1 / (tau2 + 1e-4)))
    assert 0.3 < mean < 0.9
    # scatter (1 - mean)^2 counts as one box beside the two that showed 0.3; the box's own error is small beside tau
    assert tau2 == pytest.approx((2 * 0.09 + (1 - mean) ** 2 - 1e-4) / 3, rel=0.02)


def test_many_boxes_that_agree_are_believed() -> None:
    draw = np.random.default_rng(0)
    for count, within in ((3, 0.25), (300, 0.03)):
        seen = [(0.7 + 0.05 * float(draw.standard_normal()), 0.02, 1.0) for _ in range(count)]
        mean, variance = _pooled(seen, 0.5, 0.3)
        assert mean == pytest.approx(0.7, abs=within)
    assert math.sqrt(variance) == pytest.approx(0.05, rel=0.4)  # what the boxes' own scatter shows


def test_many_boxes_that_differ_widen_the_prior() -> None:
    draw = np.random.default_rng(0)
    seen = [(0.8 * float(draw.standard_normal()), 0.05, 1.0) for _ in range(100)]
    _, variance = _pooled(seen, 0.5, 0.2)
    assert math.sqrt(variance) == pytest.approx(0.8, rel=0.15)


def test_the_same_box_twice_by_half_weight_is_once() -> None:
    once = _pooled([(0.4, 0.1, 1.0)], 0.5, 0.3)
    twice = _pooled([(0.4, 0.1, 0.5), (0.4, 0.1, 0.5)], 0.5, 0.3)
    assert twice == pytest.approx(once)


def test_the_api_leaves_out_by_text_or_list(tmp_path: Any) -> None:
    """``--leave-out a,b`` and a list mean the same."""
    path = tmp_path / "set.yaml"
    path.write_text((catalog.shipped_dir("validation") / "all-reduce-h200-2x-host-staged" / "collective.yaml").read_text())
    asked: list[Any] = ["rtx-4090-8x-rome,rtx-5090-4x-genoa", ["rtx-4090-8x-rome", "rtx-5090-4x-genoa"]]
    found = [ps.calibrate(PAIR, path, leave_out=one).calibration for one in asked]
    assert found[0].prior_weights == found[1].prior_weights
    assert not {"rtx-4090-8x-rome", "rtx-5090-4x-genoa"} & set(found[0].prior_weights)
    assert found[0].prior_weights


def test_a_shipped_profile_is_left_out_for_its_own_files() -> None:
    """Calibrating on the very set a profile was made of: it is not among the weights, and the report says so."""
    path = catalog.shipped_dir("validation") / "all-reduce-rtx-5090-4x-genoa" / "collective.yaml"
    report = ps.calibrate(FOUR, path)
    assert "rtx-5090-4x-genoa" not in report.calibration.prior_weights
    assert any("profiles left out: rtx-5090-4x-genoa" in note for note in report.notes)
    assert traits(load_topology(SWITCHED))["transport"] != traits(BOX)["transport"]
