"""AIPerf and GenAI-Perf: the profile export (JSON, CSV) and the console's table.

Fields: ai-dynamo/aiperf (``profile_export_aiperf.json``), triton-inference-server/perf_analyzer (``profile_export_genai_perf.json``).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from typing import Any

from pcie_sim.importers.bench_common import Run, as_imported, concurrency_of, count, key_anywhere, load_json, model_of, positive
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText

_TITLE = "AIPerf or GenAI-Perf"
_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_TAGS = {
    "time to first token": "ttft",
    "inter token latency": "itl",
    "output token throughput": "rate",
    "output token throughput per user": "user",
    "input sequence length": "prompt",
    "output sequence length": "output",
    "request throughput": "requests",
    "output token count": "output",
    "error request count": "errors",
}
_TABLE = re.compile(r"[│|┃]")
_HEADS = ("metric", "statistic")


def _tag(label: str) -> tuple[str | None, str]:
    """(what a row measures, its unit) from ``Time to First Token (ms)``."""
    if len(label) > 120:
        return None, ""
    match = re.fullmatch(r"\s*([A-Za-z][A-Za-z0-9 _-]{2,60}?)\s*(?:\(([^()]{1,30})\))?\s*", label)
    if match is None:
        return None, ""
    name = re.sub(r"[\s_-]+", " ", match.group(1).lower())
    return _TAGS.get(name), (match.group(2) or "").lower()


def _is_table_head(line: str) -> bool:
    if len(line) > 1000:
        return False
    cells = [cell.strip().lower() for cell in _TABLE.split(line)]
    return "avg" in cells and any(head in cells for head in _HEADS)


def _is_csv_head(line: str) -> bool:
    low = line[:200].lower().replace('"', "")
    return low.startswith("metric,avg,min,max") or low.strip() == "metric,value"


def sniff(source: SourceText) -> int | None:
    """The head of the table or of the CSV."""
    for number_, line in enumerate(source.lines, 1):
        if _is_table_head(line) or _is_csv_head(line):
            return number_
    return None


@importer("aiperf", "aiperf and genai-perf (table, CSV)", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Every table of a console text, or the CSV export.

    Raises:
        InputError: no time or rate in it.
    """
    remarks: list[Remark] = []
    runs: list[Run] = []
    rows: dict[str, tuple[float, str]] = {}
    asked, columns, start, pending = None, None, 1, ""  # type: tuple[float | None, float | None] | None, int | None, int, str
    command: tuple[float | None, float | None] = (None, None)

    def close() -> None:
        if rows:
            runs.append(_run(dict(rows), start, asked or (None, None), source, remarks))
            rows.clear()

    for number_, line in enumerate(source.lines, 1):
        if "--concurrency" in line or "--request-rate" in line:
            command = _asked(line, command)
        if _is_csv_head(line):
            if line.lower().startswith("metric,avg"):
                close()
                start, asked = number_, command
            columns = -1
            continue
        if _is_table_head(line):
            close()
            start, asked, pending = number_, command, ""
            cells = [cell.strip().lower() for cell in _TABLE.split(line)]
            columns = cells.index("avg")
            continue
        if columns is None:
            continue
        if columns < 0:
            _csv_row(line, rows)
            continue
        cells = [cell.strip() for cell in _TABLE.split(line)]
        if len(cells) <= columns:
            continue
        label = cells[columns - 1]
        if not cells[columns] and pending and label.startswith("("):  # the unit wrapped to a line of its own
            _keep(f"{pending} {label}", rows.pop("?", (0.0, ""))[0], rows)
        else:
            _keep(label, positive(cells[columns]), rows)
        pending = label
    close()
    return as_imported(source, "aiperf", _TITLE, runs, remarks)


def _asked(line: str, before: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    """(concurrency, request rate) of a command that is part of the paste."""
    limit = re.search(r"--concurrency[ =]{1,4}([0-9]{1,6})", line[:4000])
    rate = re.search(r"--request-rate[ =]{1,4}([0-9.]{1,10})", line[:4000])
    return (count(limit.group(1)) if limit else before[0], positive(rate.group(1)) if rate else before[1])


def _csv_row(line: str, rows: dict[str, tuple[float, str]]) -> None:
    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        return
    if len(cells) >= 2:
        _keep(cells[0], positive(cells[1]), rows)


def _keep(label: str, value: float | None, rows: dict[str, tuple[float, str]]) -> None:
    tag, unit = _tag(label)
    if value is not None and tag is not None:
        if tag == "user" and not unit:
            rows["?"] = (value, "")
        rows.setdefault(tag, (value, unit))


def sniff_json(source: SourceText) -> int | None:
    """The first metric of an export."""
    head = source.raw[:400_000]
    if not head.lstrip("\ufeff \t\r\n").startswith("{"):
        return None
    found = re.search(r'"(?:time_to_first_token|inter_token_latency|output_token_throughput)"\s{0,8}:\s{0,8}\{', head)
    if found is None or '"avg"' not in head:
        return None
    return head.count("\n", 0, found.start()) + 1


@importer("aiperf-json", "aiperf and genai-perf profile export", sniff=sniff_json, whole=True)
def read_json(source: SourceText) -> Imported:
    """The run of a profile export.

    Raises:
        InputError: broken JSON, or no time or rate in it.
    """
    data = load_json(source)
    if not isinstance(data, dict):
        raise source.error("a profile export is one JSON object", 1)
    remarks: list[Remark] = []
    rows: dict[str, tuple[float, str]] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            tag, _unit = _tag(key)
            found = positive(value.get("avg"))
            if tag is not None and found is not None:
                rows[tag] = (found, str(value.get("unit") or "").lower()[:30])
    config = data.get("input_config")
    limits = {found for one in key_anywhere(config, ("concurrency",)) if (found := count(one)) is not None}
    rates = {found for one in key_anywhere(config, ("request_rate",)) if (found := positive(one)) is not None}
    limit = limits.pop() if len(limits) == 1 else None
    run = _run(rows, 1, (limit, rates.pop() if len(rates) == 1 else None), source, remarks)
    run.model = _model(config)
    return as_imported(source, "aiperf-json", _TITLE, [run], remarks)


def _model(config: Any) -> str | None:
    for value in key_anywhere(config, ("model_names", "model", "models", "items"), most=500):
        first = value[0] if isinstance(value, list) and value else value
        found = model_of(first.get("name") if isinstance(first, dict) else first)
        if found is not None:
            return found
    return None


def _run(
    rows: Mapping[str, tuple[float, str]], line: int, asked: tuple[float | None, float | None], source: SourceText, remarks: list[Remark]
) -> Run:
    run = Run(line=line)
    run.prompt, run.output = (round(rows[name][0], 1) if name in rows else None for name in ("prompt", "output"))
    concurrency_of(run, asked[0], asked[1], remarks, source)
    for tag, metric, what in (("itl", "tpot", "mean inter-token latency"), ("ttft", "ttft", "mean TTFT")):
        if tag in rows:
            value, unit = rows[tag]
            factor = _TIME.get(unit or "ms", math.nan)
            if math.isnan(factor):
                remarks.append(source.remark("ignored", f"{what} in a unit that is not known", line))
            else:
                run.add(metric, value * factor * 1e3, "ms", what)
    if "rate" in rows:
        run.add("output_tokens_per_s", rows["rate"][0], "tok/s")
    if "user" in rows:
        run.add("user_tokens_per_s", rows["user"][0], "tok/s", "mean over the requests")
    if "errors" in rows:
        run.doubt = f"{rows['errors'][0]:g} requests failed"
    return run
