"""Several hosts, network cards and fabrics: routes worked by hand, cards, GPUDirect and sockets by the library's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.network import time_collective
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.part import NetTransportPart
from pcie_sim.topology import Topology, from_spec, load_topology

NDR, CX8 = "rtx-pro-6000-16x-2host-ndr", "rtx-pro-5000-16x-2host-cx8"

TWO = """\
schema: pcie-sim/topology/1
name: two
nodes:
  ha: {kind: host}
  hb: {kind: host}
  a0: {kind: socket, part: epyc-genoa, parent: ha}
  a1: {kind: socket, part: epyc-genoa, parent: ha}
  b0: {kind: socket, part: epyc-genoa, parent: hb}
  ra: {kind: root_port, parent: a0}
  rn: {kind: root_port, parent: a1}
  rb: {kind: root_port, parent: b0}
  gpu0: {kind: gpu, part: GPU, parent: ra, link: gen5 x16, bus: "41:00.0"}
  gpu1: {kind: gpu, part: GPU, parent: rb, link: gen5 x16, bus: "01:00.0"}
  nic0: {kind: nic, part: CARD, parent: rn}
  nic1: {kind: nic, part: CARD, parent: rb}
  net: {kind: fabric}
peers:
- {between: [a0, a1], part: xgmi-genoa}
- {between: [nic0, net], part: infiniband-ndr}
- {between: [net, nic1], part: infiniband-ndr}
"""


def two(tmp_path: Path, *, gpu: str = "l40s", card: str = "connectx-7", **changes: str) -> Topology:
    text = TWO.replace("GPU", gpu).replace("CARD", card)
    for old, new in changes.items():
        text = text.replace(old, new)
    path = tmp_path / "two.yaml"
    path.write_text(text, encoding="utf-8")
    return load_topology(path)


def test_gpudirect_from_the_switch_to_the_card_and_back() -> None:
    """Two switches a host, a card on each: the card below the GPU's own switch, both ends."""
    top = load_topology(NDR)
    assert top.hosts == ("host0", "host1")
    assert [top.host_of(gpu) for gpu in top.gpus] == ["host0"] * 8 + ["host1"] * 8
    route = top.path("gpu1", "gpu13")
    assert route == top.net_route("gpu1", "gpu13")
    assert (route.path_type, route.transport, route.network, route.crosses_socket) == ("NET", "NET", "net-rdma", False)
    assert route.links == ("gpu1.up", "nic0.dn", "nic0~fabric0.fwd", "nic3~fabric0.rev", "nic3.up", "gpu13.dn")
    part = catalog.load_typed_part("net-rdma", NetTransportPart)
    switch = 1.5e-7  # one at each end
    assert route.latency.value == pytest.approx(part.step_latency["LL"].value + 2 * switch + 2 * 1e-7)
    assert top.transport("gpu1", "gpu13").reason == "different hosts: by RDMA, GPUDirect at both ends"
    back = top.path("gpu13", "gpu1").links
    assert back == ("gpu13.up", "nic3.dn", "nic3~fabric0.fwd", "nic0~fabric0.rev", "nic0.up", "gpu1.dn")


def test_inside_a_host_nothing_changes() -> None:
    top, alone = load_topology(NDR), load_topology("rtx-pro-6000-8x-2switch")
    for a in alone.gpus:
        for b in alone.gpus:
            if a != b:
                assert top.path(a, b) == alone.path(a, b)
    with pytest.raises(InputError, match="in different hosts: only a network joins them"):
        top.route("gpu0", "gpu8")
    with pytest.raises(InputError, match="in different hosts: they share no memory"):
        top.host_route("gpu0", "gpu8")


def test_acs_sends_gpudirect_through_the_root_complex() -> None:
    top = load_topology(NDR).with_settings(acs="on")
    assert top.net_route("gpu0", "gpu8").links == (
        *("gpu0.up", "sw0.up", "sw0.dn", "nic0.dn", "nic0~fabric0.fwd"),
        *("nic2~fabric0.rev", "nic2.up", "sw2.up", "sw2.dn", "gpu8.dn"),
    )


