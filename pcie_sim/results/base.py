"""What every result can do: become plain data and JSON, without NaN, numbers rounded to nine significant digits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """``value`` as JSON types: tuples to lists, numpy numbers to Python ones, NaN and infinity to None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "to_dict"):
        return value.to_dict()
    raise TypeError(f"{type(value).__name__} has no JSON form")


class Result:
    """Base of the answers. Subclasses are frozen dataclasses and define :meth:`to_dict`."""

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data, in its published schema."""
        raise NotImplementedError

    def to_records(self) -> list[dict[str, Any]]:
        """The answer as a list of flat-enough dicts, one a row (pandas and polars take it)."""
        return [self.to_dict()]

    def to_json(self, *, indent: int | None = 2) -> str:
        """:meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)
