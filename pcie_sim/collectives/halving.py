"""Recursive halving and doubling.

reduce_scatter by recursive halving (partners at distance p / 2, p / 4 ... 1, half of what is left each time), all_gather by recursive
doubling (distance 1, 2 ... p / 2), all_reduce by one after the other: Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", IJHPCA 19 (2005). p is the largest power of two up to n; the first 2 (n - p) ranks pair up
and every even one of them is folded into its odd neighbour before, and gets the result from it after. Partners
exchange when both are done with the step before (MPI's sendrecv).
"""

from __future__ import annotations

from collections.abc import Sequence

from pcie_sim.collectives.registry import register, require_at_most
from pcie_sim.collectives.rounds import Rounds
from pcie_sim.collectives.schedule import Schedule

_MAX_RANKS = 256


class _Fold:
    """Who takes part (``core``, a power of two), and for whom else each of them stands."""

    def __init__(self, ranks: int) -> None:
        require_at_most(ranks, _MAX_RANKS, "recursive halving or doubling")
        power = 1 << (ranks.bit_length() - 1)
        extra = ranks - power
        self.pairs = [(2 * place, 2 * place + 1) for place in range(extra)]
        self.core = [odd for _, odd in self.pairs] + list(range(2 * extra, ranks))
        guests = {odd: even for even, odd in self.pairs}
        self.seats = [(guests[rank], rank) if rank in guests else (rank,) for rank in self.core]


def _halve(rounds: Rounds, core: list[int], owned: Sequence[tuple[int, ...]]) -> None:
    """Member m ends with the sums of the chunks in ``owned[m]``."""
    distance = len(core) // 2
    while distance:
        for member, rank in enumerate(core):
            partner = member ^ distance
            first = partner & ~(distance - 1)  # the members on the partner's side of this split: they own what is sent
            chunks = [chunk for owner in range(first, first + distance) for chunk in owned[owner]]
            rounds.send(rank, core[partner], chunks, reduce=True, meet=True)
        rounds.next_round()
        distance //= 2


def _double(rounds: Rounds, core: list[int], owned: Sequence[tuple[int, ...]]) -> None:
    """Every member gets all chunks, member m having those of ``owned[m]``."""
    distance = 1
    while distance < len(core):
        for member, rank in enumerate(core):
            first = member & ~(distance - 1)
            chunks = [chunk for owner in range(first, first + distance) for chunk in owned[owner]]
            rounds.send(rank, core[member ^ distance], chunks, meet=True)
        rounds.next_round()
        distance *= 2


@register("all_reduce", "halving_doubling")
def all_reduce(ranks: int) -> Schedule:
    """2 log2 p steps, 2 (p - 1) / p of the message; with n no power of two, two more steps with the whole message."""
    fold = _Fold(ranks)
    count = len(fold.core)
    rounds = Rounds(ranks, (1.0 / count,) * count)
    owned = [(member,) for member in range(count)]
    for even, odd in fold.pairs:
        rounds.send(even, odd, range(count), reduce=True, meet=True)
    rounds.next_round()
    _halve(rounds, fold.core, owned)
    _double(rounds, fold.core, owned)
    for even, odd in fold.pairs:
        rounds.send(odd, even, range(count), meet=True)
    rounds.next_round()
    return rounds.schedule("all_reduce", "halving_doubling")


@register("reduce_scatter", "halving")
def reduce_scatter(ranks: int) -> Schedule:
    """log2 p steps, (p - 1) / p of the message; folded ranks hand in their whole input first and get their part last."""
    fold = _Fold(ranks)
    rounds = Rounds(ranks, (1.0 / ranks,) * ranks)
    for even, odd in fold.pairs:
        rounds.send(even, odd, range(ranks), reduce=True, meet=True)
    rounds.next_round()
    _halve(rounds, fold.core, fold.seats)
    for even, odd in fold.pairs:
        rounds.send(odd, even, (even,), meet=True)
    rounds.next_round()
    return rounds.schedule("reduce_scatter", "halving")


@register("all_gather", "doubling")
def all_gather(ranks: int) -> Schedule:
    """log2 p steps, (p - 1) / p of the message; folded ranks hand in their part first and get the whole last."""
    fold = _Fold(ranks)
    rounds = Rounds(ranks, (1.0 / ranks,) * ranks)
    for even, odd in fold.pairs:
        rounds.send(even, odd, (even,), meet=True)
    rounds.next_round()
    _double(rounds, fold.core, fold.seats)
    for even, odd in fold.pairs:
        rounds.send(odd, even, [chunk for chunk in range(ranks) if chunk != even], meet=True)
    rounds.next_round()
    return rounds.schedule("all_gather", "doubling")
