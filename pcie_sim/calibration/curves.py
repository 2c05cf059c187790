"""Measured curves as answers: which of them tells what a call takes, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.misfit import SHORT, SHORT_OCTAVES
from pcie_sim.calibration.model import way_of
from pcie_sim.calibration.points import LEAST_NOISE, Curve
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.network.call_times import CallTimes
from pcie_sim.network.nccl_rules import version_pair
from pcie_sim.specs.ops import Array, BoolArray, CollectiveCall
from pcie_sim.specs.part import LibraryPart
from pcie_sim.topology import Topology

_ROUTES = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
"""Settings that only change transports, which are compared themselves."""
WIDEST = 2.5
"""Octaves between two measured sizes beyond which what lies between is the model's."""
MOST_BEND = 0.35
"""Of ln(time): a model that bends more between two measured sizes is not believed beyond this."""
BEND_DOUBT = 0.5
"""Share of its bend that the model may be wrong by."""
THREADS_DOUBT = 3e-6
"""Seconds (standard deviation) by which a call launched outside a CUDA graph may differ from one inside. Of one box and one operation: an
AllReduce of up to 64 KiB between 2 H200 takes 1 to 8 us more (validation/settings-h200-2x)."""
_PREFERRED = ("graph", "threads", None, "eager")


@dataclass(frozen=True, eq=False)
class Known:
    """A measured curve with the box in the state of its run. ``free`` marks points that the CPU's launches do not hold up: they tell
    what a call takes inside a graph, too. ``model`` is ln(seconds) of the fitted constants at the points, ``scale`` the misfit's,
    ``wild`` how far outliers lie from what the others say (ln; 0 elsewhere).
    """

    curve: Curve
    box: Topology
    free: BoolArray
    model: Array
    scale: float
    wild: Array


@dataclass(frozen=True, eq=False)
class Inside:
    """Where measured curves answer: ``mask`` of the sizes, their times (s), spread from run to run, and the label: *measured* on these
    very GPUs, *fitted* where the curve is of others that are joined alike.
    """

    mask: BoolArray
    times: Array
    noise: Array
    label: Evidence


def answer(
    curves: Sequence[Known],
    topology: Topology,
    call: CollectiveCall,
    modelled: CallTimes,
    gpu_of_rank: Sequence[str],
    launch: str,
    algorithm: str,
    protocol: str,
) -> Inside:
    """Where ``curves`` answer ``call``: one group at a time, the library's own choices, sizes between the smallest and the largest.

    Between two measured sizes what the fitted constants leave of ln(time) is linear in ln(size): measured kinks stay, and so do the
    model's own between them (whole passes of LL: an AllReduce of 14,336 B takes 15 % more than one of 16 KiB on two H200), up to
    :data:`MOST_BEND`. The further a size is from both its neighbours, and the more the model bends there, the wider the spread;
    ``modelled`` are the fitted constants' times of the call.
    """
    size = np.asarray(call.bytes, dtype=float)
    found = Inside(np.zeros(size.shape, dtype=bool), np.ones(size.shape), np.zeros(size.shape), "measured")
    if len(call.groups) != 1 or call.fractions is not None or protocol != "auto":
        return found
    if algorithm != way_of(call.op):  # a pipeline's hop goes one way, nccl-tests' sendrecv sends both
        return found
    gpus = tuple(gpu_of_rank[rank] for rank in call.groups[0])
    inside, times, noise, label = found.mask, found.times, found.noise, found.label
    for known, own in _candidates(curves, topology, call.op, gpus, launch):
        all_of_it = launch == "eager" or known.curve.launch not in ("eager", "threads")
        usable = np.ones(len(known.free), dtype=bool) if all_of_it else known.free
        sizes, values = known.curve.sizes[usable], known.curve.times[usable]
        if len(sizes) == 0:
            continue
        here = ~inside & (size >= sizes[0]) & (size <= sizes[-1]) & _near(size, sizes)
        if not here.any():
            continue
        bend = _bend(known, usable, size, modelled)
        there = np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), np.log(values)) + bend)
        inside, times = inside | here, np.where(here, there, times)
        spread = _between(known, usable, size, bend)
        as_asked = launch == "eager" or known.curve.launch in ("graph", None)
        spread = spread if as_asked else np.hypot(spread, THREADS_DOUBT / there)
        noise = np.where(here, spread, noise)
        label = weakest((label, "measured" if own and as_asked else "fitted"))
    return Inside(inside, times, noise, label)


def _near(size: Array, sizes: Array) -> BoolArray:
    """Sizes that are measured, or between two that stand no further apart than :data:`WIDEST` octaves."""
    right = np.clip(np.searchsorted(sizes, size), 0, len(sizes) - 1)
    left = np.clip(right - 1, 0, len(sizes) - 1)
    return np.asarray(np.isin(size, sizes) | (np.log2(sizes[right] / sizes[left]) <= WIDEST + 1e-9))


