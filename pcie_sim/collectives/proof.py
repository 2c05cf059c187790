"""The proof behind :meth:`Schedule.check`: contributions per chunk, followed through the happens-before order."""

from __future__ import annotations

import math

from pcie_sim.collectives.schedule import Schedule, ScheduleError, Transfer, fractions_equal, total

State = dict[int, frozenset[int]]
"""What one rank holds: chunk -> the ranks whose data is summed in it."""


def prove(schedule: Schedule) -> None:
    """Raise :class:`ScheduleError` unless ``schedule`` is sound (see :meth:`Schedule.check`)."""
    _shape(schedule)
    before = _happens_before(schedule)
    _no_races(schedule, before)
    held = _run(schedule, before)
    _final(schedule, held)


def initial_state(schedule: Schedule) -> list[State]:
    """What each rank holds before the call."""
    ranks, chunks = range(schedule.ranks), range(len(schedule.chunk_fractions))
    op = schedule.op
    if op in ("all_reduce", "reduce_scatter", "reduce"):
        return [dict.fromkeys(chunks, frozenset((rank,))) for rank in ranks]
    if op == "all_gather":
        return [{chunk: frozenset((rank,)) for chunk in chunks if _owner(schedule, chunk) == rank} for rank in ranks]
    if op == "all_to_all":
        return [{rank * schedule.ranks + dst: frozenset((rank,)) for dst in ranks} for rank in ranks]
    if schedule.algorithm == "shift":
        return [{rank: frozenset((rank,))} for rank in ranks]
    return [dict.fromkeys(chunks, frozenset((0,))) if rank == 0 else {} for rank in ranks]


def promised_state(schedule: Schedule) -> list[State]:
    """What each rank must hold after the call; it may hold more."""
    ranks, chunks = range(schedule.ranks), range(len(schedule.chunk_fractions))
    everyone = frozenset(ranks)
    op = schedule.op
    if op == "all_reduce":
        return [dict.fromkeys(chunks, everyone) for _ in ranks]
    if op == "reduce_scatter":
        return [{chunk: everyone for chunk in chunks if _owner(schedule, chunk) == rank} for rank in ranks]
    if op == "reduce":
        return [dict.fromkeys(chunks, everyone) if rank == 0 else {} for rank in ranks]
    if op == "all_gather":
        return [{chunk: frozenset((_owner(schedule, chunk),)) for chunk in chunks} for _ in ranks]
    if op == "all_to_all":
        n = schedule.ranks
        return [{src * n + rank: frozenset((src,)) for src in ranks if schedule.chunk_fractions[src * n + rank] > 0} for rank in ranks]
    if schedule.algorithm == "shift":
        before = [(rank - 1) % schedule.ranks for rank in ranks]
        return [{other: frozenset((other,))} for other in before]
    if op == "send_recv":
        receivers = {1} if schedule.algorithm == "direct" else set(ranks)
        return [dict.fromkeys(chunks, frozenset((0,))) if rank in receivers else {} for rank in ranks]
    if op == "broadcast":
        return [dict.fromkeys(chunks, frozenset((0,))) for _ in ranks]
    raise ScheduleError(f"op {op!r} has no promised result")


def _owner(schedule: Schedule, chunk: int) -> int:
    """all_gather, reduce_scatter: the rank whose part of the message the chunk belongs to (equal numbers of chunks each)."""
    return chunk * schedule.ranks // len(schedule.chunk_fractions)


def _fail(schedule: Schedule, index: int, what: str) -> ScheduleError:
    transfer = schedule.transfers[index]
    which = f"transfer {index} ({transfer.src} -> {transfer.dst}, step {transfer.step})"
    return ScheduleError(f"{schedule.op}/{schedule.algorithm} on {schedule.ranks} ranks: {which}: {what}")


def _shape(schedule: Schedule) -> None:
    count = len(schedule.transfers)
    for share in schedule.chunk_fractions:
        if not math.isfinite(share) or share < 0:
            raise ScheduleError(f"{schedule.op}/{schedule.algorithm}: a chunk has the share {share}")
    if schedule.op in ("all_gather", "reduce_scatter") and len(schedule.chunk_fractions) % schedule.ranks:
        raise ScheduleError(f"{schedule.op}/{schedule.algorithm}: {len(schedule.chunk_fractions)} chunks do not divide over the ranks")
    if schedule.op != "all_to_all" and schedule.algorithm != "shift" and not fractions_equal(total(schedule.chunk_fractions), 1.0):
        raise ScheduleError(
            f"{schedule.op}/{schedule.algorithm}: the chunks add up to {total(schedule.chunk_fractions)}, not to the message"
        )
    for index, transfer in enumerate(schedule.transfers):
        if not (0 <= transfer.src < schedule.ranks and 0 <= transfer.dst < schedule.ranks) or transfer.src == transfer.dst:
            raise _fail(schedule, index, "its ranks are out of range")
        if not 0 <= transfer.step < schedule.steps:
            raise _fail(schedule, index, f"its step is outside 0..{schedule.steps - 1}")
        if any(not 0 <= dep < count or dep == index for dep in transfer.deps):
            raise _fail(schedule, index, "it depends on a transfer that does not exist, or on itself")
        if not transfer.chunks or len(set(transfer.chunks)) != len(transfer.chunks):
            raise _fail(schedule, index, "it carries no chunk, or one twice")
        if any(not 0 <= chunk < len(schedule.chunk_fractions) for chunk in transfer.chunks):
            raise _fail(schedule, index, "it carries a chunk that does not exist")
        carried = total(schedule.chunk_fractions[chunk] for chunk in transfer.chunks)
        if not fractions_equal(carried, transfer.fraction):
            raise _fail(schedule, index, f"its fraction {transfer.fraction} is not that of its chunks ({carried})")


