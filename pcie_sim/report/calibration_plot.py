"""The picture of a calibration: measured times over size, the fitted curves with their band, and the protocol at every size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcie_sim.errors import InputError
from pcie_sim.report.calibration import REGIMES, curve_settings
from pcie_sim.report.numbers import percent
from pcie_sim.report.plots import COLOURS, GREY, INK, MARKERS, drawable, save_figure
from pcie_sim.results.calibration import CalibrationReport, FittedPoint
from pcie_sim.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pcie_sim.specs.calibration import MeasuredCurve

_MOST_PANELS, _MOST_CURVES = 9, 6
_BY_RANKS = 6
"""Up to so many pairs of op and number of ranks have a panel each; with more, the numbers of ranks of an op share one."""
_TINTS = {"LL": "#bcd9ee", "LL128": "#d9c9e8", "Simple": "#cbe5cb", "floor": "#f5dcc0"}
_OTHER_TINT = "#e8e8e8"
_RED = "#c1121f"
_TICKS = 6
_LETTER, _TITLE_LETTER = 5.2, 6.4
"""Points that a letter takes, about: of a strip's label, of the title."""
_LONG, _MOST_LINES = 36, 3
"""Letters of a line of a curve's label, and lines of its settings."""
_OUTLIER: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 10,
    "markerfacecolor": "none",
    "markeredgecolor": _RED,
    "markeredgewidth": 1.5,
}


@dataclass(frozen=True)
class _Drawn:
    """One curve of a panel: its points by size, what the legend calls it, and its look."""

    points: tuple[FittedPoint, ...]
    label: str
    colour: str
    marker: str


def save_calibration_plot(report: CalibrationReport, path: str) -> Path:
    """Draw ``report`` into ``path`` (PNG or SVG by its ending).

    Raises:
        InputError: another ending, a file that cannot be written, or no collective to draw (copies alone).
    """
    if not report.points:
        raise InputError(f"--plot {path[:80]}: no times of collectives to draw; the files hold single copies alone")
    return save_figure(lambda: calibration_figure(report), path)


def calibration_figure(report: CalibrationReport) -> Figure:
    """A panel per op and number of ranks (per op where those are many), both axes logarithmic.

    Every panel has the measured points, the fitted constants' curve, the p10 to p90 of each point predicted from all others, outliers in
    a ring, and above it one strip a curve with the protocol at each size. matplotlib's global state is not touched.
    """
    from matplotlib.figure import Figure

    panels = _panels(report)
    shown = dict(list(panels.items())[:_MOST_PANELS])
    columns = {1: 1, 2: 2, 4: 2}.get(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    width = {1: 9.5, 2: 12.5, 3: 15.5}[columns]
    figure = Figure(figsize=(width, 0.8 + 3.7 * rows), layout="constrained", facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False)
    room = 72 * (width - 2.6) / columns - 60
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    strips = max(min(len(curves), _MOST_CURVES) for curves in shown.values())
    for axes, (title, curves) in zip(grid.flat, shown.items(), strict=False):
        drawn = curves[:_MOST_CURVES]
        for curve in drawn:
            _curve(axes, curve)
        more = len(curves) - len(drawn)
        _dress(axes, title + (f" ({more} more curves not drawn)" if more else ""), drawn)
        _strips(axes, drawn, room, strips)
    handles = _legend([curve for curves in shown.values() for curve in curves[:_MOST_CURVES]])
    beside = 72 * width - 60 - 1.05 * _LETTER * max(len(line) for label in handles for line in label.split("\n"))
    words = _title(report, len(panels) - len(shown), letters=int(beside / _TITLE_LETTER))
    heading = figure.suptitle(words, fontsize=11, color=INK, x=0.012, ha="left", linespacing=1.4)
    heading.set_parse_math(False)  # a dollar sign in a title is a dollar sign
    legend = figure.legend(list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize=9, labelspacing=0.7)
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.draw_without_rendering()  # a panel's title stands on its strips, whose height follows from a first layout
    return figure


def _panels(report: CalibrationReport) -> dict[str, list[_Drawn]]:
    """Curves by the title of their panel. A curve's look goes with its label, so that it is the same in every panel."""
    curves = report.calibration.curves
    points: dict[int, list[FittedPoint]] = {}
    for point in report.points:
        points.setdefault(point.curve, []).append(point)
    pairs = {(curve.op, curve.ranks) for curve in curves}
    split = len(pairs) <= max(_BY_RANKS, len({curve.op for curve in curves}))
    looks: dict[str, tuple[str, str]] = {}
    found: dict[str, list[_Drawn]] = {}
    for index, (curve, settings) in enumerate(zip(curves, curve_settings(curves), strict=True)):
        if index not in points:
            continue
        title = f"{curve.op}, {counted(curve.ranks, 'GPU')}" if split else curve.op
        label = _label(curve, settings, ranks=not split)
        place = len(looks)
        look = looks.setdefault(label, (COLOURS[place % len(COLOURS)], MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]))
        mine = tuple(sorted(points[index], key=lambda point: point.bytes))
        found.setdefault(title, []).append(_Drawn(mine, label, *look))
    return found


def _label(curve: MeasuredCurve, settings: str, *, ranks: bool) -> str:
    launch = {"graph": "CUDA graph", "eager": "eager", "threads": "eager, own threads"}.get(curve.launch or "", "launch not said")
    lines = [f"{counted(curve.ranks, 'GPU')}, {launch}" if ranks else launch]
    lines += [drawable(line, "other settings") for line in settings.splitlines()[:_MOST_LINES]]
    return "\n".join(line if len(line) <= _LONG else line[: _LONG - 3] + "..." for line in lines)


