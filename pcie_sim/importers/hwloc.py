"""hwloc XML (``lstopo topo.xml``), v1 to v3 -> devices, CPUs, host.

Read from open-mpi/hwloc:hwloc/hwloc2.dtd, pci-common.c and tests/hwloc/xml. Bridges say no role; theirs follow from nesting: below a host
bridge (0-1) a root port, then upstream and downstream ports of switches in turn. Serial numbers, UUIDs, addresses and host names stay out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pcie_sim.importers.facts import BoxFacts, BridgeRole, CpuFact, DeviceFact, DeviceKind, HostFact, LinkFact, bus_id
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, RemarkKind, SourceText
from pcie_sim.importers.xml_safe import Counted, Node, bit_ranges, id_pair, mask_bits, parse_xml, root_of, walk, whole_number

MOST_DEVICES = 4096
MOST_GPUS = 512
MOST_CPUS = 1024
"""NUMA nodes or packages."""
_ROOT_TAG = "topology"
_GPU_VENDORS = (0x10DE, 0x1002, 0x8086)
"""Vendors of GPUs; a display controller of anybody else is a server's own VGA chip."""
_INTEL, _AMD = 0x8086, 0x1002
_IO_TYPES = ("Bridge", "PCIDev")
_COMPUTE = re.compile(r"(?:cuda|nvml|rsmi|ze)[0-9]{1,4}|opencl[0-9]{1,3}d[0-9]{1,3}")
_NUMBERED = re.compile(r"(cuda|nvml|rsmi|ze)([0-9]{1,4})")
_CONVENTIONAL = re.compile(r"PCI(?:[- ]to[- ]PCI)? Bridge", re.IGNORECASE)
_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 8 * 128 / 130 / 8, 4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8, 6: 64 * 242 / 256 / 8}
"""Payload rate of one lane by generation, GB/s, as hwloc reckons it (pci-common.c)."""
_WIDTHS = (1, 2, 4, 8, 16)
"""Widths that cards have (x32 exists on paper)."""
_TOLERANCE = 0.003


@dataclass
class _Place:
    """What I/O below an object is near to: its CPU mask, and the CPU entry for it (made when first asked for)."""

    mask: int | None
    line: int


@dataclass
class _Reading(Counted):
    packages: list[tuple[int, int, Node]] = field(default_factory=list)
    """(number, CPU mask, object)."""
    numas: list[tuple[int, int]] = field(default_factory=list)
    """(number, CPU mask)."""
    localities: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(domain, first bus, last bus, CPU mask)."""
    cpus: dict[str, CpuFact] = field(default_factory=dict)
    arch: str = ""
    devices: dict[str, DeviceFact] = field(default_factory=dict)
    open_speeds: dict[str, int] = field(default_factory=dict)
    """What a speed may mean -> devices."""
    near: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    """CPU mask -> CPU entry, and what was assumed for it."""


def sniff(source: SourceText) -> int | None:
    """The line of a ``<topology>`` root tag."""
    root = root_of(source)
    return root[1] if root is not None and root[0] == _ROOT_TAG else None


@importer("hwloc", "hwloc's XML (lstopo file.xml)", sniff=sniff, whole=True)
def read(source: SourceText) -> Imported:
    """Devices in the order of the file, a CPU entry for each NUMA node (and for packages or groups that I/O hangs on), the host.

    ``pci_link_speed`` is a rate in GB/s, which several pairs of generation and width share: a link is given only where one pair fits.

    Raises:
        InputError: broken or cut XML, another root, no Machine in it, more devices than any box has.
    """
    document = parse_xml(source, "an hwloc topology")
    root = document.root
    if root.tag != _ROOT_TAG:
        raise source.error(f"the root tag is <{root.tag[:40]}>, hwloc writes <{_ROOT_TAG}>", root.line)
    machines = [node for node in _objects(root) if node.get("type") == "Machine"]
    if not machines:
        raise source.error('a <topology> without <object type="Machine">: not hwloc\'s', root.line)
    reading = _Reading(source)
    _collect(reading, machines[0], root)
    _io(reading, machines[0])
    remarks = [*document.remarks, *_remarks(reading)]
    rates = next((one for one in root.each("distances2hetero") if re.match(r"NVLink|XGMI", one.get("name"))), None)
    if rates is not None:
        remarks.append(source.remark("ignored", "rates between GPUs (NVLink, xGMI) are not read; add `nvidia-smi topo -m`", rates.line))
    if len(machines) > 1:
        remarks.append(source.remark("ignored", f"the file describes {len(machines)} machines; only the first is read", machines[1].line))
    box = BoxFacts(devices=tuple(reading.devices.values()), cpus=tuple(reading.cpus.values()), host=_host(reading))
    return Imported(source=source.name, formats=("hwloc",), box=box, remarks=tuple(remarks), details={"hwloc": {"version": _version(root)}})


def _objects(root: Node) -> Iterator[Node]:
    return (node for node in walk(root) if node.tag == "object")


def _version(root: Node) -> str:
    """The format's version; files of hwloc 1 do not say it."""
    return root.get("version") if re.fullmatch(r"[0-9]{1,2}\.[0-9]{1,2}", root.get("version")) else "1"


