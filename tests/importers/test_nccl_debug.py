"""NCCL logs. Lines are of the shapes that NCCL 2.7 to 2.28 prints (src/graph, src/transport, src/init.cc, src/enqueue.cc)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers.build import build_box
from pcie_sim.importers.facts import BoxFacts, ChoiceFact, GpuFact, GraphFact, RingFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.nccl_debug import read, sniff
from pcie_sim.importers.source import source_of


def log(*messages: str, dev: int = 0, pid: int = 100, host: str = "boxname") -> str:
    return "".join(f"{host}:{pid}:{pid + 1} [{dev}] NCCL INFO {message}\n" for message in messages)


def imported(text: str) -> Imported:
    source = source_of(text, "nccl.log")
    assert sniff(source) is not None
    return read(source)


def remarks(found: Imported, kind: str) -> list[str]:
    return [remark.text for remark in found.remarks if remark.kind == kind]


def init(rank: int, ranks: int, bus: str, comm: str = "0xabc", what: str = "Init START") -> str:
    place = f"cudaDev {rank} nvmlDev {rank} busId {bus} commId {comm}"
    return f"ncclCommInitRankConfig comm 0x55{rank} rank {rank} nranks {ranks} {place} - {what}"


BOX = "".join(
    log(
        "NCCL version 2.28.9+cuda13.0",
        init(rank, 2, "60" if rank == 0 else "e1000"),
        "NCCL_P2P_LEVEL set by environment to SYS.",
        "NCCL_SOCKET_IFNAME set by environment to eth0",
        f"comm 0x55 rank {rank} nRanks 2 nNodes 1 localRanks 2 localRank {rank} MNNVL 0",
        "Channel 00/02 :    0   1",
        "Channel 01/02 :    0   1",
        "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        "4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer",
        f"Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via P2P/CUMEM/read",
        dev=rank,
    )
    for rank in (0, 1)
)


def test_ranks_transports_rings_channels_and_settings() -> None:
    found = imported(BOX)
    (ccl,) = found.box.ccl
    assert (ccl.name, ccl.version, ccl.nranks, ccl.nodes) == ("nccl", "2.28.9", 2, 1)
    assert ccl.ranks == {0: "0000:00:06.0", 1: "0000:e1:00.0"}
    assert ccl.transports == {(0, 1): "P2P/CUMEM", (1, 0): "P2P/CUMEM"}
    assert ccl.rings == (RingFact(0, (0, 1)), RingFact(1, (0, 1)))
    assert (ccl.coll_channels, ccl.p2p_channels) == (4, 8)
    assert ccl.env == {"NCCL_P2P_LEVEL": "SYS", "NCCL_SOCKET_IFNAME": "eth0"}
    assert found.remarks == ()
    assert "boxname" not in repr((found.box, found.details, found.remarks))


@pytest.mark.parametrize(
    ("words", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct pointer"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[3]", "P2P/indirect"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/CE/direct", "SHM/CE"),
        ("Channel 00 : 0[f000] -> 1[10000] via direct shared memory", "SHM/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/1", "NET/Socket"),
    ],
)
def test_transports(words: str, transport: str) -> None:
    assert imported(log(words)).box.ccl[0].transports == {(0, 1): transport}


def test_bus_ids_in_brackets_of_old_versions() -> None:
    (ccl,) = imported(log("Channel 00 : 0[f000] -> 1[10000] via SHM/direct")).box.ccl
    assert ccl.ranks == {0: "0000:0f:00.0", 1: "0000:10:00.0"}


def test_rings_from_three_ranks_each() -> None:
    """``Ring`` lines name who comes before and after one rank; four ranks make the whole."""
    lines = [f"Ring 00 : {(rank - 1) % 4} -> {rank} -> {(rank + 1) % 4}" for rank in (2, 0, 3, 1)]
    assert imported(log(*lines)).box.ccl[0].rings == (RingFact(0, (0, 1, 2, 3)),)
    found = imported(log("comm 0x1 rank 1 nRanks 4 nNodes 1", "Ring 00 : 1 -> 2 -> 3", "Ring 00 : 0 -> 1 -> 2"))
    assert found.box.ccl[0].rings == (RingFact(0, (0, 1, 2, 3)),)  # all four ranks in order: only one ring closes it


def test_part_of_a_ring_is_no_ring() -> None:
    found = imported(log("Ring 00 : 15 -> 0 -> 1", "Ring 00 : 0 -> 1 -> 2"))
    assert found.box.ccl[0].rings == ()
    assert remarks(found, "ignored") == ["of the ring of channel 0 only 15 -> 0 -> 1 -> 2 is in the log: left out"]


def test_searched_graphs_and_the_fallback() -> None:
    found = imported(
        log(
            "Could not find a path for pattern 4, falling back to simple order",
            "Pattern 4, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/PIX, sameChannels 1",
            " 0 : GPU/0 GPU/1",
            "Pattern 1, crossNic 0, nChannels 2, speed 12.000000/12.000000, type PHB/PIX, sameChannels 1",
        )
    )
    assert found.box.ccl[0].graphs == (GraphFact(4, 1, 0.1e9, "SYS", 2, True), GraphFact(1, 2, 12e9, "PHB", 4, False))


def test_a_fallback_without_its_result_line() -> None:
    found = imported(log("Could not find a path for pattern 4, falling back to simple order"))
    assert [(graph.pattern, graph.fell_back, graph.type_intra) for graph in found.box.ccl[0].graphs] == [(4, True, "SYS")]
    assert len(remarks(found, "assumed")) == 1


def test_path_matrix_old_and_new() -> None:
    found = imported(
        log("GPU/F000 :GPU/F000 (0/5000.000000/LOC) GPU/10000 (4/24.000000/PHB) CPU/0 (2/24.000000/PHB) ",
            "GPU/0-26000 :GPU/0-26000 (0/5000.0/LOC) GPU/0-41000 (3/16.0/SYS) NET/0-0 (3/0.1/PHB) ")
    )  # fmt: skip
    assert found.box.ccl[0].paths == {("0000:0f:00.0", "0000:10:00.0"): "PHB", ("0000:26:00.0", "0000:41:00.0"): "SYS"}


TREE = (
    "=== System : maxBw 7.0 totalBw 24.0 ===",
    "CPU/0 (1/2/-1)",
    "+ PCI[24.0] - PCI/C000 (11f8400011f8beef)",
    "              + PCI[24.0] - GPU/F000 (0)",
    "              + PCI[24.0] - PCI/D000 (1000c03010000000)",
    "                            + PCI[12.0] - GPU/10000 (1)",
    "+ SYS[10.0] - CPU/A",
    "CPU/A (1/1/2)",
    "+ PCI[24.0] - GPU/9B000 (2)",
    "+ PCI[6.0] - NIC/9A000",
    "             + NET[7.0] - NET/0 (1/1/7.000000)",
    "==========================================",
)


def test_the_tree() -> None:
    found = imported(log(*TREE) + log(*TREE, dev=1))
    devices = {device.key: device for device in found.box.devices}
    assert [(key, device.kind, device.parent, device.cpu, device.rank) for key, device in devices.items()] == [
        ("0000:0c:00.0", "bridge", None, "CPU/0", None),
        ("0000:0f:00.0", "gpu", "0000:0c:00.0", None, 0),
        ("0000:0d:00.0", "bridge", "0000:0c:00.0", None, None),
        ("0000:10:00.0", "gpu", "0000:0d:00.0", None, 1),
        ("0000:9b:00.0", "gpu", None, "CPU/a", 2),
        ("0000:9a:00.0", "nic", None, "CPU/a", None),
    ]
    assert (devices["0000:0c:00.0"].ids, devices["0000:0c:00.0"].subsystem) == ((0x11F8, 0x4000), (0x11F8, 0xBEEF))
    assert all(device.link is None for device in found.box.devices)
    assert [(cpu.key, cpu.numa, cpu.vendor) for cpu in found.box.cpus] == [("CPU/0", 0, "AuthenticAMD"), ("CPU/a", 10, "GenuineIntel")]
    assert found.box.ccl[0].ranks == {0: "0000:0f:00.0", 1: "0000:10:00.0", 2: "0000:9b:00.0"}
    assert ["0000:10:00.0", "PCI", 12.0] in found.details["nccl_tree_bandwidths"]


@pytest.mark.parametrize("lost", [1, 2, 11])
def test_a_damaged_tree_is_left_out(lost: int) -> None:
    found = imported(log(*(line for number, line in enumerate(TREE) if number != lost)))
    assert found.box.devices == ()
    assert "the tree of the log is damaged or cut: left out" in remarks(found, "ignored")


def test_choices_of_three_versions() -> None:
    new = imported(
        log("comm 0x1 rank 0 nRanks 4 nNodes 1 localRanks 4",
            "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}",
            "AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
            "AllReduce: 64 Bytes -> Algo 0 proto 1 time 88.2")
    )  # fmt: skip
    assert new.box.ccl[0].choices == (
        ChoiceFact("all_reduce", 1048576, "ring", "Simple", 4),
        ChoiceFact("all_gather", 4096, "ring", "LL", 1),  # the line counts one rank's share, nccl-tests all four
        ChoiceFact("all_reduce", 64, "tree", "LL128", None),
    )
    old = imported(log("AllReduce: opCount 0 sendbuff 0x7f count 16 datatype 7 op 0 root 0 comm 0x7f [nranks=32] stream 0x8",
                       "64 Bytes -> Algo 0 proto 0 time 49.675526"))  # fmt: skip
    assert (old.box.ccl[0].nranks, old.box.ccl[0].choices) == (32, (ChoiceFact("all_reduce", 64, "tree", "LL", None),))
    assert any("the call before" in text for text in remarks(old, "assumed"))


def test_tuning_table() -> None:
    found = imported(
        log("NCCL version 2.21.5+cuda12.4",
            "       Algorithm   |                            Tree                  |                            Ring                  |",
            "       Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |",
            "       AllReduce   |    10.8/   1.4 |     0.0/   0.0 |    74.2/   4.1 |     9.9/   1.9 |     0.0/   0.0 |    43.1/   6.0 |")
    )  # fmt: skip
    assert found.details["nccl_tuning_table"] == {
        "all_reduce": {"tree": {"LL": (10.8, 1.4), "Simple": (74.2, 4.1)}, "ring": {"LL": (9.9, 1.9), "Simple": (43.1, 6.0)}}
    }


def test_several_communicators_the_largest_first() -> None:
    text = "".join(
        log(
            init(0, 2, "1000", "0x1"),
            "Channel 00/02 :    0   1",
            init(dev, 4, f"{dev + 1}000", "0x2"),
            "Channel 00/02 :    0   2   1   3",
            dev=dev,
        )
        for dev in range(2)
    )
    found = imported(text)
    assert [(ccl.nranks, ccl.rings[0].members) for ccl in found.box.ccl] == [(4, (0, 2, 1, 3)), (2, (0, 1))]
    blotted = imported(text.replace("0x1 ", "0x0 ").replace("0x2 ", "0x0 "))
    assert [(ccl.nranks, ccl.rings[0].members) for ccl in blotted.box.ccl] == [(4, (0, 2, 1, 3)), (2, (0, 1))]


def test_lines_written_over_each_other() -> None:
    text = (
        "host:11:11 [2] NCCL INFO === System host:12:12 [1] NCCL INFO === System : maxBw 16.0 totalBw 24.0 ===\n"
        "host:12:12 [1] NCCL INFO + PCI[24.0] - GPU/0-26000 (0)\n"
        "host:12:12 [1] NCCL INFO  0 : GPU/0-26000 host:11:11 [2] NCCL INFO host:12:12 [1] NCCL INFO comm 0x1 rank 1 nRanks 4 "
        "nNodeshost:11:11 [2] NCCL INFO Ring 00 : 1 -> 2 -> 3\n"
        "host:12:12 [1] NCCL INFO Trees [0] host:11:11 [1] NCCL INFO Ring 00 : 0 -> 1 -> 2\n"
        "host:13:13 [3] NCCL INFO Channel 00 : 3[4] -> 0[1] via SHM/direct/dirstonhost:13:14 [3] NCCL INFO New proxy send connection\n"
        "host:13:13 [3] NCCL INFO Channel 00 : 3[4] -> 2[\n"
    )
    found = imported(text)
    (ccl,) = found.box.ccl
    assert (ccl.nranks, ccl.nodes) == (4, None)
    assert ccl.rings == (RingFact(0, (0, 1, 2, 3)),)
    assert ccl.transports == {(3, 0): "SHM/direct"}
    assert ccl.ranks == {0: "0000:26:00.0"}
    assert [text for text in remarks(found, "ignored") if "written over" in text] == [
        "4 lines are written over each other and 1 messages are broken off (several processes wrote one file): "
        "only what is whole of them is read"
    ]


def test_ranks_that_disagree() -> None:
    found = imported(
        log("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct",
            "4 coll channels, 0 nvls channels, 4 p2p channels", "2 coll channels, 0 nvls channels, 4 p2p channels",
            "NCCL_P2P_LEVEL set by environment to SYS", "NCCL_P2P_LEVEL set by environment to PHB")
    )  # fmt: skip
    assert len(remarks(found, "conflict")) == 3
    assert found.box.ccl[0].transports == {(0, 1): "P2P/IPC"}


def test_heads_of_other_shapes() -> None:
    for head in ("[2025-01-01 10:00:00] box:1:2 [0] NCCL INFO ", "(Worker pid=7) box:1:2 [0] NCCL INFO ", "NCCL INFO ", "[0] NCCL INFO ",
                 "box:1:2 [0] transport/p2p.cc:88 NCCL TRACE "):  # fmt: skip
        assert imported(head + "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n").box.ccl[0].transports == {(0, 1): "P2P/IPC"}


def test_rccl() -> None:
    (ccl,) = imported(log("RCCL version 2.20.5+hip6.2 HEAD:1234", "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")).box.ccl
    assert (ccl.name, ccl.version) == ("rccl", "2.20.5")


def test_refusal_and_other_files() -> None:
    with pytest.raises(InputError, match=r"^nccl\.log:1: holds NCCL log lines, but none that says"):
        imported(log("Bootstrap: Using eth0:10.0.0.1<0>"))
    for text in ("NCCL is a library\n", '{"a": "NCCL INFO "}', "# nThread 1 nGpus 2\n"):
        assert sniff(source_of(text, "x")) is None


def test_bounds() -> None:
    many = " ".join(str(rank) for rank in range(6000))
    found = imported(log("Channel 00/0 : 99999[0] -> 1[1] via P2P/IPC", f"Channel 00/02 : {many}", init(99999, 100000, "1000"),
                         "Channel 99999/0 : 0[0] -> 1[1] via P2P/IPC", "Ring 999 : 0 -> 1 -> 0"))  # fmt: skip
    assert found.box.ccl[0].ranks == {}
    assert any("4096" in text for text in remarks(found, "cut"))


def test_a_flood_of_trace_lines_takes_linear_time() -> None:
    line = "box:1:2 [0] NCCL INFO Send: opCount 0 sendbuff 0x7f recvbuff 0x7f count 16 datatype 7 op 0 root 3 comm 0x7f [nranks=8] stream\n"
    found = imported(line * 100_000)
    assert found.box.ccl[0].nranks == 8


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a-",
        "a:1:1 [0] ",
        "a:1:1 [0] NCCL INFO ",
        "GPU/1 (1/1/X) ",
        "Channel 00 : ",
        "1 -> ",
        " 12",
        "| ",
        "+ PCI[1.0] - ",
        "0x",
        "NCCL_A=",
    ],
)
def test_long_lines_take_linear_time(unit: str) -> None:
    text = ("a:1:1 [0] NCCL INFO Channel 00/02 : " + unit * (19_000 // len(unit)) + "\n") * 40
    with contextlib.suppress(InputError):
        read(source_of(text, "long"))


@given(st.text())
def test_any_text(text: str) -> None:
    source = source_of("box:1:2 [0] NCCL INFO " + text, "fuzz")
    sniff(source)
    with contextlib.suppress(InputError):
        read(source)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3000), st.sampled_from(["", "\n", "box:1:2 [0] NCCL INFO ", "-1", "999999999", "/", "("]), st.integers(0, 40)
        ),
        max_size=8,
    )
)
def test_any_damage_to_a_real_log(cuts: list[tuple[int, str, int]]) -> None:
    text = BOX + log(*TREE) + log("AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}", "Ring 00 : 1 -> 0 -> 1")
    for at, put, drop in cuts:
        text = text[:at] + put + text[at + drop :]
    with contextlib.suppress(InputError):
        read(source_of(text, "fuzz"))


def ranks_log(
    count: int, *, place: str = "cudaDev {r} nvmlDev {n}", nodes: int = 1, host: str = "boxname", given: int | None = None
) -> str:
    """The lines of ordinary INFO logs that name bus ids, of GPUs 4 and up."""
    return "".join(
        log(
            f"ncclCommInitRank comm 0x5{r} rank {r} nranks {count} {place.format(r=r, n=r + 4)} "
            f"busId {0x81 + r:x}000 commId 0xab - Init START",
            f"comm 0x5{r} rank {r} nRanks {count} nNodes {nodes} localRanks {count} localRank {r} MNNVL 0",
            dev=r,
            pid=100 + r,
            host=host if r == 0 else "boxname",
        )
        for r in range(count if given is None else given)
    )


def test_gpus_of_an_ordinary_log_by_bus_id() -> None:
    """NCCL prints nvmlDev since 2.18 or so (src/init.cc); before, only the process's own number."""
    found = imported(ranks_log(4))
    assert [(gpu.index, gpu.bus, gpu.numbering) for gpu in found.box.gpus] == [(4 + r, f"0000:{0x81 + r:x}:00.0", "bus") for r in range(4)]
    old = imported(ranks_log(4, place="cudaDev {r}"))
    assert [(gpu.index, gpu.numbering) for gpu in old.box.gpus] == [(r, "cuda") for r in range(4)]
    alone = imported(ranks_log(4, place="cudaDev 0"))  # a process for each GPU that sees only its own
    assert [(gpu.index, gpu.bus) for gpu in alone.box.gpus] == [(r, f"0000:{0x81 + r:x}:00.0") for r in range(4)]


