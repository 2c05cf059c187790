"""Routes over network cards: which card a GPU uses, GPUDirect or staged in host memory, RDMA or sockets.

Rules read from NVIDIA/nccl:src/graph/paths.cc (ncclTopoCheckGdr: distance up to PXB unless NCCL_NET_GDR_LEVEL says more),
src/graph/topo.cc (ncclTopoGetLocalNet: the nearest cards, spread over the GPUs) and src/transport/net*.cc.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.machine import SettingsSpec
from pcie_sim.specs.part import NetTransportPart
from pcie_sim.topology.policy import LEVELS, env_text, parse_level, uses_sockets
from pcie_sim.topology.quantities import smallest, total
from pcie_sim.topology.routes import Route, device_way, memory_way, path_type, steps_back
from pcie_sim.topology.tree import Peer, Tree, Where

_RDMA, _SOCKETS = "net-rdma", "net-sockets"
_GDR_LEVEL = "PXB"
"""Farthest card that GPUDirect reaches by default (NVIDIA/nccl:src/graph/paths.cc)."""


@dataclass
class _Found:
    """What was found out about the network of one box: its pairs ask the same questions again and again."""

    cards: dict[tuple[str, bool], tuple[str, ...]] = field(default_factory=dict)
    turns: dict[tuple[str, int], dict[int, dict[str, int]]] = field(default_factory=dict)
    reached: dict[str, dict[str, tuple[str, Peer]]] = field(default_factory=dict)


_FOUND: WeakKeyDictionary[Tree, _Found] = WeakKeyDictionary()


@dataclass(frozen=True)
class Plan:
    """How two GPUs reach each other over the network.

    ``cards`` are the network cards at ``src`` and ``dst``; None: a loopback through sockets inside the host. ``direct`` says for each
    end whether the card reads or writes GPU memory itself. ``reason`` is one clause for people.
    """

    part: NetTransportPart
    cards: tuple[str, str] | None
    hops: tuple[tuple[str, Peer], ...]
    direct: tuple[bool, bool]
    reason: str


def network_plan(tree: Tree, settings: SettingsSpec, a: str, b: str, where: Where) -> Plan:
    """Cards, medium and staging between GPUs ``a`` and ``b``.

    RDMA when both hosts have RDMA cards on one network and neither NCCL_IB_DISABLE nor NCCL_NET=Socket is set; else sockets: over any
    cards between hosts, by loopback inside one.

    Raises:
        InputError: different hosts without a network between them.
    """
    same = tree.host_of[a] == tree.host_of[b]
    cards = _cards(tree, a, b, rdma=True) if not uses_sockets(settings.env) else None
    if cards is not None:
        direct = (_direct(tree, settings, a, cards[0]), _direct(tree, settings, b, cards[1]))
        how = {2: "GPUDirect at both ends", 1: "GPUDirect at one end, staged in host memory at the other", 0: "staged in host memory"}
        hops = _fabric_path(tree, *cards)
        return Plan(catalog.load_typed_part(_RDMA, NetTransportPart), cards, hops or (), direct, f"by RDMA, {how[sum(direct)]}")
    sockets = catalog.load_typed_part(_SOCKETS, NetTransportPart)
    if same:
        return Plan(sockets, None, (), (False, False), "by sockets inside the host, through host memory")
    cards = _cards(tree, a, b, rdma=False)
    if cards is None:
        raise InputError(f"{where.source}: {_apart(tree, a, b)}")
    return Plan(sockets, cards, _fabric_path(tree, *cards) or (), (False, False), "by sockets, staged in host memory")


def _apart(tree: Tree, a: str, b: str) -> str:
    return (
        f"hosts {tree.host_of[a]} and {tree.host_of[b]} are not joined; give each a nic with a part and join them, "
        f"for example `- {{between: [nic0, fabric0], part: infiniband-ndr}}` in `peers`"
    )


def unjoined_hosts(tree: Tree) -> tuple[str, ...]:
    """A sentence for each host with GPUs that no network joins with the first such host."""
    first: dict[str, str] = {}
    for gpu in tree.bus_order:
        first.setdefault(tree.host_of[gpu], gpu)
    ends = tuple(first.values())
    return tuple(_apart(tree, ends[0], other) for other in ends[1:] if _cards(tree, ends[0], other, rdma=False) is None)


def _cards(tree: Tree, a: str, b: str, *, rdma: bool) -> tuple[str, str] | None:
    """The nearest cards of the two GPUs that share a network."""
    theirs = cards_of(tree, b, rdma=rdma)
    for first in cards_of(tree, a, rdma=rdma):
        for second in theirs:
            if first == second or second in _reached(tree, first):
                return first, second
    return None


def cards_of(tree: Tree, gpu: str, *, rdma: bool) -> tuple[str, ...]:
    """The cards (with ``rdma`` those that can it) of the GPU's host that stand on a network, nearest first; equal ones are dealt out
    over the GPUs of a host in bus order.
    """
    known = _FOUND.setdefault(tree, _Found()).cards
    found = known.get((gpu, rdma))
    if found is None:
        mine = [nic for nic, part in tree.nics.items() if tree.host_of[nic] == tree.host_of[gpu] and (part.rdma or not rdma)]
        found = known[gpu, rdma] = tuple(_nearest_first(tree, gpu, [nic for nic in mine if tree.peers_of(nic)]))
    return found


def _nearest_first(tree: Tree, gpu: str, cards: list[str]) -> list[str]:
    """``cards`` by distance; those at the same distance start with the GPU's own turn."""
    by_level: dict[int, list[str]] = {}
    for nic in cards:
        by_level.setdefault(LEVELS.index(path_type(tree, gpu, nic)), []).append(nic)
    found: list[str] = []
    for level in sorted(by_level):
        ties = by_level[level]
        turn = _turns(tree, ties[0])[level][gpu] % len(ties)
        found += ties[turn:] + ties[:turn]
    return found


