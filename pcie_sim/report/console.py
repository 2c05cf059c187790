"""Text for people: plain ASCII tables and wrapped prose, coloured only on a terminal that wants colour."""

from __future__ import annotations

import io
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    Block = str | Text | Table | Tree
    Cell = str | Text

PLAIN_WIDTH = 120
"""Columns where the output is no terminal: wide enough that no table is cut."""
NARROWEST = 60
"""A narrower terminal gets this much all the same: its own line breaks lose nothing."""
_FOLDED = 12
"""Columns that a folding column of a table keeps at least."""
Justify = Literal["left", "right", "center"]
# C0 and C1 but newline and tab, surrogates (bytes that were no UTF-8), line and paragraph separators, and what turns the writing direction.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    r"""``text`` without characters that a terminal would obey: they are shown as ``\xNN``.

    >>> clean("a" + chr(27) + "[31mb")
    'a\\x1b[31mb'
    """
    return _UNPRINTABLE.sub(lambda match: _escaped(ord(match.group())), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def wants_colour(stream: TextIO) -> bool:
    """True for a terminal without NO_COLOR (https://no-color.org: any non-empty value) that is not dumb."""
    try:
        terminal = stream.isatty()
    except ValueError:  # closed
        return False
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """Columns to lay out for: COLUMNS where it is set, else the terminal's, else 120; 60 at least."""
    try:
        terminal = stream.isatty()
    except ValueError:
        terminal = False
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdigit() and 0 < len(asked) < 6 and int(asked):
        return max(NARROWEST, int(asked))
    return max(NARROWEST, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if terminal else PLAIN_WIDTH


def show(blocks: Iterable[Block], stream: TextIO) -> None:
    """Print the blocks. Prose is never broken here (wrap it with :func:`wrapped`); headings, trees and tables fit the width by themselves.

    Nothing that a file holds reaches the terminal as a command: see :func:`clean`.
    """
    from rich.console import Console
    from rich.table import Table

    colour = wants_colour(stream)
    buffer = _Buffer(getattr(stream, "encoding", None) or "utf-8")
    console = Console(
        file=buffer,
        width=_ENDLESS,
        force_terminal=colour,
        color_system="auto" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    width = width_of(stream)
    for block in blocks:
        if isinstance(block, str):
            console.print(clean(block), soft_wrap=True)
        elif isinstance(block, Table):
            # A table gets the room that its unbroken columns need: cut columns would lose numbers.
            console.print(_Clean(block), width=max(width, room(block)))
        else:
            console.print(_Clean(block), width=width)
    lines = (line.rstrip() for line in buffer.getvalue().split("\n"))
    stream.write("\n".join(lines).rstrip("\n") + "\n")


_ENDLESS = 100_000


class _Clean:
    """A block whose text is :func:`clean` when it is drawn: the one place that every text passes, whoever made it."""

    def __init__(self, block: Text | Table | Tree) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self._block, options):
            yield Segment(clean(segment.text), segment.style)


def room(block: Table) -> int:
    """Columns of the screen that a table needs at least (its folding columns may break)."""
    from rich.cells import cell_len

    need = 0
    for column in block.columns:
        cells = [column.header, *column.cells]
        longest = max(cell_len(line) for cell in cells for line in str(cell).split("\n"))
        need += (longest if column.no_wrap else min(longest, _FOLDED)) + 3
    return need


class _Buffer(io.StringIO):
    """Text with the encoding of the stream that it is meant for: rich draws its lines by it."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream in the end."""
        return self._encoding


def bold(text: str, *, colour: str = "") -> Text:
    """``text`` in bold (and in a colour) where the stream shows that."""
    from rich.text import Text

    return Text(clean(text), style=f"bold {colour}".strip())


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
        made.add_row(*(Text(clean(cell)) if isinstance(cell, str) else cell for cell in row))
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
