"""The report and the picture of a calibration, from a hand-built result: completeness, figures in line, marks, widths."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pcie_sim.errors import InputError
from pcie_sim.report.calibration import WIDE, calibration_blocks
from pcie_sim.report.calibration_plot import calibration_figure, save_calibration_plot
from pcie_sim.report.console import show
from pcie_sim.results.calibration import CalibrationReport, Crosscheck, ErrorStats, FittedPoint
from pcie_sim.specs.calibration import CalibrationSpec

HASH = "0" * 64
SIZES = (1024, 65536, 4 << 20)
CURVES = (("all_reduce", 8, "graph"), ("all_reduce", 8, "eager"), ("reduce_scatter", 4, "threads"))
REGIMES = {"graph": ("LL", "LL128", "Simple"), "eager": ("floor", "LL", "Simple"), "threads": ("LL", "LL", "Simple")}


def parameter(name: str, value: float, unit: str, stderr: float | None, **changes: Any) -> dict[str, Any]:
    fields = {"name": name, "value": value, "unit": unit, "stderr": stderr, "evidence": "fitted", "prior": value * 2, "prior_stderr": value}
    return {**fields, "note": f"what {name} is", **changes}


def curve(op: str, ranks: int, launch: str | None, **changes: Any) -> dict[str, Any]:
    fields = {"op": op, "ranks": ranks, "launch": launch, "ccl": "nccl 2.28", "bytes": SIZES, "time_us": (20, 40, 900), "sigma_log": 0.02}
    return {**fields, **changes}


def spec(**changes: Any) -> CalibrationSpec:
    fields: dict[str, Any] = {
        "schema": "pcie-sim/calibration/1",
        "name": "mine",
        "topology": {"name": "box", "gpus": 8, "gpu": "8x rtx-4090"},
        "prior": "near",
        "prior_weights": {"near": 0.8, "far": 0.1},
        "inputs": [{"file": f"{op}-{launch}.log", "sha256": HASH, "op": op, "points": 6, "used": 3} for op, _, launch in CURVES],
        "parameters": [
            parameter("base.all_reduce", 6.5771e-6, "s", 3.07e-7),
            parameter("channel.shm", 18.13e9, "B/s", 7.0757e9, at_bound=True),
            parameter("wire.LL", 0.004, "1", None),
            parameter("peer_issue", 5e-7, "s", 3.5e-7, evidence="assumed"),
            parameter("floor", 4e-6, "s", 2e-6, evidence="nominal"),
        ],
        "curves": [curve(*one) for one in CURVES],
    }
    return CalibrationSpec.model_validate({**fields, **changes})


def points(curves: tuple[tuple[str, int, str | None], ...] = CURVES) -> tuple[FittedPoint, ...]:
    """The constants are 10 % low everywhere; each point comes out 4 % high from all others, with p10 and p90 at 20 % about it."""
    found = []
    for index, (op, ranks, launch) in enumerate(curves):
        for size, regime in zip(SIZES, REGIMES[launch or "threads"], strict=True):
            time = (20 + size / 5e3) * 1e-6
            outlier = index == 0 and size == 65536
            left = time * (2.0 if outlier else 1.04)
            found.append(FittedPoint(op, ranks, launch, size, time, 0.9 * time, left, left / 1.2, left * 1.2, regime, outlier, index))
    return tuple(found)


def report(**changes: Any) -> CalibrationReport:
    stats = ErrorStats(3, 0.026, 0.1234, -0.0002)
    fields: dict[str, Any] = {
        "calibration": spec(),
        "topology": "box",
        "points": points(),
        "by_op": {"all_reduce": replace(stats, points=6), "reduce_scatter": stats, "copy": ErrorStats(2, 0.01, 0.02, 0.01)},
        "by_regime": {"LL": replace(stats, points=4), "floor": ErrorStats(1, 0.05, 0.05, 0.05)},
        "overall": replace(stats, points=9),
        "answered": ErrorStats(9, 0.011, 0.04, 0.002, 0.83),
        "crosschecks": (
            Crosscheck("sizes", "each size in turn", ErrorStats(9, 0.011, 0.04, 0.002, 0.83)),
            Crosscheck("op", "all_reduce", ErrorStats(6, 0.07, 0.2, -0.07, 1.0)),
            Crosscheck("ranks", "8 ranks", None, "could not be estimated: only 8 ranks were measured"),
        ),
        "correlations": (("base.all_reduce", "wire.LL", -0.91), ("wire.LL", "channel.shm", 0.1)),
        "unidentified": (("peer_issue", "no send was measured"),),
        "at_bounds": ("channel.shm",),
        "unused": ("x.log: rows marked unreliable: 3 rows",),
        "warnings": (
            "8-GPU all_reduce (graph): far from what all other points say at 64 KiB (-50 %); kept as measured",
            "one step is 3.0 times above what boxes like this one show: it looks sick",
        ),
        "notes": ("prior: profiles of other boxes by likeness: near 0.8, far 0.1", "3 points are held up by the CPU's launches"),
        "fit_s": 0.4321,
        "message": "converged",
        "titles": {"topology": "A box of eight"},
    }
    return CalibrationReport(**{**fields, **changes})


def text_of(found: CalibrationReport, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    show(calibration_blocks(found, width=width), stream)
    return stream.getvalue()


HEAD = """\
Calibration of A box of eight
  name       mine
  box        box: 8x rtx-4090
  read from  all_reduce-graph.log, all_reduce-eager.log, reduce_scatter-threads.log
  measured   9 points on 3 curves, 1 KiB to 4 MiB
  prior      2 profiles by likeness: near 0.80, far 0.10
  constants  off by 2.6% (median), 12.3% (90th percentile)
  left out   off by 1.1% (median), 4.0% (90th percentile) where each point is predicted from all others; p10 to p90
             holds 83% of them (meant: 80%)
  fitted in  0.43 s
