"""A topology as NCCL's own XML, which the library reads with ``NCCL_TOPO_FILE`` (NVIDIA/nccl:src/graph/xml.cc and topo.cc).

Only attributes that NCCL knows are written; what it finds out itself on the machine (CPU model, GPUDirect, masks) is left out. Names of
nodes, labels of chips, the link between sockets and networks have no place in this format: reading the file back gives the tree, not these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr  # writes only: nothing is parsed with it

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.importers.facts import GENERATION_OF_GT, bus_id, bus_key
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.machine import NodeSpec, TopologySpec
from pcie_sim.specs.part import InterconnectPart, NicPart, SocketPart, SwitchPart

MOST_ELEMENTS = 256
"""What NCCL reads of a topology file (NCCL_TOPO_XML_MAX_NODES)."""
_GT = {gen: gt for gt, gen in GENERATION_OF_GT.items()}
_VENDORS = {"amd": "AuthenticAMD", "intel": "GenuineIntel"}
_DEVICES = ("switch", "gpu", "nic")
_LAST_BUS = 255


@dataclass
class _Plan:
    spec: TopologySpec
    children: dict[str, list[str]] = field(default_factory=dict)
    rank: dict[str, int] = field(default_factory=dict)
    """GPU -> its place in bus order."""
    bus: dict[str, str] = field(default_factory=dict)
    invented: bool = False
    elements: int = 1

    def node(self, name: str) -> NodeSpec:
        return self.spec.nodes[name]


def write(spec: TopologySpec) -> str:
    """The text of the XML file: a ``<cpu>`` for each NUMA node of each socket, one ``<pci>`` for each switch, GPU and network card.

    Devices come in the order of their GPUs' bus ids. Bus ids that the topology lacks are made up so that this order stays.

    Raises:
        InputError: more than one host (the format knows one), or more than NCCL reads.
    """
    hosts = [name for name, node in spec.nodes.items() if node.kind == "host"]
    if len(hosts) > 1:
        raise InputError(f"{spec.name}: has {len(hosts)} hosts; an NCCL topology file is about one. Write a topology of one host first")
    plan = _plan(spec)
    amd = any(_capability(plan, name).startswith("gfx") for name in plan.rank)
    lines = [f"<!-- {spec.name.replace('--', '-')}: written by pcie-sim -->"]
    lines.append("<!-- device and CPU numbers: the first that the catalog has for each part -->")
    if plan.invented:
        lines.append("<!-- bus ids made up where the topology has none -->")
    lines.append(f'<system version="{2 if amd else 1}">')
    for head, tops in _cpus(plan):
        plan.elements += 1
        lines.append(f"  <cpu{head}>")
        for top in tops:
            lines += _device(plan, top, 2)
        lines.append("  </cpu>")
    lines.append("</system>")
    if plan.elements > MOST_ELEMENTS:
        raise InputError(f"{spec.name}: {plan.elements} elements, but NCCL reads no more than {MOST_ELEMENTS} of a topology file")
    return "\n".join(lines) + "\n"


def _plan(spec: TopologySpec) -> _Plan:
    plan = _Plan(spec)
    for name, node in spec.nodes.items():
        if node.parent is not None:
            plan.children.setdefault(node.parent, []).append(name)
    gpus = [name for name, node in spec.nodes.items() if node.kind == "gpu"]
    known = {name: bus for name in gpus if (bus := bus_id(spec.nodes[name].bus or "")) is not None}
    if len(known) == len(gpus) == len(set(known.values())):
        gpus.sort(key=lambda name: bus_key(known[name]))
    else:
        known = {}
    plan.rank = {name: place for place, name in enumerate(gpus)}
    _give_buses(plan, known)
    return plan


def _give_buses(plan: _Plan, known: dict[str, str]) -> None:
    """GPUs keep theirs when all have one; every other device keeps its own where it is free, else gets one that is.

    Made up, a switch's number is below those of its GPUs, and GPUs' numbers rise in the order of the file (their ranks).
    """
    plan.bus |= known
    taken = {_stem(bus) for bus in known.values()}
    for name, node in plan.spec.nodes.items():
        bus = bus_id(node.bus or "") if node.kind in ("switch", "nic") else None
        if bus is not None and _stem(bus) not in taken:
            plan.bus[name] = bus
            taken.add(_stem(bus))
    free = (f"{number >> 8:04x}:{number & _LAST_BUS:02x}" for number in range(1, 1 << 16) if number & _LAST_BUS)
    order = [above for gpu in plan.rank for above in (*_switches_above(plan, gpu), gpu)]
    rest = [name for name, node in plan.spec.nodes.items() if node.kind in _DEVICES]
    for name in dict.fromkeys((*order, *rest)):
        if name in plan.bus:
            continue
        stem = next(one for one in free if one not in taken)
        plan.bus[name] = f"{stem}:00.0"
        taken.add(stem)
        plan.invented = True


def _stem(bus: str) -> str:
    """Domain and bus number: what no two devices but functions and devices of one bus share."""
    return bus.rsplit(":", 1)[0]


def _switches_above(plan: _Plan, name: str) -> list[str]:
    """Switches above a node, the top one first."""
    found: list[str] = []
    above = plan.node(name).parent
    while above is not None and len(found) <= len(plan.spec.nodes):
        if plan.node(above).kind == "switch":
            found.append(above)
        above = plan.node(above).parent
    return found[::-1]


def _below(plan: _Plan, name: str) -> Iterator[str]:
    """A node and all below it (trees of specs are shallow; a loop ends at the number of nodes)."""
    stack, seen = [name], 0
    while stack and seen <= len(plan.spec.nodes):
        seen += 1
        one = stack.pop()
        yield one
        stack += plan.children.get(one, [])


def _place(plan: _Plan, name: str) -> tuple[int, int]:
    """Where a device stands among its siblings: by its first GPU, those without GPUs after them in the order of the file."""
    ranks = [plan.rank[one] for one in _below(plan, name) if one in plan.rank]
    return (min(ranks), 0) if ranks else (len(plan.rank), list(plan.spec.nodes).index(name))


def _devices_below(plan: _Plan, name: str) -> list[str]:
    """The nearest devices below a node, root ports looked through, in order."""
    found: list[str] = []
    for child in plan.children.get(name, []):
        if plan.node(child).kind in _DEVICES:
            found.append(child)
        elif plan.node(child).kind == "root_port":
            found += [one for one in plan.children.get(child, []) if plan.node(one).kind in _DEVICES]
    return sorted(found, key=lambda one: _place(plan, one))


def _cpus(plan: _Plan) -> list[tuple[str, list[str]]]:
    """Attributes and devices of each ``<cpu>``: NUMA nodes as the topology has them, else the sockets' numbers."""
    sockets = [name for name, node in plan.spec.nodes.items() if node.kind == "socket"]
    said = {node.numa for node in plan.spec.nodes.values() if node.numa is not None}
    spare = iter(number for number in range(len(plan.spec.nodes) + 64) if number not in said)
    found: list[tuple[tuple[int, int], str, list[str]]] = []
    for socket in sockets:
        by_numa: dict[int | None, list[str]] = {}
        for top in _devices_below(plan, socket):
            by_numa.setdefault(_numa(plan, top), []).append(top)
        own = plan.node(socket).numa
        silent = by_numa.pop(None, [])
        if silent or not by_numa:
            number = own if own is not None else min((numa for numa in by_numa if numa is not None), default=None)
            by_numa.setdefault(next(spare) if number is None else number, []).extend(silent)
        for numa, tops in by_numa.items():
            tops.sort(key=lambda one: _place(plan, one))
            order = _place(plan, tops[0]) if tops else (len(plan.rank), len(plan.spec.nodes))
            found.append((order, f' numaid="{numa}"{_cpu_attributes(plan.node(socket))}', tops))
    found.sort(key=lambda item: item[0])
    return [(head, tops) for _order, head, tops in found]


