"""The facts of files, by the node names of one topology: what the doctor looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pcie_sim.importers.facts import CclFact, DeviceFact, GpuFact, HostFact, MatrixFact, bus_id, bus_key
from pcie_sim.importers.gather import Gathered, gather
from pcie_sim.importers.imported import Imported, Launch
from pcie_sim.importers.numbering import Numbers, number
from pcie_sim.importers.source import Remark
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.measurement import MeasurementSet


@dataclass(frozen=True)
class RelatedMatrix:
    """A matrix with the node name of each row and column (None: no such GPU in the topology) and the file it came from."""

    matrix: MatrixFact
    nodes: tuple[str | None, ...]
    source: str


@dataclass(frozen=True)
class RelatedCcl:
    """A log's library state: ``nodes`` is rank -> GPU node name."""

    ccl: CclFact
    nodes: Mapping[int, str]
    source: str


@dataclass(frozen=True)
class RelatedMeasurement:
    """A measurement set, the file it came from, and the GPU nodes in rank order where the file's device list tells."""

    measured: MeasurementSet
    source: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Related:
    """Facts by node name. Everything is empty where no file says it.

    Attributes:
        devices: node (GPU, switch, root port, nic) -> its device; a switch's is its upstream port (or the whole switch).
        above: node -> the port that its link ends at (a root port or a switch's downstream port), where a file lists ports.
        gpus: GPU node -> what flat lists say of it.
        device_source: node -> file.
    """

    devices: Mapping[str, DeviceFact] = field(default_factory=dict)
    above: Mapping[str, DeviceFact] = field(default_factory=dict)
    gpus: Mapping[str, GpuFact] = field(default_factory=dict)
    device_source: Mapping[str, str] = field(default_factory=dict)
    matrices: tuple[RelatedMatrix, ...] = ()
    ccl: tuple[RelatedCcl, ...] = ()
    measurements: tuple[RelatedMeasurement, ...] = ()
    host: HostFact | None = None
    iommu: bool | None = None
    acs_ports: tuple[DeviceFact, ...] = ()
    """Every port (in the tree of GPUs or not) whose ACS capability is printed."""
    launches: tuple[Launch, ...] = ()
    remarks: tuple[Remark, ...] = ()
    sources: tuple[str, ...] = ()


def relate(spec: TopologySpec, files: Sequence[Imported], *, gathered: Gathered | None = None, numbers: Numbers | None = None) -> Related:
    """The facts of ``files`` by the node names of ``spec``.

    Devices are matched by bus id. What only numbers its GPUs (a matrix, a log's ranks) is matched by bus id where a file gives one for
    the number, else by place in bus order (:mod:`pcie_sim.importers.numbering`); what neither tells is matched with no GPU, and said.
    """
    found = gathered if gathered is not None else gather(files)
    remarks = [] if gathered is not None else list(found.remarks)
    order = _bus_order(spec)
    where = _Places(order, _nodes_by_bus(spec), numbers if numbers is not None else number(found))
    if numbers is None:
        remarks += where.numbers.remarks
    placed = ((where.node(None, device.bus), device) for device in found.devices.values() if device.bus is not None)
    devices = {name: device for name, device in placed if name is not None}
    above: dict[str, DeviceFact] = {}
    for name, device in devices.items():
        port = found.devices.get(device.parent or "")
        if port is not None and (port.kind == "root_port" or port.role == "downstream"):
            above[name] = port
    several = sum(node.kind == "host" for node in spec.nodes.values()) > 1
    logs = []
    for ccl, source in found.ccl:
        nodes = {} if several else where.ranks(ccl)
        if not nodes and (ccl.ranks or ccl.nranks):
            why = "the topology has several hosts" if several else "other bus ids than the topology's, or no place that tells"
            remarks.append(Remark("conflict" if ccl.ranks else "note", f"which GPU each rank of this log is, is not known ({why})", source))
        logs.append(RelatedCcl(ccl, nodes, source))
    flat: dict[str, GpuFact] = {}
    for fact in where.numbers.facts:
        node = where.node(fact.index, fact.bus)
        if node is not None:
            flat.setdefault(node, fact)
    return Related(
        devices=devices,
        above=above,
        gpus=flat,
        device_source={name: found.device_source.get(device.key, "") for name, device in devices.items()},
        matrices=tuple(RelatedMatrix(matrix, where.labels(matrix, source), source) for matrix, source in found.matrices),
        ccl=tuple(logs),
        measurements=tuple(
            RelatedMeasurement(measured, source, () if several else where.members(measured, source))
            for measured, source in found.measurements
        ),
        host=found.host,
        iommu=found.iommu,
        acs_ports=tuple(device for device in found.devices.values() if device.acs_redirect is not None),
        launches=tuple(launch for launch, _ in found.launches),
        remarks=tuple(remarks),
        sources=tuple(dict.fromkeys(Path(source).name for source in found.sources)),
    )


