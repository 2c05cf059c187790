"""A box as a networkx graph, for drawing and for checks with other programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from pcie_sim.topology.capacity import Capacity
from pcie_sim.topology.tree import Tree


def to_graph(tree: Tree, links: Mapping[str, Capacity]) -> Any:
    """The ``networkx.DiGraph`` of :meth:`Topology.to_networkx <pcie_sim.topology.Topology.to_networkx>`."""
    import networkx as nx

    graph = nx.DiGraph(name=tree.spec.name)

    def edge(start: str, end: str, capacity: str, *, peer: bool) -> None:
        known = links.get(capacity)
        graph.add_edge(start, end, name=capacity if known else None, rate=known.rate.value if known else None, peer=peer)

    for name, node in tree.spec.nodes.items():
        graph.add_node(name, kind=node.kind, part=node.part)
    for name, node in tree.spec.nodes.items():
        if node.parent is not None:
            edge(name, node.parent, f"{name}.up", peer=False)
            edge(node.parent, name, f"{name}.dn", peer=False)
    for first, second in itertools.permutations(tree.chips, 2):
        if tree.chips[first] == tree.chips[second]:
            edge(first, second, "", peer=False)
    for joined in tree.peers:
        first, second = joined.between
        edge(first, second, f"{joined.name}.fwd", peer=True)
        edge(second, first, f"{joined.name}.rev", peer=True)
    for socket in tree.sockets:
        memory = f"{socket}.mem"
        graph.add_node(memory, kind="memory", part=None)
        for start, end in ((socket, memory), (memory, socket)):
            edge(start, end, memory, peer=False)
    return graph
