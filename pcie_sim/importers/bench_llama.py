"""``llama-bench``: its Markdown table, CSV, JSON and JSONL.

Fields: ggml-org/llama.cpp ``tools/llama-bench``. ``tgN`` rows are one request's decode rate; ``ppN`` rows become the time of the prompt.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Any

from pcie_sim.importers.bench_common import MAX_RUNS, Run, as_imported, count, json_records, positive
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText

_TITLE = "llama-bench"
_TEST = re.compile(r"(?:(pp) ?([0-9]{1,8}))?\+?(?:(tg) ?([0-9]{1,8}))?(?: @ d ?([0-9]{1,8}))?")
_FOUND = re.compile(r"\b[Ff]ound ([0-9]{1,3}) (?:CUDA|ROCm|HIP|MUSA|SYCL|Vulkan) devices?\b")
"""What ggml's backends print when they start (``ggml_cuda_init: found 2 CUDA devices``, ``ggml_vulkan: Found 2 Vulkan devices``)."""
_QUANT = re.compile(r"\b(I?Q[1-8]_[A-Z0-9_]{1,8}|BF16|F16|MXFP4)\b")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _is_header(line: str) -> bool:
    if "t/s" not in line or line.count("|") < 4 or len(line) > 1000:
        return False
    cells = _cells(line)
    return "model" in cells and "test" in cells and "t/s" in cells


def sniff(source: SourceText) -> int | None:
    """The header of a Markdown table or of a CSV."""
    for number_, line in enumerate(source.lines, 1):
        if _is_header(line) or line.startswith(("build_commit,", '"build_commit",')):
            return number_
    return None


