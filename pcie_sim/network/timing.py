"""The network's answers: one collective call with all its provenance, and arrays of call times for serving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from pcie_sim.errors import InputError, unknown_name
from pcie_sim.evidence import Evidence, label_of_sum, weakest
from pcie_sim.network.analytic import Lines, solve
from pcie_sim.network.costs import Amount, library_costs
from pcie_sim.network.custom import NAME as CUSTOM
from pcie_sim.network.custom import kernel
from pcie_sim.network.events import simulate
from pcie_sim.network.library import Choice, choose
from pcie_sim.network.placement import Fractions, Placement, View, place
from pcie_sim.results.timing import Bottleneck, Timing
from pcie_sim.specs.ops import Array, CollectiveCall
from pcie_sim.specs.part import Protocol
from pcie_sim.specs.runtime import CustomAllReduce
from pcie_sim.units import parse_bytes

if TYPE_CHECKING:
    from pcie_sim.topology import Topology

WORTH_SAYING = 0.02
"""An order that costs no more than this share of the bandwidth term gets no remark."""
Z90 = 1.2815515655446004
"""90 % point of the standard normal."""


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


def rank_order(topology: Topology, n: int) -> tuple[str, ...]:
    """The first ``n`` GPUs in bus order: rank r runs on the r-th.

    Raises:
        InputError: fewer than 1, or more than the box has.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(topology.gpus):
        raise InputError(f"{topology.name} has {len(topology.gpus)} GPUs; {n!r} ranks cannot be placed on them")
    return tuple(topology.gpus[:n])


@dataclass(frozen=True)
class _Parts:
    """The uncertain parts behind a time with one protocol: base and step cost, wire."""

    base: Amount
    step: Amount
    wire: Amount

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.base.sources, *self.step.sources, *self.wire.sources)))


def _parts(placed: Placement, protocol: Protocol, lines: Lines) -> _Parts:
    view: View = placed.view(protocol)
    link = placed.link_rates[lines.busiest] if lines.busiest is not None else Amount(0.0, 0.0, "measured")
    factors = [link, view.share, placed.crowded]
    wire = Amount(
        1.0,
        math.sqrt(sum(factor.sigma**2 for factor in factors)),
        weakest([*(factor.evidence for factor in factors), placed.transport_evidence.evidence]),
        tuple(dict.fromkeys(source for factor in factors for source in factor.sources)),
    )
    return _Parts(placed.costs.base(placed.op, protocol, placed.peers), view.step, wire)


