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

from pcie_sim.network.nccl_bounds import Bounds
from pcie_sim.network.nccl_graph import GB, NVL, PIX, SYS, Path, System
from pcie_sim.network.nccl_rules import by_capability, capability
from pcie_sim.specs.part import LibraryTuning, SearchRules

Pattern = Literal["ring", "tree"]
_Move = tuple[tuple[int, int], ...]
"""What one path takes: (link, MB/s)."""


def _mega(rate: float) -> int:
    """GB/s as whole MB/s, as finely as the library itself counts."""
    return round(rate * 1000)


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
    """One depth-first search at one speed with one set of allowed path classes. Rates are whole MB/s: sums stay exact."""

    def __init__(self, search: _Search, speed: float, kind: int, inter: int, same: bool) -> None:
        self.search, self.system = search, search.system
        self.speed, self.kind, self.inter, self.same = speed, kind, inter, same
        self.budget = search.limits.same_steps if same else search.limits.steps
        self.left = [_mega(width) for width in self.system.widths]
        self.count = len(self.system.gpus)
        self.channels: list[list[int]] = []
        self.hops = 0
        self.perfect = False
        self.ceiling = search.bounds.channels(kind, speed) if search.shortcuts else None

    def go(self) -> None:
        """Fill ``search.found`` if something better turns up."""
        if self.ceiling is not None and self._hopeless(self.ceiling):
            return
        system, net = self.system, self.system.net
        self.moves = [[self._move(path, self.kind) for path in row] for row in system.paths]
        self.next = [self._ranked(index) for index in range(self.count)]
        self.enter = [self._move(path, self.inter) for path in net.to_gpu] if net is not None else None
        self.leave = [self._move(path, self.inter) for path in net.from_gpu] if net is not None else None
        self.net_left = net.rate if net is not None else 0.0
        self._channel()

    def _move(self, path: Path | None, limit: int) -> _Move | None:
        """What following ``path`` takes from the links; None when its class is not allowed."""
        if path is None or path.kind > limit:
            return None
        taxed = _mega(self.speed * self.search.limits.tax)
        plain = _mega(self.speed)
        return tuple((link, taxed if path.taxed and pci else plain) for link, pci in zip(path.links, path.pci, strict=True))

    def _ranked(self, index: int) -> list[int]:
        """Where to go from a GPU: fastest path, fewest hops, then the next in order."""
        row, count = self.system.paths[index], self.count
        others = [((index + step) % count, step) for step in range(1, count)]
        keys = [(-path.rate(self.system.widths), path.hops, step, other) for other, step in others if (path := row[other]) is not None]
        return [other for *_, other in sorted(keys)]

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
        if self.enter is not None:
            if self.net_left < self.speed:
                return
            self.net_left -= self.speed
        if self.channels:
            self._first(self.channels[-1][0], self.channels[-1])
        else:
            self._first(0, range(self.count))
        if not self.same or not self.channels:
            for gpu in range(self.count):
                if self._stop():
                    break
                self._first(gpu, None)
        if self.enter is not None:
            self.net_left += self.speed

    def _stop(self) -> bool:
        return self.budget <= 0 or (self.ceiling is not None and self._hopeless(self.ceiling))

    def _first(self, gpu: int, forced: Sequence[int] | None) -> None:
        if self.enter is None:
            self._place(gpu, [], forced)
            return
        move = self.enter[gpu]
        if move is not None and self._take(move):
            self._place(gpu, [], forced)
            self._give(move, len(move))
            self.hops -= len(move)

    def _place(self, gpu: int, chosen: list[int], forced: Sequence[int] | None) -> None:
        """Put ``gpu`` after the ones already ``chosen``, then whatever may follow it."""
        if self.budget <= 0:
            return
        self.budget -= 1
        chosen.append(gpu)
        if len(chosen) == self.count:
            self._close(chosen)
        else:
            row = self.moves[gpu]
            for following in self.next[gpu] if forced is None else (forced[len(chosen)],):
                move = row[following]
                if move is not None and following not in chosen and self._take(move):
                    self._place(following, chosen, forced)
                    self._give(move, len(move))
                    self.hops -= len(move)
        chosen.pop()

    def _close(self, chosen: list[int]) -> None:
        """Back to the first GPU (ring) or to the card, then count the channel."""
        if self.leave is not None:
            move = self.leave[chosen[-1]]
        elif self.search.pattern == "tree":
            move = ()
        else:
            move = self.moves[chosen[-1]][chosen[0]]
        if move is not None and self._take(move):
            self._complete(chosen)
            self._give(move, len(move))
            self.hops -= len(move)

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

    def _take(self, move: _Move) -> bool:
        """Subtract a move from its links; all or nothing."""
        left = self.left
        for index, (link, need) in enumerate(move):
            if left[link] < need:
                self._give(move, index)
                return False
            left[link] -= need
        self.hops += len(move)
        return True

    def _give(self, move: _Move, count: int) -> None:
        left = self.left
        for link, need in move[:count]:
            left[link] += need
