"""A comparison for people: the grid of strategies and concurrencies, who wins and why, what was measured, what to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcie_sim.report.console import bold, bullets, pairs, table, wrapped
from pcie_sim.report.numbers import BUCKETS, percent, settings_text
from pcie_sim.results.comparison import Comparison, MeasuredPoint, Note, Point
from pcie_sim.units import counted

if TYPE_CHECKING:
    from pcie_sim.report.console import Block, Cell, Justify

MIXED = "mixed_gpus"
"""Code of the note that says which GPU is meant where a box has several models; it stands in the head."""
_BESIDE_THE_GRID = ("does_not_fit", "queued", "eager")
"""Codes of notes that explain marks of the grid; they stand right under it."""


def comparison_blocks(comparison: Comparison, *, width: int, calibration: str = "") -> list[Block]:
    """Everything of a comparison. The last line is the measurement that would narrow the answer most.

    Args:
        calibration: what it was made with, in words.
    """
    blocks: list[Block] = [*_head(comparison, width, calibration)]
    for context in comparison.contexts:
        blocks += _grid(comparison, context, width)
    blocks += bullets((note.text for note in comparison.notes if note.code in _BESIDE_THE_GRID), width=width)
    blocks += _winners(comparison)
    blocks += [wrapped(note.text, width=width, first="! ") for note in comparison.notes if note.code == _DISAGREES]
    blocks += _crossovers(comparison)
    blocks += _collectives(comparison, width)
    blocks += measured_blocks(comparison.measured, width=width)
    blocks += note_blocks([note for note in comparison.notes if note.code not in _ELSEWHERE], width=width)
    if comparison.advice:
        blocks += ["", bold("The measurement that would narrow this answer most:"), " ".join(comparison.advice.split())]
    return blocks


def _head(comparison: Comparison, width: int, calibration: str) -> list[Block]:
    titles = comparison.titles
    box = titles.get("topology") or comparison.topology
    model = titles.get("model") or comparison.model
    facts = [
        ("box", f"{comparison.topology}: {counted(comparison.gpus, 'GPU')}" if comparison.gpus else comparison.topology),
        ("GPUs", mixed_text(comparison.notes)),
        ("model", comparison.model),
        ("engine", f"{comparison.runtime}, launch {comparison.launch}"),
        ("collectives", f"{comparison.ccl}, environment {settings_text(comparison.env)}"),
        ("calibration", calibration),
    ]
    return [bold(f"{model} on {box}"), pairs(facts, width=width)]


def mixed_text(notes: Sequence[Note]) -> str:
    """Which GPU the figures are those of, where the box mixes models; else nothing."""
    return next((note.text for note in notes if note.code == MIXED), "")


def _grid(comparison: Comparison, context: int, width: int) -> list[Block]:
    """A row per concurrency, two columns per strategy, in as many tables as the width asks for."""
    wins = {winner.concurrency: winner.strategy for winner in comparison.winners if winner.context == context}
    points = {(p.strategy, p.concurrency): p for p in comparison.points if p.context == context}
    blocks: list[Block] = ["", bold(f"Decode at context {context}: tokens/s of the whole box, ms per token of one request")]
    for index, group in enumerate(_groups(comparison.strategies, width)):
        blocks += [""] if index else []
        columns: list[tuple[str, Justify]] = [("\nC", "right")]
        for name in group:
            columns += [(f"{name}\ntok/s ", "right"), ("\nms/token ", "right")]
        rows: list[list[Cell]] = []
        for concurrency in comparison.concurrencies:
            row: list[Cell] = [str(concurrency)]
            for name in group:
                row += _cells(points[name, concurrency], won=wins.get(concurrency) == name)
            rows.append(row)
        blocks.append(table(columns, rows))
    blocks.append("  " + "   ".join(_legend(list(points.values()))))
    return blocks


def _groups(strategies: Sequence[str], width: int) -> list[list[str]]:
    """Strategies that fit side by side: per strategy two columns of at least 8, their padding, and its name over the first."""
    groups: list[list[str]] = [[]]
    used = 8
    for name in strategies:
        need = max(len(name), 9) + 10 + 4
        if groups[-1] and used + need > width:
            groups.append([])
            used = 8
        groups[-1].append(name)
        used += need
    return groups


def _cells(point: Point, *, won: bool) -> list[Cell]:
    """Tokens/s and ms; every number ends in one place for a mark, so that the decimals stay in line."""
    if not point.fits:
        return [f"({point.tokens_per_s:.1f})", f"({point.tpot_ms:.1f})"]
    mark = "*" if won else "q" if point.queued else " "
    cells: list[Cell] = [f"{point.tokens_per_s:.1f}{mark}", f"{point.tpot_ms:.1f}{'q' if point.queued else ' '}"]
    return [bold(str(cell), colour="green") for cell in cells] if won else cells


def _legend(points: Sequence[Point]) -> list[str]:
    texts = ["* wins"] if any(p.fits for p in points) else ["nothing fits"]
    if any(not p.fits for p in points):
        texts.append("( ) no fit: the time it would have if it fitted")
    if any(p.queued for p in points if p.fits):
        texts.append("q requests queue: the figures are those at the cap")
    return texts


def _winners(comparison: Comparison) -> list[Block]:
    if not comparison.winners:
        return ["", bold("Nothing fits.", colour="red")]
    several = len(comparison.contexts) > 1
    columns: list[tuple[str, Justify]] = [("context", "right")] if several else []
    columns += [
        ("C", "right"),
        ("winner", "left"),
        ("tok/s", "right"),
        ("p10 to p90", "right"),
        ("margin", "right"),
        ("probability", "right"),
        ("bound by", "left"),
        ("evidence", "left"),
    ]
    rows: list[list[Cell]] = []
    for winner in comparison.winners:
        point = comparison.point(winner.strategy, concurrency=winner.concurrency, context=winner.context)
        share = point.breakdown_ms.get(point.bound_by, 0.0) / point.tpot_ms if point.tpot_ms > 0 else 0.0
        row: list[Cell] = [str(winner.context)] if several else []
        row += [
            str(winner.concurrency),
            winner.strategy,
            f"{point.tokens_per_s:.1f}",
            f"{point.tokens_per_s_p10:.0f} to {point.tokens_per_s_p90:.0f}",
            "alone" if winner.margin is None else percent(winner.margin, sign=True),
            f"{winner.probability:.2f}",
            f"{BUCKETS[point.bound_by]} {percent(share)}",
            point.evidence + (", extrapolated" if point.extrapolated else ""),
        ]
        rows.append(row)
    return [
        "",
        bold("Who wins (margin over the second in tokens/s; probability that it stays first)"),
        table(columns, rows, fold=(len(columns) - 2, len(columns) - 1)),
    ]


def _crossovers(comparison: Comparison) -> list[Block]:
    several = len(comparison.contexts) > 1
    lines: list[Block] = []
    for cross in comparison.crossovers:
        at = f" (context {cross.context})" if several else ""
        lines.append(f"  from C={cross.concurrency:g}{at}: {cross.to_strategy} instead of {cross.from_strategy}")
    if not lines and comparison.winners and len(comparison.concurrencies) > 1:
        same = len({winner.strategy for winner in comparison.winners}) == 1
        lines.append(
            f"  {comparison.winners[0].strategy} wins at every concurrency asked" if same else "  the winner changes with the context only"
        )
    return lines


def _collectives(comparison: Comparison, width: int) -> list[Block]:
    """Which collectives each strategy was taken to send (from its breakdown), and how its MoE layers exchange."""
    texts = []
    for name in comparison.strategies:
        point = next(p for p in comparison.points if p.strategy == name)
        used = [word for key, word in BUCKETS.items() if key in _SENT and point.breakdown_ms.get(key, 0.0) > 0]
        shape = f" (= {point.canonical})" if point.canonical != name else ""
        texts.append(f"{name}{shape}: {', '.join(used) or 'none'}")
    texts += [note.text for note in comparison.notes if note.code in _EXCHANGE]
    return ["", bold("Collectives assumed"), *bullets(texts, width=width)]


_EXCHANGE = ("moe_comm", "ep_is_not_all_to_all")
"""Codes of notes about the MoE exchange; they stand with the collectives."""
_DISAGREES = "measured_disagrees"
"""Code of notes that say that measurements contradict the predicted winner; they stand right under the winners."""
_ELSEWHERE = (*_BESIDE_THE_GRID, *_EXCHANGE, _DISAGREES, MIXED)
_SENT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def measured_blocks(measured: Sequence[MeasuredPoint], *, width: int) -> list[Block]:
    """Measured rows beside their predictions; rows that were not asked about in one line."""
    if not measured:
        return []
    matched = [row for row in measured if row.predicted is not None and row.residual is not None]
    others = [row for row in measured if row.predicted is None]
    blocks: list[Block] = ["", bold("Measured on such a box (residual = measured / predicted - 1)")]
    if matched:
        columns: list[tuple[str, Justify]] = [
            ("strategy", "left"),
            ("C", "right"),
            ("measured", "right"),
            ("predicted", "right"),
            ("unit", "left"),
            ("residual", "right"),
            ("quality", "left"),
            ("note", "left"),
        ]
        rows = [
            [
                row.strategy,
                "?" if row.concurrency is None else f"{row.concurrency:g}",
                f"{row.value:.1f}",
                f"{row.predicted or 0.0:.1f}",
                row.unit + (" per user" if row.metric == "user_tokens_per_s" else ""),
                percent(row.residual or 0.0, sign=True),
                row.quality,
                row.note,
            ]
            for row in matched
        ]
        blocks.append(table(columns, rows, fold=(7,)))
    if others:
        blocks.append("  without a prediction here (not asked, or concurrency not stated):")
        blocks += [wrapped(text, width=width, first="    ") for text in _unmatched(others)]
    sets = dict.fromkeys(row.set_id for row in measured)
    blocks.append(wrapped(f"from {', '.join(sets)}", width=width, first="  "))
    return blocks


def _unmatched(rows: Sequence[MeasuredPoint]) -> list[str]:
    """One text per strategy; rows of one concurrency and metric as a range: ``ep8 C=1: 62.3 to 66.2 tok/s (7 rows)``."""
    found: dict[str, dict[tuple[float | None, float | None, str], list[float]]] = {}
    for row in rows:
        unit = row.unit + (" per user" if row.metric == "user_tokens_per_s" else "")
        found.setdefault(row.strategy, {}).setdefault((row.concurrency, row.context, unit), []).append(row.value)
    texts = []
    for strategy, groups in found.items():
        contexts = {context for _, context, _ in groups}
        shown = []
        for (concurrency, context, unit), values in groups.items():
            at = "C unknown" if concurrency is None else f"C={concurrency:g}"
            at += f", context {context:g}" if context is not None and len(contexts) > 1 else ""
            low, high = min(values), max(values)
            span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            shown.append(f"{at}: {span} {unit}" + (f" ({len(values)} rows)" if len(values) > 1 else ""))
        texts.append(f"{strategy} {'; '.join(shown)}")
    return texts


def note_blocks(notes: Sequence[Note], *, width: int) -> list[Block]:
    """The notes, one bullet each."""
    return ["", bold("Notes"), *bullets((note.text for note in notes), width=width)] if notes else []
