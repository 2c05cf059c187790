"""Opt-in faults of a box (``settings.conditions``) as they change what links carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pcie_sim.specs.base import Quantity

if TYPE_CHECKING:
    from pcie_sim.topology import Route, Topology


def collapsed_uplinks(topology: Topology, rounds: Iterable[Sequence[Route]]) -> dict[str, Quantity]:
    """Uplinks that collapse in some round of transfers, and what all writes through them then reach together (B/s).

    An uplink collapses when at least ``min_source_gpus`` GPUs write through it, in one round, to GPUs of at least
    ``min_destination_roots`` root ports (parameters of the switch's part). Reads do not count.
    """
    found: dict[str, Quantity] = {}
    for routes in rounds:
        for name, when in topology.collapses.items():
            writes = [route for route in routes if route.access == "write" and name in route.links]
            sources = {route.src for route in writes}
            roots = {topology.root_of(route.dst) for route in writes}
            if len(sources) >= when.min_source_gpus and len(roots) >= when.min_destination_roots:
                found[name] = when.collapsed_rate
    return found
