"""The library's graph search against published graphs, logs and a table of results worked out for common boxes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_boxes import box

from pcie_sim.network.nccl_graph import PHB, PXB, SYS, Net, Path, System, see
from pcie_sim.network.nccl_rules import rules
from pcie_sim.network.nccl_search import Graph, find
from pcie_sim.specs.part import LibraryTuning
from pcie_sim.topology import Topology, load_topology
from pcie_sim.topology.policy import LEVELS


def tuning(version: str = "2.28") -> LibraryTuning:
    found = rules("nccl", version)
    assert found is not None
    return found


def searched(topology: Topology) -> tuple[Graph, Graph]:
    own = tuning(topology.settings.ccl.version)
    return find(see(topology, topology.gpus, own), own)


def shown(graph: Graph) -> tuple[int, float, str]:
    return len(graph.channels), graph.speed, LEVELS[graph.kind]


AMD, SPR, EMR, ICX = "epyc-turin", "xeon-sapphire-rapids", "xeon-emerald-rapids", "xeon-ice-lake"


@pytest.mark.parametrize(
    ("gpu", "cpu", "layout", "expected"),
    # The rules of NVIDIA/nccl:src/graph/search.cc and topo.h worked out for 8 GPUs at x16: search channels, GB/s of each, path class
    [
        *[
            (gpu, AMD, layout, (2, speed, "PHB"))
            for gpu, speed in (("sm_89", 12.0), ("sm_90", 24.0), ("sm_120", 24.0))
            for layout in ({}, {"switches": 2}, {"switches": 4})
        ],
        *[
            (gpu, AMD, {"switches": 2, "leaf": True}, (2, speed, "PXB"))
            for gpu, speed in (("sm_89", 12.0), ("sm_90", 24.0), ("sm_120", 24.0))
        ],
        *[(gpu, AMD, layout, (1, 15.0, "SYS")) for gpu in ("sm_89", "sm_90") for layout in ({"sockets": 2}, {"numa": 4})],
        *[("sm_120", AMD, layout, (1, 0.1, "SYS")) for layout in ({"sockets": 2}, {"numa": 4})],
        ("sm_89", SPR, {}, (1, 20.0, "PHB")),
        ("sm_90", SPR, {}, (2, 20.0, "PHB")),
        ("sm_120", SPR, {}, (2, 20.0, "PHB")),
        ("sm_89", SPR, {"sockets": 2}, (1, 20.0, "SYS")),
        ("sm_90", SPR, {"sockets": 2}, (2, 11.0, "SYS")),
        ("sm_120", SPR, {"sockets": 2}, (1, 20.0, "SYS")),
        ("sm_89", EMR, {"sockets": 2}, (1, 20.0, "SYS")),
        ("sm_89", EMR, {"sockets": 2, "switches": 4}, (1, 20.0, "SYS")),
        ("sm_89", EMR, {"sockets": 2, "switches": 2}, (2, 12.0, "SYS")),
        ("sm_90", EMR, {"sockets": 2}, (2, 20.0, "SYS")),
        ("sm_120", EMR, {"sockets": 2}, (2, 20.0, "SYS")),
        ("sm_89", ICX, {"sockets": 2}, (1, 10.0, "SYS")),
    ],
)
def test_results_on_common_boxes(gpu: str, cpu: str, layout: dict[str, int], expected: tuple[int, float, str]) -> None:
    ring, _ = searched(box(gpu, cpu, **layout))  # type: ignore[arg-type]
    assert shown(ring) == expected
    assert ring.fallback == (expected[1] == 0.1)
    assert set(ring.channels) == {tuple(range(8))}  # 0-1-2-3-4-5-6-7 in every case


@pytest.mark.parametrize(
    ("topology", "expected", "source"),
    [
        (
            box("sm_89", ICX, sockets=2, switches=2, p2p="off", env={}),
            (1, 5.0, "SYS"),
            "NVIDIA/nccl-tests#307: 8x RTX 4090, dual Intel, one Gen4 switch a socket, no P2P",
        ),
        (
            box("sm_86", ICX, sockets=2, gpus=4, link="gen3 x16", env={}),
            (1, 10.0, "SYS"),
            "zy-uestc/yccl:graph.xml: 4x A6000 on Gen3 root ports of two Skylake sockets",
        ),
        (
            box("sm_89", "epyc-rome", gpus=4, numa=4, p2p="off", env={}, version="2.28.9"),
            (1, 15.0, "SYS"),
            "sugarlxn/nccl_test:nccl_trace.log: 4x RTX 4090, EPYC with 4 NUMA nodes, NCCL 2.28.9, via SHM/direct",
        ),
        (
            box("sm_120", "epyc-turin", sockets=2),
            (1, 0.1, "SYS"),
            "local-inference-lab/rtx6kpro and NVIDIA/nccl#2127: 8x RTX PRO 6000, dual Turin",
        ),
        (
            load_topology("h200-2x-host-staged"),
            (2, 20.0, "PHB"),
            "two H200s, NCCL 2.28.9, NCCL_GRAPH_DUMP_FILE with NCCL_P2P_DISABLE=1",
        ),
    ],
)
def test_published_graphs(topology: Topology, expected: tuple[int, float, str], source: str) -> None:
    ring, tree = searched(topology)
    assert shown(ring) == expected, source
    assert LEVELS[ring.kind_inter] == ("SYS" if ring.fallback else "PIX"), source
    assert ring.channels[0] == tuple(range(len(topology.gpus))), source
    assert len(tree.channels) == len(ring.channels), source


def test_h200_pair_over_host_memory_to_the_letter() -> None:
    # two H200s, NCCL 2.28.9, NCCL_GRAPH_DUMP_FILE, peer access off: trees run both ways at twice the ring's speed
    ring, tree = searched(load_topology("h200-2x-host-staged"))
    assert (ring.channels, ring.same) == (((0, 1), (0, 1)), True)
    assert (tree.channels, tree.speed, LEVELS[tree.kind], tree.same) == (((0, 1), (1, 0)), 40.0, "PHB", False)


def test_h200_pair_over_nvlink() -> None:
    # two H200s, NCCL 2.28.9, NCCL_GRAPH_DUMP_FILE: rings 12 x 30 NVL, trees 12 x 60 NVL half of them the other way; 24 channels
    path = [[None, Path(1, (0,), (False,))], [Path(1, (1,), (False,)), None]]
    width = 18 * tuning().nvlink_rate["9.0"] / 1e9
    system = System(("a", "b"), (width, width), tuple(tuple(row) for row in path), width, ((9, 0), (9, 0)), amd=False)
    ring, tree = find(system, tuning())
    assert (len(ring.channels), ring.speed, LEVELS[ring.kind]) == (12, 30.0, "NVL")
    assert (len(tree.channels), tree.speed, LEVELS[tree.kind], tree.same) == (12, 60.0, "NVL", False)
    assert tree.channels == ((0, 1),) * 6 + ((1, 0),) * 6


def test_a_ring_that_leaves_the_box_by_a_card() -> None:
    # Panlichen/nccl-tests commit 86fe5c5, topo.xml and graph.xml, NCCL 2.18.1: 8x RTX 3090, two Ice Lake sockets with one Gen4
    # switch each, no P2P, a 56 Gbit/s card (no GPUDirect) below the second switch: one channel of 4.0, SYS/SYS, order 0 to 7
    own = tuning("2.18")
    seen = see(box("sm_86", ICX, sockets=2, switches=2, p2p="off", env={}, version="2.18"), [f"gpu{i}" for i in range(8)], own)
    names = {name: index for index, name in enumerate(_link_names(seen))}
    widths = (*seen.widths, 24.0, 24.0)
    card_up, card_dn = len(seen.widths), len(seen.widths) + 1
    to_gpu, from_gpu = [], []
    for index in range(8):
        near = index >= 4
        gpu_up, gpu_dn, sw_up, sw_dn = (names[f"{item}"] for item in (f"g{index}.up", f"g{index}.dn", f"s{near:d}.up", f"s{near:d}.dn"))
        across = () if near else (names["1>0"],)
        back = () if near else (names["0>1"],)
        kind = PHB if near else SYS
        pci = (True, True, *(False for _ in across), True, True)
        to_gpu.append(Path(kind, (card_up, names["s1.up"], *across, sw_dn, gpu_dn), pci))
        from_gpu.append(Path(kind, (gpu_up, sw_up, *back, names["s1.dn"], card_dn), pci, taxed=near))
    system = replace(seen, widths=widths, net=Net(7.0, tuple(to_gpu), tuple(from_gpu)))
    ring, tree = find(system, own)
    for graph in (ring, tree):
        assert (len(graph.channels), graph.speed) == (1, 4.0)
        assert (LEVELS[graph.kind], LEVELS[graph.kind_inter]) == ("SYS", "SYS")
        assert graph.channels == (tuple(range(8)),)


def _link_names(system: System) -> list[str]:
    """Names for the links of two switches of four GPUs each, all traffic by way of the CPUs, read off the paths."""
    names = [""] * len(system.widths)
    for a in range(8):
        for b in range(8):
            path = system.paths[a][b]
            if path is None:
                continue
            labels = [f"g{a}.up", f"s{a // 4}.up", f"s{b // 4}.dn", f"g{b}.dn"]
            if a // 4 != b // 4:
                labels.insert(2, f"{a // 4}>{b // 4}")
            for link, label in zip(path.links, labels, strict=True):
                names[link] = label
    return names


def test_versions_differ() -> None:
    # NVIDIA/nccl#1298: all-PHB boxes with several AMD NUMA nodes got slower between 2.18 and 2.20 (the constant 16 came in 2.19)
    assert shown(searched(box("sm_89", AMD, sockets=2, version="2.18"))[0]) == (2, 12.0, "SYS")
    assert shown(searched(box("sm_89", AMD, sockets=2, version="2.20"))[0]) == (1, 15.0, "SYS")
    # 2.26 raised Sapphire and Emerald Rapids from 10 GB/s
    assert shown(searched(box("sm_89", EMR, sockets=2, version="2.25"))[0]) == (1, 10.0, "SYS")
    # Blackwell's own list of speeds came with 2.25: before, a dual EPYC box did not fall back
    assert not searched(box("sm_120", AMD, sockets=2, version="2.24"))[0].fallback


def test_staged_siblings_share_their_uplink() -> None:
    # without P2P the four GPUs of a switch meet on its uplink, AMD: 4 flows a direction and channel -> 24 / 4 = 6
    ring, _ = searched(box("sm_89", AMD, switches=2, p2p="off", env={}))
    assert shown(ring) == (1, 6.0, "PHB")


def test_interleaved_buses_are_put_in_order() -> None:
    topology = box("sm_120", AMD, switches=2)
    nodes = dict(topology.spec.nodes)
    for index in range(8):
        nodes[f"gpu{index}"] = nodes[f"gpu{index}"].model_copy(update={"bus": f"0000:{index % 4 * 2 + index // 4 + 1:02x}:00.0"})
    from pcie_sim.topology import from_spec

    mixed = from_spec(topology.spec.model_copy(update={"nodes": nodes}))
    assert mixed.gpus[:4] == ("gpu0", "gpu4", "gpu1", "gpu5")
    own = tuning()
    system = see(mixed, mixed.gpus, own)
    assert system.gpus == tuple(f"gpu{index}" for index in range(8))
    ring, _ = find(system, own)
    assert shown(ring) == (2, 24.0, "PHB")


@given(
    gpus=st.integers(2, 5),
    cpu=st.sampled_from([AMD, SPR, ICX]),
    gpu=st.sampled_from(["sm_89", "sm_90", "sm_120"]),
    layout=st.sampled_from([{}, {"sockets": 2}, {"switches": 2}, {"sockets": 2, "switches": 2}]),
    p2p=st.sampled_from(["on", "off"]),
    narrow=st.integers(0, 4),
    half=st.booleans(),
)
def test_shortcuts_change_nothing(gpus: int, cpu: str, gpu: str, layout: dict[str, int], p2p: str, narrow: int, half: bool) -> None:
    topology = box(gpu, cpu, gpus=gpus, p2p=p2p, **layout)  # type: ignore[arg-type]
    own = tuning()
    small = own.model_copy(update={"search": own.search.model_copy(update={"steps": 256})})
    system = see(topology, topology.gpus, own)
    if half:
        widths = list(system.widths)
        widths[narrow % len(widths)] /= 2
        system = replace(system, widths=tuple(widths))
    fast, plain = find(system, small), find(system, small, shortcuts=False)
    for one, other in zip(fast, plain, strict=True):
        assert (len(one.channels), one.speed, one.fallback, one.hops) == (len(other.channels), other.speed, other.fallback, other.hops)
        assert LEVELS[one.kind] == LEVELS[other.kind]


@given(gpus=st.integers(2, 16), cpu=st.sampled_from([AMD, EMR]), sockets=st.integers(1, 2), switches=st.sampled_from([0, 2, 4]))
def test_rings_fit_on_the_links(gpus: int, cpu: str, sockets: int, switches: int) -> None:
    topology = box("sm_90", cpu, gpus=gpus, sockets=sockets, switches=switches)
    own = tuning()
    system = see(topology, topology.gpus, own)
    ring, _ = find(system, own)
    if ring.fallback:
        return
    load = [0.0] * len(system.widths)
    for channel in ring.channels:
        assert sorted(channel) == list(range(gpus))
        for a, b in zip(channel, (*channel[1:], channel[0]), strict=True):
            path = system.paths[a][b]
            assert path is not None
            assert path.kind <= ring.kind
            for link in path.links:
                load[link] += ring.speed
    assert all(used <= width + 1e-6 for used, width in zip(load, system.widths, strict=True))


def test_classes() -> None:
    assert [LEVELS[kind] for kind in (PXB, PHB, SYS)] == ["PXB", "PHB", "SYS"]
