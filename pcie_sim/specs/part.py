"""Parts of a box as data files (``catalog/parts/*.yaml``): PCIe itself, CPU sockets, switches, network cards, interconnects, libraries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pcie_sim.evidence import Evidence
from pcie_sim.specs.base import Name, Quantity, Spec, Text
from pcie_sim.specs.gpu import PcieLink


class PcieGeneration(Spec):
    """One PCIe generation: transfer rate per lane (T/s) and the line code's payload share (0..1)."""

    transfers_per_s: Quantity
    line_code: Quantity


class PciePart(Spec):
    """PCIe physics shared by every link: ``B/s = transfers x lanes / 8 x line_code x payload/(payload + overhead) x other``."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["pcie"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    generations: dict[int, PcieGeneration]
    max_payload: Quantity
    """Bytes per write TLP (MPS)."""
    tlp_overhead: Quantity
    """Bytes of framing, header and CRC per TLP."""
    link_layer_share: Quantity
    """Share left after ACK, flow-control and SKIP traffic (0..1)."""
    contended_share: Quantity | None = None
    """Share of a link's rate that two or more flows in one direction reach together, where the chip above has no own figure."""
    fan_share: Quantity | None = None
    """Share of that which a GPU's port reaches with three or more flows in and out at once, where the chip above has no own figure."""
    notes: tuple[Text, ...] = ()


class SocketPart(Spec):
    """A CPU socket: what its root complex and memory do to GPU traffic."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["socket"]
    name: Name
    title: Text
    vendor: Literal["amd", "intel", "arm", "other"]
    aliases: tuple[Name, ...] = ()
    root_port: PcieLink
    """What one of its root ports offers."""
    memory_bandwidth: Quantity
    """Achievable host-memory bandwidth for device traffic, B/s, reads and writes together."""
    p2p_flow_rate: Quantity
    """Most that one peer-to-peer flow between two of its root ports reaches, B/s."""
    p2p_latency: Quantity
    """Added one-way latency of crossing the root complex between two root ports, s."""
    host_step_latency: Quantity
    """One host-staged (SHM) step of the collective library with a small message: write to host memory, flag, read, s."""
    contended_share: Quantity | None = None
    """Share of its rate that two or more flows in one direction reach together over a link of one of its root ports."""
    fan_share: Quantity | None = None
    """Share of that which a GPU on one of its root ports reaches with three or more flows in and out at once."""
    notes: tuple[Text, ...] = ()


class WriteCollapse(Spec):
    """Posted-write collapse: writes of several GPUs below one upstream port to several destination root ports slow each other down.

    A fault of some boxes, in force only with ``settings.conditions: [posted_write_collapse]``; reads are not touched.
    """

    min_source_gpus: Annotated[int, Field(ge=1, le=64)]
    """GPUs below the upstream port that must write through it at once."""
    min_destination_roots: Annotated[int, Field(ge=1, le=64)]
    """Different root ports that these writes must go to."""
    collapsed_rate: Quantity
    """What all writes through the upstream port then reach together, B/s."""


class SwitchPart(Spec):
    """A PCIe switch chip (or virtual switch)."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["switch"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    upstream: PcieLink
    latency: Quantity
    """Added one-way cut-through latency, s."""
    contended_share: Quantity | None = None
    """Share of its rate that two or more flows in one direction reach together over one of its links."""
    fan_share: Quantity | None = None
    """Share of that which a GPU's port reaches with three or more flows in and out at once (writes)."""
    read_share: Quantity | None = None
    """What concurrent reads reach over what the same concurrent writes reach; a single flow is not slowed."""
    posted_write_collapse: WriteCollapse | None = None
    notes: tuple[Text, ...] = ()


