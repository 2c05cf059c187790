"""The library's choices on a box as one answer, and what they cost: the same call predicted with and without each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from pcie_sim.network.call_times import call_times
from pcie_sim.network.costs import library_costs
from pcie_sim.network.library import RING_OPS, Beliefs, allowed, beliefs
from pcie_sim.network.nccl_env import limits
from pcie_sim.network.nccl_graph import GB
from pcie_sim.network.nccl_search import Graph
from pcie_sim.network.nccl_tuning import switch_points
from pcie_sim.network.settings_notes import library_notes
from pcie_sim.results.ccl import CclChoice, CclSearch, CclSegment, CclSmall, CclWarning
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import LEVELS, place_pairs
from pcie_sim.units import format_bytes

if TYPE_CHECKING:
    from pcie_sim.specs.runtime import CustomAllReduce
    from pcie_sim.topology import Topology

DECODE_BYTES = 14336
"""A decode-sized AllReduce: one token of hidden size 7168 in bf16."""
_LOW, _HIGH = 1.0, 2.0**30
_SMALL = (1024, DECODE_BYTES, 65536, 262144, 1048576)
_SAFE = ("LL", "Simple")
"""Protocols that may be recommended; the library's source warns of LL128 on untested paths."""
_WORTH = 0.03
"""A choice that costs less than this share of the call is not worth a warning ..."""
_WORTH_BETWEEN = 0.15
"""... and of a range of sizes, less than this."""


def library_choice(topology: Topology) -> CclChoice | None:
    """What the collective library in force decides for all GPUs of the box; None with one GPU or a library that is not modelled.

    Raises:
        InputError: an environment value that the library would not understand.
        NoDataError: no costs for the library.
    """
    part = library_costs(topology.settings.ccl).part
    gpus = topology.gpus
    thinks = beliefs(topology, part, (gpus,)) if len(gpus) > 1 else None
    if thinks is None:
        return None
    env = topology.settings.env
    rules = {op: allowed(env, op, thinks.tuning) for op in RING_OPS}
    choices = {op: switch_points(thinks.model, op, may, _LOW, _HIGH) for op, may in rules.items()}
    segments = {op: tuple(CclSegment(int(start), *pair) for start, pair in points) for op, points in choices.items()}
    notes = dict.fromkeys((*library_notes(topology), *thinks.notes, *(note for may in rules.values() for note in may.notes)))
    reachable = all(topology.transport(*pair).kind != "NET" for pair in place_pairs(topology))
    inside = thinks.system.gpus
    warnings: tuple[CclWarning, ...] = ()
    if reachable:
        warnings = costly_choices(topology, (gpus,), DECODE_BYTES)
        if not thinks.ring.fallback:
            warnings = (*warnings, *_between(topology, gpus))
    else:
        notes["some pairs go over the network: its choices are not compared by what they cost"] = None
    return CclChoice(
        library=topology.settings.ccl.name,
        version=topology.settings.ccl.version,
        ranks=len(gpus),
        order=thinks.order,
        ring=_search(thinks.ring),
        tree=_search(thinks.tree),
        channels=thinks.channels,
        choices=segments,
        small=tuple(_small(thinks, segments["all_reduce"], size, limits(env, thinks.tuning).threads) for size in _SMALL),
        warnings=warnings,
        notes=tuple(notes),
        host=topology.host_of(inside[0]) if len(topology.hosts) > 1 else None,
        gpus=inside,
        net=thinks.system.net is not None,
    )


def _search(graph: Graph) -> CclSearch:
    return CclSearch(len(graph.channels), graph.speed * GB, LEVELS[graph.kind], LEVELS[graph.kind_inter], graph.fallback)


def _small(thinks: Beliefs, segments: Sequence[CclSegment], size: int, threads: int | None) -> CclSmall:
    chosen = [segment for segment in segments if segment.from_bytes <= size][-1]
    algorithm, protocol = chosen.algorithm, chosen.protocol
    at = np.asarray([float(size)])
    channels, count = thinks.model.trimmed(algorithm, protocol, thinks.channels, threads, at)  # type: ignore[arg-type]
    return CclSmall(size, protocol, int(channels[0]), int(count[0]))


_VARIANTS: WeakKeyDictionary[Topology, dict[tuple[tuple[str, str], ...], Topology]] = WeakKeyDictionary()


def _with(topology: Topology, env: Mapping[str, str]) -> Topology:
    """The box with other settings (kept: its routes and searches are then found once)."""
    kept = _VARIANTS.setdefault(topology, {})
    key = tuple(env.items())
    if key not in kept:
        kept[key] = topology.with_settings(env=env)
    return kept[key]


def _times(
    topology: Topology, groups: Sequence[tuple[str, ...]], size: float, protocol: str = "auto", custom: CustomAllReduce | None = None
) -> tuple[float, str]:
    """(seconds, protocol) of one AllReduce inside a CUDA graph."""
    gpus = [gpu for group in groups for gpu in group]
    index = {gpu: rank for rank, gpu in enumerate(gpus)}
    call = CollectiveCall("all_reduce", np.asarray([float(size)]), tuple(tuple(index[gpu] for gpu in group) for group in groups))
    found = call_times(topology, call, gpu_of_rank=gpus, protocol=protocol, custom=custom)
    return float(found.time_s[0]), str(found.protocol)


