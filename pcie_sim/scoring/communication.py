"""The score of communication predictions: ``python -m pcie_sim.scoring.communication [--fit] [--json]``.

Writes ``validation/COMMUNICATION.md``. ``--fit`` first fits the constants again, each time without the scored machine (about 10
minutes), and keeps them in ``validation/communication-fits.json``; without it the kept ones are used (seconds). ``--json`` prints the
figures instead of the table.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from pcie_sim import catalog
from pcie_sim.errors import NoDataError
from pcie_sim.scoring import a2a, collective, contention, one_shot
from pcie_sim.scoring.collective import TimeScore
from pcie_sim.scoring.contention import CopyScore

FITS = "communication-fits.json"
TABLE = "COMMUNICATION.md"
BARS = {"contended": 0.10, "all pairs": 0.20, "all_reduce": 0.25, "small": 0.30, "crossover": 2.0}
SMALL = (4 << 10, 16 << 10)


def _rounded(constants: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in sorted(constants.items())}


def make_fits() -> dict[str, Any]:
    """All constants: fitted to everything, and without each machine in turn."""
    copies, times = contention.measured_copies(), collective.measured_collectives()
    without = collective.leave_one_out(times, workers=os.cpu_count() or 1)
    return {
        "copies": {
            "all": _rounded(contention.fit(copies)),
            "left_out": {machine: _rounded(found) for machine, found in contention.leave_one_out(copies).items()},
        },
        "collectives": {
            "all": _rounded(collective.fit(times)),
            "left_out": {machine: _rounded(found) for machine, found in without.items()},
            "without_tables": _rounded(collective.fit(times, without=a2a.SET)),
        },
    }


def load_fits() -> dict[str, Any]:
    """The kept constants.

    Raises:
        NoDataError: there are none yet.
    """
    path = catalog.shipped_dir("validation") / FITS
    if not path.exists():
        raise NoDataError(f"{path}: no fitted constants yet; run python -m pcie_sim.scoring.communication --fit")
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))


def median_error(scores: Iterable[CopyScore | TimeScore]) -> float:
    """Median of the absolute relative errors."""
    return statistics.median(abs(item.error) for item in scores)


def figures(fits: dict[str, Any]) -> dict[str, Any]:
    """Every score as plain data."""
    left_out = fits["copies"]["left_out"]
    copies = contention.measured_copies()
    fitted, shipped = contention.score(copies, left_out), contention.score(copies)
    groups = {}
    for group in ("contended", "all pairs", "apart", "staged", "fault"):
        rows = [item for item in fitted if item.group == group]
        groups[group] = {
            "rows": len(rows),
            "boxes": len({item.case.machine for item in rows}),
            "median": median_error(rows),
            "worst": max(abs(item.error) for item in rows),
            "shipped": median_error(item for item in shipped if item.group == group),
        }
    library = collective.measured_collectives()
    times = collective.score(library, fits["collectives"]["left_out"])
    now = collective.score(library)
    return {
        "copies": groups,
        "copy_rows": [_copy_row(item) for item in fitted if item.group in ("contended", "all pairs", "fault")],
        "all_reduce": _all_reduce(times, now),
        "small": [
            _small_row(item) for item in times if item.case.row.ranks == 8 and SMALL[0] <= cast(int, item.case.row.bytes) <= SMALL[1]
        ],
        "crossovers": [
            {**vars(item), "factor": item.factor} for item in one_shot.crossovers(left_out, fits["collectives"]["left_out"], library)
        ],
        "all_to_all": a2a.against_all_reduce(fits["collectives"]["without_tables"]),
        "inferred": a2a.on_inferred_tree(fits["collectives"]["without_tables"]),
        "constants": {"copies": fits["copies"]["all"], "collectives": fits["collectives"]["all"]},
    }


def _copy_row(item: CopyScore) -> dict[str, Any]:
    row = item.case.row
    return {
        "set": item.case.held.id,
        "group": item.group,
        "flows": len(row.flows),
        "access": row.access,
        "measured": item.case.value / 1e9,
        "predicted": item.predicted / 1e9,
        "error": item.error,
        "note": row.note or "",
    }


def _all_reduce(times: Sequence[TimeScore], now: Sequence[TimeScore]) -> dict[str, Any]:
    machines = list(dict.fromkeys(item.case.machine for item in times))
    by_machine = {
        name: {
            "rows": sum(item.case.machine == name for item in times),
            "ranks": sorted({cast(int, item.case.row.ranks) for item in times if item.case.machine == name}),
            "median": median_error(item for item in times if item.case.machine == name),
            "shipped": median_error(item for item in now if item.case.machine == name),
        }
        for name in machines
    }
    ranks = sorted({cast(int, item.case.row.ranks) for item in times})
    return {
        "rows": len(times),
        "median": median_error(times),
        "shipped": median_error(now),
        "machine_median": statistics.median(cast(float, item["median"]) for item in by_machine.values()),
        "by_transport": {
            kind: {"rows": sum(item.transport == kind for item in times), "median": median_error(i for i in times if i.transport == kind)}
            for kind in sorted({item.transport for item in times})
        },
        "by_ranks": {str(count): median_error(item for item in times if item.case.row.ranks == count) for count in ranks},
        "by_machine": by_machine,
    }


def _small_row(item: TimeScore) -> dict[str, Any]:
    return {
        "set": item.case.held.id,
        "arm": item.case.row.arm or "",
        "bytes": item.case.row.bytes,
        "measured": item.case.value * 1e6,
        "predicted": item.predicted * 1e6,
        "error": item.error,
        "explains": item.case.arm.residual or "",
    }


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _head(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def _verdict(value: float, bar: float) -> str:
    return "reached" if value <= bar else "**not reached**"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _size(value: float | None) -> str:
    return "none in range" if value is None else (f"{value / 1024:.3g} KiB" if value < 1 << 20 else f"{value / (1 << 20):.3g} MiB")


def table(found: dict[str, Any]) -> str:
    """``COMMUNICATION.md`` as text."""
    lines = ["# Communication: predictions against published measurements", ""]
    lines += [
        "Made by `python -m pcie_sim.scoring.communication` from the sets of this folder; do not edit. Every prediction of a machine",
        "uses constants fitted without any row of that machine (`--fit`); *shipped* is what the catalog's constants give, which saw it.",
        "Rows that served to find out how a box is wired are in the sets (`infers_tree`) and are not scored. What is not fitted (rates",
        "of single flows across sockets, what a collapsed uplink leaves, latencies, host memory) is the catalog's, some of it read from",
        "these boxes. The AllReduce fits also see the smallest messages of two hosts whose trees are not published, on stand-in trees.",
        "",
    ]
    return (
        "\n".join([*lines, *_summary(found), *_copies(found), *_times(found), *_kernels(found), *_exchange(found), *_constants(found)])
        + "\n"
    )


def _summary(found: dict[str, Any]) -> list[str]:
    lines = ["## Bars", "", *_head("what", "measured", "bar", "")]
    for group in ("contended", "all pairs"):
        value = found["copies"][group]["median"]
        lines.append(_line(f"copies, {group}: median error", _percent(value), _percent(BARS[group]), _verdict(value, BARS[group])))
    value = found["all_reduce"]["median"]
    lines.append(
        _line(
            "AllReduce, zero calibration: median error", _percent(value), _percent(BARS["all_reduce"]), _verdict(value, BARS["all_reduce"])
        )
    )
    far = [row for row in found["small"] if abs(row["error"]) > BARS["small"]]
    named = all(row["explains"] for row in far)
    lines.append(
        _line(
            "AllReduce, 8 ranks, 4 to 16 KiB: rows beyond 30 %",
            f"{len(far)} of {len(found['small'])}",
            "each named",
            "named below" if named else "**not named**",
        )
    )
    good = [row for row in found["crossovers"] if row["factor"] is not None and row["factor"] <= BARS["crossover"]]
    count = len(found["crossovers"])
    lines.append(
        _line(
            "one-shot against NCCL: runs within a factor 2",
            f"{len(good)} of {count}",
            f"{count} of {count}",
            "reached" if len(good) == count else "**not reached**",
        )
    )
    trees = found["all_to_all"]["trees"]
    holds = [row for row in trees if row["faster_below"] and row["slower_above"]]
    lines.append(
        _line(
            "All-to-All faster below 1 MiB, less bus bandwidth above",
            f"{len(holds)} of {len(trees)} trees",
            "as measured",
            "reached" if len(holds) == len(trees) else "on most" if 2 * len(holds) > len(trees) else "**not reached**",
        )
    )
    return [*lines, ""]


def _copies(found: dict[str, Any]) -> list[str]:
    lines = ["## Concurrent copies", "", *_head("rows", "count", "boxes", "median error", "worst", "shipped constants")]
    names = {"apart": "share no link", "staged": "through host memory", "fault": "posted-write collapse in force"}
    for group, item in found["copies"].items():
        lines.append(
            _line(
                names.get(group, group),
                item["rows"],
                item["boxes"],
                _percent(item["median"]),
                _percent(item["worst"]),
                _percent(item["shipped"]),
            )
        )
    lines += ["", "Rows that share links, GB/s:", "", *_head("set", "rows", "flows", "access", "measured", "predicted", "error", "note")]
    for row in found["copy_rows"]:
        lines.append(
            _line(
                row["set"],
                row["group"],
                row["flows"],
                row["access"],
                f"{row['measured']:.1f}",
                f"{row['predicted']:.1f}",
                f"{100 * row['error']:+.0f} %",
                row["note"],
            )
        )
    return [*lines, ""]


def _times(found: dict[str, Any]) -> list[str]:
    item = found["all_reduce"]
    lines = ["## AllReduce, 512 B to 512 MiB", ""]
    medians = ", ".join(
        (
            f"{item['rows']} rows; median error {_percent(item['median'])}",
            f"median of the machines' medians {_percent(item['machine_median'])}",
            f"shipped constants {_percent(item['shipped'])}",
        )
    )
    lines += [f"{medians}.", ""]
    lines += ["By ranks: " + ", ".join(f"{ranks}: {_percent(value)}" for ranks, value in item["by_ranks"].items()) + ".", ""]
    kinds = [f"{kind}: {_percent(row['median'])} ({row['rows']} rows)" for kind, row in item["by_transport"].items()]
    lines += ["By transport: " + ", ".join(kinds) + ".", ""]
    lines += _head("machine", "ranks", "rows", "median error", "shipped constants")
    for name, row in item["by_machine"].items():
        lines.append(_line(name, ", ".join(map(str, row["ranks"])), row["rows"], _percent(row["median"]), _percent(row["shipped"])))
    lines += [
        "",
        "Eight ranks, 4 to 16 KiB, us:",
        "",
        *_head("set", "arm", "bytes", "measured", "predicted", "error", "what would explain it"),
    ]
    for row in found["small"]:
        why = row["explains"] if abs(row["error"]) > BARS["small"] else ""
        lines.append(
            _line(
                row["set"],
                row["arm"],
                row["bytes"],
                f"{row['measured']:.1f}",
                f"{row['predicted']:.1f}",
                f"{100 * row['error']:+.0f} %",
                why,
            )
        )
    return [*lines, ""]


def _kernels(found: dict[str, Any]) -> list[str]:
    lines = [
        "## One-shot kernels against NCCL",
        "",
        "Size from which NCCL is faster. The kernel is taken to write its message to all peers at once.",
        "",
    ]
    lines += _head("set", "arm", "ranks", "measured", "predicted", "factor")
    for row in found["crossovers"]:
        factor = "-" if row["factor"] is None else f"{row['factor']:.2f}"
        lines.append(_line(row["set_id"], row["arm"], row["ranks"], _size(row["measured"]), _size(row["predicted"]), factor))
    return [*lines, ""]


def _exchange(found: dict[str, Any]) -> list[str]:
    item = found["all_to_all"]
    lines = ["## All-to-All against AllReduce, 8 ranks", ""]
    faster, slower = ("yes" if item[key] else "no" for key in ("faster_below", "slower_above"))
    lines += [
        f"Measured ({item['set']}): All-to-All faster at every size below 1 MiB: {faster};",
        f"less bus bandwidth at every size above: {slower}.",
        "The tree of that host is not published: predictions on the trees of other boxes, with constants fitted without its tables (but",
        "All-to-All's own base and cost per peer, which come from there).",
        "",
    ]
    lines += _head("tree", "NCCL_P2P_LEVEL", "faster below", "less bus bandwidth above")
    for row in item["trees"]:
        lines.append(_line(row["topology"], row["level"], "yes" if row["faster_below"] else "no", "yes" if row["slower_above"] else "no"))
    return [*lines, "", *_inferred(found)]


def _inferred(found: dict[str, Any]) -> list[str]:
    lines = ["## The same host on the tree inferred for it", ""]
    lines += [
        "Two Sapphire Rapids sockets with four switches: the layout whose protocol changes at the sizes where the host's tables do, for 2,",
        "4 and 8 ranks (`topologies/rtx-pro-6000-8x-4switch-2xeon.yaml`). 512 B to 512 MiB, constants fitted without these tables.",
        "",
    ]
    lines += _head("op", "ranks", "rows", "median error", "worst")
    for row in found["inferred"]:
        lines.append(_line(row["op"], row["ranks"], row["rows"], _percent(row["median"]), _percent(row["worst"])))
    return [*lines, ""]


def _constants(found: dict[str, Any]) -> list[str]:
    lines = ["## Constants fitted to all rows", "", *_head("name", "value")]
    for group in ("copies", "collectives"):
        lines += [_line(name, f"{value:.4g}") for name, value in found["constants"][group].items()]
    return lines


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(f"{__doc__}")
        return 0
    unknown = [item for item in arguments if item not in ("--fit", "--json")]
    if unknown:
        sys.stderr.write(f"{unknown[0]}: use --fit, --json or nothing\n")
        return 2
    folder = catalog.shipped_dir("validation")
    if "--fit" in arguments:
        (folder / FITS).write_text(json.dumps(make_fits(), indent=1) + "\n", encoding="utf-8")
    found = figures(load_fits())
    if "--json" in arguments:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return 0
    text = table(found)
    Path(folder / TABLE).write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
