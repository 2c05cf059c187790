"""A plain CSV of serving measurements: one row per run, what a column holds and its unit said by the header."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from pcie_sim.errors import InputError
from pcie_sim.importers.bench_common import Run, as_imported, count, model_of, number, runtime_of
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.serve_privacy import LEFT_OUT, kept
from pcie_sim.importers.source import Remark, SourceText, quoted
from pcie_sim.specs.strategy import parse_strategy

_TITLE = "a CSV of serving measurements"
_MAX_ROWS = 5_000
_NAMES = {
    "concurrency": "concurrency conc c users num_users max_concurrency concurrent_requests num_concurrent batch batch_size bs",
    "tpot": "tpot mean_tpot avg_tpot itl mean_itl avg_itl time_per_output_token inter_token_latency median_tpot median_itl",
    "ttft": "ttft mean_ttft avg_ttft time_to_first_token median_ttft",
    "step_time": "step_time decode_step",
    "output_tokens_per_s": "output_tok_s output_tokens_per_s output_tokens_per_second output_throughput output_tps tok_s toks_s tps "
    "tokens_per_s tokens_per_second throughput decode_tps decode_tok_s gen_tps generation_tps agg_tok_s aggregate_tok_s total_output_tok_s",
    "user_tokens_per_s": "user_tok_s user_tokens_per_s tok_s_user tok_s_per_user tokens_per_s_per_user tps_per_user user_tps "
    "per_user_tok_s",
    "model": "model model_id model_name",
    "strategy": "strategy parallelism",
    "runtime": "runtime engine backend framework",
    "context": "context ctx context_length kv_len",
    "prompt": "prompt prompt_tokens isl input_len input_length input_tokens prompt_len",
    "output": "osl output_len output_length output_tokens max_tokens gen_len",
    "gpus": "gpus num_gpus n_gpus",
    "quantisation": "quantisation quantization quant",
    "kv_dtype": "kv_dtype kv_cache_dtype",
    "arm": "arm name config label",
    "note": "note notes comment",
}
_COLUMN_OF = {name: column for column, names in _NAMES.items() for name in names.split()}
_MEASURES = ("tpot", "ttft", "step_time", "output_tokens_per_s", "user_tokens_per_s")
_TIME_UNITS = {"s": "s", "sec": "s", "seconds": "s", "ms": "ms", "msec": "ms", "us": "us"}
_RATE_UNITS = ("tok/s", "tokens/s", "t/s", "toks/s", "tok/sec", "tokens/sec", "tok/s/user", "tokens/s/user")


@dataclass(frozen=True)
class _Column:
    kind: str
    unit: str = ""
    header: str = ""


def _column(header: str) -> _Column | None:
    """What a header names; None: not known.

    >>> _column("TPOT (ms)"), _column("ttft_s").unit, _column("output tok/s").kind, _column("colour")
    (_Column(kind='tpot', unit='ms', header='TPOT (ms)'), 's', 'output_tokens_per_s', None)
    """
    low = header[:100].strip().lower().lstrip("#").strip()
    unit = ""
    bracket = re.fullmatch(r"([^\[(]{1,60}?)\s*[\[(]([^\])]{1,20})[\])]", low)
    if bracket is not None:
        low, unit = bracket.group(1), bracket.group(2).strip()
    name = re.sub(r"[\s/.-]+", "_", low).strip("_")
    kind = _COLUMN_OF.get(name)
    if kind is None:
        head, _, tail = name.rpartition("_")
        if tail in _TIME_UNITS and not unit and _COLUMN_OF.get(head) in ("tpot", "ttft", "step_time"):
            kind, unit = _COLUMN_OF[head], tail
    if kind in ("tpot", "ttft", "step_time"):
        found = _TIME_UNITS.get(unit)
        return _Column(kind, found or "", header) if found or not unit else None
    if kind in ("output_tokens_per_s", "user_tokens_per_s"):
        if unit and unit not in _RATE_UNITS:
            return None
        return _Column("user_tokens_per_s" if unit.endswith("/user") else kind, "tok/s", header)
    return _Column(kind, "", header) if kind is not None else None


def _delimiter(line: str) -> str:
    return max(",;\t|", key=line.count)


def _split(line: str, delimiter: str) -> list[str]:
    text = line.strip() if delimiter == "|" else line
    if delimiter == "|" and text.startswith("|"):  # a Markdown table
        text = text[1:].removesuffix("|")
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter), [])]
    except csv.Error:
        return []


def sniff(source: SourceText) -> int | None:
    """The first line that is not a comment, where it heads a table of serving measurements."""
    for number_, line in enumerate(source.lines[:200], 1):
        text = line.strip()
        if not text or (text.startswith("#") and not any(mark in text for mark in ",;\t|")):
            continue
        if len(text) > 4000 or not any(mark in text for mark in ",;\t|"):
            return None
        cells = _split(text, _delimiter(text))
        if len(cells) < 2 or cells[0].lower() in ("metric", "build_commit") or "t/s" in cells:
            return None
        known = [column for cell in cells if (column := _column(cell)) is not None]
        measures = any(column.kind in _MEASURES for column in known)
        long_form = {"metric", "value"} <= {cell.lower() for cell in cells}
        return number_ if (measures or long_form) and (len(known) >= 2 or long_form) else None
    return None


@importer("serving-csv", "CSV of serving measurements", sniff=sniff)
def read(source: SourceText) -> Imported:
    """One run per row; with columns ``metric``, ``value`` (and ``unit``), one value per row.

    Raises:
        InputError: a header that is not known or has no unit, or no value in it.
    """
    start = sniff(source) or 1
    head = source.lines[start - 1].strip()
    delimiter = _delimiter(head)
    headers = _split(head, delimiter)
    columns = _columns(source, headers, start)
    remarks: list[Remark] = []
    runs: list[Run] = []
    ignored: list[tuple[int, str]] = []
    for number_, line in enumerate(source.lines[start:], start + 1):
        text = line.strip()
        if not text or text.startswith("#") or re.fullmatch(r"[|:\s-]{3,}", text):
            continue
        if len(runs) >= _MAX_ROWS:
            remarks.append(source.remark("cut", f"only the first {_MAX_ROWS} rows are read", number_))
            break
        cells = _split(line, delimiter)
        if len(cells) != len(columns):
            ignored.append((number_, f"{len(cells)} cells for {len(columns)} columns"))
            continue
        run, problem = _run(dict(zip(columns, cells, strict=True)), number_)
        runs.append(run)
        if problem:
            ignored.append((number_, problem))
    if ignored:
        remarks.append(
            source.remark("ignored", f"{len(ignored)} rows or cells are not understood, the first: {ignored[0][1]}", ignored[0][0])
        )
    return as_imported(source, "serving-csv", _TITLE, runs, remarks)


def _columns(source: SourceText, headers: list[str], line: int) -> list[_Column]:
    long_form = {"metric", "value"} <= {header.lower() for header in headers}
    columns: list[_Column] = []
    for header in headers:
        column = _Column(header.lower(), "", header) if long_form and header.lower() in ("metric", "value", "unit") else _column(header)
        if column is None:
            known = "concurrency, tpot_ms, ttft_ms, output_tok_s, user_tok_s, strategy, model, context, prompt, output, note"
            raise source.error(f"column {quoted(header, 40)} is not known; rename or drop it\nknown: {known} (times with their unit)", line)
        if column.kind in ("tpot", "ttft", "step_time") and not column.unit:
            raise source.error(
                f"column {quoted(header, 40)} says no unit; name it {column.kind}_ms, {column.kind}_s or {column.kind}_us", line
            )
        if any(one.kind == column.kind and column.kind != "note" for one in columns):
            raise source.error(f"column {quoted(header, 40)}: a second column for {column.kind}; keep one", line)
        columns.append(column)
    return columns


def _run(row: dict[_Column, str], line: int) -> tuple[Run, str]:
    """(the run of a row, what of it was not understood)."""
    cells = {column.kind: cell for column, cell in row.items()}
    run = Run(line=line, concurrency=count(cells.get("concurrency")), runtime=runtime_of(cells.get("runtime")))
    run.model, run.context = model_of(cells.get("model")), count(cells.get("context"))
    run.prompt, run.output = count(cells.get("prompt")), count(cells.get("output"))
    gpus = count(cells.get("gpus"))
    run.gpus = int(gpus) if gpus is not None and gpus <= 4096 else None
    for kind in ("quantisation", "kv_dtype"):
        if re.fullmatch(r"[A-Za-z0-9_.+-]{1,40}", cells.get(kind, "")):
            setattr(run, kind, cells[kind])
    for kind in ("arm", "note"):
        text = kept(kind, cells.get(kind, ""))[:200]
        if text and text != LEFT_OUT:
            run.notes.append(text)
    problem = ""
    if cells.get("concurrency") and run.concurrency is None:
        problem = f"concurrency {quoted(cells['concurrency'], 30)} is no number above 0"
    if cells.get("strategy"):
        try:
            run.strategy = parse_strategy(cells["strategy"]).canonical
        except InputError as exc:
            problem = str(exc)[:120]
    for column, cell in row.items():
        if column.kind in _MEASURES and cell.lower() not in ("", "-", "n/a", "na", "null", "none", "nan"):
            value = number(cell)
            if value is None:
                problem = f"{quoted(cell, 30)} is no number"
            run.add(column.kind, value, column.unit)
    if "metric" in cells:
        problem = _long(run, cells) or problem
    return run, problem


def _long(run: Run, cells: dict[str, str]) -> str:
    unit = cells.get("unit", "")
    column = _column(f"{cells['metric']} ({unit})" if unit else cells["metric"])
    if column is None or column.kind not in _MEASURES or not column.unit:
        return f"metric {quoted(cells['metric'], 30)} in {quoted(unit, 20)} is not known"
    value = number(cells.get("value"))
    if value is None:
        return f"{quoted(cells.get('value', ''), 30)} is no number"
    run.add(column.kind, value, column.unit)
    return ""
