"""Numbers for people, and the words that go with an answer."""

from __future__ import annotations

from collections.abc import Mapping

from pcie_sim.specs.base import Quantity
from pcie_sim.units import format_rate, format_time

BUCKETS = {
    "attention": "attention",
    "experts": "experts",
    "dense": "dense layers",
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "All-to-All",
    "send_recv": "pipeline hops",
    "launch": "kernel launches",
    "bubble": "pipeline bubble",
    "sampling": "sampling",
    "other": "other",
}
"""Keys of a breakdown in words."""
MOE_WORDS = {"allreduce": "AllReduce", "ag_rs": "AllGather + ReduceScatter", "a2a": "All-to-All dispatch and combine"}


def percent(share: float, *, digits: int = 0, sign: bool = False) -> str:
    """``0.123`` as ``12%``.

    >>> percent(0.123), percent(-0.5, sign=True), percent(12.0, sign=True)
    ('12%', '-50%', '+1200%')
    """
    return f"{share * 100:{'+' if sign else ''}.{digits}f}%"


def settings_text(env: Mapping[str, str]) -> str:
    """``NAME=VALUE`` of every setting; ``(none)`` for an empty environment."""
    return " ".join(f"{key}={value}" for key, value in env.items()) or "(none)"


def quantity_text(quantity: Quantity) -> str:
    """Value, unit and plausible range: ``56.1 GB/s (48 to 60)``."""
    if quantity.unit == "B/s":
        text, scale = format_rate(quantity.value), 1e9 if quantity.value < 1e12 else 1e12
    elif quantity.unit == "s":
        text, scale = format_time(quantity.value), _time_scale(quantity.value)
    else:
        text, scale = f"{quantity.value:.6g}" + ("" if quantity.unit == "1" else f" {quantity.unit}"), 1.0
    if quantity.low is None and quantity.high is None:
        return text
    ends = [f"{end / scale:.3g}" if end is not None else "?" for end in (quantity.low, quantity.high)]
    if quantity.high is None:
        return f"{text} (from {ends[0]})"
    if quantity.low is None:
        return f"{text} (to {ends[1]})"
    return f"{text} ({ends[0]} to {ends[1]})"


def _time_scale(value: float) -> float:
    return next((scale for scale in (1.0, 1e-3, 1e-6) if value >= scale), 1e-9)
