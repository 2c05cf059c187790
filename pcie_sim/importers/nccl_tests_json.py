"""The JSON that nccl-tests writes with ``-J`` (2.17.3 and newer): one run, figures in full, the same set as from its text."""

from __future__ import annotations

import math
import re
from typing import Any

from pcie_sim.importers.facts import BoxFacts
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.nccl_ops import op_of_name
from pcie_sim.importers.nccl_rows import ELEMENT_BYTES, Half, Layout, TableRow
from pcie_sim.importers.nccl_runs import EXECUTABLE, MAX_RANKS, MAX_ROWS, Device, Run
from pcie_sim.importers.nccl_sets import gpus_of, sets_of
from pcie_sim.importers.nccl_text import Notes, environment, library_version, public_text, public_value
from pcie_sim.importers.source import SourceText
from pcie_sim.specs.loader import parse_json

_KEYS = re.compile(r'"(?:nthreads|minimum_bytes|out_of_place|average_bus_bandwidth)"\s{0,20}:')
_ARGS = re.compile(r'"(?:args|nccl_version|nthreads)"\s{0,20}:')
_CONFIG = {
    "nthreads": "nThread",
    "ngpus": "nGpus",
    "minimum_bytes": "minBytes",
    "maximum_bytes": "maxBytes",
    "warmup_iters": "warmup_iters",
    "iterations": "iters",
    "aggregated_iterations": "agg_iters",
    "validation": "validation",
    "graph": "graph",
}
"""The keys of ``config`` by the names of the text's configuration line."""


def sniff(source: SourceText) -> int | None:
    """The line of a key that only this JSON has, where the file is JSON."""
    if source.raw.lstrip()[:1] != "{":
        return None
    found = _KEYS.search(source.raw)
    return source.raw.count("\n", 0, found.start()) + 1 if found is not None and _ARGS.search(source.raw) else None


@importer("nccl-tests-json", "nccl-tests JSON (-J)", sniff=sniff, whole=True)
def read(source: SourceText) -> Imported:
    """The run as one set of kind ``collective``. Environment, hosts and processes are left where they are, but for NCCL's settings.

    Raises:
        InputError: broken or cut JSON, not this format, or no usable row.
    """
    if not source.complete:
        raise source.error("is too large to be read whole, and cut JSON says nothing; run the test without per-iteration times (-I)")
    data = parse_json(source.raw, source=source.name)
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise source.error("looks like nccl-tests JSON, but has no list 'results'; give the whole file that -J wrote", sniff(source))
    notes = Notes(source)
    run = _run(data, notes)
    sets = sets_of([run], source.name, notes)
    gpus = gpus_of([run], notes)
    if not sets:
        told = [remark.text for remark in notes.remarks() if remark.kind == "ignored"]
        raise source.error(told[0] if told else "'results' holds no usable row; give the file of a run that ended", sniff(source))
    ranks = sets[0].machine.gpus
    if len(gpus) < ranks:
        notes.add("note", f"{len(gpus)} of {ranks} GPUs are listed: this JSON names only the first of each process")
    return Imported(source.name, ("nccl-tests-json",), box=BoxFacts(gpus=gpus), measurements=sets, remarks=notes.remarks())


def _run(data: dict[str, Any], notes: Notes) -> Run:
    run = Run(1, listed_in_part=True)
    args = [arg for arg in data.get("args") or [] if isinstance(arg, str)][:200] if isinstance(data.get("args"), list) else []
    name = EXECUTABLE.search(args[0][-200:]) if args else None
    run.executable = name.group(1) if name is not None and op_of_name(name.group(1)) else None
    version = data.get("nccl_version")
    if isinstance(version, int) and (text := library_version(str(version)[:8])) is not None:
        run.library = (text, None)
    for entry in data["env"][:2000] if isinstance(data.get("env"), list) else []:
        if isinstance(entry, str):
            key, _equals, value = entry[:400].partition("=")
            if re.fullmatch(r"(?:NCCL|RCCL)_[A-Z0-9_]{1,60}", key) and (value := public_value(key, value)):
                run.env[key] = value
    run.env.update(environment(" ".join(args)[:4000]))
    config = data["config"] if isinstance(data.get("config"), dict) else {}
    for key, name_ in _CONFIG.items():
        if isinstance(config.get(key), int) and 0 <= config[key] < 10**19:
            run.config[name_] = str(config[key])
    for key, kind in (("step_factor", "(factor)"), ("step_bytes", "(bytes)")):
        if isinstance(config.get(key), int | float):
            run.config["step"] = f"{config[key]:g}{kind}"
    _devices(run, config, notes)
    _results(run, data["results"], notes)
    errors = [error for error in data["errors"] if isinstance(error, str) and error.strip()] if isinstance(data.get("errors"), list) else []
    run.failures = [(1, public_text(error)) for error in errors[:20]]
    bounds = data.get("out_of_bounds")
    if isinstance(bounds, dict) and str(bounds.get("okay")).lower() == "false":
        run.out_of_bounds = int(bounds["count"]) if isinstance(bounds.get("count"), int) else 1
    return run


