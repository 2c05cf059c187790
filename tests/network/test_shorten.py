"""Flows made shorter (equal flows as one, links in series as one) against the engine on the flows as they stand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pcie_sim.errors import InputError
from pcie_sim.network import FlowSet, load_flows, run_flows, simulate
from pcie_sim.network import flows as flows_file
from pcie_sim.network.alike import Kinds
from pcie_sim.network.placement import Placement, place
from pcie_sim.network.shorten import shortened
from pcie_sim.network.views import make_view
from pcie_sim.topology import load_topology

LONG = [f"l{index}" for index in range(300)]


def drawn(seed: int, sizes: int, starts: int, count: int) -> FlowSet:
    """Random routes over links of random rates, with repeated links, flows and links in series."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    capacity = [rng.uniform(1.0, 9.0) for _ in range(12)]
    routes = [tuple(link for base in rng.choices(range(6), k=rng.randint(1, 4)) for link in (base, base + 6)) for _ in range(6)]
    of_class = [rng.randrange(6) for _ in range(count)]
    size = [float(1 + rng.randrange(sizes)) for _ in range(count)]
    start = [float(rng.randrange(starts)) for _ in range(count)]
    return FlowSet(capacity, routes, [float("inf")] * 6, of_class, size, start)


@pytest.mark.parametrize(("sizes", "starts", "count"), [(1, 1, 40), (3, 2, 60), (50, 1, 60), (2, 1, 700), (40, 3, 700)])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_answer(seed: int, sizes: int, starts: int, count: int) -> None:
    flows = drawn(seed, sizes, starts, count)
    short = shortened(flows)
    assert sum(short.copies) == count
    assert len(short.flows.capacity) <= 6
    plain, found = simulate(flows), short.run()
    assert found.finish == pytest.approx(plain.finish, rel=1e-9)
    assert found.makespan == pytest.approx(plain.makespan, rel=1e-9)
    charged = simulate(short._charged())
    assert [charged.finish[index] for index in short.which] == pytest.approx(plain.finish, rel=1e-9)


def test_different_flows_stay_as_they_are() -> None:
    flows = FlowSet([1.0, 2.0], [(0,), (1,)], [float("inf")] * 2, [0, 1, 0], [1.0, 1.0, 2.0], [0.0, 0.0, 0.0])
    short = shortened(flows)
    assert (short.flows, short.copies, short.which) == (flows, [1, 1, 1], [0, 1, 2])


def case(**changes: Any) -> dict[str, Any]:
    return {"id": "c", "links": dict.fromkeys(LONG, 10), "routes": {"a>b": LONG}, "flows": [[0, "a", "b", 1]]} | changes


def test_a_thousand_equal_flows_on_a_long_route() -> None:
    found = run_flows({"cases": [case(flows=[[0, "a", "b", 1]] * 1000)]}).cases[0]
    assert found.finish == pytest.approx([100.0] * 1000, rel=1e-12)  # 1,000 B over 10 B/s
    assert found.link_bytes == dict.fromkeys(LONG, 1000.0)
    assert shortened(FlowSet([10.0] * 300, [tuple(range(300))], [float("inf")], [0] * 1000, [1.0] * 1000, [0.0] * 1000)).crossings == 1


def test_the_slowest_link_in_series_counts() -> None:
    links = dict.fromkeys(LONG, 10) | {"l7": 5, "l9": 5}
    found = run_flows({"cases": [case(links=links, flows=[[0, "a", "b", 10], [0, "a", "b", 20]])]}).cases[0]
    assert found.finish == pytest.approx([4.0, 6.0], rel=1e-12)  # 2.5 B/s each until 4 s, then 5 B/s for the last 10 B


def test_more_crossings_than_a_file_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows_file, "MOST_CROSSINGS", 100)
    monkeypatch.setattr(flows_file, "MOST_ALIKE", 1000)
    routes = {"a>b": ["l0", "l1"], "b>c": ["l1", "l2"], "c>a": ["l2", "l0"]}

    def asked(kinds: int, count: int, name: str = "c") -> dict[str, Any]:
        ways = ["ab", "bc", "ca"]
        return case(id=name, routes=routes, flows=[[0, *ways[turn % 3], 1 + turn // 3 % kinds] for turn in range(count)])

    run_flows({"cases": [asked(1000, 45), asked(1, 3000, "d")]})
    with pytest.raises(InputError, match="case 'c': flows: 51 different flows cross 102 links together, more than the 100 of all cases"):
        run_flows({"cases": [asked(1000, 51)]})
    with pytest.raises(InputError, match="case 'd': flows: 20 different flows"):
        run_flows({"cases": [asked(1000, 45), asked(1000, 20, "d")]})


ESC, HALF = "\x1b[31m", "\ud800"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": f"c{ESC}"}, r"case 1: id: holds a control character \(\\x1b\); write plain text"),
        ({"id": f"c{HALF}"}, r"case 1: id: holds half of a character \(\\ud800\); write plain text"),
        ({"links": {f"l{ESC}": 1}}, "case 'c': links: holds a control character"),
        ({"links": {f"l{HALF}": 1}}, "case 'c': links: holds half of a character"),
        ({"routes": {f"a{ESC}>b": ["l0"]}}, "case 'c': routes: holds a control character"),
        ({"routes": {f"a{HALF}>b": ["l0"]}}, "case 'c': routes: holds half of a character"),
    ],
)
def test_names_that_cannot_be_printed(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"cases": [case(**changes)]}))
    with pytest.raises(InputError, match=words):
        load_flows(path)


def test_unknown_units() -> None:
    with pytest.raises(InputError, match=r"f\.yaml: units: unknown key 'x'; it takes bandwidth, size and time"):
        run_flows({"units": {"x": 1}, "cases": [case()]}, source="f.yaml")


def test_deep_json_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"f\.json: nested deeper than 50 levels; look for brackets that are not closed$"):
        load_flows(path)


@pytest.mark.parametrize("name", ["rtx-pro-6000-8x-2switch", "rtx-pro-6000-16x-2host-ndr", "rtx-4090-8x-rome-2socket"])
@pytest.mark.parametrize("op", ["all_to_all", "all_reduce", "broadcast"])
def test_kinds_price_what_classes_price(name: str, op: str) -> None:
    box = load_topology(name)
    placed: Placement = place(box, op, (box.gpus,))
    single = place(box.with_settings(), op, (box.gpus,))
    classes = tuple(range(len(single.class_route)))
    count = tuple(single.of_class.count(index) for index in classes)
    single.__dict__["kinds"] = Kinds(classes, count, single.of_class, classes)
    for protocol in ("LL", "LL128", "Simple"):
        ours, theirs = make_view(placed, protocol, None), make_view(single, protocol, None)
        assert (ours.latency, ours.wire, ours.caps) == (theirs.latency, theirs.wire, theirs.caps)
        assert ours.step.value == pytest.approx(theirs.step.value, rel=1e-12)
        assert ours.step.sigma == pytest.approx(theirs.step.sigma, rel=1e-12)
        assert (ours.step.evidence, ours.share) == (theirs.step.evidence, theirs.share)
