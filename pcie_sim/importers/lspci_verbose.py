"""``lspci -vv`` / ``-vvv`` (with ``-nn`` or not) -> the tree of ports and GPUs with their links; a plain ``lspci`` -> a list of GPUs.

Parents come from the bus numbers of bridges (``Bus: primary=, secondary=, subordinate=``), so order and missing paragraphs do not matter.
A link below its best speed on a GPU at rest is no fault: links are facts here, and are judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pcie_sim.importers.facts import BoxFacts, BridgeRole, CpuFact, DeviceFact, DeviceKind, GpuFact
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.lspci_host import Listed, chipset_ports, count_sockets, name_cpus
from pcie_sim.importers.lspci_names import MOST_DEVICES, integrated, roles
from pcie_sim.importers.lspci_paragraphs import Listing, Paragraph, head_of, paragraphs, says_lspci
from pcie_sim.importers.source import Remark, SourceText


def sniff(source: SourceText) -> int | None:
    """The first line that begins a device; None where fewer than two lines say that this is lspci."""
    first: int | None = None
    for number, line in enumerate(source.lines, 1):
        if head_of(line) is not None:
            if first is not None:
                return first
            first = number
        elif first is not None and says_lspci(line):
            return first
    return None


@importer("lspci-vvv", "lspci -vvv", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Ports, GPUs and network cards with links, NUMA nodes, ACS and payload sizes.

    Raises:
        InputError: no line that begins a device, or no GPU and no bridge among them.
    """
    tree = paragraphs(source.lines)
    if not tree.devices:
        raise source.error("no device of an lspci listing here; save it again: sudo lspci -vvv > lspci.txt", 1)
    devices = list(tree.devices.values())
    remarks = _said(source, tree)
    if not any(one.kind in ("gpu", "bridge") for one in devices):
        raise source.error("neither a GPU nor a bridge is listed; save the whole listing: sudo lspci -vvv > lspci.txt", devices[0].line)
    bridged = any(one.buses is not None for one in devices)
    if not bridged and (not any(one.link_max is not None for one in devices) or all(one.at[1] for one in devices if one.kind == "gpu")):
        return _flat(source, devices, remarks)
    parents = _parents(source, devices, remarks)
    alone = [one for one in devices if one.kind == "gpu" and parents[one.bus] is None and one.at[1]] if bridged else []
    if alone:
        more = f" (and {len(alone) - 1} more GPUs)" if len(alone) > 1 else ""
        remarks.append(
            source.remark("cut", f"no bridge leads to {alone[0].bus}{more}: the paragraphs of its ports are missing", alone[0].line)
        )
    facts, cpus = _facts(source, devices, parents, remarks)
    roots = [Listed(one.bus, one.name, None, one.ids, one.line) for one in devices if parents[one.bus] is None]
    cpus = name_cpus(cpus, roots)
    chipset_ports(source, facts, remarks, intel=any(cpu.vendor.startswith("Intel") for cpu in cpus))
    cpus, host = count_sockets(source, cpus, roots, remarks)
    return Imported(source.name, ("lspci-vvv",), box=BoxFacts(devices=tuple(facts), cpus=tuple(cpus), host=host), remarks=tuple(remarks))


def _said(source: SourceText, tree: Listing) -> list[Remark]:
    """What is to be said of the listing as a whole."""
    devices = list(tree.devices.values())
    remarks = []
    if tree.doubled:
        text = f"{len(tree.doubled)} bus ids stand here twice (two listings, or two boxes?): the first is kept"
        remarks.append(source.remark("conflict", text, tree.doubled[0]))
    if tree.over:
        remarks.append(source.remark("cut", f"only the first {MOST_DEVICES} devices are read"))
    denied = next((one for one in devices if one.denied), None)
    if denied is not None:
        text = "links, ACS and payload sizes are hidden (access denied): run it as root, sudo lspci -vvv"
        remarks.append(source.remark("cut", text, denied.line))
    dropped = [one for one in devices if one.kind is None]
    if dropped:
        text = f"{len(dropped)} device(s) that are neither port nor GPU nor network card"
        remarks.append(source.remark("ignored", text, dropped[0].line))
    last = devices[-1]
    like = [one for one in devices[:-1] if one.kind == last.kind]
    short = last.kind is not None and last.link_max is None and len(like) > 0 and all(one.link_max is not None for one in like)
    if short or (last.kind == "bridge" and last.lines and last.buses is None):
        remarks.append(source.remark("cut", f"the text ends inside {last.bus}", last.line))
    return remarks