def _devices(run: Run, config: dict[str, Any], notes: Notes) -> None:
    """Ranks: nccl-tests lists one device per process only, each with that process's first rank."""
    listed = config["devices"] if isinstance(config.get("devices"), list) else []
    devices = []
    for entry in listed[:MAX_RANKS]:
        if isinstance(entry, dict) and isinstance(entry.get("rank"), int) and isinstance(entry.get("device"), int):
            if not (0 <= entry["rank"] < 10**7 and 0 <= entry["device"] < 4096):
                continue
            texts = {key: str(entry.get(key, ""))[:128] for key in ("hostname", "device_hex", "device_info")}
            devices.append(Device(entry["rank"], texts["hostname"], entry["device"], texts["device_hex"], texts["device_info"]))
    run.devices = devices
    per_process = _whole(config.get("nthreads")) * _whole(config.get("ngpus"))
    ranks = sorted(device.rank for device in devices)
    if devices and per_process and ranks == [index * per_process for index in range(len(ranks))]:
        run.ranks_said = {per_process * len(ranks)}
    elif ranks and ranks == list(range(len(ranks))):
        run.ranks_said = {len(ranks)}
    elif per_process and not ranks:
        notes.add("note", "no device is listed")


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < 10**5 else 0


def _results(run: Run, results: list[Any], notes: Notes) -> None:
    cpu = False
    for entry in results[:MAX_ROWS]:
        row = _row(entry) if isinstance(entry, dict) else None
        if row is None:
            notes.add("ignored", "a result without a size, type or finite time is left out")
            continue
        cpu = cpu or any(isinstance(entry.get(half), dict) and "cpu_time" in entry[half] for half in ("out_of_place", "in_place"))
        run.rows.append(row)
    if len(results) > MAX_ROWS:
        notes.add("cut", f"more than {MAX_ROWS:,} results: the rest is left out")
    run.layout = Layout(cpu_time=cpu)


def _row(entry: dict[str, Any]) -> TableRow | None:
    size, count, kind = entry.get("size"), entry.get("count"), entry.get("type")
    if (
        not isinstance(size, int)
        or not isinstance(count, int)
        or not isinstance(kind, str)
        or kind not in ELEMENT_BYTES
        or not (0 <= size < 2**60 and 0 <= count < 2**60)
    ):
        return None
    root = str(entry.get("root", "")).strip()
    redop = entry.get("redop")
    halves = [_half(entry.get(key)) for key in ("out_of_place", "in_place")]
    if all(half is None for half in halves):
        return None
    known = redop if isinstance(redop, str) and redop in ("sum", "prod", "min", "max", "avg", "mulsum", "none") else None
    return TableRow(size, count, kind, known, int(root) if re.fullmatch(r"-?[0-9]{1,6}", root) else None, halves[0], halves[1], 1)


def _half(value: object) -> Half | None:
    if not isinstance(value, dict):
        return None
    time, algbw, busbw = (value.get(key) for key in ("time" if "time" in value else "cpu_time", "alg_bw", "bus_bw"))
    figures = []
    for figure in (time, algbw, busbw):
        if isinstance(figure, bool) or not isinstance(figure, int | float) or not math.isfinite(figure) or not 0 <= figure < 1e12:
            return None
        figures.append(float(figure))
    wrong = value.get("nwrong")
    checked = isinstance(wrong, int | float) and not isinstance(wrong, bool)
    if figures[0] <= 0:
        return None
    return Half(
        figures[0], 5e-6, figures[1], 1e-6, figures[2], 1e-6, float(wrong) if isinstance(wrong, int | float) and checked else None, checked
    )
