"""Hugging Face config.json: small files of the same shape as the public ones; expected totals are the makers' published figures."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.importers import hf_config
from pcie_sim.importers.hf_fields import fit_every, fit_moe
from pcie_sim.importers.hf_patterns import NamePatterns, compile_expression
from pcie_sim.importers.imported import Imported, read_any
from pcie_sim.importers.source import source_of
from pcie_sim.specs.model import ModelSpec

COMMON: dict[str, Any] = {"transformers_version": "4.57.1", "torch_dtype": "bfloat16", "tie_word_embeddings": False}
LLAMA = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}
QWEN_MOE = {
    **COMMON,
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
DEEPSEEK = {
    **COMMON,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
KIMI_TEXT = {
    **{key: value for key, value in DEEPSEEK.items() if key not in ("quantization_config", "rope_scaling")},
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
    "top_k": 50,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "input_activations": None,
                "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True},
            }
        },
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    },
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": KIMI_TEXT,
    "vision_config": {
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "merge_kernel_size": [2, 2],
        "text_hidden_size": 7168,
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "vt_num_hidden_layers": 27,
    },
}
GPT_OSS = {
    **COMMON,
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    },
}
QWEN35 = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0.dev0",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "attn_output_gate": True,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "shared_expert_intermediate_size": 512,
        "mtp_num_hidden_layers": 1,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "in_channels": 3,
        "intermediate_size": 4304,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
LLAMA4 = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "transformers_version": "4.51.0",
    "text_config": {
        "model_type": "llama4_text",
        "torch_dtype": "bfloat16",
        "attention_chunk_size": 8192,
        "hidden_size": 5120,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 48,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "vocab_size": 202048,
        "max_position_embeddings": 1048576,
    },
}
MIMO = {
    **COMMON,
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "attention_chunk_size": 128,
    "hybrid_layer_pattern": [0] + [0 if i % 6 == 5 else 1 for i in range(1, 48)],
    "moe_layer_freq": [0] + [1] * 47,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "vocab_size": 152576,
    "max_position_embeddings": 262144,
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "ignored_layers": [f"model.layers.{i}.self_attn.o_proj" for i in range(48)],
    },
}
V4_FLASH = {
    **COMMON,
    "model_type": "deepseek_v4",
    "expert_dtype": "fp4",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": 1,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4, 0],
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def imported(config: object, name: str = "org--Some-Model.json") -> Imported:
    source = source_of(json.dumps(config, indent=1), name)
    assert hf_config.sniff(source) is not None
    return hf_config.read(source)


def model(config: object, name: str = "org--Some-Model.json") -> ModelSpec:
    found = imported(config, name).model
    assert found is not None
    return found


def changed(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    found = copy.deepcopy(config)
    inside = found.get("text_config", found)
    for key, value in keys.items():
        if value is ...:
            inside.pop(key, None)
        else:
            inside[key] = value
    return found


def assumed(found: Imported) -> str:
    return "\n".join(remark.text for remark in found.remarks if remark.kind == "assumed")


@pytest.mark.parametrize(
    ("config", "total_B", "active_B", "like"),
    [
        (LLAMA, 8.03, None, "llama-3.1-8b"),  # model card
        (QWEN_MOE, 235, 22, "qwen3-235b-a22b"),  # its name
        (DEEPSEEK, 671, 37, "deepseek-v3"),  # arXiv 2412.19437
        (KIMI, 1040, 32, "kimi-k2.5"),  # arXiv 2507.20534 (K2, the same backbone)
        (GPT_OSS, 116.8, 5.1, "gpt-oss-120b"),  # arXiv 2508.10925
        (QWEN35, 35, 3, "qwen3.5-35b"),  # its name
        (LLAMA4, 400, 17, "llama-4-maverick"),  # model card
        (MIMO, 309, 15, "mimo-v2-flash"),  # model card
    ],
)
def test_families_have_the_published_totals_and_the_catalogs_dimensions(
    config: dict[str, Any], total_B: float, active_B: float | None, like: str
) -> None:
    found, known = model(config), catalog.load_model_spec(like)
    assert found.total_params / 1e9 == pytest.approx(total_B, rel=0.02)
    if active_B is not None:
        assert found.active_params / 1e9 == pytest.approx(active_B, rel=0.08)  # published rounded, some without lm_head
    for name in ("hidden_size", "num_layers", "attention", "mlp", "vocab", "tie_embeddings", "max_position", "mtp_layers"):
        assert getattr(found, name) == getattr(known, name), name
    for part in ("experts", "linear", "attention_format", "attention_out_format", "shared_format", "lm_head", "embedding"):
        assert getattr(found.quantisation, part) == getattr(known.quantisation, part), part


def test_deepseek_v4_is_the_nearest_latent_attention_and_says_so() -> None:
    found = imported(V4_FLASH)
    assert found.model is not None
    assert found.model.total_params / 1e9 == pytest.approx(284, rel=0.02)  # the maker's 284B-A13B
    assert found.model.active_params / 1e9 == pytest.approx(13, rel=0.05)
    assert "compressed in 41 of 43 layers" in assumed(found)
    assert found.model.quantisation.experts.format == "mxfp4"
    assert found.model.quantisation.linear.format == "fp8_block"


def test_deepseek_v2_lite_has_no_query_rank() -> None:
    """deepseek-ai/DeepSeek-V2-Lite: 15.7e9 weights, 2.4e9 of them active (arXiv 2405.04434, its appendix)."""
    lite = {
        **COMMON,
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "vocab_size": 102400,
        "max_position_embeddings": 163840,
        "rope_scaling": {"factor": 40, "mscale": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
    }
    for config in (lite, {"model_type": "deepseek_vl_v2", "transformers_version": "4.38", "language_config": lite}):
        found = model(config)
        assert found.total_params / 1e9 == pytest.approx(15.7, rel=0.005)
        assert found.active_params / 1e9 == pytest.approx(2.4, rel=0.03)
        assert found.attention.kind == "mla"
        assert found.attention.q_lora_rank is None


def test_vision_tower_is_computed_and_said() -> None:
    """Catalog figures: 471e6 (Kimi K2.5), 446e6 (Qwen3.5-35B)."""
    for config, expected in ((KIMI, 471_000_000), (QWEN35, 446_000_000)):
        found = imported(config)
        assert found.model is not None
        assert found.model.extra_params == expected
        assert "vision tower" in assumed(found)
    bare = imported({**KIMI, "vision_config": {"model_type": "x"}})
    assert bare.model is not None
    assert bare.model.extra_params == 0
    assert any(remark.kind == "ignored" and "vision_config" in remark.text for remark in bare.remarks)


def test_what_the_class_fills_in_is_assumed() -> None:
    found = imported(changed(LLAMA, head_dim=..., tie_word_embeddings=..., torch_dtype=...))
    for part in ("no head_dim: hidden_size / heads = 128", "no tie_word_embeddings", "no torch_dtype"):
        assert part in assumed(found)
    assert model(changed(LLAMA, model_type="gemma2", tie_word_embeddings=..., head_dim=128)).tie_embeddings
    assert "reduced copy" in assumed(imported(changed(LLAMA, transformers_version=...)))
    assert assumed(imported(QWEN_MOE)) == ""


def test_a_name_that_promises_a_format_is_doubted() -> None:
    found = imported(LLAMA, "nvidia--Llama-3.1-8B-NVFP4.json")
    assert found.model is not None
    assert found.model.name == "llama-3.1-8b-nvfp4"
    assert "NVFP4" in assumed(found)


@pytest.mark.parametrize(
    ("path", "config", "name", "title"),
    [
        ("d/Qwen--Qwen3-8B.json", {}, "qwen3-8b", "Qwen/Qwen3-8B"),
        ("Qwen3-8B/config.json", {}, "qwen3-8b", "Qwen3-8B"),
        ("hub/models--Qwen--Qwen3-8B/snapshots/0123456789abcdef0123456789abcdef01234567/config.json", {}, "qwen3-8b", "Qwen/Qwen3-8B"),
        ("config.json", {"_name_or_path": "Qwen/Qwen3-8B"}, "qwen3-8b", "Qwen/Qwen3-8B"),
        ("config.json", {"_name_or_path": "/home/alice/work/Qwen3-8B/"}, "qwen3-8b", "Qwen3-8B"),
        ("/home/alice/config.json", {}, "model", "model"),
        ("<pasted>", {}, "model", "model"),
    ],
)
def test_names(path: str, config: dict[str, Any], name: str, title: str) -> None:
    found = imported({**QWEN_MOE, **config}, path)
    assert found.model is not None
    assert (found.model.name, found.model.title) == (name, title)
    assert "alice" not in repr(found.model)
    assert ("called 'model'" in assumed(found)) == (name == "model")


def test_moe_layer_rules() -> None:
    """The rules of the model classes in transformers, counted by hand on 8 layers."""
    small = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 1024, "intermediate_size": 512}
    base = changed(QWEN_MOE, **small)

    def moe(**keys: Any) -> list[int]:
        return [i for i, (_attention, mlp) in enumerate(model(changed(base, **keys)).layers) if mlp == "moe"]

    assert moe() == list(range(8))
    assert moe(decoder_sparse_step=2) == [1, 3, 5, 7]
    assert moe(mlp_only_layers=[0, 1, 2]) == [3, 4, 5, 6, 7]
    assert moe(first_k_dense_replace=1) == [1, 2, 3, 4, 5, 6, 7]
    assert moe(moe_layer_freq=[0, 0, 1, 1, 1, 1, 1, 1]) == [2, 3, 4, 5, 6, 7]
    assert moe(moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1, 1, 1]) == [1, 2, 3, 4, 5, 6, 7]  # two more belong to MTP
    assert moe(mlp_layer_types=["dense"] * 3 + ["sparse"] * 5) == [3, 4, 5, 6, 7]
    assert moe(interleave_moe_layer_step=4) == [3, 7]
    found = imported(changed(base, mlp_only_layers=[4]))
    assert found.model is not None
    assert "1 of 8 layers differ" in assumed(found)
    with pytest.raises(InputError, match=r"json:\d+: moe_layer_freq has 3 entries for 8 layers"):
        imported(changed(base, moe_layer_freq=[1, 1, 1]))
    with pytest.raises(InputError, match="no layer that uses them"):
        imported(changed(base, moe_layer_freq=[0] * 8))


def test_expert_spellings() -> None:
    hunyuan = changed(
        QWEN_MOE, model_type="hunyuan_v1_moe", num_experts=64, num_experts_per_tok=..., moe_topk=[8] * 94, num_shared_expert=[1] * 94
    )
    assert model(hunyuan).mlp.top_k == 8
    assert model(hunyuan).mlp.shared_experts == 1
    with pytest.raises(InputError, match="moe_topk differs from layer to layer"):
        imported(changed(hunyuan, moe_topk=[8] * 93 + [4]))
    assert model(KIMI).mlp.top_k == 8  # and not the sampling default 50 beside it
    only = imported(changed(QWEN_MOE, num_experts_per_tok=..., top_k=4))
    assert "sampling default" in assumed(only)
    qwen2_moe = model(changed(QWEN_MOE, shared_expert_intermediate_size=5632))
    assert (qwen2_moe.mlp.shared_experts, qwen2_moe.mlp.shared_intermediate) == (1, 5632)
    with pytest.raises(InputError, match="200 experts per token of 128"):
        imported(changed(QWEN_MOE, num_experts_per_tok=200))


def test_gemma_3_leaves_dimensions_to_its_class() -> None:
    """google/gemma-3-27b-it: 27.0e9 text weights, 423e6 of the vision tower (27.4e9 in all, its own report)."""
    text = {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    vision = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14}
    config = {
        "model_type": "gemma3",
        "transformers_version": "4.50.0",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
    }
    found = imported(config)
    assert found.model is not None
    assert found.model.total_params / 1e9 == pytest.approx(27.0, rel=0.02)
    assert found.model.tie_embeddings
    assert "vocab_size 262208" in assumed(found)
    with pytest.raises(InputError, match="no vocab_size"):
        imported({**config, "transformers_version": None, "text_config": {**text, "model_type": "other"}})


def test_dense_spellings() -> None:
    dbrx = {
        **COMMON,
        "model_type": "dbrx",
        "d_model": 6144,
        "n_layers": 40,
        "n_heads": 48,
        "vocab_size": 100352,
        "max_seq_len": 32768,
        "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }
    assert model(dbrx).total_params / 1e9 == pytest.approx(132, rel=0.02)  # DBRX's published 132B
    falcon = {
        **COMMON,
        "model_type": "falcon",
        "hidden_size": 8192,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
        "vocab_size": 65024,
        "tie_word_embeddings": True,
    }
    found = imported(falcon)
    assert found.model is not None
    assert found.model.total_params / 1e9 == pytest.approx(41.3, rel=0.02)  # Falcon-40B: 41.3e9 with its tied embedding
    assert "no gate" in assumed(found)
    params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "hidden_dim": 14336, "vocab_size": 32000}
    assert model(params, "mistral-7b/params.json").total_params / 1e9 == pytest.approx(7.24, rel=0.02)  # Mistral 7B


def test_windows() -> None:
    def sliding(**keys: Any) -> Any:
        attention = model(changed(LLAMA, head_dim=128, **keys)).attention
        return attention.sliding if attention.kind == "gqa" else None

    assert sliding() is None
    assert sliding(sliding_window=4096, use_sliding_window=False, max_window_layers=28) is None  # Qwen2.5
    assert sliding(sliding_window=131072) is None  # Phi-3.5-MoE: as wide as the context
    every = model(changed(LLAMA, head_dim=128, sliding_window=4096))  # Mistral 7B v0.1
    assert [kind for kind, _ in every.layers] == ["sliding"] * 32
    assert sliding(model_type="gemma2", sliding_window=4096).full_every == 2
    assert sliding(model_type="gemma3_text", sliding_window=1024, sliding_window_pattern=6).full_every == 6
    odd = imported(changed(LLAMA, head_dim=128, sliding_window=512, layer_types=["sliding_attention"] * 31 + ["full_attention"]))
    assert odd.model is not None
    assert [kind for kind, _ in odd.model.layers] == ["sliding"] * 31 + ["full"]
    uneven = ["full_attention" if i in (2, 3, 9) else "sliding_attention" for i in range(32)]
    assert "of 32 layers differ" in assumed(imported(changed(LLAMA, head_dim=128, sliding_window=512, layer_types=uneven)))


def test_linear_layers_that_are_not_spread_evenly_are_said() -> None:
    types = ["linear_attention"] * 30 + ["full_attention"] * 10
    found = imported(changed(QWEN35, layer_types=types))
    assert "10 full-attention layers are spread evenly" in assumed(found)


def test_yarn_reaches_further() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    found = imported(changed(QWEN_MOE, rope_scaling=scaling))  # Qwen3's own recipe for 131,072 tokens
    assert found.model is not None
    assert found.model.max_position == 131072
    assert any("YaRN" in remark.text for remark in found.remarks)


QUANTS: list[tuple[dict[str, Any], str, float, dict[str, str]]] = [
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 0.5 + 20 / 8 / 128, {}),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}, "int4", 0.5 + 20 / 8 / 128, {}),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", 1.0, {}),
    ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", 1.0, {}),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0, {}),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": False}, "int4", 0.5 + 4 / 64, {}),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4", 0.5625, {}),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": []}, "fp8", 1.0, {"lm_head": "fp8"}),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}, "exclude": []}, "mxfp4", 0.53125, {}),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            "ignore": ["lm_head", "re:.*self_attn.o_proj$"],
        },
        "nvfp4",
        0.5625,
        {"attention_out_format": "bf16"},
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
            "ignore": ["lm_head"],
        },
        "fp8",
        1.0,
        {},
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}},
                "b": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}},
            },
            "ignore": [],
        },
        "int4",
        0.5625,
        {"attention_format": "fp8", "attention_out_format": "fp8"},
    ),
]


@pytest.mark.parametrize(("block", "form", "size", "parts"), QUANTS, ids=lambda value: str(value)[:40])
def test_quantisation_blocks(block: dict[str, Any], form: str, size: float, parts: dict[str, str]) -> None:
    """Bytes per weight: bits and scales as each format stores them (AWQ and GPTQ with their zero points)."""
    quantisation = model({**LLAMA, "quantization_config": block}).quantisation
    assert quantisation.linear.format == form
    assert quantisation.linear.bytes_per_weight == pytest.approx(size)
    expected = {"attention_format": form, "attention_out_format": form, "lm_head": "bf16", "embedding": "bf16", **parts}
    assert {name: getattr(quantisation, name).format for name in expected} == expected


def test_exclusion_lists_decide_the_parts() -> None:
    wide = ["lm_head", "model.layers.0*"]
    wide += [f"model.layers.{i}.self_attn*" for i in range(1, 61)] + [f"model.layers.{i}.mlp.shared_experts*" for i in range(1, 61)]
    block = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [f"language_model.{name}" for name in wide]}
    config = {**KIMI, "text_config": {**KIMI_TEXT, "quantization_config": block}}
    found = model(config).quantisation
    assert found == catalog.load_model_spec("kimi-k2.6-nvfp4").quantisation
    router = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]}
    assert model({**QWEN_MOE, "quantization_config": router}).quantisation.experts.format == "fp8_block"  # gate is no gate_proj
    some = {"quant_method": "fp8", "modules_to_not_convert": [f"model.layers.{i}.self_attn" for i in range(5)]}
    mixed = imported({**LLAMA, "quantization_config": some})
    assert mixed.model is not None
    assert mixed.model.quantisation.attention_format.format == "fp8"
    assert "attention: 15 of 96 modules are stored otherwise" in assumed(mixed)


def test_a_quantisation_file_alone_is_no_model_and_goes_with_one() -> None:
    block = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8"}}
    block["quantization"]["exclude_modules"] = ["lm_head", *(f"model.layers.{i}.self_attn.q_proj" for i in range(32))]
    alone = imported(block, "hf_quant_config.json")
    assert alone.model is None
    assert "give the model's config.json" in alone.remarks[0].text
    both = hf_config.with_quantisation(model(LLAMA), alone)
    assert both.quantisation.linear.format == "nvfp4"
    assert both.quantisation.lm_head.format == "bf16"
    assert any("FP8 for its KV cache" in note for note in both.notes)
    assert any("attention: 32 of 96 modules" in note for note in both.notes)
    with pytest.raises(InputError, match="holds no quantisation"):
        hf_config.with_quantisation(model(LLAMA), imported(LLAMA))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30"}, "diffusers config"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 768}, "'bert' is no decoder"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["LlamaForSequenceClassification"], "model_type": "llama", "hidden_size": 64}, "no decoder language model"),
        ({"architectures": ["X"], "model_type": "y", "patch_size": 14, "image_size": 224, "hidden_size": 64}, "vision model"),
        ({"transformers_version": "4.5", "_from_model_config": True, "eos_token_id": 2}, "generation_config.json"),
        ({"peft_type": "LORA", "r": 16}, "adapter"),
        (changed(LLAMA, linear_attn_config={"num_heads": 4}), "linear_attn_config: Kimi delta attention"),
        (changed(LLAMA, hybrid_override_pattern="M-M*"), "Mamba"),
        (changed(LLAMA, attn_type_list=[0, 1] * 16), "lightning attention"),
        (changed(LLAMA, head_dim=128, layer_types=["mamba"] * 32), "layer_types: layer 0 is 'mamba'"),
        (changed(LLAMA, num_attention_heads=30, head_dim=128), "30 attention heads are not a multiple of 8"),
        (changed(LLAMA, hidden_size=4097), "not a multiple of 32 heads"),
        (changed(LLAMA, quantization_config={"quant_method": "aqlm"}), "'aqlm' is not read"),
        (changed(LLAMA, quantization_config={"quant_method": "gptq"}), "bits: expected 2 to 8"),
        (changed(LLAMA, quantization_config=[1]), "quantization_config: expected keys and values"),
        (changed(DEEPSEEK, q_lora_rank=...), "no q_lora_rank"),
        (changed(LLAMA, hidden_size=[4096]), r"json:\d+: hidden_size: expected a whole number, found a list"),
        (changed(LLAMA, vocab_size=[128256] * 32), r"json:\d+: vocab_size: expected a whole number, found a list"),
        (changed(LLAMA, num_attention_heads=[32]), r"json:\d+: num_attention_heads: expected a whole number, found a list"),
        (
            {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16},
            r"json:\d+: this architecture \('MambaForCausalLM'\) is not modelled",
        ),
        (
            {"architectures": ["Mamba2ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64},
            r"this architecture \('Mamba2ForCausalLM'\) is not modelled",
        ),
        ({"d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}}, r"this architecture \(state-space layers\) is not modelled"),
        ({"model_type": "rwkv", "hidden_size": 4096, "num_hidden_layers": 32}, r"this architecture \('rwkv'\) is not modelled"),
    ],
)
def test_refusals(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        imported(config, "x/config.json")
    assert str(caught.value).startswith("x/config.json")
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(InputError, match=f"no {key if key != 'intermediate_size' else 'intermediate_size_mlp'}"):
        imported(changed(LLAMA, **{key: ...}))
    with pytest.raises(InputError, match=rf"json:\d+: {key}: expected a whole number, found"):
        imported(changed(LLAMA, **{key: "4096"}))
    for wrong in (-1, 0, 10**9, 10**300, 1.5, True, {}, []):
        with pytest.raises(InputError):
            imported(changed(LLAMA, **{key: wrong}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": 64,\n "num_hidden_layers": 2,\n}', "c.json:3: broken JSON: a comma before the closing } is not JSON; remove it"),
        ('{"hidden_size": 64,\n "architectures": ["a",]}', "c.json:2: broken JSON: a comma before the closing ] is not JSON; remove it"),
        ('{"hidden_size": 64, // the width\n "num_hidden_layers": 2}', "c.json:1: broken JSON: a comment (//) is not JSON; remove it"),
        ('// mine\n{"hidden_size": 64}', "c.json:1: broken JSON: a comment (//) is not JSON; remove it"),
        ('{"hidden_size": 64,\n # no\n "num_hidden_layers": 2}', "c.json:2: broken JSON: a comment (#) is not JSON; remove it"),
        ('{"hidden_size": 64,\n "tie_word_embeddings": False}', "c.json:2: broken JSON: this looks like Python's spelling"),
        ('{"hidden_size": 64,\n ...\n}', "c.json:2: broken JSON: lines were left out of this copy"),
        ('{"hidden_size": 64,\n "layers": [1, 2', "c.json:2: broken JSON: the text ends before its brackets close"),
        ('{"hidden_size": 64\n "num_hidden_layers": 2}', "c.json:2: broken JSON: a comma is missing before"),
        ('{"a": 1,\n"hidden_size": ' + "9" * 100_000 + "}", "c.json:2: hidden_size: a number of more than 400 digits is not believed"),
        ('{"hidden_size":\n' + "[" * 99 + "]" * 99 + "}", "c.json:2: nested 100 levels deep, more than 50: no config.json is"),
        ('{"hidden_size":' + "[" * 5000 + "]" * 5000 + "}", "c.json:1: nested 5,001 levels deep, more than 50"),
        ('{"a":' * 1000 + '{"hidden_size":1}' + "}" * 1000, "c.json:1: nested 1,001 levels deep, more than 50"),
        ('{"hidden_size": 64, "x": "' + "\\\\" * 50_000 + '\\"', "c.json:1: broken JSON"),
        ('{"hidden_size": 1, "hidden_size": 2}', "c.json: duplicate key"),
    ],
    ids=range(15),
)
def test_broken_json_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_any(source_of(text, "c.json"))
    assert str(caught.value).startswith(message)
    assert "sys." not in str(caught.value)
    assert len(str(caught.value)) < 300


HOSTILE = [
    '{"hidden_size": NaN}',
    '{"hidden_size": 1e400, "num_hidden_layers": 2}',
    '{"hidden_size": ' + "9" * 6000 + "}",
    '{"hidden_size":' + "[" * 5000 + "]" * 5000 + "}",
    '{"text_config":' * 100 + "1" + "}" * 100,
    '{"hidden_size": 1, "hidden_size": 2}',
    '{"hidden_size": 4096, "num_hidden_layers"',
    '[{"hidden_size": 1}]',
    '{"architectures": 5, "text_config": {"text_config": {"text_config": {}}}}',
    '{"hidden_size": 64, "num_hidden_layers": -5}',
    '{"hidden_size": 64, "num_hidden_layers": 1e9}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        hf_config.read(source_of(text, "h.json"))


def test_hostile_patterns_take_no_time() -> None:
    """An expression that takes Python's re longer than the universe, thousands of patterns, and a model of 1000 layers."""
    bad = [
        "re:" + "(a*)*" * 20 + "b",
        "re:(.*)*x(.*)*y(.*)*z",
        "re:(((((((((((a)))))))))))",
        "re:(?=x)",
        "re:[",
        "re:" + ".*" * 190,
        "*a*" * 99,
    ]
    bad += [f"re:.*layers\\.{i}\\..*proj" for i in range(400)] + [f"model.layers.{i}*" for i in range(3000)]
    config = changed(LLAMA, num_hidden_layers=1000, head_dim=128, quantization_config={"quant_method": "fp8", "ignored_layers": bad})
    found = imported(config)
    assert found.model is not None
    assert "not understood" in assumed(found)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.3.mlp.gate_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.3.mlp.experts.0.gate_proj", False),
        ("re:.*\\.layers\\.(0|1)\\..*", "model.layers.1.self_attn.q_proj", True),
        ("re:.*\\.layers\\.(0|1)\\..*", "model.layers.11.self_attn.q_proj", False),
        ("re:.*lm_head", "lm_head", True),
        ("re:model\\.layers\\.[0-9]+\\.self_attn\\.[qk]_proj$", "model.layers.12.self_attn.k_proj", True),
        ("re:model\\.layers\\.\\d+\\.self_attn\\.[^qk]_proj", "model.layers.12.self_attn.k_proj", False),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.o_proj", True),
        ("model.layers.*.mlp", "model.layers.7.self_attn.o_proj", False),
        ("gate", "model.layers.0.mlp.gate_proj", False),
        ("self_attn", "model.layers.0.self_attn.q_proj", True),
        ("language_model.model.layers.5*", "model.layers.5.mlp.experts.0.up_proj", True),
        ("model.language_model.layers.5.mlp", "model.layers.5.mlp.up_proj", True),
    ],
)
def test_module_patterns(pattern: str, name: str, expected: bool) -> None:
    assert NamePatterns.of([pattern]).matches(name) is expected


