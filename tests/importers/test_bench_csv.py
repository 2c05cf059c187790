"""A plain CSV of serving measurements."""

from __future__ import annotations

import contextlib

import pytest
from bench_samples import AIPERF_CSV, LLAMA_CSV, LONG_CSV, PLAIN_CSV
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import bench_csv
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of
from pcie_sim.specs.measurement import MeasurementSet


def read(text: str) -> tuple[Imported, MeasurementSet]:
    source = source_of(text, "sweep.csv")
    assert bench_csv.sniff(source) is not None
    found = bench_csv.read(source)
    return found, found.measurements[0]


def test_one_run_per_row() -> None:
    _found, measured = read(PLAIN_CSV)
    rows = [(row.concurrency, row.metric, row.value, row.unit) for row in measured.rows]
    assert rows == [
        (1, "tpot", 15.4, "ms"),
        (1, "output_tokens_per_s", 65, "tok/s"),
        (4, "tpot", 41.7, "ms"),
        (4, "output_tokens_per_s", 95.9, "tok/s"),
        (8, "output_tokens_per_s", 197.9, "tok/s"),
    ]
    assert {arm.strategy for arm in measured.arms.values()} == {"tp8ep8"}


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_delimiters(mark: str) -> None:
    _found, measured = read(PLAIN_CSV.replace(",", mark))
    assert len(measured.rows) == 5


def test_a_markdown_table() -> None:
    _found, measured = read("| C | tok/s | TTFT_s |\n|---|---|---|\n| 1 | 65 | 0.5 |\n| 2 | 80 | - |\n")
    rows = [(row.metric, row.si_value) for row in measured.rows]
    assert rows == [("output_tokens_per_s", 65), ("ttft", 0.5), ("output_tokens_per_s", 80)]


def test_one_value_per_row() -> None:
    found, measured = read(LONG_CSV)
    assert [(row.metric, row.value) for row in measured.rows] == [("tpot", 38.5), ("output_tokens_per_s", 26)]
    assert any("'prefill_tps'" in remark.text and remark.line == 4 for remark in found.remarks)


def test_bad_cells_are_said() -> None:
    found, measured = read("concurrency,tpot_ms,strategy\n1,15.4,tp8\nmany,16,tp8\n2,fast,tp8\n4,-3,tp8\n8,1,2,3\n16,40,wide\n")
    assert [row.value for row in measured.rows] == [15.4, 16, 40]
    assert [row.concurrency for row in measured.rows] == [1, None, 16]
    texts = [remark.text for remark in found.remarks]
    assert any("4 rows or cells are not understood" in text for text in texts)
    assert any("1 values that are not above 0" in text for text in texts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurrency,tpot_ms,flavour\n1,2,x\n", r"sweep.csv:1: column 'flavour' is not known"),
        ("# a\nconcurrency,tpot\n1,2\n", r"sweep.csv:2: column 'tpot' says no unit"),
        ("concurrency,tpot (fortnight),tok/s\n1,2,3\n", "tpot"),
        ("concurrency,tpot_ms,itl_ms\n1,2,3\n", "a second column for tpot"),
        ("concurrency,tpot_ms\n", "no time or rate above 0"),
        ("set,strategy,conc,metric,value,unit\na,tp2,1,tpot,3,ms\n", "column 'set' is not known"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        AIPERF_CSV,
        LLAMA_CSV,
        "a,b\n1,2\n",
        "system,op,bytes,latency_us\nx,y,1,2\n",
        "hello\nworld",
        '{"a": 1, "tpot": 2}',
        "index, name, pci.bus_id\n0, x, y",
    ],
)
def test_other_tables_are_left_alone(text: str) -> None:
    assert bench_csv.sniff(source_of(text, "x")) is None


def test_rows_are_bounded() -> None:
    found, measured = read("concurrency,tpot_ms\n" + "1,2\n" * 20_000)
    assert len(measured.rows) == 5_000
    assert any(remark.kind == "cut" for remark in found.remarks)


@given(st.text(), st.integers(0, 150), st.sampled_from([PLAIN_CSV, LONG_CSV]))
def test_only_input_errors_leave(text: str, at: int, base: str) -> None:
    for broken in (base[:at] + text + base[at:], "concurrency,tpot_ms\n" + text, text + "x"):
        source = source_of(broken, "fuzz.csv")
        if bench_csv.sniff(source) is not None:
            with contextlib.suppress(InputError):
                bench_csv.read(source)
