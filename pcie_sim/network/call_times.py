"""Arrays of times of one collective call, as serving asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from pcie_sim.errors import InputError
from pcie_sim.evidence import Evidence, label_of_sum, weakest
from pcie_sim.network.analytic import solve
from pcie_sim.network.costs import Amount
from pcie_sim.network.custom import kernel
from pcie_sim.network.parts import Parts, choice_of, labelled_parts, latency_sigma, parts_of, protocol_name
from pcie_sim.network.placement import Placement, place
from pcie_sim.specs.ops import Array, CollectiveCall
from pcie_sim.specs.runtime import CustomAllReduce

if TYPE_CHECKING:
    from pcie_sim.topology import Topology


@dataclass(frozen=True)
class CallTimes:
    """Times of one collective call for an array of sizes (s; arrays have the shape of ``call.bytes``).

    ``time_s = latency_s + bytes_s``; the sigmas are standard deviations of ln of the two parts, size by size; ``evidence`` is
    the label of the sum over all sizes, the other two are those of the parts whatever the size; ``protocol`` is one name or
    an array of them.
    """

    time_s: Array
    latency_s: Array
    bytes_s: Array
    sigma_latency: Array
    sigma_bytes: Array
    evidence: Evidence
    evidence_latency: Evidence
    evidence_bytes: Evidence
    extrapolated: np.ndarray
    protocol: np.ndarray | str
    transport: str
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def booked(self) -> tuple[Booked, ...]:
        """The time in parts, each with its label, the cause that it varies with, and by how much (standard deviation of ln)."""
        return (
            Booked(self.latency_s, self.evidence_latency, "net:latency", self.sigma_latency),
            Booked(self.bytes_s, self.evidence_bytes, "net:bytes", self.sigma_bytes),
        )


@dataclass(frozen=True, eq=False)
class Booked:
    """A part of a call's time (s): parts of one ``cause`` vary together, by ``sigma`` (standard deviation of ln)."""

    time_s: Array
    evidence: Evidence
    cause: str
    sigma: Array


class CallTimer(Protocol):
    """:func:`call_times`, or what a calibrated box has in its place."""

    def __call__(
        self,
        topology: Topology,
        call: CollectiveCall,
        *,
        gpu_of_rank: Sequence[str],
        launch: Literal["graph", "eager"] = "graph",
        algorithm: str = "auto",
        protocol: str = "auto",
        custom: CustomAllReduce | None = None,
    ) -> CallTimes:
        """Times of ``call`` for all its sizes."""
        ...


def call_times(
    topology: Topology,
    call: CollectiveCall,
    *,
    gpu_of_rank: Sequence[str],
    launch: Literal["graph", "eager"] = "graph",
    algorithm: str = "auto",
    protocol: str = "auto",
    custom: CustomAllReduce | None = None,
) -> CallTimes:
    """Times of ``call`` for all its sizes, all its groups running at the same time.

    Args:
        gpu_of_rank: GPU node of each rank number in ``call.groups``.
        launch: ``graph`` (inside a CUDA graph) or ``eager`` (back to back from the CPU: no less than its issue floor).
        algorithm, protocol: ``auto`` for the library's choice at each size.
        custom: the serving engine's own AllReduce kernel: used for all_reduce where its rules would pick it.

    Raises:
        InputError: unknown op or GPU, a rank without GPU, no group, negative or non-finite sizes.
        NoDataError: no costs for the collective library, or a transport that is not modelled.
    """
    size = np.asarray(call.bytes, dtype=float)
    if not np.all(np.isfinite(size)) or np.any(size < 0):
        raise InputError(f"{call.op}: sizes must be finite and 0 or more")
    groups = _groups(call, gpu_of_rank)
    found = choice_of(topology, call.op, groups, size, algorithm, protocol, call.fractions)
    mix = _Mix(size)
    for way, name, lanes, mask in found.pieces(size):
        pieces = lanes.pieces if lanes is not None else None
        placed = place(topology, call.op, groups, algorithm=way, fractions=call.fractions, chunks=pieces)
        lines = solve(placed, name, lanes)
        mix.put(mask, parts_of(placed, name, lines, lanes), *lines.evaluate(size), protocol_name(placed, name))
    notes = found.notes
    if custom is not None and call.op == "all_reduce":
        own = kernel(topology, groups, custom)
        for shown, mask, shot, lines in () if own is None else own.pieces(size):
            mix.put(mask, parts_of(shot, "Simple", lines), *lines.evaluate(size), shown)
        mix.sources = () if own is None else (own.source,)
    if launch == "eager":
        mix.hold(placed.costs.floor(sum(len(group) for group in groups), call.op))
    return mix.times(placed, notes)


