"""The collective library's own time model: which algorithm and protocol it believes fastest for an op and a size.

NVIDIA/nccl:src/graph/tuning.cc on one node, by version (constants in ``catalog/parts/nccl.yaml``): time = base + steps x step +
bytes / algBw. These beliefs decide; they never make a predicted time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pcie_sim.network.nccl_env import Allowed
from pcie_sim.network.nccl_graph import GB, NVB, NVL
from pcie_sim.network.nccl_rules import by_capability, capability
from pcie_sim.network.nccl_search import Graph
from pcie_sim.specs.part import Algorithm, LibraryTuning, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LL128_LEAST = (7, 0)
Candidate = tuple[Algorithm, Protocol]


@dataclass(frozen=True)
class Belief:
    """One search result as the time model takes it: channels of the search, B/s of each, kind of link, plain tree or not."""

    channels: int
    rate: float
    medium: Literal["pcie", "nvlink"]
    near: bool
    """No further than NVLink (through a GPU at most): where LL128 is on by default."""
    same: bool
    plain: bool

    @staticmethod
    def of(graph: Graph) -> Belief:
        """The beliefs behind ``graph``."""
        medium: Literal["pcie", "nvlink"] = "nvlink" if graph.kind == NVL else "pcie"
        return Belief(len(graph.channels), graph.speed * GB, medium, graph.kind <= NVB, graph.same, graph.plain)


def steps(op: str, ranks: int) -> int:
    """Ring steps in the library's model (``nsteps``)."""
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op, ranks)


