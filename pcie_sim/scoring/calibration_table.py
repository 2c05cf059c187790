"""``validation/CALIBRATION.md`` from the figures of :mod:`pcie_sim.scoring.calibration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _head(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def percent(value: float | None) -> str:
    """A share in percent; ``-`` where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def verdict(value: float, bar: float) -> str:
    """Whether a figure is within its bar."""
    return "reached" if value <= bar else "**not reached**"


def table(found: Mapping[str, Any], bars: Mapping[str, float], coverage: tuple[float, float]) -> str:
    """The file's text."""
    lines = [
        "# Calibration: what a fit to a box's own measurements predicts",
        "",
        "Made by `python -m pcie_sim.scoring.calibration` from the sets of this folder (`calibration-machines.yaml` says which); do not",
        "edit. Errors are |predicted / measured - 1| over points, out-of-place times. No prediction of a box uses a profile made from it:",
        "priors come from the other boxes. What is not fitted (the library's own choices, thread and buffer rules, latencies of chips) is",
        "the catalog's. *Constants alone* is the cost model without what its misfit teaches. Whoever asks inside a measured curve gets the",
        "curve itself, so the figure that tells what a calibration is worth between the points is *each size left out*.",
        "",
        *_bars(found, bars, coverage),
        *_section(found, "all", "Fits to everything that was measured: the constants alone"),
        *_section(found, "left_out", "The same, each size predicted from all others", intervals=True),
        *_section(found, "rings", "From AllReduce alone to AllGather and ReduceScatter", plain="(AllReduce + base) / 2", intervals=True),
        *_section(found, "exchange", "From AllReduce alone to All-to-All", intervals=True),
        *_section(found, "ranks", "From 2 and 8 ranks to 4", plain="geometric mean", intervals=True),
        *_section(found, "send_recv", "From AllReduce to send/recv, both in a CUDA graph", plain="AllReduce's own time", intervals=True),
        *_floors(found),
        *_profiles(found),
    ]
    return "\n".join(lines).rstrip() + "\n"


def bar_values(found: Mapping[str, Any]) -> dict[str, float]:
    """The measured figure behind each bar."""
    scores = found["scores"]
    values: dict[str, float] = {}
    for bar, key in (
        ("all ops", "all"),
        ("half-precision tables of two hosts", "half"),
        ("AllGather and ReduceScatter", "rings"),
        ("All-to-All", "exchange"),
        ("send/recv", "send_recv"),
    ):
        pooled = scores[key]["all"]
        if pooled is not None:
            values[f"{bar}, median"], values[f"{bar}, p90"] = pooled["median"], pooled["p90"]
    exchange = [row["median"] for row in scores["ranks"]["machines"] if row["machine"].endswith("all_to_all")]
    if exchange:
        values["All-to-All, 2 and 8 ranks -> 4, median"] = max(exchange)
    values["seconds of a full 8-GPU set"] = found["slowest_s"]
    return values


def _bars(found: Mapping[str, Any], bars: Mapping[str, float], coverage: tuple[float, float]) -> list[str]:
    values = bar_values(found)
    lines = ["## Bars", "", *_head("what", "measured", "bar", "")]
    for name, bar in bars.items():
        value = values.get(name)
        if value is None:
            lines.append(_line(name, "not measured", bar, ""))
        elif name.startswith("seconds"):
            lines.append(_line(name, f"{value:.1f} s", f"{bar:.0f} s", verdict(value, bar)))
        else:
            lines.append(_line(name, percent(value), percent(bar), verdict(value, bar)))
    ranks = found["scores"]["ranks"]
    if ranks["all"] is not None:
        own, plain = ranks["all"]["median"], ranks["plain"]["median"]
        better = "reached" if own < plain else "**not reached**"
        lines.append(_line("all ops, 2 and 8 ranks -> 4, median", percent(own), f"below the geometric mean's {percent(plain)}", better))
    inside = found["coverage"]["all"]
    honest = "reached" if coverage[0] <= inside <= coverage[1] else "**not reached**"
    points = found["coverage"]["points"]
    lines.append(
        _line(f"left-out points inside p10-p90 ({points} points)", percent(inside), "about 80 %", honest),
    )
    lines.append(
        _line("... of them sizes left out of full fits", percent(found["coverage"]["left_out_sizes"]), "about 80 %", ""),
    )
    return [*lines, ""]


def _section(found: Mapping[str, Any], key: str, title: str, *, plain: str | None = None, intervals: bool = False) -> list[str]:
    score = found["scores"][key]
    if score["all"] is None:
        return [f"## {title}", "", "No machine with such measurements.", ""]
    heads = ["machine", "points", "median", "p90", "bias"]
    heads += ["inside p10-p90"] if intervals else []
    heads += [f"{plain}: median", "p90"] if plain else []
    lines = [f"## {title}", "", *_head(*heads)]
    for row in [*score["machines"], {"machine": "**all points**", **score["all"], **_plain(score)}]:
        cells = [row["machine"], row["points"], percent(row["median"]), percent(row["p90"]), f"{100 * row['bias']:+.1f} %"]
        cells += [percent(row["coverage"])] if intervals else []
        cells += [percent(row.get("plain_median")), percent(row.get("plain_p90"))] if plain else []
        lines.append(_line(*cells))
    return [*lines, ""]


def _plain(score: Mapping[str, Any]) -> dict[str, Any]:
    plain = score["plain"]
    return {"plain_median": plain["median"], "plain_p90": plain["p90"]} if plain else {}


def _floors(found: Mapping[str, Any]) -> list[str]:
    floors = found["floors"]
    if not floors:
        return []
    inside = "inside" if floors["graph_p10_us"] <= floors["measured_graph_us"] <= floors["graph_p90_us"] else "outside"
    return [
        "## The CPU's issue floor and the wire",
        "",
        "Two H200, host-staged, one process: the eager sweep of AllReduce calibrated alone, without the one in a CUDA graph. Its 1 KiB "
        "AllReduce",
        f"takes {floors['eager_us']:.1f} us launched eagerly; predicted in a graph: {floors['graph_us']:.1f} us "
        f"(p10-p90 {floors['graph_p10_us']:.1f} to {floors['graph_p90_us']:.1f}), measured there: {floors['measured_graph_us']:.1f} us,",
        f"{inside} its spread.",
        "",
    ]


def _profiles(found: Mapping[str, Any]) -> list[str]:
    lines = ["## Profiles", "", "`catalog/profiles/`, one per public box, each calibrated on its sets without a prior.", ""]
    lines += _head("profile", "GPUs", "transport", "points", "curves", "constants told", "")
    for row in found["profiles"]:
        note = "" if row["healthy"] else "looks sick: teaches others nothing"
        lines.append(_line(row["name"], row["gpu"], row["transport"], row["points"], ", ".join(row["ops"]), len(row["fitted"]), note))
    return [*lines, ""]
