"""Platform state: ACS, IOMMU, packet size, the GPUs' windows into memory (BAR1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pcie_sim import catalog
from pcie_sim.doctor.exam import UNPRICED, Exam, at, cost_text, dear, finding, said, severity
from pcie_sim.doctor.registry import check
from pcie_sim.doctor.seen import NEAR, above_gpus, meeting
from pcie_sim.importers.facts import DeviceFact
from pcie_sim.results.finding import Finding, Severity
from pcie_sim.specs.part import PciePart
from pcie_sim.units import format_bytes

_SIZES = (128, 256, 512)
"""MaxPayload that predictions know (the standard has up to 4096)."""
_FULL = 256
"""What NVIDIA GPUs can (their MaxPayload capability); smaller is a setting."""


@check("acs", "ACS request redirect is off", needs="ACSCtl of the ports: `sudo lspci -vvv`")
def acs(exam: Exam) -> list[Finding] | None:
    """Request redirect sends peer traffic up to the root complex, even between two GPUs of one switch."""
    ports = above_gpus(exam)
    on = [port for port in ports if port.acs_redirect]
    if not ports and exam.box.settings.acs == "off":
        return None
    if not on and (ports or exam.box.settings.acs == "off"):
        return []
    switches = [port for port in on if port.kind != "root_port"]
    evidence = []
    if on:
        where = ", ".join(_port(exam, port) for port in on[:6]) + (f" and {len(on) - 6} more" if len(on) > 6 else "")
        evidence.append(f"request redirect is on at {len(on)} of {len(ports)} ports above GPUs ({len(switches)} of switches): {where}")
    else:
        evidence.append("settings of the topology file: acs on")
    same = [(a, b) for a, b in exam.pairs if exam.box.path_type(a, b) in NEAR]
    turned = _turned(exam, same, switches) if switches else [] if on else same
    costs = exam.costs(exam.set(acs="off"), exam.set(acs="on")) if turned else ()
    if turned:
        evidence.append(
            f"{len(turned)} of {len(same)} ordered pairs below one switch start at a port that redirects: "
            "their traffic goes up the uplink and down again"
        )
        if not dear(costs) and all(exam.box.transport(a, b).kind != "P2P" for a, b in same):
            evidence.append("little is lost while peer-to-peer is refused; more as soon as it is granted")
    else:
        evidence.append("between root ports traffic goes through the root complex anyway")
    advice = (
        "bare metal: ACS off in the BIOS, or cleared at every port after boot: `sudo setpci -s PORT ECAP_ACS+6.w=0000` "
        "(switch ports and root ports)",
        "virtual machines with passed-through GPUs usually need it: then count on the slower path",
    )
    words = None if not turned else ""
    if costs and len(turned) < len(same):
        words = f"if all ports redirected (upper bound): {cost_text(costs)}"
    level = severity(costs)
    nodes = _below(exam, on)
    title = "ACS request redirect is on" + (f" at {len(on)} of {len(ports)} ports" if 0 < len(on) < len(ports) else "")
    return [finding("acs", title, level, evidence, costs=costs, cost=words, advice=advice, nodes=nodes)]


def _turned(exam: Exam, same: Sequence[tuple[str, str]], on: Sequence[DeviceFact]) -> list[tuple[str, str]]:
    """Pairs below one switch whose way up from the first GPU meets a redirecting port before the switch that both share.

    All of them where the files do not show which ports are above which GPU.
    """
    keys = {port.key for port in on}
    nodes = {name for name, port in exam.related.above.items() if port.key in keys}
    if not nodes:
        return list(same)
    found = []
    for a, b in same:
        way = exam.box.chain(a)
        shared = meeting(exam, a, b)
        if nodes & set(way[: way.index(shared)] if shared is not None else way):
            found.append((a, b))
    return found


def _port(exam: Exam, port: DeviceFact) -> str:
    node = next((name for name, above in exam.related.above.items() if above.key == port.key), None)
    shown = f"{port.bus or port.key}" + (f" above {node}" if node else "")
    files = set(exam.related.device_source.values())
    return said(shown, at(files.pop() if len(files) == 1 else "", port.line) or (f"line {port.line}" if port.line else ""))


def _bar1(exam: Exam, gpu: str) -> int | None:
    device, flat = exam.related.devices.get(gpu), exam.related.gpus.get(gpu)
    own = device.bar1_bytes if device is not None else None
    return own if own is not None or flat is None else flat.bar1_bytes


def _below(exam: Exam, ports: list[DeviceFact]) -> list[str]:
    keys = {port.key for port in ports}
    return [name for name, above in exam.related.above.items() if above.key in keys]


@check(
    "iommu",
    "the IOMMU does not translate peer traffic",
    needs="`sudo dmesg | grep -i -e iommu -e DMAR` (translated or passthrough), then `iommu: on` in the topology's settings",
)
def iommu(exam: Exam) -> list[Finding] | None:
    """Full translation costs each flow some of its rate, and peer copies may hang."""
    if exam.related.iommu is None and exam.box.settings.iommu == "off":
        return None
    if not exam.related.iommu and exam.box.settings.iommu == "off":
        return []
    peers = [(a, b) for a, b in exam.pairs if exam.box.transport(a, b).kind == "P2P"]
    share = catalog.load_typed_part("pcie", PciePart).translated_share
    evidence = ["the IOMMU translates (a file says so)" if exam.related.iommu else "settings of the topology file: iommu on"]
    cost: str | None = UNPRICED
    if share is not None:
        cost = f"about {1 - share.value:.0%} of each flow's rate ({share.source.split(':')[0]}); not part of predictions"
    advice = (
        "bare metal: `iommu=pt` on the kernel's command line, or the IOMMU off in the BIOS",
        "if the first AllReduce hangs with two GPUs: NCCL_P2P_DISABLE=1 tells whether it is this",
    )
    level: Severity = "problem" if peers else "note"
    if not peers:
        evidence.append("no pair uses peer-to-peer, which it hurts most")
    return [finding("iommu", "the IOMMU translates GPU traffic", level, evidence, cost=cost, advice=advice)]


@check("max-payload", "packets as large as the devices can", needs="DevCap and DevCtl MaxPayload: `sudo lspci -vvv`")
def max_payload(exam: Exam) -> list[Finding] | None:
    """Write packets of 128 bytes where the devices can 256: more overhead per byte."""
    facts = {node: fact for node, fact in exam.related.devices.items() if fact.max_payload in _SIZES}
    asked = exam.box.settings.max_payload
    if not facts and asked is None:
        return None
    small = {
        node: fact
        for node, fact in facts.items()
        if (fact.max_payload or _FULL) < min(_FULL, fact.max_payload_cap if fact.max_payload_cap is not None else _FULL)
    }
    least = min([fact.max_payload or _FULL for fact in small.values()], default=asked if asked is not None else _FULL)
    if least >= _FULL:
        return []
    evidence = exam.alike(
        (node, f"MaxPayload {fact.max_payload} bytes; it can {fact.max_payload_cap or 'more'}") for node, fact in small.items()
    )
    if not small:
        evidence.append(f"settings of the topology file: max_payload {asked}")
    large = sorted(node for node in facts if node not in small)
    if small and large:
        evidence.append(f"{exam.names(large)}: 256 or more")
    settings: dict[str, Any] = {"max_payload": least}
    costs = exam.costs(exam.set(max_payload=_FULL), exam.set(**settings))
    advice = (
        "in the BIOS: maximum payload size Auto or 256",
        "`pci=pcie_bus_perf` on the kernel's command line lets Linux choose the largest",
    )
    title = f"packets of {least} bytes where {_FULL} are possible"
    return [finding("max-payload", title, severity(costs, 0.03), evidence, costs=costs, advice=advice, nodes=small)]


@check(
    "bar1", "BAR1 windows as large as the memory", needs="the GPUs' memory regions: `sudo lspci -vvv`, or `nvidia-smi -q -d MEMORY` (BAR1)"
)
def bar1(exam: Exam) -> list[Finding] | None:
    """Peers reach a GPU's memory through its BAR1: with resizable BAR off the window has 256 MiB."""
    sizes = {gpu: size for gpu in exam.box.gpus if (size := _bar1(exam, gpu)) is not None}
    if not sizes:
        return None
    small = {gpu: size for gpu, size in sizes.items() if size < 0.5 * exam.box.gpu_spec(gpu).memory.value}
    if not small:
        return []
    rows = (
        (gpu, f"BAR1 of {format_bytes(size)}, memory of {format_bytes(exam.box.gpu_spec(gpu).memory.value)}") for gpu, size in small.items()
    )
    evidence = exam.alike(rows)
    peers = any(exam.box.transport(a, b).kind == "P2P" for a, b in exam.pairs if a in small or b in small)
    advice = (
        "in the BIOS: Above 4G Decoding and Resizable BAR on (CSM off)",
        "some cards need it enabled in their firmware (vendor's mode selector)",
    )
    evidence.append("drivers that map peer memory through BAR1 cannot grant peer access, or only to that much of it")
    costs = exam.costs(exam.box, exam.set(p2p="off")) if peers else exam.costs(exam.opened())
    text = f"if peer access is refused for it: {finding('', '', 'note', (), costs=costs).cost}"
    level: Severity = "problem" if peers and dear(costs) else "note"
    title = f"{exam.names(list(small))}: BAR1 smaller than the memory (resizable BAR off)"
    return [finding("bar1", title, level, evidence, cost=text, advice=advice, nodes=small)]