"""
CURVE_TABLE = """\
 op               ranks   launch    points   sizes               constants      left out
-----------------------------------------------------------------------------------------
 all_reduce           8   graph          3   1 KiB to 4 MiB   10.0 / 10.0%   4.0 / 80.8%
 all_reduce           8   eager          3   1 KiB to 4 MiB   10.0 / 10.0%   4.0 /  4.0%
 reduce_scatter       4   threads        3   1 KiB to 4 MiB   10.0 / 10.0%   4.0 /  4.0%
"""
"""80.8 % is the 0.9 quantile of 4, 4 and 100 %."""
ERRORS = """\
 by                        points   median   90th pct    bias
--------------------------------------------------------------
 op       all_reduce            6     2.6%      12.3%   +0.0%
          reduce_scatter        3     2.6%      12.3%   +0.0%
          single copies         2     1.0%       2.0%   +1.0%
 regime   LL                    4     2.6%      12.3%   +0.0%
          CPU floor             1     5.0%       5.0%   +5.0%
 all                            9     2.6%      12.3%   +0.0%
"""
LEFT_OUT = """\
 left out                points   median   90th pct    bias   in p10-p90
-------------------------------------------------------------------------
 one size   in turn           9     1.1%       4.0%   +0.2%          83%
 one op     all_reduce        6     7.0%      20.0%   -7.0%         100%
  - one number of ranks: could not be estimated: only 8 ranks were measured
"""
PARAMETERS = """\
 parameter           value      +-   unit    prior       +-   evidence   what it is
-------------------------------------------------------------------------------------------------
 base.all_reduce     6.577   0.307   us     13.154    6.577   fitted     what base.all_reduce is
 channel.shm       18.130!   7.076   GB/s   36.260   18.130   fitted     what channel.shm is
 wire.LL             0.004       ?           0.008    0.004   fitted     what wire.LL is
  ! at its bound: the measurements ask for more than the model allows
  The measurements do not tell (they keep their prior): peer_issue.
  Nothing that was measured depends on: floor.
  Strongest correlations of their errors: base.all_reduce and wire.LL -0.91.
"""
OUTLIERS = """\
Outliers (1): kept as measured, weighed down in the fit
 curve                        size   measured   from all others
-----------------------------------------------------------------------
 8-GPU all_reduce (graph)   64 KiB   33.11 us          66.21 us   -50%

Warnings (1)
  - one step is 3.0 times above what boxes like this one show: it looks sick

Read and not used
  - x.log: rows marked unreliable: 3 rows