def test_a_card_beyond_pxb_is_staged_unless_the_level_says_more(tmp_path: Path) -> None:
    """NCCL's default distance of GPUDirect is PXB: gpu0's card is on the other socket, gpu1's on its own root port (PHB)."""
    top = two(tmp_path)
    staged = top.path("gpu0", "gpu1")
    assert staged.links == (
        *("gpu0.up", "a0.mem", "a0.mem", "a0~a1.fwd", "nic0.dn", "nic0~net.fwd"),
        *("net~nic1.fwd", "nic1.up", "b0.mem", "b0.mem", "gpu1.dn"),
    )
    assert staged.crosses_socket
    phb = top.with_settings(env={"NCCL_NET_GDR_LEVEL": "PHB"})
    assert phb.transport("gpu0", "gpu1").reason == "different hosts: by RDMA, GPUDirect at one end, staged in host memory at the other"
    assert phb.path("gpu0", "gpu1").links == (*staged.links[:8], "gpu1.dn")
    far = top.with_settings(env={"NCCL_NET_GDR_LEVEL": 4})
    assert far.path("gpu0", "gpu1").links == (*("gpu0.up", "a0~a1.fwd", "nic0.dn", "nic0~net.fwd", "net~nic1.fwd", "nic1.up", "gpu1.dn"),)
    assert far.path("gpu1", "gpu0").links == (*("gpu1.up", "nic1.dn", "net~nic1.rev", "nic0~net.rev", "nic0.up", "a0~a1.rev", "gpu0.dn"),)


@pytest.mark.parametrize(
    ("gpu", "settings", "says"),
    [
        ("rtx-5090", {}, "by RDMA, staged in host memory"),  # no peer access, so none to the card
        ("rtx-5090", {"p2p": "on"}, "by RDMA, GPUDirect at both ends"),
        ("l40s", {"p2p": "off"}, "by RDMA, staged in host memory"),
        ("l40s", {"env": {"NCCL_IB_DISABLE": 1}}, "by sockets, staged in host memory"),
    ],
)
def test_driver_and_environment(tmp_path: Path, gpu: str, settings: dict[str, object], says: str) -> None:
    env = {"NCCL_NET_GDR_LEVEL": "SYS", **settings.pop("env", {})}  # type: ignore[dict-item]
    top = two(tmp_path, gpu=gpu).with_settings(env=env, **settings)  # type: ignore[arg-type]
    assert top.transport("gpu0", "gpu1").reason == f"different hosts: {says}"


def test_cards_without_rdma_go_by_sockets(tmp_path: Path) -> None:
    top = two(tmp_path, card="nic-100gbe", **{"infiniband-ndr": "ethernet-100g"})
    route = top.path("gpu0", "gpu1")
    part = catalog.load_typed_part("net-sockets", NetTransportPart)
    assert route.network == "net-sockets"
    assert [route.links.count(name) for name in ("a0.mem", "b0.mem")] == [part.memory_passes] * 2
    assert route.flow_rate is not None
    assert route.flow_rate.value == part.flow_rate.value


def test_hosts_without_a_network(tmp_path: Path) -> None:
    top = two(tmp_path, **{"- {between: [net, nic1], part: infiniband-ndr}\n": ""})
    assert top.transport("gpu0", "gpu1").reason == "different hosts: no network joins them"  # the box can be shown with what it lacks
    assert [note for note in top.notes if "hosts ha and hb are not joined" in note]
    for ask in (top.path, top.net_route):
        with pytest.raises(InputError, match=r"hosts ha and hb are not joined; give each a nic"):
            ask("gpu0", "gpu1")
    with pytest.raises(InputError, match=r"a0 and b0 are in different hosts; only network cards join hosts"):
        two(tmp_path, **{"[a0, a1]": "[a0, b0]"})


def test_cards_back_to_back(tmp_path: Path) -> None:
    top = two(
        tmp_path,
        **{
            "- {between: [net, nic1], part: infiniband-ndr}\n": "",
            "between: [nic0, net]": "between: [nic0, nic1]",
            "  net: {kind: fabric}\n": "",
        },
    )
    assert "nic0~nic1.fwd" in top.path("gpu0", "gpu1").links
    assert not [name for name in top.path("gpu0", "gpu1").links if "net" in name]


