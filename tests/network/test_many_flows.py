"""The ways to save work (following changes, solving equal flows as one) against exact arithmetic, and large closed forms."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import ExactFlow, exact_run

from pcie_sim.network import FlowArrays, FlowSet, all_pairs, simulate, simulate_arrays, symmetry, tree_routes
from pcie_sim.network.events import _Engine, _LargeFluid, _SmallFluid
from pcie_sim.network.flowset import arrays_of, lists_of
from pcie_sim.network.incremental import IncrementalFluid
from pcie_sim.network.sharing import INFINITY, charged_route, fill_small

Case = tuple[list[int], list[ExactFlow]]
QUARTERS = st.integers(0, 8).map(lambda value: Fraction(value, 4))


@st.composite
def cases(draw: st.DrawFn, most: int = 12, *, alone: bool = False) -> Case:
    """Capacities and flows of all kinds: caps, links charged twice, late starts, start-ups, dependencies, streams, no bytes."""
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.integers(1, 30), min_size=links, max_size=links))
    ways = draw(st.lists(st.lists(st.integers(0, links - 1), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6))
    plain = alone or draw(st.booleans())
    flows: list[ExactFlow] = []
    last: dict[int, int] = {}
    for index in range(draw(st.integers(1, most))):
        cap = draw(st.sampled_from([None, None, Fraction(1), Fraction(5, 2), Fraction(7)]))
        stream = draw(st.integers(0, 4))
        deps = st.lists(st.integers(0, index - 1), max_size=2, unique=True).map(tuple) if index and not plain else st.just(())
        flows.append(
            ExactFlow(
                route=draw(st.sampled_from(ways)),
                size=Fraction(draw(st.integers(0, 12))),
                start=draw(QUARTERS),
                latency=Fraction(0) if plain and not alone else draw(QUARTERS),
                cap=cap,
                deps=draw(deps),
                previous=-1 if plain else last.get(stream, -1),
            )
        )
        last[stream] = index
    return capacity, flows


def copies(case: Case, count: int, shared: list[bool]) -> Case:
    """``count`` copies of every flow, side by side; a link that is not shared has a copy of its own for each."""
    capacity, flows = case
    links = len(capacity)
    found = [
        ExactFlow(
            route=tuple(link if shared[link] else link + links * copy for link in flow.route),
            size=flow.size,
            start=flow.start,
            latency=flow.latency,
            cap=flow.cap,
            deps=tuple(dep * count + copy for dep in flow.deps),
            previous=flow.previous * count + copy if flow.previous >= 0 else -1,
        )
        for flow in flows
        for copy in range(count)
    ]
    return capacity * count, found


def flow_set(case: Case) -> FlowSet:
    capacity, flows = case
    classes: dict[tuple[tuple[int, ...], float], int] = {}
    of_class = [classes.setdefault((flow.route, INFINITY if flow.cap is None else float(flow.cap)), len(classes)) for flow in flows]
    return FlowSet(
        capacity=[float(item) for item in capacity],
        routes=[route for route, _ in classes],
        caps=[cap for _, cap in classes],
        of_class=of_class,
        size=[float(flow.size) for flow in flows],
        start=[float(flow.start) for flow in flows],
        latency=[float(flow.latency) for flow in flows],
        deps=[flow.deps for flow in flows] if any(flow.deps for flow in flows) else (),
        previous=[flow.previous for flow in flows] if any(flow.previous >= 0 for flow in flows) else (),
    )


def exact(case: Case) -> list[float]:
    capacity, flows = case
    return [float(end) for end in exact_run([Fraction(item) for item in capacity], flows)]


@pytest.mark.parametrize("fluid", [_SmallFluid, _LargeFluid, IncrementalFluid])
@given(case=cases())
def test_every_fluid_gives_the_exact_finish_times(fluid: type, case: Case) -> None:
    flows = flow_set(case)
    engine = _Engine(flows)
    engine.fluid = fluid(flows)
    assert engine.run().finish == pytest.approx(exact(case), rel=1e-9, abs=1e-12)


@given(cases(30))
def test_followed_levels_are_those_of_a_fresh_solution(case: Case) -> None:
    flows = flow_set(case)

    class Checked(IncrementalFluid):
        def _solve(self) -> None:
            super()._solve()
            counts = [len(queue) for queue in self.queues]
            fresh = fill_small(flows.capacity, flows.routes, counts, flows.caps)
            moving = [index for index, count in enumerate(counts) if count]
            assert [self.level[self.pack[index].label] for index in moving] == pytest.approx([fresh[index] for index in moving], rel=1e-9)

    engine = _Engine(flows)
    engine.fluid = Checked(flows)
    engine.run()


@given(cases(30))
def test_a_run_may_go_over_to_following_changes(case: Case) -> None:
    flows = flow_set(case)
    staying, going = _Engine(flows), _Engine(flows)
    staying.fluid, going.fluid = _SmallFluid(flows), _SmallFluid(flows)
    staying.fluid.fresh, going.fluid.fresh = -(10**9), 10**9
    expected = staying.run().finish
    assert going.run().finish == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert isinstance(going.fluid, IncrementalFluid)


@given(cases(6, alone=True), st.integers(1, 3), st.lists(st.booleans(), min_size=6, max_size=6))
def test_equal_flows_are_one_group_and_end_exactly(case: Case, count: int, shared: list[bool]) -> None:
    many = copies(case, count, shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetry, "_WORTH", 1)
        found = simulate_arrays(arrays_of(flow_set(many)))
    assert found.groups <= len(case[1])
    assert found.finish.tolist() == pytest.approx(exact(many), rel=1e-9, abs=1e-12)
    assert found.makespan == float(found.finish.max())


@given(cases(alone=True))
def test_lists_and_arrays_describe_the_same(case: Case) -> None:
    flows = flow_set(case)
    back = lists_of(arrays_of(flows))
    assert simulate(back).finish == simulate(flows).finish
    assert back.link_bytes() == pytest.approx(flows.link_bytes())


def test_flows_that_wait_are_not_put_in_arrays() -> None:
    with pytest.raises(ValueError, match="wait for nothing"):
        arrays_of(FlowSet([1.0], [(0,)], [INFINITY], [0, 0], [1.0, 1.0], deps=[(), (0,)]))


def test_charges_stand_for_repeated_links() -> None:
    once = FlowSet([12.0, 5.0], [(0, 1)], [INFINITY], [0, 0], [6.0, 6.0], charges=[(3, 1)])
    assert charged_route((0, 0, 0, 1)) == charged_route((0, 1), (3, 1)) == ((0, 3), (1, 1))
    assert simulate(once).finish == simulate(FlowSet([12.0, 5.0], [(0, 0, 0, 1)], [INFINITY], [0, 0], [6.0, 6.0])).finish == [3.0, 3.0]
    assert once.link_bytes() == [36.0, 12.0]


def endpoints(count: int) -> tuple[list[int], np.ndarray]:
    """Parents of ``count`` endpoints, eight a switch, and 50 GB/s for every link and uplink each way."""
    switches = count // 8
    return [count + index // 8 for index in range(count)] + [-1] * switches, np.full(2 * (count + switches), 50e9)


def test_ways_through_a_tree() -> None:
    #      5      6     two roots
    #     3 4     |
    #    0   1    2
    parent = [3, 4, 6, 5, 5, -1, -1]
    found = tree_routes(parent, np.array([0, 0, 1], dtype=np.int32), np.array([1, 2, 1], dtype=np.int32))
    ways = [[int(link) for link in column if link >= 0] for column in found.T]
    assert ways == [[0, 6, 9, 3], [0, 6, 10, 13, 5], []]
    assert tree_routes([-1], *all_pairs(1)).shape == (0, 0)
    with pytest.raises(ValueError, match="cycle"):
        tree_routes([1, 0], *all_pairs(2))


def test_all_pairs() -> None:
    source, target = all_pairs(5)
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == [(i, j) for i in range(5) for j in range(5) if i != j]


@pytest.mark.parametrize("count", [16, 64, 512])
def test_full_all_to_all_has_its_closed_form(count: int) -> None:
    # 8 (n - 8) flows of 1 MB leave a switch over its uplink; SimGrid 3.32 gives 0.00896 s for 64 and does not end for 512
    parent, capacity = endpoints(count)
    found = simulate_arrays(FlowArrays(capacity, tree_routes(parent, *all_pairs(count)), 1e6))
    assert found.makespan == pytest.approx(8 * (count - 8) * 1e6 / 50e9, rel=1e-12)
    assert found.groups == 2
    # local flows get what the uplink leaves of a port: 50 - 50 / 8 GB/s for 7 of them
    assert found.finish[0] == pytest.approx(7e6 / (50e9 - 50e9 / 8), rel=1e-12)


def shifted(count: int, shifts: range, size: np.ndarray | float) -> FlowArrays:
    parent, capacity = endpoints(count)
    source = np.tile(np.arange(count, dtype=np.int32), len(shifts))
    target = (source + np.repeat(np.array(shifts, dtype=np.int32), count)) % count
    return FlowArrays(capacity, tree_routes(parent, source, target.astype(np.int32)), size)


@pytest.mark.parametrize(("count", "most", "crossing"), [(512, 16, 100), (512, 64, 484)])
def test_shifts_at_once_have_their_closed_form(count: int, most: int, crossing: int) -> None:
    # SimGrid 3.32: 0.002 and 0.00968 s
    flows = shifted(count, range(1, most + 1), 1e6)
    assert simulate_arrays(flows).makespan == pytest.approx(crossing * 1e6 / 50e9, rel=1e-12)
    assert simulate(lists_of(flows)).makespan == pytest.approx(crossing * 1e6 / 50e9, rel=1e-12)


def test_a_size_for_each_shift_makes_a_group_for_each_place_in_a_switch() -> None:
    size = np.repeat(1e6 + 1e4 * np.arange(16.0) ** 1.5, 64)
    flows = shifted(64, range(1, 17), size)
    found = simulate_arrays(flows)
    assert found.groups <= 8 * 16
    single = _Engine(lists_of(flows)).run()
    assert found.finish.tolist() == pytest.approx(single.finish, rel=1e-11)
    assert simulate(lists_of(flows)).finish == pytest.approx(single.finish, rel=1e-11)


def test_flows_of_all_different_sizes_agree_with_whole_solutions() -> None:
    size = 1e6 + 1e6 * np.modf(np.arange(16 * 15) * 0.6180339887498949)[0]
    parent, capacity = endpoints(16)
    flows = lists_of(FlowArrays(capacity, tree_routes(parent, *all_pairs(16)), size))
    whole = _Engine(flows)
    whole.fluid = _LargeFluid(flows)
    whole.fluid.fresh = -(10**9)
    followed = simulate(flows)
    assert followed.finish == pytest.approx(whole.run().finish, rel=1e-11)
    assert followed.events == 241
    arrays = simulate_arrays(FlowArrays(capacity, tree_routes(parent, *all_pairs(16)), size))
    assert arrays.finish.tolist() == followed.finish
    assert arrays.groups == 240


def test_a_large_answer_repeats_to_the_last_bit_and_soon() -> None:
    flows = lists_of(shifted(64, range(1, 64), 1e6 + np.arange(64.0 * 63)))
    begun = time.process_time()
    first = simulate(flows)
    assert time.process_time() - begun < 10  # 0.6 s; without following changes, minutes on slow machines
    assert first == simulate(flows)
