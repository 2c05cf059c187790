"""nvidia-smi topo: expectations are the cells written into each fixture; shapes of damage are those of public pastes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import smi_topo
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.smi_topo_write import write_topo_m
from pcie_sim.importers.source import source_of

WORDS = ["X", "PIX", "SYS", "SYS"], ["PIX", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "NV4"], ["SYS", "SYS", "NV4", "X"]
CELLS = tuple(tuple(row) for row in WORDS)
PLAIN = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PIX     SYS     SYS     0-31,64-95      0               N/A
GPU1    PIX      X      SYS     SYS     0-31,64-95      0               N/A
GPU2    SYS     SYS      X      NV4     32-63,96-127    1               N/A
GPU3    SYS     SYS     NV4      X      32-63,96-127    1               N/A
"""


def read(text: str) -> Imported:
    return smi_topo.read(source_of(text, "topo.txt"))


def sniff(text: str) -> int | None:
    return smi_topo.sniff(source_of(text, "topo.txt"))


def kinds(found: Imported) -> list[str]:
    return [remark.kind for remark in found.remarks]


def test_plain_table() -> None:
    found = read(PLAIN)
    (matrix,) = found.box.matrices
    assert (matrix.kind, matrix.labels, matrix.cells) == ("path", (0, 1, 2, 3), CELLS)
    assert [gpu.numa for gpu in found.box.gpus] == [(0,), (0,), (1,), (1,)]
    assert found.box.gpus[2].cpus == "32-63,96-127"
    assert found.remarks == ()
    assert matrix.line == 1
    assert sniff("first\n" + PLAIN) == 2


TABBED = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
TABBED += "GPU0\t X \tNODE\t0-63,128-191\t0\t\tN/A\nGPU1\tNODE\t X \t\t1\t\tN/A\n"


def test_raw_tabs_and_colours_and_an_empty_affinity() -> None:
    gpus = read(TABBED).box.gpus
    assert [(gpu.cpus, gpu.numa) for gpu in gpus] == [("0-63,128-191", (0,)), ("", (1,))]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("GPU0    GPU1", "GPU0 GPU1"),
        lambda text: re.sub(" +", " ", text),
        lambda text: re.sub(" {2,}", "\t", text),
        lambda text: "\n".join("# " + line for line in text.splitlines()),
        lambda text: "\n".join("> " + line for line in text.splitlines()),
        lambda text: "\n".join("log: " + line for line in text.splitlines()),
        lambda text: "\n".join("2025-01-02T03:04:05 node | " + line.strip() for line in text.splitlines()),
        lambda text: "```\n" + text + "```\n",
        lambda text: "\n\n".join(text.splitlines()),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", " "),
        lambda text: text.replace("SYS     SYS     0-31", "SYS     SYS\n0-31"),
        lambda text: text.replace("    GPU2    GPU3    CPU", "\nGPU2    GPU3    CPU"),
        lambda text: text.replace("PIX     SYS     SYS     0", "PIX\nSYS     SYS     0"),
        lambda text: text.replace("CPU Affinity    NUMA Affinity", "\nCPU Affinity    NUMA Affinity"),
        lambda text: re.sub(r" {2,}", " | ", text),
        lambda text: "some text about GPU0 and GPU1\n\n" + text + "\nand GPU3 is slow\n",
        lambda text: text.lower().replace("gpu", "GPU").replace("affinity", "Affinity").replace("cpu", "CPU").replace("numa", "NUMA"),
    ],
)
def test_damage_that_loses_nothing(damage: object) -> None:
    text = damage(PLAIN)  # type: ignore[operator]
    assert sniff(text) is not None
    found = read(text)
    assert found.box.matrices[0].cells == CELLS
    assert [remark for remark in found.remarks if remark.kind != "note"] == []


def test_affinity_survives_wrapping_and_prefixes() -> None:
    for text in ("\n".join("log: " + line for line in PLAIN.splitlines()), re.sub(" {2,}", "\t", PLAIN), re.sub(" +", " ", PLAIN)):
        assert [gpu.numa for gpu in read(text).box.gpus] == [(0,), (0,), (1,), (1,)]


def test_tabs_deleted_altogether() -> None:
    text = "GPU0GPU1GPU2CPU AffinityNUMA Affinity\nGPU0 X PIXSYS0-311\nGPU1PIX X SYS0-311\nGPU2SYSSYS X 32-632\n"
    found = read(text)
    assert found.box.matrices[0].cells == (("X", "PIX", "SYS"), ("PIX", "X", "SYS"), ("SYS", "SYS", "X"))
    assert all(gpu.numa == () and gpu.cpus == "" for gpu in found.box.gpus)
    assert "not read" in str(found.remarks[0])


