"""What the devices on the root buses of an lspci listing say of the processor and the board: its name, its sockets, its chipset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pcie_sim.catalog import identify
from pcie_sim.importers.facts import CpuFact, DeviceFact, HostFact
from pcie_sim.importers.source import Remark, SourceText, quoted

_MAKER = re.compile(r"Advanced Micro Devices(?:, Inc\.)? \[AMD\]|Intel Corporation|Ampere Computing, LLC")
"""Those whose processors have PCI devices of their own, as pci.ids writes them."""
_SOCKET_LINK = re.compile(r"\b(?:QPI Link [0-9]|UPI Registers|UPI Link|UPI Misc)")
_PORT_OF_CHIPSET = re.compile(r"\bPCH\b|\bChipset\b", re.IGNORECASE)
_CHIPSET_PORTS = (0x1B, 0x1C, 0x1D)
"""Device numbers of root ports in Intel's chipsets (on bus 0); the processor's own ports have lower ones."""
_DEEPEST = 64


@dataclass(frozen=True)
class Listed:
    """One device of a listing, kept or not; ``parent``: key of the bridge above (None: on a root bus)."""

    bus: str
    name: str
    parent: str | None = None
    ids: tuple[int, int] | None = None
    line: int | None = None

    @property
    def text(self) -> str:
        """The name; with its number where lspci had only ``Device`` and numbers in brackets."""
        return f"{self.name} {self.ids[1]:04x}" if self.ids is not None and self.name.endswith("Device") else self.name


def name_cpus(cpus: Sequence[CpuFact], roots: Iterable[Listed]) -> list[CpuFact]:
    """The CPU nodes with the maker and the name of the device on a root bus that says most of the processor.

    A host has one kind of processor, so the best device of all root buses names them all.

    Args:
        roots: the devices that hang on root buses, in the order of the file.
    """
    listed = [one for one in roots if _MAKER.match(one.name)]
    best = identify.telling_device(one.text for one in listed)
    if best is None:
        first = next((one for one in listed if one.bus.endswith(":00.0")), None)
        best = first.text if first is not None else None
    maker = _MAKER.match(best) if best is not None else None
    if best is None or maker is None or not cpus:
        return list(cpus)
    return [replace(cpu, vendor=maker.group(0), name=best, of_device=True) for cpu in cpus]


def count_sockets(
    source: SourceText, cpus: Sequence[CpuFact], roots: Iterable[Listed], remarks: list[Remark]
) -> tuple[list[CpuFact], HostFact | None]:
    """Sockets by the root buses that hold Intel's links between sockets: each processor has one such bus.

    Where no NUMA nodes are printed, root buses up to the first such bus are the first socket's, those after it up to the next the
    second's: firmware gives each processor a block of bus numbers, and these devices stand at its end.
    """
    found: dict[str, int | None] = {}
    for one in roots:
        if one.name.startswith("Intel") and _SOCKET_LINK.search(one.name):
            found.setdefault(one.bus[: one.bus.rindex(":")], one.line)
    if not found:
        return list(cpus), None
    buses, line = ", ".join(list(found)[:8]), next(iter(found.values()))
    if len(found) not in (2, 4):
        text = f"links between sockets on {len(found)} bus(es) ({buses}): how many sockets is not certain; `lscpu` says it"
        remarks.append(source.remark("note", text, line))
        return list(cpus), None
    remarks.append(source.remark("note", f"{len(found)} sockets: links between sockets on buses {buses}", line))
    host = HostFact(sockets=len(found))
    places = {cpu.key: _bus_of(cpu.key.removeprefix("bus-")) for cpu in cpus}
    ends = sorted(bus for name in found if (bus := _bus_of(name)) is not None and bus[0] == 0)
    if len(ends) < len(found) or any(cpu.numa is not None or places[cpu.key] is None for cpu in cpus):
        return list(cpus), host
    text = (
        f"which root bus is on which socket is not printed: blocks of buses that end at {', '.join(f'{bus:02x}' for _domain, bus in ends)}"
    )
    remarks.append(source.remark("assumed", text, line))
    last = len(ends) - 1
    return [replace(cpu, package=min(sum(end < (places[cpu.key] or (0, 0)) for end in ends), last)) for cpu in cpus], host


def _bus_of(text: str) -> tuple[int, int] | None:
    """``0000:7f`` as (domain, bus)."""
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2})", text)
    return (int(match.group(1), 16), int(match.group(2), 16)) if match is not None else None


def name_switches(source: SourceText, facts: Sequence[DeviceFact], ends: Iterable[Listed], remarks: list[Remark]) -> list[DeviceFact]:
    """Bridges without a name that head a switch, named after a device of the same chip: a function beside them, or what hangs right on
    the switch and is part of it (a chipset's USB and SATA controllers).

    Args:
        ends: the devices of the listing that are no bridges.
    """
    by_key = {fact.key: fact for fact in facts}
    slot_of = {fact.key[:-2]: fact.key for fact in facts if fact.role == "upstream"}
    below: dict[str, str] = {}
    for fact in facts:
        parent = by_key.get(fact.parent or "")
        if fact.kind == "bridge" and parent is not None and parent.role == "upstream" and fact.bus is not None:
            below[fact.key] = parent.key
    hints: dict[str, str] = {}
    heads = set(slot_of.values())
    for end in ends:
        head = slot_of.get(end.bus[:-2]) or below.get(end.parent or "") or (end.parent if end.parent in heads else None)
        if head is not None and head not in hints and not by_key[head].name and identify.switch_by_name(end.name) is not None:
            hints[head] = end.name
    for key, name in hints.items():
        text = f"bridge {key} is printed without a name; {quoted(name, 90)} beside or below it is part of a chip, which it is taken for"
        remarks.append(source.remark("assumed", text, by_key[key].line))
    return [replace(fact, name=hints[fact.key]) if fact.key in hints else fact for fact in facts]


def chipset_ports(source: SourceText, facts: Sequence[DeviceFact], remarks: list[Remark], *, intel: bool) -> None:
    """A note for GPUs below a port of the chipset: what joins the chipset and the processor is no part of the tree."""
    by_key: Mapping[str, DeviceFact] = {fact.key: fact for fact in facts}
    found: list[tuple[DeviceFact, DeviceFact]] = []
    for fact in facts:
        if fact.kind != "gpu":
            continue
        top = fact
        for _ in range(_DEEPEST):
            above = by_key.get(top.parent or "")
            if above is None:
                break
            top = above
        number = int(top.bus.split(":")[2][:2], 16) if top.bus is not None and top.bus.split(":")[1] == "00" else None
        named = top.name.startswith("Intel") and _PORT_OF_CHIPSET.search(top.name) is not None
        if top.kind == "root_port" and (named or (intel and not top.name and number in _CHIPSET_PORTS)):
            found.append((fact, top))
    if found:
        gpu, port = found[0]
        more = f" (and {len(found) - 1} more GPUs)" if len(found) > 1 else ""
        text = f"{gpu.key}{more} hangs on a port of the chipset ({port.key}): at most four lanes, and the chipset's own link is shared"
        remarks.append(source.remark("note", text, gpu.line))
