"""One-shot AllReduce kernels against the library's AllReduce: at which size one passes the other, predicted and measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pcie_sim import catalog
from pcie_sim.network import copy_rates
from pcie_sim.scoring import collective, contention
from pcie_sim.scoring.rows import Case, box, cases, scored

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
    return [case for case in cases("collective") if scored(case) and case.arm.all_reduce == "one-shot"]


def bytes_per_second(case: Case, constants: contention.Constants) -> float:
    """Message bytes per second of a kernel in which every rank writes its whole message to all others at once."""
    with catalog.using_parts(contention.parts_with(constants)):
        topology = box(case)
        gpus = collective.gpus_of(case, topology)
        pairs = [(a, b) for a in gpus for b in gpus if a != b]
        found = copy_rates(topology, pairs)
    return found.total / len(pairs)


def base_without(machine: str, items: Sequence[Case], constants: contention.Constants) -> float:
    """Fixed cost of a kernel (s): median over the other machines' small rows of the time less its bytes, faulty states left out."""
    rest = [
        case.value - cast(int, case.row.bytes) / bytes_per_second(case, constants)
        for case in items
        if case.machine != machine and cast(int, case.row.bytes) <= SMALL and not case.arm.conditions
    ]
    return max(0.0, statistics.median(rest))


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
        rate = bytes_per_second(first, copies[first.machine])
        predicted = _predicted(near[0], lambda size, base=base, rate=rate: base + size / rate, times[first.machine])  # type: ignore[misc]
        found.append(Crossover(set_id, arm, ranks, measured, predicted))
    return found


def _predicted(case: Case, kernel: Callable[[float], float], constants: collective.Constants) -> float | None:
    """First size, over all from 256 B to 64 MiB, from which the library is predicted faster."""
    import numpy as np

    from pcie_sim.network import call_times
    from pcie_sim.specs.ops import CollectiveCall

    sizes = np.geomspace(256, 64 << 20, 145)
    with catalog.using_parts(collective.parts_with(constants)):
        topology = box(case)
        gpus = collective.gpus_of(case, topology)
        call = CollectiveCall("all_reduce", sizes, (tuple(range(len(gpus))),))
        times = call_times(topology, call, gpu_of_rank=gpus, launch=collective.launch_of(case)).time_s
    ratio = [math.log(kernel(float(size)) / float(time)) for size, time in zip(sizes, times, strict=True)]
    for left in range(len(sizes) - 1):
        if ratio[left] < 0 <= ratio[left + 1]:
            return float(sizes[left + 1])
    return None
