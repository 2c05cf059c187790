"""Links: narrower or slower than both ends allow, few lanes among many, uplinks with more below them than they carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcie_sim import catalog
from pcie_sim.doctor.copying import usual_rate
from pcie_sim.doctor.exam import UNPRICED, Exam, cost_text, dear, finding, severity
from pcie_sim.doctor.registry import check
from pcie_sim.importers.facts import LinkFact
from pcie_sim.results.finding import Cost, Finding, Severity
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.part import PciePart, SocketPart, SwitchPart
from pcie_sim.topology import Topology
from pcie_sim.topology.capacity import link_rate
from pcie_sim.units import format_rate

UPLINK_WORTH = 0.10
"""An uplink that costs less than this share of a call is only mentioned."""
OVER = 1.1
"""An uplink counts as oversubscribed from this ratio on."""
_IDLE_GEN = 1
_LSPCI = "`sudo lspci -vvv` (LnkCap and LnkSta of every port), or `nvidia-smi -q` (PCIe generation and link width)"
_IDLE = (
    "an idle GPU trains its link down to Gen1 to save power, and the switch port above it with it; read it again under load (run a copy "
    "test beside `nvidia-smi -q -d PCIE` or lspci)"
)


@dataclass(frozen=True)
class LinkView:
    """One link as files and parts see it. ``now``: in force; ``allowed``: what both ends allow; ``sure``: both ends' own ports say so."""

    node: str
    now: LinkFact
    allowed: PcieLink
    sure_width: bool
    sure_gen: bool
    ends: str

    def link(self, gen: int | None = None, width: int | None = None) -> PcieLink:
        """The allowed link with another generation or width."""
        return PcieLink.model_validate({"gen": gen or self.allowed.gen, "width": width or self.allowed.width})


def part_ends(exam: Exam, node: str) -> PcieLink | None:
    """What the parts at both ends of the link of a GPU or switch offer."""
    spec = exam.box.spec.nodes[node]
    if spec.kind == "gpu":
        own = exam.box.gpu_spec(node).pcie
    elif spec.kind == "switch":
        own = catalog.load_typed_part(spec.part or "", SwitchPart).upstream
    else:
        return None
    above = spec.parent
    while above is not None:
        other = exam.box.spec.nodes[above]
        if other.kind == "switch":
            slot = catalog.load_typed_part(other.part or "", SwitchPart).upstream
            return _least(own, slot)
        if other.kind == "socket":
            return _least(own, catalog.load_typed_part(other.part or "", SocketPart).root_port)
        above = other.parent
    return own


def _least(first: PcieLink, second: PcieLink) -> PcieLink:
    return PcieLink(gen=min(first.gen, second.gen), width=min(first.width, second.width))


def ported(exam: Exam) -> list[str]:
    """GPUs in bus order, then switches: the nodes whose links are looked at."""
    return [*exam.box.gpus, *(name for name, node in exam.box.spec.nodes.items() if node.kind == "switch")]


def views(exam: Exam) -> list[LinkView]:
    """The links that files say something of, in force and allowed."""
    found = []
    for node in ported(exam):
        device, port, flat = exam.related.devices.get(node), exam.related.above.get(node), exam.related.gpus.get(node)
        facts = [one.link for one in (device, flat, port) if one is not None and one.link is not None]
        now = LinkFact(next((f.gen for f in facts if f.gen is not None), None), next((f.width for f in facts if f.width is not None), None))
        parts = part_ends(exam, node)
        if parts is None or (now.gen is None and now.width is None):
            continue
        own = _first(device.link_max if device is not None else None, flat.link_max if flat is not None else None)
        slot = port.link_max if port is not None else None
        gens = [one.gen for one in (own, slot) if one is not None and one.gen is not None]
        widths = [one.width for one in (own, slot) if one is not None and one.width is not None]
        allowed = PcieLink.model_validate({"gen": min([parts.gen, *gens]), "width": min([parts.width, *widths])})
        both = own is not None and slot is not None
        # nvidia-smi's gen.max is that of GPU and system together; its width.max is often the GPU's alone
        smi = flat is not None and flat.link_max is not None and flat.link_max.gen is not None
        ends = (
            f"the device can {own or parts_text(parts)}, the port above it {slot}"
            if slot is not None
            else f"{own or parts_text(parts)} is possible"
        )
        found.append(LinkView(node, now, allowed, both and len(widths) == 2, (both and len(gens) == 2) or smi, ends))
    return found


