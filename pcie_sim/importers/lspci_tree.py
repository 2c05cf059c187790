r"""``lspci -t`` / ``-tv`` / ``-tvnn`` -> the tree of ports and GPUs, without links (this text has none).

The drawing says who hangs below whom twice: by the column of ``+`` and ``\``, and by their order (``\`` is a bus's last child). Columns
go first; where a paste has moved them the order decides, and bus ranges (``-[c1-c6]-``) check both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pcie_sim.importers.facts import BoxFacts, CpuFact, DeviceFact
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.lspci_host import Listed, chipset_ports, count_sockets, name_cpus, name_switches
from pcie_sim.importers.lspci_names import MOST_DEVICES, integrated, kind_by_name, named, roles
from pcie_sim.importers.source import Remark, SourceText

_TOKEN = re.compile(
    r"\[(?P<domain>[0-9a-f]{4,8}):(?P<root>[0-9a-f]{2})\]"
    r"|\[(?P<first>[0-9a-f]{2})(?:-(?P<last>[0-9a-f]{2}))?\]"
    r"|(?P<fork>[+\\])(?=-)"
    r"|(?<=-)(?P<device>[01][0-9a-f]\.[0-7])(?![0-9a-f])"
)
_ROOT = re.compile(r"-\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}\]-[-+]")
_CHILD = re.compile(r"[-+\\]-[01][0-9a-f]\.[0-7](?:-\[[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-|\s|$)")
_BRIDGE = re.compile(r"-[01][0-9a-f]\.[0-7]-\[[0-9a-f]{2}(?:-[0-9a-f]{2})?\]-")
_NEXT = re.compile(r"[+\\]-(?=\[|[01][0-9a-f]\.[0-7])")
_LONGEST = 8_000
_NEAR = 2


@dataclass
class _Bus:
    """One bus: its numbers (None: the text does not say), the bridge above, and the column where its children fork (None: one child)."""

    domain: int
    number: int | None
    last: int
    owner: str | None
    column: int | None = None
    root: str | None = None
    """Name of the root bus above; None in a fragment."""

    def holds(self, first: int, last: int) -> bool:
        """Whether a bridge to buses ``first`` to ``last`` can hang here."""
        return self.number is None or self.owner is None or self.number < first <= last <= self.last


@dataclass
class _Node:
    key: str
    bus: str | None
    parent: str | None
    root: str | None
    line: int
    function: int
    bridge: bool = False
    text: str = ""


@dataclass
class _Reading:
    """Where the reader stands, and what it had to do on the way."""

    nodes: dict[str, _Node] = field(default_factory=dict)
    stack: list[_Bus] = field(default_factory=list)
    buses: list[_Bus] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    guessed: list[int] = field(default_factory=list)
    against: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    floating: list[int] = field(default_factory=list)
    open_at: list[int] = field(default_factory=list)
    """Lines where a tree ends although a bus has not had its last child."""
    over: int = 0


def sniff(source: SourceText) -> int | None:
    """The first line of a tree: a root bus, or a bridge with its range of buses."""
    for number, line in enumerate(source.lines, 1):
        if "[" in line and "-" in line and len(line) <= _LONGEST and ((_ROOT.search(line) and _CHILD.search(line)) or _BRIDGE.search(line)):
            return number
    return None


@importer("lspci-t", "lspci -tv", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Bridges with their roles, GPUs and network cards by name.

    Raises:
        InputError: no tree, or none of its devices can be placed.
    """
    at = _Reading()
    for number, line in enumerate(source.lines, 1):
        if len(line) <= _LONGEST and ("-" in line):
            _line(at, number, line)
    if not at.nodes:
        raise source.error("no tree of lspci -t here; save it again: lspci -tvnn > tree.txt", sniff(source) or 1)
    if not any(node.bridge for node in at.nodes.values()) and all(node.root is None for node in at.nodes.values()):
        first = next(iter(at.nodes.values()))
        raise source.error("a piece of a tree without a bus number: nothing can be placed; save it again: lspci -tvnn", first.line)
    if at.stack and not at.floating:
        at.open_at.append(max(node.line for node in at.nodes.values()))
    remarks = _said(source, at)
    devices, cpus = _facts(source, at, remarks)
    ends = [_listed(node) for node in at.nodes.values() if not node.bridge and node.bus is not None]
    roots = [end for end in ends if end.parent is None]
    devices = name_switches(source, devices, ends, remarks)
    cpus = name_cpus(cpus, roots)
    chipset_ports(source, devices, remarks, intel=any(cpu.vendor.startswith("Intel") for cpu in cpus))
    cpus, host = count_sockets(source, cpus, roots, remarks)
    return Imported(source.name, ("lspci-t",), box=BoxFacts(devices=tuple(devices), cpus=tuple(cpus), host=host), remarks=tuple(remarks))


