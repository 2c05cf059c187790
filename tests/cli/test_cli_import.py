"""Other people's files on the command line: import, export, a serve command, pasted files in place of names."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import pcie_sim as ps
from pcie_sim.cli.main import main

Capture = pytest.CaptureFixture[str]

TOPO = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tNODE\tNODE\t0-31\t0
GPU1\tPIX\t X \tNODE\tNODE\t0-31\t0
GPU2\tNODE\tNODE\t X \tPIX\t0-31\t0
GPU3\tNODE\tNODE\tPIX\t X \t0-31\t0
"""
NAMES = """\
GPU 0: NVIDIA L40S (UUID: GPU-11111111-2222-3333-4444-555555555555)
GPU 1: NVIDIA L40S (UUID: GPU-11111111-2222-3333-4444-555555555556)
GPU 2: NVIDIA L40S (UUID: GPU-11111111-2222-3333-4444-555555555557)
GPU 3: NVIDIA L40S (UUID: GPU-11111111-2222-3333-4444-555555555558)
"""
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""The published dimensions of Qwen3-8B."""
SERVE = """\
export NCCL_P2P_LEVEL=SYS
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 2 --dp-size 1 \\
  --pp-size 2 --mem-fraction-static 0.8 --max-running-requests 16
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"topo.txt": TOPO, "names.txt": NAMES, "config.json": json.dumps(CONFIG), "serve.sh": SERVE}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(argv: list[str], capsys: Capture, code: int = 0) -> tuple[str, str]:
    assert main(argv) == code
    return capsys.readouterr()


def test_compare_works_straight_from_two_pasted_files(folder: Path, capsys: Capture) -> None:
    out, _ = run(["compare", "--topology", "topo.txt", "--model", "config.json", "--concurrency", "1", "--json"], capsys)
    found = json.loads(out)
    texts = "\n".join(note["text"] for note in found["notes"] if note["code"] == "topology_assumed")
    for words in ("GPU model of gpu0 to gpu3", "uplink of sw0, sw1", "CPU of cpu0"):
        assert words in texts
    assert {point["strategy"] for point in found["points"]} >= {"tp4", "pp4", "2xtp2", "tp2pp2"}


def test_a_pasted_model_is_the_catalogs(folder: Path) -> None:
    mine, shipped = ps.load_model("config.json"), ps.load_model("qwen3-8b")
    assert (mine.total_params, mine.active_params, mine.attention, mine.mlp) == (
        shipped.total_params,
        shipped.active_params,
        shipped.attention,
        shipped.mlp,
    )


def test_import_merges_files_and_what_it_writes_reads_back(folder: Path, capsys: Capture) -> None:
    out, err = run(["topology", "import", "topo.txt", "names.txt", "--name", "mine", "-o", "mine.yaml"], capsys)
    assert err == "wrote mine.yaml\n"
    assert "4x NVIDIA L40S on 2 switches, 1 socket" in out
    assert "UUID" not in out
    box = ps.load_topology("mine.yaml")
    assert box.gpu_counts() == {"l40s": 4}
    assert [box.path_type("gpu0", gpu) for gpu in ("gpu1", "gpu2")] == ["PIX", "PHB"]
    assert "GPU-1111" not in (folder / "mine.yaml").read_text()
    again = ps.import_any("topo.txt", "names.txt", name="mine").topology
    assert again is not None
    assert again.spec == box.spec


def test_without_a_target_the_file_is_printed_and_the_remarks_stand_beside_it(folder: Path, capsys: Capture) -> None:
    out, err = run(["topology", "import", "topo.txt", "--gpu", "rtx-4090"], capsys)
    (folder / "printed.yaml").write_text(out)
    assert ps.load_topology("printed.yaml").gpu_counts() == {"rtx-4090": 4}
    assert "assumed: uplink of sw0, sw1: not said; gen4 x16" in err.replace("generic-gen4-switch assumed", "")
    assert err.count("\n") >= 4


def test_json_says_everything(folder: Path, capsys: Capture) -> None:
    out, err = run(["topology", "import", "topo.txt", "names.txt", "--json"], capsys)
    found = json.loads(out)
    assert err == ""
    assert found["schema"] == "pcie-sim/import/1"
    assert [one["formats"] for one in found["files"]] == [["nvidia-smi-topo"], ["nvidia-smi"]]
    assert found["topology"]["nodes"]["gpu3"]["part"] == "l40s"
    assert found["model"] is None
    assert {"assumed", "ignored", "cut", "conflicts", "notes", "measurements", "launch"} <= set(found)


def test_a_serve_command_asks_the_question(folder: Path, capsys: Capture) -> None:
    argv = ["predict", "--topology", "topo.txt", "--gpu", "rtx-4090", "--serve", "serve.sh", "--concurrency", "4"]
    out, err = run([*argv, "--json"], capsys)
    found = json.loads(out)
    assert (found["canonical"], found["model"], found["runtime"]) == ("tp2pp2", "qwen3-8b", "sglang")
    assert found["env"] == {"NCCL_P2P_LEVEL": "SYS"}
    assert "from serve.sh: engine sglang, model qwen3-8b, strategy tp2pp2" in err
    typed, _ = run([*argv, "--strategy", "tp4", "--env", "NCCL_P2P_LEVEL=PHB", "--json"], capsys)
    assert json.loads(typed)["canonical"] == "tp4"
    assert json.loads(typed)["env"] == {"NCCL_P2P_LEVEL": "PHB"}, "what is typed wins"
    plain, _ = run([*argv[:1], *argv[1:5], "--model", "qwen3-8b", "--strategy", "tp2pp2", *argv[7:], "--json"], capsys)
    assert json.loads(plain)["memory"]["budget_bytes"] > found["memory"]["budget_bytes"], "the command's memory fraction holds"


