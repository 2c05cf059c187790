"""``pcie-sim calibrate`` and ``--calibration``, on logs whose times are base + bytes / rate: what a measured curve must answer is known."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.cli.main import main
from pcie_sim.cli.output import working

BOX, OTHER = "h200-2x-host-staged", "rtx-pro-6000-8x-2switch"
MODEL = "qwen3-8b"
Capture = pytest.CaptureFixture[str]
SIZES = tuple(1024 * 2**power for power in range(15))
BASE, RATE = 12.0, 20e3
"""us, bytes per us."""
_FACTOR = {"all_reduce": 1.0, "sendrecv": 1.0}
"""busbw / algbw on two ranks (nccl-tests doc/PERFORMANCE.md: 2 (n - 1) / n and 1)."""


def time_us(size: float, base: float = BASE) -> float:
    return base + size / RATE


def log(op: str = "all_reduce", *, graph: int = 10, base: float = BASE, odd: Mapping[int, float] | None = None) -> str:
    """A table of nccl-tests; ``odd`` multiplies the times of some sizes."""
    rows = []
    for size in SIZES:
        time = time_us(size, base) * (odd or {}).get(size, 1.0)
        algbw = size / time / 1e3
        rows.append(f"{size:12d}{size // 4:14d}     float     sum      -1 {time:10.2f} {algbw:9.4f} {algbw * _FACTOR[op]:9.4f}      0\n")
    return (
        f"# Collective test starting: {op}_perf\n"
        f"# nThread 1 nGpus 2 minBytes {SIZES[0]} maxBytes {SIZES[-1]} step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        f"validation: 1 graph: {graph}\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
        f"{''.join(rows)}# Out of bounds values : 0 OK\n"
    )


COPIES = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA H200, pciBusID: 6, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA H200, pciBusID: 7, pciDeviceID: 0, pciDomainID:0
Device=0 CANNOT Access Peer Device=1
Device=1 CANNOT Access Peer Device=0

P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     0
     1\t     0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 2800.00  38.00
     1  38.20 2805.00
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.log").write_text(log())
    (tmp_path / "eager.log").write_text(log(graph=0, base=21.0))
    (tmp_path / "sends.log").write_text(log("sendrecv", base=9.0))
    (tmp_path / "copies.txt").write_text(COPIES)
    return tmp_path


def run(argv: list[str], capsys: Capture, *, code: int = 0) -> tuple[str, str]:
    found = main(argv)
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


def run_json(argv: list[str], capsys: Capture) -> dict[str, Any]:
    out, err = run([*argv, "--json"], capsys)
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def refused(argv: list[str], capsys: Capture, *words: str) -> None:
    out, err = run(argv, capsys, code=2)
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2
    assert [word for word in words if word not in err] == []


CALIBRATE = ["calibrate", "graph.log", "--topology", BOX, "--prior", "none"]
CALL = ["collective", "all_reduce", "--topology", BOX, "--size", "64KiB"]


def test_without_a_file_it_only_reports_and_says_how_to_write_one(folder: Path, capsys: Capture) -> None:
    before = sorted(folder.iterdir())
    out, err = run(CALIBRATE, capsys)
    assert err == ""
    assert sorted(folder.iterdir()) == before
    assert re.search(r"^ all_reduce +2 +graph +15 +1 KiB to 16 MiB ", out, re.M)
    assert "none: start values alone" in out
    assert "one op: could not be estimated" in out
    assert "one number of ranks: could not be estimated" in out
    last = out.splitlines()[-1]
    assert last.startswith("nothing is written; add -o cal.yaml")
    command = shlex.split(last.partition("then: ")[2].replace("MODEL", MODEL))
    assert main([*CALIBRATE, "-o", "cal.yaml"]) == 0
    assert main([*command[1:], "--concurrency", "1"]) == 0


def test_json_is_one_object_and_nothing_else(folder: Path, capsys: Capture) -> None:
    found = run_json([*CALIBRATE[:2], "eager.log", *CALIBRATE[2:], "--name", "mine"], capsys)
    assert set(found) == {"schema", "topology", "calibration", "report", "fitted", "warnings", "notes"}
    assert (found["schema"], found["topology"]) == ("pcie-sim/calibrate/1", BOX)
    assert (found["calibration"]["name"], found["calibration"]["prior"]) == ("mine", "none")
    assert found["report"]["points"] == len(found["fitted"]) == 30
    assert found["report"]["range_bytes"] == [SIZES[0], SIZES[-1]]
    for row in found["fitted"]:
        base = 21.0 if row["launch"] == "eager" else BASE
        assert row["measured_s"] * 1e6 == pytest.approx(time_us(row["bytes"], base), abs=0.006)  # the log has two decimals
        assert row["left_out_p10_s"] < row["left_out_s"] < row["left_out_p90_s"]
    assert {curve["launch"] for curve in found["calibration"]["curves"]} == {"graph", "eager"}
    assert [check["reason"] is None for check in found["report"]["crosschecks"]] == [
        check["errors"] is not None for check in found["report"]["crosschecks"]
    ]


def test_what_is_written_is_what_was_fitted(folder: Path, capsys: Capture) -> None:
    out, err = run([*CALIBRATE, "-o", "cal.yaml", "--json"], capsys)
    assert err == "wrote cal.yaml\n"
    held = ps.load_calibration("cal.yaml")
    told = json.loads(out)
    assert json.loads(held.model_dump_json(by_alias=True))["warnings"] == told["calibration"]["warnings"] == told["warnings"]
    assert {p.name: p.value for p in held.parameters} == {p["name"]: p["value"] for p in told["calibration"]["parameters"]}
    assert {item.sha256 for item in held.inputs} == {hashlib.sha256((folder / "graph.log").read_bytes()).hexdigest()}
    assert [path.name for path in folder.iterdir() if path.suffix == ".part"] == []
    text, _ = run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    assert text.splitlines()[-1] == f"next: pcie-sim compare --topology {BOX} --model MODEL --calibration cal.yaml"


def test_the_doctor_is_heard(folder: Path, capsys: Capture) -> None:
    """This pair's driver refuses peer access: a problem that the doctor names (finding p2p-driver)."""
    out, _ = run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    (said,) = [text for text in ps.load_calibration("cal.yaml").warnings if "[p2p-driver]" in text]
    assert said.startswith("doctor: ")
    assert len(said) <= 300
    assert said[:60] in " ".join(out.split())
    compared, _ = run(["compare", "--topology", BOX, "--model", MODEL, "--concurrency", "1", "--calibration", "cal.yaml"], capsys)
    assert said[:60] in " ".join(compared.split())


