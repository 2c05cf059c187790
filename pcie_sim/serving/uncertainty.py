"""Error bars: every part of a step varies with its own uncertainty, parts of one cause vary together.

A cause (network latency, network bandwidth, one kernel class, CPU cost of a hop ...) has one factor ``exp(sigma z)``; strategies
on one box share it, so their ranking is far less uncertain than their times. ``z`` are stratified normal draws from a seed
that depends on the cause's name only: results are deterministic.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from pcie_sim.specs.ops import Array

DRAWS = 256


@lru_cache(maxsize=512)
def draws(cause: str) -> Array:
    """Stratified standard-normal draws of one cause, shape (DRAWS,)."""
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)]) if not _BASE else _BASE[0]
    if not _BASE:
        _BASE.append(quantiles)
    rng = np.random.default_rng(zlib.crc32(cause.encode()))
    return np.asarray(rng.permutation(quantiles))


_BASE: list[Array] = []


@dataclass(eq=False)
class Causes:
    """Time by cause: arrays of one shape, with time-weighted sigmas."""

    time: dict[str, Array] = field(default_factory=dict)
    weighted: dict[str, Array] = field(default_factory=dict)

    def add(self, cause: str, time: Array, sigma: Array | float) -> None:
        """Book ``time`` seconds that vary with ``cause`` by ``sigma`` (standard deviation of the logarithm)."""
        if cause in self.time:
            self.time[cause] = self.time[cause] + time
            self.weighted[cause] = self.weighted[cause] + time * sigma
        else:
            self.time[cause] = time
            self.weighted[cause] = time * sigma

    def scaled(self, factor: Array) -> Causes:
        """The same with every time multiplied."""
        return Causes({k: v * factor for k, v in self.time.items()}, {k: v * factor for k, v in self.weighted.items()})

    def sigma(self, cause: str) -> Array:
        """Sigma of a cause, shape of its time."""
        time = self.time[cause]
        return np.asarray(np.divide(self.weighted[cause], time, out=np.zeros_like(time), where=time > 0))

    def samples(self, *, common: Mapping[str, float] | None = None) -> Array:
        """Total time in each plausible world, shape (DRAWS, ...); ``common``: causes that scale the whole sum."""
        first = next(iter(self.time.values()))
        total = np.zeros((DRAWS, *first.shape))
        for cause, time in self.time.items():
            if not np.any(time):
                continue
            z = draws(cause).reshape((DRAWS,) + (1,) * time.ndim)
            total += time * np.exp(self.sigma(cause) * z)
        for cause, sigma in (common or {}).items():
            total *= np.exp(sigma * draws(cause)).reshape((DRAWS,) + (1,) * first.ndim)
        return total