def _latency_sigma(parts: _Parts, steps_s: Array) -> Array:
    """Standard deviation of ln(base + steps), the two being independent."""
    whole = parts.base.value + steps_s
    spread = np.hypot(parts.base.value * parts.base.sigma, steps_s * parts.step.sigma)
    return np.divide(spread, whole, out=np.zeros(np.shape(whole)), where=whole > 0)


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
    found = _choice(topology, call.op, groups, size, algorithm, protocol, call.fractions)
    notes, which = found.notes, found.which
    latency, moved = np.zeros(size.shape), np.zeros(size.shape)
    sigma_latency, sigma_bytes = np.zeros(size.shape), np.zeros(size.shape)
    used: list[str] = []
    shown = np.empty(size.shape, dtype=object)
    parts_used: list[_Parts] = []
    labelled: list[tuple[float, Evidence]] = []
    for index, (way, name) in enumerate(found.candidates):
        mask = which == index
        if not np.any(mask):
            continue
        placed = place(topology, call.op, groups, algorithm=way, fractions=call.fractions)
        lines = solve(placed, name)
        parts = _parts(placed, name, lines)
        steps_s, bytes_s = lines.evaluate(size)
        latency = np.where(mask, parts.base.value + steps_s, latency)
        moved = np.where(mask, bytes_s, moved)
        sigma_latency = np.where(mask, _latency_sigma(parts, steps_s), sigma_latency)
        sigma_bytes = np.where(mask, parts.wire.sigma, sigma_bytes)
        used.append(_shown(placed, name))
        shown[mask] = used[-1]
        parts_used.append(parts)
        totals = float(np.sum(mask)) * parts.base.value, float(np.sum(steps_s[mask])), float(np.sum(bytes_s[mask]))
        labelled += _labelled(parts, *totals)
    if custom is not None and call.op == "all_reduce":
        own, more = kernel(topology, groups, custom)
        notes = (*notes, *more)
        mask = np.zeros(size.shape, dtype=bool) if own is None else size <= own.most
        if own is not None and np.any(mask):
            latency, moved = np.where(mask, own.base.value, latency), np.where(mask, size * own.per_byte.value, moved)
            sigma_latency = np.where(mask, own.base.sigma, sigma_latency)
            sigma_bytes = np.where(mask, own.per_byte.sigma, sigma_bytes)
            shown[mask] = CUSTOM
            kept = _Parts(own.base, Amount(0.0, 0.0, own.base.evidence), own.per_byte)
            parts_used, labelled = ([kept], []) if np.all(mask) else ([*parts_used, kept], labelled)
            labelled += _labelled(kept, float(np.sum(latency[mask])), 0.0, float(np.sum(moved[mask])))
    label_latency = weakest(label for parts in parts_used for label in (parts.base.evidence, parts.step.evidence))
    sources = dict.fromkeys(source for parts in parts_used for source in parts.sources)
    if launch == "eager":
        floor = placed.costs.floor(sum(len(group) for group in groups))
        held = floor.value - moved > latency
        if np.any(held):
            latency = np.where(held, floor.value - moved, latency)
            sigma_latency = np.where(held, floor.sigma, sigma_latency)
            label_latency = weakest((label_latency, floor.evidence))
            labelled.append((float(np.sum(latency[held])), floor.evidence))
            sources |= dict.fromkeys(floor.sources)
    return CallTimes(
        time_s=latency + moved,
        latency_s=latency,
        bytes_s=moved,
        sigma_latency=sigma_latency,
        sigma_bytes=sigma_bytes,
        evidence=label_of_sum(labelled),
        evidence_latency=label_latency,
        evidence_bytes=weakest(parts.wire.evidence for parts in parts_used),
        extrapolated=placed.costs.extrapolates(placed.ranks, size),
        protocol=str(shown.flat[0]) if len(set(shown.flat)) == 1 else shown,
        transport=placed.transport,
        sources=tuple(sources),
        notes=notes,
    )


def _choice(
    topology: Topology,
    op: str,
    groups: Sequence[tuple[str, ...]],
    size: Array,
    algorithm: str,
    protocol: str,
    fractions: Fractions | None,
) -> Choice:
    """What runs at each size: the library's choice where nothing is asked for."""
    part = library_costs(topology.settings.ccl).part
    largest = (
        None if fractions is None else max((share for i, row in enumerate(fractions) for j, share in enumerate(row) if i != j), default=0.0)
    )
    return choose(topology, part, op, groups, size, algorithm=algorithm, protocol=protocol, largest_send=largest)


def _shown(placed: Placement, protocol: str) -> str:
    return protocol if placed.costs.part is not None else "none"


def _labelled(parts: _Parts, base: float, steps: float, moves: float) -> list[tuple[float, Evidence]]:
    return [(base, parts.base.evidence), (steps, parts.step.evidence), (moves, parts.wire.evidence)]


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