@dataclass(frozen=True)
class _Places:
    """From numbers and bus ids to node names: ``order`` is the GPU nodes in bus order."""

    order: Sequence[str]
    node_at: Mapping[str, str]
    numbers: Numbers

    def node(self, place: int | None, bus: str | None = None) -> str | None:
        """The node of a bus id, else of a place in bus order where the files count as many GPUs as the topology has."""
        if bus is not None and bus in self.node_at:
            return self.node_at[bus]
        if place is None or (self.numbers.count or len(self.order)) > len(self.order):
            return None
        return self.order[place] if place < len(self.order) else None

    def labels(self, matrix: MatrixFact, source: str) -> tuple[str | None, ...]:
        """Nodes of a matrix's rows."""
        if matrix.kind in ("path", "p2p_status") or source not in self.numbers.place_of:
            fits = len(matrix.labels) <= len(self.order)
            return tuple(self._at(label) if fits else None for label in matrix.labels)
        places = self.numbers.place_of[source]
        return tuple(self._at(places.get(label)) for label in matrix.labels)

    def _at(self, place: int | None) -> str | None:
        bus = next((fact.bus for fact in self.numbers.facts if fact.index == place), None)
        return self.node(place, bus)

    def ranks(self, ccl: CclFact) -> dict[int, str]:
        """Rank -> node: by bus id, by nvmlDev, by the order of the bus ids where all GPUs take part, by rank where a log says neither."""
        if ccl.nodes is not None and ccl.nodes > 1:
            return {}
        buses = {rank: known for rank, text in ccl.ranks.items() if (known := bus_id(text)) is not None}
        found = {rank: self.node_at[bus] for rank, bus in buses.items() if bus in self.node_at}
        if found or self.node_at:
            return found
        if ccl.devices and all(place < len(self.order) for place in ccl.devices.values()):
            return {rank: self.order[place] for rank, place in ccl.devices.items()}
        sorted_ = sorted(set(buses.values()), key=bus_key)
        if len(sorted_) == len(self.order):
            return {rank: self.order[sorted_.index(bus)] for rank, bus in buses.items()}
        if not buses and ccl.nranks == len(self.order):
            return dict(enumerate(self.order))
        return {}

    def members(self, measured: MeasurementSet, source: str) -> tuple[str, ...]:
        """GPU nodes of a run in rank order, where its device lines tell; else empty."""
        places = self.numbers.place_of.get(source)
        ranks = {row.ranks for row in measured.rows if row.ranks is not None}
        if not places or len(ranks) != 1 or measured.software.options.get("nodes", "1") != "1":
            return ()
        count = ranks.pop()
        listed = measured.software.options.get("devices", "")
        numbers = [int(text) for text in listed.split(",") if text.isascii() and text.isdigit()][:4096] if listed else list(range(count))
        nodes = [self._at(places.get(index)) for index in numbers]
        known = tuple(node for node in nodes if node is not None)
        return known if len(known) == count and len(set(known)) == count else ()


def _nodes_by_bus(spec: TopologySpec) -> dict[str, str]:
    """Bus id -> node; bus ids that several hosts have are left out."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for name, node in spec.nodes.items():
        bus = bus_id(node.bus) if node.bus is not None else None
        if bus is not None:
            twice |= {bus} if bus in found else set()
            found.setdefault(bus, name)
    return {bus: name for bus, name in found.items() if bus not in twice}


def _bus_order(spec: TopologySpec) -> list[str]:
    """GPU nodes by bus id when every one has one, else as in the file (as :mod:`pcie_sim.topology` ranks them)."""
    gpus = [name for name, node in spec.nodes.items() if node.kind == "gpu"]
    keys = {name: bus_id(spec.nodes[name].bus or "") for name in gpus}
    if all(key is not None for key in keys.values()):
        gpus.sort(key=lambda name: bus_key(keys[name] or ""))
    return gpus
