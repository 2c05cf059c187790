"""A box in the making: the devices above GPUs as nodes, before parts and links are decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcie_sim.errors import InputError
from pcie_sim.importers.facts import CpuFact, DeviceFact, GpuFact, HostFact, bus_key
from pcie_sim.importers.gather import Gathered
from pcie_sim.importers.sockets import plan_sockets
from pcie_sim.importers.source import Remark

MOST_GPUS = 256
_MOST_DEPTH = 32
_AMD, _ATI = 0x1022, 0x1002


@dataclass
class Spot:
    """One node. ``port`` is the port above it (root or downstream) where a file lists it."""

    name: str
    kind: str
    parent: Spot | None = None
    device: DeviceFact | None = None
    port: DeviceFact | None = None
    gpu: GpuFact | None = None
    numa: int | None = None
    children: list[Spot] = field(default_factory=list)

    @property
    def bus(self) -> str | None:
        """Its bus id, where a file says it."""
        if self.device is not None and self.device.bus is not None:
            return self.device.bus
        return self.gpu.bus if self.gpu is not None else None


@dataclass
class Sketch:
    """The nodes in the order of the file to be written, sockets first; what was assumed on the way."""

    sockets: dict[int, Spot] = field(default_factory=dict)
    cpu_of: dict[int, CpuFact] = field(default_factory=dict)
    spots: list[Spot] = field(default_factory=list)
    bridges: dict[frozenset[str], int] = field(default_factory=dict)
    """NVLink: two GPU node names -> links."""
    remarks: list[Remark] = field(default_factory=list)

    def gpus(self) -> list[Spot]:
        """GPU nodes in order."""
        return [spot for spot in self.spots if spot.kind == "gpu"]

    def socket(self, number: int) -> Spot:
        """The node of socket ``number``, made when first asked for."""
        if number not in self.sockets:
            self.sockets[number] = Spot(f"cpu{len(self.sockets)}", "socket")
        return self.sockets[number]

    def add(self, kind: str, parent: Spot, **rest: DeviceFact | GpuFact | int | None) -> Spot:
        """A new node below ``parent``, numbered in its kind."""
        short = {"root_port": "rp", "switch": "sw", "gpu": "gpu", "nic": "nic"}[kind]
        spot = Spot(f"{short}{sum(one.kind == kind for one in self.spots)}", kind, parent, **rest)  # type: ignore[arg-type]
        parent.children.append(spot)
        self.spots.append(spot)
        return spot


def sketch_tree(found: Gathered, nics: Mapping[str, str]) -> Sketch:
    """Nodes from the devices of a tree: switches with the GPUs (and the network cards in ``nics``, by key) below them.

    Raises:
        InputError: more GPUs than a box is read for.
    """
    gpus = found.gpu_devices()
    if len(gpus) > MOST_GPUS:
        raise InputError(f"{found.tree_source}: {len(gpus)} GPUs; a box is read up to {MOST_GPUS}")
    keep = _ancestry(found.devices, [device.key for device in gpus] + list(nics))
    children: dict[str | None, list[DeviceFact]] = {}
    for key in keep:
        device = found.devices[key]
        children.setdefault(device.parent if device.parent in keep else None, []).append(device)
    sketch = Sketch()
    plan_cpus = found.cpus or (CpuFact("cpu"),)
    plan = plan_sockets(plan_cpus, found.host)
    sketch.remarks += [Remark("assumed", text) for text in plan.assumed]
    cpu_by_key = {cpu.key: cpu for cpu in plan_cpus}
    first = plan_cpus[0]
    tops = sorted(children.get(None, []), key=lambda device: (_socket_number(device, plan.socket_of), _first_bus(device, children)))
    for top in tops:
        number = _socket_number(top, plan.socket_of)
        sketch.cpu_of.setdefault(number, cpu_by_key.get(top.cpu or "", first))
        cpu = cpu_by_key.get(top.cpu or "")
        numa = cpu.numa if cpu is not None and cpu.numa is not None and cpu.numa >= 0 else None
        _grow(sketch, top, sketch.socket(number), None, children, nics, numa)
    _rename_in_order(sketch)
    _add_bridges(sketch)
    return sketch


def _socket_number(device: DeviceFact, socket_of: Mapping[str, int]) -> int:
    return socket_of.get(device.cpu or "", 0)


def _ancestry(devices: Mapping[str, DeviceFact], wanted: Sequence[str]) -> dict[str, DeviceFact]:
    """The wanted devices and everything above them; loops and unknown parents end a way up."""
    keep: dict[str, DeviceFact] = {}
    for key in wanted:
        at: str | None = key
        for _ in range(_MOST_DEPTH):
            if at is None or at not in devices or at in keep:
                break
            keep[at] = devices[at]
            at = devices[at].parent
    return {key: device for key, device in devices.items() if key in keep}


def _order_of(device: DeviceFact) -> str:
    return device.bus or device.key


def _first_bus(device: DeviceFact, children: Mapping[str | None, list[DeviceFact]]) -> str:
    """The least bus id of the GPUs at and below a device: siblings stand in bus order of their GPUs."""
    least = ""
    stack, depth = [device], 0
    while stack and depth < 10_000:
        depth += 1
        one = stack.pop()
        if one.kind == "gpu" and (not least or _order_of(one) < least):
            least = _order_of(one)
        stack.extend(children.get(one.key, ()))
    return least or "~" + _order_of(device)


def _grow(
    sketch: Sketch,
    device: DeviceFact,
    parent: Spot,
    port: DeviceFact | None,
    children: Mapping[str | None, list[DeviceFact]],
    nics: Mapping[str, str],
    numa: int | None,
    depth: int = 0,
) -> None:
    """The node of ``device`` below ``parent``, and everything below it."""
    if depth > _MOST_DEPTH:
        return
    numa = device.numa if device.numa is not None and device.numa >= 0 else numa
    below = sorted(children.get(device.key, ()), key=lambda child: _first_bus(child, children))
    if device.kind in ("gpu", "nic"):
        at = parent if parent.kind != "socket" else sketch.add("root_port", parent)
        sketch.add(device.kind, at, device=device, port=port, numa=numa)
        return
    if device.kind == "root_port":
        spot = sketch.add("root_port", parent, device=device) if parent.kind == "socket" else parent
        next_port: DeviceFact | None = device
    elif device.role == "downstream" and parent.kind == "switch":
        spot, next_port = parent, device
    elif (card := _on_card(device, children)) is not None:
        # The bridge of a card in front of its one GPU: the slot's link is the bridge's, and nothing is shared behind it.
        slot = replace(card, link=device.link or card.link, link_max=device.link_max or card.link_max)
        _grow(sketch, slot, parent, port, children, nics, numa, depth + 1)
        return
    else:
        at = parent if parent.kind != "socket" else sketch.add("root_port", parent)
        spot = sketch.add("switch", at, device=device, port=port)
        next_port = None
    for child in below:
        _grow(sketch, child, spot, next_port, children, nics, numa, depth + 1)


def _on_card(device: DeviceFact, children: Mapping[str | None, list[DeviceFact]]) -> DeviceFact | None:
    """The one GPU behind a bridge that is part of its card: bridges of the GPU's own maker (AMD's and Intel's cards have them), or, where
    no ids are printed, any bridge above nothing but one AMD GPU (RCCL's files).
    """
    one = device
    for _ in range(_MOST_DEPTH):
        below = children.get(one.key, [])
        if len(below) != 1:
            return None
        one = below[0]
        if one.kind == "gpu":
            break
        if not _same_maker(one, device):
            return None
    if one.kind != "gpu":
        return None
    if device.ids is not None and one.ids is not None:
        return one if _same_maker(device, one) else None
    return one if device.ids is None and one.ids is None and one.name.startswith("gfx") else None


def _same_maker(a: DeviceFact, b: DeviceFact) -> bool:
    """Vendor ids 1022 (AMD) and 1002 (ATI, now AMD) are one maker; unknown ids are taken for the same."""
    makers = [{_AMD: _ATI}.get(one.ids[0], one.ids[0]) for one in (a, b) if one.ids is not None]
    return len(set(makers)) < 2


def _rename_in_order(sketch: Sketch) -> None:
    """GPUs are numbered in bus order, which is the order of nvidia-smi and of the collective library's ranks."""
    gpus = sketch.gpus()
    if all(spot.bus is not None for spot in gpus):
        gpus.sort(key=lambda spot: bus_key(spot.bus or ""))
    for index, spot in enumerate(gpus):
        spot.name = f"gpu{index}"


def _add_bridges(sketch: Sketch) -> None:
    at = {spot.bus: spot.name for spot in sketch.gpus() if spot.bus is not None}
    names = list(at.values())
    for spot in sketch.gpus():
        for target, count in spot.device.nvlinks if spot.device is not None else ():
            others = [at[target]] if target in at else names if target == "" else []
            for other in others:
                if other != spot.name:
                    pair = frozenset((spot.name, other))
                    sketch.bridges[pair] = max(sketch.bridges.get(pair, 0), min(max(count, 1), 64))
    if any(target == "" for spot in sketch.gpus() if spot.device is not None for target, _ in spot.device.nvlinks):
        text = "NVLink through an NVSwitch is drawn as a link between every two GPUs: take this box's NVLink times as rough"
        sketch.remarks.append(Remark("assumed", text))


def sketch_flat(gpus: Sequence[GpuFact], host: HostFact | None, cpus: Sequence[CpuFact]) -> Sketch:
    """GPUs of a list that draws no tree: each on a root port of its own, on the socket of its NUMA node."""
    sketch = Sketch()
    numas = [gpu.numa[0] if len(gpu.numa) == 1 else None for gpu in gpus]
    nodes = list(cpus) or [CpuFact(f"numa{numa}", numa=numa) for numa in sorted({numa for numa in numas if numa is not None})]
    plan = plan_sockets(nodes or (CpuFact("cpu"),), host)
    by_numa = {cpu.numa: plan.socket_of[cpu.key] for cpu in nodes}
    sketch.remarks += [Remark("assumed", text) for text in plan.assumed]
    text = "no file draws the tree: every GPU on a root port of its own (`nvidia-smi topo -m` shows the switches)"
    sketch.remarks.append(Remark("assumed", text))
    count = len(set(plan.socket_of.values()))
    halves = count > 1 and not any(numa in by_numa for numa in numas if numa is not None)
    if halves:
        text = f"the host has {count} sockets, but no file says which GPU is on which: in equal blocks by number"
        sketch.remarks.append(Remark("assumed", text))
    for index, (gpu, numa) in enumerate(zip(gpus, numas, strict=True)):
        number = index * count // len(gpus) if halves else by_numa.get(numa, 0)
        sketch.cpu_of.setdefault(number, next((cpu for cpu in nodes if plan.socket_of[cpu.key] == number), CpuFact("cpu")))
        sketch.add("gpu", sketch.add("root_port", sketch.socket(number)), gpu=gpu, numa=numa)
    return sketch
