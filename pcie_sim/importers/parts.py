"""Which catalog entries the devices of a sketch are; what no file says is assumed, by the catalog's own list, and said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pcie_sim import catalog
from pcie_sim.catalog import identify
from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.importers.facts import CpuFact, DeviceFact, GpuFact, HostFact
from pcie_sim.importers.gather import Gathered
from pcie_sim.importers.sketch import Sketch, Spot
from pcie_sim.importers.source import Remark, quoted

_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]|gfx[0-9a-f]{3,5}|xe[0-9]?")
"""Compute capability of NVIDIA, gfx name of AMD, architecture of Intel, as the catalog writes them."""


@dataclass
class Parts:
    """Part names by node name, and the remarks made on the way."""

    of: dict[str, str] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    open_: dict[str, list[str]] = field(default_factory=dict)
    """What was taken although more fits -> the nodes."""
    silent: bool = False
    """No file says which GPU at least one of them is."""

    def assume(self, text: str) -> None:
        """Something that no file says."""
        self.remarks.append(Remark("assumed", text))


def gpu_parts(sketch: Sketch, found: Gathered, facts: Sequence[GpuFact | None], asked: str | None) -> Parts:
    """The GPU model of every GPU node: as asked, by PCI id, by printed name, else the assumed one.

    Args:
        facts: what a flat list says of each GPU node, in order (None: nothing).
        asked: the model to take for all of them.

    Raises:
        UnknownNameError: ``asked`` is not in the catalog.
        InputError: a file names a GPU that the catalog does not have.
    """
    parts = Parts()
    if asked is not None:
        _contradicts(sketch, facts, asked, parts)
        parts.of = dict.fromkeys((spot.name for spot in sketch.gpus()), catalog.resolve("gpus", asked))
        return parts
    silent: list[str] = []
    for spot, fact in zip(sketch.gpus(), facts, strict=True):
        model = _gpu_model(spot, fact, parts, found)
        if model is None:
            silent.append(spot.name)
        else:
            parts.of[spot.name] = model
    for text, names in parts.open_.items():
        parts.assume(f"GPU model of {span(names)}: {text}")
    if silent:
        parts.silent = True
        known = sorted(set(parts.of.values()))
        if len(known) == 1:
            model, why = known[0], "as the others"
        else:
            model, why = _assumed_gpu(sketch)
        parts.of |= dict.fromkeys(silent, model)
        parts.assume(f"GPU model of {span(silent)}: no file says it; {model} ({why}). Say it: --gpu NAME, or add `nvidia-smi -L`")
    return parts


def catalog_gpu(device: DeviceFact) -> str | None:
    """The catalog's GPU for a device of a tree, by PCI id or printed name; None where it is not known."""
    by_id = identify.gpu_by_id(*device.ids, device.subsystem) if device.ids is not None else None
    match = identify.gpu_by_name(device.name) if by_id is None and device.name else None
    return by_id if by_id is not None else match.name if match is not None else None


def _contradicts(sketch: Sketch, facts: Sequence[GpuFact | None], asked: str, parts: Parts) -> None:
    """A remark where files name another GPU than the one that was asked for."""
    others: dict[str, list[str]] = {}
    for spot, fact in zip(sketch.gpus(), facts, strict=True):
        by_id = (
            identify.gpu_by_id(*spot.device.ids, spot.device.subsystem) if spot.device is not None and spot.device.ids is not None else None
        )
        match = identify.gpu_by_name(fact.name) if fact is not None and fact.name else None
        said = by_id or (match.name if match is not None and asked not in match.candidates else None)
        if said is not None and said != asked:
            others.setdefault(said, []).append(spot.name)
    for said, names in others.items():
        parts.remarks.append(Remark("conflict", f"{span(names)}: {said} by the files; {asked} taken, as asked for (--gpu)"))


def _assumed_gpu(sketch: Sketch) -> tuple[str, str]:
    """The catalog's assumed GPU; where a file shows NVLink, one that has so many links."""
    defaults = identify.assumed_defaults()
    links = max(sketch.bridges.values(), default=0)
    default = defaults.get(f"gpu_nvlink_{links}", defaults["gpu"])
    return default.name, default.reason


def _gpu_model(spot: Spot, fact: GpuFact | None, parts: Parts, found: Gathered) -> str | None:
    device = spot.device
    by_id = identify.gpu_by_id(*device.ids, device.subsystem) if device is not None and device.ids is not None else None
    texts = [text for text in (fact.name if fact is not None else "", device.name if device is not None else "") if text]
    if by_id is not None:
        for text in texts:
            match = identify.gpu_by_name(text)
            if match is not None and match.exact and match.name != by_id and by_id not in match.candidates:
                parts.remarks.append(Remark("conflict", f"{spot.name}: {quoted(text)} by name, {by_id} by PCI id: {by_id} taken"))
        return by_id
    for text in texts:
        match = identify.gpu_by_name(text, fact.memory_bytes if fact is not None else None)
        if match is None:
            continue
        if match.candidates:
            others = ", ".join(match.candidates[:4])
            parts.open_.setdefault(f"{quoted(text)} may be {others}: {match.name} taken (--gpu NAME says it)", []).append(spot.name)
        return match.name
    if device is not None and device.ids is None:
        capability = f"{device.sm // 10}.{device.sm % 10}" if device.sm is not None else ""
        for text in (*texts, capability):
            model = _by_capability(spot, text, parts) if _CAPABILITY.fullmatch(text) else None
            if model is not None:
                return model
    what = f"the GPU {quoted(texts[0])}" if texts else ""
    if not what and device is not None and device.ids is not None:
        what = f"the GPU with PCI id {device.ids[0]:04x}:{device.ids[1]:04x}"
    if what:
        raise InputError(
            f"{_source(spot, found)}: {what} is not in the catalog; name the nearest with --gpu NAME\n"
            "all: pcie-sim gpu list; a new one is a file, see CONTRIBUTING.md"
        )
    return None