def _numa(plan: _Plan, top: str) -> int | None:
    """The NUMA node of a device below a socket: its own, its root port's, else that of the first device below that says one."""
    above = plan.node(top).parent
    chain = [top, *([above] if above is not None and plan.node(above).kind == "root_port" else [])]
    numbers = [plan.node(name).numa for name in (*chain, *sorted(_below(plan, top), key=lambda one: plan.rank.get(one, len(plan.rank))))]
    return next((number for number in numbers if number is not None), None)


def _cpu_attributes(node: NodeSpec) -> str:
    if node.part is None:
        return ""
    part = catalog.load_typed_part(node.part, SocketPart)
    if part.vendor not in _VENDORS:
        return ' arch="arm64"' if part.vendor == "arm" else ""
    text = f' arch="x86_64" vendor="{_VENDORS[part.vendor]}"'
    rules = [rule for rule in part.cpus if rule.models is not None and not rule.near]
    rule = min(rules, key=lambda one: one.also is not None, default=None)
    if rule is None or rule.family is None or rule.models is None:
        return text
    family = rule.family if rule.family <= 0xF else 0xF + (rule.family - 0xF << 4)  # as NCCL counts, see nccl_topo
    return f'{text} familyid="{family}" modelid="{rule.models[0]}"'


def _device(plan: _Plan, name: str, depth: int) -> list[str]:
    node = plan.node(name)
    plan.elements += 1
    indent = "  " * depth
    code = {"switch": "0x060400", "nic": "0x020000", "gpu": "0x030200"}[node.kind]
    if node.kind == "gpu" and _capability(plan, name).startswith("gfx"):
        code = "0x038000"
    link = _link(plan, name)
    state = f' link_speed="{_GT[link.gen]:.1f} GT/s PCIe" link_width="{link.width}"' if link is not None else ""
    inner: list[str] = []
    if node.kind == "gpu":
        inner = _gpu(plan, name, depth + 1)
    elif node.kind == "nic":
        inner = _nic(plan, name, depth + 1)
    for child in _devices_below(plan, name):
        inner += _device(plan, child, depth + 1)
    head = f'{indent}<pci busid="{plan.bus[name]}" class="{code}"{_ids(plan, name)}{state}'
    return [f"{head}>", *inner, f"{indent}</pci>"] if inner else [f"{head}/>"]


