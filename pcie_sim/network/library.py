"""The collective library's own choices, in front: what it believes of a group of GPUs, and what it picks per op and size.

The pieces: ``nccl_graph`` (the box as it sees it), ``nccl_search`` (rings and trees), ``nccl_tuning`` (its time model),
``nccl_env`` (its environment), ``nccl_rules`` (its constants by version).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pcie_sim.collectives import algorithms, build_schedule
from pcie_sim.network.channels import LaneRule, Lanes
from pcie_sim.network.nccl_env import PROTOCOLS, Allowed, allowed, env_list, limits, parse_protocol
from pcie_sim.network.nccl_graph import GB, System, see
from pcie_sim.network.nccl_rules import by_capability, rules
from pcie_sim.network.nccl_search import Graph, find
from pcie_sim.network.nccl_tuning import Belief, TimeModel
from pcie_sim.specs.part import LibraryPart, LibraryTuning, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pcie_sim.topology import Topology

__all__ = ["PROTOCOLS", "RING_OPS", "Beliefs", "Choice", "allowed", "beliefs", "choose", "env_list", "parse_protocol"]

RING_OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Ops with an algorithm of their own; the others are grouped sends."""


@dataclass(frozen=True, eq=False)
class Beliefs:
    """What the library thinks of one group of GPUs.

    ``channels`` is what it ends up with (twice the search's, within NCCL_MIN/MAX_NCHANNELS), ``order`` its ring.
    """

    tuning: LibraryTuning
    system: System
    ring: Graph
    tree: Graph
    channels: int
    notes: tuple[str, ...]
    rate_scale: float = 1.0

    @property
    def rate(self) -> float:
        """Bandwidth of the ring's search channels together, B/s."""
        return self.ring.rate * GB

    @property
    def order(self) -> tuple[str, ...]:
        """GPUs along the first ring."""
        return tuple(self.system.gpus[index] for index in self.ring.channels[0])

    @cached_property
    def model(self) -> TimeModel:
        """The library's time model of this group."""
        return TimeModel(
            self.tuning, Belief.of(self.ring), Belief.of(self.tree), len(self.system.gpus), self.system.capabilities, self.rate_scale
        )


_SEEN: WeakKeyDictionary[Topology, dict[tuple[str, ...], Beliefs | None]] = WeakKeyDictionary()


def tuning_of(topology: Topology, part: LibraryPart | None) -> LibraryTuning | None:
    """The library's own constants at the version in force; None when its choices are not modelled."""
    return None if part is None else rules(part.name, topology.settings.ccl.version)


def beliefs(topology: Topology, part: LibraryPart | None, groups: Sequence[tuple[str, ...]]) -> Beliefs | None:
    """What the library thinks of the slowest of ``groups`` (kept per topology); None when its choices are not modelled.

    Raises:
        InputError: an environment value that the library would not understand.
    """
    tuning = tuning_of(topology, part)
    if tuning is None:
        return None
    larger = [inside for group in groups for inside in _by_host(topology, group) if 1 < len(inside) <= tuning.search.most_gpus]
    if not larger:
        return None
    kept = _SEEN.setdefault(topology, {})
    scale = part.believed_rate.value if part is not None and part.believed_rate is not None else 1.0
    found = []
    for group in dict.fromkeys(larger):
        if group not in kept:
            kept[group] = _think(topology, tuning, group, scale)
        found.append(kept[group])
    return min((item for item in found if item is not None), key=lambda item: item.rate / len(item.system.gpus), default=None)


