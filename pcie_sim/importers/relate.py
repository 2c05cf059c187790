"""The facts of files, by the node names of one topology: what the doctor looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pcie_sim.importers.facts import BoxFacts, CclFact, DeviceFact, GpuFact, HostFact, MatrixFact
from pcie_sim.importers.imported import Launch
from pcie_sim.importers.source import Remark
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


__all__ = ["BoxFacts", "Related", "RelatedCcl", "RelatedMatrix", "RelatedMeasurement"]
