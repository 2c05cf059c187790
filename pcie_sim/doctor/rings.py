"""Rings: crossings between sockets and switches, NUMA nodes inside a socket, a search that finds nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcie_sim.doctor.exam import LARGE, SMALL, Exam, at, cost_text, dear, finding, names, severity
from pcie_sim.doctor.registry import check
from pcie_sim.results.finding import Cost, Finding, Severity
from pcie_sim.topology import Topology
from pcie_sim.units import counted, format_bytes

_MIDDLE = 256 * 2**10
"""Where the wrong protocol costs most (32 KiB to 256 KiB)."""
NPS_WORTH = 0.10
"""NUMA nodes inside a socket that cost less than this share of a call are only mentioned: NPS1 has its own price in memory locality."""
_LOG = "a log of a run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV, or a graph file (NCCL_GRAPH_DUMP_FILE)"


@dataclass(frozen=True)
class Ring:
    """A ring of GPU nodes and where it comes from."""

    gpus: tuple[str, ...]
    source: str
    observed: bool

    def crossings(self, place: Callable[[str], object]) -> int:
        """Edges between GPUs of different places."""
        after = (*self.gpus[1:], *self.gpus[:1])
        return sum(place(a) != place(b) for a, b in zip(self.gpus, after, strict=True))

    def excess(self, place: Callable[[str], object]) -> int:
        """Crossings beyond one out of every place."""
        count = len({place(gpu) for gpu in self.gpus})
        return self.crossings(place) - (count if count > 1 else 0)


def rings(exam: Exam) -> list[Ring]:
    """Rings of logs and graph files (one of each order), else the one that the library would find."""
    found: dict[tuple[str, ...], Ring] = {}
    for log in exam.related.ccl:
        for ring in log.ccl.rings:
            gpus = [log.nodes.get(one) if ring.by == "rank" else _device(exam, one) for one in ring.members]
            kept = tuple(gpu for gpu in gpus if gpu is not None)
            if len(kept) == len(gpus) > 2 and len(set(kept)) == len(kept):
                found.setdefault(kept, Ring(kept, f"channel {ring.channel} of {at(log.source, log.ccl.line)}", True))
    if found:
        return list(found.values())
    choice = exam.choice()
    return [Ring(choice.order, "the library's search, as predicted", False)] if choice is not None and len(choice.order) > 2 else []


def _device(exam: Exam, index: int) -> str | None:
    return exam.box.gpus[index] if 0 <= index < len(exam.box.gpus) else None


def best_order(exam: Exam, gpus: Sequence[str]) -> tuple[str, ...]:
    """The same GPUs with those of one socket, root port and switch side by side."""
    seen: dict[object, int] = {}
    keys = {}
    for gpu in sorted(gpus, key=exam.box.gpus.index):
        above = (exam.box.host_of(gpu), exam.box.socket_of(gpu), *reversed(exam.box.chain(gpu)))
        keys[gpu] = tuple(seen.setdefault(above[: depth + 1], len(seen)) for depth in range(len(above)))
    return tuple(sorted(gpus, key=keys.__getitem__))


def _ring_costs(exam: Exam, ring: Ring) -> tuple[Cost, ...]:
    best = best_order(exam, ring.gpus)
    found = []
    for size in (SMALL, LARGE):
        now, fixed = exam.time(exam.box, size, order=ring.gpus), exam.time(exam.box, size, order=best)
        if now is not None and fixed is not None:
            found.append(Cost("all_reduce", size, now, fixed))
    return tuple(found)


@check("numa-split", "a ring crosses between sockets no more often than it must", needs="two GPUs or more")
def numa_split(exam: Exam) -> list[Finding] | None:
    """Crossings between sockets: more than needed are a problem, the unavoidable ones worth knowing."""
    box = exam.box
    if len(box.gpus) < 2:
        return None
    bad = [ring for ring in rings(exam) if ring.excess(box.socket_of) > 0]
    if bad:
        ring = max(bad, key=lambda one: one.excess(box.socket_of))
        return [_crossing(exam, "numa-split", ring, box.socket_of, "sockets")]
    sockets = list(dict.fromkeys(box.socket_of(gpu) for gpu in box.gpus))
    homes = {
        host: [name for name in sockets if any(box.host_of(g) == host for g in box.gpus if box.socket_of(g) == name)] for host in box.hosts
    }
    split = [name for found in homes.values() if len(found) > 1 for name in found]
    if not split:
        return []
    groups = {name: [gpu for gpu in box.gpus if box.socket_of(gpu) == name] for name in split}
    evidence = ["; ".join(f"{counted(len(gpus), 'GPU')} on {name} ({names(gpus, 8)})" for name, gpus in groups.items())]
    evidence.append(f"a ring over all of them crosses between sockets {len(split)} times at least")
    costs = exam.costs(_joined(exam, homes))
    half = min(len(gpus) for gpus in groups.values())
    advice = (
        (f"tensor parallelism of {half} or less stays on one socket: tp{half} with pp{len(split)}, or {len(split)} replicas",)
        if half > 1
        else ()
    )
    choice = exam.choice()
    if choice is not None and choice.ring.fallback and dear(costs):
        evidence.append("most of the cost is that of the search's fallback (search-fallback)")
    words = f"against the same GPUs on one socket: {cost_text(costs)}" if costs else cost_text(costs)
    if any(cost.share < -0.01 for cost in costs):
        words, costs = "none by prediction: staged traffic has the memory of both sockets", ()
    title = f"the ring of all GPUs is split over {counted(len(split), 'socket')} (unavoidable)"
    return [finding("numa-split", title, "note", evidence, costs=costs, cost=words, advice=advice, nodes=split)]


def _joined(exam: Exam, homes: Mapping[str, Sequence[str]]) -> Topology | None:
    """The box with everything of a host below its first socket, on one NUMA node."""
    first = {name: sockets[0] for sockets in homes.values() for name in sockets[1:]}
    changes: dict[str, dict[str, Any]] = {}
    for name, node in exam.box.spec.nodes.items():
        change: dict[str, Any] = {}
        if node.parent in first:
            change["parent"] = first[node.parent]
        if node.numa is not None:
            change["numa"] = None
        if change:
            changes[name] = change
    return exam.changed(changes)


def _crossing(exam: Exam, code: str, ring: Ring, place: Callable[[str], object], what: str) -> Finding:
    best = best_order(exam, ring.gpus)
    must = ring.crossings(place) - ring.excess(place)
    costs = _ring_costs(exam, ring)
    crossings = ring.crossings(place)
    evidence = [
        f"ring {' '.join(ring.gpus)} ({ring.source}): {crossings} of its {len(ring.gpus)} steps cross between {what}, {must} would do",
    ]
    advice = [
        f"order the ranks like {','.join(best)} (CUDA_VISIBLE_DEVICES, or the launcher's rank order)",
        "leave CUDA_DEVICE_ORDER=PCI_BUS_ID, and no NCCL_GRAPH_FILE or NCCL_TOPO_FILE of another box in the environment",
    ]
    if not ring.observed:
        advice = ["the library chooses so by itself: a log with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH shows the ring that it really has"]
    title = f"the ring crosses between {what} {crossings} times where {must} would do"
    return finding(code, title, severity(costs), evidence, costs=costs, advice=advice, nodes=ring.gpus)


@check("ring-order", "rings keep neighbours together", needs=_LOG)
def ring_order(exam: Exam) -> list[Finding] | None:
    """Rings that leave a switch (or root port, or NUMA node) more often than they must."""
    box = exam.box
    found = rings(exam)
    if not found:
        return None
    places: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("root ports", box.root_of),
        ("switches", _switch_of(exam)),
        ("NUMA nodes", box.numa_of),
    )
    for what, place in places:
        bad = [ring for ring in found if ring.excess(place) > 0 and ring.excess(box.socket_of) <= 0]
        if bad:
            ring = max(bad, key=lambda one: one.excess(place))
            return [_crossing(exam, "ring-order", ring, place, what)]
    return [] if found[0].observed else None


def _switch_of(exam: Exam) -> Callable[[str], object]:
    def of(gpu: str) -> object:
        return next((node for node in exam.box.chain(gpu) if exam.box.spec.nodes[node].kind == "switch"), gpu)

    return of


@check(
    "nps", "one NUMA node in each socket", needs="NUMA nodes of the GPUs: `nvidia-smi topo -m` (NUMA affinity), `sudo lspci -vvv`, or lscpu"
)
def nps(exam: Exam) -> list[Finding] | None:
    """NPS2, NPS4 (or SNC): the library takes GPUs of one socket for far apart."""
    box, host = exam.box, exam.related.host
    numas: dict[str, dict[int, list[str]]] = {}
    for gpu in box.gpus:
        number = box.numa_of(gpu)
        if number is not None:
            numas.setdefault(box.socket_of(gpu), {}).setdefault(number, []).append(gpu)
    per_host = host is not None and host.sockets is not None and host.numa_nodes is not None
    if not numas and not per_host:
        return None
    several = {socket: found for socket, found in numas.items() if len(found) > 1}
    if not several:
        return []
    evidence = [
        f"{socket}: " + "; ".join(f"node {number} has {names(gpus)}" for number, gpus in sorted(found.items()))
        for socket, found in several.items()
    ]
    if host is not None and per_host:
        evidence.append(f"the host has {counted(host.numa_nodes or 0, 'NUMA node')} in {counted(host.sockets or 0, 'socket')}")
    away = [(a, b) for a, b in exam.pairs if box.socket_of(a) == box.socket_of(b) and box.path_type(a, b) == "SYS"]
    evidence.append(f"{len(away)} of {len(exam.pairs)} ordered pairs of one socket are SYS to the library")
    merged = exam.changed({name: {"numa": None} for name, node in box.spec.nodes.items() if node.numa is not None})
    costs = exam.costs(merged)
    here, there = exam.choice(), exam.choice(merged) if merged is not None else None
    if here is not None and here.ring.fallback and there is not None and not there.ring.fallback:
        evidence.append("with one node in each socket the library's ring search would find a ring again")
    worth = dear(costs, NPS_WORTH)
    advice: tuple[str, ...] = ()
    if worth:
        advice = (
            "in the BIOS: NUMA nodes per socket (NPS) 1, or sub-NUMA clustering off",
            "or NCCL_P2P_LEVEL=SYS where peer access works between them",
        )
    elif exam.pairs and all(box.transport(a, b).kind != "P2P" for a, b in exam.pairs):
        evidence.append("everything is staged in host memory anyway: one NUMA node in each socket would change little")
    level: Severity = "problem" if worth else "note"
    title = f"{names(list(several))}: several NUMA nodes in one socket"
    nodes = [gpu for found in several.values() for gpus in found.values() for gpu in gpus]
    return [finding("nps", title, level, evidence, costs=costs, advice=advice, nodes=nodes)]


@check("search-fallback", "the library's ring search finds a ring", needs="a box with NCCL whose choices are modelled (settings.ccl)")
def search_fallback(exam: Exam) -> list[Finding] | None:
    """Newer GPUs (sm_120) stop the search above what it believes between NUMA nodes: one channel of a token bandwidth."""
    choice = exam.choice()
    if choice is None:
        return None
    logs = [
        (graph, log)
        for log in exam.related.ccl
        for graph in log.ccl.graphs
        if len(log.nodes) > 2 and (graph.fell_back or graph.pattern == 4)
    ]
    seen = [(graph, log) for graph, log in logs if graph.fell_back or graph.speed_intra <= 1e8 * (1 + 1e-6)]
    if logs and not seen:
        return []
    if not seen and not choice.ring.fallback:
        return []
    evidence = [
        f"{at(log.source, graph.line)}: pattern {graph.pattern}, {graph.channels} x {graph.speed_intra / 1e9:.3g} GB/s, {graph.type_intra}"
        for graph, log in seen[:2]
    ]
    if choice.ring.fallback:
        evidence.append(next((note for note in choice.notes if "ring search finds nothing" in note), "the ring search finds nothing here"))
        evidence.append(f"compute capability {_capability(exam)}, {exam.box.settings.ccl.name.upper()} {exam.box.settings.ccl.version}")
    if "NCCL_GRAPH_FILE" in exam.box.settings.env:
        evidence.append("NCCL_GRAPH_FILE is set: its graph takes the place of the search, this may not hold")
        return [finding("search-fallback", "the ring search would find nothing; a graph file is set", "note", evidence, cost=None)]
    costs = _best_protocol(exam)
    title = "the library's ring search finds nothing (one channel of 0.1 GB/s)"
    level: Severity = "problem" if dear(costs) or seen else "note"
    return [finding("search-fallback", title, level, evidence, costs=costs, advice=_fallback_advice(exam, costs), nodes=exam.box.gpus)]


def _capability(exam: Exam) -> str:
    return max(
        (exam.box.gpu_spec(gpu).compute_capability for gpu in exam.box.gpus),
        key=lambda text: [int(part) for part in text.split(".") if part.isdigit()],
    )


def _best_protocol(exam: Exam) -> tuple[Cost, ...]:
    """What the wrong protocol costs at sizes where the fallback picks it."""
    found = []
    for size in (SMALL, 65536, _MIDDLE):
        now = exam.time(exam.box, size)
        others = [time for name in ("LL", "Simple") if (time := exam.time(exam.box, size, protocol=name)) is not None]
        if now is not None and others:
            found.append(Cost("all_reduce", size, now, min([now, *others])))
    worst = max(found, key=lambda cost: cost.share, default=None)
    return tuple(cost for cost in found if cost.bytes == SMALL or cost is worst)


def _fallback_advice(exam: Exam, costs: Sequence[Cost]) -> list[str]:
    box = exam.box
    advice = ["NCCL_GRAPH_FILE with a ring written by hand for this box (speed 24 or so, type PHB, 2 to 4 channels)"]
    if dear(costs):
        top = max(costs, key=lambda cost: cost.bytes)
        advice.append(f"or NCCL_PROTO=LL where messages are small (up to about {format_bytes(top.bytes)})")
    numas = {(box.socket_of(gpu), box.numa_of(gpu)) for gpu in box.gpus}
    if len({socket for socket, _ in numas}) < len(numas):
        merged = exam.changed({name: {"numa": None} for name, node in box.spec.nodes.items() if node.numa is not None})
        there = exam.choice(merged) if merged is not None else None
        if there is not None and not there.ring.fallback and dear(exam.costs(merged), NPS_WORTH):
            advice.insert(0, "NPS1 in the BIOS: with one NUMA node the search finds a ring")
    newest = exam.newest_library()
    if newest is not None:
        there = exam.choice(newest)
        if there is not None and not there.ring.fallback:
            advice.append(f"{there.library.upper()} {there.version} finds a ring here: update")
        elif there is not None:
            advice.append(f"a newer version does not help ({there.library.upper()} {there.version} falls back too)")
    sockets = {box.socket_of(gpu) for gpu in box.gpus}
    if len(sockets) > 1:
        advice.append("tensor parallelism inside one socket: the search then finds a ring")
    return advice