class _Mix:
    """Times of a call whose sizes run with different protocols: each :meth:`put` overwrites the sizes of its mask."""

    def __init__(self, size: Array) -> None:
        self.size = size
        self.latency, self.moved, self.sigma_latency, self.sigma_bytes = (np.zeros(size.shape) for _ in range(4))
        self.shown = np.empty(size.shape, dtype=object)
        self.used: list[Parts] = []
        self.labelled: list[tuple[float, Evidence]] = []
        self.floor: Amount | None = None
        self.sources: tuple[str, ...] = ()

    def put(self, mask: np.ndarray, parts: Parts, steps_s: Array, bytes_s: Array, name: str) -> None:
        """The sizes of ``mask`` take the base of ``parts``, ``steps_s`` and ``bytes_s`` (s)."""
        if np.all(mask):
            self.used, self.labelled = [], []
        self.latency = np.where(mask, parts.base.value + steps_s, self.latency)
        self.moved = np.where(mask, bytes_s, self.moved)
        self.sigma_latency = np.where(mask, latency_sigma(parts, steps_s), self.sigma_latency)
        self.sigma_bytes = np.where(mask, parts.wire.sigma, self.sigma_bytes)
        self.shown[mask] = name
        self.used.append(parts)
        totals = float(np.sum(mask)) * parts.base.value, float(np.sum(steps_s[mask])), float(np.sum(bytes_s[mask]))
        self.labelled += labelled_parts(parts, *totals)

    def hold(self, floor: Amount) -> None:
        """No call is faster than ``floor``: the CPU cannot issue them faster."""
        held = floor.value - self.moved > self.latency
        if not np.any(held):
            return
        self.latency = np.where(held, floor.value - self.moved, self.latency)
        self.sigma_latency = np.where(held, floor.sigma, self.sigma_latency)
        self.labelled.append((float(np.sum(self.latency[held])), floor.evidence))
        self.floor = floor

    def times(self, placed: Placement, notes: tuple[str, ...]) -> CallTimes:
        """Everything put so far as one answer."""
        latency_parts = [part for parts in self.used for part in (parts.base, parts.step)]
        sources = [*(source for parts in self.used for source in parts.sources), *self.sources]
        if self.floor is not None:
            latency_parts.append(self.floor)
            sources += self.floor.sources
        return CallTimes(
            time_s=self.latency + self.moved,
            latency_s=self.latency,
            bytes_s=self.moved,
            sigma_latency=self.sigma_latency,
            sigma_bytes=self.sigma_bytes,
            evidence=label_of_sum(self.labelled),
            evidence_latency=weakest(part.evidence for part in latency_parts),
            evidence_bytes=weakest(parts.wire.evidence for parts in self.used),
            extrapolated=placed.costs.extrapolates(placed.ranks, self.size),
            protocol=str(self.shown.flat[0]) if len(set(self.shown.flat)) == 1 else self.shown,
            transport=placed.transport,
            sources=tuple(dict.fromkeys(sources)),
            notes=notes,
        )


def _groups(call: CollectiveCall, gpu_of_rank: Sequence[str]) -> list[tuple[str, ...]]:
    if not call.groups:
        raise InputError(f"{call.op}: no group of ranks")
    found: list[tuple[str, ...]] = []
    for group in call.groups:
        for rank in group:
            if not 0 <= rank < len(gpu_of_rank):
                raise InputError(f"{call.op}: rank {rank} has no GPU (there are {len(gpu_of_rank)})")
        if not group:
            raise InputError(f"{call.op}: a group without ranks")
        found.append(tuple(gpu_of_rank[rank] for rank in group))
    return found
