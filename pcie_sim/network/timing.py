"""One collective call with all its provenance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from pcie_sim.errors import InputError, unknown_name
from pcie_sim.evidence import Evidence, label_of_sum
from pcie_sim.network.analytic import Lines, solve
from pcie_sim.network.channels import Lanes
from pcie_sim.network.events import simulate
from pcie_sim.network.nccl_env import parse_protocol
from pcie_sim.network.parts import Parts, choice_of, labelled_parts, parts_of, protocol_name
from pcie_sim.network.placement import Fractions, Placement, place
from pcie_sim.network.settings_notes import protocol_note, settings_notes
from pcie_sim.results.timing import Bottleneck, Timing
from pcie_sim.specs.part import Protocol
from pcie_sim.units import format_time, parse_bytes

if TYPE_CHECKING:
    from pcie_sim.topology import Topology

WORTH_SAYING = 0.02
"""An order that costs no more than this share of the bandwidth term gets no remark."""
Z90 = 1.2815515655446004
"""90 % point of the standard normal."""


def rank_order(topology: Topology, n: int) -> tuple[str, ...]:
    """The first ``n`` GPUs in bus order: rank r runs on the r-th.

    Raises:
        InputError: fewer than 1, or more than the box has.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(topology.gpus):
        raise InputError(f"{topology.name} has {len(topology.gpus)} GPUs; {n!r} ranks cannot be placed on them")
    return tuple(topology.gpus[:n])


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
        algorithm: ``auto`` or one of :func:`pcie_sim.collectives.algorithms`. For send_recv ``auto`` is what nccl-tests times: every
            rank to the next one (``direct``: rank 0 to rank 1 only, a pipeline's hop).
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
    parse_protocol(protocol)
    remarks = (*settings_notes(topology), *protocol_note(topology, protocol))
    protocol = "auto" if protocol_note(topology, protocol) else protocol
    if op == "send_recv" and algorithm == "auto":
        algorithm = "shift"
    found = choice_of(topology, op, (gpus,), np.asarray(float(size)), algorithm, protocol, fractions)
    way, chosen, lanes, _ = next(found.pieces(np.asarray(float(size))))
    if chunks is None and lanes is not None:
        chunks = lanes.pieces
    placed = place(topology, op, (gpus,), algorithm=way, fractions=fractions, chunks=chunks, channels=channels, as_given=order is not None)
    notes = (*remarks, *found.notes)
    if order is not None:
        notes = (*notes, *_order_notes(topology, placed, gpus, chosen, fractions))
    return _Answer(topology, placed, chosen, lanes, size, launch).timing(engine, notes)


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


FLOOR_DECIDES = "the CPU decides"


def floor_text(floor: float, time: float) -> str:
    """Why an eager call takes longer than its transfers."""
    return (
        f"{FLOOR_DECIDES}: back to back it launches no call faster than {format_time(floor)}; inside a CUDA graph this one takes "
        f"{format_time(time)} (--launch graph)"
    )


class _Answer:
    """Puts a :class:`Timing` together from a placement and a protocol."""

    def __init__(
        self, topology: Topology, placed: Placement, protocol: Protocol, lanes: Lanes | None, size: int, launch: Literal["graph", "eager"]
    ) -> None:
        self.topology, self.placed, self.protocol, self.lanes, self.size, self.launch = topology, placed, protocol, lanes, size, launch

    def timing(self, engine: Literal["analytic", "event"], notes: tuple[str, ...]) -> Timing:
        placed, protocol, size = self.placed, self.protocol, self.size
        lines = solve(placed, protocol, self.lanes)
        parts = parts_of(placed, protocol, lines, self.lanes)
        steps_part, bytes_part = lines.evaluate(np.asarray(float(size)))
        steps_s, bytes_s = float(steps_part), float(bytes_part)
        if engine == "event":
            run = simulate(placed.flow_set(protocol, float(size), self.lanes))
            wires = run.makespan
            ends = [parts.base.value + max((run.finish[index] for index in items), default=0.0) for items in placed.rounds]
            step_times = tuple(ends)
            shown = {"base": parts.base.value, "transfers": wires}
        else:
            wires = steps_s + bytes_s
            step_times = lines.step_times(float(size))
            shown = {"base": parts.base.value, "steps": steps_s, "bytes": bytes_s}
        time = parts.base.value + wires
        sigma, label = self._spread(parts, steps_s, bytes_s)
        sources = parts.sources
        if self.launch == "eager":
            floor = placed.costs.floor(placed.ranks, placed.op)
            if floor.value > time:
                shown["launch"] = floor.value - time
                notes = (*notes, floor_text(floor.value, time))
                time, sigma, label = floor.value, floor.sigma, floor.evidence
            sources = tuple(dict.fromkeys((*sources, *floor.sources)))
        neck, utilisation = self._links(lines, time)
        bound = max((load / placed.rate_of[name] for name, load in zip(placed.links, placed.user_load, strict=True)), default=0.0) * size
        line = placed.costs.part.line_share[protocol].value if placed.tuning is not None and placed.costs.part is not None else 1.0
        settings = self.topology.settings
        return Timing(
            op=placed.op,
            ranks=placed.ranks,
            bytes=size,
            algorithm=placed.algorithm,
            protocol=protocol_name(placed, protocol),
            transport=placed.transport,
            launch=self.launch,
            engine=engine,
            time_s=time,
            time_s_p10=min(time, max(time * math.exp(-Z90 * sigma), bound / line)),  # no faster than the links themselves
            time_s_p90=time * math.exp(Z90 * sigma),
            lower_bound_s=bound,
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

    def _spread(self, parts: Parts, steps_s: float, bytes_s: float) -> tuple[float, Evidence]:
        """Standard deviation of ln(time), and the label of the sum."""
        terms = [(parts.base.value, parts.base.sigma), (steps_s, parts.step.sigma), (bytes_s, parts.wire.sigma)]
        whole = sum(value for value, _ in terms)
        sigma = math.sqrt(sum((value * spread) ** 2 for value, spread in terms)) / whole if whole > 0 else 0.0
        return sigma, label_of_sum(labelled_parts(parts, parts.base.value, steps_s, bytes_s))

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
        if engine == "analytic" and lines.uneven:
            found.append("that steps by different transports end their passes apart: the event engine follows each")
        elif engine == "analytic" and not lines.exact:
            found.append(
                "transfers of different steps (or with different start-ups) that meet on one link: the event engine shares it between them"
            )
        if placed.op in ("broadcast", "reduce") or placed.algorithm.endswith("tree"):
            found.append(
                "the library's own number of pieces of a broadcast, reduce or tree: 16, or as many slices as Simple's buffer takes"
            )
        if placed.access == "read" and all(
            self.topology.links[name].read_share is None for name in placed.links if name in self.topology.links
        ):
            found.append("that crowded reads can cost more than writes: this box's parts have no figure")
        if placed.costs.part is not None:
            found.append("host-side skew between ranks, and the traffic of anything else on the links")
        return tuple(found)
