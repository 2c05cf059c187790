from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import exact_finish, exact_rates

from pcie_sim.network import FlowSet, max_min_rates, simulate
from pcie_sim.network.events import _Engine, _LargeFluid, _SmallFluid
from pcie_sim.network.sharing import INFINITY, LargeFill, fill_small

Case = tuple[list[int], list[list[int]], list[float]]


@st.composite
def cases(draw: st.DrawFn, *, capped: bool = True) -> Case:
    """Capacities, routes (a link may stand twice) and caps per flow (infinity: none)."""
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.integers(1, 60), min_size=links, max_size=links))
    routes = draw(st.lists(st.lists(st.integers(0, links - 1), min_size=1, max_size=4), min_size=1, max_size=9))
    cap = st.sampled_from([INFINITY, INFINITY, 1.0, 2.0, 7.0]) if capped else st.just(INFINITY)
    return capacity, routes, draw(st.lists(cap, min_size=len(routes), max_size=len(routes)))


@given(cases())
def test_rates_are_those_of_exact_progressive_filling(case: Case) -> None:
    capacity, routes, caps = case
    limits = {flow: Fraction(cap) for flow, cap in enumerate(caps) if cap < INFINITY}
    expected = [float(rate) for rate in exact_rates([Fraction(item) for item in capacity], routes, limits)]
    assert max_min_rates(capacity, routes, caps=caps) == pytest.approx(expected, rel=1e-9)


@given(cases())
def test_every_flow_is_held_by_a_full_link_or_its_cap(case: Case) -> None:
    capacity, routes, caps = case
    rates = max_min_rates(capacity, routes, caps=caps)
    used = [sum(rate * route.count(link) for rate, route in zip(rates, routes, strict=True)) for link in range(len(capacity))]
    assert all(amount <= size * (1 + 1e-9) for amount, size in zip(used, capacity, strict=True))
    for flow, route in enumerate(routes):
        full = any(
            used[link] >= capacity[link] * (1 - 1e-9)
            and rates[flow] >= max(rates[other] for other in range(len(routes)) if link in routes[other]) * (1 - 1e-9)
            for link in route
        )
        assert full or rates[flow] == pytest.approx(caps[flow], rel=1e-12)


@given(cases(), st.lists(st.integers(1, 5), min_size=9, max_size=9))
def test_both_paths_and_weights_agree_with_single_flows(case: Case, weights: list[int]) -> None:
    capacity, routes, caps = case
    weight = weights[: len(routes)]
    small = fill_small(capacity, routes, weight, caps)
    large = LargeFill(capacity, routes, caps).rates(weight)
    single = max_min_rates(
        capacity,
        [route for route, count in zip(routes, weight, strict=True) for _ in range(count)],
        caps=[cap for cap, count in zip(caps, weight, strict=True) for _ in range(count)],
    )
    spread = [rate for rate, count in zip(small, weight, strict=True) for _ in range(count)]
    assert list(large) == pytest.approx(small, rel=1e-9)
    assert single == pytest.approx(spread, rel=1e-9)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_flows_does_not_matter(case: Case, random: object) -> None:
    capacity, routes, caps = case
    order = list(range(len(routes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rates = max_min_rates(capacity, routes, caps=caps)
    shuffled = max_min_rates(capacity, [routes[place] for place in order], caps=[caps[place] for place in order])
    assert shuffled == pytest.approx([rates[place] for place in order], rel=1e-12)


def test_nothing_limits_a_flow_without_links() -> None:
    assert max_min_rates([], [[]]) == [INFINITY]
    assert max_min_rates([], [[]], caps=[5.0]) == [5.0]
    assert list(LargeFill([], [[], []], [INFINITY, 3.0]).rates([1, 1])) == [INFINITY, 3.0]
    assert max_min_rates([4.0], [[0], [0]], weights=[0, 1]) == [0.0, 4.0]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, list[int], int]]]:
    """Capacities and flows (start, route, bytes)."""
    capacity, routes, _ = draw(cases(capped=False))
    flows = [(draw(st.integers(0, 4)), route, draw(st.integers(0, 40))) for route in routes]
    return capacity, flows


