"""nccl-tests' JSON. Figures: a run of all_reduce_perf -J on 2x H200 and the text of the same run (nccl-tests 2.19.6, NCCL 2.28.9)."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import nccl_tests
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.nccl_tests_json import read, sniff
from pcie_sim.importers.source import source_of


def result(size: int, out: tuple[float, float], inside: tuple[float, float], wrong: Any = 0.0) -> dict[str, Any]:
    def half(time: float, rate: float) -> dict[str, Any]:
        return {"time": time, "alg_bw": rate, "bus_bw": rate, "nwrong": wrong}

    return {
        "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": half(*out), "in_place": half(*inside), "actual_iterations": 20, "experiment_name": "",
    }  # fmt: skip


RUN: dict[str, Any] = {
    "version": 3,
    "start_time": "2026-11-29 15:35:42",
    "args": ["/home/alice/build/all_reduce_perf", "-b", "1K", "-e", "1M", "-g", "2", "-J", "x.json"],
    "env": ["NCCL_P2P_DISABLE=1", "HOME=/home/alice", "HF_TOKEN=hf_secret", "NCCL_COMM_ID=10.0.0.1:99", "NCCL_TOPO_FILE=/home/alice/t.xml"],
    "nccl_version": 22809,
    "config": {
        "nthreads": 1, "ngpus": 2, "minimum_bytes": 1024, "maximum_bytes": 1048576, "step_factor": 4, "warmup_iters": 5,
        "iterations": 20, "aggregated_iterations": 1, "validation": 1, "graph": 0, "blocking_collectives": "false",
        "devices": [{"rank": 0, "group": 0, "pid": 2302, "hostname": "vm77", "device": 0, "device_hex": "0000:00:06",
                     "device_info": "NVIDIA H200"}],
    },
    "results": [
        result(1024, (19.47105, 0.052591), (18.59845, 0.055058)),
        result(65536, (20.3761, 3.216317), (21.9638, 2.983819)),
        result(1048576, (64.2974, 16.308218), (64.41545, 16.278331)),
    ],
    "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 4.622103, "okay": "unchecked"},
    "errors": [""],
    "end_time": "2026-11-29 15:35:43",
}  # fmt: skip

TEXT = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 1048576 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#  Rank  0 Group  0 Pid   2302 on         vm device  0 [0000:00:06] NVIDIA H200
#  Rank  1 Group  0 Pid   2302 on         vm device  1 [0000:00:07] NVIDIA H200
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        1024           256     float     sum      -1    19.47    0.05    0.05       0    18.60    0.06    0.06       0
       65536         16384     float     sum      -1    20.38    3.22    3.22       0    21.96    2.98    2.98       0
     1048576        262144     float     sum      -1    64.30   16.31   16.31       0    64.42   16.28   16.28       0
# Out of bounds values : 0 OK
"""


def changed(**changes: Any) -> dict[str, Any]:
    data = copy.deepcopy(RUN)
    for key, value in changes.items():
        if key in data["config"]:
            data["config"][key] = value
        else:
            data[key] = value
    return data


def imported(data: Any) -> Imported:
    source = source_of(json.dumps(data), "x.json")
    assert sniff(source) is not None
    return read(source)


def test_it_says_what_the_text_of_the_same_run_says() -> None:
    (mine,) = imported(RUN).measurements
    (text,) = nccl_tests.read(source_of(TEXT, "x.log")).measurements
    assert [(row.op, row.ranks, row.bytes, row.launch, row.in_place, row.quality) for row in mine.rows] == [
        (row.op, row.ranks, row.bytes, row.launch, row.in_place, row.quality) for row in text.rows
    ]
    for a, b in zip(mine.rows, text.rows, strict=True):
        assert a.value == pytest.approx(b.value, abs=0.0051)  # the text has two decimals
    assert mine.software.ccl == text.software.ccl
    shared = set(mine.software.options) & set(text.software.options)
    assert {key: mine.software.options[key] for key in shared} == {key: text.software.options[key] for key in shared}
    assert {"iters", "ngpus", "step", "type", "redop", "root"} <= shared


