"""Half duplex, narrow and slow links, payload size, virtual switches with ACS, read and fan shares, opt-in conditions."""

from __future__ import annotations

from typing import Any

import pytest

from pcie_sim.network import run_flows, time_collective
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec, load_topology

ASUS, V1, V3 = "rtx-pro-6000-8x-asus-broadcom", "rtx-pro-6000-8x-wrx90-2vs-v1", "rtx-pro-6000-8x-wrx90-2vs-v3"
HIER, TWO_SWITCH = "rtx-pro-6000-8x-wrx90-3switch-hier", "rtx-pro-6000-8x-2switch"


def changed(name: str, nodes: dict[str, dict[str, Any]] | None = None, **settings: Any) -> Topology:
    data = load_topology(name).spec.model_dump(mode="json", by_alias=True)
    for node, keys in (nodes or {}).items():
        data["nodes"][node].update(keys)
    data["settings"].update(settings)
    return from_spec(TopologySpec.model_validate(data))


def rates(top: Topology, pairs: list[tuple[str, str]], *, routes: list[tuple[str, ...]] | None = None) -> float:
    """Sum of the rates (B/s) of equal flows at once, max-min shared: bytes over the time of the slowest."""
    ways = routes or [top.route(a, b).links for a, b in pairs]
    case = {
        "id": "x",
        "links": top.capacities(),
        "routes": {f"{a}>{b}": list(way) for (a, b), way in zip(pairs, ways, strict=True)},
        "flows": [[0.0, a, b, 1e9] for a, b in pairs],
    }
    return len(pairs) * 1e9 / run_flows({"cases": [case]}, source="test").cases[0].makespan


# ---- links
@pytest.mark.parametrize(
    ("link", "GBps"),
    # transfers x lanes / 8 x 128/130 x 256/280 x 0.98 (Gen1: 8b/10b)
    [
        ("gen5 x16", 56.47),
        ("gen5 x8", 28.23),
        ("gen5 x4", 14.12),
        ("gen4 x16", 28.23),
        ("gen3 x16", 14.12),
        ("gen3 x8", 7.06),
        ("gen1 x16", 3.58),
    ],
)
def test_narrow_and_downgraded_links(link: str, GBps: float) -> None:
    top = changed(TWO_SWITCH, {"gpu0": {"link": link}})
    found = top.capacities()
    assert found["gpu0.up"] / 1e9 == pytest.approx(GBps, abs=0.01)
    assert found["gpu1.up"] / 1e9 == pytest.approx(56.47, abs=0.01)
    slow = time_collective(top.with_settings(env={"NCCL_P2P_LEVEL": "SYS"}), "all_reduce", 1 << 28)
    fast = time_collective(changed(TWO_SWITCH, env={"NCCL_P2P_LEVEL": "SYS"}), "all_reduce", 1 << 28)
    assert slow.time_s == pytest.approx(fast.time_s * 56.47 / GBps, rel=0.01)


@pytest.mark.parametrize(("payload", "share"), [(128, 128 / 152), (256, 256 / 280), (512, 512 / 536)])
def test_max_payload(payload: int, share: float) -> None:
    top = load_topology(TWO_SWITCH)
    other = top.with_settings(max_payload=payload)  # type: ignore[arg-type]
    assert other.capacities()["gpu0.up"] == pytest.approx(top.capacities()["gpu0.up"] * share / (256 / 280))
    assert other.links["gpu0.up"].rate.source != top.links["gpu0.up"].rate.source
    assert other.capacities()["cpu0.mem"] == top.capacities()["cpu0.mem"]
    assert changed(TWO_SWITCH, max_payload=payload).capacities() == other.capacities()
    assert other.with_settings(acs="on").links is other.links


def test_half_duplex_halves_two_way_traffic_only() -> None:
    top = changed(TWO_SWITCH, {"sw0": {"half_duplex": True}})
    assert top.route("gpu0", "gpu4").links == ("gpu0.up", "sw0.up", "sw0.both", "sw1.dn", "gpu4.dn")
    assert top.route("gpu4", "gpu0").links == ("gpu4.up", "sw1.up", "sw0.both", "sw0.dn", "gpu0.dn")
    assert top.route("gpu0", "gpu1").links == ("gpu0.up", "gpu1.dn")
    assert top.host_route("gpu0", "gpu1").links.count("sw0.both") == 2
    link = top.capacities()["sw0.both"]
    assert link == top.capacities()["sw0.up"] == top.capacities()["sw0.dn"]
    assert rates(top, [("gpu0", "gpu4")]) == pytest.approx(link)
    both = [("gpu0", "gpu4"), ("gpu5", "gpu1")]
    assert rates(top, both) == pytest.approx(link)
    assert rates(load_topology(TWO_SWITCH), both) == pytest.approx(2 * link)