def _bend(known: Known, usable: BoolArray, size: Array, modelled: CallTimes) -> Array:
    """How far the model's ln(time) lies off the straight line between its values at the measured sizes around; 0 at those."""
    line = np.interp(np.log(np.maximum(size, 1.0)), np.log(known.curve.sizes[usable]), known.model[usable])
    bend = np.log(np.maximum(modelled.time_s, 1e-12)) - line
    return np.where(np.isin(size, known.curve.sizes[usable]), 0.0, np.clip(bend, -MOST_BEND, MOST_BEND))


def _between(known: Known, usable: BoolArray, size: Array, bend: Array) -> Array:
    """Standard deviation of ln(time) at sizes inside a curve: a repeat's at a measured size, between two also what may happen there."""
    at, sizes = np.log2(np.maximum(size, 1.0)), np.log2(known.curve.sizes[usable])
    right = np.clip(np.searchsorted(sizes, at), 0, len(sizes) - 1)
    left = np.clip(right - 1, 0, len(sizes) - 1)
    apart, gap = np.minimum(np.abs(at - sizes[left]), np.abs(sizes[right] - at)), np.maximum(sizes[right] - sizes[left], 1e-9)
    bridge = (known.scale * SHORT) ** 2 * 2.0 * apart / SHORT_OCTAVES * (1.0 - apart / gap)
    off = known.wild[usable]  # what lies between a wild point and its neighbour, or on it, is known no better than the two agree
    here, next_ = np.isin(size, known.curve.sizes[usable]), np.maximum(off[left], off[right])
    at_size = off[np.clip(np.searchsorted(known.curve.sizes[usable], size), 0, len(sizes) - 1)]
    own = np.hypot(max(known.curve.noise, LEAST_NOISE), np.where(here, at_size, next_))
    return np.asarray(np.sqrt(own**2 + np.where(apart > 1e-9, np.maximum(bridge, 0.0) + (BEND_DOUBT * bend) ** 2, 0.0)))


def _candidates(curves: Sequence[Known], topology: Topology, op: str, gpus: tuple[str, ...], launch: str) -> list[tuple[Known, bool]]:
    """Curves that answer for ``gpus``, the best first, and whether they are of these very GPUs."""
    found: list[tuple[tuple[int, int], Known, bool]] = []
    for known in curves:
        curve = known.curve
        if curve.op != op or curve.ranks != len(gpus) or not same_state(topology, known.box, gpus):
            continue
        if launch == "eager" and curve.launch != "eager":
            continue
        own = curve.gpus == gpus
        if own or joined_alike(topology, curve.gpus, gpus):
            found.append(((0 if own else 1, _PREFERRED.index(curve.launch)), known, own))
    return [(known, own) for _, known, own in sorted(found, key=lambda item: item[0])]


def same_state(asked: Topology, run: Topology, gpus: Sequence[str]) -> bool:
    """Whether the library would do the same in both states: its version's rules, its modelled environment, the transports."""
    a, b = asked.settings, run.settings
    if a.ccl.name != b.ccl.name or version_pair(a.ccl.version) != version_pair(b.ccl.version):
        return False
    if a.ccl.name != "none" and any(a.env.get(name) != b.env.get(name) for name in _modelled(a.ccl.name) if name not in _ROUTES):
        return False
    count = len(gpus)
    return all(asked.transport(x, y, gpus=count).kind == run.transport(x, y, gpus=count).kind for x in gpus for y in gpus if x != y)


def _modelled(library: str) -> tuple[str, ...]:
    tuning = catalog.load_typed_part(library, LibraryPart).tuning
    return tuning.environment.modelled if tuning is not None and tuning.environment is not None else ()


def signature(box: Topology, gpus: Sequence[str]) -> tuple[str, ...]:
    """How a group's GPUs are joined, rank by rank: path type, transport, and the slowest link on the way (in tenths of a GB/s)."""
    count = len(gpus)

    def way(a: str, b: str) -> str:
        slowest = min((box.links[name].rate.value for name in box.path(a, b, gpus=count).links), default=0.0)
        return f"{box.path_type(a, b)} {box.transport(a, b, gpus=count).kind} {slowest / 1e8:.0f}"

    return tuple([way(a, b) for a in gpus for b in gpus if a != b])


def joined_alike(box: Topology, first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two groups of GPUs are of one model and joined alike, rank by rank."""
    if [box.gpu_spec(gpu).name for gpu in first] != [box.gpu_spec(gpu).name for gpu in second]:
        return False
    return signature(box, first) == signature(box, second)
