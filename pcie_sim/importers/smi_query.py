"""nvidia-smi's lists of GPUs: the summary table, ``-L``, ``-q`` and ``--query-gpu=... --format=csv``. UUIDs and serials are not kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pcie_sim.importers.facts import WIDTHS, BoxFacts, GpuFact, HostFact, LinkFact, bus_id
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.smi_csv import csv_line, read_csv
from pcie_sim.importers.smi_seen import Seen
from pcie_sim.importers.source import Remark, SourceText

MOST_GPUS = 512
_LONGEST = 400
_ROW = re.compile(
    r"(?<![0-9A-Za-z.])([0-9]{1,3})\s{1,8}([A-Za-z][^|│]{1,60}?)\s{1,60}(?:On|Off|N/A|WDDM|TCC|MCDM|Enabled|Disabled)"
    r"\s{0,8}[|│]?\s{0,8}((?:[0-9A-F]{4,8}):[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])(?![0-9A-F])",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"(?<![0-9])([0-9]{1,8})\s{0,2}MiB\s{0,4}/\s{0,8}([0-9]{1,8})\s{0,2}MiB")
_BRAND = r"(?:NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN)\b"
_LIST = re.compile(rf"(?<![A-Za-z0-9_])GPU ([0-9]{{1,3}}):\s{{1,4}}(?:([^()]{{1,80}}?)\s{{0,4}}\(UUID|({_BRAND}[^()]{{0,80}}?)\s*$)")
_PRODUCT = re.compile(rf"Product Name\s{{1,60}}:\s{{1,4}}{_BRAND}")
_NVLINK = re.compile(r"^\s{0,20}Link [0-9]{1,2}: (?:[0-9.]{1,10} GB/s|<inactive>)")
_DRIVER = re.compile(r"(?:Driver Version|Nvidia driver version)\s{0,60}:\s{0,4}([0-9]{2,4}(?:\.[0-9]{1,4}){0,3})")
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s{0,60}:\s{0,4}([0-9]{1,2}\.[0-9]{1,2})")
_LOG = re.compile(r"={6,40}\s{0,4}NVSMI LOG\s{0,4}={6,40}")
_ATTACHED = re.compile(r"Attached GPUs\s{0,60}:\s{0,4}([0-9]{1,4})(?![0-9])")
_SECTION = re.compile(r"(?<![A-Za-z0-9])GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9 ]{1,40}?)\s{1,60}:\s(.{0,120})$")
_TITLE = re.compile(r"^[\s#>%|]{0,60}([A-Z][A-Za-z0-9 ]{1,40}?)\s*$")
_BROKEN = re.compile(r"NVIDIA-SMI has failed|No devices were found|Failed to initialize NVML|nvidia-smi: (?:command )?not found")
_HEAD = re.compile(r"NVIDIA-SMI\s{1,8}[0-9]{3}")
_MANY = 4


def sniff(source: SourceText) -> int | None:
    """The first line of any of the four lists (or of the message that there is none)."""
    for number, line in enumerate(source.lines, 1):
        if len(line) > _LONGEST:
            continue
        named = "GPU" in line or "NVIDIA" in line or "NVSMI" in line or "NVML" in line or "No devices" in line
        if named and (_HEAD.search(line) or _LOG.search(line) or _SECTION.search(line) or _LIST.search(line) or _BROKEN.search(line)):
            return number
        if csv_line(line) or ("MiB" not in line and ":" in line and _ROW.search(line)) or _PRODUCT.search(line):
            return number
    return None


@importer("nvidia-smi", "nvidia-smi (table, -L, -q, --query-gpu)", sniff=sniff)
def read(source: SourceText) -> Imported:
    """GPUs with what the lists say: name, bus, PCIe link, memory; driver and CUDA version.

    Raises:
        InputError: nvidia-smi itself failed, or no list can be used.
    """
    remarks: list[Remark] = []
    seen = [*_table(source.lines), *_listed(source.lines), *_queried(source, remarks), *read_csv(source, remarks)]
    host = _host(source.lines)
    if not seen:
        for number, line in enumerate(source.lines, 1):
            if _BROKEN.search(line[:_LONGEST]):
                raise source.error("nvidia-smi found no GPU or no driver here; run it on the box itself", number)
        if host is None:
            raise source.error("no GPU of an nvidia-smi list can be read; save it again: nvidia-smi -q > gpus.txt", sniff(source) or 1)
        remarks.append(source.remark("cut", "the head of nvidia-smi without a GPU below it"))
    gpus = _merged(source, seen, remarks)
    if any(gpu.link is not None and gpu.link_max is not None and _slower(gpu.link, gpu.link_max) for gpu in gpus):
        text = "links run below their generation: GPUs at rest do that; read them under load to judge it"
        remarks.append(source.remark("note", text))
    links = [number for number, line in enumerate(source.lines, 1) if "Link " in line and _NVLINK.match(line)]
    if links:
        remarks.append(source.remark("ignored", f"{len(links)} lines of NVLink rates; `nvidia-smi topo -m` says who is joined", links[0]))
    box = BoxFacts(gpus=tuple(gpus), host=host)
    return Imported(source.name, ("nvidia-smi",), box=box, remarks=tuple(remarks))


def _slower(now: LinkFact, most: LinkFact) -> bool:
    return now.gen is not None and most.gen is not None and now.gen < most.gen


def _host(lines: Sequence[str]) -> HostFact | None:
    driver = cuda = ""
    for line in lines:
        if "ersion" not in line or len(line) > _LONGEST:
            continue
        found, toolkit = _DRIVER.search(line), _CUDA.search(line)
        driver = driver or (found.group(1) if found is not None else "")
        cuda = cuda or (toolkit.group(1) if toolkit is not None else "")
        if driver and cuda:
            break
    return HostFact(driver=driver, cuda=cuda) if driver or cuda else None


def _table(lines: Sequence[str]) -> Iterator[Seen]:
    """Rows of the summary table: two lines for each GPU, the second with its memory."""
    now: Seen | None = None
    for number, line in enumerate(lines, 1):
        if len(line) > _LONGEST:
            continue
        row = _ROW.search(line) if ":" in line else None
        if row is not None:
            if now is not None:
                yield now
            now = Seen(number, int(row.group(1)), row.group(2).strip(), bus_id(row.group(3)))
            line = line[row.end() :]  # noqa: PLW2901  (collapsed tables have both lines in one)
        if now is None or "MiB" not in line:
            continue
        memory = _MEMORY.search(line)
        if memory is not None and now.memory is None and number - now.line <= _MANY:
            now.memory = int(memory.group(2)) * 2**20
    if now is not None:
        yield now


def _listed(lines: Sequence[str]) -> Iterator[Seen]:
    for number, line in enumerate(lines, 1):
        if "GPU " in line and len(line) <= _LONGEST:
            match = _LIST.search(line)
            if match is not None:
                yield Seen(number, int(match.group(1)), (match.group(2) or match.group(3)).strip())


@dataclass
class _Query:
    """Where the reader of ``-q`` stands."""

    now: Seen | None = None
    title: str = ""
    attached: int | None = None


def _queried(source: SourceText, remarks: list[Remark]) -> list[Seen]:
    """Sections of ``nvidia-smi -q``. They are told by their own words, not by indentation: pastes lose it."""
    found: list[Seen] = []
    at = _Query()
    for number, line in enumerate(source.lines, 1):
        if len(line) > _LONGEST:
            continue
        section = _SECTION.search(line) if "GPU" in line else None
        if section is not None:
            at.now, at.title = Seen(number, bus=bus_id(section.group(1))), ""
            found.append(at.now)
            continue
        attached = _ATTACHED.search(line) if "Attached" in line else None
        if attached is not None:
            at.attached = int(attached.group(1))
        field = _FIELD.search(line) if ":" in line else None
        if field is None:
            title = _TITLE.match(line)
            at.title = title.group(1) if title is not None else at.title
            continue
        name, value = field.group(1), field.group(2).strip()
        if (
            name == "Product Name" and (at.now is None or at.now.name) and _PRODUCT.search(line)
        ):  # an excerpt without the lines that begin a GPU
            at.now, at.title = Seen(number), ""
            found.append(at.now)
        if at.now is not None and len(found) <= MOST_GPUS + 1:
            _put(at.now, at.title, name, value)
    found = [one for one in found if one.bus is not None or one.name]
    _numbered(source, found, at.attached, remarks)
    return found


def _put(now: Seen, title: str, name: str, value: str) -> None:
    """One field of ``-q`` into the GPU it is of."""
    number = re.match(r"[0-9]{1,9}(?![0-9])", value)
    amount = int(number.group()) if number is not None else None
    if name == "Product Name":
        now.name = now.name or value[:80]
    elif name == "Bus Id":
        now.bus = now.bus or bus_id(value)
    elif title == "PCIe Generation" and amount is not None and 1 <= amount <= 9:
        now.gens.setdefault(name, amount)
    elif title == "Link Width" and amount in WIDTHS:
        now.widths.setdefault(name, amount)
    elif title == "FB Memory Usage" and name == "Total" and value.endswith("MiB") and amount:
        now.memory = now.memory or amount * 2**20
    elif title == "BAR1 Memory Usage" and name == "Total" and value.endswith("MiB") and amount:
        now.bar1 = now.bar1 or amount * 2**20


def _numbered(source: SourceText, found: list[Seen], attached: int | None, remarks: list[Remark]) -> None:
    """``-q`` prints no index: where all attached GPUs are there, they stand in that order."""
    if not found:
        return
    if attached is not None and attached > len(found):
        text = f"{attached} GPUs are attached, {len(found)} are listed: the rest of the text is missing, or one was asked for with -i"
        remarks.append(source.remark("cut", text, found[0].line))
    if attached != len(found):
        remarks.append(source.remark("assumed", "GPU numbers are not printed: taken in the order of the text", found[0].line))
    for order, one in enumerate(found):
        one.order = order


def _merged(source: SourceText, seen: Sequence[Seen], remarks: list[Remark]) -> list[GpuFact]:
    """One GPU for each index, with what the lists say together."""
    known: dict[int, GpuFact] = {}
    clashes: list[int] = []
    at_bus: dict[str, int] = {}
    for one in seen:
        if one.index is not None and one.bus is not None:
            at_bus.setdefault(one.bus, one.index)
    for one in seen:
        index = one.index if one.index is not None else at_bus.get(one.bus or "", one.order)
        fact = one.fact(index)
        mine = known.get(index)
        if mine is None:
            if len(known) < MOST_GPUS:
                known[index] = fact
            continue
        if mine.bus is not None and fact.bus is not None and mine.bus != fact.bus:
            clashes.append(one.line)
            continue
        known[index] = _both(mine, fact)
    if clashes:
        text = f"{len(clashes)} GPU(s) with the number of another one: one box for each file; the first is kept"
        remarks.append(source.remark("conflict", text, clashes[0]))
    if len(seen) > MOST_GPUS and len(known) == MOST_GPUS:
        remarks.append(source.remark("cut", f"only the first {MOST_GPUS} GPUs are read"))
    gpus = [known[index] for index in sorted(known)]
    short = [gpu for gpu in gpus if gpu.name.endswith("...")]
    if short:
        remarks.append(source.remark("cut", f"nvidia-smi shortened the name {short[0].name!r}; `nvidia-smi -L` prints it in full"))
    return gpus


def _both(mine: GpuFact, other: GpuFact) -> GpuFact:
    name = mine.name
    if not name or (name.endswith("...") and other.name.startswith(name[:-3].rstrip())):
        name = other.name
    return replace(
        mine,
        name=name,
        bus=mine.bus or other.bus,
        link=mine.link or other.link,
        link_max=mine.link_max or other.link_max,
        memory_bytes=mine.memory_bytes or other.memory_bytes,
        device_gen=mine.device_gen or other.device_gen,
        host_gen=mine.host_gen or other.host_gen,
        bar1_bytes=mine.bar1_bytes or other.bar1_bytes,
    )
