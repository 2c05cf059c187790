"""What other boxes teach about a box that is not measured yet: the prior of each constant.

Random effects: a constant's logarithm differs from box to box with a spread tau around a mean. The mean starts at the constants file
(with its ``spread``); every profile that measured the constant is one noisy observation of it, weighted by how alike the boxes are;
tau starts at the file's ``between`` as if two boxes had shown it, and is updated by the profiles' own scatter. The prior of a new box
is the mean with the variance of the mean plus tau squared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pcie_sim import catalog
from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.points import Curve
from pcie_sim.errors import InputError, nearest
from pcie_sim.evidence import Evidence
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.part import SocketPart
from pcie_sim.topology import Topology

SEEN_BEFORE = 2.0
"""The file's ``between`` counts as so many boxes when the spread between boxes is estimated."""
LOSS = {"library": 3.0, "transport": 1.0, "pcie": 0.4, "cpu": 0.4, "vendor": 0.4, "architecture": 0.2, "sockets": 0.2}
"""What a difference in one trait costs: a profile's weight is exp(-sum)."""
LEAST_WEIGHT = 0.02


@dataclass(frozen=True)
class Belief:
    """Prior of ln(value / start): mean, standard deviation, label, and the profiles behind it."""

    mean: float
    sigma: float
    evidence: Evidence


@dataclass(frozen=True)
class Prior:
    """Beliefs by constant. ``name`` is the nearest profile's (``none``: the constants file alone); ``weights`` by profile."""

    name: str
    beliefs: Mapping[str, Belief]
    weights: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def traits(box: Topology) -> dict[str, str]:
    """What makes boxes alike, in words."""
    gpus = box.gpus
    kinds: list[str] = sorted({box.transport(a, b, gpus=len(gpus)).kind for a in gpus for b in gpus if a != b})
    specs = [box.gpu_spec(gpu) for gpu in gpus]
    cpus = [catalog.load_part(node.part) for node in box.spec.nodes.values() if node.kind == "socket" and node.part is not None]
    cpu = next((part for part in cpus if isinstance(part, SocketPart)), None)
    return {
        "library": box.settings.ccl.name,
        "transport": "+".join(kinds) or "none",
        "pcie": f"gen{min(spec.pcie.gen for spec in specs)}",
        "cpu": cpu.name if cpu is not None else "unknown",
        "vendor": cpu.vendor if cpu is not None and cpu.vendor else "unknown",
        "architecture": specs[0].architecture or "unknown",
        "sockets": str(len(box.sockets)),
    }


def alike(a: Mapping[str, str], b: Mapping[str, str]) -> float:
    """Weight of a profile with traits ``b`` for a box with traits ``a``: 1 for twins.

    >>> alike({"transport": "SHM", "pcie": "gen5"}, {"transport": "SHM", "pcie": "gen5"})
    1.0
    >>> round(alike({"transport": "P2P", "pcie": "gen5"}, {"transport": "SHM", "pcie": "gen5"}), 3)
    0.368
    """
    loss = sum(cost for trait, cost in LOSS.items() if a.get(trait) != b.get(trait))
    return max(LEAST_WEIGHT, math.exp(-loss))


def nothing_known() -> dict[str, Belief]:
    """The constants file alone."""
    return {name: Belief(0.0, item.spread, item.evidence) for name, item in constants().items()}


def from_profiles(profiles: Sequence[tuple[CalibrationSpec, float]]) -> dict[str, Belief]:
    """Beliefs from profiles with their weights (see the module's text)."""
    found = nothing_known()
    for name, item in constants().items():
        if item.discrete:  # a matter of one box's tree
            continue
        seen: list[tuple[float, float, float]] = []
        for profile, weight in profiles:
            parameter = profile.value_of(name)
            if parameter is None or parameter.sigma_log is None or parameter.evidence not in ("fitted", "measured"):
                continue
            seen.append((math.log(parameter.value / item.value), max(parameter.sigma_log, 0.01), weight))
        if seen:
            mean, variance = _pooled(seen, item.spread, item.between)
            found[name] = Belief(mean, math.sqrt(variance), "profile")
    return found