def parts_text(link: PcieLink) -> str:
    """``Gen5 x16``."""
    return f"Gen{link.gen} x{link.width}"


def _first(one: LinkFact | None, other: LinkFact | None) -> LinkFact | None:
    if one is None or other is None:
        return one or other
    return LinkFact(one.gen if one.gen is not None else other.gen, one.width if one.width is not None else other.width)


@check("link-width", "links as wide as both ends allow", needs=_LSPCI)
def link_width(exam: Exam) -> list[Finding] | None:
    """Lanes lost between a device and its port: a bad contact, a riser, a slot that is wired narrow."""
    seen = views(exam)
    told = {view.node for view in seen if view.now.width is not None}
    drawn = _drawn_narrow(exam, told)
    if not told and not any(exam.box.spec.nodes[node].link is not None for node in ported(exam)):
        return None
    findings = []
    narrow = [view for view in seen if view.now.width is not None and view.now.width < view.allowed.width]
    for sure in (True, False):
        some = [view for view in narrow if view.sure_width is sure]
        if not some:
            continue
        now = exam.linked({view.node: view.link(width=view.now.width) for view in some})
        costs = exam.costs(exam.linked({view.node: view.allowed for view in some}), now)
        evidence = exam.alike((view.node, f"x{view.now.width} in force; {view.ends}") for view in some)
        advice = ["reseat the card and its riser or cable, clean the contacts, look for bent pins; then read the width again"]
        if not sure:
            advice.append("the slot may be wired with fewer lanes: its manual, or LnkCap of the port above in `sudo lspci -vvv`, says so")
        advice.append("in the BIOS: bifurcation of that slot (x16, not x8x8 or x4x4x4x4)")
        nodes = [view.node for view in some]
        title = f"{exam.names(nodes)}: fewer lanes than {'both ends allow' if sure else 'the device offers'}"
        findings.append(
            finding("link-width", title, "problem" if sure else severity(costs), evidence, costs=costs, advice=advice, nodes=nodes)
        )
    if drawn:
        costs = exam.costs(exam.linked(drawn))
        seen_so = (
            (node, f"{_link_text(exam, node)} in the topology file; its parts could {parts_text(link)}") for node, link in drawn.items()
        )
        evidence = exam.alike(seen_so)
        advice = ["if the slots are wired so, nothing; else reseat the cards, and see the width in force with `sudo lspci -vvv`"]
        title = f"{exam.names(list(drawn))}: drawn with fewer lanes than their parts have"
        findings.append(finding("link-width", title, "note", evidence, costs=costs, advice=advice, nodes=drawn))
    return findings


def _drawn_narrow(exam: Exam, told: set[str]) -> dict[str, PcieLink]:
    """Nodes that only the topology file gives fewer lanes than their parts have -> the link with all of them."""
    found = {}
    for node in ported(exam):
        link, parts = exam.box.spec.nodes[node].link, part_ends(exam, node)
        if node not in told and link is not None and parts is not None and link.width < parts.width:
            found[node] = PcieLink(gen=link.gen, width=parts.width)
    return found


def _link_text(exam: Exam, node: str) -> str:
    link = exam.box.trained_link(node)
    return parts_text(link) if link is not None else "no link"


