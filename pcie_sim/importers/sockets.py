"""Which socket and NUMA node a CPU of a file stands for. Files name NUMA nodes; how many make a socket is said by few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pcie_sim.importers.facts import CpuFact, HostFact

MOST_NUMA = 63
"""Largest NUMA number that a topology file takes."""


@dataclass(frozen=True)
class SocketPlan:
    """Socket number of each CPU key, and what was assumed to get there."""

    socket_of: dict[str, int]
    assumed: tuple[str, ...] = ()


def plan_sockets(cpus: Sequence[CpuFact], host: HostFact | None) -> SocketPlan:
    """Group CPU nodes into sockets.

    What the files say of packages goes first, then the host's number of sockets over its NUMA nodes in blocks (as every BIOS numbers them).
    Failing that: two NUMA nodes are two sockets; four are one AMD socket in NPS4 or two of another vendor; eight and more are two.
    """
    if any(cpu.package is not None for cpu in cpus):
        return _by_package(cpus)
    numas = sorted({cpu.numa for cpu in cpus if cpu.numa is not None and 0 <= cpu.numa <= MOST_NUMA})
    sockets = host.sockets if host is not None else None
    if len(numas) == 0:
        text = "no NUMA nodes are said: all GPUs on one socket" if sockets != 1 else ""
        if sockets is not None and sockets > 1:
            text = f"the host has {sockets} sockets, but no file says which GPU is on which: all on one"
        return SocketPlan({cpu.key: 0 for cpu in cpus}, (text,) if text else ())
    said = host.numa_nodes if host is not None else None
    nodes = max(said or 0, len(numas), numas[-1] + 1)
    if sockets is not None and nodes % max(sockets, 1) == 0:
        assumed: tuple[str, ...] = ()
        if nodes > sockets > 1:
            assumed = (f"{nodes} NUMA nodes on {sockets} sockets: consecutive ones together",)
        return SocketPlan({cpu.key: _block(cpu.numa, nodes, sockets) for cpu in cpus}, assumed)
    sockets = _guess(nodes, cpus, host)
    if nodes == 1:
        return SocketPlan({cpu.key: 0 for cpu in cpus}, ("one NUMA node is named: one socket",) if said is None and sockets == 1 else ())
    if nodes == sockets:
        text = f"sockets are not said: each of the {nodes} NUMA nodes is taken for one"
    else:
        per = nodes // sockets
        many = "sockets" if sockets > 1 else "socket"
        text = f"sockets are not said: {nodes} NUMA nodes are taken for {sockets} {many} with {per} each (NPS{per} or SNC{per})"
    return SocketPlan({cpu.key: _block(cpu.numa, nodes, sockets) for cpu in cpus}, (text + "; `lscpu` says it",))


def _guess(nodes: int, cpus: Sequence[CpuFact], host: HostFact | None) -> int:
    if nodes <= 2:
        return nodes
    vendors = {cpu.vendor.strip().lower() for cpu in cpus if cpu.vendor} | ({host.cpu_vendor.lower()} if host is not None else set())
    amd = any("amd" in vendor for vendor in vendors)
    if nodes <= 4 and amd:
        return 1
    return 2 if nodes % 2 == 0 else nodes


def _block(numa: int | None, nodes: int, sockets: int) -> int:
    return min(numa * sockets // nodes, sockets - 1) if numa is not None and numa >= 0 else 0


def _by_package(cpus: Sequence[CpuFact]) -> SocketPlan:
    by_numa: dict[int | None, int] = {cpu.numa: cpu.package for cpu in cpus if cpu.package is not None and cpu.numa is not None}
    packages = sorted({cpu.package for cpu in cpus if cpu.package is not None})
    at = {package: index for index, package in enumerate(packages)}
    found: dict[str, int] = {}
    lost = []
    for cpu in cpus:
        package = cpu.package if cpu.package is not None else by_numa.get(cpu.numa)
        if package is None:
            lost.append(cpu.key)
        found[cpu.key] = at[package] if package is not None else 0
    assumed = (f"no file says on which socket {', '.join(lost[:4])} is: the first",) if lost and len(packages) > 1 else ()
    return SocketPlan(found, assumed)