def _by_capability(spot: Spot, capability: str, parts: Parts) -> str | None:
    """The compute capability alone leaves several models open."""
    fitting = identify.gpus_of_capability(capability)
    if not fitting:
        return None
    default = identify.assumed_defaults()["gpu"].name
    model = default if default in fitting else fitting[0]
    if len(fitting) > 1:
        others = ", ".join(fitting[:6]) + (" ..." if len(fitting) > 6 else "")
        parts.open_.setdefault(f"only compute capability {capability} is said ({others}): {model} taken (--gpu NAME says it)", []).append(
            spot.name
        )
    return model


def _source(spot: Spot, found: Gathered) -> str:
    device = spot.device
    if device is not None:
        where = found.device_source.get(device.key, "")
        return f"{where}:{device.line}" if device.line else where
    return found.sources[0] if found.sources else spot.name


def socket_parts(sketch: Sketch, host: HostFact | None) -> Parts:
    """The part of every socket by what the files say of the CPU, else the assumed one."""
    parts = Parts()
    silent: list[str] = []
    for number, spot in sketch.sockets.items():
        cpu = sketch.cpu_of.get(number, CpuFact("cpu"))
        vendor = cpu.vendor or (host.cpu_vendor if host is not None else "") or _maker_of_ports(spot)
        family = cpu.family if cpu.family is not None else host.family if host is not None else None
        model = cpu.model if cpu.model is not None else host.model if host is not None else None
        name = cpu.name or (host.cpu_name if host is not None else "")
        match = identify.socket_part(vendor, family, model, name) if vendor or name else None
        if match is None:
            silent.append(spot.name)
            continue
        parts.of[spot.name] = match.name
        if not match.exact:
            numbers = f" family {family} model {model}" if family is not None and model is not None else ""
            parts.assume(
                f"CPU {quoted(name or vendor + numbers)}: {match.name} taken ({match.why})" + ("" if name else "; `lscpu` says more")
            )
    if silent and len(set(parts.of.values())) == 1:
        known = next(iter(parts.of.values()))
        parts.of |= dict.fromkeys(silent, known)
        parts.assume(f"CPU of {span(silent)}: no file says it; {known} as the others")
    elif silent:
        default = identify.assumed_defaults()["socket"]
        parts.of |= dict.fromkeys(silent, default.name)
        parts.assume(f"CPU of {span(silent)}: no file says it; {default.name} ({default.reason}). Add `lscpu` to say it")
    return parts


def _maker_of_ports(socket: Spot) -> str:
    """The maker in the name of a root port (``Advanced Micro Devices, Inc. [AMD] ...``): it is part of the processor."""
    names = [spot.device.name for spot in socket.children if spot.kind == "root_port" and spot.device is not None and spot.device.name]
    return names[0] if names else ""


def switch_part(device: DeviceFact | None) -> str | None:
    """The switch chip by its PCI id or printed name; None where it is not known."""
    if device is None:
        return None
    by_id = identify.switch_by_id(*device.ids) if device.ids is not None else None
    return by_id or (identify.switch_by_name(device.name) if device.name else None)


def nic_part(device: DeviceFact) -> str | None:
    """The network card by id or printed name; None where it is not known."""
    if device.ids is not None:
        by_id = identify.nic_by_id(*device.ids)
        if by_id is not None:
            return by_id
    match = identify.nic_by_name(device.name) if device.name else None
    return match.name if match is not None and not match.candidates else None


def checked(asked: str | None) -> str | None:
    """``asked`` as the catalog writes it.

    Raises:
        UnknownNameError: no such GPU.
    """
    try:
        return None if asked is None else catalog.resolve("gpus", asked)
    except UnknownNameError as exc:
        raise UnknownNameError(f"--gpu: {exc}") from exc


def span(names: Sequence[str]) -> str:
    """``gpu0 to gpu7`` for consecutive names, else a list.

    >>> span(["gpu0", "gpu1", "gpu2"]), span(["gpu0", "gpu4"])
    ('gpu0 to gpu2', 'gpu0, gpu4')
    """
    stem = names[0].rstrip("0123456789")
    numbers = [int(name[len(stem) :]) for name in names if name.startswith(stem) and name[len(stem) :].isdigit()]
    if len(names) > 2 and len(numbers) == len(names) and numbers == list(range(numbers[0], numbers[0] + len(names))):
        return f"{names[0]} to {names[-1]}"
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
