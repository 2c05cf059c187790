"""Engines' own AllReduce kernels on boxes, and what depends on which GPUs a communicator holds."""

from __future__ import annotations

import pytest

from pcie_sim.collectives import build_schedule
from pcie_sim.network import time_collective
from pcie_sim.topology import load_topology

DIRECT = load_topology("rtx-pro-6000-8x-direct-1socket")


def us(name: str, size: str, algorithm: str, ranks: int = 8, **settings: object) -> float:
    box = load_topology(name).with_settings(**settings) if settings else load_topology(name)  # type: ignore[arg-type]
    return time_collective(box, "all_reduce", size, ranks=ranks, algorithm=algorithm, launch="graph").time_s * 1e6


@pytest.mark.parametrize(
    ("name", "ranks", "algorithm", "size", "measured"),
    [
        # local-inference-lab/rtx6kpro: pcie-oneshot-allreduce.md, wrx90-cpayne-microchip-switches.md, vllm-communicators-kimi-glm
        ("rtx-pro-6000-8x-asus-broadcom", 4, "one_shot_push", "32KiB", 10.1),
        ("rtx-pro-6000-8x-asus-broadcom", 4, "one_shot_push", "1MiB", 95.8),
        ("rtx-pro-6000-8x-asus-broadcom", 4, "one_shot_pull", "512KiB", 51.0),
        ("rtx-pro-6000-8x-wrx90-3switch-hier", 4, "one_shot_pull", "128KiB", 40.1),
        ("rtx-pro-6000-8x-wrx90-3switch-hier", 4, "one_shot_pull", "512KiB", 128.0),
        ("rtx-pro-6000-8x-direct-2socket", 8, "one_shot_push", "14KiB", 11.8),
        ("rtx-pro-6000-8x-direct-2socket", 8, "one_shot_push", "168KiB", 59.4),
    ],
)
def test_one_shot_times_are_near_the_published_ones(name: str, ranks: int, algorithm: str, size: str, measured: float) -> None:
    assert us(name, size, algorithm, ranks) == pytest.approx(measured, rel=0.22)


@pytest.mark.parametrize("algorithm", ["one_shot_push", "two_shot_pull"])
def test_the_collective_library_has_no_part_in_a_kernel(algorithm: str) -> None:
    times = {
        us("rtx-pro-6000-8x-direct-1socket", "64KiB", algorithm, env=env, ccl=version)
        for env in ({}, {"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_PROTO": "Simple", "NCCL_MAX_NCHANNELS": "1"})
        for version in ("2.18", "2.28")
    }
    assert len(times) == 1
    timing = time_collective(DIRECT, "all_reduce", "64KiB", algorithm=algorithm, launch="graph")
    assert (timing.protocol, timing.transport) == ("none", "P2P")
    assert any("own kernel" in note for note in timing.notes)


def test_without_force_p2p_kernels_crawl_and_nccl_does_not_care() -> None:
    """26 against 104 tokens/s on a board with GPUs on root ports (voipmonitor/rtx6kpro, hardware/topology.md)."""
    name = "rtx-pro-6000-8x-direct-1socket"
    with_keys, without = (us(name, "14KiB", "one_shot_push", force_p2p=keys) for keys in (True, False))
    assert without == pytest.approx(with_keys + 237, rel=0.1)
    assert us(name, "14KiB", "ring", force_p2p=True) == us(name, "14KiB", "ring", force_p2p=False)
    switched = "rtx-pro-6000-8x-2switch"  # siblings turn inside their switch, only the others go by system memory
    assert us(switched, "14KiB", "one_shot_push", 4, force_p2p=False) == us(switched, "14KiB", "one_shot_push", 4, force_p2p=True)


@pytest.mark.parametrize("algorithm", ["one_shot_pull", "two_shot_pull"])
@pytest.mark.parametrize(("name", "ranks"), [("rtx-pro-6000-8x-asus-broadcom", 8), ("rtx-pro-6000-16x-wrx90-4switch", 16)])
def test_collapse_slows_writes_only(name: str, ranks: int, algorithm: str) -> None:
    broken = ["posted_write_collapse"]
    assert us(name, "1MiB", algorithm, ranks, conditions=broken) == us(name, "1MiB", algorithm, ranks)
    pushed = algorithm.replace("pull", "push")
    assert us(name, "1MiB", pushed, ranks, conditions=broken) > 2 * us(name, "1MiB", pushed, ranks)


def test_two_gpus_of_a_larger_amd_box_are_peers() -> None:
    """NCCL >= 2.23 counts the communicator's GPUs: src/graph/paths.cc sees no others (keep=0 nodes are trimmed)."""
    kinds = [time_collective(DIRECT, "all_reduce", "14KiB", ranks=ranks, launch="graph").transport for ranks in (2, 3, 8)]
    assert kinds == ["P2P", "SHM", "SHM"]
    assert DIRECT.transport("gpu0", "gpu1", gpus=2).kind == "P2P"
    assert DIRECT.transport("gpu0", "gpu1").kind == "SHM"


@pytest.mark.parametrize("algorithm", ["one_shot_pull", "one_shot_push", "ring", "tree"])
@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_no_error_bar_reaches_below_the_links_themselves(algorithm: str, engine: str) -> None:
    box = load_topology("rtx-pro-6000-16x-wrx90-4switch").with_settings(env={"NCCL_P2P_LEVEL": "SYS"})
    timing = time_collective(box, "all_reduce", "64MiB", algorithm=algorithm, launch="graph", engine=engine)  # type: ignore[arg-type]
    least = max(count / box.links[name].rate.value for name, count in timing.link_bytes.items() if name in box.links)
    assert least * (1 - 1e-9) <= timing.time_s_p10 <= timing.time_s <= timing.time_s_p90 < 5 * timing.time_s


def test_send_recv_is_nccl_tests_shift_of_all_ranks() -> None:
    schedule = build_schedule("send_recv", "shift", 8)
    assert {(item.src, item.dst) for item in schedule.transfers} == {(rank, (rank + 1) % 8) for rank in range(8)}
    two_hosts = load_topology("rtx-pro-6000-16x-2host-ndr")
    assert "NET" in time_collective(two_hosts, "send_recv", "1MiB", launch="graph").transport
    assert time_collective(two_hosts, "send_recv", "1MiB", algorithm="direct", launch="graph").transport == "P2P"
