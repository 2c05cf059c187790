"""The comparison as a whole: winners, crossovers, notes, advice, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

import pcie_sim as ps
from pcie_sim.specs.strategy import default_strategies

BOX = "rtx-pro-6000-8x-2switch"


@pytest.fixture(scope="module")
def runs():  # type: ignore[no-untyped-def]
    return ps.compare(BOX, model="kimi-k2.6", concurrency=[1, 2, 4, 8, 16, 32, 64, 128], context=[512, 4096])


def test_the_usual_strategies_are_asked(runs) -> None:  # type: ignore[no-untyped-def]
    assert runs.strategies == default_strategies(8, moe=True)
    assert len(runs.points) == 6 * 8 * 2


def test_the_winner_is_the_best_that_fits(runs) -> None:  # type: ignore[no-untyped-def]
    for winner in runs.winners:
        here = [p for p in runs.points if p.fits and (p.concurrency, p.context) == (winner.concurrency, winner.context)]
        rates = sorted((p.tokens_per_s for p in here), reverse=True)
        best = runs.point(winner.strategy, concurrency=winner.concurrency, context=winner.context)
        assert best.tokens_per_s == rates[0]
        assert winner.margin == pytest.approx(rates[0] / rates[1] - 1)
        assert 0 < winner.probability <= 1


def test_crossovers_are_where_the_winner_changes(runs) -> None:  # type: ignore[no-untyped-def]
    for context in runs.contexts:
        order = [w.strategy for w in runs.winners if w.context == context]
        changes = [(a, b) for a, b in pairwise(order) if a != b]
        assert changes == [(c.from_strategy, c.to_strategy) for c in runs.crossovers if c.context == context]


def test_results_are_plain_data(runs) -> None:  # type: ignore[no-untyped-def]
    assert json.loads(runs.to_json()) == json.loads(json.dumps(runs.to_dict()))
    assert len(runs.to_records()) == len(runs.points)
    assert "advice" in runs.to_dict()
    assert runs.explain().splitlines()[-1].startswith("next: ")


def test_advice_is_one_line_with_a_command(runs) -> None:  # type: ignore[no-untyped-def]
    assert "\n" not in runs.advice
    assert any(word in runs.advice for word in ("all_reduce_perf", "sendrecv_perf", "bench"))


def test_notes_say_what_did_not_fit_and_what_was_assumed(runs) -> None:  # type: ignore[no-untyped-def]
    codes = {note.code for note in runs.notes}
    assert {"moe_comm", "ep_is_not_all_to_all", "does_not_fit", "all_reduce_cost", "transport", "topology_assumed", "pipeline"} <= codes


def test_strategies_that_the_engine_refuses_are_left_out_with_the_reason() -> None:
    """MiniMax M2.5 in fp8 blocks: TP8 leaves 192 of width 1536 a rank, which SGLang refuses."""
    found = ps.compare(BOX, model="minimax-m2.5", concurrency=1)
    assert "tp8" not in found.strategies
    assert any(note.code == "left_out" and "tp8" in note.text and "192" in note.text for note in found.notes)


def test_dense_models_ask_no_expert_parallelism() -> None:
    found = ps.compare(BOX, model="llama-3.1-70b", concurrency=1)
    assert not any("ep" in text for text in found.strategies)
    assert all(point.moe_comm is None for point in found.points)
    assert all(point.breakdown_ms["experts"] == 0 for point in found.points)


def test_a_better_all_reduce_helps_tensor_parallel_and_not_the_pipeline() -> None:
    fast = ps.compare(BOX, model="kimi-k2.6", strategies="tp8,pp8", concurrency=1, env={"NCCL_P2P_LEVEL": "SYS"})
    slow = ps.compare(BOX, model="kimi-k2.6", strategies="tp8,pp8", concurrency=1, env={"NCCL_P2P_DISABLE": "1"})
    assert slow.points[0].breakdown_ms["all_reduce"] > 1.2 * fast.points[0].breakdown_ms["all_reduce"]
    assert slow.points[1].tpot_ms == pytest.approx(fast.points[1].tpot_ms, rel=0.02)
    assert slow.env == {"NCCL_P2P_DISABLE": "1"}


def test_settings_of_the_library_are_echoed() -> None:
    found = ps.compare(BOX, model="kimi-k2.6", strategies="tp8", concurrency=1, nccl="2.22", env={"NCCL_ALGO": "Ring"})
    assert found.ccl == "nccl 2.22"
    assert found.env == {"NCCL_ALGO": "Ring"}


def test_pipeline_layers_must_fit_a_strategy() -> None:
    with pytest.raises(ps.InputError, match="pp8"):
        ps.compare(BOX, model="kimi-k2.6", strategies="tp8", concurrency=1, pp_layers="8,8,8,8,8,7,7,7")
    found = ps.compare(BOX, model="kimi-k2.6", strategies="pp8,tp4pp2", concurrency=1, pp_layers="8,8,8,8,8,7,7,7")
    assert any("8,8,8,8,8,7,7,7" in note.text for note in found.notes)


@pytest.mark.parametrize(
    "more",
    [
        {"concurrency": 0},
        {"concurrency": "x"},
        {"concurrency": []},
        {"context": -1},
        {"strategies": ""},
        {"strategies": "banana8"},
        {"strategies": "tp16"},
        {"strategies": "tp3"},
        {"runtime": "sglnag"},
        {"model": "kimi-k9"},
        {"nccl": "two"},
        {"p2p": "maybe"},
        {"launch": "slow"},
        {"popularity": "zipf:9"},
        {"mem_fraction": 2.0},
        {"max_running": 0},
        {"env": {"NCCL_P2P_LEVEL": "FAR"}},
        {"env": {"bad name": "1"}},
    ],
)
def test_bad_questions_are_refused_in_one_line(more: dict[str, object]) -> None:
    with pytest.raises(ps.InputError) as caught:
        ps.compare(BOX, **{"model": "kimi-k2.6", "strategies": "tp8", "concurrency": 1, **more})  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) <= 2


def test_concurrency_takes_numbers_lists_text_and_arrays() -> None:
    wanted = ps.compare(BOX, model="kimi-k2.6", strategies="tp8", concurrency=[1, 8]).to_json()
    for same in ("1,8", (1, 8), np.array([1, 8]), [1.0, 8.0]):
        assert ps.compare(BOX, model="kimi-k2.6", strategies=["tp8"], concurrency=same).to_json() == wanted


def test_collective_and_flows_are_reachable() -> None:
    timing = ps.collective(BOX, "all_reduce", "14KiB", launch="graph")
    assert timing.to_dict()["schema"] == "pcie-sim/collective/1"
    found = ps.flows({"cases": [{"id": "one", "links": {"l": 10}, "routes": {"a>b": ["l"]}, "flows": [[0, "a", "b", 20]]}]})
    assert found.cases[0].makespan == 2


def test_costly_choices_of_the_library_are_named() -> None:
    # a dual EPYC box on which NCCL's ring search finds nothing: the note names cost, share of a step and what to set
    found = ps.compare("rtx-pro-6000-8x-direct-2socket", model="kimi-k2.6", strategies=["tp8"], concurrency=[1])
    texts = [note.text for note in found.notes if note.code == "ccl_choice"]
    assert any("ring search finds nothing" in text and "% of a step" in text and "NCCL_GRAPH_FILE" in text for text in texts)
    quiet = ps.compare(BOX, model="kimi-k2.6", strategies=["tp8"], concurrency=[1], env={"NCCL_P2P_LEVEL": "SYS"})
    assert not [note for note in quiet.notes if note.code == "ccl_choice"]


def test_two_gpus_use_the_engines_own_kernel() -> None:
    # SGLang's custom AllReduce on two PCIe GPUs with peer access: ai-dynamo/aiconfigurator rtx_pro_6000, 4.5 us up to 8 KiB
    found = ps.predict(BOX, model="llama-3.1-8b", strategy="tp2", concurrency=1)
    (op,) = [op for op in found.ops if op.kind == "all_reduce" and op.count > 1][:1]
    assert op.ms / op.count * 1e3 == pytest.approx(4.55, rel=0.1)
    refused = ps.predict(BOX, model="llama-3.1-8b", strategy="tp2", concurrency=1, p2p="off")
    assert refused.point.breakdown_ms["all_reduce"] > 1.3 * found.point.breakdown_ms["all_reduce"]