@dataclass(frozen=True)
class TimeModel:
    """The library's time of (op, algorithm, protocol) over sizes, for one communicator.

    ``capabilities`` are the lowest and highest compute capability of its GPUs.
    """

    tuning: LibraryTuning
    ring: Belief
    tree: Belief
    ranks: int
    capabilities: tuple[tuple[int, int], tuple[int, int]]
    rate_scale: float = 1.0
    """Believed rates over what the search found."""

    def latency(self, op: str, algorithm: Algorithm, protocol: Protocol) -> float:
        """Seconds for no bytes."""
        belief = self.ring if algorithm == "ring" else self.tree
        base = self.tuning.base_latency[algorithm][protocol]
        table = self.tuning.step_latency[belief.medium]
        each = table[algorithm][protocol]
        if algorithm == "tree":
            return base + 2 * (self.ranks - 1) * each
        if op in ("broadcast", "reduce"):
            if belief.same:
                return base + each
            return base + steps(op, self.ranks) * (table["tree"][protocol] if protocol == "Simple" else each)
        return base + steps(op, self.ranks) * each

    def bandwidth(self, op: str, algorithm: Algorithm, protocol: Protocol) -> float:
        """algBw, B/s, a tree's size correction apart."""
        caps = by_capability(self.tuning.generations, self.capabilities[0])
        if algorithm == "tree":
            belief, share = self.tree, self.tuning.tree_share
            bus = min(share["all"] * belief.channels * belief.rate * self.rate_scale, belief.channels * caps.tree)
            if protocol == "LL":
                bus = min(bus * share["LL"], caps.ll)
            elif protocol == "LL128":
                bus = min(bus * share["LL128"], belief.channels * caps.tree_ll128)
            return bus * (share["plain"] if belief.plain else 1.0) / 2
        belief = self.ring
        bus = belief.channels * belief.rate * self.rate_scale * self.tuning.ring_share[protocol]
        if protocol == "LL":
            bus = min(bus * self.tuning.ring_ll_share[op], caps.ll)  # type: ignore[index]  # ring ops are its keys
        elif protocol == "LL128":
            bus = min(bus, belief.channels * caps.ring_ll128)
        return bus * self.ranks / steps(op, self.ranks)

    def time(self, op: str, algorithm: Algorithm, protocol: Protocol, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds for each size (bytes as nccl-tests counts them)."""
        import numpy as np

        rate = np.full(size.shape, self.bandwidth(op, algorithm, protocol))
        if algorithm == "tree":
            factors = np.asarray(self.tuning.tree_correction[protocol])
            index = np.floor(np.log2(np.maximum(size // 64, 1))).astype(np.int64)
            within = (size >= 64) & (index < len(factors))
            rate = rate * np.where(within, factors[np.minimum(index, len(factors) - 1)], 1.0)
        found: NDArray[np.float64] = self.latency(op, algorithm, protocol) + size / rate
        return found

    def candidates(self, allowed: Allowed) -> tuple[Candidate, ...]:
        """(algorithm, protocol) pairs in the library's order; LL128 only when listed or where it is on by default."""
        found: list[Candidate] = []
        for algorithm in ("tree", "ring"):
            if algorithm not in allowed.algorithms:
                continue
            for protocol in allowed.protocols:
                if protocol == "LL128" and not allowed.ll128_listed and not self._ll128(algorithm):
                    continue
                found.append((algorithm, protocol))
        return tuple(found)

    @property
    def ll128_by_default(self) -> bool:
        """Whether rings may run LL128 without being told to."""
        return self._ll128("ring")

    def _ll128(self, algorithm: Algorithm) -> bool:
        low, high = self.capabilities
        belief = self.ring if algorithm == "ring" else self.tree
        listed = [capability(text) for text in self.tuning.ll128_capabilities]
        return belief.near and low == high and (low in listed if listed else low >= _LL128_LEAST)

    def choose(self, op: str, allowed: Allowed, size: NDArray[np.float64]) -> tuple[tuple[Candidate, ...], NDArray[np.int64]]:
        """The candidates, and for each size the index of the one believed fastest (the first of equals)."""
        import numpy as np

        candidates = self.candidates(allowed)
        if len(candidates) == 1:
            return candidates, np.zeros(size.shape, dtype=np.int64)
        times = np.stack([self.time(op, algorithm, protocol, size) for algorithm, protocol in candidates])
        return candidates, np.argmin(times, axis=0)

    def trimmed(
        self, algorithm: Algorithm, protocol: Protocol, channels: int, threads: int | None, size: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(channels, threads per channel) of a call of each size: small ones get fewer channels, then fewer threads (src/enqueue.cc)."""
        import numpy as np

        rules = self.tuning.threads
        slow = algorithm == "ring" and protocol == "Simple" and self.ring.channels * self.ring.rate <= rules.slow_rate
        most = rules.slow_simple if slow else rules.most[protocol]
        if threads is not None and protocol != "LL128":
            most = min(threads, rules.most[protocol])
        worth = rules.bytes_per_thread[protocol] * (self.ranks if algorithm == "ring" and protocol == "LL" else 1)
        left = np.clip(np.floor(size / (most * worth)), 1, channels).astype(np.int64)
        each = np.full(size.shape, most, dtype=np.int64)
        for _ in range(8):
            each = np.where((size < left * each * worth) & (each % 128 == 0), each // 2, each)
        return left, np.maximum(each, rules.least) if protocol == "LL" else each


def switch_points(model: TimeModel, op: str, allowed: Allowed, low: float, high: float) -> tuple[tuple[float, Candidate], ...]:
    """Where the choice changes between ``low`` and ``high`` bytes: (first size, candidate from there on), smallest first.

    A walk of 64 sizes an octave, every change then narrowed down to a byte.
    """
    import numpy as np

    octaves = math.log2(high / low)
    grid = np.asarray(sorted(set(np.round(low * 2.0 ** np.linspace(0.0, octaves, int(64 * octaves) + 1)).tolist())))
    candidates, which = model.choose(op, allowed, grid)
    found: list[tuple[float, Candidate]] = [(low, candidates[int(which[0])])]
    for index in np.flatnonzero(np.diff(which)):
        left, right, wanted = float(grid[index]), float(grid[index + 1]), int(which[index + 1])
        while right - left > 1:
            middle = math.floor((left + right) / 2)
            _, at = model.choose(op, allowed, np.asarray([float(middle)]))
            left, right = (left, float(middle)) if int(at[0]) == wanted else (float(middle), right)
        found.append((right, candidates[wanted]))
    return tuple(found)
