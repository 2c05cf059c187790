"""Boxes for people and programs: the tree, path types and transports between GPUs, capacities with their evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pcie_sim.errors import InputError, NoDataError
from pcie_sim.network import library_choice, settings_notes
from pcie_sim.report.ccl import ccl_blocks
from pcie_sim.report.console import bold, bullets, pairs, room, table, wrapped
from pcie_sim.report.numbers import quantity_text, settings_text
from pcie_sim.results.base import plain
from pcie_sim.results.ccl import CclChoice
from pcie_sim.topology import LEVELS, Topology, place_pairs
from pcie_sim.units import counted

if TYPE_CHECKING:
    from rich.tree import Tree

    from pcie_sim.report.console import Block, Justify

_MATRIX_GPUS = 24
"""Above this many GPUs the matrix is wider than any screen; the summary by path type says the same."""
_PATHS = "PIX one switch, PXB several switches, PHB a root complex (nvidia-smi's NODE too), SYS between sockets, NVL an NVLink bridge"
_NET = "NET between hosts, over network cards"
_GAP = 3
"""Columns between two columns of a table."""
_TITLE = 20
"""Columns that a title needs beyond the least that it can be folded into."""
_WIDE = 12
"""Above this many GPUs the columns of the matrix drop what all names begin with."""


def box_blocks(box: Topology, *, width: int) -> list[Block]:
    """Everything of one box."""
    settings = box.settings
    ccl = "none" if settings.ccl.name == "none" else f"{settings.ccl.name} {settings.ccl.version}"
    facts = [
        ("GPUs", gpus_text(box)),
        ("settings", f"p2p {settings.p2p}, acs {settings.acs}, iommu {settings.iommu}, {ccl}, environment {settings_text(settings.env)}"),
    ]
    more = _more_settings(box)
    if more:
        facts.append(("", more))
    blocks: list[Block] = [bold(f"{box.name}: {box.title}"), pairs(facts, width=width), "", tree_block(box)]
    if 1 < len(box.gpus) <= _MATRIX_GPUS:
        blocks += [
            "",
            bold("Path types between GPUs, in bus order"),
            *_matrix(box, width),
            wrapped(_PATHS, width=width, first="  "),
            *([f"  {_NET}"] if len(box.hosts) > 1 else []),
        ]
    if len(box.gpus) > 1:
        blocks += ["", bold("Transports by path type (with these settings)"), _transports(box)]
    choice = _choice(box)
    if choice is not None:
        blocks += ccl_blocks(choice, width=width)
    blocks += ["", bold("Directed capacities (payload)"), *_capacities(box, width)]
    blocks += (
        _list("Assumptions", box.assumptions, width)
        + _list("Notes", _notes(box, choice), width)
        + _list("Sources", box.spec.sources, width)
    )
    return blocks


def _more_settings(box: Topology) -> str:
    """Settings that few boxes have, where they are set."""
    settings = box.settings
    found = [f"max payload {settings.max_payload} B"] if settings.max_payload is not None else []
    if settings.conditions:
        found.append(f"conditions {' '.join(settings.conditions)}")
    if settings.force_p2p is not None:
        found.append(f"ForceP2P keys {'set' if settings.force_p2p else 'not set'}")
    return ", ".join(found)


def _choice(box: Topology) -> CclChoice | None:
    """What the collective library will do; None where it has no costs yet, or some GPUs cannot reach each other (a note says so)."""
    try:
        return library_choice(box)
    except (NoDataError, InputError):
        return None


def _notes(box: Topology, choice: CclChoice | None) -> list[str]:
    """The box's own, and those on its settings where no ``choice`` of the library carries them."""
    try:
        more = settings_notes(box) if choice is None else ()
    except (NoDataError, InputError):
        more = ()
    return list(dict.fromkeys((*box.notes, *more)))


def gpus_text(box: Topology) -> str:
    """``8x rtx-pro-6000-blackwell-server``."""
    return ", ".join(f"{count}x {name}" for name, count in box.gpu_counts().items())


def _list(title: str, texts: Iterable[str], width: int) -> list[Block]:
    found = bullets(texts, width=width)
    return ["", bold(title), *found] if found else []


