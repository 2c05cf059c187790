"""What the library will do, as one answer; what its choices cost; a given ring order; the engine's own AllReduce kernel."""

from __future__ import annotations

import numpy as np
import pytest
from fakebox import FakeBox
from nccl_boxes import box

from pcie_sim import catalog
from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.network import call_times, costly_choices, library_choice, time_collective
from pcie_sim.network.custom import ONE_SHOT
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import Topology, load_topology

CUSTOM = catalog.load_runtime("sglang").custom_all_reduce
assert CUSTOM is not None
TWO_SWITCH = load_topology("rtx-pro-6000-8x-2switch").with_settings(env={"NCCL_P2P_LEVEL": "SYS"})
WORST = ("gpu0", "gpu4", "gpu1", "gpu5", "gpu2", "gpu6", "gpu3", "gpu7")


def pair(topology: Topology, sizes: list[float], groups: tuple[tuple[int, ...], ...] = ((0, 1),)) -> CollectiveCall:
    return CollectiveCall("all_reduce", np.asarray(sizes), groups)


@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_a_badly_ordered_ring_is_four_times_slower(engine: str) -> None:
    # two switches of four GPUs, every edge across: four flows a direction on each uplink instead of one
    bare = FakeBox(per_switch=(4, 4))
    size = 10**8
    good = time_collective(bare, "all_reduce", size, engine=engine)  # type: ignore[arg-type]
    bad = time_collective(bare, "all_reduce", size, engine=engine, order=["g0", "g4", "g1", "g5", "g2", "g6", "g3", "g7"])  # type: ignore[arg-type]
    assert bad.time_s / good.time_s == pytest.approx(4.0, rel=1e-9)
    assert any("4 times slower than bus order" in note for note in bad.notes)
    assert not any("slower than bus order" in note for note in good.notes)


def test_a_badly_ordered_ring_on_the_shipped_box() -> None:
    bad = time_collective(TWO_SWITCH, "all_reduce", "64MiB", launch="graph", order=WORST)
    good = time_collective(TWO_SWITCH, "all_reduce", "64MiB", launch="graph", order=TWO_SWITCH.gpus)
    assert bad.parts_s["bytes"] / good.parts_s["bytes"] == pytest.approx(4.0, rel=1e-6)
    assert any("4 times slower" in note for note in bad.notes)
    assert not any("slower than bus order" in note for note in good.notes)
    assert good.time_s == time_collective(TWO_SWITCH, "all_reduce", "64MiB", launch="graph").time_s


