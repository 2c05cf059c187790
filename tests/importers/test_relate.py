"""Whose facts these are: numbers of CUDA programs, ranks and matrices to GPU nodes, and what files change of a topology's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcie_sim.errors import InputError
from pcie_sim.importers import Imported
from pcie_sim.importers.build import build_box
from pcie_sim.importers.facts import BoxFacts, CclFact, CpuFact, DeviceFact, GpuFact, HostFact, LinkFact, MatrixFact
from pcie_sim.importers.relate import relate
from pcie_sim.importers.write import topology_text
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.study import import_any, load_box
from pcie_sim.topology import load_topology

BUSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x06, 0x07, 0x75, 0x76, 0x84, 0x85, 0xF4, 0xF5))
NAME = "NVIDIA GeForce RTX 4090"


def matrix(count: int = 8) -> Imported:
    """`topo -m` of pairs below one switch: no bus ids."""
    cells = tuple(tuple("X" if i == j else "PIX" if i // 2 == j // 2 else "NODE" for j in range(count)) for i in range(count))
    box = BoxFacts(matrices=(MatrixFact("path", tuple(range(count)), cells),), gpus=tuple(GpuFact(i, numa=(0,)) for i in range(count)))
    return Imported("topo.txt", ("nvidia-smi-topo",), box)


def tree() -> Imported:
    devices = tuple(DeviceFact(bus, "gpu", bus=bus, ids=(0x10DE, 0x2684)) for bus in BUSES)
    return Imported("lspci.txt", ("lspci-vvv",), BoxFacts(devices=devices))


def cuda(*picked: int, source: str = "test.log", **more: Any) -> Imported:
    """What a CUDA program prints that sees these of the box's GPUs, as its devices 0, 1, 2 ..."""
    gpus = tuple(GpuFact(i, name=NAME, bus=BUSES[at], numbering="cuda") for i, at in enumerate(picked))
    return Imported(source, ("nccl-tests",), BoxFacts(gpus=gpus, **more), measurements=(table(len(picked)),))


def table(ranks: int, **options: str) -> MeasurementSet:
    row = {"op": "all_reduce", "ranks": ranks, "bytes": 16384, "metric": "time", "value": 30.0, "unit": "us", "quality": "good"}
    return MeasurementSet.model_validate(
        {
            "schema": "pcie-sim/measurement/1",
            "id": "t",
            "kind": "collective",
            "use": "calibrate",
            "sources": ["t"],
            "machine": {"gpus": ranks},
            "software": {"options": options},
            "rows": [row],
        }
    )


def test_devices_of_a_program_are_matched_by_bus_id_and_not_by_their_numbers() -> None:
    """CUDA_VISIBLE_DEVICES=0,1,4,5 makes devices 0 to 3 (CUDA programming guide, environment variables)."""
    built = build_box([tree(), cuda(0, 1, 4, 5)])
    assert [built.spec.nodes[f"gpu{i}"].bus for i in range(8)] == list(BUSES)
    assert built.related.measurements[0].nodes == ("gpu0", "gpu1", "gpu4", "gpu5")


def test_without_bus_ids_to_compare_some_of_the_gpus_are_none_in_particular() -> None:
    built = build_box([matrix(), cuda(0, 1, 4, 5)])
    assert [built.spec.nodes[f"gpu{i}"].bus for i in range(8)] == [None] * 8, "nothing is made up"
    assert built.spec.nodes["gpu7"].part == "rtx-4090", "the one name that is known goes to all"
    assert built.related.measurements[0].nodes == ()
    assert any("lists 4 of 8 GPUs, and no other file has bus ids" in str(remark) for remark in built.remarks)


def test_a_program_that_sees_all_gpus_in_another_order_tells_their_bus_ids() -> None:
    built = build_box([matrix(), cuda(0, 4, 1, 5, 2, 6, 3, 7)])
    assert [built.spec.nodes[f"gpu{i}"].bus for i in range(8)] == list(BUSES)
    assert built.related.measurements[0].nodes == tuple(f"gpu{i}" for i in (0, 4, 1, 5, 2, 6, 3, 7))


def test_device_numbers_of_a_table_pick_its_gpus() -> None:
    """`-g 2` on devices 4 and 5: the set says so."""
    spec = load_topology("rtx-pro-6000-8x-2switch").spec
    gpus = tuple(GpuFact(i, name=NAME, bus=BUSES[i], numbering="cuda") for i in (4, 5))
    file = Imported("t.log", ("nccl-tests",), BoxFacts(gpus=gpus), measurements=(table(2, devices="4,5"),))
    assert relate(spec, [file]).measurements[0].nodes == ("gpu4", "gpu5")


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (7, 6, 5, 4, 3, 2, 1, 0), (0, 4, 1, 5, 2, 6, 3, 7)])
def test_ranks_of_a_log_go_by_bus_id(order: tuple[int, ...]) -> None:
    log = Imported("nccl.log", ("nccl-debug",), BoxFacts(ccl=(CclFact(nranks=8, ranks=dict(enumerate(BUSES[at] for at in order))),)))
    for first in (tree(), matrix()):
        built = build_box([first, log], gpu="rtx-4090")
        assert built.related.ccl[0].nodes == {rank: f"gpu{at}" for rank, at in enumerate(order)}


