"""From the facts of several files to one topology file: tree, parts, links, settings, and everything that was assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from pcie_sim import catalog
from pcie_sim.catalog import identify
from pcie_sim.errors import InputError
from pcie_sim.importers import parts as parts_
from pcie_sim.importers.facts import DeviceFact, GpuFact, MatrixFact
from pcie_sim.importers.gather import Gathered, gather
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.links import Links
from pcie_sim.importers.matrix_tree import sketch_matrix
from pcie_sim.importers.numbering import Numbers, number
from pcie_sim.importers.parts import Parts
from pcie_sim.importers.relate import Related, relate
from pcie_sim.importers.sketch import MOST_GPUS, Sketch, Spot, sketch_flat, sketch_tree
from pcie_sim.importers.source import Remark
from pcie_sim.importers.state import settings_of, settings_over
from pcie_sim.specs.base import build
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.machine import MAX_NODES, TopologySpec
from pcie_sim.specs.part import SocketPart, SwitchPart

_MOST_TEXT = 900
_MOST_TEXTS = 60


@dataclass(frozen=True)
class BuiltBox:
    """A topology made from files: its spec, the facts by its node names, and every remark."""

    spec: TopologySpec
    related: Related
    remarks: tuple[Remark, ...]


def build_box(files: Sequence[Imported], *, gpu: str | None = None, name: str | None = None) -> BuiltBox:
    """One box from the facts of ``files``.

    Args:
        files: what the importers found; at least one must know of GPUs.
        gpu: the GPU model (a catalog name) where the files do not say it, or say it wrongly.
        name: of the topology; None: ``imported-`` and the first file's stem.

    Raises:
        InputError: no GPUs in any file, an unknown GPU, more than one topology file.
    """
    asked = parts_.checked(gpu)
    own = next((one for one in files if one.topology is not None), None)
    if own is not None and own.topology is not None:
        spec = own.topology if name is None else own.topology.model_copy(update={"name": name})
        return box_over(spec, [one for one in files if one is not own], gpu=gpu)
    found = gather(files)
    numbers = number(found)
    found.remarks += numbers.remarks
    facts = numbers.facts
    _leave_out_others(found, facts)
    sketch = _sketch(found, facts)
    if not sketch.gpus():
        raise InputError(_no_gpus(files))
    sketch.remarks += _other_counts(found, len(sketch.gpus()))
    by_node = _facts_by_node(sketch, numbers)
    gpus = parts_.gpu_parts(sketch, found, by_node, asked)
    sockets = parts_.socket_parts(sketch, found.host)
    gpu_links, switches, switch_links = _links_and_switches(sketch, gpus, dict(zip([s.name for s in sketch.gpus()], by_node, strict=True)))
    _fit_lanes(sketch, sockets, gpu_links, switch_links)
    settings, settings_remarks = settings_of(found, sketch)
    nics = {spot.name: parts_.nic_part(spot.device) for spot in sketch.spots if spot.kind == "nic" and spot.device is not None}
    peers, peer_remarks = _peers(sketch, gpus, sockets)
    remarks = (
        *found.remarks,
        *sketch.remarks,
        *gpus.remarks,
        *sockets.remarks,
        *switches.remarks,
        *switch_links.said(),
        *gpu_links.said(),
        *peer_remarks,
        *settings_remarks,
    )
    remarks = tuple(dict.fromkeys(remarks))
    links = gpu_links.of | switch_links.of
    every = gpus.of | sockets.of | switches.of | {key: part for key, part in nics.items() if part is not None}
    data: dict[str, Any] = {
        "schema": "pcie-sim/topology/1",
        "name": name or _name_of(files),
        "title": _title(sketch, gpus, sockets),
        "sources": list(dict.fromkeys(Path(one.source).name[:200] or "pasted text" for one in files)),
        "nodes": _nodes(sketch, every, links),
        "peers": peers,
        "settings": settings.model_dump(exclude_defaults=False),
        "assumptions": _texts(remarks, ("assumed",)),
        "notes": _texts(remarks, ("conflict", "note", "cut", "ignored")),
    }
    spec = build(TopologySpec, data, source=" + ".join(found.sources[:3]))
    related = relate(spec, files, gathered=found, numbers=numbers)
    return BuiltBox(spec, related, remarks)


def box_over(spec: TopologySpec, files: Sequence[Imported], *, gpu: str | None = None) -> BuiltBox:
    """A box that a topology file describes, with what ``files`` say of it: its tree stays, the library's state is the files'.

    Raises:
        InputError: a second topology file, or a GPU model for a box that names its own.
    """
    second = next((one for one in files if one.topology is not None), None)
    if second is not None:
        raise InputError(f"{second.source}: a second topology file beside {spec.name}; give one")
    if gpu is not None:
        raise InputError(f"--gpu {gpu[:40]}: {spec.name} names its GPUs; --gpu is for files of other programs that do not")
    found = gather(files)
    settings, changes = settings_over(spec.settings, found)
    spec = spec.model_copy(update={"settings": settings})
    related = relate(spec, files, gathered=found)
    return BuiltBox(spec, related, tuple(dict.fromkeys((*found.remarks, *related.remarks, *changes))))


_MAKERS = (("nvidia", 0x10DE), ("amd", 0x1002), ("intel", 0x8086))
"""Words in printed names and PCI vendor ids of the makers of GPUs (pci-ids.ucw.cz)."""


def _maker(device: DeviceFact) -> str:
    if device.ids is not None:
        return next((word for word, vendor in _MAKERS if vendor == device.ids[0]), "")
    low = device.name.lower()
    return next((word for word, _ in _MAKERS if word in low), "")


def _leave_out_others(found: Gathered, facts: Sequence[GpuFact]) -> None:
    """A display card of another maker beside the GPUs is none of them: where nvidia-smi lists the GPUs, what it does not list; else what
    the catalog does not know, beside GPUs of another maker that it does.
    """
    devices = found.gpu_devices()
    if len({_maker(device) for device in devices} - {""}) < 2:
        return
    listed = {fact.bus for fact in facts if fact.bus is not None}
    known = {device.key for device in devices if parts_.catalog_gpu(device) is not None}
    makers = {_maker(device) for device in devices if device.key in known}
    for device in devices:
        foreign = (
            _maker(device) != "nvidia" and device.bus not in listed if listed else device.key not in known and _maker(device) not in makers
        )
        if foreign:
            found.devices[device.key] = replace(device, kind="other")
            what = device.name or "a display card"
            text = f"{device.key} ({what[:60]}) is of another maker than the GPUs: taken for the display's, left out"
            found.remarks.append(Remark("ignored", text, found.device_source.get(device.key, ""), device.line))


def _sketch(found: Gathered, facts: Sequence[GpuFact]) -> Sketch:
    """The tree from the best thing that shows one: devices, a matrix of path words, a library's paths, a bare list."""
    if found.gpu_devices():
        cards = {device.key: part for device in found.devices.values() if device.kind == "nic" and (part := parts_.nic_part(device))}
        sketch = sketch_tree(found, cards)
        left = sum(device.kind == "nic" and device.key not in cards for device in found.devices.values())
        if left:
            text = f"{left} network card{'s' if left > 1 else ''} without an entry in the catalog: left out of the tree"
            sketch.remarks.append(Remark("ignored", text, found.tree_source or ""))
        return sketch
    paths = [(matrix, source) for matrix, source in found.matrices if matrix.kind == "path"]
    if paths:
        matrix, source = max(paths, key=lambda item: len(item[0].labels))
        return sketch_matrix(matrix, source, facts, found.host, found.cpus)
    from_log = _log_matrix(found)
    if from_log is not None:
        matrix, source, gpus = from_log
        return sketch_matrix(matrix, source, gpus, found.host, found.cpus)
    if facts:
        return sketch_flat(facts, found.host, found.cpus)
    return Sketch()


