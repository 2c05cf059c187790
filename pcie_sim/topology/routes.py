"""Routes between two GPUs of a checked tree: which directed capacities, in which order, and what they cost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from pcie_sim.errors import InputError
from pcie_sim.specs.base import Quantity
from pcie_sim.topology.quantities import smallest, total
from pcie_sim.topology.tree import Peer, Tree, Where

PathType = Literal["PIX", "PXB", "PHB", "SYS", "NVL"]


@dataclass(frozen=True)
class Route:
    """One way from GPU ``src`` to GPU ``dst``.

    Attributes:
        links: directed capacities in order; one that stands twice is charged twice (host memory: written and read).
        path_type: as the collective library sees the tree (PIX PXB PHB SYS NVL).
        transport: ``P2P`` (also over an NVLink bridge) or ``SHM`` (host-staged).
        latency: one-way seconds. P2P: the chips on the way only (switches, root complex, socket link), without the GPUs' own
            issue and polling. SHM: one whole small-message step through host memory, plus the chips beyond the root port.
        flow_rate: most that a single flow reaches, B/s, when something other than the links bounds it.
        crosses_socket: uses a link between sockets.
    """

    src: str
    dst: str
    links: tuple[str, ...]
    path_type: PathType
    transport: Literal["P2P", "SHM"]
    latency: Quantity
    flow_rate: Quantity | None
    crosses_socket: bool


def path_type(tree: Tree, a: str, b: str) -> PathType:
    """NCCL's path class of the pair (NVIDIA/nccl:src/graph/topo.h): NODE of nvidia-smi counts as PHB.

    Different NUMA nodes, where the file states them, make SYS even inside one socket (NPS2, NPS4).
    """
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
    return next((peer for peer in tree.peers_of(a) if peer.other(a) == b), None)


def common_switch(tree: Tree, a: str, b: str) -> str | None:
    """The lowest switch above both GPUs; None when their ways meet at a root port or a socket only."""
    above = set(tree.chains[b])
    return next((name for name in tree.chains[a] if name in above and name in tree.switches), None)


def _below(chain: tuple[str, ...], turn: str) -> tuple[str, ...]:
    return chain[: chain.index(turn)]


def peer_route(tree: Tree, links: frozenset[str], a: str, b: str, *, acs: bool, where: Where) -> Route:
    """Peer-to-peer: over the bridge, or turning at the lowest common switch, or at the root complex.

    With ACS redirect every packet goes up to the root complex first, siblings' too, so that the uplink carries it both ways.

    Raises:
        InputError: the two sockets are not joined.
    """
    kind = path_type(tree, a, b)
    joined = bridge(tree, a, b)
    if joined is not None:
        return Route(a, b, (joined.leaving(a),), kind, "P2P", joined.part.latency, joined.part.p2p_flow_rate, False)
    turn = common_switch(tree, a, b)
    if turn is not None and not acs:
        up, down = _below(tree.chains[a], turn), _below(tree.chains[b], turn)
        chips = [tree.switches[name].latency for name in (*up, turn, *down) if name in tree.switches]
        return Route(a, b, _links(links, up, (), down), kind, "P2P", total(chips, "s"), None, False)
    up, down = tree.chains[a], tree.chains[b]
    hops = socket_path(tree, tree.socket_of[a], tree.socket_of[b], where)
    roots = [tree.sockets[tree.socket_of[name]] for name in (a, b)]
    chips = [tree.switches[name].latency for name in (*up, *down) if name in tree.switches]
    chips.append(max((root.p2p_latency for root in roots), key=lambda part: part.value))
    chips.extend(peer.part.latency for _, peer in hops)
    rate = smallest([*(root.p2p_flow_rate for root in roots), *(peer.part.p2p_flow_rate for _, peer in hops)])
    crossing = tuple(capacity for capacity, _ in hops)
    return Route(a, b, _links(links, up, crossing, down), kind, "P2P", total(chips, "s"), rate, bool(hops))


def staged_route(tree: Tree, links: frozenset[str], a: str, b: str, *, where: Where) -> Route:
    """Host-staged: up into the memory of the receiver's socket (NCCL_SHM_LOCALITY's default), read from there, and down."""
    up, down = tree.chains[a], tree.chains[b]
    home = tree.socket_of[b]
    hops = socket_path(tree, tree.socket_of[a], home, where)
    chips = [tree.sockets[home].host_step_latency]
    chips.extend(tree.switches[name].latency for name in (*up, *down) if name in tree.switches)
    chips.extend(peer.part.latency for _, peer in hops)
    middle = (*(capacity for capacity, _ in hops), f"{home}.mem", f"{home}.mem")
    rate = smallest([peer.part.p2p_flow_rate for _, peer in hops])
    return Route(a, b, _links(links, up, middle, down), path_type(tree, a, b), "SHM", total(chips, "s"), rate, bool(hops))


def _links(links: frozenset[str], up: tuple[str, ...], middle: tuple[str, ...], down: tuple[str, ...]) -> tuple[str, ...]:
    """Capacities up, across and down; nodes without a link of their own (plain root ports) carry none."""
    rising = (f"{name}.up" for name in up if f"{name}.up" in links)
    falling = (f"{name}.dn" for name in reversed(down) if f"{name}.dn" in links)
    return (*rising, *middle, *falling)


def socket_path(tree: Tree, start: str, end: str, where: Where) -> tuple[tuple[str, Peer], ...]:
    """Directed capacities (and their peers) from socket to socket: fewest hops, then the order of the file.

    Raises:
        InputError: no `peers` entries join them.
    """
    if start == end:
        return ()
    came: dict[str, tuple[str, Peer]] = {}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for peer in tree.peers_of(at):
            far = peer.other(at)
            if far != start and far not in came:
                came[far] = (at, peer)
                queue.append(far)
    if end not in came:
        part = "xgmi-turin" if tree.sockets[start].vendor == "amd" else "upi-sapphire-rapids"
        raise InputError(
            f"{where.source}: sockets {start} and {end} are not joined; add `- {{between: [{start}, {end}], part: {part}}}` to `peers`"
        )
    steps: list[tuple[str, Peer]] = []
    at = end
    while at != start:
        before, peer = came[at]
        steps.append((peer.leaving(before), peer))
        at = before
    return tuple(reversed(steps))
