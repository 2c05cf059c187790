"""Answers as plain data: JSON without NaN, the published keys, winners and points that are not there, sentences."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.results.base import Result, plain
from pcie_sim.results.comparison import (
    BREAKDOWN_KEYS,
    Comparison,
    Crossover,
    MeasuredPoint,
    Memory,
    Note,
    OpTime,
    Point,
    Prediction,
    Winner,
)
from pcie_sim.results.fit import FitReport, FittedParameter
from pcie_sim.results.timing import BUS_FACTORS, Bottleneck, FlowCase, FlowsResult, Timing


def memory(**fields: Any) -> Memory:
    held: dict[str, Any] = {
        "budget_bytes": 90e9,
        "weights_bytes": 70e9,
        "kv_bytes_per_request": 1e6,
        "kv_free_bytes": 20e9,
        "max_concurrency": 20_000,
        "rank": 0,
    }
    return Memory(**{**held, **fields})


def point(strategy: str = "tp8", concurrency: int = 1, context: int = 1024, **fields: Any) -> Point:
    base: dict[str, Any] = {
        "strategy": strategy,
        "canonical": {"ep8": "tp8ep8"}.get(strategy, strategy),
        "moe_comm": "allreduce",
        "concurrency": concurrency,
        "context": context,
        "fits": True,
        "queued": False,
        "running": float(concurrency),
        "tpot_ms": 20.0,
        "tpot_ms_p10": 15.0,
        "tpot_ms_p90": 26.0,
        "tokens_per_s": 50.0 * concurrency,
        "tokens_per_s_p10": 38.5 * concurrency,
        "tokens_per_s_p90": 66.7 * concurrency,
        "breakdown_ms": {"all_reduce": 12.0, "experts": 8.0},
        "evidence": "nominal",
        "evidence_share": {"nominal": 0.9, "assumed": 0.1},
        "extrapolated": False,
        "memory": memory(),
    }
    return Point(**{**base, **fields})


POINTS = tuple(point(name, c, context) for name in ("tp8", "ep8") for context in (1024, 8192) for c in (1, 8))
RUNS = Comparison(
    topology="box",
    model="kimi-k2.6",
    runtime="sglang",
    ccl="nccl 2.28",
    env={"NCCL_P2P_LEVEL": "5"},
    launch="graph",
    points=POINTS,
    winners=(Winner(1, 1024, "tp8", 0.253, 0.91), Winner(8, 1024, "ep8", None, 1.0), Winner(1, 8192, "ep8", 0.1, 0.6)),
    crossovers=(Crossover(1024, "tp8", "ep8", 8),),
    notes=(Note("moe_comm", "ep8 exchanges by AllReduce"), Note("fit", "pp8 does not fit")),
    measured=(MeasuredPoint("set", "tp8", None, None, "output_tokens_per_s", 26.0, "tok/s", "good", None, None),),
    advice="all_reduce_perf -b 1K -e 16M -f 2 -g 8",
    gpus=8,
)


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


# -- plain data -------------------------------------------------------------------------------------------------------


class Odd:
    pass


class Answer(Result):
    def to_dict(self) -> dict[str, Any]:
        return {"a": 1}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, None),
        (True, True),
        (np.bool_(True), True),
        (7, 7),
        (10**30, 10**30),
        (np.int64(7), 7),
        (np.float64(0.1), 0.1),
        (1 / 3, 0.333333333),
        (np.float32(0.5), 0.5),
        (math.nan, None),
        (math.inf, None),
        (-np.inf, None),
        (np.float32("nan"), None),
        ("text", "text"),
        ((1, (2.0, None)), [1, [2.0, None]]),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        ({1: np.array([1, 2]), "b": {"c": math.inf}}, {"1": [1, 2], "b": {"c": None}}),
        (Answer(), {"a": 1}),
        ([Answer()], [{"a": 1}]),
    ],
)
def test_plain(value: object, found: object) -> None:
    result = plain(value)
    assert result == found
    assert type(result) is type(found)
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("value", [Odd(), {"a": Odd()}, {1, 2}, 1 + 2j, b"bytes"])
def test_plain_refuses_what_has_no_json_form(value: object) -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        plain(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_nine_digits_are_kept(value: float) -> None:
    assert plain(value) == pytest.approx(value, rel=1e-8)


def test_the_base_has_records_and_json() -> None:
    assert Answer().to_records() == [{"a": 1}]
    assert Answer().to_json(indent=None) == '{"a": 1}'
    with pytest.raises(NotImplementedError):
        Result().to_dict()


# -- points and predictions -------------------------------------------------------------------------------------------

POINT_KEYS = {
    *(
        "strategy",
        "canonical",
        "moe_comm",
        "concurrency",
        "context",
        "fits",
        "queued",
        "tpot_ms",
        "tpot_ms_p10",
        "tpot_ms_p90",
        "tokens_per_s",
    ),
    *("tokens_per_s_p10", "tokens_per_s_p90", "breakdown_ms", "bound_by", "evidence", "evidence_share", "extrapolated", "memory"),
}
"""Design 4.3: fields may be added within /1, never renamed; not yet known = null, never absent."""


def test_a_point_has_every_key_of_the_schema() -> None:
    found = point(moe_comm=None, tpot_ms_p90=math.inf).to_dict()
    assert set(found) >= POINT_KEYS
    assert list(found["breakdown_ms"]) == list(BREAKDOWN_KEYS)
    assert sum(found["breakdown_ms"].values()) == pytest.approx(found["tpot_ms"])
    assert found["bound_by"] == "all_reduce"
    assert found["moe_comm"] is None
    assert found["tpot_ms_p90"] is None
    assert found["memory"]["reason"] is None


@pytest.mark.parametrize(
    ("breakdown", "key"),
    [
        ({"experts": 3.0, "all_reduce": 2.0}, "experts"),
        ({"bubble": 1.0}, "bubble"),
        ({"sampling": 1.0, "attention": 1.0}, "attention"),
        ({}, "attention"),
    ],
)
def test_bound_by_is_the_largest_key(breakdown: dict[str, float], key: str) -> None:
    assert point(breakdown_ms=breakdown).bound_by == key


PREDICTION = Prediction(
    topology="box",
    model="kimi-k2.6",
    runtime="sglang",
    ccl="nccl 2.28",
    env={},
    launch="graph",
    point=point(),
    ops=(OpTime("o_proj", "attention", 61.0, None, 8.0, "profile"), OpTime("all reduce", "all_reduce", 122.0, 14336.0, 12.0, "assumed")),
    notes=(Note("network", "P2P assumed"),),
)


def test_a_prediction_is_its_point_plus_ops() -> None:
    found = strict(PREDICTION.to_json())
    assert found["schema"] == "pcie-sim/predict/1"
    assert set(found) >= POINT_KEYS | {"ops", "topology", "model", "runtime", "ccl", "env", "launch", "notes"}
    assert {key: found[key] for key in POINT_KEYS} == {key: found["point"][key] for key in POINT_KEYS}
    assert found["ops"] == PREDICTION.to_records()
    assert all({"name", "kind", "count", "bytes", "ms", "evidence"} <= set(op) for op in found["ops"])
    assert found["ops"][0]["bytes"] is None


# -- comparisons ------------------------------------------------------------------------------------------------------


def test_a_comparison_has_every_key_of_the_schema() -> None:
    found = strict(RUNS.to_json())
    assert found["schema"] == "pcie-sim/compare/1"
    keys = {"schema", "topology", "model", "runtime", "ccl", "env", "launch", "points", "winners", "crossovers", "notes"}
    assert set(found) >= keys
    assert found["points"] == RUNS.to_records()
    assert set(found["winners"][0]) >= {"concurrency", "context", "strategy", "margin", "probability"}
    assert found["winners"][1]["margin"] is None
    assert found["crossovers"] == [{"context": 1024, "from": "tp8", "to": "ep8", "concurrency": 8}]
    assert found["notes"][0] == {"code": "moe_comm", "text": "ep8 exchanges by AllReduce"}
    assert found["measured"][0]["predicted"] is None


def test_numbers_that_are_none_never_become_nan() -> None:
    broken = replace(RUNS, points=(point(tpot_ms=math.nan, tokens_per_s=math.inf),), winners=(Winner(1, 1024, "tp8", math.nan, 1.0),))
    found = strict(broken.to_json())
    assert found["points"][0]["tpot_ms"] is None
    assert found["points"][0]["tokens_per_s"] is None
    assert found["winners"][0]["margin"] is None


def test_the_axes_of_a_comparison() -> None:
    assert RUNS.strategies == ("tp8", "ep8")
    assert RUNS.concurrencies == (1, 8)
    assert RUNS.contexts == (1024, 8192)
    assert RUNS.anything_fits
    assert not replace(RUNS, points=(point(fits=False),)).anything_fits


def test_a_point_is_found_by_its_text_or_its_canonical_name() -> None:
    assert RUNS.point("ep8", concurrency=8) is RUNS.point("tp8ep8", concurrency=8, context=1024)
    assert RUNS.point("ep8", concurrency=8, context=8192).context == 8192


@pytest.mark.parametrize(
    ("strategy", "where", "match"),
    [
        ("pp8", {"concurrency": 1}, "no point for 'pp8' at concurrency 1 in this comparison; it has tp8, ep8"),
        ("tp8", {"concurrency": 2}, "no point for 'tp8' at concurrency 2"),
        ("tp8", {"concurrency": 1, "context": 5}, "no point for 'tp8' at concurrency 1 and context 5"),
    ],
)
def test_a_point_that_is_not_there(strategy: str, where: dict[str, int], match: str) -> None:
    with pytest.raises(InputError, match=match):
        RUNS.point(strategy, **where)  # type: ignore[arg-type]


def test_winners() -> None:
    first = RUNS.winner(concurrency=1)
    assert first is not None
    assert first.strategy == "tp8"
    assert RUNS.winner(concurrency=1, context=8192) is RUNS.winners[2]
    assert RUNS.winner(concurrency=8, context=8192) is None  # part of the comparison, but nothing fits there


def test_no_winner_of_another_context_stands_in() -> None:
    only_long = replace(RUNS, winners=(Winner(1, 8192, "ep8", 0.1, 0.6),))
    assert only_long.winner(concurrency=1) is None


@pytest.mark.parametrize(
    ("where", "match"),
    [
        ({"concurrency": 3}, "concurrency 3 is not in this comparison; it has 1, 8"),
        ({"concurrency": 1, "context": 9}, "context 9 is not in this comparison; it has 1024, 8192"),
    ],
)
def test_a_winner_that_was_not_asked_for(where: dict[str, int], match: str) -> None:
    with pytest.raises(InputError, match=match):
        RUNS.winner(**where)


def test_explain() -> None:
    lines = RUNS.explain().splitlines()
    assert lines[0] == "kimi-k2.6 on box, sglang"
    assert lines[1] == "C=1, context 1024: tp8 wins by 25% (probability 0.91): 50 tok/s, 20.0 ms per token, bound by all_reduce [nominal]"
    assert lines[2].startswith("C=8, context 1024: ep8 alone fits (probability 1.00): 400 tok/s")
    assert "from C=8, context 1024: ep8 instead of tp8" in lines
    assert "note [fit]: pp8 does not fit" in lines
    assert lines[-1] == "next: all_reduce_perf -b 1K -e 16M -f 2 -g 8"


def test_explain_tells_contexts_apart() -> None:
    lines = [line for line in RUNS.explain().splitlines() if line.startswith("C=1")]
    assert len(lines) == 2
    assert "context 8192" in lines[1]
    single = replace(RUNS, points=POINTS[:2], winners=RUNS.winners[:1])
    assert "context" not in single.explain()


def test_explain_says_that_nothing_fits() -> None:
    text = replace(RUNS, points=tuple(replace(p, fits=False) for p in POINTS), winners=(), crossovers=(), notes=(), advice="").explain()
    assert text == "kimi-k2.6 on box, sglang\nnothing fits at any concurrency"


def test_results_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        RUNS.gpus = 4  # type: ignore[misc]


# -- timings, flows, fits ---------------------------------------------------------------------------------------------


def timing(**fields: Any) -> Timing:
    base: dict[str, Any] = {
        "op": "all_reduce",
        "ranks": 8,
        "bytes": 16384,
        "algorithm": "ring",
        "protocol": "LL",
        "transport": "P2P",
        "launch": "graph",
        "engine": "analytic",
        "time_s": 27e-6,
        "time_s_p10": 20e-6,
        "time_s_p90": 36e-6,
        "lower_bound_s": 1e-6,
        "steps": 14,
        "evidence": "profile",
        "extrapolated": False,
        "ccl": "nccl 2.28",
        "bottleneck": Bottleneck("sw0.up", 0.5),
        "parts_s": {"base": 3e-6, "steps": 20e-6, "bytes": 4e-6},
        "link_bytes": {"sw0.up": 28672.0},
        "step_times_s": (1e-6, math.nan),
    }
    return Timing(**{**base, **fields})


def test_a_timing_has_every_key_of_the_schema() -> None:
    found = strict(timing().to_json())
    assert found["schema"] == "pcie-sim/collective/1"
    keys = "op ranks bytes algorithm protocol transport launch engine time_us time_us_p10 time_us_p90 algbw_GBps busbw_GBps lower_bound_us"
    assert set(found) >= {*keys.split(), "steps", "bottleneck", "evidence", "extrapolated", "ccl", "env"}
    assert found["time_us"] == pytest.approx(27.0)
    assert found["bottleneck"] == {"link": "sw0.up", "utilisation": 0.5}
    assert sum(found["parts_us"].values()) == pytest.approx(found["time_us"])
    assert found["step_times_us"] == [1.0, None]
    assert strict(timing(bottleneck=None, time_s=0.0).to_json())["bottleneck"] is None


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 14 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
    ],
)
def test_bus_bandwidth_as_nccl_tests_defines_it(op: str, factor: float) -> None:
    held = timing(op=op, bytes=10**9, time_s=0.1)  # NVIDIA/nccl-tests doc/PERFORMANCE.md
    assert held.algbw_Bps == pytest.approx(1e10)
    assert held.busbw_Bps == pytest.approx(1e10 * factor)
    assert op in BUS_FACTORS
    assert timing(op=op, time_s=0.0).busbw_Bps == 0.0


def test_every_op_of_the_design_has_a_bus_factor() -> None:
    assert set(BUS_FACTORS) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"}


def test_flows_keep_all_digits() -> None:
    third = 1 / 3
    result = FlowsResult((FlowCase("a", third, (third, 2 * third), 2, 1e-4),))
    found = strict(result.to_json())
    assert found == {"schema": "pcie-sim/flows/1", "cases": result.to_records()}
    assert found["cases"][0] == {"id": "a", "makespan": third, "finish": [third, 2 * third], "events": 2, "solve_s": 1e-4}


def test_a_fit_report_is_plain_data() -> None:
    report = FitReport(
        name="gemm",
        parameters=(FittedParameter("share", 0.8, "1", math.nan, at_bound=True), FittedParameter("fixed", 2e-6, "s", None)),
        rows=10,
        held_out_rows=0,
        median_ape=0.03,
        p90_ape=0.1,
        held_out_median_ape=None,
        held_out_p90_ape=math.nan,
        sigma_log=0.04,
        range_bytes=(1e3, np.float64(1e9)),
        success=True,
        message="converged",
        left_out={"hot in L2": 3},
    )
    found = strict(report.to_json())
    assert found["parameters"][0] == {"name": "share", "value": 0.8, "unit": "1", "stderr": None, "at_bound": True}
    assert found["range_bytes"] == [1e3, 1e9]
    assert found["held_out_p90_ape"] is None
    assert found["left_out"] == {"hot in L2": 3}
