"""Expected distinct experts and the fullest rank, against simulation, full enumeration and closed forms."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pcie_sim.errors import InputError
from pcie_sim.specs.routing import (
    Popularity,
    _hit_chances,
    dispatch_fractions,
    distinct_destinations,
    expected_distinct,
    expected_normal_max,
    hypergeometric_max,
    marginals,
    parse_popularity,
    rank_load,
)

EXPERTS, TOP_K, RANKS = 384, 8, 8  # Kimi K2 over eight ranks

# An independent Monte-Carlo of Kimi K2's shape (uniform routing): tokens, distinct experts, distinct on the fullest rank
TABLE = [
    (1, 8.0, 2.6),
    (2, 15.8, 4.11),
    (4, 31.0, 6.71),
    (8, 59.5, 11.0),
    (16, 109.8, 18.2),
    (32, 188.2, 28.3),
    (64, 284.2, 39.5),
    (128, 358.1, 46.9),
    (256, 382.2, 48.0),
]


@pytest.mark.parametrize(("tokens", "distinct", "fullest"), TABLE)
def test_kimi_k2_over_eight_ranks(tokens: int, distinct: float, fullest: float) -> None:
    load = rank_load(tokens, EXPERTS, TOP_K, RANKS)
    assert float(expected_distinct(tokens, EXPERTS, TOP_K)) == pytest.approx(distinct, rel=0.01)
    assert float(load.mean_distinct) == pytest.approx(distinct / RANKS, rel=0.01)
    assert float(load.fullest_distinct) == pytest.approx(fullest, rel=0.03)


def simulate(popularity: Popularity, batches: tuple[int, ...], draws: int) -> dict[int, tuple[float, float, float]]:
    """Tokens -> mean distinct experts, distinct on the fullest rank, token-expert pairs on the fullest rank.

    Every draw places the experts on ranks at random; a token takes the top k of ln(weight) + Gumbel noise, which is
    sampling without replacement by weight.
    """
    rng = np.random.default_rng(20240607)
    weight = np.log(popularity.weights(EXPERTS))
    place = rng.permuted(np.tile(np.arange(EXPERTS) % RANKS, (draws, 1)), axis=1)
    hit = np.zeros((draws, EXPERTS), dtype=bool)
    slots = np.zeros((draws, RANKS))
    row = np.arange(draws)[:, None]
    found = {}
    for token in range(1, max(batches) + 1):
        keys = np.log(rng.exponential(size=(draws, EXPERTS))) - weight
        chosen = np.argpartition(keys, TOP_K - 1, axis=1)[:, :TOP_K]
        hit[row, chosen] = True
        np.add.at(slots, (row, place[row, chosen]), 1)
        if token in batches:
            held = np.stack([(hit & (place == rank)).sum(axis=1) for rank in range(RANKS)], axis=1)
            found[token] = (float(hit.sum(axis=1).mean()), float(held.max(axis=1).mean()), float(slots.max(axis=1).mean()))
    return found


@pytest.mark.parametrize("text", ["uniform", "zipf:1"])
def test_against_a_simulation(text: str) -> None:
    popularity = parse_popularity(text)
    for batches, draws in (((1, 2, 4, 8), 3000), ((16, 64), 400)):
        for tokens, (distinct, fullest, slots) in simulate(popularity, batches, draws).items():
            load = rank_load(tokens, EXPERTS, TOP_K, RANKS, popularity)
            assert float(load.mean_distinct) * RANKS == pytest.approx(distinct, rel=0.01)
            assert float(load.fullest_distinct) == pytest.approx(fullest, rel=0.02)
            assert float(load.fullest_slots) == pytest.approx(slots, rel=0.08)


def test_zipf_marginals_against_a_simulation() -> None:
    popularity = Popularity("zipf", 1.0)
    rng = np.random.default_rng(1)
    keys = np.log(rng.exponential(size=(20_000, 64))) - np.log(popularity.weights(64))
    chosen = np.argpartition(keys, 3, axis=1)[:, :4]
    seen = np.bincount(chosen.ravel(), minlength=64) / 20_000
    assert marginals(64, 4, popularity) == pytest.approx(seen, abs=0.012)


def enumerate_all(tokens: int) -> tuple[Fraction, Fraction]:
    """6 experts, top 2, 3 ranks of 2 experts, every choice equally likely: exact mean of distinct, and of the fullest rank's."""
    choices = list(itertools.combinations(range(6), 2))
    distinct = fullest = 0
    for picks in itertools.product(choices, repeat=tokens):
        experts = set().union(*picks)
        distinct += len(experts)
        fullest += max(sum(1 for expert in experts if expert // 2 == rank) for rank in range(3))
    return Fraction(distinct, len(choices) ** tokens), Fraction(fullest, len(choices) ** tokens)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_small_case_by_full_enumeration(tokens: int) -> None:
    distinct, fullest = enumerate_all(tokens)
    load = rank_load(tokens, 6, 2, 3)
    assert float(expected_distinct(tokens, 6, 2)) == pytest.approx(float(distinct), rel=1e-12)
    assert float(load.mean_distinct) == pytest.approx(float(distinct) / 3, rel=1e-12)
    # one token chooses exactly two experts: exact; more choose a varying number, of which only the mean is followed
    assert float(load.fullest_distinct) == pytest.approx(float(fullest), rel={1: 1e-12, 2: 0.02, 3: 0.04}[tokens])


@pytest.mark.parametrize(("experts", "ranks"), [(6, 3), (8, 2), (8, 4), (9, 3), (6, 6), (5, 1)])
def test_hypergeometric_max_by_full_enumeration(experts: int, ranks: int) -> None:
    size = experts // ranks
    for chosen in range(experts + 1):
        sets = list(itertools.combinations(range(experts), chosen))
        total = sum(max(sum(1 for expert in picked if expert // size == rank) for rank in range(ranks)) for picked in sets)
        assert hypergeometric_max(experts, chosen, ranks) == pytest.approx(total / len(sets), rel=1e-9)


def arrays(values: list[float]) -> NDArray[np.float64]:
    return np.array(values)


shapes = st.sampled_from([(8, 2, 4), (16, 2, 8), (64, 6, 8), (128, 8, 4), (384, 8, 8), (60, 4, 3), (256, 8, 2), (16, 1, 16), (8, 8, 4)])
popularities = st.sampled_from([Popularity(), Popularity("zipf", 0.5), Popularity("zipf", 1.0), Popularity("zipf", 3.0)])


@given(shapes, popularities)
def test_monotone_in_tokens_and_bounded_by_the_local_experts(shape: tuple[int, int, int], popularity: Popularity) -> None:
    experts, top_k, ranks = shape
    tokens = arrays([1, 2, 3, 5, 8, 13, 64, 1000, 1e6])
    load = rank_load(tokens, experts, top_k, ranks, popularity)
    distinct = expected_distinct(tokens, experts, top_k, popularity)
    for values in (distinct, load.mean_distinct, load.fullest_distinct, load.fullest_slots):
        assert values.shape == tokens.shape
        assert np.all(np.diff(values) >= -1e-9)
    assert float(distinct[0]) == pytest.approx(top_k, rel=1e-6)
    assert np.all(distinct <= np.minimum(experts, tokens * top_k) + 1e-6)
    assert np.all(load.mean_distinct <= load.fullest_distinct + 1e-9)
    assert np.all(load.fullest_distinct <= experts // ranks + 1e-9)
    assert np.all(load.fullest_slots >= tokens * top_k / ranks - 1e-9)
    assert np.all(load.fullest_slots <= tokens * min(top_k, experts // ranks) + 1e-9)


@given(st.integers(1, 4096), popularities)
def test_one_rank_holds_everything(tokens: int, popularity: Popularity) -> None:
    load = rank_load(tokens, 64, 6, 1, popularity)
    assert load.fullest_distinct == load.mean_distinct == expected_distinct(tokens, 64, 6, popularity)
    assert float(load.fullest_slots) == tokens * 6


def test_arrays_of_any_shape_agree_with_single_values() -> None:
    tokens = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 2.5]])
    load = rank_load(tokens, 64, 6, 8, Popularity("zipf", 1.0))
    for place, value in np.ndenumerate(tokens):
        single = rank_load(float(value), 64, 6, 8, Popularity("zipf", 1.0))
        for name in ("mean_distinct", "fullest_distinct", "fullest_slots"):
            assert getattr(load, name)[place] == pytest.approx(float(getattr(single, name)), rel=1e-12)
    assert rank_load(np.zeros(2), 64, 6, 8).fullest_distinct == pytest.approx(np.zeros(2))


@given(st.floats(0, 3))
def test_skew_concentrates(skew: float) -> None:
    popularity = Popularity("zipf", skew)
    chance = marginals(64, 6, popularity)
    assert np.sum(chance) == pytest.approx(6, rel=1e-9)
    assert np.all(np.diff(chance) <= 1e-12)
    assert np.all((chance > 0) & (chance <= 1))
    assert float(expected_distinct(16, 64, 6, popularity)) <= float(expected_distinct(16, 64, 6)) + 1e-9


@pytest.mark.parametrize(("experts", "ranks"), [(384, 7), (8, 16), (8, 0), (8, -1)])
def test_experts_that_do_not_divide(experts: int, ranks: int) -> None:
    with pytest.raises(InputError, match=f"{experts} experts do not divide over {ranks} ranks"):
        rank_load(1.0, experts, 2, ranks)


@pytest.mark.parametrize(
    ("text", "found"),
    [("uniform", Popularity()), (" Uniform ", Popularity()), ("zipf:1.0", Popularity("zipf", 1.0)), ("ZIPF:0", Popularity("zipf", 0.0))],
)
def test_popularity(text: str, found: Popularity) -> None:
    assert parse_popularity(text) == found
    assert parse_popularity(text).weights(10).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "text", ["", "zipf", "zipf:", "zipf:-1", "zipf:3.1", "zipf:nan", "zipf:inf", "zipf:x", "normal", "zipf:1:2", "x" * 500, None, 1.0]
)
def test_bad_popularity(text: object) -> None:
    with pytest.raises(InputError, match=r"use uniform or zipf:1\.0") as caught:
        parse_popularity(text)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("count", "value"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (8, 1.423600306), (100, 2.507593639)]
)
def test_expected_maximum_of_normals(count: int, value: float) -> None:
    # closed forms for 2 and 3; 8 and 100: Harter (1961), expected values of normal order statistics
    assert expected_normal_max(count) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(6, 2, 3), (8, 3, 4), (9, 4, 3)])
def test_distinct_destinations_by_full_enumeration(experts: int, top_k: int, ranks: int) -> None:
    sets = list(itertools.combinations(range(experts), top_k))
    mean = sum(len({expert // (experts // ranks) for expert in picked}) for picked in sets) / len(sets)
    assert distinct_destinations(experts, top_k, ranks) == pytest.approx(mean, rel=1e-12)


def drawn_rows(popularity: Popularity, experts: int, top_k: int, at: NDArray[np.int64], *, per_expert: bool) -> NDArray[np.float64]:
    """Share of a rank's copies by destination, by simulation (top k of ln(weight) + Gumbel noise)."""
    rng = np.random.default_rng(7)
    noise = np.log(popularity.weights(experts)) + rng.gumbel(size=(60_000, experts))
    chosen = at[np.argpartition(-noise, top_k - 1, axis=1)[:, :top_k]]
    ranks = int(at.max()) + 1
    hits = np.stack([(chosen == rank).sum(axis=1) for rank in range(ranks)], axis=1)
    copies = (hits if per_expert else np.minimum(hits, 1)).mean(axis=0)
    return np.asarray(copies / copies.sum())


@pytest.mark.parametrize("per_expert", [False, True])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(64, 6, 8), (16, 4, 4), (60, 8, 5)])
@pytest.mark.parametrize("blocks", [False, True])
def test_dispatch_shares_against_simulation(experts: int, top_k: int, ranks: int, skew: float, blocks: bool, per_expert: bool) -> None:
    popularity = Popularity("zipf", skew)
    at = np.arange(experts) * ranks // experts if blocks else np.arange(experts) % ranks
    placement = at.tolist() if blocks else None
    matrix = dispatch_fractions(experts, top_k, ranks, popularity, placement=placement, per_expert=per_expert)
    assert matrix == (matrix[0],) * ranks
    assert sum(matrix[0]) == pytest.approx(1.0)
    assert list(matrix[0]) == pytest.approx(drawn_rows(popularity, experts, top_k, at, per_expert=per_expert).tolist(), abs=0.004)


@pytest.mark.parametrize(("skew", "top_k", "mine"), [(2.5, 3, (2, 5)), (1.0, 2, (0,)), (1.0, 5, (6,)), (0.3, 1, (1, 2, 3))])
def test_hit_chance_by_full_enumeration(skew: float, top_k: int, mine: tuple[int, ...]) -> None:
    weights = Popularity("zipf", skew).weights(7)
    expected = 0.0
    for draw in itertools.permutations(range(7), top_k):
        chance, left = 1.0, 1.0
        for expert in draw:
            chance *= weights[expert] / left
            left -= weights[expert]
        expected += chance * bool(set(draw) & set(mine))
    at = np.isin(np.arange(7), mine)
    assert float(_hit_chances(weights, top_k, at[None, :])[0]) == pytest.approx(expected, rel=1e-6)


def test_uniform_dispatch_is_uniform_and_hits_as_counted() -> None:
    assert dispatch_fractions(384, 8, 8)[3] == pytest.approx([1 / 8] * 8)
    weights = np.full(EXPERTS, 1 / EXPERTS)
    expected = distinct_destinations(EXPERTS, TOP_K, RANKS) / RANKS
    assert _hit_chances(weights, TOP_K, (np.arange(EXPERTS) % RANKS == 0)[None, :]) == pytest.approx([expected], rel=1e-9)
    # all experts chosen, or all of them on one rank
    assert dispatch_fractions(8, 8, 4)[0] == pytest.approx([0.25] * 4)
    assert dispatch_fractions(4, 2, 2, placement=[1, 1, 1, 1]) == ((0.0, 1.0), (0.0, 1.0))
    # more ranks than experts: the rest get nothing
    assert dispatch_fractions(2, 1, 3)[0] == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("arguments", "placement", "message"),
    [
        ((8, 0, 4), None, "top_k <= experts"),
        ((8, 9, 4), None, "top_k <= experts"),
        ((8, 2, 0), None, "at least one rank"),
        ((8, 2, 4), [0, 1], "8 rank numbers"),
        ((2, 1, 2), [0, 2], "from 0 to 1"),
        ((2, 1, 2), [0, -1], "from 0 to 1"),
    ],
)
def test_bad_dispatch(arguments: tuple[int, int, int], placement: list[int] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dispatch_fractions(*arguments, placement=placement)
