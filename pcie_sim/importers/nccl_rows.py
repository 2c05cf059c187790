"""The table of nccl-tests: its header decides the columns; rows of every version, whole, half or cut."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

ELEMENT_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
"""Bytes of an element by the name that nccl-tests prints (src/common.cu, test_typenames; RCCL's names too)."""
REDUCTIONS = frozenset(("sum", "prod", "min", "max", "avg", "mulsum", "none"))
_TYPE = "|".join(sorted(ELEMENT_BYTES, key=len, reverse=True))
MOST_DIGITS = 19
_HEAD = re.compile(rf"[ \t]{{0,80}}([0-9]{{1,19}})[ \t]{{1,80}}([0-9]{{1,19}})[ \t]{{1,80}}({_TYPE})(?![A-Za-z0-9_])")
_WORD = re.compile(r"[ \t]{0,80}[^\s#]{1,40}")
LIKE_ROW = re.compile(
    rf"[ \t]{{0,80}}(?:[^\s#]{{1,20}}[ \t]{{1,80}})?(-?[0-9]{{1,2000}})[ \t]{{1,80}}(-?[0-9]{{1,2000}})[ \t]{{1,80}}"
    rf"(?:{_TYPE})(?![A-Za-z0-9_])"
)
"""A line that is a row, or was one before somebody damaged it: size and count."""
HEADER = re.compile(r"(?<![A-Za-z])size[ \t]{1,80}count[ \t]{1,80}type(?![A-Za-z])")
OLD_HEADER = re.compile(
    r"[ \t]{0,80}(?:#[ \t]{0,80})?N[ \t]{1,40}type[ \t]{1,40}(?:op|root)[ \t]{1,40}(?:root[ \t]{1,40})?time[ \t]{1,40}algbw[ \t]{1,40}busbw"
)
"""NCCL 1's tests, up to 2016."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{0,12})?(?:[eE][+-]?[0-9]{1,3})?")
_WRONG = re.compile(r"N/A|n/a|nan|inf")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}(?::[0-9]{2})?")
BLANK_HALF = 24
"""So many blanks before the first figure stand for an out-of-place half that was left out (nccl-tests prints 32)."""


@dataclass(frozen=True)
class Layout:
    """What the header says of the columns. None: it does not say."""

    extra: int = 0
    """Columns before ``size`` that are not nccl-tests'."""
    redop: bool | None = None
    root: bool | None = None
    per_iteration: bool = False
    cpu_time: bool = False
    tolerance: bool = False
    """The column after busbw is the largest error of the check (``error``), not a count of wrong elements."""
    single: str = "out"
    """What a lone half is."""


@dataclass(frozen=True)
class Half:
    """Time in us, bandwidths in GB/s, and half a unit of the last printed digit of each. ``wrong``: None: not checked."""

    time: float
    time_ulp: float
    algbw: float
    algbw_ulp: float
    busbw: float
    busbw_ulp: float
    wrong: float | None
    checked: bool

    @property
    def ratio(self) -> tuple[float, float]:
        """Between what busbw over algbw lies, given how they are rounded."""
        low = max(self.busbw - self.busbw_ulp, 0.0) / (self.algbw + self.algbw_ulp) if self.algbw + self.algbw_ulp > 0 else 0.0
        below = self.algbw - self.algbw_ulp
        return low, (self.busbw + self.busbw_ulp) / below if below > 0 else math.inf

    def agrees(self, size: int) -> bool:
        """Size over time is the printed algbw, but for rounding."""
        low = size * 1e-3 / (self.time + self.time_ulp)
        high = size * 1e-3 / (self.time - self.time_ulp) if self.time > self.time_ulp else math.inf
        return low * 0.99 <= self.algbw + self.algbw_ulp * 1.02 and high * 1.01 >= self.algbw - self.algbw_ulp * 1.02


@dataclass(frozen=True)
class TableRow:
    """One row. A half that is not there is None."""

    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out: Half | None
    inside: Half | None
    line: int
    cut: bool = False
    no_redop: bool = False
    no_root: bool = False
    """The header has no such column: the op has none."""

    @property
    def halves(self) -> tuple[tuple[bool, Half], ...]:
        """(in place, figures)."""
        return tuple((flag, half) for flag, half in ((False, self.out), (True, self.inside)) if half is not None)


def layout_of(line: str, single: str = "out") -> Layout | None:
    """The columns of a header line; None where it is none."""
    match = HEADER.search(line)
    if match is None:
        return None
    before = line[: match.start()].replace("#", " ").split()
    after = line[match.end() : match.end() + 2000].split()
    timed = next((index for index, word in enumerate(after) if word in ("time", "cputime")), None)
    return Layout(
        extra=len(before) if len(before) <= 4 else 0,
        redop=("redop" in after[:timed]) if timed is not None else None,
        root=("root" in after[:timed]) if timed is not None else (True if "root" in after else None),
        per_iteration="i_min" in after,
        cpu_time="cputime" in after,
        tolerance="error" in after and not any(word.startswith("#wrong") for word in after),
        single=single,
    )


def head_of(line: str, layout: Layout) -> tuple[int, int, str, int] | None:
    """(size, count, type, where the rest begins) of a line that begins a row."""
    offset = 0
    for _column in range(layout.extra):
        word = _WORD.match(line, offset)
        if word is None:
            return None
        offset = word.end()
    match = _HEAD.match(line, offset)
    if match is None:
        return None
    return int(match.group(1)), int(match.group(2)), match.group(3), match.end()


def figures_of(text: str) -> list[str] | None:
    """The words of ``text`` where all are figures, as the rest of a row is that a log line broke off; None otherwise."""
    words = text.split()
    if not words or len(words) > 24 or text.lstrip()[:1] == "#":
        return None
    return words if all(_NUMBER.fullmatch(word) or _WRONG.fullmatch(word) for word in words) else None


def no_times(rest: str) -> bool:
    """Figures are printed as nan or inf in the text after a row's type."""
    return any(word.lower().lstrip("+-") in ("nan", "inf") for word in rest[:2000].split())


def row_of(head: tuple[int, int, str], rest: str, layout: Layout, line: int) -> TableRow | None:
    """A row from its beginning and the text after the type; None where not one half is whole."""
    words = rest[:2000].split()
    if len(words) >= 2 and _CLOCK.fullmatch(words[-1]) and _DATE.fullmatch(words[-2]):
        words = words[:-2]
    redop = None
    if words and words[0] in REDUCTIONS:
        redop = words.pop(0)
    width = 8 if layout.per_iteration else 4
    root, words = _root(words, layout, width)
    whole, over = divmod(len(words), width)
    cut = over > 0
    if whole > 2:
        return None
    halves = [_half(words[index * width : (index + 1) * width], layout) for index in range(whole)]
    if whole == 0 or all(half is None for half in halves):
        return None
    if whole == 2:
        out, inside = halves
    elif layout.single == "in" or (not cut and _left_blank(rest, words)):
        out, inside = None, halves[0]
    else:
        out, inside = halves[0], None
    return TableRow(head[0], head[1], head[2], redop, root, out, inside, line, cut, layout.redop is False, layout.root is False)


def _root(words: list[str], layout: Layout, width: int) -> tuple[int | None, list[str]]:
    has_root = layout.root
    if has_root is None:
        has_root = bool(words) and (len(words) % width == 1 or words[0].startswith("-"))
    if has_root and words and re.fullmatch(r"-?[0-9]{1,6}", words[0]):
        return int(words[0]), words[1:]
    return None, words


def _left_blank(rest: str, words: list[str]) -> bool:
    """The blanks before the first figure are a whole half's."""
    at = rest.find(f" {words[0]} ")
    if at < 0:
        return False
    gap = rest[: at + 1]
    return len(gap) - len(gap.rstrip(" ")) >= BLANK_HALF


def _half(words: list[str], layout: Layout) -> Half | None:
    time, algbw, busbw = (_figure(word) for word in words[:3])
    if time is None or algbw is None or busbw is None:
        return None
    if not (0 < time[0] < 1e12) or not (0 <= algbw[0] < 1e9) or not (0 <= busbw[0] < 1e9):
        return None
    checked = _figure(words[3])
    wrong = checked[0] if checked is not None and not layout.tolerance else None
    return Half(*time, *algbw, *busbw, wrong, checked is not None)


def _figure(word: str) -> tuple[float, float] | None:
    """(value, half a unit of the last digit)."""
    if not _NUMBER.fullmatch(word):
        return None
    mantissa, _e, exponent = word.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    value = float(word)
    if not math.isfinite(value) or abs(int(exponent or 0)) > 300:
        return None
    return value, 0.5 * 10.0 ** (int(exponent or 0) - decimals)