@importer("llama-bench", "llama-bench", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Every table of a text, Markdown or CSV.

    Raises:
        InputError: no rate in it.
    """
    remarks: list[Remark] = []
    runs: list[Run] = []
    header: list[str] | None = None
    as_csv = False
    ignored: list[int] = []
    gpus = _found(source)
    for number_, line in enumerate(source.lines, 1):
        if len(runs) > MAX_RUNS:
            break
        if (said := _FOUND.search(line)) is not None:
            gpus = int(said.group(1)) or None
        elif _is_header(line):
            header, as_csv = _cells(line), False
        elif line.startswith(("build_commit,", '"build_commit",')):
            header, as_csv = next(csv.reader([line])), True
        elif header is not None and line.strip():
            cells = _csv_cells(line) if as_csv else _cells(line) if "|" in line else None
            if cells is None or (not as_csv and all(re.fullmatch(r":?-{2,}:?", cell) for cell in cells)):
                continue
            row = dict(zip(header, cells, strict=False))
            run = (_of_fields if as_csv else _of_table)(row, number_) if len(cells) == len(header) else None
            if run is None:
                ignored.append(number_)
            else:
                run.gpus = run.gpus or gpus
                runs.append(run)
    if ignored:
        remarks.append(source.remark("ignored", f"{len(ignored)} rows of the table are not understood", ignored[0]))
    return as_imported(source, "llama-bench", _TITLE, runs, remarks)


def _found(source: SourceText) -> int | None:
    """The GPUs that the first start of a backend found; None where nothing says it."""
    said = next((match for line in source.lines if (match := _FOUND.search(line)) is not None), None)
    return int(said.group(1)) or None if said is not None else None


def _csv_cells(line: str) -> list[str] | None:
    try:
        return next(csv.reader([line]))
    except (csv.Error, StopIteration):
        return None


def sniff_json(source: SourceText) -> int | None:
    """The first of the fields that only this tool writes."""
    head = source.raw[:20_000]
    found = re.search(r'"(?:avg_ts|n_gen)"\s{0,4}:', head)
    if found is None or '"build_commit"' not in head or not head.lstrip("\ufeff \t\r\n").startswith(("[", "{")):
        return None
    return head.count("\n", 0, found.start()) + 1


@importer("llama-bench-json", "llama-bench -o json", sniff=sniff_json, whole=True)
def read_json(source: SourceText) -> Imported:
    """The results of a JSON list or a JSONL file.

    Raises:
        InputError: broken JSON, or no rate in it.
    """
    records, remarks = json_records(source)
    runs = [run for data, line in records if (run := _of_fields(data, line)) is not None]
    return as_imported(source, "llama-bench-json", _TITLE, runs, remarks)


def _of_fields(data: Mapping[str, Any], line: int) -> Run | None:
    prompt, made, depth = (count(data.get(key)) or 0.0 for key in ("n_prompt", "n_gen", "n_depth"))
    rate = positive(data.get("avg_ts"))
    if rate is None or not (prompt or made):
        return None
    run = _run(str(data.get("model_type") or ""), prompt, made, depth, rate, line)
    cards = [one for one in re.split(r"[,/]", str(data.get("gpu_info") or "")) if one.strip()]
    run.gpus = min(len(cards), 64) or None
    for key, name in (("split_mode", "split mode"), ("n_gpu_layers", "ngl"), ("tensor_split", "tensor split"), ("n_ubatch", "ubatch")):
        if isinstance(data.get(key), str | int) and re.fullmatch(r"[A-Za-z0-9./-]{1,40}", str(data[key])):
            run.notes.append(f"{name} {data[key]}")
    types = {str(data.get(key) or "") for key in ("type_k", "type_v")}
    if len(types) == 1 and re.fullmatch(r"[a-z0-9_]{2,10}", next(iter(types))):
        run.kv_dtype = types.pop()
    return run


def _of_table(row: Mapping[str, str], line: int) -> Run | None:
    match = _TEST.fullmatch(row.get("test", ""))
    rate = positive(re.split(r"±|\+/-", row.get("t/s", ""))[0])
    if match is None or rate is None or not (match.group(1) or match.group(3)):
        return None
    prompt, made, depth = (float(match.group(group) or 0) for group in (2, 4, 5))
    if not prompt and not made:
        return None
    run = _run(row.get("model", ""), prompt, made, depth, rate, line)
    for key, name in (("sm", "split mode"), ("ngl", "ngl"), ("ts", "tensor split"), ("n_ubatch", "ubatch"), ("fa", "flash attention")):
        if re.fullmatch(r"[A-Za-z0-9./-]{1,40}", row.get(key, "")):
            run.notes.append(f"{name} {row[key]}")
    if row.get("sm") == "none":
        run.gpus = 1
    elif re.fullmatch(r"[A-Za-z]{2,10}[0-9]{1,3}(?:/[A-Za-z]{2,10}[0-9]{1,3}){0,63}", row.get("dev", "")):  # -dev CUDA0/CUDA1
        run.gpus = row["dev"].count("/") + 1
    kinds = {row.get("type_k"), row.get("type_v")} - {None}
    if len(kinds) == 1 and re.fullmatch(r"[a-z0-9_]{2,10}", row.get("type_k") or row.get("type_v") or ""):
        run.kv_dtype = row.get("type_k") or row.get("type_v")
    return run


def _run(model: str, prompt: float, made: float, depth: float, rate: float, line: int) -> Run:
    run = Run(line=line, runtime="llama.cpp", concurrency=1.0)
    name = re.sub(r"[^A-Za-z0-9 ._+-]", "", model)[:80].strip()
    if name:
        run.notes.append(f"model as printed: {name}")
        quant = _QUANT.search(model)
        run.quantisation = quant.group(1) if quant is not None else None
    run.output, run.prompt = made or None, prompt or None
    if made and not prompt:
        run.context = depth + made / 2
        run.add("output_tokens_per_s", rate, "tok/s", f"tg{made:g}" + (f" behind {depth:g} tokens" if depth else ""))
    elif prompt and not made:
        run.context = depth + prompt / 2
        run.add("ttft", prompt / rate, "s", f"pp{prompt:g} at {rate:g} tok/s" + (f" behind {depth:g} tokens" if depth else ""))
    else:
        run.context = depth + prompt + made / 2
        run.doubt = "prompt and decode together"
        run.add("output_tokens_per_s", rate * made / (prompt + made), "tok/s", f"pp{prompt:g}+tg{made:g}: {rate:g} tok/s of both")
    return run
