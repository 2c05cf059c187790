"""Bad input of every sort: exit code 2, one or two lines on standard error, nothing on standard output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pcie_sim import catalog
from pcie_sim.catalog.lookup import file_of
from pcie_sim.cli.main import main
from pcie_sim.errors import NoDataError

BOX = "rtx-pro-6000-8x-2switch"
COMPARE = ["compare", "--topology", BOX, "--model", "kimi-k2.6"]
PREDICT = ["predict", "--topology", BOX, "--model", "kimi-k2.6"]
CALL = ["collective", "all_reduce", "--topology", BOX]
Capture = pytest.CaptureFixture[str]


def refused(argv: list[str], capsys: Capture, *words: str, code: int = 2) -> str:
    """Run ``argv``; check the form of its refusal and that it names ``words``; return the message."""
    found = main(argv)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (found, out) == (code, ""), err
    assert 1 <= len(lines) <= 2, err
    assert lines[0].startswith("error: ")
    assert len(lines[0]) > len("error: ") + 8
    assert "Traceback" not in err
    assert all(line.isprintable() for line in lines)
    for word in words:
        assert word in err
    return err


USAGE = {
    "missing option": (["compare", "--topology", BOX], ["--model", "compare --help"]),
    "missing argument": (["collective", "--topology", BOX, "--size", "1K"], ["OP"]),
    "missing file": (["flows"], ["FILE"]),
    "unknown option": ([*COMPARE, "--banana"], ["--banana"]),
    "unknown option of the program": (["--banana"], ["--banana", "pcie-sim --help"]),
    "unknown verb": (["comparr"], ["comparr", "compare"]),
    "unknown verb of a group": (["topology", "draw"], ["draw"]),
    "no verb of a group": (["model"], ["model --help"]),
    "too much": (["flows", "a.yaml", "b.yaml"], ["b.yaml"]),
    "option without value": ([*COMPARE, "--strategies"], ["--strategies"]),
    "not a number": ([*CALL, "--size", "1K", "--ranks", "x"], ["--ranks", "expected a whole number", "pcie-sim collective --help"]),
    "an option's value is missing": (["predict", "--topology"], ["--topology", "pcie-sim predict --help"]),
    "an option's value is missing below a group": (["topology", "show", "--env"], ["--env", "pcie-sim topology show --help"]),
    "an option of another verb": ([*PREDICT, "--plot", "x.png"], ["no such option --plot\n", "pcie-sim predict --help"]),
    "an option with a slip": ([*COMPARE, "--strategy", "tp8"], ["no such option --strategy; did you mean --strategies?"]),
    "not a whole number": ([*COMPARE, "--max-running", "1.5"], ["--max-running"]),
    "later verbs are not there yet": (["doctor"], ["doctor"]),
    "later options are not there yet": ([*COMPARE, "--measured", "x.yaml"], ["--measured"]),
    "no log to calibrate on": (["calibrate", "--topology", BOX], ["LOG", "pcie-sim calibrate --help"]),
    "no box to calibrate": (["calibrate", "a.log"], ["--topology", "pcie-sim calibrate --help"]),
}
VALUES = {
    "unknown topology": (["compare", "--topology", "rtx-pro-6000-8x-3switch", "--model", "kimi-k2.6"], ["nearest", BOX]),
    "unknown model": (["compare", "--topology", BOX, "--model", "kimi"], ["nearest", "kimi-k2.6"]),
    "unknown GPU": (["gpu", "show", "rtx-9090"], ["nearest", "rtx-4090"]),
    "unknown runtime": ([*COMPARE, "--runtime", "vlm"], ["nearest", "vllm"]),
    "unknown model shown": (["model", "show", "nope"], ["nearest"]),
    "unknown topology shown": (["topology", "show", "nope"], ["nearest"]),
    "a very long name": (["gpu", "show", "x" * 100_000], ["unknown GPU"]),
    "a name that is a path upwards": (["gpu", "show", "../gpus/rtx-4090"], ["unknown GPU"]),
    "empty topology": (["compare", "--topology", "", "--model", "kimi-k2.6"], ["topology"]),
    "empty model": (["compare", "--topology", BOX, "--model", " "], ["model"]),
    "heads do not divide": ([*COMPARE, "--strategies", "tp3"], ["tp3", "use"]),
    "too many ranks": ([*COMPARE, "--strategies", "tp16"], ["16", "8", "tp8"]),
    "not a strategy": ([*COMPARE, "--strategies", "banana8"], ["banana8", "tpN"]),
    "strategy of zero": ([*COMPARE, "--strategies", "tp0"], ["tp0"]),
    "unknown suffix": ([*COMPARE, "--strategies", "ep8:magic"], ["magic", "a2a"]),
    "an axis twice": ([*COMPARE, "--strategies", "tp2tp4"], ["twice"]),
    "no strategies": ([*COMPARE, "--strategies", ""], ["strategies"]),
    "a hole in the strategies": ([*COMPARE, "--strategies", "tp8,,pp8"], ["strategies", "an entry is empty"]),
    "a comma too much": ([*COMPARE, "--strategies", "tp8,"], ["'tp8,'", "an entry is empty"]),
    "a comma too much in a list": ([*COMPARE, "--concurrency", "1,"], ["'1,'", "an entry is empty"]),
    "concurrency of twenty digits": ([*COMPARE, "--concurrency", "9" * 20], ["9" * 20, "1 to 65536"]),
    "513 concurrencies": ([*COMPARE, "--concurrency", ",".join(map(str, range(1, 514)))], ["at most 512", "513"]),
    "65 contexts": ([*COMPARE, "--context", ",".join(map(str, range(1, 66)))], ["at most 64", "65"]),
    "predict takes one context": ([*PREDICT, "--strategy", "tp8", "--concurrency", "1", "--context", "1,2"], ["predict takes one context"]),
    "env name": ([*COMPARE, "--env", "A-B=1"], ["env.A-B", "letters, digits and _"]),
    "env value with an escape": ([*COMPARE, "--env", "A=\x1b[31m"], ["env.A", "control character"]),
    "output onto standard output": ([*COMPARE, "-o", "-"], ["use --json to print it"]),
    "output of a list onto standard output": (["gpu", "list", "-o", "-"], ["use --json to print it"]),
    "plot into a folder's name": ([*COMPARE, "--plot", "x.png/"], ["x.png/", "names a folder"]),
    "output and plot are one": ([*COMPARE, "--plot", "x.png", "-o", "./x.png"], ["the same file as --plot"]),
    "output and picture of the demo are one": (["demo", "-o", "demo.png"], ["the same file as --plot"]),
    "a path of 5000 letters": (["topology", "show", "/" + "a" * 5000], ["a" * 79 + "...", "File name too long"]),
    "flows of 5000 letters": (["flows", "a" * 5000], ["a" * 80 + "..."]),
    "ep on a dense model": (["compare", "--topology", BOX, "--model", "qwen3-32b", "--strategies", "ep8"], ["ep8"]),
    "concurrency 0": ([*COMPARE, "--concurrency", "0"], ["concurrency 0"]),
    "concurrency -1": ([*COMPARE, "--concurrency", "-1"], ["concurrency -1"]),
    "concurrency x": ([*COMPARE, "--concurrency", "x"], ["'x'"]),
    "concurrency 1e9": ([*COMPARE, "--concurrency", "1e9"], ["1e9"]),
    "concurrency beyond reason": ([*COMPARE, "--concurrency", "1000000"], ["65536"]),
    "concurrency empty": ([*COMPARE, "--concurrency", ""], ["concurrency"]),
    "concurrency half": ([*COMPARE, "--concurrency", "1.5"], ["1.5"]),
    "context 0": ([*COMPARE, "--context", "0"], ["context 0"]),
    "fraction nan": ([*COMPARE, "--mem-fraction", "nan"], ["nan"]),
    "fraction 2": ([*COMPARE, "--mem-fraction", "2"], ["0.1 to 1"]),
    "nobody runs": ([*COMPARE, "--max-running", "0"], ["max-running"]),
    "popularity": ([*COMPARE, "--popularity", "pareto"], ["zipf"]),
    "stages without layers": ([*COMPARE, "--strategies", "pp8", "--pp-layers", "61,0,0,0,0,0,0,0"], ["pp-layers"]),
    "stages that do not add up": ([*COMPARE, "--strategies", "pp8", "--pp-layers", "1,1,1,1,1,1,1,1"], ["61"]),
    "launch": ([*COMPARE, "--launch", "warp"], ["warp", "graph"]),
    "p2p": ([*COMPARE, "--p2p", "maybe"], ["maybe", "auto"]),
    "nccl": ([*COMPARE, "--nccl", "latest"], ["latest", "2.28"]),
    "env without =": ([*COMPARE, "--env", "NCCL_ALGO"], ["NCCL_ALGO", "--env"]),
    "env without a name": ([*COMPARE, "--env", "=5"], ["--env"]),
    "env level": ([*COMPARE, "--env", "NCCL_P2P_LEVEL=FAR"], ["FAR", "SYS"]),
    "predict takes one concurrency": ([*PREDICT, "--strategy", "tp8", "--concurrency", "1,2"], ["one concurrency"]),
    "predict takes one strategy": ([*PREDICT, "--strategy", "tp8,pp8", "--concurrency", "1"], ["tp8,pp8"]),
    "size in potatoes": ([*CALL, "--size", "14 potatoes"], ["potatoes", "KiB"]),
    "size negative": ([*CALL, "--size", "-5"], ["-5"]),
    "size of half a byte": ([*CALL, "--size", "0.5B"], ["whole number of bytes"]),
    "99 ranks": ([*CALL, "--size", "1K", "--ranks", "99"], ["99", "8"]),
    "1 rank": ([*CALL, "--size", "1K", "--ranks", "1"], ["ranks"]),
    "unknown op": (["collective", "all_redcue", "--topology", BOX, "--size", "1K"], ["all_reduce"]),
    "unknown algorithm": ([*CALL, "--size", "1K", "--algorithm", "rung"], ["ring", "double_binary_tree", "two_shot_pull", "auto"]),
    "digits of another script": ([*CALL, "--size", "１４KiB"], ["size", "14KiB"]),
    "version in another script": ([*CALL, "--size", "1K", "--nccl", "２.２８"], ["2.28"]),
    "shipped name with an ending": (
        ["topology", "show", "rtx-pro-6000-8x-2switch.yaml"],
        ["no such file", "called rtx-pro-6000-8x-2switch,"],
    ),
    "unknown protocol": ([*CALL, "--size", "1K", "--protocol", "LL256"], ["LL128"]),
    "unknown engine": ([*CALL, "--size", "1K", "--engine", "quantum"], ["analytic"]),
    "plot of another kind": ([*COMPARE, "--plot", "x.gif"], ["x.gif", ".png"]),
    "plot into no folder": ([*COMPARE, "--plot", "no/such/x.png"], ["no/such"]),
    "output into no folder": ([*COMPARE, "-o", "no/such/x.json"], ["no/such"]),
    "output onto a folder": ([*COMPARE, "-o", "."], ["folder"]),
    "output to nothing": ([*COMPARE, "-o", ""], ["-o"]),
    "no such file": (["topology", "show", "./nope.yaml"], ["nope.yaml", "no such file"]),
    "a folder": (["topology", "show", "./"], ["folder"]),
    "no such flows": (["flows", "nope.yaml"], ["nope.yaml"]),
    "no such model file": (["model", "show", "nope.json"], ["nope.json"]),
    "no such log": (["calibrate", "nope.log", "--topology", BOX], ["nope.log", "no such file"]),
    "a folder as a log": (["calibrate", ".", "--topology", BOX], [".", "folder"]),
    "a paste to calibrate on": (["calibrate", "-", "--topology", BOX], ["standard input", "save"]),
    "a calibration's name": (["calibrate", "a.log", "--topology", BOX, "--name", "a/b"], ["--name 'a/b'", "letters"]),
    "a fit's plot of another kind": (["calibrate", "a.log", "--topology", BOX, "--plot", "x.gif"], ["x.gif", ".png"]),
    "calibration and plot are one": (["calibrate", "a.log", "--topology", BOX, "-o", "x.png", "--plot", "x.png"], ["the same file"]),
    "calibration onto standard output": (["calibrate", "a.log", "--topology", BOX, "-o", "-"], ["use --json to print it"]),
    "calibration onto its log": (["calibrate", "a.log", "--topology", BOX, "-o", "./a.log"], ["would overwrite the file"]),
    "no such calibration": ([*COMPARE, "--calibration", "nope.yaml"], ["nope.yaml", "no such file"]),
    "no such profile": ([*CALL, "--size", "1K", "--calibration", "nope"], ["unknown calibration 'nope'"]),
    "a profile of kernels": ([*CALL, "--size", "1K", "--calibration", "kernels-l40s"], ["kernels-l40s", "not of a box"]),
    "calibration of nothing": ([*CALL, "--size", "1K", "--calibration", ""], ["--calibration"]),
    "calibration from a paste": ([*COMPARE, "--calibration", "-"], ["--calibration -", "file"]),
}


@pytest.mark.parametrize(("argv", "words"), [*USAGE.values(), *VALUES.values()], ids=[*USAGE, *VALUES])
def test_is_refused_in_two_lines(
    argv: list[str], words: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(argv, capsys, *words)
    assert not list(tmp_path.iterdir()), "a refused question leaves no file"


TREE = "schema: pcie-sim/topology/1\nname: t\nnodes:\n  cpu0: {kind: socket, part: epyc-turin}\n"
GPU = "  gpu0: {kind: gpu, part: rtx-4090, parent: cpu0}\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["file.yaml"]),
    "broken YAML": ("nodes: {a: [1, 2\n", ["file.yaml"]),
    "a list": ("- 1\n- 2\n", ["file.yaml", "list"]),
    "a word": ("hello\n", ["file.yaml"]),
    "duplicate key": (TREE + GPU + GPU, ["file.yaml:6", "gpu0"]),
    "alias bomb": (BOMB, ["file.yaml"]),
    "deep": ("a: " + "[" * 5000 + "]" * 5000 + "\n", ["file.yaml"]),
    "a Python object": ("!!python/object/apply:os.system ['true']\n", ["file.yaml"]),
    "unknown schema": ("schema: pcie-sim/topology/9\nname: t\nnodes: {}\n", ["file.yaml"]),
    "unknown key": (TREE + GPU + "colour: red\n", ["file.yaml", "colour"]),
    "unknown part": (TREE + "  gpu0: {kind: gpu, part: rtx-9090, parent: cpu0}\n", ["file.yaml", "rtx-9090"]),
    "unknown parent": (TREE + "  gpu0: {kind: gpu, part: rtx-4090, parent: cpu7}\n", ["file.yaml", "cpu7"]),
    "a cycle": (
        TREE + "  s0: {kind: switch, part: pm50100, parent: s1}\n  s1: {kind: switch, part: pm50100, parent: s0}\n" + GPU,
        ["file.yaml"],
    ),
    "a bad link": (TREE + "  gpu0: {kind: gpu, part: rtx-4090, parent: cpu0, link: fast}\n", ["file.yaml", "gen5 x16"]),
    "no GPU": (TREE, ["file.yaml"]),
    "binary": (bytes(range(256)) * 8, ["file.yaml"]),
    "control characters": (TREE + '  "g\\e[31m": {kind: gpu, part: rtx-4090, parent: cpu0}\n', ["file.yaml"]),
    "9 MiB": (b"#" * (9 << 20), ["file.yaml", "8 MiB"]),
    "another kind of file": ("schema: pcie-sim/model/1\nname: m\n", ["file.yaml"]),
}


@pytest.mark.parametrize("verb", ["topology", "model", "flows"])
@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES)
def test_bad_files_are_refused_by_every_verb_that_reads_one(
    verb: str, content: str | bytes, words: list[str], capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    argv = {"topology": ["topology", "show"], "model": ["model", "show"], "flows": ["flows"]}[verb]
    refused([*argv, str(path)], capsys, *(words if verb == "topology" else words[:1]))


FLOWS = {
    "no cases": "units: {}\n",
    "a link of zero": 'cases: [{id: a, links: {l: 0}, routes: {"a>b": [l]}, flows: [[0, a, b, 1]]}]',
    "a link of nan": 'cases: [{id: a, links: {l: .nan}, routes: {"a>b": [l]}, flows: [[0, a, b, 1]]}]',
    "an unknown link": 'cases: [{id: a, links: {l: 1}, routes: {"a>b": [m]}, flows: [[0, a, b, 1]]}]',
    "an unknown route": 'cases: [{id: a, links: {l: 1}, routes: {"a>b": [l]}, flows: [[0, b, a, 1]]}]',
    "a start before zero": 'cases: [{id: a, links: {l: 1}, routes: {"a>b": [l]}, flows: [[-1, a, b, 1]]}]',
    "a flow of words": 'cases: [{id: a, links: {l: 1}, routes: {"a>b": [l]}, flows: [[now, a, b, much]]}]',
    "endless rounds": 'cases: [{id: a, links: {l: 1}, routes: {"a>b": [l]}, flows: [[0, a, b, 1]], rounds_repeat: 1000000000000}]',
}


@pytest.mark.parametrize("content", FLOWS.values(), ids=FLOWS)
def test_bad_flows_are_refused(content: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "flows.yaml"
    path.write_text(content)
    refused(["flows", str(path), "--json"], capsys, "flows.yaml")


@pytest.mark.parametrize("text", ["{", '{"cases": NaN}', "[1, 2", "nul"])
def test_broken_json_is_refused(text: str, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "flows.json"
    path.write_text(text)
    refused(["flows", str(path)], capsys, "flows.json")


def test_a_file_nobody_may_read(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.symlink_to(path)  # a link to itself: cannot be opened by anyone, root included
    refused(["topology", "show", str(path)], capsys, "box.yaml")


def test_no_data_is_exit_code_3(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound question that nothing answers: how a verb says so."""

    def nothing(*_args: object, **_options: object) -> None:
        raise NoDataError("no figures for that")

    monkeypatch.setattr("pcie_sim.study.compare", nothing)
    refused(COMPARE, capsys, "no figures for that", code=NoDataError.exit_code)


