"""Collectives beside their predictions, the library's constants fitted with the scored machine left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from pcie_sim import catalog
from pcie_sim.network import call_times, rank_order
from pcie_sim.scoring.rows import Case, box, cases, key_of, scored
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.ops import CollectiveCall, CollectiveOp
from pcie_sim.specs.part import LibraryPart, Part, PciePart, Protocol, SocketPart
from pcie_sim.study.measured import load_set
from pcie_sim.topology import Topology, load_topology

SMALLEST, LARGEST = 512, 512 << 20
"""Range that the score of AllReduce covers, bytes."""


@dataclass(frozen=True)
class TimeScore:
    """One row beside its prediction (s)."""

    case: Case
    predicted: float
    protocol: str
    transport: str

    @property
    def error(self) -> float:
        """Relative error, predicted over measured less one."""
        return self.predicted / self.case.value - 1


def launch_of(case: Case) -> Literal["graph", "eager"]:
    """How the run is priced: without the CPU's issue floor where it does not say, or where every GPU had a thread of its own."""
    return "graph" if case.arm.own_threads else case.row.launch or case.arm.launch or "graph"


def gpus_of(case: Case, topology: Topology) -> tuple[str, ...]:
    """The GPUs of the run, rank by rank."""
    ranks = cast(int, case.row.ranks)
    return case.arm.gpus[:ranks] if case.arm.gpus else rank_order(topology, ranks)


def measured_collectives(op: str = "all_reduce") -> list[Case]:
    """Rows of the library's own ``op`` that count, inside the scored range."""
    found = [case for case in cases("collective") if scored(case) and case.arm.all_reduce is None and case.row.op == op]
    return [case for case in found if SMALLEST <= cast(int, case.row.bytes) <= LARGEST]


STAND_IN: dict[str, tuple[str, dict[str, str]]] = {
    "collectives-rtx-pro-6000-8x-aiconfigurator": ("rtx-pro-6000-8x-4switch-2xeon", {}),
    "collectives-l40s-8x-aiconfigurator": ("l40s-4x-direct-1socket", {"NCCL_P2P_LEVEL": "SYS"}),
}
"""Trees (and environments) for hosts that publish none: the first is inferred from the sizes where its protocol changes. Their smallest
messages help to fit what a call and a step cost, and are not among the scored AllReduces.
"""
LATENCY_ONLY = 4 << 10


def on_stand_in(set_id: str, ops: Sequence[str] = ("all_reduce",)) -> list[Case]:
    """The set's rows inside the scored range, on the tree that stands in for its host's."""
    topology, env = STAND_IN[set_id]
    held = load_set(f"{set_id}/collective.yaml")
    gpus = len(load_topology(topology).gpus)
    machine = held.machine.model_copy(update={"topology": topology, "topology_evidence": "assumed", "box": set_id})
    software = held.software.model_copy(update={"p2p": "on", "env": env})
    placed = held.model_copy(update={"machine": machine, "software": software})
    rows = [row for row in held.rows if row.op in ops and row.ranks is not None and row.ranks <= gpus]
    return [Case(placed, row) for row in rows if SMALLEST <= (row.bytes or 0) <= LARGEST]


def helpers(without: str | None = None) -> list[Case]:
    """Small AllReduces of hosts with unknown trees, for the fit only; ``without`` leaves one set out."""
    found = [case for set_id in STAND_IN if set_id != without for case in on_stand_in(set_id)]
    return [case for case in found if (case.row.bytes or 0) <= LATENCY_ONLY]


def predict(items: Sequence[Case]) -> list[TimeScore]:
    """Every row's prediction with the parts in force; rows of one box and state are asked together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(items):
        groups.setdefault((*key_of(case), case.row.op, case.row.ranks, launch_of(case)), []).append(index)
    found: list[TimeScore | None] = [None] * len(items)
    for members in groups.values():
        first = items[members[0]]
        topology = box(first)
        gpus = gpus_of(first, topology)
        size = np.array([float(cast(int, items[index].row.bytes)) for index in members])
        call = CollectiveCall(cast(CollectiveOp, first.row.op), size, (tuple(range(len(gpus))),))
        times = call_times(topology, call, gpu_of_rank=gpus, launch=launch_of(first))
        names = np.broadcast_to(np.asarray(times.protocol, dtype=object), size.shape)
        for place, index in enumerate(members):
            found[index] = TimeScore(items[index], float(times.time_s[place]), str(names[place]), times.transport)
    return [item for item in found if item is not None]


Constants = Mapping[str, float]
"""Fitted constants of the library by name (:data:`START`), SI."""
START: dict[str, float] = {
    "base": 6.6e-6,
    "step.LL": 1.0e-6,
    "step.Simple": 2.0e-6,
    "simple_extra": 8.4e-6,
    "wire.LL": 0.38,
    "wire.Simple": 0.76,
    "duplex": 1.0,
    "host_step": 1.7e-6,
    "poll.p2p": 0.65,
    "poll.shm": 0.65,
    "channel.p2p": 1.5e10,
    "channel.shm": 1.5e10,
    "floor": 4.0e-6,
}
"""Where every fit begins, and the middle of its wide prior: round numbers near the library's own
(NVIDIA/nccl:src/graph/tuning.cc, topo.h), taken from no scored box. ``floor`` is the CPU's issue cost per GPU of a box of 8."""
PRIOR = 0.7
"""Spread (ln) of the prior; ..."""
NARROW = {"poll.p2p": 0.25, "poll.shm": 0.25, "channel.p2p": 0.4, "channel.shm": 0.4, "duplex": 0.2}
"""... less for what a read of memory or a port takes on any GPU: 0.6 to 0.7 us of the GPU's own memory, 1 to 2 us of the host's."""
NOISE = 0.1
FLOOR_SHAPE = {1: 2.2, 2: 3.0, 4: 4.6, 8: 8.0}
"""Eager floor by GPUs, in units of ``floor``: grows a little slower than the number of GPUs."""
_SHARES = ("wire.LL", "wire.Simple", "poll.p2p", "poll.shm")
_WAYS: tuple[Literal["p2p"], Literal["shm"]] = ("p2p", "shm")


