"""Runs of nccl-tests (text or JSON) -> measurement sets and the GPUs they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pcie_sim.importers.facts import GpuFact, bus_id
from pcie_sim.importers.nccl_ops import OPS, Decision, by_ranks, decide, op_in_file_name, op_of_name
from pcie_sim.importers.nccl_rows import Half, TableRow
from pcie_sim.importers.nccl_runs import MAX_RANKS, Run
from pcie_sim.importers.nccl_text import Notes, file_label, last_part, set_id, settings_p2p
from pcie_sim.specs.measurement import ArmSpec, CclRef, MachineRef, MeasuredRow, MeasurementSet, Quality, SoftwareRef
from pcie_sim.units import MAX_BYTES

FASTER_THAN_ANY_LINK = 2000.0
"""GB/s: no interconnect between GPUs carries as much (NVLink of the fifth generation: 900 one way)."""
_OPTIONS = {
    "nThread": "nthreads",
    "nThreads": "nthreads",
    "nGpus": "ngpus",
    "minBytes": "minbytes",
    "maxBytes": "maxbytes",
    "step": "step",
    "warmup_iters": "warmup_iters",
    "iters": "iters",
    "agg_iters": "agg_iters",
    "validation": "validation",
    "graph": "graph",
    "unalign": "unalign",
    "Blocking_Enabled": "blocking",
}
Launch = Literal["graph", "eager"]


@dataclass
class Prepared:
    """A run whose op and ranks are known, before it becomes a set."""

    run: Run
    rows: list[TableRow]
    op: str
    ranks: int
    launch: Launch
    options: dict[str, str]
    quality: Quality
    gpus: tuple[str, ...]

    @property
    def one_size(self) -> bool:
        """The run was asked for a single size."""
        return "minbytes" in self.options and self.options.get("minbytes") == self.options.get("maxbytes")

    def like(self, other: Prepared) -> bool:
        """Both are runs of one size under the same conditions."""
        return self.one_size and other.one_size and self._key() == other._key()

    def _key(self) -> tuple[object, ...]:
        options = {key: value for key, value in self.options.items() if key not in ("minbytes", "maxbytes")}
        return self.op, self.ranks, self.launch, options, self.gpus, self.run.env, self.run.library, self.quality == "unreliable"


def sets_of(runs: Sequence[Run], name: str, notes: Notes) -> tuple[MeasurementSet, ...]:
    """The measurement sets of all runs that can be used; why the others cannot goes to ``notes``."""
    groups: list[list[Prepared]] = []
    others = _op_of_most(runs)
    for run in runs:
        for one in _prepared(run, name, notes, others):
            if groups and groups[-1][-1].like(one):
                groups[-1].append(one)
            else:
                groups.append([one])
    return tuple(_set(group, set_id(name, number, len(groups)), name, notes) for number, group in enumerate(groups, 1))


def _op_of_most(runs: Sequence[Run]) -> str | None:
    """The one op that those runs are of which name it or whose columns tell it; None where they are of several."""
    found = set()
    for run in runs if len(runs) > 1 else ():
        rows = [row for row in run.rows if 0 < row.size <= MAX_BYTES]
        if rows:
            named = op_of_name(run.executable) if run.executable else None
            said = len(run.devices) if 1 < run.devices_seen <= MAX_RANKS else None
            found.add(decide(rows, named=named, hint=None, said=said, configured=None).op)
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _prepared(run: Run, name: str, notes: Notes, others: str | None) -> list[Prepared]:
    for line, text in run.failures:
        notes.add("note", f"the run reports: {text}", line)
    rows = [row for row in run.rows if 0 < row.size <= MAX_BYTES]
    if any(row.size == 0 for row in run.rows):
        notes.add("ignored", "rows of size 0 are left out", run.rows[0].line)
    if (huge := next((row for row in run.rows if row.size > MAX_BYTES), None)) is not None:
        notes.add("ignored", "rows above 2^60 bytes are left out", huge.line)
    if run.cut_line is not None:
        notes.add("cut", "a row is not whole: left out" if rows else "the table breaks off in its first row", run.cut_line)
    if run.joined:
        notes.add("note", "rows broken apart by log lines are put together", run.line)
    if not rows:
        if run.layout is not None or run.config:
            notes.add("cut" if run.layout is not None else "ignored", "a run without a single whole row", run.line)
        return []
    said = _said_ranks(run, notes)
    if said is not None and said > MAX_RANKS:
        notes.add("cut", f"{said:,} ranks in the header: at most {MAX_RANKS} are read, and the run is left out", run.line)
        return []
    if said == 1:
        notes.add("ignored", "one rank: nothing is communicated, its times are a copy inside one GPU", rows[0].line)
        return []
    named = op_of_name(run.executable) if run.executable else None
    hint = op_in_file_name(last_part(name))
    found = decide(rows, named=named, hint=hint, said=said, configured=_configured(run), others=others)
    return _by_decision(run, rows, found, notes)


def _by_decision(run: Run, rows: list[TableRow], found: Decision, notes: Notes) -> list[Prepared]:
    at = rows[0].line
    if found.op is not None and found.op not in OPS.values():
        notes.add("ignored", f"{found.op} is no collective that is modelled: its table is left out", at)
        return []
    parts = {found.ranks: rows} if found.ranks is not None else None
    if parts is None and found.op is not None:
        split = by_ranks(rows, found.op)
        if split is not None and len(split) > 1 and not _mixed(rows):
            found.why_not = ""
            notes.add(
                "assumed",
                f"the rows are of different numbers of ranks ({', '.join(map(str, sorted(split)))} by busbw over algbw): taken apart",
                at,
            )
            parts = dict(split)
    if found.why_not or parts is None or found.op is None:
        mixed = "rows of two tables are mixed line by line (two runs wrote at once); " if _mixed(rows) else ""
        notes.add("ignored", mixed + (found.why_not or "op and ranks are not said"), at)
        return []
    for text in found.assumed:
        notes.add("assumed", text, at)
    for text in found.conflicts:
        notes.add("conflict", text, at)
    launch = _launch(run, notes)
    quality = _quality(run, rows, found, notes)
    gpus = tuple(dict.fromkeys(device.name for device in run.devices))
    kept = [(ranks, part) for ranks, part in parts.items() if ranks is not None and ranks <= MAX_RANKS]
    return [Prepared(run, part, found.op, ranks, launch, _options(run, part), quality, gpus) for ranks, part in kept]


def _said_ranks(run: Run, notes: Notes) -> int | None:
    if run.devices_seen > MAX_RANKS:
        return run.devices_seen
    if run.devices and not (run.listed_in_part and len(run.ranks_said) == 1):
        ranks = {device.rank for device in run.devices}
        if len(ranks) == len(run.devices) and max(ranks) == len(ranks) - 1:
            return len(ranks)
        if len(ranks) < len(run.devices):
            notes.add("conflict", "ranks are listed twice before one table: two runs wrote at once, or each process ran alone", run.line)
        else:
            notes.add("conflict", "device lines are missing: the rank numbers have gaps", run.line)
        return max(ranks) + 1
    return next(iter(run.ranks_said)) if len(run.ranks_said) == 1 else None


def _configured(run: Run) -> int | None:
    threads, gpus = (run.config.get(key, "")[:6] for key in ("nThread" if "nThread" in run.config else "nThreads", "nGpus"))
    return int(threads) * int(gpus) if threads.isdigit() and gpus.isdigit() else None


def _launch(run: Run, notes: Notes) -> Launch:
    said = run.config.get("graph") or run.command.get("graph")
    if said is None:
        notes.add("assumed", "launch (graph or eager) is not said: eager, nccl-tests' default", run.line)
    return "graph" if said is not None and said.strip("0") else "eager"


def _mixed(rows: Sequence[TableRow]) -> bool:
    """Sizes jump about: every pass over the sizes of one type must begin with the smallest and leave none out."""
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    for row in rows:
        groups.setdefault((row.type, row.redop, row.root), []).append(row.size)
    for sizes in groups.values():
        place = {size: index for index, size in enumerate(sorted(set(sizes)))}
        for before, size in pairwise(sizes):
            step = place[size] - place[before]
            if step not in (0, 1) and not (step < 0 and place[size] == 0):
                return True
    return False


def _quality(run: Run, rows: Sequence[TableRow], found: Decision, notes: Notes) -> Quality:
    """Of the whole run; single rows may be worse."""
    quality: Quality = "doubtful" if found.conflicts else "good"
    if run.layout is not None and run.layout.cpu_time:
        notes.add("note", "the time is the CPU's (-C 1), not that of the collective", run.line)
        quality = "doubtful"
    agg = run.config.get("agg_iters", "1")
    if agg.strip("0") not in ("", "1"):
        notes.add("note", f"{agg} operations in one launch (-m {agg}): the time of one is their mean", run.line)
    if run.out_of_bounds:
        notes.add("note", f"the check failed ({run.out_of_bounds} values out of bounds): all rows are unreliable", run.line)
        quality = "unreliable"
    if _mixed(rows):
        notes.add(
            "conflict",
            "rows of two tables are mixed line by line: two runs at once disturb each other, all rows are unreliable",
            rows[0].line,
        )
        quality = "unreliable"
    places = [(device.host, device.index, device.bus) for device in run.devices]
    if len(set(places)) < len(places):
        notes.add("conflict", "several ranks share one GPU: no measure of links between GPUs, all rows are unreliable", run.line)
        quality = "unreliable"
    return quality


def _options(run: Run, rows: Sequence[TableRow]) -> dict[str, str]:
    options = {_OPTIONS[key]: value for key, value in run.config.items() if key in _OPTIONS}
    if run.tests_version:
        options["nccl_tests"] = run.tests_version
    for key in ("type", "redop", "root"):
        values = {str(getattr(row, key)) for row in rows}
        if len(values) == 1 and values != {"None"}:
            options[key] = values.pop()
    hosts = {device.host for device in run.devices}
    if len(hosts) > 1:
        options["nodes"] = str(len(hosts))
    indices = [device.index for device in sorted(run.devices, key=lambda device: device.rank)]
    if len(hosts) == 1 and not run.listed_in_part and indices != list(range(len(indices))):
        options["devices"] = ",".join(str(index) for index in indices)
    if run.layout is not None and run.layout.cpu_time:
        options["cpu_time"] = "1"
    return options


def _set(group: Sequence[Prepared], name: str, source: str, notes: Notes) -> MeasurementSet:
    first = group[0]
    if len(group) > 1:
        notes.add("note", f"{len(group)} runs of one size each under the same conditions are one set", first.run.line)
    measured = [row for one in group for row in _measured(one, notes)]
    run = first.run
    options = dict(first.options)
    if len(group) > 1:
        options |= {"minbytes": str(min(row.bytes or 0 for row in measured)), "maxbytes": str(max(row.bytes or 0 for row in measured))}
    cuda = run.library[1] if run.library else None
    p2p = settings_p2p(run.env)
    return MeasurementSet(
        schema="pcie-sim/measurement/1",
        id=name,
        kind="collective",
        use="calibrate",
        title=f"nccl-tests {first.op} over {first.ranks} ranks"
        + (f" on {first.options['nodes']} hosts" if "nodes" in first.options else ""),
        sources=(file_label(source),),
        machine=MachineRef(gpus=first.ranks),
        software=SoftwareRef(
            ccl=CclRef(name="rccl" if run.rccl else "nccl", version=run.library[0] if run.library else None),
            cuda=cuda,
            env=dict(run.env),
            p2p="off" if p2p == "off" else None,
            options=options,
        ),
        arms={"run": ArmSpec(launch=first.launch, own_threads=_own_threads(first))},
        rows=tuple(measured),
    )


def _own_threads(one: Prepared) -> bool | None:
    gpus = one.options.get("ngpus", "")
    return int(gpus) == 1 if gpus.isdigit() and len(gpus) < 7 else None


def _measured(one: Prepared, notes: Notes) -> list[MeasuredRow]:
    found = []
    types = {(row.type, row.redop) for row in one.rows}
    for row in one.rows:
        for inside, half in row.halves:
            quality = _row_quality(one, row, half, notes)
            note = f"{row.type} {row.redop or ''}".strip() if len(types) > 1 else None
            found.append(
                MeasuredRow(
                    arm="run",
                    op=one.op,
                    ranks=one.ranks,
                    bytes=row.size,
                    launch=one.launch,
                    in_place=inside,
                    metric="time",
                    value=half.time,
                    unit="us",
                    quality=quality,
                    note=note,
                )
            )
    return found


def _row_quality(one: Prepared, row: TableRow, half: Half, notes: Notes) -> Quality:
    quality = one.quality
    if half.wrong:
        notes.add("note", "the check found wrong elements: such rows are unreliable", row.line)
        return "unreliable"
    if half.busbw > FASTER_THAN_ANY_LINK or half.algbw > FASTER_THAN_ANY_LINK:
        notes.add("conflict", f"more than {FASTER_THAN_ANY_LINK / 1000:.0f} TB/s: faster than any link, such rows are doubtful", row.line)
        quality = "doubtful" if quality == "good" else quality
    cpu = one.run.layout is not None and one.run.layout.cpu_time  # algbw is always of the GPU's time
    if not cpu and not half.agrees(row.size):
        notes.add("conflict", "time and algbw of a row contradict each other: such rows are doubtful", row.line)
        quality = "doubtful" if quality == "good" else quality
    return quality


def gpus_of(runs: Sequence[Run], notes: Notes) -> tuple[GpuFact, ...]:
    """The GPUs of the first host that device lines name, each once."""
    found: dict[tuple[int, str], GpuFact] = {}
    listed = [(run, device) for run in runs for device in run.devices]
    if not listed:
        return ()
    host = listed[0][1].host
    if any(device.host != host for _run, device in listed):
        notes.add("note", "several hosts: the GPUs of the first one are listed", listed[0][0].line)
    short_line: int | None = None
    for run, device in listed:
        if device.host != host or len(found) >= 512:
            continue
        bus = bus_id(device.bus)
        if bus is None and (short := re.fullmatch(r"0[xX]([0-9a-fA-F]{1,2})", device.bus)) is not None:
            bus = bus_id(f"{short.group(1)}:00.0")
            short_line = short_line or run.line
        found.setdefault((device.index, bus or ""), GpuFact(index=device.index, name=device.name, bus=bus, numbering="cuda"))
    if short_line is not None:
        notes.add("assumed", "device lines name only the bus of a GPU: domain 0 and device 0", short_line)
    by_bus = [fact.bus for fact in found.values() if fact.bus]
    if len(set(by_bus)) < len(by_bus):
        notes.add("conflict", "one bus id for several devices: bus ids are left out", listed[0][0].line)
        return tuple(GpuFact(index=fact.index, name=fact.name, numbering="cuda") for fact in found.values())
    return tuple(found.values())
