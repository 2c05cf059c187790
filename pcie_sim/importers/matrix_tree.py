"""A tree from a matrix of path words (``nvidia-smi topo -m``): PIX cliques are switches, PXB joins them, SYS parts NUMA nodes.

The matrix has no bandwidth, no uplink and no count of switches: those are filled in later as marked assumptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from pcie_sim.importers.facts import CpuFact, GpuFact, HostFact, MatrixFact
from pcie_sim.importers.sketch import Sketch, Spot
from pcie_sim.importers.sockets import MOST_NUMA, plan_sockets
from pcie_sim.importers.source import Remark

_NEAR = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}


def pair_words(matrix: MatrixFact) -> dict[tuple[int, int], str]:
    """The word of each pair of positions (first < second), from either half of the matrix; pairs that neither states are left out."""
    found: dict[tuple[int, int], str] = {}
    for i, j in combinations(range(len(matrix.labels)), 2):
        word = matrix.cells[i][j] or matrix.cells[j][i]
        if isinstance(word, str):
            found[i, j] = word
    return found


def groups(count: int, joined: Callable[[int, int], bool]) -> list[list[int]]:
    """Connected groups of positions, each in order, by their first member."""
    left = list(range(count))
    found: list[list[int]] = []
    while left:
        group, rest = [left[0]], left[1:]
        for at in group:
            near = [one for one in rest if joined(min(at, one), max(at, one))]
            group += near
            rest = [one for one in rest if one not in near]
        found.append(sorted(group))
        left = rest
    return found


def sketch_matrix(matrix: MatrixFact, source: str, gpus: Sequence[GpuFact], host: HostFact | None, cpus: Sequence[CpuFact]) -> Sketch:
    """Nodes that give the same words back, as far as a tree can."""
    words = pair_words(matrix)
    count = len(matrix.labels)
    sketch = Sketch()

    def near(limit: str) -> Callable[[int, int], bool]:
        return lambda i, j: _NEAR.get(words.get((i, j), ""), 9) <= _NEAR[limit]

    missing = [pair for pair in combinations(range(count), 2) if pair not in words]
    if missing:
        shown = ", ".join(f"GPU{matrix.labels[i]}-GPU{matrix.labels[j]}" for i, j in missing[:4])
        text = f"the matrix does not say how {shown} are joined ({len(missing)} pairs): SYS"
        sketch.remarks.append(Remark("assumed", text, source, matrix.line))
    linked = [pair for pair, word in words.items() if re.fullmatch(r"NV[0-9]{0,3}", word)]
    by_label = {gpu.index: gpu for gpu in gpus}
    flat = [by_label.get(label, GpuFact(label)) for label in matrix.labels]
    numa_groups = _numa_groups(count, near("NODE"), set(linked), flat)
    numa_of, printed_of = _numa_numbers(numa_groups, flat, sketch, source, matrix)
    known = {cpu.numa: cpu for cpu in cpus}
    printed = sorted(set(printed_of.values()))
    nodes = list(cpus) if set(printed) <= set(known) else [CpuFact(f"numa{numa}", numa=numa) for numa in printed]
    silent = len(printed) == 1 and not any(gpu.numa for gpu in flat)
    plan = plan_sockets([replace(cpu, numa=None) for cpu in nodes] if silent else nodes, host)
    socket_by_numa = {cpu.numa: plan.socket_of[cpu.key] for cpu in nodes}
    sketch.remarks += [Remark("assumed", text, source) for text in plan.assumed]
    for group in numa_groups:
        number = socket_by_numa[printed_of[group[0]]]
        sketch.cpu_of.setdefault(number, known.get(printed_of[group[0]], CpuFact("cpu", numa=printed_of[group[0]])))
        for slot in _split(group, near("PXB")):
            _slot(sketch, sketch.socket(number), slot, near, flat, numa_of)
    _say_switches(sketch, source, words)
    names = {id(spot.gpu): spot for spot in sketch.gpus()}
    ordered = [names[id(gpu)] for gpu in flat]
    for index, spot in enumerate(ordered):
        spot.name = f"gpu{index}"
    for i, j in linked:
        links = int(words[i, j][2:] or "1")
        sketch.bridges[frozenset((ordered[i].name, ordered[j].name))] = min(max(links, 1), 64)
    if linked:
        text = f"{len(linked)} pairs are joined by NVLink, which hides their PCIe paths: placed by their other pairs, else on root ports"
        sketch.remarks.append(Remark("assumed", text, source, matrix.line))
    return sketch


def _split(group: Sequence[int], joined: Callable[[int, int], bool]) -> list[list[int]]:
    return [[group[i] for i in one] for one in groups(len(group), lambda a, b: joined(group[a], group[b]))]


def _numa_groups(count: int, inside: Callable[[int, int], bool], linked: set[tuple[int, int]], flat: Sequence[GpuFact]) -> list[list[int]]:
    """Groups that no SYS parts. NVLink hides the path: such a pair is together when nothing says that its NUMA nodes differ."""
    found = groups(count, inside)
    home = {at: index for index, group in enumerate(found) for at in group}
    for i, j in sorted(linked):
        a, b = home[i], home[j]
        if a == b:
            continue
        numa_a, numa_b = ({flat[at].numa for at in found[index] if len(flat[at].numa) == 1} for index in (a, b))
        apart = numa_a and numa_b and not numa_a & numa_b
        others = any((min(x, y), max(x, y)) not in linked for x in found[a] for y in found[b])
        if not apart and not others:
            found[a] = sorted(found[a] + found[b])
            found[b] = []
            home = {at: index for index, group in enumerate(found) for at in group}
    return sorted(group for group in found if group)


def _numa_numbers(
    numa_groups: Sequence[Sequence[int]], flat: Sequence[GpuFact], sketch: Sketch, source: str, matrix: MatrixFact
) -> tuple[dict[int, int], dict[int, int]]:
    """A NUMA number for every position, and the one by which its socket goes.

    The number is the printed one where that is one number and no other group has it, else a free one; the socket goes by the printed one.
    """
    printed = [sorted({flat[at].numa[0] for at in group if len(flat[at].numa) == 1}) for group in numa_groups]
    every = {number for numbers in printed for number in numbers}
    free = (number for number in range(10_000) if number not in every)
    taken: set[int] = set()
    found: dict[int, int] = {}
    home: dict[int, int] = {}
    shared: dict[int, list[str]] = {}
    unprinted: list[str] = []
    for group, numbers in zip(numa_groups, printed, strict=True):
        if len(numbers) > 1:
            shown = ", ".join(f"GPU{matrix.labels[at]} on {flat[at].numa[0]}" for at in group if len(flat[at].numa) == 1)[:120]
            text = f"GPUs without SYS between them have different NUMA nodes ({shown}): the first is kept"
            sketch.remarks.append(Remark("conflict", text, source))
        if numbers and numbers[0] not in taken and numbers[0] <= MOST_NUMA:
            number = numbers[0]
        else:
            number = next(free)
            if numbers:
                shared.setdefault(numbers[0], []).append(str(number))
            else:
                unprinted.append(str(number))
        taken.add(number)
        for at in group:
            found[at] = number
            home[at] = numbers[0] if numbers and numbers[0] <= MOST_NUMA else number
    for numa, numbers_ in shared.items():
        text = f"SYS between GPUs of NUMA node {numa}: different root complexes; drawn as NUMA nodes of their own ({', '.join(numbers_)})"
        sketch.remarks.append(Remark("assumed", text, source, matrix.line))
    if unprinted and len(numa_groups) > 1:
        text = f"NUMA nodes are not printed: groups with SYS between them are numbered {', '.join(unprinted)}"
        sketch.remarks.append(Remark("assumed", text, source))
    return found, home


def _slot(
    sketch: Sketch,
    socket: Spot,
    members: Sequence[int],
    near: Callable[[str], Callable[[int, int], bool]],
    flat: Sequence[GpuFact],
    numa_of: dict[int, int],
) -> None:
    """Everything below one root port: a GPU alone, a switch, or switches below a switch."""
    root = sketch.add("root_port", socket)
    if len(members) == 1:
        sketch.add("gpu", root, gpu=flat[members[0]], numa=numa_of[members[0]])
        return
    cliques = _split(members, near("PIX"))
    top = sketch.add("switch", root)
    for clique in cliques:
        # One clique is the switch itself. Of several, each has a switch of its own: two GPUs straight on the upper one would be PIX.
        at = top if len(cliques) == 1 else sketch.add("switch", top)
        for member in clique:
            sketch.add("gpu", at, gpu=flat[member], numa=numa_of[member])


def _say_switches(sketch: Sketch, source: str, words: dict[tuple[int, int], str]) -> None:
    kinds = set(words.values())
    if "PXB" in kinds:
        text = "PXB: drawn as switches below one switch; two virtual switches of one chip, or a longer cascade, print the same"
        sketch.remarks.append(Remark("assumed", text, source))
    if "PIX" in kinds:
        text = "PIX: each group is drawn as one switch on a root port of its own; a shared slot without a switch prints the same"
        sketch.remarks.append(Remark("assumed", text, source))
    if "PHB" in kinds and "NODE" in kinds:
        text = "PHB beside NODE: those pairs share a host bridge (a bifurcated slot, say); each GPU is drawn on a root port of its own"
        sketch.remarks.append(Remark("assumed", text, source))
