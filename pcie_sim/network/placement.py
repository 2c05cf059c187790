"""A schedule laid on a topology: which directed capacities every transfer crosses, and what each costs by protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from pcie_sim.collectives import Schedule, build_schedule, options_of
from pcie_sim.evidence import weakest
from pcie_sim.network.alike import Kinds, kinds_of
from pcie_sim.network.channels import Lanes, Way, blend, channel_rate, one_pass, passes_left
from pcie_sim.network.conditions import collapsed_uplinks
from pcie_sim.network.costs import Amount, Costs, add, amount, library_costs
from pcie_sim.network.events import FlowSet
from pcie_sim.network.groups import switch_groups
from pcie_sim.network.library import RING_OPS, beliefs
from pcie_sim.network.nccl_rules import rules
from pcie_sim.specs.part import LibraryTuning, Protocol

if TYPE_CHECKING:
    from pcie_sim.network.analytic import Lines
    from pcie_sim.topology import Route, Topology

Fractions = tuple[tuple[float, ...], ...]
CROWD = 3
"""Flows in and out of one port from which it counts as crowded (the measurements behind the part's share)."""
KERNELS = ".sm"
"""``<gpu>.sm``: what the GPU's kernels read from and write to host memory together, as one capacity."""
_LIBRARY_ALGORITHMS = ("ring", "tree")
"""Algorithms that the library runs on its channels, whose number caps an edge."""


def _mean(pieces: Sequence[Amount]) -> Amount:
    """Sum of weighted pieces. The same quantity at several places is not independent: equal sources are put together first."""
    joined: dict[tuple[str, ...], Amount] = {}
    for piece in pieces:
        known = joined.get(piece.sources)
        value = piece.value + (known.value if known else 0.0)
        label = weakest((piece.evidence, known.evidence)) if known else piece.evidence
        joined[piece.sources] = Amount(value, max(piece.sigma, known.sigma if known else 0.0), label, piece.sources)
    return add(joined.values())


def _network(route: Route) -> str | None:
    """The part that drives the route over the network, if it goes there."""
    return route.network if route.transport == "NET" else None


@dataclass(frozen=True)
class View:
    """What a placement costs with one protocol. Per transfer: ``latency`` (s) and ``wire`` (wire bytes per message byte); per
    class: ``caps`` (wire B/s). ``step`` is the mean start-up of a transfer, for its uncertainty and label. ``flight`` (s, per transfer)
    is the part of a start-up in which a first pass of ``pass_bytes`` message bytes is moved (0: the protocol knows no passes).
    """

    latency: tuple[float, ...]
    wire: tuple[float, ...]
    caps: tuple[float, ...]
    step: Amount
    share: Amount
    flight: tuple[float, ...] = ()
    pass_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class Placement:
    """One op on one topology: all groups together.

    ``routes`` are the classes' capacities by index into ``links``; ``of_class``, ``fraction``, ``deps`` and ``previous`` are per
    transfer, ``rounds`` the transfers of each step. ``capacity`` has crowded ports already reduced. ``access`` says whether the
    senders write or the receivers read; ``channels`` is the schedule's own number of equal copies.
    """

    costs: Costs
    op: str
    algorithm: str
    ranks: int
    steps: int
    links: tuple[str, ...]
    capacity: tuple[float, ...]
    link_rates: tuple[Amount, ...]
    routes: tuple[tuple[int, ...], ...]
    class_route: tuple[Route, ...]
    pairs: tuple[Route, ...]
    memory_step: Mapping[str, float]
    of_class: tuple[int, ...]
    fraction: tuple[float, ...]
    deps: tuple[tuple[int, ...], ...]
    previous: tuple[int, ...]
    order: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]
    largest_send: float
    peers: int
    crowded: Amount
    version: str
    reasons: tuple[str, ...]
    transport: str
    transport_evidence: Amount
    access: Literal["write", "read"] = "write"
    channels: int = 1
    _views: dict[tuple[str, Lanes | None], View] = field(default_factory=dict)
    _lines: dict[tuple[str, Lanes | None], Lines] = field(default_factory=dict)

    def view(self, protocol: Protocol, lanes: Lanes | None = None) -> View:
        """Costs of every transfer with ``protocol`` on ``lanes`` (kept; None: channels that bind nothing)."""
        key = (protocol, lanes)
        if key not in self._views:
            self._views[key] = _view(self, protocol, lanes)
        return self._views[key]

    def flow_set(self, protocol: Protocol, size: float, lanes: Lanes | None = None) -> FlowSet:
        """The transfers of a message of ``size`` bytes as flows of wire bytes."""
        view = self.view(protocol, lanes)
        wire = [part * size for part in view.wire]
        latency = view.latency
        if view.pass_bytes:
            early = float(passes_left(size, view.pass_bytes))
            latency = tuple(start - early * wait for start, wait in zip(latency, view.flight, strict=True))
        return FlowSet(self.capacity, self.routes, view.caps, self.of_class, wire, (), latency, self.deps, self.previous)

    def wire_load(self, protocol: Protocol) -> list[float]:
        """Seconds that each link is busy per message byte: wire bytes over its rate."""
        loads = FlowSet(self.capacity, self.routes, (), self.of_class, self.view(protocol).wire).link_bytes()
        return [load / rate for load, rate in zip(loads, self.capacity, strict=True)]

    @cached_property
    def rate_of(self) -> dict[str, float]:
        """Full rate of each link by name, B/s."""
        return {name: rate.value for name, rate in zip(self.links, self.link_rates, strict=True)}

    @cached_property
    def tuning(self) -> LibraryTuning | None:
        """The library's own rules, where they are modelled."""
        return None if self.costs.part is None else rules(self.costs.part.name, self.version)

    @cached_property
    def passes(self) -> float:
        """Share of the message that one start-up stands for: a ring's piece, a whole broadcast, the largest send; 0 where the library
        does not run the schedule itself.
        """
        if self.op not in RING_OPS:
            return self.largest_send
        if self.algorithm != "ring":
            return 0.0
        return 1.0 if self.op in ("broadcast", "reduce") else self.largest_send

    def host_step(self, route: Route) -> float:
        """Seconds of a small host-staged step in the memory that ``route`` goes through."""
        return max((self.memory_step[name] for name in route.links if name in self.memory_step), default=0.0)

    @cached_property
    def both_ways(self) -> frozenset[str]:
        """GPUs that send and receive: their kernels do both at once, whatever the transport of either."""
        return frozenset(route.src for route in self.pairs) & frozenset(route.dst for route in self.pairs)

    @cached_property
    def kinds(self) -> Kinds:
        """The classes that cost the same with any protocol."""
        return kinds_of(self, KERNELS)

    @cached_property
    def user_load(self) -> list[float]:
        """Message bytes over each link, as a share of the message."""
        return FlowSet(self.capacity, self.routes, (), self.of_class, self.fraction).link_bytes()

    @cached_property
    def shares_links(self) -> bool:
        """Whether two streams ever cross the same capacity (host memory and uplinks mostly)."""
        streams = [0] * len(self.routes)
        for index, before in zip(self.of_class, self.previous, strict=True):
            streams[index] += before < 0
        seen: set[int] = set()
        for route, count in zip(self.routes, streams, strict=True):
            crossed = set(route)
            if (count > 1 and crossed) or seen & crossed:
                return True
            seen |= crossed
        return False


