"""Boxes as published logs and tables describe them, written as topologies, for tests of the library's choices."""

from __future__ import annotations

from typing import Any

from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec

GPUS = {"sm_86": "rtx-3090", "sm_89": "rtx-4090", "sm_90": "h100-pcie", "sm_120": "rtx-pro-6000-blackwell-server"}
CROSS = {"epyc-turin": "xgmi-turin", "epyc-rome": "xgmi-rome"}


def box(
    gpu: str,
    cpu: str,
    *,
    sockets: int = 1,
    switches: int = 0,
    gpus: int = 8,
    numa: int = 0,
    leaf: bool = False,
    link: str | None = None,
    p2p: str = "on",
    version: str = "2.28",
    env: dict[str, str] | None = None,
) -> Topology:
    """``gpus`` GPUs in equal shares over the sockets; ``switches`` in all (0: root ports); ``leaf``: switches under one root switch;
    ``numa`` > 0: so many NUMA nodes, GPUs in equal shares over them.
    """
    nodes: dict[str, Any] = {f"cpu{index}": {"kind": "socket", "part": cpu} for index in range(sockets)}
    part = GPUS[gpu]
    gen = "gen5 x16" if gpu in ("sm_90", "sm_120") else "gen4 x16"
    if leaf:
        nodes["rp"] = {"kind": "root_port", "parent": "cpu0"}
        nodes["top"] = {"kind": "switch", "part": "generic-gen5-switch", "parent": "rp", "link": gen}
    for index in range(switches):
        parent = "top" if leaf else f"rp{index}"
        if not leaf:
            nodes[parent] = {"kind": "root_port", "parent": f"cpu{index * sockets // switches}"}
        nodes[f"sw{index}"] = {"kind": "switch", "part": "generic-gen5-switch", "parent": parent, "link": link or gen}
    for index in range(gpus):
        parent = f"sw{index * switches // gpus}" if switches else f"cpu{index * sockets // gpus}"
        nodes[f"gpu{index}"] = {"kind": "gpu", "part": part, "parent": parent, "link": link or gen}
        if numa:
            nodes[f"gpu{index}"]["numa"] = index * numa // gpus
    across = CROSS.get(cpu, "upi-sapphire-rapids")
    peers = [{"between": (f"cpu{index}", f"cpu{index + 1}"), "part": across} for index in range(sockets - 1)]
    settings = {"p2p": p2p, "ccl": {"name": "nccl", "version": version}, "env": {"NCCL_P2P_LEVEL": "SYS"} if env is None else env}
    data = {"schema": "pcie-sim/topology/1", "name": "test-box", "nodes": nodes, "peers": peers, "settings": settings}
    return from_spec(TopologySpec.model_validate(data))
