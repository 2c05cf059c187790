"""Directed capacities of a box: what each link carries in each direction, from the PCIe part and the two ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcie_sim.errors import NoDataError
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.part import PciePart, SocketPart, SwitchPart
from pcie_sim.topology.quantities import bounds, product, scaled
from pcie_sim.topology.tree import Tree, Where


@dataclass(frozen=True)
class Capacity:
    """One directed capacity.

    ``rate`` is payload B/s. ``latency`` is the one-way time (s) that a socket, NVLink or network connection adds; for
    ``<socket>.mem`` one small host-staged step; None for PCIe links (their chips stand in :attr:`Route.latency
    <pcie_sim.topology.Route>`). ``fan_share`` is the share of the rate that a PCIe port reaches with three or more flows in and out
    at once, ``read_share`` what concurrent reads then reach over what writes do, ``contended_share`` what two or more flows in one
    direction reach together; None where neither the chip above nor the part ``pcie`` has a figure, and outside the PCIe tree.
    """

    name: str
    rate: Quantity
    latency: Quantity | None = None
    fan_share: Quantity | None = None
    read_share: Quantity | None = None
    contended_share: Quantity | None = None


def payload_share(payload: float, overhead: float) -> float:
    """Share of a link's bytes that is payload: ``P / (P + overhead)`` per transaction packet."""
    return payload / (payload + overhead)


def link_rate(pcie: PciePart, link: PcieLink, where: str = "link", *, max_payload: int | None = None) -> Quantity:
    """Payload B/s of one direction of ``link``.

    transfers x lanes / 8 x line code x MPS / (MPS + overhead) x link-layer share, all from ``pcie`` (sources there); MPS is
    ``max_payload`` bytes where given.

    Raises:
        NoDataError: the part has no such generation.
    """
    generation = pcie.generations.get(link.gen)
    if generation is None:
        known = ", ".join(str(gen) for gen in sorted(pcie.generations))
        raise NoDataError(f"{where}: no data for PCIe gen{link.gen}; part {pcie.name} has generations {known}")
    mps = pcie.max_payload
    if max_payload is not None:
        mps = Quantity(value=float(max_payload), unit="B", evidence="nominal", source="settings.max_payload of the topology")
    share = payload_share(mps.value, pcie.tlp_overhead.value)
    factors = (generation.transfers_per_s, generation.line_code, mps, pcie.tlp_overhead, pcie.link_layer_share)
    value = generation.transfers_per_s.value * link.width / 8 * generation.line_code.value * share * pcie.link_layer_share.value
    low_mps, high_mps = _range(mps)
    low_over, high_over = _range(pcie.tlp_overhead)
    low_layer, high_layer = _range(pcie.link_layer_share)
    spreads = [
        (payload_share(low_mps, pcie.tlp_overhead.value) / share, payload_share(high_mps, pcie.tlp_overhead.value) / share),
        (payload_share(mps.value, high_over) / share, payload_share(mps.value, low_over) / share),
        (low_layer / pcie.link_layer_share.value, high_layer / pcie.link_layer_share.value),
    ]
    return product(value, "B/s", factors, spreads)


def _range(part: Quantity) -> tuple[float, float]:
    """Stated range only: a rate of the standard has none."""
    return (part.low if part.low is not None else part.value, part.high if part.high is not None else part.value)


def slower(*links: PcieLink) -> PcieLink:
    """What a link trains to: the lowest generation and the smallest width of all that bound it."""
    return PcieLink(gen=min(link.gen for link in links), width=min(link.width for link in links))


def _text(link: PcieLink) -> str:
    return f"gen{link.gen} x{link.width}"


