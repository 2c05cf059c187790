"""Measured collectives against what the box should give: how much slower, at which sizes, and what would explain it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pcie_sim.doctor.copying import copies, numbers, place
from pcie_sim.doctor.exam import UNPRICED, Exam, at, cost_text, finding, op_name
from pcie_sim.doctor.explain import Explanation, explain
from pcie_sim.doctor.registry import check
from pcie_sim.doctor.runs import Curve, Expected, curves, expected
from pcie_sim.importers.relate import RelatedMatrix
from pcie_sim.results.finding import Cost, Finding, Severity
from pcie_sim.specs.ops import Array
from pcie_sim.units import counted, format_bytes, format_rate, format_time

SICK, FAR = 1.5, 2.0
"""Slower than the first, and than the prediction's upper decile, is more than doubt about the prediction; from the second on a problem
..."""
EAGER_SLACK = 3.0
"""... but where the CPU's launches decide, only beyond this: hosts differ (published floors of 8 GPUs: 27 to 66 us)."""
FAST = 0.7
"""Faster than this share of what the links alone allow: the tree is not that of the box."""
ODD, FINE, SLOW = 1.15, 0.8, 0.65
"""Of a ring's slowest copy: bus bandwidth beyond the first contradicts it; copies of that share of their links are fine, or slow."""
FLOOR, PLATEAU = 32 * 2**10, 4 * 2**20
"""Messages up to the first are mostly latency, from the second on mostly bandwidth, on boxes like these."""
_TESTS = "an nccl-tests table of this box: `all_reduce_perf -b 1K -e 256M -f 2 -g N -G 10` (-G: inside a CUDA graph)"


@dataclass(frozen=True, eq=False)
class Sick:
    """A run beside what it should be: which sizes are slower, and which only as slow as other CPUs launch.

    ``far``: ``sizes`` are those that are twice as slow and more; else they are somewhat slower, and a note.
    """

    curve: Curve
    should: Expected
    sizes: np.ndarray
    by_cpu: np.ndarray
    far: bool

    @property
    def severity(self) -> Severity:
        """A problem where it is far slower."""
        return "problem" if self.far else "note"

    @property
    def ratio(self) -> Array:
        """Measured over predicted."""
        return self.curve.times / self.should.times


def judge(curve: Curve) -> Sick | None:
    """``curve`` beside its prediction; None where there is none."""
    should = expected(curve, curve.box)
    if should is None:
        return None
    over = (curve.times > SICK * should.times) & (curve.times > should.p90)
    cpu = over & (curve.times < EAGER_SLACK * should.floor)
    sick = _without_hiccups(over & ~cpu)
    far = _without_hiccups(sick & (curve.times >= FAR * should.times))
    return Sick(curve, should, far if far.any() else sick, cpu, bool(far.any()))


def _without_hiccups(sick: np.ndarray) -> np.ndarray:
    """One size alone among many is a hiccup."""
    if len(sick) <= 3:
        return sick
    return np.asarray([bool(sick[i]) and bool(sick[max(0, i - 1) : i + 2].sum() > 1) for i in range(len(sick))])


@check("collectives", "measured collectives are as fast as this tree should give", needs=_TESTS)
def collectives(exam: Exam) -> list[Finding] | None:
    """Floors and plateaus well above the prediction, with the state of the box that would explain them."""
    judged = [found for curve in curves(exam) if (found := judge(curve)) is not None]
    if not judged:
        return None
    findings: list[Finding] = []
    told: set[str] = set()
    others: dict[str, list[Sick]] = {}
    for one in sorted(judged, key=lambda item: (not item.far, item.curve.op != "all_reduce", -len(item.curve.gpus))):
        if one.sizes.any() and one.curve.source in told:
            others.setdefault(one.curve.source, []).append(one)
        elif one.sizes.any():
            told.add(one.curve.source)
            findings.append(_sick(exam, one))
        elif one.by_cpu.any() and one.curve.op == "all_reduce":
            findings.append(_by_cpu(one))
        too_fast = _too_fast(exam, one)
        if too_fast is not None:
            findings.append(too_fast)
    return [*findings, *(_likewise(source, runs) for source, runs in others.items())]


def _likewise(source: str, runs: Sequence[Sick]) -> Finding:
    """Further sick runs of one file in one finding: one cause most likely."""
    evidence = [f"{at(source)}: {one.curve.title}: {_title(one, _parts(one))}" for one in runs]
    title = f"{counted(len(runs), 'further run')} of {at(source) or 'the same file'} slow as well"
    nodes = [gpu for one in runs for gpu in one.curve.gpus]
    cost = cost_text([cost for one in runs[:3] for cost in _costs(one)[-1:]])
    level: Severity = "problem" if any(one.far for one in runs) else "note"
    return finding("collectives", title, level, evidence, cost=cost, advice=("see the first run of this file",), nodes=nodes)