NICS = """\
4 NICs found in the topology, only displaying 2 in the matrix.
\tGPU0\tGPU1\tNIC0NIC1CPU Affinity\tNUMA Affinity
GPU0\t X \tPHB\tNODE\tPIX\t0-23\t0
GPU1\tPHB\t X \tNODE\tNODE\t0-23\t0
NIC0\tNODE\tNODE\t X \tPIX
NIC1\tPIX\tNODE\tPIX\t X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1
"""


def test_network_cards() -> None:
    found = read(NICS)
    assert found.box.matrices[0].cells == (("X", "PHB"), ("PHB", "X"))
    assert found.box.matrices[0].nic_cells == {"mlx5_0": ("NODE", "NODE"), "mlx5_bond_1": ("PIX", "NODE")}
    assert [gpu.numa for gpu in found.box.gpus] == [(0,), (0,)]
    assert [str(remark) for remark in found.remarks] == ["topo.txt:1: nvidia-smi shows 2 of 4 network cards"]
    by_name = NICS.replace("NIC0NIC1CPU", "mlx5_0\tmlx5_2\tCPU").replace("NIC0\t", "mlx5_0\t").replace("NIC1\t", "mlx5_2\t")
    assert list(read(by_name).box.matrices[0].nic_cells) == ["mlx5_0", "mlx5_2"]


def test_peer_to_peer_states_beside_the_paths() -> None:
    states_text = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tNS\tX\t\n"
    text = f"$ nvidia-smi topo -m\n{PLAIN}\nLegend:\n  X = Self\n\n$ nvidia-smi topo -p2p w\n{states_text}"
    path, states = read(text).box.matrices
    assert (states.kind, states.access, states.cells) == ("p2p_status", "w", (("X", "GNS"), ("NS", "X")))
    assert (path.kind, path.access) == ("path", "")
    assert "GPU1 to GPU0 is NS, back it is GNS" in str(read(text).remarks[0])
    alone = read(" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n").box
    assert (alone.matrices[0].kind, alone.matrices[0].access) == ("p2p_status", "")


def test_one_gpu_and_old_words_and_trimmed_by_hand() -> None:
    assert read("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n").box.matrices[0].cells == (("X",),)
    old = read("  GPU0 GPU1 CPU Affinity\nGPU0 X SOC 0-7\nGPU1 SOC X 8-15\n")
    assert old.box.matrices[0].cells == (("X", "SYS"), ("SYS", "X"))
    assert kinds(old) == ["note"]
    hand = read("   GPU0 GPU1\nGPU0 X PIX  NUMA 0\nGPU1 PIX X   NUMA 1\n")
    assert [gpu.numa for gpu in hand.box.gpus] == [(0,), (1,)]


def test_numa_ranges_and_nothing() -> None:
    text = "  GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X PHB 0-191 0-1\nGPU1 PHB X N/A N/A\n"
    assert [(gpu.cpus, gpu.numa) for gpu in read(text).box.gpus] == [("0-191", (0, 1)), ("", ())]
    cut = "  GPU0 GPU1 CPU Affinity\nGPU0 X PHB 0,2,4,6,8,…\nGPU1 PHB X 0,2,4,6,8,...\n"
    assert [gpu.cpus for gpu in read(cut).box.gpus] == ["0,2,4,6,8,…", "0,2,4,6,8,..."]


def test_header_cut_in_its_last_words() -> None:
    found = read(PLAIN.replace("CPU Affinity    NUMA Affinity   GPU NUMA ID", "CPU Affinity    NUMA"))
    assert [gpu.numa for gpu in found.box.gpus] == [(0,), (0,), (1,), (1,)]
    found = read(PLAIN.replace("CPU Affinity    NUMA Affinity   GPU NUMA ID", ""))
    assert [gpu.numa for gpu in found.box.gpus] == [(0,), (0,), (1,), (1,)]
    assert kinds(found) == ["assumed"]


def test_truncated_and_missing_rows_are_filled_and_said() -> None:
    cut = "\n".join(PLAIN.splitlines()[:4]) + "\nGPU3    SYS     SY"
    found = read(cut)
    assert found.box.matrices[0].cells == CELLS
    assert set(kinds(found)) == {"cut", "assumed", "ignored"}
    two = "\n".join(PLAIN.splitlines()[:3])
    found = read(two)
    assert found.box.matrices[0].cells == (*CELLS[:2], ("SYS", "SYS", "X", None), ("SYS", "SYS", None, "X"))
    texts = [str(remark) for remark in found.remarks]
    assert "topo.txt:1: the rows of GPU2, GPU3 are missing" in texts
    assert any("1 pair of GPUs without a word" in text for text in texts)


