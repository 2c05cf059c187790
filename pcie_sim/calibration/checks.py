"""How far a fit may be trusted: errors by op and regime, what was left out in turn, what the data cannot tell, what looks sick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pcie_sim.calibration.constants import Z80, constants
from pcie_sim.calibration.fit import Fit
from pcie_sim.calibration.model import COPY, FLOOR, state_text
from pcie_sim.calibration.prior import Belief, Prior
from pcie_sim.results.calibration import CalibrationReport, Crosscheck, ErrorStats, FittedPoint
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.ops import Array
from pcie_sim.topology import Topology
from pcie_sim.units import format_bytes, format_time

SICK = 2.5
"""Standard deviations of the prior beyond which a constant looks like a sick box ..."""
SICK_FACTOR = 1.7
"""... and at least so many times worse."""
SLOW, SLOW_FACTOR = 1.5, 2.0
"""A curve so many standard deviations, and so many times, slower than the prior expects looks sick."""
SLOW_SHIPPED = 1.6
"""... but only if the catalog's own constants, which know its GPUs and parts, have it so many times faster."""
FAST_FACTOR = 2.0
"""A curve so many times faster than the prior expects is of another box, or the file's links are taken for less than they are."""
GROSS, LEAST_COVERAGE, MANY = 0.3, 0.5, 8
"""Median error, and share of left-out points inside p10-p90, at which a fit of so many points is called bad."""
DISAGREE = 0.12
"""Median spread of ln(time) of repeated sizes from which runs are said to disagree."""
NARROWED = 0.85
"""A standard error below this share of its prior's means that the measurements told something."""
_DOCTOR = "for the cause: pcie-sim topology doctor with the same files"


def stats(error: Array, sigma: Array | None = None) -> ErrorStats:
    """Of ln(measured / predicted)."""
    relative = np.expm1(-error)
    size = np.abs(relative)
    covered = None if sigma is None else float(np.mean(np.abs(error) <= Z80 * sigma))
    return ErrorStats(len(error), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(relative)), covered)


def report(
    box: Topology, done: Fit, prior: Prior, calibration: CalibrationSpec, unused: Sequence[str], shipped: Array | None = None
) -> CalibrationReport:
    """The report of a fit; its warnings also go into the calibration, and what must be known of the launches.

    Args:
        shipped: ln(seconds) of every point by the catalog's own constants.
    """
    rows, timed = done.rows, np.array([op != COPY for op in done.rows.op])
    sick = tuple(_sick(done, prior.beliefs, shipped))
    warnings = (*sick, *([_DOCTOR] if sick else []), *_misfits(done), *_disagreeing(done), *_bounds(done), *_outliers(done))
    state = calibration.topology.model_copy(update={"healthy": not sick})
    notes = tuple(_launches(done))
    calibration = calibration.model_copy(update={"warnings": warnings, "topology": state, "notes": (*calibration.notes, *notes)})
    by_op = {op: stats(done.error[_are(rows.op, op)]) for op in dict.fromkeys(rows.op)}
    by_regime = {name: stats(done.error[_are(rows.regime, name)]) for name in dict.fromkeys(rows.regime)}
    return CalibrationReport(
        calibration=calibration,
        topology=box.name,
        points=_points(done),
        by_op=by_op,
        by_regime=by_regime,
        overall=stats(done.error[timed]) if timed.any() else stats(done.error),
        answered=stats(done.left_out_error, done.left_out_sigma),
        crosschecks=tuple(_crosschecks(done)),
        correlations=tuple(_correlations(done)),
        unidentified=tuple(_unidentified(done)),
        at_bounds=tuple(name for name, at in zip(done.model.names, done.at_bound, strict=True) if at),
        unused=tuple(unused),
        warnings=warnings,
        notes=(*_notes(prior), *notes),
        fit_s=done.seconds,
        message=done.message,
        titles={"topology": box.title},
    )


def _are(words: Sequence[str], word: str) -> np.ndarray:
    return np.array([item == word for item in words])