def _happens_before(schedule: Schedule) -> list[int]:
    """For each transfer, the set (bit mask) of those that are surely complete before it starts.

    A stream's earlier transfers are complete before a later one *moves*, so what they brought is there too.
    """
    count = len(schedule.transfers)
    parents = [set(transfer.deps) for transfer in schedule.transfers]
    for index, previous in enumerate(schedule.stream_predecessor):
        if previous >= 0:
            parents[index].add(previous)
    before = [0] * count
    for index in schedule.order:
        for parent in parents[index]:
            before[index] |= before[parent] | (1 << parent)
    for index, transfer in enumerate(schedule.transfers):
        late = [dep for dep in transfer.deps if schedule.transfers[dep].step > transfer.step]
        if late:
            raise _fail(schedule, index, f"it depends on transfer {late[0]} of a later step")
    return before


def _no_races(schedule: Schedule, before: list[int]) -> None:
    """Every write of a chunk at a rank is ordered against every other use of it there (two additions may race; sending the own
    input reads another buffer).
    """
    uses: dict[tuple[int, int], list[tuple[int, bool, bool]]] = {}
    for index, transfer in enumerate(schedule.transfers):
        for chunk in transfer.chunks:
            if not transfer.own_input:
                uses.setdefault((transfer.src, chunk), []).append((index, False, False))
            uses.setdefault((transfer.dst, chunk), []).append((index, True, transfer.reduce))
    for (rank, chunk), items in uses.items():
        for place, (first, writes, adds) in enumerate(items):
            for second, also_writes, also_adds in items[place + 1 :]:
                if first == second or not (writes or also_writes) or (adds and also_adds):
                    continue
                if not (before[first] >> second & 1 or before[second] >> first & 1):
                    raise _fail(schedule, second, f"races with transfer {first} for chunk {chunk} at rank {rank}")


def _run(schedule: Schedule, before: list[int]) -> list[State]:
    held, inputs = initial_state(schedule), initial_state(schedule)
    # an ancestor has strictly fewer ancestors than its descendants, so this order respects happens-before
    order = sorted(range(len(schedule.transfers)), key=lambda index: before[index].bit_count())
    for index in order:
        transfer = schedule.transfers[index]
        for chunk in transfer.chunks:
            sent = (inputs if transfer.own_input else held)[transfer.src].get(chunk)
            _deliver(schedule, index, transfer, chunk, sent, held)
    return held


def _deliver(schedule: Schedule, index: int, transfer: Transfer, chunk: int, sent: frozenset[int] | None, held: list[State]) -> None:
    there = held[transfer.dst].get(chunk)
    if sent is None:
        raise _fail(schedule, index, f"rank {transfer.src} does not hold chunk {chunk} by then")
    if not transfer.reduce:
        if there == sent:
            raise _fail(schedule, index, f"brings chunk {chunk}, which rank {transfer.dst} already holds")
        held[transfer.dst][chunk] = sent
        return
    if there is None:
        raise _fail(schedule, index, f"adds to chunk {chunk}, of which rank {transfer.dst} holds nothing")
    twice = sent & there
    if twice:
        raise _fail(schedule, index, f"adds the data of rank {min(twice)} to chunk {chunk} a second time")
    held[transfer.dst][chunk] = sent | there


def _final(schedule: Schedule, held: list[State]) -> None:
    for rank, promised in enumerate(promised_state(schedule)):
        for chunk, contributions in promised.items():
            found = held[rank].get(chunk)
            if found != contributions:
                has = "nothing" if found is None else f"the data of ranks {sorted(found)}"
                raise ScheduleError(
                    f"{schedule.op}/{schedule.algorithm} on {schedule.ranks} ranks: rank {rank} ends with {has} in chunk {chunk}, "
                    f"not with that of {sorted(contributions)}"
                )
