"""Text for people: plain ASCII tables and wrapped prose, coloured only on a terminal that wants colour."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    Block = str | Text | Table | Tree
    Cell = str | Text

PLAIN_WIDTH = 120
"""Columns where the output is no terminal: wide enough that no table is cut."""
NARROWEST = 100
"""A narrower terminal gets this much all the same: its own line breaks lose nothing, cut columns would."""
Justify = Literal["left", "right", "center"]


def wants_colour(stream: TextIO) -> bool:
    """True for a terminal without NO_COLOR (https://no-color.org: any non-empty value) that is not dumb."""
    try:
        terminal = stream.isatty()
    except ValueError:  # closed
        return False
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """Columns to lay out for: the terminal's (at least 100), else 120."""
    try:
        terminal = stream.isatty()
    except ValueError:
        terminal = False
    return max(NARROWEST, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if terminal else PLAIN_WIDTH


def show(blocks: Iterable[Block], stream: TextIO) -> None:
    """Print the blocks. Text is never broken here (wrap prose with :func:`wrapped`); tables fit the width by themselves."""
    from rich.console import Console

    colour = wants_colour(stream)
    buffer = _Buffer(getattr(stream, "encoding", None) or "utf-8")
    console = Console(
        file=buffer,
        width=width_of(stream),
        force_terminal=colour,
        color_system="auto" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for block in blocks:
        # Only text is soft-wrapped: a table keeps to the width.
        console.print(block, soft_wrap=_is_text(block))
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    stream.write("\n".join(lines) + "\n")


class _Buffer(io.StringIO):
    """Text with the encoding of the stream that it is meant for: rich draws its lines by it."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream in the end."""
        return self._encoding


def _is_text(block: Block) -> bool:
    from rich.text import Text

    return isinstance(block, str | Text)


def bold(text: str, *, colour: str = "") -> Text:
    """``text`` in bold (and in a colour) where the stream shows that."""
    from rich.text import Text

    return Text(text, style=f"bold {colour}".strip())


def table(columns: Sequence[tuple[str, Justify]], rows: Iterable[Sequence[Cell]], *, fold: Iterable[int] = ()) -> Table:
    """A table with one rule under its head. Columns in ``fold`` break over lines; the others never do."""
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    made = Table(box=rule, header_style="bold", show_edge=False)
    folding = set(fold)
    for index, (head, justify) in enumerate(columns):
        made.add_column(Text(head), justify=justify, no_wrap=index not in folding, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def pairs(rows: Iterable[tuple[str, str]], *, width: int, indent: str = "  ") -> str:
    """Lines of ``key  value``, values aligned and wrapped under themselves; empty values are left out."""
    kept = [(key, value) for key, value in rows if value]
    room = max((len(key) for key, _ in kept), default=0) + 2
    return "\n".join(wrapped(value, width=width, first=f"{indent}{key:<{room}}") for key, value in kept)


def wrapped(text: str, *, width: int, first: str = "") -> str:
    """Prose broken at ``width`` (120 at most), later lines under the text of the first."""
    return textwrap.fill(
        " ".join(text.split()),
        width=min(width, PLAIN_WIDTH),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def bullets(texts: Iterable[str], *, width: int) -> list[str]:
    """One wrapped ``- text`` block per text."""
    return [wrapped(text, width=width, first="  - ") for text in texts]
