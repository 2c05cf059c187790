"""``vllm bench serve`` (and benchmark_serving.py before it): the printed block and the JSON of ``--save-result``.

Fields: vllm-project/vllm ``vllm/benchmarks/serve.py``.
"""

from __future__ import annotations

import re

from pcie_sim.importers.bench_blocks import find_blocks, is_header, is_sglang, run_of_block, run_of_json
from pcie_sim.importers.bench_common import as_imported, json_records
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText

_TITLE = "vllm bench serve"
_HEAD = 100_000
SGLANG_KEYS = ("total_output_tokens_retokenized", "sharegpt_output_len", "random_range_ratio")


def is_saved_result(head: str) -> bool:
    """A JSON object with the fields that both tools save."""
    return (
        head.lstrip("\ufeff \t\r\n").startswith(("{", "["))
        and re.search(r'"(?:mean|median)_(?:ttft|tpot|itl)_ms"\s{0,8}:', head) is not None
    )


def sniff(source: SourceText) -> int | None:
    """The header of a block without a backend."""
    for index, line in enumerate(source.lines):
        if is_header(line) and not is_sglang(source.lines[index + 1 : index + 5]):
            return index + 1
    return None


@importer("vllm-bench", "vllm bench serve", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Every block of a text.

    Raises:
        InputError: no time or rate in it.
    """
    remarks: list[Remark] = []
    blocks = [one for one in find_blocks(source) if "backend" not in one.labels]
    runs = [run_of_block(block, "vllm", source, remarks) for block in blocks]
    return as_imported(source, "vllm-bench", _TITLE, runs, remarks)


def sniff_json(source: SourceText) -> int | None:
    """The first field that only a saved result has."""
    head = source.raw[:_HEAD] + source.raw[-_HEAD:] if len(source.raw) > 2 * _HEAD else source.raw
    if not is_saved_result(head) or any(f'"{key}"' in head for key in SGLANG_KEYS):
        return None
    found = re.search(r'"(?:mean|median)_(?:ttft|tpot|itl)_ms"', head)
    return head.count("\n", 0, found.start()) + 1 if found is not None else None


@importer("vllm-bench-json", "vllm bench serve --save-result", sniff=sniff_json, whole=True)
def read_json(source: SourceText) -> Imported:
    """The results of a JSON or JSONL file (``--append-result``).

    Raises:
        InputError: broken JSON, or no time or rate in it.
    """
    records, remarks = json_records(source)
    runs = [run_of_json(data, line, "vllm", source, remarks) for data, line in records]
    return as_imported(source, "vllm-bench-json", _TITLE, runs, remarks)
