"""Ring algorithms: rank r sends to rank r + 1 (mod n).

all_gather, reduce_scatter and all_reduce move one n-th of the message per step in n - 1, n - 1 and 2 (n - 1) steps
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). broadcast and reduce run
along the ring cut open at the root, as a chain that forwards chunk after chunk.
"""

from __future__ import annotations

from pcie_sim.collectives.registry import Fractions, register
from pcie_sim.collectives.schedule import Schedule, Transfer
from pcie_sim.errors import InputError

PIPELINE_CHUNKS = 16
"""Pieces of a broadcast or reduce: the chain needs (chunks + n - 2) / chunks of the message's time. The library's own piece
count grows with the message; a fixed one keeps the schedule free of size."""
_MAX_RING = 256


def _ring_steps(ranks: int, steps: int, shift: int, reduce_steps: int) -> tuple[Transfer, ...]:
    """``steps`` rounds in which rank r sends chunk ``(r + shift - step) mod n`` to r + 1; the first ``reduce_steps`` add."""
    if ranks > _MAX_RING:
        raise InputError(f"a ring of {ranks} ranks is unrolled step by step; give at most {_MAX_RING}")
    share = 1.0 / ranks
    return tuple(
        Transfer(
            src=rank,
            dst=(rank + 1) % ranks,
            fraction=share,
            # what is sent on in this step arrived in the one before, from the left neighbour
            deps=() if step == 0 else ((step - 1) * ranks + (rank - 1) % ranks,),
            step=step,
            chunks=((rank + shift - step) % ranks,),
            reduce=step < reduce_steps,
        )
        for step in range(steps)
        for rank in range(ranks)
    )


@register("all_reduce", "ring")
def all_reduce(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """Adds in n - 1 steps, passes the sums on in n - 1 more; 2 (n - 1) / n of the message over every edge."""
    del fractions
    steps = 2 * (ranks - 1)
    return Schedule("all_reduce", "ring", ranks, _ring_steps(ranks, steps, 0, ranks - 1), steps, (1.0 / ranks,) * ranks)


@register("reduce_scatter", "ring")
def reduce_scatter(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """Adds in n - 1 steps; rank r ends with the sum of chunk r. The message is the whole input, as nccl-tests counts it."""
    del fractions
    return Schedule("reduce_scatter", "ring", ranks, _ring_steps(ranks, ranks - 1, -1, ranks), ranks - 1, (1.0 / ranks,) * ranks)


@register("all_gather", "ring")
def all_gather(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """Copies in n - 1 steps, each rank starting with its own chunk. The message is the whole output."""
    del fractions
    return Schedule("all_gather", "ring", ranks, _ring_steps(ranks, ranks - 1, 0, 0), ranks - 1, (1.0 / ranks,) * ranks)


def _chain(op: str, path: list[int], *, reduce: bool) -> Schedule:
    """``path[0] -> path[1] -> ...``, chunk after chunk; chunk k crosses hop h in step h + k."""
    hops, chunks = len(path) - 1, PIPELINE_CHUNKS
    share = 1.0 / chunks
    order = sorted((hop + chunk, hop, chunk) for hop in range(hops) for chunk in range(chunks))
    index = {(hop, chunk): place for place, (_, hop, chunk) in enumerate(order)}
    transfers = tuple(
        Transfer(path[hop], path[hop + 1], share, (index[hop - 1, chunk],) if hop else (), step, (chunk,), reduce)
        for step, hop, chunk in order
    )
    return Schedule(op, "ring", len(path), transfers, hops + chunks - 1, (share,) * chunks)


@register("broadcast", "ring")
def broadcast(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """Rank 0's message along 0 -> 1 -> ... -> n - 1 in :data:`PIPELINE_CHUNKS` pieces."""
    del fractions
    return _chain("broadcast", list(range(ranks)), reduce=False)


@register("reduce", "ring")
def reduce(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """The sum travels 1 -> 2 -> ... -> n - 1 -> 0 (the root) in :data:`PIPELINE_CHUNKS` pieces."""
    del fractions
    return _chain("reduce", [*range(1, ranks), 0], reduce=True)
