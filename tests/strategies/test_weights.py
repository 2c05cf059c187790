"""Weights and KV per rank.

Expected: 60 x 384 experts of 44.04 M weights at 4.5 bits = 570.8 GB; the MLA latent cache is 576 x 2 B a token and layer on every TP rank;
measured KV pool of vLLM TP8, K2.6, fp8 KV: 437,264 tokens x 61 x 576 B = 15.4 GB (local-inference-lab/rtx6kpro:models/kimi-k26.md).
"""

from __future__ import annotations

import numpy as np
import pytest

from pcie_sim import catalog
from pcie_sim.specs.strategy import parse_strategy
from pcie_sim.strategies import kv_bytes_per_request, rank_weights, resolve

SGLANG = catalog.load_runtime("sglang")


def weights(text: str, model: str = "kimi-k2.6", gpus: int = 8) -> tuple[float, ...]:
    spec = catalog.load_model_spec(model)
    return rank_weights(spec, resolve(parse_strategy(text), spec, SGLANG, gpus=gpus), SGLANG)


def kv(text: str, context: float, model: str = "kimi-k2.6") -> list[float]:
    text = "tp1" if text == "pp1" else text
    spec = catalog.load_model_spec(model)
    found = kv_bytes_per_request(spec, resolve(parse_strategy(text), spec, SGLANG, gpus=8), np.array([context]))
    return [float(stage[0]) for stage in found]


def test_k2_tp8_and_ep8_hold_the_same_bytes() -> None:
    """570.8 GB of experts over 8, about 23.4 GB of the rest over 8, plus the replicated down-projections and routers."""
    (tp8,), (ep8,) = weights("tp8"), weights("ep8")
    assert tp8 == pytest.approx(ep8, rel=1e-9)
    assert 74e9 < tp8 < 78e9


def test_one_rank_holds_the_whole_model() -> None:
    spec = catalog.load_model_spec("llama-3.1-8b")
    found = rank_weights(spec, resolve(parse_strategy("tp1"), spec, SGLANG, gpus=1), SGLANG)
    assert found == pytest.approx((8.03e9 * 2,), rel=0.01)  # 8.03 B parameters in bf16 (model card)


@pytest.mark.parametrize("model", ["kimi-k2.6", "qwen3-235b-a22b", "llama-3.1-70b", "deepseek-v3", "qwen3-next-80b"])
def test_pipeline_stages_add_up_to_the_model(model: str) -> None:
    whole = sum(weights("pp8", model))
    spec = catalog.load_model_spec(model)
    alone = rank_weights(spec, resolve(parse_strategy("tp1"), spec, SGLANG, gpus=8), SGLANG)[0]
    assert whole == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("model", ["kimi-k2.6", "qwen3-235b-a22b", "llama-3.1-70b", "deepseek-v3"])
@pytest.mark.parametrize("text", ["tp2", "tp4", "tp8", "tp4pp2"])
def test_ranks_together_hold_at_least_the_model(model: str, text: str) -> None:
    strategy = parse_strategy(text)
    assert strategy.tp * sum(weights(text, model)) >= sum(weights("pp8", model)) * (1 - 1e-12)


def test_attention_data_parallel_replicates_attention() -> None:
    (tp8,), (dp8,) = weights("tp8"), weights("dp8ep8")
    attention = 61 * 101.12e6 * 2  # 101.12 M a layer, bf16
    assert dp8 - tp8 == pytest.approx(attention * 7 / 8, rel=0.35)
    assert dp8 > tp8 + 8e9


def test_mla_cache_is_replicated_and_dcp_splits_it() -> None:
    assert kv("tp8", 1000)[0] == pytest.approx(61 * 576 * 2 * 1000)
    assert kv("tp8dcp8", 1000)[0] == pytest.approx(61 * 576 * 2 * 1000 / 8)
    assert sum(kv("pp8", 1000)) == pytest.approx(61 * 576 * 2 * 1000)


def test_gqa_cache_splits_until_heads_replicate() -> None:
    """Qwen3-235B: 94 layers, 4 KV heads of 128: 192,512 B a token on one GPU; TP8 keeps one head a rank: a quarter."""
    assert sum(kv("pp8", 1, "qwen3-235b-a22b")) == pytest.approx(192512)
    assert kv("tp4", 1, "qwen3-235b-a22b")[0] == pytest.approx(192512 / 4)
    assert kv("tp8", 1, "qwen3-235b-a22b")[0] == pytest.approx(192512 / 4)


def test_sliding_layers_stop_growing_and_linear_layers_keep_a_state() -> None:
    long, longer = kv("tp8", 10_000, "gpt-oss-120b")[0], kv("tp8", 20_000, "gpt-oss-120b")[0]
    full_layers = 18  # every second of 36
    assert longer - long == pytest.approx(10_000 * full_layers * 1 * 2 * 64 * 2)
    assert kv("tp8", 0, "qwen3-next-80b")[0] > 0


@pytest.mark.parametrize("model", catalog.names("models"))
@pytest.mark.parametrize("text", ["tp2", "tp4", "tp8", "tp8dcp2", "tp8dcp4", "tp8dcp8", "tp4dcp2", "tp4dcp4", "tp2pp4", "tp2dp4"])
def test_no_cached_token_is_lost(model: str, text: str) -> None:
    """Whatever is legal: the ranks of one dp rank together hold at least the whole KV cache of a request."""
    from pcie_sim.errors import InputError

    spec = catalog.load_model_spec(model)
    try:
        resolved = resolve(parse_strategy(text), spec, SGLANG, gpus=8)
    except InputError:
        return
    whole = sum(kv("pp1", 4096, model))
    held = resolved.strategy.tp * sum(float(stage[0]) for stage in kv_bytes_per_request(spec, resolved, np.array([4096.0])))
    assert held >= whole * (1 - 1e-12)
