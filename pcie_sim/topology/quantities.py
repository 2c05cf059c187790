"""Sums, products and minima of :class:`~pcie_sim.specs.base.Quantity`, with their 80 % ranges and evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pcie_sim.evidence import label_of_sum, weakest
from pcie_sim.specs.base import Quantity

_TAIL = 1.2815515655446004
"""Standard normal deviate of the 10 % and 90 % points."""
_MAX_SOURCE = 3900
_SUMS: dict[tuple[str, tuple[int, ...]], tuple[tuple[Quantity, ...], Quantity]] = {}
"""Sums by the identity of their parts (kept alive beside them): the pairs of a box add the same few numbers again and again."""
_MOST_SUMS = 4096


def _sources(parts: Sequence[Quantity]) -> str:
    text = "; ".join(dict.fromkeys(part.source for part in parts))
    return text if len(text) <= _MAX_SOURCE else text[: _MAX_SOURCE - 3] + "..."


def bounds(part: Quantity) -> tuple[float, float]:
    """The 10 % and 90 % points: as given, else from the label's default spread."""
    spread = math.exp(_TAIL * part.sigma_log)
    low = part.low if part.low is not None else part.value / spread
    high = part.high if part.high is not None else part.value * spread
    return low, high


def total(parts: Sequence[Quantity], unit: str) -> Quantity:
    """The sum of independent ``parts`` (at least one); ranges add in quadrature, the label by design 4.6."""
    if len(parts) == 1:
        return parts[0]
    key = unit, tuple([id(part) for part in parts])
    known = _SUMS.get(key)
    if known is None:
        if len(_SUMS) >= _MOST_SUMS:
            _SUMS.clear()
        known = _SUMS[key] = tuple(parts), _total(parts, unit)
    return known[1]


def _total(parts: Sequence[Quantity], unit: str) -> Quantity:
    value = sum(part.value for part in parts)
    ranges = [bounds(part) for part in parts]
    down = math.sqrt(sum((part.value - low) ** 2 for part, (low, _) in zip(parts, ranges, strict=True)))
    up = math.sqrt(sum((high - part.value) ** 2 for part, (_, high) in zip(parts, ranges, strict=True)))
    return Quantity(
        value=value,
        unit=unit,
        evidence=label_of_sum((part.value, part.evidence) for part in parts),
        source=_sources(parts),
        low=value - down,
        high=value + up,
    )


def product(value: float, unit: str, factors: Sequence[Quantity], spreads: Sequence[tuple[float, float]]) -> Quantity:
    """``value`` as the product of ``factors``; ``spreads`` are the (low, high) ratios to the value of the uncertain ones."""
    down = math.sqrt(sum(math.log(low) ** 2 for low, _ in spreads))
    up = math.sqrt(sum(math.log(high) ** 2 for _, high in spreads))
    return Quantity(
        value=value,
        unit=unit,
        evidence=weakest(factor.evidence for factor in factors),
        source=_sources(factors),
        low=value * math.exp(-down),
        high=value * math.exp(up),
    )


def scaled(part: Quantity, factor: float) -> Quantity:
    """``part`` times an exact ``factor``."""
    if factor == 1:
        return part
    return part.model_copy(
        update={
            "value": part.value * factor,
            "low": None if part.low is None else part.low * factor,
            "high": None if part.high is None else part.high * factor,
        }
    )


def smallest(parts: Sequence[Quantity]) -> Quantity | None:
    """The part with the smallest value (the first of equals); None when there are none."""
    return min(parts, key=lambda part: part.value, default=None)
