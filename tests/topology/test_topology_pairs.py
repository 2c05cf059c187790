"""Pairs of GPUs that differ by name only are asked once; the answers are those of each pair by itself."""

from __future__ import annotations

from typing import Any

import pytest

from pcie_sim.catalog.shipped import topology_names
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, box, from_spec, load_topology, place_pairs
from pcie_sim.topology.network import network_route
from pcie_sim.topology.routes import Route, _path_type, peer_route, staged_route

GPU = {"kind": "gpu", "part": "rtx-pro-6000-blackwell-server"}


def made(nodes: dict[str, Any], peers: list[dict[str, Any]] | None = None, **settings: Any) -> Topology:
    data = {"schema": "pcie-sim/topology/1", "name": "box", "nodes": nodes, "peers": peers or [], "settings": settings}
    return from_spec(TopologySpec.model_validate(data))


def hosts(count: int, gpus: int, nics: int) -> Topology:
    """Hosts with all GPUs and cards on one socket, on one fabric."""
    nodes: dict[str, Any] = {"fabric": {"kind": "fabric"}}
    peers = []
    for host in range(count):
        nodes[f"h{host}"] = {"kind": "host"}
        nodes[f"c{host}"] = {"kind": "socket", "part": "epyc-turin", "parent": f"h{host}"}
        for nic in range(nics):
            nodes[f"n{host}-{nic}"] = {"kind": "nic", "part": "connectx-7", "parent": f"c{host}"}
            peers.append({"between": [f"n{host}-{nic}", "fabric"], "part": "infiniband-ndr"})
        for gpu in range(gpus):
            nodes[f"g{host}-{gpu}"] = {**GPU, "parent": f"c{host}"}
    return made(nodes, peers)


def mixed() -> Topology:
    """Everything that makes two GPUs different: model, bridge, NUMA node, half-duplex link, root port with and without link."""
    nodes: dict[str, Any] = {
        "c0": {"kind": "socket", "part": "epyc-turin"},
        "c1": {"kind": "socket", "part": "epyc-turin"},
        "r0": {"kind": "root_port", "parent": "c0"},
        "r1": {"kind": "root_port", "parent": "c0", "link": "gen4 x8"},
        "r2": {"kind": "root_port", "parent": "c1"},
        "s0": {"kind": "switch", "part": "pm50100", "parent": "r2"},
        "a0": {"kind": "gpu", "part": "rtx-a6000", "parent": "c0"},
        "a1": {"kind": "gpu", "part": "rtx-a6000", "parent": "c0"},
        "a2": {"kind": "gpu", "part": "rtx-a6000", "parent": "c0"},
        "g0": {**GPU, "parent": "c0"},
        "g1": {**GPU, "parent": "r0"},
        "g2": {**GPU, "parent": "r1"},
        "g3": {**GPU, "parent": "r1"},
        "g4": {**GPU, "parent": "c0", "numa": 1},
        "g5": {**GPU, "parent": "c0", "link": "gen3 x8", "half_duplex": True},
        "g6": {**GPU, "parent": "s0"},
        "g7": {**GPU, "parent": "s0", "link": "gen4 x4"},
    }
    peers = [{"between": ["c0", "c1"], "part": "xgmi-turin"}, {"between": ["a0", "a1"], "part": "nvlink-bridge-ampere"}]
    return made(nodes, peers)


def alone(found: Topology, a: str, b: str) -> Route:
    """The route of one pair, worked out for it."""
    tree, names, where = found._tree, found._names, found._where
    kind = found.transport(a, b).kind
    if kind == "P2P":
        return peer_route(tree, names, a, b, acs=found.settings.acs == "on", where=where)
    if kind == "SHM":
        return staged_route(tree, names, a, b, where=where)
    return network_route(tree, names, found.settings, a, b, where=where)


SHIPPED = topology_names()
BOXES: dict[str, Topology] = {
    "mixed": mixed(),
    "mixed, acs": mixed().with_settings(acs="on", p2p="on", env={"NCCL_P2P_LEVEL": "SYS"}),
    "mixed, no shm": mixed().with_settings(env={"NCCL_SHM_DISABLE": "1"}),
    "hosts": hosts(3, 5, 2),
    "hosts, GPUDirect": hosts(2, 4, 3).with_settings(p2p="on", env={"NCCL_NET_GDR_LEVEL": "SYS"}),
    "hosts, sockets": hosts(2, 3, 1).with_settings(env={"NCCL_IB_DISABLE": "1"}),
} | {name: load_topology(name) for name in SHIPPED}


@pytest.mark.parametrize("name", BOXES)
def test_every_pair_gets_its_own_answer(name: str) -> None:
    found = BOXES[name]
    for a in found.gpus:
        for b in found.gpus:
            if a == b:
                continue
            assert found.path_type(a, b) == _path_type(found._tree, a, b)
            assert found.transport(a, b) == found.with_settings().transport(a, b)
            assert found.path(a, b) == alone(found, a, b)


@pytest.mark.parametrize("name", BOXES)
def test_one_pair_stands_for_all_of_its_places(name: str) -> None:
    found = BOXES[name]
    pairs = place_pairs(found)
    assert sum(pairs.values()) == len(found.gpus) * (len(found.gpus) - 1)
    first = {(found.places[a], found.places[b]): (a, b) for a, b in pairs}
    for a in found.gpus:
        for b in found.gpus:
            if a != b:
                like = first[found.places[a], found.places[b]]
                assert (found.path_type(a, b), found.transport(a, b)) == (found.path_type(*like), found.transport(*like))


def test_a_large_box_decides_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    decide = box.decide
    monkeypatch.setattr(box, "decide", lambda *args: asked.append(args) or decide(*args))
    large = hosts(32, 8, 1)
    for a in large.gpus:
        for b in large.gpus:
            if a != b:
                large.path(a, b)
    assert len(asked) == 32 * 32  # by place: every host is one