def _view(placed: Placement, protocol: Protocol, lanes: Lanes | None) -> View:
    costs, tuning = placed.costs, placed.tuning
    latency: list[float] = []
    shares: list[float] = []
    caps: list[float] = []
    waits: list[float] = []
    once = 0.0
    steps: list[Amount] = []
    bound: list[Amount] = []
    kinds = placed.kinds
    for index, often in zip(kinds.first, kinds.count, strict=True):
        route = placed.class_route[index]
        network = _network(route)
        software, wire = costs.step(protocol, route.transport, network), amount(route.latency)
        label = weakest((wire.evidence, placed.transport_evidence.evidence))
        weight = often / len(placed.of_class)
        steps.append(Amount(software.value * weight, software.sigma, software.evidence, software.sources))
        steps.append(Amount(wire.value * weight, wire.sigma, label, wire.sources))
        latency.append(software.value + wire.value)
        share = costs.link_share(protocol, network)
        shares.append(share)
        alone = _alone(placed, route, protocol)
        cap = alone.value
        wait = 0.0
        if lanes is not None and tuning is not None and costs.part is not None and route.transport != "NET" and route.path_type != "NVL":
            way: Way = "shm" if route.transport == "SHM" else "p2p"
            polled = placed.host_step(route) if way == "shm" else costs.part.step_software["LL"].value
            all_channels = channel_rate(costs.part, tuning, protocol, way, lanes, polled)
            cap = blend(costs.part, all_channels.value, cap) if way == "shm" else min(all_channels.value, cap)
            if all_channels.value < alone.value:
                alone = all_channels
            if placed.passes:
                wait, once = one_pass(costs.part, tuning, protocol, way, lanes, polled)
        bound.append(alone)
        caps.append(min(cap / share, route.flow_rate.value if route.flow_rate is not None else math.inf) / placed.channels)
        waits.append(min(wait, latency[-1]))
    return View(
        latency=tuple([latency[kind] for kind in kinds.of]),
        wire=tuple([part / shares[kind] for part, kind in zip(placed.fraction, kinds.of, strict=True)]),
        caps=tuple([caps[kind] for kind in kinds.of_class]),
        step=_mean(steps),
        share=max(bound, key=lambda item: item.sigma, default=Amount(1.0, 0.0, "measured")),
        flight=tuple([waits[kind] for kind in kinds.of]),
        pass_bytes=once / placed.passes if placed.passes else 0.0,
    )


