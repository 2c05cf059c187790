"""Every command and program in the documents is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import pcie_sim as ps
from pcie_sim.cli.main import main
from pcie_sim.specs.machine import NodeSpec, SettingsSpec

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)


def commands() -> list[tuple[str, ...]]:
    """Every command, after the earlier ones of its block that write a file it names."""
    found = []
    for name in DOCUMENTS:
        for block in blocks(name, "bash"):
            lines = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("pcie-sim")]
            for place, line in enumerate(lines):
                words = shlex.split(line)
                found.append((*(earlier for earlier in lines[:place] if written(earlier) in words), line))
    return found


def written(command: str) -> str:
    """The file after ``-o``; nothing where there is none."""
    words = shlex.split(command)
    return words[words.index("-o") + 1] if "-o" in words else ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's files, as a reader would have written them."""
    files = {"yaml": ("mybox.yaml", "myflows.yaml"), "text": ("topo.txt", "all_reduce.log"), "json": ("config.json",)}
    for language, names in files.items():
        for name, text in zip(names, blocks("README.md", language), strict=True):
            (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_something_to_run() -> None:
    assert len(commands()) >= 8
    assert len(blocks("README.md", "python")) == 1
    assert len(blocks("README.md", "yaml")) == 2


@pytest.mark.parametrize("lines", commands(), ids=lambda lines: lines[-1])
def test_command(lines: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "error" not in err


@pytest.mark.parametrize("program", blocks("README.md", "python"))
def test_program(program: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) == 5
    exec(compile(program, "README.md", "exec"), {})  # noqa: S102 - our own document
    assert "Winner(" in capsys.readouterr().out


def test_the_flows_of_the_readme(folder: Path) -> None:
    """By hand: 5 ms alone at 56 GB/s (0.28 GB), then 28 GB/s each until the first has its other 0.72 GB, then the second alone."""
    (case,) = ps.flows("myflows.yaml").cases
    first = 0.005 + 0.72 / 28
    last = first + 0.28 / 56
    assert case.finish == pytest.approx((first, last, last + first, 2 * last))


@pytest.mark.parametrize("key", sorted({*SettingsSpec.model_fields, *NodeSpec.model_fields} - {"kind", "part", "parent"}))
def test_every_key_of_a_box_is_in_the_readme(key: str) -> None:
    assert re.search(rf"[`{{ .]{key}\b", (ROOT / "README.md").read_text(encoding="utf-8"))


def test_what_the_readme_says_of_other_keys_is_accepted(tmp_path: Path) -> None:
    more = {"max_payload": 512, "force_p2p": False, "conditions": ["posted_write_collapse"]}
    assert SettingsSpec.model_validate(more).conditions == ("posted_write_collapse",)
    assert NodeSpec.model_validate({"kind": "switch", "chip": "A", "half_duplex": True, "numa": 2}).chip == "A"


@pytest.mark.parametrize("name", [*DOCUMENTS, "CHANGELOG.md"])
def test_files_that_documents_name_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:pcie_sim|topologies|validation|notebooks|tests)/[\w./-]*)`", text)
    missing = [path for path in paths if not (ROOT / path).exists() and not path.startswith("tests/")]
    assert not missing


def test_every_verb_has_its_line_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in (
        "compare",
        "predict",
        "collective",
        "calibrate",
        "flows",
        "topology-show",
        "topology-list",
        "model-show",
        "model-list",
        "gpu-show",
        "gpu-list",
    ):
        assert f"{verb}/1" in text