def _flat(source: SourceText, devices: Sequence[Paragraph], remarks: list[Remark]) -> Imported:
    """A listing without bridges: GPUs with names, buses and, where they are printed, links; no tree."""
    gpus = [one for one in devices if one.kind == "gpu"]
    if not gpus:
        raise source.error("a list of devices without a GPU of NVIDIA, AMD or Intel; run it on the box itself", devices[0].line)
    text = "no bridges are listed, so there is no tree: GPUs are numbered in bus order; `sudo lspci -vvv` of all devices says more"
    remarks.append(source.remark("assumed", text, gpus[0].line))
    facts = [
        GpuFact(
            index,
            one.name,
            one.bus,
            one.link,
            numa=(one.numa,) if one.numa is not None else (),
            device_gen=one.link_max.gen if one.link_max is not None else None,
            bar1_bytes=one.bar,
        )
        for index, one in enumerate(sorted(gpus, key=lambda one: one.bus))
    ]
    return Imported(source.name, ("lspci-vvv",), box=BoxFacts(gpus=tuple(facts)), remarks=tuple(remarks))


def _parents(source: SourceText, devices: Sequence[Paragraph], remarks: list[Remark]) -> dict[str, str | None]:
    """Bus id -> bus id of the bridge above it (None: on a root bus)."""
    bridges = [one for one in devices if one.kind == "bridge" and one.buses is not None]
    remarks += _bad_ranges(source, bridges)
    leads_to: dict[tuple[int, int], Paragraph] = {}
    for one in bridges:
        if one.buses is not None and one.buses[0] != one.at[1] and one.buses[0] != 0:
            leads_to.setdefault((one.at[0], one.buses[0]), one)
    by_domain: dict[int, list[Paragraph]] = {}
    for one in bridges:
        by_domain.setdefault(one.at[0], []).append(one)
    memo: dict[tuple[int, int], Paragraph | None] = {}
    missing: list[Paragraph] = []
    parents: dict[str, str | None] = {}
    for one in devices:
        above = leads_to.get(one.at)
        if above is None:
            if one.at not in memo:
                memo[one.at] = _around(one.at, by_domain.get(one.at[0], ()))
            above = memo[one.at]
            if above is not None and one.kind is not None:
                missing.append(one)
        parents[one.bus] = above.bus if above is not None and above is not one else None
    lost = _without_loops(parents)
    if lost:
        remarks.append(source.remark("conflict", f"bus numbers of {lost[0]} lead back to itself: put on a root bus"))
    if missing:
        text = f"the bridge right above {missing[0].bus} is not listed: put below the nearest one whose buses include it"
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        remarks.append(source.remark("assumed", text + more, missing[0].line))
    return parents


def _bad_ranges(source: SourceText, bridges: Sequence[Paragraph]) -> list[Remark]:
    """Bus ranges that cannot be: their end before their beginning, or two that overlap and neither holds the other."""
    backward: list[Paragraph] = []
    spans: dict[int, list[tuple[int, int, Paragraph]]] = {}
    for one in bridges:
        first, last = one.buses or (0, 0)
        if first > last:
            backward.append(one)
        elif first > 0:
            spans.setdefault(one.at[0], []).append((first, -last, one))
    crossing: list[tuple[Paragraph, Paragraph]] = []
    for listed in spans.values():
        open_: list[tuple[int, Paragraph]] = []
        for first, last, one in sorted(listed, key=lambda span: span[:2]):
            while open_ and open_[-1][0] < first:
                open_.pop()
            # a range that begins inside another must end there, and its bridge must stand on one of the other's buses
            if open_ and (open_[-1][0] < -last or not _leads_to(open_[-1][1], one)):
                crossing.append((open_[-1][1], one))
            open_.append((-last, one))
    remarks = []
    if backward:
        one = backward[0]
        text = f"{one.bus}: buses {_span(one)}, an end before the beginning{_more(backward)}: only its first bus is used"
        remarks.append(source.remark("conflict", text, one.line))
    if crossing:
        a, b = crossing[0]
        text = f"{a.bus} (buses {_span(a)}) and {b.bus} (buses {_span(b)}) cannot both be{_more(crossing)}: some parents may be wrong"
        remarks.append(source.remark("conflict", text, b.line))
    return remarks


def _leads_to(above: Paragraph, one: Paragraph) -> bool:
    first, last = above.buses or (0, 0)
    return first <= one.at[1] <= last


def _span(one: Paragraph) -> str:
    first, last = one.buses or (0, 0)
    return f"{first:02x}-{last:02x}"