@check("link-speed", "links as fast as both ends allow", needs=_LSPCI)
def link_speed(exam: Exam) -> list[Finding] | None:
    """A lower generation than both ends allow: under load, or with slow copies, it is real; Gen1 alone is what idle GPUs show."""
    seen = [view for view in views(exam) if view.now.gen is not None]
    if not seen:
        return None
    slow = [view for view in seen if view.now.gen is not None and view.now.gen < view.allowed.gen]
    confirmed = [view for view in slow if _copies_agree(exam, view)]
    idle = [view for view in slow if view not in confirmed and view.now.gen == _IDLE_GEN]
    real = [view for view in slow if view not in idle and (view.sure_gen or view in confirmed)]
    findings = []
    if real:
        evidence = exam.alike((view.node, f"Gen{view.now.gen} in force; {view.ends}") for view in real)
        evidence += exam.alike((view.node, _copy_text(exam, view)) for view in confirmed)
        if any(view.now.gen == _IDLE_GEN for view in real):
            evidence.append("Gen1 alone would be what an idle GPU shows; the copies say that it stays so under load")
        title = f"{exam.names(view.node for view in real)}: a slower link than both ends allow"
        findings.append(_slow(exam, real, title, "problem", evidence))
    unsure = [view for view in slow if view not in idle and view not in real]
    if unsure:
        evidence = exam.alike((view.node, f"Gen{view.now.gen} in force; {view.ends} by its part") for view in unsure)
        evidence.append("no file says what the port above can: the slot or the CPU may be no faster")
        title = f"{exam.names(view.node for view in unsure)}: a slower link than its parts have"
        findings.append(_slow(exam, unsure, title, "note", evidence))
    if idle:
        stuck = _speed_costs(exam, idle)
        text = f"none if it speeds up under load; if it stayed so: {cost_text(stuck)}" if stuck else None
        evidence = [*exam.alike((view.node, f"Gen1 in force; {view.ends}") for view in idle), _IDLE]
        nodes = [view.node for view in idle]
        title = f"{exam.names(nodes)}: Gen1, as idle GPUs show"
        findings.append(finding("link-speed", title, "note", evidence, cost=text, advice=("read the speed again under load",), nodes=nodes))
    return findings


def _slow(exam: Exam, slow: Sequence[LinkView], title: str, level: Severity, evidence: Sequence[str]) -> Finding:
    advice = (
        "in the BIOS: the slot's link speed (not Auto, or a lower generation to rule out errors)",
        "look for corrected errors (DevSta CorrErr+ in `sudo lspci -vvv`, `dmesg | grep -i aer`): long risers and cables fall back",
        "read it again under load, if it was read on an idle box",
    )
    nodes = [view.node for view in slow]
    return finding("link-speed", title, level, evidence, costs=_speed_costs(exam, slow), advice=advice, nodes=nodes)


def _copies_agree(exam: Exam, view: LinkView) -> bool:
    """Copies with this GPU are no faster than the link in force."""
    # staged copies are slower than a sound link for another reason, but hardly as slow as Gen1
    rate = usual_rate(exam, view.node, direct=view.now.gen != _IDLE_GEN)
    if rate is None or view.now.gen is None:
        return False
    here = payload(exam, view.link(gen=view.now.gen, width=view.now.width))
    return rate <= 1.15 * here


def _copy_text(exam: Exam, view: LinkView) -> str:
    rate = usual_rate(exam, view.node)
    here = payload(exam, view.link(gen=view.now.gen, width=view.now.width))
    return "" if rate is None else f"copies reach {format_rate(rate)}; such a link carries {format_rate(here)}"


def payload(exam: Exam, link: PcieLink) -> float:
    """What a link carries in one direction, B/s."""
    part = catalog.load_typed_part("pcie", PciePart)
    return link_rate(part, link, max_payload=exam.box.settings.max_payload).value


def _speed_costs(exam: Exam, slow: Sequence[LinkView]) -> tuple[Cost, ...]:
    """The generation in force against the allowed one, at the width in force."""
    now = exam.linked({view.node: view.link(gen=view.now.gen, width=view.now.width) for view in slow})
    return exam.costs(exam.linked({view.node: view.link(width=view.now.width) for view in slow}), now)


