"""Routes between two GPUs of a checked tree: which directed capacities, in which order, and what they cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.part import SocketPart
from pcie_sim.topology.quantities import smallest, total
from pcie_sim.topology.tree import Peer, Tree, Where

PathType = Literal["PIX", "PXB", "PHB", "SYS", "NVL", "NET"]
Access = Literal["write", "read"]
_KINDS: WeakKeyDictionary[Tree, dict[tuple[int, int], PathType]] = WeakKeyDictionary()
"""Path types by place (:attr:`Tree.sites`): boxes of hundreds of GPUs have tens of thousands of pairs, but few places."""


@dataclass(frozen=True)
class Route:
    """One way from GPU ``src`` to GPU ``dst``.

    Attributes:
        links: directed capacities in order, as the data flows; one that stands twice is charged twice (host memory: written and
            read). A half-duplex link adds its ``<node>.both`` beside ``.up`` or ``.dn``.
        path_type: as the collective library sees the tree (PIX PXB PHB SYS NVL; NET between hosts).
        transport: ``P2P`` (also over an NVLink bridge), ``SHM`` (host-staged) or ``NET``.
        latency: one-way seconds. P2P: the chips on the way only (switches, root complex, socket link), without the GPUs' own
            issue and polling. SHM and NET: one whole small-message step, plus the chips between the GPU and memory or card.
        flow_rate: most that a single flow reaches, B/s, when something other than the links bounds it.
        crosses_socket: uses a link between sockets.
        access: ``write`` (``src`` pushes) or ``read`` (``dst`` pulls): which share of its capacities counts when several meet.
        network: NET: the part of kind ``net_transport`` that drives it.
    """

    src: str
    dst: str
    links: tuple[str, ...]
    path_type: PathType
    transport: Literal["P2P", "SHM", "NET"]
    latency: Quantity
    flow_rate: Quantity | None
    crosses_socket: bool
    access: Access = "write"
    network: str | None = None


@dataclass(frozen=True)
class Way:
    """Part of a route between two devices or a device and a memory: capacities, chip latencies, caps of one flow, socket hops."""

    links: tuple[str, ...]
    chips: tuple[Quantity, ...]
    rates: tuple[Quantity, ...] = ()
    crosses: bool = False


def path_type(tree: Tree, a: str, b: str) -> PathType:
    """NCCL's path class of two GPUs, or of a GPU and a network card (NVIDIA/nccl:src/graph/topo.h): nvidia-smi's NODE counts as PHB.

    Different NUMA nodes, where the file states them, make SYS even inside one socket (NPS2, NPS4). Virtual switches of one chip
    are different switches here: the library cannot see the chip.
    """
    known = _KINDS.setdefault(tree, {})
    key = tree.sites[a], tree.sites[b]
    found = known.get(key)
    if found is None:
        found = known[key] = _path_type(tree, a, b)
    return found


def _path_type(tree: Tree, a: str, b: str) -> PathType:
    if tree.host_of[a] != tree.host_of[b]:
        return "NET"
    if bridge(tree, a, b) is not None:
        return "NVL"
    turn = common_switch(tree, a, b)
    if turn is not None:
        below = _below(tree.chains[a], turn) + _below(tree.chains[b], turn)
        return "PXB" if any(name in tree.switches for name in below) else "PIX"
    if tree.socket_of[a] != tree.socket_of[b]:
        return "SYS"
    numa = tree.numa_of(a), tree.numa_of(b)
    return "SYS" if None not in numa and numa[0] != numa[1] else "PHB"


def bridge(tree: Tree, a: str, b: str) -> Peer | None:
    """The NVLink bridge between the two GPUs, if they have one."""
    return next((peer for peer in tree.peers_of(a) if peer.other(a) == b and peer.part.role == "nvlink"), None)


def common_switch(tree: Tree, a: str, b: str) -> str | None:
    """The lowest switch above both devices; None when their ways meet at a root port or a socket only."""
    above = set(tree.chains[b])
    return next((name for name in tree.chains[a] if name in above and name in tree.switches), None)


def turning_point(tree: Tree, a: str, b: str) -> tuple[str, str] | None:
    """The (virtual) switches above ``a`` and above ``b`` where peer traffic turns: the lowest of one chip; equal for a plain switch."""
    found = [
        (i + j, near != far, tree.chip_of(near), near, far)
        for i, near in enumerate(tree.chains[a])
        if near in tree.switches
        for j, far in enumerate(tree.chains[b])
        if far in tree.switches and tree.chip_of(near) == tree.chip_of(far)
    ]
    return min(found)[3:] if found else None


def _below(chain: tuple[str, ...], turn: str) -> tuple[str, ...]:
    return chain[: chain.index(turn)]


def device_way(tree: Tree, links: frozenset[str], a: str, b: str, *, acs: bool, where: Where) -> Way:
    """Peer-to-peer between two devices (GPUs or network cards) of one host: turning at the lowest common chip, or at the root complex.

    With ACS redirect every packet goes up to the root complex first, siblings' too, so that the uplink carries it both ways.

    Raises:
        InputError: the two sockets are not joined.
    """
    turn = turning_point(tree, a, b)
    if turn is not None and not acs:
        up, down = _below(tree.chains[a], turn[0]), _below(tree.chains[b], turn[1])
        return Way(rising(links, up) + falling(links, down), _chips(tree, (*up, turn[0], *down)))
    up, down = tree.chains[a], tree.chains[b]
    hops = socket_path(tree, tree.socket_of[a], tree.socket_of[b], where)
    roots = [tree.sockets[tree.socket_of[name]] for name in (a, b)]
    root = max((root.p2p_latency for root in roots), key=lambda part: part.value)
    return Way(
        (*rising(links, up), *(capacity for capacity, _ in hops), *falling(links, down)),
        (*_chips(tree, (*up, *down)), root, *(peer.part.latency for _, peer in hops)),
        (*(root.p2p_flow_rate for root in roots), *(peer.part.p2p_flow_rate for _, peer in hops)),
        bool(hops),
    )


def _chips(tree: Tree, names: tuple[str, ...]) -> tuple[Quantity, ...]:
    return tuple(tree.switches[name].latency for name in names if name in tree.switches)


def peer_route(tree: Tree, links: frozenset[str], a: str, b: str, *, acs: bool, where: Where, access: Access = "write") -> Route:
    """Peer-to-peer between two GPUs of one host: over their bridge, or as :func:`device_way`.

    Raises:
        InputError: the two sockets are not joined, or the GPUs are in different hosts.
    """
    kind = path_type(tree, a, b)
    if kind == "NET":
        raise InputError(f"{where.source}: {a} and {b} are in different hosts: only a network joins them")
    joined = bridge(tree, a, b)
    if joined is not None:
        return Route(a, b, (joined.leaving(a),), kind, "P2P", joined.part.latency, joined.part.p2p_flow_rate, False, access)
    way = device_way(tree, links, a, b, acs=acs, where=where)
    return Route(a, b, way.links, kind, "P2P", total(way.chips, "s"), smallest(way.rates), way.crosses, access)


def staged_route(tree: Tree, links: frozenset[str], a: str, b: str, *, where: Where, access: Access = "write") -> Route:
    """Host-staged: up into the memory of the receiver's socket (NCCL_SHM_LOCALITY's default), read from there, and down.

    Raises:
        InputError: the two sockets are not joined, or the GPUs are in different hosts.
    """
    kind = path_type(tree, a, b)
    if kind == "NET":
        raise InputError(f"{where.source}: {a} and {b} are in different hosts: they share no memory")
    home = tree.socket_of[b]
    up = memory_way(tree, links, a, home, where=where)
    down, chips = falling(links, tree.chains[b]), _chips(tree, tree.chains[b])
    latency = total((tree.sockets[home].host_step_latency, *up.switches, *chips, *up.hops), "s")
    middle = (f"{home}.mem", f"{home}.mem")
    return Route(a, b, (*up.links, *middle, *down), kind, "SHM", latency, smallest(up.rates), bool(up.hops), access)


@dataclass(frozen=True)
class MemoryWay:
    """From a device up to a socket's memory (not charged here): capacities, latencies of switches and of socket hops, caps."""

    links: tuple[str, ...]
    switches: tuple[Quantity, ...]
    hops: tuple[Quantity, ...]
    rates: tuple[Quantity, ...]


