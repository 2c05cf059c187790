"""The reference case: Kimi K2.6 on 8x RTX PRO 6000, SGLang, nothing calibrated.

Measured single-request rates: TP8 26, PP8 36, EP8 65 tok/s, that is 38.5, 27.8 and 15.4 ms per token. No constant of the package is
fitted on them. TP8's figure is not to be matched: an AllReduce of some 240 us would be needed, healthy boxes measure 17 to 48.
"""

from __future__ import annotations

import re

import pytest

import pcie_sim as ps
from pcie_sim.results.comparison import BREAKDOWN_KEYS, Comparison

BOX = "rtx-pro-6000-8x-2switch"
ENV = {"NCCL_P2P_LEVEL": "5", "NCCL_IB_DISABLE": "1", "NCCL_ALGO": "Ring"}
"""The EP8 run's known settings."""


@pytest.fixture(scope="module", params=[None, ENV], ids=["as the box says", "as the EP8 run was set"])
def runs(request: pytest.FixtureRequest) -> Comparison:
    return ps.compare(
        BOX, model="kimi-k2.6", strategies=["tp8", "pp8", "ep8:allreduce", "ep8:a2a"], concurrency=[1, 4, 8, 16, 64], env=request.param
    )


def note(runs: Comparison, code: str, *words: str) -> str:
    found = [n.text for n in runs.notes if n.code == code and all(word in n.text for word in words)]
    assert found, f"no note [{code}] with {words}"
    return found[0]


def test_pp8_is_within_15_percent_with_its_hop_cost_stated(runs: Comparison) -> None:
    point = runs.point("pp8", concurrency=1)
    assert point.tpot_ms == pytest.approx(27.8, rel=0.15)
    assert re.search(r"7 hops of \d+(\.\d+)? us", note(runs, "pipeline", "pp8"))


def test_ep8_leaves_what_healthy_boxes_measure_for_each_all_reduce(runs: Comparison) -> None:
    point = runs.point("ep8:allreduce", concurrency=1)
    rest = point.tpot_ms - point.breakdown_ms["all_reduce"]
    left_us = (15.4 - rest) / 123 * 1e3
    assert 17 <= left_us <= 60


@pytest.mark.parametrize("strategy", ["ep8:allreduce", "tp8"])
def test_all_reduce_cost_is_shown_at_17_27_and_48_us(runs: Comparison, strategy: str) -> None:
    text = note(runs, "all_reduce_cost", strategy)
    assert "123 AllReduces of 14,336 B" in text
    point = runs.point(strategy, concurrency=1)
    rest = point.tpot_ms - point.breakdown_ms["all_reduce"]
    for us in (17.3, 27.0, 48.2):
        assert f"{us:.3g} us -> {rest + 123 * us * 1e-3:.1f} ms" in text


def test_tp8_is_not_matched_but_named(runs: Comparison) -> None:
    """38.5 ms measured; the notes say the residual and what one AllReduce would have to cost."""
    text = note(runs, "residual", "tp8")
    point = runs.point("tp8", concurrency=1)
    assert point.tpot_ms < 20
    assert "measured 38.5 ms" in text
    needed = float(re.search(r"would have to cost (\d+) us", text).group(1))  # type: ignore[union-attr]
    rest = point.tpot_ms - point.breakdown_ms["all_reduce"]
    assert needed == pytest.approx((1000 / 26 - rest) / 123 * 1e3, abs=0.6)
    assert 200 < needed < 280
    assert "unexplained" in text


def test_measured_rows_stand_beside_the_prediction(runs: Comparison) -> None:
    rows = {(row.strategy, row.concurrency, row.value): row for row in runs.measured}
    row = rows["tp8", 1, 26]
    point = runs.point("tp8", concurrency=1)
    assert row.predicted == pytest.approx(point.tokens_per_s)
    assert row.residual == pytest.approx(26 / point.tokens_per_s - 1)
    assert rows["ep8:allreduce", None, 1531].predicted is None


def test_the_two_kinds_of_ep_differ_and_the_default_is_named(runs: Comparison) -> None:
    plain, real = runs.point("ep8:allreduce", concurrency=1), runs.point("ep8:a2a", concurrency=1)
    assert (plain.moe_comm, real.moe_comm) == ("allreduce", "a2a")
    assert plain.breakdown_ms["all_reduce"] > 1
    assert plain.breakdown_ms["all_to_all"] == 0
    assert real.breakdown_ms["all_to_all"] > 1
    assert real.breakdown_ms["all_reduce"] < 0.1
    assert not real.fits
    assert "weights" in (real.memory.reason or "")
    assert plain.fits
    assert "AllReduces of plain TP" in note(runs, "ep_is_not_all_to_all")
    note(runs, "does_not_fit", "ep8:a2a")


def test_without_a_suffix_ep8_is_the_engines_own_choice() -> None:
    asked = ps.compare(BOX, model="kimi-k2.6", strategies="ep8,ep8:allreduce", concurrency=1)
    assert asked.point("ep8", concurrency=1).moe_comm == "allreduce"
    first, second = asked.points
    assert first.tpot_ms == second.tpot_ms
    assert (first.tpot_ms_p10, first.tpot_ms_p90) == (second.tpot_ms_p10, second.tpot_ms_p90)  # one plan, one doubt


def test_breakdown_sums_to_tpot_and_bands_enclose_it(runs: Comparison) -> None:
    for point in runs.points:
        assert set(point.to_dict()["breakdown_ms"]) == set(BREAKDOWN_KEYS)
        assert sum(point.breakdown_ms.values()) == pytest.approx(point.tpot_ms, rel=1e-9)
        assert point.tpot_ms_p10 <= point.tpot_ms <= point.tpot_ms_p90
        assert point.tokens_per_s == pytest.approx(1000 * point.running / point.tpot_ms)
        assert min(point.breakdown_ms.values()) >= 0
        assert sum(point.evidence_share.values()) == pytest.approx(1)


def test_predict_is_the_same_point_with_its_lines() -> None:
    whole = ps.compare(BOX, model="kimi-k2.6", strategies=["tp8", "pp8"], concurrency=[1, 8])
    for strategy in ("tp8", "pp8"):
        for concurrency in (1, 8):
            one = ps.predict(BOX, model="kimi-k2.6", strategy=strategy, concurrency=concurrency)
            same = whole.point(strategy, concurrency=concurrency)
            assert one.point.tpot_ms == pytest.approx(same.tpot_ms, rel=1e-12)
            assert one.point.tpot_ms_p10 == pytest.approx(same.tpot_ms_p10, rel=1e-12)
            assert sum(op.ms for op in one.ops) == pytest.approx(one.point.tpot_ms, rel=1e-9)
