"""Speed of the network room. Run alone: ``python -m pytest tests/bench -m bench``. Ratios only; the figures are pytest-benchmark's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pcie_sim.network import call_times, run_flows, simulate, time_collective
from pcie_sim.network.placement import place
from pcie_sim.network.sharing import INFINITY
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import load_topology

pytestmark = pytest.mark.bench
BOX = load_topology("rtx-pro-6000-8x-2switch").with_settings(env={"NCCL_P2P_LEVEL": "SYS"})


def test_event_ring_all_reduce(benchmark: Any) -> None:
    found = benchmark(lambda: time_collective(BOX, "all_reduce", 64_000_000, engine="event"))
    assert found.steps == 14


def test_event_all_to_all(benchmark: Any) -> None:
    found = benchmark(lambda: time_collective(BOX, "all_to_all", 64_000_000, engine="event"))
    assert len(place(BOX, "all_to_all", (BOX.gpus,)).of_class) == 56
    assert found.time_s > 0


def test_bare_engine_112_transfers(benchmark: Any) -> None:
    flows = place(BOX, "all_reduce", (BOX.gpus,)).flow_set("Simple", 64e6)
    assert len(benchmark(lambda: simulate(flows)).finish) == 112


def test_call_times_for_a_grid(benchmark: Any) -> None:
    sizes = np.outer(14336 * 2.0 ** np.arange(7), np.ones(4))
    call = CollectiveCall("all_reduce", sizes, (tuple(range(8)),))
    assert benchmark(lambda: call_times(BOX, call, gpu_of_rank=BOX.gpus)).time_s.shape == (7, 4)


def shifts(nodes: int, count: int) -> dict[str, Any]:
    """``count`` shifts at once on ``nodes`` endpoints, eight a switch, 50 GB/s everywhere, 1 MB a flow."""
    links = {f"g{i}.{way}": 50e9 for i in range(nodes) for way in ("up", "dn")}
    links |= {f"s{i}.{way}": 50e9 for i in range(nodes // 8) for way in ("up", "dn")}
    routes: dict[str, list[str]] = {}
    flows: list[list[Any]] = []
    for shift in range(1, count + 1):
        for src in range(nodes):
            dst = (src + shift) % nodes
            a, b = src // 8, dst // 8
            middle = [] if a == b else [f"s{a}.up", f"s{b}.dn"]
            routes[f"g{src}>g{dst}"] = [f"g{src}.up", *middle, f"g{dst}.dn"]
            flows.append([0, f"g{src}", f"g{dst}", 1_000_000])
    return {"cases": [{"id": "shifts", "links": links, "routes": routes, "flows": flows}]}


@pytest.mark.parametrize(("nodes", "count", "crossing"), [(64, 63, 8 * 56), (512, 16, 100), (512, 64, 484)])
def test_many_flows(benchmark: Any, nodes: int, count: int, crossing: int) -> None:
    # closed form: the flows that leave a switch, over its uplink
    found = benchmark.pedantic(lambda: run_flows(shifts(nodes, count)), rounds=2)
    assert found.cases[0].makespan == pytest.approx(crossing * 1e6 / 50e9, rel=1e-9)


def clock(work: Callable[[], object], times: int) -> float:
    best = INFINITY
    for _ in range(times):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def test_the_analytic_engine_is_the_faster_one() -> None:
    grid = CollectiveCall("all_reduce", 14336 * 2.0 ** np.arange(28), (tuple(range(8)),))
    whole = clock(lambda: call_times(BOX, grid, gpu_of_rank=BOX.gpus), 10)
    single = clock(lambda: time_collective(BOX, "all_reduce", 64_000_000, engine="event"), 10)
    assert whole < 28 * single
