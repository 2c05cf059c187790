"""GuideLLM: its JSON report and the console's tables.

Fields: vllm-project/guidellm ``benchmark/schemas`` and ``benchmark/outputs/console.py``. Its TPOT counts the first token in; its ITL is
what is called TPOT here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pcie_sim.importers.bench_common import MAX_RUNS, Run, as_imported, count, key_anywhere, load_json, model_of, positive
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import Remark, SourceText

_TITLE = "GuideLLM"
_LATENCY, _THROUGHPUT = "Request Latency Statistics", "Server Throughput Statistics"
_TOKENS = "Request Token Statistics"


def sniff(source: SourceText) -> int | None:
    """The title of one of the console's tables."""
    for number_, line in enumerate(source.lines, 1):
        if _LATENCY in line or (_THROUGHPUT in line and "|" not in line):
            return number_
    return None


@importer("guidellm", "guidellm (console)", sniff=sniff)
def read(source: SourceText) -> Imported:
    """The latency and throughput tables of a console text, row by row.

    Raises:
        InputError: no time or rate in them.
    """
    remarks: list[Remark] = []
    runs: list[Run] = []
    tables: dict[str, list[dict[tuple[str, str, str], str]]] = {}
    for title, line, rows in _tables(source):
        name = next((one for one in (_LATENCY, _THROUGHPUT, _TOKENS) if one in title), "")
        if name in tables and name:
            runs.extend(_of_tables(tables, source, line))
            tables = {}
        if name:
            tables[name] = rows
    runs.extend(_of_tables(tables, source, sniff(source) or 1))
    _unknown_concurrency(runs, remarks, source)
    return as_imported(source, "guidellm", _TITLE, runs, remarks)


def _tables(source: SourceText) -> list[tuple[str, int, list[dict[tuple[str, str, str], str]]]]:
    """(title, line, rows by (group, name, unit)) of every table drawn with ``|===|`` rules."""
    found: list[tuple[str, int, list[dict[tuple[str, str, str], str]]]] = []
    title, start = "", 1
    heads: list[list[str]] = []
    rows: list[dict[tuple[str, str, str], str]] = []
    part = 0  # 0: outside, 1: heads, 2: rows
    for number_, line in enumerate(source.lines, 1):
        text = line.strip()
        if re.match(r"\|={3,}", text):
            if part == 0:
                heads, rows, part, start = [], [], 1, number_
            else:
                found.append((title, start, rows))
                part = 0
        elif part == 1 and re.match(r"\|-{3,}", text):
            part = 2
        elif part and text.startswith("|") and len(text) < 2000:
            if part == 1:
                heads.append([cell.strip() for cell, bars in re.findall(r"([^|]{1,400})(\|{1,40})", text) for _ in bars])
            elif len(heads) >= 3 and len(rows) < MAX_RUNS:
                cells = [cell.strip() for cell in text.strip("|").split("|")]
                rows.append({(a, b, c): cell for a, b, c, cell in zip(*heads[:3], cells, strict=False)})
        elif part == 0 and text:
            title = text[:200]
        elif part and text:
            part = 0
    if part == 2 and rows:
        found.append((title, start, rows))
    return found


def _of_tables(tables: Mapping[str, list[dict[tuple[str, str, str], str]]], source: SourceText, line: int) -> list[Run]:
    del source
    latency, throughput, lengths = (tables.get(name, []) for name in (_LATENCY, _THROUGHPUT, _TOKENS))
    runs = []
    for index in range(max(len(latency), len(throughput))):
        run = Run(line=line)
        times = latency[index] if index < len(latency) else {}
        rates = throughput[index] if index < len(throughput) else {}
        sizes = lengths[index] if index < len(lengths) else {}
        kind = next((row.get(("Benchmark", "Strategy", "")) for row in (times, rates) if row), None) or ""
        run.add("tpot", positive(times.get(("ITL", "ms", "Mdn"))), "ms", "median ITL")
        run.add("ttft", positive(times.get(("TTFT", "ms", "Mdn"))), "ms", "median TTFT")
        rate = positive(rates.get(("Output Tokens", "Per Sec", "Mean"))) or positive(rates.get(("Output Tok", "Per Sec", "Mean")))
        run.add("output_tokens_per_s", rate, "tok/s", "mean")
        run.prompt = count(sizes.get(("Input Tok", "Per Req", "Mdn")))
        run.output = count(sizes.get(("Output Tok", "Per Req", "Mdn")))
        average = positive(rates.get(("Requests", "Concurrency", "Mean")))
        _of_strategy(run, kind, None, average)
        runs.append(run)
    return runs