def memory_way(tree: Tree, links: frozenset[str], device: str, socket: str, *, where: Where, down: bool = False) -> MemoryWay:
    """The way of ``device`` to ``socket``'s memory, or from there with ``down``.

    Raises:
        InputError: the two sockets are not joined.
    """
    chain, own = tree.chains[device], tree.socket_of[device]
    hops = socket_path(tree, socket, own, where) if down else socket_path(tree, own, socket, where)
    across = tuple(capacity for capacity, _ in hops)
    way = (*across, *falling(links, chain)) if down else (*rising(links, chain), *across)
    return MemoryWay(
        way, _chips(tree, chain), tuple(peer.part.latency for _, peer in hops), tuple(peer.part.p2p_flow_rate for _, peer in hops)
    )


def rising(links: frozenset[str], chain: tuple[str, ...]) -> tuple[str, ...]:
    """Capacities up ``chain``; nodes without a link of their own (plain root ports) carry none."""
    return tuple(name for node in chain for name in (f"{node}.up", f"{node}.both") if name in links)


def falling(links: frozenset[str], chain: tuple[str, ...]) -> tuple[str, ...]:
    """Capacities down to the first of ``chain``."""
    return tuple(name for node in reversed(chain) for name in (f"{node}.both", f"{node}.dn") if name in links)


