"""Text <-> SI. Inside the code everything is seconds, bytes, bytes per second and flop/s; text exists at the edges only.

Bytes: ``B``; ``KiB MiB GiB TiB`` (binary); ``KB MB GB TB`` (decimal). nccl-tests' bare ``K M G`` are binary. A bare
number is bytes. Rates: ``GB/s`` and ``GBps`` are 1e9 B/s, ``GiB/s`` is 2**30 B/s. Times: ``s ms us ns``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from pcie_sim.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
}
_TIMES_PER_SECOND: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}
_NUMBER = re.compile(r"\s*([+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*\Z")
_MAX_TEXT = 64
MAX_BYTES = 2**60
"""Largest accepted size; anything above is a typing mistake, not a message."""


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise InputError(f"{what} {shown!r} is not understood; write it like {example}")
    return float(match.group(1)), match.group(2)


def parse_bytes(text: str | int | float) -> int:
    """Bytes of ``text`` (``"14KiB"``, ``"14336"``, ``"8M"``), rounded to a whole byte.

    Raises:
        InputError: not a size, not a whole number of bytes, negative, or above 2**60 B.

    >>> parse_bytes("14KiB"), parse_bytes("16K"), parse_bytes("1MB"), parse_bytes(512)
    (14336, 16384, 1000000, 512)
    """
    if isinstance(text, bool):
        raise InputError(f"size {text!r} is not understood; write it like 14KiB")
    number, unit = (float(text), "") if isinstance(text, int | float) else _split(text, "size", "14KiB, 1MB or 16384")
    factor = _BYTE_UNITS.get(unit.lower())
    if factor is None:
        raise InputError(f"size {text!r} has an unknown unit {unit!r}; use B, KiB MiB GiB, KB MB GB or K M G (binary)")
    value = number * factor
    if not math.isfinite(value) or value < 0 or value > MAX_BYTES:
        raise InputError(f"size {text!r} is out of range; sizes go from 0 to 2^60 bytes")
    if abs(value - round(value)) > 1e-6 * max(1.0, value):
        raise InputError(f"size {text!r} is not a whole number of bytes")
    return round(value)


def parse_rate(text: str | int | float) -> float:
    """Bytes per second of ``text`` (``"56GB/s"``, ``"24 GBps"``, ``1e9``).

    >>> parse_rate("56GB/s")
    56000000000.0
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        number, factor = float(text), 1
    else:
        number, unit = _split(str(text), "rate", "56GB/s")
        low = unit.lower()
        stem = low[:-2] if low.endswith("/s") else low[:-2] if low.endswith("ps") else None
        if stem is None or stem not in _BYTE_UNITS or stem in ("", "k", "m", "g"):
            raise InputError(f"rate {text!r} has an unknown unit {unit!r}; use GB/s, GiB/s, MB/s ...")
        factor = _BYTE_UNITS[stem]
    value = number * factor
    if not math.isfinite(value) or value < 0:
        raise InputError(f"rate {text!r} is out of range")
    return value


def parse_time(text: str | int | float) -> float:
    """Seconds of ``text`` (``"5us"``, ``"1.5 ms"``); a bare number is seconds.

    >>> parse_time("5us")
    5e-06
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        number, per_second = float(text), 1.0
    else:
        number, unit = _split(str(text), "time", "5us")
        if unit and unit not in _TIMES_PER_SECOND:
            raise InputError(f"time {text!r} has an unknown unit {unit!r}; use s, ms, us or ns")
        per_second = _TIMES_PER_SECOND.get(unit, 1.0)
    value = number / per_second
    if not math.isfinite(value) or value < 0:
        raise InputError(f"time {text!r} is out of range")
    return value


def parse_int_list(
    text: str | int | Sequence[int], what: str, *, low: int = 1, high: int = 1_000_000, most: int = 10_000
) -> tuple[int, ...]:
    """Whole numbers of ``text`` ("1,2,4" or a sequence), in the given order, duplicates dropped.

    Raises:
        InputError: empty, not whole numbers, outside ``low..high``, or more than ``most`` of them.
    """
    items: Sequence[object]
    if isinstance(text, str):
        items = [part.strip() for part in text.split(",")]
    elif isinstance(text, Sequence) or hasattr(text, "__iter__"):
        items = list(text)  # numpy arrays and ranges too
    else:
        items = [text]
    if not items or len(items) > most:
        raise InputError(f"{what}: give 1 to {most} numbers, got {len(items)}")
    found: dict[int, None] = {}
    for item in items:
        number = _whole(item)
        if number is None:
            shown = str(item)[:40]
            raise InputError(f"{what} {shown!r} is not a whole number; write a list like 1,4,16")
        if not low <= number <= high:
            raise InputError(f"{what} {number} is out of range; it goes from {low} to {high}")
        found[number] = None
    return tuple(found)


def _whole(item: object) -> int | None:
    if isinstance(item, bool):
        return None
    if isinstance(item, str):
        return int(item) if re.fullmatch(r"[+-]?[0-9]{1,12}", item) else None
    try:
        number = int(item)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == item else None


def format_bytes(value: float) -> str:
    """``value`` bytes for people, binary units, at most four digits: ``14 KiB``, ``1.5 MiB``, ``512 B``.

    >>> format_bytes(14336), format_bytes(512), format_bytes(1572864)
    ('14 KiB', '512 B', '1.5 MiB')
    """
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value)} B"


def format_gb(value: float) -> str:
    """``value`` bytes as decimal GB with one digit: ``95.6 GB``."""
    return f"{value / GB:.1f} GB"


def format_rate(value: float) -> str:
    """``value`` bytes per second for people: ``56.1 GB/s``.

    >>> format_rate(56.1e9)
    '56.1 GB/s'
    """
    for unit, size in (("TB/s", TB), ("GB/s", GB), ("MB/s", MB), ("KB/s", KB)):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value)} B/s"


def format_time(value: float) -> str:
    """``value`` seconds for people: ``27 us``, ``1.5 ms``.

    >>> format_time(27e-6), format_time(0.0015)
    ('27 us', '1.5 ms')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size * (1 - 1e-12):
            return f"{_short(value / size)} {unit}"
    return f"{_short(value / 1e-9)} ns"


def _short(value: float) -> str:
    return f"{value:.4g}" if value < 9999.5 else f"{value:.0f}"