@pytest.mark.parametrize(
    "text",
    [
        ranks_log(4, nodes=2),
        ranks_log(4, host="other"),
        ranks_log(4).replace("busId 82000", "busId 81000"),
        ranks_log(4).replace("nvmlDev 5", "nvmlDev 4"),
        ranks_log(4) + ranks_log(4).replace("busId 8", "busId 9"),
        ranks_log(4, given=2),
        ranks_log(4) + log(*TREE),
        ranks_log(4) + log("GPU/81000 :GPU/81000 (0/5000.0/LOC) GPU/82000 (2/24.0/PHB) "),
    ],
)
def test_no_gpus_of_logs_of_several_hosts_or_with_a_tree_of_their_own(text: str) -> None:
    assert imported(text).box.gpus == ()


def test_ranks_without_bus_ids_are_said() -> None:
    assert remarks(imported(ranks_log(4, given=2)), "ignored") == ["bus ids of 2 of 4 ranks: no box is drawn from them"]


def test_a_log_gives_a_flat_box_and_a_list_its_bus_ids() -> None:
    """Four of eight GPUs took part: their bus ids go to their own places in the list, and nothing is missing."""
    logged = imported(ranks_log(4))
    built = build_box([logged], gpu="rtx-4090")
    assert [node.bus for node in built.spec.nodes.values() if node.kind == "gpu"] == [f"0000:{0x81 + r:x}:00.0" for r in range(4)]
    assert any("every GPU on a root port of its own" in remark.text for remark in built.remarks if remark.kind == "assumed")
    listed = Imported("gpus.txt", ("nvidia-smi",), BoxFacts(gpus=tuple(GpuFact(i, "NVIDIA GeForce RTX 4090") for i in range(8))))
    both = build_box([listed, logged])
    gpus = [node.bus for name, node in both.spec.nodes.items() if node.kind == "gpu"]
    assert gpus == [None] * 4 + [f"0000:{0x81 + r:x}:00.0" for r in range(4)]
    assert not any(remark.kind == "conflict" for remark in both.remarks)


