"""Which GPU a number means: nvidia-smi counts the GPUs of the host in bus order, CUDA those that the process sees, in its own order.

With CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER the two differ, so numbers of CUDA programs are translated by bus id, and where no bus id
tells and not all GPUs took part, they mean no GPU in particular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcie_sim.catalog import identify
from pcie_sim.importers.facts import GpuFact, bus_key
from pcie_sim.importers.gather import Gathered
from pcie_sim.importers.source import Remark


@dataclass(frozen=True)
class Numbers:
    """GPUs of the host by their place in bus order, and what the numbers of each CUDA program's output mean.

    Attributes:
        facts: one for each place that lists name (``index`` is the place).
        place_of: file -> its device number -> place.
        count: GPUs of the host, where a file lists them all.
        names: names of GPUs whose place is not known.
    """

    facts: tuple[GpuFact, ...]
    place_of: Mapping[str, Mapping[int, int]]
    count: int | None
    names: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = field(default=())


def number(found: Gathered) -> Numbers:
    """Bring all numbers to places in bus order."""
    remarks: list[Remark] = []
    whole = [(fact, source) for fact, source in found.gpus if fact.numbering == "bus"]
    cuda: dict[str, list[GpuFact]] = {}
    for fact, source in found.gpus:
        if fact.numbering == "cuda":
            cuda.setdefault(source, []).append(fact)
    places: dict[int, GpuFact] = {}
    for fact, source in whole:
        known = places.get(fact.index)
        places[fact.index] = fact if known is None else _filled(known, fact, source, remarks)
    buses = sorted({device.bus for device in found.gpu_devices() if device.bus is not None}, key=bus_key)
    if not buses and places and all(fact.bus is not None for fact in places.values()):
        buses = sorted((fact.bus for fact in places.values() if fact.bus is not None), key=bus_key)
    count = len(buses) or max((index + 1 for index in places), default=0) or _most_labels(found)
    if not count and all(_in_a_row(facts) for facts in cuda.values()):
        told = [fact.bus for facts in cuda.values() for fact in facts if fact.bus is not None]
        buses = sorted(set(told), key=bus_key)
        count = len(buses)
    place_of: dict[str, dict[int, int]] = {}
    names: list[str] = []
    for source, facts in cuda.items():
        mine = _places_of(facts, buses, count, source, remarks)
        place_of[source] = mine
        for fact in facts:
            place = mine.get(fact.index)
            if place is None:
                names += [fact.name] if fact.name and (fact.bus is None or not buses) else []
                continue
            moved = replace(fact, index=place, numbering="bus")
            known = places.get(place)
            places[place] = moved if known is None else _filled(known, moved, source, remarks)
    ordered = tuple(places[place] for place in sorted(places))
    return Numbers(ordered, place_of, count or None, tuple(dict.fromkeys(names)), tuple(remarks))


def _in_a_row(facts: Sequence[GpuFact]) -> bool:
    """Devices 0, 1, 2 ...: else (0, 1, 4, 5) the program saw more of the host's than it used, and its numbers are places."""
    return sorted({fact.index for fact in facts}) == list(range(len({fact.index for fact in facts})))


def _most_labels(found: Gathered) -> int:
    """GPUs in the largest matrix that numbers them as nvidia-smi does."""
    return max((len(matrix.labels) for matrix, _ in found.matrices if matrix.kind in ("path", "p2p_status")), default=0)


def _places_of(facts: Sequence[GpuFact], buses: Sequence[str], count: int, source: str, remarks: list[Remark]) -> dict[int, int]:
    """Device number -> place in bus order, by bus id; by order where all GPUs of the host are listed."""
    if buses:
        at = {bus: place for place, bus in enumerate(buses)}
        found = {fact.index: at[fact.bus] for fact in facts if fact.bus is not None and fact.bus in at}
        strange = [fact.bus for fact in facts if fact.bus is not None and fact.bus not in at]
        if strange:
            text = f"its GPUs ({', '.join(strange[:4])}) are not among those that other files list: not taken for any of them"
            remarks.append(Remark("conflict", text, source))
        unplaced = [fact for fact in facts if fact.bus is None]
        if unplaced and len(unplaced) == len(facts) == count:
            return {fact.index: place for place, fact in enumerate(sorted(facts, key=lambda fact: fact.index))}
        return found
    own = sorted({fact.bus for fact in facts if fact.bus is not None}, key=bus_key)
    if len(facts) == count:
        if len(own) == count:
            return {fact.index: own.index(fact.bus) for fact in facts if fact.bus is not None}
        return {fact.index: place for place, fact in enumerate(sorted(facts, key=lambda fact: fact.index))}
    if not count:
        return {fact.index: fact.index for fact in facts}
    text = f"lists {len(facts)} of {count} GPUs, and no other file has bus ids: which of them they are is not known"
    remarks.append(Remark("note", text, source))
    return {}


def _filled(known: GpuFact, other: GpuFact, source: str, remarks: list[Remark]) -> GpuFact:
    """``known`` with what only ``other`` says; a remark where both name another GPU or another place."""
    if known.bus is not None and other.bus is not None and known.bus != other.bus:
        text = f"GPU {other.index} has the bus id {other.bus}; another file says {known.bus}, which is kept"
        remarks.append(Remark("conflict", text, source))
        return known
    if known.name and other.name and _other_models(known.name, other.name):
        text = f"GPU {other.index} is {other.name[:60]!r}; another file says {known.name[:60]!r}, which is kept"
        remarks.append(Remark("conflict", text, source))
    gaps = {
        key: getattr(other, key)
        for key in ("name", "bus", "link", "link_max", "numa", "cpus", "memory_bytes", "device_gen", "host_gen", "bar1_bytes")
        if getattr(known, key) in (None, "", ()) and getattr(other, key) not in (None, "", ())
    }
    return replace(known, **gaps)


def _other_models(a: str, b: str) -> bool:
    """Two printed names mean different products for certain (a cut or short name may mean several)."""
    first, second = identify.gpu_by_name(a), identify.gpu_by_name(b)
    if first is None or second is None or first.name == second.name:
        return False
    return second.name not in first.candidates and first.name not in second.candidates
