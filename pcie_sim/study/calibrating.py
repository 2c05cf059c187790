"""calibrate, and whatever stands for a calibration: a file, a raw log, a result."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pcie_sim import catalog
from pcie_sim.catalog.identify import gpu_by_name
from pcie_sim.errors import InputError
from pcie_sim.importers import Imported
from pcie_sim.importers.relate import relate
from pcie_sim.results.calibration import CalibrationReport
from pcie_sim.results.comparison import Note
from pcie_sim.specs.base import build
from pcie_sim.specs.dumper import block, flow
from pcie_sim.specs.loader import parse_json, parse_yaml, read_text
from pcie_sim.study.arguments import Where, name_text, path_text
from pcie_sim.topology import Topology
from pcie_sim.units import counted

if TYPE_CHECKING:
    from pcie_sim.calibration.apply import Calibrated
    from pcie_sim.specs.calibration import CalibrationSpec
    from pcie_sim.specs.gpu import GpuSpec

CalibrationLike = "CalibrationReport | CalibrationSpec | Where | Sequence[Where]"
_SCHEMA = re.compile(r"""["']?schema["']?[ \t]{0,20}:[ \t]{0,20}["']?pcie-sim/calibration/[0-9]""")
SHOWN = 3
"""Warnings of a calibration that an answer repeats."""
MOST_VALUES = 400_000
"""Values of a calibration file: 2000 curves of some hundred sizes."""


def calibrate(
    topology: Topology | Where,
    logs: Where | Iterable[Where],
    *,
    prior: str = "auto",
    leave_out: str | Iterable[str] = (),
    gpu: str | None = None,
    name: str | None = None,
) -> CalibrationReport:
    """Fit the cost model of a box to its own measurements.

    Args:
        topology: a box, a shipped name, or a path.
        logs: one or several files: nccl-tests (text or JSON; any operation, ranks, CUDA graph or not), p2pBandwidthLatencyTest,
            nvbandwidth, measurement sets.
        prior: ``auto`` (profiles of public boxes, the more alike the more), ``none``, or one profile's name.
        leave_out: profiles that the prior must not use, by their names or their boxes'.
        gpu: the GPU model where a topology file of another program does not say it.
        name: of the calibration.

    Returns:
        The calibration (``.calibration``, written by :func:`pcie_sim.study.calibrating.calibration_text`) and its report.

    Raises:
        InputError: a file that is missing or of no known format, nothing in the files about this box's collectives, an unknown prior.
        NoDataError: no costs for the box's collective library.
    """
    from pcie_sim.calibration.make import calibrate as make
    from pcie_sim.study.imports import read_files

    box = topology if isinstance(topology, Topology) else _load(topology, gpu)
    paths = _paths(logs, "logs", "a file with measurements of the box, or a list of them")
    for path in paths:
        if catalog.is_path(path) and is_calibration(path):
            raise InputError(
                f"{path}: is a calibration, not a measurement; give it as calibration (--calibration) to the verbs that predict"
            )
    paths, twice = _once(paths)
    read = read_files(paths)
    _same_gpus(box, read)
    related = relate(box.spec, read)
    out = _names(leave_out, "leave_out")
    name_text(prior, "prior", "auto, none or a profile's name")
    made = make(
        box,
        related.measurements,
        prior=prior,
        leave_out=out,
        sha256={one.source: sha256_of(path) for one, path in zip(read, paths, strict=True)},
        unused=twice + [str(remark) for one in read for remark in one.remarks if remark.kind in ("cut", "ignored")],
    )
    report = made.report
    if name is not None:
        from dataclasses import replace

        from pcie_sim.specs.calibration import CalibrationSpec

        data = {**report.calibration.model_dump(by_alias=True), "name": name_text(name, "name", "lower-case letters, digits and -")}
        report = replace(report, calibration=build(CalibrationSpec, data, source="name"))
    return report


def _once(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files of different content, and a remark for each that another one repeats: the same runs twice are no more evidence."""
    kept: dict[str, str] = {}
    twice = []
    for path in paths:
        digest = sha256_of(path) if Path(path).is_file() else path  # what cannot be read is refused by its reader
        if digest in kept:
            twice.append(f"{Path(path).name}: the same content as {Path(kept[digest]).name}, taken once")
        kept.setdefault(digest, path)
    return list(kept.values()), twice


