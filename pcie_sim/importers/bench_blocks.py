"""The text block that ``vllm bench serve`` and ``sglang.bench_serving`` print, and the JSON both save: the same fields, nearly."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.importers.bench_common import Run, concurrency_of, count, model_of, number, positive, runtime_of
from pcie_sim.importers.source import Remark, SourceText

_HEADER = re.compile(r"={3,60} {1,4}Serving Benchmark Result {1,4}={3,60}")
_LABELS = (
    "maximum request concurrency",
    "max request concurrency",
    "request rate configured",
    "traffic request rate",
    "backend",
    "successful requests",
    "failed requests",
    "total input tokens",
    "total generated tokens",
    "output token throughput",
    "accept length",
    "acceptance length",
    "concurrency",
    *(f"{stat} {name}" for stat in ("mean", "median") for name in ("ttft", "tpot", "itl")),
)
_LONGEST_LINE = 300
_CLOSE = re.compile(r"={40,80}\s*$")
_LONGEST = 80
"""Lines of one block, with room for a warning in between."""


@dataclass
class Block:
    """One printed block: its line, its labels in lower case without units."""

    line: int
    labels: dict[str, str] = field(default_factory=dict)
    closed: bool = False


def find_blocks(source: SourceText, *, most: int = 2_000) -> list[Block]:
    """The blocks of a text; a block ends at its closing rule, the next header, or after 80 lines."""
    found: list[Block] = []
    current: Block | None = None
    before: dict[str, str] = {}
    for number_, line in enumerate(source.lines, 1):
        if is_header(line):
            if len(found) >= most:
                break
            current = Block(number_, dict(before))
            found.append(current)
            before = {}
            continue
        if len(line) > _LONGEST_LINE or (current is None and "request" not in line):
            continue
        match = _label(line)
        if current is None:
            if match is not None and match[0] in ("maximum request concurrency", "traffic request rate"):
                before[match[0]] = match[1]
        elif _CLOSE.search(line) or number_ - current.line > _LONGEST:
            current.closed = _CLOSE.search(line) is not None
            current = None
        elif match is not None:
            current.labels.setdefault(*match)
    return found


def is_header(line: str) -> bool:
    """The rule with the title of a block."""
    return len(line) <= _LONGEST_LINE and "Serving Benchmark Result" in line and _HEADER.search(line) is not None


def _label(line: str) -> tuple[str, str] | None:
    """(label without its unit, value) of a line, whatever stands before the label."""
    head, colon, value = line.rpartition(": ")
    if not colon or not value.strip():
        return None
    name = head.rstrip().lower()
    if name.endswith(")"):
        name = name[: name.rfind("(")].rstrip()
    return next(((label, value.strip()) for label in _LABELS if name.endswith(label) and not name.endswith(f"peak {label}")), None)


def is_sglang(block_lines: tuple[str, ...]) -> bool:
    """SGLang names its backend first."""
    return any("Backend: " in line for line in block_lines[:4])


def run_of_block(block: Block, runtime: str | None, source: SourceText, remarks: list[Remark]) -> Run:
    """A run out of a printed block."""
    labels = block.labels
    run = Run(line=block.line, runtime=runtime_of(labels.get("backend")) or runtime)
    requests = count(labels.get("successful requests"))
    _lengths(run, requests, count(labels.get("total input tokens")), count(labels.get("total generated tokens")))
    rate = labels.get("request rate configured", labels.get("traffic request rate", ""))
    limit = count(labels.get("maximum request concurrency", labels.get("max request concurrency")))
    _accepted(run, labels.get("accept length", labels.get("acceptance length")))
    concurrency_of(run, limit, _rate(rate), remarks, source)
    average = number(labels.get("concurrency"))
    if run.concurrency is None and average is not None:
        run.notes.append(f"{average:g} requests at once on average")
    times = {name: positive(labels.get(f"mean {name}")) for name in ("tpot", "itl", "ttft")}
    medians = {name: positive(labels.get(f"median {name}")) for name in ("tpot", "itl", "ttft")}
    _times(run, times, medians, labels.get("backend"))
    run.add("output_tokens_per_s", positive(labels.get("output token throughput")), "tok/s")
    _failed(run, requests, count(labels.get("failed requests")))
    if not block.closed:
        remarks.append(source.remark("cut", "the block ends before its closing rule: what is there was read", block.line))
    return run


def run_of_json(data: Mapping[str, Any], line: int, runtime: str | None, source: SourceText, remarks: list[Remark]) -> Run:
    """A run out of a saved result."""
    run = Run(line=line, runtime=runtime_of(data.get("backend")) or runtime_of(data.get("endpoint_type")) or runtime)
    run.model = model_of(data.get("model_id") or data.get("model_ids") or data.get("model"))
    requests = count(data.get("completed"))
    _lengths(run, requests, count(data.get("total_input_tokens")), count(data.get("total_output_tokens")))
    for name in ("random_input_len", "random_output_len"):
        if count(data.get(name)) is not None and requests is None:
            setattr(run, "prompt" if "input" in name else "output", count(data[name]))
    _accepted(run, data.get("accept_length", data.get("spec_decode_acceptance_length")))
    concurrency_of(run, count(data.get("max_concurrency")), _rate(data.get("request_rate")), remarks, source)
    times = {name: positive(data.get(f"mean_{name}_ms")) for name in ("tpot", "itl", "ttft")}
    medians = {name: positive(data.get(f"median_{name}_ms")) for name in ("tpot", "itl", "ttft")}
    _times(run, times, medians, data.get("backend"))
    run.add("output_tokens_per_s", positive(data.get("output_throughput")), "tok/s")
    _failed(run, requests, count(data.get("failed")))
    for key in ("tensor_parallel_size", "tp"):  # users' own --metadata
        if isinstance(data.get(key), int | str) and re.fullmatch(r"[0-9]{1,3}", str(data[key])):
            run.notes.append(f"{key} {data[key]}")
    return run


def _rate(value: object) -> float | None:
    """A request rate in 1/s; None: as fast as possible."""
    if isinstance(value, str) and value.strip().lower().startswith("inf"):
        return None
    found = number(value)
    return found if found is not None and found > 0 and math.isfinite(found) else None


def _lengths(run: Run, requests: float | None, given: float | None, made: float | None) -> None:
    if requests:
        run.prompt = round(given / requests, 1) if given else None
        run.output = round(made / requests, 1) if made else None


def _accepted(run: Run, value: object) -> None:
    accepted = number(value)
    if accepted is not None and 1 < accepted < 1000:
        run.speculation = f"yes, {accepted:.4g} tokens accepted per step"


def _times(run: Run, means: Mapping[str, float | None], medians: Mapping[str, float | None], backend: object) -> None:
    """TPOT is taken where it is printed; ITL stands in for it where it is a time per token: always with SGLang's own backend, which
    divides by the tokens of a chunk, elsewhere only where no step yields several tokens.
    """
    if means["tpot"] is not None:
        run.add("tpot", means["tpot"], "ms", _median(medians["tpot"], "mean TPOT"))
    elif means["itl"] is not None and (run.speculation is None or backend in ("sglang", "sglang-native")):
        run.add("tpot", means["itl"], "ms", _median(medians["itl"], "mean ITL"))
    elif means["itl"] is not None:
        run.add("step_time", means["itl"], "ms", _median(medians["itl"], "mean ITL, several tokens at a time"))
    run.add("ttft", means["ttft"], "ms", _median(medians["ttft"], "mean TTFT"))


def _median(median: float | None, what: str) -> str:
    return what if median is None else f"{what}; median {median:g} ms"


def _failed(run: Run, done: float | None, failed: float | None) -> None:
    if failed:
        run.doubt = f"{failed:g} requests failed, {done or 0:g} succeeded"
