"""vllm bench serve and sglang.bench_serving: text and JSON."""

from __future__ import annotations

import contextlib
import json

import pytest
from bench_samples import SGLANG, SGLANG_JSONL, VLLM, VLLM_JSON, VLLM_NEW
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import bench_sglang, bench_vllm
from pcie_sim.importers.imported import FORMATS, Imported
from pcie_sim.importers.source import source_of
from pcie_sim.specs.measurement import MeasurementSet


def matching(text: str) -> list[str]:
    source = source_of(text, "result.txt")
    return [name for name, form in FORMATS.items() if "bench" in name and form.sniff(source) is not None]


def read(text: str) -> tuple[Imported, MeasurementSet]:
    names = matching(text)
    assert len(names) == 1, names
    found = FORMATS[names[0]].read(source_of(text, "result.txt"))
    return found, found.measurements[0]


def values(measured: MeasurementSet) -> list[tuple[float | None, str, float]]:
    return [(row.concurrency, row.metric, row.si_value) for row in measured.rows]


def test_each_output_has_one_reader() -> None:
    assert matching(VLLM) == ["vllm-bench"]
    assert matching(json.dumps(VLLM_JSON)) == ["vllm-bench-json"]
    assert matching(SGLANG) == ["sglang-bench"]
    assert matching(SGLANG_JSONL) == ["sglang-bench-json"]


def test_the_printed_block() -> None:
    """2,048 tokens in and 1,024 out per request: 65,536 and 32,768 over 32 requests."""
    found, measured = read(VLLM)
    assert values(measured) == [
        (32, "tpot", pytest.approx(0.07014)),
        (32, "ttft", pytest.approx(7.27956)),
        (32, "output_tokens_per_s", 434.4),
    ]
    arm = next(iter(measured.arms.values()))
    assert (arm.prompt, arm.output, arm.context_range) == (2048, 1024, (2048, 3072))
    assert (measured.kind, measured.use, measured.software.runtime) == ("serving", "context", "vllm")
    assert "median 70.23 ms" in str(measured.rows[0].note)
    assert any("number of GPUs" in remark.text and remark.kind == "assumed" for remark in found.remarks)


def test_request_rates_leave_the_concurrency_open() -> None:
    found, measured = read(VLLM_NEW)
    assert {row.concurrency for row in measured.rows} == {None}
    assert {row.quality for row in measured.rows} == {"doubtful"}
    assert "1 requests failed" in str(measured.rows[0].note)
    assert any("request rate" in remark.text for remark in found.remarks)
    _found, unlimited = read(VLLM.replace("Maximum request concurrency: 32\n", ""))
    assert {row.concurrency for row in unlimited.rows} == {None}


def test_several_blocks_prefixes_and_a_cut_one() -> None:
    logged = "\n".join(f"(client pid=12) {line.ljust(52)}" for line in VLLM.splitlines())
    found, measured = read(VLLM + logged + "\n" + VLLM.partition("Median TPOT")[0])
    assert [row.si_value for row in measured.rows if row.metric == "tpot"] == [pytest.approx(0.07014)] * 3
    assert len(measured.arms) == 1
    assert [remark.line for remark in found.remarks if remark.kind == "cut"] == [VLLM.count("\n") * 2 + 5]


def test_saved_results() -> None:
    _found, measured = read(json.dumps(VLLM_JSON))
    assert values(measured) == [(8, "tpot", pytest.approx(0.0305)), (8, "ttft", pytest.approx(0.1105)), (8, "output_tokens_per_s", 256.0)]
    arm = measured.arms[measured.rows[0].arm or ""]
    assert (arm.model, arm.prompt, arm.output) == ("Qwen3-32B", 1024, 128)
    assert "secret" not in repr(measured)
    lines = "\n".join(json.dumps({**VLLM_JSON, "max_concurrency": limit}) for limit in (1, 2)) + "\nnot json\n"
    found, swept = read(lines)
    assert {row.concurrency for row in swept.rows} == {1, 2}
    assert any(remark.kind == "ignored" and remark.line == 3 for remark in found.remarks)


def test_sglang_block_and_jsonl() -> None:
    """SGLang's own client divides a chunk's time by its tokens, so its ITL is a TPOT even with a draft."""
    _found, measured = read(SGLANG)
    assert values(measured) == [
        (16, "tpot", pytest.approx(0.0124)),
        (16, "ttft", pytest.approx(0.3102)),
        (16, "output_tokens_per_s", 1201.5),
    ]
    assert next(iter(measured.arms.values())).speculation == "yes, 2.51 tokens accepted per step"
    _found, other = read(SGLANG.replace("sglang", "sglang-oai"))
    assert other.rows[0].metric == "step_time"
    _found, lines = read(SGLANG_JSONL)
    assert [(row.concurrency, row.value) for row in lines.rows if row.metric == "tpot"] == [(16, 12.5), (32, 16.0)]
    assert lines.software.runtime == "sglang"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "============ Serving Benchmark Result ============\nSuccessful requests: 3\n",
            r"result.txt:1: vllm bench serve: no time or rate",
        ),
        ("============ Serving Benchmark Result ============\nMean TPOT (ms):   nan\nMean TTFT (ms): -4\n", "no time or rate"),
        ('{"mean_ttft_ms": 1.0', "broken JSON"),
        ('{"mean_ttft_ms": 0, "output_throughput": NaN}', "no time or rate"),
        ('{"mean_ttft_ms": ' + "[" * 100_000, "nested too deeply|broken JSON"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


@given(st.text(), st.sampled_from([VLLM, SGLANG, SGLANG_JSONL, json.dumps(VLLM_JSON)]), st.integers(0, 1200))
def test_only_input_errors_leave(text: str, base: str, at: int) -> None:
    for broken in (base[:at] + text + base[at:], base[:at], base[at:] + text):
        if not broken.strip():
            continue
        source = source_of(broken, "fuzz")
        for reader in (bench_vllm.read, bench_vllm.read_json, bench_sglang.read, bench_sglang.read_json):
            with contextlib.suppress(InputError):
                reader(source)
        for name in ("vllm-bench", "vllm-bench-json", "sglang-bench", "sglang-bench-json"):
            FORMATS[name].sniff(source)
