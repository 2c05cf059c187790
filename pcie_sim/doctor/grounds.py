"""What findings rest on: assumptions of the box, remarks of its files, and measurements beside what is predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from pcie_sim.doctor.exam import Exam, at, cost_text
from pcie_sim.doctor.runs import curves
from pcie_sim.results.finding import Cost, Finding
from pcie_sim.units import format_bytes, format_time

_OWN = ("collectives", "copies-collectives", "force-p2p")
"""Findings whose costs are measured, or of another kernel than the library's."""
_BELOW = 0.97
"""Measured below this share of the prediction: the prediction is too slow here."""
_SAME = 0.02
_NEAR = math.log(2) + 1e-9
_GPU, _CPU = "GPU model of ", "CPU of "
"""How the importers' assumptions about models begin."""
_ON_GPU = (
    "link-width",
    "link-speed",
    "p2p-driver",
    "p2p-level",
    "bar1",
    "search-fallback",
    "collectives",
    "copies-collectives",
    "copy-rates",
)
_ON_CPU = ("p2p-level", "numa-split", "nps", "search-fallback", "uplink", "collectives", "copies-collectives", "copy-rates")
_START = 200
"""Characters by which a remark and the box's own text of it are known for the same."""


def texts(exam: Exam, kind: str) -> tuple[str, ...]:
    """Remarks of one kind as text, each once; of ``assumed`` with the box's own assumptions first."""
    own = exam.box.assumptions if kind == "assumed" else ()
    known = {text[:_START] for text in own}
    found = list(own)
    for remark in exam.related.remarks:
        if remark.kind == kind:
            start = remark.text[:_START]
            if not any(text.startswith(start) for text in known):
                where = at(remark.source, remark.line)
                found.append(f"{where}: {remark.text}" if where else remark.text)
    return tuple(dict.fromkeys(found))


def filled_in(assumed: Sequence[str]) -> frozenset[str]:
    """Checks that pass only because what they look at was filled in by an importer: nothing was seen, so nothing is known to be right."""
    found: set[str] = set()
    for text in assumed:
        if text.startswith("link of ") and ("not said" in text or "Gen1 in force" in text):
            found |= {"lanes"} | ({"link-width"} if "not said; " in text or "width not said" in text else set())
        if text.startswith("link of ") and "in NCCL's classes" in text:
            found.add("link-width")  # the class is a product of lanes and generation
        if (text.startswith("uplink of ") and "not said" in text) or text.startswith("no file draws the tree"):
            found.add("uplink")
    return frozenset(found)


def sources(exam: Exam) -> tuple[str, ...]:
    """What the box was drawn from, then the files about it."""
    files = tuple(exam.related.sources)
    names = {PurePath(name).name for name in files}
    return tuple(dict.fromkeys((*(text for text in exam.box.spec.sources if text not in names), *files)))


def grounded(exam: Exam, findings: Sequence[Finding], assumed: Sequence[str]) -> list[Finding]:
    """Findings with what was measured beside their costs, and problems with the assumed models that they rest on."""
    return [_resting(_beside(exam, item), assumed, exam) for item in findings]


def _resting(item: Finding, assumed: Sequence[str], exam: Exam) -> Finding:
    """A problem that rests on a model that no file names says so."""
    if item.severity != "problem":
        return item
    more = []
    if item.code in _ON_GPU and any(text.startswith(_GPU) for text in assumed):
        models = ", ".join(exam.box.gpu_counts())
        more.append(f"the GPU model is assumed ({models}): `nvidia-smi -L` or --gpu would tell")
    if item.code in _ON_CPU and any(text.startswith(_CPU) for text in assumed):
        parts = ", ".join(sorted({exam.box.spec.nodes[name].part or "" for name in exam.box.sockets}))
        more.append(f"the CPU is assumed ({parts}): lscpu would tell")
    return replace(item, evidence=(*item.evidence, *more)) if more else item


@dataclass(frozen=True)
class _Point:
    """A measured AllReduce of all GPUs and its prediction for the box as it is (s)."""

    size: int
    measured_s: float
    predicted_s: float
    source: str


def _points(exam: Exam) -> list[_Point]:
    """Measured AllReduces of all GPUs in the state that the box is in."""
    if "points" not in exam.known:
        exam.known["points"] = [
            _Point(int(size), float(time), predicted, curve.source)
            for curve in curves(exam)
            if curve.op == "all_reduce" and set(curve.gpus) == set(exam.box.gpus)
            for size, time in zip(curve.sizes, curve.times, strict=True)
            if (predicted := _as_it_is(exam, curve.box, int(size))) is not None
        ]
    found: list[_Point] = exam.known["points"]
    return found


def _as_it_is(exam: Exam, box: object, size: int) -> float | None:
    here = exam.time(exam.box, size)
    there = here if box is exam.box else exam.time(box, size)  # type: ignore[arg-type]
    return here if here is not None and there is not None and abs(there / here - 1) <= _SAME else None


def _beside(exam: Exam, item: Finding) -> Finding:
    """``item`` with its costs brought down to what was measured near their sizes, where that is below the prediction.

    A measurement above the prediction says nothing against it here: the CPU's launches may be in it. What is only priced for a state that
    the box may not be in stays. Where all of it was measured to be as fast as if the finding were repaired, it is a note.
    """
    if item.code in _OWN or not item.costs or item.cost is None or item.cost.startswith("if "):
        return item
    found: list[Cost] = []
    more: list[str] = []
    contradicted = 0
    for cost in item.costs:
        now = exam.time(exam.box, cost.bytes)
        near = [point for point in _points(exam) if abs(math.log(point.size / cost.bytes)) <= _NEAR] if cost.op == "all_reduce" else []
        point = min(near, key=lambda one: (abs(math.log(one.size / cost.bytes)), one.measured_s), default=None)
        if point is None or now is None:
            found.append(cost)
            continue
        predicted = point.predicted_s * cost.now_s / now
        share = point.measured_s / predicted
        if share >= _BELOW:
            found.append(cost)
            continue
        made = Cost(cost.op, cost.bytes, cost.now_s * share, cost.fixed_s * share)
        found.append(made)
        text = (
            f"measured here {format_time(point.measured_s)} at {format_bytes(point.size)}, predicted {format_time(predicted)}: "
            "the cost in us is an upper bound"
        )
        if point.measured_s <= predicted * cost.fixed_s / cost.now_s:
            text += "; measured is as fast as predicted without this finding"
            contradicted += 1
        more.append(f"{text} ({at(point.source)})" if point.source else text)
    if not more:
        return item
    words = item.cost.replace(cost_text(item.costs), cost_text(found))
    level = "note" if contradicted == len(item.costs) else item.severity
    return replace(item, severity=level, costs=tuple(found), cost=words, evidence=(*item.evidence, *dict.fromkeys(more)))
