"""Speed of the event engine with many flows: figures, bars that only a real slip breaks, and how the ways compare in one run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plot_growth import draw, full, ratio, seconds, sizes, tree
from simgrid_flows import flows_of

from pcie_sim.network import FlowSet, simulate, simulate_arrays
from pcie_sim.network.events import _Engine, _LargeFluid, _SmallFluid
from pcie_sim.network.flowset import lists_of

pytestmark = [pytest.mark.bench, pytest.mark.benchmark(timer=time.process_time)]  # other work on the machine counts less
HERE = Path(__file__).parent


def case_flows(case: str) -> FlowSet:
    """The flows of one case of the SimGrid script; rounds wait for all flows of the one before."""
    endpoints, _, rounds = flows_of(case)
    each = len(rounds[0])
    rows = np.array(rounds, dtype=np.int64).reshape(-1, 3).T
    flows = lists_of(tree(endpoints, rows[0].astype(np.int32), rows[1].astype(np.int32), rows[2].astype(float)))
    if len(rounds) == 1:
        return flows
    deps = [tuple(range((turn - 1) * each, turn * each)) if turn else () for turn in range(len(rounds)) for _ in range(each)]
    return replace(flows, deps=deps)


@pytest.mark.parametrize(
    ("case", "bar"),
    [("ring-8", 0.0005), ("equal-8", 0.0005), ("different-8", 0.003), ("equal-64", 0.1), ("different-64", 1.0), ("shifts-512", 5.0)],
)
def test_flows(benchmark: Any, case: str, bar: float) -> None:
    flows = case_flows(case)
    found = benchmark.pedantic(lambda: simulate(flows), rounds=50 if bar < 0.01 else 3, warmup_rounds=1)
    assert found.makespan > 0
    assert benchmark.stats["min"] < bar


def test_512_endpoints(benchmark: Any) -> None:
    flows = full(512)
    found = benchmark.pedantic(lambda: simulate_arrays(flows), rounds=5, warmup_rounds=1)
    assert found.makespan == pytest.approx(0.08064, rel=1e-12)
    assert benchmark.stats["min"] < 0.3


def test_512_endpoints_in_lists(benchmark: Any) -> None:
    flows = lists_of(full(512))
    found = benchmark.pedantic(lambda: simulate(flows), rounds=3, warmup_rounds=1)
    assert found.makespan == pytest.approx(0.08064, rel=1e-12)
    assert benchmark.stats["min"] < 0.5


FARM = """
import json, resource, time
import numpy as np
from plot_growth import full
from pcie_sim.network import simulate_arrays
begun = time.perf_counter()
flows = full(4096)
built = time.perf_counter()
found = simulate_arrays(flows)
print(json.dumps([found.makespan, built - begun, time.perf_counter() - built, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.mark.benchmark(timer=time.perf_counter)
def test_4096_endpoints(benchmark: Any) -> None:
    """16.8 million flows in a process of its own, with the making of the flows."""

    def run() -> list[float]:
        path = f"{HERE}:{HERE.parents[1]}"
        done = subprocess.run([sys.executable, "-c", FARM], check=True, capture_output=True, text=True, env={"PYTHONPATH": path})
        found: list[float] = json.loads(done.stdout)
        return found

    makespan, built, solved, memory_kib = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info.update(built_s=built, solved_s=solved, memory_gib=memory_kib / 2**20)
    sys.stdout.write(f"\n16.8 M flows: made in {built:.2f} s, solved in {solved:.2f} s, {memory_kib / 2**20:.2f} GiB\n")
    assert makespan == pytest.approx(0.65408, rel=1e-12)
    assert solved < 15
    assert memory_kib < 8 * 2**20


def test_following_changes_beats_whole_solutions() -> None:
    flows = lists_of(replace(full(24), size=sizes(552, 552)))

    def whole() -> object:
        engine = _Engine(flows)
        engine.fluid = _SmallFluid(flows)
        engine.fluid.fresh = -(10**9)
        return engine.run()

    # 10 to 14 times here (more with more flows); half of the least is the bar
    assert ratio(lambda: simulate(flows), whole, 7) > 5


def test_groups_beat_single_flows() -> None:
    flows = full(64)
    single = lists_of(flows)
    assert 5 * seconds(lambda: simulate_arrays(flows)) < seconds(lambda: _Engine(single).run())


def test_a_repeating_run_keeps_its_solutions() -> None:
    flows = case_flows("ring-8")
    engine = _Engine(flows)
    engine.fluid = _LargeFluid(flows)
    engine.run()
    assert len(engine.fluid.solved) == 1
    assert seconds(lambda: simulate(flows)) < 14 * 2 * seconds(lambda: simulate(lists_of(full(8))))


def test_cost_grows_little_faster_than_the_flows() -> None:
    equal = [seconds(lambda flows=full(endpoints): simulate_arrays(flows)) for endpoints in (128, 256)]
    assert equal[1] < 3 * 4 * equal[0]
    different = [
        seconds(lambda flows=lists_of(replace(full(endpoints), size=sizes(endpoints * (endpoints - 1), 10**6))): simulate(flows))
        for endpoints in (16, 32)
    ]
    # four times the flows, twice the links that one end can reach
    assert different[1] < 3 * 8 * different[0]


def test_the_picture_of_the_growth(tmp_path: Path) -> None:
    path = tmp_path / "growth.png"
    draw(str(path), largest=64, endpoints=(8, 16))
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.skipif(importlib.util.find_spec("simgrid") is None, reason="SimGrid's Python package is not installed")
@pytest.mark.parametrize("case", ["ring-8", "equal-8", "different-8", "equal-64", "different-64", "shifts-512"])
def test_side_by_side_with_simgrid(case: str) -> None:
    command = [sys.executable, str(HERE / "simgrid_flows.py"), case]
    theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
    flows = case_flows(case)
    ours = seconds(lambda: simulate(flows))
    sys.stdout.write(f"\n{case}: SimGrid {theirs['seconds']:.4f} s (with its Python calls), pcie-sim {ours:.4f} s\n")
    assert simulate(flows).makespan == pytest.approx(theirs["makespan"], rel=1e-6)
