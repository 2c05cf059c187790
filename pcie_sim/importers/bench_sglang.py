"""``sglang.bench_serving``: the printed block and its JSONL.

Fields: sgl-project/sglang ``python/sglang/bench_serving.py``. Newer versions print no TPOT; the mean ITL stands in for it.
"""

from __future__ import annotations

from pcie_sim.importers.bench_blocks import find_blocks, is_header, is_sglang, run_of_block, run_of_json
from pcie_sim.importers.bench_common import as_imported, json_records
from pcie_sim.importers.bench_vllm import SGLANG_KEYS, is_saved_result
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText

_TITLE = "sglang.bench_serving"
_HEAD = 100_000


def sniff(source: SourceText) -> int | None:
    """The header of a block that names its backend."""
    for index, line in enumerate(source.lines):
        if is_header(line) and is_sglang(source.lines[index + 1 : index + 5]):
            return index + 1
    return None


@importer("sglang-bench", "sglang.bench_serving", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Every block of a text.

    Raises:
        InputError: no time or rate in it.
    """
    remarks: list[Remark] = []
    runs = [run_of_block(block, None, source, remarks) for block in find_blocks(source) if "backend" in block.labels]
    return as_imported(source, "sglang-bench", _TITLE, runs, remarks)


def sniff_json(source: SourceText) -> int | None:
    """The first field that only this tool saves."""
    head = source.raw[:_HEAD] + source.raw[-_HEAD:] if len(source.raw) > 2 * _HEAD else source.raw
    if not is_saved_result(head):
        return None
    places = [head.find(f'"{key}"') for key in SGLANG_KEYS]
    found = min((place for place in places if place >= 0), default=None)
    return head.count("\n", 0, found) + 1 if found is not None else None


@importer("sglang-bench-json", "sglang.bench_serving's JSONL", sniff=sniff_json, whole=True)
def read_json(source: SourceText) -> Imported:
    """The results of a JSONL file, one run a line.

    Raises:
        InputError: broken JSON, or no time or rate in it.
    """
    records, remarks = json_records(source)
    runs = [run_of_json(data, line, None, source, remarks) for data, line in records]
    return as_imported(source, "sglang-bench-json", _TITLE, runs, remarks)
