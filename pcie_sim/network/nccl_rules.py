"""The library's own constants at one version: the tuning of its part with the changes of older versions applied."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pcie_sim.catalog import load_typed_part
from pcie_sim.specs.part import LibraryPart, LibraryTuning

RowT = TypeVar("RowT")


def version_pair(text: str) -> tuple[int, int]:
    """``2.28.9`` as (2, 28)."""
    numbers = [int(word) for word in text.split(".")]
    return numbers[0], numbers[1]


@lru_cache(maxsize=64)
def rules(part: str, version: str) -> LibraryTuning | None:
    """The tuning of library ``part`` at ``version``; None when the part has none (its choices are not modelled).

    Changes are applied from the newest back: each replaces what was different before its version.
    """
    tuning = load_typed_part(part, LibraryPart).tuning
    if tuning is None:
        return None
    asked = version_pair(version)
    older = sorted(
        (change for change in tuning.changes if asked < version_pair(change.before)), key=lambda c: version_pair(c.before), reverse=True
    )
    if not older:
        return tuning
    data = tuning.model_dump()
    for change in older:
        data = _merged(data, change.set)
    return LibraryTuning.model_validate(data)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(old)
    for key, value in new.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = _merged(found[key], value)
        else:
            found[key] = value
    return found


def capability(text: str) -> tuple[int, int]:
    """``8.9`` as (8, 9); (0, 0) for GPUs that have none.

    >>> capability("12.0"), capability("gfx90a")
    ((12, 0), (0, 0))
    """
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def by_capability(table: Mapping[str, RowT], asked: tuple[int, int]) -> RowT:
    """The row of the highest compute capability that is not above ``asked`` (keys such as "0" and "9.0")."""
    keys = sorted(table, key=_key)
    fits = [key for key in keys if _key(key) <= asked]
    return table[fits[-1] if fits else keys[0]]


def _key(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)
