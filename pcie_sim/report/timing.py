"""One collective, or a set of bare flows, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcie_sim.report.console import bold, bullets, pairs, table
from pcie_sim.report.numbers import percent, settings_text
from pcie_sim.results.timing import FlowsResult, Timing
from pcie_sim.units import counted, format_bytes, format_rate, format_time

if TYPE_CHECKING:
    from pcie_sim.report.console import Block, Justify

_BUSIEST = 5


def timing_blocks(timing: Timing, *, width: int) -> list[Block]:
    """Everything of one collective call."""
    size = f"{timing.bytes:,} B" + (f" ({format_bytes(timing.bytes)})" if timing.bytes >= 1024 else "")
    facts = [
        ("algorithm", f"{timing.algorithm}, protocol {timing.protocol}, {counted(timing.steps, 'step')}, {timing.engine} engine"),
        ("transport", f"{timing.transport}, {timing.ccl}, environment {settings_text(timing.env)}, launch {timing.launch}"),
        ("time", f"{_us(timing.time_s)} us ({_us(timing.time_s_p10)} to {_us(timing.time_s_p90)}), p10 to p90 in brackets"),
        ("algbw, busbw", f"{format_rate(timing.algbw_Bps)}, {format_rate(timing.busbw_Bps)} (as nccl-tests counts them)"),
        ("lower bound", f"{_us(timing.lower_bound_s)} us: the bandwidth bound of the busiest link"),
        ("parts", ", ".join(f"{name} {_us(value)} us" for name, value in timing.parts_s.items())),
        (
            "bottleneck",
            "" if timing.bottleneck is None else f"{timing.bottleneck.link}, full {percent(timing.bottleneck.utilisation)} of the time",
        ),
        ("evidence", timing.evidence + ("; extrapolated" if timing.extrapolated else "")),
    ]
    blocks: list[Block] = [bold(f"{timing.op} of {size} over {counted(timing.ranks, 'rank')}"), pairs(facts, width=width)]
    if timing.link_bytes:
        blocks += ["", bold(f"Busiest links ({min(_BUSIEST, len(timing.link_bytes))} of {len(timing.link_bytes)})"), _links(timing)]
    texts = [*timing.notes, *(f"left out: {text}" for text in timing.ignores), *(f"source: {text}" for text in timing.sources)]
    return blocks + (["", bold("Notes"), *bullets(texts, width=width)] if texts else [])


def _us(seconds: float) -> str:
    """Microseconds, two decimals below 100."""
    return f"{seconds * 1e6:,.{2 if seconds < 1e-4 else 0}f}"


def _links(timing: Timing) -> Block:
    columns: list[tuple[str, Justify]] = [("link", "left"), ("bytes", "right"), ("utilisation", "right")]
    ranked = sorted(timing.link_bytes, key=lambda name: (-timing.link_utilisation.get(name, 0.0), -timing.link_bytes[name], name))
    rows = [
        [name, format_bytes(timing.link_bytes[name]), percent(timing.link_utilisation.get(name, 0.0), digits=1)]
        for name in ranked[:_BUSIEST]
    ]
    return table(columns, rows)


def flows_blocks(result: FlowsResult) -> list[Block]:
    """A line per case."""
    columns: list[tuple[str, Justify]] = [
        ("case", "left"),
        ("makespan", "right"),
        ("first finish", "right"),
        ("flows", "right"),
        ("events", "right"),
        ("solved in", "right"),
    ]
    rows = [
        [
            case.id,
            format_time(case.makespan),
            format_time(min(case.finish, default=0.0)),
            str(len(case.finish)),
            str(case.events),
            format_time(case.solve_s),
        ]
        for case in result.cases
    ]
    return [table(columns, rows)]
