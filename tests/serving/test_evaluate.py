"""Serving invariants over shipped boxes, models and strategies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.errors import InputError

BOXES = (
    "rtx-4090-8x-rome-2socket",
    "rtx-5090-8x-direct-1socket",
    "rtx-pro-6000-8x-2switch",
    "rtx-pro-6000-8x-asus-broadcom",
    "rtx-pro-6000-8x-direct-2socket",
    "rtx-pro-6000-8x-root-leaf",
)
"""A choice: on a slow box the library's change of protocol can make a larger AllReduce, and so a token, a trace faster."""
FAST = ("tp8", "pp8", "2xtp4", "tp4pp2", "tp2dp4")


def grid(box: str, model: str, strategies: str, **more: object):  # type: ignore[no-untyped-def]
    return ps.compare(box, model=model, strategies=strategies, **{"concurrency": [1, 2, 8, 32], "context": [256, 4096], **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "llama-3.1-70b"])
def test_more_requests_never_make_a_token_faster(box: str, model: str) -> None:
    for strategy in FAST:
        found = grid(box, model, strategy)
        for context in found.contexts:
            times = [found.point(strategy, concurrency=c, context=context).tpot_ms for c in found.concurrencies]
            assert np.all(np.diff(times) >= -1e-9 * times[0])


@pytest.mark.parametrize("strategy", FAST)
def test_longer_context_never_makes_a_token_faster(strategy: str) -> None:
    found = ps.compare(BOXES[-1], model="qwen3-30b-a3b", strategies=strategy, concurrency=4, context=[16, 512, 8192, 65536])
    times = [point.tpot_ms for point in found.points]
    assert np.all(np.diff(times) >= -1e-9 * times[0])


def test_a_sweep_equals_single_points() -> None:
    whole = grid("rtx-pro-6000-8x-2switch", "kimi-k2.6", "tp8,pp8,ep8", context=[512, 2048])
    for point in whole.points:
        one = ps.predict(
            "rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy=point.strategy, concurrency=point.concurrency, context=point.context
        )
        assert one.point.tpot_ms == pytest.approx(point.tpot_ms, rel=1e-12)
        assert one.point.breakdown_ms == pytest.approx(dict(point.breakdown_ms), rel=1e-9, abs=1e-12)


def test_two_replicas_at_twice_the_requests_are_one_replica() -> None:
    """A replica sees its share only: 2xtp4 at 2C takes what tp4 takes at C, apart from what the replicas share of the network."""
    box = "rtx-pro-6000-8x-2switch"
    two = ps.predict(box, model="qwen3-30b-a3b", strategy="2xtp4", concurrency=16).point
    one = ps.predict(box, model="qwen3-30b-a3b", strategy="tp4", concurrency=8).point
    assert two.tpot_ms >= one.tpot_ms * (1 - 1e-9)
    assert two.tpot_ms == pytest.approx(one.tpot_ms, rel=0.05)


