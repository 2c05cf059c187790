"""The event engine: fluid flows that share capacities max-min fairly, with dependencies, start-up costs and streams.

A flow becomes *ready* when its start time has come and all it depends on is complete; after its start-up cost (latency
before its first byte) and once the flow before it in its stream is complete, it *moves*; its rate changes whenever the set of
moving flows changes; with its last byte it is complete. Ties within 1e-12 of the time are one event, in the order of the list.
"""

from __future__ import annotations

import heapq

from pcie_sim.network.flowset import ArrayRun, FlowArrays, FlowRun, FlowSet, arrays_of, lists_of
from pcie_sim.network.incremental import IncrementalFluid
from pcie_sim.network.sharing import INFINITY, SMALL, TIE, LargeFill, fill_small
from pcie_sim.network.symmetry import quotient

__all__ = ["ArrayRun", "FlowArrays", "FlowRun", "FlowSet", "simulate", "simulate_arrays"]


_MEMO_NUMBERS = 20_000_000
"""Numbers kept in one run's solutions before they are dropped (about 160 MB of keys)."""
_MANY, _MANY_EQUAL = 512, 4
"""Flows, and flows per size, from which it pays to look for groups of equal flows (measured)."""
_MOST_CELLS = 1 << 26
"""Most entries of a table of routes, one row as long as the longest (256 MB)."""
_MOST_FRESH = 12
"""Sets of moving flows that were not met before, from which a run counts as one that does not repeat (and finish times of
different length, from which it is sure to be one); then following the changes is cheaper than solving whole sets (measured)."""


class _SmallFluid:
    """Moving flows by class, in lists. Every class counts the bytes that each of its flows has got so far (``served``)."""

    def __init__(self, flows: FlowSet) -> None:
        count = len(flows.routes)
        self.capacity, self.routes, self.caps = flows.capacity, flows.routes, flows.caps
        self.counts = [0] * count
        self.served = [0.0] * count
        self.rates = [0.0] * count
        self.queues: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self.solved: dict[tuple[int, ...], list[float]] = {}
        self.active: list[int] = []
        self.moving = 0
        self.fresh = 0  # sets solved less sets met again
        self.stale = True

    def add(self, flow: int, index: int, size: float) -> None:
        queue = self.queues[index]
        if not queue:
            self.served[index] = 0.0
        heapq.heappush(queue, (self.served[index] + size, flow))
        self.counts[index] += 1
        self.moving += 1
        self.stale = True

    def next_in(self) -> float:
        """Seconds until the next flow completes."""
        if self.stale:
            key = tuple(self.counts)
            rates = self.solved.get(key)
            self.fresh += 1 if rates is None else -1
            if rates is None:
                if len(self.solved) * len(key) > _MEMO_NUMBERS:
                    self.solved.clear()
                rates = self.solved[key] = fill_small(self.capacity, self.routes, self.counts, self.caps)
            self.rates = rates
            self.active = [index for index, count in enumerate(key) if count]
            self.stale = False
        served, queues, rates = self.served, self.queues, self.rates
        return min([(queues[index][0][0] - served[index]) / rates[index] for index in self.active], default=INFINITY)

    def advance(self, seconds: float, slack: float) -> list[int]:
        """Let ``seconds`` pass; the flows that complete within ``slack`` of it, in the order of the list."""
        done: list[int] = []
        served, rates = self.served, self.rates
        for index in self.active:
            rate = rates[index]
            now = served[index] + rate * seconds
            served[index] = now
            queue = self.queues[index]
            edge = now + rate * slack
            while queue and queue[0][0] <= edge:
                done.append(heapq.heappop(queue)[1])
                self.counts[index] -= 1
                self.stale = True
        self.moving -= len(done)
        done.sort()
        return done


class _LargeFluid:
    """The same with arrays, for many classes."""

    def __init__(self, flows: FlowSet) -> None:
        import numpy as np

        count = len(flows.routes)
        self.np = np
        self.fill = LargeFill(flows.capacity, flows.routes, flows.caps)
        self.counts = np.zeros(count, dtype=np.int64)
        self.served = np.zeros(count)
        self.rates = np.zeros(count)
        self.goal = np.full(count, np.inf)
        self.queues: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self.solved: dict[bytes, object] = {}
        self.active = np.zeros(0, dtype=np.int64)
        self.moving = 0
        self.fresh = 0  # sets solved less sets met again
        self.stale = True

    def add(self, flow: int, index: int, size: float) -> None:
        queue = self.queues[index]
        if not queue:
            self.served[index] = 0.0
        heapq.heappush(queue, (float(self.served[index]) + size, flow))
        self.goal[index] = queue[0][0]
        self.counts[index] += 1
        self.moving += 1
        self.stale = True

    def next_in(self) -> float:
        np = self.np
        if self.stale:
            key = self.counts.tobytes()
            rates = self.solved.get(key)
            self.fresh += 1 if rates is None else -1
            if rates is None:
                if len(self.solved) * len(self.counts) > _MEMO_NUMBERS:
                    self.solved.clear()
                rates = self.solved[key] = self.fill.rates(self.counts)
            self.rates = np.asarray(rates)
            self.active = np.flatnonzero(self.counts)
            self.stale = False
        if not len(self.active):
            return INFINITY
        active = self.active
        return float(((self.goal[active] - self.served[active]) / self.rates[active]).min())

    def advance(self, seconds: float, slack: float) -> list[int]:
        active = self.active
        now = self.served[active] + self.rates[active] * seconds
        self.served[active] = now
        reached = active[self.goal[active] <= now + self.rates[active] * slack]
        done: list[int] = []
        for index in reached.tolist():
            queue = self.queues[index]
            edge = float(self.served[index] + self.rates[index] * slack)
            while queue and queue[0][0] <= edge:
                done.append(heapq.heappop(queue)[1])
                self.counts[index] -= 1
            self.goal[index] = queue[0][0] if queue else INFINITY
        if done:
            self.stale = True
        self.moving -= len(done)
        done.sort()
        return done


