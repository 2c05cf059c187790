"""Paragraphs of ``lspci -v``: one device each, whatever stands before the lines (``#``, ``>``, a log's prefix)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pcie_sim.importers.facts import DeviceKind, LinkFact, bus_id, link_fact
from pcie_sim.importers.lspci_names import MOST_DEVICES, class_number, kind_by_class, named

_BUS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]"
_CLASS = r"(?:(?![0-9a-f]{4}: )([A-Z0-9][A-Za-z0-9 /,&+-]{2,60}?)(?: \[([0-9a-f]{4})\])?|([0-9a-f]{4}))"
_HEAD = re.compile(rf"(.{{0,60}}?)(?<![0-9A-Za-z:.])({_BUS}) {_CLASS}: (\S.{{0,400}})$")
_BUSES = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_NUMA = re.compile(r"NUMA node: ([0-9]{1,3})(?![0-9])")
_EXPRESS = re.compile(r"Express \(v[0-9]\) ([A-Z][A-Za-z -]{3,50}?)(?: \(Slot[+-]\)|,|$|\s{2})")
_CAP = re.compile(r"LnkCap:.{0,40}?Speed ([^,]{1,24}), Width (x[0-9]{1,2})")
_STA = re.compile(r"LnkSta:\s{0,8}Speed ([^,]{1,40}), Width (x[0-9]{1,2})")
_PAYLOAD = re.compile(r"MaxPayload ([0-9]{2,4}) bytes")
_ACS = re.compile(r"ACSCtl:.{0,60}?ReqRedir([+-])")
_REGION = re.compile(r"(?:Region [0-9]: )?Memory at .{1,60}?prefetchable\).{0,40}?\[size=([0-9]{1,5})([KMGT]?)\]")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LONGEST = 600


def says_lspci(line: str) -> bool:
    """A line that stands in nothing but lspci's paragraphs."""
    if len(line) > _LONGEST:
        return False
    return _BUSES.search(line) is not None or "LnkCap:" in line or "Control: I/O" in line or "Kernel driver in use" in line


@dataclass
class Paragraph:
    """One paragraph."""

    bus: str
    line: int
    kind: DeviceKind | None
    class_text: str
    name: str
    ids: tuple[int, int] | None
    subsystem: tuple[int, int] | None = None
    buses: tuple[int, int] | None = None
    """(secondary, subordinate) of a bridge."""
    numa: int | None = None
    express: str = ""
    link: LinkFact | None = None
    link_max: LinkFact | None = None
    acs: bool | None = None
    payload: int | None = None
    payload_cap: int | None = None
    bar: int | None = None
    denied: bool = False
    lines: int = 0
    in_control: bool = False

    @cached_property
    def at(self) -> tuple[int, int]:
        """(domain, bus)."""
        domain, bus, _rest = self.bus.split(":")
        return int(domain, 16), int(bus, 16)


@dataclass
class Listing:
    """All paragraphs, by bus id. ``doubled``: lines that begin a device a second time; ``over``: devices beyond the bound."""

    devices: dict[str, Paragraph] = field(default_factory=dict)
    doubled: list[int] = field(default_factory=list)
    over: int = 0


def head_of(line: str) -> re.Match[str] | None:
    """A line that begins a device: prefix, bus id, class by name and number, class by number alone, the rest."""
    if len(line) > _LONGEST or ":" not in line or "." not in line:
        return None
    match = _HEAD.match(line)
    if match is None or (match.group(1).strip() and match.group(1)[-1] not in " \t:>|#"):
        return None
    return match


def paragraphs(lines: Sequence[str]) -> Listing:
    """All devices of ``lines``."""
    tree = Listing()
    now: Paragraph | None = None
    prefix = ""
    for number, line in enumerate(lines, 1):
        head = head_of(line)
        if head is not None:
            prefix = head.group(1)
            now = _begin(head, number)
            if now is None:
                continue
            if now.bus in tree.devices:
                tree.doubled.append(number)
                continue
            if len(tree.devices) >= MOST_DEVICES:
                tree.over += 1
                continue
            tree.devices[now.bus] = now
        elif now is not None:
            text = line[len(prefix) :] if prefix and line.startswith(prefix) else line
            text = text[:_LONGEST].strip()
            if text and text not in ("#", ">", "--"):
                now.lines += 1
                _put(now, text)
    return tree


def _begin(head: re.Match[str], number: int) -> Paragraph | None:
    bus = bus_id(head.group(2))
    if bus is None:
        return None
    code = head.group(4) or head.group(5)
    class_text = head.group(3) or ""
    rest = head.group(6)
    if head.group(5) is not None:  # lspci -n: numbers only
        rest = re.sub(r"^([0-9a-f]{4}:[0-9a-f]{4})", r"[\1]", rest)
    told = named(rest)
    number_of_class = int(code, 16) if code else class_number(class_text)
    return Paragraph(bus, number, kind_by_class(number_of_class, told.name, told.ids), class_text, told.name, told.ids)


def _put(now: Paragraph, text: str) -> None:
    """One line of a paragraph."""
    if now.kind is None and not text.startswith("NUMA node"):
        return
    if text.startswith("Bus: "):
        found = _BUSES.search(text)
        if found is not None and now.buses is None:
            now.buses = (int(found.group(2), 16), int(found.group(3), 16))
    elif "NUMA node: " in text:
        found = _NUMA.search(text)
        now.numa = int(found.group(1)) if found is not None and now.numa is None else now.numa
    elif text.startswith("Subsystem: "):
        now.subsystem = named(text.removeprefix("Subsystem: ")).ids
    elif "<access denied>" in text:
        now.denied = True
    elif "Express (v" in text:
        found = _EXPRESS.search(text)
        now.express = now.express or (found.group(1).strip() if found is not None else "")
    elif "LnkCap:" in text:
        found = _CAP.search(text)
        now.link_max = now.link_max or (link_fact(found.group(1), found.group(2)) if found is not None else None)
    elif "LnkSta:" in text:
        found = _STA.search(text)
        now.link = now.link or (link_fact(found.group(1), found.group(2)) if found is not None else None)
    elif "ACSCtl:" in text:
        found = _ACS.search(text)
        now.acs = found.group(1) == "+" if found is not None and now.acs is None else now.acs
    elif "Memory at" in text and now.kind == "gpu":
        found = _REGION.search(text)
        if found is not None and "non-prefetchable" not in text:
            now.bar = max(now.bar or 0, int(found.group(1)) * _UNITS[found.group(2)])
    else:
        _payload(now, text)


def _payload(now: Paragraph, text: str) -> None:
    """DevCap has what the device can on its own line, DevCtl what is set on a line below it."""
    if "DevCap:" in text or "DevCtl:" in text:
        now.in_control = "DevCtl:" in text
    elif "DevSta:" in text:
        now.in_control = False
    found = _PAYLOAD.search(text)
    if found is None:
        return
    if now.in_control:
        now.payload = now.payload or int(found.group(1))
    elif "DevCap:" in text:
        now.payload_cap = now.payload_cap or int(found.group(1))
