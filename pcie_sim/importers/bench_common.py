"""What the benchmark importers share: numbers, tolerant JSON, and runs as one measurement set."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from pcie_sim.importers.imported import Imported
from pcie_sim.importers.serve_privacy import kept_model
from pcie_sim.importers.source import Remark, SourceText
from pcie_sim.specs.base import build
from pcie_sim.specs.measurement import UNITS, MeasurementSet

MAX_JSON = 16 * 2**20
MAX_RUNS = 5_000
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18})(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,3})?")
_RUNTIMES = {"sglang": "sglang", "vllm": "vllm", "tensorrt-llm": "tensorrt-llm", "trt": "tensorrt-llm"}


@dataclass
class Run:
    """One run of a benchmark: where it stands, how it was asked, what was measured.

    ``values``: (metric of :data:`~pcie_sim.specs.measurement.UNITS`, value, unit, note). ``doubt``: why its rows are doubtful.
    """

    line: int | None = None
    runtime: str | None = None
    model: str | None = None
    concurrency: float | None = None
    prompt: float | None = None
    output: float | None = None
    context: float | None = None
    strategy: str | None = None
    quantisation: str | None = None
    kv_dtype: str | None = None
    speculation: str | None = None
    gpus: int | None = None
    values: list[tuple[str, float, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubt: str = ""

    def add(self, metric: str, value: float | None, unit: str, note: str = "") -> None:
        """Keep a value that is there."""
        if value is not None:
            self.values.append((metric, value, unit, note))


def number(value: object) -> float | None:
    """A finite number of JSON or text (``7,463.28``); None: none stands there.

    >>> number("7,463.28"), number(3), number("N/A"), number("nan"), number(True)
    (7463.28, 3.0, None, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text) is None:
            return None
        value = float(text.replace(",", ""))
    if not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def positive(value: object) -> float | None:
    """As :func:`number`; what is not above 0 measures nothing."""
    found = number(value)
    return found if found is not None and found > 0 else None


def count(value: object) -> float | None:
    """A number of requests or tokens up to 1e9; None: not said."""
    found = positive(value)
    return found if found is not None and found <= 1e9 else None


def load_json(source: SourceText, text: str | None = None, line: int | None = None) -> Any:
    """JSON as benchmark tools write it: ``Infinity`` and ``NaN`` become None, duplicate keys keep the last.

    Raises:
        InputError: broken, nested too deeply, cut, or larger than 16 MiB.
    """
    whole = source.raw.lstrip("\ufeff") if text is None else text
    if text is None and not source.complete:
        raise source.error("this JSON file is longer than is read; save it without the details of every request")
    if len(whole) > MAX_JSON:
        raise source.error("this JSON file is larger than 16 MiB; save it without the details of every request", line)
    try:
        return json.loads(whole, parse_constant=lambda _word: None)
    except json.JSONDecodeError as exc:
        raise source.error(f"broken JSON: {exc.msg}", line or exc.lineno) from exc
    except RecursionError as exc:
        raise source.error("nested too deeply", line) from exc
    except ValueError as exc:
        raise source.error(f"broken JSON: {str(exc)[:80]}", line) from exc


def json_records(source: SourceText) -> tuple[list[tuple[dict[str, Any], int]], list[Remark]]:
    """The objects of a JSON file, a JSON list, or a JSONL file (one object a line), with their lines; lines that are none are remarked.

    Raises:
        InputError: nothing can be read.
    """
    text = source.raw.lstrip("\ufeff").strip()
    lines = [(number_, line) for number_, line in enumerate(source.raw.split("\n")[:200_000], 1) if line.strip()]
    if len(lines) > 1 and text.startswith("{") and lines[0][1].rstrip().endswith("}"):
        records: list[tuple[dict[str, Any], int]] = []
        broken: list[int] = []
        for number_, line in lines:
            try:
                one = json.loads(line, parse_constant=lambda _word: None) if line.lstrip("\ufeff").startswith("{") else None
            except (ValueError, RecursionError):
                one = None
            if isinstance(one, dict) and len(records) < MAX_RUNS:
                records.append((one, number_))
            else:
                broken.append(number_)
        remarks = [source.remark("ignored", f"{len(broken)} lines are not one JSON object each", broken[0])] if broken else []
        if records:
            return records, remarks
    data = load_json(source)
    items = data if isinstance(data, list) else [data]
    return [(one, 1) for one in items[:MAX_RUNS] if isinstance(one, dict)], []


def runtime_of(text: object) -> str | None:
    """The engine that a backend's name means (``sglang-oai``, ``openai-chat`` says nothing)."""
    name = text.lower() if isinstance(text, str) else ""
    return next((engine for word, engine in _RUNTIMES.items() if name.startswith(word)), None)


