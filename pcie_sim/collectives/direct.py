"""Direct algorithms: every message goes straight from its sender to its receiver, all at once or pair by pair."""

from __future__ import annotations

from pcie_sim.collectives.registry import Fractions, register, require_at_most
from pcie_sim.collectives.rounds import Rounds
from pcie_sim.collectives.schedule import Schedule, Transfer

_MAX_RANKS = 256


@register("all_to_all", "direct")
def all_to_all(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """All pairs at once: one step, nothing ordered (NCCL batches up to eight peers per channel, so on a box of eight GPUs
    every peer is in flight together: NVIDIA/nccl src/enqueue.cc). Pairs with nothing to send have no transfer.
    """
    matrix = _shares(ranks, fractions)
    # as the library schedules it: in turn k every rank sends to the k-th next one
    transfers = tuple(
        Transfer(src, dst, matrix[src][dst], (), 0, (src * ranks + dst,))
        for turn in range(1, ranks)
        for src in range(ranks)
        for dst in ((src + turn) % ranks,)
        if matrix[src][dst] > 0
    )
    return Schedule("all_to_all", "direct", ranks, transfers, 1, tuple(item for row in matrix for item in row))


@register("all_to_all", "pairwise")
def pairwise(ranks: int, fractions: Fractions | None = None) -> Schedule:
    """In n - 1 rounds with a barrier between partners: in round k rank i sends to i + k and receives from i - k (mod n), and an
    exchange starts when both its ranks have ended their round before. Pairs with nothing to send have no transfer.
    """
    matrix = _shares(ranks, fractions)
    rounds = Rounds(ranks, [item for row in matrix for item in row])
    for turn in range(1, ranks):
        for src in range(ranks):
            dst = (src + turn) % ranks
            rounds.send(src, dst, (src * ranks + dst,), meet=True)
        rounds.next_round()
    return rounds.schedule("all_to_all", "pairwise")


def _shares(ranks: int, fractions: Fractions | None) -> Fractions:
    require_at_most(ranks, _MAX_RANKS, "an exchange of all pairs")
    return fractions if fractions is not None else ((1.0 / ranks,) * ranks,) * ranks


@register("send_recv", "direct")
def send(ranks: int) -> Schedule:
    """Rank 0 sends the message to rank 1; further ranks stand by."""
    return Schedule("send_recv", "direct", ranks, (Transfer(0, 1, 1.0, (), 0, (0,)),), 1, (1.0,))


@register("send_recv", "chain")
def chain(ranks: int) -> Schedule:
    """The message hops 0 -> 1 -> ... -> n - 1, whole, each rank sending on what it has received (a pipeline's hops)."""
    transfers = tuple(Transfer(rank, rank + 1, 1.0, (rank - 1,) if rank else (), rank, (0,)) for rank in range(ranks - 1))
    return Schedule("send_recv", "chain", ranks, transfers, ranks - 1, (1.0,))


@register("send_recv", "shift")
def shift(ranks: int) -> Schedule:
    """Every rank sends a message to the next one and receives the one before's, all at once: what nccl-tests' sendrecv_perf times.
    Chunk r is rank r's message.
    """
    transfers = tuple(Transfer(rank, (rank + 1) % ranks, 1.0, (), 0, (rank,)) for rank in range(ranks))
    return Schedule("send_recv", "shift", ranks, transfers, 1, (1.0,) * ranks)
