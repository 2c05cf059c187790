"""A calibration for people: what was measured, how far the fit lies off, what each constant is worth, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pcie_sim.report.console import bold, bullets, pairs, table, wrapped
from pcie_sim.report.numbers import percent
from pcie_sim.results.calibration import CalibrationReport, Crosscheck, ErrorStats, FittedPoint
from pcie_sim.units import counted, format_bytes

if TYPE_CHECKING:
    from pcie_sim.report.console import Block, Cell, Justify
    from pcie_sim.specs.calibration import CalibratedParameter, MeasuredCurve

WIDE = 104
"""Columns from which the tables have all their columns; below, some are put together or left to ``--json``."""
REGIMES = {"floor": "CPU floor", "copy": "single copies"}
"""Regimes that are no protocol, in words."""
_MOST_CURVES, _MOST_OUTLIERS, _MOST_TEXTS, _MOST_FILES, _MOST_PROFILES = 40, 12, 12, 4, 4
_STRONG, _MOST_PAIRS = 0.3, 6
"""Correlations that are worth a line."""
_INTERVAL = 0.8
"""What p10 to p90 is meant to hold."""
_OUTLIERS = ": far from what all other points say at "
"""In the warning that names outliers: their table says it with figures."""
_PRIOR = "prior: "
"""Begins the note that the head already holds."""


def calibration_blocks(report: CalibrationReport, *, width: int) -> list[Block]:
    """Everything of a calibration."""
    held = report.calibration
    blocks: list[Block] = [bold(f"Calibration of {report.titles.get('topology') or report.topology}"), pairs(_facts(report), width=width)]
    if held.curves:
        blocks += ["", bold("Curves (errors: median and 90th percentile of |predicted / measured - 1|)"), *_curves(report, width)]
    blocks += ["", bold("Errors of the fitted constants alone"), _errors(report)]
    blocks += ["", bold("Predicted from everything else"), *_crosschecks(report.crosschecks, width)]
    blocks += ["", bold("Parameters"), *_parameters(report, width)]
    blocks += _correlations(report, width)
    blocks += _outliers(report)
    warnings = [text for text in report.warnings if _OUTLIERS not in text]
    blocks += _listed(f"Warnings ({len(warnings)})", warnings, width, colour="red")
    blocks += _listed("Read and not used", report.unused, width)
    return blocks + _listed("Notes", [text for text in report.notes if not text.startswith(_PRIOR)], width)


def _facts(report: CalibrationReport) -> list[tuple[str, str]]:
    held = report.calibration
    box = f"{held.topology.name}: {held.topology.gpu or counted(held.topology.gpus, 'GPU')}"
    sizes = [point.bytes for point in report.points]
    span = f", {format_bytes(min(sizes))} to {format_bytes(max(sizes))}" if sizes else ""
    copies = sum(1 for item in held.inputs if item.op.startswith("copy"))
    measured = [f"{counted(len(report.points), 'point')} on {counted(len(held.curves), 'curve')}{span}"] if sizes else []
    measured += [f"single copies over {counted(copies, 'kind')} of ways"] if copies else []
    files = list(dict.fromkeys(item.file for item in held.inputs))
    more = f" and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    return [
        ("name", held.name or ""),
        ("box", box),
        ("read from", ", ".join(files[:_MOST_FILES]) + more),
        ("measured", "; ".join(measured)),
        ("prior", _prior(held.prior, held.prior_weights)),
        ("constants", f"off by {_two(report.overall)}"),
        ("left out", f"off by {_two(report.answered)} where each point is predicted from all others{_coverage(report.answered)}"),
        ("fitted in", f"{report.fit_s:.2f} s"),
    ]


def _prior(name: str, weights: Mapping[str, float]) -> str:
    if name == "none":
        return "none: start values alone, no profile of another box"
    shown = ", ".join(f"{profile} {weight:.2f}" for profile, weight in list(weights.items())[:_MOST_PROFILES])
    more = f" and {len(weights) - _MOST_PROFILES} more" if len(weights) > _MOST_PROFILES else ""
    return f"{counted(len(weights), 'profile')} by likeness: {shown}{more}" if len(weights) > 1 else f"profile {name}"


def _two(errors: ErrorStats) -> str:
    return f"{percent(errors.median, digits=1)} (median), {percent(errors.p90, digits=1)} (90th percentile)"


def _coverage(errors: ErrorStats) -> str:
    if errors.coverage is None:
        return ""
    return f"; p10 to p90 holds {percent(errors.coverage)} of them (meant: {percent(_INTERVAL)})"


def curve_title(curve: MeasuredCurve) -> str:
    """``8-GPU all_reduce (eager)``."""
    return f"{curve.ranks}-GPU {curve.op}" + (f" ({curve.launch})" if curve.launch else "")


def curve_settings(curves: Sequence[MeasuredCurve]) -> list[str]:
    """What tells each curve from the others beside op, ranks and launch, a line each: library, peer access, environment (``NCCL_`` left
    out), GPUs. Empty: nothing does.
    """
    said: list[dict[str, str]] = []
    for curve in curves:
        words = {"ccl": curve.ccl or "", "p2p": f"p2p {curve.p2p}" if curve.p2p else ""}
        words |= {name: f"{name.removeprefix('NCCL_')}={value}" for name, value in curve.env.items()}
        said.append(words)
    told = [key for key in dict.fromkeys(key for words in said for key in words) if len({words.get(key, "") for words in said}) > 1]
    places: dict[int, set[tuple[str, ...]]] = {}
    for curve in curves:
        places.setdefault(curve.ranks, set()).add(curve.gpus)
    found = []
    for curve, words in zip(curves, said, strict=True):
        texts = [words[key] for key in told if words.get(key)]
        texts += [f"on {' '.join(curve.gpus)}"] if len(places[curve.ranks]) > 1 and curve.gpus else []
        found.append("\n".join(texts))
    return found


def _curves(report: CalibrationReport, width: int) -> list[Block]:
    curves = report.calibration.curves
    settings = curve_settings(curves)
    wide = width >= WIDE
    columns: list[tuple[str, Justify]] = [("op", "left"), ("ranks", "right"), ("launch", "left")] if wide else [("curve", "left")]
    columns += [("points" if wide else "pts", "right"), ("sizes", "left"), ("constants", "right"), ("left out", "right")]
    columns += [("settings", "left")] if any(settings) else []
    mine: dict[int, list[FittedPoint]] = {}
    for point in report.points:
        mine.setdefault(point.curve, []).append(point)
    rows: list[list[Cell]] = []
    for index, curve in enumerate(curves[:_MOST_CURVES]):
        points = mine.get(index, [])
        fitted = [abs(point.fitted_s / point.measured_s - 1) for point in points]
        left = [abs(point.left_out_s / point.measured_s - 1) for point in points if point.left_out_s is not None]
        row: list[Cell] = [curve.op, str(curve.ranks), curve.launch or "?"] if wide else [curve_title(curve)]
        row += [str(len(points)), f"{format_bytes(curve.bytes[0])} to {format_bytes(curve.bytes[-1])}", _both(fitted), _both(left)]
        row += [settings[index]] if any(settings) else []
        rows.append(row)
    more = len(curves) - _MOST_CURVES
    return [table(columns, rows, fold=() if wide else (0,)), *([f"  and {more} more (--json has all)"] if more > 0 else [])]


def _both(errors: Sequence[float]) -> str:
    """Median and 90th percentile in per cent, decimals in line below each other."""
    if not errors:
        return ""
    import numpy as np

    return f"{100 * np.median(errors):.1f} / {100 * np.quantile(errors, 0.9):4.1f}%"


_STATS: tuple[tuple[str, Justify], ...] = (("points", "right"), ("median", "right"), ("90th pct", "right"), ("bias", "right"))


def _numbers(errors: ErrorStats) -> list[Cell]:
    bias = round(errors.bias, 3) + 0.0  # no "-0.0%"
    return [str(errors.points), percent(errors.median, digits=1), percent(errors.p90, digits=1), percent(bias, digits=1, sign=True)]


def _errors(report: CalibrationReport) -> Block:
    """By op, then by regime, then all."""
    columns: list[tuple[str, Justify]] = [("by", "left"), ("", "left"), *_STATS]
    rows: list[list[Cell]] = []
    for title, groups in (("op", report.by_op), ("regime", report.by_regime)):
        for place, (name, errors) in enumerate(groups.items()):
            rows.append(["" if place else title, REGIMES.get(name, name), *_numbers(errors)])
    return table(columns, [*rows, ["all", "", *_numbers(report.overall)]])


_LEFT_OUT = {"sizes": "one size", "op": "one op", "ranks": "one number of ranks"}


def _crosschecks(checks: Sequence[Crosscheck], width: int) -> list[Block]:
    columns: list[tuple[str, Justify]] = [("left out", "left"), ("", "left"), *_STATS, ("in p10-p90", "right")]
    rows: list[list[Cell]] = []
    last = ""
    for item in checks:
        if item.errors is None:
            continue
        word = _LEFT_OUT.get(item.what, item.what)
        covered = "" if item.errors.coverage is None else percent(item.errors.coverage)
        name = "in turn" if item.what == "sizes" else item.left_out
        rows.append(["" if word == last else word, name, *_numbers(item.errors), covered])
        last = word
    missing = [
        f"{_LEFT_OUT.get(item.what, item.what)}: {item.reason or 'could not be estimated'}" for item in checks if item.errors is None
    ]
    return [*([table(columns, rows)] if rows else []), *bullets(missing, width=width)]


_SCALES = {"s": (1e6, "us"), "B/s": (1e-9, "GB/s"), "1": (1.0, "")}
"""Unit in the file -> factor and unit for people; shares and ratios are plain numbers."""


def _parameters(report: CalibrationReport, width: int) -> list[Block]:
    """Those that the measurements told something of, and apart from them those that keep their prior."""
    unknown = {name for name, _ in report.unidentified}
    bound = set(report.at_bounds)
    items = report.calibration.parameters
    told = [item for item in items if item.name in bound or (item.evidence == "fitted" and item.name not in unknown)]
    blocks: list[Block] = (
        [_parameter_table(told, bound, wide=width >= WIDE)] if told else ["  the measurements told nothing beyond the prior"]
    )
    if bound:
        blocks.append(wrapped("! at its bound: the measurements ask for more than the model allows", width=width, first="  "))
    shown = {item.name for item in told}
    kept = [item.name for item in items if item.name in unknown and item.name not in shown]
    apart = [item.name for item in items if item.name not in shown and item.name not in unknown]
    if kept:
        blocks.append(wrapped(f"The measurements do not tell (they keep their prior): {', '.join(kept)}.", width=width, first="  "))
    if apart:
        blocks.append(wrapped(f"Nothing that was measured depends on: {', '.join(apart)}.", width=width, first="  "))
    return blocks


def _parameter_table(items: Sequence[CalibratedParameter], bound: set[str], *, wide: bool) -> Block:
    columns: list[tuple[str, Justify]] = [("parameter", "left"), ("value ", "right"), ("+-", "right"), ("unit", "left"), ("prior", "right")]
    columns += [("+-", "right"), ("evidence", "left"), ("what it is", "left")] if wide else [("evidence", "left")]
    rows: list[list[Cell]] = []
    for item in items:
        factor, unit = _SCALES.get(item.unit, (1.0, item.unit))
        value: Cell = _scaled(item.value, factor) + ("!" if item.name in bound else " ")
        row: list[Cell] = [item.name, bold(str(value), colour="red") if item.name in bound else value]
        row += [_scaled(item.stderr, factor), unit, _scaled(item.prior, factor)]
        row += [_scaled(item.prior_stderr, factor), item.evidence, item.note or ""] if wide else [item.evidence]
        rows.append(row)
    return table(columns, rows, fold=(len(columns) - 1,) if wide else ())


def _scaled(value: float | None, factor: float) -> str:
    """Three decimals, so that all stand in line; ``?`` for what could not be estimated."""
    return "?" if value is None else f"{value * factor:.3f}"


def _correlations(report: CalibrationReport, width: int) -> list[Block]:
    strong = [(a, b, value) for a, b, value in report.correlations if abs(value) >= _STRONG][:_MOST_PAIRS]
    if not strong:
        return []
    texts = [f"{a} and {b} {value:+.2f}" for a, b, value in strong]
    return [wrapped(f"Strongest correlations of their errors: {'; '.join(texts)}.", width=width, first="  ")]


def _outliers(report: CalibrationReport) -> list[Block]:
    """The farthest first."""
    found = [point for point in report.points if point.outlier and point.left_out_s is not None]
    if not found:
        return []
    found.sort(key=_off, reverse=True)
    columns: list[tuple[str, Justify]] = [
        ("curve", "left"),
        ("size", "right"),
        ("measured", "right"),
        ("from all others", "right"),
        ("", "right"),
    ]
    rows: list[list[Cell]] = []
    for point in found[:_MOST_OUTLIERS]:
        left = point.left_out_s or point.fitted_s
        title = curve_title(report.calibration.curves[point.curve])
        row = [title, format_bytes(point.bytes), f"{_us(point.measured_s)} us", f"{_us(left)} us"]
        rows.append([*row, percent(point.measured_s / left - 1, sign=True)])
    more = len(found) - _MOST_OUTLIERS
    return [
        "",
        bold(f"Outliers ({len(found)}): kept as measured, weighed down in the fit", colour="yellow"),
        table(columns, rows, fold=(0,)),
        *([f"  and {more} more (--json has all)"] if more > 0 else []),
    ]


def _off(point: FittedPoint) -> float:
    ratio = point.measured_s / (point.left_out_s or point.fitted_s)
    return max(ratio, 1 / ratio)


def _us(seconds: float) -> str:
    """Microseconds, four digits."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _listed(title: str, texts: Iterable[str], width: int, *, colour: str = "") -> list[Block]:
    """The texts below a heading, a dash each; nothing without texts."""
    items = list(texts)
    if not items:
        return []
    more = [f"  and {len(items) - _MOST_TEXTS} more (--json has all)"] if len(items) > _MOST_TEXTS else []
    return ["", bold(title, colour=colour), *bullets(items[:_MOST_TEXTS], width=width), *more]