class NicPart(Spec):
    """A network card."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["nic"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    host_link: PcieLink
    """Its PCIe port."""
    port_rate: Quantity
    """Payload rate of all its network ports together in one direction, B/s."""
    rdma: bool
    """Speaks RDMA (InfiniBand or RoCE); else sockets."""
    gpudirect: bool
    """Reads and writes GPU memory itself where driver, distance and library allow it."""
    notes: tuple[Text, ...] = ()


class InterconnectPart(Spec):
    """A link between two nodes outside the PCIe tree: sockets (xGMI, UPI), an NVLink bridge, a NIC's fabric."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["interconnect"]
    role: Literal["socket", "nvlink", "fabric"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    p2p_bandwidth: Quantity
    """All GPU traffic together in one direction, B/s: one shared pipe per direction."""
    p2p_flow_rate: Quantity
    """Most that a single flow reaches, B/s."""
    latency: Quantity
    """Added one-way latency, s."""
    notes: tuple[Text, ...] = ()


Protocol = Literal["LL", "LL128", "Simple"]


class NetTransportPart(Spec):
    """A way over the network as the collective library drives it: RDMA verbs or sockets."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["net_transport"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    step_latency: dict[Protocol, Quantity]
    """One step with a small message, both ends' software, cards and one network switch included, s."""
    line_share: dict[Protocol, Quantity]
    """User bytes over bytes on the wire, by the protocol's own format."""
    flow_rate: Quantity
    """Most that one flow reaches, B/s."""
    memory_passes: Annotated[int, Field(ge=2, le=8)]
    """How often a byte crosses host memory at each end when staged there."""
    notes: tuple[Text, ...] = ()


class LibraryTuning(Spec):
    """What the library itself believes when it picks a protocol and a number of channels; the time of a call never uses it.

    Plain numbers (s, B/s, shares), all from ``source``.
    """

    source: Text
    evidence: Evidence
    base_latency: dict[Protocol, float]
    step_latency: dict[Literal["pcie", "nvlink"], dict[Protocol, float]]
    wire_share: dict[Protocol, float]
    lane_rate: dict[int, float]
    """Bandwidth taken for one lane, by PCIe generation."""
    socket_rate: dict[str, float]
    """Bandwidth taken between two NUMA nodes, by socket part or, failing that, by its vendor (amd, intel, arm, other)."""
    search_rates: dict[str, tuple[float, ...]]
    """Bandwidths per channel that the ring search tries, by least compute capability ("0", "9.0" ...), fastest first."""
    fallback_rate: float
    """Bandwidth believed when no rate of the search fits."""
    usual_channels: int
    """Channels of an ordinary box, with which the part's wire shares were measured; fewer bind by ``channel_rate``."""
    p2p_ll_threshold: float
    """Largest send to one peer that goes by LL, bytes."""


class LibraryPart(Spec):
    """A collective library's fixed costs: what a call and a step cost before any byte moves (s)."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["collective_library"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    base_latency: dict[Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"], Quantity]
    """Fixed cost of one call inside a CUDA graph, by op, with protocol LL."""
    eager_floor: dict[int, Quantity]
    """Least time per back-to-back eager call, by number of GPUs driven (the CPU's issue floor)."""
    step_software: dict[Protocol, Quantity]
    """Per-step cost besides the wire's latency (polling, flag, reduction of a small chunk), by protocol."""
    wire_share: dict[Protocol, Quantity]
    """Share of the link's payload rate that is user data, by protocol, peer-to-peer."""
    wire_share_host: dict[Protocol, Quantity]
    """The same when host-staged: what one flow reaches. Between flows that share host memory only ``line_share`` counts."""
    line_share: dict[Protocol, Quantity]
    """User bytes over bytes that cross a link by the protocol's own format (flags beside data)."""
    simple_extra_latency: Quantity
    """Added fixed cost of Simple over LL per call, s."""
    channel_rate: dict[Literal["p2p", "shm"], Quantity]
    """Most that one channel moves, B/s, by transport."""
    peer_issue: Quantity | None = None
    """Added per peer of an All-to-All, s."""
    crowded_port_share: Quantity | None = None
    """Share of its rate that a GPU's port reaches with three or more flows in and out at once (All-to-All)."""
    covered_ranks: tuple[int, int] | None = None
    """Fewest and most ranks of the measurements behind these costs; outside, answers are marked extrapolated."""
    covered_bytes: tuple[int, int] | None = None
    """Smallest and largest message of them."""
    tuning: LibraryTuning | None = None
    notes: tuple[Text, ...] = ()


Part = Annotated[
    PciePart | SocketPart | SwitchPart | NicPart | InterconnectPart | NetTransportPart | LibraryPart,
    Field(discriminator="kind"),
]
