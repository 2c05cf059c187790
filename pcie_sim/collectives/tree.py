"""Tree algorithms: NCCL's tree (a chain inside a node), binary trees, and two complementary ones with half the message each."""

from __future__ import annotations

from pcie_sim.collectives.registry import register
from pcie_sim.collectives.schedule import Schedule
from pcie_sim.collectives.trees import PIPELINE_CHUNKS, binary_tree, chain_tree, double_tree, pipelined, rooted_double_tree


@register("all_reduce", "tree")
def chain(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """What NCCL calls a tree, inside one node: sums travel n - 1 -> ... -> 0 and come back down (NVIDIA/nccl:src/graph/connect.cc).

    2 (n - 1) hops; every inner rank sends and receives the message twice, so busbw is at most half the link's (as the library
    counts it: NVIDIA/nccl:src/graph/tuning.cc).
    """
    return pipelined("all_reduce", "tree", ranks, [chain_tree(range(ranks))], chunks=chunks, channels=channels)


@register("all_reduce", "binary_tree")
def binary(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """One binary tree: at most 2 ceil(log2 n) hops, but an inner rank sends and receives the message three times."""
    return pipelined("all_reduce", "binary_tree", ranks, [binary_tree(ranks)], chunks=chunks, channels=channels)


@register("all_reduce", "double_binary_tree")
def double(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """Half the message over each of two complementary trees: a rank is inner in one and a leaf in the other, and sends and receives
    twice the message in all. ``chunks`` counts the pieces of each half.
    """
    return pipelined("all_reduce", "double_binary_tree", ranks, double_tree(ranks), chunks=chunks, channels=channels)


@register("broadcast", "binary_tree")
def broadcast(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """Down one binary tree: at most ceil(log2 n) hops, an inner rank sends the message twice."""
    return pipelined("broadcast", "binary_tree", ranks, [binary_tree(ranks)], chunks=chunks, channels=channels)


@register("reduce", "binary_tree")
def reduce(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """Up one binary tree."""
    return pipelined("reduce", "binary_tree", ranks, [binary_tree(ranks)], chunks=chunks, channels=channels)


@register("broadcast", "double_binary_tree")
def broadcast_double(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """Half the message down each of two complementary trees below rank 0: every rank sends about the message once."""
    return pipelined("broadcast", "double_binary_tree", ranks, rooted_double_tree(ranks), chunks=chunks, channels=channels)


@register("reduce", "double_binary_tree")
def reduce_double(ranks: int, chunks: int = PIPELINE_CHUNKS, channels: int = 1) -> Schedule:
    """Half the message up each of two complementary trees below rank 0."""
    return pipelined("reduce", "double_binary_tree", ranks, rooted_double_tree(ranks), chunks=chunks, channels=channels)
