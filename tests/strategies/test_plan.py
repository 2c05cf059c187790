"""Counts and bytes of every collective of a step.

Expected values: sgl-project/sglang 0.5.10.post1 (models/deepseek_v2.py, layers/communicator.py, layers/vocab_parallel_embedding.py,
layers/logits_processor.py, layers/dp_attention.py, distributed/parallel_state.py) and vllm-project/vllm 0.33.0
(attention/ops/common.py), read by hand: 1 AllReduce after the embedding, 2 per layer, 1 AllGather of the logits, 2 tensors per boundary.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import catalog
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.ops import CollectiveCall, Experts, Gemm
from pcie_sim.specs.routing import distinct_destinations, rank_load
from pcie_sim.specs.strategy import parse_strategy
from pcie_sim.strategies import StepPlan, build_plan, resolve

K2 = catalog.load_model_spec("kimi-k2.6")
QWEN = catalog.load_model_spec("qwen3-235b-a22b")
DENSE = catalog.load_model_spec("llama-3.1-70b")
SGLANG = catalog.load_runtime("sglang")
VLLM = catalog.load_runtime("vllm")


def plan(text: str, model: ModelSpec = K2, running: float = 1, context: float = 1024, runtime=SGLANG, gpus: int = 8) -> StepPlan:
    resolved = resolve(parse_strategy(text), model, runtime, gpus=gpus)
    return build_plan(model, resolved, runtime, running=np.array([[float(running)]]), context=np.array([[float(context)]]))


def table(step: StepPlan) -> dict[str, list[tuple[float, float]]]:
    """op -> sorted (count, bytes) of its lines."""
    found: dict[str, list[tuple[float, float]]] = {}
    for op, count, size in step.collectives():
        found.setdefault(op, []).append((count, float(np.asarray(size).ravel()[0])))
    return {op: sorted(lines) for op, lines in found.items()}


@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("text", ["tp8", "ep8:allreduce", "ep8", "tp8ep4", "tp8ep2:allreduce"])
def test_k2_under_tp8_and_ep8_sends_the_same_123_all_reduces(text: str, batch: int) -> None:
    """Hidden 7168 in bf16: 14,336 B a token; 163,840 logits in bf16."""
    assert table(plan(text, running=batch)) == {
        "all_reduce": [(123.0, 14336.0 * batch)],
        "all_gather": [(1.0, 163840 * 2.0 * batch)],
    }


def test_pipeline_sends_hidden_state_and_residual_per_boundary_and_nothing_else() -> None:
    assert table(plan("pp8", running=8)) == {"send_recv": [(14.0, 14336.0)]}


def test_pipeline_of_tensor_parallel_stages_sends_cut_tensors_and_gathers_them() -> None:
    """SGLang parallel_state.send_tensor_dict: each TP rank sends 1/tp, the receivers all-gather, per tensor."""
    found = table(plan("tp4pp2"))
    assert found["send_recv"] == [(2.0, 14336.0 / 4)]
    assert (2.0, 14336.0) in found["all_gather"]
    assert found["all_reduce"] == [(123.0, 14336.0)]


def test_attention_data_parallel_gathers_and_scatters_the_padded_batch() -> None:
    """dp8: no attention AllReduce; per layer one AllGather and one ReduceScatter of 8 ranks' padded tokens."""
    found = table(plan("dp8ep8", running=10))  # 2 tokens on the fullest rank
    assert "all_reduce" not in found
    assert (61.0, 8 * 2 * 14336.0) in found["reduce_scatter"]
    layers = [count for count, size in found["all_gather"] if size == 8 * 2 * 14336.0]
    assert sum(layers) == 62  # one a layer and the one before lm_head


def lines(step: StepPlan) -> dict[str, tuple[float, float, tuple[tuple[int, ...], ...]]]:
    """name -> (count, bytes, groups) of the collectives of the first stage."""
    found: dict[str, tuple[float, float, tuple[tuple[int, ...], ...]]] = {}
    for op in step.stages[0].ops:
        if isinstance(op.call, CollectiveCall):
            before = found[op.name][0] if op.name in found else 0.0
            found[op.name] = (before + op.count, float(np.ravel(op.call.bytes)[0]), op.call.groups)
    return found


def test_attention_data_parallel_with_tensor_parallel_scatters_gathers_and_back() -> None:
    """SGLang dp_attention.py: ReduceScatter inside attention tp, AllGather over all; ReduceScatter over all, AllGather inside."""
    found = lines(plan("tp2dp4", running=4))
    pairs, everyone = ((0, 1), (2, 3), (4, 5), (6, 7)), (tuple(range(8)),)
    assert found["attention reduce_scatter"] == (61, 14336, pairs)
    assert found["dp all_gather"] == (61, 4 * 14336, everyone)
    assert found["moe reduce_scatter"] == (60, 4 * 14336, everyone)
    assert found["moe all_gather"] == (60, 14336, pairs)
    assert "attention all_reduce" not in found
    assert "embedding all_reduce" not in found  # SGLang builds it whole under DP attention


