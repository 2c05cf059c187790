"""Routes worked by hand on the shipped boxes, and what published copies say about them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from pcie_sim.errors import InputError
from pcie_sim.topology import Topology, load_topology

TWO_SWITCH, ROOT_LEAF = "rtx-pro-6000-8x-2switch", "rtx-pro-6000-8x-root-leaf"
DIRECT, TWO_SOCKET = "rtx-pro-6000-8x-direct-1socket", "rtx-pro-6000-8x-direct-2socket"
ROME, H200 = "rtx-4090-8x-rome-2socket", "h200-2x-host-staged"

PEER = [
    (TWO_SWITCH, "gpu0", "gpu3", "PIX", ("gpu0.up", "gpu3.dn")),
    (TWO_SWITCH, "gpu1", "gpu6", "PHB", ("gpu1.up", "sw0.up", "sw1.dn", "gpu6.dn")),
    (TWO_SWITCH, "gpu6", "gpu1", "PHB", ("gpu6.up", "sw1.up", "sw0.dn", "gpu1.dn")),
    (ROOT_LEAF, "gpu0", "gpu1", "PIX", ("gpu0.up", "gpu1.dn")),
    (ROOT_LEAF, "gpu0", "gpu7", "PXB", ("gpu0.up", "leaf0.up", "leaf3.dn", "gpu7.dn")),
    (DIRECT, "gpu0", "gpu5", "PHB", ("gpu0.up", "gpu5.dn")),
    (TWO_SOCKET, "gpu0", "gpu3", "PHB", ("gpu0.up", "gpu3.dn")),
    (TWO_SOCKET, "gpu2", "gpu5", "SYS", ("gpu2.up", "cpu0~cpu1.fwd", "gpu5.dn")),
    (TWO_SOCKET, "gpu5", "gpu2", "SYS", ("gpu5.up", "cpu0~cpu1.rev", "gpu2.dn")),
    (ROME, "gpu0", "gpu1", "SYS", ("gpu0.up", "gpu1.dn")),
    (H200, "gpu0", "gpu1", "PHB", ("gpu0.up", "gpu1.dn")),
]
STAGED = [
    (TWO_SWITCH, "gpu0", "gpu1", ("gpu0.up", "sw0.up", "cpu0.mem", "cpu0.mem", "sw0.dn", "gpu1.dn")),
    (ROOT_LEAF, "gpu0", "gpu2", ("gpu0.up", "leaf0.up", "root.up", "cpu0.mem", "cpu0.mem", "root.dn", "leaf1.dn", "gpu2.dn")),
    (TWO_SOCKET, "gpu0", "gpu1", ("gpu0.up", "cpu0.mem", "cpu0.mem", "gpu1.dn")),
    (TWO_SOCKET, "gpu0", "gpu4", ("gpu0.up", "cpu0~cpu1.fwd", "cpu1.mem", "cpu1.mem", "gpu4.dn")),
    (TWO_SOCKET, "gpu4", "gpu0", ("gpu4.up", "cpu0~cpu1.rev", "cpu0.mem", "cpu0.mem", "gpu0.dn")),
]
BY_ACS = [
    (TWO_SWITCH, "gpu0", "gpu1", ("gpu0.up", "sw0.up", "sw0.dn", "gpu1.dn")),
    (TWO_SWITCH, "gpu0", "gpu4", ("gpu0.up", "sw0.up", "sw1.dn", "gpu4.dn")),
    (ROOT_LEAF, "gpu0", "gpu1", ("gpu0.up", "leaf0.up", "root.up", "root.dn", "leaf0.dn", "gpu1.dn")),
    (DIRECT, "gpu0", "gpu1", ("gpu0.up", "gpu1.dn")),
]


@pytest.mark.parametrize(("box", "a", "b", "kind", "links"), PEER)
def test_peer_route(box: str, a: str, b: str, kind: str, links: tuple[str, ...]) -> None:
    top = load_topology(box)
    route = top.route(a, b)
    assert (route.src, route.dst, route.links, route.path_type, route.transport) == (a, b, links, kind, "P2P")
    assert top.path_type(a, b) == kind
    assert route.crosses_socket == any("~" in link for link in links)


@pytest.mark.parametrize(("box", "a", "b", "links"), STAGED)
def test_host_staged_route(box: str, a: str, b: str, links: tuple[str, ...]) -> None:
    route = load_topology(box).host_route(a, b)
    assert (route.links, route.transport) == (links, "SHM")


@pytest.mark.parametrize(("box", "a", "b", "links"), BY_ACS)
def test_acs_sends_siblings_to_the_root_complex_but_leaves_the_path_type(box: str, a: str, b: str, links: tuple[str, ...]) -> None:
    plain = load_topology(box)
    top = plain.with_settings(acs="on")
    assert top.route(a, b).links == links
    assert top.path_type(a, b) == plain.path_type(a, b)
    assert plain.settings.acs == "off"


def test_switch_matrix_as_nvidia_smi_prints_it() -> None:
    """local-inference-lab/rtx6kpro:hardware/wrx90-cpayne-16gpu-4switch.md: PIX inside a switch, NODE or PHB (NCCL: PHB) across."""
    top = load_topology(TWO_SWITCH)
    for i in range(8):
        for j in range(8):
            if i != j:
                assert top.path_type(f"gpu{i}", f"gpu{j}") == ("PIX" if i // 4 == j // 4 else "PHB")


def test_nps4_makes_every_pair_sys() -> None:
    """blog.chlc.cc 4090 page: with NPS4 nvidia-smi prints SYS for all pairs; copies still differ by socket."""
    top = load_topology(ROME)
    assert {top.path_type(a, b) for a in top.gpus for b in top.gpus if a != b} == {"SYS"}
    assert not top.route("gpu0", "gpu3").crosses_socket
    assert top.route("gpu0", "gpu4").crosses_socket


def _rate(top: Topology, a: str, b: str) -> float:
    route = top.route(a, b)
    caps = [top.links[name].rate.value for name in route.links]
    return min(caps + ([route.flow_rate.value] if route.flow_rate else []))


@pytest.mark.parametrize(
    ("box", "a", "b", "low", "high"),
    [
        (ROME, "gpu0", "gpu1", 25.5e9, 26.0e9),  # blog.chlc.cc matrix, P2P enabled, one direction
        (ROME, "gpu0", "gpu5", 20.6e9, 22.5e9),
        (TWO_SWITCH, "gpu0", "gpu1", 53.0e9, 56.6e9),  # rtx6kpro pages, one direction
        (TWO_SWITCH, "gpu0", "gpu4", 53.0e9, 56.6e9),
        (TWO_SOCKET, "gpu0", "gpu1", 55.6e9, 56.6e9),  # rtx6kpro:hardware/pcie-bandwidth.md
        (TWO_SOCKET, "gpu0", "gpu4", 36.0e9, 51.0e9),
    ],
)
def test_single_copy_rates_are_inside_the_published_ones(box: str, a: str, b: str, low: float, high: float) -> None:
    assert low <= _rate(load_topology(box), a, b) <= high


def _all_pairs(top: Topology, *, high: bool = False) -> float:
    """Aggregate B/s of one equal copy between every ordered pair, all at once: total over the time of the fullest capacity."""
    load = Counter(link for a in top.gpus for b in top.gpus if a != b for link in top.route(a, b).links)
    rates = {name: (cap.rate.high if high and cap.rate.high else cap.rate.value) for name, cap in top.links.items()}
    pairs = len(top.gpus) * (len(top.gpus) - 1)
    return pairs / max(count / rates[link] for link, count in load.items())


def test_all_pairs_copies_against_published_sums() -> None:
    """rtx6kpro: 187.6 to 190.4 GB/s on two Turin switches (uplink-bound: 56 B / 16); 173 GB/s on a direct dual Turin."""
    two = _all_pairs(load_topology(TWO_SWITCH))
    assert two == pytest.approx(56 / 16 * load_topology(TWO_SWITCH).links["sw0.up"].rate.value)
    assert 187.6e9 < two < 190.4e9 * 1.06
    pipe = load_topology(TWO_SOCKET).links["cpu0~cpu1.fwd"].rate
    assert pipe.low is not None
    assert pipe.high is not None
    assert 56 / 16 * pipe.low < 173e9 < 56 / 16 * pipe.high
    assert _all_pairs(load_topology(TWO_SOCKET)) == pytest.approx(56 / 16 * pipe.value)
    assert _all_pairs(load_topology(DIRECT)) == pytest.approx(8 * load_topology(DIRECT).links["gpu0.up"].rate.value)


@pytest.mark.parametrize("box", [TWO_SWITCH, ROOT_LEAF, DIRECT, TWO_SOCKET])
def test_a_ring_in_bus_order_crosses_each_capacity_once(box: str) -> None:
    top = load_topology(box)
    ring = zip(top.gpus, (*top.gpus[1:], top.gpus[0]), strict=True)
    load = Counter(link for a, b in ring for link in top.route(a, b).links)
    assert set(load.values()) == {1}


def test_acs_halves_a_two_way_copy() -> None:
    """rtx6kpro:hardware/asus-esc8000a-e13p-broadcom-switches.md: 103 GB/s both ways without ACS redirect, 50 with it."""
    for acs, shared in (("off", 1), ("on", 2)):
        top = load_topology(TWO_SWITCH).with_settings(acs=acs)  # type: ignore[arg-type]
        load = Counter((*top.route("gpu0", "gpu1").links, *top.route("gpu1", "gpu0").links))
        assert max(load.values()) == shared


def test_latency_is_the_sum_of_the_chips() -> None:
    top = load_topology(TWO_SWITCH)
    switch = top.route("gpu0", "gpu1").latency
    across = top.route("gpu0", "gpu4").latency
    root = load_topology(DIRECT).route("gpu0", "gpu1").latency
    assert across.value == pytest.approx(2 * switch.value + root.value)
    assert across.low is not None
    assert across.high is not None
    assert across.low < across.value < across.high
    # rtx6kpro:hardware/wrx90-cpayne-16gpu-4switch.md, flag writes: 1.07 us across two switches, 0.63 to 0.73 us inside one
    assert 0.33e-6 < across.value - switch.value < 0.45e-6
    acs = top.with_settings(acs="on").route("gpu0", "gpu1").latency
    assert acs.value == pytest.approx(2 * switch.value + root.value)
    hop = load_topology(TWO_SOCKET)
    assert hop.route("gpu0", "gpu4").latency.value > hop.route("gpu0", "gpu1").latency.value


def test_host_step_of_the_measured_pair() -> None:
    """Own runs on 2x H200: 9.6 to 10.0 us for an 8 B all_reduce in a graph, two steps; NCCL's base is 6.6 us, NVLink's run says 5."""
    step = load_topology(H200).host_route("gpu0", "gpu1").latency
    assert step.low is not None
    assert step.high is not None
    assert step.low <= (9.8e-6 - 6.6e-6) / 2 <= step.high
    assert step.low <= (9.8e-6 - 5.0e-6) / 2 <= step.high


def test_a_route_needs_two_different_known_gpus() -> None:
    top = load_topology(TWO_SWITCH)
    with pytest.raises(InputError, match="two different GPUs, got gpu0 twice"):
        top.route("gpu0", "gpu0")
    with pytest.raises(InputError, match="unknown GPU 'gpu8'; nearest: gpu"):
        top.host_route("gpu0", "gpu8")
    with pytest.raises(InputError, match="unknown GPU 'sw0'"):
        top.gpu_spec("sw0")


def test_routes_are_computed_once() -> None:
    top = load_topology(TWO_SWITCH)
    assert top.route("gpu0", "gpu4") is top.route("gpu0", "gpu4")
    assert top.host_route("gpu0", "gpu4") is not top.route("gpu0", "gpu4")


def test_loading_and_routing_leave_networkx_alone() -> None:
    code = (
        "import sys, pcie_sim.topology as t; t.load_topology('h200-2x-host-staged').path('gpu0', 'gpu1'); print('networkx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_iommu_is_noted() -> None:
    top = load_topology(TWO_SWITCH)
    assert any("iommu" in note for note in top.with_settings(iommu="on").notes)
    assert not any("iommu" in note for note in top.notes)
