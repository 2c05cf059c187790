"""The five evidence labels, best to weakest, and how a sum of parts is labelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

Evidence = Literal["measured", "fitted", "profile", "nominal", "assumed"]
"""measured: interpolated inside a measured curve of this box; fitted: to this box's own measurements; profile: fitted to
a similar public box or to published tables of the same GPU; nominal: datasheet with a default efficiency; assumed: no
source for this box."""

LABELS: tuple[Evidence, ...] = get_args(Evidence)
MINOR_SHARE = 0.05
"""A part below this share of a sum does not decide the sum's label (design: 'at least 5 % of it')."""

_RANK = {label: rank for rank, label in enumerate(LABELS)}


def weakest(labels: Iterable[Evidence]) -> Evidence:
    """The weakest of ``labels``; ``measured`` when there are none."""
    return max(labels, key=_RANK.__getitem__, default="measured")


def share_by_label(parts: Iterable[tuple[float, Evidence]]) -> dict[Evidence, float]:
    """Share of the total (0..1) that each label carries; parts of zero or less count for nothing."""
    totals: dict[Evidence, float] = {}
    for size, label in parts:
        if size > 0:
            totals[label] = totals.get(label, 0.0) + size
    whole = sum(totals.values())
    if whole <= 0:
        return {}
    return {label: totals[label] / whole for label in LABELS if label in totals}


def label_of_sum(parts: Iterable[tuple[float, Evidence]] | Mapping[Evidence, float]) -> Evidence:
    """The label of a sum: the weakest among the labels that make at least 5 % of it.

    Parts of one label count together, so that a sum of many small assumed parts is assumed.
    """
    pairs = ((size, label) for label, size in parts.items()) if isinstance(parts, Mapping) else parts
    shares = share_by_label(pairs)
    return weakest(label for label, share in shares.items() if share >= MINOR_SHARE)
