"""From what files print to catalog entries: PCI ids, product names, processors, and what stands where a file says nothing.

All knowledge is in the catalog's files (``pci_ids``, ``printed_names``, ``cpus``, ``socket_link`` ...) and the index made of them
(:mod:`pcie_sim.catalog.ids`); a look-up reads that index, not the folder. Nothing here raises on strange text: it is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from pcie_sim.catalog import lookup
from pcie_sim.catalog.ids import known
from pcie_sim.catalog.load import load_gpu, load_part
from pcie_sim.catalog.printed import LONGEST, Printed, product_texts, take_apart, unnamed_id, word_lists
from pcie_sim.errors import UnknownNameError
from pcie_sim.specs.loader import parse_yaml, read_text
from pcie_sim.specs.part import SocketPart

ASSUMED_FILE = "_assumed.yaml"
MOST_CANDIDATES = 8
"""A name that may be more products than these says nothing."""
_SIZE_SLACK = 0.085
"""A card of 24 GB reports 22.5 to 24 GiB; 11 and 12 GB, 16 and 20 GB are different cards."""


@dataclass(frozen=True)
class Match:
    """A catalog entry for something printed.

    Attributes:
        name: the entry; where several fit, the likeliest.
        exact: the text names this entry and no other.
        candidates: what else it may be, ``name`` included; empty where nothing else fits.
        why: what the choice rests on, where it is not exact.
    """

    name: str
    exact: bool = True
    candidates: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Assumed:
    """What stands where no file says it, and why; ``words``: what a vendor's text holds (sockets)."""

    name: str
    reason: str
    words: tuple[str, ...] = ()


def gpu_by_id(vendor: int, device: int, subsystem: tuple[int, int] | None = None) -> str | None:
    """The GPU with that PCI id; the board's own pair first, where only that tells products apart. None: not in the catalog."""
    return _by_id("gpus", "ids", vendor, device, subsystem)


def switch_by_id(vendor: int, device: int) -> str | None:
    """The switch part with that PCI id (of any of its ports). None: not in the catalog."""
    return _by_id("parts", "switches", vendor, device, None)


def switch_by_name(text: str) -> str | None:
    """The switch part whose printed name stands in ``text`` (``Broadcom / LSI PEX890xx PCIe Gen 5 Switch``). None: not in the catalog."""
    low = " ".join(text[:LONGEST].lower().split())
    fitting = [name for name in known("parts").get("switch_names", {}) if name in low]
    if fitting:
        return str(known("parts")["switch_names"][max(fitting, key=len)])
    unnamed = unnamed_id(text)
    found = known("parts").get("switches", {}).get(unnamed) if unnamed is not None else None
    return None if found is None else str(found)


def nic_by_id(vendor: int, device: int) -> str | None:
    """The network card with that PCI id. None: not in the catalog."""
    return _by_id("parts", "nics", vendor, device, None)


def _by_id(kind: lookup.Kind, section: str, vendor: int, device: int, subsystem: tuple[int, int] | None) -> str | None:
    ids = known(kind).get(section, {})
    key = f"{vendor:04x}:{device:04x}"
    if subsystem is not None:
        found = ids.get(f"{key} {subsystem[0]:04x}:{subsystem[1]:04x}")
        if found is not None:
            return str(found)
    found = ids.get(key)
    return None if found is None else str(found)


def gpu_by_name(text: str, memory_bytes: int | None = None) -> Match | None:
    """The GPU that ``text`` names: as nvidia-smi, lspci, nccl-tests, rocm-smi and people print it. None: not in the catalog, or
    too little to tell.

    Whole names come first, then names inside a longer text. A name with a word that makes another product (Ti, D, Laptop, SXM ...)
    is never taken for the plain one. A memory size in the text (or ``memory_bytes``) decides among products of one name.

    Args:
        memory_bytes: memory that the driver reports, where a file says it.
    """
    index = known("gpus")
    unnamed = unnamed_id(text)
    if unnamed is not None and unnamed in index.get("ids", {}):
        return Match(str(index["ids"][unnamed]))
    catalog = _Names(index.get("names", {}), {name: int(fact["memory"]) for name, fact in index.get("facts", {}).items()}, "gpus")
    return _by_name(text, catalog, memory_bytes)


