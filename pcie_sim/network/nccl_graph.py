"""The box as the collective library sees it: NUMA nodes, links with the library's own bandwidths, one path per pair of GPUs.

Rules of NVIDIA/nccl:src/graph/topo.cc (link rates, inter-NUMA rates), paths.cc (path classes, pairs without peer access sent by
way of the receiver's NUMA node, at the same rates) and search.cc (a factor on PCIe links for traffic through one Intel root
complex). Rates are the library's beliefs in GB/s, not physics: ACS, memory and flow limits do not appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pcie_sim.catalog import load_typed_part
from pcie_sim.network.nccl_rules import by_capability, capability
from pcie_sim.specs.part import InterconnectPart, LibraryTuning, SocketPart
from pcie_sim.topology.policy import LEVELS

if TYPE_CHECKING:
    from pcie_sim.topology import Topology

NVL, NVB, PIX, PXB, PHB, SYS = (LEVELS.index(name) for name in ("NVL", "NVB", "PIX", "PXB", "PHB", "SYS"))
GB = 1e9


@dataclass(frozen=True)
class Path:
    """One way from a GPU (or card) to another: class (index into the library's levels), links in order and whether each is PCIe,
    and whether it goes through one Intel root complex.
    """

    kind: int
    links: tuple[int, ...]
    pci: tuple[bool, ...]
    taxed: bool = False

    @property
    def hops(self) -> int:
        """Links on the way."""
        return len(self.links)

    def rate(self, widths: Sequence[float]) -> float:
        """The slowest link, GB/s."""
        return min((widths[link] for link in self.links), default=float("inf"))


@dataclass(frozen=True)
class Net:
    """A network card that every ring enters and leaves the box by: its rate (GB/s) and its paths to and from each GPU."""

    rate: float
    to_gpu: tuple[Path, ...]
    from_gpu: tuple[Path, ...]


@dataclass(frozen=True)
class System:
    """What the search works on. ``gpus`` are in the library's topology order; ``paths[i][j]`` from the i-th to the j-th.

    Attributes:
        widths: rate of each directed link, GB/s.
        total: the most that one GPU can send, GB/s (where the search may stop).
        capabilities: lowest and highest compute capability.
        amd: the CPUs are x86 by AMD.
        socket_rate: rate believed between NUMA nodes, GB/s; None when all GPUs hang off one.
    """

    gpus: tuple[str, ...]
    widths: tuple[float, ...]
    paths: tuple[tuple[Path | None, ...], ...]
    total: float
    capabilities: tuple[tuple[int, int], tuple[int, int]]
    amd: bool
    socket_rate: float | None = None
    net: Net | None = None

    @property
    def fastest(self) -> float:
        """The best rate of any path that a ring can use, GB/s."""
        if self.net is not None:
            return max((path.rate(self.widths) for path in self.net.from_gpu), default=0.0)
        return max((path.rate(self.widths) for row in self.paths for path in row if path is not None), default=0.0)


@dataclass
class Links:
    """Directed links by name while a system is put together."""

    names: dict[str, int] = field(default_factory=dict)
    widths: list[float] = field(default_factory=list)

    def add(self, name: str, width: float) -> int:
        """The index of link ``name``, made with ``width`` (GB/s) if it is new."""
        if name not in self.names:
            self.names[name] = len(self.widths)
            self.widths.append(width)
        return self.names[name]


def see(topology: Topology, group: Sequence[str], tuning: LibraryTuning) -> System:
    """``group`` of GPUs of ``topology`` as the library sees it: only their part of the tree exists for it."""
    return _Viewer(topology, tuple(group), tuning).system()


class _Viewer:
    def __init__(self, topology: Topology, group: tuple[str, ...], tuning: LibraryTuning) -> None:
        self.topology, self.group, self.tuning = topology, group, tuning
        self.links = Links()
        self.numa = {gpu: (topology.socket_of(gpu), topology.numa_of(gpu)) for gpu in group}
        self.sockets = {name: load_typed_part(topology.spec.nodes[name].part or "", SocketPart) for name, _ in self.numa.values()}
        self.capability = {gpu: capability(topology.gpu_spec(gpu).compute_capability) for gpu in group}
        first = self.sockets[self.numa[group[0]][0]]
        self.vendor, self.socket_part = first.vendor, first.name
        self.ways = {gpu: self._way(gpu) for gpu in group}

    def system(self) -> System:
        order = self._order()
        rows = tuple(tuple(None if a == b else self._path(a, b) for b in order) for a in order)
        several = len(set(self.numa.values())) > 1
        seen = sorted(self.capability.values())
        return System(
            gpus=order,
            widths=tuple(self.links.widths),
            paths=rows,
            total=self._total(),
            capabilities=(seen[0], seen[-1]),
            amd=self.vendor == "amd",
            socket_rate=self._between() if several else None,
        )

    def _order(self) -> tuple[str, ...]:
        """NUMA nodes in the order first seen, below them children by bus order: siblings stand together."""
        seen: dict[tuple[object, ...], int] = {}

        def rank(*key: object) -> int:
            return seen.setdefault(key, len(seen))

        keys = {}
        for gpu in self.group:
            above = [node for node in reversed(self.topology.chain(gpu)) if self.topology.spec.nodes[node].kind in ("switch", "gpu")]
            keys[gpu] = (rank(self.numa[gpu]), *(rank(self.numa[gpu], node) for node in above))
        return tuple(sorted(self.group, key=keys.__getitem__))

    def _way(self, gpu: str) -> tuple[tuple[str, float], ...]:
        """PCIe links of the library's tree from ``gpu`` up to its NUMA node: (node below the link, GB/s)."""
        found: list[tuple[str, float]] = []
        chain = self.topology.chain(gpu)
        for index, node in enumerate(chain):
            if self.topology.spec.nodes[node].kind == "root_port":
                continue
            rate = self._rate(node)
            above = chain[index + 1] if index + 1 < len(chain) else None
            if above is not None and self.topology.spec.nodes[above].kind == "root_port" and self.topology.spec.nodes[above].link:
                rate = min(rate, self._rate(above))
            found.append((node, rate))
        return tuple(found)

    def _rate(self, node: str) -> float:
        link = self.topology.trained_link(node)
        if link is None:
            return self.tuning.search.local_rate / GB
        lane = self.tuning.lane_rate.get(link.gen, self.tuning.lane_rate[max(self.tuning.lane_rate)])
        return lane * link.width / GB

    def _up(self, way: Sequence[tuple[str, float]]) -> list[int]:
        return [self.links.add(f"{node}.up", rate) for node, rate in way]

    def _down(self, way: Sequence[tuple[str, float]]) -> list[int]:
        return [self.links.add(f"{node}.dn", rate) for node, rate in reversed(way)]

    def _path(self, a: str, b: str) -> Path:
        kind = self.topology.path_type(a, b)
        peers = self.topology.transport(a, b, gpus=len(self.group)).kind == "P2P"
        if kind == "NVL" and peers:
            return Path(NVL, (self.links.add(f"{a}~{b}", self._nvlink(a, b)),), (False,))
        up, down = self.ways[a], self.ways[b]
        if peers and kind in ("PIX", "PXB"):
            above = {node for node, _ in up}
            shared = {node for node, _ in down} & above
            up = tuple(item for item in up if item[0] not in shared)
            down = tuple(item for item in down if item[0] not in shared)
            links = [*self._up(up), *self._down(down)]
            return Path(PIX if kind == "PIX" else PXB, tuple(links), (True,) * len(links))
        rising, falling = self._up(up), self._down(down)
        if self.numa[a] == self.numa[b]:
            return Path(PHB, (*rising, *falling), (True,) * (len(up) + len(down)), taxed=self.vendor == "intel")
        cross = self.links.add(f"{self.numa[a]}>{self.numa[b]}", self._between())
        return Path(SYS, (*rising, cross, *falling), (*(True,) * len(up), False, *(True,) * len(down)))

    def _between(self) -> float:
        table = self.tuning.socket_rate
        return table.get(self.socket_part, table.get(self.vendor, table["other"])) / GB

    def _nvlink(self, a: str, b: str) -> float:
        peer = next(peer for peer in self.topology.spec.peers if set(peer.between) == {a, b})
        part = load_typed_part(peer.part, InterconnectPart)
        if part.links is None:
            return part.p2p_bandwidth.value / GB
        table, own = self.tuning.nvlink_rate, min(self.capability[a], self.capability[b])
        exact = f"{own[0]}.{own[1]}"
        each = table[exact] if exact in table else by_capability({key: rate for key, rate in table.items() if key != "8.6"}, own)
        return part.links * each / GB

    def _total(self) -> float:
        """The most that one GPU can send: its PCIe link or its NVLinks."""
        best = 0.0
        for gpu in self.group:
            joined = sum(self.links.widths[index] for name, index in self.links.names.items() if name.startswith(f"{gpu}~"))
            best = max(best, self.ways[gpu][0][1], joined)
        return best
