"""Copies that run at the same time: predicted, scored, and the parts' shares fitted with the scored box left out.

Three numbers make the prediction of a contended copy (see :func:`pcie_sim.network.copy_rates`): the link efficiency
(``contended_share``) and the fan-in/out efficiency (``fan_share``) of a part family, and what crowded reads reach over writes
(``read_share``; 1 for a family without such rows); a socket link that two boxes measured gets its bandwidth from the other box.
Families without rows take the pooled efficiencies: a family's offset from them is held small by a prior, so that one row does not
make a family. Charging the fan efficiency to uplinks and root ports as well was tried with the same fit: a median error of 29 % on
all pairs instead of 15 % (left out), so GPU ports alone pay it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pcie_sim import catalog
from pcie_sim.network import copy_rates
from pcie_sim.network.flows_on import CopyRates
from pcie_sim.scoring.rows import Case, box, cases, scored
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.part import InterconnectPart, Part, PciePart, SocketPart, SwitchPart
from pcie_sim.topology import Topology

Group = Literal["apart", "staged", "contended", "all pairs", "fault"]
SHARES = ("contended_share", "fan_share")
NOISE = 0.05
"""Spread (ln) of repeated copy measurements that the fit takes for granted."""
START = {"contended_share": 0.97, "fan_share": 0.7, "read_share": 0.45}
POOL_PRIOR = {"contended_share": 0.1, "fan_share": 0.4}
FAMILY_PRIOR = {"contended_share": 0.03, "fan_share": 0.12, "read_share": 0.6}
LINK_PRIOR = 0.4


@dataclass(frozen=True)
class CopyScore:
    """One row beside its prediction (B/s) and its group."""

    case: Case
    group: Group
    predicted: float

    @property
    def error(self) -> float:
        """Relative error, predicted over measured less one."""
        return self.predicted / self.case.value - 1


Constants = Mapping[str, float]
"""``"<part>.<share>"`` -> value; ``"pcie.<share>"`` is the pooled one, ``"<socket link>.p2p_bandwidth"`` in B/s."""


def families(topology: Topology) -> tuple[str, ...]:
    """Parts whose ports the GPUs hang on: switches, or sockets where a GPU is on a root port."""
    nodes = topology.spec.nodes
    found: dict[str, None] = {}
    for gpu in topology.gpus:
        above = nodes[gpu].parent
        while above is not None and nodes[above].kind not in ("switch", "socket"):
            above = nodes[above].parent
        part = nodes[above].part if above is not None else None
        if part is not None:
            found[catalog.load_part(part).name] = None
    return tuple(found)


def socket_links(topology: Topology) -> tuple[str, ...]:
    """Parts of the links between its sockets."""
    parts = [catalog.load_part(peer.part) for peer in topology.spec.peers]
    return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, InterconnectPart) and part.role == "socket"))


def parts_with(constants: Constants) -> dict[str, Part]:
    """The catalog's parts with ``constants`` in place of their own (for :func:`pcie_sim.catalog.using_parts`)."""
    found: dict[str, Part] = {}
    for key, value in constants.items():
        name, _, field = key.rpartition(".")
        part = found.get(name) or catalog.load_part(name)
        if field == "read_share" and not isinstance(part, SwitchPart):
            continue
        if not isinstance(part, PciePart | SwitchPart | SocketPart | InterconnectPart):
            continue
        unit = "B/s" if field == "p2p_bandwidth" else "1"
        quantity = Quantity(value=value, unit=unit, evidence="fitted", source="leave-one-box-out fit of pcie_sim.scoring")
        found[name] = part.model_copy(update={field: quantity})
    return found


def predict(case: Case) -> CopyRates:
    """The row's flows on its box, with the parts in force."""
    return copy_rates(box(case), case.row.flows, access=case.row.access)


def as_measured(case: Case, rates: CopyRates) -> float:
    """What the row's ``value`` counts, B/s."""
    return rates.total if case.row.counts == "total" else rates.mean


def group_of(case: Case, rates: CopyRates) -> Group:
    """How the row is reported: ``apart`` shares no link, ``staged`` goes through host memory, ``fault`` had a condition in force."""
    gpus = {gpu for flow in case.row.flows for gpu in flow}
    if case.arm.conditions:
        return "fault"
    if rates.staged:
        return "staged"
    if len(gpus) > 2 and len(set(case.row.flows)) == len(gpus) * (len(gpus) - 1):
        return "all pairs"
    return "contended" if rates.shared else "apart"


