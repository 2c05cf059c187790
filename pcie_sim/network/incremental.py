"""Max-min sharing that follows small changes: what an ended or started flow cannot reach is not solved again.

Every moving class carries a *label*: the link (or cap) that holds it. All classes of a label have one rate, the label's
*level*, so the state is kept by link, not by flow: ``rows[k][m]`` counts the flows on link k that link m holds. An ended flow
changes no level below its own (progressive filling reaches them in the same way), and above it only the links that carry
flows of a changed label. These are filled again, exactly, from the counts; a class is touched only when its label changes.
Links that are not full are looked at again when rates have grown enough since the last look to fill them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

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
        # by class; `offset` is the label's served bytes minus the class's own
        self.label = [new] * classes
        self.offset = [0.0] * classes
        self.key = [0.0] * classes
        self.queues: list[list[tuple[float, int]]] = [[] for _ in range(classes)]
        # by label
        self.rows: list[dict[int, int]] = [{} for _ in range(new)]
        self.columns: list[dict[int, int]] = [{} for _ in range(new + 1)]
        self.alive: list[dict[int, None]] = [{} for _ in range(new)]
        self.level = [*([INFINITY] * links), *limits, 0.0]
        self.served = [0.0] * (new + 1)
        self.synced = [0.0] * (new + 1)
        self.heaps: list[list[tuple[float, int]]] = [[] for _ in range(new)]
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

    def add(self, flow: int, index: int, size: float) -> None:
        """Let ``flow`` of class ``index`` move ``size`` bytes from now on."""
        queue, label, route = self.queues[index], self.label[index], self.routes[index]
        if queue:
            done = self.served[label] + self.level[label] * (self.now - self.synced[label]) - self.offset[index]
        else:
            done, label = 0.0, self.new
            self.label[index], self.offset[index] = label, 0.0
            for link, _ in route:
                self.alive[link][index] = None
        heapq.heappush(queue, (done + size, flow))
        if label != self.new:
            self._post(index, label)
        self._charge(index, label, 1)
        self.moving += 1
        for link, _ in route:
            self.dirty[link] = None

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
            self._sync(label)
            heap = self.heaps[label]
            bound = self.served[label] + level[label] * slack
            while heap and heap[0][0] <= bound:
                key, index = heapq.heappop(heap)
                queue = self.queues[index]
                if not queue or self.label[index] != label or self.key[index] != key:
                    continue
                offset, before = self.offset[index], len(done)
                while queue and queue[0][0] + offset <= bound:
                    done.append(heapq.heappop(queue)[1])
                self._charge(index, label, before - len(done))
                for link, _ in self.routes[index]:
                    if level[link] < INFINITY:
                        self.dirty[link] = None
                    if not queue:
                        del self.alive[link][index]
                if queue:
                    self._post(index, label)
            self._refresh(label)
        self.moving -= len(done)
        done.sort()
        return done

    def _post(self, index: int, label: int) -> None:
        key = self.queues[index][0][0] + self.offset[index]
        self.key[index] = key
        heapq.heappush(self.heaps[label], (key, index))

    def _charge(self, index: int, label: int, flows: int) -> None:
        rows, column = self.rows, self.columns[label]
        for link, times in self.routes[index]:
            row = rows[link]
            total = row.get(label, 0) + flows * times
            if total:
                row[label] = column[link] = total
            else:
                del row[label], column[link]

    def _sync(self, label: int) -> None:
        level = self.level[label]
        if level < INFINITY:
            self.served[label] += level * (self.now - self.synced[label])
        self.synced[label] = self.now

    def _refresh(self, label: int) -> None:
        """When the first flow that ``label`` holds will end; ``served`` is up to date."""
        heap = self.heaps[label]
        while heap:
            key, index = heap[0]
            if self.queues[index] and self.label[index] == label and self.key[index] == key:
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
        filling = _Filling(self)
        # a cap on the way only catches; its own flows stay as they are until a link falls below them
        filling.release([label for label in self.dirty if label < self.links], [label for label in self.dirty if label >= self.links])
        self.dirty = {}
        filling.run()
        while seeds := self._overdriven(filling):
            filling = _Filling(self)
            filling.release(seeds)
            filling.run()

    def _overdriven(self, filling: _Filling) -> list[int]:
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


class _Filling:
    """One progressive filling of what the seeds reach. ``loose`` are the labels whose flows grow; ``open`` what may hold them."""

    def __init__(self, fluid: IncrementalFluid) -> None:
        self.fluid = fluid
        self.open: dict[int, None] = {}
        self.loose: set[int] = {fluid.new}
        self.touched: list[int] = []
        self.ratios: dict[int, float] = {}
        self.tight: list[int] = []

    def release(self, labels: list[int], catchers: Iterable[int] = ()) -> None:
        """Loosen ``labels`` and open all that their flows cross; then weigh everything open."""
        fluid, opened, loose = self.fluid, self.open, self.loose
        links, columns, level, full = fluid.links, fluid.columns, fluid.level, fluid.full
        fresh = [label for label in catchers if label not in opened]
        for label in fresh:
            opened[label] = None
        stack = labels
        while stack:
            label = stack.pop()
            if label in loose:
                continue
            loose.add(label)
            if label not in opened:
                opened[label] = None
                fresh.append(label)
            column = columns[label]
            if len(column) <= len(full):
                reached = [link for link in column if level[link] < INFINITY and link not in loose]
            else:
                reached = [link for link in full if link in column and link not in loose]
            for link in reached:
                if link < links:
                    stack.append(link)
                elif link not in opened:
                    opened[link] = None
                    fresh.append(link)
        for label in fresh:
            fluid._sync(label)
        self.touched += fresh
        rows, capacity, base, load = fluid.rows, fluid.capacity, fluid.base, fluid.load
        crowded: list[int] = []
        for link in opened:
            left, growing = capacity[link], 0
            for label, flows in rows[link].items():
                if label in loose:
                    growing += flows
                else:
                    left -= flows * level[label]
            base[link], load[link] = left, growing
            if not growing and left < -TIE * capacity[link] and link < links:
                crowded.append(link)
        if crowded:
            # flows that were added to others fill a link by themselves: none of them can stay as it was
            self.release([label for link in crowded for label in rows[link]])

    def run(self) -> None:
        fluid, opened, links = self.fluid, self.open, self.fluid.links
        base, load, capacity = fluid.base, fluid.load, fluid.capacity
        reached = 0.0
        while opened:
            shares = [(base[link] / load[link] if link < links else capacity[link], link) for link in opened if load[link]]
            if not shares:
                break
            level = max(min(shares)[0], reached)
            edge = level * (1.0 + TIE)
            batch = [link for share, link in shares if share <= edge]
            above = self._held_above(batch, edge)
            if above:
                self.release(above)
                continue
            reached = level
            self._freeze(batch, level)
        for link in opened:
            if link < links:
                self._empty(link)
        for label in self.touched:
            fluid._refresh(label)

    def _held_above(self, batch: list[int], edge: float) -> list[int]:
        """Labels outside whose flows on ``batch`` are faster than the level at which it is full."""
        level, loose, rows = self.fluid.level, self.loose, self.fluid.rows
        return [label for link in batch for label in rows[link] if level[label] > edge and label not in loose]

    def _freeze(self, batch: list[int], level: float) -> None:
        """``batch`` is full at ``level``: it holds all growing flows that cross it. Those it held before stay with it."""
        fluid, opened, loose = self.fluid, self.open, self.loose
        rows, columns, base, load, links = fluid.rows, fluid.columns, fluid.base, fluid.load, fluid.links
        for link in batch:
            del opened[link]
            if link < links:
                fluid.full[link] = None
                fluid.due[link] = INFINITY
        for label in batch:
            if label not in loose:
                continue
            loose.discard(label)
            column = columns[label]
            if column and label < links:
                self.ratios[label] = level / fluid.level[label]
            for link in [link for link in opened if link in column] if len(opened) < len(column) else column:
                if link in opened:
                    base[link] -= column[link] * level
                    load[link] -= column[link]
        for link in batch:
            if any(label in loose for label in rows[link]):
                self._catch(link, level)
            if link < links:
                fluid.level[link] = level

    def _catch(self, link: int, level: float) -> None:
        """``link`` holds all growing flows on it from now on."""
        fluid, loose, push = self.fluid, self.loose, heapq.heappush
        labels, offset, keys, queues, routes = fluid.label, fluid.offset, fluid.key, fluid.queues, fluid.routes
        heap, served, here = fluid.heaps[link], fluid.served, fluid.served[link]
        moved: dict[int, dict[int, int]] = {}  # by old label: by link: flows
        for index in [index for index in fluid.alive[link] if labels[index] in loose]:
            label, queue = labels[index], queues[index]
            charges = moved.get(label)
            if charges is None:
                charges = moved[label] = {}
            flows = len(queue)
            for other, times in routes[index]:
                charges[other] = charges.get(other, 0) + flows * times
            labels[index] = link
            shift = offset[index] = offset[index] + here - served[label]
            key = keys[index] = queue[0][0] + shift
            push(heap, (key, index))
        for label, charges in moved.items():
            if label != fluid.new:
                self.ratios[link] = max(self.ratios.get(link, 0.0), level / fluid.level[label])
            self._pass_on(label, link, charges, level)

    def _pass_on(self, old: int, new: int, charges: dict[int, int], level: float) -> None:
        """``charges`` by link go from one label to another, which fixes them at ``level``."""
        rows, there, here = self.fluid.rows, self.fluid.columns[old], self.fluid.columns[new]
        opened, base, load = self.open, self.fluid.base, self.fluid.load
        for link, charge in charges.items():
            row = rows[link]
            left = row[old] - charge
            if left:
                row[old] = there[link] = left
            else:
                del row[old], there[link]
            row[new] = here[link] = row.get(new, 0) + charge
            if link in opened:
                base[link] -= charge * level
                load[link] -= charge

    def _empty(self, link: int) -> None:
        """``link`` is not full."""
        fluid = self.fluid
        fluid.level[link] = INFINITY
        fluid.full.pop(link, None)
        fluid.plan(link, fluid.capacity[link] - fluid.base[link])
        if fluid.due[link] <= fluid.growth:
            self.tight.append(link)
