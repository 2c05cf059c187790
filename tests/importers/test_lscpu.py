"""lscpu and numactl -H: the figures are those written into each fixture; node distances are AMD's and Intel's usual ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import lscpu
from pcie_sim.importers.facts import CpuFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of

EPYC = """\
Architecture:            x86_64
  CPU op-mode(s):        32-bit, 64-bit
CPU(s):                  256
  On-line CPU(s) list:   0-255
Vendor ID:               AuthenticAMD
  BIOS Vendor ID:        Advanced Micro Devices, Inc.
  Model name:            AMD EPYC 9575F 64-Core Processor
    BIOS Model name:     AMD EPYC 9575F 64-Core Processor    Unknown CPU @ 3.3GHz
    CPU family:          26
    Model:               2
    Thread(s) per core:  2
    Core(s) per socket:  64
    Socket(s):           2
NUMA:
  NUMA node(s):          8
"""
NODES = "".join(f"  NUMA node{node} CPU(s):     {16 * node}-{16 * node + 15},{128 + 16 * node}-{143 + 16 * node}\n" for node in range(8))
NUMACTL = """\
available: 4 nodes (0-3)
node 0 cpus: 0 1 2 3 8
node 0 size: 64000 MB
node 1 cpus: 4 5 6 7
node 2 cpus: 9 10
node 3 cpus: 11 12
node distances:
node   0   1   2   3
  0:  10  12  32  32
  1:  12  10  32  32
  2:  32  32  10  12
  3:  32  32  12  10
"""


def read(text: str) -> Imported:
    return lscpu.read(source_of(text, "cpu.txt"))


def sniff(text: str) -> int | None:
    return lscpu.sniff(source_of(text, "cpu.txt"))


def kinds(found: Imported) -> list[str]:
    return [remark.kind for remark in found.remarks]


@pytest.mark.parametrize("prefix", ["", "# ", "> ", "log: "])
def test_two_sockets_in_nps4(prefix: str) -> None:
    found = read("".join(prefix + line + "\n" for line in (EPYC + NODES).splitlines()))
    host = found.box.host
    assert host is not None
    assert (host.sockets, host.numa_nodes, host.cpu_name, host.family, host.model) == (2, 8, "AMD EPYC 9575F 64-Core Processor", 26, 2)
    assert [(cpu.numa, cpu.package) for cpu in found.box.cpus] == [(node, node // 4) for node in range(8)]
    assert found.box.cpus[1].cpus == ((16, 31), (144, 159))
    assert found.box.cpus[0].vendor == "AuthenticAMD"
    assert kinds(found) == ["assumed"]
    assert sniff(EPYC) == 13


def test_one_socket_needs_no_assumption() -> None:
    found = read((EPYC + NODES).replace("Socket(s):           2", "Socket(s):           1"))
    assert {cpu.package for cpu in found.box.cpus} == {0}
    assert found.remarks == ()


def test_memory_only_nodes_do_not_count() -> None:
    found = read(EPYC.replace("8\n", "3\n") + "NUMA node0 CPU(s): 0-63\nNUMA node1 CPU(s): 64-127\nNUMA node2 CPU(s):\n")
    assert found.box.host is not None
    assert found.box.host.numa_nodes == 2
    assert [cpu.package for cpu in found.box.cpus] == [0, 1]
    assert kinds(found) == ["note", "assumed"]


def test_numactl_by_distance() -> None:
    found = read(NUMACTL)
    assert [(cpu.key, cpu.package, cpu.cpus) for cpu in found.box.cpus] == [
        ("numa0", 0, ((0, 3), (8, 8))),
        ("numa1", 0, ((4, 7),)),
        ("numa2", 1, ((9, 10),)),
        ("numa3", 1, ((11, 12),)),
    ]
    assert found.box.host is not None
    assert (found.box.host.sockets, found.box.host.numa_nodes) == (2, 4)
    assert kinds(found) == ["assumed"]
    bare = read(NUMACTL[: NUMACTL.index("node distances")])
    assert {cpu.package for cpu in bare.box.cpus} == {None}
    assert bare.box.host is not None
    assert bare.box.host.sockets is None


def test_both_in_one_file() -> None:
    found = read(EPYC.replace("8\n", "4\n") + NUMACTL)
    assert [(cpu.package, cpu.name) for cpu in found.box.cpus] == [
        (package, "AMD EPYC 9575F 64-Core Processor") for package in (0, 0, 1, 1)
    ]


def test_cut_and_contradictory() -> None:
    found = read(EPYC + NODES[: NODES.index("  NUMA node3")])
    assert kinds(found) == ["cut"]
    assert {cpu.package for cpu in found.box.cpus} == {None}
    found = read(EPYC + NODES + EPYC.replace("Socket(s):           2", "Socket(s):           1"))
    assert found.box.host is not None
    assert found.box.host.sockets == 2
    assert "conflict" in kinds(found)


def test_a_virtual_machine_without_numa() -> None:
    found = read("Vendor ID: ARM\nSocket(s):           -\nNUMA node(s): 1\nNUMA node0 CPU(s): 0-3\n")
    assert found.box.cpus == (CpuFact("numa0", numa=0, vendor="ARM", cpus=((0, 3),)),)


@pytest.mark.parametrize(("text", "line"), [("Socket(s): many\n", 1), ("x\nNUMA node(s): 99999999\n", 2)])
def test_refused(text: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"^cpu.txt:{line}: neither sockets nor NUMA nodes"):
        read(text)


@pytest.mark.parametrize(
    "text", ["Model name: x\n", "model name\t: AMD EPYC\nsiblings : 4\n", "the NUMA node is far\n", "available: yes\n"]
)
def test_does_not_fire_on_other_texts(text: str) -> None:
    assert sniff(text) is None


@given(st.text())
def test_any_text(text: str) -> None:
    _only_input_errors(text)


@given(st.data())
def test_any_cut_and_hole(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([EPYC + NODES, NUMACTL]))
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 60)))
    _only_input_errors(text[:first] + data.draw(st.text(max_size=5)) + text[last:])


def _only_input_errors(text: str) -> None:
    try:
        source = source_of(text, "any.txt")
        line = lscpu.sniff(source)
        assert line is None or 1 <= line <= len(source.lines)
        lscpu.read(source)
    except InputError:
        return


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"node {node} cpus: {node}\n" for node in range(200_000)),
        "node 0 cpus: " + "1 " * 9_000 + "\n" + "node 1 cpus:" * 1_000,
        "Socket(s): " + "9" * 19_000 + "\nNUMA node(s): 1\n",
        ("Model name" + " " * 19_000 + "\n") * 100,
        "available: 4 nodes (0-3)\n" + ("0: " + "10 " * 5_000 + "\n") * 500,
    ],
)
def test_hostile_sizes_end_soon(text: str) -> None:
    _only_input_errors(text)