def gpus_of_capability(capability: str) -> tuple[str, ...]:
    """GPUs of that compute capability or gfx name (``"8.9"``, ``"gfx906"``), sorted: all that a file without ids and names tells."""
    facts = known("gpus").get("facts", {})
    return tuple(sorted(name for name, fact in facts.items() if fact["capability"] == capability))


def nic_by_name(text: str) -> Match | None:
    """The network card that ``text`` names (``MT2910 Family [ConnectX-7]``). None: not in the catalog."""
    index = known("parts")
    unnamed = unnamed_id(text)
    if unnamed is not None and unnamed in index.get("nics", {}):
        return Match(str(index["nics"][unnamed]))
    return _by_name(text, _Names(index.get("nic_names", {}), {}, "parts"), None)


@dataclass(frozen=True)
class _Names:
    """One section of names: key -> how -> entries; memory in bytes by entry; the folder whose aliases decide a tie."""

    names: Mapping[str, Mapping[str, Sequence[str]]]
    memory: Mapping[str, int]
    kind: lookup.Kind

    def fits(self, name: str, sizes: Iterable[int], memory: int | None) -> bool:
        """The entry's memory is one of the sizes (GB as products are sold), and about what the driver reports."""
        own = self.memory.get(name)
        if own is None:
            return True
        wanted = [size * 2**30 for size in sizes if size > 0] + ([memory] if memory else [])
        return all(abs(own / size - 1) <= _SIZE_SLACK for size in wanted)

    def owner(self, key: str, names: Sequence[str]) -> str:
        """The one of ``names`` that the catalog's own alias ``key`` means, else the first."""
        words = key.split()
        for length in range(len(words), 0, -1):
            try:
                found = lookup.resolve(self.kind, "-".join(words[:length]))
            except UnknownNameError:
                continue
            if found in names:
                return found
        return names[0]


def _by_name(text: str, catalog: _Names, memory: int | None) -> Match | None:
    found: list[Match] = []
    texts = product_texts(text)
    for one in texts:
        printed = take_apart(one)
        if not printed.words:
            continue
        match = _cut_off(printed, catalog) if printed.cut else _whole(printed, catalog, memory) or _inside(printed, catalog, memory)
        if match is not None:
            found.append(match)
    if not found:
        return None
    if len(texts) == 1:
        return found[0]
    names = tuple(dict.fromkeys(match.name for match in found))
    return Match(names[0], False, names if len(names) > 1 else (), "the text names several products")


def _whole(printed: Printed, catalog: _Names, memory: int | None) -> Match | None:
    """The text is a name of the catalog, memory size apart."""
    entry = catalog.names.get(printed.key)
    if entry is None:
        return None
    names = entry.get("printed") or entry["alias"]
    fitting = [name for name in names if catalog.fits(name, printed.sizes, memory)]
    if not fitting:
        return Match(catalog.owner(printed.key, names), False, tuple(names), "its memory is of another size than the text says")
    longer = [] if entry.get("printed") else _longer(printed.key, catalog)  # a short name of people, and others begin with it
    others = tuple(dict.fromkeys((*fitting, *(name for name in longer if catalog.fits(name, printed.sizes, memory)))))
    if len(others) == 1:
        return Match(fitting[0])
    why = "the text says no memory size" if len(fitting) > 1 else "a short name for several products"
    return Match(catalog.owner(printed.key, fitting), False, others[:MOST_CANDIDATES], why)


def _longer(key: str, catalog: _Names) -> list[str]:
    return [name for other, entry in catalog.names.items() if other.startswith(key + " ") for name in entry.get("printed", ())]


def _cut_off(printed: Printed, catalog: _Names) -> Match | None:
    """The text is the beginning of a name. A last word that says nothing whole may be whole or the beginning of another."""
    *head, last = printed.words
    ways = [printed.key]
    if any(word.startswith(last) for word in word_lists().silent):
        ways.append(" ".join(head))
    names: dict[str, None] = {}
    for key, entry in catalog.names.items():
        if key.startswith(printed.key) or key in ways:
            names |= dict.fromkeys(entry.get("printed", ()))
    names = {name: None for name in names if catalog.fits(name, printed.sizes, None)}
    if not 0 < len(names) <= MOST_CANDIDATES:
        return None
    listed = tuple(names)
    return Match(catalog.owner(" ".join(head), listed), False, listed if len(listed) > 1 else (), "the text is cut off")


