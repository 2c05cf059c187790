"""Measured copies between GPUs (p2pBandwidthLatencyTest, nvbandwidth), by node names."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from pcie_sim.importers.relate import RelatedMatrix

if TYPE_CHECKING:
    from pcie_sim.doctor.exam import Exam

Rates = dict[tuple[str, str], float]


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


def usual_rate(exam: Exam, gpu: str) -> float | None:
    """The best of the median copy rates from and to ``gpu`` over all one-way matrices, B/s."""
    found = []
    for one in copies(exam):
        rates = numbers(one)
        for end in (0, 1):
            mine = [rate for pair, rate in rates.items() if pair[end] == gpu]
            if mine:
                found.append(statistics.median(mine))
    return max(found, default=None)


def place(one: RelatedMatrix) -> str:
    """``p2p.log:14`` of a matrix."""
    return (
        f"{PurePath(one.source).name}{f':{one.matrix.line}' if one.matrix.line else ''}" if one.source else one.matrix.title or "a matrix"
    )