def _with(quantity: Quantity, value: float) -> Quantity:
    return Quantity(value=value, unit=quantity.unit, evidence="fitted", source="leave-one-machine-out fit of pcie_sim.scoring")


def parts_with(constants: Constants) -> dict[str, Part]:
    """``nccl`` and the sockets of the catalog with ``constants`` in place of their own."""
    part = catalog.load_typed_part("nccl", LibraryPart)
    value = {**START, **constants}
    scale = value["base"] / part.base_latency["all_reduce"].value
    more = part.step_software["LL128"].value - part.step_software["LL"].value
    wire = {name: _with(part.wire_share[name], value[f"wire.{name}"]) for name in ("LL", "Simple")}
    poll = cast(Mapping[str, Quantity], part.poll_share)
    ratio = part.wire_share["LL128"].value / part.wire_share["Simple"].value
    step = {
        "LL": _with(part.step_software["LL"], value["step.LL"]),
        "LL128": _with(part.step_software["LL128"], value["step.LL"] + more),
        "Simple": _with(part.step_software["Simple"], value["step.Simple"]),
    }
    update: dict[str, object] = {
        "base_latency": {op: _with(cost, cost.value * scale) for op, cost in part.base_latency.items()},
        "step_software": step,
        "simple_extra_latency": _with(part.simple_extra_latency, value["simple_extra"]),
        "wire_share": {**wire, "LL128": _with(part.wire_share["LL128"], value["wire.Simple"] * ratio)},
        "channel_rate": {way: _channels(part.channel_rate[way], value[f"channel.{way}"]) for way in _WAYS},
        "poll_share": {way: _with(poll[way], value[f"poll.{way}"]) for way in _WAYS},
        "eager_floor": {gpus: _with(part.eager_floor[8], value["floor"] * shape) for gpus, shape in FLOOR_SHAPE.items()},
    }
    pcie = catalog.load_typed_part("pcie", PciePart)
    duplex = _with(cast(Quantity, pcie.kernel_duplex_share), value["duplex"])
    found: dict[str, Part] = {
        "nccl": part.model_copy(update=update),
        "pcie": pcie.model_copy(update={"kernel_duplex_share": duplex}),
    }
    for name in catalog.names("parts"):
        socket = catalog.load_part(name)
        if isinstance(socket, SocketPart):
            changed = {"host_step_latency": _with(socket.host_step_latency, value["host_step"])}
            found[name] = socket.model_copy(update=changed)
    return found


def _channels(table: Mapping[Protocol, Quantity], simple: float) -> dict[Protocol, Quantity]:
    """Simple's fitted; LL128's keeps its ratio to it."""
    ratio = simple / table["Simple"].value
    return {name: _with(quantity, quantity.value * ratio) for name, quantity in table.items()}


def _values(vector: Iterable[float]) -> dict[str, float]:
    raw = {name: START[name] * math.exp(value) for name, value in zip(START, vector, strict=True)}
    return {name: min(1.0, value) if name in _SHARES else value for name, value in raw.items()}


def fit(items: Sequence[Case], *, without: str | None = None) -> dict[str, float]:
    """The library's constants that ``items`` and :func:`helpers` (but the set ``without``) ask for: least squares on ln(time), soft L1,
    every machine of equal weight.
    """
    from scipy.optimize import least_squares

    items = [*items, *helpers(without)]
    rows: dict[str, int] = {}
    for case in items:
        rows[case.machine] = rows.get(case.machine, 0) + 1
    mean = len(items) / len(rows)
    weight = np.array([math.sqrt(mean / rows[case.machine]) / NOISE for case in items])
    measured = np.log([case.value for case in items])
    spread = np.array([NARROW.get(name, PRIOR) for name in START])

    def residuals(vector: np.ndarray) -> np.ndarray:
        with catalog.using_parts(parts_with(_values(vector))):
            predicted = np.log([item.predicted for item in predict(items)])
        return np.concatenate([(predicted - measured) * weight, vector / spread])

    start = np.zeros(len(START))
    found = least_squares(residuals, start, loss="soft_l1", diff_step=1e-3, xtol=1e-3, ftol=1e-4, max_nfev=25)
    return _values(found.x)


def leave_one_out(items: Sequence[Case], *, workers: int = 1) -> dict[str, dict[str, float]]:
    """For each machine, the constants fitted without any of its rows (minutes), on ``workers`` processors."""
    from concurrent.futures import ProcessPoolExecutor

    machines = list(dict.fromkeys(case.machine for case in items))
    rest = [[case for case in items if case.machine != machine] for machine in machines]
    if workers < 2:
        return dict(zip(machines, map(fit, rest), strict=True))
    with ProcessPoolExecutor(workers) as pool:
        return dict(zip(machines, pool.map(fit, rest), strict=True))


def score(items: Sequence[Case], constants_of: Mapping[str, Constants] | None = None) -> list[TimeScore]:
    """Every row's prediction; ``constants_of`` gives the constants by machine (None: the shipped ones)."""
    if constants_of is None:
        return predict(items)
    found: list[TimeScore] = []
    for machine in dict.fromkeys(case.machine for case in items):
        with catalog.using_parts(parts_with(constants_of[machine])):
            found += predict([case for case in items if case.machine == machine])
    return found
