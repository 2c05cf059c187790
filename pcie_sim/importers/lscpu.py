"""``lscpu`` and ``numactl -H`` -> sockets, NUMA nodes and their CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pcie_sim.importers.facts import BoxFacts, CpuFact, HostFact
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText

MOST_NODES = 1024
MOST_CPUS = 65_536
_NEAR_DISTANCE = 20
"""ACPI SLIT: nodes of one socket are 10 to 16 apart, other sockets 20 and more (AMD prints 12 and 32, Intel 11 to 13 and 21)."""
_WORDS = r"Architecture|Vendor ID|Model name|CPU family|Model|Socket\(s\)|NUMA node\(s\)|NUMA node([0-9]{1,4}) CPU\(s\)"
_FIELD = re.compile(rf"(?:^|[\s>#:|])({_WORDS})\s{{0,60}}:(.{{0,4000}})$")
_AVAILABLE = re.compile(r"(?:^|[\s>#:|])available: ([0-9]{1,4}) nodes? \(")
_NODE_CPUS = re.compile(r"(?:^|[\s>#:|])node ([0-9]{1,4}) cpus:(.{0,20000})$")
_DISTANCE = re.compile(r"(?:^|[\s>#|])\s{0,8}([0-9]{1,4}):((?:\s{1,8}[0-9]{1,3}){1,256})\s{0,8}$")
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass
class _Seen:
    words: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    available: int | None = None
    distances: dict[int, list[int]] = field(default_factory=dict)
    doubled: int | None = None
    line: int = 1


def sniff(source: SourceText) -> int | None:
    """The first line that says sockets or NUMA nodes."""
    for number, line in enumerate(source.lines, 1):
        if "ocket(s)" in line or "NUMA node" in line:
            match = _FIELD.search(line)
            if match is not None and (match.group(1).startswith(("Socket", "NUMA"))):
                return number
        elif ("available: " in line and _AVAILABLE.search(line)) or (" cpus:" in line and _NODE_CPUS.search(line)):
            return number
    return None


@importer("lscpu", "lscpu / numactl -H", sniff=sniff)
def read(source: SourceText) -> Imported:
    """The host's sockets and NUMA nodes.

    Raises:
        InputError: neither sockets nor NUMA nodes are said.
    """
    seen = _seen(source.lines)
    sockets = _number(seen.words.get("Socket(s)", ""))
    said = _number(seen.words.get("NUMA node(s)", "")) or seen.available
    if sockets is None and said is None and not seen.nodes:
        raise source.error("neither sockets nor NUMA nodes are said here; save it again: lscpu > lscpu.txt", sniff(source) or 1)
    remarks: list[Remark] = []
    if seen.doubled is not None:
        remarks.append(
            source.remark("conflict", "a second listing that says otherwise: the first is kept; one box for each file", seen.doubled)
        )
    busy = {node: cpus for node, cpus in seen.nodes.items() if cpus}
    if len(busy) < len(seen.nodes) and busy:
        text = f"{len(seen.nodes) - len(busy)} NUMA node(s) without CPUs (memory only) are not counted"
        remarks.append(source.remark("note", text, seen.line))
        said = len(busy)
    if said is not None and busy and len(busy) < said:
        remarks.append(source.remark("cut", f"{said} NUMA nodes, but CPUs of {len(busy)} are listed", seen.line))
    packages = _packages(source, seen, sockets, sorted(busy), said, remarks)
    words = seen.words
    family, model = _number(words.get("CPU family", "")), _number(words.get("Model", ""))
    cpus = tuple(
        CpuFact(
            f"numa{node}",
            numa=node,
            package=packages.get(node),
            arch=words.get("Architecture", "")[:20],
            vendor=words.get("Vendor ID", "")[:40],
            family=family,
            model=model,
            name=words.get("Model name", "")[:120],
            cpus=busy[node],
        )
        for node in sorted(busy)
    )
    host = HostFact(
        sockets=sockets if sockets is not None else (len(set(packages.values())) or None),
        numa_nodes=said if said is not None else len(busy) or None,
        cpu_vendor=words.get("Vendor ID", "")[:40],
        cpu_name=words.get("Model name", "")[:120],
        family=family,
        model=model,
    )
    return Imported(source.name, ("lscpu",), box=BoxFacts(cpus=cpus, host=host), remarks=tuple(remarks))


def _seen(lines: Sequence[str]) -> _Seen:
    seen = _Seen()
    for number, line in enumerate(lines, 1):
        if ":" not in line:
            continue
        match = _FIELD.search(line)
        if match is not None:
            if match.group(2) is not None:
                _node(seen, int(match.group(2)), match.group(3), number)
            elif "BIOS" not in line:
                value = " ".join(match.group(3).split())
                first = seen.words.setdefault(match.group(1), value)
                if first != value and match.group(1) in ("Socket(s)", "NUMA node(s)", "Model name"):
                    seen.doubled = seen.doubled or number
            continue
        match = _NODE_CPUS.search(line)
        if match is not None:
            _node(seen, int(match.group(1)), match.group(2), number)
            continue
        match = _AVAILABLE.search(line)
        if match is not None:
            seen.available = seen.available if seen.available is not None else int(match.group(1))
            continue
        match = _DISTANCE.search(line) if seen.available is not None else None
        if match is not None and len(seen.distances) < MOST_NODES:
            seen.distances.setdefault(int(match.group(1)), [int(one) for one in match.group(2).split()])
    return seen


def _node(seen: _Seen, node: int, text: str, number: int) -> None:
    cpus = cpu_ranges(text)
    if not seen.nodes:
        seen.line = number
    if seen.nodes.get(node, cpus) != cpus:
        seen.doubled = seen.doubled or number
    if len(seen.nodes) < MOST_NODES:
        seen.nodes.setdefault(node, cpus)


def cpu_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Ranges of ``0-63,128-191`` or of ``0 1 2 3``, joined where they touch.

    >>> cpu_ranges("0-63,128-191"), cpu_ranges("0 1 2 3 8")
    (((0, 63), (128, 191)), ((0, 3), (8, 8)))
    """
    found: list[tuple[int, int]] = []
    for part in re.split(r"[\s,]+", text.strip())[:20_000]:
        match = _RANGE.fullmatch(part)
        if match is None:
            continue
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if first <= last < MOST_CPUS:
            found.append((first, last))
    joined: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _number(text: str) -> int | None:
    match = re.fullmatch(r"\s{0,60}([0-9]{1,5})\s{0,60}", text[:200])
    return int(match.group(1)) if match is not None else None


