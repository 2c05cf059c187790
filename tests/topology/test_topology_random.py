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
    swap = {"up": "dn", "dn": "up", "fwd": "rev", "rev": "fwd", "mem": "mem", "both": "both"}
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


def ports_apart(data: dict[str, Any]) -> dict[str, Any]:
    """A root port of its own for each device that stands on one (a shared port turns at the root complex)."""
    nodes = data["nodes"]
    for name, node in list(nodes.items()):
        parent = node.get("parent")
        if parent in nodes and nodes[parent]["kind"] == "root_port":
            nodes[f"{parent}-{name}"] = dict(nodes[parent])
            node["parent"] = f"{parent}-{name}"
    return data


def above(nodes: dict[str, dict[str, Any]], name: str) -> set[str]:
    """All nodes over ``name``."""
    found: set[str] = set()
    while "parent" in nodes[name]:
        name = nodes[name]["parent"]
        found.add(name)
    return found


@given(specs(), st.data())
def test_half_duplex_adds_one_capacity_and_moves_nothing(data: dict[str, Any], draw: st.DataObject) -> None:
    plain = make(data)
    devices = [name for name, node in data["nodes"].items() if f"{name}.up" in plain.links and node["kind"] != "socket"]
    slow = draw.draw(st.sets(st.sampled_from(devices)))
    acs = draw.draw(st.sampled_from(["on", "off"]))
    nodes = {name: {**node, "half_duplex": True} if name in slow else node for name, node in data["nodes"].items()}
    top = make({**data, "nodes": nodes}).with_settings(acs=acs)  # type: ignore[arg-type]
    plain = plain.with_settings(acs=acs)  # type: ignore[arg-type]
    assert set(top.links) - set(plain.links) == {f"{name}.both" for name in slow}
    for a, b in itertools.permutations(top.gpus, 2):
        for mine, theirs in ((top.route(a, b), plain.route(a, b)), (top.host_route(a, b), plain.host_route(a, b))):
            assert tuple(link for link in mine.links if not link.endswith(".both")) == theirs.links
            assert mine.latency == theirs.latency
            for name in slow:
                once = mine.links.count(f"{name}.up") + mine.links.count(f"{name}.dn")
                assert mine.links.count(f"{name}.both") == once
        assert tuple(mirrored(link) for link in reversed(top.route(a, b).links)) == top.route(b, a).links


@given(specs(), st.data())
def test_virtual_switches_of_a_chip_change_peer_routes_only(data: dict[str, Any], draw: st.DataObject) -> None:
    """The library's view, staging and ACS ignore chips; the peer route is the graph's shortest path with the chip's inner edge."""
    nodes = ports_apart(data)["nodes"]
    top_level = [n for n, node in nodes.items() if node["kind"] == "switch" and nodes[node["parent"]]["kind"] == "root_port"]
    part = draw.draw(st.sampled_from(["pm50100", "pex890xx"]))
    nodes |= {name: {**nodes[name], "part": part} for name in top_level}
    plain = make(data)
    nodes |= {name: {**nodes[name], "chip": "A"} for name in top_level}
    chipped = make(data)
    graph = chipped.to_networkx()
    for a, b in itertools.permutations(chipped.gpus, 2):
        assert chipped.path_type(a, b) == plain.path_type(a, b)
        assert chipped.host_route(a, b).links == plain.host_route(a, b).links
        assert chipped.with_settings(acs="on").route(a, b).links == plain.with_settings(acs="on").route(a, b).links
        assert set(chipped.route(a, b).links) <= set(plain.route(a, b).links)
        if not all(any(name in above(nodes, gpu) for name in top_level) for gpu in (a, b)):
            assert chipped.route(a, b) == plain.route(a, b)
            continue
        way = nx.shortest_path(graph, a, b)
        names = [graph.edges[edge]["name"] for edge in itertools.pairwise(way)]
        assert chipped.route(a, b).links == tuple(name for name in names if name is not None)


@st.composite
def two_hosts(draw: st.DrawFn) -> dict[str, Any]:
    """Two random trees with one or two network cards each, on one fabric."""
    nodes: dict[str, dict[str, Any]] = {"fabric": {"kind": "fabric"}}
    peers: list[dict[str, Any]] = []
    for host in ("ha", "hb"):
        tree = draw(specs())
        nodes[host] = {"kind": "host"}
        rename = {name: f"{host}-{name}" for name in tree["nodes"]}
        for name, node in tree["nodes"].items():
            parent = rename[node["parent"]] if "parent" in node else host
            nodes[rename[name]] = {**node, "parent": parent}
        peers += [{**peer, "between": [rename[end] for end in peer["between"]]} for peer in tree["peers"]]
        places = [rename[name] for name, node in tree["nodes"].items() if node["kind"] != "gpu"]
        for i in range(draw(st.integers(1, 2))):
            nodes[f"{host}-nic{i}"] = {"kind": "nic", "part": draw(st.sampled_from(["connectx-7", "nic-100gbe"]))}
            nodes[f"{host}-nic{i}"]["parent"] = draw(st.sampled_from(places))
            peers.append({"between": [f"{host}-nic{i}", "fabric"], "part": "ethernet-400g"})
    return {"schema": "pcie-sim/topology/1", "name": "t", "nodes": nodes, "peers": peers}


@given(two_hosts(), st.sampled_from(["on", "off"]), st.sampled_from(["PIX", "PXB", "SYS"]), st.sampled_from(["0", "1"]))
def test_routes_between_hosts(data: dict[str, Any], acs: str, level: str, no_rdma: str) -> None:
    top = make(data).with_settings(acs=acs, env={"NCCL_NET_GDR_LEVEL": level, "NCCL_IB_DISABLE": no_rdma})  # type: ignore[arg-type]
    assert [top.host_of(gpu) for gpu in top.gpus] == sorted(top.host_of(gpu) for gpu in top.gpus)
    for a, b in itertools.permutations(top.gpus, 2):
        far = top.host_of(a) != top.host_of(b)
        route = top.path(a, b)
        assert (route.path_type == "NET") == far
        assert set(route.links) <= set(top.links)
        if not far:
            assert route.transport in ("P2P", "SHM")
            continue
        assert top.transport(a, b).kind == route.transport == "NET"
        assert (route.links[0], route.links[-1]) == (f"{a}.up", f"{b}.dn")
        out = [link for link in route.links if link.endswith("~fabric.fwd")]
        back = [link for link in route.links if link.endswith("~fabric.rev")]
        assert len(out) == len(back) == 1
        assert out[0].startswith(top.host_of(a))
        assert back[0].startswith(top.host_of(b))
        passes = {top.socket_of(gpu): route.links.count(f"{top.socket_of(gpu)}.mem") for gpu in (a, b)}
        if route.network == "net-sockets":
            assert set(passes.values()) == {4}
        else:
            assert no_rdma == "0"
            assert set(passes.values()) <= {0, 2}
        assert not [link for link in route.links if link.endswith(".mem") and link[:-4] not in passes]
        if acs == "off" and level == "SYS" and route.network == "net-rdma":  # direct where the driver grants peer access
            granted = {gpu: top.gpu_spec(gpu).p2p.stock_driver != "no" for gpu in (a, b)}
            assert all((passes[top.socket_of(gpu)] == 0) == granted[gpu] for gpu in (a, b))