def test_a_doctor_that_cannot_look_leaves_the_calibration(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise ps.InputError("no\x1b[31m such box")

    monkeypatch.setattr("pcie_sim.study.imports.load_box", refuse)
    assert "doctor: could not look at this box (no\\x1b[31m such box)" in run_json(CALIBRATE, capsys)["warnings"]
    run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    assert any("could not look" in text for text in ps.load_calibration("cal.yaml").warnings)


def test_an_odd_size_is_named_and_answered_as_measured(folder: Path, capsys: Capture) -> None:
    size = 2**20
    (folder / "odd.log").write_text(log(odd={size: 2.0}))
    out, _ = run(["calibrate", "odd.log", "--topology", BOX, "--prior", "none", "-o", "cal.yaml"], capsys)
    (row,) = [line.split() for line in out.splitlines() if re.match(r" +2-GPU all_reduce \(graph\) +1 MiB ", line)]
    assert row[5:7] == [f"{2 * time_us(size):.4g}", "us"]
    assert "Outliers (1)" in out
    found = run_json(["collective", "all_reduce", "--topology", BOX, "--size", "1MiB", "--calibration", "cal.yaml"], capsys)
    assert found["time_us"] == pytest.approx(2 * time_us(size), rel=1e-3)


def test_inside_a_curve_the_answer_is_the_curve(folder: Path, capsys: Capture) -> None:
    run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    for size in (*SIZES[::3], 3 * 2**16):
        found = run_json([*CALL[:-1], str(size), "--calibration", "cal.yaml"], capsys)
        assert found["time_us"] == pytest.approx(time_us(size), rel=1e-3 if size in SIZES else 0.03)
        assert (found["evidence"], found["extrapolated"], found["launch"]) == ("measured", False, "graph")
    beyond = run_json([*CALL[:-1], "1GiB", "--calibration", "cal.yaml"], capsys)
    assert (beyond["evidence"] == "measured", beyond["extrapolated"]) == (False, True)
    assert beyond["time_us_p90"] / beyond["time_us_p10"] > found["time_us_p90"] / found["time_us_p10"]


def test_a_call_is_launched_as_its_calibration_was(folder: Path, capsys: Capture) -> None:
    assert run_json(CALL, capsys)["launch"] == "eager"
    for name, launch, base in (("graph", "graph", BASE), ("eager", "eager", 21.0)):
        found = run_json([*CALL, "--calibration", f"{name}.log"], capsys)
        assert (found["launch"], found["time_us"]) == (launch, pytest.approx(time_us(65536, base), rel=1e-3))
    assert run_json([*CALL, "--calibration", "graph.log", "--launch", "eager"], capsys)["launch"] == "eager"


def test_several_logs_are_fitted_together(folder: Path, capsys: Capture) -> None:
    found = run_json([*CALL[:1], "send_recv", *CALL[2:], "--calibration", "graph.log", "--calibration", "sends.log"], capsys)
    assert found["time_us"] == pytest.approx(time_us(65536, 9.0), rel=1e-3)
    assert any("graph.log, sends.log: raw measurements, fitted in passing (30 points" in note for note in found["notes"])


def test_predict_has_the_measured_time_of_every_call(folder: Path, capsys: Capture) -> None:
    argv = ["predict", "--topology", BOX, "--model", MODEL, "--strategy", "tp2", "--concurrency", "1"]
    found = run_json([*argv, "--calibration", "graph.log"], capsys)
    calls = [op for op in found["ops"] if op["kind"] == "all_reduce" and op["count"] > 1]
    assert calls
    for op in calls:
        assert op["ms"] == pytest.approx(op["count"] * time_us(op["bytes"]) / 1e3, rel=2e-3)
        assert op["evidence"] == "measured"
    text, _ = run([*argv, "--calibration", "graph.log"], capsys)
    assert re.search(r"^ +calibration +graph\.log$", text, re.M)
    assert re.search(r"^ +per token .* ms \([\d.]+ to [\d.]+\), p10 to p90", text, re.M)


def test_compare_moves_with_its_calibration(folder: Path, capsys: Capture) -> None:
    """AllReduces of 500 us leave tensor parallelism behind the pipeline; those of 12 us do not."""
    (folder / "sick.log").write_text(log(base=500.0))
    argv = ["compare", "--topology", BOX, "--model", MODEL, "--strategies", "tp2,pp2", "--concurrency", "1"]
    winners = {}
    for name in ("graph", "sick"):
        assert main(["calibrate", f"{name}.log", "--topology", BOX, "-o", f"{name}.yaml"]) == 0
        capsys.readouterr()
        text, err = run([*argv, "--calibration", f"{name}.yaml"], capsys)
        assert err == ""
        assert re.search(rf"^ +calibration +{name}\.yaml$", text, re.M)
        found = run_json([*argv, "--calibration", f"{name}.yaml"], capsys)
        (winner,) = found["winners"]
        winners[name] = winner["strategy"]
        assert 0.5 < winner["probability"] <= 1
        row = next(line for line in text.splitlines() if re.match(r" +1 +(tp2|pp2) .* to ", line))
        assert f"{winner['probability']:.2f}" in row.split()
        for point in found["points"]:
            assert point["tokens_per_s_p10"] < point["tokens_per_s"] < point["tokens_per_s_p90"]
    assert winners == {"graph": "tp2", "sick": "pp2"}


def test_the_command_line_and_python_agree(folder: Path, capsys: Capture) -> None:
    said = run_json(
        ["compare", "--topology", BOX, "--model", MODEL, "--strategies", "tp2", "--concurrency", "1,8", "--calibration", "graph.log"],
        capsys,
    )
    made = ps.calibrate(BOX, "graph.log")
    same = ps.compare(BOX, model=MODEL, strategies="tp2", concurrency=[1, 8], calibration=made)
    assert [p["tpot_ms"] for p in said["points"]] == pytest.approx([p.tpot_ms for p in same.points], rel=1e-6)


def test_a_shipped_profile_by_its_name(folder: Path, capsys: Capture) -> None:
    names = [name for name in catalog.calibration_names() if catalog.load_calibration_profile(name).topology.name == BOX]
    assert names
    found = run_json([*CALL, "--calibration", names[0]], capsys)
    assert names[0] in found["sources"]
    refused([*CALL, "--topology", OTHER, "--calibration", names[0]], capsys, names[0], BOX, OTHER)


def test_the_prior_is_the_one_asked(folder: Path, capsys: Capture) -> None:
    name = next(name for name in catalog.calibration_names() if catalog.load_calibration_profile(name).topology.name != BOX)
    argv = ["calibrate", "graph.log", "--topology", BOX]
    assert run_json([*argv, "--prior", name], capsys)["calibration"]["prior_weights"] == {name: 1.0}
    auto = run_json(argv, capsys)["calibration"]["prior_weights"]
    assert name in auto
    without = run_json([*argv, "--leave-out", name], capsys)
    assert set(without["calibration"]["prior_weights"]) == set(auto) - {name}
    assert f"profiles left out: {name}" in without["notes"]
    refused([*argv, "--prior", "nope"], capsys, "--prior nope", "no such profile")
    refused([*argv, "--leave-out", "nope"], capsys, "--leave-out nope", "no profile of that name")
    refused([*argv, "--leave-out", name, "--prior", name], capsys, f"--prior {name}", "left out")


BROKEN = {
    "empty": ("", ["file.yaml"]),
    "no calibration": ("a: 1\n", ["file.yaml"]),
    "nothing in it": ("schema: pcie-sim/calibration/1\n", ["file.yaml", "topology"]),
    "broken YAML": ("schema: pcie-sim/calibration/1\ninputs: [1, 2\n", ["file.yaml"]),
    "another schema": ("schema: pcie-sim/calibration/9\n", ["file.yaml"]),
    "a topology": (f"schema: pcie-sim/topology/1\nname: {BOX}\n", ["file.yaml"]),
    "a duplicate key": ("schema: pcie-sim/calibration/1\nprior: none\nprior: none\n", ["file.yaml:3", "prior"]),
}


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("verb", ["compare", "predict", "collective"])
def test_broken_calibrations_are_refused_by_every_verb(verb: str, content: str, words: list[str], folder: Path, capsys: Capture) -> None:
    (folder / "file.yaml").write_text(content)
    argv = {
        "compare": ["compare", "--topology", BOX, "--model", MODEL],
        "predict": ["predict", "--topology", BOX, "--model", MODEL, "--strategy", "tp2", "--concurrency", "1"],
        "collective": CALL,
    }[verb]
    refused([*argv, "--calibration", "file.yaml"], capsys, *words)


EDITS = {
    "an unknown parameter": ("- {name: floor,", "- {name: flour,", ["flour", "calibrate again"]),
    "a negative value": (r"value: [\d.e-]+, unit: s", "value: -1.0, unit: s", ["value"]),
    "a value out of bounds": (r"value: [\d.e-]+, unit: s", "value: 1.0, unit: s", ["outside"]),
    "sizes that fall": (r"bytes: \[1024, 2048", "bytes: [2048, 1024", ["sizes must rise"]),
    "a size too many": (r"bytes: \[1024,", "bytes: [512, 1024,", ["16 sizes but 15 times"]),
    "a GPU of no box": (r"gpus: \[gpu0, gpu1\]", "gpus: [gpu0, gpu9]", ["gpu9"]),
    "a hash that is none": (r"sha256: \w+", "sha256: xyz", ["sha256"]),
}


@pytest.mark.parametrize(("pattern", "other", "words"), EDITS.values(), ids=EDITS)
def test_edited_calibrations_are_refused(pattern: str, other: str, words: list[str], folder: Path, capsys: Capture) -> None:
    run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    text, count = re.subn(pattern, other, (folder / "cal.yaml").read_text(), count=1)
    assert count == 1
    (folder / "cal.yaml").write_text(text)
    refused([*CALL, "--calibration", "cal.yaml"], capsys, "cal", *words)


def test_a_calibration_of_another_box_is_refused(folder: Path, capsys: Capture) -> None:
    run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    for argv in (
        ["compare", "--topology", OTHER, "--model", MODEL],
        ["predict", "--topology", OTHER, "--model", MODEL, "--strategy", "tp2", "--concurrency", "1"],
        ["collective", "all_reduce", "--topology", OTHER, "--size", "1K"],
    ):
        refused([*argv, "--calibration", "cal.yaml"], capsys, "cal.yaml", "2x h200-sxm", "8x rtx-pro-6000-blackwell-server")


def test_a_log_without_an_ending_needs_a_slash(folder: Path, capsys: Capture) -> None:
    (folder / "all_reduce").write_text(log())
    refused([*CALL, "--calibration", "all_reduce"], capsys, "unknown calibration 'all_reduce'", "write ./all_reduce")
    assert run_json([*CALL, "--calibration", "./all_reduce"], capsys)["evidence"] == "measured"


def test_nothing_to_calibrate_on_is_bad_input(folder: Path, capsys: Capture) -> None:
    rows = "nvidia-smi"
    (folder / "topo.txt").write_text("        GPU0    GPU1\nGPU0     X      NODE\nGPU1    NODE     X\n")
    refused(["calibrate", "topo.txt", "--topology", BOX], capsys, "nothing to calibrate", BOX, "all_reduce_perf")
    (folder / "words.txt").write_text(rows)
    refused(["calibrate", "words.txt", "--topology", BOX], capsys, "words.txt")


def test_copies_alone_have_a_report_and_no_picture(folder: Path, capsys: Capture) -> None:
    out, _ = run(["calibrate", "copies.txt", "--topology", BOX], capsys)
    assert "single copies" in out
    assert "Curves (" not in out
    refused(["calibrate", "copies.txt", "--topology", BOX, "--plot", "x.png"], capsys, "x.png", "no times of collectives")
    assert not list(folder.glob("x.*"))


def test_copies_alone_are_kept_though_there_is_no_picture(folder: Path, capsys: Capture) -> None:
    assert main(["calibrate", "copies.txt", "--topology", BOX, "--plot", "x.png", "-o", "x.yaml"]) == 2
    wrote, said = capsys.readouterr().err.splitlines()
    assert wrote == "wrote x.yaml"
    assert "no times of collectives" in said
    assert [path.name for path in folder.glob("x.*")] == ["x.yaml"]


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_picture_beside_the_file(kind: str, folder: Path, capsys: Capture) -> None:
    _, err = run([*CALIBRATE, "--plot", f"fit.{kind}", "-o", "cal.yaml"], capsys)
    assert err == f"wrote cal.yaml\nwrote fit.{kind}\n"
    assert (folder / f"fit.{kind}").read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_what_an_answer_rests_on_is_not_overwritten(folder: Path, capsys: Capture) -> None:
    run([*CALIBRATE, "-o", "cal.yaml"], capsys)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    compare = ["compare", "--topology", BOX, "--model", MODEL]
    for argv in (
        [*CALIBRATE, "-o", "graph.log"],
        ["calibrate", "eager.log", "graph.log", "--topology", BOX, "-o", "./graph.log"],
        [*compare, "--calibration", "cal.yaml", "-o", "cal.yaml"],
        [*compare, "--calibration", "graph.log", "--calibration", "eager.log", "-o", "eager.log"],
        [*CALL, "--calibration", "./cal.yaml", "-o", "cal.yaml"],
    ):
        refused(argv, capsys, "would overwrite the file")
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_sign_of_life_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for colour, stream in (("", Terminal()), ("1", Terminal()), ("", io.StringIO())):
        monkeypatch.setenv("NO_COLOR", colour)
        monkeypatch.setattr(sys, "stderr", stream)
        with working("fitting [1]"):
            pass
        wanted = stream.isatty() and not colour
        assert ("fitting [1]" in stream.getvalue()) is wanted
        assert wanted or stream.getvalue() == ""