def _crowded_reads(case: Case) -> bool:
    """Whether the row shows what a crowd of reads reaches."""
    return case.row.access == "read" and bool(predict(case).crowded)


def measured_copies() -> list[Case]:
    """All rows that count."""
    return [case for case in cases("copy") if scored(case)]


def score(items: Sequence[Case], constants_of: Mapping[str, Constants] | None = None) -> list[CopyScore]:
    """Every row's prediction; ``constants_of`` gives the constants by machine (None: the shipped ones)."""
    found = []
    for case in items:
        constants = {} if constants_of is None else constants_of[case.machine]
        with catalog.using_parts(parts_with(constants)):
            rates = predict(case)
        found.append(CopyScore(case, group_of(case, rates), as_measured(case, rates)))
    return found


def _switches_with(share: str) -> tuple[str, ...]:
    """Switches of the catalog that have a figure for ``share``."""
    parts = [catalog.load_part(name) for name in catalog.names("parts")]
    return tuple(part.name for part in parts if isinstance(part, SwitchPart) and getattr(part, share) is not None)


def _sockets_with(share: str) -> tuple[str, ...]:
    parts = [catalog.load_part(name) for name in catalog.names("parts")]
    return tuple(part.name for part in parts if isinstance(part, SocketPart) and getattr(part, share) is not None)


class _Problem:
    """Least squares over the logs of shares: pooled values, offsets of families, socket links."""

    def __init__(self, items: Sequence[Case]) -> None:
        self.items = items
        boxes = [box(case) for case in items]
        self.families = sorted({name for topology in boxes for name in families(topology)})
        self.others = [name for share in SHARES for name in (*_switches_with(share), *_sockets_with(share)) if name not in self.families]
        self.links = sorted({name for topology in boxes for name in socket_links(topology)})
        self.default = {name: catalog.load_typed_part(name, InterconnectPart).p2p_bandwidth.value for name in self.links}
        self.names = [f"pcie.{share}" for share in SHARES]
        self.names += [f"{family}.{share}" for family in self.families for share in SHARES]
        reads = {name for case, topology in zip(items, boxes, strict=True) if _crowded_reads(case) for name in families(topology)}
        self.names += [f"{family}.read_share" for family in self.families if family in reads]
        self.names += [f"{link}.p2p_bandwidth" for link in self.links]

    def constants(self, vector: Sequence[float]) -> dict[str, float]:
        raw = dict(zip(self.names, vector, strict=True))
        found: dict[str, float] = {f"{name}.read_share": 1.0 for name in _switches_with("read_share")}
        for name, value in raw.items():
            part, _, field = name.rpartition(".")
            if field == "p2p_bandwidth":
                found[name] = self.default[part] * math.exp(value)
                continue
            pooled = math.log(START[field]) + raw.get(f"pcie.{field}", 0.0)
            found[name] = min(1.0, math.exp(pooled + (0.0 if part == "pcie" else value)))
        for family in self.others:  # a figure of the catalog that only the box left out can have given
            found.update({f"{family}.{share}": found[f"pcie.{share}"] for share in SHARES})
        return found

    def residuals(self, vector: Sequence[float]) -> list[float]:
        with catalog.using_parts(parts_with(self.constants(vector))):
            found = [math.log(as_measured(case, predict(case)) / case.value) / NOISE for case in self.items]
        for name, value in zip(self.names, vector, strict=True):
            part, _, field = name.rpartition(".")
            spread = LINK_PRIOR if field == "p2p_bandwidth" else (POOL_PRIOR if part == "pcie" else FAMILY_PRIOR)[field]
            found.append(value / spread)
        return found


def fit(items: Sequence[Case]) -> dict[str, float]:
    """The constants that ``items`` ask for (contended and all-pairs rows count; the others are dropped).

    scipy's trust-region least squares on logs, with a loss that keeps a single odd row from ruling (soft L1).
    """
    from scipy.optimize import least_squares

    kept = [case for case in items if group_of(case, predict(case)) in ("contended", "all pairs")]
    problem = _Problem(kept)
    found = least_squares(problem.residuals, [0.0] * len(problem.names), loss="soft_l1", diff_step=1e-3, xtol=1e-4, ftol=1e-4, max_nfev=30)
    return problem.constants([float(value) for value in found.x])


def leave_one_out(items: Sequence[Case]) -> dict[str, dict[str, float]]:
    """For each machine, the constants fitted without any of its rows."""
    machines = list(dict.fromkeys(case.machine for case in items))
    return {machine: fit([case for case in items if case.machine != machine]) for machine in machines}
