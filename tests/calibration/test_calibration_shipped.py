"""The calibrations in ``catalog/profiles/``: whole, inside the bounds, of boxes that are shipped, made of files that are."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.calibration.apply import Calibrated
from pcie_sim.calibration.constants import constants
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.loader import load_yaml
from pcie_sim.study.calibrating import calibration_text, load_calibration
from pcie_sim.topology import load_topology

NAMES = catalog.calibration_names()


@pytest.fixture(params=NAMES)
def profile(request: pytest.FixtureRequest) -> CalibrationSpec:
    return load_calibration(request.param)


def test_there_are_profiles_of_several_kinds_of_boxes() -> None:
    traits = [load_calibration(name).topology.traits for name in NAMES]
    assert len(NAMES) >= 5
    assert {kind for one in traits for kind in one["transport"].split("+")} >= {"SHM", "P2P"}
    assert len({one["cpu"] for one in traits}) >= 3


def test_all_constants_with_finite_numbers_inside_their_bounds(profile: CalibrationSpec) -> None:
    assert [parameter.name for parameter in profile.parameters] == list(constants())
    for parameter in profile.parameters:
        item = constants()[parameter.name]
        assert parameter.unit == item.unit
        assert item.low * 0.999 <= parameter.value <= item.high * 1.001, parameter.name
        assert parameter.stderr is not None
        assert math.isfinite(parameter.stderr)
        assert 0 < parameter.stderr < 3 * parameter.value, parameter.name
        assert parameter.prior is not None
        assert item.low <= parameter.prior <= item.high


def test_some_constants_were_told(profile: CalibrationSpec) -> None:
    told = [parameter for parameter in profile.parameters if parameter.evidence == "fitted"]
    assert told
    for parameter in told:
        assert parameter.sigma_log is not None
        assert parameter.prior_stderr is not None
        assert parameter.prior is not None
        if not constants()[parameter.name].discrete:
            assert parameter.sigma_log < 0.851 * parameter.prior_stderr / parameter.prior
    untold = [parameter for parameter in profile.parameters if parameter.evidence != "fitted"]
    assert all(parameter.evidence == constants()[parameter.name].evidence for parameter in untold)  # made without a prior of others


def test_a_profile_stands_on_no_other(profile: CalibrationSpec) -> None:
    """Else a box left out of a score would come back through its neighbours' priors."""
    assert profile.prior == "none"
    assert profile.prior_weights == {}


def test_curves_rise(profile: CalibrationSpec) -> None:
    """Sizes rise; times do on the whole (they may fall where the protocol changes, never to a half), and large calls take longer."""
    assert profile.curves or any(item.op.startswith("copy") for item in profile.inputs)
    for curve in profile.curves:
        sizes, times = np.array(curve.bytes, dtype=float), np.array(curve.time_us)
        assert np.all(np.diff(sizes) > 0)
        assert np.all(times[1:] > 0.5 * times[:-1]), (curve.op, curve.ranks)
        if sizes[-1] > 64 * max(sizes[0], 65536.0):
            assert times[-1] > 2 * times[0]
        assert set(curve.outliers) <= set(curve.bytes)
        assert 0.004 < curve.sigma_log < 0.2


def test_sources_and_inputs_are_named(profile: CalibrationSpec) -> None:
    assert profile.title
    assert profile.sources
    assert all(len(source) > 8 for source in profile.sources)
    assert profile.inputs
    assert sum(item.points for item in profile.inputs) >= sum(len(curve.bytes) for curve in profile.curves) > 0


def test_inputs_are_files_of_the_validation_folder_as_they_stand(profile: CalibrationSpec) -> None:
    """By content: a set that was changed needs its profile made again (python -m pcie_sim.scoring.calibration --profiles)."""
    held = {hashlib.sha256(path.read_bytes()).hexdigest() for path in catalog.shipped_dir("validation").glob("*/*.yaml")}
    for item in profile.inputs:
        assert item.sha256 in held, item.file


def test_it_is_of_a_shipped_box_and_answers_on_it(profile: CalibrationSpec) -> None:
    box = load_topology(profile.topology.name)
    made = Calibrated(profile, box, source=str(profile.name))
    assert made.box.gpus == box.gpus
    for curve in profile.curves[:2]:
        default = curve.gpus == box.gpus[: curve.ranks] and not curve.env and curve.p2p is None
        if default and curve.launch in ("graph", "eager"):
            got = ps.collective(
                profile.topology.name, curve.op, curve.bytes[0], ranks=curve.ranks, launch=curve.launch, calibration=profile
            )
            assert got.time_s * 1e6 == pytest.approx(curve.time_us[0], rel=1e-9)


def test_it_has_the_traits_of_its_box(profile: CalibrationSpec) -> None:
    from pcie_sim.calibration.prior import LOSS

    assert set(LOSS) <= set(profile.topology.traits)


def test_it_is_written_as_the_command_writes_it(profile: CalibrationSpec) -> None:
    """Header apart, the file is the text of its content: nothing was edited by hand."""
    path = catalog.lookup.file_of("profiles", str(profile.name))
    text = path.read_text(encoding="utf-8")
    header, _, body = text.partition("schema: ")
    assert header.startswith("# Made by")
    assert "schema: " + body == calibration_text(profile)


def test_every_calibration_machine_has_its_profile() -> None:
    machines = load_yaml(catalog.shipped_dir("validation") / "calibration-machines.yaml")["machines"]
    made = [machine for machine in machines if machine.get("profile", True)]
    assert {machine["id"] for machine in made} == set(NAMES)
    assert {machine["same_box"] for machine in machines if not machine.get("profile", True)} <= set(NAMES)
    for machine in made:
        held = load_calibration(machine["id"])
        assert held.topology.name == machine["topology"]
        assert held.topology.id == machine["id"]
        assert held.topology.healthy == machine.get("healthy", True)
