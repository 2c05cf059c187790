"""What was read from other people's files, and everything that was assumed, left out or contradictory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcie_sim.report.box import tree_block
from pcie_sim.report.console import bold, bullets, table

if TYPE_CHECKING:
    from pcie_sim.report.console import Block
    from pcie_sim.study import ImportResult

_TITLES = (
    ("conflict", "Contradictions between files"),
    ("assumed", "Assumed, because no file says it"),
    ("cut", "Cut short"),
    ("ignored", "Left out"),
    ("note", "Worth knowing"),
)


def import_blocks(result: ImportResult, *, width: int) -> list[Block]:
    """The files, the tree of the box (where there is one), and the remarks by kind."""
    blocks: list[Block] = []
    if result.files:
        rows = [[row["file"], row["formats"], row["holds"]] for row in result.to_records()]
        blocks += [bold("Read"), table([("file", "left"), ("format", "left"), ("holds", "left")], rows, fold=(0, 1, 2))]
    if result.topology is not None:
        box = result.topology
        blocks += ["", bold(f"{box.name}: {box.title}"), tree_block(box)]
    return blocks + remark_blocks(result, width=width)


def remark_blocks(result: ImportResult, *, width: int) -> list[Block]:
    """The remarks by kind, the most important first."""
    blocks: list[Block] = []
    for kind, title in _TITLES:
        texts = result.said(kind)
        if texts:
            blocks += ["", bold(title), *bullets(texts, width=width)]
    return blocks


def remark_lines(result: ImportResult) -> list[str]:
    """The remarks as plain lines, for standard error beside a file on standard output."""
    return [f"{kind}: {text}" for kind, _title in _TITLES for text in result.said(kind)]
