"""Kinds of failure and their exit codes, nearest names, evidence labels and what a sum of parts is called."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import errors, evidence
from pcie_sim.evidence import LABELS, Evidence, label_of_sum, share_by_label, weakest

KNOWN = ("kimi-k2", "kimi-k2.6", "mimo-v2-flash", "deepseek-r1", "deepseek-v3", "glm-5", "qwen3-8b")


def test_exit_codes_are_those_of_the_design() -> None:
    codes = {kind: kind.exit_code for kind in (errors.InfeasibleError, errors.InputError, errors.UnknownNameError, errors.NoDataError)}
    assert list(codes.values()) == [1, 2, 2, 3]
    assert all(issubclass(kind, errors.PcieSimError) for kind in codes)
    assert errors.PcieSimError.exit_code == 70
    assert issubclass(errors.UnknownNameError, errors.InputError)


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("kimi-k26", "kimi-k2.6"),
        ("KIMI-K2.6", "kimi-k2.6"),
        ("kimi", "kimi-k2"),
        ("deepsek-v3", "deepseek-v3"),
        ("mimo", "mimo-v2-flash"),
        ("qwen3", "qwen3-8b"),
    ],
)
def test_the_nearest_comes_first(asked: str, first: str) -> None:
    assert errors.nearest(asked, KNOWN)[0] == first


def test_nearest_is_bounded_stable_and_without_doubles() -> None:
    assert errors.nearest("kimi", [*KNOWN, *KNOWN]) == errors.nearest("kimi", reversed(KNOWN))
    assert len(errors.nearest("kimi", [*KNOWN, *KNOWN])) == 3
    assert len(set(errors.nearest("zzz", KNOWN, count=20))) == len(KNOWN)
    assert errors.nearest("x", []) == []
    assert len(errors.nearest("", KNOWN)) == 3


def test_unknown_name_says_what_where_and_what_to_do() -> None:
    failure = errors.unknown_name("model", "kimi-k26", KNOWN, command="pcie-sim model list")
    assert isinstance(failure, errors.UnknownNameError)
    assert str(failure) == "unknown model 'kimi-k26'; nearest: kimi-k2.6, kimi-k2, mimo-v2-flash (all: pcie-sim model list)"
    assert str(errors.unknown_name("part", "x", [])) == "unknown part 'x'"


@pytest.mark.parametrize("name", ["x" * 10_000, "a\nb\nc", "\x00", "\x1b[31mred", "ünï©ode", " "])
def test_unknown_names_stay_one_short_line(name: str) -> None:
    text = str(errors.unknown_name("gpu", name, KNOWN))
    assert len(text) < 240
    assert text.isprintable()


# -- evidence ---------------------------------------------------------------------------------------------------------


def test_order_of_the_labels() -> None:
    assert LABELS == ("measured", "fitted", "profile", "nominal", "assumed")


@pytest.mark.parametrize("pair", list(itertools.product(range(5), repeat=2)))
def test_weakest_of_two(pair: tuple[int, int]) -> None:
    assert weakest([LABELS[pair[0]], LABELS[pair[1]]]) == LABELS[max(pair)]


def test_weakest_of_none_and_of_an_iterator() -> None:
    assert weakest([]) == "measured"
    assert weakest(iter(["nominal", "fitted"])) == "nominal"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "label"),
    [
        ([(95.0, "measured"), (5.0, "assumed")], "assumed"),  # exactly 5 %: counts ("at least 5 % of it")
        ([(95.1, "measured"), (4.9, "assumed")], "measured"),
        ([(95.1, "assumed"), (4.9, "measured")], "assumed"),
        ([(90.0, "measured"), (6.0, "fitted"), (4.0, "assumed")], "fitted"),
        ([(1.0, "assumed")] * 100, "assumed"),  # a hundred small parts are one label, not a hundred trifles
        ([(96.0, "measured"), (2.0, "nominal"), (2.0, "nominal")], "measured"),
        ([(94.0, "measured"), (3.0, "nominal"), (3.0, "nominal")], "nominal"),
        ([(0.0, "assumed"), (-1.0, "assumed"), (1.0, "fitted")], "fitted"),
        ([(0.0, "assumed")], "measured"),
        ([], "measured"),
    ],
)
def test_label_of_a_sum(parts: list[tuple[float, Evidence]], label: str) -> None:
    assert label_of_sum(parts) == label
    assert label_of_sum(iter(parts)) == label
    by_label: dict[Evidence, float] = {}
    for size, name in parts:
        by_label[name] = by_label.get(name, 0.0) + max(size, 0.0)
    assert label_of_sum(by_label) == label


parts_of_a_sum = st.lists(st.tuples(st.just(0.0) | st.floats(1e-12, 1e6), st.sampled_from(LABELS)), max_size=40)


@given(parts_of_a_sum)
def test_shares_sum_to_one(parts: list[tuple[float, Evidence]]) -> None:
    shares = share_by_label(parts)
    if any(size > 0 for size, _ in parts):
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
        assert all(0 < share <= 1 for share in shares.values())
        assert list(shares) == sorted(shares, key=LABELS.index)
    else:
        assert shares == {}


@given(parts_of_a_sum)
def test_the_label_is_one_with_five_percent_and_nothing_weaker_has(parts: list[tuple[float, Evidence]]) -> None:
    shares = share_by_label(parts)
    label = label_of_sum(parts)
    if shares:
        assert shares[label] >= evidence.MINOR_SHARE
        weaker = LABELS[LABELS.index(label) + 1 :]
        assert all(shares.get(name, 0.0) < evidence.MINOR_SHARE for name in weaker)
