"""Measurements made from known constants: what a box with such constants would show, with seeded run-to-run noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.apply import Calibrated, CalibratedTimes
from pcie_sim.calibration.constants import constants, parts_with, start, used_parts
from pcie_sim.calibration.model import way_of
from pcie_sim.importers.relate import RelatedMeasurement
from pcie_sim.network import call_times, rank_order
from pcie_sim.specs.loader import load_yaml
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import Topology, from_spec

PAIR = "h200-2x-host-staged"
FOUR = "rtx-5090-4x-direct-1socket"
EIGHT = "rtx-4090-8x-rome-2socket"
SWITCHED = "rtx-pro-6000-8x-4switch-2xeon"
SWEEP = tuple(1 << power for power in range(3, 28))
"""What nccl-tests sweeps with -b 8 -e 128M -f 2."""


def truth(*, seed: int = 0, spread: float = 0.5, **known: float) -> dict[str, float]:
    """Constants of a made box: each drawn ``spread`` of its prior's spread from where a fit begins, inside its bounds; ``known``
    (dots written as two underscores) and what only moves switch points as given.
    """
    draw = np.random.default_rng(seed)
    found = {}
    for name, item in constants().items():
        value = item.value * float(np.exp(spread * item.spread * draw.standard_normal()))
        found[name] = item.value if item.discrete else min(max(value, item.low * 1.05), item.high * 0.95)
    return found | {name.replace("__", "."): value for name, value in known.items()}


@dataclass(frozen=True)
class Run:
    """One sweep: how it is measured. ``noise`` is the standard deviation of ln(time)."""

    op: str = "all_reduce"
    ranks: int | None = None
    sizes: tuple[int, ...] = SWEEP
    launch: str = "graph"
    noise: float = 0.0
    gpus: tuple[str, ...] = ()


@contextmanager
def made_of(box: Topology, values: Mapping[str, float]) -> Iterator[Topology]:
    """``box`` with these constants, in force inside the block."""
    with catalog.using_parts(parts_with({**start(), **values}, used_parts(box.spec))):
        yield from_spec(box.spec, source=box.name)


def true_times(box: Topology, values: Mapping[str, float], run: Run) -> np.ndarray:
    """Seconds of the run's sizes on ``box`` with these constants, without noise."""
    ranks = run.ranks or len(box.gpus)
    with made_of(box, values) as made:
        call = CollectiveCall(run.op, np.asarray(run.sizes, dtype=float), (tuple(range(ranks)),))  # type: ignore[arg-type]
        launch: Any = run.launch
        gpus = run.gpus or rank_order(made, ranks)
        return np.asarray(call_times(made, call, gpu_of_rank=gpus, launch=launch, algorithm=way_of(run.op)).time_s)


def noisy(times: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Times with log-normal noise."""
    return np.asarray(times * np.exp(noise * np.random.default_rng(seed).standard_normal(len(times))))


def rows_of(run: Run, box: Topology, times: Sequence[float]) -> list[dict[str, Any]]:
    """The run as rows of a measurement set."""
    ranks = run.ranks or len(box.gpus)
    return [
        {
            "op": run.op, "ranks": ranks, "bytes": size, "launch": run.launch, "metric": "time", "value": float(time) * 1e6, "unit": "us",
            "quality": "good",
        }
        for size, time in zip(run.sizes, times, strict=True)
    ]  # fmt: skip


def measurement(box: Topology, rows: Sequence[Mapping[str, Any]], *, source: str = "made.log", **more: Any) -> RelatedMeasurement:
    """Rows as a file that was read."""
    data = {
        "schema": "pcie-sim/measurement/1", "id": "made", "kind": "collective", "use": "calibrate", "sources": ["made by a test"],
        "machine": {"gpus": len(box.gpus)}, "rows": list(rows), **more,
    }  # fmt: skip
    return RelatedMeasurement(MeasurementSet.model_validate(data), source)


def shipped_set(name: str) -> RelatedMeasurement:
    """A measurement set of the package's validation folder."""
    path = catalog.shipped_dir("validation") / name / "collective.yaml"
    return RelatedMeasurement(MeasurementSet.model_validate(load_yaml(path)), name)


def measured(
    box: Topology, values: Mapping[str, float], runs: Sequence[Run], *, seed: int = 1, source: str = "made.log"
) -> RelatedMeasurement:
    """What ``runs`` show on ``box`` with these constants."""
    rows: list[dict[str, Any]] = []
    for index, run in enumerate(runs):
        rows += rows_of(run, box, noisy(true_times(box, values, run), run.noise, seed + index))
    return measurement(box, rows, source=source)


def asked(box: Calibrated, run: Run, **more: Any) -> CalibratedTimes:
    """The calibrated times of a run's sizes."""
    ranks = run.ranks or len(box.box.gpus)
    call = CollectiveCall(run.op, np.asarray(run.sizes, dtype=float), (tuple(range(ranks)),))  # type: ignore[arg-type]
    gpus = run.gpus or rank_order(box.box, ranks)
    found = box.call_times(box.box, call, gpu_of_rank=gpus, launch=run.launch, algorithm=way_of(run.op), **more)  # type: ignore[arg-type]
    assert isinstance(found, CalibratedTimes)
    return found