def test_classes_of_the_tree_are_kept() -> None:
    devices = {device.key: device for device in imported(log(*TREE)).box.devices}
    assert devices["0000:10:00.0"].rate_class == 12.0e9
    assert devices["0000:9b:00.0"].rate_class == 24.0e9
    assert devices["0000:9a:00.0"].rate_class == 6.0e9


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("NCCL_MIN_NCHANNELS set by environment to -99999999999999999999", "a number beyond 64 bits"),
        ("NCCL_BUFFSIZE set by environment to nan", "a value that is no whole number"),
        ("NCCL_BUFFSIZE set by environment to 4.5e3", "a value that is no whole number"),
        ("NCCL_ALGO set by environment to " + "a" * 81, "a value of more than 80 characters"),
        ("NCCL_NTHREADS set by environment to " + "9" * 190, "a value of more than 80 characters"),
    ],
)
def test_settings_that_the_library_cannot_take(setting: str, why: str) -> None:
    found = imported(log("NCCL version 2.28.9+cuda13.0", "NCCL_PROTO set by environment to LL128", setting))
    assert found.box.ccl[0].env == {"NCCL_PROTO": "LL128"}
    name = setting.partition(" ")[0]
    assert [(remark.text, remark.line) for remark in found.remarks if remark.kind == "ignored"] == [(f"{name}: {why}: left out", 3)]


@pytest.mark.parametrize("value", ["4194304", "0x400000", "-2", "SYS", "1", "2.28.9", "^NVLS", "LL,Simple"])
def test_settings_that_it_takes(value: str) -> None:
    found = imported(log("NCCL version 2.28.9+cuda13.0", f"NCCL_X set by environment to {value}"))
    assert found.box.ccl[0].env == {"NCCL_X": value}