@given(st.text(alphabet="ab|()*+?.[]\\^$-", max_size=12), st.text(alphabet="ab.", max_size=8))
def test_expressions_mean_what_pythons_mean(pattern: str, name: str) -> None:
    """Where both understand an expression, they agree (Python's re as the other program)."""
    compiled = compile_expression(pattern)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            other = re.compile(pattern)
        except re.error:
            return
    if compiled is not None and "$" not in pattern:
        assert bool(compiled.ends(name, frozenset({0}))) == (other.match(name) is not None)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_layer_fits_count_their_own_errors(marks: list[bool]) -> None:
    first, every, wrong = fit_every(marks)
    assert wrong == sum((i < first or (i + 1) % every == 0) != mark for i, mark in enumerate(marks))
    if any(marks):
        first, every, wrong = fit_moe(marks)
        assert wrong == sum((i >= first and (i + 1) % every == 0) != mark for i, mark in enumerate(marks))


@given(st.text())
def test_only_input_errors_leave_text(text: str) -> None:
    source = source_of("{" + text, "fuzz.json")
    hf_config.sniff(source)
    with contextlib.suppress(InputError):
        hf_config.read(source)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**9) | st.floats() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=6), inside, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([LLAMA, QWEN_MOE, DEEPSEEK, KIMI, GPT_OSS, QWEN35, LLAMA4, MIMO, V4_FLASH]), st.data())
def test_only_input_errors_leave_changed_configs(config: dict[str, Any], data: st.DataObject) -> None:
    changed_one = copy.deepcopy(config)
    inside = changed_one.get("text_config", changed_one)
    for key in data.draw(st.lists(st.sampled_from(sorted(inside)), max_size=3)):
        inside[key] = data.draw(VALUES)
    said = ""
    try:
        hf_config.read(source_of(json.dumps(changed_one), "fuzz.json"))
    except InputError as exc:
        said = str(exc)
    assert len(said.splitlines()) <= 2