def _inside(printed: Printed, catalog: _Names, memory: int | None) -> Match | None:
    """A name of the catalog stands inside the text, and no word around it makes it another product."""
    words = printed.words
    for length in range(min(len(words) - 1, 8), 0, -1):
        for start in range(len(words) - length + 1):
            key = " ".join(words[start : start + length])
            if key in catalog.names and not _other_product(words[:start], words[start + length :]):
                match = _whole(Printed(tuple(key.split()), printed.sizes), catalog, memory)
                return None if match is None else Match(match.name, False, match.candidates, match.why or "named inside a longer text")
    return None


def _other_product(before: Sequence[str], after: Sequence[str]) -> bool:
    if word_lists().other & {*before, *after}:
        return True
    # "4090 d", "a40 48q", "l40 g": a letter or a number right behind the name belongs to it; a digit before it too ("2 a100" does not)
    return bool(after) and (len(after[0]) == 1 or any(char.isdigit() for char in after[0]))


def socket_part(vendor: str | None, family: int | None, model: int | None, name: str | None) -> Match | None:
    """The socket part for a processor. Its model name decides where it is printed; else family and model; else the vendor.

    Args:
        vendor: as printed (``AuthenticAMD``, ``GenuineIntel``, ``ARM`` ...); may be None or empty when the name says it.
        family, model: as ``/proc/cpuinfo`` counts them, or as NCCL's XML does (extended family shifted by four bits: 143 is 23).
        name: model name as lscpu prints it.

    Returns:
        None when not even the vendor is said.
    """
    printed = _cpu_text(name or "")
    maker = _maker(f"{vendor or ''} {printed}")
    if maker is None:
        return None
    sockets: Mapping[str, Mapping[str, Any]] = known("parts").get("sockets", {})
    named = _by_cpu_name(printed, sockets, maker)
    if named is not None:
        return named
    numbered = _by_cpu_numbers(maker, _true_family(family), model, sockets)
    if numbered is not None:
        if printed and numbered.exact:
            return Match(numbered.name, False, (), "by family and model: the name is not a known one")
        return numbered
    default = assumed_defaults()[f"socket_{maker}"]
    return Match(default.name, False, (), default.reason)


def _cpu_text(name: str) -> str:
    low = name[:LONGEST].lower().replace("(r)", " ").replace("(tm)", " ")
    return " ".join(low.split())


def _maker(text: str) -> str | None:
    low = text[:LONGEST].lower()
    for key, default in assumed_defaults().items():
        if key.startswith("socket_") and any(word in low for word in default.words):
            return key.removeprefix("socket_")
    return "other" if low.strip() else None


def _true_family(family: int | None) -> int | None:
    """NCCL shifts the extended family by four bits before it adds it to the base family of 15 (src/graph/topo.cc)."""
    if family is not None and family >= 64 and family % 16 == 15:
        return 15 + (family >> 4)
    return family


def _by_cpu_name(printed: str, sockets: Mapping[str, Mapping[str, Any]], maker: str) -> Match | None:
    best = _best_rule(printed, sockets, maker)
    if best is None:
        return None
    _length, rank, part, also = best
    if rank == _EXACT:
        return Match(part)
    others = f"{also} print{'' if ' and ' in also else 's'} the same" if also else ""
    return Match(part, False, (), "; ".join(text for text in ("the nearest part" if rank == _NEAR else "", others) if text))


_NEAR, _SHARED, _EXACT = 1, 2, 3
"""How much a rule says: the nearest part, the part among others of one name, the part."""


def _best_rule(printed: str, sockets: Mapping[str, Mapping[str, Any]], maker: str) -> tuple[int, int, str, str] | None:
    """(length of the pattern, how much it says, part, who else has the name) of the longest pattern that fits."""
    found = [
        (len(pattern), _NEAR if rule.get("near") else _SHARED if rule.get("also") else _EXACT, part, str(rule.get("also", "")))
        for part, entry in sockets.items()
        for rule in entry["cpus"]
        if printed and (pattern := rule.get("name")) and entry["vendor"] == maker and fnmatchcase(printed, pattern)
    ]
    return max(found, default=None)


