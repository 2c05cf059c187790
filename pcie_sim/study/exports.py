"""A box in the formats of other programs: NCCL's topology XML, and what ``nvidia-smi topo -m`` would print."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pcie_sim.errors import InputError
from pcie_sim.importers.nccl_topo_write import write
from pcie_sim.importers.smi_topo_write import write_topo_m
from pcie_sim.topology import Topology


def nccl_xml(box: Topology) -> str:
    """A file for ``NCCL_TOPO_FILE``.

    Raises:
        InputError: several hosts, which NCCL describes in one file each.
    """
    return write(box.spec)


def topo_m(box: Topology) -> str:
    """The matrix of path words; PHB pairs are printed as NODE (nvidia-smi's PHB is one host bridge, which the tree does not tell).

    Raises:
        InputError: several hosts.
    """
    if len(box.hosts) > 1:
        raise InputError(f"{box.name}: {len(box.hosts)} hosts; nvidia-smi prints one")
    gpus = box.gpus
    links = {frozenset(peer.between): peer.part for peer in box.spec.peers}

    def word(i: int, j: int) -> str:
        kind = box.path_type(gpus[i], gpus[j])
        if kind == "NVL":
            return f"NV{_links(links.get(frozenset((gpus[i], gpus[j]))))}"
        return {"PHB": "NODE"}.get(kind, kind)

    numa = [box.numa_of(gpu) for gpu in gpus]
    if all(one is None for one in numa):  # without NUMA nodes in the file, a socket is one
        order = {socket: index for index, socket in enumerate(box.sockets)}
        numa = [order[box.socket_of(gpu)] for gpu in gpus]
    return write_topo_m(word, numa, count=len(gpus))


def _links(part: str | None) -> int:
    from pcie_sim import catalog
    from pcie_sim.specs.part import InterconnectPart

    loaded = catalog.load_part(part) if part is not None else None
    return loaded.links or 1 if isinstance(loaded, InterconnectPart) else 1


EXPORTS: Mapping[str, Callable[[Topology], str]] = {"nccl-xml": nccl_xml, "topo-m": topo_m}
"""Formats by the name that the command line gives them."""
