"""Several files about one box: devices matched by bus id, the better evidence first, disagreements said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pcie_sim.importers.facts import BoxFacts, CclFact, CpuFact, DeviceFact, GpuFact, HostFact, LinkFact, MatrixFact, either
from pcie_sim.importers.imported import Imported, Launch
from pcie_sim.importers.source import Remark
from pcie_sim.specs.measurement import MeasurementSet

TREE_RANK = ("lspci-vvv", "nccl-topo", "hwloc", "nccl-debug", "lspci-t")
"""Formats that draw a tree, by what they know of it: lspci prints every port with what it can and does, NCCL's XML switches with links
in force, hwloc bridges without roles, NCCL's log the tree in bandwidths, lspci -t no link at all."""


@dataclass
class Gathered:
    """The facts of all files in one place."""

    devices: dict[str, DeviceFact] = field(default_factory=dict)
    device_source: dict[str, str] = field(default_factory=dict)
    tree_source: str | None = None
    cpus: tuple[CpuFact, ...] = ()
    host: HostFact | None = None
    gpus: list[tuple[GpuFact, str]] = field(default_factory=list)
    matrices: list[tuple[MatrixFact, str]] = field(default_factory=list)
    ccl: list[tuple[CclFact, str]] = field(default_factory=list)
    measurements: list[tuple[MeasurementSet, str]] = field(default_factory=list)
    launches: list[tuple[Launch, str]] = field(default_factory=list)
    iommu: bool | None = None
    acs_redirect: bool | None = None
    remarks: list[Remark] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def gpu_devices(self) -> list[DeviceFact]:
        """The GPUs of the tree."""
        return [device for device in self.devices.values() if device.kind == "gpu"]


def gather(files: Sequence[Imported]) -> Gathered:
    """Put the facts of ``files`` together. The first tree in :data:`TREE_RANK` is the tree; others fill what it leaves open."""
    found = Gathered(sources=[one.source for one in files])
    trees = [one for one in files if _draws(one)]
    trees.sort(key=_rank)
    bare = [one for one in files if not _draws(one)]
    for one in trees:
        _add_tree(found, one)
    for one in (*trees, *bare):
        _add_flat(found, one)
    if found.host is not None and (found.host.cpu_name or found.host.family is not None):
        found.cpus = tuple(_without_device(cpu) for cpu in found.cpus)
    return found


def _draws(one: Imported) -> bool:
    return any(device.kind == "gpu" for device in one.box.devices)


def _rank(one: Imported) -> int:
    return min((TREE_RANK.index(name) for name in one.formats if name in TREE_RANK), default=len(TREE_RANK))


def _add_tree(found: Gathered, one: Imported) -> None:
    gpus = {device.key for device in one.box.devices if device.kind == "gpu"}
    if found.tree_source is None:
        found.tree_source = one.source
        found.cpus = one.box.cpus
        for device in one.box.devices:
            found.devices[device.key] = device
            found.device_source[device.key] = one.source
        return
    known = {device.key for device in found.gpu_devices()}
    shared = known & gpus
    if gpus and not shared:
        text = f"its GPUs ({_some(sorted(gpus))}) are not those of {found.tree_source} ({_some(sorted(known))}): its tree is left out"
        found.remarks.append(Remark("conflict", text, one.source))
        return
    missing = sorted(known - gpus) if not any(name == "nccl-debug" for name in one.formats) else []
    if missing:
        found.remarks.append(Remark("conflict", f"does not list {_some(missing)} of {found.tree_source}", one.source))
    extra = sorted(gpus - known)
    if extra:
        found.remarks.append(Remark("conflict", f"lists {_some(extra)}, which {found.tree_source} does not: left out", one.source))
    _compare_trees(found, one)
    for device in one.box.devices:
        mine = found.devices.get(device.key)
        if mine is not None:
            found.devices[device.key] = _filled(mine, device, found, one.source)
    if not any((cpu.vendor or cpu.name) and not cpu.of_device for cpu in found.cpus):
        found.cpus = tuple(_cpu_filled(cpu, one.box.cpus) for cpu in found.cpus)


def _cpu_filled(cpu: CpuFact, others: Iterable[CpuFact]) -> CpuFact:
    known = [one for one in others if one.vendor or one.name or one.cpus or one.package is not None]
    if any((one.name or one.family is not None) and not one.of_device for one in known):
        cpu = _without_device(cpu)
    other = next((one for one in known if one.numa == cpu.numa), None)
    filled: CpuFact = cpu if other is None else _fill(cpu, other)
    makers = {(one.vendor, one.family, one.model, one.name) for one in known}
    if not filled.vendor and not filled.name and len(makers) == 1:  # one processor in all sockets of a host
        vendor, family, model, name = makers.pop()
        filled = replace(filled, vendor=vendor, family=family, model=model, name=name)
    return filled


def _without_device(cpu: CpuFact) -> CpuFact:
    """Without the name of a device that stands for the processor where nothing else does."""
    return replace(cpu, vendor="", name="", of_device=False) if cpu.of_device else cpu