def test_compare_sets_the_command_beside_the_usual_strategies(folder: Path, capsys: Capture) -> None:
    out, _ = run(["compare", "--topology", "topo.txt", "--gpu", "rtx-4090", "--serve", "serve.sh", "--concurrency", "1", "--json"], capsys)
    strategies = [point["strategy"] for point in json.loads(out)["points"]]
    assert strategies[0] == "tp2pp2"
    assert len(strategies) == len(set(strategies))
    assert "tp4" in strategies


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["topology", "import"], ["no file given", "--here"]),
        (["topology", "import", "none.txt"], ["none.txt: no such file"]),
        (["topology", "import", "config.json"], ["config.json: hf-config", "which GPUs the box has"]),
        (["topology", "import", "topo.txt", "--gpu", "rtx-9090"], ["--gpu: unknown GPU 'rtx-9090'", "nearest"]),
        (["topology", "import", "topo.txt", "--name", "a b"], ["--name 'a b'"]),
        (["topology", "import", "topo.txt", "-o", "topo.txt"], ["would overwrite"]),
        (
            ["topology", "import", "prose.txt"],
            ["prose.txt:1: no known format begins like 'once upon a time'", "what can be read: nvidia-smi"],
        ),
        (["topology", "export", "topo.txt", "--as", "dot"], ["--as 'dot' is not known; use nccl-xml or topo-m"]),
        (["topology", "show", "rtx-4090-8x-rome-2socket", "--gpu", "l40s"], ["--gpu l40s", "names its GPUs"]),
        (["model", "import", "topo.txt"], ["topo.txt", "no model here; give its config.json"]),
        (["compare", "--topology", "topo.txt", "--model", "topo.txt"], ["no model here"]),
        (["compare", "--topology", "config.json", "--model", "config.json"], ["config.json: is a model", "give it as --model"]),
        (["compare", "--topology", "topo.txt", "--serve", "topo.txt"], ["--serve topo.txt: no serve command in it"]),
        (["predict", "--topology", "topo.txt", "--model", "qwen3-8b", "--concurrency", "1"], ["missing option --strategy"]),
        (["topology", "show", "topo.md"], ["unknown topology 'topo.md'", "there is a file of that name: write ./topo.md"]),
        (["topology", "doctor", "topo.md"], ["there is a file of that name: write ./topo.md"]),
        (["model", "show", "Qwen/Qwen3-8B"], ["Qwen/Qwen3-8B: no such file; the catalog has that model under the name qwen3-8b"]),
        (["model", "show", "Some/Model"], ["give its config.json", "nearest"]),
    ],
)
def test_is_refused_in_two_lines(argv: list[str], words: list[str], folder: Path, capsys: Capture) -> None:
    (folder / "topo.md").write_text(TOPO)
    (folder / "prose.txt").write_text("once upon a time\nthere was a box\n")
    out, err = run(argv, capsys, code=2)
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2
    for word in words:
        assert word in err


def test_export_writes_what_imports_again(folder: Path, capsys: Capture) -> None:
    for kind, name in (("nccl-xml", "out.xml"), ("topo-m", "out.txt")):
        run(["topology", "export", "l40s-4x-direct-1socket", "--as", kind, "-o", name], capsys)
        box = ps.load_topology(name, gpu="l40s")
        shipped = ps.load_topology("l40s-4x-direct-1socket")
        assert [box.path_type("gpu0", gpu) for gpu in box.gpus[1:]] == [shipped.path_type("gpu0", gpu) for gpu in shipped.gpus[1:]]
    out, _ = run(["topology", "export", "l40s-4x-direct-1socket", "--as", "topo-m", "--json"], capsys)
    assert json.loads(out)["text"] == (folder / "out.txt").read_text()


def test_a_folder_of_a_model(folder: Path, capsys: Capture) -> None:
    (folder / "My-Model").mkdir()
    with pytest.raises(ps.InputError, match=r"a folder without a config\.json"):
        ps.load_model("./My-Model")
    (folder / "config.json").rename(folder / "My-Model" / "config.json")
    assert ps.load_model("./My-Model").hidden_size == 4096
    out, _ = run(["model", "import", "./My-Model", "-o", "m.yaml", "--json"], capsys)
    assert [(one["file"], one["formats"]) for one in json.loads(out)["files"]] == [("config.json", ["hf-config"])]
    assert ps.load_model("m.yaml") == ps.load_model("./My-Model")


def test_a_paste_through_a_pipe(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TOPO.encode())))
    out, _ = run(["topology", "import", "-", "--gpu", "rtx-4090", "--json"], capsys)
    assert json.loads(out)["files"][0]["file"] == "standard-input"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    _, err = run(["topology", "import", "-"], capsys, code=2)
    assert err == "error: standard-input: is empty\n"


def test_where_a_file_lies_is_nobodys_business(folder: Path, capsys: Capture) -> None:
    for argv, code in ((["topology", "import"], 0), (["topology", "doctor"], 0)):
        out, _ = run([*argv, str(folder / "topo.txt"), str(folder / "names.txt"), "--json"], capsys, code=code)
        assert str(folder) not in out


def test_files_that_count_differently_are_said(folder: Path, capsys: Capture) -> None:
    (folder / "three.txt").write_text("".join(NAMES.splitlines(keepends=True)[:3]))
    out, _ = run(["topology", "import", "topo.txt", "three.txt", "--gpu", "l40s", "--json"], capsys)
    assert "three.txt: lists 3 GPUs; the box is drawn with 4" in json.loads(out)["conflicts"]
