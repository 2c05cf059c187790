"""The verbs as a user types them: JSON schemas to the letter, texts, files, exit codes, help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pcie_sim
from pcie_sim import catalog
from pcie_sim.cli.demo import ENV
from pcie_sim.cli.main import main
from pcie_sim.collectives import OPS, algorithms

BOX = "rtx-pro-6000-8x-2switch"
KIMI = ["--topology", BOX, "--model", "kimi-k2.6"]
Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


def run(argv: list[str], capsys: Capture, *, code: int = 0) -> tuple[str, str]:
    found = main(argv)
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


def run_json(argv: list[str], capsys: Capture, *, code: int = 0) -> dict[str, Any]:
    """``--json`` prints one object and nothing else, without NaN."""
    out, err = run([*argv, "--json"], capsys, code=code)
    assert err == ""
    assert out.startswith("{")
    assert out.endswith("}\n")

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    found: dict[str, Any] = json.loads(out, parse_constant=refuse)
    return found


# The keys that the published schemas promise (README, "Command line").
COMPARE_KEYS = ["schema", "topology", "model", "runtime", "ccl", "env", "launch", "points", "winners", "crossovers", "notes"]
POINT_KEYS = [
    "strategy",
    "canonical",
    "moe_comm",
    "concurrency",
    "context",
    "fits",
    "queued",
    "tpot_ms",
    "tpot_ms_p10",
    "tpot_ms_p90",
    "tokens_per_s",
    "tokens_per_s_p10",
    "tokens_per_s_p90",
    "breakdown_ms",
    "bound_by",
    "evidence",
    "evidence_share",
    "extrapolated",
    "memory",
]
BREAKDOWN = [
    "attention",
    "experts",
    "dense",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "launch",
    "bubble",
    "sampling",
    "other",
]
COLLECTIVE_KEYS = [
    "op",
    "ranks",
    "bytes",
    "algorithm",
    "protocol",
    "transport",
    "launch",
    "engine",
    "time_us",
    "time_us_p10",
    "time_us_p90",
    "algbw_GBps",
    "busbw_GBps",
    "lower_bound_us",
    "steps",
    "bottleneck",
    "evidence",
    "extrapolated",
    "ccl",
    "env",
]
LABELS = {"measured", "fitted", "profile", "nominal", "assumed"}


def check_point(point: dict[str, Any]) -> None:
    assert set(POINT_KEYS) <= set(point)
    assert list(point["breakdown_ms"]) == BREAKDOWN
    assert sum(point["breakdown_ms"].values()) == pytest.approx(point["tpot_ms"], rel=1e-6)
    assert point["bound_by"] == max(BREAKDOWN, key=point["breakdown_ms"].__getitem__)
    assert point["tpot_ms_p10"] <= point["tpot_ms"] <= point["tpot_ms_p90"]
    assert point["evidence"] in LABELS
    assert sum(point["evidence_share"].values()) == pytest.approx(1, rel=1e-6)
    assert set(point["evidence_share"]) <= LABELS
    assert {"reason"} <= set(point["memory"])


def test_compare_json(capsys: Capture) -> None:
    argv = ["compare", *KIMI, "--strategies", "tp8,ep8:allreduce,ep8:a2a", "--concurrency", "1,8", "--env", "NCCL_P2P_LEVEL=5"]
    found = run_json(argv, capsys)
    assert set(COMPARE_KEYS) <= set(found)
    assert found["schema"] == "pcie-sim/compare/1"
    assert found["env"] == {"NCCL_P2P_LEVEL": "5"}
    assert (found["runtime"], found["launch"], found["ccl"]) == ("sglang", "graph", "nccl 2.28")
    assert [(p["strategy"], p["concurrency"]) for p in found["points"]] == [
        (s, c) for s in ("tp8", "ep8:allreduce", "ep8:a2a") for c in (1, 8)
    ]
    for point in found["points"]:
        check_point(point)
        if point["fits"] and not point["queued"]:
            assert point["tokens_per_s"] == pytest.approx(1000 * point["concurrency"] / point["tpot_ms"], rel=1e-6)
    misfits = [p for p in found["points"] if not p["fits"]]
    assert {p["strategy"] for p in misfits} == {"ep8:a2a"}
    assert all(p["memory"]["reason"] for p in misfits)
    for winner in found["winners"]:
        assert set(winner) >= {"concurrency", "context", "strategy", "margin", "probability"}
        rates = sorted(p["tokens_per_s"] for p in found["points"] if p["fits"] and p["concurrency"] == winner["concurrency"])
        assert winner["margin"] == pytest.approx(rates[-1] / rates[-2] - 1, rel=1e-6)
        assert 0 <= winner["probability"] <= 1
    assert all(set(note) == {"code", "text"} for note in found["notes"])
    assert all(set(cross) == {"context", "from", "to", "concurrency"} for cross in found["crossovers"])


def test_predict_json(capsys: Capture) -> None:
    found = run_json(["predict", *KIMI, "--strategy", "tp8", "--concurrency", "4"], capsys)
    assert found["schema"] == "pcie-sim/predict/1"
    check_point(found)
    assert found["ops"]
    assert all({"name", "kind", "count", "bytes", "ms", "evidence"} <= set(op) for op in found["ops"])
    assert sum(op["ms"] for op in found["ops"]) == pytest.approx(found["tpot_ms"], rel=1e-6)


def test_predict_that_does_not_fit_answers_and_exits_1(capsys: Capture) -> None:
    found = run_json(["predict", *KIMI, "--strategy", "ep8:a2a", "--concurrency", "1"], capsys, code=1)
    assert found["fits"] is False
    assert found["tpot_ms"] > 0
    assert found["memory"]["reason"]
    text, _ = run(["predict", *KIMI, "--strategy", "ep8:a2a", "--concurrency", "1"], capsys, code=1)
    assert "does not fit" in text


def test_compare_where_nothing_fits_answers_and_exits_1(capsys: Capture) -> None:
    argv = ["compare", *KIMI, "--strategies", "tp4,tp2pp2", "--concurrency", "1"]
    found = run_json(argv, capsys, code=1)
    assert found["winners"] == []
    assert "Nothing fits." in run(argv, capsys, code=1)[0]


@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_collective_json(engine: str, capsys: Capture) -> None:
    found = run_json(["collective", "all_reduce", "--topology", BOX, "--size", "14KiB", "--algorithm", "ring", "--engine", engine], capsys)
    assert found["schema"] == "pcie-sim/collective/1"
    assert set(COLLECTIVE_KEYS) <= set(found)
    assert set(found["bottleneck"]) == {"link", "utilisation"}
    assert (found["bytes"], found["ranks"], found["launch"], found["engine"], found["steps"]) == (14336, 8, "eager", engine, 14)
    assert found["time_us_p10"] <= found["time_us"] <= found["time_us_p90"]
    assert found["time_us"] >= found["lower_bound_us"]
    assert found["algbw_GBps"] == pytest.approx(14336 / found["time_us"] / 1e3, rel=1e-6)
    assert found["busbw_GBps"] == pytest.approx(found["algbw_GBps"] * 2 * 7 / 8, rel=1e-6)  # nccl-tests doc/PERFORMANCE.md


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"])
def test_every_op_of_the_contract_answers(op: str, capsys: Capture) -> None:
    text, _ = run(["collective", op, "--topology", BOX, "--size", "1M", "--nccl", "2.20", "--p2p", "off"], capsys)
    assert text.startswith(f"{op} of 1,048,576 B (1 MiB) over")
    assert "SHM" in text


@pytest.mark.parametrize("engine", ["analytic", "event"])
@pytest.mark.parametrize(("op", "algorithm"), [(op, name) for op in OPS for name in algorithms(op)])
def test_every_algorithm_answers(op: str, algorithm: str, engine: str, capsys: Capture) -> None:
    argv = ["collective", op, "--topology", BOX, "--size", "1MiB", "--algorithm", algorithm, "--engine", engine, "--launch", "graph"]
    found = run_json(argv, capsys)
    assert (found["algorithm"], found["engine"]) == (algorithm, engine)
    assert found["lower_bound_us"] < found["time_us"]
    assert not any("reads" in text for text in found["ignores"])  # this box's switches have a figure


def test_pulling_says_when_reads_have_no_figure(capsys: Capture) -> None:
    argv = ["collective", "all_reduce", "--topology", "rtx-pro-6000-8x-direct-1socket", "--size", "1MiB", "--launch", "graph"]
    assert any("reads" in text for text in run_json([*argv, "--algorithm", "one_shot_pull"], capsys)["ignores"])
    assert not any("reads" in text for text in run_json([*argv, "--algorithm", "one_shot_push"], capsys)["ignores"])


def test_pulling_is_slower_than_pushing_on_these_switches(capsys: Capture) -> None:
    """Reads of all pairs reach 67.4 GB/s where writes reach 163.6 (asrockrack-turin-cpayne-16gpu page of rtx6kpro)."""
    argv = ["collective", "all_reduce", "--topology", BOX, "--size", "64MiB", "--launch", "graph", "--protocol", "Simple"]
    push, pull = (run_json([*argv, "--algorithm", name], capsys)["time_us"] for name in ("one_shot_push", "one_shot_pull"))
    assert 1.5 < pull / push < 163.6 / 67.4 * 1.05


def test_flows_json_and_text(capsys: Capture, tmp_path: Path) -> None:
    """Two flows into one link of 10 B/s: 5 B/s each until the small one ends at 2 s, then 10 B/s: 10 B left take 1 s."""
    path = tmp_path / "flows.yaml"
    path.write_text(
        'cases:\n- {id: a, links: {l: 10}, routes: {"x>z": [l], "y>z": [l]}, flows: [[0, x, z, 10], [0, y, z, 20]], rounds_repeat: 2}\n'
    )
    found = run_json(["flows", str(path)], capsys)
    assert found["schema"] == "pcie-sim/flows/1"
    (case,) = found["cases"]
    assert set(case) == {"id", "makespan", "finish", "events", "solve_s"}
    assert case["finish"] == pytest.approx([2, 3, 5, 6], rel=1e-12)
    assert case["makespan"] == pytest.approx(6, rel=1e-12)
    assert run(["flows", str(path)], capsys)[0].splitlines()[-1].split()[:3] == ["a", "6", "s"]


@pytest.mark.parametrize(("verb", "key"), [("topology", "topologies"), ("model", "models"), ("gpu", "gpus")])
def test_lists_name_everything_that_is_shipped(verb: str, key: str, capsys: Capture) -> None:
    names = catalog.topology_names() if verb == "topology" else catalog.names(key)  # type: ignore[arg-type]
    found = run_json([verb, "list"], capsys)
    assert found["schema"] == f"pcie-sim/{verb}-list/1"
    assert [row["name"] for row in found[key]] == list(names)
    text, _ = run([verb, "list"], capsys)
    assert [line.split()[0] for line in text.splitlines()[2:] if re.match(r" ?\S", line)] == list(names)
    assert re.fullmatch(rf"  {len(names)} (boxes|models|GPUs)", text.splitlines()[-1])


@pytest.mark.parametrize("name", catalog.topology_names())
def test_topology_show(name: str, capsys: Capture) -> None:
    found = run_json(["topology", "show", name], capsys)
    assert found["schema"] == "pcie-sim/topology-show/1"
    count = len(found["gpus"])
    for matrix in (found["path_types"], found["transports"]):
        assert [len(row) for row in matrix] == [count] * count
        assert [matrix[i][i] for i in range(count)] == [None] * count
    assert sum(group["pairs"] for group in found["transport_reasons"]) == count * (count - 1)
    text, err = run(["topology", "show", name], capsys)
    assert err == ""
    for gpu in found["gpus"]:
        assert re.search(rf"-- {gpu['node']}  {gpu['gpu']} |── {gpu['node']}  {gpu['gpu']} ", text)
    for note in found["assumptions"]:
        assert note.split()[0] in text
    assert max(map(len, text.splitlines()[1:])) <= 125


def test_topology_show_says_what_the_library_will_do(capsys: Capture) -> None:
    argv = [
        "topology",
        "show",
        "rtx-pro-6000-8x-direct-2socket",
        "--nccl",
        "2.28",
        "--env",
        "NCCL_P2P_LEVEL=5",
        "--env",
        "NCCL_IB_DISABLE=1",
    ]
    found = run_json(argv, capsys)["ccl"]
    assert (found["library"], found["version"], found["ranks"], found["channels"]) == ("nccl", "2.28", 8, 2)
    assert found["ring"] == {"channels": 1, "speed_GBps": 0.1, "type_intra": "SYS", "type_inter": "SYS", "fallback": True}
    assert found["ring_order"] == [f"gpu{index}" for index in range(8)]
    assert [segment["protocol"] for segment in found["choices"]["all_reduce"]] == ["LL", "Simple"]
    assert [item["code"] for item in found["warnings"]] == ["fallback"]
    assert any("NCCL_IB_DISABLE" in note for note in found["notes"])
    text, _ = run(argv, capsys)
    plain = " ".join(text.split())
    for words in ("What NCCL 2.28 will do", "ring order", "1 x 0.1 GB/s", "ring LL, from 3.772 KiB ring Simple", "try NCCL_GRAPH_FILE"):
        assert words in plain
    older = run_json([*argv, "--nccl", "2.24"], capsys)["ccl"]
    assert older["ring"]["fallback"] is False


def test_collective_with_an_order(capsys: Capture) -> None:
    argv = ["collective", "all_reduce", "--topology", BOX, "--size", "64MiB", "--env", "NCCL_P2P_LEVEL=SYS", "--launch", "graph"]
    bad = run_json([*argv, "--order", "gpu0,gpu4,gpu1,gpu5,gpu2,gpu6,gpu3,gpu7"], capsys)
    good = run_json(argv, capsys)
    assert 3.8 < bad["time_us"] / good["time_us"] < 4.0
    text, _ = run([*argv, "--order", "gpu0, gpu4,gpu1,gpu5"], capsys)
    assert "slower than bus order" in " ".join(text.split())
    run([*argv, "--order", "gpu0,gpu77"], capsys, code=2)


def test_topology_show_with_other_settings(capsys: Capture) -> None:
    """NCCL_P2P_LEVEL integers of 4 and above mean SYS (NVIDIA/nccl src/graph/paths.cc)."""
    plain = run_json(["topology", "show", BOX], capsys)
    level = run_json(["topology", "show", BOX, "--env", "NCCL_P2P_LEVEL=5"], capsys)
    assert plain["transports"][0][4] == "SHM"
    assert level["transports"][0][4] == "P2P"
    assert level["settings"]["env"] == {"NCCL_P2P_LEVEL": "5"}


@pytest.mark.parametrize("name", catalog.names("models"))
def test_model_show(name: str, capsys: Capture) -> None:
    found = run_json(["model", "show", name], capsys)
    assert found["schema"] == "pcie-sim/model-show/1"
    derived = found["derived"]
    assert derived["weight_bytes"] > 0.4 * derived["total_params"]
    assert derived["active_params"] <= derived["total_params"]
    text, _ = run(["model", "show", name], capsys)
    assert f"{derived['total_params'] / 1e9:.1f} B weights" in text


def test_model_show_counts_kimi_by_hand(capsys: Capture) -> None:
    """MLA caches 512 + 64 elements of 2 B in each of 61 layers; int4 with a 16-bit scale per 32 weights takes 0.5 + 2/32 B."""
    derived = run_json(["model", "show", "kimi-k2.6"], capsys)["derived"]
    assert derived["kv_bytes_per_token"] == 61 * 576 * 2
    assert derived["kv_bytes_per_request"]["1024"] == 1024 * 61 * 576 * 2
    assert derived["bytes_per_weight"]["experts"] == 0.5625


@pytest.mark.parametrize("name", catalog.names("gpus"))
def test_gpu_show(name: str, capsys: Capture) -> None:
    found = run_json(["gpu", "show", name], capsys)
    assert found["schema"] == "pcie-sim/gpu-show/1"
    text, _ = run(["gpu", "show", name], capsys)
    assert re.search(rf"^ memory +[\d.]+ GiB .*{found['spec']['memory']['evidence']}", text, re.M)


def test_output_is_the_json_and_the_table_is_still_printed(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    argv = ["compare", *KIMI, "--strategies", "tp8", "--concurrency", "1", "-o", str(target)]
    out, err = run(argv, capsys)
    assert err == f"wrote {target}\n"
    assert "Who wins" in out
    kept = json.loads(target.read_text())
    out, _ = run([*argv, "--json"], capsys)
    assert json.loads(out) == kept == json.loads(target.read_text())


EVERY_JSON = {
    "demo": ["--no-plot"],
    "compare": [*KIMI, "--strategies", "tp8", "--concurrency", "1"],
    "predict": [*KIMI, "--strategy", "tp8", "--concurrency", "1"],
    "collective": ["all_reduce", "--topology", BOX, "--size", "1K"],
    "topology list": [],
    "topology show": [BOX],
    "model list": [],
    "model show": ["kimi-k2.6"],
    "gpu list": [],
    "gpu show": ["rtx-4090"],
}


@pytest.mark.parametrize("verb", EVERY_JSON)
def test_every_verb_with_json_writes_it_too(verb: str, capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    out, err = run([*verb.split(), *EVERY_JSON[verb], "-o", str(target), "--json"], capsys)
    assert err == f"wrote {target}\n"
    assert target.read_text() == out


def test_flows_write_json_too(capsys: Capture, tmp_path: Path) -> None:
    path, target = tmp_path / "flows.yaml", tmp_path / "answer.json"
    path.write_text('cases: [{id: a, links: {l: 1}, routes: {"a>b": [l]}, flows: [[0, a, b, 1]]}]')
    out, _ = run(["flows", str(path), "-o", str(target)], capsys)
    assert "makespan" in out
    assert json.loads(target.read_text())["schema"] == "pcie-sim/flows/1"


@pytest.mark.parametrize("verb", ["topology", "model", "gpu"])
def test_help_of_a_group_is_not_cut(verb: str, capsys: Capture) -> None:
    out, _ = run([verb, "--help"], capsys)
    assert "..." not in out[out.index("Commands:") :]


def test_plot_beside_json(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "a.svg"
    out, err = run(["compare", *KIMI, "--strategies", "tp8,pp8", "--concurrency", "1,8", "--plot", str(target), "--json"], capsys)
    assert json.loads(out)["schema"] == "pcie-sim/compare/1"
    assert err == f"wrote {target}\n"
    assert "<svg" in target.read_text()[:1000]


def test_contexts_as_a_list(capsys: Capture) -> None:
    found = run_json(["compare", *KIMI, "--strategies", "tp8", "--concurrency", "1", "--context", "1024,8192"], capsys)
    assert [p["context"] for p in found["points"]] == [1024, 8192]
    assert found["points"][0]["tpot_ms"] < found["points"][1]["tpot_ms"]


def test_options_of_the_python_api_reach_it(capsys: Capture) -> None:
    base = ["predict", *KIMI, "--strategy", "pp8", "--concurrency", "16"]
    plain = run_json(base, capsys)
    eager = run_json([*base, "--launch", "eager"], capsys)
    assert (plain["launch"], eager["launch"]) == ("graph", "eager")
    assert eager["tpot_ms"] > plain["tpot_ms"]
    uneven = run_json([*base, "--pp-layers", "7,8,8,8,8,8,7,7"], capsys)
    assert uneven["tpot_ms"] != plain["tpot_ms"]
    small = run_json([*base, "--mem-fraction", "0.81", "--max-running", "2"], capsys)
    assert small["memory"]["budget_bytes"] < plain["memory"]["budget_bytes"]
    assert small["queued"] is True
    skewed = run_json([*base, "--popularity", "zipf:1.2", "--nccl", "2.20"], capsys)
    assert skewed["ccl"] == "nccl 2.20"
    assert skewed["breakdown_ms"]["experts"] != plain["breakdown_ms"]["experts"]


def test_the_comparison_ends_with_one_command(capsys: Capture) -> None:
    argv = ["compare", *KIMI, "--strategies", "tp8,pp8", "--concurrency", "1"]
    out, err = run(argv, capsys)
    assert err == ""
    assert re.search(r"_perf |sglang|vllm", out.splitlines()[-1])
    assert out.splitlines()[-1] == " ".join(run_json(argv, capsys)["advice"].split())


def test_demo(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference comparison beside its measurements, and a picture in the current folder."""
    monkeypatch.chdir(tmp_path)
    out, err = run(["demo"], capsys)
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"
    assert err.startswith("wrote demo.png\n")
    assert "moonshotai/Kimi-K2.6" in out
    for rate in ("26.0", "36.0", "65.0"):
        assert re.search(rf"^ (tp8|pp8|ep8:allreduce) +1 +{rate} ", out, re.M)
    command = err.splitlines()[-1].split()
    assert command[0] == "pcie-sim"
    (tmp_path / "demo.png").unlink()
    by_hand = run_json(command[1:], capsys)
    demo = run_json(["demo", "--no-plot"], capsys)
    assert by_hand == demo
    assert demo["env"] == ENV
    assert sorted({p["concurrency"] for p in demo["points"]}) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert not list(tmp_path.iterdir())