def test_vllm_keeps_the_embedding_cut_and_dense_layers_local_under_data_parallelism() -> None:
    found = lines(plan("tp2dp4", running=4, runtime=VLLM))
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    assert found["embedding all_reduce"] == (1, 14336, pairs)
    assert found["attention all_reduce"] == (1, 14336, pairs)  # before the one dense layer
    assert found["dp all_gather"][1] == 4 * (14336 + 8 * 8)  # eight ids and weights of 8 B each travel along


def test_dense_layers_between_all_to_all_layers_get_whole_tokens() -> None:
    """Llama 4 Maverick: every second of 48 layers is dense; its MLP is cut over tp and needs all tokens."""
    step = plan("tp8ep8:a2a", catalog.load_model_spec("llama-4-maverick"))
    found = lines(step)
    assert found["attention reduce_scatter"][0] == 24
    assert found["attention all_reduce"][0] == 24
    assert found["mlp all_reduce"][0] == 24
    assert found["moe all_gather"][0] == 24


def test_all_to_all_replaces_both_all_reduces() -> None:
    """Dispatch fp8 with one fp32 scale per 128 elements, combine bf16; low-latency mode: one copy per chosen expert."""
    step = plan("ep8:a2a")
    found = table(step)
    assert "all_reduce" not in found or all(count < 3 for count, _ in found["all_reduce"])
    sizes = [size for _, size in found["all_to_all"]]
    assert sizes == pytest.approx(sorted([8 * 7168 * 1.03125, 8 * 7168 * 2.0]))
    assert [count for count, _ in found["all_to_all"]] == [60.0, 60.0]
    per_rank = [size for _, size in table(plan("ep8:a2a", runtime=VLLM))["all_to_all"]]
    copies = distinct_destinations(384, 8, 8)
    assert per_rank == pytest.approx(sorted([copies * 7168 * 1.03125, copies * 7168 * 2.0]))


def test_all_to_all_under_tensor_parallel_attention_scatters_and_gathers() -> None:
    found = table(plan("tp8ep8:a2a"))
    assert (60.0, 14336.0) in found["reduce_scatter"]
    assert (60.0, 14336.0) in found["all_gather"]
    assert sum(count for count, size in found["all_reduce"] if size == 14336.0) == 3  # embedding, and both of the dense layer


def test_allreduce_with_data_parallel_attention_uses_two_a_layer() -> None:
    found = table(plan("dp8ep8:allreduce", running=8))
    assert found["all_reduce"] == [(122.0, 8 * 14336.0)]


def test_decode_context_parallel_exchanges_queries_and_outputs() -> None:
    """vLLM cp_lse_ag_out_rs: AllGather of q, AllGather of the log-sum-exps, ReduceScatter of the outputs, every layer."""
    found = table(plan("tp8dcp8", runtime=VLLM))
    assert sum(count for count, size in found["reduce_scatter"]) == 61
    assert (61.0, 64 * 512 * 2.0) in found["reduce_scatter"]
    assert (61.0, 64 * 576 * 2.0) in found["all_gather"]


def test_dense_model_sends_as_many_all_reduces() -> None:
    """Llama 70B, 80 layers, hidden 8192."""
    assert table(plan("tp8", DENSE, running=2))["all_reduce"] == [(161.0, 2 * 16384.0)]


def test_single_rank_sends_nothing() -> None:
    assert table(plan("tp1", catalog.load_model_spec("llama-3.1-8b"), gpus=1)) == {}


def test_replicas_share_the_requests_and_run_side_by_side() -> None:
    step = plan("2xtp4", running=9)
    assert float(step.load.batch.ravel()[0]) == 5  # rounded up
    groups = next(op.call.groups for op in step.stages[0].ops if op.name == "attention all_reduce")  # type: ignore[union-attr]
    assert groups == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(("asked", "micro", "batch"), [(1, 1, 1), (4, 4, 1), (8, 8, 1), (9, 8, 2), (64, 8, 8)])
def test_micro_batches_of_a_pipeline(asked: int, micro: int, batch: int) -> None:
    load = plan("pp8", running=asked).load
    assert (float(load.micro_batches.ravel()[0]), float(load.batch.ravel()[0])) == (micro, batch)


