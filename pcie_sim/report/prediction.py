"""One prediction for people: where the milliseconds go, op by op, and what the memory says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcie_sim.report.comparison import MIXED, measured_blocks, mixed_text, note_blocks
from pcie_sim.report.console import bold, pairs, table, wrapped
from pcie_sim.report.numbers import BUCKETS, MOE_WORDS, percent, settings_text
from pcie_sim.results.comparison import BREAKDOWN_KEYS, Memory, Point, Prediction
from pcie_sim.units import counted, format_bytes

if TYPE_CHECKING:
    from pcie_sim.report.console import Block, Justify


def prediction_blocks(prediction: Prediction, *, width: int, calibration: str = "") -> list[Block]:
    """Everything of one prediction. ``calibration`` is what it was made with, in words."""
    point = prediction.point
    blocks: list[Block] = [
        bold(f"{prediction.model} on {prediction.topology}: {point.strategy} at C={point.concurrency}, context {point.context}"),
        pairs(_facts(prediction, calibration), width=width),
    ]
    if not point.fits:
        blocks += [bold("  does not fit: the times are those it would have if it fitted", colour="red")]
    if point.memory.reason:
        blocks.append(wrapped(point.memory.reason, width=width, first="  "))
    blocks += ["", bold("Where the time goes (exposed only)"), _breakdown(point)]
    blocks += ["", bold("Ops of one step (count and bytes per step; ms per token)"), _ops(prediction)]
    blocks += ["", bold("Memory of the fullest rank"), pairs(_memory(point.memory), width=width)]
    blocks += measured_blocks(prediction.measured, width=width)
    return blocks + note_blocks([note for note in prediction.notes if note.code != MIXED], width=width)


def _facts(prediction: Prediction, calibration: str) -> list[tuple[str, str]]:
    point = prediction.point
    rate = f"{point.tokens_per_s:.1f} tok/s ({point.tokens_per_s_p10:.1f} to {point.tokens_per_s_p90:.1f})"
    per = f"{point.tpot_ms:.2f} ms ({point.tpot_ms_p10:.2f} to {point.tpot_ms_p90:.2f})"
    shares = ", ".join(f"{label} {percent(share)}" for label, share in point.evidence_share.items())
    shape = point.canonical + (f", MoE layers by {MOE_WORDS[point.moe_comm]}" if point.moe_comm in MOE_WORDS else "")
    return [
        ("GPUs", mixed_text(prediction.notes)),
        ("engine", f"{prediction.runtime}, launch {point.launch}" + _micro(point)),
        ("strategy", shape),
        ("collectives", f"{prediction.ccl}, environment {settings_text(prediction.env)}"),
        ("calibration", calibration),
        ("per token", f"{per}, p10 to p90 in brackets"),
        (
            "whole box",
            f"{rate}, {point.running:g} of {counted(point.concurrency, 'request')} running" + (", the rest queued" if point.queued else ""),
        ),
        ("bound by", BUCKETS[point.bound_by]),
        ("evidence", f"{point.evidence} (by time: {shares})" + ("; extrapolated" if point.extrapolated else "")),
    ]


def _micro(point: Point) -> str:
    return f", {counted(point.micro_batches, 'micro-batch', 'micro-batches')}" if point.micro_batches > 1 else ""


def _breakdown(point: Point) -> Block:
    columns: list[tuple[str, Justify]] = [("part", "left"), ("ms", "right"), ("share", "right"), ("", "left")]
    parts = [(key, point.breakdown_ms.get(key, 0.0)) for key in BREAKDOWN_KEYS]
    whole = sum(ms for _, ms in parts) or 1.0
    ranked = sorted(((key, ms) for key, ms in parts if ms > 0), key=lambda item: -item[1])
    rows = [[BUCKETS[key], f"{ms:.3f}", percent(ms / whole, digits=1), "#" * round(40 * ms / whole)] for key, ms in ranked]
    return table(columns, [*rows, ["all", f"{point.tpot_ms:.3f}", "", ""]])


def _ops(prediction: Prediction) -> Block:
    staged = any(op.stage for op in prediction.ops)
    columns: list[tuple[str, Justify]] = [("op", "left"), ("kind", "left")]
    columns += [("stage", "right")] if staged else []
    columns += [("count", "right"), ("bytes", "right"), ("ms", "right"), ("evidence", "left")]
    hidden = any(op.hidden_by for op in prediction.ops)
    columns += [("hidden", "left")] if hidden else []
    rows = []
    for op in prediction.ops:
        row = [op.name, op.kind, *([str(op.stage)] if staged else [])]
        row += [f"{op.count:g}", "" if op.bytes is None else format_bytes(op.bytes), f"{op.ms:.3f}", op.evidence]
        row += [f"beside {op.hidden_by}" if op.hidden_by else ""] if hidden else []
        rows.append(row)
    return table(columns, rows)


def _memory(memory: Memory) -> list[tuple[str, str]]:
    return [
        ("rank", str(memory.rank)),
        ("budget", format_bytes(memory.budget_bytes)),
        ("weights", format_bytes(memory.weights_bytes)),
        ("KV per request", format_bytes(memory.kv_bytes_per_request)),
        ("left for KV", format_bytes(max(memory.kv_free_bytes, 0.0)) if memory.kv_free_bytes >= 0 else "none"),
        ("requests", f"{memory.max_concurrency} of this context at once on the whole box"),
    ]
