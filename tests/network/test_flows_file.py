from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from oracle import exact_finish

from pcie_sim.errors import InputError
from pcie_sim.network import load_flows, run_flows
from pcie_sim.specs.loader import load_yaml

CASES: list[dict[str, Any]] = load_yaml(Path(__file__).with_name("flows_cases.yaml"))["cases"]
for _case in CASES:
    for _flow in _case["flows"]:
        _flow[0] = float(Fraction(str(_flow[0])))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_cases_worked_by_hand(case: dict[str, Any]) -> None:
    expected = [Fraction(text) for text in case["finish"]]
    found = run_flows({"cases": [case]}).cases[0]
    assert found.finish == pytest.approx([float(item) for item in expected], rel=1e-12)
    assert found.makespan == pytest.approx(float(max(expected)), rel=1e-12)
    assert found.id == case["id"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_cases_against_rational_arithmetic(case: dict[str, Any]) -> None:
    number = {name: place for place, name in enumerate(case["links"])}
    capacity = [Fraction(rate) for rate in case["links"].values()]
    flows = [
        (Fraction(start), [number[link] for link in case["routes"][f"{src}>{dst}"]], Fraction(size))
        for start, src, dst, size in case["flows"]
    ]
    once = exact_finish(capacity, flows)
    rounds = case.get("rounds_repeat", 1)
    expected = [float(end + max(once) * turn) for turn in range(rounds) for end in once]
    assert run_flows({"cases": [case]}).cases[0].finish == pytest.approx(expected, rel=1e-12)


def case(**changes: Any) -> dict[str, Any]:
    return {"id": "c", "links": {"a": 10, "b": 20}, "routes": {"x>y": ["a", "b"]}, "flows": [[0, "x", "y", 10]]} | changes


def test_answer_in_full() -> None:
    found = run_flows({"cases": [case(rounds_repeat=2, note="ignored")], "author": "ignored"}, source="f.yaml").to_dict()
    solve_s = found["cases"][0].pop("solve_s")
    assert 0 <= solve_s < 1
    assert found == {
        "schema": "pcie-sim/flows/1",
        "cases": [{"id": "c", "makespan": 2.0, "finish": [1.0, 2.0], "events": 4}],
    }


def test_bytes_per_link() -> None:
    found = run_flows({"cases": [case(routes={"x>y": ["a", "b", "b"]}, rounds_repeat=3)]}).cases[0]
    assert found.link_bytes == {"a": 30.0, "b": 60.0}
    assert found.makespan == pytest.approx(3.0)


def test_text_numbers() -> None:
    found = run_flows({"cases": [case(links={"a": "1GB/s", "b": "2GB/s"}, flows=[["1ms", "x", "y", "1MB"]])]}).cases[0]
    assert found.finish == pytest.approx([0.002], rel=1e-12)


def test_numbers_as_names_and_case_ids() -> None:
    found = run_flows({"cases": [case(id=1, links={1: 10}, routes={"0 > 1": [1]}, flows=[[0, 0, 1, 10]])]}).cases[0]
    assert found.id == "1"
    assert found.finish == (1.0,)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"flows{suffix}"
    path.write_text(json.dumps({"cases": [case()]}))
    assert load_flows(path).cases[0].finish == (1.0,)
    with pytest.raises(InputError, match="no such file"):
        load_flows(tmp_path / f"other{suffix}")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": None}, "id"),
        ({"id": True}, "id"),
        ({"id": ""}, "id"),
        ({"id": ["x"]}, "id"),
        ({"links": {}}, "links"),
        ({"links": ["a"]}, "links"),
        ({"links": {"a": 0, "b": 1}}, "links.a: a capacity must be above zero"),
        ({"links": {"a": -1, "b": 1}}, "links.a"),
        ({"links": {"a": NAN, "b": 1}}, "links.a"),
        ({"links": {"a": INF, "b": 1}}, "links.a"),
        ({"links": {"a": True, "b": 1}}, "links.a"),
        ({"links": {"a": None, "b": 1}}, "links.a"),
        ({"links": {"a": [1], "b": 1}}, "links.a"),
        ({"links": {"a": 10**400, "b": 1}}, "links.a"),
        ({"links": {"a": "fast", "b": 1}}, "links.a"),
        ({"links": {"a": 1e-9, "b": 1}}, "links.a"),
        ({"routes": {}}, "routes"),
        ({"routes": []}, "routes"),
        ({"routes": {"x>y": []}}, "routes.x>y"),
        ({"routes": {"x>y": "a"}}, "routes.x>y"),
        ({"routes": {"x>y": ["a", "zz"]}}, "unknown link 'zz'"),
        ({"routes": {"x>y": [["a"]]}}, "unknown link"),
        ({"routes": {"x-y": ["a"]}}, "src>dst"),
        ({"routes": {"x>y>z": ["a"]}}, "src>dst"),
        ({"routes": {">y": ["a"]}}, "src>dst"),
        ({"flows": []}, "flows"),
        ({"flows": {}}, "flows"),
        ({"flows": ["x"]}, r"flows\[0\]"),
        ({"flows": ["abcd"]}, r"flows\[0\]"),
        ({"flows": [[0, "x", "y"]]}, r"flows\[0\]"),
        ({"flows": [[0, "x", "y", 1], [0, "y", "x", 1]]}, r"flows\[1\]: unknown route 'y>x'"),
        ({"flows": [[0, ["x"], "y", 1]]}, "unknown route"),
        ({"flows": [[-1, "x", "y", 1]]}, r"flows\[0\] start"),
        ({"flows": [[NAN, "x", "y", 1]]}, r"flows\[0\] start"),
        ({"flows": [[1e30, "x", "y", 1]]}, r"flows\[0\] start"),
        ({"flows": [[0, "x", "y", -1]]}, r"flows\[0\] bytes"),
        ({"flows": [[0, "x", "y", NAN]]}, r"flows\[0\] bytes"),
        ({"flows": [[0, "x", "y", INF]]}, r"flows\[0\] bytes"),
        ({"flows": [[0, "x", "y", 1e30]]}, r"flows\[0\] bytes"),
        ({"flows": [[0, "x", "y", None]]}, r"flows\[0\] bytes"),
        ({"flows": [[0, "x", "y", "much"]]}, r"flows\[0\] bytes"),
        ({"rounds_repeat": 0}, "rounds_repeat"),
        ({"rounds_repeat": -3}, "rounds_repeat"),
        ({"rounds_repeat": 1.5}, "rounds_repeat"),
        ({"rounds_repeat": NAN}, "rounds_repeat"),
        ({"rounds_repeat": INF}, "rounds_repeat"),
        ({"rounds_repeat": True}, "rounds_repeat"),
        ({"rounds_repeat": "2"}, "rounds_repeat"),
        ({"rounds_repeat": 10**9}, "completions"),
        ({"rounds_repeat": 10**400}, "completions"),
    ],
)
def test_hostile_cases(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        run_flows({"cases": [case(**changes)]}, source="f.yaml")
    text = str(caught.value)
    assert text.startswith("f.yaml: case ")
    assert len(text) < 400
    assert "\n" not in text


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "cases",
        {},
        {"cases": []},
        {"cases": {}},
        {"cases": None},
        {"cases": ["x"]},
        {"cases": [[]]},
        {"cases": [case(), case()]},
        {"cases": [case()], "units": "SI"},
        {"cases": [case()], "units": {"bandwidth": "GB/s"}},
        {"cases": [{}] * 10_001},
    ],
)
def test_hostile_files(data: Any) -> None:
    with pytest.raises(InputError, match=r"^f\.yaml: "):
        run_flows(data, source="f.yaml")


def test_the_completions_of_all_cases_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of two lines may not keep the machine busy for minutes."""
    from pcie_sim.network import flows

    monkeypatch.setattr(flows, "MAX_COMPLETIONS", 1000)
    case = {"links": {"l": 1e9}, "routes": {"a>b": ["l"]}, "flows": [[0, "a", "b", 1]], "rounds_repeat": 600}
    with pytest.raises(InputError, match="together have more than"):
        run_flows({"cases": [{"id": f"c{index}", **case} for index in range(20)]})