def _infos(node: Node) -> dict[str, str]:
    """Name and value of the <info> children that are used: those that identify a machine are never looked at."""
    wanted = ("CPUVendor", "CPUModel", "CPUFamilyNumber", "CPUModelNumber", "Architecture", "GPUModel", "PCIDevice", "PCIVendor")
    return {one.get("name"): one.get("value")[:200] for one in node.each("info") if one.get("name") in wanted}


def _collect(reading: _Reading, machine: Node, root: Node) -> None:
    """Packages, NUMA nodes and localities; a CPU entry for every NUMA node (or package where there are none)."""
    reading.arch = (_infos(machine).get("Architecture") or _infos(root).get("Architecture") or "")[:20]
    for node in _objects(machine):
        kind, number = node.get("type"), whole_number(node.get("os_index"), 0, 4095)
        mask = mask_bits(node.get("cpuset")) or 0
        if kind in ("Package", "Socket") and number is not None:
            reading.packages.append((number, mask, node))
        elif kind == "NUMANode" and number is not None:
            reading.numas.append((number, mask))
        if max(len(reading.packages), len(reading.numas)) > MOST_CPUS:
            raise reading.source.error(f"more than {MOST_CPUS} packages or NUMA nodes; no box has that many", node.line)
    for one in root.each("pci_locality"):
        numbers = [whole_number(one.get(name), 0, 2**32 - 1) for name in ("domain", "bus_min", "bus_max")]
        mask = mask_bits(one.get("cpuset")) or 0
        if None not in numbers and mask and len(reading.localities) < MOST_CPUS:
            reading.localities.append((numbers[0] or 0, numbers[1] or 0, numbers[2] or 0, mask))
    for number, mask in reading.numas:
        around = [package for package, cpus, _node in reading.packages if mask and mask & ~cpus == 0]
        _add_cpu(reading, f"numa{number}", number, around[0] if len(around) == 1 else None, mask)
    if not reading.numas:
        for number, mask, _node in reading.packages:
            _add_cpu(reading, f"package{number}", None, number, mask)


def _add_cpu(reading: _Reading, key: str, numa: int | None, package: int | None, mask: int) -> str:
    if key not in reading.cpus:
        infos = next((_infos(node) for number, _mask, node in reading.packages if number == package), {})
        if package is None and reading.packages:
            infos = _infos(reading.packages[0][2])
        reading.cpus[key] = CpuFact(
            key,
            numa=numa,
            package=package,
            arch=reading.arch,
            vendor=infos.get("CPUVendor", "")[:40],
            family=whole_number(infos.get("CPUFamilyNumber", ""), 0, 4095),
            model=whole_number(infos.get("CPUModelNumber", ""), 0, 4095),
            name=infos.get("CPUModel", "")[:80],
            cpus=bit_ranges(mask),
        )
    return key


def _host(reading: _Reading) -> HostFact | None:
    if not reading.packages and not reading.numas:
        return None
    infos = _infos(reading.packages[0][2]) if reading.packages else {}
    return HostFact(
        sockets=len({number for number, _mask, _node in reading.packages}) or None,
        numa_nodes=len({number for number, _mask in reading.numas}) or None,
        cpu_vendor=infos.get("CPUVendor", "")[:40],
        cpu_name=infos.get("CPUModel", "")[:80],
        family=whole_number(infos.get("CPUFamilyNumber", ""), 0, 4095),
        model=whole_number(infos.get("CPUModelNumber", ""), 0, 4095),
    )


def _io(reading: _Reading, machine: Node) -> None:
    """Walk down to the I/O objects in the order of the file, with the CPU mask of the nearest object that has one."""
    stack: list[tuple[Node, _Place]] = [(machine, _Place(mask_bits(machine.get("cpuset")), machine.line))]
    while stack:
        node, place = stack.pop()
        if node.get("type") in _IO_TYPES:
            _device(reading, node, None, place, "")
            continue
        mask = mask_bits(node.get("cpuset"))
        here = _Place(mask, node.line) if mask else place
        stack += [(child, here) for child in reversed(node.children) if child.tag == "object"]


