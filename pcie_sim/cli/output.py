"""What a verb hands out: JSON or text on standard output, files, and remarks on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcie_sim.report.files import check_target, write_whole

if TYPE_CHECKING:
    from pcie_sim.report.console import Block


def say(text: str) -> None:
    """One remark for people, on standard error."""
    sys.stderr.write(text.rstrip() + "\n")


def emit(
    document: Callable[[], dict[str, Any]], blocks: Callable[[int], Sequence[Block]], *, as_json: bool, output: str | None = None
) -> None:
    """Write ``-o`` (JSON) first, then print JSON or text: when a file fails, standard output stays empty.

    Args:
        document: the answer as plain data.
        blocks: the answer for people, laid out for so many columns.
    """
    text = json.dumps(document(), indent=2, allow_nan=False) + "\n" if as_json or output is not None else ""
    if output is not None:
        wrote(write_whole(output, text.encode(), what="-o"))
    if as_json:
        sys.stdout.write(text)
        return
    from pcie_sim.report.console import show, width_of

    show(blocks(width_of(sys.stdout)), sys.stdout)


def check_output(output: str | None) -> None:
    """Refuse an ``-o`` that cannot be written before anything is computed.

    Raises:
        InputError: a folder, or a file in a folder that does not exist.
    """
    if output is not None:
        check_target(output, "-o")


def wrote(path: Path) -> None:
    """Say that a file was written."""
    say(f"wrote {path}")
