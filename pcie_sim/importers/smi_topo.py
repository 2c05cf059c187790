"""``nvidia-smi topo -m`` (and ``-mp``, ``-p2p``) -> matrices over GPUs, and the GPUs' NUMA nodes and CPUs where the columns are there.

The text carries no bandwidth, no switch count and no uplinks: only words. Pastes lose tabs, wrap, fuse header words, drop rows. What a
damaged row does not say is taken from the other half of the matrix and said; a row whose words are shifted is not used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pcie_sim.errors import InputError
from pcie_sim.importers.facts import BoxFacts, GpuFact, MatrixFact, MatrixKind
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.smi_topo_affinity import gpus_of
from pcie_sim.importers.smi_topo_lines import MOST_GPUS, MOST_TABLES, P2P_WORDS, PATH_WORDS, Reader, Row, Table, first_table_line, pieces
from pcie_sim.importers.source import Remark, RemarkKind, SourceText, quoted

_LEFT_OUT = re.compile(r"\b([0-9]{1,4}) NICs found in the topology, only displaying ([0-9]{1,4})")
_ADVICE = "copy the table again, or save it: nvidia-smi topo -m > topo.txt"


_Said = tuple[RemarkKind, str, int | None]


class _Unusable(Exception):  # noqa: N818  (never leaves this module)
    """A table of which nothing can be used: message and line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass
class _Matrix:
    """A table being turned into a matrix."""

    table: Table
    labels: list[int]
    columns: list[str]
    cells: list[list[str | None]]
    remarks: list[_Said] = field(default_factory=list)

    def say(self, kind: RemarkKind, text: str, line: int | None = None) -> None:
        self.remarks.append((kind, text, line if line is not None else self.table.line))


def sniff(source: SourceText) -> int | None:
    """The line of the first table; None where there is none (a GPU named in prose is none)."""
    return first_table_line(source.lines)