def _device(reading: _Reading, node: Node, parent: DeviceFact | None, place: _Place, above: str) -> None:
    """A bridge or PCI device and all below it. ``above``: printed name of the bridge above, "host" for a host bridge."""
    if node.get("type") == "Bridge" and not node.get("bridge_type").endswith("-1"):
        reading.count("bridge", node.line)
        return
    if node.get("type") == "Bridge" and node.get("bridge_type").startswith("0"):
        for child in node.each("object"):
            if child.get("type") in _IO_TYPES:
                _device(reading, child, None, place, "host")
        return
    fact = _fact(reading, node, parent, place, above)
    if fact is None:
        return
    reading.devices[fact.key] = fact
    for child in node.each("object"):
        if child.get("type") in _IO_TYPES:
            _device(reading, child, fact, place, fact.name or "bridge")


def _fact(reading: _Reading, node: Node, parent: DeviceFact | None, place: _Place, above: str) -> DeviceFact | None:
    bus = bus_id(node.get("pci_busid"))
    key = bus if bus is not None else f"device {len(reading.devices) + 1}"
    if bus is None:
        reading.count("no bus id", node.line)
    if key in reading.devices:
        reading.count("twice", node.line)
        return None
    if len(reading.devices) >= MOST_DEVICES:
        raise reading.source.error(f"more than {MOST_DEVICES} PCI devices; no box has that many", node.line)
    match = re.match(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\] \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]", node.get("pci_type"))
    code, ids, subsystem = "", None, None
    if match is not None:
        code, ids, subsystem = match.group(1).lower(), id_pair(match.group(2), match.group(3)), id_pair(match.group(4), match.group(5))
    kind, role = _bridge_role(node, parent, above) if node.get("type") == "Bridge" else (_kind(reading, node, code, ids, bus, above), None)
    cpu = _cpu_of(reading, bus, place) if parent is None else None
    index, name = _names(reading, node)
    fact = DeviceFact(
        key,
        kind,
        parent=parent.key if parent is not None else None,
        cpu=cpu,
        bus=bus,
        role=role,
        ids=ids,
        subsystem=subsystem,
        name=name,
        link=_link(reading, node.get("pci_link_speed"), kind),
        numa=reading.cpus[cpu].numa if cpu is not None else parent.numa if parent is not None else None,
        gpu_index=index if kind == "gpu" else None,
        line=node.line,
    )
    if kind == "gpu":
        reading.counts["gpus"] += 1
        if reading.counts["gpus"] > MOST_GPUS:
            raise reading.source.error(f"more than {MOST_GPUS} GPUs; no box has that many", node.line)
    return fact


def _bridge_role(node: Node, parent: DeviceFact | None, above: str) -> tuple[DeviceKind, BridgeRole | None]:
    if parent is None:
        return ("root_port", None) if above == "host" else ("bridge", None)
    if parent.role == "upstream":
        return "bridge", "downstream"
    if any(child.get("type") == "Bridge" for child in node.each("object")):
        return "bridge", "upstream"
    return "bridge", None  # a PCI bridge, or a switch whose ports were left out


def _kind(reading: _Reading, node: Node, code: str, ids: tuple[int, int] | None, bus: str | None, above: str) -> DeviceKind:
    """What a device is. Integrated and board graphics are no GPUs here; what tells them apart is said."""
    vendor = ids[0] if ids is not None else 0
    names = [one.get("name") for one in node.each("object") if one.get("type") == "OSDev"]
    if code.startswith("02") or code == "0c06":
        return "nic"
    if not code.startswith(("03", "12")):
        return "other"
    if vendor not in _GPU_VENDORS:
        if code.startswith("03"):
            reading.count("vga", node.line)
        return "other"
    if code != "0300" or vendor not in (_INTEL, _AMD) or any(_COMPUTE.fullmatch(name) for name in names):
        return "gpu"
    conventional = _CONVENTIONAL.search(above) is not None and "express" not in above.lower()
    slot = bus is not None and bus[-4:-2] != "00" and above != "host"  # below a PCIe port there is only device 0
    if (above == "host" and vendor == _INTEL) or conventional or slot or "internal" in above.lower():
        reading.count("integrated", node.line)
        return "other"
    reading.count("maybe", node.line)
    return "gpu"