def telling_device(names: Iterable[str]) -> str | None:
    """Which of the printed names of devices on root buses says most of the processor that they are part of: one that a rule of the catalog
    knows, and of those the one that leaves least open. None: no rule knows any.
    """
    sockets: Mapping[str, Mapping[str, Any]] = known("parts").get("sockets", {})
    best: tuple[int, str] | None = None
    for name in dict.fromkeys(names):
        printed = _cpu_text(name)
        maker = _maker(printed)
        rule = _best_rule(printed, sockets, maker) if maker is not None else None
        if rule is not None and (best is None or rule[1] > best[0]):
            best = (rule[1], name)
    return best[1] if best is not None else None


def _by_cpu_numbers(maker: str, family: int | None, model: int | None, sockets: Mapping[str, Mapping[str, Any]]) -> Match | None:
    if family is None or model is None:
        return None
    found = [
        (bool(rule.get("near")), part, str(rule.get("also", "")))
        for part, entry in sockets.items()
        for rule in entry["cpus"]
        if rule.get("family") == family and entry["vendor"] == maker and rule["models"][0] <= model <= rule["models"][1]
    ]
    if not found:
        return None
    near, part, also = min(found)
    names = tuple(dict.fromkeys(one[1] for one in sorted(found)))
    if near:
        return Match(part, False, names if len(names) > 1 else (), "the nearest part")
    if also or len(names) > 1:
        return Match(part, False, names if len(names) > 1 else (), f"{also or 'others'} has the same numbers; the model name would tell")
    return Match(part)


def socket_link(part: str) -> str:
    """The interconnect part that joins two sockets of ``part``; for one that stands alone or is none, the assumed one of its vendor.

    Raises:
        UnknownNameError: no such part.
    """
    socket = load_part(part)
    if isinstance(socket, SocketPart) and socket.socket_link is not None:
        return socket.socket_link
    vendor = socket.vendor if isinstance(socket, SocketPart) else "other"
    generic = load_part(assumed_defaults()[f"socket_{vendor}"].name)
    link = generic.socket_link if isinstance(generic, SocketPart) else None
    return link if link is not None else assumed_defaults()["socket_link"].name


def generic_switch(gen: int) -> str:
    """The part of a switch that is known by its generation only: of that generation, else of the nearest that the catalog has."""
    found = {}
    for name in lookup.names("parts"):
        head, _, tail = name.partition("-gen")
        number, _, rest = tail.partition("-")
        if head == "generic" and rest == "switch" and number.isdigit():
            found[int(number)] = name
    return found[min(found, key=lambda known_gen: (abs(known_gen - gen), -known_gen))]


def nvlink_part(gpu: str, links: int | None) -> str:
    """The interconnect part of an NVLink connection of ``links`` links between two GPUs ``gpu``: of the same count, else the nearest.

    Args:
        links: None: not said; the most that the catalog knows for such GPUs.

    Raises:
        UnknownNameError: no such GPU.
    """
    capability = load_gpu(gpu).compute_capability
    fitting = {
        name: int(entry["links"]) for name, entry in known("parts").get("nvlinks", {}).items() if capability in entry["capabilities"]
    }
    if not fitting:
        return assumed_defaults()["nvlink"].name
    if links is None:
        return max(fitting, key=lambda name: (fitting[name], name))
    return min(fitting, key=lambda name: (abs(fitting[name] - links), name))


@lru_cache(maxsize=1)
def assumed_defaults() -> dict[str, Assumed]:
    """What stands where files say nothing, by what it is for: ``gpu``, ``socket``, ``socket_amd`` (... by vendor), ``switch``,
    ``socket_link``, ``nvlink``, ``nic``. From ``parts/_assumed.yaml``.
    """
    path = lookup.folder("parts") / ASSUMED_FILE
    data = parse_yaml(read_text(path), source=str(path))
    return {str(key): Assumed(entry["name"], entry["reason"], tuple(entry.get("words", ()))) for key, entry in data.items()}
