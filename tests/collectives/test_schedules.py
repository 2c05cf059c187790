from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.collectives import OPS, Schedule, ScheduleError, Transfer, algorithms, build_schedule, default_algorithm, options_of, register
from pcie_sim.collectives.trees import binary_tree, double_tree, rooted_double_tree
from pcie_sim.errors import InputError, UnknownNameError

EVERY = [(op, name) for op in OPS for name in algorithms(op)]
RANKS = list(range(2, 17))


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
    arrivals = [schedule.transfers[dep] for dep in old.deps]
    if any(item.dst == old.src and set(item.chunks) & set(old.chunks) for item in arrivals):  # else the deps are a mere barrier
        found["no deps"] = with_transfer(replace(old, deps=()))
    if old.own_input:
        found["not the input"] = with_transfer(replace(old, own_input=False))
    if old.deps:
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
    chunks = {"chunks": 3} if "chunks" in options_of(op, name) else {}
    schedule = build_schedule(op, name, ranks, **chunks)
    schedule.check()
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


ALL_TO_ALL = algorithms("all_to_all")


@pytest.mark.parametrize("name", ALL_TO_ALL)
@given(data=st.data())
def test_every_all_to_all_takes_uneven_shares(name: str, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 9))
    share = st.sampled_from([0.0, 0.0, 0.125, 0.5, 1.0])
    matrix = data.draw(st.lists(st.lists(share, min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks))
    schedule = build_schedule("all_to_all", name, ranks, fractions=matrix)
    schedule.check()
    least = sum(matrix[i][j] for i in range(ranks) for j in range(ranks) if i != j)
    assert least - 1e-12 <= schedule.sent_fraction() <= 2 * least + 1e-12
    assert {item.step for item in schedule.transfers} == set(range(schedule.steps)) or not schedule.transfers
    assert all(item.fraction > 0 for item in schedule.transfers)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """2 to 12 ranks in any order, cut into groups of any sizes."""
    ranks = draw(st.integers(2, 12))
    order = draw(st.permutations(range(ranks)))
    cuts = sorted(draw(st.sets(st.integers(1, ranks - 1), max_size=4)))
    return tuple(tuple(order[start:end]) for start, end in zip([0, *cuts], [*cuts, ranks], strict=True))


@given(partitions())
def test_hierarchical_works_for_any_groups(groups: tuple[tuple[int, ...], ...]) -> None:
    ranks = sum(len(group) for group in groups)
    of = {rank: index for index, group in enumerate(groups) for rank in group}
    reduce = build_schedule("all_reduce", "hierarchical", ranks, groups=groups)
    reduce.check()
    # a ring inside each group of a and one across b groups: 2 (a - 1) + 2 (b - 1) rounds; everything inside stays inside
    assert reduce.steps == 2 * (max(len(group) for group in groups) - 1) + 2 * (len(groups) - 1)
    crossing = sum(item.fraction for item in reduce.transfers if of[item.src] != of[item.dst])
    assert crossing == pytest.approx(2 * (len(groups) - 1))
    inside = sum(item.fraction for item in reduce.transfers if of[item.src] == of[item.dst])
    assert inside == pytest.approx(sum(2 * (len(group) - 1) for group in groups))
    exchange = build_schedule("all_to_all", "hierarchical", ranks, groups=groups)
    exchange.check()
    across = [(item.src, item.dst) for item in exchange.transfers if of[item.src] != of[item.dst]]
    assert len(across) == len(set(across))
    # nothing crosses twice: the bytes between groups are those of the direct exchange
    bytes_across = sum(item.fraction for item in exchange.transfers if of[item.src] != of[item.dst])
    assert bytes_across == pytest.approx(sum(len(group) * (ranks - len(group)) for group in groups) / ranks)


@pytest.mark.parametrize("ranks", [4, 6, 8, 12, 16])
def test_hierarchical_all_to_all_sends_fewer_and_larger_messages(ranks: int) -> None:
    schedule = build_schedule("all_to_all", "hierarchical", ranks)
    across = [item for item in schedule.transfers if (item.src < ranks // 2) != (item.dst < ranks // 2)]
    assert len(across) == ranks  # one to its counterpart instead of n / 2 each
    assert [item.fraction for item in across] == pytest.approx([0.5] * ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_one_shot_and_two_shot_bytes(ranks: int) -> None:
    # vLLM's custom all-reduce: (n - 1) S in one stage, 2 (n - 1) / n S in two
    for way, access in (("push", "write"), ("pull", "read")):
        one = build_schedule("all_reduce", f"one_shot_{way}", ranks)
        two = build_schedule("all_reduce", f"two_shot_{way}", ranks)
        assert (one.steps, two.steps, one.access, two.access) == (1, 2, access, access)
        assert one.sent_fraction() == pytest.approx(ranks * (ranks - 1))
        assert two.sent_fraction() == pytest.approx(2 * (ranks - 1))
    assert build_schedule("all_reduce", "ring", ranks).access == "write"


@pytest.mark.parametrize("ranks", RANKS)
def test_halving_and_doubling_steps_and_bytes(ranks: int) -> None:
    # Thakur, Rabenseifner and Gropp 2005
    power = 1 << (ranks.bit_length() - 1)
    folded = 2 if power < ranks else 0
    schedule = build_schedule("all_reduce", "halving_doubling", ranks)
    assert schedule.steps == 2 * (power.bit_length() - 1) + folded
    assert schedule.sent_fraction() == pytest.approx(2 * (power - 1) + 2 * (ranks - power))
    for op, name in (("reduce_scatter", "halving"), ("all_gather", "doubling")):
        assert build_schedule(op, name, ranks).steps == power.bit_length() - 1 + folded


@pytest.mark.parametrize("ranks", range(2, 65))
def test_binary_trees(ranks: int) -> None:
    first, second = double_tree(ranks)
    for tree in (first, second):
        assert sorted(tree.down) == list(range(ranks))
        assert all(len(items) <= 2 for items in tree.children)
        assert max(tree.depth) <= math.ceil(math.log2(ranks))
    # complementary: a rank with two children in one is a leaf in the other, but for one rank when their number is odd
    inner = [rank for rank in range(ranks) if first.children[rank] and second.children[rank]]
    assert len(inner) <= ranks % 2
    for tree in rooted_double_tree(ranks):
        assert tree.parent[0] == -1
        assert sorted(tree.down) == list(range(ranks))
        assert max(tree.depth) <= math.ceil(math.log2(ranks)) + 1


def test_the_trees_are_those_of_the_library() -> None:
    # NVIDIA/nccl:src/graph/trees.cc, drawn in its comments: 14 ranks 0---8, 4 and 12 below 8, 2 6 10 (13) below those
    tree = binary_tree(14)
    assert [tree.children[rank] for rank in (0, 8, 4, 12, 2)] == [(8,), (4, 12), (2, 6), (10, 13), (1, 3)]
    # 12 ranks mirrored, 13 shifted
    assert [double_tree(12)[1].parent[11 - rank] for rank in range(1, 12)] == [11 - above for above in binary_tree(12).parent[1:]]
    assert double_tree(13)[1].parent.index(-1) == 1


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, name in EVERY if "channels" in options_of(op, name)])
@pytest.mark.parametrize(("chunks", "channels"), [(1, 2), (3, 1), (2, 3)])
def test_chunks_and_channels(op: str, name: str, chunks: int, channels: int) -> None:
    for ranks in (2, 3, 5, 8):
        plain = build_schedule(op, name, ranks, chunks=1, channels=1)
        schedule = build_schedule(op, name, ranks, chunks=chunks, channels=channels)
        schedule.check()
        assert schedule.channels == channels
        assert len(schedule.transfers) == len(plain.transfers) * chunks * channels
        assert schedule.sent_fraction() == pytest.approx(plain.sent_fraction())
        # no stream has two pieces in one round
        streams = [(item.step, item.src, item.dst, item.channel) for item in schedule.transfers]
        assert len(set(streams)) == len(streams)


@pytest.mark.parametrize(
    ("op", "name", "options", "message"),
    [
        ("all_reduce", "ring", {"groups": ((0, 1), (2, 3))}, "takes no groups; it takes chunks, channels"),
        ("all_reduce", "one_shot_push", {"chunks": 2}, "takes no chunks; it takes nothing but the number of ranks"),
        ("all_reduce", "hierarchical", {"groups": ((0, 1), (2,))}, "in one group"),
        ("all_reduce", "hierarchical", {"groups": ((0, 1), (2, 3), ())}, "no group may be empty"),
        ("all_reduce", "hierarchical", {"groups": ((0, 1), (1, 2, 3))}, "in one group"),
        ("all_reduce", "tree", {"chunks": 0}, "1 to 256"),
        ("all_reduce", "tree", {"chunks": True}, "1 to 256"),
        ("all_reduce", "tree", {"chunks": 1.5}, "1 to 256"),
        ("all_reduce", "tree", {"channels": 65}, "1 to 64"),
    ],
)
def test_bad_options(op: str, name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_schedule(op, name, 4, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, name in EVERY if op != "send_recv"])
def test_too_many_transfers_are_refused_before_they_are_built(op: str, name: str) -> None:
    options = {"chunks": 256, "channels": 64} if "chunks" in options_of(op, name) else {}
    with pytest.raises(InputError, match="4096 ranks"):
        build_schedule(op, name, 4096, **options)


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
    with pytest.raises(UnknownNameError, match=r"use auto, ring, .*tree, binary_tree"):
        build_schedule("all_reduce", "trees", 2)
    with pytest.raises(ValueError, match="unknown op"):
        register("all_nothing", "ring")
    with pytest.raises(ValueError, match="twice"):
        register("all_reduce", "ring")(build_schedule)  # type: ignore[arg-type]


def test_schedules_are_kept() -> None:
    assert build_schedule("all_reduce", "ring", 8) is build_schedule("all_reduce", "auto", 8)
