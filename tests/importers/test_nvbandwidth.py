"""nvbandwidth, text and JSON, in the shapes of v0.4 to v0.10 (output.cpp, json_output.cpp, testcases_ce.cpp); figures as H100s show."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.nvbandwidth import read, read_json, sniff, sniff_json
from pcie_sim.importers.source import source_of

TEXT = """nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12080
CUDA Driver Version: 12080
Driver Version: 570.86.10

Device 0: NVIDIA H100 PCIe (00000000:c1:00)
Device 1: NVIDIA H100 PCIe (00000000:c2:00): (secrethost)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.20     55.18

SUM host_to_device_memcpy_ce 110.38

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.07
 1    276.19       N/A

SUM device_to_device_memcpy_read_ce 552.26

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.36
 1    276.14       N/A

SUM device_to_device_memcpy_write_ce 552.50

Running device_to_device_bidirectional_memcpy_write_ce.
memcpy CE GPU(row) <-> GPU(column) Write1 bandwidth (GB/s)
           0         1
 0       N/A    250.00
 1    250.00       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_write1 500.00

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    501.00
 1    502.00       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_total 1003.00

Running device_to_device_latency_sm.
memory latency SM GPU(row) <-> GPU(column) (ns)
           0         1
 0       N/A    750.00
 1    760.00       N/A

