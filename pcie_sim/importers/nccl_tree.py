"""The tree and the tuning table that an NCCL log prints (subsystems GRAPH and TUNING)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pcie_sim.importers.facts import CpuFact, DeviceFact, DeviceKind
from pcie_sim.importers.nccl_comm import OPS, node_bus
from pcie_sim.importers.nccl_text import Notes

MAX_DEVICES = 4096
_SYSTEM = re.compile(r"=== System : max(?:Bw|Width) ")
_CPU = re.compile(r"\s{0,4}CPU/(?:[0-9a-fA-F]{1,8}-)?([0-9a-fA-F]{1,8})(?: \(([0-9]{1,3})/([0-9]{1,3})/(-?[0-9]{1,4})\))?\s{0,4}$")
_CHILD = re.compile(
    r"([ ]{0,400})\+ ([A-Z0-9]{2,4})\[[ ]{0,3}([0-9]{1,6}\.[0-9]{1,3})\] - "
    r"([A-Z0-9]{2,4})/([0-9a-fA-F]{1,12}(?:-[0-9a-fA-F]{1,12})?)(?: \(([^)]{1,40})\))?"
)
_ARCHS = {"1": "x86_64", "2": "ppc64", "3": "arm64"}
_VENDORS = {("1", "1"): "GenuineIntel", ("1", "2"): "AuthenticAMD", ("1", "3"): "Shanghai"}
"""NCCL: src/include/graph.h (NCCL_TOPO_CPU_ARCH_*, NCCL_TOPO_CPU_VENDOR_*); the words of its XML."""
_KINDS: dict[str, DeviceKind] = {"PCI": "bridge", "GPU": "gpu", "NIC": "nic"}
_CELL = re.compile(r"\s{0,12}([0-9]{1,8}\.[0-9]{1,4})/\s{0,12}([0-9]{1,8}\.[0-9]{1,4})\s{0,12}")


@dataclass
class TreeReader:
    """Reads the block between ``=== System`` and ``=====`` of one rank."""

    notes: Notes
    devices: dict[str, DeviceFact] = field(default_factory=dict)
    cpus: dict[str, CpuFact] = field(default_factory=dict)
    bandwidths: list[tuple[str, str, float]] = field(default_factory=list)
    """(node, kind of link to what is above, GB/s in NCCL's classes)."""
    open: bool = True
    broken: bool = False
    _above: list[tuple[int, str, str]] = field(default_factory=list)
    """(column of its name, which is where its children begin; key, "" for what is no device; kind)."""
    _cpu: str | None = None

    @property
    def whole(self) -> bool:
        """It ended as it should and names GPUs."""
        return not self.open and not self.broken and any(device.kind == "gpu" for device in self.devices.values())

    def feed(self, text: str, number: int) -> None:
        """One message of the same rank."""
        if text.startswith("====="):
            self.open = False
        elif self.broken:
            return
        elif (match := _CPU.match(text)) is not None:
            self._cpu = f"CPU/{match.group(1).lower()}"
            self._above = []
            arch, vendor = match.group(2) or "", match.group(3) or ""
            numa = int(match.group(1), 16)
            self.cpus[self._cpu] = CpuFact(
                key=self._cpu, numa=numa if numa < 4096 else None, arch=_ARCHS.get(arch, ""), vendor=_VENDORS.get((arch, vendor), "")
            )
        elif (match := _CHILD.match(text)) is not None:
            self._child(match, number)
        elif "+ " in text and "] - " in text:
            self.broken = True

    def _child(self, match: re.Match[str], number: int) -> None:
        indent, link, kind, node, note = len(match.group(1)), match.group(2), match.group(4), match.group(5), match.group(6)
        while self._above and self._above[-1][0] > indent:
            self._above.pop()
        if indent and (not self._above or self._above[-1][0] != indent):  # the line above this one is missing
            self.broken = True
            return
        if kind not in _KINDS or link not in ("PCI", "NIC"):
            if link == "NVL":
                self.notes.add("ignored", "NVLinks of the log's tree are bandwidths, not numbers of links: left out", number)
            self._above.append((match.start(4), "", kind))
            return
        bus = node_bus(node) if node.rpartition("-")[2].strip("0") else None
        key = bus or f"{kind}/{node.lower()}"
        parent = next((name for _indent, name, _kind in reversed(self._above) if name), None)
        if self._cpu is None or (self._above and parent is None) or key in self.devices or len(self.devices) >= MAX_DEVICES:
            self.broken = True
            return
        ids = _ids(note) if kind == "PCI" else None
        rank = int(note) if kind == "GPU" and note is not None and re.fullmatch(r"[0-9]{1,5}", note) else None
        self.devices[key] = DeviceFact(
            key=key,
            kind=_KINDS[kind],
            parent=parent,
            cpu=self._cpu if parent is None else None,
            bus=bus,
            role="switch" if kind == "PCI" else None,
            ids=ids[:2] if ids else None,
            subsystem=ids[2:] if ids and any(ids[2:]) else None,
            rate_class=float(match.group(3)) * 1e9 if link == "PCI" else None,
            rank=rank,
            line=number,
        )
        self.bandwidths.append((key, link, float(match.group(3))))
        self._above.append((match.start(4), key, kind))


def _ids(note: str | None) -> tuple[int, int, int, int] | None:
    """``11f8400011f8beef``: vendor, device, subsystem vendor, subsystem device."""
    if note is None or not re.fullmatch(r"[0-9a-fA-F]{9,16}", note):
        return None
    value = int(note, 16)
    return value >> 48, (value >> 32) & 0xFFFF, (value >> 16) & 0xFFFF, value & 0xFFFF


def starts_tree(text: str) -> bool:
    """The line before a tree."""
    return "=== System" in text and _SYSTEM.search(text) is not None


class TuningTable:
    """Latency and bandwidth of every algorithm and protocol as NCCL assumes them: op -> algorithm -> protocol -> (us, GB/s)."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        self._algorithms: list[str] = []
        self._protocols: list[str] = []

    def feed(self, text: str) -> None:
        """One message."""
        head, bar, rest = text.partition("|")
        if not bar:
            return
        head = head.strip()
        cells = [cell.strip() for cell in rest[:4000].split("|") if cell.strip()]
        if head == "Algorithm" and len(cells) <= 16:
            self._algorithms = [cell.lower() for cell in cells if re.fullmatch(r"[A-Za-z0-9_]{1,20}", cell)]
        elif head == "Protocol" and len(cells) <= 64:
            self._protocols = [cell for cell in cells if re.fullmatch(r"[A-Za-z0-9]{1,10}", cell)]
        elif head in OPS and self._algorithms and len(cells) == len(self._protocols) == 3 * len(self._algorithms):
            figures = [_CELL.fullmatch(cell) for cell in cells]
            op = self.rows.setdefault(OPS[head], {})
            for index, figure in enumerate(figures):
                if figure is not None and float(figure.group(2)) > 0:
                    pair = (float(figure.group(1)), float(figure.group(2)))
                    op.setdefault(self._algorithms[index // 3], {}).setdefault(self._protocols[index], pair)