def _other_counts(found: Gathered, count: int) -> list[Remark]:
    """A remark for every list or matrix of the whole box that has another number of GPUs than the tree."""
    remarks = []
    for matrix, source in found.matrices:
        if matrix.kind in ("path", "p2p_status") and len(matrix.labels) != count:
            text = f"a matrix of {len(matrix.labels)} GPUs; the box is drawn with {count}"
            remarks.append(Remark("conflict", text, source, matrix.line))
    listed: dict[str, set[int]] = {}
    for fact, source in found.gpus:
        if fact.numbering == "bus":
            listed.setdefault(source, set()).add(fact.index)
    matrices = {source for matrix, source in found.matrices if matrix.kind in ("path", "p2p_status")}
    matrices |= {source for _, source in found.ccl}  # a log names the GPUs of its ranks, which need not be all
    for source, places in listed.items():
        if len(places) != count and source not in matrices:
            remarks.append(Remark("conflict", f"lists {len(places)} GPUs; the box is drawn with {count}", source))
    return remarks


def _log_matrix(found: Gathered) -> tuple[MatrixFact, str, list[GpuFact]] | None:
    """The path types that a library's log prints, as a matrix in bus order: PIX, PXB, PHB and SYS as nvidia-smi has them."""
    for ccl, source in found.ccl:
        buses = sorted({bus for pair in ccl.paths for bus in pair})
        if not 1 < len(buses) <= MOST_GPUS:
            continue
        words = {"LOC": "PIX", "NVL": "NV1", "NVB": "NV1", "C2C": "NV1", "PXN": "PXB", "P2C": "PXB"}

        def word(a: str, b: str, paths: Mapping[tuple[str, str], str] = ccl.paths, words: Mapping[str, str] = words) -> str | None:
            kind = paths.get((a, b)) or paths.get((b, a))
            return "X" if a == b else None if kind is None else words.get(kind, kind)

        cells = tuple(tuple(word(a, b) for b in buses) for a in buses)
        names = {fact.bus: fact for fact, _ in found.gpus if fact.bus is not None}
        gpus = [replace(names.get(bus, GpuFact(index)), index=index, bus=bus) for index, bus in enumerate(buses)]
        found.remarks.append(Remark("note", "the tree is drawn from the path types that the library printed", source, ccl.line))
        return MatrixFact("path", tuple(range(len(buses))), cells, line=ccl.line), source, gpus
    return None


