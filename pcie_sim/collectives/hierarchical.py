"""Algorithms in two levels: inside groups of near ranks, and across them.

AllReduce as a ring reduce-scatter inside each group, ring AllReduces across the groups of what each member then holds, and a ring
all-gather inside (the 2-D ring: 2 (a - 1) + 2 (b - 1) steps instead of 2 (a b - 1)). Groups may differ in size: the message is cut wherever
some group's members divide it, so that each piece has exactly one owner in every group.

All-to-All in two phases: inside each group everything is handed to the member that has the local index of its destination, which
sends it across in one message per far rank (the two-dimensional exchange of hierarchical MoE dispatch, as in DeepSpeed-MoE, Rajbhandari
et al. 2022).
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from pcie_sim.collectives.registry import Fractions, Groups, register, require_at_most
from pcie_sim.collectives.rounds import Rounds
from pcie_sim.collectives.schedule import Schedule

_MAX_RANKS = 256


def halves(ranks: int) -> Groups:
    """The groups when none are given: the first and the second half of the ranks."""
    middle = (ranks + 1) // 2
    return tuple(range(middle)), tuple(range(middle, ranks))


Owned = list[tuple[int, ...]]
"""For each member of a ring, the chunks that are its own."""
_Rings = list[tuple[tuple[int, ...], Owned]]


def _ring_scatter(rounds: Rounds, rings: _Rings) -> None:
    """Ring reduce-scatter in all ``rings`` at once: member p ends with the sums of the chunks ``owned[p]``."""
    for step in range(max(len(members) for members, _ in rings) - 1):
        for channel, (members, owned) in enumerate(rings):
            count = len(members)
            if step < count - 1:
                for place, rank in enumerate(members):
                    chunks = owned[(place - 1 - step) % count]
                    rounds.send(rank, members[(place + 1) % count], chunks, reduce=True, channel=channel)
        rounds.next_round()


def _ring_gather(rounds: Rounds, rings: _Rings) -> None:
    """Ring all-gather in all ``rings`` at once."""
    for step in range(max(len(members) for members, _ in rings) - 1):
        for channel, (members, owned) in enumerate(rings):
            count = len(members)
            if step < count - 1:
                for place, rank in enumerate(members):
                    rounds.send(rank, members[(place + 1) % count], owned[(place - step) % count], channel=channel)
        rounds.next_round()


@register("all_reduce", "hierarchical")
def all_reduce(ranks: int, groups: Groups | None = None) -> Schedule:
    """Inside each group, across, inside; with groups of one size a and b groups, 2 (a - 1) steps of m / a and 2 (b - 1) of m / (a b)."""
    require_at_most(ranks, _MAX_RANKS, "a hierarchical AllReduce")
    groups = halves(ranks) if groups is None else groups
    across = len(groups)
    cuts = sorted({Fraction(place, len(group)) for group in groups for place in range(len(group) + 1)})
    segments = list(pairwise(cuts))
    # every segment is cut once more into one piece per group: the chunks of its ring across
    shares = [float((end - start) / across) for start, end in segments for _ in range(across)]
    rounds = Rounds(ranks, shares)
    owner = [[int(start * len(group)) for start, _ in segments] for group in groups]
    inside: _Rings = []
    for group, owns in zip(groups, owner, strict=True):
        pieces = [
            tuple(index * across + piece for index, place in enumerate(owns) if place == member for piece in range(across))
            for member in range(len(group))
        ]
        inside.append((group, pieces))
    rings: _Rings = [
        (
            tuple(group[owns[index]] for group, owns in zip(groups, owner, strict=True)),
            [(index * across + piece,) for piece in range(across)],
        )
        for index in range(len(segments))
    ]
    _ring_scatter(rounds, inside)
    _ring_scatter(rounds, rings)
    _ring_gather(rounds, rings)
    _ring_gather(rounds, inside)
    return rounds.schedule("all_reduce", "hierarchical")


@register("all_to_all", "hierarchical")
def all_to_all(ranks: int, fractions: Fractions | None = None, groups: Groups | None = None) -> Schedule:
    """Inside each group by the destination's local index, then across; a far rank gets one message per group instead of one per rank.

    Where a group is smaller than the destination's, the local index wraps round. Pairs with nothing to send have no transfer.
    """
    require_at_most(ranks, _MAX_RANKS, "a hierarchical All-to-All")
    groups = halves(ranks) if groups is None else groups
    share = 1.0 / ranks
    matrix = fractions if fractions is not None else ((share,) * ranks,) * ranks
    rounds = Rounds(ranks, [item for row in matrix for item in row])
    seat = {rank: (group, place) for group in groups for place, rank in enumerate(group)}

    def carrier(src: int, dst: int) -> int:
        """Who in ``src``'s group hands the bytes for ``dst`` on."""
        group, (target, place) = seat[src][0], seat[dst]
        return dst if target is group else group[place % len(group)]

    # in turn k every member exchanges with the k-th next one
    for group in groups:
        for turn in range(1, len(group)):
            for place, src in enumerate(group):
                mate = group[(place + turn) % len(group)]
                rounds.send(src, mate, [src * ranks + dst for dst in range(ranks) if dst != src and carrier(src, dst) == mate])
    rounds.next_round()
    for turn in range(1, ranks):
        for hop in range(ranks):
            dst = (hop + turn) % ranks
            group = seat[hop][0]
            if seat[dst][0] is not group:
                rounds.send(hop, dst, [src * ranks + dst for src in group if carrier(src, dst) == hop])
    rounds.next_round()
    return rounds.schedule("all_to_all", "hierarchical")