def flow_set(capacity: list[int], flows: list[tuple[int, list[int], int]]) -> FlowSet:
    routes = [tuple(route) for _, route, _ in flows]
    return FlowSet(
        capacity=[float(item) for item in capacity],
        routes=routes,
        caps=[INFINITY] * len(routes),
        of_class=list(range(len(routes))),
        size=[float(size) for _, _, size in flows],
        start=[float(start) for start, _, _ in flows],
    )


@given(runs())
def test_finish_times_are_those_of_exact_arithmetic(run: tuple[list[int], list[tuple[int, list[int], int]]]) -> None:
    capacity, flows = run
    expected = exact_finish([Fraction(item) for item in capacity], [(Fraction(s), r, Fraction(b)) for s, r, b in flows])
    found = simulate(flow_set(capacity, flows))
    assert found.finish == pytest.approx([float(item) for item in expected], rel=1e-9, abs=1e-12)
    assert found.makespan == max(found.finish)


@given(runs())
def test_lists_and_arrays_give_the_same_run(run: tuple[list[int], list[tuple[int, list[int], int]]]) -> None:
    flows = flow_set(*run)
    engine = _Engine(flows)
    assert isinstance(engine.fluid, _SmallFluid)
    other = _Engine(flows)
    other.fluid = _LargeFluid(flows)
    assert other.run().finish == pytest.approx(engine.run().finish, rel=1e-9, abs=1e-12)


@given(runs())
def test_a_run_repeats_to_the_last_bit(run: tuple[list[int], list[tuple[int, list[int], int]]]) -> None:
    flows = flow_set(*run)
    assert simulate(flows) == simulate(flows)


@given(runs())
def test_bytes_are_conserved_and_no_link_is_overdriven(run: tuple[list[int], list[tuple[int, list[int], int]]]) -> None:
    capacity, flows = run
    found = simulate(flow_set(capacity, flows))
    carried = flow_set(capacity, flows).link_bytes()
    for link, size in enumerate(capacity):
        expected = sum(size_bytes * route.count(link) for _, route, size_bytes in flows)
        assert carried[link] == expected
        first = min((start for start, route, amount in flows if link in route and amount), default=0)
        assert carried[link] <= size * (found.makespan - first) * (1 + 1e-9) + 1e-9


@given(st.integers(1, 8), st.integers(1, 50), st.integers(1, 50), st.integers(1, 100))
def test_more_capacity_is_never_slower_with_one_bottleneck(flows: int, capacity: int, more: int, size: int) -> None:
    def makespan(rate: int) -> float:
        return simulate(flow_set([rate], [(0, [0], size)] * flows)).makespan

    assert makespan(capacity + more) <= makespan(capacity)
    assert makespan(capacity) == pytest.approx(flows * size / capacity, rel=1e-12)


@pytest.mark.parametrize("fluid", [_SmallFluid, _LargeFluid])
def test_a_set_of_moving_flows_is_solved_once(fluid: type) -> None:
    # ten equal rounds of four flows, each waiting for its own of the round before: one solution, not ten
    flows = FlowSet(
        capacity=[12.0, 4.0],
        routes=[(0,), (0, 1)],
        caps=[INFINITY, INFINITY],
        of_class=[0, 0, 1, 1] * 10,
        size=[8.0, 8.0, 4.0, 4.0] * 10,
        deps=[() if index < 4 else (index - 4,) for index in range(40)],
    )
    engine = _Engine(flows)
    engine.fluid = fluid(flows)
    found = engine.run()
    assert found.finish == pytest.approx([2.0 * (1 + index // 4) for index in range(40)])
    assert len(engine.fluid.solved) == 1


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        simulate(FlowSet([1.0], [(0,)], [INFINITY], [0, 0], [1.0, 1.0], deps=[(1,), (0,)]))


def test_streams_keep_their_order_and_hide_start_ups() -> None:
    # three sends of one stream, 1 s start-up each: only the first one shows; a late dependency holds the stream
    flows = FlowSet([10.0], [(0,)], [INFINITY], [0, 0, 0], [10.0, 10.0, 10.0], latency=[1.0] * 3, previous=[-1, 0, 1])
    assert simulate(flows).finish == [2.0, 3.0, 4.0]
    late = FlowSet([10.0], [(0,)], [INFINITY], [0, 0, 0], [10.0, 10.0, 10.0], start=[5.0, 0.0, 0.0], latency=[1.0] * 3, previous=[-1, 0, 1])
    assert simulate(late).finish == [7.0, 8.0, 9.0]
