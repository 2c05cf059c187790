"""What the collective library will do on a box, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcie_sim.report.console import bold, bullets, pairs, table
from pcie_sim.results.ccl import CclChoice, CclSearch, CclSegment, CclWarning
from pcie_sim.units import counted, format_bytes

if TYPE_CHECKING:
    from pcie_sim.report.console import Block, Justify


def ccl_blocks(choice: CclChoice, *, width: int) -> list[Block]:
    """Ring, channels, algorithm and protocol by size, and choices that cost time."""
    facts = [
        ("ring order", " ".join(choice.order)),
        ("ring search", _search(choice.ring, choice.net)),
        ("tree search", _search(choice.tree, choice.net)),
        ("channels", f"{choice.channels} in the end (twice the search's, within the environment's limits)"),
        (
            "small AllReduce",
            ", ".join(f"{format_bytes(item.bytes)} {item.protocol} {item.channels} x {item.threads} threads" for item in choice.small),
        ),
    ]
    whom = f"with all {counted(choice.ranks, 'GPU')}"
    if choice.host is not None:
        whom = f"inside one host ({choice.host}: {len(choice.gpus)} of {counted(choice.ranks, 'GPU')})"
    title = f"What {choice.library.upper()} {choice.version} will do {whom}"
    blocks: list[Block] = ["", bold(title), pairs(facts, width=width), "", _choices(choice)]
    texts = [warning_text(item) for item in choice.warnings]
    if texts:
        blocks += ["", bold("Choices of the library that cost time here (predicted with and without)"), *bullets(texts, width=width)]
    told = {item.text for item in choice.warnings}
    notes = [note for note in choice.notes if not any(note in text for text in told)]
    return blocks + (["", bold("About these choices"), *bullets(notes, width=width)] if notes else [])


def _search(found: CclSearch, net: bool) -> str:
    speed = f"{found.speed_Bps / 1e9:.3g} GB/s"
    text = f"{found.channels} x {speed}, path {found.type_intra} inside" + (f", {found.type_inter} to the network" if net else "")
    return f"{text}: nothing fitted, a fallback" if found.fallback else text


def _choices(choice: CclChoice) -> Block:
    columns: list[tuple[str, Justify]] = [("op", "left"), ("algorithm and protocol by size", "left")]
    return table(columns, [[op, segments_text(segments)] for op, segments in choice.choices.items()], fold=(1,))


def segments_text(segments: Sequence[CclSegment]) -> str:
    """``ring LL, from 1.76 MiB ring Simple``."""
    words = []
    for index, segment in enumerate(segments):
        start = "" if index == 0 else f"from {format_bytes(segment.from_bytes)} "
        words.append(f"{start}{segment.algorithm} {segment.protocol}")
    return ", ".join(words)


def warning_text(item: CclWarning) -> str:
    """One warning in words, with its cost and what to set."""
    cost = f"{item.cost_s * 1e6:.1f} of {item.time_s * 1e6:.1f} us for an AllReduce of {format_bytes(item.bytes)} in a CUDA graph"
    return f"{item.text}: costs {cost}; try {item.setting}"