def _pooled(seen: Sequence[tuple[float, float, float]], spread: float, between: float) -> tuple[float, float]:
    """(mean, variance of a new box) from (value, standard error, weight) triples; ``spread`` is the hyperprior's about 0."""
    tau2 = between**2
    mean = 0.0
    precision = 1.0 / spread**2
    for _ in range(20):
        weights = [weight / (tau2 + error**2) for _, error, weight in seen]
        precision = 1.0 / spread**2 + sum(weights)
        mean = sum(w * value for w, (value, _, _) in zip(weights, seen, strict=True)) / precision
        # scatter beyond the standard errors, with the file's figure as SEEN_BEFORE boxes that showed it
        shares = [weight * tau2 / (tau2 + error**2) for _, error, weight in seen]
        scatter = sum(s * max(0.0, (value - mean) ** 2 - error**2) for s, (value, error, _) in zip(shares, seen, strict=True))
        tau2 = (SEEN_BEFORE * between**2 + scatter) / (SEEN_BEFORE + sum(shares))
    return mean, tau2 + 1.0 / precision


def make_prior(
    box: Topology, asked: str = "auto", *, leave_out: Iterable[str] = (), inputs: Iterable[str] = (), curves: Sequence[Curve] = ()
) -> Prior:
    """The prior for ``box``.

    Args:
        asked: ``auto`` (all shipped profiles of healthy boxes, the more alike the more), ``none`` (the constants file alone), or one
            profile's name.
        leave_out: names or ids of profiles that must not be used.
        inputs: SHA-256 of the files that are being fitted: a profile made of one of them is left out, its data would count twice.
        curves: what is being fitted: a profile that holds the same times is left out likewise (a published log and its table).

    Raises:
        InputError: no such profile, or a name to leave out that no profile has.
    """
    out = set(leave_out)
    if asked == "none":
        _check(out, [])
        return Prior("none", nothing_known(), left_out=tuple(sorted(out)))
    hashes = set(inputs)
    kept: list[CalibrationSpec] = []
    left: list[str] = []
    profiles = [catalog.load_calibration_profile(name) for name in catalog.calibration_names()]
    for profile in profiles:
        mine = {str(profile.name), profile.topology.name, str(profile.topology.id)}
        if mine & out or any(item.sha256 in hashes for item in profile.inputs) or _same_times(profile, curves):
            left.append(str(profile.name))
        else:
            kept.append(profile)
    _check(out, profiles)
    if asked != "auto":
        chosen = [profile for profile in kept if profile.name == asked]
        if not chosen:
            if asked in left:
                raise InputError(f"--prior {asked}: left out (its own measurements, or --leave-out); choose another, auto or none")
            raise InputError(f"--prior {asked[:80]}: no such profile{_nearest(asked, [str(p.name) for p in profiles])}; or auto, none")
        return Prior(asked, from_profiles([(chosen[0], 1.0)]), {asked: 1.0}, tuple(left))
    own = traits(box)
    weighted = sorted(
        ((profile, alike(own, profile.topology.traits)) for profile in kept if profile.topology.healthy), key=lambda pair: -pair[1]
    )
    if not weighted:
        return Prior("none", nothing_known(), left_out=tuple(left))
    weights = {str(profile.name): round(weight, 4) for profile, weight in weighted}
    return Prior(str(weighted[0][0].name), from_profiles(weighted), weights, tuple(left))


def _same_times(profile: CalibrationSpec, curves: Sequence[Curve]) -> bool:
    """Whether most times of some curve (five sizes or more) stand in the profile, to the digits that tools print."""
    for curve in curves:
        for held in profile.curves:
            if held.op != curve.op or held.ranks != curve.ranks:
                continue
            known = dict(zip(held.bytes, held.time_us, strict=True))
            pairs = [(known[int(size)], time * 1e6) for size, time in zip(curve.sizes, curve.times, strict=True) if int(size) in known]
            same = sum(abs(a - b) <= 1e-3 * b for a, b in pairs)
            if same >= max(5, 0.6 * len(pairs)):
                return True
    return False


def _check(out: set[str], profiles: Sequence[CalibrationSpec]) -> None:
    known = {str(name) for profile in profiles for name in (profile.name, profile.topology.name, profile.topology.id)}
    for name in sorted(out):
        if profiles and name not in known:
            raise InputError(f"--leave-out {name[:80]}: no profile of that name or box{_nearest(name, sorted(known - {'None'}))}")


def _nearest(name: str, known: Sequence[str]) -> str:
    close = nearest(name[:80], known)
    return f"; nearest: {', '.join(close)}" if close else ""
