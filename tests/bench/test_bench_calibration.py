"""What a calibration costs: the fit itself, and a comparison with one beside a comparison without."""

import pytest

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.scoring import calibration

pytestmark = pytest.mark.bench

BOX, MODEL = "rtx-pro-6000-8x-4switch-2xeon", "kimi-k2.6"


@pytest.fixture(scope="module")
def profile():
    return catalog.load_calibration_profile("rtx-pro-6000-8x-aiconfigurator")


def test_fit_of_a_full_set(benchmark):
    """Twelve curves of an 8-GPU box, 252 points."""
    machine = next(one for one in calibration.machines() if one.id == "rtx-pro-6000-8x-aiconfigurator")
    made = benchmark.pedantic(lambda: calibration.fitted(machine, lambda row: True), rounds=2, warmup_rounds=1)
    # in units of what one evaluation of all curves takes, so that a slow machine does not matter
    assert made.fit.model.evaluations < 400


@pytest.mark.parametrize("calibrated", [False, True])
def test_compare(benchmark, profile, calibrated):
    ps.compare(BOX, model=MODEL)
    benchmark(lambda: ps.compare(BOX, model=MODEL, calibration=profile if calibrated else None))
