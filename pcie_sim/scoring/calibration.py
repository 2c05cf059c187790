"""The score of calibrations: ``python -m pcie_sim.scoring.calibration [--profiles] [--json]``.

Writes ``validation/CALIBRATION.md``. ``--profiles`` first makes ``catalog/profiles/`` anew (one calibration per public box, from its
sets, without a prior); ``--json`` prints the figures instead of the table. Every prediction of a box leaves out the profile that was
made from it.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.apply import Calibrated, CalibratedTimes
from pcie_sim.calibration.make import Made, calibrate
from pcie_sim.calibration.model import COPY, way_of
from pcie_sim.calibration.points import Curve, gather
from pcie_sim.importers.relate import RelatedMeasurement
from pcie_sim.results.calibration import ErrorStats
from pcie_sim.scoring.calibration_table import table
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.loader import load_yaml
from pcie_sim.specs.measurement import MeasuredRow, MeasurementSet
from pcie_sim.specs.ops import Array, CollectiveCall, CollectiveOp
from pcie_sim.study.calibrating import calibration_text, sha256_of
from pcie_sim.study.measured import load_set
from pcie_sim.topology import Topology, load_topology

MACHINES = "calibration-machines.yaml"
TABLE = "CALIBRATION.md"
BARS = {
    "all ops, median": 0.05,
    "all ops, p90": 0.15,
    "half-precision tables of two hosts, median": 0.05,
    "half-precision tables of two hosts, p90": 0.15,
    "AllGather and ReduceScatter, median": 0.10,
    "AllGather and ReduceScatter, p90": 0.20,
    "All-to-All, median": 0.20,
    "All-to-All, p90": 0.45,
    "All-to-All, 2 and 8 ranks -> 4, median": 0.045,
    "send/recv, median": 0.07,
    "seconds of a full 8-GPU set": 5.0,
}
"""All-to-All on four ranks: what the geometric mean of 2 and 8 ranks reaches."""
MISSED = {"half-precision tables of two hosts, p90": 0.175, "All-to-All, 2 and 8 ranks -> 4, median": 0.28}
"""Bars that are not reached, with what they must not get worse than: the tables (the L40S host's have sizes 80 % off their neighbours), and
an exchange of four ranks, which is predicted a quarter too fast; why is not known."""
COVERAGE = (0.70, 0.92)
Z80 = 1.2815515655446004
RINGS = ("all_gather", "reduce_scatter")
Keep = Callable[[MeasuredRow], bool]


def _all(row: MeasuredRow) -> bool:  # noqa: ARG001 - takes every row
    return True


@dataclass(frozen=True)
class Machine:
    """One calibration machine: its sets, and the rows of them that are its default state (``arms``: names; empty: all)."""

    id: str
    topology: str
    sets: tuple[str, ...]
    arms: tuple[str, ...] = ()
    healthy: bool = True
    half: bool = False
    """Its tables are those whose rows the bars of the fit to all ops are about."""
    profile: bool = True
    """Whether a profile is made of it."""
    same_box: str | None = None
    """The machine whose profile is of this box, too, and left out with it."""
    launches: tuple[str, ...] = ()
    """Launch modes of its rows that count (empty: all)."""

    def measured(self, keep: Keep = _all) -> list[RelatedMeasurement]:
        """Its sets with the rows that ``keep`` takes."""
        found = []
        for name in self.sets:
            held = _set(name)
            rows = tuple(row for row in held.rows if self._mine(held, row) and keep(row))
            if rows:
                found.append(RelatedMeasurement(held.model_copy(update={"rows": rows}), _file(name), ()))
        return found

    def _mine(self, held: MeasurementSet, row: MeasuredRow) -> bool:
        launch = row.launch or (held.arms[row.arm].launch if row.arm else None)
        return (not self.arms or row.arm is None or row.arm in self.arms) and (not self.launches or launch in self.launches)

    def has(self, op: str, ranks: int | None = None) -> bool:
        """Whether ``op`` was measured (on so many ranks)."""
        return any(row.op == op and ranks in (None, row.ranks) for one in self.measured() for row in one.measured.rows)

    @property
    def box(self) -> Topology:
        """Its topology."""
        return _box(self.topology)


@lru_cache(maxsize=64)
def _box(name: str) -> Topology:
    return load_topology(name)


def _file(name: str) -> str:
    folder = catalog.shipped_dir("validation") / name
    return next(str(path.relative_to(folder.parent)) for path in sorted(folder.glob("*.yaml")))


def _set(name: str) -> MeasurementSet:
    return load_set(_file(name))


def machines() -> list[Machine]:
    """All calibration machines (``validation/calibration-machines.yaml``)."""
    data = load_yaml(catalog.shipped_dir("validation") / MACHINES)
    found = []
    for item in data["machines"]:
        given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
        found.append(Machine(**given))
    return found


@dataclass(frozen=True, eq=False)
class Errors:
    """ln(measured / predicted) of left-out points with the predicted standard deviations."""

    error: Array
    sigma: Array

    def stats(self) -> ErrorStats:
        """Medians and coverage."""
        relative = np.expm1(-self.error)
        size = np.abs(relative)
        inside = float(np.mean(np.abs(self.error) <= Z80 * self.sigma))
        return ErrorStats(len(size), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(relative)), inside)


def joined(items: Iterable[Errors]) -> Errors:
    """All points together."""
    kept = list(items)
    return Errors(np.concatenate([item.error for item in kept]), np.concatenate([item.sigma for item in kept]))


def fitted(machine: Machine, keep: Keep, prior: str = "auto") -> Made:
    """The machine calibrated on some of its rows, its own profile left out of the prior."""
    out = [name for name in (machine.id, machine.same_box) if name in catalog.calibration_names()]
    return calibrate(machine.box, machine.measured(keep), prior=prior, leave_out=out if prior == "auto" else [])


def predicted(machine: Machine, made: Made, keep: Keep) -> tuple[Errors, list[Curve]]:
    """The rows that ``keep`` takes, predicted by the calibration ``made``."""
    cal = Calibrated(made.report.calibration, machine.box)
    curves = gather(machine.box, machine.measured(keep)).curves
    errors = []
    for curve in curves:
        with cal.in_force():
            box = curve.state.of(cal.base)
        call = CollectiveCall(cast(CollectiveOp, curve.op), curve.sizes, (tuple(range(curve.ranks)),))
        launch = "eager" if curve.launch == "eager" else "graph"
        found = cal.call_times(box, call, gpu_of_rank=curve.gpus, launch=launch, algorithm=way_of(curve.op))  # type: ignore[arg-type]
        sigma = found.sigma if isinstance(found, CalibratedTimes) and found.sigma is not None else np.full(curve.sizes.shape, 0.5)
        errors.append(Errors(np.log(curve.times / found.time_s), np.hypot(sigma, curve.noise)))
    return joined(errors), curves


@dataclass
class Score:
    """One question over some machines."""

    title: str
    rows: list[tuple[str, ErrorStats, ErrorStats | None]] = field(default_factory=list)
    """(machine, errors, those of the plain rule beside it)."""
    pooled: list[Errors] = field(default_factory=list)
    pooled_plain: list[Errors] = field(default_factory=list)

    def add(self, name: str, errors: Errors, plain: Errors | None = None) -> None:
        """One machine's answer."""
        self.rows.append((name, errors.stats(), None if plain is None else plain.stats()))
        self.pooled.append(errors)
        if plain is not None:
            self.pooled_plain.append(plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "title": self.title,
            "machines": [
                {"machine": name, **vars(one), "plain_median": plain.median if plain else None, "plain_p90": plain.p90 if plain else None}
                for name, one, plain in self.rows
            ],
            "all": vars(joined(self.pooled).stats()) if self.pooled else None,
            "plain": vars(joined(self.pooled_plain).stats()) if self.pooled_plain else None,
            "median_of_medians": statistics.median(one.median for _, one, _ in self.rows) if self.rows else None,
        }


def everything(items: Sequence[Machine]) -> tuple[Score, Score, float]:
    """Fits to all rows: errors of the constants alone, of each size left out in turn, and seconds of the slowest full 8-GPU set."""
    own, left = Score("fit on all ops: the constants alone"), Score("fit on all ops: each size left out in turn")
    slowest = 0.0
    for machine in items:
        made = fitted(machine, _all)
        timed = np.array([op != COPY for op in made.fit.rows.op])
        if not timed.any():
            continue
        nothing = np.full(int(timed.sum()), np.inf)
        own.add(machine.id, Errors(made.fit.error[timed], nothing))
        left.add(machine.id, Errors(made.fit.left_out_error[timed], made.fit.left_out_sigma[timed]))
        if len(machine.box.gpus) == 8 and machine.has("all_gather", 8):
            slowest = max(slowest, made.report.fit_s)
    return own, left, slowest


def other_ops(items: Sequence[Machine]) -> Score:
    """AllReduce alone -> AllGather and ReduceScatter of the same box, beside the rule (AllReduce + base) / 2."""
    score = Score("fit on AllReduce: predict AllGather and ReduceScatter")
    for machine in items:
        if not (machine.has("all_reduce") and any(machine.has(op) for op in RINGS)):
            continue
        made = fitted(machine, lambda row: row.op == "all_reduce")
        errors, curves = predicted(machine, made, lambda row: row.op in RINGS)
        score.add(machine.id, errors, _half(machine, made, curves))
    return score


def _half(machine: Machine, made: Made, curves: Sequence[Curve]) -> Errors:
    """The plain rule: half of AllReduce's time and of its fixed cost."""
    base = next(item.value for item in made.report.calibration.parameters if item.name == "base.all_reduce")
    known = {
        (curve.ranks, curve.launch): curve for curve in gather(machine.box, machine.measured(lambda row: row.op == "all_reduce")).curves
    }
    errors = []
    for curve in curves:
        other = known.get((curve.ranks, curve.launch))
        if other is None:
            continue
        same = np.isin(curve.sizes, other.sizes)
        at = np.interp(np.log(curve.sizes[same]), np.log(other.sizes), other.times)
        errors.append(Errors(np.log(curve.times[same] / ((at + base) / 2)), np.full(int(same.sum()), np.inf)))
    return joined(errors)


def exchanges(items: Sequence[Machine]) -> Score:
    """AllReduce alone -> All-to-All of the same box."""
    score = Score("fit on AllReduce: predict All-to-All")
    for machine in items:
        if machine.has("all_reduce") and machine.has("all_to_all"):
            made = fitted(machine, lambda row: row.op == "all_reduce")
            score.add(machine.id, predicted(machine, made, lambda row: row.op == "all_to_all")[0])
    return score


def other_ranks(items: Sequence[Machine]) -> Score:
    """2 and 8 ranks -> 4, op by op, on healthy boxes, beside the geometric mean of the two."""
    score = Score("fit on 2 and 8 ranks: predict 4")
    for machine in items:
        if not machine.healthy:
            continue
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            if not all(machine.has(op, ranks) for ranks in (2, 4, 8)):
                continue
            made = fitted(machine, lambda row, op=op: row.op == op and row.ranks in (2, 8))  # type: ignore[misc]
            errors, _ = predicted(machine, made, lambda row, op=op: row.op == op and row.ranks == 4)  # type: ignore[misc]
            score.add(f"{machine.id}, {op}", errors, _mean(machine, op))
    return score


def _mean(machine: Machine, op: str) -> Errors:
    by = {curve.ranks: curve for curve in gather(machine.box, machine.measured(lambda row: row.op == op)).curves}
    sizes = np.intersect1d(np.intersect1d(by[2].sizes, by[8].sizes), by[4].sizes)
    at = {ranks: np.interp(sizes, curve.sizes, np.log(curve.times)) for ranks, curve in by.items()}
    return Errors(at[4] - (at[2] + at[8]) / 2, np.full(len(sizes), np.inf))


def hops(items: Sequence[Machine]) -> tuple[Score, dict[str, float]]:
    """AllReduce in a CUDA graph -> send/recv in one, beside AllReduce's own time; and the issue floor told apart from the wire."""
    score = Score("fit on AllReduce (graph): predict send/recv (graph)")
    floors: dict[str, float] = {}
    for machine in items:
        graph = [row for one in machine.measured() for row in one.measured.rows if row.op == "send_recv" and _launch(one, row) == "graph"]
        if not graph:
            continue

        def only(op: str, launch: str) -> Keep:
            return lambda row: row.op == op and (row.launch or _arm_launch(machine, row)) == launch  # noqa: B023 - used at once

        made = fitted(machine, only("all_reduce", "graph"))
        errors, curves = predicted(machine, made, only("send_recv", "graph"))
        known = gather(machine.box, machine.measured(only("all_reduce", "graph"))).curves[0]
        same = np.interp(np.log(curves[0].sizes), np.log(known.sizes), np.log(known.times))
        score.add(machine.id, errors, Errors(np.log(curves[0].times) - same, np.full(len(same), np.inf)))
        if machine.measured(only("all_reduce", "eager")):
            floors |= _floor(machine, fitted(machine, only("all_reduce", "eager")))
            known_us = np.interp(np.log(1024.0), np.log(known.sizes), known.times) * 1e6
            floors["measured_graph_us"] = float(known_us)
    return score, floors


def _launch(one: RelatedMeasurement, row: MeasuredRow) -> str | None:
    return row.launch or (one.measured.arms[row.arm].launch if row.arm else None)


def _arm_launch(machine: Machine, row: MeasuredRow) -> str | None:
    return next((held.arms[row.arm].launch for held in map(_set, machine.sets) if row.arm in held.arms), None)


def _floor(machine: Machine, made: Made) -> dict[str, float]:
    """What a small AllReduce takes eagerly and in a graph (with p10 and p90), us."""
    cal = Calibrated(made.report.calibration, machine.box)
    ranks = len(machine.box.gpus)
    call = CollectiveCall("all_reduce", np.array([1024.0]), (tuple(range(ranks)),))
    gpus = machine.box.gpus
    eager = cal.call_times(cal.box, call, gpu_of_rank=gpus, launch="eager")
    graph = cal.call_times(cal.box, call, gpu_of_rank=gpus, launch="graph")
    sigma = float(graph.sigma[0]) if isinstance(graph, CalibratedTimes) and graph.sigma is not None else 0.5
    time = float(graph.time_s[0]) * 1e6
    low, high = time * np.exp(-Z80 * sigma), time * np.exp(Z80 * sigma)
    return {"eager_us": float(eager.time_s[0]) * 1e6, "graph_us": time, "graph_p10_us": float(low), "graph_p90_us": float(high)}


def figures() -> dict[str, Any]:
    """Every score as plain data."""
    items = machines()
    own, left, slowest = everything(items)
    half = Score("fit on all ops, half-precision tables: the constants alone")
    for machine, (name, _, _), errors in zip([m for m in items if m.id in {r[0] for r in own.rows}], own.rows, own.pooled, strict=True):
        if machine.half:
            half.add(name, errors)
    ops, exchange, ranks = other_ops(items), exchanges(items), other_ranks(items)
    hop, floors = hops(items)
    covered = joined([*left.pooled, *ops.pooled, *exchange.pooled, *ranks.pooled, *hop.pooled])
    return {
        "scores": {
            "all": own.to_dict(),
            "half": half.to_dict(),
            "left_out": left.to_dict(),
            "rings": ops.to_dict(),
            "exchange": exchange.to_dict(),
            "ranks": ranks.to_dict(),
            "send_recv": hop.to_dict(),
        },
        "floors": floors,
        "coverage": {"left_out_sizes": joined(left.pooled).stats().coverage, "all": covered.stats().coverage, "points": len(covered.error)},
        "slowest_s": slowest,
        "profiles": [_profile_row(name) for name in catalog.calibration_names()],
    }


def _profile_row(name: str) -> dict[str, Any]:
    spec = catalog.load_calibration_profile(name)
    told = [item.name for item in spec.parameters if item.evidence == "fitted"]
    return {
        "name": name,
        "gpu": spec.topology.gpu,
        "transport": spec.topology.traits.get("transport"),
        "points": sum(len(curve.bytes) for curve in spec.curves),
        "ops": sorted({f"{curve.op} x{curve.ranks}" for curve in spec.curves}),
        "fitted": told,
        "healthy": spec.topology.healthy,
    }


def make_profiles(folder: Path | None = None) -> list[Path]:
    """``catalog/profiles/`` anew: every machine calibrated on all its rows, without a prior."""
    written = []
    root = catalog.shipped_dir("validation")
    for machine in machines():
        if not machine.profile:
            continue
        files = [_file(name) for name in machine.sets]
        hashes = {file: sha256_of(str(root / file)) for file in files}
        made = calibrate(machine.box, machine.measured(), prior="none", sha256=hashes)
        sources = tuple(dict.fromkeys(source for name in machine.sets for source in _set(name).sources))
        data = made.report.calibration.model_dump(by_alias=True)
        data |= {"name": machine.id, "title": machine.box.title, "sources": sources}
        data["topology"] |= {"id": machine.id, "healthy": machine.healthy}
        path = (folder or Path(catalog.__file__).parent / "profiles") / f"{machine.id}.yaml"
        head = "# Made by `python -m pcie_sim.scoring.calibration --profiles`; do not edit.\n"
        path.write_text(head + calibration_text(CalibrationSpec.model_validate(data)), encoding="utf-8")
        written.append(path)
    return written


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write((__doc__ or "") + "\n")
        return 0
    if "--profiles" in arguments:
        sys.stderr.writelines(f"wrote {path.name}\n" for path in make_profiles())
    found = figures()
    if "--json" in arguments:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return 0
    path = catalog.shipped_dir("validation") / TABLE
    path.write_text(table(found, BARS, COVERAGE), encoding="utf-8")
    sys.stdout.write(f"wrote {TABLE}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
