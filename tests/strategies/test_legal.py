"""What an engine would refuse, and the nearest form it would run."""

from __future__ import annotations

import pytest

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.strategy import parse_strategy
from pcie_sim.strategies import pipeline_split, resolve


def legal(text: str, model: str = "kimi-k2.6", runtime: str = "sglang", gpus: int = 8, **more: object):  # type: ignore[no-untyped-def]
    return resolve(parse_strategy(text), catalog.load_model_spec(model), catalog.load_runtime(runtime), gpus=gpus, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "model", "gpus", "word"),
    [
        ("tp16", "kimi-k2.6", 8, "tp8"),
        ("tp8pp2", "kimi-k2.6", 8, "tp4pp2"),
        ("4xtp4", "kimi-k2.6", 8, "tp2"),
        ("tp8", "kimi-k2.6", 6, "tp4"),
        ("pp8", "kimi-k2.6", 4, "pp4"),
        ("ep16", "kimi-k2.6", 8, "tp8ep8"),
        ("tp3", "kimi-k2.6", 8, "tp2"),
        ("tp8", "glm-4.7-flash", 8, "tp5"),
        ("tp4ep4", "llama-3.1-70b", 8, "tp4"),
        ("ep8:a2a", "llama-3.1-70b", 8, "dp8"),
        ("tp8ep4:a2a", "kimi-k2.6", 8, "tp8ep8:a2a"),
        ("tp8", "minimax-m2.5", 8, "tp8ep2"),
        ("pp8:a2a", "kimi-k2.6", 8, "pp8"),
        ("tp8dcp8", "llama-3.1-70b", 8, "use tp8"),  # 8 KV heads over 8 ranks: nothing is held twice
        ("tp8dcp4", "qwen3-235b-a22b", 8, "use tp8dcp2"),  # 4 KV heads: two copies of each
        ("pp8", "tiny", 8, "layers"),
    ],
)
def test_refusals_name_the_nearest_legal_form(text: str, model: str, gpus: int, word: str) -> None:
    if model == "tiny":
        spec = catalog.load_model_spec("llama-3.1-8b").model_copy(update={"num_layers": 4})
        with pytest.raises(InputError, match=word):
            resolve(parse_strategy(text), spec, catalog.load_runtime("sglang"), gpus=gpus)
        return
    with pytest.raises(InputError) as caught:
        legal(text, model, gpus=gpus)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_named_form_is_itself_legal() -> None:
    for text, model, gpus in (("tp16", "kimi-k2.6", 8), ("tp8", "glm-4.7-flash", 8), ("tp8", "minimax-m2.5", 8), ("ep16", "kimi-k2.6", 8)):
        with pytest.raises(InputError) as caught:
            legal(text, model, gpus=gpus)
        better = str(caught.value).split("use ")[-1].split("nearest: ")[-1]
        assert legal(better, model, gpus=gpus).strategy.world <= gpus


def test_fp8_block_width_that_the_engine_refuses() -> None:
    """MiniMax M2.5: 1536 wide over 8 ranks is 192, not a multiple of 128 (sgl-project/sglang FusedMoE; its recipe uses ep8)."""
    with pytest.raises(InputError, match="128"):
        legal("tp8", "minimax-m2.5")
    assert legal("ep8", "minimax-m2.5").moe_comm == "allreduce"


def test_bf16_experts_of_odd_width_are_padded_not_refused() -> None:
    found = legal("tp8", "gpt-oss-120b")  # 2880 over 8 = 360
    assert found.strategy.expert_tp == 8
    assert legal("tp8", "qwen3-30b-a3b").moe_comm == "allreduce"  # 768 over 8 = 96


@pytest.mark.parametrize(
    ("text", "runtime", "comm"),
    [
        ("tp8", "sglang", "allreduce"),
        ("ep8", "sglang", "allreduce"),
        ("ep8", "vllm", "allreduce"),
        ("dp8ep8", "sglang", "ag_rs"),
        ("dp8ep8", "vllm", "ag_rs"),
        ("ep8:a2a", "sglang", "a2a"),
        ("pp8", "sglang", None),
    ],
)
def test_moe_exchange_without_a_suffix_is_the_runtimes_own(text: str, runtime: str, comm: str | None) -> None:
    """sglang: moe_a2a_backend none; vLLM: use_all2all_kernels only with data parallelism, default allgather_reducescatter."""
    assert legal(text, runtime=runtime).moe_comm == comm


def test_pipeline_splits() -> None:
    """SGLang 0.5.10 get_pp_indices: the last `remainder` stages take one more; --pp-layers overrides."""
    assert legal("pp8").stage_layers == (7, 7, 7, 8, 8, 8, 8, 8)
    assert legal("pp8", pp_layers=(8, 8, 8, 8, 8, 7, 7, 7)).stage_layers == (8, 8, 8, 8, 8, 7, 7, 7)
    with pytest.raises(InputError, match="add up to 60"):
        legal("pp8", pp_layers=(8, 8, 8, 8, 8, 7, 7, 6))
    with pytest.raises(InputError, match="names 2 stages"):
        legal("pp8", pp_layers=(30, 31))


@pytest.mark.parametrize("rule", ["first", "middle", "last"])
@pytest.mark.parametrize("layers", [8, 61, 80, 94])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
def test_every_split_is_even_to_one_layer(rule: str, layers: int, stages: int) -> None:
    parts = pipeline_split(layers, stages, rule)
    assert sum(parts) == layers
    assert max(parts) - min(parts) <= 1


def test_fewer_ranks_than_gpus_are_said() -> None:
    assert legal("tp4").gpus_idle == 4
    assert any("4 stay idle" in note for note in legal("tp4").notes)


def test_decode_context_parallel_splits_only_what_is_replicated() -> None:
    """vLLM: tp must exceed the KV heads; MLA's latent cache is replicated on every rank."""
    assert legal("tp8dcp2", "qwen3-235b-a22b").strategy.dcp == 2
    assert legal("tp8dcp8").strategy.dcp == 8
    assert any("0.5.10 has no decode context" in note for note in legal("tp8dcp8").notes)
    assert not legal("tp8dcp8", runtime="vllm").notes