def _more(found: Sequence[object]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""


def _around(at: tuple[int, int], bridges: Sequence[Paragraph]) -> Paragraph | None:
    """The bridge (of one domain) with the smallest range of buses that includes ``at``."""
    best: tuple[int, Paragraph] | None = None
    for one in bridges:
        if one.buses is None:
            continue
        first, last = one.buses
        if first < at[1] <= last and one.at[1] < first and (best is None or last - first < best[0]):
            best = (last - first, one)
    return best[1] if best is not None else None


def _without_loops(parents: dict[str, str | None]) -> list[str]:
    """Cut loops; the keys where one was cut."""
    fine: set[str] = set()
    cut = []
    for key in parents:
        path: list[str] = []
        seen: set[str] = set()
        now: str | None = key
        while now is not None and now not in fine:
            if now in seen:
                parents[now] = None
                cut.append(now)
                break
            seen.add(now)
            path.append(now)
            now = parents.get(now)
        fine.update(path)
    return cut


def _role(one: Paragraph, guess: tuple[DeviceKind, BridgeRole | None] | None) -> tuple[DeviceKind, BridgeRole | None]:
    """Kind and role of a bridge: what its capability says, else its place."""
    if one.express.startswith("Root Port"):
        return "root_port", None
    if one.express.startswith("Upstream"):
        return "bridge", "upstream"
    if one.express.startswith("Downstream"):
        return "bridge", "downstream"
    if one.express or guess is None:
        return "bridge", None
    return guess


def _facts(
    source: SourceText, devices: Sequence[Paragraph], parents: dict[str, str | None], remarks: list[Remark]
) -> tuple[list[DeviceFact], list[CpuFact]]:
    """Devices that are kept, and the CPU nodes that they hang on."""
    kept = [one for one in devices if one.kind is not None]
    by_bus = {one.bus: one for one in kept}
    guess = roles({one.bus: parents[one.bus] for one in kept if one.kind == "bridge"})
    siblings: dict[str, list[str]] = {}
    for one in devices:
        siblings.setdefault(one.bus[:-2], []).append(f"{one.class_text} {one.name}")
    nodes = _nodes(source, devices, parents, remarks)
    cpus: dict[str, CpuFact] = {}
    facts: list[DeviceFact] = []
    inside: list[Paragraph] = []
    for one in kept:
        kind, role = _role(one, guess.get(one.bus)) if one.kind == "bridge" else (one.kind or "other", None)
        parent = parents[one.bus] if parents[one.bus] in by_bus else None
        if kind == "gpu" and integrated(one.name, one.ids, below_port=parent is not None, siblings=siblings[one.bus[:-2]]):
            kind = "other"
            inside.append(one)
        cpu = None
        if parent is None:
            node = one.numa if one.numa is not None else nodes.get(one.at)
            cpu = f"numa{node}" if node is not None else f"bus-{one.bus[: one.bus.rindex(':')]}"
            cpus.setdefault(cpu, CpuFact(cpu, numa=node))
        facts.append(_fact(one, kind, role, parent, cpu))
    if inside:
        text = f"{inside[0].bus} is part of the CPU (integrated graphics): not taken for a GPU"
        remarks.append(source.remark("note", text, inside[0].line))
    return facts, list(cpus.values())


def _fact(one: Paragraph, kind: DeviceKind, role: BridgeRole | None, parent: str | None, cpu: str | None) -> DeviceFact:
    return DeviceFact(
        key=one.bus,
        kind=kind,
        parent=parent,
        cpu=cpu,
        bus=one.bus,
        role=role,
        ids=one.ids,
        subsystem=one.subsystem,
        name=one.name,
        link=one.link,
        link_max=one.link_max,
        numa=one.numa,
        acs_redirect=one.acs,
        max_payload=one.payload,
        max_payload_cap=one.payload_cap,
        bar1_bytes=one.bar if kind == "gpu" else None,
        line=one.line,
    )


def _nodes(
    source: SourceText, devices: Sequence[Paragraph], parents: dict[str, str | None], remarks: list[Remark]
) -> dict[tuple[int, int], int]:
    """NUMA node of each root bus, by any device on it or below it that prints one."""
    found: dict[tuple[int, int], int] = {}
    at = {one.bus: one.at for one in devices}
    differ: Paragraph | None = None
    for one in devices:
        if one.numa is None:
            continue
        for key in _chain(one.bus, parents):
            if parents.get(key) is None and found.setdefault(at[key], one.numa) != one.numa:
                differ = differ or one
    if differ is not None:
        text = f"{differ.bus} prints NUMA node {differ.numa}, others of its root bus another one: each keeps its own"
        remarks.append(source.remark("conflict", text, differ.line))
    return found


def _chain(key: str, parents: dict[str, str | None]) -> Iterator[str]:
    """``key`` and all above it."""
    now: str | None = key
    while now is not None:
        yield now
        now = parents.get(now)