def broken(*_args: object, **_options: object) -> None:
    raise KeyError("an\nodd\x1bkey")


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_bug_is_exit_code_70_with_a_traceback_on_request_only(where: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pcie_sim.study.compare", broken)
    message = refused(COMPARE, capsys, "internal error", "KeyError", "--debug", code=70)
    assert len(message.splitlines()) == 1
    argv = ["--debug", *COMPARE] if where == "before" else [*COMPARE, "--debug"]
    assert main(argv) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err
    assert "in broken" in err


def test_debug_shows_where_bad_input_was_found(capsys: Capture) -> None:
    assert main([*COMPARE, "--strategies", "banana8", "--debug"]) == 2
    assert re.search(r"Traceback[\s\S]*error: strategy 'banana8'", capsys.readouterr().err)


@pytest.mark.parametrize(("failure", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 0)])
def test_interrupts_and_closed_pipes_are_quiet(
    failure: type[BaseException], code: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_args: object, **_options: object) -> None:
        raise failure

    monkeypatch.setattr("pcie_sim.study.compare", stop)
    assert main(COMPARE) == code
    assert capsys.readouterr().err == ""


def test_a_full_disk_under_standard_output_is_told_in_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdout.write", full)
    found = main(["gpu", "list", "--json"])
    assert found == 2
    monkeypatch.undo()
    assert capsys.readouterr().err == "error: cannot write the answer (No space left on device)\n"