def _alone(placed: Placement, route: Route, protocol: Protocol) -> Amount:
    """Most user bytes per second of one flow on ``route``, its channels apart: infinity where only what is shared binds."""
    share = placed.costs.share(protocol, route.transport, _network(route))
    if route.transport != "SHM" or placed.costs.part is None:
        return Amount(math.inf, share.sigma, share.evidence, share.sources)
    links = [name for name in route.links if not name.endswith(".mem")]
    most = share.value * min((placed.rate_of[name] for name in links), default=math.inf)
    line = placed.costs.part.line_share[protocol].value
    for gpu in (route.src, route.dst):
        both = 2.0 if gpu in placed.both_ways else 1.0
        most = min(most, line * placed.rate_of.get(f"{gpu}{KERNELS}", math.inf) / both)
    return Amount(most, share.sigma, share.evidence, share.sources)


_KNOWN: WeakKeyDictionary[Topology, dict[object, Placement]] = WeakKeyDictionary()
_MOST_KEPT = 1024


def place(
    topology: Topology,
    op: str,
    groups: Sequence[tuple[str, ...]],
    *,
    algorithm: str = "auto",
    fractions: Fractions | None = None,
    chunks: int | None = None,
    channels: int | None = None,
    as_given: bool = False,
) -> Placement:
    """``op`` on every group of GPU nodes (rank order) at the same time; kept per topology.

    ``fractions``, ``chunks`` and ``channels`` as in :func:`pcie_sim.collectives.build_schedule`; a hierarchical algorithm gets the
    GPUs' own groups (:func:`pcie_sim.network.groups.switch_groups`). A ring (and the chain that NCCL's tree is inside a node) follows
    the library's own order of the group's GPUs (the first stays first), unless ``as_given``.

    Raises:
        InputError: unknown op, algorithm or GPU, a GPU twice in a group, a bad matrix, or an option that is not the algorithm's.
        NoDataError: no costs for the library, or no modelled transport between two GPUs.
    """
    kept = _KNOWN.setdefault(topology, {})
    key = (op, algorithm, tuple(groups), fractions, chunks, channels, as_given)
    found = kept.get(key)
    if found is None:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        builder = _Builder(topology, op)
        schedules = [builder.schedule(gpus, algorithm, fractions, chunks, channels) for gpus in groups]
        found = kept[key] = builder.build(groups, schedules, as_given)
    return found


