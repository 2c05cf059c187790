"""Rings across sockets and switches, NUMA nodes inside a socket, the search's fallback."""

from __future__ import annotations

import pytest
from doctor_facts import SYS, codes, load, log, only, passed, renoded

from pcie_sim import study
from pcie_sim.doctor import diagnose
from pcie_sim.importers.facts import GraphFact, HostFact, RingFact
from pcie_sim.importers.relate import Related
from pcie_sim.topology import Topology

INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)


def ring(box: Topology, members: tuple[int, ...]) -> Related:
    return Related(ccl=(log(box, rings=(RingFact(0, members),)),))


def test_a_ring_that_crosses_the_sockets_eight_times() -> None:
    box = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    one = only(diagnose(box, ring(box, INTERLEAVED)), "numa-split")
    assert one.severity == "problem"
    assert "8 of its 8 steps cross between sockets, 2 would do" in one.evidence[0]
    assert "channel 0 of nccl.log:3" in one.evidence[0]
    order = [f"gpu{index}" for index in INTERLEAVED]
    now = study.collective(box, "all_reduce", "16MiB", launch="graph", order=order).time_s
    best = study.collective(box, "all_reduce", "16MiB", launch="graph", order=[f"gpu{index}" for index in range(8)]).time_s
    assert (one.costs[-1].now_s, one.costs[-1].fixed_s) == pytest.approx((now, best))
    assert any("gpu0,gpu1,gpu2,gpu3,gpu4,gpu5,gpu6,gpu7" in text for text in one.advice)


def test_an_unavoidable_crossing_is_a_note() -> None:
    one = only(diagnose(load("rtx-pro-6000-8x-4switch-2xeon", env=SYS)), "numa-split")
    assert one.severity == "note"
    assert "(unavoidable)" in one.title
    assert any("tp4 with pp2" in text for text in one.advice)


def test_one_socket_has_no_split() -> None:
    assert passed(diagnose(load(env=SYS)), "numa-split")


def test_a_ring_that_leaves_its_switch_too_often() -> None:
    box = load(env=SYS)
    one = only(diagnose(box, ring(box, INTERLEAVED)), "ring-order")
    assert one.severity == "problem"
    assert "8 of its 8 steps cross between root ports, 2 would do" in one.evidence[0]
    assert one.costs[-1].share > 1  # four flows a direction on each uplink instead of one


def test_a_ring_in_bus_order_passes() -> None:
    box = load(env=SYS)
    assert passed(diagnose(box, ring(box, tuple(range(8)))), "ring-order")
    backwards = tuple(reversed(range(8)))
    assert passed(diagnose(box, ring(box, backwards)), "ring-order")
    assert "ring-order" in {code for code, _, _ in diagnose(box).unchecked}


def test_rings_that_make_no_sense_are_left_out() -> None:
    box = load(env=SYS)
    facts = log(box, rings=(RingFact(0, (0, 0, 1)), RingFact(1, (0, 99, 3)), RingFact(2, ()), RingFact(3, (0, 1, 2, 77), by="dev")))
    assert "ring-order" in {code for code, _, _ in diagnose(box, Related(ccl=(facts,))).unchecked}


def test_nps4_of_one_socket() -> None:
    """A single EPYC socket in NPS4 looks like SYS between its quadrants (NVIDIA/nccl:src/graph/topo.h)."""
    box = load("rtx-4090-4x-direct-1socket")
    one = only(diagnose(box), "nps")
    assert any("12 of 12 ordered pairs of one socket are SYS" in text for text in one.evidence)
    assert one.severity == "note"
    assert not one.advice
    assert any("staged in host memory anyway" in text for text in one.evidence)


def test_nodes_that_cost_little_are_no_reason_for_nps1() -> None:
    """Below 10 % the lower memory latency of several nodes may be worth more."""
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS)
    split = renoded(box, **{f"gpu{index}": {"numa": index // 4} for index in range(8)})
    staged = diagnose(split.with_settings(p2p="off"))
    for found in (staged, diagnose(split)):
        one = only(found, "nps")
        gain = max(cost.share for cost in one.costs)
        assert (one.severity == "problem") == (gain >= 0.10)
        assert any("NPS" in text for text in one.advice) == (gain >= 0.10)
        for item in found.findings:
            if gain < 0.10:
                assert not any("NPS1" in text for text in item.advice)


def test_one_node_a_socket() -> None:
    found = diagnose(load(env=SYS), Related(host=HostFact(sockets=1, numa_nodes=1)))
    assert passed(found, "nps")


def test_nps_that_breaks_the_search() -> None:
    """sm_120 in NPS4: 16 GB/s between NUMA nodes is below the slowest speed that the search tries, 18 (NVIDIA/nccl:src/graph/search.cc);
    in NPS1 the same box gets 2 x 24.
    """
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS)
    data = box.spec.model_dump(mode="json", by_alias=True)
    for index in range(8):
        data["nodes"][f"gpu{index}"]["numa"] = index // 2
    from pcie_sim.topology import from_spec

    split = from_spec(type(box.spec).model_validate(data))
    found = diagnose(split)
    assert {"nps", "search-fallback"} <= codes(found)
    assert any("find a ring again" in text for text in only(found, "nps").evidence)
    assert only(found, "search-fallback").advice[0].startswith("NPS1")
    assert passed(diagnose(box), "search-fallback")


def test_the_fallback_of_two_sockets() -> None:
    """Published: 32 to 256 KiB take 48.2 to 56.5 us with the fallback, 26.2 to 37.3 with a graph file, on a dual Turin
    (local-inference-lab/rtx6kpro:optimization/nccl-tuning.md): about twice at the worst size.
    """
    one = only(diagnose(load("rtx-pro-6000-8x-direct-2socket", env=SYS)), "search-fallback")
    assert one.severity == "problem"
    assert "compute capability 12.0" in one.evidence[1]
    assert 0.5 < max(cost.share for cost in one.costs) < 1.5
    assert any("NCCL_GRAPH_FILE" in text for text in one.advice)
    assert any("2.30 falls back too" in text for text in one.advice)  # the newest version read still does


def test_a_log_that_found_a_ring_wins() -> None:
    box = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    graph = GraphFact(4, 2, 24e9, "PHB", line=9)
    assert passed(diagnose(box, Related(ccl=(log(box, graphs=(graph,)),))), "search-fallback")
    fell = GraphFact(4, 1, 0.1e9, "SYS", line=9, fell_back=True)
    one = only(diagnose(box, Related(ccl=(log(box, graphs=(fell,)),))), "search-fallback")
    assert "nccl.log:9: pattern 4, 1 x 0.1 GB/s, SYS" in one.evidence[0]


def test_a_graph_file_takes_the_searchs_place() -> None:
    one = only(diagnose(load("rtx-pro-6000-8x-direct-2socket", env={**SYS, "NCCL_GRAPH_FILE": "graph.xml"})), "search-fallback")
    assert one.severity == "note"
