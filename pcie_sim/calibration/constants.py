"""The constants that a calibration fits, and the parts of the catalog with given values of them in place of their own.

Where every fit begins stands in ``catalog/profiles/_constants.yaml``. A constant is a plain number here: :func:`parts_with` knows
which number of which part it is, so that the network engines price a calibrated box exactly as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from pcie_sim import catalog
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.calibration import Constant
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.part import InterconnectPart, LibraryPart, Part, PciePart, Protocol, SocketPart, SwitchPart

LL128_STEP = 0.9e-6
"""Seconds that a step of LL128 takes beyond one of LL: NVIDIA/nccl:src/graph/tuning.cc has 1.5 us, measured 0.9
(local-inference-lab/rtx6kpro:optimization/nccl-tuning.md)."""
Z80 = 1.2815515655446004
"""10 % and 90 % points of the standard normal."""


@dataclass(frozen=True)
class Fitted:
    """One constant's value (SI) with the standard deviation of its logarithm and its label."""

    value: float
    sigma: float
    evidence: Evidence


@lru_cache(maxsize=1)
def constants() -> Mapping[str, Constant]:
    """Every constant by name, in the order of the file."""
    return {item.name: item for item in catalog.load_constants().constants}


def start() -> dict[str, float]:
    """The value of every constant before any box is known, SI."""
    return {name: item.value for name, item in constants().items()}


class _Values:
    """Constants by name as quantities: those that are not given keep the file's value."""

    def __init__(self, given: Mapping[str, float | Fitted]) -> None:
        self.given = given

    def fitted(self, name: str) -> Fitted:
        found = self.given.get(name)
        if isinstance(found, Fitted):
            return found
        item = constants()[name]
        return Fitted(item.value if found is None else found, item.spread, item.evidence)

    def put(self, name: str, old: Quantity, factor: float = 1.0) -> Quantity:
        """Constant ``name`` times ``factor`` with the unit of ``old``."""
        return _quantity(self.fitted(name), old.unit, factor)

    def scaled(self, name: str, old: Quantity) -> Quantity:
        """``old`` times constant ``name``."""
        found = self.fitted(name)
        sigma = found.sigma if isinstance(self.given.get(name), Fitted) else old.sigma_log
        return _quantity(Fitted(found.value, sigma, found.evidence), old.unit, old.value)

    def product(self, first: str, second: str, old: Quantity, more: str | None = None) -> Quantity:
        """``first`` x ``second`` (+ ``more``)."""
        a, b = self.fitted(first), self.fitted(second)
        value, sigma = a.value * b.value, math.hypot(a.sigma, b.sigma)
        labels = [a.evidence, b.evidence]
        if more is not None:
            c = self.fitted(more)
            spread = math.hypot(value * sigma, c.value * c.sigma)
            value += c.value
            sigma = spread / value
            labels.append(c.evidence)
        return _quantity(Fitted(value, sigma, weakest(labels)), old.unit)

    def total(self, first: str, seconds: float, old: Quantity) -> Quantity:
        """``first`` + an exact number of seconds."""
        found = self.fitted(first)
        return _quantity(Fitted(found.value + seconds, found.sigma * found.value / (found.value + seconds), found.evidence), old.unit)


def _quantity(found: Fitted, unit: str, factor: float = 1.0) -> Quantity:
    value = found.value * factor
    spread = math.exp(Z80 * found.sigma)
    return Quantity(
        value=value,
        unit=unit,
        evidence=found.evidence,
        source=SOURCES[found.evidence],
        low=value / spread if spread > 1 else value,
        high=value * spread,
    )


SOURCES: Mapping[Evidence, str] = {
    "measured": "calibration of this box",
    "fitted": "calibration of this box",
    "profile": "calibrations of other boxes (what this box's measurements do not tell)",
    "nominal": "start value of calibrations (what no measurement tells)",
    "assumed": "start value of calibrations (what no measurement tells)",
}
WayT = TypeVar("WayT", bound=str)


def used_parts(spec: TopologySpec) -> Mapping[str, Part]:
    """The parts of a box that a calibration changes, by canonical name, as the files have them."""
    with catalog.without_replacements():
        asked = [node.part for node in spec.nodes.values() if node.kind in ("socket", "switch")]
        asked += [peer.part for peer in spec.peers]
        loaded = {part.name: part for part in (catalog.load_part(name) for name in dict.fromkeys(asked) if name is not None)}
        between = [part.socket_link for part in loaded.values() if isinstance(part, SocketPart) and part.socket_link is not None]
        library = [] if spec.settings.ccl.name == "none" else [spec.settings.ccl.name]
        loaded |= {part.name: part for part in map(catalog.load_part, ["pcie", *library, *between])}
    return {
        name: part
        for name, part in loaded.items()
        if isinstance(part, LibraryPart | PciePart | SocketPart | SwitchPart)
        or (isinstance(part, InterconnectPart) and part.role == "socket")
    }


