"""nvidia-smi's lists: fixtures are of the program's layout with made-up buses; expectations are the figures written into them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import smi_query
from pcie_sim.importers.facts import GpuFact, HostFact, LinkFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of

MIB = 2**20
TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:01:00.0 Off |                    0 |
| N/A   33C    P0            105W /  600W |       0MiB /  97887MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:C1:00.0 Off |                    0 |
| 30%   34C    P8             16W /  600W |    1200MiB /  97887MiB |      3%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|    0   N/A  N/A         1234      C   python3                                   1190MiB |
+-----------------------------------------------------------------------------------------+
"""
LIST = """\
GPU 0: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee)
GPU 1: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-aaaaaaaa-bbbb-cccc-dddd-ffffffffffff)
  MIG 1g.24gb     Device  0: (UUID: MIG-aaaaaaaa-bbbb-cccc-dddd-ffffffffffff)
"""
QUERY = """\
==============NVSMI LOG==============

Timestamp                                 : Mon Jan  6 10:00:00 2025
Driver Version                            : 570.86.10
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : NVIDIA H100 PCIe
    Serial Number                         : 1234567890123
    GPU UUID                              : GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee
    Minor Number                          : 3
    PCI
        Bus                               : 0x01
        Bus Id                            : 00000000:01:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Current            : 1
                Device Max                : 5
                Host Max                  : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 0
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 4 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Max Clocks
        Graphics                          : 1755 MHz
GPU 00000000:02:00.0
    Product Name                          : NVIDIA H100 PCIe
    PCI
        Bus Id                            : 00000000:02:00.0
        GPU Link Info
            PCIe Generation
                Max                       : N/A
                Current                   : N/A
            Link Width
                Max                       : 16x
                Current                   : 16x
"""
CSV = """\
index, name, pci.bus_id, pcie.link.gen.current, pcie.link.gen.max, pcie.link.gen.gpumax, pcie.link.width.current, memory.total [MiB], uuid
0, NVIDIA L40S, 00000000:21:00.0, 1, 4, 4, 8, 46068 MiB, GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee
1, NVIDIA L40S, 00000000:22:00.0, 4, 4, 4, 16, 46068 MiB, GPU-aaaaaaaa-bbbb-cccc-dddd-ffffffffffff
"""


def read(text: str) -> Imported:
    return smi_query.read(source_of(text, "gpus.txt"))


def sniff(text: str) -> int | None:
    return smi_query.sniff(source_of(text, "gpus.txt"))


def test_summary_table() -> None:
    found = read(TABLE)
    assert found.box.host == HostFact(driver="570.86.10", cuda="12.8")
    assert found.box.gpus == (
        GpuFact(0, "NVIDIA RTX PRO 6000 Blac...", "0000:01:00.0", memory_bytes=97887 * MIB),
        GpuFact(1, "NVIDIA RTX PRO 6000 Blac...", "0000:c1:00.0", memory_bytes=97887 * MIB),
    )
    assert [remark.kind for remark in found.remarks] == ["cut"]
    assert "nvidia-smi -L" in str(found.remarks[0])
    assert sniff("\n" + TABLE) == 3


def test_a_table_with_single_blanks_or_a_prefix() -> None:
    for text in (re.sub(" +", " ", TABLE), "\n".join("# " + line for line in TABLE.splitlines())):
        assert [gpu.bus for gpu in read(text).box.gpus] == ["0000:01:00.0", "0000:c1:00.0"]
        assert [gpu.memory_bytes for gpu in read(text).box.gpus] == [97887 * MIB] * 2


