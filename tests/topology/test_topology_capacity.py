"""Directed capacities: the arithmetic of a PCIe link, parallel links, slower ends, peers and host memory."""

from __future__ import annotations

from typing import Any

import pytest

from pcie_sim import catalog
from pcie_sim.errors import NoDataError
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.part import PciePart, SocketPart
from pcie_sim.topology import Topology, from_spec
from pcie_sim.topology.capacity import link_rate, payload_share

PCIE = catalog.load_typed_part("pcie", PciePart)
PRO = "rtx-pro-6000-blackwell-server"


def box(nodes: dict[str, dict[str, Any]], **more: Any) -> Topology:
    return from_spec(TopologySpec.model_validate({"schema": "pcie-sim/topology/1", "name": "t", "nodes": nodes, **more}))


def two_gpus(**gpu: Any) -> dict[str, dict[str, Any]]:
    return {
        "cpu0": {"kind": "socket", "part": "epyc-turin"},
        "rp0": {"kind": "root_port", "parent": "cpu0"},
        "sw0": {"kind": "switch", "part": "pm50100", "parent": "rp0"},
        "gpu0": {"kind": "gpu", "part": PRO, "parent": "sw0", **gpu},
        "gpu1": {"kind": "gpu", "part": PRO, "parent": "sw0"},
    }


@pytest.mark.parametrize(
    ("gen", "width", "raw"),
    [(1, 16, 4.00), (2, 16, 8.00), (3, 16, 15.75), (4, 16, 31.51), (5, 16, 63.02), (5, 8, 31.51), (4, 4, 7.88), (6, 16, 118.0)],
)
def test_wire_rate_of_each_generation(gen: int, width: int, raw: float) -> None:
    """PCI-SIG rates as coded in pcie-bench/pcie-model; Gen6 counting the 236 packet bytes of a FLIT."""
    part = PCIE.generations[gen]
    assert part.transfers_per_s.value * width / 8 * part.line_code.value / 1e9 == pytest.approx(raw, abs=0.01)


@pytest.mark.parametrize(
    ("mps", "overhead", "share", "gen4", "gen5"),
    [
        (64, 24, 0.727, 22.9, 45.8),
        (128, 24, 0.842, 26.5, 53.1),
        (256, 24, 0.914, 28.8, 57.6),
        (512, 24, 0.955, 30.1, 60.2),
        (256, 20, 0.928, None, None),
        (256, 28, 0.901, None, None),
    ],
)
def test_payload_share(mps: int, overhead: int, share: float, gen4: float | None, gen5: float | None) -> None:
    """Packet overheads of Intel AN456/AN708/AN829: 5 to 7 double words."""
    assert payload_share(mps, overhead) == pytest.approx(share, abs=6e-4)
    for gen, expected in ((4, gen4), (5, gen5)):
        if expected is not None:
            part = PCIE.generations[gen]
            assert part.transfers_per_s.value * 2 * part.line_code.value * payload_share(mps, overhead) / 1e9 == pytest.approx(
                expected, abs=0.06
            )


def test_link_rate_is_the_product_and_carries_its_range() -> None:
    rate = link_rate(PCIE, PcieLink(gen=5, width=16))
    assert (PCIE.max_payload.value, PCIE.tlp_overhead.value) == (256, 24)
    assert rate.value / PCIE.link_layer_share.value == pytest.approx(57.6e9, rel=1e-3)
    assert rate.low is not None
    assert rate.high is not None
    assert 50e9 < rate.low < 53e9  # a box at 128 B payload, or the slow end of published copies
    assert rate.value < rate.high < 58e9
    assert rate.evidence == "nominal"
    assert "pcie-bench/pcie-model" in rate.source
    half = link_rate(PCIE, PcieLink(gen=5, width=8))
    assert half.value == pytest.approx(rate.value / 2)


def test_full_duplex_and_parallel_links() -> None:
    nodes = two_gpus()
    one = box(nodes).links
    nodes["sw0"]["links"] = 2
    two = box(nodes).links
    for direction in ("up", "dn"):
        assert two[f"sw0.{direction}"].rate.value == pytest.approx(2 * one[f"sw0.{direction}"].rate.value)
        assert two[f"gpu0.{direction}"].rate.value == one[f"gpu0.{direction}"].rate.value
    assert set(one) == {f"{node}.{way}" for node in ("sw0", "gpu0", "gpu1") for way in ("up", "dn")} | {"cpu0.mem"}


@pytest.mark.parametrize(
    ("link", "like", "noted"),
    [
        ("gen5 x8", PcieLink(gen=5, width=8), False),
        ("gen3 x4", PcieLink(gen=3, width=4), False),
        ("gen6 x16", PcieLink(gen=5, width=16), True),
        ("gen4 x32", PcieLink(gen=4, width=16), True),
    ],
)
def test_a_link_runs_at_the_slowest_of_what_is_asked_and_both_ends(link: str, like: PcieLink, noted: bool) -> None:
    top = box(two_gpus(link=link))
    assert top.links["gpu0.up"].rate.value == link_rate(PCIE, like).value
    assert any("gpu0: link" in note for note in top.notes) == noted


