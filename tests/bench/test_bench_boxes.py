"""Large boxes and flows files: how the cost grows, as ratios within one run (medians of interleaved repeats)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plot_growth import ratio

from pcie_sim.errors import InputError
from pcie_sim.network import run_flows, time_collective
from pcie_sim.report.box import box_document
from pcie_sim.specs.loader import parse_yaml
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec

pytestmark = pytest.mark.bench


def one_socket(gpus: int) -> TopologySpec:
    """All GPUs on one socket."""
    gpu = {"kind": "gpu", "part": "rtx-pro-6000-blackwell-server", "parent": "c0"}
    nodes: dict[str, Any] = {"c0": {"kind": "socket", "part": "epyc-turin"}} | {f"g{index}": gpu for index in range(gpus)}
    return TopologySpec.model_validate({"schema": "pcie-sim/topology/1", "name": "one", "nodes": nodes})


def hosts(count: int) -> TopologySpec:
    """Hosts of eight GPUs and a card on one fabric."""
    nodes: dict[str, Any] = {"fabric": {"kind": "fabric"}}
    peers = []
    for host in range(count):
        nodes[f"h{host}"] = {"kind": "host"}
        nodes[f"c{host}"] = {"kind": "socket", "part": "epyc-turin", "parent": f"h{host}"}
        nodes[f"n{host}"] = {"kind": "nic", "part": "connectx-7", "parent": f"c{host}"}
        peers.append({"between": [f"n{host}", "fabric"], "part": "infiniband-ndr"})
        for gpu in range(8):
            nodes[f"g{host}-{gpu}"] = {"kind": "gpu", "part": "rtx-pro-6000-blackwell-server", "parent": f"c{host}"}
    return TopologySpec.model_validate({"schema": "pcie-sim/topology/1", "name": "hosts", "nodes": nodes, "peers": peers})


def exchange(spec: TopologySpec) -> Callable[[], object]:
    """An All-to-All on a box that nothing is known of yet."""
    return lambda: time_collective(from_spec(spec), "all_to_all", "1MiB")


def every_pair(box: Topology) -> int:
    """Ask for all pairs without anything else."""
    return sum([box.path(a, b) is not None for a in box.gpus for b in box.gpus if a != b])


@pytest.mark.parametrize("box", [one_socket, lambda gpus: hosts(gpus // 8)], ids=["one socket", "hosts"])
def test_an_exchange_costs_a_few_looks_at_its_pairs(box: Callable[[int], TopologySpec]) -> None:
    """16 times the pairs cost little more than 16 times as much, and all but the routes only a few times the routes."""
    assert ratio(exchange(box(32)), exchange(box(128)), 3) < 2 * 16
    large = from_spec(box(128))
    assert ratio(lambda: every_pair(large), exchange(box(128)), 3) < 20


@pytest.mark.parametrize("box", [one_socket, lambda gpus: hosts(gpus // 8)], ids=["one socket", "hosts"])
def test_a_page_about_a_box_costs_what_its_matrices_cost(box: Callable[[int], TopologySpec]) -> None:
    spec = box(128)
    large = from_spec(spec)
    assert ratio(lambda: every_pair(large), lambda: box_document(from_spec(spec)), 3) < 4


def test_refusing_a_box_does_not_grow_with_it() -> None:
    def text(gpus: int) -> str:
        head = "schema: pcie-sim/topology/1\nname: x\nnodes:\n  c0: {kind: socket, part: epyc-turin}\n"
        return head + "".join([f"  g{index}: {{kind: gpu, part: rtx-4090, parent: c0}}\n" for index in range(gpus)])

    def refused(content: str) -> None:
        with pytest.raises(InputError, match="at most 512 nodes"):
            parse_yaml(content, most=(30_000, "a box has at most 512 nodes"))

    few, many = text(5_000), text(40_000)
    assert ratio(lambda: refused(few), lambda: refused(many), 5) < 2


def flows(links: int, sizes: list[int]) -> Callable[[], object]:
    """Flows on one route."""
    names = [f"l{index}" for index in range(links)]
    rows = [[0, "a", "b", size] for size in sizes]
    data = {"cases": [{"id": "c", "links": dict.fromkeys(names, 10), "routes": {"a>b": names}, "flows": rows}]}
    return lambda: run_flows(data)


def test_equal_flows_on_a_long_route_cost_what_their_lines_cost() -> None:
    equal = [1] * 1_000
    assert ratio(flows(1, equal), flows(1_000, equal), 5) < 10


def test_links_in_series_cost_what_one_costs() -> None:
    sizes = [1 + place * 7919 % 5_003 for place in range(5_000)]
    assert ratio(flows(2, sizes), flows(200, sizes), 5) < 2
