"""CUDA's sample p2pBandwidthLatencyTest: which GPUs reach each other, copy rates one way and both ways, latencies.

Row i of a bandwidth matrix writes to column j; with ``P2P Reads`` it reads from j; both ways it is the sum (cuda-samples,
p2pBandwidthLatencyTest.cu).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pcie_sim.importers.facts import BoxFacts, GpuFact, MatrixFact, bus_id
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.nccl_text import Notes, strip_prefix
from pcie_sim.importers.p2p_copies import MAX_GPUS, cell_of, copy_rows, copy_set, labels_of, without_diagonal
from pcie_sim.importers.source import SourceText
from pcie_sim.specs.measurement import MeasurementSet

_TITLE = re.compile(
    r"(?:(Uni|Bi)directional )?P2P=(Enabled|Disabled) (Bandwidth|Latency)(?: \(P2P (Writes|Reads)\))? Matrix \((GB/s|us)\)"
    r"|P2P Connectivity Matrix"
)
_BANNER = re.compile(r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|(?:^|[\s/])p2pBandwidthLatencyTest\b")
_DEVICE = re.compile(
    r"Device: ([0-9]{1,4}), (.{1,100}?), pciBusID: ([0-9a-fA-F]{1,2}), pciDeviceID: ([0-9a-fA-F]{1,2}), pciDomainID: ?([0-9a-fA-F]{1,8})"
)
_ACCESS = re.compile(r"Device=([0-9]{1,4}) (CAN|CANNOT) Access Peer Device=([0-9]{1,4})")
_CORNER = re.compile(r"\s{0,20}(D\\{0,2}D|GPU|CPU)\s")
MAX_MATRICES = 200


@dataclass
class _Table:
    title: re.Match[str]
    number: int
    corner: str = ""
    labels: tuple[int, ...] | None = None
    rows: dict[int, list[str]] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return self.labels is not None and len(self.rows) == len(self.labels)


@dataclass
class _Run:
    tables: list[_Table] = field(default_factory=list)
    devices: list[GpuFact] = field(default_factory=list)
    access: dict[tuple[int, int], bool] = field(default_factory=dict)


def sniff(source: SourceText) -> int | None:
    """The line of a matrix's title (or of the test's own name)."""
    if "P2P" not in source.raw and "p2p" not in source.raw:
        return None
    titled = next((number for number, line in enumerate(source.lines, 1) if "P2P" in line and _TITLE.search(line)), None)
    return titled or next((number for number, line in enumerate(source.lines, 1) if "[P2P (" in line and _BANNER.search(line)), None)


@importer("p2pBandwidthLatencyTest", "p2pBandwidthLatencyTest output", sniff=sniff)
def read(source: SourceText) -> Imported:
    """All matrices (B/s and s), the GPUs, and a set of kind ``copy`` per run with peer access on and off as two arms.

    Raises:
        InputError: no matrix with a whole row and no device line.
    """
    notes = Notes(source)
    runs = _runs(source, notes)
    matrices: list[MatrixFact] = []
    sets: list[MeasurementSet] = []
    measured = []
    for run in runs:
        found = [matrix for table in run.tables if (matrix := _matrix(table, notes)) is not None]
        if not any(matrix.kind == "peer_access" for matrix in found) and run.access:
            found.insert(0, _access_matrix(run.access))
        matrices += found
        if any(matrix.kind == "bandwidth" for matrix in found):
            measured.append(found)
    for number, found in enumerate(measured, 1):
        one = _set(source.name, number, len(measured), found, notes)
        if one is not None:
            sets.append(one)
    gpus = {gpu.index: gpu for run in reversed(runs) for gpu in run.devices}
    if not matrices and not gpus:
        raise source.error("names p2pBandwidthLatencyTest, but holds no matrix with a whole row; give the whole output", sniff(source))
    if not matrices:
        notes.add("cut", "no matrix: only the GPUs are read")
    box = BoxFacts(gpus=tuple(gpus[index] for index in sorted(gpus)), matrices=tuple(matrices))
    return Imported(source.name, ("p2pBandwidthLatencyTest",), box=box, measurements=tuple(sets), remarks=notes.remarks())


def _runs(source: SourceText, notes: Notes) -> list[_Run]:
    runs = [_Run()]
    table: _Table | None = None
    title: tuple[re.Match[str], int] | None = None
    for number, raw in enumerate(source.lines, 1):
        line = strip_prefix(raw)[0]
        if (match := _TITLE.search(line)) is not None:
            if any(one.title.group(0) == match.group(0) for one in runs[-1].tables) and len(runs) < MAX_MATRICES:
                runs.append(_Run())
            title, table = (match, number), None
        elif (match := _DEVICE.search(line)) is not None:
            if runs[-1].tables and len(runs) < MAX_MATRICES:
                runs.append(_Run())
            if len(runs[-1].devices) < MAX_GPUS:
                bus = bus_id(f"{match.group(5)}:{match.group(3)}:{match.group(4)}.0")
                runs[-1].devices.append(
                    GpuFact(index=int(match.group(1)), name=" ".join(match.group(2).split()), bus=bus, numbering="cuda")
                )
        elif (match := _ACCESS.search(line)) is not None:
            if len(runs[-1].access) < MAX_GPUS * MAX_GPUS:
                runs[-1].access[int(match.group(1)), int(match.group(3))] = match.group(2) == "CAN"
        elif title is not None and (corner := _corner(line)) is not None:
            if sum(len(run.tables) for run in runs) >= MAX_MATRICES:
                notes.add("cut", f"more than {MAX_MATRICES} matrices: the rest is left out", number)
                break
            table = _Table(*title, corner=corner[0], labels=corner[1])
            runs[-1].tables.append(table)
        elif table is not None and not table.full:
            _row(table, line)
    return runs


def _corner(line: str) -> tuple[str, tuple[int, ...]] | None:
    match = _CORNER.match(line)
    labels = labels_of(line[match.end() :].split()) if match is not None else None
    return (match.group(1), labels) if match is not None and labels is not None else None


def _row(table: _Table, line: str) -> None:
    words = line.split()
    labels = table.labels or ()
    if not words or not words[0].isdigit() or len(words[0]) > 4 or len(words) < 2:
        return
    label = int(words[0])
    if label in labels and label not in table.rows and len(words) - 1 <= len(labels):
        table.rows[label] = words[1:]


def _matrix(table: _Table, notes: Notes) -> MatrixFact | None:
    labels = table.labels or ()
    short = len(table.rows) < len(labels) or any(len(row) < len(labels) for row in table.rows.values())
    if short:
        notes.add("cut", "a matrix is not whole: cells that are missing say nothing", table.number)
    if not table.rows:
        return None
    way, enabled, what, access, unit = table.title.groups()
    title = table.title.group(0)
    if what is None:
        cells = tuple(_flags(labels, table.rows.get(label, [])) for label in labels)
        return MatrixFact("peer_access", labels, cells, title, line=table.number)
    scale = 1e9 if unit == "GB/s" else 1e-6
    rows = {label: [cell_of(word, scale) for word in words] for label, words in table.rows.items()}
    return MatrixFact(
        kind="bandwidth" if what == "Bandwidth" else "latency",
        labels=labels,
        cells=without_diagonal(labels, rows),
        title=title if what == "Bandwidth" else f"{title}, {table.corner} timer",
        p2p=enabled == "Enabled",
        bidirectional=way == "Bi",
        access="" if way == "Bi" else "read" if access == "Reads" else "write",
        line=table.number,
    )


def _flags(labels: tuple[int, ...], words: list[str]) -> tuple[float | None, ...]:
    cells: list[float | None] = [float(word) if word in ("0", "1") else None for word in words[: len(labels)]]
    return tuple(cells + [None] * (len(labels) - len(cells)))


def _access_matrix(access: dict[tuple[int, int], bool]) -> MatrixFact:
    labels = tuple(sorted({gpu for pair in access for gpu in pair}))[:MAX_GPUS]
    cells = tuple(tuple(1.0 if i == j else float(access[i, j]) if (i, j) in access else None for j in labels) for i in labels)
    return MatrixFact("peer_access", labels, cells, "Device=... Access Peer Device=...")


def _set(name: str, number: int, of: int, found: list[MatrixFact], notes: Notes) -> MeasurementSet | None:
    refused = {
        (i, j)
        for matrix in found
        if matrix.kind == "peer_access"
        for i, row in zip(matrix.labels, matrix.cells, strict=True)
        for j, cell in zip(matrix.labels, row, strict=True)
        if cell == 0 and i != j
    }
    rows = []
    for matrix in found:
        if matrix.kind == "bandwidth":
            rows += copy_rows(matrix, "p2p-on" if matrix.p2p else "p2p-off", skip=refused if matrix.p2p else ())
            if matrix.p2p and refused:
                text = "pairs without peer access: their P2P=Enabled figures are staged copies as well, and no measure of P2P"
                notes.add("note", text, matrix.line)
    gpus = max(len(matrix.labels) for matrix in found)
    return copy_set(name, number, of, gpus, rows, title=f"p2pBandwidthLatencyTest of {gpus} GPUs") if rows else None
