"""Every command and program in the documents is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pcie_sim.cli.main import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)


def commands() -> list[str]:
    found = []
    for name in DOCUMENTS:
        for block in blocks(name, "bash"):
            found += [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("pcie-sim")]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's topology file, as a reader would have written it."""
    (tmp_path / "mybox.yaml").write_text(blocks("README.md", "yaml")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_is_something_to_run() -> None:
    assert len(commands()) >= 8
    assert len(blocks("README.md", "python")) == 1
    assert len(blocks("README.md", "yaml")) == 1


@pytest.mark.parametrize("command", commands())
def test_command(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)[1:]) == 0
    out, err = capsys.readouterr()
    assert out
    assert "error" not in err


@pytest.mark.parametrize("program", blocks("README.md", "python"))
def test_program(program: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) == 5
    exec(compile(program, "README.md", "exec"), {})  # noqa: S102 - our own document
    assert "Winner(" in capsys.readouterr().out


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
        "flows",
        "topology-show",
        "topology-list",
        "model-show",
        "model-list",
        "gpu-show",
        "gpu-list",
    ):
        assert f"{verb}/1" in text
