"""NCCL topology XML (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``) and RCCL's dialect of it -> devices and CPUs.

Grammar and rules read from NVIDIA/nccl:src/graph/xml.cc and topo.cc (2.18 to 2.30) and ROCm/rccl:tools/topo_expl/models. A switch is one
entry (its upstream port); root and downstream ports are not listed. Which devices hang where is said by nesting only, never by bus numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from pcie_sim.importers.facts import BoxFacts, BridgeRole, CpuFact, DeviceFact, DeviceKind, LinkFact, bus_id, link_fact
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, RemarkKind, SourceText
from pcie_sim.importers.xml_safe import Counted, Node, bit_ranges, id_pair, mask_bits, parse_xml, root_of, walk, whole_number

MOST_DEVICES = 4096
MOST_GPUS = 512
_KNOWN_TAGS = frozenset(("system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "pcilink"))
_BRIDGES = ("0604", "0801")
"""PCI-PCI bridges, and 0801xx, which NCCL treats like them."""
_AMD = 0x1002
_ROOT_TAG = "system"


@dataclass
class _Reading(Counted):
    devices: dict[str, DeviceFact] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    """Device key -> its element."""
    cpus: list[CpuFact] = field(default_factory=list)
    raw_families: dict[str, int] = field(default_factory=dict)
    virtual_nets: dict[str, int] = field(default_factory=dict)
    pcilinks: list[tuple[str, str]] = field(default_factory=list)
    gdr: dict[str, bool] = field(default_factory=dict)
    rccl: bool = False
    unknown_tag: str = ""
    remarks: list[Remark] = field(default_factory=list)


def sniff(source: SourceText) -> int | None:
    """The line of a ``<system>`` root tag."""
    root = root_of(source)
    return root[1] if root is not None and root[0] == _ROOT_TAG else None


@importer("nccl-topo", "an NCCL or RCCL topology XML (NCCL_TOPO_DUMP_FILE)", sniff=sniff, whole=True)
def read(source: SourceText) -> Imported:
    """Devices in the order of the file, a CPU entry for each NUMA node.

    Links are those in force when the file was written (what a device can is not in this format). GPUs that are not said to be GPUs by a
    ``<gpu>`` tag are known by their class.

    Raises:
        InputError: broken or cut XML, another root, no ``<cpu>`` or ``<pci>`` in it, more devices than any box has.
    """
    document = parse_xml(source, "an NCCL topology")
    root = document.root
    if root.tag != _ROOT_TAG:
        raise source.error(f"the root tag is <{root.tag[:40]}>, an NCCL topology has <{_ROOT_TAG}>", root.line)
    reading = _Reading(source)
    reading.remarks += document.remarks
    _count_unknown(reading, root)
    for node in _one_host(reading, root):
        if node.tag == "cpu":
            _cpu(reading, node)
        elif node.tag == "pci":
            reading.count("outside", node.line)
            _pci(reading, node, None, None, None)
    if not reading.cpus and not reading.devices:
        raise source.error("a <system> without <cpu> and <pci>: no NCCL topology, or an empty one", root.line)
    _nvlinks(reading)
    _mark_ports(reading)
    _judge(reading)
    return Imported(
        source=source.name,
        formats=("nccl-topo",),
        box=BoxFacts(devices=tuple(reading.devices.values()), cpus=tuple(reading.cpus)),
        remarks=tuple(reading.remarks),
        details={"nccl_topo": _details(reading, root)},
    )


def _details(reading: _Reading, root: Node) -> dict[str, object]:
    version = whole_number(root.get("version"), 0, 99)
    return {
        "version": version,
        "dialect": "rccl" if reading.rccl or version == 2 else "nccl",
        "gdr": dict(reading.gdr),
        "pcilinks": list(reading.pcilinks),
        "family_numbers": dict(reading.raw_families),
        "virtual_nets": len(reading.virtual_nets),
    }


def _count_unknown(reading: _Reading, root: Node) -> None:
    for node in walk(root):
        if node.tag not in _KNOWN_TAGS:
            reading.unknown_tag = reading.unknown_tag or node.tag
            reading.count("tag", node.line)


def _one_host(reading: _Reading, root: Node) -> list[Node]:
    """Children of the root; of dumps of several hosts (joined by NVLink across hosts) only those of the first."""
    hosts = list(dict.fromkeys(node.get("host_hash") for node in root.each("cpu") if node.get("host_hash")))
    if len(hosts) < 2:
        return root.children
    other = next(node for node in root.each("cpu") if node.get("host_hash") not in ("", hosts[0]))
    text = f"the file describes {len(hosts)} hosts; only the first is read"
    reading.remarks.append(reading.source.remark("ignored", text, other.line))
    return [node for node in root.children if node.get("host_hash") in ("", hosts[0])]


def _cpu(reading: _Reading, node: Node) -> None:
    numa = whole_number(node.get("numaid"), 0, 4095)
    stem = f"numa{numa}" if numa is not None else "cpu"
    key = stem
    if any(cpu.key == stem for cpu in reading.cpus):
        key = f"{stem}.{len(reading.cpus)}"
        reading.count("cpu twice", node.line)
    raw = whole_number(node.get("familyid"), 0, 4095)
    if raw is not None:
        reading.raw_families[key] = raw
    affinity = mask_bits(node.get("affinity"))
    cpu = CpuFact(
        key,
        numa=numa,
        arch=node.get("arch")[:20],
        vendor=node.get("vendor")[:40],
        family=_family(raw),
        model=whole_number(node.get("modelid"), 0, 4095),
        cpus=bit_ranges(affinity) if affinity else (),
    )
    reading.cpus.append(cpu)
    if len(reading.cpus) > MOST_DEVICES:
        raise reading.source.error(f"more than {MOST_DEVICES} <cpu> entries; no box has that many", node.line)
    for child in node.children:
        if child.tag == "pci":
            _pci(reading, child, None, key, numa)
        elif child.tag == "nic":
            for net in child.each("net"):
                name = net.get("name") or f"line {net.line}"
                reading.virtual_nets.setdefault(name, net.line)


def _family(raw: int | None) -> int | None:
    """The CPU family as manuals number it (23 for AMD 17h). NCCL adds the parts of CPUID in its own way, base + (extended << 4), where the
    rule is base + extended: AMD 17h, 19h and 1Ah are 143, 175 and 191 in its dumps. Files written by hand have the true number (23).

    >>> _family(143), _family(175), _family(191), _family(23), _family(6), _family(None)
    (23, 25, 26, 23, 6, None)
    """
    if raw is None or raw & 0xF != 0xF:
        return raw
    return 0xF + (raw >> 4)


def _pci(reading: _Reading, node: Node, parent: str | None, cpu: str | None, numa: int | None) -> None:
    bus = bus_id(node.get("busid"))
    key = bus if bus is not None else f"device {len(reading.devices) + 1}"
    if bus is None:
        reading.count("no bus id", node.line)
    if key in reading.devices:
        reading.count("pci twice", node.line)
        return
    if len(reading.devices) >= MOST_DEVICES:
        raise reading.source.error(f"more than {MOST_DEVICES} <pci> entries; no box has that many", node.line)
    gpu = next(node.each("gpu"), None)
    ids = id_pair(node.get("vendor"), node.get("device"))
    kind, role = _kind(node, gpu, ids)
    fact = DeviceFact(
        key,
        kind,
        parent=parent,
        cpu=cpu if parent is None else None,
        bus=bus,
        role=role,
        ids=ids,
        subsystem=id_pair(node.get("subsystem_vendor"), node.get("subsystem_device")),
        link=link_fact(node.get("link_speed"), node.get("link_width")),
        numa=numa,
        line=node.line,
    )
    if kind == "gpu":
        if sum(device.kind == "gpu" for device in reading.devices.values()) >= MOST_GPUS:
            raise reading.source.error(f"more than {MOST_GPUS} GPUs; no box has that many", node.line)
        fact = _gpu(reading, fact, gpu)
    elif kind == "nic":
        fact = replace(fact, name=_net_name(node))
    reading.devices[key] = fact
    reading.nodes[key] = node
    for child in node.children:
        if child.tag == "pci":
            _pci(reading, child, key, None, numa)
        elif child.tag == "pcilink":
            reading.count("pcilink", child.line)
            target = bus_id(child.get("target"))
            if target is not None:
                reading.pcilinks.append((key, target))


def _kind(node: Node, gpu: Node | None, ids: tuple[int, int] | None) -> tuple[DeviceKind, BridgeRole | None]:
    number = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{2,6})", node.get("class"))
    code = number.group(1).lower() if number is not None else ""
    if gpu is not None or code.startswith("03") or (code.startswith("12") and ids is not None and ids[0] == _AMD):
        return "gpu", None
    if code.startswith(_BRIDGES) or (not code and any(child.tag == "pci" for child in node.children)):
        return "bridge", "switch"
    if code.startswith("02") or any(child.tag in ("nic", "net") for child in node.children):
        return "nic", None
    return "other", None


def _net_name(node: Node) -> str:
    """The first interface of a card, where its name is a device name (not one made from a hardware address)."""
    for nic in node.each("nic"):
        for net in nic.each("net"):
            name = net.get("name")
            if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.:-]{0,30}", name) and not re.search(r"[0-9a-f]{12}", name):
                return name
    return ""


def _gpu(reading: _Reading, fact: DeviceFact, gpu: Node | None) -> DeviceFact:
    if gpu is None:
        return fact
    gcn = gpu.get("gcn")
    if gcn:
        reading.rccl = True
        fact = replace(fact, name=_gfx(gcn))
    if gpu.get("gdr") in ("0", "1"):
        reading.gdr[fact.key] = gpu.get("gdr") == "1"
    return replace(
        fact,
        gpu_index=whole_number(gpu.get("dev"), 0, 4095),
        rank=whole_number(gpu.get("rank"), 0, 2**20),
        sm=None if gcn else whole_number(gpu.get("sm"), 10, 999),  # RCCL's sm is the number of compute units
    )


def _gfx(gcn: str) -> str:
    """AMD's architecture name. Old RCCL writes HIP's number, major * 100 + minor * 10 + stepping: 910 is gfx90a (stepping 10).

    >>> _gfx("906"), _gfx("910"), _gfx("gfx942:sramecc+:xnack-")
    ('gfx906', 'gfx90a', 'gfx942')
    """
    if gcn == "910":
        return "gfx90a"
    name = re.fullmatch(r"(?:gfx)?([0-9a-f]{3,5})(?::.{0,60})?", gcn)
    return f"gfx{name.group(1)}" if name is not None else ""


def _nvlinks(reading: _Reading) -> None:
    """Links between GPUs (NVLink, xGMI): to another GPU of the file by its bus id, to anything else (an NVSwitch) as ""."""
    gpus = {device.key for device in reading.devices.values() if device.kind == "gpu"}
    for key in [key for key in reading.devices if key in gpus]:
        tag = next(reading.nodes[key].each("gpu"), None)
        counts: Counter[str] = Counter()
        for link in tag.children if tag is not None else ():
            if link.tag not in ("nvlink", "xgmi"):
                continue
            reading.rccl = reading.rccl or link.tag == "xgmi"
            number = whole_number(link.get("count"), 1, 64)
            if number is None:
                reading.count("link count", link.line)
                continue
            target = bus_id(link.get("target"))
            code = link.get("tclass").lower()
            if target in gpus and target is not None:
                counts[target] += number
            elif code.startswith(("0x03", "0x068001")):
                reading.count("link target", link.line)  # a GPU that the job did not see, or a CPU (POWER9)
            else:
                counts[""] += number
        if counts:
            reading.devices[key] = replace(reading.devices[key], nvlinks=tuple(counts.items()))


def _mark_ports(reading: _Reading) -> None:
    """Two stacked bridges of one kind, the lower one the only such below the upper: ports of one physical switch (ConnectX-8 boxes).

    A root switch with several leaf switches of the same chip stays a tree of switches.
    """
    below: dict[str, list[DeviceFact]] = {}
    for device in reading.devices.values():
        if device.kind == "bridge" and device.parent is not None:
            above = reading.devices[device.parent]
            if above.kind == "bridge" and device.ids is not None and device.ids == above.ids:
                below.setdefault(above.key, []).append(device)
    marked: list[DeviceFact] = []
    for device in [devices[0] for devices in below.values() if len(devices) == 1]:
        if reading.devices[device.parent or ""].role == "switch":  # of three in a row the third starts a switch again
            reading.devices[device.key] = replace(device, role="downstream")
            marked.append(device)
    if marked:
        first = marked[0]
        more = f" (and {len(marked) - 1} more pairs)" if len(marked) > 1 else ""
        text = f"{first.parent} and {first.key} are the same chip stacked: taken for upstream and downstream port of one switch{more}"
        reading.remarks.append(reading.source.remark("assumed", text, first.line))


def _judge(reading: _Reading) -> None:
    """Everything that was noticed on the way, one remark each."""
    source, add = reading.source, reading.remarks.append
    gpus = [device for device in reading.devices.values() if device.kind == "gpu"]
    if not gpus:
        unclassed = [device for device in reading.devices.values() if device.kind == "other" and not reading.nodes[device.key].get("class")]
        text = "no <pci> entry is a GPU by tag or class"
        if unclassed:
            text += f"; {len(unclassed)} have no class (NCCL finds it on the machine itself): dump the file there with NCCL_TOPO_DUMP_FILE"
        add(source.remark("note", text, unclassed[0].line if unclassed else None))
    slow = [device for device in gpus if _slower(device, reading.devices.get(device.parent or ""))]
    if slow:
        speeds = sorted({f"Gen{device.link.gen}" for device in slow if device.link is not None})
        text = (
            f"{len(slow)} of {len(gpus)} GPUs show a slower link ({', '.join(speeds)}) than the port above can: idle GPUs train down, and "
            "NCCL 2.30.7 and later writes the state in force; dump again under load to be sure"
        )
        add(source.remark("note", text, slow[0].line))
    if reading.virtual_nets:
        text = f"network interfaces without a PCI device (virtual or bonded) are left out: {len(reading.virtual_nets)}"
        add(source.remark("ignored", text, min(reading.virtual_nets.values())))
    own = [device for device in reading.devices.values() if _cards_own(device, reading)]
    if own:
        text = f"{len(own)} of the bridges have one AMD GPU below and nothing else: taken for the cards' own, not for switches"
        add(source.remark("assumed", text, own[0].line))
    texts: dict[str, tuple[RemarkKind, str]] = {
        "outside": ("assumed", "<pci> outside of any <cpu>: its NUMA node is not said"),
        "cpu twice": ("conflict", "another <cpu> with the same numaid: kept as a CPU of its own"),
        "pci twice": ("conflict", "a <pci> with a busid that was there before: the first is kept"),
        "no bus id": ("note", "<pci> without a readable busid"),
        "pcilink": ("note", "<pcilink>: Broadcom switches joined directly; such links are kept as details, the tree does not show them"),
        "link count": ("ignored", "GPU link without a readable count"),
        "link target": ("ignored", "GPU link to a GPU or CPU that the file does not list"),
        "tag": ("ignored", f"unknown element <{reading.unknown_tag[:40]}>"),
    }
    for what, number in reading.counts.items():
        kind, text = texts[what]
        times = f" ({number} times)" if number > 1 else ""
        add(source.remark(kind, text + times, reading.first[what]))


def _cards_own(device: DeviceFact, reading: _Reading) -> bool:
    below = list(reading.nodes[device.key].each("pci")) if device.kind == "bridge" else []
    child = reading.devices.get(bus_id(below[0].get("busid")) or "") if len(below) == 1 else None
    return child is not None and child.kind == "gpu" and (reading.rccl if child.ids is None else child.ids[0] == _AMD)


def _slower(device: DeviceFact, above: DeviceFact | None) -> bool:
    """Whether a GPU's link is below that of the bridge above, or Gen1 on a root port."""
    link = device.link
    if link is None or link.gen is None:
        return False
    upper = above.link if above is not None else LinkFact(2)
    return upper is not None and upper.gen is not None and link.gen < upper.gen
