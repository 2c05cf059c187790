"""Bounds on the library's graph search: what cannot beat a result already found need not be searched."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pcie_sim.network.nccl_graph import SYS, Path, System


class Bounds:
    """How many channels can fit at most, and how many hops a channel has at least, by the path classes allowed.

    For each link: GPUs whose every allowed way out (or in) uses it must each use it once a channel; and a ring must cross at least
    once a link without which the GPUs fall apart. A chain (tree) may spare its last and its first GPU one such use, and for it the
    GPUs' ways out are counted together.
    """

    def __init__(self, system: System, pattern: str, tax: float) -> None:
        self.system, self.pattern, self.tax = system, pattern, tax
        self._needs: dict[int, list[tuple[float, float]]] = {}
        self._most = [[self._carries(path) for path in row] for row in system.paths]

    def _carries(self, path: Path | None) -> tuple[int, float]:
        """(class, fastest channel, GB/s) of a path; nothing without one."""
        if path is None:
            return SYS + 1, 0.0
        return path.kind, min((self.system.widths[link] / charge for link, charge in self._charge(path).items()), default=math.inf)

    def channels(self, kind: int, speed: float) -> int:
        """An upper bound on channels of ``speed`` GB/s."""
        if self.system.net is None and not self._joined(kind, speed):
            return 0
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

    def _joined(self, kind: int, speed: float) -> bool:
        """Every GPU is tied to every other, one way or the other, by paths that carry one channel of ``speed``."""
        count = len(self.system.gpus)
        fits = [(a, b) for a, row in enumerate(self._most) for b, (own, most) in enumerate(row) if own <= kind and most >= speed - 1e-6]
        near: list[set[int]] = [set() for _ in range(count)]
        for a, b in fits:
            near[a].add(b)
            near[b].add(a)
        seen, todo = {0}, [0]
        while todo:
            for other in near[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return len(seen) == count

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