def costly_choices(
    topology: Topology, groups: Sequence[tuple[str, ...]], size: float, *, custom: CustomAllReduce | None = None
) -> tuple[CclWarning, ...]:
    """Choices of the library that make an AllReduce of ``size`` bytes on ``groups`` slower by this prediction, dearest first.

    ``custom``: the serving engine's own kernel, which takes what its rules give it in all cases compared.
    """
    part = library_costs(topology.settings.ccl).part
    thinks = beliefs(topology, part, groups)
    if thinks is None:
        return ()
    base, chosen = _times(topology, groups, size, custom=custom)
    found = [_staged(topology, groups, size, base, custom), _protocol(topology, groups, size, base, chosen, thinks, custom)]
    return tuple(sorted((item for item in found if item is not None and item.cost_s > _WORTH * base), key=lambda item: -item.cost_s))


def _protocol(
    topology: Topology,
    groups: Sequence[tuple[str, ...]],
    size: float,
    base: float,
    chosen: str,
    thinks: Beliefs,
    custom: CustomAllReduce | None,
) -> CclWarning | None:
    """The library's protocol against the best one at this size."""
    other, best = min((_times(topology, groups, size, name, custom)[0], name) for name in _SAFE)
    if best == chosen or other >= base:
        return None
    shown = format_bytes(size)
    if thinks.ring.fallback:
        text = f"{thinks.notes[0]}: {chosen} where {best} would be faster at {shown}"
        setting = f"NCCL_GRAPH_FILE with a ring written by hand for this box, or NCCL_PROTO={best} where messages are small"
        return CclWarning("fallback", text, setting, round(size), base, base - other)
    text = f"the library picks {chosen} at {shown}, {best} would be faster"
    return CclWarning("protocol", text, f"NCCL_PROTO={best} where messages are of this size", round(size), base, base - other)


def _staged(
    topology: Topology, groups: Sequence[tuple[str, ...]], size: float, base: float, custom: CustomAllReduce | None
) -> CclWarning | None:
    """Pairs through host memory that peer access could serve if the library were allowed to."""
    peers = {"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "0"}
    open_box = _with(topology, peers)
    pairs = [(a, b, _near(topology, group, a)) for group in groups for a in group for b in group if a != b]
    held = [
        (a, b, near)
        for a, b, near in pairs
        if topology.transport(a, b, gpus=near).kind == "SHM" and open_box.transport(a, b, gpus=near).kind == "P2P"
    ]
    if not held:
        return None
    level = max((topology.path_type(a, b) for a, b, _ in held), key=LEVELS.index)
    first, second, count = held[0]
    other, _ = _times(open_box, groups, size, custom=custom)
    disabled = topology.settings.env.get("NCCL_P2P_DISABLE", "").strip() == "1"
    text = (
        f"{len(held)} of {len(pairs)} directed pairs go through host memory although peer access is granted "
        f"({topology.transport(first, second, gpus=count).reason.partition(':')[0]})"
    )
    setting = f"NCCL_P2P_LEVEL={level}" + (" without NCCL_P2P_DISABLE" if disabled else "")
    return CclWarning("shm", text, setting, round(size), base, base - other)


def _near(topology: Topology, group: Sequence[str], gpu: str) -> int:
    """GPUs of the group on the host of ``gpu``."""
    return sum(topology.host_of(other) == topology.host_of(gpu) for other in group)


def _between(topology: Topology, gpus: tuple[str, ...]) -> tuple[CclWarning, ...]:
    """Larger sizes at which the library's protocol is not the best: the range, and the size where that costs the most."""
    sizes = 2.0 ** np.arange(15, 25, 0.25)
    call = CollectiveCall("all_reduce", sizes, (tuple(range(len(gpus))),))
    auto = call_times(topology, call, gpu_of_rank=gpus)
    protocols = np.broadcast_to(np.asarray(auto.protocol, dtype=object), sizes.shape)
    forced = {name: call_times(topology, call, gpu_of_rank=gpus, protocol=name).time_s for name in _SAFE}
    best = np.minimum(forced["LL"], forced["Simple"])
    loss = np.where(auto.time_s > best * (1 + 1e-9), (auto.time_s - best) / auto.time_s, 0.0)
    if float(np.max(loss)) < _WORTH_BETWEEN:
        return ()
    worst = int(np.argmax(loss))
    name = min(forced, key=lambda item: float(forced[item][worst]))
    same = [i for i in range(len(sizes)) if loss[i] > _WORTH and protocols[i] == protocols[worst]]
    text = (
        f"from about {format_bytes(sizes[same[0]])} to {format_bytes(sizes[same[-1]])} the library uses {protocols[worst]} where {name} "
        f"would be faster (worst at {format_bytes(sizes[worst])})"
    )
    cost = float(auto.time_s[worst] - best[worst])
    setting = f"NCCL_PROTO={name} if most of your messages are of such sizes"
    return (CclWarning("protocol", text, setting, round(float(sizes[worst])), float(auto.time_s[worst]), cost),)