def tree_block(box: Topology) -> Tree:
    """The tree of sockets, ports, switches and GPUs with their links."""
    from rich.text import Text
    from rich.tree import Tree

    spec = box.spec
    hosts = [name for name, node in spec.nodes.items() if node.kind == "host"]
    root = Tree(Text("hosts" if len(hosts) > 1 else "host"), guide_style="")
    made: dict[str, Tree] = {name: root.add(Text(name)) if len(hosts) > 1 else root for name in hosts}
    waiting = [name for name, node in spec.nodes.items() if node.kind != "host"]
    while waiting:
        ready = [name for name in waiting if spec.nodes[name].parent is None or spec.nodes[name].parent in made]
        if not ready:
            break
        for name in ready:
            parent = spec.nodes[name].parent
            made[name] = (root if parent is None else made[parent]).add(Text(_label(box, name)))
        waiting = [name for name in waiting if name not in made]
    for peer in spec.peers:
        root.add(Text(f"{peer.between[0]} ~ {peer.between[1]}  {peer.part}"))
    return root


def _label(box: Topology, name: str) -> str:
    node = box.spec.nodes[name]
    words = [name, node.part or node.kind.replace("_", " ")]
    up = box.links.get(f"{name}.up")
    if up is not None:
        link = f"gen{node.link.gen} x{node.link.width}" if node.link is not None else "its own link"
        ways = "one way at a time" if node.half_duplex else "each way"
        words.append(f"[{link}{f' x {node.links}' if node.links > 1 else ''}, {up.rate.value / 1e9:.1f} GB/s {ways}]")
    if node.chip is not None:
        words.append(f"of chip {node.chip}")
    if node.bus:
        words.append(f"bus {node.bus}")
    return "  ".join(words)


