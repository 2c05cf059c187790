"""What a placed schedule costs with one protocol on given channels, transfer by transfer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.evidence import weakest
from pcie_sim.network.channels import Lanes, Way, blend, channel_rate, one_pass
from pcie_sim.network.costs import Amount, KernelCosts, add, amount
from pcie_sim.specs.part import Protocol

if TYPE_CHECKING:
    from pcie_sim.network.placement import Placement
    from pcie_sim.topology import Route

KERNELS = ".sm"
"""``<gpu>.sm``: what the GPU's kernels read from and write to host memory together, as one capacity."""


def _mean(pieces: Sequence[Amount]) -> Amount:
    """Sum of weighted pieces. The same quantity at several places is not independent: equal sources are put together first."""
    joined: dict[tuple[str, ...], Amount] = {}
    for piece in pieces:
        known = joined.get(piece.sources)
        value = piece.value + (known.value if known else 0.0)
        label = weakest((piece.evidence, known.evidence)) if known else piece.evidence
        joined[piece.sources] = Amount(value, max(piece.sigma, known.sigma if known else 0.0), label, piece.sources)
    return add(joined.values())


def network_of(route: Route) -> str | None:
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


def make_view(placed: Placement, protocol: Protocol, lanes: Lanes | None) -> View:
    """The costs of ``placed`` with ``protocol`` on ``lanes`` (None: channels that bind nothing)."""
    kinds = placed.kinds
    edges = [_edge(placed, placed.class_route[index], protocol, lanes) for index in kinds.first]
    steps: list[Amount] = []
    for edge, often in zip(edges, kinds.count, strict=True):
        weight = often / len(placed.of_class)
        steps += [Amount(part.value * weight, part.sigma, part.evidence, part.sources) for part in edge.start]
    once = max((edge.pass_bytes for edge in edges), default=0.0)
    latency, charge, wait = [edge.latency for edge in edges], [edge.charge for edge in edges], [edge.wait for edge in edges]
    caps = [edge.cap / edge.charge / placed.channels for edge in edges]  # what holds for an edge is cut among its channels
    more = _last_receive(placed, protocol)
    return View(
        latency=tuple([latency[kind] for kind in kinds.of]),
        wire=tuple([more * part / charge[kind] for part, kind in zip(placed.fraction, kinds.of, strict=True)]),
        caps=tuple([caps[kind] for kind in kinds.of_class]),
        step=_mean(steps),
        share=max((edge.bound for edge in edges), key=lambda item: item.sigma, default=Amount(1.0, 0.0, "measured")),
        flight=tuple([wait[kind] for kind in kinds.of]),
        pass_bytes=once / placed.passes if placed.passes else 0.0,
    )


_RINGS = ("all_reduce", "all_gather", "reduce_scatter")


def _last_receive(placed: Placement, protocol: Protocol) -> float:
    """Time of a ring's bytes over that of its steps: a rank's block of threads sends and receives in one go but for the first send and
    the last receive, and while it only receives, nothing of its own is on the wire (NVIDIA/nccl:src/device/all_gather.h).
    """
    part = placed.costs.part
    if part is None or part.last_receive is None or protocol != "Simple" or placed.algorithm != "ring" or placed.op not in _RINGS:
        return 1.0
    return 1.0 + part.last_receive.value / placed.steps if placed.steps else 1.0


@dataclass(frozen=True)
class _Edge:
    """One class of transfers: its start-up in parts (s), user bytes charged per wire byte, most user B/s of one flow (and whose number
    that is), seconds and bytes of one pass.
    """

    start: tuple[Amount, Amount]
    charge: float
    cap: float
    bound: Amount
    wait: float = 0.0
    pass_bytes: float = 0.0

    @property
    def latency(self) -> float:
        return self.start[0].value + self.start[1].value


def _edge(placed: Placement, route: Route, protocol: Protocol, lanes: Lanes | None) -> _Edge:
    costs, network = placed.costs, network_of(route)
    way = amount(route.latency)
    label = weakest((way.evidence, placed.transport_evidence.evidence))
    start = costs.step(protocol, route.transport, network), Amount(way.value, way.sigma, label, way.sources)
    latency = start[0].value + start[1].value
    alone = _alone(placed, route, protocol)
    line = costs.part.line_share[protocol].value if costs.part is not None else 1.0
    most = route.flow_rate.value * line if route.flow_rate is not None else math.inf
    edge = _Edge(start, costs.link_share(protocol, route.transport, network), min(alone.value, most), alone)
    if lanes is None or placed.tuning is None or costs.part is None or route.transport == "NET" or route.path_type == "NVL":
        return edge
    by: Way = "shm" if route.transport == "SHM" else "p2p"
    polled = placed.host_step(route) if by == "shm" else costs.part.step_software["LL"].value
    channels = channel_rate(costs.part, placed.tuning, protocol, by, lanes, polled)
    both = by == "shm" and not placed.both_ways.isdisjoint((route.src, route.dst))
    # measured where a GPU reads and writes host memory at once; one way, the smaller limit alone
    cap = blend(costs.part, channels.value, alone.value) if both else min(channels.value, alone.value)
    wait, once = one_pass(costs.part, placed.tuning, protocol, by, lanes, polled) if placed.passes else (0.0, 0.0)
    bound = channels if channels.value < alone.value else alone
    return _Edge(start, edge.charge, min(cap, most), bound, min(wait / placed.hops_of_a_pass, latency), once)


def _alone(placed: Placement, route: Route, protocol: Protocol) -> Amount:
    """Most user bytes per second of one flow on ``route``, its channels apart: infinity where only what is shared binds."""
    costs = placed.costs
    share = costs.share(protocol, route.transport, network_of(route))
    links = [name for name in route.links if not name.endswith(".mem")]
    slowest = min((placed.rate_of[name] for name in links), default=math.inf)
    if isinstance(costs, KernelCosts):
        if route.transport == "SHM":
            staged = amount(costs.kernel.system_memory_rate)
            return Amount(staged.value / max(1, placed.peers), staged.sigma, staged.evidence, staged.sources)
        return Amount(share.value * slowest, share.sigma, share.evidence, share.sources)
    if route.transport != "SHM" or costs.part is None:
        return Amount(math.inf, share.sigma, share.evidence, share.sources)
    most = share.value * slowest
    for gpu in (route.src, route.dst):
        both = 2.0 if gpu in placed.both_ways else 1.0
        most = min(most, costs.part.line_share[protocol].value * placed.rate_of.get(f"{gpu}{KERNELS}", math.inf) / both)
    return Amount(most, share.sigma, share.evidence, share.sources)
