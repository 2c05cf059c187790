"""Every algorithm against the closed form of the literature: a star of GPUs with latency ALPHA and B bytes/s each way, or two stars.

Sources: Thakur, Rabenseifner and Gropp 2005 (ring, halving and doubling, pairwise, pipelined trees), Sanders, Speck and Traeff 2009
(two trees), Patarasuk and Yuan 2009 (ring); the formulas in alpha and beta are standard.
"""

from __future__ import annotations

import math

import pytest
from fakebox import FakeBox

from pcie_sim.collectives import algorithms
from pcie_sim.collectives.trees import binary_tree, double_tree, rooted_double_tree
from pcie_sim.network import time_collective
from pcie_sim.network.placement import place

ALPHA, B, M = 2e-6, 50e9, 24_000_000
ENGINES = ["analytic", "event"]


def star(ranks: int, alpha: float = ALPHA) -> FakeBox:
    return FakeBox(per_switch=(ranks,), inside=alpha)


def seconds(box: FakeBox, op: str, name: str, engine: str, size: int = M, **options: int) -> float:
    return time_collective(box, op, size, algorithm=name, launch="graph", engine=engine, **options).time_s  # type: ignore[arg-type]


FORMULAS = {
    ("all_reduce", "ring"): lambda n: 2 * (n - 1) * (ALPHA + M / n / B),
    ("all_reduce", "one_shot_push"): lambda n: ALPHA + (n - 1) * M / B,
    ("all_reduce", "one_shot_pull"): lambda n: ALPHA + (n - 1) * M / B,
    ("all_reduce", "two_shot_push"): lambda n: 2 * ALPHA + 2 * (n - 1) / n * M / B,
    ("all_reduce", "two_shot_pull"): lambda n: 2 * ALPHA + 2 * (n - 1) / n * M / B,
    ("all_gather", "ring"): lambda n: (n - 1) * (ALPHA + M / n / B),
    ("all_gather", "direct"): lambda n: ALPHA + (n - 1) / n * M / B,
    ("reduce_scatter", "ring"): lambda n: (n - 1) * (ALPHA + M / n / B),
    ("reduce_scatter", "direct"): lambda n: ALPHA + (n - 1) / n * M / B,
    ("all_to_all", "direct"): lambda n: ALPHA + (n - 1) / n * M / B,
    ("all_to_all", "pairwise"): lambda n: (n - 1) * (ALPHA + M / n / B),
    ("broadcast", "ring"): lambda n: (n - 1) * ALPHA + (16 + n - 2) / 16 * M / B,
    ("reduce", "ring"): lambda n: (n - 1) * ALPHA + (16 + n - 2) / 16 * M / B,
    ("send_recv", "direct"): lambda n: ALPHA + M / B,
    ("send_recv", "chain"): lambda n: (n - 1) * (ALPHA + M / B),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8, 16])
@pytest.mark.parametrize("which", FORMULAS, ids="/".join)
def test_closed_forms_on_a_star(which: tuple[str, str], ranks: int, engine: str) -> None:
    assert seconds(star(ranks), *which, engine) == pytest.approx(FORMULAS[which](ranks), rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_halving_and_doubling_on_a_star(ranks: int, engine: str) -> None:
    logs = math.log2(ranks)
    box = star(ranks)
    half = logs * ALPHA + (ranks - 1) / ranks * M / B
    assert seconds(box, "reduce_scatter", "halving", engine) == pytest.approx(half, rel=1e-9)
    assert seconds(box, "all_gather", "doubling", engine) == pytest.approx(half, rel=1e-9)
    assert seconds(box, "all_reduce", "halving_doubling", engine) == pytest.approx(2 * half, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9, 12])
def test_folding_costs_two_more_steps_with_the_whole_message(ranks: int, engine: str) -> None:
    power = 1 << (ranks.bit_length() - 1)
    expected = 2 * (math.log2(power) + 1) * ALPHA + (2 * (power - 1) / power + 2) * M / B
    assert seconds(star(ranks), "all_reduce", "halving_doubling", engine) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("a", "b"), [(2, 2), (4, 2), (2, 4), (4, 4), (3, 3)])
