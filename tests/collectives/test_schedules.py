from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.collectives import OPS, Schedule, ScheduleError, Transfer, algorithms, build_schedule, default_algorithm, register
from pcie_sim.errors import InputError, UnknownNameError

EVERY = [(op, name) for op in OPS for name in algorithms(op)]
RANKS = [2, 3, 4, 5, 6, 7, 8, 16]


@pytest.mark.parametrize(("op", "name"), EVERY)
@pytest.mark.parametrize("ranks", RANKS)
def test_every_algorithm_proves_itself(op: str, name: str, ranks: int) -> None:
    build_schedule(op, name, ranks).check()


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_one_rank_has_nothing_to_send(op: str, name: str) -> None:
    schedule = build_schedule(op, name, 1)
    assert schedule.transfers == ()
    assert schedule.steps == 0
    schedule.check()


def test_every_op_has_a_default() -> None:
    assert {op: default_algorithm(op) for op in OPS} == {
        "all_reduce": "ring",
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_to_all": "direct",
        "broadcast": "ring",
        "reduce": "ring",
        "send_recv": "direct",
    }


@pytest.mark.parametrize("ranks", RANKS)
def test_ring_moves_the_least_that_is_possible(ranks: int) -> None:
    # Patarasuk and Yuan 2009: 2 (n - 1) / n of the message leaves every rank of an AllReduce, half of that otherwise
    for op, steps in (("all_reduce", 2 * (ranks - 1)), ("all_gather", ranks - 1), ("reduce_scatter", ranks - 1)):
        schedule = build_schedule(op, "ring", ranks)
        sent = [0.0] * ranks
        for transfer in schedule.transfers:
            assert transfer.dst == (transfer.src + 1) % ranks
            sent[transfer.src] += transfer.fraction
        assert schedule.steps == steps
        assert sent == pytest.approx([steps / ranks] * ranks, rel=1e-12)


def mutations(schedule: Schedule, index: int) -> dict[str, Schedule]:
    """Ways of breaking the transfer at ``index``."""
    old = schedule.transfers[index]

    def with_transfer(new: Transfer) -> Schedule:
        return replace(schedule, transfers=(*schedule.transfers[:index], new, *schedule.transfers[index + 1 :]))

    found = {
        "other reduce": with_transfer(replace(old, reduce=not old.reduce)),
        "more": with_transfer(replace(old, fraction=old.fraction * 1.5)),
        "less": with_transfer(replace(old, fraction=0.0)),
        "no chunks": with_transfer(replace(old, chunks=())),
        "chunk twice": with_transfer(replace(old, chunks=old.chunks * 2, fraction=old.fraction * 2)),
        "to itself": with_transfer(replace(old, dst=old.src)),
        "backwards": with_transfer(replace(old, src=old.dst, dst=old.src)),
        "unknown rank": with_transfer(replace(old, dst=schedule.ranks)),
        "after itself": with_transfer(replace(old, deps=(index,))),
        "unknown dep": with_transfer(replace(old, deps=(len(schedule.transfers),))),
        "step too high": with_transfer(replace(old, step=schedule.steps)),
        "chunk sizes": replace(schedule, chunk_fractions=tuple(share * 1.1 for share in schedule.chunk_fractions)),
        "dropped": replace(
            schedule,
            transfers=tuple(
                replace(item, deps=tuple(dep - (dep > index) for dep in item.deps if dep != index))
                for place, item in enumerate(schedule.transfers)
                if place != index
            ),
        ),
    }
    if old.deps:
        found["no deps"] = with_transfer(replace(old, deps=()))
        cycle = old.deps[0]
        before = schedule.transfers[cycle]
        found["cycle"] = replace(
            schedule,
            transfers=tuple(
                replace(before, deps=(*before.deps, index)) if place == cycle else item for place, item in enumerate(schedule.transfers)
            ),
        )
    if len(schedule.chunk_fractions) > 1 and schedule.op != "all_to_all":
        other = (old.chunks[0] + 1) % len(schedule.chunk_fractions)
        found["other chunk"] = with_transfer(replace(old, chunks=(other,)))
    # a summand that takes a short cut to a rank further on still reaches the sum: not a mistake
    if schedule.ranks > 2 and not old.reduce:
        third = next(rank for rank in range(schedule.ranks) if rank not in (old.src, old.dst))
        found["other receiver"] = with_transfer(replace(old, dst=third))
    return found


