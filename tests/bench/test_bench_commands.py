"""How long a person waits. Run by ``make bench``; bars are generous, so that only a real slip fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pcie_sim as ps

pytestmark = pytest.mark.bench
ROOT = Path(__file__).parents[2]
BOX = "rtx-pro-6000-8x-2switch"


@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "table"])
def test_cold_compare(benchmark: BenchmarkFixture, form: list[str]) -> None:
    """A new process each time: about a second (design)."""
    command = [sys.executable, "-m", "pcie_sim", "compare", "--topology", BOX, "--model", "kimi-k2.6", *form]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True, cwd=ROOT), rounds=5, warmup_rounds=1)
    assert benchmark.stats["median"] < 2.0


def test_warm_compare(benchmark: BenchmarkFixture) -> None:
    box = ps.load_topology(BOX)
    benchmark(lambda: ps.compare(box, model="kimi-k2.6"))
    assert benchmark.stats["median"] < 0.5


def test_plot(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    from pcie_sim.report.plots import save_plot

    runs = ps.compare(BOX, model="kimi-k2.6", strategies=["tp8", "pp8", "ep8:allreduce"])
    benchmark.pedantic(lambda: save_plot(runs, str(tmp_path / "a.png")), rounds=3, warmup_rounds=1)
    assert benchmark.stats["median"] < 3.0