def _of_strategy(run: Run, kind: str, streams: float | None, average: float | None) -> None:
    """The concurrency of a GuideLLM strategy: 1 of ``synchronous``, the streams of ``concurrent``; a rate leaves it open."""
    kind = kind.strip().lower()
    if re.fullmatch(r"[a-z_-]{3,20}", kind):
        run.notes.append(f"strategy {kind}" + (f", {average:g} requests at once on average" if average is not None else ""))
    if kind == "synchronous":
        run.concurrency = 1.0
    elif kind == "concurrent":
        run.concurrency = streams if streams is not None else average


def _unknown_concurrency(runs: list[Run], remarks: list[Remark], source: SourceText) -> None:
    open_ = [run for run in runs if run.concurrency is None]
    if open_:
        remarks.append(
            source.remark("note", f"{len(open_)} runs at a request rate: how many requests ran at once is not set", open_[0].line)
        )


def sniff_json(source: SourceText) -> int | None:
    """The first metric of a report."""
    head = source.raw[:200_000]
    if not head.lstrip("\ufeff \t\r\n").startswith("{") or '"benchmarks"' not in head[:100_000]:
        return None
    whole = source.raw
    found = next((place for key in ("time_to_first_token_ms", "output_tokens_per_second") if (place := whole.find(f'"{key}"')) >= 0), None)
    return whole.count("\n", 0, found) + 1 if found is not None else None


@importer("guidellm-json", "guidellm JSON report", sniff=sniff_json, whole=True)
def read_json(source: SourceText) -> Imported:
    """The benchmarks of a report.

    Raises:
        InputError: broken JSON, or no time or rate in it.
    """
    data = load_json(source)
    benchmarks = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise source.error("a GuideLLM report has a list of benchmarks", 1)
    remarks: list[Remark] = []
    runs = []
    for one in benchmarks[:MAX_RUNS]:
        metrics = one.get("metrics") if isinstance(one, dict) else None
        if isinstance(metrics, dict):
            run = _of_metrics(one, metrics)
            run.model = run.model or _model(data)
            runs.append(run)
    if not runs:
        raise source.error("a GuideLLM report without metrics", 1)
    _unknown_concurrency(runs, remarks, source)
    return as_imported(source, "guidellm-json", _TITLE, runs, remarks)


def _of_metrics(one: Mapping[str, Any], metrics: Mapping[str, Any]) -> Run:
    run = Run(line=1)
    for name, metric, what in (("inter_token_latency_ms", "tpot", "ITL"), ("time_to_first_token_ms", "ttft", "TTFT")):
        mean, median = _stat(metrics, name, "mean", "successful"), _stat(metrics, name, "median", "successful")
        run.add(metric, mean, "ms", f"mean {what}" + (f"; median {median:g} ms" if median is not None else ""))
    rate = _stat(metrics, "output_tokens_per_second", "mean", "total") or _stat(metrics, "output_tokens_per_second", "mean", "successful")
    run.add("output_tokens_per_s", rate, "tok/s", "mean")
    run.prompt = _stat(metrics, "prompt_token_count", "mean", "successful")
    run.output = _stat(metrics, "output_token_count", "mean", "successful")
    run.prompt, run.output = (round(value, 1) if value is not None else None for value in (run.prompt, run.output))
    average = _stat(metrics, "request_concurrency", "mean", "successful") or _stat(metrics, "request_concurrency", "mean", "total")
    strategy = next((value for value in key_anywhere(one, ("strategy",), most=200) if isinstance(value, dict)), {})
    streams = next((count(strategy.get(key)) for key in ("streams", "max_concurrency") if count(strategy.get(key)) is not None), None)
    _of_strategy(run, str(strategy.get("type_") or ""), streams, average)
    errored = metrics.get("request_totals")
    failed = count(errored.get("errored")) if isinstance(errored, dict) else None
    if failed:
        run.doubt = f"{failed:g} requests failed"
    run.model = _model({key: value for key, value in one.items() if key not in ("requests", "metrics")})
    return run


def _stat(metrics: Mapping[str, Any], name: str, stat: str, status: str) -> float | None:
    value = metrics.get(name)
    inside = value.get(status) if isinstance(value, dict) else None
    return positive(inside.get(stat)) if isinstance(inside, dict) else None


def _model(data: Any) -> str | None:
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key != "benchmarks"}
    return next(
        (found for value in key_anywhere(data, ("model", "backend_model"), most=300) if (found := model_of(value)) is not None), None
    )
