"""Which experts a batch touches: popularity, expected distinct experts, and the fullest rank under expert parallelism.

Uniform and independent tokens: ``E[D] = E (1 - (1 - k/E)^B)`` (exact). With marginals p_e (sum k):
``E[D] = sum_e 1 - (1 - p_e)^B``.

Fullest of n ranks: with experts placed on ranks at random, a set of d chosen experts falls on them by the multivariate
hypergeometric law, whatever the popularity, so the expected maximum follows exactly from d = E[D] (its spread is small
and its effect second order). Token-expert pairs per rank are sums of many small parts: mean plus the expected maximum
of n equally correlated normals with the placement's variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pcie_sim.errors import InputError


@dataclass(frozen=True)
class Popularity:
    """How often experts are chosen: ``uniform``, or ``zipf`` with exponent ``skew``, placed on ranks at random."""

    kind: str = "uniform"
    skew: float = 0.0

    def weights(self, experts: int) -> NDArray[np.float64]:
        """Relative weights of the experts, sum 1."""
        if self.kind == "uniform" or self.skew == 0.0:
            return np.full(experts, 1.0 / experts)
        raw = np.arange(1, experts + 1, dtype=np.float64) ** -self.skew
        return np.asarray(raw / raw.sum())


def parse_popularity(text: str) -> Popularity:
    """``uniform`` or ``zipf:S`` with 0 <= S <= 3.

    Raises:
        InputError: anything else.
    """
    low = str(text).strip().lower()
    if low == "uniform":
        return Popularity()
    if low.startswith("zipf:"):
        try:
            skew = float(low[5:]) if low.isascii() else math.nan  # Python reads the digits of every script
        except ValueError:
            skew = math.nan
        if 0 <= skew <= 3:
            return Popularity("zipf", skew)
    raise InputError(f"popularity {str(text)[:30]!r} is not understood; use uniform or zipf:1.0 (0 to 3)")


@lru_cache(maxsize=256)
def marginals(experts: int, top_k: int, popularity: Popularity) -> NDArray[np.float64]:
    """Chance p_e that one token chooses expert e (sum top_k), sampling without replacement by weight.

    Uniform: k/E exactly. Skewed: the conditional-Poisson approximation ``p = 1 - exp(-t w)`` with t solved so that the
    sum is k (within 1 % of simulation for the shapes in use).
    """
    weights = popularity.weights(experts)
    if popularity.kind == "uniform" or popularity.skew == 0.0:
        return np.full(experts, top_k / experts)
    if top_k >= experts:
        return np.ones(experts)
    low, high = 0.0, 1.0
    while np.sum(-np.expm1(-high * weights)) < top_k:
        high *= 2
    for _ in range(100):
        mid = 0.5 * (low + high)
        if np.sum(-np.expm1(-mid * weights)) < top_k:
            low = mid
        else:
            high = mid
    return np.asarray(-np.expm1(-high * weights))


def expected_distinct(
    tokens: NDArray[np.float64] | float, experts: int, top_k: int, popularity: Popularity = Popularity()
) -> NDArray[np.float64]:
    """Expected number of distinct experts that ``tokens`` independent tokens choose (array in, array out).

    >>> round(float(expected_distinct(1, 384, 8)), 6), round(float(expected_distinct(64, 384, 8)), 1)
    (8.0, 284.2)
    """
    batch = np.asarray(tokens, dtype=np.float64)
    if popularity.kind == "uniform" or popularity.skew == 0.0:
        miss = 1.0 - top_k / experts
        return np.asarray(experts * (1.0 - np.power(miss, batch)))
    miss_each = 1.0 - marginals(experts, top_k, popularity)
    return np.asarray(np.sum(1.0 - np.power(miss_each, batch[..., None]), axis=-1))


@dataclass(frozen=True)
class RankLoad:
    """Expected load of the ranks of an expert-parallel group, one entry per batch size asked."""

    mean_distinct: NDArray[np.float64]
    fullest_distinct: NDArray[np.float64]
    """Expected distinct experts on the rank that has most of them."""
    fullest_slots: NDArray[np.float64]
    """Expected token-expert pairs on the rank that has most of them."""


def rank_load(tokens: NDArray[np.float64] | float, experts: int, top_k: int, ranks: int, popularity: Popularity = Popularity()) -> RankLoad:
    """Mean and fullest rank when ``experts`` sit on ``ranks`` ranks in equal parts, for each batch size in ``tokens``.

    Raises:
        InputError: the experts do not divide over the ranks.

    >>> load = rank_load(1.0, 384, 8, 8)
    >>> round(float(load.mean_distinct), 2), round(float(load.fullest_distinct), 2)
    (1.0, 2.57)
    """
    if ranks < 1 or experts % ranks:
        raise InputError(f"{experts} experts do not divide over {ranks} ranks")
    batch = np.asarray(tokens, dtype=np.float64)
    distinct = expected_distinct(batch, experts, top_k, popularity)
    if ranks == 1:
        return RankLoad(distinct, distinct, batch * top_k)
    fullest = np.empty(batch.shape)
    for index, value in np.ndenumerate(distinct):
        fullest[index] = _fullest_of(float(value), experts, ranks)
    chance = marginals(experts, top_k, popularity)
    spread = batch * float(np.sum(chance * (1 - chance))) + batch**2 * float(np.sum(chance**2)) - (batch * top_k) ** 2 / experts
    variance = (1 / ranks) * (1 - 1 / ranks) * experts / max(experts - 1, 1) * np.maximum(spread, 0.0)
    peak = np.sqrt(variance * ranks / (ranks - 1)) * expected_normal_max(ranks)
    slots = np.clip(batch * top_k / ranks + peak, fullest, batch * min(top_k, experts // ranks))
    return RankLoad(distinct / ranks, fullest, slots)


def _fullest_of(distinct: float, experts: int, ranks: int) -> float:
    """:func:`hypergeometric_max` between whole numbers."""
    low = min(math.floor(distinct + 1e-9), experts)
    part = distinct - low
    at_low = hypergeometric_max(experts, low, ranks)
    if part <= 1e-9 or low >= experts:
        return at_low
    return at_low + part * (hypergeometric_max(experts, low + 1, ranks) - at_low)


@lru_cache(maxsize=4096)
def hypergeometric_max(experts: int, chosen: int, ranks: int) -> float:
    """Expected largest count when ``chosen`` of ``experts`` experts, drawn without replacement, sit on ``ranks`` equal ranks.

    ``E[max] = sum over m of P(max > m)``; ``P(max <= m)`` is a coefficient of the n-th power of the truncated binomial
    polynomial, divided by the binomial chance of ``chosen`` in all (the tilt cancels, it only keeps numbers near 1).
    """
    if chosen <= 0:
        return 0.0
    size = experts // ranks
    if chosen >= experts:
        return float(size)
    tilt = chosen / experts
    log_pmf = [_log_binomial(size, t, tilt) for t in range(size + 1)]
    pmf = np.exp(np.array(log_pmf))
    whole = math.exp(_log_binomial(size * ranks, chosen, tilt))
    floor = -(-chosen // ranks)  # the fullest has at least the mean, rounded up
    expected = float(floor)
    for limit in range(floor, min(chosen, size)):
        poly = _power(pmf[: limit + 1], ranks, chosen)
        at_most = float(poly[chosen]) / whole if chosen < len(poly) else 0.0
        expected += max(0.0, 1.0 - at_most)
        if at_most > 1 - 1e-9:
            break
    return expected


def _log_binomial(n: int, k: int, p: float) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)


def _power(poly: NDArray[np.float64], exponent: int, degree: int) -> NDArray[np.float64]:
    """``poly`` to the ``exponent``, terms above ``degree`` dropped."""
    result = np.ones(1)
    base = poly
    while exponent:
        if exponent & 1:
            result = np.convolve(result, base)[: degree + 1]
        exponent >>= 1
        if exponent:
            base = np.convolve(base, base)[: degree + 1]
    return result


@lru_cache(maxsize=64)
def expected_normal_max(count: int) -> float:
    """Expected maximum of ``count`` independent standard normals, by quadrature.

    >>> round(expected_normal_max(2), 4), round(expected_normal_max(8), 4)
    (0.5642, 1.4236)
    """
    x = np.linspace(-8.0, 8.0, 1601)
    cdf = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return float(np.sum(x * count * cdf ** (count - 1) * density) * (x[1] - x[0]))


def distinct_destinations(experts: int, top_k: int, ranks: int) -> float:
    """Expected number of distinct ranks that hold one token's experts, uniform routing, its own rank included.

    ``n (1 - C(E - E/n, k) / C(E, k))``.

    >>> round(distinct_destinations(384, 8, 8), 2)
    5.28
    """
    return ranks * (1.0 - math.comb(experts - experts // ranks, top_k) / math.comb(experts, top_k))


def dispatch_fractions(
    experts: int,
    top_k: int,
    ranks: int,
    popularity: Popularity = Popularity(),
    *,
    placement: Sequence[int] | None = None,
    per_expert: bool = False,
) -> tuple[tuple[float, ...], ...]:
    """Expected All-to-All of an expert-parallel dispatch: ``[i][j]`` is the share of rank i's copies that goes to rank j.

    Rows add up to 1 (the message is all copies of a rank, those that stay with it on the diagonal included). Tokens choose their
    experts whatever rank they are on, so all rows are alike.

    Args:
        placement: the rank of each expert, the most popular first; None deals them out in turn (0, 1 ... n - 1, 0 ...).
        per_expert: one copy per chosen expert; else one per *distinct* rank that holds some of a token's experts (as DeepEP
            sends).

    Raises:
        InputError: top_k outside 1 to experts, no rank, or a placement of another length or on ranks that do not exist.

    Chance that a rank is hit: choosing k without replacement by weight is taking the first k of independent exponential clocks with
    the weights as rates; the rank is missed when the k-th clock outside it rings before its own first one. With T that k-th time, the
    chance of a miss is ``E[exp(-W T)]``, W being the rank's total weight: a one-dimensional integral over the Poisson-binomial law
    of the clocks outside. (Uniform: the same as ``C(E - E/n, k) / C(E, k)``.)

    >>> [round(share, 3) for share in dispatch_fractions(8, 2, 4, Popularity("zipf", 1.0))[0]]
    [0.384, 0.262, 0.196, 0.158]
    """
    if not 1 <= top_k <= experts or ranks < 1:
        raise InputError(f"top {top_k} of {experts} experts over {ranks} ranks: give 1 <= top_k <= experts and at least one rank")
    at = np.asarray(placement if placement is not None else np.arange(experts) % ranks)
    if at.shape != (experts,) or at.min() < 0 or at.max() >= ranks:
        raise InputError(f"placement: give {experts} rank numbers from 0 to {ranks - 1}, one per expert")
    weights = popularity.weights(experts)
    on_rank = at == np.arange(ranks)[:, None]
    copies = on_rank @ _hit_chances(weights, top_k, np.eye(experts, dtype=bool)) if per_expert else _hit_chances(weights, top_k, on_rank)
    row = tuple(float(share) for share in copies / copies.sum())
    return (row,) * ranks


def _hit_chances(weights: NDArray[np.float64], top_k: int, sets: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Chance that one of each set (sets x experts) is among ``top_k`` experts chosen without replacement by weight."""
    own = sets @ weights
    # u = exp(-own t): miss = integral over u in (0, 1) of P(at least top_k of the clocks outside have rung by t(u))
    nodes, parts = _gauss_legendre()
    times = -np.log(nodes)[:, None] / np.where(own > 0, own, 1.0)
    fewer = np.zeros((top_k, len(nodes), len(sets)))  # the law of how many have rung, up to top_k - 1
    fewer[0] = 1.0
    for weight, inside in zip(weights, sets.T, strict=True):
        moved = fewer * np.where(inside, 0.0, -np.expm1(-times * weight))
        fewer -= moved
        fewer[1:] += moved[:-1]
    return np.where(own > 0, parts @ fewer.sum(axis=0), 0.0)


@lru_cache(maxsize=1)
def _gauss_legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights on (0, 1)."""
    nodes, parts = np.polynomial.legendre.leggauss(200)
    return np.asarray(0.5 * (nodes + 1.0)), np.asarray(0.5 * parts)
