"""From facts to a box: links from both ends, sockets from NUMA nodes, settings, merging of files, and what is said about all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.importers import Imported, Launch
from pcie_sim.importers.build import BuiltBox, build_box
from pcie_sim.importers.facts import (
    BoxFacts,
    CclFact,
    CpuFact,
    DeviceFact,
    GpuFact,
    HostFact,
    LinkFact,
    MatrixFact,
    bus_id,
    bus_id_of_int,
)
from pcie_sim.importers.sockets import plan_sockets
from pcie_sim.topology import from_spec

RTX_4090 = (0x10DE, 0x2684)
"""PCI id of the GeForce RTX 4090 (pci-ids.ucw.cz)."""


def gpu(bus: str, parent: str | None = None, **more: object) -> DeviceFact:
    return DeviceFact(key=bus, kind="gpu", bus=bus, parent=parent, ids=RTX_4090, **more)  # type: ignore[arg-type]


def port(bus: str, parent: str | None = None, **more: object) -> DeviceFact:
    kind = "root_port" if parent is None else "bridge"
    role = None if parent is None else "downstream"
    return DeviceFact(key=bus, kind=kind, bus=bus, parent=parent, role=role, **more)  # type: ignore[arg-type]


def box(*devices: DeviceFact, source: str = "lspci.txt", fmt: str = "lspci-vvv", **more: object) -> Imported:
    cpus = more.pop("cpus", (CpuFact("n0", numa=0, vendor="AuthenticAMD", name="AMD EPYC 9554 64-Core Processor"),))
    one = tuple(replace(d, cpu="n0") if d.parent is None and d.cpu is None else d for d in devices)
    return Imported(source, (fmt,), BoxFacts(devices=one, cpus=cpus, **more))  # type: ignore[arg-type]


def texts(built: BuiltBox, kind: str) -> str:
    return "\n".join(str(remark) for remark in built.remarks if remark.kind == kind)


GEN5, GEN4 = LinkFact(5, 16), LinkFact(4, 16)


def test_a_link_is_what_both_ends_can_and_as_wide_as_it_trained() -> None:
    """PCIe trains to the fastest rate and width that both ends have; an idle GPU drops to Gen1 but keeps its lanes."""
    built = build_box(
        [
            box(
                port("0000:00:01.0", link=LinkFact(1, 16), link_max=GEN5),
                gpu("0000:01:00.0", "0000:00:01.0", link=LinkFact(1, 16), link_max=GEN4),
                port("0000:00:02.0", link=LinkFact(1, 8), link_max=GEN5),
                gpu("0000:02:00.0", "0000:00:02.0", link=LinkFact(1, 8), link_max=GEN4),
                port("0000:00:03.0", link=LinkFact(3, 16), link_max=LinkFact(3, 16)),
                gpu("0000:03:00.0", "0000:00:03.0", link=LinkFact(3, 16), link_max=GEN4),
            )
        ]
    )
    links = [str(built.spec.nodes[f"gpu{i}"].link) for i in range(3)]
    assert links == ["gen=4 width=16", "gen=4 width=8", "gen=3 width=16"]
    assert "link of gpu" not in texts(built, "assumed"), "both ends are said"


def test_gen1_in_force_says_nothing_where_no_capability_is_printed() -> None:
    built = build_box([box(gpu("0000:01:00.0", link=LinkFact(1, 8)), gpu("0000:02:00.0", link=LinkFact(3, 16)), fmt="nccl-topo")])
    assert built.spec.nodes["gpu0"].link is not None
    assert (built.spec.nodes["gpu0"].link.gen, built.spec.nodes["gpu0"].link.width) == (4, 8)
    assert "Gen1 in force is what an idle GPU shows; gen4 (the GPU's own) assumed" in texts(built, "assumed")
    assert built.spec.nodes["gpu1"].link is not None
    assert built.spec.nodes["gpu1"].link.gen == 3, "Gen3 is no idle state of a Gen4 GPU's link: taken as it is"


def test_a_link_faster_than_its_gpu_is_a_contradiction() -> None:
    built = build_box([box(gpu("0000:01:00.0", link=LinkFact(6, 16)), gpu("0000:02:00.0", link=GEN4), fmt="nccl-topo")])
    assert "a link of Gen6, but the GPU has Gen4" in texts(built, "conflict")
    assert from_spec(built.spec).trained_link("gpu0") == from_spec(built.spec).trained_link("gpu1")


def test_a_switch_with_its_ports_becomes_one_node() -> None:
    up = DeviceFact("0000:01:00.0", "bridge", "0000:00:01.0", None, "0000:01:00.0", "upstream", link=GEN4, link_max=GEN4)
    built = build_box(
        [
            box(
                port("0000:00:01.0", link=GEN4, link_max=GEN5),
                up,
                port("0000:02:00.0", "0000:01:00.0", acs_redirect=True),
                gpu("0000:03:00.0", "0000:02:00.0", link=GEN4, max_payload=256),
                port("0000:02:01.0", "0000:01:00.0", acs_redirect=False),
                gpu("0000:04:00.0", "0000:02:01.0", link=GEN4, max_payload=128),
            )
        ]
    )
    kinds = [node.kind for node in built.spec.nodes.values()]
    assert kinds == ["socket", "root_port", "switch", "gpu", "gpu"]
    assert from_spec(built.spec).path_type("gpu0", "gpu1") == "PIX"
    assert built.spec.settings.acs == "on"
    assert "ACS redirect is on at 1 of 2 switch ports" in texts(built, "note")
    assert built.spec.settings.max_payload == 128
    assert built.related.above["gpu0"].key == "0000:02:00.0"
    assert built.related.above["sw0"].key == "0000:00:01.0"


def test_gpus_are_numbered_in_bus_order_whatever_the_order_of_the_file() -> None:
    built = build_box([box(gpu("0000:c1:00.0"), gpu("0000:01:00.0"), gpu("0001:00:00.0"))])
    assert [built.spec.nodes[f"gpu{i}"].bus for i in range(3)] == ["0000:01:00.0", "0000:c1:00.0", "0001:00:00.0"]


def test_what_nobody_says_is_assumed_and_listed() -> None:
    matrix = MatrixFact("path", (0, 1), (("X", "PIX"), ("PIX", "X")))
    built = build_box([Imported("topo.txt", ("nvidia-smi-topo",), BoxFacts(matrices=(matrix,)))])
    said = texts(built, "assumed")
    for words in (
        "GPU model of gpu0, gpu1",
        "CPU of cpu0",
        "switch chip of sw0",
        "uplink of sw0",
        "link of gpu0, gpu1",
        "version of the coll",
    ):
        assert words in said
    assert set(built.spec.assumptions) >= {line for line in said.splitlines() if "uplink" in line}
    assert "(model assumed)" in built.spec.title


def test_the_gpu_can_be_said() -> None:
    matrix = MatrixFact("path", (0, 1), (("X", "SYS"), ("SYS", "X")))
    file = Imported("topo.txt", ("nvidia-smi-topo",), BoxFacts(matrices=(matrix,)))
    built = build_box([file], gpu="RTX_4090")
    assert built.spec.nodes["gpu0"].part == "rtx-4090"
    assert "GPU model" not in texts(built, "assumed")
    with pytest.raises(UnknownNameError, match=r"--gpu: unknown GPU 'rtx-9090'; nearest:"):
        build_box([file], gpu="rtx-9090")


def test_an_unknown_gpu_is_refused_with_the_line_and_the_way_out() -> None:
    device = replace(gpu("0000:01:00.0"), ids=(0x10DE, 0xFFFF), line=12)
    with pytest.raises(
        InputError, match=r"lspci\.txt:12: the GPU with PCI id 10de:ffff is not in the catalog; name the nearest with --gpu"
    ):
        build_box([box(device)])
    assert build_box([box(device)], gpu="rtx-4090").spec.nodes["gpu0"].part == "rtx-4090"


def test_files_without_gpus_say_what_is_missing() -> None:
    with pytest.raises(InputError, match="nothing here says which GPUs the box has; add `nvidia-smi topo -m`"):
        build_box([Imported("lscpu.txt", ("lscpu",), BoxFacts(host=HostFact(sockets=2)))])


def test_two_trees_of_one_box_fill_each_other_and_contradictions_are_said() -> None:
    lspci = box(gpu("0000:01:00.0", link_max=GEN4, numa=0), gpu("0000:02:00.0", link=LinkFact(4, 8), numa=0))
    dump = box(
        replace(gpu("0000:01:00.0", link=GEN4, numa=1), ids=None, rank=0),
        gpu("0000:02:00.0", link=LinkFact(4, 16), numa=0),
        gpu("0000:09:00.0"),
        source="topo.xml",
        fmt="nccl-topo",
    )
    for order in ([lspci, dump], [dump, lspci]):
        built = build_box(order)
        assert len(from_spec(built.spec).gpus) == 2, "lspci is the better evidence, whatever the order"
        said = texts(built, "conflict")
        assert "topo.xml: 0000:01:00.0: NUMA node 1; lspci.txt says 0, which is kept" in said
        assert "topo.xml: 0000:02:00.0: x16; lspci.txt says x8, which is kept" in said
        assert "topo.xml: lists 0000:09:00.0, which lspci.txt does not: left out" in said
        assert built.related.devices["gpu0"].rank == 0, "what only the other file says is taken"


def test_a_tree_of_another_box_is_left_out() -> None:
    built = build_box([box(gpu("0000:01:00.0")), box(gpu("0000:aa:00.0"), source="other.xml", fmt="nccl-topo")])
    assert "its GPUs (0000:aa:00.0) are not those of lspci.txt" in texts(built, "conflict")


def test_names_and_memory_of_a_list_go_to_the_devices_by_bus_id() -> None:
    anonymous = replace(gpu("0000:02:00.0"), ids=None)
    named = GpuFact(0, name="NVIDIA GeForce RTX 4090", bus="0000:02:00.0")
    built = build_box([box(anonymous), Imported("smi.txt", ("nvidia-smi",), BoxFacts(gpus=(named,)))])
    assert built.spec.nodes["gpu0"].part == "rtx-4090"


P2P = MatrixFact("p2p_status", (0, 1), (("X", "GNS"), ("GNS", "X")))
ACCESS = MatrixFact("peer_access", (0, 1), ((1.0, 1.0), (1.0, 1.0)))


def test_peer_access_comes_from_the_drivers_table_and_contradictions_are_said() -> None:
    tree = box(gpu("0000:01:00.0"), gpu("0000:02:00.0"))
    off = Imported("p2p.txt", ("nvidia-smi-topo",), BoxFacts(matrices=(P2P,)))
    on = Imported("test.txt", ("p2pBandwidthLatencyTest",), BoxFacts(matrices=(ACCESS,)))
    assert build_box([tree]).spec.settings.p2p == "auto"
    assert build_box([tree, off]).spec.settings.p2p == "off"
    both = build_box([tree, off, on])
    assert both.spec.settings.p2p == "off"
    assert "test.txt: peer access granted; p2p.txt says otherwise" in texts(both, "conflict")
    half = MatrixFact("p2p_status", (0, 1), (("X", "OK"), ("NS", "X")))
    mixed = build_box([tree, Imported("half.txt", ("nvidia-smi-topo",), BoxFacts(matrices=(half,)))])
    assert mixed.spec.settings.p2p == "auto"
    assert "granted to 1 of 2 ordered pairs" in texts(mixed, "conflict")


def test_status_of_nvlink_or_atomics_is_no_peer_access() -> None:
    tree = box(gpu("0000:01:00.0"), gpu("0000:02:00.0"))
    nvlink = replace(P2P, access="n", cells=(("X", "NS"), ("NS", "X")))
    assert build_box([tree, Imported("n.txt", ("nvidia-smi-topo",), BoxFacts(matrices=(nvlink,)))]).spec.settings.p2p == "auto"


def test_settings_of_the_library_come_from_the_log_before_the_command() -> None:
    tree = box(gpu("0000:01:00.0"), gpu("0000:02:00.0"))
    log = CclFact(version="2.27.5", env={"NCCL_P2P_LEVEL": "SYS", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth7", "HF_TOKEN": "secret"})
    serve = Launch("sglang", "tp2", env={"NCCL_P2P_LEVEL": "PHB", "NCCL_GRAPH_FILE": "/home/someone/graph.xml"})
    built = build_box(
        [tree, Imported("serve.sh", ("serve-command",), launch=serve), Imported("nccl.log", ("nccl-debug",), BoxFacts(ccl=(log,)))]
    )
    assert built.spec.settings.ccl.version == "2.27.5"
    assert built.spec.settings.env == {"NCCL_P2P_LEVEL": "SYS", "NCCL_GRAPH_FILE": "set"}
    assert "serve.sh: NCCL_P2P_LEVEL='PHB'; nccl.log has 'SYS', which is kept" in texts(built, "conflict")


@pytest.mark.parametrize(
    ("numas", "host", "vendor", "sockets", "words"),
    [
        ([0, 1], None, "", 2, "each of the 2 NUMA nodes is taken for one"),
        ([0, 1, 2, 3], None, "AuthenticAMD", 1, "4 NUMA nodes are taken for 1 socket with 4 each (NPS4"),
        ([0, 1, 2, 3], None, "GenuineIntel", 2, "4 NUMA nodes are taken for 2 sockets with 2 each"),
        (list(range(8)), None, "AuthenticAMD", 2, "8 NUMA nodes are taken for 2 sockets"),
        (list(range(8)), HostFact(sockets=2, numa_nodes=8), "AuthenticAMD", 2, "8 NUMA nodes on 2 sockets: consecutive ones together"),
        ([0, 1], HostFact(sockets=1, numa_nodes=2), "AuthenticAMD", 1, ""),
        ([3, 7], HostFact(sockets=2, numa_nodes=8), "AuthenticAMD", 2, "consecutive ones together"),
        ([], HostFact(sockets=2), "", 1, "the host has 2 sockets, but no file says which GPU is on which"),
        ([], HostFact(sockets=1), "", 1, ""),
    ],
)
def test_sockets_from_numa_nodes(numas: list[int], host: HostFact | None, vendor: str, sockets: int, words: str) -> None:
    """NPS4 gives an EPYC socket four NUMA nodes (AMD EPYC tuning guides); which is meant is said or assumed aloud."""
    cpus = [CpuFact(f"n{numa}", numa=numa, vendor=vendor) for numa in numas] or [CpuFact("cpu")]
    plan = plan_sockets(cpus, host)
    assert len(set(plan.socket_of.values())) == sockets
    assert (words in plan.assumed[0]) if words else not plan.assumed


def test_packages_that_a_file_names_go_first() -> None:
    cpus = [CpuFact("a", numa=0, package=0), CpuFact("b", numa=1, package=0), CpuFact("c", numa=2, package=1), CpuFact("d", numa=3)]
    plan = plan_sockets(cpus, HostFact(sockets=4, numa_nodes=4))
    assert [plan.socket_of[key] for key in "abcd"] == [0, 0, 1, 0]
    assert "no file says on which socket d is" in plan.assumed[0]


def test_a_card_with_a_bridge_of_its_own_is_one_gpu() -> None:
    """The bridge of a Vega card stands in front of its GPU; nothing is shared behind it."""
    built = build_box(
        [
            box(
                DeviceFact("0000:18:00.0", "bridge", None, None, "0000:18:00.0", "switch", (0x1002, 0x14A0), link=LinkFact(3, 16)),
                DeviceFact("0000:1b:00.0", "gpu", "0000:18:00.0", None, "0000:1b:00.0", ids=(0x1002, 0x740F), link=GEN4),
                fmt="nccl-topo",
            )
        ],
        gpu="mi210",
    )
    assert [node.kind for node in built.spec.nodes.values()] == ["socket", "root_port", "gpu"]
    assert built.spec.nodes["gpu0"].link is not None
    assert built.spec.nodes["gpu0"].link.gen == 3, "the slot's link is the bridge's"


def test_parents_that_loop_or_do_not_exist_end_a_way() -> None:
    loop = [
        DeviceFact("a", "bridge", "b", None, None, "switch"),
        DeviceFact("b", "bridge", "a", None, None, "switch"),
        gpu("0000:01:00.0", "a"),
        gpu("0000:02:00.0", "nowhere"),
    ]
    assert len(from_spec(build_box([box(*loop)]).spec).gpus) >= 1


@given(st.text(max_size=30))
def test_any_text_is_a_bus_id_or_is_not(text: str) -> None:
    for found in (bus_id(text), bus_id_of_int(text)):
        assert found is None or bus_id(found) == found


def classed(rate: float, **more: object) -> DeviceFact:
    return gpu("0000:01:00.0", rate_class=rate * 1e9, **more)


@pytest.mark.parametrize(
    ("rate", "link", "said"),
    [
        (24.0, (4, 16), None),
        (12.0, (3, 16), "12 GB/s in NCCL's classes; gen3 x16 assumed (gen4 x8 would be the same"),
        (6.0, (4, 4), "6 GB/s in NCCL's classes; gen4 x4 assumed (gen3 x8, gen2 x16 would be the same)"),
        (3.0, (4, 2), "3 GB/s in NCCL's classes; gen4 x2 assumed (gen3 x4, gen2 x8, gen1 x16 would be the same)"),
        (48.0, (4, 16), "48 GB/s in NCCL's classes, more than the GPU can (gen4 x16): the part's own taken"),
        (5.1, (4, 16), "not said; gen4 x16 (the GPU's own) assumed"),
    ],
)
def test_links_by_the_classes_of_a_log(rate: float, link: tuple[int, int], said: str | None) -> None:
    """NCCL: lanes times 0.1875, 0.375, 0.75, 1.5, 3 GB/s of generations 1 to 5 (src/graph/topo.h); the RTX 4090 has Gen4 x16."""
    built = build_box([box(classed(rate), gpu("0000:02:00.0", rate_class=24e9), fmt="nccl-debug")])
    node = built.spec.nodes["gpu0"]
    assert node.link is not None
    assert (node.link.gen, node.link.width) == link
    lines = [remark.text for remark in built.remarks if remark.text.startswith("link of gpu0")]
    assert (not lines) if said is None else any(said in line for line in lines)
    other = built.spec.nodes["gpu1"].link
    assert other is not None
    assert (other.gen, other.width) == (4, 16)


def test_a_class_fills_what_another_file_leaves_open_and_no_more() -> None:
    def link(**more: object) -> tuple[int, int]:
        found = build_box([box(classed(6.0, **more), fmt="nccl-debug")]).spec.nodes["gpu0"].link
        assert found is not None
        return found.gen, found.width

    assert link(link=LinkFact(1, 8)) == (3, 8), "idle, but the lanes are in force"
    assert link(link_max=LinkFact(4, None)) == (4, 4)
    assert link(link=LinkFact(4, 16)) == (4, 16), "what a file says goes first"


def test_the_processor_by_a_device_gives_way_to_its_own_name() -> None:
    device = CpuFact(
        "n0", vendor="Advanced Micro Devices, Inc. [AMD]", name="Advanced Micro Devices, Inc. [AMD] Turin IOMMU", of_device=True
    )
    tree = box(gpu("0000:01:00.0"), cpus=(device,))
    assert build_box([tree]).spec.nodes["cpu0"].part == "epyc-turin"
    said = CpuFact("numa0", numa=0, package=0, vendor="AuthenticAMD", family=25, model=1, name="AMD EPYC 7543 32-Core Processor")
    lscpu = Imported("lscpu.txt", ("lscpu",), BoxFacts(cpus=(said,), host=HostFact(sockets=1, cpu_name=said.name)))
    assert build_box([tree, lscpu]).spec.nodes["cpu0"].part == "epyc-milan"
    head = Imported("lscpu.txt", ("lscpu",), BoxFacts(host=HostFact(sockets=1, cpu_vendor="AuthenticAMD", family=25, model=1)))
    assert build_box([tree, head]).spec.nodes["cpu0"].part == "epyc-milan"