def _points(done: Fit) -> tuple[FittedPoint, ...]:
    rows = done.rows
    measured = np.exp(done.model.measured)
    fitted = measured * np.exp(-done.error)
    left = measured * np.exp(-done.left_out_error)
    spread = np.exp(Z80 * done.left_out_sigma)
    launch = [done.model.curves[index].launch if index >= 0 else None for index in rows.curve]
    return tuple(
        FittedPoint(
            op=rows.op[i],
            ranks=int(rows.ranks[i]),
            launch=launch[i],
            bytes=int(rows.size[i]),
            measured_s=float(measured[i]),
            fitted_s=float(fitted[i]),
            left_out_s=float(left[i]),
            left_out_p10_s=float(left[i] / spread[i]),
            left_out_p90_s=float(left[i] * spread[i]),
            regime=rows.regime[i],
            outlier=bool(done.outliers[i]),
            curve=int(rows.curve[i]),
        )
        for i in range(len(rows))
        if rows.op[i] != COPY
    )


def _crosschecks(done: Fit) -> Iterable[Crosscheck]:
    rows = done.rows
    yield Crosscheck("sizes", "each size in turn", stats(done.left_out_error, done.left_out_sigma))
    ranks = [COPY if op == COPY else f"{int(count)} ranks" for op, count in zip(rows.op, rows.ranks, strict=True)]
    for what, names in (("op", rows.op), ("ranks", ranks)):
        groups = [name for name in dict.fromkeys(names) if name != COPY]
        if len(groups) < 2:
            only = groups[0] if groups else "copies"
            yield Crosscheck(what, only, None, f"could not be estimated: nothing but {only} was measured")
            continue
        for name in groups:
            block = np.array([item == name for item in names])
            yield Crosscheck(what, name, stats(*done.without(block)))


def _correlations(done: Fit) -> list[tuple[str, str, float]]:
    from pcie_sim.calibration.make import strong_correlations

    return strong_correlations(done)[:10]


def _unidentified(done: Fit) -> Iterable[tuple[str, str]]:
    for name, error, before in zip(done.model.names, done.sigma, done.prior_sigma, strict=True):
        if error >= NARROWED * before:
            yield name, f"{constants()[name].title}: the measurements leave it as uncertain as the prior ({100 * before:.0f} %)"


def _sick(done: Fit, believed: Mapping[str, Belief], shipped: Array | None) -> Iterable[str]:
    """Constants far on the bad side of what boxes show, and curves far slower than the prior expects; nothing where no curve is much
    slower than the catalog's own constants have it.
    """
    if shipped is not None and not _slow(done, shipped):
        return
    for place, name in enumerate(done.model.names):
        constant = constants()[name]
        if constant.sick is None or done.sigma[place] >= NARROWED * done.prior_sigma[place]:
            continue
        spread = max(float(done.prior_sigma[place]), 0.2)
        worse = (float(done.vector[place]) - float(done.prior_mean[place])) * (1 if constant.sick == "high" else -1)
        if worse > SICK * spread and worse > np.log(SICK_FACTOR):
            times = f"{np.exp(worse):.1f} times {'above' if constant.sick == 'high' else 'below'}"
            shown = "boxes like this one show" if believed[name].evidence == "profile" else "its start value expects"
            yield f"{constant.title} ({name}) is {times} what {shown}: it looks sick"
    for index in range(len(done.model.curves)):
        for regime in dict.fromkeys(done.rows.regime):
            mine = (done.rows.curve == index) & _are(done.rows.regime, regime)
            if not mine.any() or regime == FLOOR:  # a slow CPU is no sick box
                continue
            if shipped is not None and float(np.median((done.model.measured - shipped)[mine])) < np.log(SLOW_SHIPPED):
                continue
            slower = done.model.measured[mine] - done.expected[mine]
            worse, spread = float(np.median(slower)), float(np.median(done.expected_sigma[mine]))
            if worse > np.log(SLOW_FACTOR) and worse > SLOW * spread:
                middle = len(slower) // 2
                hoped = format_time(float(np.exp(done.expected[mine][middle])))
                size = format_bytes(float(done.rows.size[mine][middle]))
                what = f"{_title(done, index)} by {regime} takes {np.exp(worse):.1f} times what such a box should"
                yield f"{what} ({hoped} at {size}): it looks sick"


def _slow(done: Fit, shipped: Array) -> bool:
    """Whether a quarter of some curve, or a kind of copy, is in some regime much slower than the catalog's own constants have it."""
    slower = done.model.measured - shipped
    keys = list(zip(done.rows.curve.tolist(), done.rows.regime, strict=True))
    for key in dict.fromkeys(keys):
        mine = np.array([item == key for item in keys])
        if float(np.quantile(slower[mine], 0.75)) >= np.log(SLOW_SHIPPED):
            return True
    return False


