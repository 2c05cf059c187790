"""The tree of one box: parents checked, parts resolved, every complaint with its file, line and key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from pcie_sim import catalog
from pcie_sim.errors import InputError, UnknownNameError, unknown_name
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.loader import line_of_key
from pcie_sim.specs.machine import NodeSpec, TopologySpec
from pcie_sim.specs.part import InterconnectPart, NicPart, SocketPart, SwitchPart

PARENTS: Mapping[str, tuple[str, ...]] = {
    "host": (),
    "socket": ("host",),
    "root_port": ("socket",),
    "switch": ("root_port", "switch"),
    "gpu": ("root_port", "switch", "socket"),
    "nic": ("root_port", "switch", "socket"),
    "fabric": (),
}
"""Which kinds may be a node's parent (design 4.4)."""
_NEEDS_PART = ("socket", "switch", "gpu")
_NO_PART = ("host", "root_port", "fabric")
_NO_LINK = ("host", "socket", "fabric")
_NO_PARENT = ("host", "socket", "fabric")
_NETWORK = ("nic", "fabric")
_EXAMPLE_PART = {"socket": "epyc-turin", "switch": "generic-gen5-switch", "gpu": "rtx-4090"}
_BUS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")
SpecT = TypeVar("SpecT", GpuSpec, SocketPart, SwitchPart, NicPart, InterconnectPart)


@dataclass(frozen=True)
class Where:
    """The file (and its text) that a complaint is about."""

    source: str
    text: str | None = None

    def at(self, *keys: str | int) -> str:
        """``file:line: key`` of ``keys``; the line only when the text is known."""
        line = line_of_key(self.text, keys) if self.text is not None else None
        place = f"{self.source}:{line}" if line else self.source
        return f"{place}: {'.'.join(str(key) for key in keys)}"

    def error(self, message: str, *keys: str | int) -> InputError:
        """An :class:`InputError` at ``keys``."""
        return InputError(f"{self.at(*keys)}: {message}")


@dataclass(frozen=True)
class Peer:
    """A connection outside the tree; ``name`` is ``<a>~<b>``, and ``forward`` from a to b is ``<name>.fwd``."""

    name: str
    between: tuple[str, str]
    part: InterconnectPart

    def leaving(self, node: str) -> str:
        """The directed capacity that traffic out of ``node`` takes."""
        return f"{self.name}.fwd" if node == self.between[0] else f"{self.name}.rev"

    def other(self, node: str) -> str:
        """The far end."""
        return self.between[1] if node == self.between[0] else self.between[0]


@dataclass(frozen=True, eq=False)
class Tree:
    """The checked tree.

    ``chains`` maps every gpu and nic to the nodes from itself up to, not with, its socket; ``host_of`` every socket, gpu and nic to
    its host ("" where the file names none); ``nics`` holds the cards with a part, ``chips`` the labelled virtual switches.
    """

    spec: TopologySpec
    chains: Mapping[str, tuple[str, ...]]
    socket_of: Mapping[str, str]
    gpus: Mapping[str, GpuSpec]
    sockets: Mapping[str, SocketPart]
    switches: Mapping[str, SwitchPart]
    peers: tuple[Peer, ...]
    bus_order: tuple[str, ...]
    host_of: Mapping[str, str]
    nics: Mapping[str, NicPart]
    chips: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())

    def chip_of(self, switch: str) -> tuple[str, str]:
        """What stands for the physical chip of ``switch``: equal for virtual switches of one chip."""
        return ("chip", self.chips[switch]) if switch in self.chips else ("switch", switch)

    @cached_property
    def gpus_on(self) -> Mapping[str, int]:
        """Number of GPUs by host."""
        return Counter(self.host_of[gpu] for gpu in self.gpus)

    def numa_of(self, device: str) -> int | None:
        """The NUMA node stated nearest to ``device`` on its way up; None when none is stated."""
        for name in (*self.chains[device], self.socket_of[device]):
            numa = self.spec.nodes[name].numa
            if numa is not None:
                return numa
        return None

    def peers_of(self, node: str) -> tuple[Peer, ...]:
        """The peer connections that end at ``node``, in the order of the file."""
        return self._peers_at.get(node, ())

    @cached_property
    def _peers_at(self) -> Mapping[str, tuple[Peer, ...]]:
        found: dict[str, tuple[Peer, ...]] = {}
        for peer in self.peers:
            for node in peer.between:
                found[node] = (*found.get(node, ()), peer)
        return found

    @cached_property
    def sites(self) -> Mapping[str, int]:
        """A number for every gpu and nic, equal for those that stand at one place: same socket, NUMA node, switches and root ports with
        a link of their own (plain ones carry and decide nothing). A GPU with a bridge stands alone. Large boxes have few places.
        """
        known: dict[tuple[object, ...], int] = {}
        bridged = {node for peer in self.peers if peer.part.role == "nvlink" for node in peer.between}
        found: dict[str, int] = {}
        for name, chain in self.chains.items():
            above = tuple(node for node in chain[1:] if node in self.switches or self.spec.nodes[node].link is not None)
            key = (self.socket_of[name], self.numa_of(name), above, name if name in bridged else "")
            found[name] = known.setdefault(key, len(known))
        return found


