"""Measured copies between GPUs (p2pBandwidthLatencyTest, nvbandwidth), by node names."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from pcie_sim.importers.relate import RelatedMatrix
from pcie_sim.units import counted, format_rate, format_time

if TYPE_CHECKING:
    from pcie_sim.doctor.exam import Exam

Rates = dict[tuple[str, str], float]
SAME = 0.10
STAGED_LATENCY = 8e-6
"""A small write to a peer takes 0.4 to 2 us by peer-to-peer and 10 to 30 us by host memory (p2pBandwidthLatencyTest)."""


def cells(one: RelatedMatrix) -> Iterator[tuple[str, str, str | float]]:
    """(row node, column node, value) of every cell off the diagonal that says something about two GPUs of the box."""
    for a, row in zip(one.nodes, one.matrix.cells, strict=False):
        for b, value in zip(one.nodes, row, strict=False):
            if a is not None and b is not None and a != b and value is not None:
                yield a, b, value


def numbers(one: RelatedMatrix) -> Rates:
    """The numeric cells: (row, column) -> value above 0."""
    return {(a, b): float(value) for a, b, value in cells(one) if not isinstance(value, str) and value > 0}


def matrices(exam: Exam, kind: str, *, p2p: bool | None, bidirectional: bool = False) -> list[RelatedMatrix]:
    """Matrices of bandwidths or latencies with peer access enabled (or not, or where the file does not say)."""
    return [
        one
        for one in exam.related.matrices
        if one.matrix.kind == kind and one.matrix.p2p is p2p and (kind != "bandwidth" or one.matrix.bidirectional is bidirectional)
    ]


def copies(exam: Exam) -> list[RelatedMatrix]:
    """One-way bandwidths, peer access enabled first."""
    return [one for p2p in (True, None, False) for one in matrices(exam, "bandwidth", p2p=p2p)]


def usual_rate(exam: Exam, gpu: str, *, direct: bool = False) -> float | None:
    """The best of the median copy rates from and to ``gpu`` over all one-way matrices, B/s; ``direct``: of copies that are not staged."""
    found = []
    seen = staged(exam) if direct else None
    for one in copies(exam):
        rates = numbers(one)
        if direct and one.matrix.p2p is False:
            continue
        if seen is not None:
            rates = {pair: rate for pair, rate in rates.items() if pair not in seen.pairs}
        for end in (0, 1):
            mine = [rate for pair, rate in rates.items() if pair[end] == gpu]
            if mine:
                found.append(statistics.median(mine))
    return max(found, default=None)


@dataclass(frozen=True)
class Staged:
    """Ordered pairs that go through host memory although peer access is enabled, and what shows it.

    ``sure``: a latency shows it; else only that copies are equally fast with and without peer access.
    """

    pairs: frozenset[tuple[str, str]]
    evidence: tuple[str, ...]
    sure: bool


def staged(exam: Exam) -> Staged | None:
    """Latencies as of host memory, or copies equally fast with and without peer access; None where no file could show either."""
    if "staged" not in exam.known:
        exam.known["staged"] = _staged(exam)
    found: Staged | None = exam.known["staged"]
    return found


def _staged(exam: Exam) -> Staged | None:
    fast = [one for p2p in (True, None) for one in matrices(exam, "latency", p2p=p2p) if numbers(one)]
    on = [one for one in matrices(exam, "bandwidth", p2p=True) if numbers(one)]
    off = [one for one in matrices(exam, "bandwidth", p2p=False) if numbers(one)]
    if not fast and not (on and off):
        return None
    evidence: list[str] = []
    pairs: set[tuple[str, str]] = set()
    for one in fast[:2]:
        late = {pair: time for pair, time in numbers(one).items() if time > STAGED_LATENCY}
        if late:
            took = f"{format_time(statistics.median(late.values()))} (median of {counted(len(late), 'pair')} of {len(numbers(one))})"
            evidence.append(
                f"{place(one)}: with P2P enabled a small write takes {took}: host memory takes 10 to 30 us, peer-to-peer 0.4 to 2"
            )
            pairs |= set(late)
    sure = bool(evidence)
    if on and off and (sure or not fast):
        with_, without = numbers(on[0]), numbers(off[0])
        same = [pair for pair, rate in with_.items() if pair in without and abs(rate / without[pair] - 1) < SAME]
        if same and len(same) > 0.8 * len(with_):
            rates = f"{format_rate(statistics.median(with_.values()))} and {format_rate(statistics.median(without.values()))}"
            evidence.append(f"{place(on[0])}: copies with P2P enabled and disabled are equally fast ({rates})")
            pairs |= set(same)
    return Staged(frozenset(pairs), tuple(evidence), sure)


def place(one: RelatedMatrix) -> str:
    """``p2p.log:14`` of a matrix."""
    return (
        f"{PurePath(one.source).name}{f':{one.matrix.line}' if one.matrix.line else ''}" if one.source else one.matrix.title or "a matrix"
    )
