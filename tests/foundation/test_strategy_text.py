"""The strategy grammar of design 4.2: every example, canonical forms, shorthands, and what is refused and how."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.specs.strategy import AXES, MOE_COMMS, Strategy, default_strategies, parse_strategy

# text, canonical, (replicas, tp, dp, pp, ep, dcp), moe_comm, world, expert_tp
EXAMPLES = [
    ("tp8", "tp8", (1, 8, 1, 1, 1, 1), None, 8, 8),
    ("pp8", "pp8", (1, 1, 1, 8, 1, 1), None, 8, 1),
    ("tp2dp4", "tp2dp4", (1, 2, 4, 1, 1, 1), None, 8, 8),  # SGLang's --tp-size 8 --dp-size 4
    ("tp8ep4", "tp8ep4", (1, 8, 1, 1, 4, 1), None, 8, 2),  # experts 4-way whole, 2-way sliced
    ("ep8", "tp8ep8", (1, 8, 1, 1, 8, 1), None, 8, 1),
    ("ep8:a2a", "dp8ep8:a2a", (1, 1, 8, 1, 8, 1), "a2a", 8, 1),
    ("tp8ep8:a2a", "tp8ep8:a2a", (1, 8, 1, 1, 8, 1), "a2a", 8, 1),
    ("tp4pp2", "tp4pp2", (1, 4, 1, 2, 1, 1), None, 8, 4),
    ("2xtp4", "2xtp4", (2, 4, 1, 1, 1, 1), None, 8, 4),
    ("pp2tp4", "tp4pp2", (1, 4, 1, 2, 1, 1), None, 8, 4),
    ("ep4pp2", "tp4pp2ep4", (1, 4, 1, 2, 4, 1), None, 8, 1),
    ("2xep4:a2a", "2xdp4ep4:a2a", (2, 1, 4, 1, 4, 1), "a2a", 8, 1),
    ("ep8:ag_rs", "tp8ep8:ag_rs", (1, 8, 1, 1, 8, 1), "ag_rs", 8, 1),
    ("tp8:allreduce", "tp8:allreduce", (1, 8, 1, 1, 1, 1), "allreduce", 8, 8),
    ("tp8dcp8", "tp8dcp8", (1, 8, 1, 1, 1, 8), None, 8, 8),
    ("dcp2tp4", "tp4dcp2", (1, 4, 1, 1, 1, 2), None, 4, 4),
    ("dcp2dp2tp2", "tp2dp2dcp2", (1, 2, 2, 1, 1, 2), None, 4, 4),
    ("dp2dcp1tp2", "tp2dp2", (1, 2, 2, 1, 1, 1), None, 4, 4),
    ("1xtp1pp1", "tp1", (1, 1, 1, 1, 1, 1), None, 1, 1),
    ("ep1", "tp1", (1, 1, 1, 1, 1, 1), None, 1, 1),
    ("tp08", "tp8", (1, 8, 1, 1, 1, 1), None, 8, 8),
    ("  TP4PP2 ", "tp4pp2", (1, 4, 1, 2, 1, 1), None, 8, 4),
    ("2XEP4:A2A", "2xdp4ep4:a2a", (2, 1, 4, 1, 4, 1), "a2a", 8, 1),
]


@pytest.mark.parametrize(
    ("text", "canonical", "sizes", "moe_comm", "world", "expert_tp"), EXAMPLES, ids=[row[0].strip() for row in EXAMPLES]
)
def test_examples(text: str, canonical: str, sizes: tuple[int, ...], moe_comm: str | None, world: int, expert_tp: int) -> None:
    found = parse_strategy(text)
    assert found.canonical == canonical
    assert (found.replicas, found.tp, found.dp, found.pp, found.ep, found.dcp) == sizes
    assert found.moe_comm == moe_comm
    assert found.world == world
    assert found.engine_world * found.replicas == world
    assert found.expert_tp == expert_tp
    assert found.text == text.strip()


def test_any_order_means_the_same() -> None:
    parts = ("tp8", "pp2", "ep4", "dcp2", "dp1")
    assert {parse_strategy("".join(order)).canonical for order in itertools.permutations(parts)} == {"tp8pp2ep4dcp2"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not understood"),
        (" ", "not understood"),
        ("8", "not understood"),
        ("tp", "not understood"),
        ("tp-8", "not understood"),
        ("tp8.0", "not understood"),
        ("tp 8", "not understood"),
        ("tp8 pp2", "not understood"),
        ("tp8,pp2", "not understood"),
        ("tp8x2", "not understood"),
        ("x2tp4", "not understood"),
        ("2x", "not understood"),
        ("2x2xtp2", "not understood"),
        ("sp8", "not understood"),
        ("cp8", "not understood"),
        ("tp8:", "not understood"),
        ("tp8:a2a:a2a", "not understood"),
        ("tp999999", "not understood"),
        ("tp８", "not understood"),
        ("tp8\npp2", "not understood"),
        ("tp8" * 100, "not understood"),
        ("tp8:nccl", r"unknown suffix 'nccl'; use one of allreduce, ag_rs, a2a"),
        ("tp8tp4", "names tp twice"),
        ("dcp2dcp2tp4", "names dcp twice"),
        ("tp0", "every number must be 1 or more"),
        ("0xtp8", "every number must be 1 or more"),
        ("tp8pp0", "every number must be 1 or more"),
        ("tp8ep3", r"ep3 must divide tp x dp = 8; use ep in 1, 2, 4, 8$"),
        ("tp2dp2ep8", r"ep8 must divide tp x dp = 4; use ep in 1, 2, 4$"),
        ("tp1ep8", r"ep8 must divide tp x dp = 1; use ep in 1$"),
        ("tp6dcp4", r"dcp4 must divide tp6; use dcp in 1, 2, 3, 6$"),
        ("dcp2", r"dcp2 must divide tp1; use dcp in 1$"),
    ],
)
def test_refused(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        parse_strategy(text)
    assert str(caught.value).startswith("strategy ")
    assert len(str(caught.value)) < 240


@pytest.mark.parametrize("thing", [None, 8, b"tp8", ["tp8"], Strategy("tp8", tp=8)])
def test_only_text_is_parsed(thing: object) -> None:
    with pytest.raises(InputError, match="a strategy is text"):
        parse_strategy(thing)  # type: ignore[arg-type]


def test_huge_widths_are_refused_at_once_with_a_few_legal_forms() -> None:
    begun = time.perf_counter()
    with pytest.raises(InputError, match=r"use ep in ") as caught:
        parse_strategy("tp99999dp99990ep7")
    assert time.perf_counter() - begun < 1.0
    legal = [int(text) for text in str(caught.value).split("use ep in ")[1].split(", ")]
    assert len(legal) == 8
    assert all(99999 * 99990 % number == 0 for number in legal)
    assert {6, 9} <= set(legal)  # those next to the 7 that was asked


small = st.integers(1, 8)


@st.composite
def legal_strategies(draw: st.DrawFn) -> Strategy:
    tp, dp = draw(small), draw(small)
    ep = draw(st.sampled_from([d for d in range(1, tp * dp + 1) if tp * dp % d == 0]))
    dcp = draw(st.sampled_from([d for d in range(1, tp + 1) if tp % d == 0]))
    return Strategy(
        "", tp=tp, dp=dp, pp=draw(small), ep=ep, dcp=dcp, replicas=draw(small), moe_comm=draw(st.sampled_from([None, *MOE_COMMS]))
    )


@given(legal_strategies(), st.randoms(use_true_random=False))
def test_the_canonical_form_reads_back(strategy: Strategy, rng: object) -> None:
    again = parse_strategy(strategy.canonical)
    assert again.canonical == strategy.canonical
    fields = ("tp", "dp", "pp", "ep", "dcp", "replicas", "moe_comm")
    assert [getattr(again, name) for name in fields] == [getattr(strategy, name) for name in fields]
    axes = [f"{axis}{getattr(strategy, axis)}" for axis in AXES]  # every axis written out, in any order, in capitals
    rng.shuffle(axes)  # type: ignore[attr-defined]
    loud = f"{strategy.replicas}x{''.join(axes)}{':' + strategy.moe_comm if strategy.moe_comm else ''}".upper()
    assert parse_strategy(loud).canonical == strategy.canonical


@given(st.text(st.sampled_from("tpdceax:0128_"), max_size=20) | st.text(max_size=100))
def test_any_text_is_a_strategy_or_an_input_error(text: str) -> None:
    try:
        found = parse_strategy(text)
    except InputError as exc:
        assert len(str(exc)) < 260  # noqa: PT017 - any other exception fails the test
    else:
        assert parse_strategy(found.canonical).canonical == found.canonical


def test_with_moe_comm() -> None:
    assert parse_strategy("ep8:a2a").with_moe_comm(None).canonical == "dp8ep8"
    assert parse_strategy("ep8").with_moe_comm("ag_rs").canonical == "tp8ep8:ag_rs"


@pytest.mark.parametrize(
    ("gpus", "moe", "names"),
    [
        (1, True, ("tp1",)),
        (2, False, ("tp2", "pp2")),
        (2, True, ("tp2", "pp2", "ep2", "ep2:a2a")),
        (3, True, ("tp3", "pp3", "ep3", "ep3:a2a")),
        (4, False, ("tp4", "pp4", "tp2pp2", "2xtp2")),
        (7, False, ("tp7", "pp7")),
        (8, True, ("tp8", "pp8", "ep8", "ep8:a2a", "tp4pp2", "2xtp4")),
    ],
)
def test_defaults(gpus: int, moe: bool, names: tuple[str, ...]) -> None:
    assert default_strategies(gpus, moe=moe) == names


@given(st.integers(1, 64), st.booleans())
def test_defaults_use_every_gpu(gpus: int, moe: bool) -> None:
    found = [parse_strategy(text) for text in default_strategies(gpus, moe=moe)]
    assert {strategy.world for strategy in found} == {gpus}
    assert len({strategy.canonical for strategy in found}) == len(found)
