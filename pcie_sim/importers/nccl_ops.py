"""Which collective a table is of, and over how many ranks: from what the run says, else from what only one op prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pcie_sim.importers.nccl_rows import ELEMENT_BYTES, TableRow

OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
}
"""Ops that are modelled, by the test's name without underscores and ``_perf``."""
OTHERS = ("alltoallv", "gather", "scatter", "hypercube")
WHOLE = frozenset(("all_reduce", "broadcast", "reduce", "send_recv"))
"""Ops whose ``count`` is the whole size; the others' is one rank's share of it."""
REDUCING = frozenset(("all_reduce", "reduce_scatter", "reduce", "send_recv"))
"""Ops whose redop column names a reduction (sendrecv_perf prints one as well)."""
ROOTED = frozenset(("broadcast", "reduce"))
UNCHECKED_IN_PLACE = frozenset(("all_to_all", "send_recv"))
"""Ops whose in-place results nccl-tests does not check (#wrong is N/A)."""
MAX_LOOKED_AT = 2000


@dataclass
class Decision:
    """op and ranks, or why they cannot be told; what was assumed on the way, and what contradicts."""

    op: str | None = None
    ranks: int | None = None
    why_not: str = ""
    assumed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def op_of_name(name: str) -> str | None:
    """The op of an executable or of a word in a file name; of a test that is not modelled its own name.

    >>> op_of_name("all_reduce"), op_of_name("alltoall"), op_of_name("scatter"), op_of_name("gpt")
    ('all_reduce', 'all_to_all', 'scatter', None)
    """
    plain = name.lower().replace("_", "").replace("-", "")
    return OPS.get(plain) or (plain if plain in OTHERS else None)


def op_in_file_name(name: str) -> str | None:
    """The one op that a file's name mentions (``allreduce_8x4090.log``); None where it is none or several."""
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    found = {op for word, op in OPS.items() if word in plain and word != "reduce"}
    if not found and "reduce" in plain:
        found = {"reduce"}
    return next(iter(found)) if len(found) == 1 else None


def busbw_factor(op: str, ranks: int) -> float:
    """What busbw is over algbw (nccl-tests doc/PERFORMANCE.md)."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if op in WHOLE else (ranks - 1) / ranks


def decide(
    rows: Sequence[TableRow],
    *,
    named: str | None,
    hint: str | None,
    said: int | None,
    configured: int | None,
    others: str | None = None,
) -> Decision:
    """Op and ranks of a table.

    Args:
        named: op by the run itself (its executable's name).
        hint: op by the file's name.
        others: op of all other runs of the file.
        said: ranks by device lines or log lines.
        configured: threads times GPUs of one process: all ranks unless MPI started several processes.
    """
    found = Decision()
    sample = rows[:MAX_LOOKED_AT]
    possible = _possible(sample, said)
    if named is not None:
        found.op = named
        if named in OPS.values() and named not in possible and sample:
            found.conflicts.append(f"the columns are not those of {named}")
    elif len(possible) == 1:
        found.op = possible[0]
        found.assumed.append(f"the test is not named: {found.op} by its columns")
    elif others is not None and others in possible:
        found.op = others
        found.assumed.append(f"the test is not named: {others} as the file's other runs")
    elif hint is not None and (hint in possible or not possible):
        found.op = hint
        found.assumed.append(f"the test is not named: {hint} by the file's name")
    else:
        among = " or ".join(possible) if possible else "no op that is known"
        found.why_not = f"which collective this is is not said, and by its columns it could be {among}; keep the lines above the table"
        return found
    if found.op in OPS.values():
        _ranks(found, sample, said, configured)
    return found


def _ranks(found: Decision, rows: Sequence[TableRow], said: int | None, configured: int | None) -> None:
    op = found.op or ""
    if said is not None:
        found.ranks = said
        if said > 1 and not _fits(rows, op, said):
            found.conflicts.append(f"busbw over algbw is not that of {op} over {said} ranks")
        return
    derived = _derived(rows, op)
    if derived is not None:
        found.ranks = derived
        found.assumed.append(f"the ranks are not said: {derived} by the table's own figures")
    elif configured is not None and configured > 1 and _fits(rows, op, configured):
        found.ranks = configured
        found.assumed.append(f"the device lines are missing: {configured} ranks, as one process has by its configuration line")
    else:
        found.why_not = "how many ranks took part is not said and does not follow from the figures; keep the '# Rank' lines above the table"


def by_ranks(rows: Sequence[TableRow], op: str) -> dict[int, list[TableRow]] | None:
    """Rows sorted by the ranks that each one's own figures allow, where those are one number per row; else None."""
    found: dict[int, list[TableRow]] = {}
    for row in rows:
        ranks = _derived([row], op)
        if ranks is None:
            return None
        found.setdefault(ranks, []).append(row)
    return found


def _possible(rows: Sequence[TableRow], ranks: int | None) -> list[str]:
    """Ops that would print such rows."""
    found = [op for op in OPS.values() if all(_could_be(row, op) for row in rows)]
    if ranks is not None and ranks > 1:
        return [op for op in found if _fits(rows, op, ranks)]
    return [op for op in found if _allows(rows, op)]


def _could_be(row: TableRow, op: str) -> bool:
    if row.redop is not None and (row.redop != "none") != (op in REDUCING):
        return False
    if (row.no_redop and op in REDUCING) or (row.no_root and op in ROOTED):
        return False
    if row.root is not None and (row.root >= 0) != (op in ROOTED):
        return False
    whole = row.size == row.count * ELEMENT_BYTES[row.type]
    if whole != (op in WHOLE):
        return False
    checked = row.out is not None and row.out.checked and row.inside is not None
    return not checked or row.inside is None or row.inside.checked == (op not in UNCHECKED_IN_PLACE)


def _fits(rows: Sequence[TableRow], op: str, ranks: int) -> bool:
    """Most rows' busbw over algbw is the op's (a single one may be damaged)."""
    factor = busbw_factor(op, ranks)
    bounds = [half.ratio for row in rows for _inside, half in row.halves]
    misses = sum(not low * 0.999 <= factor <= high * 1.001 for low, high in bounds)
    return misses <= len(bounds) // 10


def _allows(rows: Sequence[TableRow], op: str) -> bool:
    """Some number of ranks gives busbw over algbw as printed."""
    if op != "all_reduce":
        ranks = _derived(rows, op) if op not in WHOLE else 2  # for the other whole ones any number does
        return ranks is None or _fits(rows, op, ranks)
    low, high = _ratio(rows)
    return high >= 0.999 and low < 2


def _ratio(rows: Sequence[TableRow]) -> tuple[float, float]:
    bounds = [half.ratio for row in rows for _inside, half in row.halves]
    return max((low for low, _high in bounds), default=0.0), min((high for _low, high in bounds), default=math.inf)


def _derived(rows: Sequence[TableRow], op: str) -> int | None:
    """Ranks by the shares in ``count``, or by busbw over algbw of an AllReduce; None where more than one number would do."""
    if op not in WHOLE:
        shares = {row.size / (row.count * ELEMENT_BYTES[row.type]) if row.count else 0.0 for row in rows}
        only = shares.pop() if len(shares) == 1 else 0.0
        return int(only) if only == int(only) and 2 <= only <= 1_000_000 else None
    if op != "all_reduce":
        return None
    low, high = _ratio(rows)
    if not low <= high or high >= 2:
        return None
    first, last = math.ceil(2 / (2 - low * 0.9999) - 1e-9), math.floor(2 / (2 - high * 1.0001) + 1e-9)
    return first if first == last and first >= 2 else None