def test_half_duplex_slows_a_ring() -> None:
    """A ring sends and receives at once over every GPU's link: half the bandwidth."""
    env = {"NCCL_P2P_LEVEL": "SYS"}
    full = time_collective(changed(TWO_SWITCH, env=env), "all_reduce", 1 << 28)
    half = time_collective(changed(TWO_SWITCH, {"gpu0": {"half_duplex": True}}, env=env), "all_reduce", 1 << 28)
    assert half.time_s == pytest.approx(2 * full.time_s, rel=0.01)
    assert half.bottleneck is not None
    assert half.bottleneck.link == "gpu0.both"


# ---- virtual switches of one chip; measured sums in GB/s from the pages that the boxes name
@pytest.mark.parametrize(
    ("name", "pairs", "measured"),
    [
        (V1, [("gpu0", "gpu4"), ("gpu1", "gpu5")], 112.5),  # two pairs between virtual switches of one chip
        (V1, [("gpu0", "gpu2"), ("gpu1", "gpu3")], 56.4),  # between chips: one uplink
        (V3, [("gpu0", "gpu2"), ("gpu1", "gpu6")], 112.5),
        (V1, [("gpu0", "gpu2"), ("gpu1", "gpu6")], 54.0),
        (HIER, [("gpu0", "gpu4"), ("gpu2", "gpu6")], 107.8),
        (HIER, [("gpu0", "gpu4"), ("gpu1", "gpu6")], 53.9),
        (HIER, [("gpu0", "gpu4"), ("gpu1", "gpu2")], 107.0),
        (HIER, [("gpu0", "gpu2"), ("gpu1", "gpu3")], 108.6),
    ],
)
def test_measured_flows_of_virtual_switches(name: str, pairs: list[tuple[str, str]], measured: float) -> None:
    assert rates(load_topology(name), pairs) / 1e9 == pytest.approx(measured, rel=0.06)


def test_acs_and_virtual_switches() -> None:
    """ESC8000A-E13P, both ways at once: 103 GB/s inside a virtual switch and 50 with ACS; 103 between two of a chip either way."""
    off = load_topology(ASUS)
    on = off.with_settings(acs="on")
    assert off.path_type("gpu0", "gpu2") == "PHB"  # nvidia-smi: NODE
    assert off.route("gpu0", "gpu2").links == ("gpu0.up", "gpu2.dn")
    assert off.route("gpu0", "gpu2").latency == off.route("gpu0", "gpu1").latency
    assert on.route("gpu0", "gpu2").links == ("gpu0.up", "vs0.up", "vs1.dn", "gpu2.dn")
    assert on.route("gpu0", "gpu1").links == ("gpu0.up", "vs0.up", "vs0.dn", "gpu1.dn")
    for top, other, measured in ((off, "gpu1", 103), (on, "gpu1", 50), (off, "gpu2", 103), (on, "gpu2", 103)):
        assert rates(top, [("gpu0", other), (other, "gpu0")]) / 1e9 == pytest.approx(measured, rel=0.13)
    assert off.host_route("gpu0", "gpu2").links == ("gpu0.up", "vs0.up", "cpu0.mem", "cpu0.mem", "vs1.dn", "gpu2.dn")


def test_slow_uplinks_do_not_touch_pairs_of_a_chip() -> None:
    """The same page, uplinks forced to Gen2: 103 stays 103 inside a chip, 95 falls to 14 between chips."""
    slow = changed(ASUS, {f"vs{i}": {"link": "gen2 x16"} for i in range(4)})
    assert rates(slow, [("gpu0", "gpu2"), ("gpu2", "gpu0")]) / 1e9 == pytest.approx(103, rel=0.13)
    assert rates(slow, [("gpu0", "gpu4"), ("gpu4", "gpu0")]) / 1e9 == pytest.approx(14, rel=0.05)


# ---- shares of ports
def test_shares_of_a_port_come_from_the_part_it_is_on() -> None:
    top = load_topology(TWO_SWITCH)
    for name in ("gpu0.up", "gpu0.dn", "sw0.up"):
        fan, read = top.links[name].fan_share, top.links[name].read_share
        assert fan is not None
        assert read is not None
        assert 196 / 451 < fan.value <= 163.6 / 225  # all pairs behind such switches: 56 pairs by p2pmark, 12 pairs of one switch
        assert read.value == pytest.approx(67.4 / 163.6, abs=0.01)  # read over written
    direct = load_topology("rtx-pro-6000-8x-direct-1socket").links["gpu0.up"]
    assert direct.fan_share is not None
    assert direct.read_share is None
    assert top.links["cpu0.mem"].fan_share is None