def _ids(plan: _Plan, name: str) -> str:
    """Vendor and device attributes by the part's first PCI id. The only switch below one of the same part gets none: with them the two
    would read as ports of one chip.
    """
    node = plan.node(name)
    if node.part is None:
        return ""
    if node.kind == "gpu":
        ids = catalog.load_gpu(node.part).pci_ids
    elif node.kind == "switch":
        ids = catalog.load_typed_part(node.part, SwitchPart).pci_ids
        siblings = [one for one in plan.children.get(node.parent or "", []) if plan.node(one).kind == "switch"]
        if len(siblings) == 1 and plan.node(node.parent or name).part == node.part:
            return ""
    else:
        ids = catalog.load_typed_part(node.part, NicPart).pci_ids
    if not ids:
        return ""
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    return "".join(f' {key}="0x{value}"' for key, value in zip(names, ids[0].replace(" ", ":").split(":"), strict=False))


def _link(plan: _Plan, name: str) -> PcieLink | None:
    """What the link to the parent trains to: the least of what the file gives, the device's own and the port above."""
    node = plan.node(name)
    bounds = [node.link, _own(node)]
    above = plan.node(node.parent) if node.parent is not None else None
    if above is not None and above.kind == "root_port":
        bounds.append(above.link)
        above = plan.node(above.parent) if above.parent is not None else None
    if above is not None and above.part is not None:
        if above.kind == "switch":
            bounds.append(catalog.load_typed_part(above.part, SwitchPart).upstream)
        elif above.kind == "socket":
            bounds.append(catalog.load_typed_part(above.part, SocketPart).root_port)
    known = [link for link in bounds if link is not None]
    if node.link is None and _own(node) is None:
        return None
    return PcieLink(gen=min(link.gen for link in known), width=min(link.width for link in known))


def _own(node: NodeSpec) -> PcieLink | None:
    if node.part is None:
        return None
    if node.kind == "gpu":
        return catalog.load_gpu(node.part).pcie
    if node.kind == "switch":
        return catalog.load_typed_part(node.part, SwitchPart).upstream
    return catalog.load_typed_part(node.part, NicPart).host_link


def _capability(plan: _Plan, name: str) -> str:
    part = plan.node(name).part
    return catalog.load_gpu(part).compute_capability if part is not None else ""


def _gpu(plan: _Plan, name: str, depth: int) -> list[str]:
    plan.elements += 1
    indent = "  " * depth
    capability = _capability(plan, name)
    text = f'{indent}<gpu dev="{plan.rank[name]}"'
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", capability)
    if match is not None:
        text += f' sm="{match.group(1)}{match.group(2)}"'
    elif capability.startswith("gfx"):
        units = catalog.load_gpu(plan.node(name).part or "").multiprocessors.value
        text += f' sm="{int(units)}" gcn={quoteattr(capability)}'
    text += f' rank="{plan.rank[name]}"'
    links = []
    for peer in plan.spec.peers:
        if name in peer.between and all(end in plan.rank for end in peer.between):
            other = peer.between[peer.between[0] == name]
            count = catalog.load_typed_part(peer.part, InterconnectPart).links or 1
            tag = "xgmi" if capability.startswith("gfx") else "nvlink"
            links.append(f'{indent}  <{tag} target="{plan.bus[other]}" count="{count}" tclass="0x030200"/>')
    plan.elements += len(links)
    return [f"{text}>", *links, f"{indent}</gpu>"] if links else [f"{text}/>"]


def _nic(plan: _Plan, name: str, depth: int) -> list[str]:
    plan.elements += 2
    indent = "  " * depth
    node = plan.node(name)
    number = [one for one, other in plan.spec.nodes.items() if other.kind == "nic"].index(name)
    speed = ""
    if node.part is not None:
        speed = f' speed="{round(catalog.load_typed_part(node.part, NicPart).port_rate.value * 8 / 1e6)}"'
    return [f"{indent}<nic>", f'{indent}  <net name={quoteattr(name)} dev="{number}"{speed} port="1"/>', f"{indent}</nic>"]
