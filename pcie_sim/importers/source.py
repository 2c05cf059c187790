"""The text of a stranger's file: decoded, bounded, without terminal colours, every line where the file has it."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pcie_sim.errors import InputError

MAX_BYTES = 32 * 2**20
"""Most that is read of one file; a longer log is cut there and the cut is listed."""
MAX_LINE = 20_000
"""Characters kept of one line (the longest real ones, kernel command lines and NCCL's path dumps, have a few thousand)."""
MAX_LINES = 600_000
RemarkKind = Literal["assumed", "ignored", "cut", "conflict", "note"]

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FENCE = re.compile(r"^\s{0,8}(?:```|~~~)[A-Za-z0-9_+-]{0,20}\s*$")
_ARCHIVES = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"7z\xbc\xaf": "7-zip", b"(\xb5/\xfd": "zstd"}
_BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True)
class Remark:
    """What a reader did beyond reading: filled a gap (``assumed``), left something out (``ignored``), stopped early (``cut``), found
    two sources that disagree (``conflict``), or noticed something (``note``). ``line`` counts from 1.
    """

    kind: RemarkKind
    text: str
    source: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = Path(self.source).name + (f":{self.line}" if self.line else "")
        return f"{where}: {self.text}" if where else self.text


@dataclass(frozen=True)
class SourceText:
    """One file. ``raw`` is the decoded text as it stands (for XML and JSON); ``lines`` is for line formats: colours, control characters
    and code fences dropped, long lines cut, nothing moved, so that line i of the file is ``lines[i - 1]``.
    """

    name: str
    raw: str
    remarks: tuple[Remark, ...] = ()
    complete: bool = True
    """False where the file was longer than is read: its XML or JSON is not whole."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The cleaned lines."""
        return tuple(_clean(line) for line in re.split(r"\r\n|\n|\r", self.raw, maxsplit=MAX_LINES)[:MAX_LINES])

    @cached_property
    def text(self) -> str:
        """The cleaned lines as one text."""
        return "\n".join(self.lines)

    @cached_property
    def cuts(self) -> tuple[Remark, ...]:
        """What cleaning left out: lines cut for their length, lines beyond the bound. Add these to what a line format returns."""
        found = []
        pieces = re.split(r"\r\n|\n|\r", self.raw, maxsplit=MAX_LINES)
        if len(pieces) > MAX_LINES:
            found.append(Remark("cut", f"only the first {MAX_LINES:,} lines are read", self.name, MAX_LINES))
        long = [number for number, line in enumerate(pieces[:MAX_LINES], 1) if len(line) > MAX_LINE]
        if long:
            more = f" (and {len(long) - 1} more lines)" if len(long) > 1 else ""
            found.append(Remark("cut", f"the line is cut after {MAX_LINE:,} characters{more}", self.name, long[0]))
        return tuple(found)

    def line_of(self, offset: int) -> int:
        """The line (from 1) of an offset in :attr:`text`."""
        return self.text.count("\n", 0, offset) + 1

    def remark(self, kind: RemarkKind, text: str, line: int | None = None) -> Remark:
        """A remark about this file."""
        return Remark(kind, text, self.name, line)

    def error(self, message: str, line: int | None = None) -> InputError:
        """An :class:`InputError` that names the file and line; shows no more than is readable of what it quotes."""
        return InputError(f"{self.name}{f':{line}' if line else ''}: {message}")


def quoted(text: str, most: int = 60) -> str:
    """A piece of a stranger's file for a message: one line, short, in quotes."""
    line = " ".join("".join(c if c.isprintable() else "?" for c in text[: 4 * most]).split())
    return repr(line if len(line) <= most else line[: most - 3] + "...")


def _clean(line: str) -> str:
    line = line[:MAX_LINE]
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if _FENCE.match(line):
        return ""
    return _CONTROL.sub("", line)


def read_source(path: str | os.PathLike[str]) -> SourceText:
    """The text of the file ``path`` (``-``: standard input): UTF-8, or UTF-16 as Windows shells write it; at most 32 MiB of it.

    Raises:
        InputError: missing, a folder, no regular file, unreadable, empty, an archive, or binary.
    """
    shown = os.fspath(path)
    if shown == "-":
        stream_in = getattr(sys.stdin, "buffer", None)
        return source_of(b"" if stream_in is None else stream_in.read(MAX_BYTES + 1), "standard-input")
    try:
        target = Path(path)
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown}: is a folder; give a file")
        if not stat.S_ISREG(mode):
            raise InputError(f"{shown}: is no regular file; pipe it in as - or write it into a file")
        with target.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as exc:
        raise InputError(f"{shown}: no such file") from exc
    except (OSError, ValueError) as exc:
        raise InputError(f"{shown}: cannot be read ({getattr(exc, 'strerror', None) or exc})") from exc
    return source_of(raw, shown)


def source_of(raw: bytes | str, name: str) -> SourceText:
    """As :func:`read_source`, from bytes or text at hand; ``name`` is shown in messages.

    Raises:
        InputError: empty, an archive, or binary.
    """
    remarks: list[Remark] = []
    if isinstance(raw, str):
        text, complete = raw[:MAX_BYTES], len(raw) <= MAX_BYTES
    else:
        complete = len(raw) <= MAX_BYTES
        text = _decoded(raw[:MAX_BYTES], name, remarks, complete=complete)
    if not complete:
        remarks.append(Remark("cut", f"larger than {MAX_BYTES // 2**20} MiB: only the first {MAX_BYTES // 2**20} MiB are read", name))
    if not text.strip():
        raise InputError(f"{name}: is empty")
    return SourceText(name, text, tuple(remarks), complete)


def _decoded(raw: bytes, name: str, remarks: list[Remark], *, complete: bool) -> str:
    for magic, kind in _ARCHIVES.items():
        if raw.startswith(magic):
            raise InputError(f"{name}: is an archive ({kind}); unpack it and give the file inside")
    encoding = next((label for bom, label in _BOMS if raw.startswith(bom)), None) or _utf16_without_mark(raw)
    if encoding is not None:
        remarks.append(Remark("note", "is UTF-16 (as PowerShell writes files); read as such", name))
        return raw[: len(raw) // 2 * 2].decode(encoding, errors="replace").removeprefix("\ufeff")
    zero = raw.find(b"\0")
    if zero >= 0:
        line = raw.count(b"\n", 0, zero) + 1
        raise InputError(f"{name}:{line}: a NUL byte (byte {zero}): this is a binary file, or a damaged copy; copy the text again")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        if not complete and exc.start >= len(raw) - 3:  # the bound cut a character
            return raw[: exc.start].decode("utf-8-sig")
        line = raw.count(b"\n", 0, exc.start) + 1
        remarks.append(Remark("note", "bytes that are not UTF-8 are shown as \ufffd", name, line))
        return raw.decode("utf-8-sig", errors="replace")


def _utf16_without_mark(raw: bytes) -> str | None:
    """UTF-16 text of mostly Latin characters has a NUL in every second byte."""
    head = raw[:2000]
    if len(head) < 8:
        return None
    half = len(head) // 2
    for first, label in ((1, "utf-16-le"), (0, "utf-16-be")):
        if head[first::2].count(0) > 0.9 * half and head[1 - first :: 2].count(0) < 0.05 * half:
            return label
    return None
