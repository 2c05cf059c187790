"""Pairs of GPUs that differ by name only: a box of 256 GPUs has 65,280 pairs and a handful of different ways between them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.topology.network import cards_of
from pcie_sim.topology.routes import Route
from pcie_sim.topology.tree import Tree

if TYPE_CHECKING:
    from pcie_sim.topology.box import Topology


def places_of(tree: Tree, links: Container[str]) -> dict[str, int]:
    """A number for every GPU of ``tree``: GPUs of one number are of one model, stand at one place (:attr:`Tree.sites`), have the same
    kinds of link of their own among ``links``, and prefer the same network cards in the same order. Whatever is asked about a pair of
    different GPUs then has one answer for all pairs with the same two numbers, the names of their own links apart.
    """
    known: dict[tuple[object, ...], int] = {}
    found: dict[str, int] = {}
    for gpu, spec in tree.gpus.items():
        own = tuple(end for end in ("up", "dn", "both") if f"{gpu}.{end}" in links)
        cards = (cards_of(tree, gpu, rdma=True), cards_of(tree, gpu, rdma=False))
        found[gpu] = known.setdefault((tree.sites[gpu], spec.name, own, cards), len(known))
    return found


def place_pairs(topology: Topology) -> dict[tuple[str, str], int]:
    """One ordered pair of different GPUs for each pair of places (:attr:`Topology.places`), in bus order, and how many are like it."""
    members: dict[int, list[str]] = {}
    for gpu in topology.gpus:
        members.setdefault(topology.places[gpu], []).append(gpu)
    found: dict[tuple[str, str], int] = {}
    for first, mine in members.items():
        for second, others in members.items():
            if first != second:
                found[mine[0], others[0]] = len(mine) * len(others)
            elif len(mine) > 1:
                found[mine[0], mine[1]] = len(mine) * (len(mine) - 1)
    at = {gpu: index for index, gpu in enumerate(topology.gpus)}
    return dict(sorted(found.items(), key=lambda item: (at[item[0][0]], at[item[0][1]])))


@dataclass(frozen=True)
class Pattern:
    """A route with the places in its ``links`` where the sender's and the receiver's own links stand, and the endings of those."""

    route: Route
    sender: tuple[tuple[int, str], ...]
    receiver: tuple[tuple[int, str], ...]

    @staticmethod
    def of(route: Route) -> Pattern:
        """The pattern of ``route``."""
        spots: dict[str, list[tuple[int, str]]] = {route.src: [], route.dst: []}
        for place, name in enumerate(route.links):
            node, dot, end = name.rpartition(".")  # a node's name has no dot
            if node in spots:
                spots[node].append((place, dot + end))
        return Pattern(route, tuple(spots[route.src]), tuple(spots[route.dst]))

    def between(self, a: str, b: str) -> Route:
        """The same way from GPU ``a`` to GPU ``b``, which stand at the same places as the route's own ends."""
        route = self.route
        if route.src == a and route.dst == b:
            return route
        links = list(route.links)
        for place, end in self.sender:
            links[place] = a + end
        for place, end in self.receiver:
            links[place] = b + end
        return Route(
            a,
            b,
            tuple(links),
            route.path_type,
            route.transport,
            route.latency,
            route.flow_rate,
            route.crosses_socket,
            route.access,
            route.network,
        )
