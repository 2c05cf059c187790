"""Flows as people write them, made shorter without changing the answer: equal flows as one, links in series as one.

Links that the same flows cross, each equally often, always carry the same load: only the slowest of them can be full first, so the
others change nothing. Flows of one route, size and start get the same rate all the time and end together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pcie_sim.network.events import FlowRun, FlowSet, simulate, simulate_arrays
from pcie_sim.network.flowset import arrays_of

_MOST_CELLS = 1 << 26
"""Routes as columns of one table take no more than this many entries (256 MB)."""


@dataclass(frozen=True)
class Short:
    """``flows`` are all different; ``copies`` says how many each stands for, ``which`` the one that stands for each flow asked."""

    flows: FlowSet
    copies: list[int]
    which: list[int]

    @property
    def crossings(self) -> int:
        """Links crossed by all different flows together: what a run has to follow."""
        lengths = [len(route) for route in self.flows.routes]
        return sum([lengths[index] for index in self.flows.of_class])

    @property
    def alike(self) -> bool:
        """Whether sizes and starts are so few that flows can be solved in groups."""
        return 4 * len(set(zip(self.flows.size, self.flows.start, strict=True))) <= len(self.copies)

    def run(self) -> FlowRun:
        """When every flow asked ends."""
        if len(self.copies) == len(self.which):
            return simulate(self.flows)
        found = self._merged()
        return FlowRun([found.finish[index] for index in self.which], found.makespan, found.events)

    def _merged(self) -> FlowRun:
        import numpy as np

        flows = self.flows
        if max(map(len, flows.routes)) * len(self.copies) > _MOST_CELLS:
            return simulate(self._charged())
        run = simulate_arrays(replace(arrays_of(flows), copies=np.asarray(self.copies, dtype=np.int64)))
        return FlowRun(run.finish.tolist(), run.makespan, run.events)

    def _charged(self) -> FlowSet:
        """The flows with their copies as charges."""
        flows = self.flows
        known: dict[tuple[int, int], int] = {}
        of_class = [known.setdefault(key, len(known)) for key in zip(flows.of_class, self.copies, strict=True)]
        return FlowSet(
            capacity=flows.capacity,
            routes=[flows.routes[index] for index, _ in known],
            caps=[flows.caps[index] for index, _ in known],
            of_class=of_class,
            size=flows.size,
            start=flows.start,
            charges=[(times,) * len(flows.routes[index]) for index, times in known],
        )


def shortened(flows: FlowSet) -> Short:
    """``flows`` (each with a start, no dependencies, start-ups, streams or charges) without what changes nothing."""
    capacity, routes = _in_series(flows)
    known: dict[tuple[int, float, float], int] = {}
    copies: list[int] = []
    which: list[int] = []
    for key in zip(flows.of_class, flows.size, flows.start, strict=True):
        index = known.setdefault(key, len(known))
        if index == len(copies):
            copies.append(0)
        copies[index] += 1
        which.append(index)
    once = FlowSet(
        capacity=capacity,
        routes=routes,
        caps=flows.caps,
        of_class=[index for index, _, _ in known],
        size=[size for _, size, _ in known],
        start=[start for _, _, start in known],
    )
    return Short(once, copies, which)


def _in_series(flows: FlowSet) -> tuple[list[float], list[tuple[int, ...]]]:
    """Capacities and routes with one link, the slowest, for all that the same routes cross equally often."""
    users: list[list[int]] = [[] for _ in flows.capacity]
    for place, route in enumerate(flows.routes):
        for link in route:
            users[link].append(place)
    slowest: dict[tuple[int, ...], int] = {}
    for link, places in enumerate(users):
        if places:
            best = slowest.setdefault(tuple(places), link)
            if flows.capacity[link] < flows.capacity[best]:
                slowest[tuple(places)] = link
    number = {link: index for index, link in enumerate(slowest.values())}
    capacity = [flows.capacity[link] for link in number]
    return capacity, [tuple([number[link] for link in route if link in number]) for route in flows.routes]
