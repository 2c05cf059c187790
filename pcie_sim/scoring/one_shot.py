"""One-shot AllReduce kernels against the library's AllReduce: at which size one passes the other, predicted and measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from pcie_sim import catalog
from pcie_sim.network import call_times
from pcie_sim.scoring import collective, contention
from pcie_sim.scoring.rows import Case, box, cases, scored
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.specs.part import AllReduceKernelPart, Part

KERNEL = "one-shot-kernel"
SMALL = 16 << 10
"""Up to this size (bytes) a one-shot time is taken for mostly its fixed cost."""


@dataclass(frozen=True)
class Crossover:
    """Size (bytes) above which the library is faster, on one box and number of ranks; None: not inside the measured sizes."""

    set_id: str
    arm: str
    ranks: int
    measured: float | None
    predicted: float | None

    @property
    def factor(self) -> float | None:
        """How far apart they are, at least 1."""
        if not self.measured or not self.predicted:
            return None
        return max(self.measured / self.predicted, self.predicted / self.measured)


def kernels() -> list[Case]:
    """Rows of one-shot kernels that count."""
    return [case for case in cases("collective") if scored(case) and (case.arm.all_reduce or "").startswith("one-shot")]


def algorithm_of(case: Case) -> str:
    """The schedule of the row's kernel: the engines' own read from their peers, the others write to them."""
    return "one_shot_pull" if case.arm.all_reduce == "one-shot-pull" else "one_shot_push"


def parts_with(copies: contention.Constants, times: collective.Constants | None, base: float) -> dict[str, Part]:
    """The catalog's parts with the links' and the library's constants, and a kernel whose smallest message takes ``base`` (s) between
    two GPUs.
    """
    found = contention.parts_with(copies)
    if times is not None:
        with catalog.using_parts(found):
            found = {**found, **collective.parts_with(times)}
    kernel = catalog.load_typed_part(KERNEL, AllReduceKernelPart)
    quantity = kernel.base.model_copy(update={"value": base, "low": None, "high": None, "evidence": "fitted"})
    return {**found, KERNEL: kernel.model_copy(update={"base": quantity})}


def kernel_times(case: Case, sizes: Sequence[float]) -> list[float]:
    """Seconds of the row's kernel on its box at ``sizes`` (bytes), with the parts in force."""
    topology = box(case)
    gpus = collective.gpus_of(case, topology)
    call = CollectiveCall("all_reduce", np.asarray(sizes, dtype=float), (tuple(range(len(gpus))),))
    return [float(time) for time in call_times(topology, call, gpu_of_rank=gpus, algorithm=algorithm_of(case)).time_s]


def base_without(machine: str, items: Sequence[Case], constants: contention.Constants) -> float:
    """The kernel's ``base`` (s): one exchange, and the median over the other machines' small rows of what their times leave above it;
    faulty states are left out.
    """
    least = catalog.load_typed_part(KERNEL, AllReduceKernelPart).exchange.value
    small = [case for case in items if case.machine != machine and cast(int, case.row.bytes) <= SMALL and not case.arm.conditions]
    with catalog.using_parts(parts_with(constants, None, least)):
        rest = [case.value - kernel_times(case, [cast(int, case.row.bytes)])[0] for case in small]
    return least + max(0.0, statistics.median(rest))


def crossing(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """The last size at which ``first`` stops being the smaller, between neighbours in the logarithm of both ratio and size."""
    found = None
    ratio = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    for left in range(len(sizes) - 1):
        if ratio[left] < 0 <= ratio[left + 1]:
            part = -ratio[left] / (ratio[left + 1] - ratio[left])
            found = sizes[left] * (sizes[left + 1] / sizes[left]) ** part
    return found


def crossovers(
    copies: Mapping[str, contention.Constants], times: Mapping[str, collective.Constants], library: Sequence[Case]
) -> list[Crossover]:
    """Every box that reports both: constants of copies and of the library fitted without it, by machine."""
    items = kernels()
    found: list[Crossover] = []
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in items:
        groups.setdefault((case.held.id, case.row.arm or ""), []).append(case)
    for (set_id, arm), rows in groups.items():
        first = rows[0]
        ranks = cast(int, first.row.ranks)
        same = [case for case in library if case.machine == first.machine and case.row.ranks == ranks]
        near = [case for case in same if (case.row.arm or "").split("-")[0] in arm.replace("fused", "replay").split("-")] or same
        kernel_us = {cast(int, case.row.bytes): case.value for case in rows}
        library_us = {cast(int, case.row.bytes): case.value for case in near}
        common = sorted(set(kernel_us) & set(library_us))
        measured = crossing(common, [kernel_us[size] for size in common], [library_us[size] for size in common])
        base = base_without(first.machine, items, copies[first.machine])
        with catalog.using_parts(parts_with(copies[first.machine], times[first.machine], base)):
            predicted = _predicted(first, near[0])
        found.append(Crossover(set_id, arm, ranks, measured, predicted))
    return found


def _predicted(kernel: Case, library: Case) -> float | None:
    """First size, over all from 256 B to 64 MiB, from which the library is predicted faster, with the parts in force."""
    sizes = np.geomspace(256, 64 << 20, 145)
    topology = box(library)
    gpus = collective.gpus_of(library, topology)
    call = CollectiveCall("all_reduce", sizes, (tuple(range(len(gpus))),))
    times = call_times(topology, call, gpu_of_rank=gpus, launch=collective.launch_of(library)).time_s
    own = kernel_times(kernel, [float(size) for size in sizes])
    return next((float(sizes[i + 1]) for i in range(len(sizes) - 1) if own[i] < times[i] and own[i + 1] >= times[i + 1]), None)
