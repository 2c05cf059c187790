"""Arguments of the wrong type: always an InputError that names the argument, in one short line, whatever is given."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pcie_sim as ps

BOX = "rtx-pro-6000-8x-2switch"


class Nasty:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def compare(**changes: Any) -> Any:
    return ps.compare(**{"topology": BOX, "model": "kimi-k2.6", "strategies": ["tp8"], "concurrency": [1], **changes})


def predict(**changes: Any) -> Any:
    return ps.predict(**{"topology": BOX, "model": "kimi-k2.6", "strategy": "tp8", **changes})


def collective(**changes: Any) -> Any:
    return ps.collective(**{"topology": BOX, "op": "all_reduce", "size": 1024, **changes})


ANYTHING: list[object] = [None, 5, 2.5, True, b"x", [], {}, ["x"], {"a": 1}, object(), Nasty(), lambda: 1, 10**5000]
TABLE: dict[str, tuple[Callable[..., Any], str, list[object], str]] = {
    "topology": (compare, "topology", ANYTHING, "topology: give a name or a path"),
    "model": (compare, "model", ANYTHING, "model: give a name or a path"),
    "runtime": (compare, "runtime", [*ANYTHING, ""], "runtime: give a name like sglang"),
    "nccl number": (compare, "nccl", [2, 2.28], r'nccl 2(\.28)?: write nccl as text: "2\.28"'),
    "nccl": (compare, "nccl", [True, b"2.28", [], {}, Fraction(2)], r"nccl: give a version as text, like \"2\.28\""),
    "nccl text": (compare, "nccl", ["", "x", "2"], "collective library .* is not understood"),
    "env": (compare, "env", ["A=1", [], 5, [("A", "1")], b"A", True], r"env: give names and values, like \{"),
    "env name": (compare, "env", [{1: "2"}, {None: "x"}, {b"A": "x"}], r"env: the name .* is no text"),
    "env value": (compare, "env", [{"A": None}, {"A": True}, {"A": 1.5}, {"A": ["x"]}], "env 'A': give the value as text, not "),
    "env array": (compare, "env", [{"A": np.array([1, 2])}], "env 'A': give the value as text, not "),
    "env number": (
        compare,
        "env",
        [{"NCCL_P2P_LEVEL": 10**5000}, {"A": -(10**19)}],
        "env 'NCCL_P2P_LEVEL'|env 'A': the number has more than",
    ),
    "env bad name": (
        compare,
        "env",
        [{"A=B": "c"}, {"": "x"}, {"A\0": "x"}, {"9": "x"}],
        "setting env.*: a setting's name has letters, digits and _",
    ),
    "env bad value": (
        compare,
        "env",
        [{"A": "\x1b[31m"}, {"A": "a\nb"}, {"A": "\0"}],
        "setting env.A: .*control character",
    ),
    "p2p": (compare, "p2p", [5, True, [], "perhaps"], "setting p2p: use auto, on or off, found "),
    "strategies": (compare, "strategies", [5, 2.5, True, b"tp8", {"tp8": 1}, object()], "strategies .*: write a list like tp8,pp8"),
    "strategies entry": (compare, "strategies", [[5], [None], [["tp8"]], ("tp8", b"x")], "strategies: .* is no text; write a list like"),
    "strategies empty": (compare, "strategies", [["tp8", ""], "tp8,", ",tp8", [" "]], "strategies .*: an entry is empty"),
    "strategies none": (compare, "strategies", [[], "", (), iter([])], "strategies: none is given"),
    "strategies many": (compare, "strategies", [[f"tp{n}" for n in range(70)], itertools.repeat("tp8")], "strategies: at most 64"),
    "concurrency": (
        compare,
        "concurrency",
        [None, True, b"1", {"a": 1}, [None], [[1, 2]], 1.5, object(), np.array([[1, 2]])],
        "concurrency .* is not a whole number",
    ),
    "context": (compare, "context", [None, False, b"1", "x", float("inf"), float("nan")], "context .* is not a whole number"),
    "too large": (compare, "concurrency", [10**30, 10**5000, "9" * 5000, 1e300], "concurrency .* is out of range; it goes from 1 to 65536"),
    "launch": (compare, "launch", [5, True, [], {}, np.array([1, 2])], "launch .* is not known; use graph or eager"),
    "pp_layers": (compare, "pp_layers", [5, True, ["x"], object(), [None]], "pp-layers .* is not understood"),
    "popularity": (compare, "popularity", [None, 5, [], b"uniform"], "popularity .* is not understood"),
    "mem_fraction": (compare, "mem_fraction", [True, False, "0.9", b"1", [], 1j, object()], "memory fraction .* is out of range"),
    "max_running": (compare, "max_running", [True, "x", [], 1.5, [1, 2]], "max-running .* is not a whole number; write a number like 64"),
    "strategy": (predict, "strategy", [None, 5, b"tp8", ["tp8"]], "a strategy is text"),
    "one concurrency": (
        predict,
        "concurrency",
        [[1, 2], "1,2", range(3, 6)],
        "predict takes one concurrency, got [23]; compare takes lists",
    ),
    "op": (collective, "op", [None, 5, b"x", []], "op: give an operation like all_reduce"),
    "size": (collective, "size", [None, True, [], [1, 2], b"1K", object()], "size .* is not understood"),
    "ranks": (collective, "ranks", ["8", 2.0, True, [], b"2", np.array([1, 2])], "ranks: give a whole number"),
    "algorithm": (collective, "algorithm", [None, 5, "", []], "algorithm: give auto or one like ring"),
    "protocol": (collective, "protocol", [None, 5, "", []], "protocol: give auto, LL, LL128 or Simple"),
    "engine": (collective, "engine", [None, 5, [], {}, np.array([1, 2])], "engine .* is not known; use analytic or event"),
    "launch of a call": (collective, "launch", [5, True, [], {}, np.array([1, 2])], "launch .* is not known; use graph or eager"),
    "order": (collective, "order", [5, True, b"gpu0,gpu1", {"gpu0": 1}, object()], "order .*: write GPU names like gpu0,gpu1"),
    "order set": (collective, "order", [{"gpu0", "gpu1"}, frozenset({"gpu0"}), {"gpu0": 1}.keys()], "order: a set has no order"),
    "order entry": (collective, "order", [[5, 6], [None], ["gpu0", b"gpu1"]], "order: .* is no text"),
    "order empty": (collective, "order", ["", "gpu0,", ["gpu0", ""]], "order .*: an entry is empty"),
    "calibration": (
        compare,
        "calibration",
        [5, 2.5, True, [], {}, {"a": 1}, object(), Nasty(), lambda: 1, 10**5000, [5], [None], "", " "],
        "calibration: give a (result of calibrate, a calibration file, or a log|name or a path)",
    ),
    "calibration of a call": (
        collective,
        "calibration",
        [5, True, [], {}, Nasty()],
        "calibration: give a (result of calibrate|name or a path)",
    ),
    "calibration file": (ps.load_calibration, "file", [*ANYTHING, ""], "calibration: give a name or a path"),
    "flows": (ps.flows, "source", [None, 5, b"x", [], "", True], "flows: give a name or a path"),
    "gpu": (ps.load_gpu, "name", [None, 5, b"x", [], Path("rtx-4090")], "GPU: give a name"),
}
CASES = [(verb, name, value, match) for verb, name, values, match in TABLE.values() for value in values]


@pytest.mark.parametrize(("verb", "name", "value", "match"), CASES, ids=[f"{name}-{i}" for i, (_, name, _, _) in enumerate(CASES)])
def test_wrong_types_are_input_errors(verb: Callable[..., Any], name: str, value: object, match: str) -> None:
    with pytest.raises(ps.InputError, match=match) as caught:
        verb(**{name: value})
    text = str(caught.value)
    assert len(text) < 200
    assert "\n" not in text
    for jargon in ("pydantic", "[key]", "^[", "Input should", "valid dictionary", "Traceback"):
        assert jargon not in text


def test_what_numpy_and_iterators_give_is_as_good() -> None:
    plain = compare(strategies=["tp8", "pp8"], concurrency=[1, 8], mem_fraction=0.9)
    odd = compare(
        strategies=iter(("tp8", "pp8")), concurrency=np.array([1, 8]), mem_fraction=np.float32(0.9), env={}, context=np.int64(1024)
    )
    assert plain.strategies == odd.strategies
    assert [p.concurrency for p in odd.points] == [p.concurrency for p in plain.points]
    assert collective(ranks=np.int64(4), size=np.int64(1024)).ranks == 4
    for level in (5, np.int64(5), np.uint8(5), np.array(5)):
        assert compare(env={"NCCL_P2P_LEVEL": level}).env == {"NCCL_P2P_LEVEL": "5"}


def test_settings_of_a_box_are_checked_too() -> None:
    box = ps.load_topology(BOX)
    assert box.with_settings(env={"NCCL_P2P_LEVEL": 5}).settings.env == {"NCCL_P2P_LEVEL": "5"}
    with pytest.raises(ps.InputError, match="thousands of digits"):
        box.with_settings(env={"NCCL_P2P_LEVEL": 10**5000})


def test_mixed_boxes_name_the_gpu_that_the_figures_are_those_of(tmp_path: Path) -> None:
    """RTX 4090: 1.008 TB/s and 24 GB, less than an RTX PRO 6000 (1.79 TB/s, 96 GB) in both (datasheets)."""
    nodes = "".join(f"  gpu{i}: {{kind: gpu, part: {part}, parent: cpu0}}\n" for i, part in enumerate(("rtx-pro-6000", "rtx-4090")))
    path = tmp_path / "mixed.yaml"
    path.write_text(f"schema: pcie-sim/topology/1\nname: mixed\nnodes:\n  cpu0: {{kind: socket, part: epyc-genoa}}\n{nodes}")
    for notes in (ps.compare(path, model="qwen3-8b").notes, ps.predict(path, model="qwen3-8b", strategy="tp2").notes):
        (note,) = [note for note in notes if note.code == "mixed_gpus"]
        assert "1x rtx-pro-6000-blackwell-server, 1x rtx-4090" in note.text
        assert "computes like rtx-4090" in note.text
        assert "holds what rtx-4090 does" in note.text
    assert not [note for note in compare().notes if note.code == "mixed_gpus"]
