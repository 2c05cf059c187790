"""What a verb hands out: JSON or text on standard output, files, and remarks on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pcie_sim.errors import InputError
from pcie_sim.report.console import clean
from pcie_sim.report.files import check_target, same_file, write_whole

if TYPE_CHECKING:
    from pcie_sim.report.console import Block


def say(text: str) -> None:
    """One remark for people, on standard error; where nobody can read it (a full disk, a closed pipe), the exit code has to do."""
    try:
        sys.stderr.write(clean(text).rstrip() + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        mute(sys.stderr)


def mute(stream: TextIO) -> None:
    """What is still in the stream's buffer goes nowhere, so that Python's last flush does not fail and change the exit code."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test or an embedding program has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


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


def check_output(output: str | None, *, plot: str | None = None, reads: Iterable[Path] = ()) -> None:
    """Refuse an ``-o`` or ``--plot`` that cannot be written, or that would overwrite what is read, before anything is computed.

    Args:
        plot: the picture's file.
        reads: the files that the question is read from (:func:`files_of`).

    Raises:
        InputError: a folder, a file in a folder that does not exist, one of ``reads``, or one file for both.
    """
    if output is not None:
        check_target(output, "-o")
    if plot is not None:
        from pcie_sim.report.plots import check_plot

        check_plot(plot)
    if output is not None and plot is not None and same_file(output, plot):
        raise InputError(f"-o {output}: the same file as --plot; give another name")
    for what, target in (("-o", output), ("--plot", plot)):
        if target is not None and any(same_file(target, path) for path in reads):
            raise InputError(f"{what} {target}: this would overwrite the file that the question is read from; give another name")


def files_of(
    *, topology: str | None = None, model: str | None = None, more: str | None = None, calibration: Sequence[str] | None = None
) -> list[Path]:
    """The files behind what was typed, where there are any: paths, and the files of shipped names. ``more`` is always a path."""
    from pcie_sim.catalog import is_path, resolve, shipped_topology
    from pcie_sim.catalog.lookup import file_of

    found: list[Path] = [] if more is None else [Path(more)]

    def model_file(name: str) -> Path:
        return file_of("models", resolve("models", name))

    def profile(name: str) -> Path:
        return file_of("profiles", resolve("profiles", name))

    for text, shipped in ((topology, shipped_topology), (model, model_file), *((one, profile) for one in calibration or ())):
        if text is not None:
            with contextlib.suppress(InputError):  # told where the question is read
                found.append(Path(text) if is_path(text) else shipped(text))
    return found


_LONG = 4 * 2**20
"""Bytes of a log from which reading takes seconds."""


def announce(files: Iterable[str]) -> None:
    """Say which long files are being read, before it takes seconds."""
    for name in files:
        with contextlib.suppress(OSError, ValueError):  # told where the file is read
            size = Path(name).stat().st_size
            if size > _LONG:
                say(f"reading {name} ({size / 2**20:.0f} MiB)")


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """A sign of life on standard error while the block runs; on a terminal that wants colour alone."""
    from pcie_sim.report.console import wants_colour

    if not wants_colour(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr, markup=False).status(clean(text)):
        yield


def wrote(path: Path) -> None:
    """Say that a file was written."""
    say(f"wrote {path}")