@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        (("gpu0", "gpu9"), UnknownNameError, "gpu9"),
        (("gpu0", "gpu0"), InputError, "each once"),
        (("gpu0",), InputError, "two GPUs"),
    ],
)
def test_orders_that_make_no_sense(order: tuple[str, ...], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        time_collective(TWO_SWITCH, "all_reduce", 1024, order=order)
    with pytest.raises(InputError, match="ranks"):
        time_collective(TWO_SWITCH, "all_reduce", 1024, ranks=4, order=TWO_SWITCH.gpus)


def test_the_library_puts_interleaved_buses_right_by_itself() -> None:
    plain = box("sm_120", "epyc-turin", switches=2)
    mixed = _interleaved(plain)
    assert mixed.gpus[:2] == ("gpu0", "gpu4")
    found = time_collective(mixed, "all_reduce", "64MiB", launch="graph")
    assert found.time_s == pytest.approx(time_collective(plain, "all_reduce", "64MiB", launch="graph").time_s)
    choice = library_choice(mixed)
    assert choice is not None
    assert choice.order == plain.gpus
    forced = time_collective(mixed, "all_reduce", "64MiB", launch="graph", order=mixed.gpus)
    assert forced.parts_s["bytes"] > 3.9 * found.parts_s["bytes"]


def _interleaved(topology: Topology) -> Topology:
    from pcie_sim.topology import from_spec

    nodes = dict(topology.spec.nodes)
    for index in range(8):
        bus = f"0000:{index % 4 * 2 + index // 4 + 1:02x}:00.0"
        nodes[f"gpu{index}"] = nodes[f"gpu{index}"].model_copy(update={"bus": bus})
    return from_spec(topology.spec.model_copy(update={"nodes": nodes}))


@pytest.mark.parametrize(
    ("size", "sglang_us", "vllm_us"),
    # ai-dynamo/aiconfigurator rtx_pro_6000 custom_allreduce, two GPUs, CUDA graph: sglang 0.5.14, vllm 0.24.0
    [(512, 4.54, 4.14), (8192, 4.56, 4.55), (32768, 5.37, 5.37), (131072, 7.86, 8.18), (1048576, 30.24, 30.15), (8388608, 207.2, 207.2)],
)
def test_the_engines_kernel_between_two_gpus(size: int, sglang_us: float, vllm_us: float) -> None:
    found = call_times(TWO_SWITCH, pair(TWO_SWITCH, [size]), gpu_of_rank=TWO_SWITCH.gpus, custom=CUSTOM)
    assert found.protocol == ONE_SHOT
    assert found.time_s[0] * 1e6 == pytest.approx(sglang_us, rel=0.1)
    assert found.time_s[0] * 1e6 == pytest.approx(vllm_us, rel=0.12)
    assert found.evidence in ("profile", "nominal")
    assert 0 < found.sigma_latency[0] < 0.3


def test_where_the_engine_uses_its_kernel() -> None:
    def protocol(topology: Topology, groups: tuple[tuple[int, ...], ...], size: float = 1024.0) -> str:
        return str(call_times(topology, pair(topology, [size], groups), gpu_of_rank=topology.gpus, custom=CUSTOM).protocol)

    assert protocol(TWO_SWITCH, ((0, 1),)) == ONE_SHOT
    assert protocol(TWO_SWITCH, ((0, 1), (2, 3))) == ONE_SHOT
    assert protocol(TWO_SWITCH, ((0, 1, 2),)) == "LL"  # three ranks are not among its sizes
    assert protocol(TWO_SWITCH, ((0, 1, 2, 3),)) == "LL"  # refused above two GPUs without NVLink
    assert protocol(TWO_SWITCH, ((0, 1),), 8388609.0) == "Simple"  # above its buffer
    refused = TWO_SWITCH.with_settings(p2p="off")
    assert protocol(refused, ((0, 1),)) == "LL"
    # it asks the driver, not the collective library's level
    assert protocol(TWO_SWITCH.with_settings(env={"NCCL_P2P_LEVEL": "LOC"}), ((0, 1),)) == ONE_SHOT


def test_sizes_on_both_sides_of_the_buffer() -> None:
    sizes = [1024.0, 8388608.0, 8388609.0, 1e8]
    call = pair(TWO_SWITCH, sizes)
    with_kernel = call_times(TWO_SWITCH, call, gpu_of_rank=TWO_SWITCH.gpus, custom=CUSTOM)
    without = call_times(TWO_SWITCH, call, gpu_of_rank=TWO_SWITCH.gpus)
    assert list(with_kernel.protocol) == [ONE_SHOT, ONE_SHOT, "Simple", "Simple"]
    assert list(with_kernel.time_s[2:]) == list(without.time_s[2:])
    assert with_kernel.time_s[0] < without.time_s[0]
    assert np.allclose(with_kernel.time_s, with_kernel.latency_s + with_kernel.bytes_s)


def test_pairs_that_meet_on_an_uplink_share_it() -> None:
    crossing = pair(TWO_SWITCH, [1e6], ((0, 4), (1, 5)))
    alone = call_times(TWO_SWITCH, pair(TWO_SWITCH, [1e6], ((0, 4),)), gpu_of_rank=TWO_SWITCH.gpus, custom=CUSTOM)
    both = call_times(TWO_SWITCH, crossing, gpu_of_rank=TWO_SWITCH.gpus, custom=CUSTOM)
    # alone a flow reaches 0.74 of the link (catalog/parts/one-shot-kernel.yaml); two share what the uplink carries together
    together = TWO_SWITCH.links["sw0.up"].contended_share
    assert together is not None
    assert both.bytes_s[0] == pytest.approx(2 * 0.74 / together.value * alone.bytes_s[0])


def test_the_whole_answer_of_a_box_that_falls_back() -> None:
    # local-inference-lab/rtx6kpro:optimization/nccl-tuning.md, 8x RTX PRO 6000 on two Turin: stock 48.2 us at 32 KiB, 26.2 with a ring
    topology = load_topology("rtx-pro-6000-8x-direct-2socket").with_settings(env={"NCCL_P2P_LEVEL": "SYS"})
    found = library_choice(topology)
    assert found is not None
    assert (found.ring.channels, found.ring.speed_Bps, found.ring.type_intra, found.ring.fallback) == (1, 0.1e9, "SYS", True)
    assert found.channels == 2
    (warning,) = found.warnings
    assert warning.code == "fallback"
    assert "16 GB/s between NUMA nodes" in warning.text
    assert "NCCL_GRAPH_FILE" in warning.setting
    at_32k = costly_choices(topology, (topology.gpus,), 32768)
    assert [item.code for item in at_32k] == ["fallback"]
    assert at_32k[0].time_s * 1e6 == pytest.approx(48.2, rel=0.3)
    assert (at_32k[0].time_s - at_32k[0].cost_s) * 1e6 == pytest.approx(26.2, rel=0.3)


def test_host_staging_that_a_level_would_avoid() -> None:
    topology = load_topology("rtx-pro-6000-8x-direct-1socket")
    found = costly_choices(topology, (topology.gpus,), 14336)
    assert [item.code for item in found] == ["shm"]
    assert found[0].setting == "NCCL_P2P_LEVEL=PHB"
    better = topology.with_settings(env={"NCCL_P2P_LEVEL": "PHB"})
    with_peers = time_collective(better, "all_reduce", 14336, launch="graph").time_s
    assert found[0].time_s - found[0].cost_s == pytest.approx(with_peers)
    assert not costly_choices(better, (better.gpus,), 14336)
    disabled = topology.with_settings(env={"NCCL_P2P_DISABLE": "1"})
    assert "without NCCL_P2P_DISABLE" in costly_choices(disabled, (disabled.gpus,), 14336)[0].setting
    # nothing to set where the driver refuses
    refused = topology.with_settings(p2p="off")
    assert "shm" not in {item.code for item in costly_choices(refused, (refused.gpus,), 14336)}


@pytest.mark.parametrize(
    "name",
    [name for name in catalog.topology_names() if load_topology(name).settings.ccl.name == "nccl" and len(load_topology(name).hosts) == 1],
)
def test_every_shipped_box_has_an_answer(name: str) -> None:
    topology = load_topology(name)
    found = library_choice(topology)
    assert found is not None
    data = found.to_dict()
    assert sorted(data["ring_order"]) == sorted(topology.gpus)
    assert set(data["choices"]) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
    for segments in data["choices"].values():
        starts = [segment["from_bytes"] for segment in segments]
        assert starts == sorted(set(starts))
        assert starts[0] == 1
    for warning in found.warnings:
        assert 0 < warning.cost_s < warning.time_s
        assert warning.setting
    # what is shown is what is predicted
    for segment in found.choices["all_reduce"]:
        timing = time_collective(topology, "all_reduce", segment.from_bytes)
        assert (timing.algorithm, timing.protocol) == (segment.algorithm, segment.protocol)


def test_no_answer_where_nothing_is_chosen() -> None:
    topology = load_topology("rtx-pro-6000-8x-2switch")
    assert library_choice(topology.with_settings(ccl=topology.settings.ccl.model_copy(update={"name": "none"}))) is None
    over_network = library_choice(topology.with_settings(env={"NCCL_SHM_DISABLE": "1"}))
    assert over_network is not None
    assert over_network.warnings == ()
    assert any("network" in note for note in over_network.notes)