Notes
  - 3 points are held up by the CPU's launches
"""
NARROW = """\
 curve                        pts   sizes               constants      left out
--------------------------------------------------------------------------------
 8-GPU all_reduce (graph)       3   1 KiB to 4 MiB   10.0 / 10.0%   4.0 / 80.8%
 8-GPU all_reduce (eager)       3   1 KiB to 4 MiB   10.0 / 10.0%   4.0 /  4.0%
 4-GPU reduce_scatter           3   1 KiB to 4 MiB   10.0 / 10.0%   4.0 /  4.0%
 (threads)
"""
NARROW_PARAMETERS = """\
 parameter           value      +-   unit    prior   evidence
--------------------------------------------------------------
 base.all_reduce     6.577   0.307   us     13.154   fitted
"""
"""Looked at once, then kept: decimals in line, marks behind them."""


def test_the_report_as_people_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(report(), 120, monkeypatch)
    assert text.startswith(HEAD)
    assert text.endswith(OUTLIERS)
    for part in (CURVE_TABLE, ERRORS, LEFT_OUT, PARAMETERS):
        assert part in text
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_narrow_screen_loses_columns_and_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(report(), 80, monkeypatch)
    for part in (NARROW, ERRORS, NARROW_PARAMETERS):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    assert "reduce_scatter" in text


@pytest.mark.parametrize("width", [80, WIDE - 1, WIDE, 120])
def test_long_names_fit_too(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [curve("reduce_scatter", 16, "threads"), curve("reduce_scatter", 16, "threads", p2p="off")]
    names = ("base_ratio.reduce_scatter", "floor_send_ratio")
    long = spec(curves=curves, parameters=[parameter(name, 1.0, "1", 0.1, note="many words " * 12) for name in names])
    text = text_of(report(calibration=long, at_bounds=(), points=points((("reduce_scatter", 16, "threads"),) * 2)), width, monkeypatch)
    assert max(map(len, text.splitlines())) <= width
    assert "p2p off" in text
    for name in names:
        assert name in text


def test_what_tells_curves_apart_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all curves share is not: the library's version here."""
    curves = [curve("all_reduce", 8, None, env={"NCCL_PROTO": "LL"}), curve("all_reduce", 8, None, env={"NCCL_PROTO": "Simple"})]
    text = text_of(report(calibration=spec(curves=curves), points=points((("all_reduce", 8, None),) * 2)), 120, monkeypatch)
    rows = [line.split() for line in text.splitlines() if line.startswith(" all_reduce")]
    assert [(row[2], row[-1]) for row in rows[:2]] == [("?", "PROTO=LL"), ("?", "PROTO=Simple")]
    assert "nccl 2.28" not in text


def test_without_a_prior_or_curves_or_anything_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = spec(curves=[], prior="none", prior_weights={}, parameters=[parameter("floor", 4e-6, "s", 2e-6, evidence="nominal")])
    text = text_of(report(calibration=bare, points=(), at_bounds=(), correlations=(), warnings=(), unused=()), 120, monkeypatch)
    assert "none: start values alone" in text
    assert "the measurements told nothing beyond the prior" in text
    for word in ("Curves", "Outliers", "Warnings", "Read and not used", "correlations"):
        assert word not in text


def test_a_control_character_of_a_file_does_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(report(unused=("a\x1b[31m.log: 3 rows",), warnings=("\x9bred",)), 120, monkeypatch)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "a\\x1b[31m.log" in text