def _names(reading: _Reading, node: Node) -> tuple[int | None, str]:
    """(number that the driver gives it, printed name): from NVML or ROCm before CUDA, whose order a job can change."""
    found: dict[str, int] = {}
    name = ""
    for child in node.each("object"):
        if child.get("type") != "OSDev":
            continue
        match = _NUMBERED.fullmatch(child.get("name"))
        if match is not None:
            found.setdefault(match.group(1), int(match.group(2)))
        name = name or _infos(child).get("GPUModel", "")
    if "nvml" in found and "cuda" in found and found["nvml"] != found["cuda"]:
        reading.count("order", node.line)
    index = next((found[kind] for kind in ("nvml", "rsmi", "cuda", "ze") if kind in found), None)
    if not name and any(child.get("osdev_type") in ("3", "32", "48") for child in node.each("object")):
        devices = [child.get("name") for child in node.each("object") if re.fullmatch(r"[a-z][a-z0-9]{1,10}_[0-9]{1,3}", child.get("name"))]
        name = devices[0] if devices else ""
    return index, (name or _infos(node).get("PCIDevice", ""))[:80]


def _cpu_of(reading: _Reading, bus: str | None, place: _Place) -> str | None:
    """The CPU entry for I/O at a place: its NUMA node, else its package, else the first package of several (said)."""
    mask = place.mask
    if bus is not None:
        domain, number = int(bus.split(":")[0], 16), int(bus.split(":")[1], 16)
        said = next((cpus for dom, low, high, cpus in reading.localities if dom == domain and low <= number <= high), None)
        if said is not None and said != mask:
            if mask is not None:
                reading.count("locality", place.line)
            mask = said
    if not mask:
        return next(iter(reading.cpus)) if len(reading.cpus) == 1 else None
    if mask not in reading.near:
        reading.near[mask] = _near(reading, mask)
    key, why = reading.near[mask]
    if why:
        reading.count(why, place.line)
    return key


def _near(reading: _Reading, mask: int) -> tuple[str | None, str]:
    """The CPU entry for a CPU mask, and what had to be assumed for it."""
    numas = [number for number, cpus in reading.numas if cpus & mask]
    if len(numas) == 1:
        return f"numa{numas[0]}", ""
    packages = {number: cpus for number, cpus, _node in reading.packages if cpus & mask}
    if not packages:
        return None, ""
    first = min(packages)
    if len(packages) > 1 and len(packages) == len(reading.packages):
        return None, "anywhere"
    key = _add_cpu(reading, f"package{first}", None, first, packages[first])
    return key, "group" if len(packages) > 1 else ""


def _link(reading: _Reading, text: str, kind: DeviceKind) -> LinkFact | None:
    """The link that a rate in GB/s can only be; None where several pairs of generation and width have it (said), or none."""
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,12})?", text) or float(text) <= 0:
        return None
    rate = float(text)
    fits = [(gen, width) for gen, lane in _LANE_GBPS.items() for width in _WIDTHS if abs(lane * width / rate - 1) < _TOLERANCE]
    if len(fits) == 1:
        return LinkFact(*fits[0])
    if fits and kind == "gpu":
        said = " or ".join(f"Gen{gen} x{width}" for gen, width in reversed(fits))
        what = f"pci_link_speed {rate:.4g} GB/s may be {said}"
        reading.open_speeds[what] = reading.open_speeds.get(what, 0) + 1
    return None


def _remarks(reading: _Reading) -> list[Remark]:
    texts: dict[str, tuple[RemarkKind, str]] = {
        "bridge": ("ignored", "Bridge that does not lead to PCI"),
        "no bus id": ("note", "PCI object without a readable pci_busid"),
        "twice": ("conflict", "PCI object with a pci_busid that was there before: the first is kept"),
        "vga": ("ignored", "display controller of a vendor without GPUs (a server's own VGA chip): no GPU"),
        "integrated": (
            "assumed",
            "display controller on the root bus, an internal or a conventional PCI bridge: integrated or board graphics, no GPU",
        ),
        "maybe": ("assumed", "display controller that no compute library names: taken for a GPU"),
        "order": ("note", "CUDA and NVML number the GPUs differently: NVML's numbers are taken"),
        "locality": ("note", "pci_locality names other CPUs than the tree: pci_locality is taken"),
        "anywhere": ("note", "PCI devices below the whole machine: which socket they hang on is not said"),
        "group": ("assumed", "PCI devices below a group of packages: taken to hang on the first of them"),
    }
    found = []
    for what, number in reading.counts.items():
        if what in texts:
            kind, text = texts[what]
            found.append(reading.source.remark(kind, text + (f" ({number} times)" if number > 1 else ""), reading.first[what]))
    for what, number in list(reading.open_speeds.items())[:8]:
        found.append(reading.source.remark("note", f"{what}: left open ({number} GPU{'s' if number > 1 else ''})"))
    if not reading.counts["gpus"]:
        found.append(reading.source.remark("note", "no PCI device is a GPU"))
    return found
