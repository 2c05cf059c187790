"""Parts of a box as data files (``catalog/parts/*.yaml``): PCIe itself, CPU sockets, switches, network cards, interconnects, libraries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pcie_sim.evidence import Evidence
from pcie_sim.specs.base import Name, Quantity, Spec, Text
from pcie_sim.specs.cpu import CpuRule
from pcie_sim.specs.gpu import PcieLink, PciId


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
    kernel_duplex_share: Quantity | None = None
    """What the kernels of one GPU read from and write to host memory at once, both together, over the rate of its link in one
    direction (copy engines reach twice the link's rate)."""
    contended_share: Quantity | None = None
    """Share of a link's rate that two or more flows in one direction reach together, where the chip above has no own figure."""
    translated_share: Quantity | None = None
    """Share of its rate that one flow keeps when an IOMMU translates (``settings.iommu: on``); said beside answers, not predicted."""
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
    cpus: tuple[CpuRule, ...] = ()
    """Which processors it stands for."""
    socket_link: Name | None = None
    """Interconnect part that joins two of its kind; None: it stands alone in a box."""
    root_port: PcieLink
    """What one of its root ports offers."""
    lanes: Annotated[int, Field(ge=4, le=512)] | None = None
    """PCIe lanes for cards, those of a chipset left out; where they are few enough to tell how slots are split."""
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
    pci_ids: tuple[PciId, ...] = ()
    printed_names: tuple[Text, ...] = ()
    """Lower-case pieces of the names that lspci prints for its ports; the longest that fits decides."""
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
    pci_ids: tuple[PciId, ...] = ()
    printed_names: tuple[Text, ...] = ()
    """What tools print for it (lspci), where that is not the title."""
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
    links: Annotated[int, Field(ge=1, le=64)] | None = None
    """NVLink links that it is made of (the collective library counts them); None: not known."""
    capabilities: tuple[Text, ...] = ()
    """Compute capabilities of the GPUs that it joins (``"8.0"``)."""
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


Algorithm = Literal["ring", "tree"]


class GenerationCaps(Spec):
    """Most that the library believes of one GPU generation, B/s: LL in all; LL128 and trees per channel."""

    ll: float
    ring_ll128: float
    tree_ll128: float
    tree: float


class SearchRules(Spec):
    """Limits of the library's ring search."""

    most_channels: int
    most_gpus: int
    """GPUs of one host up to which the search is followed (a bound of this model: it recurses once per GPU and channel)."""
    same_steps: int
    """Placements tried while all channels follow the same ring."""
    steps: int
    """Placements tried otherwise."""
    double_from: float
    """Channels of at least this rate (B/s) are split into two ..."""
    double_unless_channels: int
    """... except, on GPUs newer than ``double_unless_newer``, when there are more than these and each is below ``double_below``."""
    double_below: float
    double_unless_newer: str
    intel_p2p_overhead: float
    """Factor charged to PCIe links by traffic between two GPUs through one Intel root complex."""
    local_rate: float
    """Rate taken for what is not modelled as a link, B/s."""


class ThreadRules(Spec):
    """Threads per channel, and bytes per thread below which a call gets fewer channels and threads (LL in a ring: times ranks)."""

    most: dict[Protocol, int]
    slow_simple: int
    """Simple in a ring whose believed rate is at most ``slow_rate`` (B/s)."""
    slow_rate: float
    bytes_per_thread: dict[Protocol, int]
    least: int
    """A call by LL works with this many, however small it is."""
    send: int
    """Threads of one channel of a send, its receiving half apart."""


class EnvironmentNames(Spec):
    """Names of the library's variables by what the model does with them."""

    modelled: tuple[str, ...]
    recorded: dict[str, Text]
    """Known to change something, but not the predicted time: what is said about it."""
    one_node: tuple[str, ...]
    """No effect inside one node."""
    known: tuple[str, ...]
    """Known, and without effect on these predictions."""
    routes: tuple[str, ...] = ()
    """Of ``one_node``: those that change the predicted route where the network is used."""
    whole: tuple[str, ...] = ()
    """Of all but ``modelled``: those whose value is a whole number (the library ignores anything else)."""
    choices: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Of all but ``modelled``: those that take one of a few words."""
    others: dict[str, Text] = Field(default_factory=dict)
    """Variables of other software that people set beside the library's: what is said about each."""


Version = Annotated[str, Field(pattern=r"^[0-9]{1,4}\.[0-9]{1,3}$")]


class TuningChange(Spec):
    """What was different in versions before ``before``: keys of the tuning to replace, nested ones merged, null removing a key."""

    before: Version
    set: dict[str, Any]
    source: Text


class LibraryTuning(Spec):
    """What the library itself believes when it picks channels, an algorithm and a protocol; the time of a call never uses it.

    Plain numbers (s, B/s, shares) of the newest version, all from ``source``; ``changes`` lead back to older ones.
    """

    source: Text
    evidence: Evidence
    versions: tuple[Version, Version] | None = None
    """Oldest and newest version that the rules were read for."""
    capability_since: dict[str, Version] = Field(default_factory=dict)
    """First version that knows GPUs from this compute capability on."""
    algorithms: tuple[Algorithm, ...] = ("ring", "tree")
    """Algorithms whose beliefs are known."""
    base_latency: dict[Algorithm, dict[Protocol, float]]
    step_latency: dict[Literal["pcie", "nvlink"], dict[Algorithm, dict[Protocol, float]]]
    ring_share: dict[Protocol, float]
    """Bus bandwidth of a ring over its graph's, by protocol (LL: ``ring_ll_share``)."""
    ring_ll_share: dict[Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"], float]
    tree_share: dict[Literal["all", "LL", "LL128", "plain"], float] = Field(default_factory=dict)
    """Bus bandwidth of a tree over its graph's: always, by protocol on top, and for the plain tree pattern on top."""
    tree_correction: dict[Protocol, tuple[float, ...]] = Field(default_factory=dict)
    """Factor on a tree's bandwidth by floor(log2(bytes / 64)), from 64 B up; 1 outside."""
    generations: dict[str, GenerationCaps]
    """Caps by least compute capability ("0", "8.0" ...)."""
    ll128_capabilities: tuple[str, ...]
    """Compute capabilities with LL128 over NVLink by default; none: every one from 7.0."""
    lists_by_function: bool
    """NCCL_ALGO and NCCL_PROTO may hold a list per function."""
    lane_rate: dict[int, float]
    """Bandwidth taken for one lane, by PCIe generation."""
    nvlink_rate: dict[str, float]
    """Bandwidth taken for one NVLink link, by least compute capability; ``8.6`` stands for itself only."""
    socket_rate: dict[str, float]
    """Bandwidth taken between two NUMA nodes, by socket part or, failing that, by its vendor (amd, intel, arm, other)."""
    search: SearchRules
    search_rates: dict[str, tuple[float, ...]]
    """Bandwidths per channel that the ring search tries, by least compute capability ("0", "9.0" ...), fastest first."""
    search_rates_net: tuple[float, ...]
    """The same for rings that leave the box by a network card."""
    fallback_rate: float
    """Bandwidth believed when no rate of the search fits."""
    most_channels: int
    buffer: Annotated[float, Field(gt=0)]
    """Buffer of Simple per channel and peer, bytes (NCCL_BUFFSIZE's default) ..."""
    slices: Annotated[int, Field(gt=0)]
    """... and the slices that it holds."""
    send_chunk: Annotated[float, Field(gt=0)]
    """Chunk of a send over PCIe, bytes (NCCL_P2P_PCI_CHUNKSIZE's default)."""
    send_channels: Annotated[int, Field(gt=0)]
    """Channels of one send on PCIe ..."""
    send_part: Annotated[float, Field(gt=0)]
    """... of which a message up to this size uses one, bytes."""
    line_bytes: dict[Protocol, int]
    """User bytes that a thread polls for at once; 0: does not poll line by line."""
    threads: ThreadRules
    p2p_ll_threshold: float
    """Largest send to one peer that goes by LL, bytes."""
    environment: EnvironmentNames | None = None
    """None: NCCL's."""
    changes: tuple[TuningChange, ...] = ()


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
    eager_send_share: Quantity | None = None
    """What a send or receive takes of that floor."""
    step_software: dict[Protocol, Quantity]
    """Per-step cost besides the wire's latency (polling, flag, reduction of a small chunk), by protocol."""
    wire_share: dict[Protocol, Quantity]
    """Share of the link's payload rate that is user data, by protocol, peer-to-peer."""
    wire_share_host: dict[Protocol, Quantity]
    """The same when host-staged: what one flow reaches. Between flows that share host memory only ``line_share`` counts."""
    line_share: dict[Protocol, Quantity]
    """User bytes over bytes that cross a link by the protocol's own format (flags beside data)."""
    believed_rate: Quantity | None = None
    """How fast the library takes its rings to be over what its search finds: moves the sizes at which it changes protocol in proportion
    (a calibration's: where a box changes at other sizes than its tree says). None: as found.
    """
    last_receive: Quantity | None = None
    """What the last receive of a ring by Simple, which no send goes beside, takes of a step's bytes: rings of few steps feel it most."""
    simple_extra_latency: Quantity
    """Added fixed cost of Simple over LL per call, s."""
    channel_rate: dict[Literal["p2p", "shm"], dict[Protocol, Quantity]]
    """Most that one channel with all its threads moves, user B/s, by transport and protocol (LL: see ``poll_share``)."""
    channel_step: Quantity | None = None
    """Host-staged: the socket's ``host_step_latency`` with which those rates were measured. What a channel has under way at once goes
    with the round trip, so elsewhere they scale with it; None: they do not.
    """
    poll_share: dict[Literal["p2p", "shm"], Quantity] | None = None
    """What a thread waits for its next line (LL), as a share of ``step_software`` (p2p: it polls the GPU's own memory) or of the
    socket's ``host_step_latency`` (shm): a channel moves the lines of all its threads in that time.
    """
    half_threads: dict[Literal["p2p", "shm"], Quantity] | None = None
    """Threads with which a channel running Simple moves half of what it would with very many; LL128 goes with the threads."""
    slice_latency: dict[Literal["p2p", "shm"], Quantity] | None = None
    """Handing one slice of Simple (a quarter of the buffer) to the next rank, s: what small buffers pay more often."""
    send_channel_rate: dict[Literal["p2p", "shm"], Quantity] | None = None
    """Most that one channel of a send moves with large chunks, B/s."""
    send_chunk_latency: dict[Literal["p2p", "shm"], Quantity] | None = None
    """Handing one chunk of a send over, s."""
    rate_blend: Quantity | None = None
    """How sharply a host-staged flow turns from its channels' limit to its links': the exponent p of (a^-p + b^-p)^(-1/p)."""
    peer_issue: Quantity | None = None
    """Added per peer of an All-to-All, s."""
    covered_ranks: tuple[int, int] | None = None
    """Fewest and most ranks of the measurements behind these costs; outside, answers are marked extrapolated."""
    covered_bytes: tuple[int, int] | None = None
    """Smallest and largest message of them."""
    tuning: LibraryTuning | None = None
    notes: tuple[Text, ...] = ()


class AllReduceKernelPart(Spec):
    """A serving engine's own AllReduce kernel, which writes to or reads from all peers at once."""

    schema_: Literal["pcie-sim/part/1"] = Field(alias="schema")
    kind: Literal["all_reduce_kernel"]
    name: Name
    title: Text
    aliases: tuple[Name, ...] = ()
    base: Quantity
    """Time of a message of no bytes between two GPUs inside a CUDA graph, one exchange included, s."""
    peer_issue: Quantity
    """Added for every further peer, s."""
    exchange: Quantity
    """One exchange of all pairs (flags written and seen), the way apart, s."""
    rate_share: Quantity
    """Bytes per second of one flow over the payload rate of the slowest link on its way."""
    system_memory_rate: Quantity
    """What one GPU moves where its loads and stores to peers go through system memory (no ForceP2P), to all peers together, B/s."""
    covered_ranks: tuple[int, int]
    """Fewest and most ranks of the measurements behind these numbers."""
    notes: tuple[Text, ...] = ()


Part = Annotated[
    PciePart | SocketPart | SwitchPart | NicPart | InterconnectPart | NetTransportPart | LibraryPart | AllReduceKernelPart,
    Field(discriminator="kind"),
]
