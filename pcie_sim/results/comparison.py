"""Answers about serving: one point, one prediction with its breakdown, a comparison of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.evidence import Evidence
from pcie_sim.results.base import Result, plain

BREAKDOWN_KEYS = (
    "attention",
    "experts",
    "dense",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "launch",
    "bubble",
    "sampling",
    "other",
)
"""Exposed time only; they sum to TPOT."""


@dataclass(frozen=True)
class Memory:
    """Memory of the fullest rank, bytes. ``reason`` is set when the point does not fit or is capped."""

    budget_bytes: float
    weights_bytes: float
    kv_bytes_per_request: float
    kv_free_bytes: float
    max_concurrency: int
    """Requests of this context that the whole box holds at once (0: not even one)."""
    rank: int
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found: dict[str, Any] = plain(dict(self.__dict__))
        return found


@dataclass(frozen=True)
class OpTime:
    """One line of the step: exposed milliseconds per token, count and bytes per step."""

    name: str
    kind: str
    count: float
    bytes: float | None
    ms: float
    evidence: Evidence
    stage: int = 0
    hidden_by: str | None = None
    """The line that it runs beside, when all of its time is hidden behind that one."""


@dataclass(frozen=True)
class Point:
    """One strategy at one concurrency and context. Times in ms; p10 and p90 are quantiles of what is plausible."""

    strategy: str
    canonical: str
    moe_comm: str | None
    concurrency: int
    context: int
    fits: bool
    queued: bool
    running: float
    """Requests in decode at once (concurrency, or what KV and the engine's cap allow)."""
    tpot_ms: float
    tpot_ms_p10: float
    tpot_ms_p90: float
    tokens_per_s: float
    tokens_per_s_p10: float
    tokens_per_s_p90: float
    breakdown_ms: Mapping[str, float]
    evidence: Evidence
    evidence_share: Mapping[str, float]
    extrapolated: bool
    memory: Memory
    launch: str = "graph"
    micro_batches: int = 1

    @property
    def bound_by(self) -> str:
        """The largest key of the breakdown."""
        return max(BREAKDOWN_KEYS, key=lambda key: self.breakdown_ms.get(key, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``points``."""
        found: dict[str, Any] = plain(
            {
                "strategy": self.strategy,
                "canonical": self.canonical,
                "moe_comm": self.moe_comm,
                "concurrency": self.concurrency,
                "context": self.context,
                "fits": self.fits,
                "queued": self.queued,
                "running": self.running,
                "tpot_ms": self.tpot_ms,
                "tpot_ms_p10": self.tpot_ms_p10,
                "tpot_ms_p90": self.tpot_ms_p90,
                "tokens_per_s": self.tokens_per_s,
                "tokens_per_s_p10": self.tokens_per_s_p10,
                "tokens_per_s_p90": self.tokens_per_s_p90,
                "breakdown_ms": {key: self.breakdown_ms.get(key, 0.0) for key in BREAKDOWN_KEYS},
                "bound_by": self.bound_by,
                "evidence": self.evidence,
                "evidence_share": dict(self.evidence_share),
                "extrapolated": self.extrapolated,
                "launch": self.launch,
                "micro_batches": self.micro_batches,
                "memory": self.memory.to_dict(),
            }
        )
        return found


@dataclass(frozen=True)
class Note:
    """Something the reader must know. ``code`` is stable, for programs."""

    code: str
    text: str


@dataclass(frozen=True)
class Winner:
    """Best fitting strategy at one concurrency: ``margin`` = winner/second - 1 in tokens/s (None: no second)."""

    concurrency: int
    context: int
    strategy: str
    margin: float | None
    probability: float
    """Share of the plausible worlds in which it wins."""


@dataclass(frozen=True)
class Crossover:
    """The winner changes between two neighbouring concurrencies: at ``concurrency`` the new one wins first."""

    context: int
    from_strategy: str
    to_strategy: str
    concurrency: float


@dataclass(frozen=True)
class MeasuredPoint:
    """A measured row that matches the comparison, with what was predicted for it (None: strategy not asked)."""

    set_id: str
    strategy: str
    concurrency: float | None
    context: float | None
    metric: str
    value: float
    unit: str
    quality: str
    predicted: float | None
    residual: float | None
    """measured / predicted - 1."""
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class Prediction(Result):
    """One point with the lines of its step; schema ``pcie-sim/predict/1``."""

    topology: str
    model: str
    runtime: str
    ccl: str
    env: Mapping[str, str]
    launch: str
    point: Point
    ops: tuple[OpTime, ...]
    notes: tuple[Note, ...] = ()
    measured: tuple[MeasuredPoint, ...] = ()
    calibration: str | None = None
    """The calibration in force, by its file's name."""

    def to_dict(self) -> dict[str, Any]:
        """Schema ``pcie-sim/predict/1``."""
        found: dict[str, Any] = {
            "schema": "pcie-sim/predict/1",
            "calibration": self.calibration,
            "topology": self.topology,
            "model": self.model,
            "runtime": self.runtime,
            "ccl": self.ccl,
            "env": dict(self.env),
            "point": self.point.to_dict(),
            "ops": self.to_records(),
            "notes": [dict(note.__dict__) for note in self.notes],
            "measured": plain([dict(row.__dict__) for row in self.measured]),
        }
        # The point's own keys also stand at the top level, so that a reader of one point needs no second level.
        return {**{key: value for key, value in found["point"].items() if key not in found}, **found}

    def to_records(self) -> list[dict[str, Any]]:
        """One dict per line of the step."""
        return [plain(dict(op.__dict__)) for op in self.ops]


@dataclass(frozen=True)
class Comparison(Result):
    """Strategies against each other over concurrency and context; schema ``pcie-sim/compare/1``."""

    topology: str
    model: str
    runtime: str
    ccl: str
    env: Mapping[str, str]
    launch: str
    points: tuple[Point, ...]
    winners: tuple[Winner, ...]
    crossovers: tuple[Crossover, ...]
    notes: tuple[Note, ...]
    measured: tuple[MeasuredPoint, ...] = ()
    advice: str = ""
    """The one measurement that would narrow the answer most, as a command to paste."""
    gpus: int = 0
    titles: Mapping[str, str] = field(default_factory=dict)
    calibration: str | None = None
    """The calibration in force, by its file's name."""

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategies as asked, in order."""
        return tuple(dict.fromkeys(point.strategy for point in self.points))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Concurrencies in order."""
        return tuple(dict.fromkeys(point.concurrency for point in self.points))

    @property
    def contexts(self) -> tuple[int, ...]:
        """Contexts in order."""
        return tuple(dict.fromkeys(point.context for point in self.points))

    @property
    def anything_fits(self) -> bool:
        """True when at least one point fits."""
        return any(point.fits for point in self.points)

    def point(self, strategy: str, *, concurrency: int, context: int | None = None) -> Point:
        """The point of a strategy (as asked or canonical).

        Raises:
            InputError: no such point in this comparison.
        """
        for point in self.points:
            named = strategy in (point.strategy, point.canonical)
            if named and point.concurrency == concurrency and context in (None, point.context):
                return point
        at = "" if context is None else f" and context {context}"
        raise InputError(
            f"no point for {strategy!r} at concurrency {concurrency}{at} in this comparison; it has {', '.join(self.strategies)}"
        )

    def winner(self, *, concurrency: int, context: int | None = None) -> Winner | None:
        """The winner at a concurrency (and context; None: the first one), or None when nothing fits there.

        Raises:
            InputError: the concurrency or the context is not part of this comparison.
        """
        if concurrency not in self.concurrencies:
            known = ", ".join(map(str, self.concurrencies))
            raise InputError(f"concurrency {concurrency} is not in this comparison; it has {known}")
        if context is None:
            context = self.contexts[0]
        if context not in self.contexts:
            raise InputError(f"context {context} is not in this comparison; it has {', '.join(map(str, self.contexts))}")
        for found in self.winners:
            if (found.concurrency, found.context) == (concurrency, context):
                return found
        return None

    def to_records(self) -> list[dict[str, Any]]:
        """One dict per point."""
        return [point.to_dict() for point in self.points]

    def to_dict(self) -> dict[str, Any]:
        """Schema ``pcie-sim/compare/1``."""
        return {
            "schema": "pcie-sim/compare/1",
            "topology": self.topology,
            "model": self.model,
            "runtime": self.runtime,
            "ccl": self.ccl,
            "env": dict(self.env),
            "launch": self.launch,
            "gpus": self.gpus,
            "points": self.to_records(),
            "winners": plain([dict(winner.__dict__) for winner in self.winners]),
            "crossovers": plain(
                [
                    {"context": c.context, "from": c.from_strategy, "to": c.to_strategy, "concurrency": c.concurrency}
                    for c in self.crossovers
                ]
            ),
            "notes": [dict(note.__dict__) for note in self.notes],
            "measured": plain([dict(row.__dict__) for row in self.measured]),
            "advice": self.advice,
            "calibration": self.calibration,
        }

    def explain(self) -> str:
        """The answer in sentences: who wins where, by how much, what binds it, what did not fit, what to know."""
        several = len(self.contexts) > 1

        def place(context: int) -> str:
            return f", context {context}" if several else ""

        lines = [f"{self.model} on {self.topology}, {self.runtime}"]
        if not self.anything_fits:
            lines.append("nothing fits at any concurrency")
        for winner in self.winners:
            point = self.point(winner.strategy, concurrency=winner.concurrency, context=winner.context)
            lead = "alone fits" if winner.margin is None else f"wins by {winner.margin:.0%}"
            lines.append(
                f"C={winner.concurrency}{place(winner.context)}: {winner.strategy} {lead} (probability {winner.probability:.2f}): "
                f"{point.tokens_per_s:.0f} tok/s, {point.tpot_ms:.1f} ms per token, bound by {point.bound_by} [{point.evidence}]"
            )
        lines += [f"from C={c.concurrency:g}{place(c.context)}: {c.to_strategy} instead of {c.from_strategy}" for c in self.crossovers]
        lines += [f"note [{note.code}]: {note.text}" for note in self.notes]
        if self.advice:
            lines.append(f"next: {self.advice}")
        return "\n".join(lines)