def test_demo_goes_on_where_it_may_not_write(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    out, err = run(["demo"], capsys)
    assert "no picture: --plot demo.png: cannot write it (Permission denied)" in err
    assert "Who wins" in out
    assert main(["demo", "--plot", "mine.png"]) == 2, "a file that was asked for by name is not given up in silence"


def test_welcome_is_five_lines(capsys: Capture) -> None:
    out, err = run([], capsys)
    assert len(out.splitlines()) == 5
    assert err == ""
    assert len(re.findall(r"^  pcie-sim ", out, re.M)) == 3


@pytest.mark.parametrize("argv", [["--version"], ["compare", "--version"]])
def test_version_is_global(argv: list[str], capsys: Capture) -> None:
    assert run(argv, capsys)[0] == f"pcie-sim {pcie_sim.__version__}\n"


PREDICTING = (
    "topology gpu model runtime concurrency context env nccl p2p launch pp-layers popularity mem-fraction max-running calibration json"
)
VERBS = {
    "compare": f"{PREDICTING} serve strategies plot",
    "predict": f"{PREDICTING} serve strategy",
    "collective": "topology gpu size ranks algorithm protocol launch engine env nccl p2p calibration json order",
    "calibrate": "topology prior leave-out gpu name json plot",
    "flows": "json",
    "demo": "plot no-plot json",
    "topology list": "json",
    "topology show": "gpu env nccl p2p json",
    "topology import": "here gpu name json",
    "topology export": "as gpu json",
    "topology doctor": "gpu env nccl p2p json",
    "model list": "json",
    "model show": "json",
    "model import": "name json",
    "gpu list": "json",
    "gpu show": "json",
}


@pytest.mark.parametrize("verb", VERBS)
def test_help_lists_exactly_the_options_that_work(verb: str, capsys: Capture) -> None:
    out, err = run([*verb.split(), "--help"], capsys)
    assert err == ""
    assert re.search(rf"^Usage: pcie-sim {verb} ", out)
    options = set(re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", out, re.M)) - {"help"}
    assert options == set(VERBS[verb].split())
    assert "  -o FILE" in out, "what prints JSON also writes it"
    assert "\x1b" not in out
    assert "..." not in re.sub(r"[\]}]\.\.\.", "", out), "nothing is cut"


def test_help_of_the_program_names_every_verb_and_no_other(capsys: Capture) -> None:
    out, _ = run(["--help"], capsys)
    listed = re.findall(r"^  ([a-z]+)  ", out[out.index("Commands:") :], re.M)
    assert listed == ["demo", "compare", "predict", "collective", "calibrate", "flows", "topology", "model", "gpu"]
    assert "..." not in out[out.index("Commands:") :]


def process(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "pcie_sim", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**kept, **env},
        encoding="utf-8",
    )


def test_the_program_itself() -> None:
    found = process("gpu", "show", "rtx-4090", FORCE_COLOR="1", TERM="xterm-256color")
    assert (found.returncode, found.stderr) == (0, "")
    assert "\x1b" not in found.stdout, "standard output is no terminal"
    assert process("gpu", "show", "rtx-9090").returncode == 2


def test_a_terminal_without_unicode_gets_ascii() -> None:
    found = process("topology", "show", BOX, PYTHONIOENCODING="ascii")
    assert found.returncode == 0
    assert found.stdout.isascii()
    assert "`-- cpu0  epyc-turin" in found.stdout


def test_a_reader_that_leaves_is_no_error() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "pcie_sim", "model", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(timeout=60) == 0


def test_closed_streams_are_no_bug() -> None:
    closed = subprocess.run(f"{sys.executable} -m pcie_sim gpu list --json >&-", shell=True, cwd=ROOT, capture_output=True, timeout=60)  # noqa: S602
    assert (closed.returncode, closed.stderr) == (0, b"")
    mute = subprocess.run(f"{sys.executable} -m pcie_sim gpu show nope 2>&-", shell=True, cwd=ROOT, capture_output=True, timeout=60)  # noqa: S602
    assert (mute.returncode, mute.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("redirect", "code"),
    [("2>/dev/full", 2), (">/dev/full", 2), (">/dev/full 2>/dev/full", 2), ("2>&-", 2)],
)
def test_a_full_disk_does_not_change_the_exit_code(redirect: str, code: int) -> None:
    verb = "topology show nope" if redirect.startswith("2") else "topology list"
    found = subprocess.run(f"{sys.executable} -m pcie_sim {verb} {redirect}", shell=True, cwd=ROOT, capture_output=True, timeout=60)  # noqa: S602
    assert found.returncode == code
    assert b"Traceback" not in found.stderr
    assert b"Exception ignored" not in found.stderr


def test_remarks_that_nobody_can_read_change_nothing() -> None:
    command = f"{sys.executable} -m pcie_sim gpu show rtx-4090 -o /dev/null 2>/dev/full"
    found = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, timeout=60)  # noqa: S602
    assert found.returncode == 0
    assert b"rtx-4090" in found.stdout


def test_json_needs_neither_rich_nor_matplotlib_nor_networkx() -> None:
    """What keeps a cold command quick."""
    code = (
        "import sys; from pcie_sim.cli.main import main; "
        f"code = main(['compare', '--topology', '{BOX}', '--model', 'kimi-k2.6', '--json']); "
        "heavy = {name.split('.')[0] for name in sys.modules} & {'rich', 'matplotlib', 'networkx', 'scipy', 'click'}; "
        "sys.stderr.write(' '.join(sorted(heavy))); sys.exit(code)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (found.returncode, found.stderr) == (0, "")


def test_help_lists_the_algorithms_of_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    from pcie_sim.collectives import OPS, algorithms

    text, _ = run(["collective", "--help"], capsys)
    words = text.partition("Algorithms:")[2].replace(",", " ").split()
    assert words == [word for op in OPS for word in (op, *algorithms(op))]
