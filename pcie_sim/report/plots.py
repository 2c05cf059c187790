"""The picture of a comparison: ms per token and tokens/s against concurrency."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcie_sim.errors import InputError
from pcie_sim.report.console import clean
from pcie_sim.report.files import check_target, write_whole
from pcie_sim.results.comparison import Comparison, MeasuredPoint, Point
from pcie_sim.specs.strategy import parse_strategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
# Okabe and Ito's colours, told apart with every common colour blindness (jfly.uni-koeln.de/color), darkest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LONG = 110
"""Longest title, in letters."""
_LINES = ("-", "--", "-.", ":")
GREY = "#8a8a8a"
INK = "#333333"
_RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 10, "markerfacecolor": "none", "markeredgecolor": GREY}


def check_plot(path: str) -> Path:
    """The target of a plot, before anything is computed.

    Raises:
        InputError: not ``.png`` or ``.svg``, or a folder that does not exist.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path[:80]}: write a .png or .svg file")
    return check_target(path, "--plot")


def save_plot(comparison: Comparison, path: str) -> Path:
    """Draw ``comparison`` into ``path`` (PNG or SVG by its ending).

    Raises:
        InputError: another ending, or a file that cannot be written.
    """
    return save_figure(lambda: comparison_figure(comparison), path)


def save_figure(draw: Callable[[], Figure], path: str) -> Path:
    """Write what ``draw`` makes into ``path`` (PNG or SVG by its ending).

    Raises:
        InputError: another ending, or a file that cannot be written.
    """
    check_plot(path)
    kind = Path(path).suffix.lower().removeprefix(".")
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes (titles are checked for them before): nothing that a reader can act upon.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # A date in the file would make two equal pictures differ.
        draw().savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return write_whole(path, buffer.getvalue(), what="--plot")


