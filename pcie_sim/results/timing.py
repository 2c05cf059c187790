"""How long a collective (or a bare set of flows) takes, and why: one result type for both engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pcie_sim.evidence import Evidence
from pcie_sim.results.base import Result, plain

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _n: 1.0,
    "reduce": lambda _n: 1.0,
    "send_recv": lambda _n: 1.0,
}
"""busbw / algbw by op and ranks, as nccl-tests defines it (NVIDIA/nccl-tests doc/PERFORMANCE.md)."""


@dataclass(frozen=True)
class Bottleneck:
    """The busiest directed capacity and the share of the whole time that it was full (0..1)."""

    link: str
    utilisation: float


@dataclass(frozen=True)
class Timing(Result):
    """Time of one collective call. SI units; ``bytes`` as nccl-tests counts it for the op.

    ``lower_bound_s`` is the bandwidth bound of the busiest link: no engine returns less. ``step_times_s`` is when each step
    ended (event engine) or how long each took (analytic). ``ignores`` says what the engine left out.
    """

    op: str
    ranks: int
    bytes: int
    algorithm: str
    protocol: str
    transport: str
    launch: Literal["graph", "eager"]
    engine: Literal["analytic", "event"]
    time_s: float
    time_s_p10: float
    time_s_p90: float
    lower_bound_s: float
    steps: int
    evidence: Evidence
    extrapolated: bool
    ccl: str
    env: Mapping[str, str] = field(default_factory=dict)
    step_times_s: tuple[float, ...] = ()
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    link_utilisation: Mapping[str, float] = field(default_factory=dict)
    bottleneck: Bottleneck | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """How the time divides: base, steps, bytes (analytic) - what a person can check by hand."""
    sources: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calibration: str | None = None
    """The calibration in force."""

    @property
    def algbw_Bps(self) -> float:
        """Message bytes over time."""
        return self.bytes / self.time_s if self.time_s > 0 else 0.0

    @property
    def busbw_Bps(self) -> float:
        """nccl-tests bus bandwidth."""
        return self.algbw_Bps * BUS_FACTORS[self.op](self.ranks)

    def to_dict(self) -> dict[str, Any]:
        """Schema ``pcie-sim/collective/1``."""
        neck = None
        if self.bottleneck is not None:
            neck = {"link": self.bottleneck.link, "utilisation": self.bottleneck.utilisation}
        found: dict[str, Any] = plain(
            {
                "schema": "pcie-sim/collective/1",
                "op": self.op,
                "ranks": self.ranks,
                "bytes": self.bytes,
                "algorithm": self.algorithm,
                "protocol": self.protocol,
                "transport": self.transport,
                "launch": self.launch,
                "engine": self.engine,
                "time_us": self.time_s * 1e6,
                "time_us_p10": self.time_s_p10 * 1e6,
                "time_us_p90": self.time_s_p90 * 1e6,
                "algbw_GBps": self.algbw_Bps / 1e9,
                "busbw_GBps": self.busbw_Bps / 1e9,
                "lower_bound_us": self.lower_bound_s * 1e6,
                "steps": self.steps,
                "bottleneck": neck,
                "evidence": self.evidence,
                "extrapolated": self.extrapolated,
                "ccl": self.ccl,
                "env": dict(self.env),
                "parts_us": {key: value * 1e6 for key, value in self.parts_s.items()},
                "step_times_us": [value * 1e6 for value in self.step_times_s],
                "link_bytes": dict(self.link_bytes),
                "link_utilisation": dict(self.link_utilisation),
                "sources": list(self.sources),
                "ignores": list(self.ignores),
                "notes": list(self.notes),
                "calibration": self.calibration,
            }
        )
        return found


@dataclass(frozen=True)
class FlowCase:
    """One case of the bare event engine. Seconds, absolute; ``finish`` in the order of the flows, round after round."""

    id: str
    makespan: float
    finish: tuple[float, ...]
    events: int
    solve_s: float
    link_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FlowsResult(Result):
    """Schema ``pcie-sim/flows/1``."""

    cases: tuple[FlowCase, ...]

    def to_dict(self) -> dict[str, Any]:
        """Schema ``pcie-sim/flows/1``; times keep all their digits."""
        cases = [
            {
                "id": case.id,
                "makespan": case.makespan,
                "finish": list(case.finish),
                "events": case.events,
                "solve_s": case.solve_s,
            }
            for case in self.cases
        ]
        return {"schema": "pcie-sim/flows/1", "cases": cases}

    def to_records(self) -> list[dict[str, Any]]:
        """One dict per case."""
        return list(self.to_dict()["cases"])
