"""What a schedule is: which rank sends which share of the message to whom, after what. Free of size and of place.

Two rules order the transfers. *Data*: a transfer starts when every transfer in ``deps`` is complete. *Stream*: the transfers
of one ``(src, dst)`` pair move in the order in which they are listed, one after the other. Nothing else orders them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pcie_sim.errors import PcieSimError


class ScheduleError(PcieSimError):
    """A schedule does not do what its op promises: an algorithm is wrong (a bug, never the user's fault)."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One send. ``fraction`` is the share of the message it carries; ``chunks`` names the pieces of data, so that
    :meth:`Schedule.check` can follow them; ``reduce`` adds into what the receiver holds instead of replacing it; ``step`` is
    the round it belongs to.
    """

    src: int
    dst: int
    fraction: float
    deps: tuple[int, ...]
    step: int
    chunks: tuple[int, ...]
    reduce: bool = False


@dataclass(frozen=True)
class Schedule:
    """An algorithm unrolled for a number of ranks.

    ``chunk_fractions`` is the size of each chunk as a share of the message, by chunk number. For all_to_all chunk
    ``src * ranks + dst`` is what ``src`` sends to ``dst``; for the other ops the chunks cut the message into pieces.
    """

    op: str
    algorithm: str
    ranks: int
    transfers: tuple[Transfer, ...]
    steps: int
    chunk_fractions: tuple[float, ...]

    @cached_property
    def stream_predecessor(self) -> tuple[int, ...]:
        """For each transfer, the one before it in its ``(src, dst)`` stream, or -1."""
        last: dict[tuple[int, int], int] = {}
        found: list[int] = []
        for index, transfer in enumerate(self.transfers):
            stream = (transfer.src, transfer.dst)
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
