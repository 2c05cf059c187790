"""The wheel holds everything: the demo runs from it in an empty folder, far from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_demo_runs_from_an_installed_wheel(tmp_path: Path) -> None:
    wheels, site, empty = (tmp_path / name for name in ("wheels", "site", "empty"))
    empty.mkdir()
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", wheels, ROOT], check=True, capture_output=True)
    (wheel,) = wheels.glob("pcie_sim-*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel]
    subprocess.run(install, check=True, capture_output=True)
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    where = subprocess.run(
        [sys.executable, "-c", "import pcie_sim; print(pcie_sim.__file__)"], check=True, capture_output=True, text=True, cwd=empty, env=env
    )
    assert where.stdout.startswith(str(site))
    demo = subprocess.run([sys.executable, "-m", "pcie_sim", "demo"], capture_output=True, text=True, cwd=empty, env=env)
    assert demo.returncode == 0, demo.stderr
    assert "36.0" in demo.stdout, "measured rows come with the wheel"
    assert [path.name for path in empty.iterdir()] == ["demo.png"]
    assert list(site.glob("pcie_sim-*.dist-info/licenses/NOTICE"))
