"""Ring algorithms: rank r sends to rank r + 1 (mod n).

all_gather, reduce_scatter and all_reduce move one n-th of the message per step in n - 1, n - 1 and 2 (n - 1) steps
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). With ``chunks`` every step is
cut into pieces, so that the next step's first piece leaves while this step's last one still arrives. broadcast and reduce run
along the ring cut open at the root, as a chain that forwards chunk after chunk.
"""

from __future__ import annotations

from pcie_sim.collectives.registry import MAX_TRANSFERS, register, require_at_most
from pcie_sim.collectives.schedule import Schedule, Transfer
from pcie_sim.collectives.trees import PIPELINE_CHUNKS, chain_tree, pipelined
from pcie_sim.errors import InputError

_MAX_RING = 256


def _ring(op: str, ranks: int, *, steps: int, shift: int, reduce_steps: int, chunks: int, channels: int) -> Schedule:
    """``steps`` rounds in which rank r sends block ``(r + shift - step) mod n`` to r + 1; the first ``reduce_steps`` add.

    A block is cut into ``channels`` parts that move side by side, each in ``chunks`` pieces one after the other.
    """
    require_at_most(ranks, _MAX_RING, "a ring")
    if ranks * steps * chunks * channels > MAX_TRANSFERS:
        raise InputError(f"{op}: {chunks} chunks on {channels} channels of a ring of {ranks} ranks are too many transfers")
    pieces = chunks * channels
    share = 1.0 / (ranks * pieces)
    transfers = tuple(
        Transfer(
            src=rank,
            dst=(rank + 1) % ranks,
            fraction=share,
            # what is sent on in this step arrived in the one before, from the left neighbour
            deps=() if step == 0 else ((((step - 1) * chunks + piece) * channels + channel) * ranks + (rank - 1) % ranks,),
            step=step * chunks + piece,
            chunks=(((rank + shift - step) % ranks * channels + channel) * chunks + piece,),
            reduce=step < reduce_steps,
            channel=channel,
        )
        for step in range(steps)
        for piece in range(chunks)
        for channel in range(channels)
        for rank in range(ranks)
    )
    return Schedule(op, "ring", ranks, transfers, steps * chunks, (share,) * (ranks * pieces), channels=channels)


@register("all_reduce", "ring")
def all_reduce(ranks: int, chunks: int = 1, channels: int = 1) -> Schedule:
    """Adds in n - 1 steps, passes the sums on in n - 1 more; 2 (n - 1) / n of the message over every edge."""
    steps = 2 * (ranks - 1)
    return _ring("all_reduce", ranks, steps=steps, shift=0, reduce_steps=ranks - 1, chunks=chunks, channels=channels)


@register("reduce_scatter", "ring")
def reduce_scatter(ranks: int, chunks: int = 1, channels: int = 1) -> Schedule:
    """Adds in n - 1 steps; rank r ends with the sum of chunk r. The message is the whole input, as nccl-tests counts it."""
    return _ring("reduce_scatter", ranks, steps=ranks - 1, shift=-1, reduce_steps=ranks, chunks=chunks, channels=channels)


@register("all_gather", "ring")
def all_gather(ranks: int, chunks: int = 1, channels: int = 1) -> Schedule:
    """Copies in n - 1 steps, each rank starting with its own chunk. The message is the whole output."""
    return _ring("all_gather", ranks, steps=ranks - 1, shift=0, reduce_steps=0, chunks=chunks, channels=channels)


@register("broadcast", "ring")
def broadcast(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """Rank 0's message along 0 -> 1 -> ... -> n - 1 in ``chunks`` pieces."""
    return pipelined("broadcast", "ring", ranks, [chain_tree(range(ranks))], chunks=chunks, channels=channels)


@register("reduce", "ring")
def reduce(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """The sum travels 1 -> 2 -> ... -> n - 1 -> 0 (the root) in ``chunks`` pieces."""
    return pipelined("reduce", "ring", ranks, [chain_tree([0, *range(ranks - 1, 0, -1)])], chunks=chunks, channels=channels)
