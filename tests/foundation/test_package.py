"""The wheel and the sdist: what is in them, what is not, and that an installed wheel answers from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import pcie_sim
from pcie_sim import catalog

ROOT = Path(pcie_sim.__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"] if (ROOT / "pyproject.toml").is_file() else {}


def built(hook: str, folder: Path, *, source: Path = ROOT) -> Path:
    """The file that hatchling's build hook makes, in a process of its own (it works in the current folder)."""
    script = f"import sys, hatchling.build as backend\nprint(backend.{hook}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(folder)], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("build_sdist", tmp_path_factory.mktemp("sdist"))


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(name).decode()


def expected() -> set[str]:
    """Every file of the package and of the two shipped folders, as they are called in the wheel."""
    found = set()
    for top, prefix in (
        ("pcie_sim", "pcie_sim"),
        ("topologies", "pcie_sim/_shipped/topologies"),
        ("validation", "pcie_sim/_shipped/validation"),
    ):
        for path in (ROOT / top).rglob("*"):
            inside = path.relative_to(ROOT / top)
            if path.is_file() and path.suffix not in (".pyc", ".pyo") and not {"__pycache__", "_shipped"} & set(inside.parts):
                found.add(str(PurePosixPath(prefix, *inside.parts)))
    return found


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    held = {name for name in members(wheel) if ".dist-info/" not in name}
    assert held == expected()
    assert "pcie_sim/py.typed" in held
    for kind in catalog.KINDS:
        for name in catalog.names(kind):
            assert f"pcie_sim/catalog/{kind}/{name}.yaml" in held
    for name in catalog.topology_names():
        assert f"pcie_sim/_shipped/topologies/{name}.yaml" in held
    assert "pcie_sim/_shipped/validation/index.yaml" in held
    assert sum(name.startswith("pcie_sim/specs/schemas/") for name in held) >= 7
    assert not [name for name in held if "test" in PurePosixPath(name).parts[0] or name.endswith((".ipynb", ".pyc"))]


def test_every_file_that_the_index_names_is_in_the_wheel(wheel: Path) -> None:
    from pcie_sim.specs.loader import parse_yaml

    with zipfile.ZipFile(wheel) as archive:
        index = parse_yaml(archive.read("pcie_sim/_shipped/validation/index.yaml").decode())
    assert {f"pcie_sim/_shipped/validation/{entry['file']}" for entry in index["sets"]} <= members(wheel)


def test_metadata(wheel: Path) -> None:
    found = Parser().parsestr(metadata(wheel))
    assert found["Name"] == "pcie-sim"
    assert found["Version"] == pcie_sim.__version__ == PROJECT["version"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    core = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = sorted(line.split(">")[0] for line in core)
    assert names == ["defusedxml", "matplotlib", "networkx", "numpy", "pydantic", "pyyaml", "scipy", "typer"]  # design section 6
    with zipfile.ZipFile(wheel) as archive:
        (scripts,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "pcie-sim = pcie_sim.cli.main:main" in archive.read(scripts).decode()
        texts = {name.rsplit("/", 1)[1]: archive.read(name).decode() for name in archive.namelist() if "/licenses/" in name}
    assert "Apache License" in texts["LICENSE"]
    assert sorted(texts) == sorted(name for name in ("LICENSE", "NOTICE") if (ROOT / name).is_file())


def test_the_readme_is_the_long_description(wheel: Path) -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").strip() in metadata(wheel)


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert source.name == f"pcie_sim-{pcie_sim.__version__}"
    for name in ("pyproject.toml", "README.md", "LICENSE", "tests/conftest.py", "tests/foundation/test_package.py"):
        assert (source / name).is_file(), name
    (tmp_path / "again").mkdir()
    assert members(built("build_wheel", tmp_path / "again", source=source)) == members(wheel)


def test_the_build_tools_are_in_the_dev_extra() -> None:
    assert any(line.startswith("hatchling") for line in PROJECT["optional-dependencies"]["dev"])


@pytest.mark.long
def test_an_installed_wheel_answers_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    home, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    venv.create(home, with_pip=True, system_site_packages=False)
    tools = home / ("Scripts" if os.name == "nt" else "bin")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def run(*command: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(list(map(str, command)), cwd=empty, env=env, capture_output=True, text=True, timeout=900)
        assert done.returncode in codes, done.stderr[-2000:]
        return done.stdout

    run(tools / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    where = run(tools / "python", "-c", "import pcie_sim; print(pcie_sim.__file__)")
    assert Path(where.strip()).is_relative_to(home)
    assert run(tools / "pcie-sim", "--version").strip() == f"pcie-sim {pcie_sim.__version__}"
    demo = json.loads(run(tools / "pcie-sim", "demo", "--no-plot", "--json"))
    assert demo["schema"] == "pcie-sim/compare/1"
    assert demo["measured"], "the shipped measurements were not found"
    for box in catalog.topology_names():
        asked = ("compare", "--topology", box, "--model", "qwen3-30b-a3b", "--concurrency", "1", "--json")
        assert json.loads(run(tools / "pcie-sim", *asked, codes=(0, 1)))["topology"] == box, "1: it does not fit there"
    assert not list(empty.iterdir())