def _packages(
    source: SourceText, seen: _Seen, sockets: int | None, nodes: Sequence[int], said: int | None, remarks: list[Remark]
) -> dict[int, int]:
    """NUMA node -> socket, as far as it can be told."""
    if sockets == 1:
        return dict.fromkeys(nodes, 0)
    if sockets is not None and sockets > 1 and said == len(nodes) and len(nodes) % sockets == 0 and nodes:
        per = len(nodes) // sockets
        text = f"which socket a NUMA node is on is not printed: {per} consecutive for each of the {sockets} sockets"
        remarks.append(source.remark("assumed", text, seen.line))
        return {node: place // per for place, node in enumerate(nodes)}
    if sockets is None and len(seen.distances) == len(nodes) > 1:
        return _by_distance(source, seen, nodes, remarks)
    return {}


def _by_distance(source: SourceText, seen: _Seen, nodes: Sequence[int], remarks: list[Remark]) -> dict[int, int]:
    """Sockets from the node distances that numactl prints: nodes nearer than those of another socket can be are together."""
    order = sorted(seen.distances)
    if order != list(nodes) or any(len(row) != len(order) for row in seen.distances.values()):
        return {}
    found: dict[int, int] = {}
    for node in order:
        near = next(
            (found[other] for place, other in enumerate(order) if other in found and seen.distances[node][place] < _NEAR_DISTANCE), None
        )
        found[node] = near if near is not None else _next(found.values())
    count = len(set(found.values()))
    text = f"sockets are not printed: {count} by the node distances (below {_NEAR_DISTANCE}: one socket)"
    remarks.append(source.remark("assumed", text, seen.line))
    return found


def _next(taken: Iterable[int]) -> int:
    return max(taken, default=-1) + 1