def _regions(curve: Curve) -> dict[str, np.ndarray]:
    """Floor, middle and plateau as masks of the sizes."""
    small, large = curve.sizes <= FLOOR, curve.sizes >= PLATEAU
    return {"floor": small, "middle": ~small & ~large, "plateau": large}


def _parts(one: Sick) -> list[str]:
    return [name for name, inside in _regions(one.curve).items() if (one.sizes & inside).any()]


def _sick(exam: Exam, one: Sick) -> Finding:
    curve, mask = one.curve, one.sizes
    words = [_range(one, mask & inside, name) for name, inside in _regions(curve).items() if (mask & inside).any()]
    evidence = [f"{at(curve.source)}{f' ({curve.arm})' if curve.arm else ''}: {curve.title}, {_how(curve)}", *words]
    fine = ~mask & ~one.by_cpu
    if fine.any() and curve.sizes[fine].size > 1:
        first, last, most = curve.sizes[fine][0], curve.sizes[fine][-1], float(np.max(one.ratio[fine]))
        evidence.append(f"other sizes ({format_bytes(first)} to {format_bytes(last)}) are within {most:.2g} times the prediction")
    fits, tried = explain(exam, curve, mask, fine)
    evidence += _explained(one, fits, tried)
    advice = list(dict.fromkeys(advice for fit in fits[:3] for advice in fit.advice))
    if curve.by_cpu and curve.sizes[mask][0] <= FLOOR:
        advice.append("run it again inside CUDA graphs (-G 10): then the CPU's launches are out of it")
    advice.append(
        "a log of the same run with NCCL_DEBUG=INFO shows transports, rings and channels; copies (p2pBandwidthLatencyTest) show the wires"
    )
    title = f"{curve.title}{'' if one.far else ' slower than predicted'}: {_title(one, _parts(one))}"
    return finding("collectives", title, one.severity, evidence, costs=_costs(one), advice=advice, nodes=curve.gpus)


def _how(curve: Curve) -> str:
    if curve.launch == "graph":
        return "in CUDA graphs"
    if curve.launch in ("eager", "threads"):
        return "launched one by one: at small sizes the CPU's launches are part of it"
    return "launches not said: the CPU's may be part of it"


def _span(sizes: Array) -> str:
    """``512 B to 8 MiB``."""
    return format_bytes(sizes[0]) if len(sizes) == 1 else f"{format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"


def _range(one: Sick, mask: np.ndarray, name: str) -> str:
    """One part of the sizes in words: how much, from which to which, worst where."""
    curve, should = one.curve, one.should
    worst = int(np.argmax(np.where(mask, one.ratio, 0.0)))
    got_s, want_s, most_s = (format_time(float(values[worst])) for values in (curve.times, should.times, should.p90))
    ratio = statistics.median(one.ratio[mask])
    text = f"{name}, {_span(curve.sizes[mask])}: {ratio:.3g} times what is predicted; worst {got_s} at {format_bytes(curve.sizes[worst])} "
    text += f"where {want_s} are predicted (at most {most_s})"
    if name == "plateau":
        last = int(np.flatnonzero(mask)[-1])
        got, want = curve.busbw(curve.times)[last], curve.busbw(should.times)[last]
        text += f"; bus bandwidth {format_rate(got)} at {format_bytes(curve.sizes[last])}, {format_rate(want)} predicted"
    return text


def _title(one: Sick, parts: Sequence[str]) -> str:
    ratio = statistics.median(one.ratio[one.sizes])
    what = " and ".join(part for part in parts if part != "middle") or "times"
    return f"{what} {ratio:.2g} times what this tree should give ({_span(one.curve.sizes[one.sizes])})"


def _costs(one: Sick) -> tuple[Cost, ...]:
    """The sick sizes nearest to the usual two."""
    curve = one.curve
    found: dict[int, Cost] = {}
    where = np.flatnonzero(one.sizes)
    for wanted in (14336.0, 16 * 2.0**20):
        index = int(min(where, key=lambda i: abs(math.log(curve.sizes[i] / wanted))))
        found[index] = Cost(curve.op, int(curve.sizes[index]), float(curve.times[index]), float(one.should.times[index]))
    return tuple(found.values())


def _explained(one: Sick, fits: Sequence[Explanation], tried: int) -> list[str]:
    if not fits:
        what = "peer access, transports, links, ACS, protocols, channels"
        return [f"none of the {tried} states that the files leave open explains it ({what})"] if tried else []
    last = int(np.flatnonzero(one.sizes)[-1])
    size = format_bytes(one.curve.sizes[last])
    texts = []
    for fit in fits[:3]:
        lead = "fits best" if fit is fits[0] else "fits too"
        time = format_time(float(fit.times[last]))
        texts.append(f"{lead}: {' or '.join(fit.texts)} (predicted so: {time} at {size}, within {fit.factor - 1:.0%} on average)")
    return texts