def test_pipeline_of_one_request_is_the_sum_of_its_stages_and_hops() -> None:
    found = ps.predict("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy="pp8", concurrency=1)
    assert found.point.breakdown_ms["bubble"] == 0
    assert found.point.micro_batches == 1


def test_pipeline_below_its_depth_grows_almost_linearly() -> None:
    found = ps.compare("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategies="pp8", concurrency=[1, 4, 8])
    rates = [point.tokens_per_s for point in found.points]
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.02)
    assert rates[2] < 8 * rates[0]  # the slowest of uneven stages sets the pace


def test_one_more_request_never_costs_a_pipeline_throughput() -> None:
    """Micro-batches differ by one request at most: the cycle is the sum over them, not the fullest times their number."""
    found = ps.compare("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategies="pp8", concurrency=range(1, 41))
    rates = np.array([point.tokens_per_s for point in found.points])
    assert np.all(rates[1:] >= rates[:-1] * 0.995)


def test_uneven_stages_slow_the_pipeline() -> None:
    def rate(layers: str) -> float:
        return ps.predict("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy="pp8", concurrency=64, pp_layers=layers).point.tokens_per_s

    assert rate("8,8,8,8,8,7,7,7") > rate("5,8,8,8,8,8,8,8") * 0.99
    assert rate("8,8,8,8,8,7,7,7") > rate("1,1,1,1,1,1,1,54") * 2


def test_concurrency_above_kv_queues_and_stops_growing() -> None:
    found = ps.compare("rtx-4090-8x-rome-2socket", model="llama-3.1-70b", strategies="tp8", concurrency=[1, 4096], context=8192)
    last = found.point("tp8", concurrency=4096)
    assert last.queued
    assert last.fits
    assert last.running == last.memory.max_concurrency < 4096
    assert last.tokens_per_s == pytest.approx(1000 * last.running / last.tpot_ms)
    assert "queue" in (last.memory.reason or "")


def test_engine_cap_queues_too() -> None:
    found = ps.compare("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategies="tp8", concurrency=[8, 64], max_running=16)
    assert [point.running for point in found.points] == [8, 16]


def test_a_model_that_fits_nowhere_never_wins() -> None:
    found = ps.compare("rtx-4090-8x-rome-2socket", model="kimi-k2.6", strategies="tp8,pp8", concurrency=1)
    assert not found.anything_fits
    assert found.winners == ()
    assert all("exceed" in (point.memory.reason or "") for point in found.points)
    assert all(point.tpot_ms > 0 for point in found.points)


def test_eager_launch_is_never_faster() -> None:
    for strategy in ("tp8", "pp8"):
        graph = ps.predict("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy=strategy, launch="graph").point
        eager = ps.predict("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy=strategy, launch="eager").point
        assert eager.tpot_ms >= graph.tpot_ms


def test_batches_above_the_largest_graph_run_eager() -> None:
    """SGLang: largest graph 512 for tp >= 4 on a 96 GB card."""
    found = ps.compare("rtx-pro-6000-8x-2switch", model="qwen3-30b-a3b", strategies="tp8", concurrency=[512, 513], context=64)
    assert [point.launch for point in found.points] == ["graph", "eager"]


def test_skewed_experts_read_less_and_crowd_more() -> None:
    even = ps.predict("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy="tp8", concurrency=64).point
    skewed = ps.predict("rtx-pro-6000-8x-2switch", model="kimi-k2.6", strategy="tp8", concurrency=64, popularity="zipf:1.0").point
    assert skewed.breakdown_ms["experts"] < even.breakdown_ms["experts"]


def test_results_are_deterministic() -> None:
    first = grid("rtx-pro-6000-8x-2switch", "kimi-k2.6", "tp8,ep8").to_json()
    assert first == grid("rtx-pro-6000-8x-2switch", "kimi-k2.6", "tp8,ep8").to_json()


@given(
    strategy=st.sampled_from(["tp8", "tp4", "pp8", "pp4", "ep8", "ep8:a2a", "tp2dp4", "2xtp4", "tp4pp2", "tp8dcp8", "tp8ep4", "dp8ep8"]),
    concurrency=st.integers(1, 3000),
    context=st.integers(1, 100_000),
    runtime=st.sampled_from(catalog.names("runtimes")),
)
def test_every_point_is_sound(strategy: str, concurrency: int, context: int, runtime: str) -> None:
    try:
        found = ps.predict(
            "rtx-pro-6000-8x-direct-2socket",
            model="deepseek-v3.2",
            strategy=strategy,
            concurrency=concurrency,
            context=context,
            runtime=runtime,
        )
    except InputError:
        return
    point = found.point
    assert np.isfinite(point.tpot_ms)
    assert point.tpot_ms > 0
    assert 0 < point.tpot_ms_p10 <= point.tpot_ms <= point.tpot_ms_p90
    assert sum(point.breakdown_ms.values()) == pytest.approx(point.tpot_ms, rel=1e-9)
    assert 0 < point.running <= concurrency
    assert point.queued == (point.fits and point.running < concurrency)