def parts_with(given: Mapping[str, float | Fitted], used: Mapping[str, Part]) -> dict[str, Part]:
    """The parts ``used`` by a box (:func:`used_parts`) with ``given`` constants in place of their own.

    Args:
        given: constants by name, SI; a plain number stands for an exact one (as a fit tries them), :class:`Fitted` brings its spread.
            Those that are not named keep the value they start from.
    """
    value = _Values(given)
    found: dict[str, Part] = {}
    for name, part in used.items():
        if isinstance(part, LibraryPart):
            found[name] = _library(part, value)
        elif isinstance(part, PciePart):
            found[name] = part.model_copy(
                update={
                    "kernel_duplex_share": value.put("duplex", _known(part.kernel_duplex_share, part.link_layer_share)),
                    "fan_share": value.put("fan", _known(part.fan_share, part.link_layer_share)),
                    "link_layer_share": value.scaled("link.rate", part.link_layer_share),
                }
            )
        elif isinstance(part, SocketPart):
            found[name] = part.model_copy(
                update={
                    "host_step_latency": value.put("host_step", part.host_step_latency),
                    "p2p_latency": value.scaled("root.latency", part.p2p_latency),
                    "p2p_flow_rate": value.scaled("root.rate", part.p2p_flow_rate),
                    "memory_bandwidth": value.scaled("memory.rate", part.memory_bandwidth),
                    "fan_share": None,  # one number for all ports: pcie's
                }
            )
        elif isinstance(part, SwitchPart):
            found[name] = part.model_copy(update={"fan_share": None})
        elif isinstance(part, InterconnectPart):
            found[name] = part.model_copy(
                update={
                    "latency": value.scaled("socket.latency", part.latency),
                    "p2p_flow_rate": value.scaled("socket.rate", part.p2p_flow_rate),
                    "p2p_bandwidth": value.scaled("socket.rate", part.p2p_bandwidth),
                }
            )
    return found


def _known(quantity: Quantity | None, other: Quantity) -> Quantity:
    """For its unit: both are plain shares."""
    return other if quantity is None else quantity


def _library(part: LibraryPart, value: _Values) -> LibraryPart:
    base = part.base_latency
    ops = {op: value.product("base.all_reduce", f"base_ratio.{op}", old) for op, old in base.items() if f"base_ratio.{op}" in constants()}
    sends = value.product("base.all_reduce", "base_ratio.sends", base["all_to_all"])
    one_send = value.product("base.all_reduce", "base_ratio.sends", base["send_recv"], more="peer_issue")
    rates = part.wire_share
    of_simple = rates["LL128"].value / rates["Simple"].value if "LL128" in rates else 1.0
    floors = catalog.load_constants().eager_shape
    update: dict[str, object] = {
        "base_latency": {
            **base,
            **ops,
            "all_reduce": value.put("base.all_reduce", base["all_reduce"]),
            "all_to_all": sends,
            "send_recv": one_send,
        },
        "step_software": {
            "LL": value.put("step.LL", part.step_software["LL"]),
            "LL128": value.total("step.LL", LL128_STEP, part.step_software["Simple"]),
            "Simple": value.put("step.Simple", part.step_software["Simple"]),
        },
        "believed_rate": value.put("believed_rate", rates["Simple"]),
        "last_receive": value.put("last_receive", rates["Simple"]),
        "simple_extra_latency": value.put("simple_extra", part.simple_extra_latency),
        "wire_share": {
            "LL": value.put("wire.LL", rates["LL"]),
            "LL128": value.put("wire.Simple", rates["Simple"], of_simple),
            "Simple": value.put("wire.Simple", rates["Simple"]),
        },
        "wire_share_host": {name: value.put(f"wire_host.{name}", old) for name, old in part.wire_share_host.items()},
        "channel_rate": {way: _channels(part.channel_rate[way], value, way) for way in part.channel_rate},
        "poll_share": _by_way(part.poll_share, lambda way, old: value.put(f"poll.{way}", old)),
        "send_channel_rate": _by_way(part.send_channel_rate, lambda way, old: value.put(f"send_channel.{way}", old)),
        "send_chunk_latency": _by_way(part.send_chunk_latency, lambda _, old: value.put("send_handover", old)),
        "peer_issue": value.put("peer_issue", base["send_recv"]),
        "eager_floor": {gpus: value.put("floor", base["all_reduce"], shape) for gpus, shape in floors.items()},
        "eager_send_share": value.put("floor_send_ratio", rates["Simple"]),
    }
    return part.model_copy(update=update)


def _by_way(table: Mapping[WayT, Quantity] | None, make: Callable[[WayT, Quantity], Quantity]) -> dict[WayT, Quantity] | None:
    """``table`` with other numbers; None stays None: the library's part has no such figure."""
    return None if table is None else {way: make(way, old) for way, old in table.items()}


def _channels(table: Mapping[Protocol, Quantity], value: _Values, way: str) -> dict[Protocol, Quantity]:
    """Simple's; LL128 keeps its ratio to it."""
    return {name: value.put(f"channel.{way}", old, old.value / table["Simple"].value) for name, old in table.items()}