def time_collective(
    topology: Topology,
    op: str,
    size_bytes: int | str,
    *,
    ranks: int | None = None,
    algorithm: str = "auto",
    protocol: str = "auto",
    launch: Literal["graph", "eager"] = "eager",
    engine: Literal["analytic", "event"] = "analytic",
    fractions: Fractions | None = None,
    chunks: int | None = None,
    channels: int | None = None,
    order: Sequence[str] | None = None,
) -> Timing:
    """One call of ``op`` on the first ``ranks`` GPUs in bus order, or on those of ``order``.

    Args:
        size_bytes: message size as nccl-tests counts it for the op (0 allowed; text such as ``14KiB`` is understood).
        ranks: default all GPUs of the box.
        algorithm: ``auto`` or one of :func:`pcie_sim.collectives.algorithms`.
        protocol: ``auto`` (the library's choice), ``LL``, ``LL128`` or ``Simple``.
        launch: ``eager`` (back to back from the CPU, what nccl-tests shows) or ``graph``.
        engine: ``analytic`` or ``event``.
        fractions: all_to_all: what each rank sends to each, as a share of ``size_bytes``.
        chunks: pieces of a pipelined algorithm (None: its own number); ``channels``: equal copies side by side (None: one).
        order: GPU names, rank by rank: a ring follows them as they stand. A note says when another order would be faster.

    Raises:
        InputError: unknown op, algorithm, protocol, launch or engine; ranks below 2 or above the GPUs; a bad size.
        NoDataError: no costs for the collective library, or a transport that is not modelled.
    """
    size = parse_bytes(size_bytes)
    if launch not in ("eager", "graph"):
        raise InputError(f"launch {launch!r}: use eager or graph")
    if engine not in ("analytic", "event"):
        raise InputError(f"engine {engine!r}: use analytic or event")
    gpus = _gpus(topology, op, ranks, order)
    found = _choice(topology, op, (gpus,), np.asarray(float(size)), algorithm, protocol, fractions)
    way, chosen = found.candidates[int(found.which)]
    placed = place(topology, op, (gpus,), algorithm=way, fractions=fractions, chunks=chunks, channels=channels, as_given=order is not None)
    notes = found.notes if order is None else (*found.notes, *_order_notes(topology, placed, gpus, chosen, fractions))
    return _Answer(topology, placed, chosen, size, launch).timing(engine, notes)


def _gpus(topology: Topology, op: str, ranks: int | None, order: Sequence[str] | None) -> tuple[str, ...]:
    """The GPUs of the call, rank by rank."""
    if order is None:
        count = len(topology.gpus) if ranks is None else ranks
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= len(topology.gpus):
            raise InputError(f"{op}: ranks {count!r}; {topology.name} has {len(topology.gpus)} GPUs, a collective takes 2 to all of them")
        return rank_order(topology, count)
    gpus = tuple(order)
    for name in gpus:
        if name not in topology.gpus:
            raise unknown_name("GPU", str(name), topology.gpus)
    if len(set(gpus)) < len(gpus) or len(gpus) < 2:
        raise InputError(f"order {','.join(gpus)[:80]}: name two GPUs or more, each once")
    if ranks is not None and ranks != len(gpus):
        raise InputError(f"order names {len(gpus)} GPUs, ranks asks for {ranks}; give one of the two")
    return gpus


def _order_notes(
    topology: Topology, placed: Placement, gpus: tuple[str, ...], protocol: Protocol, fractions: Fractions | None
) -> tuple[str, ...]:
    """How much slower the bytes move than with the same GPUs in bus order."""
    bus = tuple(name for name in topology.gpus if name in gpus)
    if fractions is not None:
        return ()
    other = place(topology, placed.op, (bus,), algorithm=placed.algorithm, as_given=True)
    given, best = (max(solve(item, protocol).slope) for item in (placed, other))
    ratio = given / best if best > 0 else 1.0
    if ratio <= 1.0 + WORTH_SAYING:
        return ()
    return (f"this order moves bytes {ratio:.3g} times slower than bus order ({','.join(bus)})",)