def test_expert_parallel_waits_for_the_fullest_rank_with_whole_experts() -> None:
    step = plan("ep8:allreduce")
    call = next(op.call for op in step.stages[0].ops if op.name == "experts")
    assert isinstance(call, Experts)
    assert (call.local, call.inter) == (48, 2048)
    assert float(np.ravel(call.distinct)[0]) == pytest.approx(float(rank_load(1.0, 384, 8, 8).fullest_distinct))


def test_tensor_parallel_slices_every_chosen_expert() -> None:
    call = next(op.call for op in plan("tp8").stages[0].ops if op.name == "experts")
    assert isinstance(call, Experts)
    assert (call.local, call.inter, float(np.ravel(call.distinct)[0])) == (384, 256, pytest.approx(8.0))


def test_replicated_projections_keep_their_size_under_tp8() -> None:
    """fused_qkv_a_proj is a ReplicatedLinear: 7168 x (1536 + 576) on every rank; q_b and o_proj are cut by heads."""
    shapes = {op.name: (op.call.n, op.call.k) for op in plan("tp8").stages[0].ops if isinstance(op.call, Gemm)}
    assert shapes["qkv_a (replicated)"] == (2112, 7168)
    assert shapes["q_b"] == (8 * 192, 1536)
    assert shapes["o_proj"] == (7168, 8 * 128)
    assert shapes["router"] == (384, 7168)
    assert shapes["lm_head"] == (20480, 7168)


def test_kv_heads_replicate_when_there_are_fewer_than_ranks() -> None:
    """Qwen3-235B: 64 query and 4 KV heads of 128; TP8 keeps one KV head a rank."""
    shapes = {op.name: (op.call.n, op.call.k) for op in plan("tp8", QWEN).stages[0].ops if isinstance(op.call, Gemm)}
    assert shapes["qkv"] == ((8 + 2) * 128, 4096)


def test_arrays_equal_single_points() -> None:
    running = np.array([[1.0], [7.0], [64.0]])
    context = np.array([[128.0, 4096.0]])
    resolved = resolve(parse_strategy("tp8"), K2, SGLANG, gpus=8)
    whole = build_plan(K2, resolved, SGLANG, running=running, context=context)
    for i in range(3):
        for j in range(2):
            single = build_plan(K2, resolved, SGLANG, running=running[i : i + 1], context=context[:, j : j + 1])
            for (op, count, size), (op1, count1, size1) in zip(whole.collectives(), single.collectives(), strict=True):
                assert (op, count) == (op1, count1)
                assert np.broadcast_to(size, (3, 2))[i, j] == np.ravel(size1)[0]


MODELS = ("kimi-k2.6", "deepseek-v3.2", "qwen3-235b-a22b", "qwen3-next-80b", "gpt-oss-120b", "llama-3.1-70b", "llama-4-maverick")
STRATEGIES = ("tp8", "tp4", "pp8", "ep8", "ep8:a2a", "tp2dp4", "dp8ep8", "tp4pp2", "2xtp4", "tp8dcp8", "tp8ep4", "2xtp2pp2", "tp8:ag_rs")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", STRATEGIES)
@pytest.mark.parametrize("runtime", catalog.names("runtimes"))
def test_every_plan_is_sound(model: str, text: str, runtime: str) -> None:
    """Whatever is legal: every line counts something, bytes are positive, ranks are those of the strategy."""
    from pcie_sim.errors import InputError

    spec, engine, strategy = catalog.load_model_spec(model), catalog.load_runtime(runtime), parse_strategy(text)
    try:
        resolved = resolve(strategy, spec, engine, gpus=8)
    except InputError:
        return  # what a refusal says is tested in test_legal
    step = build_plan(spec, resolved, engine, running=np.array([[1.0], [17.0]]), context=np.array([[100.0, 5000.0]]))
    assert sum(stage.layers for stage in step.stages) == spec.num_layers
    assert len(step.boundaries) == strategy.pp - 1
    for stage in step.stages:
        for op in stage.ops:
            assert op.count > 0
            if hasattr(op.call, "groups"):
                assert np.all(np.asarray(op.call.bytes) > 0)
                ranks = sorted(rank for group in op.call.groups for rank in group)
                assert len(set(ranks)) == len(ranks)
                assert ranks[0] >= 0
                assert ranks[-1] < strategy.world
            if op.hidden_by:
                assert any(other.name == op.hidden_by for other in stage.ops)


@given(batch=st.integers(1, 512), tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4, 8]))
def test_tensor_parallel_counts_hold_for_any_shape(batch: int, tp: int, pp: int) -> None:
    if tp * pp > 16 or tp * pp == 1:
        return
    text = "".join(f"{axis}{n}" for axis, n in (("tp", tp), ("pp", pp)) if n > 1)
    step = plan(text, running=batch, gpus=16)
    assert step.count("all_reduce") == (123 if tp > 1 else 0)
    assert step.count("send_recv") == 2 * (pp - 1)