@check("lanes", "all GPUs of one kind, and all switches of one part, have the same link", needs=_LSPCI)
def lanes(exam: Exam) -> list[Finding] | None:
    """Some GPUs with fewer lanes (or a lower generation) than others of the same kind: a ring is as fast as its slowest link."""
    links = {gpu: link for gpu in exam.box.gpus if (link := exam.box.trained_link(gpu)) is not None}
    told = {view.node: view for view in views(exam) if view.now.width is not None}
    links = {
        gpu: PcieLink.model_validate({"gen": link.gen, "width": told[gpu].now.width}) if gpu in told else link
        for gpu, link in links.items()
    }
    lost = {node for node, view in told.items() if (view.now.width or 0) < view.allowed.width}
    better: dict[str, PcieLink] = {}
    evidence = []
    for model in dict.fromkeys(exam.box.gpu_spec(gpu).name for gpu in links):
        mine = {gpu: link for gpu, link in links.items() if exam.box.gpu_spec(gpu).name == model}
        best = max(mine.values(), key=lambda link: payload(exam, link))
        worse = {gpu: link for gpu, link in mine.items() if payload(exam, link) < 0.99 * payload(exam, best) and gpu not in lost}
        better |= dict.fromkeys(worse, best)
        if worse:
            shown = ", ".join(f"{gpu} {parts_text(link)}" for gpu, link in list(worse.items())[:8])
            evidence.append(f"{model}: {shown}; others have {parts_text(best)}")
    if not better:
        return _odd_uplinks(exam)
    costs = exam.costs(_moved(exam, better), exam.linked({gpu: links[gpu] for gpu in better}))
    advice = (
        "move these cards to slots with all lanes, or to a switch",
        "or leave them out of tensor parallelism: a pipeline stage or a replica of its own needs far less of its link",
    )
    title = f"{exam.names(list(better))}: fewer lanes than GPUs of the same kind"
    return [finding("lanes", title, severity(costs), evidence, costs=costs, advice=advice, nodes=better), *_odd_uplinks(exam)]


def _moved(exam: Exam, better: Mapping[str, PcieLink]) -> Topology | None:
    """The box with these links, and with cards that hang on a narrower switch (a chipset) on root ports of their own."""
    nodes: dict[str, dict[str, Any]] = {}
    for gpu, link in better.items():
        nodes[gpu] = {"link": link}
        above = [name for name in exam.box.chain(gpu)[1:] if exam.box.spec.nodes[name].kind == "switch"]
        uplinks = [one for name in above if (one := exam.box.trained_link(name)) is not None]
        if any(payload(exam, one) < 0.99 * payload(exam, link) for one in uplinks):
            nodes[gpu]["parent"] = exam.box.socket_of(gpu)
    return exam.changed(nodes)


def _odd_uplinks(exam: Exam) -> list[Finding]:
    """Uplinks that are narrower or slower than those of switches of the same part in the same place, by files or the topology."""
    told = {view.node: view for view in views(exam)}
    groups: dict[tuple[str, str, int], dict[str, PcieLink]] = {}
    for name, node in exam.box.spec.nodes.items():
        link = exam.box.trained_link(name) if node.kind == "switch" else None
        if link is not None:
            view, place = told.get(name), _place_above(exam, name)
            if view is not None:
                gen, width = min(link.gen, view.allowed.gen), view.now.width or link.width
                link = PcieLink.model_validate({"gen": gen, "width": min(width, view.allowed.width)})
            groups.setdefault((node.part or "", place, node.links), {})[name] = link
    better: dict[str, PcieLink] = {}
    now: dict[str, PcieLink] = {}
    evidence = []
    for (part, _place, _links), links in groups.items():
        best = max(links.values(), key=lambda link: payload(exam, link))
        worse = {
            name: link for name, link in links.items() if payload(exam, link) < 0.99 * payload(exam, best) and not _lost(told.get(name))
        }
        better |= dict.fromkeys(worse, best)
        now |= worse
        if worse:
            shown = ", ".join(f"{name} {parts_text(link)}" for name, link in list(worse.items())[:8])
            evidence.append(f"uplinks of {part}: {shown}; others have {parts_text(best)}")
    if not better:
        return []
    costs = exam.costs(exam.linked(better), exam.linked(now))
    advice = (
        "the slot and its cable or retimer: lanes and speed of the root port above (LnkCap, LnkSta in `sudo lspci -vvv`), slot speed and "
        "bifurcation in the BIOS",
        "or keep tensor parallelism below the switches with the better uplinks",
    )
    title = f"{exam.names(list(better))}: a slower uplink than switches of the same part"
    return [finding("lanes", title, severity(costs), evidence, costs=costs, advice=advice, nodes=better)]


