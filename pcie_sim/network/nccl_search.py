"""The collective library's search for rings and trees on what it sees of the box.

Behaviour of NVIDIA/nccl:src/graph/search.cc (2.23 to 2.30): channels of one speed are laid over the links one after the other, the
topology order first, then depth first within a budget of steps; further channels repeat the ring before (first pass: must);
longer path classes are allowed one by one, then the next lower speed is tried while it can still win; the best is kept (more
channels x speed, then fewer hops), fast channels are split in two, and a last pass tries higher speeds with as many channels.
When nothing fits: one channel of a token bandwidth over everything.

Shortcuts that change no result (a test holds them against the plain search): path classes that no pair has are skipped, and so is
whatever cannot beat what is already found, by upper bounds on channels and lower bounds on hops over each link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from pcie_sim.network.nccl_graph import GB, NVL, PIX, SYS, Path, System
from pcie_sim.network.nccl_rules import by_capability, capability
from pcie_sim.specs.part import LibraryTuning, SearchRules

Pattern = Literal["ring", "tree"]
_TREE_SIMPLER = (9, 0)


@dataclass(frozen=True)
class Graph:
    """What a search found. ``channels`` are orders of GPU indices, ``speed`` is GB/s per channel, kinds are path classes.

    ``fallback``: nothing fitted. ``plain``: a tree found with the library's plainer pattern only.
    """

    channels: tuple[tuple[int, ...], ...] = ()
    speed: float = 0.0
    kind: int = NVL
    kind_inter: int = PIX
    hops: int = 0
    same: bool = True
    plain: bool = False
    fallback: bool = False

    @property
    def rate(self) -> float:
        """All channels together, GB/s."""
        return self.speed * len(self.channels)


@dataclass(frozen=True)
class _Limits:
    """Numbers of the search, hashable."""

    most: int
    same_steps: int
    steps: int
    double_from: float
    double_unless_channels: int
    double_below: float
    double_unless_newer: tuple[int, int]
    tax: float
    fallback: float
    speeds: tuple[float, ...]

    @staticmethod
    def of(tuning: LibraryTuning, system: System) -> _Limits:
        search: SearchRules = tuning.search
        speeds = by_capability(tuning.search_rates, system.capabilities[0]) if system.net is None else tuning.search_rates_net
        return _Limits(
            search.most_channels,
            search.same_steps,
            search.steps,
            search.double_from / GB,
            search.double_unless_channels,
            search.double_below / GB,
            capability(search.double_unless_newer),
            search.intel_p2p_overhead,
            tuning.fallback_rate / GB,
            tuple(speed / GB for speed in speeds),
        )


def find(system: System, tuning: LibraryTuning, *, shortcuts: bool = True) -> tuple[Graph, Graph]:
    """The ring graph and the tree graph of ``system`` (two GPUs or more)."""
    return _find(system, _Limits.of(tuning, system), shortcuts)


@lru_cache(maxsize=1024)
def _find(system: System, limits: _Limits, shortcuts: bool) -> tuple[Graph, Graph]:
    ring = _Search(system, limits, "ring", 1, limits.most, shortcuts).best()
    count = len(ring.channels)
    tree = _Search(system, limits, "tree", count, count, shortcuts).best()
    return ring, tree


class _Search:
    """One pattern: the passes over speeds and path classes."""

    def __init__(self, system: System, limits: _Limits, pattern: Pattern, least: int, most: int, shortcuts: bool) -> None:
        self.system, self.limits, self.pattern = system, limits, pattern
        self.least, self.most, self.shortcuts = least, most, shortcuts
        self.found = Graph()
        self.bounds = Bounds(system, pattern, limits.tax)
        present = sorted({path.kind for row in system.paths for path in row if path is not None})
        if shortcuts:
            self.kinds = present
        else:
            self.kinds = list(range(NVL, SYS + 1))
        self.inter = [PIX] if system.net is None else list(range(PIX, SYS + 1))

    def best(self) -> Graph:
        """The graph that the library settles on."""
        start = self._start()
        if not self._first_pass(start):
            return Graph((tuple(range(len(self.system.gpus))),), self.limits.fallback, SYS, SYS, fallback=True)
        self.found = self._doubled(self.found)
        if self.pattern == "ring":
            self._raise()
        return self.found

    def _start(self) -> int:
        total, count = self.system.total, len(self.system.gpus)
        if self.pattern == "tree":
            total *= count / (count - 1)
        speeds = self.limits.speeds
        fits = (i for i, speed in enumerate(speeds) if speed <= self.system.fastest and speed * self.least <= total)
        return next(fits, len(speeds) - 1)

    def _first_pass(self, start: int) -> bool:
        """Speeds downwards; False when nothing was found."""
        speeds = self.limits.speeds
        for index in range(start, len(speeds)):
            if self.found.channels and speeds[index] / self.found.speed <= 0.49:
                break
            if self._one_speed(speeds[index]):
                break
        return bool(self.found.channels)

    def _one_speed(self, speed: float) -> bool:
        """All path classes of one speed; True when nothing better can come."""
        for inter in self.inter:
            if self.system.net is not None and self.found.channels and inter > self.found.kind_inter:
                break
            for kind in self.kinds:
                if self.found.channels and kind > self.found.kind:
                    break
                if self.system.net is not None and kind > inter:
                    break
                for same in (True, False):
                    if not same and self.system.amd and kind == SYS:
                        continue
                    if self._run(speed, kind, inter, same):
                        return True
        return False

    def _run(self, speed: float, kind: int, inter: int, same: bool) -> bool:
        run = _Run(self, speed, kind, inter, same)
        run.go()
        return run.perfect or (bool(self.found.channels) and self.found.rate >= self.system.total)

    def _doubled(self, graph: Graph) -> Graph:
        """Fast channels are split in two."""
        count, limits = len(graph.channels), self.limits
        newer = self.system.capabilities[0] > limits.double_unless_newer
        if graph.speed < limits.double_from or (newer and graph.speed < limits.double_below and count > limits.double_unless_channels):
            return graph
        more = min(2 * count, self.most)
        channels = (*graph.channels, *graph.channels)[:more]
        return replace(graph, channels=channels, speed=graph.speed / math.ceil(more / count), hops=graph.hops)

    def _raise(self) -> None:
        """Higher speeds with no fewer channels, on the classes found."""
        self.least = len(self.found.channels)
        speeds, found = self.limits.speeds, self.found
        index = next((i for i, speed in enumerate(speeds) if speed <= found.speed), len(speeds) - 1)
        for speed in reversed(speeds[:index]):
            self._run(speed, found.kind, found.kind_inter, found.same)


class _Run:
    """One depth-first search at one speed with one set of allowed path classes."""

    def __init__(self, search: _Search, speed: float, kind: int, inter: int, same: bool) -> None:
        self.search, self.system = search, search.system
        self.speed, self.kind, self.inter, self.same = speed, kind, inter, same
        self.budget = search.limits.same_steps if same else search.limits.steps
        self.tax = search.limits.tax
        self.left = list(self.system.widths)
        self.count = len(self.system.gpus)
        self.channels: list[list[int]] = []
        self.hops = 0
        self.perfect = False
        self.net_left = self.system.net.rate if self.system.net is not None else 0.0
        self.ceiling = search.bounds.channels(kind, speed) if search.shortcuts else None

    def go(self) -> None:
        """Fill ``search.found`` if something better turns up."""
        if self.ceiling is not None and self._hopeless(self.ceiling):
            return
        self._channel()

    def _hopeless(self, ceiling: int) -> bool:
        """Nothing at this speed can beat what is known: fewer channels than needed, or no fewer hops for the same bandwidth."""
        best, search = self.search.found, self.search
        if ceiling < search.least:
            return True
        most = min(ceiling, search.most) * self.speed
        if most < best.rate:
            return True
        if most > best.rate or not best.channels:
            return False
        return best.hops <= search.bounds.hops(self.kind) * math.ceil(best.rate / self.speed - 1e-9)

    def _channel(self) -> None:
        """Start the next channel."""
        if self.system.net is not None:
            if self.net_left < self.speed:
                return
            self.net_left -= self.speed
            self._starts()
            self.net_left += self.speed
        else:
            self._starts()

    def _starts(self) -> None:
        if self.channels:
            self._enter(self.channels[-1][0], [], "again")
        else:
            self._enter(0, [], "order")
        if not self.same or not self.channels:
            for gpu in range(self.count):
                if self._stop():
                    return
                self._enter(gpu, [], "free")

    def _stop(self) -> bool:
        return self.budget <= 0 or (self.ceiling is not None and self._hopeless(self.ceiling))

    def _enter(self, gpu: int, chosen: list[int], how: str) -> None:
        """Place ``gpu`` after the ones already ``chosen`` if the links have room."""
        if chosen:
            path, limit = self.system.paths[chosen[-1]][gpu], self.kind
        elif self.system.net is not None:
            path, limit = self.system.net.to_gpu[gpu], self.inter
        else:
            path, limit = None, self.kind
        if path is None:
            if not chosen:
                self._place(gpu, chosen, how)
            return
        if path.kind <= limit and self._take(path):
            self._place(gpu, chosen, how)
            self._give(path, path.hops)
            self.hops -= path.hops

    def _place(self, gpu: int, chosen: list[int], how: str) -> None:
        if self.budget <= 0:
            return
        self.budget -= 1
        chosen.append(gpu)
        if len(chosen) == self.count:
            self._close(chosen)
        else:
            for following in self._next(chosen, how):
                self._enter(following, chosen, how)
        chosen.pop()

    def _next(self, chosen: Sequence[int], how: str) -> Sequence[int]:
        if how == "order":
            return (len(chosen),)
        if how == "again":
            return (self.channels[-1][len(chosen)],)
        at = chosen[-1]
        row = self.system.paths[at]
        free = [(at + step) % self.count for step in range(1, self.count) if (at + step) % self.count not in chosen]
        ways = [(gpu, row[gpu]) for gpu in free]
        ranked = [(-path.rate(self.system.widths), path.hops, index, gpu) for index, (gpu, path) in enumerate(ways) if path is not None]
        return [gpu for *_, gpu in sorted(ranked)]

    def _close(self, chosen: list[int]) -> None:
        """Back to the first GPU (ring) or to the card, then count the channel."""
        if self.system.net is not None:
            path, limit = self.system.net.from_gpu[chosen[-1]], self.inter
        elif self.search.pattern == "tree":
            self._complete(chosen)
            return
        else:
            back = self.system.paths[chosen[-1]][chosen[0]]
            if back is None:
                return
            path, limit = back, self.kind
        if path.kind <= limit and self._take(path):
            self._complete(chosen)
            self._give(path, path.hops)
            self.hops -= path.hops

    def _complete(self, chosen: list[int]) -> None:
        if self.budget <= 0:
            return
        self.budget -= 1
        self.channels.append(list(chosen))
        search = self.search
        count, best = len(self.channels), search.found
        if count >= search.least:
            rate = count * self.speed
            if rate > best.rate or (rate == best.rate and self.hops < best.hops):
                search.found = Graph(tuple(tuple(ring) for ring in self.channels), self.speed, self.kind, self.inter, self.hops, self.same)
                if count == search.most:
                    self.perfect, self.budget = True, -1
        if count < search.most and not self._stop():
            self._channel()
        self.channels.pop()

    def _take(self, path: Path) -> bool:
        """Subtract the speed from every link of ``path``; all or nothing."""
        taxed = self.speed * self.tax if path.taxed else self.speed
        for index, (link, pci) in enumerate(zip(path.links, path.pci, strict=True)):
            need = taxed if pci else self.speed
            if self.left[link] < need - 1e-9:
                self._give(path, index)
                return False
            self.left[link] = round(self.left[link] - need, 3)
        self.hops += path.hops
        return True

    def _give(self, path: Path, count: int) -> None:
        taxed = self.speed * self.tax if path.taxed else self.speed
        for link, pci in zip(path.links[:count], path.pci[:count], strict=True):
            self.left[link] = round(self.left[link] + (taxed if pci else self.speed), 3)


class Bounds:
    """How many channels can fit at most, and how many hops a channel has at least, by the path classes allowed.

    For each link: GPUs whose every allowed way out (or in) uses it must each use it once a channel; and a ring must cross at least
    once a link without which the GPUs fall apart. A chain (tree) may spare its last and its first GPU one such use, and for it the
    GPUs' ways out are counted together.
    """

    def __init__(self, system: System, pattern: Pattern, tax: float) -> None:
        self.system, self.pattern, self.tax = system, pattern, tax
        self._needs: dict[int, list[tuple[float, float]]] = {}

    def channels(self, kind: int, speed: float) -> int:
        """An upper bound on channels of ``speed`` GB/s."""
        widths, needs = self.system.widths, self._need(kind)
        found = math.inf
        for width, (_, charge) in zip(widths, needs, strict=True):
            if charge > 0:
                found = min(found, math.floor((width + 1e-6) / (charge * speed)))
        if self.pattern == "tree":
            found = min(found, self._chains(kind, speed))
        return 10**6 if found == math.inf else int(found)

    def hops(self, kind: int) -> float:
        """A lower bound on links crossed by one channel."""
        return sum(uses for uses, _ in self._need(kind))

    def _chains(self, kind: int, speed: float) -> int:
        """Every channel needs a way out of all GPUs but one, and every GPU has room for so many."""
        count, room = len(self.system.gpus), 0
        for index in range(count):
            ways = self._ways(kind, index, out=True)
            shared = self._shared(ways)
            slots = [math.floor((self.system.widths[link] + 1e-6) / (charge * speed)) for link, charge in shared.items()]
            room += min(slots, default=10**6) if ways else 0
        return room // (count - 1)

    def _charge(self, path: Path) -> dict[int, float]:
        return {link: self.tax if path.taxed and pci else 1.0 for link, pci in zip(path.links, path.pci, strict=True)}

    def _ways(self, kind: int, index: int, *, out: bool) -> list[dict[int, float]]:
        count = len(self.system.gpus)
        paths = [self.system.paths[index][other] if out else self.system.paths[other][index] for other in range(count)]
        return [self._charge(path) for path in paths if path is not None and path.kind <= kind]

    @staticmethod
    def _shared(ways: Sequence[dict[int, float]]) -> dict[int, float]:
        """Links that all ways have in common, with the least charge."""
        if not ways:
            return {}
        links = set(ways[0]).intersection(*ways[1:])
        return {link: min(way[link] for way in ways) for link in links}

    def _need(self, kind: int) -> list[tuple[float, float]]:
        """(uses, charge in units of the speed) of each link, at least, by one channel."""
        if kind not in self._needs:
            self._needs[kind] = self._count(kind)
        return self._needs[kind]

    def _count(self, kind: int) -> list[tuple[float, float]]:
        system = self.system
        count, links = len(system.gpus), len(system.widths)
        found = [(0.0, 0.0)] * links
        if system.net is not None:
            return found
        spare = 1 if self.pattern == "tree" else 0
        for out in (True, False):
            charges: list[list[float]] = [[] for _ in range(links)]
            for index in range(count):
                ways = self._ways(kind, index, out=out)
                if not ways and not spare:
                    return [(math.inf, math.inf)] * links
                for link, charge in self._shared(ways).items():
                    charges[link].append(charge)
            for link, items in enumerate(charges):
                kept = sorted(items)[: max(0, len(items) - spare)]
                found[link] = (max(found[link][0], float(len(kept))), max(found[link][1], sum(kept)))
        if not spare:
            for link in range(links):
                if found[link][0] == 0 and self._cuts(kind, link):
                    found[link] = (1.0, self._least(kind, link))
        return found

    def _least(self, kind: int, link: int) -> float:
        paths = (path for row in self.system.paths for path in row if path is not None and path.kind <= kind and link in path.links)
        return min((self._charge(path)[link] for path in paths), default=math.inf)

    def _cuts(self, kind: int, link: int) -> bool:
        """Without ``link`` not every GPU can reach every other."""
        count = len(self.system.gpus)
        if not any(path is not None and link in path.links for row in self.system.paths for path in row):
            return False

        def reach(forward: bool) -> int:
            seen, todo = {0}, [0]
            while todo:
                at = todo.pop()
                for other in range(count):
                    path = self.system.paths[at][other] if forward else self.system.paths[other][at]
                    if other not in seen and path is not None and path.kind <= kind and link not in path.links:
                        seen.add(other)
                        todo.append(other)
            return len(seen)

        return reach(True) < count or reach(False) < count
