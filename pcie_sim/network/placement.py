"""A schedule laid on a topology: which directed capacities every transfer crosses, and what each costs by protocol."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from pcie_sim.collectives import Schedule, build_schedule, options_of
from pcie_sim.evidence import weakest
from pcie_sim.network.alike import Kinds, kinds_of
from pcie_sim.network.channels import Lanes, pass_filled
from pcie_sim.network.costs import Amount, Costs, KernelCosts, amount, kernel_costs, library_costs
from pcie_sim.network.crowding import Flows, capacities
from pcie_sim.network.events import FlowSet
from pcie_sim.network.groups import switch_groups
from pcie_sim.network.library import RING_OPS, beliefs
from pcie_sim.network.nccl_rules import rules
from pcie_sim.network.views import KERNELS, View, make_view
from pcie_sim.specs.part import LibraryTuning, Protocol
from pcie_sim.topology import Access

if TYPE_CHECKING:
    from pcie_sim.network.analytic import Lines
    from pcie_sim.topology import Route, Topology

Fractions = tuple[tuple[float, ...], ...]
_LIBRARY_ALGORITHMS = ("ring", "tree")
"""Algorithms that the library runs on its channels, whose number caps an edge."""


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
            self._views[key] = make_view(self, protocol, lanes)
        return self._views[key]

    def flow_set(self, protocol: Protocol, size: float, lanes: Lanes | None = None) -> FlowSet:
        """The transfers of a message of ``size`` bytes as flows of wire bytes."""
        view = self.view(protocol, lanes)
        wire = [part * size for part in view.wire]
        latency = view.latency
        if view.pass_bytes:
            early = float(pass_filled(size, view.pass_bytes))
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
        """The library's own rules, where they are modelled and it moves the bytes."""
        if self.costs.part is None or isinstance(self.costs, KernelCosts):
            return None
        return rules(self.costs.part.name, self.version)

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

    @property
    def hops_of_a_pass(self) -> int:
        """Steps over which the first pass of a message is moved: a broadcast's passes follow each other down the whole chain."""
        return self.ranks - 1 if self.op in ("broadcast", "reduce") else 1

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
        builder.driven_by(schedules[0])
        found = kept[key] = builder.build(groups, schedules, as_given)
    return found


@dataclass
class _Moves:
    """Transfers as :class:`Placement` holds them, while they are put together."""

    of_class: list[int] = field(default_factory=list)
    fraction: list[float] = field(default_factory=list)
    deps: list[tuple[int, ...]] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    rounds: list[list[int]] = field(default_factory=list)


