"""How the event engine's cost grows with flows and with distinct finish times: ``python tests/bench/plot_growth.py growth.png``."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pcie_sim.network import FlowArrays, all_pairs, simulate, simulate_arrays, tree_routes
from pcie_sim.network.events import _Engine
from pcie_sim.network.flowset import lists_of

GOLDEN = 0.6180339887498949
Points = list[tuple[int, float]]


def tree(endpoints: int, source: np.ndarray, target: np.ndarray, size: np.ndarray | float) -> FlowArrays:
    """Flows between endpoints, eight a switch (four of eight), 50 GB/s everywhere."""
    local = 4 if endpoints == 8 else 8
    switches = endpoints // local
    parent = [endpoints + index // local for index in range(endpoints)] + [-1] * switches
    return FlowArrays(np.full(2 * (endpoints + switches), 50e9), tree_routes(parent, source, target), size)


def full(endpoints: int, size: np.ndarray | float = 1e6) -> FlowArrays:
    """All ordered pairs at once."""
    return tree(endpoints, *all_pairs(endpoints), size)


def sizes(count: int, kinds: int) -> np.ndarray:
    """``kinds`` sizes from 1 to 2 MB in no order."""
    return 1e6 + 1e6 * np.modf((np.arange(count) * 7919 % kinds) * GOLDEN)[0]


def seconds(work: object, least: float = 0.05) -> float:
    """Processor time of one call, the best of some."""
    best, spent = float("inf"), 0.0
    while spent < least:
        begun = time.process_time()
        work()  # type: ignore[operator]
        taken = time.process_time() - begun
        best, spent = min(best, taken), spent + max(taken, 1e-6)
    return best


def ratio(one: Callable[[], object], other: Callable[[], object], times: int) -> float:
    """Processor time of ``other`` over that of ``one``: the median of ``times`` pairs, each run one right after the other, so that
    what else the machine does meets both.
    """
    found: list[float] = []
    for work in (one, other):
        work()
    for _ in range(times):
        spent: list[float] = []
        for work in (one, other):
            begun = time.process_time()
            work()
            spent.append(max(time.process_time() - begun, 1e-6))
        found.append(spent[1] / spent[0])
    return statistics.median(found)


def by_flows(largest: int) -> dict[str, Points]:
    """Seconds by number of flows of a full All-to-All."""
    found: dict[str, Points] = {"equal sizes": [], "equal sizes, flow by flow": [], "all sizes different": []}
    for endpoints in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        if endpoints > largest:
            break
        flows = full(endpoints)
        found["equal sizes"].append((flows.count, seconds(lambda flows=flows: simulate_arrays(flows))))
        if endpoints <= min(largest, 256):
            single = lists_of(flows)
            found["equal sizes, flow by flow"].append((flows.count, seconds(lambda single=single: _Engine(single).run())))
        if endpoints <= min(largest, 128):
            different = lists_of(replace(flows, size=sizes(flows.count, flows.count)))
            found["all sizes different"].append((flows.count, seconds(lambda different=different: simulate(different))))
    return found


def by_finish_times(endpoints: int) -> dict[str, Points]:
    """Seconds by number of moments at which something ends, of one All-to-All."""
    flows = full(endpoints)
    points: Points = []
    kinds = 1
    while kinds < 4 * flows.count:
        single = lists_of(replace(flows, size=sizes(flows.count, min(kinds, flows.count))))
        points.append((simulate(single).events - 1, seconds(lambda single=single: simulate(single))))
        kinds *= 4
    return {f"{flows.count:,} flows, {endpoints} endpoints": points}


def draw(path: str, largest: int = 2048, endpoints: tuple[int, ...] = (16, 32, 64)) -> None:
    """Measure and write the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, points in by_flows(largest).items():
        left.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    left.set(xlabel="flows at once (full All-to-All)", title="Cost by flows")
    for count in endpoints:
        for name, points in by_finish_times(count).items():
            right.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    right.set(xlabel="moments at which flows end", title="Cost by distinct finish times")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylabel="seconds of processor time")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "growth.png")
