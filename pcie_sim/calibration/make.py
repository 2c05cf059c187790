"""Measurements of a box -> its calibration and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from pcie_sim.calibration import checks
from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.fit import Fit, fit
from pcie_sim.calibration.model import COPY, FLOOR, BoxModel
from pcie_sim.calibration.points import MOST_POINTS, Curve, Gathered, gather, short_name, thinned
from pcie_sim.calibration.prior import Prior, make_prior, traits
from pcie_sim.errors import InputError
from pcie_sim.importers.relate import RelatedMeasurement
from pcie_sim.results.calibration import CalibrationReport
from pcie_sim.specs.calibration import (
    CalibratedBox,
    CalibratedParameter,
    CalibrationSpec,
    InputRef,
    Misfit,
)
from pcie_sim.topology import Topology

LEAST_ROUGH, ROUGH = 7, 2.0
"""Points of a curve, and how many times its noise from run to run, from which its own roughness is its noise."""
HALF_STEP = 0.17
"""Standard error of ln of a switch point: they are tried by half octaves."""


@dataclass(frozen=True, eq=False)
class Made:
    """A calibration with the fit it came from."""

    report: CalibrationReport
    fit: Fit


def calibrate(
    box: Topology,
    measured: Sequence[RelatedMeasurement],
    *,
    prior: str = "auto",
    leave_out: Sequence[str] = (),
    sha256: Mapping[str, str] | None = None,
    unused: Sequence[str] = (),
) -> Made:
    """Fit the cost model of ``box`` to ``measured``.

    Args:
        measured: measurement sets and the GPUs of each run (:func:`pcie_sim.importers.relate.relate`).
        prior: ``auto``, ``none`` or a profile's name (:func:`pcie_sim.calibration.prior.make_prior`).
        leave_out: profiles (names, or their boxes' names) that the prior must not use.
        sha256: hash of every source's bytes.
        unused: remarks about what could not be read at all.

    Raises:
        InputError: nothing in the files that tells of this box's collectives or copies, one GPU, or an unknown prior.
        NoDataError: no costs for the box's collective library.
    """
    found = gather(box, measured)
    if not found.curves and not found.copies:
        reasons = [*found.unused, *unused]
        why = f" ({reasons[0][:200]})" if reasons else ""
        raise InputError(
            f"{', '.join(dict.fromkeys(one.source for one in measured)) or 'the files'}: nothing to calibrate {box.name} with: no times of "
            f"collectives and no copy rates{why}; "
            "give a log of nccl-tests (all_reduce_perf), nvbandwidth or p2pBandwidthLatencyTest"
        )
    hashes = dict(sha256 or {})
    belief = make_prior(box, prior, leave_out=leave_out, inputs=hashes.values(), curves=found.curves)
    seen = thinned(found.curves, MOST_POINTS)
    done = fit(BoxModel(box, seen, found.copies), belief)
    whole, kept = (sum(len(curve.sizes) for curve in curves) for curves in (found.curves, seen))
    fewer = [f"{whole} points: the fit sees {kept} of them, spread evenly; inside the curves all are answered"] if kept < whole else []
    calibration = to_spec(box, done, belief, found, hashes)
    report = checks.report(box, done, belief, calibration, [*found.unused, *unused, *fewer], done.model.shipped())
    return Made(report, done)


def to_spec(box: Topology, done: Fit, prior: Prior, found: Gathered, sha256: Mapping[str, str]) -> CalibrationSpec:
    """The fit as a calibration file's content."""
    outliers = _outliers(done)
    return CalibrationSpec.model_validate(
        {
            "schema": "pcie-sim/calibration/1",
            "topology": CalibratedBox(
                name=box.name,
                gpus=len(box.gpus),
                gpu=", ".join(f"{count}x {name}" for name, count in box.gpu_counts().items()),
                traits=traits(box),
            ),
            "prior": prior.name,
            "prior_weights": dict(prior.weights),
            "inputs": _inputs(done, found, sha256),
            "parameters": _parameters(done, prior),
            "correlations": {
                f"{a} ~ {b}": round(value, 3) for a, b, value in strong_correlations(done, all_of_them=True) if abs(value) >= 0.05
            },
            "curves": tuple(_rough(curve, done, index).spec(outliers.get(index, ())) for index, curve in enumerate(found.curves)),
            "residual": Misfit.model_validate(
                {"sigma_log_by_op": _sigmas(done), "scale": round(done.scale, 4), "noise": round(float(np.median(done.model.noise)), 4)}
            ),
        }
    )


def _rough(curve: Curve, done: Fit, index: int) -> Curve:
    """``curve`` with the noise that its own points show: a wild one is known no better for having been measured once a size.

    What the fit leaves of ln(time) changes slowly with size, so each point's distance from the middle of its neighbours is noise
    (variance 3/2 of a point's own); the median keeps out what single kinks add.
    """
    error = done.error[done.rows.curve == index]
    if len(error) < LEAST_ROUGH:
        return curve
    rough = 1.4826 * float(np.median(np.abs(error[1:-1] - (error[:-2] + error[2:]) / 2))) / math.sqrt(1.5)
    return replace(curve, noise=rough) if rough > ROUGH * curve.noise else curve


def _outliers(done: Fit) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index in np.flatnonzero(done.outliers):
        found.setdefault(int(done.rows.curve[index]), []).append(int(done.rows.size[index]))
    return found


def _inputs(done: Fit, found: Gathered, sha256: Mapping[str, str]) -> tuple[InputRef, ...]:
    curves = [
        InputRef(
            file=short_name(source),
            sha256=sha256.get(source, "0" * 64),
            op=curve.op,
            ranks=curve.ranks,
            launch=curve.launch,
            ccl=curve.state.ccl,
            points=curve.by_source.get(source, curve.points),
            used=0 if seen is None else len(seen.sizes),
            range_bytes=(float(curve.sizes[0]), float(curve.sizes[-1])),
        )
        for curve, seen in zip_longest(found.curves, done.model.curves)
        for source in curve.sources
    ]
    copies = [
        InputRef(
            file=short_name(item.source),
            sha256=sha256.get(item.source, "0" * 64),
            op=f"copy ({item.kind})",
            ranks=2,
            points=item.pairs,
            used=1,
        )
        for item in found.copies
    ]
    return (*curves, *copies)


def _parameters(done: Fit, prior: Prior) -> tuple[CalibratedParameter, ...]:
    """All constants: those that the measurements can depend on as fitted, the others as the prior has them."""
    items = []
    for name, constant in constants().items():
        belief = prior.beliefs[name]
        value, error, narrowed, bound = constant.value * math.exp(belief.mean), belief.sigma, False, False
        believed = value
        note = f"{constant.title}: nothing that was measured depends on it"
        if constant.discrete and done.model.switches:
            value, narrowed = done.switch, done.switch_told
            error = HALF_STEP if narrowed else belief.sigma
            note = constant.title if narrowed else f"{constant.title}: the measurements do not tell it"
        if name in done.model.names:
            place = done.model.names.index(name)
            value, error = constant.value * math.exp(done.vector[place]), float(done.sigma[place])
            narrowed, bound = error < checks.NARROWED * belief.sigma, bool(done.at_bound[place])
            note = constant.title if narrowed else f"{constant.title}: the measurements do not tell it"
        items.append(
            CalibratedParameter(
                name=name,
                value=_short(value),
                unit=constant.unit,
                stderr=_short(value * error),
                evidence="fitted" if narrowed else belief.evidence,
                prior=_short(believed),
                prior_stderr=_short(believed * belief.sigma),
                at_bound=bound,
                note=note,
            )
        )
    return tuple(items)


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _sigmas(done: Fit) -> dict[str, float]:
    """Standard deviation of ln(measured / the constants' time) by op, robust (1.48 x the median absolute error)."""
    found = {}
    for op in dict.fromkeys(done.rows.op):
        if op == COPY:
            continue
        mine = np.array([name == op for name in done.rows.op]) & np.array([name != FLOOR for name in done.rows.regime])
        if mine.any():
            found[op] = round(1.4826 * float(np.median(np.abs(done.error[mine]))), 4)
    return found


def strong_correlations(done: Fit, *, all_of_them: bool = False) -> list[tuple[str, str, float]]:
    """Pairs of constants (that the measurements told something of, or ``all_of_them``) by their correlation, strongest first."""
    sigma = done.sigma
    matrix = done.covariance / np.outer(sigma, sigma)
    told = [place for place in range(len(sigma)) if all_of_them or sigma[place] < checks.NARROWED * done.prior_sigma[place]]
    pairs = [
        (done.model.names[a], done.model.names[b], float(np.clip(matrix[a, b], -1, 1))) for i, a in enumerate(told) for b in told[i + 1 :]
    ]
    return sorted(pairs, key=lambda item: -abs(item[2]))
