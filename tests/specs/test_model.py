"""What a model file may not say, and that the complaint names file, line and key."""

from __future__ import annotations

import pytest

from pcie_sim.errors import InputError
from pcie_sim.specs.base import build
from pcie_sim.specs.loader import parse_yaml
from pcie_sim.specs.model import ModelSpec

MODEL = """schema: pcie-sim/model/1
name: tiny
title: a test
hidden_size: 64
num_layers: 4
attention: {kind: gqa, heads: 8, kv_heads: 2, head_dim: 8}
mlp: {moe_intermediate: 32, experts: 8, top_k: 2}
vocab: 100
quantisation: {method: none}
provenance:
  - {fields: [hidden_size], source: a test, evidence: assumed}
"""


def read(text: str) -> ModelSpec:
    return build(ModelSpec, parse_yaml(text, source="tiny.yaml"), source="tiny.yaml", text=text)


def changed(old: str, new: str) -> str:
    assert old in MODEL
    return MODEL.replace(old, new)


def test_counts_by_hand() -> None:
    model = read(MODEL)
    attention = 64 * 64 + 2 * 64 * 16 + 64 * 64
    expert, router = 3 * 64 * 32, 64 * 8
    assert model.total_params == 4 * (attention + 8 * expert + router) + 2 * 100 * 64
    assert model.active_params == 4 * (attention + 2 * expert + router) + 100 * 64
    assert model.kv_bytes_per_token == 4 * 2 * 16 * 2


def test_tied_embeddings_count_once() -> None:
    assert read(MODEL).total_params - read(changed("vocab: 100", "vocab: 100\ntie_embeddings: true")).total_params == 6400


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kv_heads: 2", "kv_heads: 3", r"tiny\.yaml:6: attention: heads must be a multiple of kv_heads \(8 and 3\)"),
        ("kind: gqa, ", "", r"tiny\.yaml:6: attention: "),
        ("kind: gqa", "kind: mha", r"tiny\.yaml:6: attention: .*'mha'"),
        ("heads: 8, ", "", r"tiny\.yaml:6: attention\.heads: required key is missing"),
        ("head_dim: 8", "head_dim: 8, colour: red", r"tiny\.yaml:6: attention\.colour: unknown key"),
        ("head_dim: 8", "head_dim: 0", r"tiny\.yaml:6: attention\.head_dim: .*must be 1 or more"),
        ("head_dim: 8", "head_dim: 8, full_layers: 2", r"tiny\.yaml:6: attention: linear and full_layers go together"),
        ("head_dim: 8", "head_dim: 8, sliding: {window: 4, full_every: 2, kv_heads: 3}", r"tiny\.yaml:6: attention: .*\(8 and 3\)"),
        ("head_dim: 8", "head_dim: 8, sliding: {window: 4, full_every: 1}", r"tiny\.yaml:6: attention\.sliding\.full_every: "),
        ("top_k: 2", "top_k: 9", r"tiny\.yaml:7: mlp: .*1 <= top_k <= experts"),
        ("experts: 8, top_k: 2", "shared_experts: 0", r"tiny\.yaml:7: mlp: a dense model needs dense_intermediate"),
        ("top_k: 2", "top_k: 2, first_k_dense: 1", r"tiny\.yaml:7: mlp: its dense layers need dense_intermediate"),
        ("top_k: 2", "top_k: 2, shared_experts: 1", r"tiny\.yaml:7: mlp: shared_experts and shared_intermediate go together"),
        ("vocab: 100\n", "", r"tiny\.yaml.*: vocab: required key is missing"),
        ("hidden_size: 64", "hidden_size: many", r"tiny\.yaml:4: hidden_size: .*expected a whole number"),
        ("evidence: assumed", "evidence: guessed", r"tiny\.yaml:11: provenance\.0\.evidence: .*found 'guessed'"),
        ("pcie-sim/model/1", "pcie-sim/model/2", r"tiny\.yaml:1: schema: .*found 'pcie-sim/model/2'"),
        ("name: tiny", "name: ../tiny", r"tiny\.yaml:2: name: "),
    ],
)
def test_complaints_name_file_line_and_key(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(changed(old, new))
    assert len(str(caught.value).splitlines()) == 1
    assert "gqa." not in str(caught.value)


def test_full_layers_beyond_the_model() -> None:
    linear = "linear: {key_heads: 2, value_heads: 2, key_head_dim: 8, value_head_dim: 8, conv_kernel: 4}"
    with pytest.raises(InputError, match=r"tiny\.yaml:6: attention: full_layers is more than num_layers"):
        read(changed("head_dim: 8", f"head_dim: 8, full_layers: 5, {linear}"))
    assert read(changed("head_dim: 8", f"head_dim: 8, full_layers: 2, {linear}")).count_layers("linear") == 2


def test_not_a_mapping() -> None:
    with pytest.raises(InputError, match=r"tiny\.yaml: expected keys and values \(a mapping\), found a list"):
        read("- 1\n")
