"""Bare copies between GPUs of a box, all at once: what each of them and all together reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pcie_sim.errors import InputError
from pcie_sim.network.conditions import collapsed_uplinks
from pcie_sim.network.crowding import CROWD, port_shares
from pcie_sim.network.events import FlowSet, simulate
from pcie_sim.specs.machine import CclSettings
from pcie_sim.units import parse_bytes

if TYPE_CHECKING:
    from pcie_sim.topology import Route, Topology

MOST_FLOWS = 300_000
_OTHER = {"up": "dn", "dn": "up"}


@dataclass(frozen=True)
class CopyRates:
    """What copies that start together reach, B/s.

    Attributes:
        pairs: source and destination of every flow, as asked.
        rates: bytes of each flow over its own time, in the same order.
        total: bytes of all flows over the time until the last one ends (what tools that wait for all of them report).
        seconds: that time.
        shared: links that two or more of the flows cross in one direction.
        crowded: GPU ports with three or more of them in and out.
        staged: whether a flow goes through host memory.
    """

    pairs: tuple[tuple[str, str], ...]
    rates: tuple[float, ...]
    total: float
    seconds: float
    shared: tuple[str, ...]
    crowded: tuple[str, ...]
    staged: bool

    @property
    def mean(self) -> float:
        """Mean rate of a flow, B/s."""
        return math.fsum(self.rates) / len(self.rates)


def copy_rates(
    topology: Topology, pairs: Iterable[Sequence[str]], *, access: Literal["write", "read"] = "write", size_bytes: int | str = "256MiB"
) -> CopyRates:
    """Rates of one copy of ``size_bytes`` from ``src`` to ``dst`` for every ``(src, dst)`` in ``pairs``, all started together.

    Copy engines and plain kernels: no collective library, no start-up cost, max-min sharing of the box's directed capacities by
    the event engine. Peer-to-peer where the driver grants it (``settings.p2p``), else through host memory. Three measured effects
    are taken from the parts: two or more flows in one direction of a PCIe link reach its ``contended_share``; the port of a GPU
    with three or more flows in and out only ``fan_share`` of that (an uplink does not lose more: with 16 flows each way it was
    measured at 0.91 to 0.96); reads on a port that is so crowded, of a GPU or of a switch, ``read_share`` of what writes reach.
    Posted-write collapse where the topology's conditions say so.

    Args:
        pairs: GPU node names; the same pair twice means two flows.
        access: ``write`` (the sources push) or ``read`` (the destinations pull).
        size_bytes: size of each flow (text such as ``256MiB`` is understood); above 0.

    Raises:
        InputError: no pair, an unknown GPU, a pair of one GPU, a bad size or access, or GPUs that nothing joins.

    >>> from pcie_sim.topology import load_topology
    >>> box = load_topology("rtx-pro-6000-8x-2switch")
    >>> round(copy_rates(box, [("gpu0", "gpu1")]).total / 1e9, 1)
    56.5
    """
    if access not in ("write", "read"):
        raise InputError(f"access {access!r}: use write or read")
    asked = tuple((str(src), str(dst)) for src, dst in pairs)
    size = parse_bytes(size_bytes)
    if not asked or len(asked) > MOST_FLOWS:
        raise InputError(f"{topology.name}: copies between {len(asked)} pairs; give 1 to {MOST_FLOWS}")
    if size <= 0:
        raise InputError(f"a copy of {size} bytes takes no time; give a size above 0")
    bare = topology.with_settings(ccl=CclSettings(name="none"))
    routes: dict[tuple[str, str], Route] = {}
    for pair in asked:
        if pair not in routes:
            path = bare.path(*pair)
            routes[pair] = bare.route(*pair, access=access) if path.transport == "P2P" else path
    names = list(dict.fromkeys(name for route in routes.values() for name in route.links))
    index = {name: place for place, name in enumerate(names)}
    counts = dict.fromkeys(names, 0)
    for pair in asked:
        for name in set(routes[pair].links):
            counts[name] += 1
    capacity, crowded = _capacities(bare, names, counts, [routes[pair] for pair in asked], access)
    place_of = {pair: place for place, pair in enumerate(routes)}
    run = simulate(
        FlowSet(
            [capacity[name] for name in names],
            [tuple(index[name] for name in route.links) for route in routes.values()],
            [route.flow_rate.value if route.flow_rate is not None else math.inf for route in routes.values()],
            [place_of[pair] for pair in asked],
            [float(size)] * len(asked),
        )
    )
    return CopyRates(
        pairs=asked,
        rates=tuple(size / end for end in run.finish),
        total=size * len(asked) / run.makespan,
        seconds=run.makespan,
        shared=tuple(name for name in names if counts[name] > 1),
        crowded=crowded,
        staged=any(route.transport != "P2P" for route in routes.values()),
    )


def _capacities(
    topology: Topology, names: Sequence[str], counts: dict[str, int], flows: Sequence[Route], access: Literal["write", "read"]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What each link carries with so many flows on it, and the crowded GPU ports."""
    gpus = set(topology.gpus)
    found = {name: topology.links[name].rate.value for name in names}
    crowded: list[str] = []
    for name in names:
        link = topology.links[name]
        node, _, direction = name.rpartition(".")
        there = counts.get(f"{node}.{_OTHER.get(direction)}", 0)
        found[name] *= math.prod(share.value for share in port_shares(link, counts[name], there, gpu=node in gpus, access=access))
        if node in gpus and min(counts[name], there) >= CROWD:
            crowded.append(name)
    for name, left in collapsed_uplinks(topology, [flows]).items():
        found[name] = min(found[name], left.value)
    return found, tuple(crowded)
