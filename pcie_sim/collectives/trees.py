"""Trees of ranks, and data that flows up and down them chunk after chunk.

Binary trees for any number of ranks, and their complements, so that (nearly) no rank is an inner node of both: Sanders, Speck and
Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009); the in-order numbering by
lowest set bit is the one that NCCL uses (NVIDIA/nccl:src/graph/trees.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from pcie_sim.collectives.registry import MAX_TRANSFERS
from pcie_sim.collectives.schedule import Schedule, Transfer
from pcie_sim.errors import InputError

PIPELINE_CHUNKS = 16
"""Pieces of a pipelined message: a chain needs (chunks + n - 2) / chunks of the message's time. The library's own piece count
grows with the message; a fixed one keeps the schedule free of size."""


@dataclass(frozen=True)
class Tree:
    """``parent[rank]``, -1 at the root."""

    parent: tuple[int, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of every rank."""
        found: list[list[int]] = [[] for _ in self.parent]
        for rank, above in enumerate(self.parent):
            if above >= 0:
                found[above].append(rank)
        return tuple(tuple(items) for items in found)

    @cached_property
    def down(self) -> tuple[int, ...]:
        """The ranks from the root downwards, parents first."""
        found = [self.parent.index(-1)]
        for rank in found:
            found.extend(self.children[rank])
        return tuple(found)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Edges between the root and every rank."""
        found = [0] * len(self.parent)
        for rank in self.down[1:]:
            found[rank] = found[self.parent[rank]] + 1
        return tuple(found)

    @cached_property
    def height(self) -> tuple[int, ...]:
        """Edges between every rank and the farthest leaf below it."""
        found = [0] * len(self.parent)
        for rank in reversed(self.down[1:]):
            found[self.parent[rank]] = max(found[self.parent[rank]], found[rank] + 1)
        return tuple(found)

    def relabelled(self, label: Sequence[int]) -> Tree:
        """The same tree with rank r called ``label[r]``."""
        found = [-1] * len(self.parent)
        for rank, above in enumerate(self.parent):
            found[label[rank]] = label[above] if above >= 0 else -1
        return Tree(tuple(found))


def chain_tree(path: Sequence[int]) -> Tree:
    """``path[0]`` is the root, every further rank hangs on the one before it."""
    found = [-1] * len(path)
    for above, rank in pairwise(path):
        found[rank] = above
    return Tree(tuple(found))


def binary_tree(ranks: int) -> Tree:
    """In-order binary tree: the parent of r replaces its lowest set bit b by 2 b (by nothing when that is out of range).

    Rank 0 is the root and has one child; odd ranks are leaves; the depth is at most ceil(log2 n).

    >>> binary_tree(8).parent
    (-1, 2, 4, 2, 0, 6, 4, 6)
    """
    found = [-1]
    for rank in range(1, ranks):
        bit = rank & -rank
        above = (rank ^ bit) | (bit << 1)
        found.append(above if above < ranks else rank ^ bit)
    return Tree(tuple(found))


def double_tree(ranks: int) -> tuple[Tree, Tree]:
    """The binary tree and its complement: mirrored for an even number of ranks, shifted by one for an odd number."""
    first = binary_tree(ranks)
    label = [(rank + 1) % ranks for rank in range(ranks)] if ranks % 2 else [ranks - 1 - rank for rank in range(ranks)]
    return first, first.relabelled(label)


def rooted_double_tree(ranks: int) -> tuple[Tree, Tree]:
    """Two complementary binary trees on ranks 1 to n - 1, both hanging on rank 0 (Sanders, Speck and Traeff, section 3)."""
    if ranks == 2:
        return (chain_tree((0, 1)),) * 2
    first, second = (Tree((-1, *(above + 1 for above in tree.parent))) for tree in double_tree(ranks - 1))
    return first, second


def pipelined(op: str, algorithm: str, ranks: int, trees: Sequence[Tree], *, chunks: int, channels: int) -> Schedule:
    """The message in equal parts over ``trees`` (times ``channels`` copies of each), every part in ``chunks`` pieces.

    all_reduce adds up every tree and copies down again, reduce only adds up, broadcast only copies down. A rank sends a piece
    up when all its children's have come, and down when its parent's has; pieces of one edge follow each other. Piece k
    crosses the edge above a rank in round height + k upwards, and depth - 1 + k (after the root's height) downwards.

    Raises:
        InputError: too many transfers.
    """
    ups, downs = op != "broadcast", op != "reduce"
    if (ups + downs) * (ranks - 1) * chunks * channels * len(trees) > MAX_TRANSFERS:
        raise InputError(f"{op}/{algorithm}: {chunks} chunks on {channels} channels and {ranks} ranks are too many transfers")
    parts = len(trees) * channels
    moves: list[tuple[int, int, bool, int, int]] = []
    for part in range(parts):
        tree = trees[part % len(trees)]
        top = tree.height[tree.down[0]] if ups else 0
        for piece in range(chunks):
            if ups:
                moves += [(tree.height[rank] + piece, piece, True, part, rank) for rank in reversed(tree.down[1:])]
            if downs:
                moves += [(top + tree.depth[rank] - 1 + piece, piece, False, part, rank) for rank in tree.down[1:]]
    moves.sort(key=lambda move: move[:4])
    index = {move[1:]: place for place, move in enumerate(moves)}
    share = 1.0 / (parts * chunks)
    transfers: list[Transfer] = []
    for step, piece, up, part, rank in moves:
        tree = trees[part % len(trees)]
        above = tree.parent[rank]
        if up or (tree.parent[above] < 0 and ups):
            # a rank's own sum is ready when all its children's have come; the root's too
            deps = tuple(index[piece, True, part, child] for child in tree.children[rank if up else above])
        else:
            deps = () if tree.parent[above] < 0 else (index[piece, False, part, above],)
        src, dst = (rank, above) if up else (above, rank)
        transfers.append(Transfer(src, dst, share, deps, step, (part * chunks + piece,), up, part))
    steps = max((move[0] for move in moves), default=-1) + 1
    return Schedule(op, algorithm, ranks, tuple(transfers), steps, (share,) * (parts * chunks), channels=channels)
