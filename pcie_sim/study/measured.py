"""Measured runs that belong to a question: read from the shipped sets by their index, so that only matching files are opened."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pcie_sim import catalog
from pcie_sim.results.comparison import Comparison, MeasuredPoint, Point
from pcie_sim.specs.base import build
from pcie_sim.specs.loader import load_yaml, read_text
from pcie_sim.specs.measurement import UNITS, MeasuredRow, MeasurementSet, SoftwareRef
from pcie_sim.specs.strategy import parse_strategy

INDEX = "index.yaml"


@lru_cache(maxsize=1)
def _index() -> tuple[dict[str, Any], ...]:
    path = catalog.shipped_dir("validation") / INDEX
    return tuple(load_yaml(path)["sets"]) if path.exists() else ()


@lru_cache(maxsize=64)
def load_set(relative: str) -> MeasurementSet:
    """One shipped set by its file, relative to the validation folder."""
    return load_set_file(str(catalog.shipped_dir("validation") / relative))


def load_set_file(path: str) -> MeasurementSet:
    """One set from any file.

    Raises:
        InputError: missing, broken, or not a measurement file.
    """
    return build(MeasurementSet, load_yaml(path), source=path, text=read_text(path))


def serving_sets(topology: str, model: str, runtime: str) -> list[MeasurementSet]:
    """Shipped serving sets of this box, model and runtime."""
    return [
        load_set(entry["file"])
        for entry in _index()
        if entry["kind"] == "serving"
        and entry["topology"] == topology
        and model in entry["models"]
        and entry["runtime"] == runtime
        and entry["use"] in ("score", "context")
    ]


def landmark_all_reduces(architecture: str, ranks: int) -> list[tuple[MeasurementSet, MeasuredRow]]:
    """Published small AllReduce times over ``ranks`` GPUs of this chip, fastest first (what one can cost, healthy or not)."""
    found = []
    for entry in _index():
        if entry["kind"] != "collective" or entry["use"] != "context" or entry["gpus"] != ranks or not entry["gpu"]:
            continue
        if catalog.load_gpu(entry["gpu"]).architecture != architecture:
            continue
        held = load_set(entry["file"])
        found += [(held, row) for row in held.rows if row.op == "all_reduce" and row.ranks == ranks and row.metric == "time"]
    return sorted(found, key=lambda pair: pair[1].si_value)


def compare_with(
    sets: Iterable[MeasurementSet], points: Iterable[Point], *, context: int, settings: Mapping[str, str] | None = None
) -> tuple[MeasuredPoint, ...]:
    """Every serving row of ``sets`` beside the prediction for its strategy and concurrency.

    A row has no prediction when its strategy was not asked, when its concurrency is unknown or not in the grid, or when its context (or
    the range in which an unstated one must lie) is not the one asked. ``settings``: the collective library's environment in force;
    where the run is known to have had another, the row says so.
    """
    asked = list(points)
    found = []
    for held in sets:
        for row in held.rows:
            arm = held.arms[row.arm] if row.arm else None
            if arm is None or arm.strategy is None or row.metric not in ("tpot", "step_time", "output_tokens_per_s", "user_tokens_per_s"):
                continue
            at = row.context or arm.context
            point = _matching(asked, arm.strategy, row.concurrency, context if at is None else at)
            if at is None and arm.context_range is not None and not arm.context_range[0] <= context <= arm.context_range[1]:
                point = None
            if point is not None and not point.fits:
                point = None
            predicted = None if point is None else _in_unit(point, row)
            remarks = [row.note or "", *(_other_settings(arm.software or held.software, settings) if predicted is not None else [])]
            found.append(
                MeasuredPoint(
                    set_id=held.id,
                    strategy=arm.strategy,
                    concurrency=row.concurrency,
                    context=at,
                    metric=row.metric,
                    value=row.value,
                    unit=row.unit,
                    quality=row.quality,
                    predicted=predicted,
                    residual=None if predicted is None else row.value / predicted - 1,
                    source="; ".join(held.sources),
                    note="; ".join(text for text in remarks if text),
                )
            )
    return tuple(found)


def _other_settings(run: SoftwareRef, settings: Mapping[str, str] | None) -> list[str]:
    """What the run is known to have set otherwise than is asked here."""
    asked = settings or {}
    other = [f"{key}={value}" for key, value in run.env.items() if asked.get(key) != value]
    return [f"the run had {' '.join(other)}"] if other else []


def _matching(points: list[Point], strategy: str, concurrency: float | None, context: float) -> Point | None:
    if concurrency is None:
        return None
    wanted = parse_strategy(strategy)
    shape = wanted.with_moe_comm(None).canonical
    for point in points:
        same = point.canonical == shape and (wanted.moe_comm is None or point.moe_comm in (None, wanted.moe_comm))
        if same and point.concurrency == concurrency and point.context == context:
            return point
    return None


def _in_unit(point: Point, row: MeasuredRow) -> float:
    """What was predicted for the row, in the row's own unit."""
    seconds = point.tpot_ms / 1e3
    found = {"output_tokens_per_s": point.tokens_per_s, "user_tokens_per_s": 1 / seconds}.get(row.metric, seconds)
    return found / UNITS[row.metric][row.unit]


def measured_tpot_ms(row: MeasuredPoint) -> float:
    """A measured row as milliseconds per token of one user."""
    if row.metric in ("tpot", "step_time"):
        return row.value * UNITS[row.metric][row.unit] * 1e3
    users = row.concurrency if row.metric == "output_tokens_per_s" and row.concurrency else 1.0
    return 1000 * users / row.value


def matching_rows(comparison: Comparison) -> tuple[MeasuredPoint, ...]:
    """The rows of a comparison that have a prediction, in order."""
    return tuple(row for row in comparison.measured if row.predicted is not None)


def make_index() -> str:
    """The text of ``validation/index.yaml`` for the sets that are there."""
    root = catalog.shipped_dir("validation")
    lines = ["# Which sets exist, so that a comparison opens only those that match. Made by `python -m pcie_sim.study.measured`.", "sets:"]
    for path in sorted(root.glob("*/*.yaml")):
        held = load_set_file(str(path))
        models = sorted({arm.model for arm in held.arms.values() if arm.model})
        fields = {
            "id": held.id,
            "file": path.relative_to(root).as_posix(),
            "kind": held.kind,
            "use": held.use,
            "topology": held.machine.topology,
            "gpu": held.machine.gpu,
            "gpus": held.machine.gpus,
            "runtime": held.software.runtime,
        }
        text = ", ".join(f"{key}: {'null' if value is None else value}" for key, value in fields.items())
        lines.append(f"  - {{{text}, models: [{', '.join(models)}]}}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (catalog.shipped_dir("validation") / INDEX).write_text(make_index(), encoding="utf-8")
    sys.stdout.write(f"wrote {INDEX}\n")
