"""All-to-All beside AllReduce: which is faster, and which has more bus bandwidth, measured and predicted."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from pcie_sim import catalog
from pcie_sim.network import call_times
from pcie_sim.scoring import collective
from pcie_sim.specs.ops import Array, CollectiveCall
from pcie_sim.study.measured import load_set
from pcie_sim.topology import load_topology

SET = "collectives-rtx-pro-6000-8x-aiconfigurator"
TREES = (
    "rtx-pro-6000-8x-2switch",
    "rtx-pro-6000-8x-direct-1socket",
    "rtx-pro-6000-8x-direct-2socket",
    "rtx-pro-6000-8x-asus-broadcom",
    "rtx-pro-6000-8x-wrx90-2vs-v1",
    "rtx-pro-6000-8x-wrx90-3switch-hier",
    "rtx-pro-6000-8x-4switch-2xeon",
)
"""Boxes of eight of the same card with different trees: the measured host's own is not published; the last is what it looks like."""
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
RANKS = 8
TURN = 1 << 20


def _verdict(sizes: Array, exchange: Array, reduction: Array) -> tuple[bool, bool]:
    """Faster at every size below 1 MiB; less bus bandwidth at every size above (AllReduce moves 2(n-1)/n, All-to-All (n-1)/n)."""
    below, above = sizes < TURN, sizes > TURN
    return bool(np.all(exchange[below] < reduction[below])), bool(np.all(1 / exchange[above] < 2 / reduction[above]))


def against_all_reduce(constants: collective.Constants) -> dict[str, Any]:
    """What was measured, and what is predicted on every tree, with the default level and with SYS."""
    held = load_set(f"{SET}/collective.yaml")
    times: dict[str, dict[int, float]] = {}
    for row in held.rows:
        if row.ranks == RANKS and row.op is not None and row.bytes is not None:
            times.setdefault(row.op, {})[row.bytes] = row.si_value
    sizes = sorted(times["all_to_all"])
    array = np.array([float(size) for size in sizes])
    measured = [np.array([times[op][size] for size in sizes]) for op in ("all_to_all", "all_reduce")]
    faster, slower = _verdict(array, measured[0], measured[1])
    found: dict[str, Any] = {"set": held.id, "faster_below": faster, "slower_above": slower, "trees": []}
    for name in TREES:
        for level in ("default", "SYS"):
            with catalog.using_parts(collective.parts_with(constants)):
                topology = load_topology(name).with_settings(
                    ccl=held.software.ccl.version, env={} if level == "default" else {"NCCL_P2P_LEVEL": level}
                )
                predicted = [
                    call_times(topology, CollectiveCall(op, array, (tuple(range(RANKS)),)), gpu_of_rank=topology.gpus).time_s
                    for op in ("all_to_all", "all_reduce")
                ]
            faster, slower = _verdict(array, predicted[0], predicted[1])
            found["trees"].append({"topology": name, "level": level, "faster_below": faster, "slower_above": slower})
    return found


def on_inferred_tree(constants: collective.Constants) -> list[dict[str, Any]]:
    """Median error by op and ranks of the host's tables on the tree inferred for it, with constants fitted without them."""
    items = collective.on_stand_in(SET, OPS)
    with catalog.using_parts(collective.parts_with(constants)):
        scores = collective.predict(items)
    found: list[dict[str, Any]] = []
    for op in OPS:
        for ranks in sorted({item.case.row.ranks or 0 for item in scores}):
            same = [item for item in scores if (item.case.row.op, item.case.row.ranks) == (op, ranks)]
            errors = sorted(abs(item.error) for item in same)
            found.append({"op": op, "ranks": ranks, "rows": len(same), "median": statistics.median(errors), "worst": errors[-1]})
    return found