def _listed(node: _Node) -> Listed:
    told = named(node.text)
    return Listed(node.bus or node.key, told.name, node.parent, told.ids, node.line)


def _line(at: _Reading, number: int, line: str) -> None:
    """One line of the drawing. A name ends it, unless line breaks were lost and a fork follows."""
    begin = 0
    while begin < len(line):
        bus: _Bus | None = None
        above: _Node | None = None
        end = len(line)
        position, column = begin, None
        while True:
            match = _TOKEN.search(line, position)
            if match is None:
                break
            position = match.end()
            kind = match.lastgroup
            if kind == "root":
                bus = _root(at, match, number)
            elif kind in ("first", "last"):
                if above is None and bus is None and column is None and match.start() > 0 and line[match.start() - 1] == "-":
                    bus = _root(at, match, number)
                elif above is not None:
                    bus, above = _behind(at, above, match), None
            elif kind == "fork":
                column = match.start()
                if bus is not None and bus.column is None:
                    bus.column = column
                    at.stack.append(bus)
            else:
                follows = line[match.end() : match.end() + 2]
                if bus is None:
                    bus = _place(
                        at, number, column, line[match.end() : match.end() + 10], closing=column is not None and line[column] == "\\"
                    )
                    if bus is None:
                        return
                above = _add(at, bus, match.group("device"), number)
                bus, column = None, None
                if above is None:
                    return
                if follows != "-[":
                    after = _NEXT.search(line, match.end())
                    end = after.start() if after is not None else len(line)
                    above.text = line[match.end() : end].strip(" |")[:400]
                    break
        begin = end


def _root(at: _Reading, match: re.Match[str], line: int) -> _Bus:
    domain = int(match.group("domain") or "0", 16)
    number = int(match.group("root") or match.group("first"), 16)
    bus = _Bus(domain, number, 0xFF, None, root=f"{domain:04x}:{number:02x}")
    if at.stack:
        at.open_at.append(line)
    at.stack.clear()
    at.buses.append(bus)
    return bus


def _behind(at: _Reading, above: _Node, match: re.Match[str]) -> _Bus:
    """The bus behind a bridge."""
    above.bridge = True
    first = int(match.group("first"), 16)
    domain = int(above.bus.split(":")[0], 16) if above.bus is not None else 0
    bus = _Bus(domain, first, max(int(match.group("last") or match.group("first"), 16), first), above.key, root=above.root)
    if above.bus is None and not above.key.startswith("above"):
        renamed = f"above {domain:04x}:[{first:02x}-{bus.last:02x}]"
        if renamed not in at.nodes:
            del at.nodes[above.key]
            above.key = bus.owner = renamed
            at.nodes[renamed] = above
    at.buses.append(bus)
    return bus


def _place(at: _Reading, number: int, column: int | None, after: str, *, closing: bool) -> _Bus | None:
    """The bus that the first device of a line hangs on."""
    if column is None:
        return None
    found = next((one for one in reversed(at.stack) if one.column == column), None)
    if found is None:
        near = [one for one in at.stack if one.column is not None and abs(one.column - column) <= _NEAR]
        if near:
            found = min(reversed(near), key=lambda one: abs((one.column or 0) - column))
            at.moved.append(number)
    match = re.match(r"-\[([0-9a-f]{2})(?:-([0-9a-f]{2}))?\]", after)
    wanted = (int(match.group(1), 16), int(match.group(2) or match.group(1), 16)) if match is not None else None
    if found is not None and wanted is not None and not found.holds(*wanted):
        better = _by_range(at, wanted)
        at.against.append(number)
        found = better or found
    if found is None and at.stack:
        found = (_by_range(at, wanted) if wanted is not None else None) or at.stack[-1]
        at.guessed.append(number)
    if found is None:
        found = _Bus(0, None, 0xFF, None, column=column)
        at.stack.append(found)
        at.floating.append(number)
    if found in at.stack:
        del at.stack[at.stack.index(found) + 1 :]
        if closing:
            at.stack.pop()
    return found