class _Builder:
    def __init__(self, topology: Topology, op: str) -> None:
        self.topology, self.op = topology, op
        self.costs = library_costs(topology.settings.ccl)
        self.links: dict[str, int] = {}
        self.classes: dict[tuple[object, ...], int] = {}
        self.class_route: list[Route] = []
        self.routes: list[tuple[int, ...]] = []
        self.pairs: dict[tuple[str, str], Route] = {}
        self.ends: list[Route] = []
        self.kernels: dict[str, tuple[str, ...]] = {}

    def schedule(
        self, gpus: tuple[str, ...], algorithm: str, fractions: Fractions | None, chunks: int | None, channels: int | None
    ) -> Schedule:
        near = switch_groups(self.topology, gpus) if "groups" in options_of(self.op, algorithm) else None
        return build_schedule(self.op, algorithm, len(gpus), fractions=fractions, groups=near, chunks=chunks, channels=channels)

    def build(self, groups: Sequence[tuple[str, ...]], schedules: Sequence[Schedule], as_given: bool) -> Placement:
        of_class: list[int] = []
        fraction: list[float] = []
        deps: list[tuple[int, ...]] = []
        previous: list[int] = []
        order: list[int] = []
        rounds: list[list[int]] = []
        for group, schedule in zip(groups, schedules, strict=True):
            gpus = self._ring(group) if schedule.algorithm in _LIBRARY_ALGORITHMS and not as_given else group
            offset = len(of_class)
            class_of: dict[tuple[int, int], int] = {}
            for transfer in schedule.transfers:
                pair = (transfer.src, transfer.dst)
                if pair not in class_of:
                    class_of[pair] = self._class(gpus[transfer.src], gpus[transfer.dst])
                of_class.append(class_of[pair])
                self.ends.append(self.pairs[gpus[transfer.src], gpus[transfer.dst]])
                fraction.append(transfer.fraction)
                deps.append(tuple([dep + offset for dep in transfer.deps]) if offset else transfer.deps)
            previous.extend(item + offset if item >= 0 else -1 for item in schedule.stream_predecessor)
            order.extend(item + offset for item in schedule.order)
            for step, items in enumerate(schedule.rounds):
                if step == len(rounds):
                    rounds.append([])
                rounds[step].extend(item + offset for item in items)
        routes = tuple(self.routes)
        capacity, rates, crowded = self._capacities(routes, of_class, rounds, reads=schedules[0].access == "read")
        pairs = {pair: self.topology.transport(*pair) for pair in self.pairs}
        labels = [item.evidence for item in pairs.values()]
        return Placement(
            costs=self.costs,
            op=self.op,
            algorithm=schedules[0].algorithm,
            ranks=max(len(gpus) for gpus in groups),
            steps=len(rounds),
            links=tuple(self.links),
            capacity=capacity,
            link_rates=rates,
            routes=routes,
            class_route=tuple(self.class_route),
            pairs=tuple(self.pairs.values()),
            memory_step=self._memory_steps(),
            of_class=tuple(of_class),
            fraction=tuple(fraction),
            deps=tuple(deps),
            previous=tuple(previous),
            order=tuple(order),
            rounds=tuple(tuple(items) for items in rounds),
            largest_send=max(fraction, default=0.0),
            peers=max(len(gpus) for gpus in groups) - 1,
            crowded=crowded,
            version=self.topology.settings.ccl.version,
            reasons=tuple(dict.fromkeys(f"{item.kind}: {item.reason}" for item in pairs.values()))[:3],
            transport="+".join(sorted({route.transport for route in self.class_route})) or "none",
            transport_evidence=Amount(0.0, 0.0, weakest(labels)),
            access=schedules[0].access,
            channels=schedules[0].channels,
        )

    def _links_of(self, route: Route) -> tuple[str, ...]:
        """The route's capacities, with what the kernels of both ends read from and write to host memory where it goes through that."""
        if route.transport != "SHM":
            return route.links
        return (*route.links, *self._kernels(route.src), *self._kernels(route.dst))

    def _kernels(self, gpu: str) -> tuple[str, ...]:
        if gpu not in self.kernels:
            self.kernels[gpu] = () if self.topology.kernel_rate(gpu) is None else (f"{gpu}{KERNELS}",)
        return self.kernels[gpu]

    def _rate(self, name: str) -> Amount:
        if name.endswith(KERNELS):
            both = self.topology.kernel_rate(name.removesuffix(KERNELS))
            return amount(both) if both is not None else Amount(math.inf, 0.0, "measured")
        return amount(self.topology.links[name].rate)

    def _memory_steps(self) -> dict[str, float]:
        found = {name: self.topology.links[name].latency for name in self.links if name.endswith(".mem")}
        return {name: step.value for name, step in found.items() if step is not None}

    def _ring(self, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """The library's ring through ``gpus``, from the first of them on; as they are when its choices are not modelled."""
        thinks = beliefs(self.topology, self.costs.part, (gpus,)) if self.op in RING_OPS else None
        if thinks is None or set(thinks.order) != set(gpus):  # several hosts: as they stand
            return gpus
        start = thinks.order.index(gpus[0])
        return (*thinks.order[start:], *thinks.order[:start])

    def _class(self, src: str, dst: str) -> int:
        route = self.pairs.get((src, dst))
        if route is None:
            route = self.pairs[src, dst] = self.topology.path(src, dst)
        links = self.links
        crossed = tuple([links.setdefault(name, len(links)) for name in self._links_of(route)])
        rate = route.flow_rate.value if route.flow_rate is not None else None
        key = (crossed, rate, route.transport, route.latency.value, route.path_type)
        found = self.classes.get(key)
        if found is None:
            found = self.classes[key] = len(self.class_route)
            self.class_route.append(route)
            self.routes.append(crossed)
        return found

    def _capacities(
        self, routes: Sequence[tuple[int, ...]], of_class: Sequence[int], rounds: Sequence[Sequence[int]], *, reads: bool
    ) -> tuple[tuple[float, ...], tuple[Amount, ...], Amount]:
        """Rates by link; a GPU's port with three or more flows each way in every round that uses it (an exchange of all pairs)
        reaches only a share of its own, and where the receivers read, a port of a GPU or switch that is so crowded only what its part
        says of reads; with posted-write collapse in force, an uplink that some round of writes makes collapse has only what is left.
        """
        rates = [self._rate(name) for name in self.links]
        relief = self.costs.memory_relief("Simple")  # the other protocols' differs by 2 %
        capacity = [
            rate.value * (relief if name.endswith((".mem", KERNELS)) else 1.0) for name, rate in zip(self.links, rates, strict=True)
        ]
        share = self.costs.crowded_share()
        used = Amount(1.0, 0.0, "measured")
        if share.value < 1.0:
            ports: list[tuple[int, int]] = []
            for gpu in self.topology.gpus:
                up, down = self.links.get(f"{gpu}.up"), self.links.get(f"{gpu}.dn")
                if up is not None and down is not None:
                    ports.append((up, down))
            for port in _crowded(ports, routes, of_class, rounds):
                for index in port:
                    capacity[index] *= share.value
                    used = share
        if reads and self.costs.part is not None:
            ports = [
                (up, self.links[f"{name[:-3]}.dn"])
                for name, up in self.links.items()
                if name.endswith((".up", ".both")) and f"{name[:-3]}.dn" in self.links
            ]
            shares = {self.links[name]: self.topology.links[name].read_share for name in self.links if name in self.topology.links}
            for port in _crowded([pair for pair in ports if pair[0] != pair[1]], routes, of_class, rounds):
                slower = shares[port[0]]
                if slower is not None:
                    for index in port:
                        capacity[index] *= slower.value
                    used = Amount(used.value * slower.value, math.hypot(used.sigma, slower.sigma_log), used.evidence, used.sources)
        if self.topology.collapses:
            together = [[self.ends[index] for index in items] for items in rounds]
            for name, left in collapsed_uplinks(self.topology, together).items():
                index = self.links[name]
                if left.value < capacity[index]:
                    capacity[index], rates[index] = left.value, amount(left)
        return tuple(capacity), tuple(rates), used


def _crowded(
    ports: list[tuple[int, int]], routes: Sequence[tuple[int, ...]], of_class: Sequence[int], rounds: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """The ports with :data:`CROWD` flows or more in and out in every round that uses them."""
    found = ports
    for items in rounds:
        if not found:
            break
        flows: dict[int, int] = {}
        for item in items:
            for link in set(routes[of_class[item]]):
                flows[link] = flows.get(link, 0) + 1
        used = [(port, [flows.get(link, 0) for link in port]) for port in found]
        found = [port for port, counts in used if min(counts) >= CROWD or not any(counts)]
    return found
