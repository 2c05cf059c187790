"""Matrices of copy rates between GPUs -> measurement rows, for the tools that print them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from pcie_sim.importers.facts import MatrixFact
from pcie_sim.importers.nccl_text import file_label, set_id
from pcie_sim.specs.measurement import ArmSpec, CclRef, MachineRef, MeasuredRow, MeasurementSet, SoftwareRef

MAX_GPUS = 512
NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?(?:e[+-]?[0-9]{1,2})?")


def labels_of(words: Sequence[str]) -> tuple[int, ...] | None:
    """GPU numbers of a header row; None where it is none."""
    if not words or len(words) > MAX_GPUS or not all(re.fullmatch(r"[0-9]{1,4}", word) for word in words):
        return None
    found = tuple(int(word) for word in words)
    return found if len(set(found)) == len(found) else None


def cell_of(word: str, scale: float) -> float | None:
    """A cell in SI; None for N/A, zero and what is no finite number."""
    if NUMBER.fullmatch(word) is None:
        return None
    value = float(word) * scale if scale >= 1 else float(word) / round(1 / scale)  # the nearest to what is printed
    return value if math.isfinite(value) and value > 0 else None


def without_diagonal(labels: Sequence[int], rows: Mapping[int, Sequence[float | None]]) -> tuple[tuple[float | None, ...], ...]:
    """Cells in the order of ``labels``; a GPU's copy to itself (local memory) and missing rows say nothing."""
    found = []
    for row, label in enumerate(labels):
        cells = list(rows.get(label, ()))[: len(labels)]
        cells += [None] * (len(labels) - len(cells))
        cells[row] = None
        found.append(tuple(cells))
    return tuple(found)


def copy_rows(matrix: MatrixFact, arm: str, *, counts: str = "total", skip: Iterable[tuple[int, int]] = ()) -> list[MeasuredRow]:
    """One row per pair of a bandwidth matrix. Row i writes to column j, or reads from it."""
    found = []
    left = set(skip)
    for i, row in zip(matrix.labels, matrix.cells, strict=True):
        for j, value in zip(matrix.labels, row, strict=True):
            if i == j or not isinstance(value, float) or (i, j) in left:
                continue
            rate = round(value / 1e9, 9)
            if rate <= 0:
                continue  # a damaged figure: less than a byte a second
            one = (f"gpu{j}", f"gpu{i}") if matrix.access == "read" else (f"gpu{i}", f"gpu{j}")
            found.append(
                MeasuredRow(
                    arm=arm,
                    flows=(one, one[::-1]) if matrix.bidirectional else (one,),
                    access="read" if matrix.access == "read" else "write",
                    counts="each" if counts == "each" else "total",
                    metric="rate",
                    value=rate,
                    unit="GB/s",
                    quality="doubtful" if counts == "each" else "good",
                )
            )
    return found


def copy_set(
    name: str, number: int, of: int, gpus: int, rows: Sequence[MeasuredRow], *, title: str, software: Mapping[str, str | None] | None = None
) -> MeasurementSet:
    """A set of kind ``copy`` with the arms ``p2p-on`` and ``p2p-off`` where rows use them."""
    given = software or {}
    used = {row.arm for row in rows}
    arms: dict[str, ArmSpec] = {}
    if "p2p-on" in used:
        arms["p2p-on"] = ArmSpec(software=SoftwareRef(p2p="on", driver=given.get("driver"), cuda=given.get("cuda")))
    if "p2p-off" in used:
        arms["p2p-off"] = ArmSpec(software=SoftwareRef(p2p="off", driver=given.get("driver"), cuda=given.get("cuda")))
    return MeasurementSet(
        schema="pcie-sim/measurement/1",
        id=set_id(name, number, of),
        kind="copy",
        use="calibrate",
        title=title,
        sources=(file_label(name),),
        machine=MachineRef(gpus=gpus),
        software=SoftwareRef(ccl=CclRef(), driver=given.get("driver"), cuda=given.get("cuda")),
        arms=arms,
        rows=tuple(rows[:100_000]),
    )