Running multinode_device_to_device_memcpy_read_ce.
WAIVED
"""

DATA: dict[str, Any] = {
    "nvbandwidth": {
        "version": "v0.8",
        "CUDA Runtime Version": 12080,
        "Driver Version": "570.86.10",
        "GPU Device list": ["0: NVIDIA H100 PCIe (00000000:c1:00): (secrethost)", "1: NVIDIA H100 PCIe (PCI:0000:c2:00.0)"],
        "testcases": [
            {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.20", "55.18"]],
             "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", "sum": 110.38},
            {"name": "device_to_device_memcpy_read_ce", "status": "Passed", "bandwidth_matrix": [["N/A", "276.07"], ["276.19", "N/A"]],
             "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"},
            {"name": "device_to_device_memcpy_write_ce", "status": "Passed", "bandwidth_matrix": [["N/A", "276.36"], ["276.14", "N/A"]],
             "bandwidth_description": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"},
            {"name": "device_to_device_bidirectional_memcpy_write_ce", "status": "Passed",
             "bandwidth_description": "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
             "bandwidth_matrix": [["N/A", "250.00"], ["250.00", "N/A"], ["N/A", "251.00"], ["252.00", "N/A"],
                                  ["N/A", "501.00"], ["502.00", "N/A"]]},
            {"name": "device_to_device_latency_sm", "status": "Passed", "bandwidth_matrix": [["N/A", "750.00"], ["760.00", "N/A"]],
             "bandwidth_description": "memory latency SM GPU(row) <-> GPU(column) (ns)"},
            {"name": "multinode_device_to_device_memcpy_read_ce", "status": "Waived"},
        ],
    }
}  # fmt: skip


def text() -> Imported:
    source = source_of(TEXT, "bw.txt")
    assert sniff(source) == 1
    return read(source)


def from_json() -> Imported:
    source = source_of(json.dumps(DATA, indent=1), "bw.json")
    assert sniff_json(source) == 2
    assert sniff(source) is None
    return read_json(source)


@pytest.mark.parametrize("found", [text(), from_json()], ids=["text", "json"])
def test_both_forms_say_the_same(found: Imported) -> None:
    assert [(m.kind, m.access, m.engine, m.p2p, m.bidirectional, m.cells) for m in found.box.matrices] == [
        ("bandwidth", "read", "ce", True, False, ((None, 276.07e9), (276.19e9, None))),
        ("bandwidth", "write", "ce", True, False, ((None, 276.36e9), (276.14e9, None))),
        ("bandwidth", "write", "ce", True, True, ((None, 501e9), (502e9, None))),
        ("latency", "", "sm", True, False, ((None, 750e-9), (760e-9, None))),
    ]
    assert [(gpu.index, gpu.name, gpu.bus) for gpu in found.box.gpus] == [
        (0, "NVIDIA H100 PCIe", "0000:c1:00.0"),
        (1, "NVIDIA H100 PCIe", "0000:c2:00.0"),
    ]
    assert found.box.host is not None
    assert (found.box.host.driver, found.box.host.cuda) == ("570.86.10", "12.8")
    assert found.details["host_copies"] == [
        {
            "test": "host_to_device_memcpy_ce",
            "title": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
            "rates": {"0": 55.2e9, "1": 55.18e9},
        }
    ]
    assert any("waived" in remark.text for remark in found.remarks)
    assert "secrethost" not in repr((found.box, found.details, found.measurements))


@pytest.mark.parametrize("found", [text(), from_json()], ids=["text", "json"])
def test_copy_rows(found: Imported) -> None:
    """A row reads from its column or writes to it, whatever the arrow of the title (testcases_ce.cpp)."""
    (one,) = found.measurements
    assert [(row.flows, row.access, row.value, row.counts) for row in one.rows] == [
        ((("gpu1", "gpu0"),), "read", 276.07, "total"),
        ((("gpu0", "gpu1"),), "read", 276.19, "total"),
        ((("gpu0", "gpu1"),), "write", 276.36, "total"),
        ((("gpu1", "gpu0"),), "write", 276.14, "total"),
        ((("gpu0", "gpu1"), ("gpu1", "gpu0")), "write", 501.0, "total"),
        ((("gpu1", "gpu0"), ("gpu0", "gpu1")), "write", 502.0, "total"),
    ]
    assert (one.software.driver, one.arms["p2p-on"].software is not None) == ("570.86.10", True)


def test_old_bidirectional_figures_are_of_one_stream() -> None:
    old = "Running device_to_device_bidirectional_memcpy_read_ce.\nmemcpy CE GPU(row) <-> GPU(column) bandwidth (GB/s)\n"
    old += " 0 1\n0 N/A 20.1\n1 20.2 N/A\n"
    found = read(source_of(old, "x"))
    assert found.box.matrices == ()
    assert {(row.counts, row.quality) for row in found.measurements[0].rows} == {("each", "doubtful")}


def test_a_cut_matrix() -> None:
    found = read(source_of(TEXT[: TEXT.index(" 1    276.19")], "x"))
    assert found.box.matrices[0].cells == ((None, 276.07e9), (None, None))
    assert any(remark.kind == "cut" for remark in found.remarks)


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"^x:1: holds no matrix: every test was waived"):
        read(source_of("Running device_to_device_memcpy_read_ce.\nWAIVED\n", "x"))
    with pytest.raises(InputError, match=r"^x:1: holds no matrix"):
        read(source_of("nvbandwidth Version: v0.8\n", "x"))
    with pytest.raises(InputError, match=r"^x:1: holds no test: nvbandwidth reports an error"):
        read_json(source_of('{"nvbandwidth": {"error": "No devices found"}}', "x"))
    with pytest.raises(InputError, match="broken JSON"):
        read_json(source_of(json.dumps(DATA)[:-60], "x"))
    with pytest.raises(InputError, match="no object 'nvbandwidth'"):
        read_json(source_of('{"nvbandwidth": [], "testcases": 1}', "x"))
    for other in ("Running a marathon.\n", "{}", "memcpy is a function\n"):
        assert sniff(source_of(other, "x")) is None
        assert sniff_json(source_of(other, "x")) is None


def test_lines_before_the_json() -> None:
    source = source_of("nvbandwidth Version: v0.8\n" + json.dumps(DATA), "x")
    assert sniff_json(source) is not None
    assert len(read_json(source).box.matrices) == 4


@given(st.text())
def test_any_text(raw: str) -> None:
    for body in ("Running device_to_device_memcpy_read_ce.\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n 0 1\n" + raw, raw):
        if not body.strip():
            continue
        source = source_of(body, "fuzz")
        sniff(source)
        sniff_json(source)
        with contextlib.suppress(InputError):
            read(source)
        with contextlib.suppress(InputError):
            read_json(source)


CELL = st.none() | st.integers() | st.floats() | st.text() | st.lists(st.none() | st.integers() | st.text())


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["name", "status", "bandwidth_matrix", "bandwidth_description"]), CELL | st.lists(st.lists(CELL)))
    ),
    CELL,
)
def test_any_testcases(tests: list[dict[str, Any]], listed: Any) -> None:
    with contextlib.suppress(InputError):
        read_json(source_of(json.dumps({"nvbandwidth": {"testcases": tests, "GPU Device list": listed}}), "fuzz"))