def simulate(flows: FlowSet) -> FlowRun:
    """Run ``flows`` to the end. Same input, same output, to the last bit.

    Raises:
        ValueError: dependencies that form a cycle (schedules are proven acyclic; a caller's bug).
    """
    count = len(flows.of_class)
    alone = not (flows.charges or flows.deps or flows.previous)
    if (
        count >= _MANY
        and alone
        and len(set(flows.size)) * _MANY_EQUAL <= count
        and max(map(len, flows.routes), default=0) * count <= _MOST_CELLS
    ):
        found = quotient(arrays_of(flows))
        if found is not None:
            one, group = found
            run = _Engine(one).run()
            return FlowRun([run.finish[index] for index in group.tolist()], run.makespan, run.events)
    return _Engine(flows).run()


def simulate_arrays(flows: FlowArrays) -> ArrayRun:
    """Run ``flows`` to the end. Groups of equal flows are solved as one; the answer is exact with and without them."""
    import numpy as np

    found = quotient(flows)
    if found is None:
        single = _Engine(lists_of(flows)).run()
        return ArrayRun(np.array(single.finish), single.makespan, single.events, flows.count)
    one, group = found
    run = _Engine(one).run()
    return ArrayRun(np.array(run.finish)[group], run.makespan, run.events, len(one.size))


class _Engine:
    """One run of :func:`simulate`: who waits for whom, and the heap of flows whose start-up is under way."""

    def __init__(self, flows: FlowSet) -> None:
        count = len(flows.of_class)
        self.flows = flows
        self.count = count
        self.fluid: _SmallFluid | _LargeFluid | IncrementalFluid
        many = len(flows.routes) > SMALL
        if flows.charges or (not flows.deps and (many or len(set(flows.size)) > _MOST_FRESH)):
            self.fluid = IncrementalFluid(flows)
        else:
            self.fluid = _LargeFluid(flows) if many else _SmallFluid(flows)
        self.free = [not route and cap == INFINITY for route, cap in zip(flows.routes, flows.caps, strict=True)]
        self.finish = [-1.0] * count
        self.latency = flows.latency or (0.0,) * count
        self.previous = flows.previous or (-1,) * count
        self.next_of: dict[int, int] = {previous: index for index, previous in enumerate(self.previous) if previous >= 0}
        self.parked: set[int] = set()  # started up, waiting for the flow before it in its stream
        self.starting: list[tuple[float, int]] = []
        self.waiting = [0] * count
        self.children: list[list[int]] = []
        if flows.deps:
            self.children = [[] for _ in range(count)]
            for index, deps in enumerate(flows.deps):
                self.waiting[index] = len(deps)
                for dep in deps:
                    self.children[dep].append(index)

    def run(self) -> FlowRun:
        flows, fluid, starting = self.flows, self.fluid, self.starting
        start = flows.start or (0.0,) * self.count
        self.start = start
        for index in range(self.count):
            if not self.waiting[index]:
                starting.append((start[index] + self.latency[index], index))
        heapq.heapify(starting)
        now, events = 0.0, 0
        while starting or fluid.moving:
            ends = now + fluid.next_in() if fluid.moving else INFINITY
            then = starting[0][0] if starting and starting[0][0] < ends else ends
            events += 1
            slack = then * TIE
            worklist = fluid.advance(then - now, slack) if fluid.moving else []
            now = then
            for flow in worklist:
                self._complete(flow, now)
            if not isinstance(fluid, IncrementalFluid) and fluid.fresh > _MOST_FRESH:
                fluid = self._follow(fluid)
            while starting and starting[0][0] <= now + slack:
                self._move(heapq.heappop(starting)[1], now)
        if any(time < 0 for time in self.finish):
            raise ValueError("the dependencies of the flows form a cycle")
        return FlowRun(self.finish, max(self.finish, default=0.0), events)

    def _follow(self, old: _SmallFluid | _LargeFluid) -> IncrementalFluid:
        """Go on with a fluid that follows changes: this run does not repeat itself."""
        self.fluid = fluid = IncrementalFluid(self.flows)
        for index, queue in enumerate(old.queues):
            done = float(old.served[index])
            for goal, flow in queue:
                fluid.add(flow, index, goal - done)
        return fluid

    def _move(self, flow: int, now: float) -> None:
        before = self.previous[flow]
        if before >= 0 and self.finish[before] < 0:
            self.parked.add(flow)
            return
        size = self.flows.size[flow]
        index = self.flows.of_class[flow]
        if size <= 0 or self.free[index]:
            self._complete(flow, now)
        else:
            self.fluid.add(flow, index, size)

    def _complete(self, first: int, now: float) -> None:
        self.finish[first] = now
        if self.children:
            for child in self.children[first]:
                self.waiting[child] -= 1
                if not self.waiting[child]:
                    ready = self.start[child]
                    heapq.heappush(self.starting, ((now if now > ready else ready) + self.latency[child], child))
        follower = self.next_of.get(first)
        if follower is not None and follower in self.parked:
            self.parked.discard(follower)
            heapq.heappush(self.starting, (now, follower))