def sound(schedule: Schedule) -> bool:
    try:
        schedule.check()
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize(("op", "name"), EVERY)
@given(data=st.data())
def test_a_broken_schedule_fails(op: str, name: str, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 6))
    schedule = build_schedule(op, name, ranks)
    index = data.draw(st.integers(0, len(schedule.transfers) - 1))
    for what, broken in mutations(schedule, index).items():
        assert not sound(broken), f"{op}/{name} on {ranks} ranks, transfer {index}: {what} was not noticed"


def test_a_repeated_reduction_is_noticed() -> None:
    schedule = build_schedule("reduce", "ring", 3)
    last = schedule.transfers[-1]
    again = replace(schedule, transfers=(*schedule.transfers, replace(last, deps=(len(schedule.transfers) - 1,))))
    with pytest.raises(ScheduleError, match="second time"):
        again.check()


def test_data_that_is_there_by_luck_of_timing_only_is_noticed() -> None:
    # rank 1 sends in step 1 what it gets in step 0, but nothing makes it wait
    hop = Transfer(0, 1, 1.0, (), 0, (0,))
    lucky = Schedule("broadcast", "ring", 3, (hop, Transfer(1, 2, 1.0, (), 1, (0,))), 2, (1.0,))
    with pytest.raises(ScheduleError, match="races"):
        lucky.check()
    replace(lucky, transfers=(hop, Transfer(1, 2, 1.0, (0,), 1, (0,)))).check()


@given(
    st.integers(2, 8).flatmap(
        lambda n: st.lists(st.lists(st.sampled_from([0.0, 0.125, 0.5, 1.0]), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_uneven_all_to_all_sends_the_matrix(matrix: list[list[float]]) -> None:
    ranks = len(matrix)
    schedule = build_schedule("all_to_all", "direct", ranks, fractions=matrix)
    schedule.check()
    sent = {(item.src, item.dst): item.fraction for item in schedule.transfers}
    assert sent == {(i, j): matrix[i][j] for i in range(ranks) for j in range(ranks) if i != j and matrix[i][j] > 0}


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ([[0.5, 0.5]], "2 rows"),
        ([[0.5, 0.5], [0.5]], "2 rows"),
        ([[0.5, -0.5], [0.5, 0.5]], "not a share"),
        ([[0.5, float("nan")], [0.5, 0.5]], "not a share"),
        ([[0.5, float("inf")], [0.5, 0.5]], "not a share"),
    ],
)
def test_bad_matrix(fractions: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_schedule("all_to_all", "direct", 2, fractions=fractions)


def test_matrix_for_another_op() -> None:
    with pytest.raises(InputError, match="all_to_all only"):
        build_schedule("all_reduce", "ring", 2, fractions=[[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize("ranks", [0, -1, True, 2.0, 100_000])
def test_bad_ranks(ranks: object) -> None:
    with pytest.raises(InputError, match="ranks"):
        build_schedule("all_reduce", "ring", ranks)  # type: ignore[arg-type]


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="all_reduce"):
        build_schedule("allreduce", "ring", 2)
    with pytest.raises(UnknownNameError, match="ring"):
        build_schedule("all_reduce", "tree", 2)
    with pytest.raises(ValueError, match="unknown op"):
        register("all_nothing", "ring")
    with pytest.raises(ValueError, match="twice"):
        register("all_reduce", "ring")(build_schedule)  # type: ignore[arg-type]


def test_schedules_are_kept() -> None:
    assert build_schedule("all_reduce", "ring", 8) is build_schedule("all_reduce", "auto", 8)