def _by_cpu(one: Sick) -> Finding:
    curve, mask = one.curve, one.by_cpu
    sizes = curve.sizes[mask]
    floor, ratio = statistics.median(curve.times[mask]), statistics.median(one.ratio[mask])
    evidence = [
        f"{at(curve.source)}: {curve.title}, {_how(curve)}",
        f"{_span(sizes)}: {format_time(float(floor))} (median), {ratio:.2g} times what is predicted",
        "no more than CPUs of other hosts take for a launch (20 to 66 us have been published)",
    ]
    advice = ("run it again with -G 10 (CUDA graphs): serving engines launch so; then small sizes show the wires",)
    title = f"{curve.title}: small sizes show the CPU's launches, not the wires"
    return finding(
        "collectives",
        title,
        "note",
        evidence,
        cost="none for engines with CUDA graphs, as far as this run can tell",
        advice=advice,
        nodes=curve.gpus,
    )


def _too_fast(exam: Exam, one: Sick) -> Finding | None:
    """Faster than the tree's links allow."""
    curve = one.curve
    large = curve.sizes >= PLATEAU
    if curve.op != "all_reduce" or not large.any():
        return None
    wires = [rate for pair in zip(curve.gpus, (*curve.gpus[1:], curve.gpus[0]), strict=True) if (rate := exam.wire_rate(pair))]
    if not wires or any(exam.box.path_type(a, b) == "NVL" for a, b in exam.pairs):
        return None
    best, got = max(wires), float(np.max(curve.busbw(curve.times)[large]))
    if got <= best / FAST**0.25:
        return None
    evidence = [f"{at(curve.source)}: bus bandwidth {format_rate(got)}; the fastest link of the tree carries {format_rate(best)}"]
    advice = ("correct the links (or the GPU model) in the topology file: the run is of another box, or has an NVLink",)
    return finding(
        "collectives",
        f"{curve.title} faster than the tree's links",
        "problem",
        evidence,
        cost="predictions for this tree are too slow",
        advice=advice,
    )


@check("copies-collectives", "copies and collectives tell the same story", needs=f"both copies (p2pBandwidthLatencyTest) and {_TESTS}")
def copies_collectives(exam: Exam) -> list[Finding] | None:
    """Plateau of AllReduce against copies of the same GPUs: software in the way, or runs of different states."""
    single = [one for one in copies(exam) if numbers(one)]
    runs = [
        found
        for curve in curves(exam)
        if curve.op == "all_reduce" and (curve.sizes >= PLATEAU).any() and (found := judge(curve)) is not None
    ]
    if not single or not runs:
        return None
    return [beside for one in runs if (beside := _beside(exam, single[0], one)) is not None]


def _beside(exam: Exam, matrix: RelatedMatrix, one: Sick) -> Finding | None:
    """One run's plateau beside the copies along its ring."""
    curve, rates = one.curve, numbers(matrix)
    ring = [pair for pair in zip(curve.gpus, (*curve.gpus[1:], curve.gpus[0]), strict=True) if pair in rates]
    wanted = [rate for pair in ring if (rate := exam.copy_rate(pair))]
    if not ring or not wanted:
        return None
    slowest, planned = min(rates[pair] for pair in ring), min(wanted)
    large = curve.sizes >= PLATEAU
    got, want = (float(np.max(curve.busbw(times)[large])) for times in (curve.times, one.should.times))
    figures = (
        f"{place(matrix)}: the slowest copy along the ring reaches {format_rate(slowest)} ({format_rate(planned)} by the links); "
        f"{at(curve.source)}: bus bandwidth {format_rate(got)} ({format_rate(want)} predicted)"
    )
    code, nodes = "copies-collectives", curve.gpus
    if got > ODD * slowest:
        evidence = [figures, "a ring cannot be faster than its slowest edge"]
        advice = ["measure both again in one state: same driver, settings, NUMA binding; nothing else running"]
        title = "AllReduce moves more than copies between neighbours do"
        return finding(code, title, "problem", evidence, cost=UNPRICED, advice=advice, nodes=nodes)
    if got >= want / SICK:
        return None
    if slowest > FINE * planned and (one.sizes & large).any():
        evidence = [figures, "the wires are fine: the library does not use them (transport, protocol, channels)"]
        advice = [
            "NCCL_DEBUG=INFO: transports (`via`), channels, NCCL_ variables in force",
            "NCCL_MIN_NCHANNELS=8, NCCL_P2P_LEVEL=SYS: one at a time",
        ]
        title = f"copies are as fast as the links, {op_name(curve.op)} is not"
        return finding(code, title, one.severity, evidence, costs=_costs(one)[-1:], advice=advice, nodes=nodes)
    title = "copies and AllReduce are slow alike: look at the wires first"
    return finding(code, title, "note", [figures], cost=None, nodes=nodes) if slowest < SLOW * planned else None