def _lost(view: LinkView | None) -> bool:
    """The link is below what both ends allow, and not because it idles: link-width and link-speed tell."""
    if view is None:
        return False
    width, gen = view.now.width or view.allowed.width, view.now.gen or view.allowed.gen
    return width < view.allowed.width or _IDLE_GEN < gen < view.allowed.gen


def _place_above(exam: Exam, name: str) -> str:
    """``switch`` or ``socket``: what a switch hangs on."""
    above = exam.box.spec.nodes[name].parent
    while above is not None and exam.box.spec.nodes[above].kind not in ("switch", "socket"):
        above = exam.box.spec.nodes[above].parent
    return "" if above is None else exam.box.spec.nodes[above].kind


@check("uplink", "uplinks that carry what is below them", needs="the switches above the GPUs: `sudo lspci -vvv` or an NCCL topology dump")
def uplink(exam: Exam) -> list[Finding] | None:
    """GPUs of one switch against its uplink: said always, a problem where the AllReduce of this box would be faster with a wider one."""
    groups: dict[tuple[int, float, float], list[str]] = {}
    for name, node in exam.box.spec.nodes.items():
        own = exam.box.links.get(f"{name}.up")
        below = [gpu for gpu in exam.box.gpus if name in exam.box.chain(gpu)]
        if node.kind == "switch" and own is not None and below:
            wanted = sum(exam.box.links[f"{gpu}.up"].rate.value for gpu in below)
            if wanted > OVER * own.rate.value:
                groups.setdefault((len(below), round(wanted / own.rate.value, 2), own.rate.value), []).append(name)
    if not groups:
        return []
    nodes = [name for found in groups.values() for name in found]
    wider = {}
    for (_count, ratio, _rate), found in groups.items():
        for name in found:
            links = exam.box.spec.nodes[name].links
            wider[name] = {"links": min(8, max(links + 1, round(links * ratio + 0.49)))}
    fixed = exam.changed(wider)
    costs = exam.costs(fixed)
    evidence = [
        f"{exam.names(found)}: {count} GPUs below, together {ratio:.3g} times the uplink's {format_rate(rate)} each way"
        for (count, ratio, rate), found in groups.items()
    ]
    staged = exam.time(exam.set(env={"NCCL_P2P_DISABLE": "1"}), 16 * 2**20)
    free = exam.time(exam.changed(wider, exam.set(env={"NCCL_P2P_DISABLE": "1"})), 16 * 2**20)
    if staged is not None and free is not None and not dear(costs, UPLINK_WORTH) and staged > (1 + UPLINK_WORTH) * free:
        evidence.append(f"it would cost if traffic were staged in host memory (16 MiB AllReduce {free * 1e6:.0f} -> {staged * 1e6:.0f} us)")
    if not dear(costs, UPLINK_WORTH):
        evidence.append("a ring sends one flow each way over an uplink, so AllReduce loses little; All-to-All and loading weights share it")
    level = severity(costs, UPLINK_WORTH)
    advice = []
    if level == "problem":
        advice = ["let the library use peer-to-peer (see p2p-level, p2p-driver): staged traffic of one switch crosses its uplink both ways"]
        if exam.box.settings.acs == "on":
            advice.insert(0, "ACS redirect off first (see acs): traffic inside the switch then stays off the uplink")
        advice.append("keep tensor parallelism inside one switch, and pipeline stages or replicas across")
    title = f"{exam.names(nodes)}: more GPU bandwidth below than the uplink carries"
    return [finding("uplink", title, level, evidence, costs=costs, cost="" if costs else UNPRICED, advice=advice, nodes=nodes)]