class _Answer:
    """Puts a :class:`Timing` together from a placement and a protocol."""

    def __init__(self, topology: Topology, placed: Placement, protocol: Protocol, size: int, launch: Literal["graph", "eager"]) -> None:
        self.topology, self.placed, self.protocol, self.size, self.launch = topology, placed, protocol, size, launch

    def timing(self, engine: Literal["analytic", "event"], notes: tuple[str, ...]) -> Timing:
        placed, protocol, size = self.placed, self.protocol, self.size
        lines = solve(placed, protocol)
        parts = _parts(placed, protocol, lines)
        steps_part, bytes_part = lines.evaluate(np.asarray(float(size)))
        steps_s, bytes_s = float(steps_part), float(bytes_part)
        if engine == "event":
            run = simulate(placed.flow_set(protocol, float(size)))
            wires = run.makespan
            ends = [parts.base.value + max((run.finish[index] for index in items), default=0.0) for items in placed.rounds]
            step_times = tuple(ends)
            shown = {"base": parts.base.value, "transfers": wires}
        else:
            wires = steps_s + bytes_s
            step_times = tuple(start + unit * size for start, unit in lines.rounds)
            shown = {"base": parts.base.value, "steps": steps_s, "bytes": bytes_s}
        time = parts.base.value + wires
        sigma, label = self._spread(parts, steps_s, bytes_s)
        sources = parts.sources
        if self.launch == "eager":
            floor = placed.costs.floor(placed.ranks)
            if floor.value > time:
                shown["launch"] = floor.value - time
                time, sigma, label = floor.value, floor.sigma, floor.evidence
            sources = tuple(dict.fromkeys((*sources, *floor.sources)))
        neck, utilisation = self._links(lines, time)
        settings = self.topology.settings
        return Timing(
            op=placed.op,
            ranks=placed.ranks,
            bytes=size,
            algorithm=placed.algorithm,
            protocol=_shown(placed, protocol),
            transport=placed.transport,
            launch=self.launch,
            engine=engine,
            time_s=time,
            time_s_p10=time * math.exp(-Z90 * sigma),
            time_s_p90=time * math.exp(Z90 * sigma),
            lower_bound_s=lines.bound * size,
            steps=placed.steps,
            evidence=label,
            extrapolated=bool(placed.costs.extrapolates(placed.ranks, np.asarray(float(size)))),
            ccl="none" if settings.ccl.name == "none" else f"{settings.ccl.name} {settings.ccl.version}",
            env=dict(settings.env),
            step_times_s=step_times,
            link_bytes={name: load * size for name, load in zip(placed.links, placed.user_load, strict=True)},
            link_utilisation=utilisation,
            bottleneck=neck,
            parts_s=shown,
            sources=sources,
            ignores=self._ignores(engine, lines),
            notes=(*notes, *placed.reasons),
        )

    def _spread(self, parts: _Parts, steps_s: float, bytes_s: float) -> tuple[float, Evidence]:
        """Standard deviation of ln(time), and the label of the sum."""
        terms = [(parts.base.value, parts.base.sigma), (steps_s, parts.step.sigma), (bytes_s, parts.wire.sigma)]
        whole = sum(value for value, _ in terms)
        sigma = math.sqrt(sum((value * spread) ** 2 for value, spread in terms)) / whole if whole > 0 else 0.0
        return sigma, label_of_sum(_labelled(parts, parts.base.value, steps_s, bytes_s))

    def _links(self, lines: Lines, time: float) -> tuple[Bottleneck | None, dict[str, float]]:
        placed = self.placed
        if time <= 0:
            return None, dict.fromkeys(placed.links, 0.0)
        busy = [load * self.size / time for load in placed.wire_load(self.protocol)]
        found = dict(zip(placed.links, busy, strict=True))
        if lines.busiest is None:
            return None, found
        return Bottleneck(placed.links[lines.busiest], busy[lines.busiest]), found

    def _ignores(self, engine: str, lines: Lines) -> tuple[str, ...]:
        placed = self.placed
        found: list[str] = []
        if engine == "analytic" and not lines.exact:
            found.append(
                "transfers of different steps (or with different start-ups) that meet on one link: the event engine shares it between them"
            )
        if placed.op in ("broadcast", "reduce") or placed.algorithm.endswith("tree"):
            found.append("the library's own number of pieces of a broadcast, reduce or tree: a fixed one is used")
        if placed.access == "read" and all(self.topology.links[name].read_share is None for name in placed.links):
            found.append("that crowded reads can cost more than writes: this box's parts have no figure")
        if placed.costs.part is not None:
            found.append("host-side skew between ranks, and the traffic of anything else on the links")
        return tuple(found)
