"""Measurement files: what a row must name, what is refused, and the shipped sets with their index."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.base import build
from pcie_sim.specs.loader import load_yaml, parse_yaml, read_text
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.specs.strategy import parse_strategy

SET = """schema: pcie-sim/measurement/1
id: tiny
kind: serving
use: score
sources: [a test]
machine: {topology: null, gpus: 8}
arms:
  tp8: {model: kimi-k2.6, strategy: tp8}
rows:
  - {arm: tp8, concurrency: 1, metric: output_tokens_per_s, value: 26, unit: tok/s, quality: good}
  - {arm: tp8, concurrency: null, metric: output_tokens_per_s, value: 808, unit: tok/s, quality: doubtful}
"""
COLLECTIVE = """schema: pcie-sim/measurement/1
id: tiny
kind: collective
use: calibrate
sources: [a test]
machine: {topology: null, gpus: 8}
rows:
  - {op: all_reduce, ranks: 8, bytes: 16384, launch: graph, in_place: true, metric: time, value: 27.0, unit: us, quality: good}
"""


def read(text: str) -> MeasurementSet:
    return build(MeasurementSet, parse_yaml(text, source="m.yaml"), source="m.yaml", text=text)


def test_sound_sets() -> None:
    serving = read(SET)
    assert serving.rows[1].concurrency is None
    assert serving.software.ccl.version is None
    assert read(COLLECTIVE).rows[0].bytes == 16384


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{arm: tp8, concurrency: 1,", "{arm: tp9, concurrency: 1,", r"m\.yaml:10: rows\.0: arm 'tp9' is not among arms \(tp8\)"),
        ("{arm: tp8, concurrency: null", "{concurrency: null", r"m\.yaml:11: rows\.1: a serving row needs an arm"),
        ("concurrency: 1,", "concurrency: 0,", r"m\.yaml:10: rows\.0\.concurrency: .*must be more than 0"),
        ("value: 808", "value: 0", r"m\.yaml:11: rows\.1\.value: .*must be more than 0"),
        ("value: 808", "value: .nan", r"m\.yaml:11: rows\.1\.value: "),
        ("value: 808", "value: fast", r"m\.yaml:11: rows\.1\.value: .*found 'fast'"),
        ("quality: doubtful", "quality: ok", r"m\.yaml:11: rows\.1\.quality: .*found 'ok'"),
        ("value: 26, unit: tok/s", "value: 26", r"m\.yaml:10: rows\.0\.unit: required key is missing"),
        ("metric: output_tokens_per_s, value: 26", "metric: speed, value: 26", r"m\.yaml:10: rows\.0\.metric: .*found 'speed'"),
        ("value: 26,", "value: 26, colour: red,", r"m\.yaml:10: rows\.0\.colour: unknown key"),
        ("sources: [a test]", "sources: []", r"m\.yaml:5: sources: "),
        ("gpus: 8", "gpus: 0", r"m\.yaml:6: machine\.gpus: "),
        ("gpus: 8", "gpus: 8, gpu: a/b", r"m\.yaml:6: machine\.gpu: "),
        ("strategy: tp8", "strategy: [tp8]", r"m\.yaml:8: arms\.tp8\.strategy: .*found a list"),
        ("kind: serving", "kind: benchmark", r"m\.yaml:3: kind: .*found 'benchmark'"),
        ("use: score", "use: none", r"m\.yaml:4: use: "),
        ("kind: serving", "kind: collective", r"m\.yaml:10: rows\.0: a collective row needs op, ranks and bytes"),
    ],
)
def test_bad_serving_sets(old: str, new: str, message: str) -> None:
    assert SET.count(old) == 1
    with pytest.raises(InputError, match=f"^{message}"):
        read(SET.replace(old, new))


@pytest.mark.parametrize("gone", ["op: all_reduce, ", "ranks: 8, ", "bytes: 16384, "])
def test_a_collective_row_needs_op_ranks_and_bytes(gone: str) -> None:
    with pytest.raises(InputError, match=r"^m\.yaml:8: rows\.0: a collective row needs op, ranks and bytes$"):
        read(COLLECTIVE.replace(gone, ""))


@pytest.mark.parametrize(
    ("old", "new"),
    [("ranks: 8", "ranks: 0"), ("bytes: 16384", "bytes: -1"), ("bytes: 16384", "bytes: 16KiB"), ("launch: graph", "launch: fast")],
)
def test_bad_collective_rows(old: str, new: str) -> None:
    with pytest.raises(InputError, match=rf"^m\.yaml:8: rows\.0\.{old.partition(':')[0]}: "):
        read(COLLECTIVE.replace(old, new))


def test_no_rows() -> None:
    with pytest.raises(InputError, match=r"rows: .*at least 1 entry"):
        read(COLLECTIVE[: COLLECTIVE.index("rows:")] + "rows: []\n")


# -- what is shipped --------------------------------------------------------------------------------------------------

ROOT = catalog.shipped_dir("validation")
FILES = sorted(path for path in ROOT.glob("*/*.yaml"))


def test_there_are_shipped_sets() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_shipped_sets(path: Path) -> None:
    text = read_text(path)
    held = build(MeasurementSet, load_yaml(path), source=str(path), text=text)
    assert held.id == path.parent.name or held.id.startswith(path.parent.name)
    assert "../shared" not in text
    assert "/work" not in text
    if held.machine.topology is not None:
        assert held.machine.topology in catalog.topology_names()
    if held.machine.gpu is not None:
        assert held.machine.gpu == catalog.load_gpu(held.machine.gpu).name
    for arm in held.arms.values():
        if arm.strategy is not None:
            assert parse_strategy(arm.strategy).world <= held.machine.gpus
        if arm.model is not None:
            assert arm.model == catalog.load_model_spec(arm.model).name
    if held.software.runtime in catalog.names("runtimes"):
        assert held.kind == "serving"


def test_ids_are_unique() -> None:
    ids = [load_yaml(path)["id"] for path in FILES]
    assert sorted(ids) == sorted(set(ids))


def test_the_index_is_fresh() -> None:
    from pcie_sim.study.measured import make_index

    assert (ROOT / "index.yaml").read_text(encoding="utf-8") == make_index(), "run: python -m pcie_sim.study.measured"
