"""The :class:`Topology` of one box: GPUs in bus order, directed capacities, routes and transports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ValidationError

from pcie_sim import catalog
from pcie_sim.errors import InputError, unknown_name
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.gpu import GpuSpec, PcieLink
from pcie_sim.specs.machine import CclSettings, SettingsSpec, TopologySpec
from pcie_sim.specs.messages import readable
from pcie_sim.specs.part import PciePart, WriteCollapse
from pcie_sim.topology.capacity import Capacity, build_capacities, kernel_rate, trained_link
from pcie_sim.topology.graph import to_graph
from pcie_sim.topology.network import network_plan, network_route, unjoined_hosts
from pcie_sim.topology.pairs import Pattern, places_of
from pcie_sim.topology.policy import Pair, Transport, check_env, check_version, decide
from pcie_sim.topology.routes import Access, PathType, Route, path_type, peer_route, staged_route, turning_point, unjoined
from pcie_sim.topology.tree import Tree, Where, build_tree

_PCIE_PART = "pcie"


def iommu_text() -> str:
    """What is said of ``settings.iommu: on``: recorded, with what has been published of its cost."""
    share = catalog.load_typed_part(_PCIE_PART, PciePart).translated_share
    published = "" if share is None else f"; published for one box: a flow loses about {1 - share.value:.0%} to full translation"
    return f"iommu: on is recorded, its cost is not predicted{published}"


class Topology:
    """One box, immutable. Made by :func:`~pcie_sim.topology.load_topology` and :func:`~pcie_sim.topology.from_spec`.

    Attributes:
        gpus: node names in bus order (by bus id when every GPU has one, else as in the file).
        links: directed capacities by name: ``<node>.up``, ``<node>.dn``, ``<a>~<b>.fwd|.rev``, ``<socket>.mem``.
    """

    def __init__(
        self,
        spec: TopologySpec,
        where: Where,
        *,
        _shared: tuple[Tree, Mapping[str, Capacity], tuple[str, ...], Mapping[str, int]] | None = None,
    ) -> None:
        if _shared is None:
            try:
                check_env(spec.settings)
            except InputError as exc:
                raise InputError(f"{where.at('settings', 'env')}: {exc}") from exc
            try:
                check_version(spec.settings.ccl)
            except InputError as exc:
                raise InputError(f"{where.at('settings', 'ccl')}: {exc}") from exc
            tree = build_tree(spec, where)
            links, remarks = build_capacities(tree, catalog.load_typed_part(_PCIE_PART, PciePart), where)
            _shared = (tree, MappingProxyType(dict(links)), remarks, MappingProxyType(places_of(tree, links)))
        self._shared = _shared
        self._tree, self._links, self._remarks, self._places = _shared
        self._names = frozenset(self._links)
        self._spec = spec
        self._where = where
        self._patterns: dict[tuple[str, int, int, Access], Pattern] = {}
        self._paths: dict[tuple[int, int, int], Pattern] = {}
        self._transports: dict[tuple[int, int, int], Transport] = {}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count}x {name}" for name, count in self.gpu_counts().items())
        return f"Topology({self.name!r}, {counts})"

    @property
    def name(self) -> str:
        """The file's name for the box."""
        return self._spec.name

    @property
    def title(self) -> str:
        """One line for people; the name when the file has none."""
        return self._spec.title or self._spec.name

    @property
    def spec(self) -> TopologySpec:
        """What the file says, with the settings in force."""
        return self._spec

    @property
    def settings(self) -> SettingsSpec:
        """Software and platform state in force."""
        return self._spec.settings

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the file assumes about the box."""
        return self._spec.assumptions

    @property
    def notes(self) -> tuple[str, ...]:
        """The file's notes, and how its tree was taken (links slower than asked, ports, network cards)."""
        found = [*unjoined_hosts(self._tree), *unjoined(self._tree), *self._spec.notes, *self._tree.notes, *self._remarks]
        if self.settings.iommu == "on":
            found.append(iommu_text())
        if "posted_write_collapse" in self.conditions and not self.collapses:
            found.append("posted_write_collapse: no switch of this box has figures for it, so it changes nothing")
        if self.settings.force_p2p is False and not any(gpu.force_p2p_needed for gpu in self._tree.gpus.values()):
            found.append("force_p2p: false changes nothing: no GPU of this box is known to need the keys")
        return tuple(found)

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPU node names in bus order."""
        return self._tree.bus_order

    @property
    def places(self) -> Mapping[str, int]:
        """A number for every GPU (read-only): pairs of GPUs whose numbers are equal have the same path type and transport."""
        return self._places

    @property
    def links(self) -> Mapping[str, Capacity]:
        """Directed capacities by name (read-only)."""
        return self._links

    @property
    def sockets(self) -> tuple[str, ...]:
        """Socket node names in the order of the file."""
        return tuple(self._tree.sockets)

    def gpu_spec(self, node: str) -> GpuSpec:
        """The spec of GPU node ``node``.

        Raises:
            InputError: no such GPU.
        """
        self._check(node)
        return self._tree.gpus[node]

    def gpu_counts(self) -> dict[str, int]:
        """How many GPUs of each model, in bus order of the first of each."""
        counts: dict[str, int] = {}
        for node in self.gpus:
            model = self._tree.gpus[node].name
            counts[model] = counts.get(model, 0) + 1
        return counts

    def socket_of(self, node: str) -> str:
        """The socket above GPU ``node``."""
        self._check(node)
        return self._tree.socket_of[node]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host node names in the order of the file; one empty name where the file has none."""
        return tuple(name for name, node in self._spec.nodes.items() if node.kind == "host") or ("",)

    def host_of(self, node: str) -> str:
        """The host of GPU ``node`` ("" where the file names none)."""
        self._check(node)
        return self._tree.host_of[node]

    def root_of(self, node: str) -> str:
        """What stands for the root port above GPU ``node``: its root port, or the top device below a socket."""
        self._check(node)
        return self._tree.chains[node][-1]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Faults in force (``settings.conditions``)."""
        return self.settings.conditions

    @property
    def collapses(self) -> Mapping[str, WriteCollapse]:
        """With ``posted_write_collapse`` in force: the uplinks (``<switch>.up``) that can collapse, and when; else empty."""
        if "posted_write_collapse" not in self.conditions:
            return MappingProxyType({})
        found = {f"{name}.up": part.posted_write_collapse for name, part in self._tree.switches.items()}
        return MappingProxyType({name: collapse for name, collapse in found.items() if collapse is not None and name in self._links})

    def numa_of(self, node: str) -> int | None:
        """The NUMA node stated nearest to GPU ``node`` on its way up; None when none is stated."""
        self._check(node)
        return self._tree.numa_of(node)

    def chain(self, node: str) -> tuple[str, ...]:
        """The nodes from GPU ``node`` (included) up to its socket (not included)."""
        self._check(node)
        return self._tree.chains[node]

    def trained_link(self, node: str) -> PcieLink | None:
        """What the link from ``node`` to its parent trains to: the slower of what is asked and what both ends offer; None for
        nodes without a link of their own.
        """
        return trained_link(self._tree, node)

    def capacities(self) -> dict[str, float]:
        """Directed capacities as plain numbers, B/s."""
        return {name: capacity.rate.value for name, capacity in self._links.items()}

    def path_type(self, a: str, b: str) -> PathType:
        """``PIX`` one switch, ``PXB`` several, ``PHB`` through a socket (nvidia-smi's NODE too), ``SYS`` between sockets (or
        NUMA nodes, where stated), ``NVL`` an NVLink bridge. ACS does not change it: the library believes the tree.
        """
        self._pair(a, b)
        return path_type(self._tree, a, b)

    def route(self, a: str, b: str, *, access: Access = "write") -> Route:
        """The peer-to-peer route, whether or not :meth:`transport` would allow it; with ACS on, by way of the root complex.

        ``access`` read: ``b`` pulls from ``a``; the same capacities, which carry less when several reads meet
        (:attr:`Capacity.read_share <pcie_sim.topology.Capacity>`).

        Raises:
            InputError: unknown GPU, ``a == b``, two sockets without a peer connection, or different hosts.
        """
        return self._route("P2P", a, b, access)

    def host_route(self, a: str, b: str) -> Route:
        """The host-staged route: up to the memory of ``b``'s socket (charged twice: written and read), then down.

        Raises:
            InputError: as :meth:`route`.
        """
        return self._route("SHM", a, b)

    def net_route(self, a: str, b: str) -> Route:
        """The route over network cards, or by sockets inside a host without RDMA cards; GPUDirect where it is granted.

        Raises:
            InputError: unknown GPU, ``a == b``, sockets that are not joined, or hosts without a network between them.
        """
        return self._route("NET", a, b)

    def kernel_rate(self, gpu: str) -> Quantity | None:
        """What the kernels of ``gpu`` read from and write to host memory at once, together, B/s; None when the part ``pcie`` has no figure.

        Raises:
            InputError: unknown GPU.
        """
        self._check(gpu)
        port = self._links.get(f"{gpu}.up")
        return None if port is None else kernel_rate(catalog.load_typed_part(_PCIE_PART, PciePart), port.rate)

    def sm_route(self, a: str, b: str, *, access: Access = "write") -> Route:
        """Loads and stores of a kernel (custom AllReduce): :meth:`route`, but through system memory without ForceP2P.

        That is: ``settings.force_p2p`` is false, both GPUs need the keys, and their ways meet at the root complex only. The time of
        such an access is taken as that of a host-staged step (not measured apart).

        Raises:
            InputError: as :meth:`route`.
        """
        self._check(a, b)
        forced = self.settings.force_p2p is False and all(self._tree.gpus[name].force_p2p_needed for name in (a, b))
        if forced and path_type(self._tree, a, b) in ("PHB", "SYS") and turning_point(self._tree, a, b) is None:
            return self._route("SHM", a, b, access)
        return self._route("P2P", a, b, access)

    def transport(self, a: str, b: str, *, gpus: int | None = None) -> Transport:
        """What the collective library uses between the two, and why, by :attr:`settings`.

        ``gpus``: GPUs of the communicator on their host (None: all of the host's); the library sees no others, and NCCL's default
        level depends on how many there are.
        """
        tree = self._tree
        key = (*self._pair(a, b), self._count(a, gpus))
        known = self._transports.get(key)
        if known is None:
            models = (tree.gpus[a], tree.gpus[b])
            pair = Pair(
                path_type=path_type(tree, a, b),
                cpu_vendor=tree.sockets[tree.socket_of[a]].vendor,
                gpus_in_box=key[2],
                drivers=tuple((model.name, model.p2p.stock_driver, model.p2p.evidence) for model in models),
            )
            chosen = decide(self.settings, pair)
            if chosen.kind == "NET":
                chosen = replace(chosen, reason=f"{chosen.reason}: {self._net_reason(a, b)}")
            known = self._transports[key] = chosen
        return known

    def _net_reason(self, a: str, b: str) -> str:
        """How the two meet over the network. What is not joined has a transport all the same, as sockets have that are not joined: only
        a question that needs the way is refused, so that the box can be shown with what it lacks.
        """
        try:
            return network_plan(self._tree, self.settings, a, b, self._where).reason
        except InputError:
            return "no network joins them"

    def _count(self, gpu: str, gpus: int | None) -> int:
        """GPUs that the library sees on the host of ``gpu``, as far as its rules tell them apart: 1, 2 or more."""
        return min(self._tree.gpus_on[self._tree.host_of[gpu]] if gpus is None else gpus, 3)

    def path(self, a: str, b: str, *, gpus: int | None = None) -> Route:
        """The route that :meth:`transport` chooses.

        Raises:
            InputError: as :meth:`route` and :meth:`net_route`.
        """
        key = (*self._pair(a, b), self._count(a, gpus))
        pattern = self._paths.get(key)
        if pattern is None:
            pattern = self._paths[key] = Pattern.of(self._route(self.transport(a, b, gpus=gpus).kind, a, b))
        return pattern.between(a, b)

    def with_settings(
        self,
        *,
        p2p: Literal["auto", "on", "off"] | None = None,
        acs: Literal["on", "off"] | None = None,
        iommu: Literal["on", "off"] | None = None,
        ccl: CclSettings | str | None = None,
        env: Mapping[str, str | int] | None = None,
        max_payload: Literal[128, 256, 512] | None = None,
        conditions: Sequence[str] | None = None,
        force_p2p: bool | None = None,
    ) -> Topology:
        """The same box with other settings; None keeps what is there, ``env`` is merged over it.

        ``ccl`` is a version of the library in force ("2.28"), a name and version ("rccl 2.22"), or :class:`CclSettings`.

        Raises:
            InputError: a value that the settings do not have.
        """
        settings: dict[str, Any] = self.settings.model_dump()
        asked = {"p2p": p2p, "acs": acs, "iommu": iommu, "max_payload": max_payload, "force_p2p": force_p2p}
        settings.update({key: value for key, value in asked.items() if value is not None})
        if conditions is not None:
            settings["conditions"] = tuple(conditions)
        if ccl is not None:
            settings["ccl"] = (ccl if isinstance(ccl, CclSettings) else self._parse_ccl(ccl)).model_dump()
        if env is not None:
            settings["env"] = {**settings["env"], **env}
        try:
            found = SettingsSpec.model_validate(settings)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_context=False)[0]
            key = ".".join(str(item)[:40] for item in first["loc"] if item != "[key]")
            raise InputError(f"setting {key}: {readable(first)}") from exc
        check_env(found)
        check_version(found.ccl)
        shared = self._shared if found.max_payload == self.settings.max_payload else None
        return Topology(self._spec.model_copy(update={"settings": found}), self._where, _shared=shared)

    def _parse_ccl(self, text: str) -> CclSettings:
        words = text.replace("=", " ").split()
        if len(words) == 1 and self.settings.ccl.name == "oneccl":  # a bare version is NCCL's or RCCL's, which number alike
            held = f"oneccl {self.settings.ccl.version}"
            raise InputError(f"collective library {text[:40]!r}: this box runs {held}; name the library, too, like {held}")
        name = words[0].lower() if len(words) == 2 else self.settings.ccl.name
        if len(words) == 1 and name == "none":
            name = "nccl"
        try:
            return CclSettings.model_validate({"name": name, "version": words[-1] if words else ""})
        except ValidationError as exc:
            raise InputError(f"collective library {text[:40]!r} is not understood; write a version like 2.28, or nccl 2.28") from exc

    def to_networkx(self) -> Any:
        """A ``networkx.DiGraph``: nodes with ``kind`` and ``part``; an edge per direction with ``name`` and ``rate`` (B/s; both
        None where a plain root port or socket sets no limit) and ``peer`` (True outside the tree). Host memory is ``<socket>.mem``;
        virtual switches of one chip are joined by an edge without name.
        """
        return to_graph(self._tree, self._links)

    def _route(self, kind: Literal["P2P", "SHM", "NET"], a: str, b: str, access: Access = "write") -> Route:
        key = (kind, *self._pair(a, b), access)
        pattern = self._patterns.get(key)
        if pattern is None:
            if kind == "P2P":
                route = peer_route(self._tree, self._names, a, b, acs=self.settings.acs == "on", where=self._where, access=access)
            elif kind == "SHM":
                route = staged_route(self._tree, self._names, a, b, where=self._where, access=access)
            else:
                route = network_route(self._tree, self._names, self.settings, a, b, where=self._where)
            pattern = self._patterns[key] = Pattern.of(route)
        return pattern.between(a, b)

    def _pair(self, a: str, b: str) -> tuple[int, int]:
        """The places of two different GPUs."""
        places = self._places
        if a == b or a not in places or b not in places:
            self._check(a, b)
        return places[a], places[b]

    def _check(self, *nodes: str) -> None:
        for node in nodes:
            if node not in self._tree.gpus:
                raise InputError(f"{self.name}: {unknown_name('GPU', str(node), self.gpus)}")
        if len(nodes) == 2 and nodes[0] == nodes[1]:
            raise InputError(f"{self.name}: a route needs two different GPUs, got {nodes[0]} twice")