@importer("nvidia-smi-topo", "nvidia-smi topo -m / -p2p", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Every matrix of the file.

    Raises:
        InputError: no table, or none of them usable (the first one's reason, with its line).
    """
    reader = Reader()
    for line, text in pieces(source.lines):
        reader.feed(line, text)
    remarks = _nics_left_out(source)
    matrices: list[MatrixFact] = []
    gpus: dict[int, GpuFact] = {}
    refused: list[_Unusable] = []
    for table in reader.tables:
        try:
            found, listed, said = _finish(table)
        except _Unusable as exc:
            refused.append(exc)
            continue
        remarks += [source.remark(kind, text, line) for kind, text, line in said]
        if _repeats(found, matrices, source, remarks):
            continue
        matrices.append(found)
        for gpu in listed:
            if gpu.index not in gpus or not (gpus[gpu.index].numa or gpus[gpu.index].cpus):
                gpus[gpu.index] = gpu
    if not matrices:
        raise _refusal(source, refused)
    remarks += [source.remark("ignored", f"a table that cannot be used: {exc}", exc.line) for exc in refused[:4]]
    if reader.dropped:
        remarks.append(source.remark("cut", f"only the first {MOST_TABLES} tables are read ({reader.dropped} more)"))
    box = BoxFacts(gpus=tuple(gpus[index] for index in sorted(gpus)), matrices=tuple(matrices))
    return Imported(source.name, ("nvidia-smi-topo",), box=box, remarks=tuple(remarks))


def _nics_left_out(source: SourceText) -> list[Remark]:
    for number, line in enumerate(source.lines[:2000], 1):
        match = _LEFT_OUT.search(line)
        if match is not None:
            return [source.remark("note", f"nvidia-smi shows {match.group(2)} of {match.group(1)} network cards", number)]
    return []


def _refusal(source: SourceText, refused: Sequence[_Unusable]) -> InputError:
    if refused:
        return source.error(f"{refused[0]}; {_ADVICE}", refused[0].line)
    line = next((number for number, text in enumerate(source.lines, 1) if "GPU" in text), 1)
    return source.error(f"no matrix of GPUs here (a header GPU0 GPU1 ... and a row for each); {_ADVICE}", line)


def _repeats(found: MatrixFact, matrices: Sequence[MatrixFact], source: SourceText, remarks: list[Remark]) -> bool:
    """Whether the file had this matrix before; two that differ are of two boxes, or of two times."""
    same = [one for one in matrices if (one.kind, one.access) == (found.kind, found.access)]
    for one in same:
        if one.labels == found.labels and one.cells == found.cells:
            remarks.append(source.remark("ignored", f"the same matrix again (first in line {one.line})", found.line))
            return True
    if not same or found.kind != "path":
        return False
    first = same[0]
    pairs = [(a, b) for a, b in zip(_flat(first), _flat(found), strict=False) if a is not None and b is not None and a != b]
    if first.labels != found.labels or any(not a.startswith("NV") and not b.startswith("NV") for a, b in pairs):
        text = f"a second, different topology matrix; line {first.line} has the first. One box for each file"
        remarks.append(source.remark("conflict", text, found.line))
    return False


def _flat(matrix: MatrixFact) -> list[str | None]:
    return [str(cell) if cell is not None else None for row in matrix.cells for cell in row]


def _finish(table: Table) -> tuple[MatrixFact, list[GpuFact], list[_Said]]:
    """The matrix and the GPUs of one table, and what to say about it."""
    work = _laid_out(table)
    kind = _kind(work)
    _old_words(work)
    _diagonal(work)
    _mirror(work)
    count = len(work.labels)
    if count > 1 and not any(work.cells[i][j] for i in range(count) for j in range(count) if i != j):
        raise _Unusable("the table names GPUs, but no word of it can be used", table.line)
    nic_cells = _nics(work)
    matrix = MatrixFact(
        kind=kind,
        labels=tuple(work.labels),
        cells=tuple(tuple(row) for row in work.cells),
        access=table.access if kind == "p2p_status" else "",
        nic_cells=nic_cells if kind == "path" else {},
        line=table.line,
    )
    gpus, more = gpus_of(table, work.labels) if kind == "path" else ([GpuFact(index) for index in work.labels], [])
    return matrix, gpus, work.remarks + more


def _laid_out(table: Table) -> _Matrix:
    """Words by row and column, labels checked against rows."""
    rows = [int(label[3:]) for label in table.rows if label.startswith("GPU")]
    heads = [int(label[3:]) for label in table.columns if label.startswith("GPU")]
    if not rows:
        raise _Unusable("a header of GPUs without a row below it", table.line)
    if len(heads) > MOST_GPUS or len(rows) > MOST_GPUS:
        raise _Unusable(f"{max(len(heads), len(rows))} GPUs: at most {MOST_GPUS} are read", table.line)
    if len(set(heads)) < len(heads):
        raise _Unusable("the header names a GPU twice", table.line)
    columns = list(table.columns)
    said: list[_Said] = []
    widest = max(len(row.words) for label, row in table.rows.items() if label.startswith("GPU"))
    extra = [index for index in rows if index not in heads]
    if not columns:
        columns = [f"GPU{index}" for index in rows]
        said.append(("assumed", "the header line is missing: columns are taken in the order of the rows", table.line))
        if widest < len(rows) or len(rows) < 2:
            raise _Unusable(f"no header line, and {len(rows)} row{_s(rows)} of at most {widest} words", table.line)
    elif extra:
        if len(rows) > widest or any(not one.startswith("GPU") for one in columns) or rows != sorted(rows):
            line = table.rows[f"GPU{extra[0]}"].line
            raise _Unusable(f"GPU{extra[0]} has a row, but no column in the header of line {table.line}", line)
        columns = [f"GPU{index}" for index in rows]
        said.append(("assumed", f"the header ends early: columns from GPU{extra[0]} on are taken in the order of the rows", table.line))
    labels = [int(one[3:]) for one in columns if one.startswith("GPU")]
    missing = [index for index in labels if f"GPU{index}" not in table.rows]
    if missing:
        said.append(("cut", f"the row{_s(missing)} of {_names(missing)} {'are' if len(missing) > 1 else 'is'} missing", table.line))
    work = _Matrix(table, labels, columns, [[None] * len(labels) for _ in labels], said)
    at = [columns.index(f"GPU{index}") for index in labels]
    for i, index in enumerate(labels):
        row = table.rows.get(f"GPU{index}")
        if row is not None:
            words = _without_gap(work, row, i, at[i])
            work.cells[i] = [words[place] if place < len(words) else None for place in at]
    _said_of_rows(work)
    return work


def _without_gap(work: _Matrix, row: Row, i: int, at: int) -> list[str | None]:
    """A row that lost its own X (nothing stands there) has one word less: put it back."""
    count = len(work.columns)
    if "X" not in row.words and len(row.words) == count - 1 and None not in row.words and count > 1:
        work.say("assumed", f"GPU{work.labels[i]}'s row has no X: taken to be missing at its own place", row.line)
        return [*row.words[:at], "X", *row.words[at:]]
    return row.words


def _said_of_rows(work: _Matrix) -> None:
    short = [(label, row) for label, row in work.table.rows.items() if label.startswith("GPU") and len(row.words) < len(work.columns) - 1]
    if short:
        label, row = short[0]
        more = f" (and {len(short) - 1} more rows)" if len(short) > 1 else ""
        work.say("cut", f"{label}'s row has {len(row.words)} of {len(work.columns)} words{more}", row.line)
    strange = [(label, row) for label, row in work.table.rows.items() if row.unknown and label.startswith("GPU")]
    cells = sum(len(row.unknown) for _label, row in strange)
    if cells:
        known = sum(1 for row in work.table.rows.values() for word in row.words if word not in (None, "X"))
        label, row = strange[0]
        if cells > known:
            raise _Unusable(f"{quoted(row.unknown[0], 20)} is no word of nvidia-smi topo", row.line)
        work.say("ignored", f"{cells} cell{'s' if cells > 1 else ''} not understood, first {quoted(row.unknown[0], 20)}", row.line)
    wide = [(label, row) for label, row in work.table.rows.items() if len(row.words) > len(work.columns)]
    if wide:
        label, row = wide[0]
        work.say(
            "ignored", f"{label}'s row has {len(row.words)} words for {len(work.columns)} columns: the last ones are not used", row.line
        )
    if work.table.repeated:
        work.say("conflict", "a row stands here a second time; the first is kept", work.table.repeated[0])


def _kind(work: _Matrix) -> MatrixKind:
    words = [word for row in work.cells for word in row if word is not None]
    paths = sum(1 for word in words if word in PATH_WORDS or word.startswith("NV"))
    states = sum(1 for word in words if word in P2P_WORDS)
    kind: MatrixKind = "p2p_status" if states > paths or (states == paths == 0 and work.table.asked_p2p) else "path"
    wrong = 0
    for row in work.cells:
        for j, word in enumerate(row):
            if word is not None and word != "X" and not word.startswith("NV") and (word in P2P_WORDS) != (kind == "p2p_status"):
                row[j] = None
                wrong += 1
    if wrong:
        other = "nvidia-smi topo -p2p" if kind == "path" else "nvidia-smi topo -m"
        work.say("ignored", f"{wrong} cell{'s' if wrong > 1 else ''} with a word of {other}")
    return kind


def _old_words(work: _Matrix) -> None:
    """Drivers before 2018 print SOC for what is SYS since."""
    found = False
    for row in [*work.cells, *(row.words for row in work.table.rows.values())]:
        for j, word in enumerate(row):
            if word == "SOC":
                row[j], found = "SYS", True
    if found:
        work.say("note", "SOC is the old word for SYS; read as such")


def _diagonal(work: _Matrix) -> None:
    """Every GPU shows itself as X, and nothing else does: where not, the row is shifted and says nothing."""
    shifted: list[int] = []
    for i, row in enumerate(work.cells):
        elsewhere = [j for j, word in enumerate(row) if word == "X" and j != i]
        if elsewhere:
            shifted.append(i)
            work.cells[i] = [None] * len(work.labels)
        elif row[i] not in (None, "X"):
            line = _line_of(work, i)
            work.say("conflict", f"GPU{work.labels[i]} to itself is {row[i]}, not X: taken for X", line)
        work.cells[i][i] = "X"
    if not shifted:
        return
    line = _line_of(work, shifted[0])
    text = f"the X of GPU{work.labels[shifted[0]]}'s row is not in its own column: the row is shifted or of another box"
    if len(shifted) * 2 >= len(work.labels):
        raise _Unusable(text, line)
    more = f" (and {len(shifted) - 1} more rows)" if len(shifted) > 1 else ""
    work.say("conflict", f"{text}; not used{more}", line)


def _line_of(work: _Matrix, i: int) -> int:
    row = work.table.rows.get(f"GPU{work.labels[i]}")
    return row.line if row is not None else work.table.line


def _mirror(work: _Matrix) -> None:
    """Fill a missing cell from the other half; say where the halves disagree and where both are missing."""
    cells, labels = work.cells, work.labels
    filled: list[tuple[int, int]] = []
    differ: list[tuple[int, int]] = []
    lost = 0
    for i in range(len(labels)):
        for j in range(i):
            a, b = cells[i][j], cells[j][i]
            if a is None and b is None:
                lost += 1
            elif a is None:
                cells[i][j] = b
                filled.append((i, j))
            elif b is None:
                cells[j][i] = a
                filled.append((j, i))
            elif a != b:
                differ.append((i, j))
    if filled:
        i, j = filled[0]
        text = f"{len(filled)} missing cell{_s(filled)} filled from the other half of the matrix, first GPU{labels[i]} to GPU{labels[j]}"
        work.say("assumed", text, _line_of(work, i))
    if differ:
        i, j = differ[0]
        pair = f"GPU{labels[i]} to GPU{labels[j]} is {cells[i][j]}, back it is {cells[j][i]}"
        more = f" (and {len(differ) - 1} more pairs)" if len(differ) > 1 else ""
        work.say("conflict", f"{pair}{more}: a path is the same both ways; the table may be put together by hand", _line_of(work, i))
    if lost:
        work.say("cut", f"{lost} pair{'s' if lost > 1 else ''} of GPUs without a word in either half")


def _nics(work: _Matrix) -> dict[str, tuple[str | None, ...]]:
    """Network card -> its word to each GPU, from the columns, else from its own row."""
    table = work.table
    found: dict[str, tuple[str | None, ...]] = {}
    names = [column for column in work.columns if not column.startswith("GPU")]
    names += [label for label in table.rows if not label.startswith("GPU") and label not in names]
    gpu_at = [work.columns.index(f"GPU{index}") for index in work.labels]
    for name in names:
        place = work.columns.index(name) if name in work.columns else None
        own = table.rows.get(name)
        words: list[str | None] = []
        for index, at in zip(work.labels, gpu_at, strict=True):
            row = table.rows.get(f"GPU{index}")
            word = row.words[place] if row is not None and place is not None and place < len(row.words) else None
            if word is None and own is not None and at < len(own.words):
                word = own.words[at]
            words.append(word if word is not None and (word in PATH_WORDS or word.startswith("NV")) else None)
        if any(words):
            found[table.legend.get(name, name)] = tuple(words)
    return found


def _s(items: Sequence[object]) -> str:
    return "s" if len(items) > 1 else ""


def _names(indices: Sequence[int]) -> str:
    return ", ".join(f"GPU{index}" for index in indices[:4]) + (f" and {len(indices) - 4} more" if len(indices) > 4 else "")
