from __future__ import annotations

import math

import numpy as np
import pytest
from fakebox import FakeBox
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import catalog
from pcie_sim.collectives import OPS, algorithms
from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.network import call_times, rank_order, time_collective
from pcie_sim.network.analytic import solve
from pcie_sim.network.placement import place
from pcie_sim.specs.machine import CclSettings
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import load_topology

EVERY = [(op, name) for op in OPS for name in algorithms(op)]
BARE = FakeBox()
NCCL = CclSettings()
BOXES = {
    "bare": BARE,
    "nccl": BARE.but(ccl=NCCL),
    "latencies": BARE.but(inside=1e-6, across=2e-6),
    "nccl-latencies": BARE.but(ccl=NCCL, inside=1e-7, across=5e-7),
    "thin-uplinks": BARE.but(uplink=20e9, inside=1e-6, across=1e-6),
    "four-switches": BARE.but(per_switch=(2, 2, 2, 2), across=1e-6),
    "uneven": BARE.but(per_switch=(3, 5), inside=1e-6, across=3e-6),
    "slow-slot": BARE.but(slow_gpu="g3", inside=1e-6, across=1e-6),
}
SAYS_SHARED = "event engine"


@pytest.mark.parametrize("box", BOXES.values(), ids=BOXES.keys())
@pytest.mark.parametrize(("op", "name"), EVERY)
def test_engines_agree(box: FakeBox, op: str, name: str) -> None:
    for ranks in (2, 3, 4, 6, 8):
        for size in (0, 4096, 1_000_000, 64_000_000):
            both = [
                time_collective(box, op, size, ranks=ranks, algorithm=name, launch="graph", engine=engine)  # type: ignore[arg-type]
                for engine in ("analytic", "event")
            ]
            analytic, event = both
            for answer in both:
                assert answer.time_s >= answer.lower_bound_s * (1 - 1e-12)
                assert answer.time_s_p10 <= answer.time_s <= answer.time_s_p90
            assert analytic.link_bytes == event.link_bytes
            if any(SAYS_SHARED in text for text in analytic.ignores):
                assert analytic.time_s == pytest.approx(event.time_s, rel=0.25)
            else:
                assert analytic.time_s == pytest.approx(event.time_s, rel=1e-9)
            assert not any(SAYS_SHARED in text for text in event.ignores)