def model_of(text: object) -> str | None:
    """A model's name as a catalog name may be written: the last part of a path or repository."""
    if not isinstance(text, str) or not text.strip():
        return None
    found = kept_model(text.strip())
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", (found or "").rpartition("/")[2])[:80]
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}", name) else None


def key_anywhere(data: Any, names: Iterable[str], *, most: int = 5_000) -> list[Any]:
    """Every value that is not null under one of these keys, anywhere inside (breadth first, bounded)."""
    wanted, layer, seen = set(names), [data], 0
    found: list[Any] = []
    while layer and seen < most:
        following: list[Any] = []
        for item in layer:
            seen += 1
            if isinstance(item, dict):
                found.extend(value for key, value in item.items() if key in wanted and value is not None)
                following.extend(value for value in item.values() if isinstance(value, dict | list))
            elif isinstance(item, list):
                following.extend(one for one in item[:50] if isinstance(one, dict | list))
        layer = following[:most]
    return found


def as_imported(source: SourceText, form: str, title: str, runs: list[Run], remarks: list[Remark]) -> Imported:
    """One serving set (use ``context``: whose box it was is not known) with an arm per configuration and a row per value.

    Raises:
        InputError: not one value above 0.
    """
    arms: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    dropped = 0
    for run in runs[:MAX_RUNS]:
        values = [one for one in run.values if math.isfinite(one[1]) and one[1] > 0 and one[2] in UNITS[one[0]]]
        dropped += len(run.values) - len(values)
        if not values:
            continue
        arm = _arm_name(arms, _arm(run))
        for metric, value, unit, note in values:
            text = "; ".join(one for one in (note, run.doubt) if one)
            row = {"arm": arm, "concurrency": run.concurrency, "context": run.context, "metric": metric, "value": value, "unit": unit}
            rows.append({**row, "quality": "doubtful" if run.doubt else "good", "note": text[:400] or None})
    if dropped:
        remarks.append(source.remark("ignored", f"{dropped} values that are not above 0 are left out"))
    if not rows:
        raise source.error(f"{title}: no time or rate above 0 in it", runs[0].line if runs else 1)
    if len(runs) > MAX_RUNS:
        remarks.append(source.remark("cut", f"only the first {MAX_RUNS} runs are read"))
    gpus = {run.gpus for run in runs if run.gpus}
    if not gpus:
        remarks.append(source.remark("assumed", "the number of GPUs is not in the file: 1 is written; set machine.gpus"))
    engines = {run.runtime for run in runs if run.runtime}
    data = {
        "schema": "pcie-sim/measurement/1",
        "id": form,
        "kind": "serving",
        "use": "context",
        "title": title,
        "sources": (PurePath(source.name).name[:200] or "pasted text",),
        "machine": {"gpus": max(gpus) if gpus else 1},
        "software": {"runtime": engines.pop() if len(engines) == 1 else None},
        "arms": arms,
        "rows": rows,
    }
    measured = build(MeasurementSet, data, source=source.name)
    return Imported(source.name, (form,), measurements=(measured,), remarks=tuple(dict.fromkeys(remarks)))


def _arm(run: Run) -> dict[str, Any]:
    arm: dict[str, Any] = {
        "model": run.model,
        "strategy": run.strategy,
        "quantisation": run.quantisation,
        "kv_dtype": run.kv_dtype,
        "prompt": run.prompt,
        "output": run.output,
        "speculation": run.speculation,
        "notes": tuple(run.notes),
    }
    if run.prompt is not None and run.output is not None and run.context is None:
        arm["context_range"] = (run.prompt, run.prompt + run.output)
    return arm


def _arm_name(arms: dict[str, dict[str, Any]], arm: Mapping[str, Any]) -> str:
    for name, one in arms.items():
        if one == arm:
            return name
    parts = [arm["strategy"], arm["model"]]
    if arm["prompt"] is not None:
        parts.append(f"in{arm['prompt']:.0f}")
    if arm["output"] is not None:
        parts.append(f"out{arm['output']:.0f}")
    base = "-".join(part for part in parts if part) or "run"
    name, again = base, 2
    while name in arms:
        name, again = f"{base}-{again}", again + 1
    arms[name] = dict(arm)
    return name


def concurrency_of(run: Run, limit: float | None, rate: float | None, remarks: list[Remark], source: SourceText) -> None:
    """Set the run's concurrency from its limit; of a run at a request rate, or without a limit, it is unknown and that is remarked."""
    if rate is not None and math.isfinite(rate):
        remarks.append(source.remark("note", "a run at a request rate: how many requests ran at once is not known", run.line))
        run.notes.append(f"request rate {rate:g} per s" + (f", at most {limit:g} at once" if limit else ""))
    elif limit is None:
        remarks.append(source.remark("note", "a run without a limit on concurrent requests: how many ran at once is not known", run.line))
    else:
        run.concurrency = limit