def test_reads_take_the_way_of_the_data() -> None:
    top = load_topology(TWO_SWITCH)
    write, read = top.route("gpu0", "gpu4"), top.route("gpu0", "gpu4", access="read")
    assert (write.access, read.access) == ("write", "read")
    assert read.links == write.links


# ---- opt-in conditions
def test_conditions_are_off_by_default() -> None:
    top = load_topology(ASUS)
    assert (top.conditions, dict(top.collapses)) == ((), {})
    on = top.with_settings(conditions=["posted_write_collapse"])
    assert on.conditions == ("posted_write_collapse",)
    assert set(on.collapses) == {"vs0.up", "vs1.up", "vs2.up", "vs3.up"}
    assert on.collapses["vs0.up"].collapsed_rate.value == 2.7e9
    assert dict(on.with_settings(conditions=()).collapses) == {}
    plain = load_topology("rtx-4090-8x-rome-2socket").with_settings(conditions=["posted_write_collapse"])
    assert any("no switch of this box has figures" in note for note in plain.notes)


def test_posted_write_collapse_needs_several_sources_and_roots() -> None:
    """A ring writes from one GPU of a virtual switch through its uplink: untouched. An All-to-All writes from both to all."""
    env = {"NCCL_P2P_LEVEL": "SYS"}
    normal = load_topology(ASUS).with_settings(env=env)
    fault = normal.with_settings(conditions=["posted_write_collapse"])
    ring = [time_collective(top, "all_reduce", 1 << 26).time_s for top in (normal, fault)]
    assert ring[0] == ring[1]
    direct = [time_collective(top, "all_to_all", 1 << 26) for top in (normal, fault)]
    # per uplink 2 GPUs x 4 destinations x S/8 (the other chip), through 2.7 GB/s of wire
    assert direct[1].lower_bound_s >= (1 << 26) / 2.7e9
    assert direct[1].time_s > 5 * direct[0].time_s
    assert "vs" in (direct[1].bottleneck.link if direct[1].bottleneck else "")


def test_pm50100_collapses_from_four_sources_only() -> None:
    top = changed("rtx-pro-6000-16x-wrx90-4switch", env={"NCCL_P2P_LEVEL": "SYS"}, conditions=["posted_write_collapse"])
    plain = top.with_settings(conditions=())
    few = [time_collective(box, "all_to_all", 1 << 24, ranks=6).time_s for box in (plain, top)]  # sw1 has two of the six
    many = [time_collective(box, "all_to_all", 1 << 24, ranks=16).time_s for box in (plain, top)]
    assert few[0] == few[1]  # four sources, but one destination root
    assert many[1] > 2 * many[0]


def test_loads_and_stores_without_force_p2p_go_through_memory() -> None:
    direct = load_topology("rtx-pro-6000-8x-direct-2socket")
    assert direct.sm_route("gpu0", "gpu1") == direct.route("gpu0", "gpu1")  # not asked: as if the keys were set
    unset, with_keys = direct.with_settings(force_p2p=False), direct.with_settings(force_p2p=True)
    assert unset.sm_route("gpu0", "gpu4") == unset.host_route("gpu0", "gpu4")
    assert unset.sm_route("gpu0", "gpu1", access="read").access == "read"
    assert with_keys.sm_route("gpu0", "gpu1") == direct.route("gpu0", "gpu1")
    assert unset.path("gpu0", "gpu1") == direct.path("gpu0", "gpu1")  # the library's own way does not change
    behind = load_topology(ASUS).with_settings(force_p2p=False)
    assert behind.sm_route("gpu0", "gpu1") == behind.route("gpu0", "gpu1")  # below one switch
    assert behind.sm_route("gpu0", "gpu2") == behind.route("gpu0", "gpu2")  # inside one chip
    assert behind.sm_route("gpu0", "gpu4") == behind.host_route("gpu0", "gpu4")
    other = load_topology("rtx-4090-8x-rome-2socket").with_settings(force_p2p=False)
    assert other.sm_route("gpu0", "gpu1") == other.route("gpu0", "gpu1")
    assert any("no GPU of this box is known to need the keys" in note for note in other.notes)
