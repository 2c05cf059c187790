"""nvbandwidth, text and JSON: rates of copies between GPUs and to the host, latencies between GPUs.

The program measures a row's GPU writing to the column's (``_write_``) or reading from it (``_read_``); the arrows in its titles point the
other way (nvbandwidth, testcases_ce.cpp: DeviceToDeviceWriteCE, DeviceToDeviceReadCE), so the name of the test decides here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.importers.facts import BoxFacts, GpuFact, HostFact, MatrixFact, bus_id
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.nccl_text import Notes, strip_prefix
from pcie_sim.importers.p2p_copies import MAX_GPUS, cell_of, copy_rows, copy_set, labels_of, without_diagonal
from pcie_sim.importers.source import SourceText
from pcie_sim.specs.loader import parse_json
from pcie_sim.specs.measurement import MeasuredRow

_RUNNING = re.compile(r"\s{0,8}Running ([a-z][a-z0-9_]{3,80})\.?\s{0,8}$")
_TITLE = re.compile(r"(?:GPU|CPU)\(row\) .{0,80}\((GB/s|ns)\)|\((GB/s|ns)\)\s{0,8}$")
_DEVICE = re.compile(
    r"(?:Device |^\s{0,8})([0-9]{1,4}): ([^()\n]{1,100}) \((?:PCI:)?([0-9a-fA-F]{1,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\)"
)
_PEERS = re.compile(r"(?:multinode_)?device_to_device_(bidirectional_)?memcpy_(read|write)_(ce|sm)")
_WAIVED = re.compile(r"\s{0,8}waived\b", re.IGNORECASE)
_VERSION = re.compile(r"nvbandwidth Version: v?([0-9][0-9.]{0,12})")
_DRIVER = re.compile(r"(?<!CUDA )\bDriver Version: ([0-9]{2,4}(?:\.[0-9]{1,4}){1,2})")
_CUDA = re.compile(r"CUDA Runtime Version: (?:([0-9]{1,2}\.[0-9]{1,2})\b|([0-9]{4,6})\b)")
_JSON = re.compile(r'"nvbandwidth"\s{0,20}:')
_TEST = re.compile(r"memcpy|latency|_(?:ce|sm)$")
_ABOUT = {"version": "nvbandwidth Version", "Driver Version": "Driver Version", "CUDA Runtime Version": "CUDA Runtime Version"}
MAX_TESTS = 500


@dataclass
class _Table:
    test: str
    title: str
    number: int | None
    unit: str
    labels: tuple[int, ...] = ()
    rows: list[list[str]] = field(default_factory=list)


@dataclass
class _Output:
    tables: list[_Table] = field(default_factory=list)
    gpus: dict[int, GpuFact] = field(default_factory=dict)
    version: str | None = None
    driver: str | None = None
    cuda: str | None = None


def sniff(source: SourceText) -> int | None:
    """The line that starts a test, or nvbandwidth's own version."""
    if source.raw.lstrip()[:1] == "{" or ("memcpy" not in source.raw and "nvbandwidth" not in source.raw):
        return None
    for number, line in enumerate(source.lines, 1):
        running = _RUNNING.search(strip_prefix(line)[0]) if "Running " in line else None
        if running is not None and _TEST.search(running.group(1)):
            return number
        if _VERSION.search(line) or (("CPU(row)" in line or "GPU(row)" in line) and _TITLE.search(line)):
            return number
    return None


