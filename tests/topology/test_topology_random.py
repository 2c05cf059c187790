"""Invariants over random trees; networkx's shortest paths are the independent oracle for the routes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec

LINKS = ("gen3 x8", "gen4 x16", "gen5 x8", "gen5 x16")


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """One to three joined sockets, root ports with and without a link, switches up to three deep, two to eight GPUs."""
    sockets = [f"cpu{i}" for i in range(draw(st.integers(1, 3)))]
    nodes: dict[str, dict[str, Any]] = {name: {"kind": "socket", "part": "generic-amd"} for name in sockets}
    ports = [f"rp{i}" for i in range(draw(st.integers(1, 4)))]
    for name in ports:
        nodes[name] = {"kind": "root_port", "parent": draw(st.sampled_from(sockets))}
        if draw(st.booleans()):
            nodes[name]["link"] = draw(st.sampled_from(LINKS))
    above = list(ports)
    for i in range(draw(st.integers(0, 5))):
        part = draw(st.sampled_from(["pm50100", "pex890xx", "generic-gen4-switch"]))
        nodes[f"sw{i}"] = {"kind": "switch", "part": part, "parent": draw(st.sampled_from(above)), "links": draw(st.integers(1, 2))}
        above.append(f"sw{i}")
    for i in range(draw(st.integers(2, 8))):
        part = draw(st.sampled_from(["rtx-pro-6000-blackwell-server", "rtx-4090"]))
        nodes[f"gpu{i}"] = {"kind": "gpu", "part": part, "parent": draw(st.sampled_from([*above, *sockets]))}
        if draw(st.booleans()):
            nodes[f"gpu{i}"]["link"] = draw(st.sampled_from(LINKS))
    peers = [{"between": [a, b], "part": "xgmi-turin"} for i, a in enumerate(sockets) for b in sockets[i + 1 :]]
    buses = draw(st.permutations(range(1, 9)))
    for i in range(8):
        if f"gpu{i}" in nodes:
            nodes[f"gpu{i}"]["bus"] = f"{buses[i]:02x}:00.0"
    return {"schema": "pcie-sim/topology/1", "name": "t", "nodes": nodes, "peers": peers}


def make(data: dict[str, Any]) -> Topology:
    return from_spec(TopologySpec.model_validate(data))


def mirrored(link: str) -> str:
    swap = {"up": "dn", "dn": "up", "fwd": "rev", "rev": "fwd", "mem": "mem"}
    node, way = link.rsplit(".", 1)
    return f"{node}.{swap[way]}"


@given(specs(), st.sampled_from(["on", "off"]))
def test_peer_routes(data: dict[str, Any], acs: str) -> None:
    top = make(data).with_settings(acs=acs)  # type: ignore[arg-type]
    for a in top.gpus:
        for b in top.gpus:
            if a == b:
                continue
            route, back = top.route(a, b), top.route(b, a)
            assert tuple(mirrored(link) for link in reversed(route.links)) == back.links
            assert route.links[0] == f"{a}.up"
            assert route.links[-1] == f"{b}.dn"
            assert len(set(route.links)) == len(route.links)
            assert set(route.links) <= set(top.links)
            assert top.path_type(a, b) == top.path_type(b, a) == route.path_type
            assert route.latency.value == back.latency.value > 0
            assert (route.path_type == "SYS") == route.crosses_socket == (top.socket_of(a) != top.socket_of(b))


@given(specs())
def test_peer_routes_are_the_shortest_paths_of_the_graph(data: dict[str, Any]) -> None:
    """Without ACS and without root ports shared by devices, a tree with joined sockets has one shortest path."""
    nodes = data["nodes"]
    for name, node in list(nodes.items()):  # a shared root port turns at the root complex: give each device its own
        parent = node.get("parent")
        if parent in nodes and nodes[parent]["kind"] == "root_port":
            nodes[f"{parent}-{name}"] = dict(nodes[parent])
            node["parent"] = f"{parent}-{name}"
    top = make(data)
    graph = top.to_networkx()
    for a in top.gpus:
        for b in top.gpus:
            if a != b:
                way = nx.shortest_path(graph, a, b)
                names = [graph.edges[edge]["name"] for edge in itertools.pairwise(way)]
                assert top.route(a, b).links == tuple(name for name in names if name is not None)


@given(specs())
def test_staged_routes(data: dict[str, Any]) -> None:
    top = make(data)
    for a in top.gpus:
        for b in top.gpus:
            if a == b:
                continue
            route = top.host_route(a, b)
            memory = f"{top.socket_of(b)}.mem"
            assert [link for link in route.links if route.links.count(link) > 1] == [memory, memory]
            at = route.links.index(memory)
            assert all(link.endswith((".up", ".fwd", ".rev")) for link in route.links[:at])
            assert all(link.endswith(".dn") for link in route.links[at + 2 :])
            assert (route.links[0], route.links[-1]) == (f"{a}.up", f"{b}.dn")
            assert set(top.with_settings(acs="on").route(a, b).links) == set(route.links) - {memory}


@given(specs(), st.randoms(use_true_random=False))
def test_bus_order_and_capacities_do_not_depend_on_the_order_of_the_file(data: dict[str, Any], rng: random.Random) -> None:
    top = make(data)
    names = list(data["nodes"])
    rng.shuffle(names)
    again = make({**data, "nodes": {name: data["nodes"][name] for name in names}})
    assert again.gpus == top.gpus
    assert again.capacities() == top.capacities()
    buses = [top.spec.nodes[name].bus or "" for name in top.gpus]
    assert buses == sorted(buses)


@given(specs())
def test_capacities_are_positive_and_sourced(data: dict[str, Any]) -> None:
    top = make(data)
    for name, capacity in top.links.items():
        assert capacity.name == name
        assert capacity.rate.value > 0
        assert capacity.rate.source
        if capacity.rate.low is not None and capacity.rate.high is not None:
            assert capacity.rate.low <= capacity.rate.value <= capacity.rate.high
    assert all(top.links[f"{gpu}.up"].rate == top.links[f"{gpu}.dn"].rate for gpu in top.gpus)