def test_ranks_settings_and_gpus() -> None:
    found = imported(RUN)
    (one,) = found.measurements
    assert one.machine.gpus == 2  # one device is listed per process only
    assert one.software.env == {"NCCL_P2P_DISABLE": "1", "NCCL_TOPO_FILE": "t.xml"}
    assert one.software.p2p == "off"
    assert [(gpu.index, gpu.name, gpu.bus) for gpu in found.box.gpus] == [(0, "NVIDIA H200", "0000:00:06.0")]
    assert any("1 of 2 GPUs are listed" in remark.text for remark in found.remarks)


def test_nothing_private_is_kept() -> None:
    found = imported(RUN)
    shown = repr((found.measurements, found.box, found.details, found.remarks))
    for word in ("alice", "hf_secret", "vm77", "2302", "10.0.0.1"):
        assert word not in shown


def test_ranks_of_several_processes() -> None:
    """Two processes of four GPUs each list ranks 0 and 4."""
    first = RUN["config"]["devices"][0]
    rows = [{**result(1048576, (216.1, 4.852), (217.2, 4.828))}]
    for half in ("out_of_place", "in_place"):
        rows[0][half]["bus_bw"] = rows[0][half]["alg_bw"] * 1.75  # 2 * 7 / 8
    data = changed(ngpus=4, devices=[first, {**first, "rank": 4, "hostname": "b"}], results=rows)
    assert imported(data).measurements[0].machine.gpus == 8


def test_cpu_time_graph_and_wrong() -> None:
    data = changed(graph=10)
    data["results"][0]["out_of_place"]["nwrong"] = 7.0
    one = imported(data).measurements[0]
    assert {row.launch for row in one.rows} == {"graph"}
    assert [row.quality for row in one.rows][:2] == ["unreliable", "good"]
    for entry in data["results"]:
        entry["out_of_place"]["cpu_time"] = entry["out_of_place"].pop("time")
    assert {row.quality for row in imported(data).measurements[0].rows} == {"doubtful", "unreliable"}


def test_nan_and_null_halves() -> None:
    data = copy.deepcopy(RUN)
    data["results"][0]["out_of_place"] = None
    data["results"][1]["in_place"]["time"] = "nan"
    data["results"][2]["in_place"]["nwrong"] = None
    assert [(row.bytes, row.in_place) for row in imported(data).measurements[0].rows] == [
        (1024, True), (65536, False), (1048576, False), (1048576, True),
    ]  # fmt: skip


def test_failed_check() -> None:
    data = changed(out_of_bounds={"count": 3, "okay": "false"})
    assert {row.quality for row in imported(data).measurements[0].rows} == {"unreliable"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (changed(results={}), r"^x\.json:1: looks like nccl-tests JSON, but has no list 'results'"),
        (changed(results=[]), r"^x\.json:1: 'results' holds no usable row"),
        (changed(results=[{"size": -8, "count": 2, "type": "float"}]), r"^x\.json:1: a result without a size"),
        (changed(ngpus=1), r"^x\.json:1: one rank"),
    ],
)
def test_refusals(data: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        imported(data)


def test_broken_and_cut_json() -> None:
    with pytest.raises(InputError, match=r"x\.json:1: broken JSON"):
        read(source_of(json.dumps(RUN)[:-40], "x.json"))
    assert sniff(source_of("{}", "x")) is None
    assert sniff(source_of(TEXT, "x")) is None


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
KEYS = ["args", "env", "config", "devices", "results", "out_of_bounds", "errors", "nccl_version", "ngpus", "step_factor"]
HALF = st.dictionaries(st.sampled_from(["time", "alg_bw", "bus_bw", "nwrong"]), PLAIN)
ENTRY = st.dictionaries(st.sampled_from(["size", "count", "type", "redop", "root", "out_of_place", "in_place"]), PLAIN | HALF)


@given(ANY, st.sampled_from(KEYS))
def test_any_value_of_any_key(value: Any, key: str) -> None:
    with contextlib.suppress(InputError):
        read(source_of(json.dumps(changed(**{key: value})), "fuzz"))


@given(st.lists(ENTRY))
def test_any_result(results: list[dict[str, Any]]) -> None:
    with contextlib.suppress(InputError):
        read(source_of(json.dumps(changed(results=results)), "fuzz"))


@given(st.text())
def test_any_text(text: str) -> None:
    source = source_of("{" + text, "fuzz")
    sniff(source)
    with contextlib.suppress(InputError):
        read(source)
