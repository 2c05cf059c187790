"""The kernel fit on tables made from known parameters: it must find them, say how well, and refuse what it cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pcie_sim.calibration.kernel_fit import (
    ClassSpec,
    Guess,
    fit_class,
    held_out_shapes,
    is_held_out,
    largest_resident,
    sort_by_residence,
)
from pcie_sim.calibration.kernel_tables import Row
from pcie_sim.compute.roofline import roofline
from pcie_sim.compute.work import work_of
from pcie_sim.errors import InputError
from pcie_sim.specs.ops import DecodeAttention, Experts, Gemm
from pcie_sim.specs.quantisation import BF16

BW, PEAK = 1e12, 200e12
CACHE = 30e6


def timed(call, shape, working_set, truth, noise=0.0, heads=1, resident=0.0, seed=0):
    """One row as the machine ``truth`` would give it; resident working sets read three times faster than memory."""
    work = work_of(call, heads_per_item=heads)
    if working_set <= resident:
        truth = Guess(**{**truth.__dict__, "bandwidth_share": 3.0})
    time = float(roofline(work, truth, BW, PEAK))
    wiggle = np.random.default_rng(seed).normal() if noise else 0.0
    return Row(shape, call, time * float(np.exp(noise * wiggle)), working_set, 1.0)


def gemm_table(truth, noise=0.0, resident=0.0):
    sizes = itertools.product((256, 512, 1024, 2048, 4096, 8192, 16384), (512, 1024, 3072, 4096, 8192), (1, 4, 16, 64, 256))
    return [
        timed(Gemm(m, n, k), f"{n}x{k}", n * k * 2.0, truth, noise, resident=resident, seed=seed) for seed, (n, k, m) in enumerate(sizes)
    ]


def values(result):
    return {item.name: item.value for item in result.report.parameters}


ROOF = ("fixed_s", "bandwidth_share", "flops_share", "sharpness")
TRUTH = Guess(fixed_s=4e-6, bandwidth_share=0.8, flops_share=0.5, sharpness=3.0)


def test_recovers_exact_parameters():
    result = fit_class(ClassSpec("gemm:bf16", ROOF), gemm_table(TRUTH), {}, bandwidth=BW, peak=PEAK)
    got = values(result)
    assert result.report.success
    for name in ROOF:
        assert got[name] == pytest.approx(getattr(TRUTH, name), rel=1e-3), name
    assert result.report.median_ape < 1e-3
    assert result.report.held_out_median_ape is not None
    assert result.report.held_out_median_ape < 1e-3


def test_recovers_them_from_a_table_that_ran_in_the_cache():
    rows = gemm_table(TRUTH, noise=0.02, resident=CACHE)
    result = fit_class(ClassSpec("gemm:bf16", ROOF), rows, {"prefill": 7}, bandwidth=BW, peak=PEAK)
    got = values(result)
    assert 0.5 * CACHE < result.resident_bytes <= CACHE
    assert got["bandwidth_share"] == pytest.approx(0.8, rel=0.05)
    assert got["fixed_s"] == pytest.approx(4e-6, rel=0.15)
    assert got["resident_share"] == pytest.approx(3.0, rel=0.2)
    assert result.report.left_out["prefill"] == 7
    assert result.report.left_out["in the cache: used for latency only"] > 0
    # the same rows taken for cold would claim more than the memory gives
    naive = fit_class(ClassSpec("gemm:bf16", ROOF, resident_bytes=0.0), rows, {}, bandwidth=BW, peak=PEAK)
    assert naive.report.median_ape > 3 * result.report.median_ape


def test_standard_errors_cover_the_truth_under_noise():
    result = fit_class(ClassSpec("gemm:bf16", ROOF), gemm_table(TRUTH, noise=0.03), {}, bandwidth=BW, peak=PEAK)
    for item in result.report.parameters:
        assert item.stderr is not None
        assert abs(item.value - getattr(TRUTH, item.name)) < 5 * item.stderr, item.name
    assert 0.01 < result.report.sigma_log < 0.06


def test_outliers_do_not_pull():
    rows = gemm_table(TRUTH)
    spoiled = [Row(r.shape, r.call, r.time_s * (5.0 if i % 10 == 0 else 1.0), r.working_set, r.tokens) for i, r in enumerate(rows)]
    got = values(fit_class(ClassSpec("gemm:bf16", ROOF), spoiled, {}, bandwidth=BW, peak=PEAK))
    assert got["bandwidth_share"] == pytest.approx(0.8, rel=0.05)


def test_serial_term():
    truth = Guess(fixed_s=4e-6, bandwidth_share=0.7, flops_share=0.5, sharpness=5.0, serial_s=7e-9)
    got = values(fit_class(ClassSpec("gemm:fp8", (*ROOF, "serial_s")), gemm_table(truth), {}, bandwidth=BW, peak=PEAK))
    assert got["serial_s"] == pytest.approx(7e-9, rel=0.01)


def test_items_and_capped_serial_length():
    truth = Guess(1.5e-5, 0.8, 0.14, per_item_s=5e-7, serial_s=7e-9, serial_cap=6000.0, sharpness=1.4)
    rows = []
    for heads in (8, 16, 32, 64, 128):
        for batch in (1, 4, 16, 64):
            for context in (16, 128, 1024, 4096, 16384, 65536):
                call = DecodeAttention(batch, context, "mla", heads, 576.0, 576, 512)
                rows.append(timed(call, f"{heads} heads", batch * context * 1152.0, truth, heads=16))
    spec = ClassSpec("attention:mla", (*ROOF, "per_item_s", "serial_s", "serial_cap"), heads_per_item=16)
    got = values(fit_class(spec, rows, {}, bandwidth=BW, peak=PEAK))
    for name in ("fixed_s", "bandwidth_share", "per_item_s", "serial_s", "serial_cap"):
        assert got[name] == pytest.approx(getattr(truth, name), rel=0.05), name


def test_crowded_experts():
    truth = Guess(2e-5, 0.84, 0.5, crowded_factor=0.68, sharpness=1.5)
    rows = []
    for inter in (256, 512, 768, 1024, 2048):
        for local in (16, 48, 128):
            for tokens in (1, 4, 16, 32, 64, 256):
                call = Experts(tokens, min(8 * tokens, local), 8 * tokens, local, 4096, inter, BF16)
                rows.append(timed(call, f"{inter} {local}", call.distinct * 3.0 * 4096 * inter * 2, truth))
    spec = ClassSpec("experts:bf16", ("fixed_s", "bandwidth_share", "crowded_factor"), {"flops_share": 0.5, "sharpness": 1.5})
    got = values(fit_class(spec, rows, {}, bandwidth=BW, peak=PEAK))
    assert got["crowded_factor"] == pytest.approx(0.68, rel=0.01)
    assert got["bandwidth_share"] == pytest.approx(0.84, rel=0.01)


def test_a_parameter_at_its_bound_is_said_and_has_no_error():
    impossible = Guess(fixed_s=4e-6, bandwidth_share=1.3, flops_share=0.5, sharpness=3.0)
    result = fit_class(ClassSpec("gemm:bf16", ROOF, resident_bytes=0.0), gemm_table(impossible), {}, bandwidth=BW, peak=PEAK)
    found = {item.name: item for item in result.report.parameters}["bandwidth_share"]
    assert found.at_bound
    assert found.stderr is None


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match=r"gemm:bf16: \d+ usable rows for 4 parameters"):
        fit_class(ClassSpec("gemm:bf16", ROOF), gemm_table(TRUTH)[:5], {}, bandwidth=BW, peak=PEAK)
    with pytest.raises(InputError, match="0 usable rows"):
        fit_class(ClassSpec("gemm:bf16", ROOF), [], {}, bandwidth=BW, peak=PEAK)


def test_whole_shapes_are_held_out():
    rows = gemm_table(TRUTH)
    out = held_out_shapes([row.shape for row in rows])
    assert out == frozenset(shape for shape in {row.shape for row in rows} if is_held_out(shape))
    assert 0 < len(out) < 35
    result = fit_class(ClassSpec("gemm:bf16", ROOF), rows, {}, bandwidth=BW, peak=PEAK)
    assert result.report.held_out_rows == sum(row.shape in out for row in rows)
    assert result.report.rows == len(rows) - result.report.held_out_rows


def test_at_least_one_shape_is_held_out_and_never_all():
    for names in (["a", "b"], ["7168x8192", "1024x7168"], [f"s{i}" for i in range(40)]):
        out = held_out_shapes(names)
        assert 0 < len(out) < len(names)
    assert held_out_shapes(["alone"]) == frozenset()


def test_resident_rows_are_those_faster_than_memory():
    def row(size, rate):
        return Row("s", Gemm(1, 1, 1), size / rate, size, 1.0)

    rows = [row(1e6, 0.5e12), row(10e6, 2.2e12), row(20e6, 1.2e12), row(26e6, 0.8e12), row(40e6, 0.8e12)]
    edge = largest_resident(rows, 1e12)
    assert edge == 20e6
    cold, warm, between = sort_by_residence(rows, edge)
    assert [r.working_set for r in cold] == [26e6, 40e6]
    assert [r.working_set for r in warm] == [1e6, 10e6]
    assert between == 1
    assert largest_resident(rows[3:], 1e12) == 0.0


def test_the_same_rows_give_the_same_fit():
    first, second = (fit_class(ClassSpec("gemm:bf16", ROOF), gemm_table(TRUTH), {}, bandwidth=BW, peak=PEAK) for _ in range(2))
    assert first.report.to_json() == second.report.to_json()
