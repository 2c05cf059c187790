"""What the library's channels move, against our own runs on two H200 without NVLink (validation/settings-h200-2x)."""

from __future__ import annotations

import numpy as np
import pytest

from pcie_sim.catalog import load_typed_part
from pcie_sim.network import call_times, time_collective
from pcie_sim.network.channels import Lanes, blend, channel_rate, pass_filled
from pcie_sim.network.nccl_rules import rules
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.specs.part import LibraryPart
from pcie_sim.topology import load_topology

PAIR = load_topology("h200-2x-host-staged")
NCCL = load_typed_part("nccl", LibraryPart)


def microseconds(size: int | str, op: str = "all_reduce", algorithm: str = "auto", **env: str) -> float:
    box = PAIR.with_settings(env=env) if env else PAIR
    return time_collective(box, op, size, launch="graph", algorithm=algorithm).time_s * 1e6


@pytest.mark.parametrize(
    ("env", "size", "measured"),
    [
        # us of a call in a CUDA graph, NCCL 2.28.9, a process per GPU
        ({"NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "LL"}, "512KiB", 210.7),
        ({"NCCL_MAX_NCHANNELS": "2", "NCCL_MIN_NCHANNELS": "2", "NCCL_PROTO": "LL"}, "2MiB", 411.0),
        ({"NCCL_PROTO": "LL"}, "4MiB", 458.1),
        ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16", "NCCL_PROTO": "LL"}, "16MiB", 979.8),
        ({"NCCL_NTHREADS": "128", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "LL"}, "16MiB", 23056),
        ({"NCCL_NTHREADS": "64", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "LL"}, "16MiB", 30598),
        ({"NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "LL128"}, "16MiB", 1752.1),
        ({"NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "Simple"}, "16MiB", 1053.0),
        ({"NCCL_PROTO": "Simple"}, "64MiB", 2327.8),
        ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16", "NCCL_PROTO": "Simple"}, "64MiB", 2208.2),
        ({"NCCL_NTHREADS": "64", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "Simple"}, "16MiB", 5760.0),
        ({"NCCL_NTHREADS": "256", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "Simple"}, "16MiB", 1766.4),
        ({"NCCL_BUFFSIZE": "65536", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "Simple"}, "16MiB", 6225.1),
        ({"NCCL_BUFFSIZE": "262144", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "Simple"}, "16MiB", 2123.5),
        ({"NCCL_BUFFSIZE": "1048576", "NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": "Simple"}, "16MiB", 1313.5),
    ],
)
def test_environment_moves_all_reduce_as_measured(env: dict[str, str], size: str, measured: float) -> None:
    assert microseconds(size, **env) == pytest.approx(measured, rel=0.22)


@pytest.mark.parametrize(
    ("env", "algorithm", "measured"),
    [
        ({"NCCL_P2P_PCI_CHUNKSIZE": "16384"}, "shift", 1467.7),
        ({"NCCL_P2P_PCI_CHUNKSIZE": "65536"}, "shift", 806.3),
        ({}, "shift", 719.4),
        ({"NCCL_P2P_PCI_CHUNKSIZE": "524288"}, "shift", 665.7),
        ({"NCCL_P2P_PCI_CHUNKSIZE": "16384"}, "direct", 1391.8),
        ({}, "direct", 458.9),
        ({"NCCL_P2P_PCI_CHUNKSIZE": "524288"}, "direct", 369.4),
    ],
)
def test_sends_of_16_mib_go_by_chunks_as_measured(env: dict[str, str], algorithm: str, measured: float) -> None:
    """Both ways at once (nccl-tests' sendrecv), and one way."""
    assert microseconds("16MiB", "send_recv", algorithm, **env) == pytest.approx(measured, rel=0.2)


def test_a_broadcast_one_way_is_not_held_by_what_kernels_read_and_write_at_once() -> None:
    # 64 MiB: 1311.9 us one way; an AllReduce of it both ways 2315 us
    assert microseconds("64MiB", "broadcast") == pytest.approx(1311.9, rel=0.15)
    assert microseconds("64MiB") == pytest.approx(2315.2, rel=0.15)


def test_ll_takes_whole_passes() -> None:
    """Measured: 15.2 us at 8 KiB, 17.7 at 14 KiB, 15.4 at 16 KiB; 15.0 at 2 KiB, 17.0 at 3 KiB, 15.1 at 4 KiB."""
    for below, inside, above, more in ((8192, 14336, 16384, 2.5), (2048, 3072, 4096, 2.0)):
        times = [microseconds(size, NCCL_PROTO="LL") for size in (below, inside, above)]
        assert times[1] - times[0] == pytest.approx(more, abs=1.3)
        assert times[1] - times[2] == pytest.approx(more, abs=1.3)


def test_small_messages_of_eight_ranks_are_flat_until_the_second_pass() -> None:
    """8x RTX 4090 host-staged with two channels: 43 us from 512 B to 64 KiB (8 ranks x 2 channels x 4 KiB), 67 us at 128 KiB."""
    box = load_topology("rtx-4090-8x-rome-2socket").with_settings(p2p="off", ccl="2.22")
    sizes = [float(size) for size in (512, 32768, 65536, 131072)]
    call = CollectiveCall("all_reduce", np.asarray(sizes), (tuple(range(8)),))
    times = call_times(box, call, gpu_of_rank=box.gpus, protocol="LL").time_s * 1e6
    assert times[2] < times[0] * 1.15
    assert times[3] - times[2] == pytest.approx(67.3 - 45.7, rel=0.4)


@pytest.mark.parametrize("size", [1, 100, 2560, 8192, 14336, 100_000, 1 << 20, 5_000_000])
@pytest.mark.parametrize("name", ["h200-2x-host-staged", "rtx-pro-6000-8x-direct-1socket", "rtx-pro-6000-8x-2switch"])
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_engines_agree_on_rings_with_passes(name: str, protocol: str, size: int) -> None:
    box = load_topology(name).with_settings(env={"NCCL_P2P_LEVEL": "SYS"})
    times = [
        time_collective(box, "all_reduce", size, algorithm="ring", protocol=protocol, launch="graph", engine=engine).time_s
        for engine in ("analytic", "event")  # type: ignore[arg-type]
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_how_much_of_a_pass_is_filled() -> None:
    # x passes: ceil(x) - x of the last one stay empty
    found = pass_filled(np.array([0.0, 1.0, 50.0, 100.0, 101.0, 150.0, 200.0]), 100.0)
    assert found == pytest.approx([0.0, 0.01, 0.5, 1.0, 0.01, 0.5, 1.0])


def test_more_threads_channels_and_buffer_never_move_less() -> None:
    tuning = rules("nccl", "2.28")
    assert tuning is not None
    for protocol in ("LL", "LL128", "Simple"):
        for way in ("p2p", "shm"):
            rates = [
                channel_rate(NCCL, tuning, protocol, way, Lanes(channels, threads, buffer), 2e-6).value  # type: ignore[arg-type]
                for channels, threads, buffer in ((1, 64, 65536), (1, 128, 65536), (1, 128, 1 << 22), (4, 128, 1 << 22), (4, 512, 1 << 23))
            ]
            assert rates == sorted(rates)


def test_blend_is_below_both_limits_and_near_the_smaller_one() -> None:
    assert blend(NCCL, 1.0, 1e9) == pytest.approx(1.0)
    assert blend(NCCL, 1.0, 1.0) == pytest.approx(2 ** (-1 / 2.2))  # 24.0 GB/s of two channels of 15.9 on a port of 29
    assert blend(NCCL, 3.0, float("inf")) == 3.0


def test_small_broadcasts_never_get_faster_with_more_bytes() -> None:
    """The passes of a broadcast follow each other down the chain: its first one is moved once, not once a hop."""
    box = load_topology("rtx-4090-8x-rome-2socket")
    for op in ("broadcast", "reduce"):
        times = [time_collective(box, op, size, launch="graph", protocol="LL").time_s for size in (1, 256, 1024, 4096, 65536, 1 << 20)]
        assert times == sorted(times)
        assert times[1] < 1.1 * times[0]


@pytest.mark.parametrize("count", ["1", "4", "16"])
def test_channels_per_peer_change_nothing_as_measured(count: str) -> None:
    """762.5 us at 16 MiB by default; 718.4, 730.9 and 741.5 with 1, 4 and 16 channels a peer."""
    assert microseconds("16MiB", "send_recv", NCCL_NCHANNELS_PER_PEER=count) == microseconds("16MiB", "send_recv")


def test_rings_whose_steps_end_their_passes_apart_say_so() -> None:
    box = load_topology("rtx-6000d-8x-4switch-2socket").with_settings(env={"NCCL_P2P_LEVEL": "PHB"})
    ring = [
        time_collective(box, "all_reduce", "14KiB", algorithm="ring", protocol="LL", launch="graph", engine=engine)
        for engine in ("analytic", "event")  # type: ignore[arg-type]
    ]
    assert ring[0].time_s == pytest.approx(ring[1].time_s, rel=0.06)
    assert any("passes apart" in text for text in ring[0].ignores)


def test_ll128_on_pcie_comes_with_its_warning() -> None:
    for forced in ({"env": {"NCCL_PROTO": "LL128"}}, {}):
        box = PAIR.with_settings(**forced) if forced else PAIR  # type: ignore[arg-type]
        timing = time_collective(box, "all_reduce", "1MiB", protocol="auto" if forced else "LL128", launch="graph")
        assert timing.protocol == "LL128"
        assert any("silently wrong data" in note for note in timing.notes)