def test_a_header_that_is_lost_or_short() -> None:
    body = "\n".join(PLAIN.splitlines()[1:])
    found = read(body)
    assert sniff(body) == 1
    assert found.box.matrices[0].cells == CELLS
    assert "assumed" in kinds(found)
    found = read("GPU0 GPU1\n" + body)
    assert found.box.matrices[0].cells == CELLS
    assert any("header ends early" in str(remark) for remark in found.remarks)


def test_disagreement_is_said() -> None:
    found = read(PLAIN.replace("GPU1    PIX", "GPU1    PXB"))
    assert [str(remark) for remark in found.remarks] == [
        "topo.txt:3: GPU1 to GPU0 is PXB, back it is PIX: a path is the same both ways; the table may be put together by hand"
    ]
    found = read(PLAIN.replace("GPU3    SYS     SYS     NV4      X ", "GPU3    SYS      X      NV4     SYS"))
    assert found.box.matrices[0].cells == CELLS
    assert any("its own column" in str(remark) and remark.line == 5 for remark in found.remarks)
    found = read(PLAIN.replace("GPU1    PIX      X ", "GPU1    PIX     PIX"))
    assert found.box.matrices[0].cells == CELLS
    assert kinds(found) == ["conflict"]
    found = read(PLAIN.replace("GPU1    PIX      X ", "GPU1    PIX        "))
    assert found.box.matrices[0].cells == CELLS
    found = read(PLAIN + PLAIN)
    assert len(found.box.matrices) == 1
    assert kinds(found) == ["ignored"]
    assert "conflict" in kinds(read(PLAIN + PLAIN.replace("PIX", "PHB")))
    assert "conflict" not in kinds(read(PLAIN + PLAIN.replace("NV4", "SYS")))  # topo -m and -mp of one box


def test_words_that_are_not_nvidias() -> None:
    found = read(PLAIN.replace("GPU1    PIX ", "GPU1    PIQ "))
    assert found.box.matrices[0].cells == CELLS
    assert any(remark.kind == "ignored" and "'PIQ'" in remark.text and remark.line == 3 for remark in found.remarks)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("hello\n  GPU0 GPU1\n", 2, "without a row"),
        ("GPU0 GPU1\nGPU0 PIX X\nGPU1 X PIX\n", 2, "its own column"),
        ("GPU0 GPU1 GPU0\nGPU0 X PIX PIX\nGPU1 PIX X SYS\n", 1, "twice"),
        ("x\n GPU0 GPU1 NIC0\nGPU0 X PIX SYS\nGPU1 PIX X SYS\nGPU5 SYS SYS SYS\n", 5, "GPU5 has a row"),
        ("GPU0 GPU1\nGPU0 X\nGPU1\n", 1, "no word of it"),
        ("is GPU0 ok?", 1, "no header line, and 1 row of"),
        ("text\nGPU\n", 2, "no matrix of GPUs"),
        ("GPU0 GPU1 GPU2\nGPU0 X FOO BAR SYS\nGPU1 FOO X BAR SYS\n", 2, "'FOO'"),
        ("GPU0 X PIX\nGPU1 X SYS\nGPU2 SYS X\n", 1, "no header line, and 3 rows"),
    ],
)
def test_refused_with_the_line_that_gave_it_away(text: str, line: int, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert str(caught.value).startswith(f"topo.txt:{line}: ")
    assert what in str(caught.value)
    assert "nvidia-smi topo -m" in str(caught.value)
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize(
    "text",
    [
        "GPU0 is slower than GPU1, GPU2 and GPU3",
        "GPU0: NVIDIA H200\nGPU1: NVIDIA H200",
        "GPU0 and GPU1\nare connected by SYS",
        "we saw that GPU0 X GPU1 is bad\n",
        "       GPU0         GPU1\nGPU0   0            15\nGPU1   15           0\n",
        "       GPU0         GPU1\nGPU0   0            PCIE\nGPU1   PCIE         0\n",
        "GPU0\nGPU1\n",
        "GPU/0 - PCI/1000 (5/10.0/SYS)",
        "   D\\D     0      1\n     0 600.00  20.00\n",
    ],
)
def test_does_not_fire_on_other_texts(text: str) -> None:
    assert sniff(text) is None


def test_written_text_reads_back() -> None:
    text = write_topo_m(WORDS, [0, 0, 1, None], cpus=["0-7", "0-7", "8-15", "8-15"], nics={"mlx5_0": ["PIX", "PIX", "SYS", "SYS"]})
    found = read(text)
    assert found.remarks == ()
    assert found.box.matrices[0].cells == CELLS
    assert found.box.matrices[0].nic_cells == {"mlx5_0": ("PIX", "PIX", "SYS", "SYS")}
    assert [gpu.numa for gpu in found.box.gpus] == [(0,), (0,), (1,), ()]


@given(st.integers(1, 20), st.data())
def test_any_symmetric_matrix_survives(count: int, data: st.DataObject) -> None:
    word = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "NV1", "NV18"])
    upper = {(i, j): data.draw(word) for i in range(count) for j in range(i)}
    numa = data.draw(st.one_of(st.just([]), st.lists(st.one_of(st.none(), st.integers(0, 15)), min_size=count, max_size=count)))
    text = write_topo_m(lambda i, j: upper[max(i, j), min(i, j)], numa, count=count)
    for damaged in (text, re.sub("\t+", "  ", text)):
        found = read(damaged)
        matrix = found.box.matrices[0]
        assert all(matrix.cells[i][j] == ("X" if i == j else upper[max(i, j), min(i, j)]) for i in range(count) for j in range(count))
        assert [gpu.numa for gpu in found.box.gpus] == ([() if node is None else (node,) for node in numa] or [()] * count)


