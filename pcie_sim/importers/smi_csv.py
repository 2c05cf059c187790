"""``nvidia-smi --query-gpu=... --format=csv``: columns by the header, else by the command above it, else by what the values look like."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pcie_sim.importers.facts import WIDTHS, bus_id
from pcie_sim.importers.smi_seen import Seen
from pcie_sim.importers.source import Remark, SourceText, quoted

COLUMNS = {
    "index": "index",
    "name": "name",
    "gpu_name": "name",
    "pci.bus_id": "bus",
    "gpu_bus_id": "bus",
    "pcie.link.gen.current": "Current",
    "pcie.link.gen.gpucurrent": "Device Current",
    "pcie.link.gen.max": "Max",
    "pcie.link.gen.gpumax": "Device Max",
    "pcie.link.gen.hostmax": "Host Max",
    "pcie.link.width.current": "width Current",
    "pcie.link.width.max": "width Max",
    "memory.total": "memory",
    "driver_version": "",
    "uuid": "",
    "gpu_uuid": "",
}
"""Columns of --query-gpu -> what they are here ("": known, but not used)."""
_PLAIN = ("index", "name", "uuid")
_TOKEN = re.compile(r"[a-z][a-z0-9_.]{1,80}(?:\s?\[[^\]]{1,12}\])?")
_COMMAND = re.compile(r"--query-gpu[= ]['\"]?([a-z0-9_.,]{4,1000})")
_BUS = re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_AMOUNT = re.compile(r"[0-9]{1,8}(?![0-9.:])")
_MOST_COLUMNS = 200
_LONGEST = 4000
_PREFIX = re.compile(r"^(?:[#>|]\s{0,8})?(?:[A-Za-z]{1,20}:\s{1,4})?")


def _header(line: str) -> list[str] | None:
    """Column names where ``line`` is a header."""
    if "," not in line and "." not in line and "bus_id" not in line:
        return None
    tokens = [token.strip() for token in _PREFIX.sub("", line.strip()).split(",")]
    if len(tokens) > _MOST_COLUMNS or any(_TOKEN.fullmatch(token) is None for token in tokens):
        return None
    names = [token.split("[")[0].strip() for token in tokens]
    strong = any(name in COLUMNS and name not in _PLAIN for name in names)
    return names if strong or ({"index", "name"} <= set(names) and set(names) <= set(_PLAIN)) else None


def _bare(line: str) -> list[str] | None:
    """Fields of a row without a header: it names a bus and something else."""
    if "," not in line or ":" not in line or _BUS.search(line) is None:
        return None
    fields = [one.strip() for one in _PREFIX.sub("", line.strip()).split(",")]
    return fields if len(fields) <= _MOST_COLUMNS and sum(1 for one in fields if _BUS.fullmatch(one)) == 1 else None


def csv_line(line: str) -> bool:
    """Whether a line can only be nvidia-smi's CSV: its header, or a row that names a GPU and its bus."""
    if "," not in line and "bus_id" not in line:
        return False
    return _header(line) is not None or (_bare(line) is not None and "NVIDIA" in line)


def read_csv(source: SourceText, remarks: list[Remark]) -> list[Seen]:
    """The GPUs of every CSV table in the file.

    Raises:
        InputError: rows without a header whose columns cannot be told.
    """
    found: list[Seen] = []
    columns: Sequence[str] = ()
    order, first, bad, unnamed = 0, 0, 0, 0
    for number, line in enumerate(source.lines, 1):
        if len(line) > _LONGEST or not line.strip() or ("," not in line and not columns and "bus_id" not in line):
            continue
        command = _COMMAND.search(line)
        header = command.group(1).split(",") if command is not None else _header(line)
        if header is not None:
            columns, order, first = [COLUMNS.get(name, "") for name in header], 0, number
            continue
        fields = [one.strip() for one in _PREFIX.sub("", line.strip()).split(",")] if columns else []
        if columns and len(fields) == len(columns):
            row = _row(number, columns, fields)
            if row is None:
                bad = bad or number
                continue
            row.order, order = order, order + 1
            found.append(row)
            if row.index is None and order == 1:
                remarks.append(source.remark("assumed", "GPU numbers are not printed: taken in the order of the rows", first))
            continue
        columns = ()
        bare = _bare(line)
        if bare is None:
            continue
        row = _guessed(number, bare)
        if row is None:
            text = f"a row without a header, and {quoted(line, 40)} has no name of a GPU: keep the header (no noheader)"
            if not found:
                raise source.error(text, number)
            remarks.append(source.remark("ignored", text, number))
            break
        row.order, unnamed = unnamed, unnamed + 1
        found.append(row)
        if unnamed == 1:
            text = "the header is missing: bus, name and memory are told by their looks, other columns are left out"
            remarks.append(source.remark("assumed", text, number))
    if bad:
        remarks.append(source.remark("ignored", "a row without the name or bus of a GPU", bad))
    return found


def _row(number: int, columns: Sequence[str], fields: Sequence[str]) -> Seen | None:
    """One row by its columns; None where it says neither index, name nor bus."""
    row = Seen(number)
    for kind, value in zip(columns, fields, strict=True):
        digits = _AMOUNT.match(value)
        amount = int(digits.group()) if digits is not None else None
        if kind == "index":
            row.index = amount if amount is not None and amount < 10_000 else None
        elif kind == "name":
            row.name = value[:80] if re.match(r"[A-Za-z]", value) else ""
        elif kind == "bus":
            row.bus = bus_id(value)
        elif kind == "memory":
            row.memory = amount * 2**20 if amount else None
        elif kind.startswith("width "):
            if amount in WIDTHS:
                row.widths[kind.removeprefix("width ")] = amount
        elif kind and amount is not None and 1 <= amount <= 9:
            row.gens[kind] = amount
    return row if row.bus is not None or row.name or (row.index is not None and (row.gens or row.widths)) else None


def _guessed(number: int, fields: Sequence[str]) -> Seen | None:
    """A row without a header; None where no field is the name of a GPU."""
    row = Seen(number)
    for place, value in enumerate(fields):
        if _BUS.fullmatch(value):
            row.bus = bus_id(value)
        elif re.match(r"(?:NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN)\b", value):
            row.name = row.name or value[:80]
        elif place == 0 and re.fullmatch(r"[0-9]{1,3}", value):
            row.index = int(value)
    amounts = [value for value in fields if re.fullmatch(r"[0-9]{1,8} MiB", value)]
    row.memory = int(amounts[0].split()[0]) * 2**20 if len(amounts) == 1 else None
    return row if row.name and row.bus else None