def test_a_port_carries_the_slower_of_card_and_cable(tmp_path: Path) -> None:
    rates = two(tmp_path).capacities()
    assert rates["nic0~net.fwd"] == rates["net~nic1.rev"] == 4.75e10
    assert two(tmp_path, card="nic-100gbe").capacities()["nic0~net.fwd"] == 1.15e10
    assert rates["nic0.up"] == 2 * rates["gpu0.up"]  # Gen5 x16 by its part; an L40S is Gen4


def test_ranks_follow_hosts_then_bus_ids(tmp_path: Path) -> None:
    assert two(tmp_path).gpus == ("gpu0", "gpu1")  # though gpu1 has the lower bus id
    assert two(tmp_path, **{'"41:00.0"': '"01:00.0"'}).gpus == ("gpu0", "gpu1")  # the same id on two hosts


def test_equal_cards_are_dealt_out() -> None:
    """ncclTopoGetLocalNet: GPUs with several nearest cards start at different ones."""
    top = load_topology(NDR)
    data = top.spec.model_dump(mode="json", by_alias=True)
    for nic, port in (("nic0", "rp0"), ("nic1", "rp1")):
        data["nodes"][nic]["parent"] = port  # both PHB for every GPU
    flat = from_spec(TopologySpec.model_validate(data))
    used = [next(name for name in flat.net_route(gpu, "gpu8").links if name.endswith("~fabric0.fwd")) for gpu in flat.gpus[:8]]
    assert used == ["nic0~fabric0.fwd", "nic1~fabric0.fwd"] * 4


def test_shm_off_inside_a_host_with_cards() -> None:
    """The published ConnectX-8 runs: P2P up to PHB, no SHM, so that pairs on different sockets use the cards."""
    top = load_topology(CX8)
    assert top.path("gpu0", "gpu1").links == ("gpu0.up", "gpu1.dn")
    assert top.path("gpu0", "gpu2").transport == "P2P"
    across = top.path("gpu0", "gpu4")
    assert (across.transport, across.path_type) == ("NET", "SYS")
    assert across.links == ("gpu0.up", "nic0.dn", "nic0~fabric0.fwd", "nic2~fabric0.rev", "nic2.up", "gpu4.dn")
    own = top.net_route("gpu0", "gpu1").links  # one card for both: out of its port and back
    assert own == ("gpu0.up", "nic0.dn", "nic0~fabric0.fwd", "nic0~fabric0.rev", "nic0.up", "gpu1.dn")


def test_loopback_sockets_pass_memory_three_times_at_each_end() -> None:
    top = load_topology("rtx-pro-6000-8x-direct-2socket").with_settings(env={"NCCL_SHM_DISABLE": 1})
    assert top.path("gpu0", "gpu1").links == ("gpu0.up", *["cpu0.mem"] * 6, "gpu1.dn")
    assert top.path("gpu0", "gpu4").links == ("gpu0.up", *["cpu0.mem"] * 3, "cpu0~cpu1.fwd", *["cpu1.mem"] * 3, "gpu4.dn")


@pytest.mark.parametrize(
    ("size", "measured_us", "within"), [(8, 24.5, 0.4), (4096, 38.3, 0.4), (1 << 20, 428.0, 0.2), (1 << 24, 4980.0, 0.02)]
)
def test_sockets_against_the_run_they_were_fitted_to(size: int, measured_us: float, within: float) -> None:
    """pcie-sim's own nccl-tests run on two H200 (mean of out of place and in place); a fit, so only the large sizes are close."""
    top = load_topology("h200-2x-host-staged").with_settings(env={"NCCL_SHM_DISABLE": 1})
    found = time_collective(top, "all_reduce", size, launch="eager")
    assert found.transport == "NET"
    assert found.time_s * 1e6 == pytest.approx(measured_us, rel=within)


def test_a_ring_over_two_hosts_is_bound_by_the_card() -> None:
    """One flow leaves each host: 2 x 15/16 of the message over 47.5 GB/s, with what the protocol adds; never faster than the wire."""
    found = time_collective(load_topology(NDR).with_settings(env={"NCCL_P2P_LEVEL": "SYS"}), "all_reduce", 1 << 28, launch="graph")
    wire = 2 * 15 / 16 * (1 << 28) / 4.75e10
    assert wire < found.time_s < 2.0 * wire
    assert found.transport == "NET+P2P"
    assert found.link_bytes["nic1~fabric0.fwd"] == pytest.approx(2 * 15 / 16 * (1 << 28))
