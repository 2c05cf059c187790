"""Through the registry: every sample reaches its own reader, and nothing else claims it."""

from __future__ import annotations

import json

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
    LONG_CSV,
    PLAIN_CSV,
    SGLANG,
    SGLANG_JSONL,
    VLLM,
    VLLM_JSON,
)

from pcie_sim.importers import read_any, source_of


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (VLLM, "vllm-bench"),
        (json.dumps(VLLM_JSON), "vllm-bench-json"),
        (json.dumps(VLLM_JSON, indent=2), "vllm-bench-json"),
        (SGLANG, "sglang-bench"),
        (SGLANG_JSONL, "sglang-bench-json"),
        (AIPERF, "aiperf"),
        (GENAI_PERF, "aiperf"),
        (AIPERF_CSV, "aiperf"),
        (json.dumps(AIPERF_JSON), "aiperf-json"),
        (GUIDELLM, "guidellm"),
        (json.dumps(GUIDELLM_JSON), "guidellm-json"),
        (LLAMA_MD, "llama-bench"),
        (LLAMA_CSV, "llama-bench"),
        (LLAMA_JSON, "llama-bench-json"),
        (LLAMA_JSONL, "llama-bench-json"),
        (PLAIN_CSV, "serving-csv"),
        (LONG_CSV, "serving-csv"),
    ],
)
def test_each_sample_reaches_its_reader(text: str, form: str) -> None:
    found = read_any(source_of(text, "pasted.txt"))
    assert found.formats == (form,)
    assert found.measurements[0].kind == "serving"
    assert found.measurements[0].use == "context"


def test_a_command_and_its_result_in_one_paste() -> None:
    found = read_any(source_of("vllm serve Qwen/Qwen3-32B -tp 4\n\n" + VLLM, "pasted.txt"))
    assert set(found.formats) == {"vllm-bench", "serve-command"}
    assert found.launch is not None
    assert found.launch.strategy == "tp4"
    assert len(found.measurements) == 1