@importer("nvbandwidth", "nvbandwidth output", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Matrices between GPUs (B/s and s) with a set of kind ``copy``; rates to and from the host in ``details["host_copies"]`` (B/s).

    Raises:
        InputError: no test with a whole matrix.
    """
    notes = Notes(source)
    output = _Output()
    test, table, titled = "", None, None
    for number, raw in enumerate(source.lines, 1):
        line = strip_prefix(raw)[0]
        words = line.split()
        if (match := _RUNNING.search(line)) is not None:
            test, table, titled = match.group(1), None, None
        elif _WAIVED.match(line):
            notes.add("ignored", "a test was waived (it does not apply to this box, or to its peer access)", number)
        elif (match := _TITLE.search(line)) is not None and "row" in line:
            titled, table = (" ".join(words)[:120], number, match.group(1) or match.group(2)), None
        elif titled is not None and table is None and (labels := labels_of(words)) is not None:
            if len(output.tables) >= MAX_TESTS:
                notes.add("cut", f"more than {MAX_TESTS} tests: the rest is left out", number)
                break
            table = _Table(test, titled[0], titled[1], titled[2], labels)
            output.tables.append(table)
        elif table is not None and len(words) >= 2 and words[0].isdigit() and len(table.rows) < len(table.labels):
            table.rows.append(words[1:])
        elif words and words[0] == "SUM":
            table = titled = None
        else:
            _about(line, output)
    return _imported(source, "nvbandwidth", output, notes)


def sniff_json(source: SourceText) -> int | None:
    """The line of the key ``nvbandwidth`` in JSON."""
    found = _JSON.search(source.raw) if '"testcases"' in source.raw or '"error"' in source.raw else None
    return source.raw.count("\n", 0, found.start()) + 1 if found is not None else None


@importer("nvbandwidth-json", "nvbandwidth JSON (-j)", sniff=sniff_json, whole=True)
def read_json(source: SourceText) -> Imported:
    """As :func:`read`, from JSON; lines before the first brace are passed over.

    Raises:
        InputError: broken or cut JSON, or no test with a whole matrix.
    """
    if not source.complete:
        raise source.error("is too large to be read whole, and cut JSON says nothing; run fewer tests", sniff_json(source))
    text = source.raw[source.raw.find("{") :]
    data = parse_json(text[: text.rfind("}") + 1], source=source.name)
    root = data.get("nvbandwidth") if isinstance(data, dict) else None
    if not isinstance(root, dict):
        raise source.error("looks like nvbandwidth's JSON, but has no object 'nvbandwidth'; give the whole file", sniff_json(source))
    notes = Notes(source)
    output = _Output()
    for key, name in _ABOUT.items():
        if isinstance(root.get(key), str | int):
            _about(f"{name}: {str(root[key])[:60]}", output)
    listed = root.get("GPU Device list")
    for entry in listed[:MAX_GPUS] if isinstance(listed, list) else []:
        _about(str(entry)[:300], output)
    tests = root.get("testcases")
    if isinstance(root.get("error"), str) and not tests:
        raise source.error("holds no test: nvbandwidth reports an error; cure that and run it again", sniff_json(source))
    for entry in tests[:MAX_TESTS] if isinstance(tests, list) else []:
        if isinstance(entry, dict):
            _case(entry, output, notes)
    return _imported(source, "nvbandwidth-json", output, notes)


def _case(entry: dict[str, Any], output: _Output, notes: Notes) -> None:
    test, status = str(entry.get("name", ""))[:80], str(entry.get("status", ""))
    matrix = entry.get("bandwidth_matrix")
    if status.lower() == "waived":
        notes.add("ignored", "a test was waived (it does not apply to this box, or to its peer access)")
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix) or not matrix:
        return
    rows = [[str(cell)[:40] for cell in row[: MAX_GPUS + 1]] for row in matrix[: 4 * MAX_GPUS]]
    width = len(rows[0])
    title = " ".join(str(entry.get("bandwidth_description", "")).split())[:120]
    if len(rows) > width > 1 and len(rows) % width == 0:  # the two streams and their total, one after the other
        rows = rows[-width:]
    if width > MAX_GPUS:
        notes.add("cut", f"more than {MAX_GPUS} GPUs: the test is left out")
        return
    output.tables.append(_Table(test, title, None, "ns" if "(ns)" in title else "GB/s", tuple(range(width)), rows))


def _about(line: str, output: _Output) -> None:
    if (match := _DEVICE.search(line)) is not None and len(output.gpus) < MAX_GPUS:
        fact = GpuFact(index=int(match.group(1)), name=" ".join(match.group(2).split()), bus=bus_id(match.group(3)), numbering="cuda")
        output.gpus.setdefault(fact.index, fact)
    elif (match := _VERSION.search(line)) is not None:
        output.version = output.version or match.group(1)
    elif (match := _DRIVER.search(line)) is not None:
        output.driver = output.driver or match.group(1)
    elif (match := _CUDA.search(line)) is not None:
        number = int(match.group(2)) if match.group(2) else 0
        output.cuda = output.cuda or match.group(1) or f"{number // 1000}.{number % 1000 // 10}"


def _imported(source: SourceText, form: str, output: _Output, notes: Notes) -> Imported:
    matrices: list[MatrixFact] = []
    rows: list[MeasuredRow] = []
    host: list[dict[str, Any]] = []
    for table in output.tables:
        if not table.rows:
            notes.add("cut", "a matrix has no row: left out", table.number)
        elif (peers := _PEERS.fullmatch(table.test)) is not None or (table.unit == "ns" and len(table.rows) > 1):
            _between(table, peers, matrices, rows, notes)
        else:
            _host(table, host, notes)
    if not matrices and not host and not rows:
        at = sniff_json(source) if form.endswith("json") else sniff(source)
        waived = any("waived" in remark.text for remark in notes.remarks())
        raise source.error("holds no matrix" + (": every test was waived" if waived else "; give the whole output of nvbandwidth"), at)
    software = {"driver": output.driver, "cuda": output.cuda}
    gpus = max((len(table.labels) for table in output.tables), default=1)
    sets = (copy_set(source.name, 1, 1, gpus, rows, title=f"nvbandwidth of {gpus} GPUs", software=software),) if rows else ()
    facts = HostFact(driver=output.driver or "", cuda=output.cuda or "") if output.driver or output.cuda else None
    box = BoxFacts(gpus=tuple(output.gpus[index] for index in sorted(output.gpus)), matrices=tuple(matrices), host=facts)
    details = {"host_copies": host} if host else {}
    return Imported(source.name, (form,), box=box, measurements=sets, remarks=notes.remarks(), details=details)


def _between(table: _Table, peers: re.Match[str] | None, matrices: list[MatrixFact], rows: list[MeasuredRow], notes: Notes) -> None:
    stream = re.search(r"\b(?:Read|Write)[12]\b", table.title)
    both_ways = peers is not None and peers.group(1) is not None
    if stream is not None:  # one of two streams; their total follows
        return
    width = len(table.labels)
    if len(table.rows) < width or any(len(row) != width for row in table.rows):
        notes.add("cut", "a matrix is not whole: cells that are missing say nothing", table.number)
    scale = 1e-9 if table.unit == "ns" else 1e9
    cells = without_diagonal(
        table.labels, {label: [cell_of(word, scale) for word in row] for label, row in zip(table.labels, table.rows, strict=False)}
    )
    fact = MatrixFact(
        kind="latency" if table.unit == "ns" else "bandwidth",
        labels=table.labels,
        cells=cells,
        title=f"{table.test}: {table.title}" if table.test else table.title,
        p2p=True,
        bidirectional=both_ways,
        access=peers.group(2) if peers is not None else "",
        engine=peers.group(3) if peers is not None else "sm",
        line=table.number,
    )
    total = not both_ways or "Total" in table.title or fact.engine == "sm"
    if total:
        matrices.append(fact)
    else:
        notes.add("note", "copies both ways without a total: the figures are of one of the two streams", table.number)
    if fact.kind == "bandwidth" and fact.engine == "ce":
        rows += copy_rows(fact, "p2p-on", counts="total" if total else "each")


def _host(table: _Table, host: list[dict[str, Any]], notes: Notes) -> None:
    """Rates that do not fit a matrix between GPUs: host to GPU, GPU to host, one to all ..."""
    words = table.rows[0]
    rates = {str(label): rate for label, word in zip(table.labels, words, strict=False) if (rate := cell_of(word, 1e9)) is not None}
    if not table.test or table.unit == "ns" or len(table.rows) != 1 or not rates:
        notes.add("ignored", "a test that is neither between GPUs nor with the host is left out", table.number)
        return
    host.append({"test": table.test, "title": table.title, "rates": rates})