def _fill(mine: Any, other: Any, skip: tuple[str, ...] = ("key",)) -> Any:
    """``mine`` with what only ``other`` says."""
    gaps = {}
    for one in fields(mine):
        value = getattr(mine, one.name)
        if one.name not in skip and value in (None, "", ()) and getattr(other, one.name) not in (None, "", ()):
            gaps[one.name] = getattr(other, one.name)
    return replace(mine, **gaps) if gaps else mine


_COMPARED: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("numa", "NUMA node", str),
    ("ids", "PCI id", lambda ids: f"{ids[0]:04x}:{ids[1]:04x}"),
    ("link_max", "a port for", str),
    ("acs_redirect", "ACS redirect", lambda on: "on" if on else "off"),
    ("max_payload", "payload size", lambda size: f"{size} B"),
    ("bar1_bytes", "BAR1", lambda size: f"{size / 2**20:.0f} MiB"),
)
"""What two files may say differently of one device, in words."""


def _filled(mine: DeviceFact, other: DeviceFact, found: Gathered, source: str) -> DeviceFact:
    """``mine`` with what only ``other`` says, and a remark for each thing that both say differently. Parents are never taken over.

    The faster of two speeds in force is kept: a link that idles is slower than it can be, never faster.
    """
    first = found.device_source[mine.key]
    for name, words, shown in _COMPARED:
        a, b = getattr(mine, name), getattr(other, name)
        if a is not None and b is not None and a != b and not (name == "link_max" and not (a.known and b.known)):
            text = f"{mine.key}: {words} {shown(b)}; {first} says {shown(a)}, which is kept"
            found.remarks.append(Remark("conflict", text, source, other.line))
    now, then = mine.link, other.link
    if now is not None and then is not None and now.width is not None and then.width is not None and now.width != then.width:
        found.remarks.append(Remark("conflict", f"{mine.key}: x{then.width}; {first} says x{now.width}, which is kept", source, other.line))
    merged: DeviceFact = _fill(mine, other, ("key", "parent", "cpu", "kind", "role", "link", "link_max", "line"))
    return replace(merged, link=_faster(either(now, then), then), link_max=either(mine.link_max, other.link_max))


def _faster(mine: LinkFact | None, other: LinkFact | None) -> LinkFact | None:
    if mine is None or other is None or mine.gen is None or other.gen is None:
        return mine
    return replace(mine, gen=max(mine.gen, other.gen))


def _compare_trees(found: Gathered, one: Imported) -> None:
    """A remark where another file has GPUs below one bridge that the tree has apart, or the other way round."""
    theirs = {device.key: device for device in one.box.devices}
    gpus = [device.key for device in found.gpu_devices() if device.key in theirs][:64]
    mine_above = {key: _bridges(found.devices, key) for key in gpus}
    their_above = {key: _bridges(theirs, key) for key in gpus}
    differ = [
        (a, b)
        for i, a in enumerate(gpus)
        for b in gpus[i + 1 :]
        if bool(mine_above[a] & mine_above[b]) != bool(their_above[a] & their_above[b])
    ]
    if differ:
        a, b = differ[0]
        joined = "one switch above" if their_above[a] & their_above[b] else "no common switch above"
        more = f" (and {len(differ) - 1} more pairs)" if len(differ) > 1 else ""
        found.remarks.append(
            Remark("conflict", f"{joined} {a} and {b}{more}; {found.tree_source} has it otherwise, which is kept", one.source)
        )


def _bridges(devices: Mapping[str, DeviceFact], key: str) -> set[str]:
    """Bridges above a device that are no root ports."""
    found: set[str] = set()
    at = devices[key].parent
    while at is not None and at in devices and at not in found and len(found) < 32:
        if devices[at].kind != "root_port":
            found.add(at)
        at = devices[at].parent
    return found


def _add_flat(found: Gathered, one: Imported) -> None:
    box: BoxFacts = one.box
    found.gpus += [(gpu, one.source) for gpu in box.gpus]
    found.matrices += [(matrix, one.source) for matrix in box.matrices]
    found.ccl += [(ccl, one.source) for ccl in box.ccl]
    found.measurements += [(measured, one.source) for measured in one.measurements]
    if one.launch is not None:
        found.launches.append((one.launch, one.source))
    found.remarks += one.remarks
    if box.host is not None:
        found.host = box.host if found.host is None else _fill(found.host, box.host, ())
    if not found.cpus and box.cpus and found.tree_source is None:
        found.cpus = box.cpus
    elif found.tree_source is not None and one.source != found.tree_source and box.cpus and not box.devices:
        found.cpus = tuple(_cpu_filled(cpu, box.cpus) for cpu in found.cpus)
    for name in ("iommu", "acs_redirect"):
        mine, other = getattr(found, name), getattr(box, name)
        if mine is None:
            setattr(found, name, other)
        elif other is not None and other != mine:
            word = "IOMMU translation" if name == "iommu" else "ACS redirect"
            found.remarks.append(Remark("conflict", f"{word} {'on' if other else 'off'}; another file says otherwise", one.source))


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
