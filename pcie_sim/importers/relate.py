"""The facts of files, by the node names of one topology: what the doctor looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pcie_sim.importers.facts import CclFact, DeviceFact, GpuFact, HostFact, MatrixFact, bus_id
from pcie_sim.importers.gather import Gathered, gather
from pcie_sim.importers.imported import Imported, Launch
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
    """A measurement set and the file it came from."""

    measured: MeasurementSet
    source: str


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


def relate(spec: TopologySpec, files: Sequence[Imported], *, gathered: Gathered | None = None) -> Related:
    """The facts of ``files`` by the node names of ``spec``.

    Devices are matched by bus id. What only numbers its GPUs (a matrix, a log's ranks) is matched by bus id where a file gives one for
    the number, else by bus order, which is the order of nvidia-smi and of CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    found = gathered if gathered is not None else gather(files)
    node_at = {bus: name for name, node in spec.nodes.items() if node.bus is not None and (bus := bus_id(node.bus)) is not None}
    order = _bus_order(spec)
    devices = {node_at[device.bus]: device for device in found.devices.values() if device.bus in node_at}
    above: dict[str, DeviceFact] = {}
    for name, device in devices.items():
        port = found.devices.get(device.parent or "")
        if port is not None and (port.kind == "root_port" or port.role == "downstream"):
            above[name] = port
    bus_of_index = {fact.index: fact.bus for fact, _ in found.gpus if fact.bus is not None}
    bus_of_index |= {one.gpu_index: one.bus for one in found.gpu_devices() if one.gpu_index is not None and one.bus is not None}
    remarks = [] if gathered is not None else list(found.remarks)

    def node_of(index: int, count: int) -> str | None:
        known = node_at.get(bus_of_index.get(index) or "")
        if known is not None:
            return known
        return order[index] if index < len(order) and count <= len(order) else None

    matrices = tuple(
        RelatedMatrix(matrix, tuple(node_of(label, max(matrix.labels, default=-1) + 1) for label in matrix.labels), source)
        for matrix, source in found.matrices
    )
    logs = []
    for ccl, source in found.ccl:
        nodes = {rank: node_at[known] for rank, bus in ccl.ranks.items() if (known := bus_id(bus)) in node_at and known is not None}
        if not nodes and ccl.nranks is not None and ccl.nranks <= len(order):
            nodes = dict(enumerate(order[: ccl.nranks]))
            if ccl.ranks and node_at:
                text = "the GPUs of this log are not those of the topology (other bus ids): ranks are taken in bus order"
                remarks.append(Remark("conflict", text, source))
        logs.append(RelatedCcl(ccl, nodes, source))
    flat: dict[str, GpuFact] = {}
    for fact, _ in found.gpus:
        node = node_at.get(fact.bus or "") or node_of(fact.index, fact.index + 1)
        if node is not None:
            flat.setdefault(node, fact)
    return Related(
        devices=devices,
        above=above,
        gpus=flat,
        device_source={name: found.device_source.get(device.key, "") for name, device in devices.items()},
        matrices=matrices,
        ccl=tuple(logs),
        measurements=tuple(RelatedMeasurement(measured, source) for measured, source in found.measurements),
        host=found.host,
        iommu=found.iommu,
        acs_ports=tuple(device for device in found.devices.values() if device.acs_redirect is not None),
        launches=tuple(launch for launch, _ in found.launches),
        remarks=tuple(remarks),
        sources=tuple(found.sources),
    )


def _bus_order(spec: TopologySpec) -> list[str]:
    """GPU nodes by bus id when every one has one, else as in the file (as :mod:`pcie_sim.topology` ranks them)."""
    gpus = [name for name, node in spec.nodes.items() if node.kind == "gpu"]
    keys = {name: bus_id(spec.nodes[name].bus or "") for name in gpus}
    if all(key is not None for key in keys.values()):
        gpus.sort(key=lambda name: tuple(int(part, 16) for part in (keys[name] or "").replace(".", ":").split(":")))
    return gpus
