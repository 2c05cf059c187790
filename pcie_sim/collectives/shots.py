"""One-shot and two-shot AllReduce, as serving engines' own kernels do it, and the direct reduce-scatter and all-gather in them.

Push: every rank writes to its peers. Pull: every rank reads from them; the same bytes cross the same links, but reads cost
differently (``Schedule.access``). Sources: vllm-project/vllm:csrc/custom_all_reduce.cuh (one and two stages, pull), FlashInfer's and
the community's PCIe kernels (push).
"""

from __future__ import annotations

from typing import Literal

from pcie_sim.collectives.registry import register, require_at_most
from pcie_sim.collectives.rounds import Rounds
from pcie_sim.collectives.schedule import Schedule

_MAX_PEERS = 64
"""All pairs exchange, and in a two-shot every second-round transfer waits for all that its sender got: n^3 entries."""


def _pairs(ranks: int) -> list[tuple[int, int]]:
    """All ordered pairs; in turn k every rank sends to the k-th next one."""
    require_at_most(ranks, _MAX_PEERS, "an exchange of all pairs")
    return [(src, (src + turn) % ranks) for turn in range(1, ranks) for src in range(ranks)]


def _one_shot(ranks: int, algorithm: str, access: Literal["write", "read"]) -> Schedule:
    rounds = Rounds(ranks, (1.0,))
    for src, dst in _pairs(ranks):
        rounds.send(src, dst, (0,), reduce=True, own_input=True)
    return rounds.schedule("all_reduce", algorithm, access=access, kernel=True)


def _scatter(rounds: Rounds) -> None:
    for src, dst in _pairs(rounds.ranks):
        rounds.send(src, dst, (dst,), reduce=True)
    rounds.next_round()


def _gather(rounds: Rounds) -> None:
    for src, dst in _pairs(rounds.ranks):
        rounds.send(src, dst, (src,))
    rounds.next_round()


def _two_shot(ranks: int, algorithm: str, access: Literal["write", "read"]) -> Schedule:
    rounds = Rounds(ranks, (1.0 / ranks,) * ranks)
    _scatter(rounds)
    _gather(rounds)
    return rounds.schedule("all_reduce", algorithm, access=access, kernel=True)


@register("all_reduce", "one_shot_push")
def one_shot_push(ranks: int) -> Schedule:
    """Every rank writes its whole buffer to all others, which add up what came: one step, (n - 1) times the message sent."""
    return _one_shot(ranks, "one_shot_push", "write")


@register("all_reduce", "one_shot_pull")
def one_shot_pull(ranks: int) -> Schedule:
    """Every rank reads the whole buffers of all others and adds them up."""
    return _one_shot(ranks, "one_shot_pull", "read")


@register("all_reduce", "two_shot_push")
def two_shot_push(ranks: int) -> Schedule:
    """Every rank writes part j of its buffer to rank j; then rank j writes the sum of part j to all: 2 (n - 1) / n of the message."""
    return _two_shot(ranks, "two_shot_push", "write")


@register("all_reduce", "two_shot_pull")
def two_shot_pull(ranks: int) -> Schedule:
    """Every rank reads its part from all others and adds; then every rank reads the other sums."""
    return _two_shot(ranks, "two_shot_pull", "read")


@register("reduce_scatter", "direct")
def reduce_scatter(ranks: int) -> Schedule:
    """All pairs at once: rank i's part j goes straight to rank j."""
    rounds = Rounds(ranks, (1.0 / ranks,) * ranks)
    _scatter(rounds)
    return rounds.schedule("reduce_scatter", "direct")


@register("all_gather", "direct")
def all_gather(ranks: int) -> Schedule:
    """All pairs at once: every rank sends its part to all others."""
    rounds = Rounds(ranks, (1.0 / ranks,) * ranks)
    _gather(rounds)
    return rounds.schedule("all_gather", "direct")
