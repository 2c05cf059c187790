"""Writes a schedule down round by round: each send waits for whatever brought its chunks to the sender before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pcie_sim.collectives.schedule import Schedule, Transfer, total


class Rounds:
    """A schedule in the making.

    All sends of one round are simultaneous: a send waits for the arrivals of *earlier* rounds at its sender that copied or added
    one of its chunks, and for nothing else; with ``meet`` also until both its ranks have ended the last round in which they had
    part (a send that needs its receiver at hand, as MPI's sendrecv does). What a round sends out of a buffer that a later
    one overwrites is ordered as well in every algorithm here, because what comes back depends on it: :meth:`Schedule.check`
    proves that.
    """

    def __init__(self, ranks: int, chunk_fractions: Sequence[float]) -> None:
        self.ranks, self.shares = ranks, tuple(chunk_fractions)
        self.transfers: list[Transfer] = []
        self.step = 0
        self._came: dict[tuple[int, int], list[int]] = {}
        self._coming: list[int] = []
        self._ended: dict[int, list[int]] = {}

    def send(
        self,
        src: int,
        dst: int,
        chunks: Iterable[int],
        *,
        reduce: bool = False,
        channel: int = 0,
        own_input: bool = False,
        meet: bool = False,
    ) -> None:
        """One transfer in the current round; nothing when there are no chunks (or none with bytes in them)."""
        carried = tuple(chunk for chunk in chunks if self.shares[chunk] > 0)
        if not carried:
            return
        after = set() if own_input else {index for chunk in carried for index in self._came.get((src, chunk), ())}
        if meet:
            after.update(self._ended.get(src, ()), self._ended.get(dst, ()))
        fraction = total(self.shares[chunk] for chunk in carried)
        self._coming.append(len(self.transfers))
        self.transfers.append(Transfer(src, dst, fraction, tuple(sorted(after)), self.step, carried, reduce, channel, own_input))

    def next_round(self) -> None:
        """Close the round."""
        touched: dict[int, list[int]] = {}
        for index in self._coming:
            transfer = self.transfers[index]
            for rank in (transfer.src, transfer.dst):
                touched.setdefault(rank, []).append(index)
            for chunk in transfer.chunks:
                key = (transfer.dst, chunk)
                if transfer.reduce:
                    self._came.setdefault(key, []).append(index)
                else:
                    self._came[key] = [index]
        self._ended.update(touched)
        self._coming = []
        self.step += 1

    def schedule(self, op: str, algorithm: str, *, access: Literal["write", "read"] = "write", kernel: bool = False) -> Schedule:
        """What was written down; rounds in which nothing moves are dropped."""
        used = {step: place for place, step in enumerate(sorted({transfer.step for transfer in self.transfers}))}
        transfers = tuple(
            item
            if used[item.step] == item.step
            else Transfer(
                item.src, item.dst, item.fraction, item.deps, used[item.step], item.chunks, item.reduce, item.channel, item.own_input
            )
            for item in self.transfers
        )
        return Schedule(op, algorithm, self.ranks, transfers, len(used), self.shares, access, kernel=kernel)