def test_list_fills_the_names_that_the_table_cuts() -> None:
    found = read(TABLE + LIST)
    assert {gpu.name for gpu in found.box.gpus} == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}
    assert found.remarks == ()
    assert read(LIST).box.gpus[1] == GpuFact(1, "NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert sniff("x\n" + LIST) == 2
    assert (
        read("GPU models and configuration:\nGPU 0: NVIDIA H100\nGPU 1: NVIDIA H100\n\nNvidia driver version: 550.54.15\n").box
        == read("Driver Version: 550.54.15\nGPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n").box
    )


def test_query_text() -> None:
    found = read(QUERY)
    first, second = found.box.gpus
    assert first == GpuFact(
        0,
        "NVIDIA H100 PCIe",
        "0000:01:00.0",
        LinkFact(1, 8),
        LinkFact(4, 16),
        memory_bytes=81559 * MIB,
        device_gen=5,
        host_gen=4,
        bar1_bytes=131072 * MIB,
    )
    assert (second.link, second.link_max, second.memory_bytes) == (LinkFact(None, 16), LinkFact(None, 16), None)
    assert [(remark.kind, "at rest" in remark.text) for remark in found.remarks] == [("note", True)]


def test_query_text_cut_flattened_or_only_filtered() -> None:
    flat = read("\n".join(line.strip() for line in QUERY.splitlines()))
    assert flat.box == read(QUERY).box
    cut = read(QUERY[: QUERY.index("GPU 00000000:02")])
    assert {remark.kind for remark in cut.remarks} == {"cut", "assumed", "note"}
    grep = "\n".join(line for line in QUERY.splitlines() if "Product Name" in line or "Bus Id" in line)
    assert [gpu.bus for gpu in read(grep).box.gpus] == ["0000:01:00.0", "0000:02:00.0"]
    assert [remark.kind for remark in read(grep).remarks] == ["assumed"]
    one = read(TABLE.replace("01:00.0", "02:00.0") + QUERY.replace("Attached GPUs                             : 2", ""))
    assert {gpu.index: gpu.bus for gpu in one.box.gpus}[0] == "0000:02:00.0"


def test_csv() -> None:
    found = read(CSV)
    first, second = found.box.gpus
    assert first == GpuFact(0, "NVIDIA L40S", "0000:21:00.0", LinkFact(1, 8), LinkFact(4, None), memory_bytes=46068 * MIB, device_gen=4)
    assert second.link == LinkFact(4, 16)
    assert sniff(CSV) == 1
    plain = read("name,pci.bus_id,memory.total [MiB]\nNVIDIA L4,00000000:21:00.0,23034\n\n")
    assert plain.box.gpus == (GpuFact(0, "NVIDIA L4", "0000:21:00.0", memory_bytes=23034 * MIB),)
    assert [remark.kind for remark in plain.remarks] == ["assumed"]


def test_csv_without_a_header() -> None:
    rows = "\n".join(CSV.splitlines()[1:])
    columns = "index,name,pci.bus_id,pcie.link.gen.current,x,y,pcie.link.width.current,memory.total,uuid"
    asked = f"$ nvidia-smi --query-gpu={columns} --format=csv,noheader\n"
    assert [gpu.link for gpu in read(asked + rows).box.gpus] == [LinkFact(1, 8), LinkFact(4, 16)]
    guessed = read(rows)
    assert [(gpu.index, gpu.bus, gpu.link, gpu.memory_bytes) for gpu in guessed.box.gpus] == [
        (0, "0000:21:00.0", None, 46068 * MIB),
        (1, "0000:22:00.0", None, 46068 * MIB),
    ]
    assert [remark.kind for remark in guessed.remarks] == ["assumed"]
    with pytest.raises(InputError, match=r"^gpus.txt:1: a row without a header"):
        read("0, 00000000:21:00.0, 4, 16\n")


def test_nothing_private_is_kept() -> None:
    text = repr(read(TABLE + LIST + QUERY + CSV)) + repr(read(LIST)) + repr(read(CSV))
    assert "aaaaaaaa" not in text
    assert "1234567890123" not in text


def test_two_boxes_in_one_file() -> None:
    found = read(TABLE + TABLE.replace("00000000:01", "00000000:41"))
    assert found.box.gpus[0].bus == "0000:01:00.0"
    assert "conflict" in {remark.kind for remark in found.remarks}


def test_nvlink_status_gives_names_only() -> None:
    found = read("GPU 0: NVIDIA A100 (UUID: GPU-x)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n")
    assert [gpu.name for gpu in found.box.gpus] == ["NVIDIA A100"]
    assert [(remark.kind, remark.line) for remark in found.remarks] == [("ignored", 2)]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 1, "no driver"),
        ("$ nvidia-smi\nNo devices were found\n", 2, "no GPU"),
        ("==============NVSMI LOG==============\nnothing\n", 1, "can be read"),
    ],
)
def test_refused(text: str, line: int, what: str) -> None:
    assert sniff(text) == line
    with pytest.raises(InputError) as caught:
        read(text)
    assert str(caught.value).startswith(f"gpus.txt:{line}: ")
    assert what in str(caught.value)


def test_head_alone_gives_the_driver() -> None:
    found = read("\n".join(TABLE.splitlines()[:3]))
    assert found.box.host == HostFact(driver="570.86.10", cuda="12.8")
    assert [remark.kind for remark in found.remarks] == ["cut"]


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0: out of memory\n",
        "GPU0 X PIX\n",
        "Product Name: NIC PF\n",
        "concurrency,name,index\n1,x,2\n",
        "index,time\n1,2\n",
        "1,2,3\n",
        "we ran on GPU 0 and GPU 1",
    ],
)
def test_does_not_fire_on_other_texts(text: str) -> None:
    assert sniff(text) is None


@given(st.text())
def test_any_text(text: str) -> None:
    _only_input_errors(text)


@given(st.data())
def test_any_cut_and_hole(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([TABLE, LIST, QUERY, CSV, TABLE + LIST + QUERY + CSV]))
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 60)))
    _only_input_errors(text[:first] + data.draw(st.text(max_size=5)) + text[last:])


def _only_input_errors(text: str) -> None:
    try:
        source = source_of(text, "any.txt")
        line = smi_query.sniff(source)
        assert line is None or 1 <= line <= len(source.lines)
        found = smi_query.read(source)
    except InputError:
        return
    assert len(found.box.gpus) <= 512
    assert len({gpu.index for gpu in found.box.gpus}) == len(found.box.gpus)


@pytest.mark.parametrize(
    "text",
    [
        "| 0 A" * 400_000,
        ("| 0  " + "A " * 150 + "\n") * 20_000,
        "".join(f"GPU {i % 999}: NVIDIA x{i} (UUID: GPU-1)\n" for i in range(100_000)),
        "index, name, pci.bus_id\n" + "".join(f"{i}, NVIDIA, 00000000:01:00.0\n" for i in range(100_000)),
        "==============NVSMI LOG==============\n" + "".join(f"GPU 0000{i:04x}:01:00.0\n Product Name : x\n" for i in range(60_000)),
        "a" + ",a" * 9_000,
        ("Product Name" + " " * 300 + "x\n") * 20_000,
        "99999999999999999999, NVIDIA, 00000000:01:00.0, 99999999999999999999999 MiB\n",
    ],
)
def test_hostile_sizes_end_soon(text: str) -> None:
    _only_input_errors(text)
