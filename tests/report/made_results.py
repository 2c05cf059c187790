"""Hand-built results, so that reports are tested without any engine."""

from __future__ import annotations

from typing import Any

from pcie_sim.results.comparison import (
    BREAKDOWN_KEYS,
    Comparison,
    Crossover,
    MeasuredPoint,
    Memory,
    Note,
    OpTime,
    Point,
    Prediction,
    Winner,
)
from pcie_sim.results.timing import Bottleneck, FlowCase, FlowsResult, Timing


def point(strategy: str = "tp8", concurrency: int = 1, tpot_ms: float = 10.0, **changes: Any) -> Point:
    """A point whose breakdown sums to its TPOT: 60 % attention, 40 % AllReduce."""
    breakdown = {**dict.fromkeys(BREAKDOWN_KEYS, 0.0), "attention": 0.6 * tpot_ms, "all_reduce": 0.4 * tpot_ms}
    rate = 1000 * concurrency / tpot_ms
    fields: dict[str, Any] = {
        "strategy": strategy,
        "canonical": strategy,
        "moe_comm": None,
        "concurrency": concurrency,
        "context": 1024,
        "fits": True,
        "queued": False,
        "running": float(concurrency),
        "tpot_ms": tpot_ms,
        "tpot_ms_p10": 0.9 * tpot_ms,
        "tpot_ms_p90": 1.2 * tpot_ms,
        "tokens_per_s": rate,
        "tokens_per_s_p10": rate / 1.2,
        "tokens_per_s_p90": rate / 0.9,
        "breakdown_ms": breakdown,
        "evidence": "profile",
        "evidence_share": {"profile": 0.6, "nominal": 0.4},
        "extrapolated": False,
        "memory": Memory(budget_bytes=80e9, weights_bytes=70e9, kv_bytes_per_request=1e8, kv_free_bytes=1e10, max_concurrency=100, rank=0),
    }
    return Point(**{**fields, **changes})


def comparison(**changes: Any) -> Comparison:
    """tp8 wins at C=1, pp8 at C=8 (queued); ep8:a2a does not fit; one measured row matches, one does not."""
    points = (
        point("tp8", 1, 10.0),
        point("tp8", 8, 40.0),
        point("pp8", 1, 25.0),
        point("pp8", 8, 26.0, queued=True),
        point("ep8:a2a", 1, 9.0, canonical="dp8ep8", moe_comm="a2a", fits=False),
        point("ep8:a2a", 8, 20.0, canonical="dp8ep8", moe_comm="a2a", fits=False),
    )
    fields: dict[str, Any] = {
        "topology": "box",
        "model": "model",
        "runtime": "sglang",
        "ccl": "nccl 2.28",
        "env": {"NCCL_P2P_LEVEL": "5"},
        "launch": "graph",
        "points": points,
        "winners": (Winner(1, 1024, "tp8", 1.5, 0.97), Winner(8, 1024, "pp8", 0.538, 0.7)),
        "crossovers": (Crossover(1024, "tp8", "pp8", 8),),
        "notes": (
            Note("moe_comm", "ep8:a2a: MoE layers exchange by All-to-All (as asked)"),
            Note("does_not_fit", "ep8:a2a does not fit: weights 90.0 GB exceed the 80.0 GB that a rank may use"),
            Note("residual", "a residual " + "with many words " * 20),
        ),
        "measured": (
            MeasuredPoint("set-a", "tp8", 1, None, "output_tokens_per_s", 50.0, "tok/s", "good", 100.0, -0.5, note="a remark"),
            MeasuredPoint("set-a", "tp8", None, None, "output_tokens_per_s", 808.0, "tok/s", "doubtful", None, None),
        ),
        "advice": "all_reduce_perf -b 1K -e 16M -f 2 -g 8",
        "gpus": 8,
        "titles": {"topology": "A box of eight", "model": "A model"},
    }
    return Comparison(**{**fields, **changes})


def prediction(**changes: Any) -> Prediction:
    """One point with two ops."""
    ops = (
        OpTime("attention", "attention", 61, None, 6.0, "profile"),
        OpTime("AllReduce", "all_reduce", 123, 14336.0, 4.0, "nominal"),
    )
    fields: dict[str, Any] = {
        "topology": "box",
        "model": "model",
        "runtime": "sglang",
        "ccl": "nccl 2.28",
        "env": {},
        "launch": "graph",
        "point": point(),
        "ops": ops,
        "notes": (Note("pipeline", "a note"),),
        "measured": comparison().measured[:1],
    }
    return Prediction(**{**fields, **changes})


def timing(**changes: Any) -> Timing:
    """An AllReduce of 14 KiB over 8 ranks in 30 us."""
    names = [f"gpu{i}.up" for i in range(8)]
    fields: dict[str, Any] = {
        "op": "all_reduce",
        "ranks": 8,
        "bytes": 14336,
        "algorithm": "ring",
        "protocol": "LL",
        "transport": "P2P",
        "launch": "eager",
        "engine": "analytic",
        "time_s": 30e-6,
        "time_s_p10": 25e-6,
        "time_s_p90": 40e-6,
        "lower_bound_s": 3e-6,
        "steps": 14,
        "evidence": "profile",
        "extrapolated": False,
        "ccl": "nccl 2.28",
        "link_bytes": dict.fromkeys(names, 25088.0),
        "link_utilisation": {name: 0.01 * i for i, name in enumerate(names)},
        "bottleneck": Bottleneck("gpu7.up", 0.07),
        "parts_s": {"base": 4e-6, "steps": 24e-6, "bytes": 2e-6},
        "sources": ("somewhere",),
        "ignores": ("something",),
        "notes": ("a note",),
    }
    return Timing(**{**fields, **changes})


def flows() -> FlowsResult:
    """One case of two flows."""
    return FlowsResult((FlowCase("one", 0.002, (0.001, 0.002), 2, 1e-4),))
