"""What files say about a box, before anything is concluded: devices, links, matrices, library state. Everything may be unknown (None).

Readers fill these; :mod:`pcie_sim.importers.merge` puts the facts of several files together, the doctor looks at them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

GENERATION_OF_GT = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
"""PCIe generation by transfer rate per lane, GT/s (PCI-SIG)."""
WIDTHS = (1, 2, 4, 8, 16, 32)
_BUS = re.compile(r"(?:(?:0x)?([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")


def bus_id(text: str) -> str | None:
    """A PCI bus id in one spelling, ``0000:c1:00.0``; None where ``text`` is none.

    >>> bus_id("00000000:C1:00.0"), bus_id("c1:00.0"), bus_id("10000:e1:00"), bus_id("GPU0")
    ('0000:c1:00.0', '0000:c1:00.0', '10000:e1:00.0', None)
    """
    match = _BUS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}" if device < 32 else None


@lru_cache(maxsize=16_384)
def bus_id_of_int(text: str) -> str | None:
    """A bus id from NCCL's whole number (``4E000``: bus 4e, device 0, function 0; src/graph/topo.cc, busIdToInt64).

    >>> bus_id_of_int("4E000"), bus_id_of_int("e1000"), bus_id_of_int("200010")
    ('0000:4e:00.0', '0000:e1:00.0', '0002:00:01.0')
    """
    if not re.fullmatch(r"[0-9a-fA-F]{1,12}", text):
        return None
    value = int(text, 16)
    function, device, bus, domain = value & 0xF, (value >> 4) & 0xFF, (value >> 12) & 0xFF, value >> 20
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}" if function < 8 and device < 32 else None


def bus_key(bus: str) -> tuple[int, ...]:
    """A bus id as numbers, for sorting."""
    return tuple(int(part, 16) for part in bus.replace(".", ":").split(":"))


@dataclass(frozen=True)
class LinkFact:
    """A PCIe link or port; None: not said."""

    gen: int | None = None
    width: int | None = None

    @property
    def known(self) -> bool:
        """Both are said."""
        return self.gen is not None and self.width is not None

    def __str__(self) -> str:
        return f"Gen{self.gen if self.gen is not None else '?'} x{self.width if self.width is not None else '?'}"


def either(first: LinkFact | None, second: LinkFact | None) -> LinkFact | None:
    """``first`` with what only ``second`` says."""
    if first is None or second is None:
        return first or second
    return LinkFact(first.gen if first.gen is not None else second.gen, first.width if first.width is not None else second.width)


def link_fact(speed: str | float | None, width: str | int | None) -> LinkFact | None:
    """A link from what tools print (``32.0 GT/s PCIe``, ``16``, ``x8``); parts that say nothing ("", "Unknown", 0) are None.

    >>> str(link_fact("32.0 GT/s PCIe", "16")), str(link_fact("Unknown", "x8")), link_fact("", "0")
    ('Gen5 x16', 'Gen? x8', None)
    """
    match = re.search(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)", str(speed)) if speed is not None else None
    gen = GENERATION_OF_GT.get(float(match.group(1))) if match is not None else None
    match = re.fullmatch(r"\s*x?([0-9]{1,3})\s*", str(width)) if width is not None else None
    lanes = int(match.group(1)) if match is not None and int(match.group(1)) in WIDTHS else None
    return LinkFact(gen, lanes) if gen is not None or lanes is not None else None


DeviceKind = Literal["root_port", "bridge", "gpu", "nic", "other"]
"""``bridge``: any PCI-PCI bridge whose role is not said (or a switch's upstream port, or a whole switch as NCCL lists it)."""
BridgeRole = Literal["upstream", "downstream", "switch"]
"""A switch's upstream port, one of its downstream ports, or the whole switch as one entry (NCCL's XML)."""


@dataclass(frozen=True)
class DeviceFact:
    """One device of a PCIe tree.

    Attributes:
        key: unique among the devices of one file: the bus id where it has one.
        parent: key of the device above it; None: it hangs on a CPU (a root port of its own, or one that is not listed).
        cpu: key of the :class:`CpuFact` above (for devices without a parent).
        ids, subsystem: (vendor, device) numbers.
        link: the link to what is above as it was when the file was made; ``link_max``: what this device's own port can. A root port's and a
            switch's downstream port's own link is the one *below* it: there both describe that one (lspci's LnkSta and LnkCap).
        downlink_max: bridges: what the port below (a root or downstream port's own link) can, where it is not the same as ``link_max``.
        gpu_index: the number that the driver or CUDA gives it; ``rank``: of the communicator.
        acs_redirect: ACSCtl has request redirect on (None: no such capability printed).
        max_payload: bytes in force; ``max_payload_cap``: what the device can.
        sm: compute capability times ten (120).
    """

    key: str
    kind: DeviceKind
    parent: str | None = None
    cpu: str | None = None
    bus: str | None = None
    role: BridgeRole | None = None
    ids: tuple[int, int] | None = None
    subsystem: tuple[int, int] | None = None
    name: str = ""
    link: LinkFact | None = None
    link_max: LinkFact | None = None
    rate_class: float | None = None
    """The link above in NCCL's classes (its log's tree): B/s, lanes times a round figure of the generation."""
    numa: int | None = None
    gpu_index: int | None = None
    rank: int | None = None
    sm: int | None = None
    acs_redirect: bool | None = None
    max_payload: int | None = None
    max_payload_cap: int | None = None
    bar1_bytes: int | None = None
    nvlinks: tuple[tuple[str, int], ...] = ()
    """GPUs: (bus id of the peer, or "" for an NVSwitch, number of links)."""
    line: int | None = None


@dataclass(frozen=True)
class CpuFact:
    """One CPU node as the file draws it: a NUMA node (NCCL, lspci) or a package (hwloc, lscpu: ``sockets`` of the whole host)."""

    key: str
    numa: int | None = None
    package: int | None = None
    """Physical socket number where the file says it."""
    arch: str = ""
    vendor: str = ""
    family: int | None = None
    model: int | None = None
    name: str = ""
    """Model name (``AMD EPYC 9575F 64-Core Processor``)."""
    cpus: tuple[tuple[int, int], ...] = ()
    """Ranges of logical CPUs, both ends included."""
    of_device: bool = False
    """``vendor`` and ``name`` are those of a PCI device on its root bus (``... Turin Root Complex``): anything that names the processor
    itself is better."""


@dataclass(frozen=True)
class HostFact:
    """The host as a whole (lscpu, numactl, nvidia-smi's head)."""

    sockets: int | None = None
    numa_nodes: int | None = None
    cpu_vendor: str = ""
    cpu_name: str = ""
    family: int | None = None
    model: int | None = None
    driver: str = ""
    cuda: str = ""


@dataclass(frozen=True)
class GpuFact:
    """One GPU as a flat list names it (nvidia-smi, nccl-tests' device lines, a matrix's rows)."""

    index: int
    name: str = ""
    bus: str | None = None
    link: LinkFact | None = None
    link_max: LinkFact | None = None
    """The most that GPU and slot allow together (nvidia-smi's Max); what each can alone: ``device_gen``, ``host_gen``."""
    numa: tuple[int, ...] = ()
    """NUMA nodes in its affinity column; several: the file does not say which."""
    cpus: str = ""
    """The affinity column as printed."""
    memory_bytes: int | None = None
    device_gen: int | None = None
    host_gen: int | None = None
    bar1_bytes: int | None = None
    numbering: Literal["bus", "cuda"] = "bus"
    """What ``index`` counts: the host's GPUs in bus order (nvidia-smi), or the devices that a CUDA process sees (CUDA_VISIBLE_DEVICES)."""


MatrixKind = Literal["path", "p2p_status", "peer_access", "bandwidth", "latency"]


@dataclass(frozen=True)
class MatrixFact:
    """One matrix over GPUs (row: first, column: second). Cells that say nothing are None.

    Attributes:
        kind: ``path``: words of nvidia-smi topo -m (X PIX PXB PHB NODE SYS NV4 ...); ``p2p_status``: words of topo -p2p (OK, NS, CNS ...);
            ``peer_access``: 0 or 1; ``bandwidth``: B/s; ``latency``: s.
        labels: GPU numbers of rows and columns: of nvidia-smi for path and p2p_status, CUDA's for the others.
        title: the matrix's own title.
        p2p: of bandwidth and latency: whether peer access was enabled; ``bidirectional``: both ways at once.
        access: of p2p_status r|w|n|a|p where it is known; of bandwidth ``read`` or ``write``.
        engine: ``ce`` (copy engine) or ``sm``.
    """

    kind: MatrixKind
    labels: tuple[int, ...]
    cells: tuple[tuple[str | float | None, ...], ...]
    title: str = ""
    p2p: bool | None = None
    bidirectional: bool = False
    access: str = ""
    engine: str = ""
    nic_cells: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """kind path: network card -> its path word to each GPU; names by the legend where there is one."""
    line: int | None = None


@dataclass(frozen=True)
class RingFact:
    """A ring as a log or graph file has it: rank (or device) numbers in order, per channel."""

    channel: int
    members: tuple[int, ...]
    by: Literal["rank", "dev"] = "rank"


@dataclass(frozen=True)
class GraphFact:
    """One searched graph (log's ``Pattern`` line or a <graph> element): speeds in B/s per channel."""

    pattern: int
    channels: int
    speed_intra: float
    type_intra: str
    line: int | None = None
    fell_back: bool = False


@dataclass(frozen=True)
class ChoiceFact:
    """What the library chose for one call (TUNING lines)."""

    op: str
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None = None


@dataclass(frozen=True)
class CclFact:
    """What a log or a command says about the collective library.

    ``transports``: (rank, rank) -> words of the log (``P2P/CUMEM``, ``SHM/direct``, ``NET/Socket``). ``ranks``: rank -> bus id.
    ``devices``: rank -> number of its GPU in bus order (nvmlDev). ``paths``: (bus id, bus id) -> path type as the library sees it.
    """

    name: Literal["nccl", "rccl"] = "nccl"
    version: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    nranks: int | None = None
    nodes: int | None = None
    transports: Mapping[tuple[int, int], str] = field(default_factory=dict)
    ranks: Mapping[int, str] = field(default_factory=dict)
    devices: Mapping[int, int] = field(default_factory=dict)
    paths: Mapping[tuple[str, str], str] = field(default_factory=dict)
    rings: tuple[RingFact, ...] = ()
    graphs: tuple[GraphFact, ...] = ()
    choices: tuple[ChoiceFact, ...] = ()
    coll_channels: int | None = None
    p2p_channels: int | None = None
    line: int | None = None


@dataclass(frozen=True)
class BoxFacts:
    """Everything one file says about a box."""

    devices: tuple[DeviceFact, ...] = ()
    cpus: tuple[CpuFact, ...] = ()
    host: HostFact | None = None
    gpus: tuple[GpuFact, ...] = ()
    matrices: tuple[MatrixFact, ...] = ()
    ccl: tuple[CclFact, ...] = ()
    iommu: bool | None = None
    acs_redirect: bool | None = None

    @property
    def empty(self) -> bool:
        """Nothing at all is said."""
        return self == BoxFacts()
