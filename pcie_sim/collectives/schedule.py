"""What a schedule is: which rank sends which share of the message to whom, after what. Free of size and of place.

Two rules order the transfers. *Data*: a transfer starts when every transfer in ``deps`` is complete. *Stream*: the transfers
of one ``(src, dst, channel)`` move in the order in which they are listed, one after the other. Nothing else orders them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pcie_sim.errors import PcieSimError


class ScheduleError(PcieSimError):
    """A schedule does not do what its op promises: an algorithm is wrong (a bug, never the user's fault)."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One send. ``fraction`` is the share of the message it carries; ``chunks`` names the pieces of data, so that
    :meth:`Schedule.check` can follow them; ``reduce`` adds into what the receiver holds instead of replacing it; ``step`` is
    the round it belongs to; ``channel`` the stream between the two ranks in which it moves. ``own_input`` sends the sender's
    input as it was before the call: the input buffer is apart from the one that sums are built in, so nothing disturbs it.
    """

    src: int
    dst: int
    fraction: float
    deps: tuple[int, ...]
    step: int
    chunks: tuple[int, ...]
    reduce: bool = False
    channel: int = 0
    own_input: bool = False


@dataclass(frozen=True)
class Schedule:
    """An algorithm unrolled for a number of ranks.

    ``chunk_fractions`` is the size of each chunk as a share of the message, by chunk number. For all_to_all chunk
    ``src * ranks + dst`` is what ``src`` sends to ``dst``; for the other ops the chunks cut the message into pieces, those of
    all_gather and reduce_scatter in equal numbers for rank 0, rank 1 and so on. ``access`` says who moves the bytes: the sender
    (``write``: posted writes into the receiver's memory) or the receiver (``read``: it loads from the sender's). ``channels`` is
    how many equal copies of the pattern run side by side, each with its share of every edge's bytes. ``kernel``: a serving engine's
    own kernel, not the collective library, runs it.
    """

    op: str
    algorithm: str
    ranks: int
    transfers: tuple[Transfer, ...]
    steps: int
    chunk_fractions: tuple[float, ...]
    access: Literal["write", "read"] = "write"
    channels: int = 1
    kernel: bool = False

    @cached_property
    def stream_predecessor(self) -> tuple[int, ...]:
        """For each transfer, the one before it in its ``(src, dst, channel)`` stream, or -1."""
        last: dict[tuple[int, int, int], int] = {}
        found: list[int] = []
        for index, transfer in enumerate(self.transfers):
            stream = (transfer.src, transfer.dst, transfer.channel)
            found.append(last.get(stream, -1))
            last[stream] = index
        return tuple(found)

    @cached_property
    def rounds(self) -> tuple[tuple[int, ...], ...]:
        """The transfers of each step, by index."""
        found: list[list[int]] = [[] for _ in range(self.steps)]
        for index, transfer in enumerate(self.transfers):
            found[transfer.step].append(index)
        return tuple(tuple(items) for items in found)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The transfers by index so that each stands after all it depends on and after the one before it in its stream.

        Raises:
            ScheduleError: the dependencies form a cycle.
        """
        count = len(self.transfers)
        waiting = [0] * count
        children: list[list[int]] = [[] for _ in range(count)]
        for index, (transfer, previous) in enumerate(zip(self.transfers, self.stream_predecessor, strict=True)):
            for parent in {*transfer.deps, *((previous,) if previous >= 0 else ())}:
                waiting[index] += 1
                children[parent].append(index)
        found = [index for index in range(count) if not waiting[index]]
        for index in found:
            for child in children[index]:
                waiting[child] -= 1
                if not waiting[child]:
                    found.append(child)
        if len(found) != count:
            stuck = next(index for index in range(count) if waiting[index])
            raise ScheduleError(f"{self.op}/{self.algorithm} on {self.ranks} ranks: transfer {stuck}: its dependencies form a cycle")
        return tuple(found)

    def sent_fraction(self) -> float:
        """Share of the message that all ranks together put on the wire."""
        return sum(transfer.fraction for transfer in self.transfers)

    def check(self) -> None:
        """Prove the result by following every chunk.

        Shown: indices in range, dependencies acyclic, fractions equal to the chunks carried; whatever is sent has
        arrived before under the two ordering rules *alone* (not by luck of timing), no other write to the same chunk can race
        with it, nothing is added twice, every copy brings something new, and every rank ends with what ``op`` promises.

        Raises:
            ScheduleError: names the transfer and what is wrong with it.
        """
        from pcie_sim.collectives.proof import prove

        prove(self)


def fractions_equal(a: float, b: float) -> bool:
    """Whether two shares agree to 1e-12 of the larger."""
    return abs(a - b) <= 1e-12 * max(abs(a), abs(b), 1e-300)


def total(values: Iterable[float]) -> float:
    """Sum without loss of digits (math.fsum)."""
    import math

    return math.fsum(values)