def build_tree(spec: TopologySpec, where: Where) -> Tree:
    """Check the tree rules of the format and resolve every part.

    Raises:
        InputError: a broken tree or an unknown part; names the place.
    """
    _check_kinds(spec, where)
    for name, node in spec.nodes.items():
        _check_node(spec, name, node, where)
    chains: dict[str, tuple[str, ...]] = {}
    socket_of: dict[str, str] = {}
    for name, node in spec.nodes.items():
        way, socket = _climb(spec, name, where)
        if socket is not None:
            socket_of[name] = socket
            if node.kind in ("gpu", "nic"):
                chains[name] = way
    gpus = {name: _gpu(node, where, name) for name, node in spec.nodes.items() if node.kind == "gpu"}
    if not gpus:
        raise where.error("no node of kind gpu; add at least one", "nodes")
    sockets = {n: _part(x.part or "", SocketPart, where, "nodes", n, "part") for n, x in spec.nodes.items() if x.kind == "socket"}
    switches = {n: _part(x.part or "", SwitchPart, where, "nodes", n, "part") for n, x in spec.nodes.items() if x.kind == "switch"}
    nics = {n: _part(x.part, NicPart, where, "nodes", n, "part") for n, x in spec.nodes.items() if x.kind == "nic" and x.part}
    host_of = {name: spec.nodes[socket].parent or "" for name, socket in socket_of.items()}
    host_of |= {name: spec.nodes[name].parent or "" for name in sockets}
    peers = _peers(spec, host_of, where)
    order, notes = _bus_order(spec, host_of, where)
    chips = _chips(spec, host_of, where)
    remarks = (*notes, *_remarks(spec))
    return Tree(spec, chains, socket_of, gpus, sockets, switches, peers, order, host_of, nics, chips, remarks)