def _by_host(topology: Topology, group: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The group's GPUs host by host: the library searches inside each; what it makes of the network between them is not modelled."""
    found: dict[str, list[str]] = {}
    for gpu in group:
        found.setdefault(topology.host_of(gpu), []).append(gpu)
    return [tuple(gpus) for gpus in found.values()]


def _think(topology: Topology, tuning: LibraryTuning, group: tuple[str, ...], scale: float) -> Beliefs:
    system = see(topology, group, tuning)
    ring, tree = find(system, tuning)
    env = topology.settings.env
    asked = limits(env, tuning)
    # the library doubles what its search found, cuts it to the maximum, then repeats rings up to the minimum (src/graph/connect.cc)
    channels = max(min(2 * len(ring.channels), asked.most_channels), asked.least_channels)
    notes: list[str] = []
    if len(topology.hosts) > 1:
        notes.append("several hosts: the library's choices inside one of them are taken for all")
    if ring.fallback:
        notes.insert(0, fallback_text(system, tuning))
    return Beliefs(tuning, system, ring, tree, channels, tuple(notes), scale)


def fallback_text(system: System, tuning: LibraryTuning) -> str:
    """Why the ring search found nothing, in words."""
    slowest = min(by_capability(tuning.search_rates, system.capabilities[0])) / GB
    reason = "no ring fits at any speed"
    if system.socket_rate is not None and system.socket_rate < slowest:
        reason = f"{system.socket_rate:.3g} GB/s between NUMA nodes is below its slowest speed of {slowest:.3g} for these GPUs"
    return (
        f"the library's ring search finds nothing here ({reason}): it falls back to one channel of {tuning.fallback_rate / GB:.3g} GB/s "
        f"and so leaves LL too early"
    )


@dataclass(frozen=True, eq=False)
class Choice:
    """Candidates (algorithm, protocol) and the index of the chosen one for each size, with remarks.

    The algorithm is what runs: a registered one, whatever the library would have liked.
    """

    candidates: tuple[tuple[str, Protocol], ...]
    which: NDArray[np.int64]
    notes: tuple[str, ...]
    rule: LaneRule | None = None
    """How calls get their channels; None when the library's choices are not modelled."""

    def pieces(self, size: NDArray[np.float64]) -> Iterator[tuple[str, Protocol, Lanes | None, NDArray[np.bool_]]]:
        """(algorithm, protocol, channels, mask of the sizes that run so), together all of ``size``."""
        import numpy as np

        for index, (algorithm, protocol) in enumerate(self.candidates):
            mask = self.which == index
            if not np.any(mask):
                continue
            if self.rule is None:
                yield algorithm, protocol, None, mask
                continue
            inside = np.where(mask, size, size[mask].flat[0])
            for lanes, same in self.rule.lanes(algorithm, protocol, inside):
                both = mask & same
                if np.any(both):
                    yield algorithm, protocol, lanes, both


def choose(
    topology: Topology,
    part: LibraryPart | None,
    op: str,
    groups: Sequence[tuple[str, ...]],
    size: NDArray[np.float64],
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
    largest_send: float | None = None,
) -> Choice:
    """What runs for each size.

    Args:
        algorithm, protocol: what the caller insists on, or ``auto`` for the library's choice.
        largest_send: all_to_all and send_recv: the largest message to one peer, as a share of ``size`` (None: equal shares).

    Raises:
        UnknownNameError: no such protocol.
        InputError: an environment value that the library would not understand.
    """
    import numpy as np

    none = np.zeros(size.shape, dtype=np.int64)
    asked = parse_protocol(protocol)
    if part is not None and algorithm != "auto" and build_schedule(op, algorithm, 2).kernel:
        return Choice(((algorithm, "Simple"),), none, (_KERNEL_NOTE,))
    tuning = tuning_of(topology, part)
    if tuning is None:
        return Choice(((algorithm, "Simple" if asked == "auto" else asked),), none, ())
    env = topology.settings.env
    if op not in RING_OPS:
        ranks = max(len(group) for group in groups)
        share = largest_send if largest_send is not None else (1.0 if op == "send_recv" else 1.0 / ranks)
        asked_for = limits(env, tuning)
        rule = LaneRule(tuning, None, asked_for.send_channels, asked_for.threads, asked_for.buffer, asked_for.chunk, share)
        if asked != "auto":
            return Choice(((algorithm, asked),), none, (), rule)
        which = (size * share > asked_for.ll_threshold).astype(np.int64)
        return Choice(((algorithm, "LL"), (algorithm, "Simple")), which, (), rule)
    thinks = beliefs(topology, part, groups)
    if thinks is None:
        return Choice(((algorithm, "Simple" if asked == "auto" else asked),), none, ())
    may = allowed(env, op, tuning)
    if asked != "auto":
        may = Allowed((asked,), may.algorithms, True, may.notes)
    notes = (*thinks.notes, *may.notes) if asked == "auto" else may.notes
    if may.ll128_listed and not thinks.model.ll128_by_default:
        notes = (*notes, _LL128_NOTE)
    threads, buffer = limits(env, tuning).threads, limits(env, tuning).buffer
    rule = LaneRule(tuning, thinks.model, thinks.channels, threads, buffer, 0.0, pipelined=op in ("broadcast", "reduce"))
    if algorithm != "auto":
        return replace(_forced(thinks, op, may, algorithm, size, notes), rule=rule)
    candidates, which = thinks.model.choose(op, may, size)
    return replace(_runnable(op, candidates, which, notes), rule=rule)


_LL128_NOTE = (
    "LL128 is off by default on this box: it needs stores of 128 bytes to arrive whole, and forcing it where nobody has tested that risks "
    "silently wrong data (NVIDIA/nccl:src/graph/tuning.cc)"
)
_KERNEL_NOTE = (
    "a serving engine's own kernel: protocol, channels, NCCL_P2P_LEVEL and version of the collective library have no part in it; it needs "
    "peer access between all pairs"
)


def _forced(thinks: Beliefs, op: str, may: Allowed, algorithm: str, size: NDArray[np.float64], notes: tuple[str, ...]) -> Choice:
    """The caller's algorithm: its protocol by the library's own row for it (a tree's where it has one, else a ring's)."""
    own = "tree" if "tree" in algorithm and op == "all_reduce" and thinks.tuning.tree_share else "ring"
    only = Allowed(may.protocols, (own,), may.ll128_listed, ())  # type: ignore[arg-type]  # one of the two
    candidates, which = thinks.model.choose(op, only, size)
    return Choice(tuple((algorithm, protocol) for _, protocol in candidates), which, notes)


def _runnable(op: str, candidates: Sequence[tuple[str, Protocol]], which: NDArray[np.int64], notes: tuple[str, ...]) -> Choice:
    """Algorithms that are not registered give way to the ring, with a remark where one was picked."""
    known = algorithms(op)
    picked = {candidates[int(index)][0] for index in set(which.flat)}
    missing = sorted(picked - set(known))
    if missing:
        notes = (*notes, f"the library picks {', '.join(missing)} here; not modelled yet, ring used")
    return Choice(tuple((name if name in known else "ring", protocol) for name, protocol in candidates), which, notes)
