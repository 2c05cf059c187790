"""What links carry when many transfers meet on them: crowded ports, reads, collapsed uplinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.network.conditions import collapsed_uplinks
from pcie_sim.network.costs import Amount, Costs, KernelCosts, amount
from pcie_sim.network.views import KERNELS
from pcie_sim.topology import Access

if TYPE_CHECKING:
    from pcie_sim.specs.base import Quantity
    from pcie_sim.topology import Capacity, Route, Topology

CROWD = 3
"""Flows in and out of one port from which it counts as crowded (the measurements behind the parts' ``fan_share``)."""


@dataclass(frozen=True)
class Flows:
    """Transfers by class: links by name, routes of the classes by index into them, class of each transfer, transfers by round, the
    route of each, and which end moves the bytes.
    """

    links: tuple[str, ...]
    routes: Sequence[tuple[int, ...]]
    of_class: Sequence[int]
    rounds: Sequence[Sequence[int]]
    ends: Sequence[Route]
    access: Access

    def least(self) -> list[int]:
        """Flows over each link in the round that has the fewest, among those that use it."""
        found: dict[int, int] = {}
        for items in self.rounds:
            flows: dict[int, int] = {}
            for item in items:
                for link in set(self.routes[self.of_class[item]]):
                    flows[link] = flows.get(link, 0) + 1
            for link, count in flows.items():
                found[link] = min(count, found.get(link, count))
        return [found.get(link, 0) for link in range(len(self.links))]


def capacities(topology: Topology, costs: Costs, flows: Flows, rates: list[Amount]) -> tuple[tuple[float, ...], tuple[Amount, ...], Amount]:
    """Rates by link as these flows find them, the links' own (an uplink that collapsed has what is left), and what crowding costs.

    A GPU's port with :data:`CROWD` flows or more each way in every round that uses it reaches its ``fan_share``; where the receivers
    read, a port of a GPU or switch that is so crowded also its ``read_share``. Engines' own kernels that share a link in one direction
    reach its ``contended_share``; the library's flows already lose more by themselves. Wires without a library lose nothing.
    """
    relief = costs.memory_relief()
    capacity = [rate.value * (relief if name.endswith((".mem", KERNELS)) else 1.0) for name, rate in zip(flows.links, rates, strict=True)]
    used = list(rates)
    crowded = Amount(1.0, 0.0, "measured")
    if costs.part is not None:
        least = flows.least()
        place = {name: index for index, name in enumerate(flows.links)}
        charged = _charged(costs, flows)
        for name, index in place.items():
            factor = _factor(topology, costs, name, place, least, flows.access, charged[index])
            capacity[index] *= factor.value
            if factor.value < crowded.value:
                crowded = factor
    if topology.collapses:
        together = [[flows.ends[item] for item in items] for items in flows.rounds]
        for name, left in collapsed_uplinks(topology, together).items():
            index = flows.links.index(name)
            if left.value < capacity[index]:
                capacity[index], used[index] = left.value, amount(left)
    return tuple(capacity), tuple(used), crowded


def port_shares(link: Capacity, here: int, there: int, *, gpu: bool, access: Access, contended: bool = True) -> list[Quantity]:
    """What ``link`` keeps of its rate with ``here`` flows in its direction and ``there`` in the other, as factors: its
    ``contended_share`` with two flows or more, and with :data:`CROWD` or more each way a GPU's ``fan_share`` and, of reads,
    ``read_share``; those that its part has a figure for.
    """
    crowd = min(here, there) >= CROWD
    parts = [
        link.contended_share if contended and here > 1 else None,
        link.fan_share if crowd and gpu else None,
        link.read_share if crowd and access == "read" else None,
    ]
    return [part for part in parts if part is not None]


def _charged(costs: Costs, flows: Flows) -> list[float]:
    """User bytes over bytes that the library's flows charge to each link (of several transports, the largest share)."""
    found = [0.0] * len(flows.links)
    first = dict(zip(reversed(flows.of_class), reversed(flows.ends), strict=True))  # any flow of a class: they share the transport
    for index, route in first.items():
        links = flows.routes[index]
        share = costs.link_share("Simple", route.transport, route.network if route.transport == "NET" else None)
        for link in links:
            found[link] = max(found[link], share)
    return found


def _factor(topology: Topology, costs: Costs, name: str, place: dict[str, int], least: list[int], access: Access, charged: float) -> Amount:
    """What is left of the link ``name`` with so many flows on it."""
    node, _, direction = name.rpartition(".")
    other = place.get(f"{node}.{'dn' if direction == 'up' else 'up'}") if direction in ("up", "dn") else None
    link = topology.links.get(name)
    kernel = isinstance(costs, KernelCosts)
    if direction in ("fwd", "rev"):
        # measured with copies: what a library's flow loses at its ends is not lost between sockets
        return Amount(1.0 / charged if charged else 1.0, 0.0, "measured")
    if link is None or direction not in ("up", "dn", "both"):
        return Amount(1.0, 0.0, "measured")
    here, there = least[place[name]], least[other] if other is not None else 0
    gpu = node in topology.gpus
    together = costs.link_share("Simple", "P2P")
    if not kernel and not gpu and here > 1 and charged > together:
        # host-staged flows that share an uplink are taken to lose as much as peer-to-peer ones
        return Amount(together / charged, 0.0, "assumed")
    scale = 1.0
    if kernel:
        known = port_shares(link, here, there, gpu=gpu, access=access)
    else:
        # the library's flows lose to themselves what a crowd hides: together they reach what bare copies do
        crowded = gpu and min(here, there) >= CROWD
        known = port_shares(link, here, there, gpu=gpu, access=access, contended=crowded)
        scale = charged if crowded else 1.0
    if not known:
        return Amount(1.0, 0.0, "measured")
    value = min(1.0, math.prod(part.value for part in known) / scale)
    sigma = math.sqrt(sum(part.sigma_log**2 for part in known))
    return Amount(value, sigma, known[0].evidence, tuple(part.source for part in known))
