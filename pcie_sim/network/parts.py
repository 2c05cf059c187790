"""What one call and an array of calls have in common: the choice of the library and the uncertain parts of a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pcie_sim.evidence import Evidence, weakest
from pcie_sim.network.analytic import Lines
from pcie_sim.network.channels import Lanes
from pcie_sim.network.costs import Amount, KernelCosts, library_costs
from pcie_sim.network.library import Choice, choose
from pcie_sim.network.placement import Fractions, Placement
from pcie_sim.network.views import View
from pcie_sim.specs.ops import Array
from pcie_sim.specs.part import Protocol

if TYPE_CHECKING:
    from pcie_sim.topology import Topology


@dataclass(frozen=True)
class Parts:
    """The uncertain parts behind a time with one protocol: base and step cost, wire."""

    base: Amount
    step: Amount
    wire: Amount

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source once, base first."""
        return tuple(dict.fromkeys((*self.base.sources, *self.step.sources, *self.wire.sources)))


def parts_of(placed: Placement, protocol: Protocol, lines: Lines, lanes: Lanes | None = None) -> Parts:
    """The uncertain parts of a placed call: its wire is as uncertain as its busiest link, the protocol's share and crowding together."""
    view: View = placed.view(protocol, lanes)
    link = placed.link_rates[lines.busiest] if lines.busiest is not None else Amount(0.0, 0.0, "measured")
    factors = [link, view.share, placed.crowded]
    wire = Amount(
        1.0,
        math.sqrt(sum(factor.sigma**2 for factor in factors)),
        weakest([*(factor.evidence for factor in factors), placed.transport_evidence.evidence]),
        tuple(dict.fromkeys(source for factor in factors for source in factor.sources)),
    )
    return Parts(placed.costs.base(placed.op, protocol, placed.peers), view.step, wire)


def latency_sigma(parts: Parts, steps_s: Array) -> Array:
    """Standard deviation of ln(base + steps), the two being independent."""
    whole = parts.base.value + steps_s
    spread = np.hypot(parts.base.value * parts.base.sigma, steps_s * parts.step.sigma)
    return np.divide(spread, whole, out=np.zeros(np.shape(whole)), where=whole > 0)


def choice_of(
    topology: Topology,
    op: str,
    groups: Sequence[tuple[str, ...]],
    size: Array,
    algorithm: str,
    protocol: str,
    fractions: Fractions | None,
) -> Choice:
    """What runs at each size: the library's choice where nothing is asked for."""
    part = library_costs(topology.settings.ccl).part
    largest = (
        None if fractions is None else max((share for i, row in enumerate(fractions) for j, share in enumerate(row) if i != j), default=0.0)
    )
    return choose(topology, part, op, groups, size, algorithm=algorithm, protocol=protocol, largest_send=largest)


def protocol_name(placed: Placement, protocol: str) -> str:
    """The protocol as shown to people: ``none`` where the library has no costs of its own, or does not move the bytes."""
    return "none" if placed.costs.part is None or isinstance(placed.costs, KernelCosts) else protocol


def labelled_parts(parts: Parts, base: float, steps: float, moves: float) -> list[tuple[float, Evidence]]:
    """Seconds of base, steps and moving bytes, each with its evidence."""
    return [(base, parts.base.evidence), (steps, parts.step.evidence), (moves, parts.wire.evidence)]
