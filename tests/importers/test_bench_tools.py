"""AIPerf, GenAI-Perf, GuideLLM and llama-bench."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from bench_samples import (
    AIPERF,
    AIPERF_CSV,
    AIPERF_JSON,
    GENAI_PERF,
    GUIDELLM,
    GUIDELLM_JSON,
    LLAMA_CSV,
    LLAMA_JSON,
    LLAMA_JSONL,
    LLAMA_MD,
)
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import bench_aiperf, bench_csv, bench_guidellm, bench_llama, hf_config
from pcie_sim.importers.imported import FORMATS, Imported
from pcie_sim.importers.source import source_of
from pcie_sim.specs.measurement import MeasurementSet

NAMES = ("aiperf", "aiperf-json", "guidellm", "guidellm-json", "llama-bench", "llama-bench-json")
READERS = (
    bench_aiperf.read,
    bench_aiperf.read_json,
    bench_guidellm.read,
    bench_guidellm.read_json,
    bench_llama.read,
    bench_llama.read_json,
)


def read(text: str, name: str) -> tuple[Imported, MeasurementSet]:
    source = source_of(text, "out.txt")
    assert [one for one in NAMES if FORMATS[one].sniff(source) is not None] == [name]
    assert bench_csv.sniff(source) is None
    assert hf_config.sniff(source) is None
    found = FORMATS[name].read(source)
    return found, found.measurements[0]


def values(measured: MeasurementSet) -> dict[str, Any]:
    return {row.metric: pytest.approx(row.si_value) for row in measured.rows}


def said(found: Imported) -> str:
    return "\n".join(remark.text for remark in found.remarks)


def test_aiperf_console() -> None:
    _found, measured = read(AIPERF, "aiperf")
    assert values(measured) == {"tpot": 0.06531, "ttft": 7.46328, "output_tokens_per_s": 61.1, "user_tokens_per_s": 15.4}
    assert {row.concurrency for row in measured.rows} == {4}  # of the command above the table
    arm = next(iter(measured.arms.values()))
    assert (arm.prompt, arm.output) == (550, 100)
    found, bare = read(AIPERF.partition("\n")[2], "aiperf")
    assert {row.concurrency for row in bare.rows} == {None}
    assert "without a limit" in said(found)


def test_genai_perf_console_and_csv() -> None:
    _found, measured = read(GENAI_PERF, "aiperf")
    assert values(measured) == {"tpot": 0.00185, "ttft": 0.01626, "output_tokens_per_s": 520.87}
    _found, table = read(AIPERF_CSV, "aiperf")
    assert values(table) == {"tpot": 0.05176, "ttft": 1.5888, "output_tokens_per_s": 97.2}


def test_aiperf_export() -> None:
    found, measured = read(json.dumps(AIPERF_JSON), "aiperf-json")
    assert values(measured) == {"tpot": 0.0085, "ttft": 0.0205, "output_tokens_per_s": 470.1, "user_tokens_per_s": 117.6}
    assert {row.concurrency for row in measured.rows} == {4}
    assert next(iter(measured.arms.values())).model == "Qwen3-8B"
    assert "10.0.0.1" not in repr(found)
    odd = {**AIPERF_JSON, "inter_token_latency": {"unit": "fortnights", "avg": 1.0}}
    found, measured = read(json.dumps(odd), "aiperf-json")
    assert "unit that is not known" in said(found)
    assert "tpot" not in values(measured)


def test_guidellm_console() -> None:
    """Its ITL is our TPOT (its own TPOT counts the first token in)."""
    found, measured = read(GUIDELLM, "guidellm")
    rows = [(row.concurrency, row.metric, row.value) for row in measured.rows]
    assert rows[:3] == [(4, "tpot", 7.8), (4, "ttft", 23.2), (4, "output_tokens_per_s", 49.7)]
    assert rows[3:] == [(None, "tpot", 9.8), (None, "ttft", 33.2), (None, "output_tokens_per_s", 19.7)]
    assert {(arm.prompt, arm.output) for arm in measured.arms.values()} == {(51, 49)}
    assert "1 runs at a request rate" in said(found)
    _found, half = read(GUIDELLM.partition("ℹ Server Throughput")[0], "guidellm")
    assert [row.metric for row in half.rows] == ["tpot", "ttft"] * 2


def test_guidellm_report() -> None:
    found, measured = read(json.dumps(GUIDELLM_JSON), "guidellm-json")
    assert [row.concurrency for row in measured.rows if row.metric == "tpot"] == [1, 8, None]
    assert {row.value for row in measured.rows if row.metric == "output_tokens_per_s"} == {800.0}
    assert {row.value for row in measured.rows if row.metric == "tpot"} == {9.1}
    assert {arm.model for arm in measured.arms.values()} == {"Llama-3.1-8B-Instruct"}
    assert "box-17" not in repr(found)


def test_llama_bench_table() -> None:
    """512 prompt tokens at 7,340.2 tok/s take 69.75 ms; 600 tok/s over 640 tokens are 120 tok/s of decode."""
    _found, measured = read(LLAMA_MD, "llama-bench")
    rows = [(row.metric, row.si_value, row.context, row.quality) for row in measured.rows]
    assert rows == [
        ("ttft", pytest.approx(512 / 7340.2), 256, "good"),
        ("output_tokens_per_s", 120.6, 64, "good"),
        ("output_tokens_per_s", 116.71, 576, "good"),
        ("output_tokens_per_s", pytest.approx(120.0), 576, "doubtful"),
    ]
    assert {row.concurrency for row in measured.rows} == {1}
    assert {arm.quantisation for arm in measured.arms.values()} == {"Q4_K"}
    assert {note for arm in measured.arms.values() for note in arm.notes} >= {"split mode row", "split mode layer", "ngl 99"}


@pytest.mark.parametrize("text", [LLAMA_JSON, LLAMA_JSONL], ids=["json", "jsonl"])
def test_llama_bench_json(text: str) -> None:
    found, measured = read(text, "llama-bench-json")
    assert [(row.metric, row.si_value) for row in measured.rows] == [("output_tokens_per_s", 118.88), ("ttft", pytest.approx(512 / 7100))]
    assert measured.machine.gpus == 2
    assert "alice" not in repr(found)
    assert {arm.kv_dtype for arm in measured.arms.values()} == {"f16"}


def test_llama_bench_csv_and_damage() -> None:
    _found, measured = read(LLAMA_CSV, "llama-bench")
    assert [(row.metric, row.value) for row in measured.rows] == [("output_tokens_per_s", 119.9)]
    found, _measured = read(LLAMA_MD.replace("tg128 |        120.60", "wrong |        120.60"), "llama-bench")
    assert "not understood" in said(found)
    found, _measured = read(LLAMA_MD.replace("tg128 |        120.60", "pp0+tg0 |      120.60"), "llama-bench")
    assert "not understood" in said(found), "a test of no tokens"
    with pytest.raises(InputError, match=r"out.txt:\d+: llama-bench: no time or rate"):
        read("\n".join(LLAMA_MD.splitlines()[:3]), "llama-bench")


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("ggml_cuda_init: found 2 CUDA devices:", 2),
        ("ggml_cuda_init: found 4 CUDA devices (Total VRAM: 96000 MiB):", 4),
        ("ggml_cuda_init: found 3 ROCm devices:", 3),
        ("ggml_vulkan: Found 2 Vulkan devices:", 2),
        ("Found 5 SYCL devices:", 5),
        ("ggml_cuda_init: found 1 CUDA device:", 1),
    ],
)
def test_llama_bench_counts_the_gpus_that_its_backend_found(line: str, gpus: int) -> None:
    text = LLAMA_MD.partition("\n")[2]
    for whole in (f"{line}\n{text}", f"{text}\n{line}\n"):
        found, measured = read(whole, "llama-bench")
        assert measured.machine.gpus == gpus
        assert "the number of GPUs is not in the file" not in said(found)
    found, measured = read(text, "llama-bench")
    assert measured.machine.gpus == 1
    assert "the number of GPUs is not in the file" in said(found)
    alone = "\n".join(one for one in text.replace("|   row |", "|  none |").splitlines() if "layer" not in one)
    assert read(f"{line}\n{alone}", "llama-bench")[1].machine.gpus == 1  # -sm none: one GPU, whatever was found


@given(
    st.text(),
    st.sampled_from([AIPERF, AIPERF_CSV, json.dumps(AIPERF_JSON), GUIDELLM, json.dumps(GUIDELLM_JSON), LLAMA_MD, LLAMA_JSON, LLAMA_CSV]),
    st.integers(0, 1500),
)
def test_only_input_errors_leave(text: str, base: str, at: int) -> None:
    for broken in (base[:at] + text + base[at:], base[:at], base[at:] + text):
        if not broken.strip():
            continue
        source = source_of(broken, "fuzz")
        for name in NAMES:
            FORMATS[name].sniff(source)
        for reader in READERS:
            with contextlib.suppress(InputError):
                reader(source)