def test_a_slow_switch_slows_its_gpus() -> None:
    nodes = two_gpus()
    nodes["sw0"]["part"] = "generic-gen4-switch"
    top = box(nodes)
    assert top.links["gpu1.up"].rate.value == link_rate(PCIE, PcieLink(gen=4, width=16)).value
    assert top.notes == ()  # no link was asked for: the defaults simply meet


def test_a_root_port_limits_only_with_a_link() -> None:
    nodes = two_gpus()
    assert "rp0.up" not in box(nodes).links
    nodes["rp0"]["link"] = "gen5 x4"
    nodes["gpu2"] = {"kind": "gpu", "part": PRO, "parent": "cpu0"}
    top = box(nodes)
    assert top.links["rp0.up"].rate.value == link_rate(PCIE, PcieLink(gen=5, width=4)).value
    assert top.route("gpu0", "gpu2").links == ("gpu0.up", "sw0.up", "rp0.up", "gpu2.dn")
    assert top.route("gpu2", "gpu0").links == ("gpu2.up", "rp0.dn", "sw0.dn", "gpu0.dn")


def test_unknown_generation_is_missing_data() -> None:
    nodes = {
        "cpu0": {"kind": "socket", "part": "epyc-turin"},
        "n0": {"kind": "nic", "parent": "cpu0", "link": "gen7 x16"},
        "gpu0": {"kind": "gpu", "part": PRO, "parent": "cpu0"},
    }
    top = box(nodes)  # its root port offers Gen5: nothing beyond is asked of the part
    assert top.links["n0.up"].rate.value == link_rate(PCIE, PcieLink(gen=5, width=16)).value
    with pytest.raises(NoDataError, match=r"no data for PCIe gen7; part pcie has generations 1, 2, 3, 4, 5, 6"):
        link_rate(PCIE, PcieLink(gen=7, width=16))


def test_peers_and_memory() -> None:
    nodes = {
        "cpu0": {"kind": "socket", "part": "epyc-turin"},
        "cpu1": {"kind": "socket", "part": "epyc-turin"},
        "gpu0": {"kind": "gpu", "part": "rtx-3090", "parent": "cpu0"},
        "gpu1": {"kind": "gpu", "part": "rtx-3090", "parent": "cpu1"},
        "gpu2": {"kind": "gpu", "part": "rtx-3090", "parent": "cpu1"},
    }
    peers = [{"between": ["cpu0", "cpu1"], "part": "xgmi-turin"}, {"between": ["gpu1", "gpu0"], "part": "nvlink-bridge-ampere"}]
    top = box(nodes, peers=peers)
    assert top.links["cpu1.mem"].rate == catalog.load_typed_part("epyc-turin", SocketPart).memory_bandwidth
    assert top.path_type("gpu0", "gpu1") == "NVL"
    assert top.route("gpu0", "gpu1").links == ("gpu1~gpu0.rev",)
    assert top.route("gpu1", "gpu0").links == ("gpu1~gpu0.fwd",)
    assert top.transport("gpu0", "gpu1").kind == "P2P"  # the stock driver refuses PCIe peers of GeForce cards, not the bridge
    assert top.transport("gpu0", "gpu2").kind == "SHM"
    assert top.path("gpu0", "gpu2").links == ("gpu0.up", "cpu0~cpu1.fwd", "cpu1.mem", "cpu1.mem", "gpu2.dn")
    assert top.with_settings(env={"NCCL_P2P_LEVEL": "LOC"}).path("gpu0", "gpu1").transport == "SHM"
    flow = top.route("gpu0", "gpu2").flow_rate
    assert flow is not None
    assert flow.value < top.links["cpu0~cpu1.fwd"].rate.value
    assert top.gpu_counts() == {"rtx-3090": 3}


def test_three_sockets_in_a_row_are_crossed_by_the_fewest_hops() -> None:
    nodes: dict[str, dict[str, Any]] = {f"cpu{i}": {"kind": "socket", "part": "generic-amd"} for i in range(4)}
    nodes |= {f"gpu{i}": {"kind": "gpu", "part": PRO, "parent": f"cpu{i}"} for i in range(4)}
    peers = [{"between": [f"cpu{i}", f"cpu{i + 1}"], "part": "xgmi-genoa"} for i in range(3)]
    assert box(nodes, peers=peers).route("gpu3", "gpu0").links == ("gpu3.up", "cpu2~cpu3.rev", "cpu1~cpu2.rev", "cpu0~cpu1.rev", "gpu0.dn")
    ring = [*peers, {"between": ["cpu3", "cpu0"], "part": "xgmi-genoa"}]
    assert box(nodes, peers=ring).route("gpu3", "gpu0").links == ("gpu3.up", "cpu3~cpu0.fwd", "gpu0.dn")
    assert box(nodes, peers=ring).route("gpu3", "gpu0").crosses_socket
