"""Max-min sharing that follows small changes: what an ended or started flow cannot reach is not solved again.

Every moving class carries a *label*: the link (or cap) that holds it. All classes of a label have one rate, the label's
*level*, so the state is kept by link, not by flow: ``rows[k][m]`` counts the flows on link k that link m holds. An ended flow
changes no level below its own (progressive filling reaches them in the same way), and above it only the links that carry
flows of a changed label. These are filled again, exactly, from the counts (:mod:`pcie_sim.network.filling`). Classes of one
label that share their busy links are a *pack*, which changes its label as a whole. Links that are not full are looked at again
when rates have grown enough since the last look to fill them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pcie_sim.network.filling import Filling, Pack
from pcie_sim.network.sharing import INFINITY, TIE, charged_route

if TYPE_CHECKING:
    from pcie_sim.network.events import FlowSet


class IncrementalFluid:
    """Moving flows by class; the same answers as the other fluids of :mod:`pcie_sim.network.events`.

    Labels are the links, then one for each distinct cap (its level never changes), then ``new`` (classes not yet placed).
    """

    def __init__(self, flows: FlowSet) -> None:
        links, classes = len(flows.capacity), len(flows.routes)
        limits = sorted({float(cap) for cap in flows.caps if cap < INFINITY})
        label_of = {cap: links + place for place, cap in enumerate(limits)}
        self.links = links
        self.new = new = links + len(limits)
        self.capacity = [*map(float, flows.capacity), *limits]
        endless = {link for link, rate in enumerate(self.capacity) if rate == INFINITY}
        self.routes: list[tuple[tuple[int, int], ...]] = []
        for index, route in enumerate(flows.routes):
            charged = charged_route(route, flows.charges[index] if flows.charges else None)
            if endless:
                charged = tuple(item for item in charged if item[0] not in endless)
            cap = flows.caps[index]
            self.routes.append((*charged, (label_of[cap], 1)) if cap < INFINITY else charged)
        # by class; `offset` is what its pack has got minus what each of its own flows has got
        self.pack: list[Pack | None] = [None] * classes
        self.offset = [0.0] * classes
        self.key = [0.0] * classes
        self.queues: list[list[tuple[float, int]]] = [[] for _ in range(classes)]
        # by bundle: packs by label; by link: bundles that all cross it, and moving classes of other bundles
        self.bundle: list[int] = []
        self.packs: list[dict[int, Pack]] = []
        self.bundles: list[list[int]] = [[] for _ in range(new)]
        self.guests: list[dict[int, None]] = [{} for _ in range(new)]
        self.hosts: list[tuple[int, ...]] = []
        self._bundle()
        # by label
        self.rows: list[dict[int, int]] = [{} for _ in range(new)]
        self.columns: list[dict[int, int]] = [{} for _ in range(new + 1)]
        self.level = [*([INFINITY] * links), *limits, 0.0]
        self.served = [0.0] * (new + 1)
        self.synced = [0.0] * (new + 1)
        self.heaps: list[list[tuple[float, int, Pack]]] = [[] for _ in range(new)]
        self.posted = 0
        self.ends = [INFINITY] * new
        self.agenda: list[tuple[float, int]] = []  # ends by time, with old ones among them
        self.full: dict[int, None] = dict.fromkeys(range(links, new))
        self.base = [0.0] * new
        self.load = [0] * new
        # logarithm of the growth of all rates so far, and of that at which a link that is not full has to be looked at again
        self.growth = 0.0
        self.due = [INFINITY] * new
        self.dirty: dict[int, None] = {}
        self.now = 0.0
        self.moving = 0

    def _bundle(self) -> None:
        """Classes with the same busiest links (at least half as many classes as the busiest of the way) are a bundle."""
        users = [0] * self.new
        for route in self.routes:
            for link, _ in route:
                users[link] += 1
        known: dict[tuple[int, ...], int] = {}
        for route in self.routes:
            most = max([users[link] for link, _ in route], default=0)
            busy = tuple(sorted([link for link, _ in route if 2 * users[link] >= most]))
            bundle = known.setdefault(busy, len(known))
            self.bundle.append(bundle)
            self.hosts.append(tuple([link for link, _ in route if link not in busy]))
        for busy, bundle in known.items():
            self.packs.append({})
            for link in busy:
                self.bundles[link].append(bundle)

    def add(self, flow: int, index: int, size: float) -> None:
        """Let ``flow`` of class ``index`` move ``size`` bytes from now on."""
        queue, route, pack = self.queues[index], self.routes[index], self.pack[index]
        if pack is not None:
            label = pack.label
            passed = self.served[label] + self.level[label] * (self.now - self.synced[label]) - pack.offset
            heapq.heappush(queue, (passed - self.offset[index] + size, flow))
            self._enter(index, pack)
        else:
            heapq.heappush(queue, (size, flow))
            pack = self.pack_of(self.bundle[index], self.new)
            pack.classes += 1
            self.offset[index] = -pack.offset
            self._enter(index, pack)
            for link in self.hosts[index]:
                self.guests[link][index] = None
        self._charge(index, pack, 1)
        self.moving += 1
        for link, _ in route:
            self.dirty[link] = None

    def pack_of(self, bundle: int, label: int) -> Pack:
        """The pack of ``bundle`` with ``label``, made if there is none."""
        packs = self.packs[bundle]
        pack = packs.get(label)
        if pack is None:
            pack = packs[label] = Pack(bundle, label)
        return pack

    def _enter(self, index: int, pack: Pack) -> None:
        """Note in ``pack``, and with its label, when the first flow of the class ends."""
        self.pack[index] = pack
        key = self.key[index] = self.queues[index][0][0] + self.offset[index]
        heapq.heappush(pack.heap, (key, index))
        self.post(pack)

    def post(self, pack: Pack) -> None:
        """Note with its label when the first flow of ``pack`` ends."""
        heap = pack.heap
        while heap:
            key, index = heap[0]
            if self.pack[index] is pack and self.key[index] == key:
                break
            heapq.heappop(heap)
        pack.key = heap[0][0] + pack.offset if heap else INFINITY
        if heap and pack.label != self.new:
            self.posted += 1
            heapq.heappush(self.heaps[pack.label], (pack.key, self.posted, pack))

    def next_in(self) -> float:
        """Seconds until the next flow completes."""
        if self.dirty:
            self._solve()
        agenda, ends = self.agenda, self.ends
        while agenda and ends[agenda[0][1]] != agenda[0][0]:
            heapq.heappop(agenda)
        left = agenda[0][0] - self.now if agenda else INFINITY
        return left if left > 0.0 else 0.0

    def advance(self, seconds: float, slack: float) -> list[int]:
        """Let ``seconds`` pass; the flows that complete within ``slack`` of it, in the order of the list."""
        self.now += seconds
        edge = self.now + slack
        done: list[int] = []
        level = self.level
        agenda = self.agenda
        while agenda and agenda[0][0] <= edge:
            end, label = heapq.heappop(agenda)
            if self.ends[label] != end:
                continue
            self.ends[label] = -1.0  # the same end stands in the agenda at most once more
            self.sync(label)
            heap = self.heaps[label]
            bound = self.served[label] + level[label] * slack
            while heap and heap[0][0] <= bound:
                key, _, pack = heapq.heappop(heap)
                if pack.label == label and pack.key == key:
                    self._end(pack, bound, done)
            self.refresh(label)
        self.moving -= len(done)
        done.sort()
        return done

    def _end(self, pack: Pack, bound: float, done: list[int]) -> None:
        """Complete the flows of ``pack`` that have got all when its label has served ``bound``."""
        heap, level = pack.heap, self.level
        while heap and heap[0][0] + pack.offset <= bound:
            key, index = heapq.heappop(heap)
            if self.pack[index] is not pack or self.key[index] != key:
                continue
            queue, offset, before = self.queues[index], self.offset[index], len(done)
            while queue and queue[0][0] + offset + pack.offset <= bound:
                done.append(heapq.heappop(queue)[1])
            self._charge(index, pack, before - len(done))
            for link, _ in self.routes[index]:
                if level[link] < INFINITY:
                    self.dirty[link] = None
            if queue:
                key = self.key[index] = queue[0][0] + offset
                heapq.heappush(heap, (key, index))
                continue
            self.pack[index] = None
            for link in self.hosts[index]:
                del self.guests[link][index]
            pack.classes -= 1
        self.post(pack)
        if not pack.classes:
            del self.packs[pack.bundle][pack.label]

    def _charge(self, index: int, pack: Pack, flows: int) -> None:
        rows, label, charges = self.rows, pack.label, pack.charges
        column = self.columns[label]
        for link, times in self.routes[index]:
            row = rows[link]
            total = row.get(label, 0) + flows * times
            if total:
                row[label] = column[link] = total
            else:
                del row[label], column[link]
            charges[link] = charges.get(link, 0) + flows * times

    def sync(self, label: int) -> None:
        """Bring the bytes that ``label`` has served up to now."""
        level = self.level[label]
        if level < INFINITY:
            self.served[label] += level * (self.now - self.synced[label])
        self.synced[label] = self.now

    def refresh(self, label: int) -> None:
        """When the first flow that ``label`` holds will end; ``served`` is up to date."""
        heap = self.heaps[label]
        while heap:
            key, _, pack = heap[0]
            if pack.label == label and pack.key == key:
                self._agree(label, self.now + (key - self.served[label]) / self.level[label])
                return
            heapq.heappop(heap)
        self.ends[label] = INFINITY
        self.served[label] = 0.0

    def _agree(self, label: int, end: float) -> None:
        if end != self.ends[label]:
            self.ends[label] = end
            heapq.heappush(self.agenda, (end, label))
            if len(self.agenda) > 8 * len(self.ends) + 64:
                self.agenda = [(end, label) for label, end in enumerate(self.ends) if 0.0 <= end < INFINITY]
                heapq.heapify(self.agenda)

    def _solve(self) -> None:
        filling = Filling(self)
        # a cap on the way only catches; its own flows stay as they are until a link falls below them
        filling.release([label for label in self.dirty if label < self.links], [label for label in self.dirty if label >= self.links])
        self.dirty = {}
        filling.run()
        while seeds := self._overdriven(filling):
            filling = Filling(self)
            filling.release(seeds)
            filling.run()

    def _overdriven(self, filling: Filling) -> list[int]:
        """The links that ``filling`` left as not full and that would carry too much, and all that holds flows on them."""
        columns, due = self.columns, self.due
        grown = [(label, math.log(ratio)) for label, ratio in filling.ratios.items() if ratio > 1.0]
        suspects: Iterable[int]
        if 2 * sum([len(columns[label]) for label, _ in grown]) < self.links:
            # few links are concerned: only their budgets shrink
            for label, growth in grown:
                for link in columns[label]:
                    due[link] -= growth
            suspects = dict.fromkeys([link for label, _ in grown for link in columns[label] if due[link] <= self.growth] + filling.tight)
        else:
            self.growth += max([growth for _, growth in grown], default=0.0)
            suspects = [link for link, when in enumerate(due) if when <= self.growth]
        seeds: dict[int, None] = {}
        for link in suspects:
            used = sum([flows * self.level[label] for label, flows in self.rows[link].items()])
            if used > self.capacity[link] * (1.0 + TIE):
                seeds[link] = None
                seeds.update(dict.fromkeys(self.rows[link]))
            self.plan(link, used)
        return list(seeds)

    def plan(self, link: int, used: float) -> None:
        """Set the growth of all rates at which ``link``, of which ``used`` B/s are in use, could be full."""
        free = self.capacity[link] / used if used > 0.0 else INFINITY
        self.due[link] = self.growth + (math.log(free) if free > 1.0 else 0.0)
