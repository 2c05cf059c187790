"""What the constants leave: a smooth relative error over size, op, ranks and protocol (a Gaussian process on ln(time)).

Time is not monotone in size, and no cost model has every kink of a library. What a measured curve shows beyond the model is carried
to other sizes, ops and numbers of ranks as far as they are like it. Two parts, both in standard deviations of ln(time): *long*, how
far a whole curve lies off, and *short*, bumps of an octave or two. How much one op teaches of another follows from what they share: an
AllReduce is a ReduceScatter and an AllGather on the same ring, so those move together; grouped sends are another kernel. The figures
below are judgements in round numbers, the same for every box; that they are honest is shown by the coverage of left-out points
(validation/CALIBRATION.md), and ``scale`` of each calibration widens or narrows all of them for its box.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pcie_sim.calibration.model import COPY, FLOOR, Rows
from pcie_sim.specs.ops import Array

LONG, SHORT = 0.06, 0.07
"""Standard deviations of ln(time) of the two parts."""
LONG_OCTAVES, SHORT_OCTAVES = 10.0, 1.5
"""Sizes so many octaves apart share 1/e of a part."""
RANK_OCTAVES = 3.0
"""Numbers of ranks a factor 2^x apart share exp(-x / this)."""
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
CHAINS = ("broadcast", "reduce")
SENDS = ("all_to_all", "send_recv")
SAME_FAMILY = {"rings": 0.85, "chains": 0.6, "sends": 0.5}
OTHER_FAMILY = 0.25
RINGS_AND_CHAINS = 0.5
OTHER_PROTOCOL = 0.35
FLOOR_SIGMA = 0.04
"""Spread of the issue floor from size to size; it teaches nothing of the wire."""


@dataclass(frozen=True)
class Taught:
    """What the misfit adds to ln(time) of new points, and its standard deviation."""

    mean: Array
    sigma: Array


def _family(op: str) -> str:
    if op in RINGS:
        return "rings"
    if op in CHAINS:
        return "chains"
    return "sends" if op in SENDS else op


def _between(a: str, b: str) -> float:
    """How much op ``a`` teaches of op ``b``."""
    if a == b:
        return 1.0
    first, second = _family(a), _family(b)
    if first == second:
        return SAME_FAMILY[first]
    if {first, second} == {"rings", "chains"}:
        return RINGS_AND_CHAINS
    return 0.0 if COPY in (a, b) else OTHER_FAMILY


def _table(a: tuple[str, ...], b: tuple[str, ...], value: dict[tuple[str, str], float] | None = None, *, same: float = 1.0) -> Array:
    """Pairwise figures of two lists of words: ``value`` by pair, else ``same`` where equal and OTHER_PROTOCOL where not."""
    left, right = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    small = np.array([[(value or {}).get((x, y), same if x == y else OTHER_PROTOCOL) for y in right] for x in left])
    rows = np.array([left.index(x) for x in a], dtype=int)
    columns = np.array([right.index(y) for y in b], dtype=int)
    return np.asarray(small[np.ix_(rows, columns)])


def covariance(a: Rows, b: Rows) -> Array:
    """Prior covariance of the misfit between the points of ``a`` and of ``b``, ``scale`` 1."""
    ops = {(x, y): _between(x, y) for x in set(a.op) for y in set(b.op)}
    shared = _table(a.op, b.op, ops)
    words = {(x, y): 0.0 for x in set(a.regime) for y in set(b.regime) if x != y and ({x, y} & {FLOOR, COPY})}
    shared = shared * _table(a.regime, b.regime, words) * _table(a.transport, b.transport)
    ranks = np.abs(np.log2(a.ranks)[:, None] - np.log2(b.ranks)[None, :]) / RANK_OCTAVES
    apart = np.abs(np.log2(a.size)[:, None] - np.log2(b.size)[None, :])
    long = LONG**2 * np.exp(-apart / LONG_OCTAVES)
    short = SHORT**2 * np.exp(-apart / SHORT_OCTAVES)
    found = (long + short) * np.exp(-ranks) * shared
    floors = np.array([word == FLOOR for word in a.regime])[:, None] & np.array([word == FLOOR for word in b.regime])[None, :]
    if np.any(floors):
        ratio = FLOOR_SIGMA**2 / (LONG**2 + SHORT**2)
        found = np.where(floors, found * ratio, found)
    return np.asarray(found)


@dataclass(frozen=True, eq=False)
class Left:
    """The misfit of one calibrated box, ready to teach: ``rows`` and ``error`` (measured less model, ln) of the points it is known at."""

    rows: Rows
    error: Array
    noise: Array
    scale: float

    @cached_property
    def _inverse(self) -> Array:
        """Of the errors' covariance."""
        return np.asarray(np.linalg.inv(self.scale**2 * covariance(self.rows, self.rows) + np.diag(self.noise**2)))

    def teach(self, asked: Rows) -> Taught:
        """Mean and standard deviation of ln(measured / model) at other points (run-to-run noise of a measurement apart)."""
        across = self.scale**2 * covariance(asked, self.rows)
        mean = across @ (self._inverse @ self.error)
        alone = self.scale**2 * np.diagonal(covariance(asked, asked))
        variance = alone - np.einsum("ij,jk,ik->i", across, self._inverse, across, optimize=True)
        return Taught(mean, np.sqrt(np.maximum(variance, 0.0)))
