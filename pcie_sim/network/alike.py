"""Classes of transfers that cost the same: an exchange of 256 GPUs has 65,280 classes, but few kinds of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.network.costs import KernelCosts
from pcie_sim.network.sharing import INFINITY

if TYPE_CHECKING:
    from pcie_sim.network.placement import Placement


@dataclass(frozen=True)
class Kinds:
    """``first`` is one class of each kind, ``count`` the transfers of each kind, ``of`` the kind of every transfer and ``of_class`` of
    every class.
    """

    first: tuple[int, ...]
    count: tuple[int, ...]
    of: tuple[int, ...]
    of_class: tuple[int, ...]


def kinds_of(placed: Placement, kernels: str) -> Kinds:
    """The classes of ``placed`` by all that their start-up, share and cap depend on, whatever the protocol; ``<gpu><kernels>`` is the
    capacity of a GPU's kernels.
    """
    wires = {name: rate for name, rate in placed.rate_of.items() if not name.endswith(".mem")}
    ends = {route.src for route in placed.pairs} | {route.dst for route in placed.pairs}
    own = {gpu: (wires.get(f"{gpu}{kernels}", INFINITY), gpu in placed.both_ways) for gpu in ends}
    kernel = isinstance(placed.costs, KernelCosts)
    known: dict[tuple[object, ...], int] = {}
    first: list[int] = []
    of_class: list[int] = []
    for index, route in enumerate(placed.class_route):
        network = route.network if route.transport == "NET" else None
        staged = route.transport == "SHM"
        # the routes of like pairs share their quantities: identity is quicker than comparing them, and never joins what differs
        key: tuple[object, ...] = (route.transport, network, route.path_type == "NVL", id(route.latency), id(route.flow_rate))
        slowest = min([wires[name] for name in route.links if name in wires], default=INFINITY) if staged or kernel else None
        if kernel:
            key = (*key, slowest)
        if staged:
            key = (*key, slowest, own[route.src], own[route.dst], placed.host_step(route))
        kind = known.setdefault(key, len(known))
        if kind == len(first):
            first.append(index)
        of_class.append(kind)
    count = Counter(of_class[index] for index in placed.of_class)
    return Kinds(
        first=tuple(first),
        count=tuple(count[kind] for kind in range(len(first))),
        of=tuple([of_class[index] for index in placed.of_class]),
        of_class=tuple(of_class),
    )
