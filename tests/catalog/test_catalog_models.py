"""The shipped models against figures computed elsewhere from the same public configs, and against what their makers publish."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pcie_sim.catalog import load_model_spec, names
from pcie_sim.specs.model import ModelSpec


class Expected(NamedTuple):
    """Totals and active counts in 1e9, attention (mean over layers) and one expert in 1e6, KV bytes of a token in bf16, MoE layers."""

    total: float
    active: float
    attention: float
    expert: float | None
    kv: int
    moe_layers: int


# Worked out by a separate script from the config.json copies in ai-dynamo/aiconfigurator@095f58a (model_configs/) and
# wenhaochai/llm-architecture-lineage@45f0a97 (data/configs/), before this code existed. Exceptions, by hand from the same
# configs: mimo-v2-flash (9 full layers of 4096 x (64 x 192 + 4 x 320 + 64 x 128) and 39 sliding ones with 8 KV heads; kv
# 2 x 320 x (9 x 4 + 39 x 8)), and attention, expert and MoE layers of phi-3.5-moe and hunyuan-a13b (4096 x 4096 x 2.5; 3 x 4096 x width).
EXPECTED = {
    "kimi-k2": Expected(1026.41, 31.69, 101.12, 44.04, 70272, 60),
    "kimi-k2-thinking": Expected(1026.41, 31.69, 101.12, 44.04, 70272, 60),
    "kimi-k2.5": Expected(1026.41, 31.69, 101.12, 44.04, 70272, 60),
    "kimi-k2.6": Expected(1026.41, 31.69, 101.12, 44.04, 70272, 60),
    "kimi-k2.6-nvfp4": Expected(1026.41, 31.69, 101.12, 44.04, 70272, 60),
    "deepseek-v3": Expected(671.03, 36.63, 187.11, 44.04, 70272, 58),
    "deepseek-r1": Expected(671.03, 36.63, 187.11, 44.04, 70272, 58),
    "deepseek-v3.2": Expected(671.88, 37.48, 201.07, 44.04, 70272, 58),
    "glm-4.5-air": Expected(106.85, 12.8, 109.05, 17.302, 188416, 45),
    "glm-4.7": Expected(352.8, 32.85, 136.31, 23.593, 376832, 89),
    "glm-4.7-flash": Expected(29.94, 3.58, 21.76, 9.437, 54144, 46),
    "glm-5": Expected(743.91, 40.83, 174.39, 37.749, 89856, 75),
    "glm-5.2": Expected(743.91, 40.83, 174.39, 37.749, 89856, 75),
    "qwen3-235b-a22b": Expected(235.09, 21.57, 71.3, 18.874, 192512, 94),
    "qwen3-30b-a3b": Expected(30.53, 3.04, 18.87, 4.719, 98304, 48),
    "qwen3-coder-480b": Expected(480.15, 34.54, 163.58, 47.186, 253952, 62),
    "qwen3-next-80b": Expected(79.67, 3.56, 32.1, 3.146, 24576, 48),
    "qwen3.5-397b": Expected(396.35, 16.33, 114.72, 12.583, 30720, 60),
    "qwen3.5-122b": Expected(122.11, 9.01, 86.05, 9.437, 24576, 48),
    "qwen3.5-35b": Expected(34.66, 2.95, 32.1, 3.146, 20480, 40),
    "qwen3.5-27b": Expected(26.9, 25.62, 113.12, None, 65536, 0),
    "qwen3-32b": Expected(32.76, 31.98, 94.37, None, 262144, 0),
    "qwen3-8b": Expected(8.19, 7.57, 41.94, None, 147456, 0),
    "minimax-m2": Expected(228.69, 10.42, 44.04, 14.156, 253952, 62),
    "minimax-m2.5": Expected(228.69, 10.42, 44.04, 14.156, 253952, 62),
    "gpt-oss-120b": Expected(116.83, 5.13, 26.55, 24.892, 73728, 36),
    "gpt-oss-20b": Expected(20.91, 3.61, 26.55, 24.892, 49152, 24),
    "llama-3.1-8b": Expected(8.03, 7.5, 41.94, None, 131072, 0),
    "llama-3.1-70b": Expected(70.55, 69.5, 150.99, None, 327680, 0),
    "llama-3.1-405b": Expected(405.85, 403.75, 570.43, None, 516096, 0),
    "llama-4-scout": Expected(107.77, 16.14, 62.91, 125.829, 196608, 48),
    "llama-4-maverick": Expected(400.71, 16.15, 62.91, 125.829, 196608, 24),
    "mixtral-8x7b": Expected(46.7, 12.75, 41.94, 176.161, 131072, 32),
    "mixtral-8x22b": Expected(140.62, 38.96, 88.08, 301.99, 229376, 56),
    "mistral-large-3": Expected(673.42, 39.01, 187.11, 88.08, 70272, 58),
    "hy3-preview": Expected(295.03, 20.18, 75.5, 18.874, 327680, 79),
    "mimo-v2-flash": Expected(308.78, 14.82, 93.39, 25.166, 222720, 47),
    "phi-3.5-moe": Expected(41.87, 6.51, 41.94, 78.643, 131072, 32),
    "hunyuan-a13b": Expected(80.39, 12.74, 41.94, 37.749, 131072, 32),
}
# Fields of a model file that are words or carry their own source.
UNNUMBERED = {"schema_", "name", "title", "aliases", "published", "provenance", "notes"}


@pytest.fixture(params=sorted(EXPECTED))
def model(request: pytest.FixtureRequest) -> ModelSpec:
    return load_model_spec(request.param)


def test_the_table_covers_the_catalog() -> None:
    assert set(names("models")) == set(EXPECTED)


def test_computed_counts(model: ModelSpec) -> None:
    expected = EXPECTED[model.name]
    attention = sum(model.attention_params(kind) for kind, _ in model.layers) / model.num_layers
    assert model.total_params / 1e9 == pytest.approx(expected.total, rel=0.002)
    assert model.active_params / 1e9 == pytest.approx(expected.active, rel=0.003)
    assert attention / 1e6 == pytest.approx(expected.attention, rel=0.001)
    assert sum(model.kv_elements_per_token(kind) for kind, _ in model.layers) * 2 == expected.kv
    assert model.count_layers("moe") == expected.moe_layers
    if expected.expert is None:
        assert not model.is_moe
    else:
        assert model.expert_params / 1e6 == pytest.approx(expected.expert, rel=0.001)


def test_published_total_within_two_percent(model: ModelSpec) -> None:
    assert model.published is not None
    assert model.published.total_B is not None
    assert model.total_params / 1e9 == pytest.approx(model.published.total_B, rel=0.02)


def test_published_active(model: ModelSpec) -> None:
    """Makers count with or without lm_head and embedding, and round to whole billions: one of the three conventions fits."""
    assert model.published is not None
    assert model.published.active_B is not None
    published = model.published.active_B
    vocabulary = model.vocab * model.hidden_size / 1e9
    active = model.active_params / 1e9
    slack = max(0.02 * published, 0.5 if published == int(published) else 0.05)
    vision = model.extra_params / 1e9 if model.name == "mistral-large-3" else 0.0  # "675B / 41B include the vision encoder"
    assert min(abs(active + vision + shift - published) for shift in (0.0, vocabulary, -vocabulary)) <= slack + 1e-9


def test_every_number_has_a_source(model: ModelSpec) -> None:
    covered = {field for entry in model.provenance for field in entry.fields}
    numbered = model.model_fields_set - UNNUMBERED
    assert numbered <= covered, f"without provenance: {numbered - covered}"
    assert covered <= numbered, f"provenance of absent fields: {covered - numbered}"
    assert sum(len(entry.fields) for entry in model.provenance) == len(covered), "a field with two sources"
    assert all(entry.source.strip() for entry in model.provenance)
    assert {"quantisation", "kv_bytes_per_element"} <= numbered


@pytest.mark.parametrize("name", ["kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6"])
def test_kimi_int4_is_of_the_routed_experts_only(name: str) -> None:
    # compressed-tensors pack-quantized, 4 bit, group 32, bf16 scale: 4.5 bits; the rest is on the ignore list
    formats = load_model_spec(name).quantisation
    assert formats.experts.bytes_per_weight * 8 == 4.5
    assert {formats.linear.bits, formats.attention_format.bits, formats.shared_format.bits, formats.lm_head.bits} == {16}


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("kimi-k2.6-nvfp4", 4.5),  # group 16, fp8 scale
        ("gpt-oss-120b", 4.25),  # group 32, 8-bit scale
        ("gpt-oss-20b", 4.25),
        ("deepseek-v3", 8 + 32 / 16384),  # one fp32 scale per 128 x 128 block
        ("minimax-m2", 8 + 32 / 16384),
        ("kimi-k2", 8 + 32 / 16384),
        ("glm-4.7", 8.0),
        ("qwen3-32b", 16.0),
    ],
)
def test_expert_format(name: str, bits: float) -> None:
    assert load_model_spec(name).quantisation.experts.bytes_per_weight * 8 == pytest.approx(bits, rel=1e-12)


def test_fp8_block_models_quantise_attention_and_shared_experts_but_not_lm_head() -> None:
    formats = load_model_spec("deepseek-v3").quantisation
    assert (formats.attention_format.bits, formats.shared_format.bits, formats.lm_head.bits, formats.embedding.bits) == (8, 8, 16, 16)


def test_mimo_keeps_the_output_projection_in_bf16() -> None:
    formats = load_model_spec("mimo-v2-flash").quantisation
    assert (formats.attention_format.bits, formats.attention_out_format.bits) == (8, 16)


def test_layer_order_of_the_hybrids() -> None:
    # layer_types of openai/gpt-oss-120b; hybrid_layer_pattern of MiMo-V2-Flash; full_attention_interval 4 of Qwen3-Next;
    # no_rope_layers and moe_layers of Llama 4 Maverick
    def full(name: str) -> list[int]:
        return [index for index, (kind, _) in enumerate(load_model_spec(name).layers) if kind == "full"]

    assert full("gpt-oss-120b") == list(range(1, 36, 2))
    assert full("mimo-v2-flash") == [0, 5, 11, 17, 23, 29, 35, 41, 47]
    assert full("qwen3-next-80b") == list(range(3, 48, 4))
    assert full("qwen3.5-27b") == list(range(3, 64, 4))
    assert full("llama-4-maverick") == list(range(3, 48, 4))
    maverick = load_model_spec("llama-4-maverick")
    assert [index for index, (_, kind) in enumerate(maverick.layers) if kind == "moe"] == list(range(1, 48, 2))
    assert [kind for _, kind in load_model_spec("deepseek-v3").layers] == ["dense"] * 3 + ["moe"] * 58


def test_sliding_layers_of_mimo_have_more_kv_heads() -> None:
    mimo = load_model_spec("mimo-v2-flash")
    assert mimo.kv_elements_per_token("sliding") == 2 * mimo.kv_elements_per_token("full") == 8 * (192 + 128)


def test_vision_towers_are_about_what_the_totals_leave_open() -> None:
    # the card of Mistral Large 3 gives a 2.5B vision encoder; Kimi K2.5 about 0.4B without its projector
    assert load_model_spec("mistral-large-3").extra_params == pytest.approx(2.5e9, rel=0.05)
    assert 0.4e9 <= load_model_spec("kimi-k2.6").extra_params <= 0.5e9