def comparison_figure(comparison: Comparison) -> Figure:
    """A row of two panels per context (at most four contexts), one line per strategy with its p10 to p90 band.

    matplotlib's global state is not touched.
    """
    from matplotlib.figure import Figure

    contexts = comparison.contexts[:4]
    names = comparison.strategies
    figure = Figure(figsize=(11.5, 0.9 + 4.1 * len(contexts)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(contexts), 2, squeeze=False)
    handles: dict[str, Any] = {}
    for row, context in enumerate(contexts):
        for column, metric in enumerate(("tpot_ms", "tokens_per_s")):
            axes = grid[row][column]
            for name, look in zip(names, _looks(names), strict=False):
                points = [p for p in comparison.points if p.strategy == name and p.context == context]
                _line(axes, points, metric, look, handles)
                _measured(axes, _rows_of(comparison, points, context), metric, look)
            _dress(axes, comparison, metric, context if len(comparison.contexts) > 1 else None)
    title = figure.suptitle(_title(comparison, len(contexts)), fontsize=11, color=INK, x=0.012, ha="left", linespacing=1.4)
    title.set_parse_math(False)  # a dollar sign in a title is a dollar sign
    remarks = _remarks(comparison)
    labels = [*handles, *remarks]
    figure.legend([*handles.values(), *remarks.values()], labels, loc="outside right center", frameon=False, fontsize=9, labelspacing=0.7)
    return figure


def _looks(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Colour, marker and line style by strategy; with more strategies than colours the line style tells them apart."""
    colours, markers = cycle(COLOURS), cycle(MARKERS)
    return [(next(colours), next(markers), _LINES[index // len(COLOURS) % len(_LINES)]) for index, _ in enumerate(names)]


def _line(axes: Axes, points: Sequence[Point], metric: str, look: tuple[str, str, str], handles: dict[str, Any]) -> None:
    colour, marker, style = look
    name = points[0].strategy
    for fits in (True, False):
        part = [p for p in points if p.fits is fits]
        if not part:
            continue
        x = [p.concurrency for p in part]
        y = [getattr(p, metric) for p in part]
        label = name if fits else f"{name} (does not fit)"
        shade = colour if fits else GREY
        if fits:
            low, high = ([getattr(p, f"{metric}_{end}") for p in part] for end in ("p10", "p90"))
            axes.fill_between(x, low, high, color=shade, alpha=0.13, linewidth=0)
        drawn = axes.plot(
            x,
            y,
            color=shade,
            marker=marker,
            markersize=5,
            linewidth=1.8 if fits else 1.2,
            linestyle=style if fits else (0, (2, 2)),
            zorder=3,
        )
        handles.setdefault(label, drawn[0])
    queued = [p for p in points if p.queued and p.fits]
    if queued:
        axes.plot(
            [p.concurrency for p in queued],
            [getattr(p, metric) for p in queued],
            **_RING,
            zorder=2,
        )


def _rows_of(comparison: Comparison, points: Sequence[Point], context: int) -> list[MeasuredPoint]:
    """Measured rows of this strategy that were matched with a prediction."""
    mine = {_shape(points[0].strategy)}
    found = []
    for row in comparison.measured:
        if row.predicted is None or row.concurrency is None or row.quality == "unreliable" or row.context not in (None, context):
            continue
        if _shape(row.strategy) in mine and any(
            p.concurrency == row.concurrency and abs(_in_metric(p, row) - row.predicted) <= 1e-6 * row.predicted for p in points
        ):
            found.append(row)
    return found


def _shape(text: str) -> str:
    return parse_strategy(text).with_moe_comm(None).canonical


def _in_metric(point: Point, row: MeasuredPoint) -> float:
    if row.metric in ("tpot", "step_time"):
        return point.tpot_ms
    return point.tokens_per_s if row.metric == "output_tokens_per_s" else 1000 / point.tpot_ms


def _measured(axes: Axes, rows: Sequence[MeasuredPoint], metric: str, look: tuple[str, str, str]) -> None:
    """Stars in the strategy's colour; hollow where the row is doubtful."""
    for good in (True, False):
        part = [row for row in rows if (row.quality == "good") is good]
        if not part:
            continue
        axes.plot(
            [row.concurrency or 0.0 for row in part],
            [_value(row, metric) for row in part],
            **_star(look[0], good=good),
            zorder=6 if good else 5,
        )


def _star(colour: str, *, good: bool) -> dict[str, Any]:
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.7} if good else {"markeredgecolor": colour, "markeredgewidth": 1.2}
    return {"linestyle": "none", "marker": "*", "markersize": 13 if good else 11, "markerfacecolor": colour if good else "white", **edge}


def _remarks(comparison: Comparison) -> dict[str, Any]:
    """Legend entries that hold for every strategy: the band, measured points, queued points."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    if comparison.anything_fits:
        found["p10 to p90"] = Patch(facecolor=GREY, alpha=0.25)
    rows = [row for row in comparison.measured if row.predicted is not None and row.quality != "unreliable"]
    if any(row.quality == "good" for row in rows):
        found["measured"] = Line2D([], [], **_star(GREY, good=True))
    if any(row.quality != "good" for row in rows):
        found["measured, doubtful"] = Line2D([], [], **_star(GREY, good=False))
    if any(p.queued and p.fits for p in comparison.points):
        found["requests queue"] = Line2D([], [], **_RING)
    return found


def _value(row: MeasuredPoint, metric: str) -> float:
    """The row in the panel's metric: ms per token of one request, or tokens/s of the whole box."""
    users = row.concurrency or 1.0
    if row.metric in ("tpot", "step_time"):
        tpot = row.value
    else:
        tpot = 1000 / row.value if row.metric == "user_tokens_per_s" else 1000 * users / row.value
    return tpot if metric == "tpot_ms" else 1000 * users / tpot


def _dress(axes: Axes, comparison: Comparison, metric: str, context: int | None) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    shown = comparison.concurrencies
    step = -(-len(shown) // 12)
    ticks = sorted(shown)[::step]
    axes.xaxis.set_major_locator(FixedLocator([float(c) for c in ticks]))
    axes.xaxis.set_major_formatter(FixedFormatter([str(c) for c in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    what = "Time per token of one request (lower is better)" if metric == "tpot_ms" else "Output of the whole box (higher is better)"
    axes.set_title(what + ("" if context is None else f", context {context}"), fontsize=10, color=INK, loc="left")
    axes.set_ylabel("ms per token" if metric == "tpot_ms" else "tokens/s", fontsize=9)
    axes.set_xlabel("concurrency (requests in decode)", fontsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _title(comparison: Comparison, contexts: int) -> str:
    model = drawable(comparison.titles.get("model", ""), comparison.model)
    box = drawable(comparison.titles.get("topology", ""), comparison.topology)
    more = len(comparison.contexts) - contexts
    context = (
        f", context {comparison.contexts[0]}" if len(comparison.contexts) == 1 else f" ({more} more contexts not drawn)" if more else ""
    )
    ccl = f"{comparison.runtime}, {comparison.ccl}" + "".join(f" {key}={value}" for key, value in comparison.env.items())
    return f"Decode: {model} on {box}\n{textwrap.shorten(clean(ccl), _LONG, placeholder=' ...')}, {comparison.launch}{context}"


def drawable(title: str, name: str) -> str:
    """``title`` on one line of bounded length; ``name`` when there is none or the font lacks letters of it."""
    line = textwrap.shorten(clean(title), _LONG, placeholder=" ...")
    return line if line and _font_has(line) else name


def _font_has(text: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return all(font.get_char_index(ord(letter)) for letter in text)