def _facts_by_node(sketch: Sketch, numbers: Numbers) -> list[GpuFact | None]:
    """What flat lists say of each GPU node: by bus id where both have one, else by place when the numbers agree. A name whose place is
    not known goes to those that nothing names, where it is the only one.
    """
    facts = numbers.facts
    by_bus = {fact.bus: fact for fact in facts if fact.bus is not None}
    order = {spot.name: index for index, spot in enumerate(sorted(sketch.gpus(), key=lambda spot: int(spot.name[3:])))}
    spare = numbers.names[0] if len(numbers.names) == 1 else ""
    found: list[GpuFact | None] = []
    for spot in sketch.gpus():
        place = order[spot.name]
        if spot.gpu is not None:
            fact = spot.gpu
        elif spot.bus in by_bus:
            fact = by_bus[spot.bus]
        elif len(facts) == len(order) and facts[place].bus is None:
            fact = facts[place]
        else:
            names = {one.name for one in facts if one.name}
            fact = GpuFact(place, name=names.pop() if len(names) == 1 else "")
            if spot.device is not None and (spot.device.ids is not None or spot.device.name):
                fact = GpuFact(place)  # the device says itself what it is: no other's name
        said = fact.name or (spot.device is not None and (spot.device.ids is not None or spot.device.name))
        found.append(fact if said or not spare else replace(fact, name=spare))
    return found


def _links_and_switches(sketch: Sketch, gpus: Parts, facts: dict[str, GpuFact | None]) -> tuple[Links, Parts, Links]:
    gpu_links, switches, switch_links = Links(), Parts(), Links()
    for spot in sketch.gpus():
        gpu_links.decide(spot, catalog.load_gpu(gpus.of[spot.name]).pcie, facts[spot.name], "the GPU")
    for spot in sketch.spots:
        if spot.kind == "nic" and spot.device is not None:
            part = parts_.nic_part(spot.device)
            if part is not None:
                own = catalog.load_part(part)
                link = getattr(own, "host_link", None)
                if isinstance(link, PcieLink):
                    gpu_links.decide(spot, link, None, "the card")
    guessed: dict[str, list[str]] = {}
    for spot in sketch.spots:
        if spot.kind == "switch":
            part = parts_.switch_part(spot.device)
            if part is None:
                part = identify.generic_switch(_switch_gen(spot, gpu_links))
                guessed.setdefault(part, []).append(spot.name)
            switches.of[spot.name] = part
            switch_links.decide(spot, catalog.load_typed_part(part, SwitchPart).upstream, None, "the switch")
    for part, names in guessed.items():
        switches.assume(f"switch chip of {parts_.span(names)}: not said or not in the catalog; {part} assumed")
    return gpu_links, switches, switch_links


def _fit_lanes(sketch: Sketch, sockets: Parts, gpu_links: Links, switch_links: Links) -> None:
    """Cards and switches on root ports share the lanes of their processor (desktop processors have few)."""
    for socket in sketch.sockets.values():
        lanes = catalog.load_typed_part(sockets.of[socket.name], SocketPart).lanes
        if lanes is None:
            continue
        tops = [spot for port in socket.children for spot in port.children]
        for links, kinds in ((gpu_links, ("gpu", "nic")), (switch_links, ("switch",))):
            links.fit([spot for spot in tops if spot.kind in kinds], lanes, sockets.of[socket.name])