def _turns(tree: Tree, nic: str) -> dict[int, dict[str, int]]:
    """By distance from ``nic``: its host's GPUs, each with its place among them in bus order."""
    known = _FOUND.setdefault(tree, _Found()).turns
    key = tree.host_of[nic], tree.sites[nic]
    found = known.get(key)
    if found is None:
        found = known[key] = {}
        for gpu in tree.bus_order:
            if tree.host_of[gpu] == tree.host_of[nic]:
                mates = found.setdefault(LEVELS.index(path_type(tree, gpu, nic)), {})
                mates[gpu] = len(mates)
    return found


def _direct(tree: Tree, settings: SettingsSpec, gpu: str, nic: str) -> bool:
    """GPUDirect: card, distance and driver allow it. A driver that grants no PCIe peer access grants cards none either."""
    level = parse_level(env_text(settings.env, "NCCL_NET_GDR_LEVEL") or _GDR_LEVEL, "NCCL_NET_GDR_LEVEL")
    granted = settings.p2p == "on" or (settings.p2p == "auto" and tree.gpus[gpu].p2p.stock_driver != "no")
    return granted and tree.nics[nic].gpudirect and LEVELS.index(path_type(tree, gpu, nic)) <= LEVELS.index(level)


def _fabric_path(tree: Tree, start: str, end: str) -> tuple[tuple[str, Peer], ...] | None:
    """Network connections from card to card: fewest hops, then the order of the file. A card's loopback to itself goes out of its
    first port and back (so the port is charged in both directions). None when they share no network.
    """
    if start == end:
        peer = tree.peers_of(start)[0]
        return (peer.leaving(start), peer), (peer.leaving(peer.other(start)), peer)
    came = _reached(tree, start)
    if end not in came:
        return None
    return steps_back(came, start, end)


def _reached(tree: Tree, start: str) -> dict[str, tuple[str, Peer]]:
    """What ``start`` reaches over the network: for each node the one before it on the way, and the connection."""
    known = _FOUND.setdefault(tree, _Found()).reached
    if start in known:
        return known[start]
    came = known[start] = {}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        if at != start and at in tree.nics:
            continue  # cards do not forward
        for peer in tree.peers_of(at):
            far = peer.other(at)
            if far != start and far not in came:
                came[far] = (at, peer)
                queue.append(far)
    return came


def network_route(tree: Tree, links: frozenset[str], settings: SettingsSpec, a: str, b: str, *, where: Where) -> Route:
    """GPU -> card -> network -> card -> GPU; staged ends pass their GPU's socket memory (``memory_passes`` of the part).

    Raises:
        InputError: no network between them, or sockets that are not joined.
    """
    plan = network_plan(tree, settings, a, b, where)
    acs = settings.acs == "on"
    way: list[str] = []
    latency: list[Quantity] = [plan.part.step_latency["LL"]]
    rates: list[Quantity] = [plan.part.flow_rate]
    crosses = False
    passes = plan.part.memory_passes if plan.cards is not None else plan.part.memory_passes - 1
    homes = (tree.socket_of[a], tree.socket_of[b])
    for end, (gpu, home) in enumerate(zip((a, b), homes, strict=True)):
        sending = end == 0
        if plan.cards is not None and plan.direct[end]:
            pair = (gpu, plan.cards[0]) if sending else (plan.cards[1], gpu)
            found = device_way(tree, links, *pair, acs=acs, where=where)
            way += found.links
            latency += found.chips
            rates += found.rates
            crosses = crosses or found.crosses
        else:
            staged = (f"{home}.mem",) * passes
            near = memory_way(tree, links, gpu, home, where=where, down=not sending)
            far = None if plan.cards is None else memory_way(tree, links, plan.cards[end], home, where=where, down=sending)
            beyond = () if far is None else far.links
            way += (*near.links, *staged, *beyond) if sending else (*beyond, *staged, *near.links)
            for part in (near, far):
                if part is not None:
                    latency += (*part.switches, *part.hops)
                    rates += part.rates
                    crosses = crosses or bool(part.hops)
        if sending and plan.cards is not None:
            way += [capacity for capacity, _ in plan.hops]
            latency += [peer.part.latency for _, peer in plan.hops]
            rates += [peer.part.p2p_flow_rate for _, peer in plan.hops]
    if plan.cards is None and homes[0] != homes[1]:  # loopback between the memories of two sockets
        hop = memory_way(tree, links, a, homes[1], where=where)
        at = len(memory_way(tree, links, a, homes[0], where=where).links) + passes
        way[at:at] = hop.links[len(hop.links) - len(hop.hops) :]
        latency += hop.hops
        crosses = True
    return Route(a, b, tuple(way), path_type(tree, a, b), "NET", total(latency, "s"), smallest(rates), crosses, "write", plan.part.name)