def test_ranks_on_some_gpus_go_by_nvml_number_or_are_not_known() -> None:
    ranks = dict(enumerate(BUSES[at] for at in (0, 1, 4, 5)))
    told = CclFact(nranks=4, ranks=ranks, devices={0: 0, 1: 1, 2: 4, 3: 5})
    for ccl, nodes in ((told, {0: "gpu0", 1: "gpu1", 2: "gpu4", 3: "gpu5"}), (CclFact(nranks=4, ranks=ranks), {})):
        built = build_box([matrix(), Imported("nccl.log", ("nccl-debug",), BoxFacts(ccl=(ccl,)))], gpu="rtx-4090")
        assert built.related.ccl[0].nodes == nodes
    assert any("which GPU each rank of this log is" in str(remark) for remark in built.related.remarks)


def test_several_hosts_are_not_mixed_up() -> None:
    spec = load_topology("rtx-pro-6000-16x-2host-ndr").spec
    log = Imported("nccl.log", ("nccl-debug",), BoxFacts(ccl=(CclFact(nranks=16, nodes=2, ranks=dict(enumerate(BUSES + BUSES))),)))
    assert relate(spec, [log]).ccl[0].nodes == {}


def link(speed: str) -> DeviceFact:
    return DeviceFact(BUSES[0], "gpu", bus=BUSES[0], ids=(0x10DE, 0x2684), link=LinkFact(int(speed), 16), link_max=LinkFact(4, 16))


@pytest.mark.parametrize("speeds", [("1", "3"), ("3", "1")])
def test_of_two_speeds_in_force_the_faster_is_the_links(speeds: tuple[str, str]) -> None:
    """A link idles slower than it can, never faster: read idle and under load, the load tells."""
    files = [Imported(f"{i}.txt", ("lspci-vvv",), BoxFacts(devices=(link(speed),))) for i, speed in enumerate(speeds)]
    device = build_box(files).related.devices["gpu0"]
    assert device.link == LinkFact(3, 16)


def test_trees_that_disagree_about_a_switch_are_said() -> None:
    flat = tree()
    bridge = DeviceFact("0000:05:00.0", "bridge", bus="0000:05:00.0", role="switch")
    below = tuple(DeviceFact(bus, "gpu", bridge.key if i < 2 else None, bus=bus, ids=(0x10DE, 0x2684)) for i, bus in enumerate(BUSES))
    dump = Imported("topo.xml", ("nccl-topo",), BoxFacts(devices=(bridge, *below)))
    said = "\n".join(str(remark) for remark in build_box([flat, dump]).remarks if remark.kind == "conflict")
    assert "topo.xml: one switch above 0000:06:00.0 and 0000:07:00.0; lspci.txt has it otherwise" in said


def test_names_that_disagree_are_said() -> None:
    """The name by PCI id is kept, and --gpu over both."""
    other = Imported("smi.txt", ("nvidia-smi",), BoxFacts(gpus=tuple(GpuFact(i, "NVIDIA L40S", bus) for i, bus in enumerate(BUSES))))
    by_id = build_box([tree(), other])
    assert by_id.spec.nodes["gpu0"].part == "rtx-4090"
    assert any("'NVIDIA L40S' by name, rtx-4090 by PCI id" in str(remark) for remark in by_id.remarks)
    asked = build_box([tree()], gpu="l40s")
    assert any("gpu0 to gpu7: rtx-4090 by the files; l40s taken" in str(remark) for remark in asked.remarks)


LOG = """\
box:1:2 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
box:1:2 [0] NCCL INFO NCCL version 2.22.3+cuda12.4
box:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
box:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer
"""


def test_what_a_log_says_is_in_force_holds_over_a_topology_file(tmp_path: Path) -> None:
    """The default level of 2.22 on AMD is SYS, of 2.28 PXB (NVIDIA/nccl: src/graph/paths.cc): the version decides the transports."""
    (tmp_path / "nccl.log").write_text(LOG)
    box, related = load_box("rtx-pro-6000-8x-2switch", [tmp_path / "nccl.log"])
    assert (box.settings.ccl.version, box.settings.env, box.settings.p2p) == ("2.22.3", {"NCCL_P2P_LEVEL": "SYS"}, "on")
    assert box.transport("gpu0", "gpu7").kind == "P2P"
    said = "\n".join(str(remark) for remark in related.remarks)
    assert "the library is NCCL 2.22.3 by the files, over the topology's NCCL 2.28" in said
    assert "in force by the files: NCCL_P2P_LEVEL=SYS" in said
    assert load_topology("rtx-pro-6000-8x-2switch").transport("gpu0", "gpu7").kind == "SHM"