def _curve(axes: Axes, curve: _Drawn) -> None:
    x = [point.bytes for point in curve.points]
    band = [p for p in curve.points if p.left_out_p10_s is not None and p.left_out_p90_s is not None]
    if band:
        low, high = [p.left_out_p10_s or 0.0 for p in band], [p.left_out_p90_s or 0.0 for p in band]
        axes.fill_between([p.bytes for p in band], low, high, color=curve.colour, alpha=0.18, linewidth=0, zorder=1)
    axes.plot(x, [p.fitted_s for p in curve.points], color=curve.colour, linewidth=1.5, zorder=2)
    look: dict[str, Any] = {"linestyle": "none", "marker": curve.marker, "markersize": 5.5, "color": curve.colour}
    axes.plot(x, [p.measured_s for p in curve.points], **look, markeredgecolor="white", markeredgewidth=0.6, zorder=3)
    far = [p for p in curve.points if p.outlier]
    if far:
        axes.plot([p.bytes for p in far], [p.measured_s for p in far], **_OUTLIER, zorder=4)


def _strips(axes: Axes, curves: Sequence[_Drawn], room: float, most: int) -> None:
    """Which protocol the model has at every size, a strip a curve above the panel.

    Args:
        room: the panel's width in points.
        most: strips of the panel that has most: room is kept for as many, so that panels stay level.
    """
    low, high = axes.get_xlim()
    above = axes.inset_axes((0.0, 1.015, 1.0, 0.052 * most))
    above.set_xscale("log", base=2)
    above.set_xlim(low, high)
    above.set_ylim(len(curves), len(curves) - most)
    above.set_axis_off()
    octaves = math.log2(high / low)
    for row, curve in enumerate(curves):
        for start, end, regime in _segments(curve.points):
            above.fill_between([start, end], row + 0.08, row + 0.92, color=_TINTS.get(regime, _OTHER_TINT), linewidth=0)
            text = REGIMES.get(regime, regime)
            if room * math.log2(end / start) / octaves > _LETTER * len(text) + 6:
                above.text(math.sqrt(start * end), row + 0.52, text, ha="center", va="center", fontsize=7.5, color=INK)
        if len(curves) > 1:
            look: dict[str, Any] = {"marker": curve.marker, "markersize": 5, "color": curve.colour, "clip_on": False}
            above.plot([-0.014], [(len(curves) - row - 0.5) / most], **look, transform=above.transAxes)


def _segments(points: Sequence[FittedPoint]) -> list[tuple[float, float, str]]:
    """(from, to, regime) without gaps: a regime ends half way (on the logarithmic axis) to the next one's first size."""
    edges = [points[0].bytes / math.sqrt(2)]
    names = [points[0].regime]
    for before, after in pairwise(points):
        if after.regime != before.regime:
            edges.append(math.sqrt(before.bytes * after.bytes))
            names.append(after.regime)
    edges.append(points[-1].bytes * math.sqrt(2))
    return [(start, end, name) for (start, end), name in zip(pairwise(edges), names, strict=True)]


def _dress(axes: Axes, title: str, curves: Sequence[_Drawn]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

    sizes = [point.bytes for curve in curves for point in curve.points]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 2, max(sizes) * 2)
    first, last = math.ceil(math.log2(min(sizes))), math.floor(math.log2(max(sizes)))
    step = max(1, math.ceil((last - first) / (_TICKS - 1)))
    ticks = [2.0**power for power in range(first, last + 1, step)] or [float(min(sizes))]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([format_bytes(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if high / low > 3e3 else (1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_time(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_ylabel("time per call", fontsize=9)
    axes.set_xlabel("message size (as nccl-tests counts it)", fontsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(curves: Sequence[_Drawn]) -> Mapping[str, Any]:
    """Curves, then what holds for all of them: fit, band, outliers, protocols."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    for curve in curves:
        look: dict[str, Any] = {"marker": curve.marker, "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
        found.setdefault(curve.label, Line2D([], [], color=curve.colour, linewidth=1.5, **look))
    found["measured"] = Line2D([], [], linestyle="none", marker="o", markersize=5.5, color=GREY)
    found["fitted constants"] = Line2D([], [], color=GREY, linewidth=1.5)
    found["p10 to p90, each point\nfrom all others"] = Patch(facecolor=GREY, alpha=0.3)
    points = [point for curve in curves for point in curve.points]
    if any(point.outlier for point in points):
        found["outlier"] = Line2D([], [], **_OUTLIER)
    for regime in sorted({point.regime for point in points}, key=lambda name: (list(_TINTS).index(name) if name in _TINTS else 9, name)):
        found[REGIMES.get(regime, f"protocol {regime}")] = Patch(facecolor=_TINTS.get(regime, _OTHER_TINT))
    return found


def _title(report: CalibrationReport, left_out: int, *, letters: int) -> str:
    box = drawable(report.titles.get("topology", ""), report.topology)
    errors = f"constants off by {percent(report.overall.median, digits=1)} (median)"
    errors += f", each point from all others by {percent(report.answered.median, digits=1)}"
    if report.answered.coverage is not None:
        errors += f", p10 to p90 holds {percent(report.answered.coverage)} of them"
    more = f"; {counted(left_out, 'more panel')} not drawn" if left_out else ""
    lines = [f"Calibration: {box}", f"{counted(len(report.points), 'point')}, {errors}{more}"]
    return "\n".join(textwrap.fill(line, letters) for line in lines)