def build_capacities(tree: Tree, pcie: PciePart, where: Where) -> tuple[Mapping[str, Capacity], tuple[str, ...]]:
    """All directed capacities by name, and remarks about links that their ends cannot keep up with."""
    found: dict[str, Capacity] = {}
    notes: list[str] = []
    rates: dict[PcieLink, Quantity] = {}
    for name, node in tree.spec.nodes.items():
        ends = _ends(tree, name)
        asked = node.link if node.link is not None else _default(tree, name)
        if asked is None:
            if node.half_duplex:
                raise where.error("half_duplex needs a link; add one, for example `link: gen3 x8`", "nodes", name, "half_duplex")
            continue
        taken = slower(asked, *ends.values())
        if node.link is not None and taken != asked:
            limit = min(ends, key=lambda end: (ends[end].gen, ends[end].width))
            notes.append(f"{name}: link {_text(asked)} is faster than {limit} offers; {_text(taken)} taken")
        if taken not in rates:
            rates[taken] = link_rate(pcie, taken, where.at("nodes", name, "link"), max_payload=tree.spec.settings.max_payload)
        rate = scaled(rates[taken], node.links)
        fan, read, contended = _shares(tree, pcie, name)
        for direction in ("up", "dn", "both") if node.half_duplex else ("up", "dn"):
            found[f"{name}.{direction}"] = Capacity(f"{name}.{direction}", rate, None, fan, read, contended)
    for peer in tree.peers:
        ports = [tree.nics[end].port_rate for end in peer.between if end in tree.nics]
        rate = min((peer.part.p2p_bandwidth, *ports), key=lambda part: part.value)
        for direction in ("fwd", "rev"):
            capacity = f"{peer.name}.{direction}"
            found[capacity] = Capacity(capacity, rate, peer.part.latency)
    for name, socket in tree.sockets.items():
        found[f"{name}.mem"] = Capacity(f"{name}.mem", socket.memory_bandwidth, socket.host_step_latency)
    return found, tuple(notes)


def kernel_rate(pcie: PciePart, port: Quantity) -> Quantity | None:
    """What the kernels of a GPU behind a port of rate ``port`` read from and write to host memory at once, together, B/s."""
    share = pcie.kernel_duplex_share
    if share is None:
        return None
    low, high = bounds(share)
    return product(port.value * share.value, "B/s", (port, share), ((low / share.value, high / share.value),))


def _shares(tree: Tree, pcie: PciePart, name: str) -> tuple[Quantity | None, Quantity | None, Quantity | None]:
    """Fan-in/out, read and contended shares of the port that ``name``'s link ends in: a switch's own uplink has the switch's, a
    device the part's above it; ``pcie``'s where that part has no figure.
    """
    above = tree.spec.nodes[name].parent
    own: SwitchPart | SocketPart | None = tree.switches.get(name)
    if own is None and above is not None:
        own = tree.switches.get(above)
    if own is None and name in tree.socket_of:
        own = tree.sockets[tree.socket_of[name]]
    fan, contended = (own.fan_share, own.contended_share) if own is not None else (None, None)
    read = own.read_share if isinstance(own, SwitchPart) else None
    return fan or pcie.fan_share, read, contended or pcie.contended_share


def trained_link(tree: Tree, name: str) -> PcieLink | None:
    """What ``name``'s link to its parent trains to; None when it has none of its own."""
    node = tree.spec.nodes[name]
    asked = node.link if node.link is not None else _default(tree, name)
    return None if asked is None else slower(asked, *_ends(tree, name).values())


def _default(tree: Tree, name: str) -> PcieLink | None:
    """The part's own link; None for nodes that carry no link unless the file gives one (root ports, network cards)."""
    if name in tree.gpus:
        return tree.gpus[name].pcie
    if name in tree.switches:
        return tree.switches[name].upstream
    if name in tree.nics:
        return tree.nics[name].host_link
    return None


def _ends(tree: Tree, name: str) -> dict[str, PcieLink]:
    """What the device and the port above it offer; a switch's downstream ports are taken to be like its upstream one."""
    ends: dict[str, PcieLink] = {}
    own = _default(tree, name)
    if own is not None:
        ends[f"{name} ({tree.spec.nodes[name].part})"] = own
    node = tree.spec.nodes[name]
    above = name if node.kind == "root_port" or node.parent is None else node.parent
    if above in tree.switches:
        ends[f"{above} ({tree.switches[above].name})"] = tree.switches[above].upstream
    elif above in tree.socket_of:
        socket = tree.socket_of[above]
        ends[f"a root port of {socket} ({tree.sockets[socket].name})"] = tree.sockets[socket].root_port
    return ends
