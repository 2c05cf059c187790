"""How sure the constants make a time: their covariance, carried to any call by difference quotients.

Constants make up for each other: a sweep may tell a sum of two very well and neither of them. So the doubt about a time is not that of
its parts side by side but sqrt(g' C g), with C the covariance of ln(constant) from the calibration file and g the derivative of
ln(time) by each of them. Ways over a network or NVLink have no constant that is fitted: their own parts' doubt counts, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from pcie_sim import catalog
from pcie_sim.calibration.constants import Fitted, constants, parts_with
from pcie_sim.calibration.curves import signature
from pcie_sim.calibration.model import STEP, met, way_between
from pcie_sim.network import call_times
from pcie_sim.network.call_times import CallTimes
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.ops import Array, CollectiveCall
from pcie_sim.specs.part import Part
from pcie_sim.topology import Topology, from_spec

TINY = 1e-12


def own_sigma(found: CallTimes) -> Array:
    """Standard deviation of ln(time) by the times' own parts, taken as independent."""
    spread = np.hypot(found.latency_s * found.sigma_latency, found.bytes_s * found.sigma_bytes)
    return np.asarray(np.divide(spread, found.time_s, out=np.zeros(np.shape(found.time_s)), where=found.time_s > 0))


class Doubt:
    """The doubt that a calibration's constants leave.

    Args:
        spec: the calibration; ``given``: its constants; ``used``: the parts that the box has, as the files have them.
    """

    def __init__(self, spec: CalibrationSpec, given: Mapping[str, Fitted], used: Mapping[str, Part]) -> None:
        self.spec, self.given, self.used = spec, dict(given), used
        self.names = list(self.given)
        self._kept: dict[tuple[Any, ...], Array] = {}
        self._twins: WeakKeyDictionary[Topology, dict[str, Topology]] = WeakKeyDictionary()

    @cached_property
    def covariance(self) -> Array:
        """Of ln(constant), in the order of :attr:`names`."""
        sigma = np.array([one.sigma for one in self.given.values()])
        matrix = np.eye(len(self.names))
        place = {name: index for index, name in enumerate(self.names)}
        for pair, value in self.spec.correlations.items():
            a, _, b = pair.partition(" ~ ")
            if a in place and b in place and a != b:
                matrix[place[a], place[b]] = matrix[place[b], place[a]] = value
        return np.asarray(matrix * np.outer(sigma, sigma))

    @cached_property
    def _moved(self) -> dict[str, dict[str, Part]]:
        """The box's parts with one constant at a time a little larger."""
        found = {}
        for name, one in self.given.items():
            larger = Fitted(one.value * math.exp(STEP), one.sigma, one.evidence)
            found[name] = parts_with({**self.given, name: larger}, self.used)
        return found

    def sigma(
        self, topology: Topology, call: CollectiveCall, found: CallTimes, launch: Literal["graph", "eager"], asked: dict[str, Any]
    ) -> Array:
        """Standard deviation of ln(time) of ``call``, whose times are ``found``; kept for calls of one op whose GPUs are joined alike.

        ``asked``: the further arguments of :func:`pcie_sim.network.call_times`.
        """
        size = np.asarray(call.bytes, dtype=float)
        gpus = asked["gpu_of_rank"]
        groups = [[gpus[rank] for rank in group] for group in call.groups]
        key = (
            call.op,
            tuple(signature(topology, group) for group in groups),
            call.fractions,
            launch,
            asked["algorithm"],
            asked["protocol"],
            size.tobytes(),
            tuple(sorted(topology.settings.env.items())),
            topology.settings.p2p,
            topology.settings.ccl.version,
        )
        if key not in self._kept:
            slopes = self._slopes(topology, call, found, launch, asked, groups)
            variance = np.einsum("ik,ij,jk->k", slopes, self.covariance, slopes)
            sigma = np.sqrt(np.maximum(variance, 0.0)).reshape(size.shape)
            others = any(
                way_between(topology, a, b, len(group)) & {"NET", "NVL"} for group in groups for a in group for b in group if a != b
            )
            self._kept[key] = np.hypot(sigma, own_sigma(found)) if others else sigma
        return self._kept[key]

    def _slopes(
        self,
        topology: Topology,
        call: CollectiveCall,
        found: CallTimes,
        launch: Literal["graph", "eager"],
        asked: dict[str, Any],
        groups: list[list[str]],
    ) -> Array:
        """D ln(time) / d ln(constant), shape (constants, sizes); 0 for constants that the call cannot depend on."""
        have = {f"op:{call.op}", "LL128"} | ({"eager"} if launch == "eager" else set())
        for group in groups:
            have |= {kind for a in group for b in group if a != b for kind in way_between(topology, a, b, len(group))}
        base = np.log(np.maximum(found.time_s, TINY)).reshape(-1)
        slopes = np.zeros((len(self.names), base.size))
        for index, name in enumerate(self.names):
            if constants()[name].discrete or not all(met(need, have) for need in constants()[name].needs):
                continue
            with catalog.using_parts(self._moved[name]):
                after = call_times(self._twin(topology, name), call, launch=launch, **asked)
            slopes[index] = (np.log(np.maximum(after.time_s, TINY)).reshape(-1) - base) / STEP
        return slopes

    def _twin(self, topology: Topology, name: str) -> Topology:
        """``topology`` built from the parts with one constant moved."""
        twins = self._twins.setdefault(topology, {})
        if name not in twins:
            twins[name] = from_spec(topology.spec, source=topology.name)
        return twins[name]
