"""NCCL graph XML (``NCCL_GRAPH_DUMP_FILE``, ``NCCL_GRAPH_FILE``): searched or handwritten graphs -> rings per channel.

Read from NVIDIA/nccl:src/graph/search.cc. Graph ids: 0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct. ``dev`` is decimal in old
files, ``0x`` hexadecimal in newer ones; the order of the GPUs of a channel is the order of the ring.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from pcie_sim.importers.facts import BoxFacts, CclFact, GraphFact, RingFact
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText, quoted
from pcie_sim.importers.xml_safe import Node, parse_xml, root_of, whole_number

MOST_GRAPHS = 64
MOST_CHANNELS = 4096
MOST_RANKS = 4096
_ROOT_TAG = "graphs"
_RING = 4
_PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNet direct"}
_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
_FALLBACK_SPEED = 0.1
"""GB/s per channel of the simple order that NCCL falls back to when no speed that it tries fits (search.cc)."""
_HOST_SHIFT = 56
"""Newer ids carry the host in the top byte (NCCL_TOPO_ID, topo.h)."""


@dataclass
class _Reading:
    source: SourceText
    rings: list[RingFact] = field(default_factory=list)
    graphs: list[GraphFact] = field(default_factory=list)
    details: list[dict[str, object]] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    nets: int | None = None
    """Line of the first <net>: the graph leaves the host."""
    hosts: set[int] = field(default_factory=set)
    channels: int = 0


def sniff(source: SourceText) -> int | None:
    """The line of a ``<graphs>`` root tag."""
    root = root_of(source)
    return root[1] if root is not None and root[0] == _ROOT_TAG else None


@importer("nccl-graph", "an NCCL graph XML (NCCL_GRAPH_DUMP_FILE or NCCL_GRAPH_FILE)", sniff=sniff, whole=True)
def read(source: SourceText) -> Imported:
    """Graphs with channels, and the rings of the ring graph by device (or rank, where every GPU has one); speeds in B/s per channel.

    Raises:
        InputError: broken or cut XML, another root, no ``<graph>``, a ring that names a GPU twice, more channels or ranks than read.
    """
    document = parse_xml(source, "an NCCL graph file")
    root = document.root
    if root.tag != _ROOT_TAG:
        raise source.error(f"the root tag is <{root.tag[:40]}>, an NCCL graph file has <{_ROOT_TAG}>", root.line)
    graphs = list(root.each("graph"))
    if not graphs:
        raise source.error("a <graphs> without <graph>: no graphs are written in it", root.line)
    if len(graphs) > MOST_GRAPHS:
        raise source.error(f"more than {MOST_GRAPHS} graphs; NCCL has 5", graphs[MOST_GRAPHS].line)
    reading = _Reading(source)
    reading.remarks += document.remarks
    for node in graphs:
        _graph(reading, node)
    members = {ring.members for ring in reading.rings}
    sets = {frozenset(ring) for ring in members}
    if len(sets) > 1:
        reading.remarks.append(source.remark("conflict", "the rings do not all go through the same GPUs", graphs[0].line))
    if reading.nets is not None:
        text = "channels begin or end at network cards: graphs of a run on several hosts, which NCCL chose with the network in mind"
        reading.remarks.append(source.remark("note", text, reading.nets))
    if len(reading.hosts) > 1:
        reading.remarks.append(source.remark("note", f"GPUs of {len(reading.hosts)} hosts; numbers are those within a host", root.line))
    if not reading.graphs:
        reading.remarks.append(source.remark("note", "every graph is an empty placeholder (nchannels 0)", graphs[0].line))
    one_host = reading.nets is None and len(reading.hosts) < 2
    count = len(next(iter(sets))) if len(sets) == 1 and one_host else None
    ccl = CclFact(
        nranks=count,
        nodes=1 if one_host and reading.rings else None,
        rings=tuple(reading.rings),
        graphs=tuple(reading.graphs),
        line=root.line,
    )
    return Imported(
        source=source.name,
        formats=("nccl-graph",),
        box=BoxFacts(ccl=(ccl,)),
        remarks=tuple(reading.remarks),
        details={"nccl_graph": reading.details},
    )


def _graph(reading: _Reading, node: Node) -> None:
    source = reading.source
    pattern = whole_number(node.get("pattern"), 0, 99)
    identity = whole_number(node.get("id"), 0, 99)
    if pattern is None:
        text = f"a <graph> without a readable pattern ({quoted(node.get('pattern'), 20)})"
        reading.remarks.append(source.remark("ignored", text, node.line))
        return
    listed = [_channel(reading, channel) for channel in node.each("channel")]
    said = whole_number(node.get("nchannels"), 0, MOST_CHANNELS)
    if said is None and node.get("nchannels"):
        text = f"nchannels {quoted(node.get('nchannels'), 20)} is not read; {len(listed)} channels are listed"
        reading.remarks.append(source.remark("conflict", text, node.line))
    if said is not None and said != len(listed):
        text = f"nchannels is {said}, but {len(listed)} are listed: those listed are taken"
        reading.remarks.append(source.remark("conflict", text, node.line))
    count = len(listed) if listed or said is None else said
    if not count:
        return
    speed = _speed(reading, node, "speedintra")
    between = _speed(reading, node, "speedinter")
    kind = node.get("typeintra").upper()
    if kind not in _TYPES:
        reading.remarks.append(source.remark("ignored", f"typeintra {quoted(kind, 20)} is no path type", node.line))
        kind = ""
    if speed is not None:
        fell_back = math.isclose(speed, _FALLBACK_SPEED)
        reading.graphs.append(GraphFact(pattern, count, speed * 1e9, kind, node.line, fell_back))
    named = _PATTERNS.get(pattern, f"pattern {pattern}")
    members = [[value for value, _rank in channel] for channel in listed]
    reading.details.append({"id": identity, "pattern": named, "speed_intra_GBps": speed, "speed_inter_GBps": between, "channels": members})
    if pattern == _RING:
        _rings(reading, node, listed)


def _speed(reading: _Reading, node: Node, name: str) -> float | None:
    """GB/s per channel as the file says it; None with a remark where it is no speed."""
    text = node.get(name)
    value = float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{0,12})?", text) else math.nan
    if not 0 <= value < 100_000:
        if text:
            reading.remarks.append(reading.source.remark("ignored", f"{name} {quoted(text, 20)} is no speed in GB/s", node.line))
        return None
    return value


def _channel(reading: _Reading, node: Node) -> list[tuple[int, int | None]]:
    """(device, rank or None) of a channel in order."""
    reading.channels += 1
    if reading.channels > MOST_CHANNELS:
        raise reading.source.error(f"more than {MOST_CHANNELS} channels; NCCL has at most 64 a graph", node.line)
    found: list[tuple[int, int | None]] = []
    for child in node.children:
        if child.tag == "net":
            reading.nets = reading.nets or child.line
        if child.tag != "gpu":
            continue
        number = whole_number(child.get("dev"), 0, 2**63 - 1)
        if number is None:
            raise reading.source.error(f"dev {quoted(child.get('dev'), 30)} is no GPU number (decimal or 0x...)", child.line)
        host, device = number >> _HOST_SHIFT, number & (1 << _HOST_SHIFT) - 1
        if device >= MOST_RANKS or len(found) >= MOST_RANKS:
            raise reading.source.error(f"GPU number {device} is beyond what is read ({MOST_RANKS})", child.line)
        reading.hosts.add(host)
        found.append((device, whole_number(child.get("rank"), 0, MOST_RANKS - 1)))
    return found


def _rings(reading: _Reading, node: Node, listed: list[list[tuple[int, int | None]]]) -> None:
    by_rank = all(rank is not None for channel in listed for _device, rank in channel) and len(reading.hosts) < 2
    if len(reading.hosts) > 1:
        reading.remarks.append(reading.source.remark("ignored", "rings across hosts are left out: their GPU numbers repeat", node.line))
        return
    empty = 0
    for number, channel in enumerate(listed):
        members = tuple(rank if by_rank and rank is not None else device for device, rank in channel)
        if not members:
            empty += 1
            continue
        if len(set(members)) != len(members):
            twice = next(value for index, value in enumerate(members) if value in members[:index])
            raise reading.source.error(f"channel {number} of the ring graph goes through GPU {twice} twice: no ring", node.line)
        reading.rings.append(RingFact(number, members, "rank" if by_rank else "dev"))
    if empty:
        reading.remarks.append(reading.source.remark("ignored", f"channels of the ring graph without GPUs: {empty}", node.line))