def test_nothing_that_is_read_is_overwritten(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever name: the same path, a longer one, a link to it; shipped names have files too."""
    monkeypatch.chdir(tmp_path)
    box = tmp_path / "box.yaml"
    box.write_text(TREE + GPU)
    (tmp_path / "link.yaml").symlink_to(box)
    (tmp_path / "hard.yaml").hardlink_to(box)
    flows = tmp_path / "flows.yaml"
    flows.write_text('cases: [{id: a, links: {l: 1}, routes: {"a>b": [l]}, flows: [[0, a, b, 1]]}]')
    picture = tmp_path / "box.png"
    picture.write_text(TREE + GPU)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shipped = [str(catalog.shipped_topology(BOX)), str(file_of("models", "kimi-k2.6"))]
    for argv in (
        *(["topology", "show", "box.yaml", "-o", name] for name in ("box.yaml", f"../{tmp_path.name}/box.yaml", "link.yaml", "hard.yaml")),
        ["compare", "--topology", "./link.yaml", "--model", "qwen3-8b", "-o", "box.yaml"],
        ["compare", "--topology", "./box.png", "--model", "qwen3-8b", "--plot", "box.png"],
        ["predict", "--topology", BOX, "--model", "./box.yaml", "--strategy", "tp8", "--concurrency", "1", "-o", "box.yaml"],
        ["collective", "all_reduce", "--topology", "box.yaml", "--size", "1K", "-o", "box.yaml"],
        ["flows", "flows.yaml", "-o", "flows.yaml"],
        ["model", "show", "./box.yaml", "-o", "box.yaml"],
        *([*COMPARE, "-o", path] for path in shipped),
    ):
        refused(argv, capsys, "would overwrite the file")
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_name_is_no_file_of_that_name(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["topology", "show", BOX, "-o", BOX]) == 0
    assert json.loads((tmp_path / BOX).read_text())["name"] == BOX