@pytest.mark.parametrize("box", ["bare", "nccl", "latencies", "thin-uplinks"])
def test_rings_and_all_to_all_on_even_boxes_are_exact(box: str) -> None:
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        found = time_collective(BOXES[box], op, "1MB", engine="analytic")
        assert not any(SAYS_SHARED in text for text in found.ignores)
    for engine in ("analytic", "event"):
        assert time_collective(BARE, "all_to_all", "1MB", engine=engine).time_s > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["analytic", "event"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_ring_all_reduce_by_hand(engine: str, ranks: int) -> None:
    # 2 (n - 1) steps of latency + S / n over the link; between switches a ring in bus order has one flow each way
    box = BARE.but(inside=3e-6, across=3e-6)
    found = time_collective(box, "all_reduce", 8_000_000, ranks=ranks, launch="graph", engine=engine)  # type: ignore[arg-type]
    assert found.time_s == pytest.approx(2 * (ranks - 1) * (3e-6 + 8e6 / ranks / 50e9), rel=1e-9)
    assert found.steps == 2 * (ranks - 1)
    assert found.lower_bound_s == pytest.approx(2 * (ranks - 1) / ranks * 8e6 / 50e9, rel=1e-9)
    assert found.busbw_Bps <= 50e9


@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_small_ring_follows_the_data_round_the_ring(engine: str) -> None:
    # without bytes the last chunk's way decides: 14 edges in a row of the ring of 8, of which at most 4 cross
    box = BARE.but(inside=1e-6, across=2e-6)
    found = time_collective(box, "all_reduce", 0, launch="graph", engine=engine)  # type: ignore[arg-type]
    assert found.time_s == pytest.approx(10e-6 + 4 * 2e-6, rel=1e-9)


@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_broadcast_is_a_pipeline(engine: str) -> None:
    # 7 hops and 16 pieces: 7 latencies and (16 + 7 - 1) / 16 of the message's time
    box = BARE.but(inside=1e-6, across=1e-6)
    for op in ("broadcast", "reduce"):
        found = time_collective(box, op, 16_000_000, launch="graph", engine=engine)  # type: ignore[arg-type]
        assert found.time_s == pytest.approx(7e-6 + 22 / 16 * 16e6 / 50e9, rel=1e-9)


@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_chain_and_direct_send(engine: str) -> None:
    box = BARE.but(inside=1e-6, across=2e-6)
    chain = time_collective(box, "send_recv", 1_000_000, algorithm="chain", launch="graph", engine=engine)  # type: ignore[arg-type]
    assert chain.time_s == pytest.approx(6e-6 + 2e-6 + 7 * 1e6 / 50e9, rel=1e-9)
    direct = time_collective(box, "send_recv", 1_000_000, ranks=2, launch="graph", engine=engine)  # type: ignore[arg-type]
    assert direct.time_s == pytest.approx(1e-6 + 1e6 / 50e9, rel=1e-9)


@pytest.mark.parametrize("engine", ["analytic", "event"])
@pytest.mark.parametrize(("first", "second"), [(4, 4), (2, 2), (3, 5), (2, 6)])
def test_all_to_all_is_bound_by_the_uplinks(engine: str, first: int, second: int) -> None:
    # m (n - m) flows of S / n leave a switch of m through one uplink
    box = BARE.but(per_switch=(first, second))
    n, m, size = first + second, first, 8_000_000
    found = time_collective(box, "all_to_all", size, launch="graph", engine=engine)  # type: ignore[arg-type]
    assert found.time_s == pytest.approx(m * (n - m) * (size / n) / 50e9, rel=1e-9)
    assert found.bottleneck is not None
    assert found.bottleneck.link in ("s0.up", "s0.dn", "s1.up", "s1.dn")
    assert found.bottleneck.utilisation == pytest.approx(1.0)


def test_all_to_all_inside_one_switch_is_bound_by_the_ports() -> None:
    found = time_collective(BARE.but(per_switch=(8,)), "all_to_all", 8_000_000, launch="graph")
    assert found.time_s == pytest.approx(7 / 8 * 8e6 / 50e9, rel=1e-9)


def test_uneven_all_to_all_waits_for_the_fullest_rank() -> None:
    rows = tuple(tuple(0.5 if (i, j) == (0, 1) else 0.0 for j in range(8)) for i in range(8))
    found = time_collective(BARE, "all_to_all", 8_000_000, launch="graph", fractions=rows)
    assert found.time_s == pytest.approx(4e6 / 50e9, rel=1e-9)
    nothing = tuple((0.0,) * 8 for _ in range(8))
    assert time_collective(BARE, "all_to_all", 8_000_000, launch="graph", fractions=nothing).time_s == 0.0


def test_bus_order_crosses_each_uplink_once_and_a_bad_order_is_four_times_slower() -> None:
    # SimGrid 3.32 gives 0.16 ms and 0.64 ms for these two steps of 8 MB (max-min sharing, 50 GB/s everywhere)
    call = CollectiveCall("all_reduce", 64e6, ((0, 1, 2, 3, 4, 5, 6, 7),))
    good = place(BARE, "all_reduce", (BARE.gpus,))
    steps = good.steps
    crossing = [load for name, load in zip(good.links, good.user_load, strict=True) if name.startswith("s")]
    assert crossing == pytest.approx([steps / 8] * 4)
    bad = ["g0", "g4", "g1", "g5", "g2", "g6", "g3", "g7"]
    in_order = call_times(BARE, call, gpu_of_rank=BARE.gpus).time_s
    badly = call_times(BARE, call, gpu_of_rank=bad).time_s
    assert float(in_order) == pytest.approx(14 * 0.00016, rel=1e-9)
    assert float(badly) == pytest.approx(14 * 0.00064, rel=1e-9)


def test_groups_run_at_the_same_time_and_share() -> None:
    size = 8e6
    pairs = CollectiveCall("all_reduce", size, ((0, 4), (1, 5), (2, 6), (3, 7)))
    one = CollectiveCall("all_reduce", size, ((0, 4),))
    halves = CollectiveCall("all_reduce", size, ((0, 1, 2, 3), (4, 5, 6, 7)))
    half = CollectiveCall("all_reduce", size, ((0, 1, 2, 3),))

    def time(call: CollectiveCall) -> float:
        return float(call_times(BARE, call, gpu_of_rank=BARE.gpus).time_s)

    assert time(pairs) == pytest.approx(4 * time(one), rel=1e-9)
    assert time(halves) == pytest.approx(time(half), rel=1e-12)


@given(st.lists(st.integers(0, 2**26), min_size=1, max_size=12), st.sampled_from(list(BOXES)), st.sampled_from(OPS))
def test_call_times_are_time_collective_for_every_size(sizes: list[int], box: str, op: str) -> None:
    topology = BOXES[box]
    call = CollectiveCall(op, np.array(sizes, dtype=float).reshape(1, -1), (tuple(range(8)),))  # type: ignore[arg-type]
    found = call_times(topology, call, gpu_of_rank=topology.gpus)
    way = "direct" if op == "send_recv" else "auto"  # a bare call of sends is nccl-tests' shift of all ranks, a plan's a hop
    singly = [time_collective(topology, op, size, launch="graph", algorithm=way).time_s for size in sizes]
    assert found.time_s.shape == (1, len(sizes))
    assert found.time_s[0] == pytest.approx(singly, rel=1e-12)
    assert found.time_s == pytest.approx(found.latency_s + found.bytes_s, rel=1e-12)


@given(st.lists(st.integers(0, 2**26), min_size=2, max_size=10, unique=True), st.sampled_from(list(BOXES)), st.sampled_from(EVERY))
def test_time_grows_with_size_under_one_protocol(sizes: list[int], box: str, which: tuple[str, str]) -> None:
    placed = place(BOXES[box], which[0], (BOXES[box].gpus,), algorithm=which[1])
    lines = solve(placed, "Simple")
    start, moved = lines.evaluate(np.sort(np.array(sizes, dtype=float)))
    assert np.all(np.diff(start + moved) >= 0)
    assert np.all(start + moved >= lines.bound * np.sort(sizes) * (1 - 1e-12))


def test_eager_calls_wait_for_the_cpu() -> None:
    box = BARE.but(ccl=NCCL)
    eager, graph = (time_collective(box, "all_reduce", "4KiB", launch=launch) for launch in ("eager", "graph"))  # type: ignore[arg-type]
    floor = catalog.load_part("nccl").eager_floor[8].value  # type: ignore[union-attr]
    assert eager.time_s == pytest.approx(max(floor, graph.time_s))
    assert sum(eager.parts_s.values()) == pytest.approx(eager.time_s)
    assert sum(graph.parts_s.values()) == pytest.approx(graph.time_s)
    big = [time_collective(box, "all_reduce", "64MiB", launch=launch).time_s for launch in ("eager", "graph")]  # type: ignore[arg-type]
    assert big[0] == big[1] > floor
    call = CollectiveCall("all_reduce", np.array([4096.0, 2.0**26]), (tuple(range(8)),))
    found = call_times(box, call, gpu_of_rank=box.gpus, launch="eager")
    assert found.time_s == pytest.approx([eager.time_s, big[0]])


def test_bare_wires_cost_nothing_but_wires() -> None:
    found = time_collective(BARE, "all_reduce", 0)
    assert (found.time_s, found.protocol, found.ccl, found.evidence) == (0.0, "none", "none", "measured")
    assert found.bottleneck is None
    assert math.isfinite(found.algbw_Bps)


def test_rank_order() -> None:
    assert rank_order(BARE, 3) == ("g0", "g1", "g2")
    for wrong in (0, 9, -1, True, 2.0):
        with pytest.raises(InputError):
            rank_order(BARE, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "size", "options"),
    [
        ("allreduce", 1, {}),
        ("all_reduce", -1, {}),
        ("all_reduce", "1.5B", {}),
        ("all_reduce", True, {}),
        ("all_reduce", 1, {"ranks": 9}),
        ("all_reduce", 1, {"ranks": 1}),
        ("all_reduce", 1, {"ranks": 0}),
        ("all_reduce", 1, {"ranks": True}),
        ("all_reduce", 1, {"ranks": 2.0}),
        ("all_reduce", 1, {"algorithm": "trees"}),
        ("all_reduce", 1, {"algorithm": "one_shot_push", "chunks": 2}),
        ("all_reduce", 1, {"algorithm": "tree", "chunks": 0}),
        ("all_reduce", 1, {"algorithm": "tree", "channels": 65}),
        ("all_reduce", 1, {"protocol": "LL64"}),
        ("all_reduce", 1, {"launch": "lazy"}),
        ("all_reduce", 1, {"engine": "steam"}),
        ("all_reduce", 1, {"fractions": ((1.0,) * 8,) * 8}),
        ("all_to_all", 1, {"fractions": ((1.0,) * 8,) * 7}),
    ],
)
def test_wrong_questions(op: str, size: object, options: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        time_collective(BARE, op, size, **options)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "call",
    [
        CollectiveCall("all_reduce", 1.0, ()),
        CollectiveCall("all_reduce", 1.0, ((),)),
        CollectiveCall("all_reduce", 1.0, ((0, 8),)),
        CollectiveCall("all_reduce", 1.0, ((0, -1),)),
        CollectiveCall("all_reduce", -1.0, ((0, 1),)),
        CollectiveCall("all_reduce", float("nan"), ((0, 1),)),
        CollectiveCall("all_nothing", 1.0, ((0, 1),)),  # type: ignore[arg-type]
    ],
)
def test_wrong_calls(call: CollectiveCall) -> None:
    with pytest.raises(InputError):
        call_times(BARE, call, gpu_of_rank=BARE.gpus)


@pytest.mark.parametrize("name", catalog.topology_names())
@pytest.mark.parametrize(("op", "algorithm"), EVERY)
def test_every_shipped_box_answers_every_op(name: str, op: str, algorithm: str) -> None:
    topology = load_topology(name)
    answers = [
        time_collective(topology, op, "64KiB", algorithm=algorithm, launch="graph", engine=engine)  # type: ignore[arg-type]
        for engine in ("analytic", "event")
    ]
    for answer in answers:
        assert answer.lower_bound_s < answer.time_s < 0.01
        assert answer.time_s_p10 < answer.time_s < answer.time_s_p90
        assert answer.evidence != "measured"
        assert all(0 <= share <= 1 + 1e-9 for share in answer.link_utilisation.values())
        assert answer.sources
        assert answer.to_json()
    assert answers[0].time_s == pytest.approx(answers[1].time_s, rel=0.35)  # rounds that overlap in the event engine only


def test_unknown_algorithm_names_the_known() -> None:
    with pytest.raises(UnknownNameError, match="use auto, ring, ") as caught:
        time_collective(BARE, "all_reduce", 1, algorithm="rign")
    assert all(name in str(caught.value) for name in algorithms("all_reduce"))
