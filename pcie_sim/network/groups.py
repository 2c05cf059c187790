"""Which GPUs are near each other, for algorithms in two levels: those under one switch, else those of one socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pcie_sim.collectives import Groups

if TYPE_CHECKING:
    from pcie_sim.specs.machine import NodeSpec
    from pcie_sim.topology import Topology


def switch_groups(topology: Topology, gpus: Sequence[str]) -> Groups:
    """``gpus`` as groups of indices into it, each group in the given order, the groups in the order of their first member.

    The finest of these cuts that puts two GPUs together without putting all together: under the same nearest switch (a GPU without a
    switch counts with its socket), under the same topmost switch, on the same socket, in the same host. Where there is none, all
    are one group.
    """
    nodes = topology.spec.nodes
    chains = [_above(nodes, gpu) for gpu in gpus]
    for key in (_nearest_switch, _topmost_switch, _of_kind("socket"), _of_kind("host")):
        found: dict[str, list[int]] = {}
        for index, chain in enumerate(chains):
            found.setdefault(key(nodes, chain), []).append(index)
        if 1 < len(found) < len(gpus):
            return tuple(tuple(items) for items in found.values())
    return (tuple(range(len(gpus))),)


def _above(nodes: Mapping[str, NodeSpec], node: str) -> list[str]:
    """The nodes above ``node``, nearest first."""
    found: list[str] = []
    parent = nodes[node].parent
    while parent is not None:
        found.append(parent)
        parent = nodes[parent].parent
    return found


def _nearest_switch(nodes: Mapping[str, NodeSpec], chain: list[str]) -> str:
    return next((node for node in chain if nodes[node].kind == "switch"), _of_kind("socket")(nodes, chain))


def _topmost_switch(nodes: Mapping[str, NodeSpec], chain: list[str]) -> str:
    return _nearest_switch(nodes, chain[::-1])


def _of_kind(kind: str) -> Callable[[Mapping[str, NodeSpec], list[str]], str]:
    def find(nodes: Mapping[str, NodeSpec], chain: list[str]) -> str:
        return next((node for node in chain if nodes[node].kind == kind), "")

    return find