def test_a_display_card_of_another_maker_is_no_gpu_of_the_box() -> None:
    """Two cards that nvidia-smi lists and a Radeon for the screen, which lspci shows as a GPU, too."""
    screen = DeviceFact("0000:12:00.0", "gpu", bus="0000:12:00.0", name="Advanced Micro Devices, Inc. [AMD/ATI] Navi 24 [Radeon PRO W6400]")
    cards = tuple(DeviceFact(bus, "gpu", bus=bus, name="NVIDIA Corporation AD102 [GeForce RTX 4090]") for bus in BUSES[:2])
    pci = Imported("lspci.txt", ("lspci-t",), BoxFacts(devices=(*cards, screen)))
    smi = Imported("smi.txt", ("nvidia-smi",), BoxFacts(gpus=tuple(GpuFact(i, NAME, BUSES[i]) for i in range(2))))
    for files in ([pci, smi], [smi, pci], [pci]):
        built = build_box(files)
        assert [node.part for node in built.spec.nodes.values() if node.kind == "gpu"] == ["rtx-4090"] * 2
        assert any("0000:12:00.0" in str(remark) and "of another maker" in str(remark) for remark in built.remarks)


def test_names_of_a_foreign_log_go_to_nobody() -> None:
    other = tuple(GpuFact(i, "NVIDIA GeForce RTX 3090", f"0000:a{i}:00.0", numbering="cuda") for i in range(8))
    said = [str(one) for one in build_box([tree(), Imported("old.log", ("nccl-tests",), BoxFacts(gpus=other))]).remarks]
    assert any("are not among those that other files list" in text for text in said)
    assert not any("by name" in text for text in said)


def test_gpus_that_no_file_places_stand_on_both_sockets() -> None:
    cpus = tuple(CpuFact(f"numa{i}", numa=i, package=i) for i in range(2))
    host = Imported("lscpu.txt", ("lscpu",), BoxFacts(cpus=cpus, host=HostFact(sockets=2, numa_nodes=2)))
    names = Imported("L.txt", ("nvidia-smi",), BoxFacts(gpus=tuple(GpuFact(i, NAME) for i in range(8))))
    built = build_box([names, host])
    parents = [built.spec.nodes[str(built.spec.nodes[f"gpu{i}"].parent)].parent for i in range(8)]
    assert parents == ["cpu0"] * 4 + ["cpu1"] * 4
    assert any("the host has 2 sockets, but no file says which GPU is on which" in str(remark) for remark in built.remarks)


def test_two_cards_on_a_desktop_processor_share_its_lanes() -> None:
    """Socket AM5 has 24 lanes for cards: two x16 cards train to x8 each (board manuals: x16/x0 or x8/x8)."""
    cpu = CpuFact("numa0", numa=0, name="AMD Ryzen 9 7950X 16-Core Processor", vendor="AuthenticAMD")
    lists = Imported("L.txt", ("nvidia-smi",), BoxFacts(gpus=tuple(GpuFact(i, NAME) for i in range(2)), cpus=(cpu,)))
    built = build_box([lists])
    assert [str(built.spec.nodes[f"gpu{i}"].link) for i in range(2)] == ["gen=4 width=8"] * 2
    assert any("not said; gen4 x8 assumed: epyc-4004 has 24 lanes for cards" in str(remark) for remark in built.remarks)
    one = Imported("L.txt", ("nvidia-smi",), BoxFacts(gpus=(GpuFact(0, NAME),), cpus=(cpu,)))
    assert str(build_box([one]).spec.nodes["gpu0"].link) == "gen=4 width=16"
    seen = tuple(GpuFact(i, NAME, link=LinkFact(4, 16)) for i in range(2))
    told = Imported("q.txt", ("nvidia-smi",), BoxFacts(gpus=seen, cpus=(cpu,)))
    assert str(build_box([told]).spec.nodes["gpu1"].link) == "gen=4 width=16", "what a file says stays"


def test_a_topology_file_and_a_log_make_one_box_however_they_are_given(tmp_path: Path) -> None:
    """The same through `import_any`, `topology import` and the doctor's loader; one topology file, and no --gpu over it."""
    shipped = load_topology("rtx-pro-6000-8x-2switch")
    (tmp_path / "box.yaml").write_text(topology_text(shipped.spec), encoding="utf-8")
    (tmp_path / "nccl.log").write_text(LOG, encoding="utf-8")
    files = [tmp_path / "box.yaml", tmp_path / "nccl.log"]
    found = import_any(*files).topology
    assert found is not None
    for box in (found, load_box(files[0], files[1:])[0], load_box("rtx-pro-6000-8x-2switch", files[1:])[0]):
        assert (box.settings.ccl.version, box.settings.p2p) == ("2.22.3", "on")
        assert box.transport("gpu0", "gpu7").kind == "P2P"
    for twice in (lambda: import_any(files[0], files[0]), lambda: load_box("rtx-pro-6000-8x-2switch", [files[0]])):
        with pytest.raises(InputError, match="a second topology file"):
            twice()
    for over in (lambda: import_any(files[0], gpu="l40s"), lambda: load_box(files[0], gpu="l40s")):
        with pytest.raises(InputError, match=r"--gpu l40s: .* names its GPUs"):
            over()