class _Builder:
    def __init__(self, topology: Topology, op: str) -> None:
        self.topology, self.op = topology, op
        self.costs: Costs = library_costs(topology.settings.ccl)
        self.links: dict[str, int] = {}
        self.classes: dict[tuple[object, ...], int] = {}
        self.class_route: list[Route] = []
        self.routes: list[tuple[int, ...]] = []
        self.kernels: dict[str, tuple[str, ...]] = {}
        self.pairs: dict[tuple[str, str], Route] = {}
        self.ends: list[Route] = []
        self.access: Access = "write"
        self.near: dict[str, int] = {}
        """GPUs of the communicator on the host of each GPU."""

    def schedule(
        self, gpus: tuple[str, ...], algorithm: str, fractions: Fractions | None, chunks: int | None, channels: int | None
    ) -> Schedule:
        near = switch_groups(self.topology, gpus) if "groups" in options_of(self.op, algorithm) else None
        return build_schedule(self.op, algorithm, len(gpus), fractions=fractions, groups=near, chunks=chunks, channels=channels)

    def driven_by(self, schedule: Schedule) -> None:
        """Who moves the bytes: the library, or an engine's own kernel (which needs the driver's consent only), and which end."""
        self.access = schedule.access
        if schedule.kernel and self.costs.part is not None:
            self.costs = kernel_costs(self.costs)

    def _unrolled(self, groups: Sequence[tuple[str, ...]], schedules: Sequence[Schedule], as_given: bool) -> _Moves:
        """The transfers of all groups one after the other, each with its class."""
        found = _Moves()
        for group, schedule in zip(groups, schedules, strict=True):
            hosts = Counter(self.topology.host_of(gpu) for gpu in group)
            self.near.update({gpu: hosts[self.topology.host_of(gpu)] for gpu in group})
            gpus = self._ring(group) if schedule.algorithm in _LIBRARY_ALGORITHMS and not as_given else group
            offset = len(found.of_class)
            class_of: dict[tuple[int, int], int] = {}
            for transfer in schedule.transfers:
                pair = (transfer.src, transfer.dst)
                if pair not in class_of:
                    class_of[pair] = self._class(gpus[transfer.src], gpus[transfer.dst])
                found.of_class.append(class_of[pair])
                self.ends.append(self.pairs[gpus[transfer.src], gpus[transfer.dst]])
                found.fraction.append(transfer.fraction)
                found.deps.append(tuple([dep + offset for dep in transfer.deps]) if offset else transfer.deps)
            found.previous.extend(item + offset if item >= 0 else -1 for item in schedule.stream_predecessor)
            found.order.extend(item + offset for item in schedule.order)
            for step, items in enumerate(schedule.rounds):
                if step == len(found.rounds):
                    found.rounds.append([])
                found.rounds[step].extend(item + offset for item in items)
        return found

    def build(self, groups: Sequence[tuple[str, ...]], schedules: Sequence[Schedule], as_given: bool) -> Placement:
        moves = self._unrolled(groups, schedules, as_given)
        routes = tuple(self.routes)
        flows = Flows(tuple(self.links), routes, moves.of_class, moves.rounds, self.ends, self.access)
        rates = [self._rate(name) for name in self.links]
        capacity, used, crowded = capacities(self.topology, self.costs, flows, rates)
        pairs = (
            {}
            if isinstance(self.costs, KernelCosts)
            else {pair: self.topology.transport(*pair, gpus=self.near[pair[0]]) for pair in self.pairs}
        )
        labels = [item.evidence for item in pairs.values()] or ["nominal"]
        return Placement(
            costs=self.costs,
            op=self.op,
            algorithm=schedules[0].algorithm,
            ranks=max(len(gpus) for gpus in groups),
            steps=len(moves.rounds),
            links=tuple(self.links),
            capacity=capacity,
            link_rates=used,
            routes=routes,
            class_route=tuple(self.class_route),
            pairs=tuple(self.pairs.values()),
            memory_step=self._memory_steps(),
            of_class=tuple(moves.of_class),
            fraction=tuple(moves.fraction),
            deps=tuple(moves.deps),
            previous=tuple(moves.previous),
            order=tuple(moves.order),
            rounds=tuple(tuple(items) for items in moves.rounds),
            largest_send=max(moves.fraction, default=0.0),
            peers=max(len(gpus) for gpus in groups) - 1,
            crowded=crowded,
            version=self.topology.settings.ccl.version,
            reasons=tuple(dict.fromkeys(f"{item.kind}: {item.reason}" for item in pairs.values()))[:3],
            transport="+".join(sorted({route.transport for route in self.class_route})) or "none",
            transport_evidence=Amount(0.0, 0.0, weakest(labels)),
            access=self.access,
            channels=schedules[0].channels,
        )

    def _route(self, src: str, dst: str) -> Route:
        if isinstance(self.costs, KernelCosts) and self.topology.host_of(src) == self.topology.host_of(dst):
            return self.topology.sm_route(src, dst, access=self.access)
        path = self.topology.path(src, dst, gpus=self.near[src])
        return self.topology.route(src, dst, access="read") if path.transport == "P2P" and self.access == "read" else path

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
            route = self.pairs[src, dst] = self._route(src, dst)
        links = self.links
        crossed = tuple([links.setdefault(name, len(links)) for name in self._links_of(route)])
        rate = route.flow_rate.value if route.flow_rate is not None else None
        key = (crossed, route.access, rate, route.transport, route.latency.value, route.path_type)
        found = self.classes.get(key)
        if found is None:
            found = self.classes[key] = len(self.class_route)
            self.class_route.append(route)
            self.routes.append(crossed)
        return found