def _switch_gen(spot: Spot, links: Links) -> int:
    """The generation of a switch nobody names: of its uplink where that is known, else the fastest GPU link below it."""
    device = spot.device
    for link in (device.link_max, device.link) if device is not None else ():
        if link is not None and link.gen is not None and link.gen > 1:
            return link.gen
    below, stack = [0], list(spot.children)
    while stack:
        child = stack.pop()
        stack += child.children
        if child.name in links.of:
            below.append(links.of[child.name].gen)
    return max(below)


def _peers(sketch: Sketch, gpus: Parts, sockets: Parts) -> tuple[list[dict[str, Any]], list[Remark]]:
    remarks: list[Remark] = []
    found: list[dict[str, Any]] = []
    names = [spot.name for spot in sketch.sockets.values()]
    for a, b in combinations(names, 2):
        part = identify.socket_link(sockets.of[a])
        found.append({"between": [a, b], "part": part})
    if len(names) > 1:
        link = identify.socket_link(sockets.of[names[0]])
        remarks.append(Remark("assumed", f"link between the sockets: not said; {link} (what such sockets are joined by)"))
    counts: dict[str, list[str]] = {}
    for pair, links in sorted(sketch.bridges.items(), key=lambda item: sorted(item[0])):
        a, b = sorted(pair, key=lambda name: int(name[3:]))
        part = identify.nvlink_part(gpus.of[a], links)
        found.append({"between": [a, b], "part": part})
        counts.setdefault(part, []).append(f"{a}-{b}")
    for part, pairs in counts.items():
        shown = ", ".join(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        remarks.append(Remark("assumed", f"NVLink of {shown}: {part} (its rate is the part's, not measured here)"))
    return found, remarks


def _nodes(sketch: Sketch, parts: dict[str, str], links: dict[str, PcieLink]) -> dict[str, dict[str, Any]]:
    if len(sketch.sockets) + len(sketch.spots) > MAX_NODES:
        raise InputError(f"the box has more than {MAX_NODES} nodes; give the part of the files that shows its GPUs")
    found: dict[str, dict[str, Any]] = {spot.name: {"kind": "socket", "part": parts[spot.name]} for spot in sketch.sockets.values()}
    for kind in ("root_port", "switch", "gpu", "nic"):
        spots = [spot for spot in sketch.spots if spot.kind == kind]
        if kind == "gpu":
            spots.sort(key=lambda spot: int(spot.name[3:]))
        for spot in spots:
            node: dict[str, Any] = {"kind": kind}
            if spot.name in parts:
                node["part"] = parts[spot.name]
            node["parent"] = spot.parent.name if spot.parent is not None else None
            if spot.name in links:
                link = links[spot.name]
                node["link"] = f"gen{link.gen} x{link.width}"
            if spot.bus is not None:
                node["bus"] = spot.bus
            if kind in ("gpu", "nic") and spot.numa is not None and spot.numa <= 63:
                node["numa"] = spot.numa
            found[spot.name] = node
    return found


def _texts(remarks: Sequence[Remark], kinds: tuple[str, ...]) -> list[str]:
    texts = []
    for remark in remarks:
        if remark.kind in kinds:
            where = Path(remark.source).name + (f":{remark.line}" if remark.line else "") if remark.source else ""
            texts.append((f"{remark.text} ({where})" if where else remark.text)[:_MOST_TEXT])
    texts = [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text) for text in dict.fromkeys(texts)]
    return texts[:_MOST_TEXTS]


def _title(sketch: Sketch, gpus: Parts, sockets: Parts) -> str:
    counts: dict[str, int] = {}
    for spot in sketch.gpus():
        counts[gpus.of[spot.name]] = counts.get(gpus.of[spot.name], 0) + 1
    what = ", ".join(f"{count}x {catalog.load_gpu(name).title}" for name, count in counts.items())
    switches = sum(spot.kind == "switch" for spot in sketch.spots)
    where = f"{switches} switch{'es' if switches != 1 else ''}" if switches else "root ports"
    sides = len(sketch.sockets)
    what += " (model assumed)" if gpus.silent else ""
    return f"{what} on {where}, {sides} socket{'s' if sides != 1 else ''} ({', '.join(sorted(set(sockets.of.values())))})"


def _name_of(files: Sequence[Imported]) -> str:
    stem = re.sub(r"[^a-z0-9._+-]+", "-", Path(files[0].source).stem.lower()).strip("-._+")[:60]
    return f"imported-{stem}" if stem else "imported-box"


def _no_gpus(files: Sequence[Imported]) -> str:
    held = "; ".join(f"{one.source}: {', '.join(one.formats)}" for one in files[:3])
    return f"{held}\nnothing here says which GPUs the box has; add `nvidia-smi topo -m`, `sudo lspci -vvv` or an NCCL topology dump"