def _matrix(box: Topology, width: int) -> list[Block]:
    """Path types, a row per GPU; blocks of columns where all do not fit beside each other."""
    shared = 0
    if len(box.gpus) > _WIDE:
        shared = next((i for i, letters in enumerate(zip(*box.gpus, strict=False)) if len(set(letters)) > 1), 0)
    heads = [name[shared:] or name for name in box.gpus]
    first = max(len(name) for name in box.gpus) + _GAP
    each = max(len(text) for text in (*heads, *LEVELS)) + _GAP
    fit = max(1, (width - first) // each)
    blocks: list[Block] = []
    for start in range(0, len(heads), fit):
        chosen = range(start, min(start + fit, len(heads)))
        columns: list[tuple[str, Justify]] = [("", "left"), *((heads[i], "center") for i in chosen)]
        rows = [[a, *("X" if a == box.gpus[i] else box.path_type(a, box.gpus[i]) for i in chosen)] for a in box.gpus]
        blocks += [*([""] if blocks else []), table(columns, rows)]
    return blocks


def _grouped(box: Topology) -> list[dict[str, Any]]:
    """Ordered GPU pairs by path type, transport and reason, with how many there are."""
    found: dict[tuple[str, str, str, str], int] = {}
    for (a, b), count in place_pairs(box).items():
        how = box.transport(a, b)
        key = (box.path_type(a, b), how.kind, how.reason, how.evidence)
        found[key] = found.get(key, 0) + count
    return [
        {"path_type": path, "transport": kind, "pairs": count, "reason": reason, "evidence": evidence}
        for (path, kind, reason, evidence), count in found.items()
    ]


def _transports(box: Topology) -> Block:
    columns: list[tuple[str, Justify]] = [
        ("path", "left"),
        ("transport", "left"),
        ("pairs", "right"),
        ("why", "left"),
        ("evidence", "left"),
    ]
    rows = [[g["path_type"], g["transport"], str(g["pairs"]), g["reason"], g["evidence"]] for g in _grouped(box)]
    return table(columns, rows, fold=(3,))


def _capacities(box: Topology, width: int) -> list[Block]:
    """Capacities with the same rate, latency and evidence in one line: eight equal GPUs read as one. Sources below."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for name, capacity in box.links.items():
        latency = "" if capacity.latency is None else quantity_text(capacity.latency)
        key = (quantity_text(capacity.rate), latency, capacity.rate.evidence, capacity.rate.source)
        groups.setdefault(key, []).append(name)
    numbers = {source: index for index, source in enumerate(dict.fromkeys(key[3] for key in groups), start=1)}
    columns: list[tuple[str, Justify]] = [
        ("links", "left"),
        ("rate", "left"),
        ("latency", "left"),
        ("evidence", "left"),
        ("source", "left"),
    ]
    rows = [
        [_link_names(names), rate, latency, evidence, f"[{numbers[source]}]"] for (rate, latency, evidence, source), names in groups.items()
    ]
    made = table(columns, rows, fold=(0,))
    if room(made) > width:  # ranges below their values, the source below the evidence
        narrow = [
            [names, rate.replace(" (", "\n("), latency.replace(" (", "\n("), f"{how}\n{source}"]
            for names, rate, latency, how, source in rows
        ]
        made = table(columns[:-1], narrow, fold=(0,))
    return [made, *(wrapped(source, width=width, first=f"  [{index}] ") for source, index in numbers.items())]


def _link_names(names: Iterable[str]) -> str:
    """``gpu0.up gpu0.dn gpu1.up gpu1.dn`` as ``gpu0 gpu1 (.up .dn)``."""
    ends: dict[str, list[str]] = {}
    for name in names:
        stem, _, end = name.rpartition(".")
        ends.setdefault(stem, []).append(f".{end}")
    by_ends: dict[str, list[str]] = {}
    for stem, found in ends.items():
        by_ends.setdefault(" ".join(found), []).append(stem)
    return ", ".join(f"{' '.join(stems)} ({found})" for found, stems in by_ends.items())


def _square(box: Topology, of: Callable[[str, str], str]) -> list[list[str | None]]:
    """``of`` every ordered pair of different GPUs, asked once for all pairs that :attr:`Topology.places` holds for alike."""
    known: dict[tuple[int, int], str | None] = {}
    for a, b in place_pairs(box):
        known[box.places[a], box.places[b]] = of(a, b)
    places = [box.places[gpu] for gpu in box.gpus]
    rows: list[list[str | None]] = [[known.get((mine, other)) for other in places] for mine in places]
    for place, row in enumerate(rows):
        row[place] = None
    return rows


def box_document(box: Topology) -> dict[str, Any]:
    """Schema ``pcie-sim/topology-show/1``: GPUs in bus order, nodes, directed links, path types and transports as matrices."""
    order = box.gpus
    links = [
        {
            "name": name,
            "rate_GBps": capacity.rate.value / 1e9,
            "rate_GBps_low": None if capacity.rate.low is None else capacity.rate.low / 1e9,
            "rate_GBps_high": None if capacity.rate.high is None else capacity.rate.high / 1e9,
            "latency_us": None if capacity.latency is None else capacity.latency.value * 1e6,
            "fan_share": None if capacity.fan_share is None else capacity.fan_share.value,
            "read_share": None if capacity.read_share is None else capacity.read_share.value,
            "evidence": capacity.rate.evidence,
            "source": capacity.rate.source,
        }
        for name, capacity in box.links.items()
    ]
    choice = _choice(box)
    found: dict[str, Any] = plain(
        {
            "schema": "pcie-sim/topology-show/1",
            "name": box.name,
            "title": box.title,
            "gpus": [
                {"node": node, "gpu": box.gpu_spec(node).name, "socket": box.socket_of(node), "host": box.host_of(node) or None}
                for node in order
            ],
            "nodes": {name: node.model_dump(mode="json") for name, node in box.spec.nodes.items()},
            "peers": [peer.model_dump(mode="json") for peer in box.spec.peers],
            "settings": box.settings.model_dump(mode="json"),
            "links": links,
            "path_types": _square(box, box.path_type),
            "transports": _square(box, lambda a, b: box.transport(a, b).kind),
            "transport_reasons": _grouped(box),
            "ccl": None if choice is None else choice.to_dict(),
            "assumptions": list(box.assumptions),
            "notes": _notes(box, choice),
            "sources": list(box.spec.sources),
        }
    )
    return found


def box_list_document(boxes: Iterable[Topology]) -> dict[str, Any]:
    """Schema ``pcie-sim/topology-list/1``."""
    return {"schema": "pcie-sim/topology-list/1", "topologies": [{"name": b.name, "title": b.title, "gpus": b.gpu_counts()} for b in boxes]}


def box_list_blocks(boxes: Iterable[Topology], *, width: int) -> list[Block]:
    """A line per box; where that leaves no room for titles, a few lines per box."""
    columns: list[tuple[str, Justify]] = [("name", "left"), ("GPUs", "left"), ("title", "left")]
    rows = [[b.name, gpus_text(b), b.title] for b in boxes]
    made = table(columns, rows, fold=(1, 2))
    found: list[Block] = [made]
    if room(made) > width - _TITLE:  # names are typed again: they are never broken
        found = [line for name, gpus, title in rows for line in (bold(name), wrapped(f"{gpus}: {title}", width=width, first="    "))]
    return [*found, f"  {counted(len(rows), 'box', 'boxes')}"]
