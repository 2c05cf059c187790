"""Names, paths and path objects -> boxes, models, GPUs; and questions that are asked wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.catalog.lookup import file_of
from pcie_sim.specs.loader import load_yaml


def model_text() -> str:
    return file_of("models", "qwen3-8b").read_text(encoding="utf-8")


def test_a_model_by_name_by_path_and_as_json(tmp_path: Path) -> None:
    shipped = ps.load_model("qwen3-8b")
    (tmp_path / "mine.yaml").write_text(model_text(), encoding="utf-8")
    (tmp_path / "mine.json").write_text(json.dumps(load_yaml(tmp_path / "mine.yaml")), encoding="utf-8")
    for where in (tmp_path / "mine.yaml", str(tmp_path / "mine.yaml"), tmp_path / "mine.json"):
        assert ps.load_model(where) == shipped


def test_a_path_object_is_always_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ps.InputError, match=r"qwen3-8b: no such file$"):
        ps.load_model(Path("qwen3-8b"))
    Path("qwen3-8b").write_text(model_text(), encoding="utf-8")
    assert ps.load_model(Path("qwen3-8b")).name == "qwen3-8b"
    with pytest.raises(ps.InputError, match=r"rtx-pro-6000-8x-2switch: no such file$"):
        ps.load_topology(Path("rtx-pro-6000-8x-2switch"))


def test_a_box_from_its_file() -> None:
    name = catalog.topology_names()[0]
    assert ps.load_topology(catalog.shipped_topology(name)).name == name
    assert ps.load_topology(name.upper()).name == name


def test_a_hugging_face_config_is_told_from_a_broken_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096}', encoding="utf-8")
    with pytest.raises(ps.InputError, match=r"config\.json: no num_hidden_layers"):
        ps.load_model(config)
    config.write_text('{"name": "mine", "schema": "pcie-sim/model/1", "hidden_size": 4096}', encoding="utf-8")
    with pytest.raises(ps.InputError, match=r"config\.json:1: title: required key is missing"):
        ps.load_model(config)
    config.write_text("[]", encoding="utf-8")
    with pytest.raises(ps.InputError, match=r"config\.json:1: no known format begins like '\[\]'"):
        ps.load_model(config)
    (tmp_path / "broken.yaml").write_text("hidden_size: 4096\n", encoding="utf-8")
    with pytest.raises(ps.InputError, match=r"broken\.yaml.*: schema: required key is missing"):
        ps.load_model(tmp_path / "broken.yaml")


@pytest.mark.parametrize("load", [ps.load_model, ps.load_topology, ps.load_gpu])
@pytest.mark.parametrize("wrong", [None, "", "  ", 5, b"qwen3-8b", ["qwen3-8b"]])
def test_neither_a_name_nor_a_path(load: Any, wrong: object) -> None:
    with pytest.raises(ps.InputError, match=r"^((model|topology): give a name or a path|GPU: give a name), not "):
        load(wrong)


@pytest.mark.parametrize(
    ("load", "asked", "near", "command"),
    [
        (ps.load_model, "kimi-k26", "kimi-k2.6", "pcie-sim model list"),
        (ps.load_topology, "rtx-pro-6000-8x-2swich", "rtx-pro-6000-8x-2switch", "pcie-sim topology list"),
        (ps.load_gpu, "l40ss", "l40s", "pcie-sim gpu list"),
    ],
)
def test_unknown_names(load: Any, asked: str, near: str, command: str) -> None:
    with pytest.raises(ps.InputError, match=rf"^unknown \w+ '{asked}'; nearest: .*{near}.* \(all: {command}\)$"):
        load(asked)


BOX = "rtx-pro-6000-8x-2switch"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"strategies": ""}, "strategies: none is given; write a list like tp8,pp8"),
        ({"strategies": "tp8,,pp8"}, "strategies 'tp8,,pp8': an entry is empty"),
        ({"strategies": "tp8,"}, "strategies 'tp8,': an entry is empty"),
        ({"strategies": []}, "strategies: none is given"),
        ({"strategies": [f"tp{number}" for number in range(1, 80)]}, "strategies: at most 64"),
        ({"strategies": "tp16"}, "needs 16 GPUs, the box has 8; nearest: tp8"),
        ({"concurrency": 0}, "concurrency 0 is out of range"),
        ({"context": "x"}, "context 'x' is not a whole number"),
        ({"runtime": "sglangg"}, "unknown runtime 'sglangg'; nearest: sglang"),
        ({"popularity": "flat"}, "popularity 'flat' is not understood"),
        ({"launch": "slow"}, "launch 'slow' is not known"),
        ({"nccl": "new"}, "version"),
        ({"p2p": "maybe"}, "p2p"),
        ({"model": "gpt-9"}, "unknown model"),
    ],
)
def test_questions_asked_wrongly(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ps.InputError, match=match) as caught:
        ps.compare(BOX, **{"model": "kimi-k2.6", **arguments})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("arguments", [{"concurrency": [1, 2]}, {"context": "1024,2048"}])
def test_predict_takes_one_point(arguments: dict[str, Any]) -> None:
    with pytest.raises(ps.InputError, match=rf"predict takes one {next(iter(arguments))}, got 2; compare takes lists"):
        ps.predict(BOX, model="kimi-k2.6", strategy="tp8", **arguments)


@pytest.mark.parametrize("strategy", [None, "", "tp8,pp8", 8])
def test_predict_takes_one_strategy(strategy: Any) -> None:
    with pytest.raises(ps.InputError, match="strategy"):
        ps.predict(BOX, model="kimi-k2.6", strategy=strategy)


@pytest.mark.parametrize(
    ("op", "size", "more", "match"),
    [
        ("all_reduce", "14 potatoes", {}, "size '14 potatoes' has an unknown unit"),
        ("all_reduce", None, {}, "size None is not understood"),
        ("all_reduce", "-5", {}, "size '-5' is not understood"),
        ("all_reduce", "1KiB", {"launch": "slow"}, "launch 'slow' is not known"),
        ("all_reducee", "1KiB", {}, "all_reduce"),
        ("all_reduce", "1KiB", {"ranks": 1}, "rank"),
        ("all_reduce", "1KiB", {"ranks": 9}, "rank|GPU"),
        ("all_reduce", "1KiB", {"engine": "magic"}, "engine"),
    ],
)
def test_collectives_asked_wrongly(op: str, size: Any, more: dict[str, Any], match: str) -> None:
    with pytest.raises(ps.InputError, match=match):
        ps.collective(BOX, op, size, **more)


def test_flows_from_data_and_from_a_file(tmp_path: Path) -> None:
    data = {"cases": [{"id": "a", "links": {"l": 1e9}, "routes": {"x>y": ["l"]}, "flows": [[0.0, "x", "y", 1e9], [0.0, "x", "y", 1e9]]}]}
    (tmp_path / "flows.json").write_text(json.dumps(data), encoding="utf-8")
    for source in (data, tmp_path / "flows.json", str(tmp_path / "flows.json")):
        assert ps.flows(source).cases[0].finish == pytest.approx((2.0, 2.0))  # two equal flows share one link


def test_the_defaults_leave_out_what_the_engine_would_refuse() -> None:
    found = ps.compare(BOX, model="qwen3-8b", concurrency=1).strategies
    assert "tp8" in found
    assert not [name for name in found if name.startswith("ep")]
    with_experts = ps.compare(BOX, model="kimi-k2.6", concurrency=1).strategies
    assert with_experts == ("tp8", "pp8", "ep8", "ep8:a2a", "tp4pp2", "2xtp4")