def _title(done: Fit, index: int) -> str:
    """A curve's title, with its settings where another curve has the same one."""
    curve = done.model.curves[index]
    alike = sum(other.title == curve.title for other in done.model.curves)
    return curve.title if alike < 2 else f"{curve.title}, {state_text(curve.state)}"


def _misfits(done: Fit) -> Iterable[str]:
    """A fit that does not describe what was measured."""
    timed = np.array([op != COPY for op in done.rows.op])
    if timed.sum() >= MANY:
        overall = float(np.median(np.abs(np.expm1(-done.error[timed]))))
        if overall > GROSS:
            yield f"the fit misses what was measured by {100 * overall:.0f} % (median): another box, other settings, or units read wrong?"
        inside = float(np.mean(np.abs(done.left_out_error[timed]) <= Z80 * done.left_out_sigma[timed]))
        if inside < LEAST_COVERAGE:
            yield f"only {100 * inside:.0f} % of left-out points fall inside their p10-p90 (80 % should): trust spreads less than they say"
    for index in range(len(done.model.curves)):
        mine = (done.rows.curve == index) & ~_are(done.rows.regime, FLOOR)
        if not mine.any():
            continue
        faster, spread = float(np.median((done.expected - done.model.measured)[mine])), float(np.median(done.expected_sigma[mine]))
        if faster > np.log(FAST_FACTOR) and faster > SLOW * spread:
            what = f"{_title(done, index)} takes {np.exp(-faster):.2f} times what such a box should"
            yield f"{what}: too fast for the topology file's links, or not of this box"


def _disagreeing(done: Fit) -> Iterable[str]:
    for index, curve in enumerate(done.model.curves):
        if curve.repeated is not None and curve.repeated > DISAGREE:
            where = "files" if len(curve.sources) > 1 else "rows"
            what = f"{_title(done, index)}: {where} disagree by {100 * curve.repeated:.0f} % at the same sizes"
            yield f"{what}; each size's median is taken: keep those that belong"


def _bounds(done: Fit) -> Iterable[str]:
    for name, at in zip(done.model.names, done.at_bound, strict=True):
        if at:
            yield f"{constants()[name].title} ({name}) ended at its bound: the measurements ask for more than the model allows"


def _outliers(done: Fit) -> Iterable[str]:
    found: dict[str, list[str]] = {}
    for i in np.flatnonzero(done.outliers):
        if done.rows.op[i] == COPY:
            continue
        title = done.model.curves[int(done.rows.curve[i])].title
        found.setdefault(title, []).append(f"{format_bytes(float(done.rows.size[i]))} ({100 * np.expm1(done.left_out_error[i]):+.0f} %)")
    for title, sizes in found.items():
        more = f" and {len(sizes) - 6} more" if len(sizes) > 6 else ""
        yield f"{title}: far from what all other points say at {', '.join(sizes[:6])}{more}; kept as measured, weighed down in the fit"


def _notes(prior: Prior) -> Iterable[str]:
    if prior.name == "none":
        yield "prior: the start values alone (no profile of another box)"
    else:
        others = ", ".join(f"{name} {weight:.2g}" for name, weight in list(prior.weights.items())[:4])
        yield f"prior: profiles of other boxes by likeness: {others}"
    if prior.left_out:
        yield f"profiles left out: {', '.join(prior.left_out)}"


def _launches(done: Fit) -> Iterable[str]:
    floors = np.array([name == FLOOR for name in done.rows.regime])
    if floors.any():
        yield f"{int(floors.sum())} points are held up by the CPU's launches: they tell the issue floor, nothing of the wire"
    graphs = {curve.op for curve in done.model.curves if curve.launch in ("graph", None)}
    alone = sorted({done.rows.op[i] for i in np.flatnonzero(floors)} - graphs)
    if alone:
        yield (
            f"small calls of {', '.join(alone)} were launched eagerly only: what they take inside a CUDA graph, as engines run them, is "
            "the model's; measure with -G 10, too"
        )
    unknown = [curve.title for curve in done.model.curves if curve.launch is None]
    if unknown:
        yield f"launch mode not said ({unknown[0]}{' ...' if len(unknown) > 1 else ''}): priced as in a CUDA graph"
