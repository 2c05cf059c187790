"""Memory budgets by the engines' own rules.

Expected values by hand from sgl-project/sglang 0.5.10.post1 server_args.py (_handle_gpu_memory_settings, adjust_mem_fraction_for_vlm)
and vllm-project/vllm engine/arg_utils.py get_batch_defaults.
"""

from __future__ import annotations

import pytest

from pcie_sim import catalog
from pcie_sim.serving.memory import graph_max_batch, static_budget
from pcie_sim.specs.strategy import parse_strategy
from pcie_sim.strategies import resolve
from pcie_sim.units import MIB

GPU = catalog.load_gpu("rtx-pro-6000-blackwell-server")
TOTAL = 97887


def budget_mib(model: str, text: str, runtime: str = "sglang", **more: float) -> float:
    spec, engine = catalog.load_model_spec(model), catalog.load_runtime(runtime)
    resolved = resolve(parse_strategy(text), spec, engine, gpus=8)
    return static_budget(spec, GPU, engine, resolved, mem_fraction=more.get("mem_fraction")) / MIB


def test_sglang_tensor_parallel() -> None:
    """512 + 8192 x 1.5 + 512 x 2 + 8/8 x 1024 + 1536 MiB for piecewise graphs."""
    assert budget_mib("qwen3-235b-a22b", "tp8") == pytest.approx(TOTAL - (512 + 12288 + 1024 + 1024 + 1536))


def test_sglang_with_a_vision_tower() -> None:
    """No piecewise graphs, and 5 % less of what is left."""
    assert budget_mib("kimi-k2.6", "tp8") == pytest.approx((TOTAL - (512 + 12288 + 1024 + 1024)) * 0.95)


def test_sglang_pipeline() -> None:
    """tp below 4: largest graph 256; 8 ranks in all; no piecewise graphs."""
    assert budget_mib("qwen3-235b-a22b", "pp8") == pytest.approx(TOTAL - (512 + 12288 + 512 + 1024))


def test_sglang_attention_data_parallel() -> None:
    """Graphs of 512 for eight dp ranks: 3 MiB each, and 1.5 MiB more since 512 exceeds 300."""
    assert budget_mib("qwen3-235b-a22b", "dp8ep8") == pytest.approx(TOTAL - (512 + 12288 + 1024 + 1024 + 512 * 8 * 4.5))


def test_an_explicit_fraction_is_taken_as_it_is() -> None:
    assert budget_mib("kimi-k2.6", "tp8", mem_fraction=0.88) == pytest.approx(TOTAL * 0.88)


def test_vllm_pool_of_a_published_run() -> None:
    """K2.6, TP8, fp8 KV, utilization 0.94: 437,264 tokens of 61 x 576 B (local-inference-lab/rtx6kpro:models/kimi-k26.md)."""
    from pcie_sim.strategies import rank_weights

    spec, engine = catalog.load_model_spec("kimi-k2.6"), catalog.load_runtime("vllm")
    resolved = resolve(parse_strategy("tp8"), spec, engine, gpus=8)
    free = static_budget(spec, GPU, engine, resolved, mem_fraction=0.94) - rank_weights(spec, resolved, engine)[0]
    assert free / (61 * 576) == pytest.approx(437_264, rel=0.15)


def test_no_communicator_no_buffers() -> None:
    spec, engine = catalog.load_model_spec("llama-3.1-8b"), catalog.load_runtime("vllm")
    alone, pair = (
        static_budget(spec, GPU, engine, resolve(parse_strategy(text), spec, engine, gpus=8), mem_fraction=None) for text in ("tp1", "tp2")
    )
    wide = 8192 * 6 * spec.mlp.dense_intermediate / 2  # the MLP's activations are cut over tp
    assert alone + wide == pytest.approx(pair + engine.memory.ccl_buffers.value)


@pytest.mark.parametrize(("gpu", "tp", "expected"), [("rtx-4090", 2, 24), ("rtx-4090", 8, 80), ("l40s", 8, 160), ("h200-sxm", 2, 256)])
def test_largest_graph_by_memory(gpu: str, tp: int, expected: int) -> None:
    assert graph_max_batch(catalog.load_gpu(gpu), catalog.load_runtime("sglang"), tp) == expected


def test_vllm_caps_running_requests_by_memory() -> None:
    import pcie_sim as ps

    found = ps.compare("rtx-pro-6000-8x-2switch", model="qwen3-8b", strategies="tp8", concurrency=[1024, 1025], runtime="vllm", context=16)
    assert [point.running for point in found.points] == [1024, 1024]
    assert found.points[1].queued
