"""The last columns of ``nvidia-smi topo -m``: CPU affinity and NUMA nodes of each GPU, as far as they can be told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pcie_sim.importers.facts import GpuFact
from pcie_sim.importers.smi_topo_lines import Row, Table
from pcie_sim.importers.source import RemarkKind

_NUMA = re.compile(r"[0-9]{1,3}(?:-[0-9]{1,3})?(?:,[0-9]{1,3}(?:-[0-9]{1,3})?){0,63}")
_CPUS = re.compile(r"[0-9]{1,5}[0-9,.\-…]{0,2000}")
_BY_HAND = re.compile(r"\bNUMA\s{0,4}(?:node\s{0,4})?([0-9]{1,3})\b", re.IGNORECASE)
_MOST_NUMA = 64


def gpus_of(table: Table, labels: Sequence[int]) -> tuple[list[GpuFact], list[tuple[RemarkKind, str, int | None]]]:
    """The GPUs ``labels`` with what the affinity columns say of them, and what to say about it."""
    gpus: list[GpuFact] = []
    unread: list[int] = []
    said: list[tuple[RemarkKind, str, int | None]] = []
    for index in labels:
        row = table.rows.get(f"GPU{index}")
        cpus, numa = ("", ()) if row is None or table.glued else _affinity(table, row)
        if row is not None and row.rest.strip() and not cpus and not numa and re.search(r"[0-9]", row.rest):
            unread.append(row.line)
        gpus.append(GpuFact(index, numa=numa, cpus=cpus))
    if table.glued:
        said.append(("ignored", "the affinity columns lost the blanks between them: not read", table.line))
    elif unread:
        said.append(
            ("ignored", f"the affinity of {len(unread)} row{'s' if len(unread) > 1 else ''} cannot be told apart by column", unread[0])
        )
    if not table.affinity and any(gpu.numa for gpu in gpus) and not any(_by_hand(table, gpu) for gpu in gpus):
        said.append(("assumed", "the header does not name the last columns: taken for CPU and NUMA affinity", table.line))
    return gpus, said


def _by_hand(table: Table, gpu: GpuFact) -> bool:
    return _BY_HAND.search(table.rows[f"GPU{gpu.index}"].rest) is not None if f"GPU{gpu.index}" in table.rows else False


def _affinity(table: Table, row: Row) -> tuple[str, tuple[int, ...]]:
    """(CPU list as printed, NUMA nodes) of a row."""
    rest = row.rest.rstrip(" #|")
    by_hand = _BY_HAND.search(rest)
    if by_hand is not None:
        return "", _numa(by_hand.group(1))
    values = _values(table, row, rest)
    cpus = values.get("cpu", "")
    return (cpus if _CPUS.fullmatch(cpus) else ""), _numa(values.get("numa", ""))


def _values(table: Table, row: Row, rest: str) -> dict[str, str]:
    """Affinity values by column kind."""
    kinds = [kind for kind, _at in table.affinity] or ["cpu", "numa"]
    tokens = [(match.group(), row.start + match.start()) for match in re.finditer(r"\S{1,2000}", rest)]
    if row.tabbed:
        fields = [one.strip() for one in rest.split("\t")]
        return dict(zip(kinds[:2], fields[:2], strict=False))
    if not table.affinity:
        return {"cpu": tokens[0][0], "numa": tokens[1][0]} if len(tokens) >= 2 else {}
    if len(tokens) >= len(kinds):
        return {kind: token for kind, (token, _at) in zip(kinds, tokens, strict=False)}
    values: dict[str, str] = {}
    if row.start == 0:  # wrapped: columns are lost
        return {kinds[0]: tokens[0][0]} if tokens else {}
    for token, at in tokens:
        before = [kind for kind, place in table.affinity if place <= at + 2]
        if before:
            values.setdefault(before[-1], token)
    return values


def _numa(text: str) -> tuple[int, ...]:
    """Node numbers of ``0``, ``0-3`` or ``0,2``.

    >>> _numa("0-3"), _numa("0,2"), _numa("N/A")
    ((0, 1, 2, 3), (0, 2), ())
    """
    if _NUMA.fullmatch(text) is None:
        return ()
    nodes: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        nodes.update(range(int(first), min(int(last or first), int(first) + _MOST_NUMA) + 1))
    return tuple(sorted(nodes)[:_MOST_NUMA])