def check_raw(data: object, where: Where) -> None:
    """Complain about two parents (a list where one name belongs) before the general checks turn it into a type error."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, dict):
        return
    for name, node in nodes.items():
        if isinstance(node, dict) and isinstance(node.get("parent"), list):
            many = ", ".join(str(item) for item in node["parent"])[:80]
            raise where.error(
                f"a node has one parent, found a list ({many}); a second path is a `peers` entry, parallel uplinks are `links: 2`",
                "nodes",
                str(name),
                "parent",
            )


def _check_kinds(spec: TopologySpec, where: Where) -> None:
    hosts = [name for name, node in spec.nodes.items() if node.kind == "host"]
    sockets = {name: node for name, node in spec.nodes.items() if node.kind == "socket"}
    if not sockets:
        raise where.error("no node of kind socket: the tree has no root; add one with a part such as generic-amd", "nodes")
    loose = [name for name, node in sockets.items() if node.parent is None]
    if hosts and loose and len(loose) < len(sockets):
        raise where.error(
            f"two trees: {loose[0]} has no parent while other sockets are under {hosts[0]}; give it `parent: {hosts[0]}`", "nodes", loose[0]
        )


def _check_node(spec: TopologySpec, name: str, node: NodeSpec, where: Where) -> None:
    place = ("nodes", name)
    allowed = PARENTS[node.kind]
    if node.parent is None:
        if node.kind not in _NO_PARENT:
            raise where.error(f"a {node.kind} needs a parent ({' or '.join(allowed)}): it has no way to a root", *place)
    else:
        parent = spec.nodes.get(node.parent)
        if parent is None:
            raise InputError(f"{where.at(*place, 'parent')}: {unknown_name('node', node.parent, spec.nodes)}")
        if node.parent == name:
            raise where.error("a node cannot be its own parent (cycle)", *place, "parent")
        if not allowed:
            joined = "; join it by `peers`" if node.kind == "fabric" else ""
            raise where.error(f"a {node.kind} has no parent; remove the key{joined}", *place, "parent")
        if parent.kind not in allowed:
            hint = "; put a root_port between" if node.kind == "switch" and parent.kind == "socket" else ""
            raise where.error(
                f"{node.parent} is a {parent.kind}; the parent of a {node.kind} must be a {' or '.join(allowed)}{hint}", *place, "parent"
            )
    if node.kind in _NEEDS_PART and node.part is None:
        raise where.error(f"a {node.kind} needs a part, for example `part: {_EXAMPLE_PART[node.kind]}`", *place)
    if node.kind in _NO_PART and node.part is not None:
        whose = "the parts of its `peers` describe" if node.kind == "fabric" else "its socket's part describes"
        raise where.error(f"a {node.kind} takes no part; remove the key ({whose} it)", *place, "part")
    if node.kind in _NO_LINK and (node.link is not None or node.links != 1 or node.half_duplex):
        key = "link" if node.link else "links" if node.links != 1 else "half_duplex"
        raise where.error(f"a {node.kind} has no PCIe link to a parent; remove the key", *place, key)
    if node.chip is not None and node.kind != "switch":
        raise where.error(f"a {node.kind} is no part of a switch chip; remove the key", *place, "chip")


def _climb(spec: TopologySpec, name: str, where: Where) -> tuple[tuple[str, ...], str | None]:
    """The nodes from ``name`` up to its socket (not included), and the socket; a host has none."""
    way: dict[str, None] = {}
    at: str | None = name
    while at is not None:
        node = spec.nodes[at]
        if node.kind == "socket":
            return tuple(way), at
        if at in way:
            seen = list(way)
            loop = [*seen[seen.index(at) :], at]
            raise where.error(f"cycle of parents: {' -> '.join(loop[:12])}", "nodes", at, "parent")
        way[at] = None
        at = node.parent
    return tuple(way), None


def _gpu(node: NodeSpec, where: Where, name: str) -> GpuSpec:
    try:
        return catalog.load_gpu(node.part or "")
    except UnknownNameError as exc:
        raise UnknownNameError(f"{where.at('nodes', name, 'part')}: {exc}") from exc


def _part(part: str, kind: type[SpecT], where: Where, *keys: str | int) -> SpecT:
    try:
        return catalog.load_typed_part(part, kind)
    except UnknownNameError as exc:
        raise UnknownNameError(f"{where.at(*keys)}: {exc}") from exc
    except InputError as exc:
        raise InputError(f"{where.at(*keys)}: {exc}") from exc


def _peers(spec: TopologySpec, host_of: Mapping[str, str], where: Where) -> tuple[Peer, ...]:
    found: dict[frozenset[str], Peer] = {}
    for index, peer in enumerate(spec.peers):
        place = ("peers", index)
        for name in peer.between:
            if name not in spec.nodes:
                raise InputError(f"{where.at(*place)}: {unknown_name('node', name, spec.nodes)}")
        first, second = (spec.nodes[name].kind for name in peer.between)
        network = first in _NETWORK and second in _NETWORK
        if not network and (first != second or first not in ("socket", "gpu")):
            raise where.error(
                f"between a {first} and a {second}; a peer joins two sockets or two gpus, or a nic to a fabric or a nic", *place
            )
        part = _part(peer.part, InterconnectPart, where, *place, "part")
        role = "fabric" if network else "socket" if first == "socket" else "nvlink"
        if part.role != role:
            raise where.error(
                f"part {part.name} is for role {part.role}; between a {first} and a {second} it takes one of role {role}", *place, "part"
            )
        for name in peer.between:
            if spec.nodes[name].kind == "nic" and spec.nodes[name].part is None:
                raise where.error("a nic on a network needs a part, for example `part: connectx-7`", "nodes", name)
        if not network and len({host_of[name] for name in peer.between}) > 1:
            raise where.error(f"{' and '.join(peer.between)} are in different hosts; only network cards join hosts", *place)
        pair = frozenset(peer.between)
        if pair in found:
            raise where.error(f"{' and '.join(peer.between)} are joined twice; a part stands for all their links together", *place)
        found[pair] = Peer("~".join(peer.between), peer.between, part)
    return tuple(found.values())


def _chips(spec: TopologySpec, host_of: Mapping[str, str], where: Where) -> dict[str, str]:
    """Labels of the virtual switches; all of one label have one part and stand in one host."""
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, node in spec.nodes.items():
        if node.chip is None:
            continue
        mate = first.setdefault(node.chip, name)
        if spec.nodes[mate].part != node.part or host_of[mate] != host_of[name]:
            raise where.error(
                f"{name} and {mate} cannot be one chip: other {'hosts' if host_of[mate] != host_of[name] else 'parts'}",
                "nodes",
                name,
                "chip",
            )
        found[name] = node.chip
    return found


def bus_key(text: str) -> tuple[int, int, int, int] | None:
    """``0000:c1:00.0`` (domain and function optional) as (domain, bus, device, function); None when it is no bus id.

    >>> bus_key("c1:00.0"), bus_key("00000001:41:00")
    ((0, 193, 0, 0), (1, 65, 0, 0))
    """
    match = _BUS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16), int(function or "0")


def _bus_order(spec: TopologySpec, host_of: Mapping[str, str], where: Where) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """GPUs by bus id when every GPU has one, else as in the file; and a remark when only some have one.

    Ranks are counted host by host, as launchers do: hosts in the order of the file, the order above inside each.
    """
    hosts = {name: place for place, name in enumerate(name for name, node in spec.nodes.items() if node.kind == "host")}
    gpus = [name for name, node in spec.nodes.items() if node.kind == "gpu"]
    gpus.sort(key=lambda name: hosts.get(host_of[name], 0))
    keys: dict[str, tuple[int, int, int, int]] = {}
    seen: dict[tuple[str, tuple[int, int, int, int]], str] = {}
    for name in gpus:
        bus = spec.nodes[name].bus
        if bus is None:
            continue
        key = bus_key(bus)
        if key is None:
            raise where.error(f"{bus!r} is not a bus id; write it like 0000:c1:00.0", "nodes", name, "bus")
        here = (host_of[name], key)
        if here in seen:
            raise where.error(f"bus id {bus} is already {seen[here]}'s", "nodes", name, "bus")
        keys[name] = key
        seen[here] = name
    if keys and len(keys) == len(gpus):
        return tuple(sorted(gpus, key=lambda name: (hosts.get(host_of[name], 0), keys[name]))), ()
    note = (f"{len(keys)} of {len(gpus)} GPUs have a bus id: ranks follow the order of the file",) if keys else ()
    return tuple(gpus), note


def _remarks(spec: TopologySpec) -> list[str]:
    """What a reader should know about how the file was taken."""
    notes: list[str] = []
    nics = [name for name, node in spec.nodes.items() if node.kind == "nic" and node.part is None]
    if nics:
        notes.append(f"network cards ({', '.join(nics[:8])}) have no part: they are part of the tree, but no route uses them")
    if any(node.kind == "fabric" for node in spec.nodes.values()):
        notes.append("a fabric passes everything that its cards send (no oversubscription)")
    for name, node in spec.nodes.items():
        if node.kind in ("gpu", "nic") and node.links > 1:
            notes.append(f"{name}: links: {node.links} is taken as given, but a card has one port (`links` is for the uplinks of switches)")
        if node.kind == "root_port" and node.link is None:
            below = [child for child, other in spec.nodes.items() if other.parent == name]
            if len(below) > 1:
                notes.append(
                    f"{name} has {len(below)} devices directly below it and no link of its own: each is taken to have its own port"
                )
    return notes
