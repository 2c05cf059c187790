"""p2pBandwidthLatencyTest. Figures: 2x RTX PRO 6000 behind a Gen5 switch, and 2x RTX 2080 Ti without peer access (both public)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.p2p_test import read, sniff
from pcie_sim.importers.source import source_of

TEXT = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, pciBusID: 3, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, pciBusID: c4, pciDeviceID: 0, pciDomainID:1
Device=0 CAN Access Peer Device=1
Device=1 CAN Access Peer Device=0

***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal memcopy procedure.

P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1498.89  22.91
     1  22.74 1536.38
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 1502.40  52.24
     1  52.35 1525.93
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1486.64  51.04
     1  51.06 1499.48
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   0.97   0.38
     1   0.44   1.00

   CPU     0      1
     0   1.49   1.16
     1   1.20   1.47

NOTE: The CUDA Samples are not meant for performance measurements.
"""


def imported(text: str) -> Imported:
    source = source_of(text, "p2p.txt")
    assert sniff(source) is not None
    return read(source)


def test_all_matrices_in_si_without_the_diagonal() -> None:
    found = imported(TEXT)
    assert [(matrix.kind, matrix.p2p, matrix.bidirectional, matrix.access, matrix.cells) for matrix in found.box.matrices] == [
        ("peer_access", None, False, "", ((1.0, 1.0), (1.0, 1.0))),
        ("bandwidth", False, False, "write", ((None, 22.91e9), (22.74e9, None))),
        ("bandwidth", True, False, "write", ((None, 52.24e9), (52.35e9, None))),
        ("bandwidth", True, True, "", ((None, 51.04e9), (51.06e9, None))),
        ("latency", True, False, "write", ((None, 0.38e-6), (0.44e-6, None))),
        ("latency", True, False, "write", ((None, 1.16e-6), (1.2e-6, None))),
    ]
    assert [matrix.title for matrix in found.box.matrices][-2:] == [
        "P2P=Enabled Latency (P2P Writes) Matrix (us), GPU timer",
        "P2P=Enabled Latency (P2P Writes) Matrix (us), CPU timer",
    ]
    assert [(gpu.index, gpu.bus) for gpu in found.box.gpus] == [(0, "0000:03:00.0"), (1, "0001:c4:00.0")]
    assert found.remarks == ()


def test_copy_rows_in_two_arms() -> None:
    (one,) = imported(TEXT).measurements
    assert (one.kind, one.use, one.machine.gpus) == ("copy", "calibrate", 2)
    assert [(row.arm, row.flows, row.value, row.unit, row.counts, row.access) for row in one.rows] == [
        ("p2p-off", (("gpu0", "gpu1"),), 22.91, "GB/s", "total", "write"),
        ("p2p-off", (("gpu1", "gpu0"),), 22.74, "GB/s", "total", "write"),
        ("p2p-on", (("gpu0", "gpu1"),), 52.24, "GB/s", "total", "write"),
        ("p2p-on", (("gpu1", "gpu0"),), 52.35, "GB/s", "total", "write"),
        ("p2p-on", (("gpu0", "gpu1"), ("gpu1", "gpu0")), 51.04, "GB/s", "total", "write"),
        ("p2p-on", (("gpu1", "gpu0"), ("gpu0", "gpu1")), 51.06, "GB/s", "total", "write"),
    ]
    assert {name: arm.software.p2p for name, arm in one.arms.items() if arm.software} == {"p2p-on": "on", "p2p-off": "off"}


def test_pairs_without_access_are_no_measure_of_p2p() -> None:
    found = imported(TEXT.replace("     0\t     1     1\n     1\t     1     1", "     0\t     1     0\n     1\t     0     1"))
    assert {row.arm for row in found.measurements[0].rows} == {"p2p-off"}
    assert any("staged copies" in remark.text for remark in found.remarks)


def test_access_lines_stand_in_for_the_matrix() -> None:
    head, _middle, tail = TEXT.partition("P2P Connectivity Matrix")
    text = head.replace("Device=0 CAN ", "Device=0 CANNOT ") + tail[tail.index("Unidirectional") :]
    matrix = imported(text).box.matrices[0]
    assert (matrix.kind, matrix.cells) == ("peer_access", ((1.0, 0.0), (1.0, 1.0)))


def test_reads_flow_the_other_way() -> None:
    """cuda-samples copies from j to i for reads."""
    text = (
        "Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)\n   D\\D     0      1\n     0 550.50   9.96\n     1   N/A 556.11\n"
    )
    found = imported(text)
    assert [(row.flows, row.access, row.value) for row in found.measurements[0].rows] == [((("gpu1", "gpu0"),), "read", 9.96)]
    assert found.box.matrices[0].access == "read"


@pytest.mark.parametrize("corner", ["D\\D", "DD", "D\\\\D"])
def test_prefixes_and_eaten_backslashes(corner: str) -> None:
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in TEXT.replace("D\\D", corner).splitlines())
    assert len(imported(text).box.matrices) == 6


def test_cut_matrices() -> None:
    found = imported(TEXT[: TEXT.index("     1  52.35") + 4])
    assert found.box.matrices[-1].cells == ((None, 52.24e9), (None, None))
    assert [remark.kind for remark in found.remarks] == ["cut"]


def test_two_runs_in_one_file() -> None:
    found = imported(TEXT + TEXT.replace("22.91", "11.00"))
    assert [one.id for one in found.measurements] == ["p2p-1", "p2p-2"]
    assert len(found.box.gpus) == 2


def test_refusal_and_other_files() -> None:
    with pytest.raises(InputError, match=r"^p2p\.txt:1: names p2pBandwidthLatencyTest, but holds no matrix"):
        imported("P2P Connectivity Matrix\n     D\\D     0     1\n")
    assert sniff(source_of("GPU0 GPU1\nP2P=maybe\n", "x")) is None


def test_a_rate_of_less_than_a_byte_is_no_row() -> None:
    assert read(source_of(TEXT.replace("22.91", "1e-30"), "x")).measurements


def test_hostile_figures_and_sizes() -> None:
    text = (
        "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D 0 1 2\n 0 1 nan -5\n 1 inf 1 1e999\n 2 0 99999999999999999999999 1\n"
    )
    found = imported(text)
    assert all(cell is None for row in found.box.matrices[0].cells for cell in row)
    assert found.measurements == ()
    wide = "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D " + " ".join(map(str, range(4000))) + "\n"
    with pytest.raises(InputError):
        imported(wide)
    with contextlib.suppress(InputError):
        read(source_of(("P2P=Enabled Latency " + "(P2P " * 3000 + "\n") * 50, "x"))


@given(st.text())
def test_any_text(text: str) -> None:
    source = source_of("P2P=Enabled Latency Matrix (us)\n   GPU 0 1\n" + text, "fuzz")
    sniff(source)
    with contextlib.suppress(InputError):
        read(source)


@given(st.lists(st.tuples(st.integers(0, 1500), st.sampled_from(["", "\n", "9", " ", "-", "GPU 0 0\n"]), st.integers(0, 40)), max_size=8))
def test_any_damage(cuts: list[tuple[int, str, int]]) -> None:
    text = TEXT
    for at, put, drop in cuts:
        text = text[:at] + put + text[at + drop :]
    with contextlib.suppress(InputError):
        read(source_of(text, "fuzz"))