def test_hierarchical_on_b_stars_of_a(a: int, b: int, engine: str) -> None:
    # uplinks as wide as a GPUs: 2 (a - 1) (alpha1 + m / (a B)) + 2 (b - 1) (alpha2 + m / (a b B))
    far = 3e-6
    box = FakeBox(per_switch=(a,) * b, inside=ALPHA, across=far, uplink=a * B)
    expected = 2 * (a - 1) * (ALPHA + M / a / B) + 2 * (b - 1) * (far + M / (a * b) / B)
    assert seconds(box, "all_reduce", "hierarchical", engine) == pytest.approx(expected, rel=1e-9)
    # every rank hands b n-ths to each of a - 1 mates, then a n-ths to each of b - 1 counterparts
    exchange = (a - 1) * b * M / (a * b) / B + (b - 1) * a * M / (a * b) / B + ALPHA + far
    assert seconds(box, "all_to_all", "hierarchical", engine) == pytest.approx(exchange, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_uplinks_as_wide_as_one_gpu(engine: str) -> None:
    # 2 x 4, everything B. Halving: 4 flows of m / 2 cross (2 m / B), then m / 4 and m / 8 inside; doubling the same back
    box = FakeBox(per_switch=(4, 4))
    assert seconds(box, "all_reduce", "halving_doubling", engine) == pytest.approx(2 * (2 + 1 / 4 + 1 / 8) * M / B, rel=1e-9)
    # hierarchical: 2 x 3 steps of m / 4 inside; 2 steps in which four flows of m / 8 cross
    assert seconds(box, "all_reduce", "hierarchical", engine) == pytest.approx((6 / 4 + 2 * 4 / 8) * M / B, rel=1e-9)
    # one-shot: 4 x 4 whole messages cross; two-shot: 16 parts of m / 8 cross, twice
    assert seconds(box, "all_reduce", "one_shot_push", engine) == pytest.approx(16 * M / B, rel=1e-9)
    assert seconds(box, "all_reduce", "two_shot_push", engine) == pytest.approx(2 * 16 / 8 * M / B, rel=1e-9)
    # pairwise by shifts: round k sends min(k, 8 - k) parts over an uplink, 16 in all, as the direct exchange at best
    assert seconds(box, "all_to_all", "pairwise", engine) == pytest.approx(16 / 8 * M / B, rel=1e-9)
    assert seconds(box, "all_to_all", "direct", engine) == pytest.approx(16 / 8 * M / B, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks", range(2, 17))
def test_small_messages_cost_the_depth_of_the_tree(ranks: int, engine: str) -> None:
    deep, box = max(binary_tree(ranks).depth), star(ranks)
    assert deep <= math.ceil(math.log2(ranks))
    both = max(max(tree.depth) for tree in double_tree(ranks))
    rooted = max(max(tree.depth) for tree in rooted_double_tree(ranks))
    for op, name, hops in [
        ("all_reduce", "tree", 2 * (ranks - 1)),  # NVIDIA/nccl:src/graph/tuning.cc: 2 (n - 1) steps inside a node
        ("all_reduce", "binary_tree", 2 * deep),
        ("all_reduce", "double_binary_tree", 2 * both),
        ("broadcast", "binary_tree", deep),
        ("reduce", "binary_tree", deep),
        ("broadcast", "double_binary_tree", rooted),
        ("reduce", "double_binary_tree", rooted),
    ]:
        assert seconds(box, op, name, engine, size=0) == pytest.approx(hops * ALPHA, rel=1e-9), (op, name)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_pipeline_up_and_down(engine: str) -> None:
    # piece k goes up in round k and comes down in round k + 1, on opposite directions of the links
    for chunks in (1, 4, 16):
        found = seconds(star(2), "all_reduce", "tree", engine, chunks=chunks)
        assert found == pytest.approx(2 * ALPHA + (chunks + 1) / chunks * M / B, rel=1e-9)


LARGE = [
    # how often the message passes the busiest port: inner ranks of a chain twice, of a binary tree three times, of two half trees twice
    ("all_reduce", "tree", 2.0),
    ("all_reduce", "binary_tree", 3.0),
    ("all_reduce", "double_binary_tree", 2.0),
    ("broadcast", "binary_tree", 2.0),
    ("broadcast", "double_binary_tree", 1.0),
    ("reduce", "binary_tree", 2.0),
    ("reduce", "double_binary_tree", 1.0),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks", [6, 8, 12, 13, 16])
@pytest.mark.parametrize(("op", "name", "times"), LARGE)
def test_large_messages_in_many_pieces_cost_the_busiest_port(op: str, name: str, times: float, ranks: int, engine: str) -> None:
    bare = star(ranks, alpha=0.0)
    bound = time_collective(bare, op, M, algorithm=name).lower_bound_s
    found = [seconds(bare, op, name, engine, chunks=chunks) for chunks in (4, 16, 64)]
    assert found == sorted(found, reverse=True)
    # filling and draining takes a few pieces per level of depth
    assert bound <= found[-1] <= bound * (1 + 4 * ranks / 64)
    assert bound == pytest.approx(times * M / B, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [0, 200_000, 2_000_000, 200_000_000])
def test_a_ring_in_pieces_hides_start_ups(engine: str, chunks: int, size: int) -> None:
    # piece k of step s waits for the piece before it on the edge and for piece k of step s - 1: the longest such path
    n, alpha = 8, 5e-6
    steps, unit = 2 * (n - 1), size / (n * chunks) / B
    hidden = alpha + steps * chunks * unit
    shown = steps * alpha + (steps + chunks - 1) * unit
    found = seconds(star(n, alpha), "all_reduce", "ring", engine, size=size, chunks=chunks)
    assert found == pytest.approx(max(hidden, shown), rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("op", "name"), [("all_reduce", "ring"), ("all_gather", "ring"), ("broadcast", "ring"), ("all_reduce", "tree")])
def test_equal_channels_share_the_wire(op: str, name: str, engine: str) -> None:
    box = star(6)
    one, four = (seconds(box, op, name, engine, chunks=4, channels=channels) for channels in (1, 4))
    assert four == pytest.approx(one, rel=0.02 if name == "tree" else 1e-9)


def test_the_best_algorithm_depends_on_the_size() -> None:
    # 8 ranks on a star: one step of 7 m, two steps, 6 steps or 14 steps of 7/4 m: by alpha and beta alone
    def best(size: int, names: tuple[str, ...]) -> str:
        return min(names, key=lambda name: seconds(star(8), "all_reduce", name, "analytic", size=size))

    assert best(1024, algorithms("all_reduce")) == "one_shot_push"
    crossover = ALPHA / (7 - 7 / 4) * B  # alpha + 7 m / B against 2 alpha + 7 / 4 m / B
    shots = ("one_shot_push", "two_shot_push")
    assert best(int(crossover * 0.99), shots) == "one_shot_push"
    assert best(int(crossover * 1.01), shots) == "two_shot_push"


def test_reads_are_marked_on_the_placement() -> None:
    box = star(4)
    access = {name: place(box, "all_reduce", (box.gpus,), algorithm=name).access for name in algorithms("all_reduce")}
    assert {name for name, kind in access.items() if kind == "read"} == {"one_shot_pull", "two_shot_pull"}
