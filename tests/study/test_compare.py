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


def test_a_published_run_that_disagrees_is_named_first() -> None:
    found = ps.compare(BOX, model="kimi-k2.6", strategies="tp8,ep8", concurrency=1)
    first = found.notes[0]
    assert first.code == "measured_disagrees"
    assert "65 against 26" in first.text


def test_measured_rows_are_compared_at_their_own_context_only() -> None:
    """The runs' prompts are not stated, their outputs were 512 to 2048 tokens: 100,000 tokens of context is another question."""
    near = ps.compare(BOX, model="kimi-k2.6", strategies="tp8,pp8", concurrency=1, context=2048)
    far = ps.compare(BOX, model="kimi-k2.6", strategies="tp8,pp8", concurrency=1, context=100_000)
    assert any(row.predicted is not None for row in near.measured)
    assert all(row.predicted is None for row in far.measured)
    assert not any(note.code in ("residual", "measured_disagrees") for note in far.notes)


def test_a_run_with_other_settings_says_so() -> None:
    found = ps.compare(BOX, model="kimi-k2.6", strategies="ep8:allreduce", concurrency=1, env={"NCCL_P2P_LEVEL": "5"})
    row = next(row for row in found.measured if row.predicted is not None)
    assert "NCCL_P2P_LEVEL" not in row.note
    assert "NCCL_ALGO=Ring" in row.note


def test_a_context_beyond_the_model_is_noted() -> None:
    """Qwen3-8B: max_position_embeddings 40,960."""
    found = ps.compare(BOX, model="qwen3-8b", strategies="tp8", concurrency=1, context=[1024, 50_000])
    assert any(note.code == "context_beyond" and "40,960" in note.text for note in found.notes)
    assert not any(note.code == "context_beyond" for note in ps.compare(BOX, model="qwen3-8b", strategies="tp8", concurrency=1).notes)


def test_bare_wires_are_called_a_lower_bound() -> None:
    from pcie_sim.specs.machine import CclSettings

    box = ps.load_topology(BOX).with_settings(ccl=CclSettings(name="none"))
    found = ps.compare(box, model="kimi-k2.6", strategies="tp8", concurrency=1)
    assert any("lower bound" in note.text for note in found.notes if note.code == "transport")


def test_text_from_files_reaches_no_shell() -> None:
    """The advice is a command that people paste: nothing of a model's title may run in it."""
    import shlex

    spec = ps.load_model("qwen3-8b").model_copy(update={"title": "$(touch PWNED); x/y"})
    for strategies in ("tp1", "tp8,pp8", "pp8"):
        command = ps.compare(BOX, model=spec, strategies=strategies, concurrency=[1, 64], env={"NCCL_ALGO": "$(id)"}).advice
        words = shlex.split(command, comments=True)
        assert not any("PWNED" in word for word in words)
        assert "$(id)" not in command.replace("'$(id)'", "")


@pytest.mark.parametrize("title", ["\x1b]0;pwn\x07", "a\x00b", "\x9b31m"])
def test_control_characters_in_files_are_refused(title: str) -> None:
    from pcie_sim.specs.base import build
    from pcie_sim.specs.machine import TopologySpec

    data = {"schema": "pcie-sim/topology/1", "name": "x", "title": title, "nodes": {"cpu0": {"kind": "socket", "part": "epyc-turin"}}}
    with pytest.raises(ps.InputError, match="control character"):
        build(TopologySpec, data, source="x.yaml")
    with pytest.raises(ps.InputError, match="control character"):
        ps.load_topology(BOX).with_settings(env={"NCCL_ALGO": title})


def test_pipeline_layers_need_a_pipeline() -> None:
    with pytest.raises(ps.InputError, match="no strategy asked"):
        ps.compare(BOX, model="kimi-k2.6", strategies="tp8", concurrency=1, pp_layers="61")


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
