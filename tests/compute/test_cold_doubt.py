"""Where only cache-resident rows were measured, the memory term carries more doubt; nothing else changes."""

from __future__ import annotations

import numpy as np

from pcie_sim import catalog
from pcie_sim.compute import kernel_model
from pcie_sim.specs.ops import Experts
from pcie_sim.specs.quantisation import WeightFormat

INT4 = WeightFormat(format="int4", bits=4, group=32, scale_bits=16)


def test_small_expert_sets_are_less_certain_than_large_ones() -> None:
    """On a card with 128 MB of cache no int4 expert set below about 200 MB was measured cold."""
    model = kernel_model(catalog.load_gpu("rtx-pro-6000-blackwell-server"))
    fit = model.kernel_class("experts:int4")
    call = Experts(np.ones(2), np.array([1.0, 64.0]), np.array([1.0, 64.0]), 384, 7168, 2048, INT4)
    timed = model.time(call)
    assert timed.sigma_log[1] == fit.sigma_log
    assert fit.sigma_log < timed.sigma_log[0] <= np.hypot(fit.sigma_log, fit.cold_doubt)


def test_the_doubt_grows_with_the_memory_terms_share() -> None:
    model = kernel_model(catalog.load_gpu("rtx-pro-6000-blackwell-server"))
    distinct = np.array([0.2, 1.0, 4.0])
    timed = model.time(Experts(np.ones(3), distinct, distinct, 384, 7168, 2048, INT4))
    assert np.all(np.diff(timed.sigma_log) > 0)