def test_panels_points_fit_band_outliers_and_protocols() -> None:
    figure = calibration_figure(report())
    first, second = (axes for axes in figure.axes if axes.get_visible())
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["all_reduce, 8 GPUs", "reduce_scatter, 4 GPUs"]
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    assert (first.get_xlabel(), first.get_ylabel()) == ("message size (as nccl-tests counts it)", "time per call")
    measured = [list(line.get_ydata()) for line in first.lines if line.get_linestyle() == "None" and len(line.get_xdata()) == 3]
    fitted = [list(line.get_ydata()) for line in first.lines if line.get_linestyle() == "-"]
    assert measured[0] == pytest.approx([(20 + size / 5e3) * 1e-6 for size in SIZES])
    assert fitted[0] == pytest.approx([0.9 * time for time in measured[0]])
    assert len(first.collections) == 2, "a band for each curve"
    (ring,) = [line for line in first.lines if line.get_markerfacecolor() == "none"]
    assert list(ring.get_xdata()) == [65536]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [
        "CUDA graph",
        "eager",
        "eager, own threads",
        "measured",
        "fitted constants",
        "p10 to p90, each point\nfrom all others",
        "outlier",
        "protocol LL",
        "protocol LL128",
        "protocol Simple",
        "CPU floor",
    ]
    (strips,) = first.child_axes
    assert [text.get_text() for text in strips.texts] == ["LL", "LL128", "Simple", "CPU floor", "LL", "Simple"]
    (alone,) = second.child_axes
    ends = [collection.get_paths()[0].get_extents() for collection in alone.collections]
    assert ends[0].x1 == pytest.approx(ends[1].x0) == pytest.approx((65536 * (4 << 20)) ** 0.5), (
        "half way between LL's last size and Simple's first"
    )
    assert "A box of eight" in figure.get_suptitle()
    assert "p10 to p90 holds 83% of them" in " ".join(figure.get_suptitle().split())


def overlaps(figure: Any) -> list[str]:
    """Pairs of visible texts (tick labels, titles, legend, strips) that overlap in the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    figure.savefig(io.BytesIO(), format="png", dpi=figure.dpi)
    renderer = canvas.get_renderer()
    texts = [figure._suptitle, *figure.legends[0].get_texts()]
    for axes in (axes for axes in figure.axes if axes.get_visible()):
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            texts += [axis.label, *(label for place, label in ticks if low <= place <= high)]
        texts += [axes._left_title, *(text for child in axes.child_axes for text in child.texts)]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
    return [f"{a!r} {b!r}" for i, (a, first) in enumerate(boxes) for b, second in boxes[i + 1 :] if first.overlaps(second)]


MANY = tuple(
    (op, ranks, launch) for op in ("all_reduce", "all_gather", "reduce_scatter") for ranks in (2, 4, 8) for launch in ("graph", "eager")
)


@pytest.mark.parametrize("curves", [CURVES[:1], CURVES, MANY], ids=["one", "three", "eighteen"])
@pytest.mark.parametrize(
    "title", ["A box of eight", "8x a card with a very long name behind switches of many ports, on two sockets, without peers " * 2]
)
def test_no_text_lies_on_another(curves: tuple[tuple[str, int, str | None], ...], title: str) -> None:
    found = report(calibration=spec(curves=[curve(*one) for one in curves]), points=points(curves), titles={"topology": title})
    assert overlaps(calibration_figure(found)) == []


def test_many_numbers_of_ranks_share_a_panel_and_more_curves_than_fit_are_told() -> None:
    figure = calibration_figure(report(calibration=spec(curves=[curve(*one) for one in MANY]), points=points(MANY)))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == ["all_reduce", "all_gather", "reduce_scatter"]
    assert figure.legends[0].get_texts()[0].get_text() == "2 GPUs, CUDA graph"
    eight = tuple(("all_reduce", 8, "graph") for _ in range(8))
    same = [curve(*one, env={"NCCL_BUFFSIZE": str(index)}) for index, one in enumerate(eight)]
    (axes,) = calibration_figure(report(calibration=spec(curves=same), points=points(eight))).axes
    assert axes.get_title(loc="left") == "all_reduce, 8 GPUs (2 more curves not drawn)"


@pytest.mark.parametrize("kind", ["png", "svg"])
@pytest.mark.parametrize("title", ["$x^2$", "\\u65e5", "a\x1b[31m", "long " * 800])
def test_any_title_can_be_drawn(kind: str, title: str, tmp_path: Path) -> None:
    held = spec(curves=[curve(*one, env={"NCCL_X": f"${index}$"}) for index, one in enumerate(CURVES)])
    path = save_calibration_plot(report(calibration=held, titles={"topology": title}), str(tmp_path / f"a.{kind}"))
    if kind == "svg":
        ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    else:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no times of collectives"):
        save_calibration_plot(report(points=()), str(tmp_path / "a.png"))
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        save_calibration_plot(report(), str(tmp_path / "a.gif"))
    assert not list(tmp_path.iterdir())