def steps_back(came: Mapping[str, tuple[str, Peer]], start: str, end: str) -> tuple[tuple[str, Peer], ...]:
    """Directed capacities (and their connections) from ``start`` to ``end``; ``came`` has the node before each one and the connection."""
    steps: list[tuple[str, Peer]] = []
    at = end
    while at != start:
        before, peer = came[at]
        steps.append((peer.leaving(before), peer))
        at = before
    return tuple(reversed(steps))


def socket_path(tree: Tree, start: str, end: str, where: Where) -> tuple[tuple[str, Peer], ...]:
    """Directed capacities (and their peers) from socket to socket: fewest hops, then the order of the file.

    Raises:
        InputError: no `peers` entries join them.
    """
    if start == end:
        return ()
    came = _reached(tree, start)
    if end not in came:
        raise InputError(f"{where.source}: {_not_joined(tree, start, end)}")
    return steps_back(came, start, end)


def _reached(tree: Tree, start: str) -> dict[str, tuple[str, Peer]]:
    """Every other socket that ``start`` is joined with: the socket before it on the way, and the connection."""
    came: dict[str, tuple[str, Peer]] = {}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for peer in tree.peers_of(at):  # a socket's peers are sockets
            far = peer.other(at)
            if far != start and far not in came:
                came[far] = (at, peer)
                queue.append(far)
    return came


def unjoined(tree: Tree) -> tuple[str, ...]:
    """A sentence for each socket with GPUs that no way leads to from the first such socket of its host."""
    found: list[str] = []
    by_host: dict[str, list[str]] = {}
    for gpu in tree.gpus:
        mine = by_host.setdefault(tree.host_of[gpu], [])
        if tree.socket_of[gpu] not in mine:
            mine.append(tree.socket_of[gpu])
    for first, *others in by_host.values():
        reached = _reached(tree, first)
        found += [f"no way between the GPUs below them: {_not_joined(tree, first, other)}" for other in others if other not in reached]
    return tuple(found)


def _not_joined(tree: Tree, a: str, b: str) -> str:
    part = socket_link(tree.sockets[a].name)
    entry = f"{{between: [{a}, {b}], part: {part or 'PART'}}}"
    more = "" if part else ", where PART is an interconnect part"
    return f"sockets {a} and {b} are not joined; add `- {entry}` to `peers`{more}"


def socket_link(socket: str) -> str | None:
    """The catalog's link between two sockets of part ``socket``; None for one that stands alone."""
    return catalog.load_typed_part(socket, SocketPart).socket_link