@given(st.text())
def test_any_text(text: str) -> None:
    _only_input_errors(text)


TOKENS = [
    "GPU0",
    "GPU1",
    "GPU2",
    "NIC0",
    "X",
    "PIX",
    "SYS",
    "NV4",
    "OK",
    "GNS",
    "\n",
    "\t",
    " ",
    "CPU Affinity",
    "NUMA Affinity",
    "0-31",
    "N/A",
]


@given(
    st.lists(st.sampled_from([*TOKENS, "NIC0: mlx5_0", "Legend:", "nvidia-smi topo -p2p r", "#", "mlx5_0", "?"]), max_size=80),
    st.sampled_from(["", " "]),
)
def test_any_heap_of_tokens(tokens: list[str], glue: str) -> None:
    _only_input_errors(glue.join(tokens))


@given(st.data())
def test_any_cut_and_hole(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([PLAIN, TABBED, NICS]))
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 40)))
    _only_input_errors(text[:first] + text[last:])


def _only_input_errors(text: str) -> None:
    if not text.strip():
        return
    try:
        source = source_of(text, "any.txt")
        line = smi_topo.sniff(source)
        assert line is None or 1 <= line <= len(source.lines)
        found = smi_topo.read(source)
    except InputError:
        return
    for matrix in found.box.matrices:
        count = len(matrix.labels)
        assert [len(row) for row in matrix.cells] == [count] * count
        assert all(matrix.cells[i][i] == "X" for i in range(count))


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"GPU{i} " for i in range(1000)) * 300,
        ("GPU0 GPU1\n" + "GPU0 " + "X" * 11_000 + "\n") * 200,
        ("GPU0 GPU1\nGPU0 " + "foo " * 2900 + "\n") * 200,
        "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n" * 20_000,
        "GPU0 " * 400_000,
        "GPU0\t" + "X\t" * 1_000_000,
        "\n".join("\t".join([f"GPU{i}", *(["SYS"] * 600)]) for i in range(600)),
        "GPU0 GPU1 " + "a" * 19_000 + "\nGPU0 X SYS\n",
        "NIC0: x1\n" * 200_000,
    ],
)
def test_hostile_sizes_end_soon(text: str) -> None:
    _only_input_errors(text)


def test_at_most_512_gpus() -> None:
    assert len(read(write_topo_m(lambda _i, _j: "SYS", count=512)).box.gpus) == 512
    with pytest.raises(InputError, match=r"topo.txt:1: 513 GPUs: at most 512"):
        read(write_topo_m(lambda _i, _j: "SYS", count=513))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([["X", "PIX"]],), "square"),
        ((lambda _i, _j: "X",), "count or numa"),
        (([["X"]], [0, 0]), "2 entries for 1"),
        (([["X"]], (), 2), "1 rows"),
    ],
)
def test_writer_says_what_does_not_fit(arguments: tuple[object, ...], message: str) -> None:
    path, numa, *count = (*arguments, ())[:2] + arguments[2:]
    with pytest.raises(ValueError, match=message):
        write_topo_m(path, numa, count=count[0] if count else None)  # type: ignore[arg-type]