def _same_gpus(box: Topology, read: Sequence[Imported]) -> None:
    """Files that list other GPUs are of another box.

    Raises:
        InputError: names the file and both GPUs.
    """
    own = [box.gpu_spec(gpu) for gpu in box.gpus]
    for one in read:
        for fact in one.box.gpus:
            match = gpu_by_name(fact.name) if fact.name else None
            if match is not None and not _one_of(catalog.load_gpu(match.name), own):
                counts = ", ".join(f"{count}x {name}" for name, count in box.gpu_counts().items())
                raise InputError(
                    f"{one.source}: was made on {fact.name[:60]}, the topology {box.name} has {counts}; give this box's own files"
                )


def _one_of(gpu: GpuSpec, own: Sequence[GpuSpec]) -> bool:
    """One of the box's GPUs, or a variant: the same chip with as much memory."""
    return any(
        gpu.name == one.name or (gpu.architecture == one.architecture and 0.9 < gpu.memory.value / one.memory.value < 1.1) for one in own
    )


def _names(given: object, what: str) -> list[str]:
    """A comma-separated text or a list of texts as names."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable):
        raise InputError(f"{what}: give names, not {type(given).__name__}")
    return [item.strip() for text in texts for item in name_text(text, what, "a name").split(",") if item.strip()]


def _load(topology: Where, gpu: str | None) -> Topology:
    from pcie_sim.study.loading import load_topology

    return load_topology(topology, gpu=gpu)


def sha256_of(path: str) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        InputError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or 'cannot be read'}") from exc
    return digest.hexdigest()


def load_calibration(file: Where) -> CalibrationSpec:
    """A calibration from a file (schema ``pcie-sim/calibration/1``, YAML or JSON) or by the name of a shipped profile.

    Raises:
        InputError: a missing or broken file, or one of another schema; an unknown name.
    """
    from pcie_sim.specs.calibration import CalibrationSpec

    text = path_text(file, "calibration")
    if not catalog.is_path(text):
        return catalog.load_calibration_profile(text)
    content = read_text(text)
    if text.lower().endswith(".json"):
        data = parse_json(content, source=text)
    else:
        data = parse_yaml(content, source=text, most=(MOST_VALUES, "a calibration has at most 2048 curves"))
    return build(CalibrationSpec, data, source=text, text=content)


def is_calibration(path: str) -> bool:
    """Whether a file says that it is a calibration."""
    if not Path(path).is_file():
        return False
    try:
        return _SCHEMA.search(read_text(path)) is not None
    except InputError:  # no text, or too large: not one of our files
        return False


def calibrated(given: object, box: Topology) -> tuple[Calibrated, tuple[Note, ...]]:
    """``box`` with a calibration in force, and what is to be said about it.

    Args:
        given: a :class:`CalibrationReport` (what :func:`calibrate` gives), a calibration, the path of a calibration file, the name of
            a shipped profile, or the path of a raw log (or several), which is fitted in passing.

    Raises:
        InputError: of another box, unreadable, or nothing that could be a calibration.
    """
    from pcie_sim.calibration.apply import Calibrated
    from pcie_sim.calibration.constants import constants
    from pcie_sim.specs.calibration import CalibrationSpec

    notes: list[Note] = []
    source = "the calibration"
    if isinstance(given, CalibrationReport):
        spec = given.calibration
    elif isinstance(given, CalibrationSpec):
        spec = given
    else:
        paths = _paths(given, "calibration", "a result of calibrate, a calibration file, or a log of nccl-tests")
        source = ", ".join(Path(path).name if catalog.is_path(path) else path for path in paths)
        made_before = [path for path in paths if not catalog.is_path(path) or is_calibration(path)]
        if made_before and len(paths) > 1:
            raise InputError(f"calibration: {made_before[0]} is a calibration; give one calibration alone, or raw logs")
        if made_before:
            spec = load_calibration(paths[0])
        else:
            report = calibrate(box, paths)
            spec = report.calibration
            text = f"{source}: raw measurements, fitted in passing ({report.overall.points} points, median error"
            notes.append(Note("calibration", f"{text} {100 * report.overall.median:.1f} %); pcie-sim calibrate shows the report"))
    made = Calibrated(spec, box, source=source)
    notes.insert(0, Note("calibration", _summary(spec, source)))
    notes += [Note("calibration", f"{source}: {warning}") for warning in spec.warnings[:SHOWN]]
    notes += [Note("calibration", f"{source}: {text}") for text in spec.notes[:SHOWN]]
    missing = sorted(set(constants()) - {parameter.name for parameter in spec.parameters})
    if missing:
        notes.append(
            Note("calibration", f"{source}: lacks {counted(len(missing), 'constant')} ({', '.join(missing[:3])} ...): start values")
        )
    if len(spec.warnings) > SHOWN:
        notes.append(Note("calibration", f"{source}: and {len(spec.warnings) - SHOWN} more warnings in the file"))
    said = _settings_text(made, box)
    if said:
        notes.append(Note("calibration", f"settings of the measured runs taken: {said}"))
    return made, tuple(notes)


def _paths(given: object, what: str, wanted: str) -> list[str]:
    if isinstance(given, str) or hasattr(given, "__fspath__"):
        return [path_text(given, what)]
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | Mapping):
        found = [path_text(one, what) for one in given]
        if found:
            return found
    raise InputError(f"{what}: give {wanted}")


def _summary(spec: CalibrationSpec, source: str) -> str:
    points = sum(len(curve.bytes) for curve in spec.curves)
    curves = ", ".join(dict.fromkeys(f"{curve.op} on {curve.ranks} GPUs" for curve in spec.curves))
    copies = sum(item.op.startswith("copy") for item in spec.inputs)
    seen = [f"{counted(points, 'point')} ({curves})"] if curves else []
    seen += [counted(copies, "kind") + " of copies"] if copies else []
    told = sum(parameter.evidence == "fitted" for parameter in spec.parameters)
    rest = f"{counted(told, 'constant')} fitted, prior {spec.prior}"
    return f"{source}: made on {spec.topology.name} from {' and '.join(seen) or 'nothing measured'}; {rest}"


def _settings_text(made: Calibrated, box: Topology) -> str:
    """What the runs' state changes of the topology's settings."""
    a, b = box.settings, made.box.settings
    words = []
    if a.p2p != b.p2p:
        words.append(f"p2p {b.p2p}")
    if a.ccl != b.ccl:
        words.append(f"{b.ccl.name} {b.ccl.version}")
    words += [f"{key}={value}" for key, value in b.env.items() if a.env.get(key) != value]
    return ", ".join(words)


def calibration_text(spec: CalibrationSpec) -> str:
    """A calibration as YAML, one line a curve's sizes and times. Reading it back gives an equal calibration."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_defaults=False)
    head = {key: data[key] for key in ("schema", "name", "title", "sources", "topology", "prior", "prior_weights") if data[key]}
    rest = {key: data[key] for key in ("residual", "warnings", "notes")}
    parts = [block(head), *(_rows(key, data[key]) for key in ("inputs", "parameters")), block({"correlations": data["correlations"]})]
    return "".join([*parts, _curves(data["curves"]), block(rest)])


def _rows(key: str, items: Sequence[dict[str, object]]) -> str:
    return f"{key}:\n" + "".join(f"- {flow(item)}\n" for item in items) if items else f"{key}: []\n"


_CURVE = ("op", "ranks", "launch", "ccl", "p2p", "env", "gpus", "sigma_log", "outliers", "file", "bytes", "time_us")


def _curves(curves: Sequence[dict[str, object]]) -> str:
    lines = ["curves:\n"] if curves else ["curves: []\n"]
    for curve in curves:
        said = {key: curve[key] for key in _CURVE if key == "launch" or curve[key] not in (None, [], {})}
        body = "".join(f"  {key}: {flow(value)}\n" for key, value in said.items())
        lines.append("- " + body[2:])
    return "".join(lines)