def _by_range(at: _Reading, wanted: tuple[int, int]) -> _Bus | None:
    """The open bus with the smallest range that holds ``wanted``."""
    fits = [one for one in at.stack if one.number is not None and one.holds(*wanted)]
    return min(fits, key=lambda one: (one.owner is None, one.last - (one.number or 0)), default=None)


def _add(at: _Reading, bus: _Bus, device: str, line: int) -> _Node | None:
    """A device on ``bus``; None where it is there already or one too many."""
    if len(at.nodes) >= MOST_DEVICES:
        at.over += 1
        return None
    name = f"{bus.domain:04x}:{bus.number:02x}:{device}" if bus.number is not None else None
    key = name or f"?{len(at.nodes)}:{device}"
    if key in at.nodes:
        at.doubled.append(line)
        return None
    node = at.nodes[key] = _Node(key, name, bus.owner, bus.root, line, int(device[-1]))
    return node


def _said(source: SourceText, at: _Reading) -> list[Remark]:
    remarks = []
    texts: Sequence[tuple[str, list[int], str]] = (
        ("note", at.moved, "columns are moved by a blank or two: taken for the nearest fork"),
        ("assumed", at.guessed, "columns are lost: devices are placed by the order of the drawing and by bus ranges"),
        ("conflict", at.against, "the column puts a bridge where its bus numbers do not fit: placed by its bus numbers"),
        ("conflict", at.doubled, "a bus id stands here twice (two trees, or two boxes?): the first is kept"),
        ("cut", at.open_at, "the tree ends before the last device of a bus: lines are missing"),
        ("cut", at.floating, "no root bus above: what these devices hang on is not said, and domain 0 is taken"),
    )
    for kind, lines, text in texts:
        if lines:
            more = f" ({len(lines)} lines)" if len(lines) > 1 else ""
            remarks.append(Remark(kind, text + more, source.name, lines[0]))  # type: ignore[arg-type]
    if at.over:
        remarks.append(source.remark("cut", f"only the first {MOST_DEVICES} devices are read"))
    return remarks


def _facts(source: SourceText, at: _Reading, remarks: list[Remark]) -> tuple[list[DeviceFact], list[CpuFact]]:
    """Devices that are kept, and a CPU node for each root bus with one of them."""
    nodes = list(at.nodes.values())
    ends = [node for node in nodes if not node.bridge]
    nameless = bool(ends) and not any(node.text for node in ends)
    place = roles({node.key: node.parent for node in nodes if node.bridge})
    siblings: dict[str, list[str]] = {}
    for node in ends:
        siblings.setdefault(node.key[:-2], []).append(node.text)
    cpus: dict[str, CpuFact] = {}
    facts: list[DeviceFact] = []
    dropped: list[_Node] = []
    inside: list[_Node] = []
    for node in nodes:
        told = named(node.text)
        kind, role = place.get(node.key, ("bridge", None)) if node.bridge else (kind_by_name(told.name, told.ids, node.function), None)
        if node.bridge and node.bus is None:
            kind = "bridge"  # the top of a fragment: whether it is a root port is not said
        if kind is None and nameless:
            kind = "other"
        if kind is None:
            dropped.append(node)
            continue
        if kind == "gpu" and integrated(told.name, told.ids, below_port=node.parent is not None, siblings=siblings[node.key[:-2]]):
            kind = "other"
            inside.append(node)
        cpu = None
        if node.parent is None and node.root is not None:
            cpu = f"bus-{node.root}"
            cpus.setdefault(cpu, CpuFact(cpu))
        facts.append(DeviceFact(node.key, kind, node.parent, cpu, node.bus, role, told.ids, name=told.name, line=node.line))
    if dropped:
        text = f"{len(dropped)} device(s) that are neither port nor GPU nor network card"
        remarks.append(source.remark("ignored", text, dropped[0].line))
    if inside:
        text = f"{inside[0].key} is part of the CPU (integrated graphics): not taken for a GPU"
        remarks.append(source.remark("note", text, inside[0].line))
    if nameless:
        remarks.append(source.remark("cut", "no names are printed, so GPUs cannot be told: use lspci -tvnn", nodes[0].line))
    elif not any(fact.kind == "gpu" for fact in facts):
        remarks.append(source.remark("note", "no GPU of NVIDIA, AMD or Intel by name in this tree", nodes[0].line))
    return facts, list(cpus.values())
