"""Random boxes for tests: up to three joined sockets, switches up to three deep, two to eight GPUs, with and without peer-to-peer."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec

LINKS = ("gen3 x8", "gen4 x16", "gen5 x8", "gen5 x16")
SETTINGS: tuple[dict[str, Any], ...] = (
    {"ccl": {"name": "none"}, "p2p": "on"},
    {"ccl": {"name": "none"}, "p2p": "off"},
    {"ccl": {"name": "nccl"}, "p2p": "on", "env": {"NCCL_P2P_LEVEL": "SYS"}},
    {"ccl": {"name": "nccl"}},
)


@st.composite
def boxes(draw: st.DrawFn) -> Topology:
    """A random tree; several GPUs of one place are often identical."""
    sockets = [f"cpu{i}" for i in range(draw(st.integers(1, 3)))]
    nodes: dict[str, dict[str, Any]] = {name: {"kind": "socket", "part": "generic-amd"} for name in sockets}
    above = list(sockets)
    for i in range(draw(st.integers(0, 4))):
        parent = draw(st.sampled_from(above))
        if parent in sockets:
            nodes[f"rp{i}"] = {"kind": "root_port", "parent": parent}
            parent = f"rp{i}"
        nodes[f"sw{i}"] = {"kind": "switch", "part": "pm50100", "parent": parent, "link": draw(st.sampled_from(LINKS))}
        above.append(f"sw{i}")
    left = draw(st.integers(2, 8))
    while left:
        count = draw(st.integers(1, left))
        place = {"kind": "gpu", "part": "rtx-pro-6000-blackwell-server", "parent": draw(st.sampled_from(above))}
        link = draw(st.sampled_from(LINKS))
        for _ in range(count):
            left -= 1
            nodes[f"gpu{left}"] = {**place, "link": link}
    peers = [{"between": [a, b], "part": "xgmi-turin"} for i, a in enumerate(sockets) for b in sockets[i + 1 :]]
    data = {"schema": "pcie-sim/topology/1", "name": "t", "nodes": nodes, "peers": peers, "settings": draw(st.sampled_from(SETTINGS))}
    return from_spec(TopologySpec.model_validate(data))


def gpus_below(box: Topology, node: str) -> set[str]:
    """The GPUs in the subtree of ``node``."""
    found = set()
    for gpu in box.gpus:
        at: str | None = gpu
        while at is not None and at != node:
            at = box.spec.nodes[at].parent
        if at is not None:
            found.add(gpu)
    return found
