"""Exact progressive filling of a part of the links, for :mod:`pcie_sim.network.incremental` (the words are explained there)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pcie_sim.network.sharing import INFINITY, TIE

if TYPE_CHECKING:
    from pcie_sim.network.incremental import IncrementalFluid


class Pack:
    """Moving classes of one bundle with one label. ``offset`` is what the label has served minus what the pack has got; ``heap``
    holds the classes by the first end of their flows (with old entries among them), ``key`` the first of all by what the label
    will have served then; ``charges`` are the flows by link.
    """

    __slots__ = ("bundle", "charges", "classes", "heap", "key", "label", "offset")

    def __init__(self, bundle: int, label: int) -> None:
        self.bundle, self.label = bundle, label
        self.offset, self.key = 0.0, INFINITY
        self.classes = 0
        self.heap: list[tuple[float, int]] = []
        self.charges: dict[int, int] = {}

    def members(self, fluid: IncrementalFluid) -> list[int]:
        """Its classes."""
        return list(dict.fromkeys([index for key, index in self.heap if fluid.pack[index] is self and fluid.key[index] == key]))


class Filling:
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
            fluid.sync(label)
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
        """Fill until nothing that is open could be full."""
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
            fluid.refresh(label)

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
        fluid, loose = self.fluid, self.loose
        for bundle in fluid.bundles[link]:
            packs = fluid.packs[bundle]
            for label in [label for label in packs if label in loose]:
                pack = packs.pop(label)
                self._grown(label, link, level)
                self._pass_on(label, link, pack.charges, level)
                pack.offset += fluid.served[link] - fluid.served[label]
                pack.label = link
                known = packs.get(link)
                if known is not None and known.classes > pack.classes:
                    pack, known = known, pack
                packs[link] = pack
                if known is not None:
                    for index in known.members(fluid):
                        self._move(index, known, pack)
                    known.key = INFINITY  # nothing in the label's heap means it any more
                fluid.post(pack)
        moved: dict[int, dict[int, int]] = {}  # by old label: by link: flows
        for index in list(fluid.guests[link]):
            old = fluid.pack[index]
            if old is None or old.label not in loose:
                continue
            pack = fluid.pack_of(fluid.bundle[index], link)
            charges = self._move(index, old, pack)
            fluid.post(pack)
            fluid.post(old)
            if not old.classes:
                del fluid.packs[old.bundle][old.label]
            total = moved.setdefault(old.label, {})
            for other, charge in charges:
                total[other] = total.get(other, 0) + charge
        for label, total in moved.items():
            self._grown(label, link, level)
            self._pass_on(label, link, total, level)

    def _grown(self, old: int, new: int, level: float) -> None:
        if old != self.fluid.new:
            self.ratios[new] = max(self.ratios.get(new, 0.0), level / self.fluid.level[old])

    def _move(self, index: int, old: Pack, new: Pack) -> list[tuple[int, int]]:
        """A class goes from one pack to another of its bundle; what it charges, by link."""
        fluid = self.fluid
        flows = len(fluid.queues[index])
        offset = fluid.offset[index] + fluid.served[new.label] - new.offset - fluid.served[old.label] + old.offset
        fluid.offset[index] = offset
        key = fluid.key[index] = fluid.queues[index][0][0] + offset
        fluid.pack[index] = new
        heapq.heappush(new.heap, (key, index))
        old.classes -= 1
        new.classes += 1
        charges = [(link, flows * times) for link, times in fluid.routes[index]]
        for link, charge in charges:
            old.charges[link] -= charge
            new.charges[link] = new.charges.get(link, 0) + charge
        return charges

    def _pass_on(self, old: int, new: int, charges: dict[int, int], level: float) -> None:
        """``charges`` by link go from one label to another, which fixes them at ``level``."""
        rows, there, here = self.fluid.rows, self.fluid.columns[old], self.fluid.columns[new]
        opened, base, load = self.open, self.fluid.base, self.fluid.load
        for link, charge in charges.items():
            if not charge:
                continue
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
