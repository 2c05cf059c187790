"""Text <-> SI. Inside the code everything is seconds, bytes, bytes per second and flop/s; text exists at the edges only.

Bytes: ``B``; ``KiB MiB GiB TiB`` (binary); ``KB MB GB TB`` (decimal). nccl-tests' bare ``K M G`` are binary. A bare
number is bytes. Rates: ``GB/s`` and ``GBps`` are 1e9 B/s, ``GiB/s`` is 2**30 B/s. Times: ``s ms us ns``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Sized
from itertools import islice

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
_TIMES_PER_SECOND: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "μs": 1e6, "ns": 1e9}
_NUMBER = re.compile(r"\s*([+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ/]*)\s*\Z")
_MAX_TEXT = 64
MAX_BYTES = 2**60
"""Largest accepted size; anything above is a typing mistake, not a message."""


def _split(value: object, what: str, example: str) -> tuple[float, str]:
    """Number and unit of text; a bare number has no unit."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value), ""
        except OverflowError:  # an int above 1e308
            return math.inf, ""
    text = str(value) if isinstance(value, str) or hasattr(value, "dtype") else ""  # numpy's integers are no ints
    match = _NUMBER.match(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise InputError(f"{what} {_shown(value)} is not understood; write it like {example}")
    return float(match.group(1)), match.group(2)


def _shown(value: object) -> str:
    """``value`` for a message, 40 characters at most (Python refuses to print integers of thousands of digits)."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:
        return "with thousands of digits"
    return text if len(text) <= 42 else text[:37] + "..."


def parse_bytes(text: str | int | float) -> int:
    """Bytes of ``text`` (``"14KiB"``, ``"14336"``, ``"8M"``), with a unit rounded to a whole byte.

    Raises:
        InputError: not a size, a fraction of a byte, negative, or above 2**60 B.

    >>> parse_bytes("14KiB"), parse_bytes("16K"), parse_bytes("1MB"), parse_bytes(512)
    (14336, 16384, 1000000, 512)
    """
    number, unit = _split(text, "size", "14KiB, 1MB or 16384")
    factor = _BYTE_UNITS.get(unit.lower())
    if factor is None:
        raise InputError(f"size {text!r} has an unknown unit {unit!r}; use B, KiB MiB GiB, KB MB GB or K M G (binary)")
    value = number * factor
    if not math.isfinite(value) or value < 0 or value > MAX_BYTES:
        raise InputError(f"size {_shown(text)} is out of range; sizes go from 0 to 2^60 bytes")
    if (factor == 1 and value != round(value)) or 0 < value < 1:
        raise InputError(f"size {_shown(text)} is not a whole number of bytes")
    return round(value)


def parse_rate(text: str | int | float) -> float:
    """Bytes per second of ``text`` (``"56GB/s"``, ``"24 GBps"``, ``1e9``); a bare number is B/s.

    Raises:
        InputError: not a rate, bits (``Gb/s``, ``Gbps``), negative, or not finite.

    >>> parse_rate("56GB/s")
    56000000000.0
    """
    number, unit = _split(text, "rate", "56GB/s")
    factor = 1
    if unit:
        stem = unit[:-2] if unit.lower().endswith(("/s", "ps")) else ""
        if stem.endswith("b"):
            raise InputError(f"rate {_shown(text)}: {unit!r} is bits per second to most readers; write bytes, like 56GB/s")
        if stem.lower() not in _BYTE_UNITS or stem.lower() in ("", "k", "m", "g"):
            raise InputError(f"rate {_shown(text)} has an unknown unit {unit!r}; use GB/s, GiB/s, MB/s ...")
        factor = _BYTE_UNITS[stem.lower()]
    value = number * factor
    if not math.isfinite(value) or value < 0:
        raise InputError(f"rate {_shown(text)} is out of range; it must be finite and not negative")
    return value


def parse_time(text: str | int | float) -> float:
    """Seconds of ``text`` (``"5us"``, ``"1.5 ms"``); a bare number is seconds.

    Raises:
        InputError: not a time, negative, or not finite.

    >>> parse_time("5us")
    5e-06
    """
    number, unit = _split(text, "time", "5us")
    if unit and unit not in _TIMES_PER_SECOND:
        raise InputError(f"time {_shown(text)} has an unknown unit {unit!r}; use s, ms, us or ns")
    value = number / _TIMES_PER_SECOND.get(unit, 1.0)
    if not math.isfinite(value) or value < 0:
        raise InputError(f"time {_shown(text)} is out of range; it must be finite and not negative")
    return value


def parse_int_list(
    text: str | int | Sequence[int],
    what: str,
    *,
    low: int = 1,
    high: int = 1_000_000,
    most: int = 10_000,
    example: str = "a list like 1,4,16",
) -> tuple[int, ...]:
    """Whole numbers of ``text`` ("1,2,4" or a sequence), in the given order, duplicates dropped.

    ``example`` completes "write ..." in messages.

    Raises:
        InputError: empty, not whole numbers, outside ``low..high``, or more than ``most`` of them.
    """
    items = _items(text, most)
    empty = [item for item in items if isinstance(item, str) and not item.strip()]
    if not items or len(empty) == len(items) == 1:
        raise InputError(f"{what}: nothing is given; write {example}")
    if len(items) > most:
        raise InputError(f"{what}: at most {most} numbers{_how_many(text)}")
    if empty:
        raise InputError(f"{what} {_shown(text)}: an entry is empty; write {example}")
    found: dict[int, None] = {}
    for item in items:
        number = _whole(item)
        if number is None:
            raise InputError(f"{what} {_shown(item)} is not a whole number; write {example}")
        if not low <= number <= high:
            raise InputError(f"{what} {_digits(item)} is out of range; it goes from {low} to {high}")
        found[number] = None
    return tuple(found)


def _items(text: object, most: int) -> list[object]:
    """The entries of a list in any form; of an endless one, ``most + 1``."""
    if isinstance(text, str):
        return [part.strip() for part in text.split(",")]
    if isinstance(text, bytes | bytearray | Mapping):  # their items are no entries
        return [text]
    try:
        return list(islice(iter(text), most + 1))  # type: ignore[call-overload]  # numpy arrays and ranges too
    except TypeError:
        return [text]


def _how_many(value: object) -> str:
    if isinstance(value, str):
        return f", got {value.count(',') + 1}"
    return f", got {len(value)}" if isinstance(value, Sized) else ""


_HUGE = 10**400
"""Stands for every whole number of more digits than anything here counts (Python refuses to read thousands of them)."""


def _whole(item: object) -> int | None:
    if isinstance(item, bool):
        return None
    if isinstance(item, str):
        match = re.fullmatch(r"([+-]?)0*([0-9]+)", item)
        if match is None:
            return None
        size = int(match.group(2)) if len(match.group(2)) <= 400 else _HUGE
        return -size if match.group(1) == "-" else size
    if getattr(item, "ndim", 0):  # an array is no number, whatever it holds
        return None
    try:
        number = int(item)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == item else None


def _digits(item: object) -> str:
    """A whole number as it was written, without quotes."""
    text = item.lstrip("+") if isinstance(item, str) else _shown(item)
    return text if len(text) <= 42 else text[:37] + "..."


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its word.

    >>> counted(1, "GPU"), counted(8, "GPU"), counted(0, "entry", "entries")
    ('1 GPU', '8 GPUs', '0 entries')
    """
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


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
