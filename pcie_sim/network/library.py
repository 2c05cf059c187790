"""The collective library's own choices: protocol and channels, from its environment and from what it believes of the box.

A simplified stand-in for NCCL's graph search (NVIDIA/nccl:src/graph/search.cc, tuning.cc): the ring in bus order is taken, its
bandwidth is the smallest of the library's constants along it, and the protocol with the least *believed* time wins. The time
itself never comes from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pcie_sim.catalog import load_typed_part
from pcie_sim.errors import InputError, unknown_name
from pcie_sim.specs.part import LibraryTuning, Protocol, SocketPart, SwitchPart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pcie_sim.specs.gpu import PcieLink
    from pcie_sim.topology import Route, Topology

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
_BY_LOWER: Mapping[str, Protocol] = {name.lower(): name for name in PROTOCOLS}
_OPS_IN_ENV = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


@dataclass(frozen=True)
class Beliefs:
    """What the library thinks of one ring: bandwidth of all search channels together (B/s), channels it ends up with, kind of
    link for its latency tables, and remarks.
    """

    rate: float
    channels: int
    medium: Literal["pcie", "nvlink"]
    notes: tuple[str, ...]


def parse_protocol(text: str) -> Protocol | Literal["auto"]:
    """``auto``, ``LL``, ``LL128`` or ``Simple`` in any case.

    Raises:
        UnknownNameError: none of them.
    """
    low = text.lower()
    if low == "auto":
        return "auto"
    if low not in _BY_LOWER:
        raise unknown_name("protocol", text, ("auto", *PROTOCOLS))
    return _BY_LOWER[low]


def env_list(text: str, op: str) -> tuple[list[str], bool]:
    """The names in an NCCL_ALGO or NCCL_PROTO value that hold for ``op``, and whether they are excluded (``^``).

    From NCCL 2.24 a value may be a list per function: ``allreduce:LL;broadcast:Simple`` (a first entry without a function holds
    for all).
    """
    chosen: tuple[list[str], bool] = ([], False)
    for entry in text.split(";"):
        head, colon, rest = entry.partition(":")
        if colon and _OPS_IN_ENV.get(head.strip().lower()) != op:
            continue
        names = (rest if colon else entry).strip()
        excluded = names.startswith("^")
        chosen = ([name.strip() for name in names.lstrip("^").split(",") if name.strip()], excluded)
    return chosen


def allowed_protocols(env: Mapping[str, str], op: str) -> tuple[tuple[Protocol, ...], tuple[str, ...]]:
    """Protocols that may be picked on PCIe for ``op``, and remarks. LL128 only when NCCL_PROTO lists it (it is off on PCIe)."""
    default: tuple[Protocol, ...] = ("LL", "Simple")
    text = env.get("NCCL_PROTO")
    if not text or not text.strip():
        return default, ()
    names, excluded = env_list(text, op)
    unknown = [name for name in names if name.lower() not in _BY_LOWER]
    notes = (f"NCCL_PROTO={text[:40]}: {', '.join(unknown)[:40]} is not a protocol, ignored",) if unknown else ()
    listed = {_BY_LOWER[name.lower()] for name in names if name.lower() in _BY_LOWER}
    if not listed:
        return default, notes
    kept = tuple(name for name in PROTOCOLS if (name not in listed and name != "LL128" if excluded else name in listed))
    if not kept:
        return default, (*notes, f"NCCL_PROTO={text[:40]} leaves no protocol, ignored")
    return kept, notes


def algorithm_notes(env: Mapping[str, str], op: str, used: str) -> tuple[str, ...]:
    """Remarks when NCCL_ALGO asks for something else than the algorithm used."""
    text = env.get("NCCL_ALGO")
    if not text or not text.strip() or op in ("all_to_all", "send_recv"):
        return ()
    names, excluded = env_list(text, op)
    low = [name.lower() for name in names]
    if not low or (used in low) != excluded:
        return ()
    wanted = f"without {', '.join(low)}" if excluded else ", ".join(low)
    return (f"NCCL_ALGO={text[:40]}: {wanted[:40]} not modelled yet, {used} used",)


def beliefs(topology: Topology, tuning: LibraryTuning, routes: Sequence[Route]) -> Beliefs:
    """What the library believes of a ring over ``routes``."""
    notes: list[str] = []
    nvlink = bool(routes) and all(route.path_type == "NVL" for route in routes)
    rate = min((_route_rate(topology, tuning, route) for route in routes), default=tuning.fallback_rate)
    channels = 2
    if not nvlink and any(route.path_type == "SYS" for route in routes):
        # between NUMA nodes one search channel of the fastest rate that fits; within one, two of half the link's
        fits = [speed for speed in _search_rates(topology, tuning) if speed <= rate]
        if fits:
            channels = max(1, int(rate // fits[0]))
            rate = fits[0] * channels
        else:
            notes.append(
                f"the library's ring search finds nothing here ({rate / 1e9:.3g} GB/s between NUMA nodes is below its slowest rate): "
                f"it falls back to one channel of {tuning.fallback_rate / 1e9:.3g} GB/s and so leaves LL too early"
            )
            channels, rate = 1, tuning.fallback_rate
    final = 2 * channels  # the library doubles what its search found (NVIDIA/nccl:src/graph/connect.cc)
    env = topology.settings.env
    final = max(final, _count(env, ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"), 1))
    final = min(final, _count(env, ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"), 64))
    return Beliefs(rate, final, "nvlink" if nvlink else "pcie", tuple(notes))


def _count(env: Mapping[str, str], keys: Sequence[str], default: int) -> int:
    for key in keys:
        text = env.get(key, "").strip()
        if not text:
            continue
        if not re.fullmatch(r"\d{1,4}", text) or not 1 <= int(text) <= 64:
            raise InputError(f"{key}={text[:20]!r}: expected a whole number from 1 to 64")
        return int(text)
    return default


def _search_rates(topology: Topology, tuning: LibraryTuning) -> tuple[float, ...]:
    newest = (0, 0)
    for gpu in topology.gpus:
        match = re.match(r"(\d+)\.(\d+)", topology.gpu_spec(gpu).compute_capability)
        if match:
            newest = max(newest, (int(match.group(1)), int(match.group(2))))
    rates: tuple[float, ...] = ()
    for key, row in sorted(tuning.search_rates.items(), key=lambda item: float(item[0])):
        major, _, minor = key.partition(".")
        if newest >= (int(major), int(minor or 0)) or not rates:
            rates = row
    return rates


def _route_rate(topology: Topology, tuning: LibraryTuning, route: Route) -> float:
    rates: list[float] = []
    for name in dict.fromkeys(route.links):
        node, _, direction = name.rpartition(".")
        if direction in ("up", "dn"):
            link = _port(topology, node)
            if link is not None:
                rates.append(tuning.lane_rate.get(link.gen, tuning.lane_rate[max(tuning.lane_rate)]) * link.width)
        elif direction in ("fwd", "rev") and route.path_type == "NVL":
            rates.append(topology.links[name].rate.value)
    if route.path_type == "SYS":
        rates.append(_socket_rate(topology, tuning))
    return min(rates, default=tuning.fallback_rate)


def _socket_rate(topology: Topology, tuning: LibraryTuning) -> float:
    found: list[float] = []
    for node in topology.spec.nodes.values():
        if node.kind == "socket" and node.part is not None:
            part = load_typed_part(node.part, SocketPart)
            found.append(tuning.socket_rate.get(part.name, tuning.socket_rate.get(part.vendor, tuning.socket_rate["other"])))
    return min(found, default=tuning.socket_rate["other"])


def _port(topology: Topology, name: str) -> PcieLink | None:
    node = topology.spec.nodes[name]
    if node.link is not None:
        return node.link
    if node.kind == "gpu":
        return topology.gpu_spec(name).pcie
    if node.kind == "switch" and node.part is not None:
        return load_typed_part(node.part, SwitchPart).upstream
    return None


def believed_steps(op: str, ranks: int) -> int:
    """Ring steps in the library's model (``nsteps``)."""
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op, ranks)


def believed_time(
    tuning: LibraryTuning, thinks: Beliefs, op: str, ranks: int, protocol: Protocol, size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds by NVIDIA/nccl:src/graph/tuning.cc for a ring on one node: base + nsteps x step + bytes / algBw."""
    steps = believed_steps(op, ranks)
    moves = steps if op in ("all_reduce", "all_gather", "reduce_scatter") else 1
    latency = tuning.base_latency[protocol] + moves * tuning.step_latency[thinks.medium][protocol]
    alg_rate = thinks.rate * tuning.wire_share[protocol] * ranks / steps
    return latency + size / alg_rate


def choose(
    topology: Topology,
    tuning: LibraryTuning | None,
    thinks: Beliefs | None,
    op: str,
    ranks: int,
    size: NDArray[np.float64],
    *,
    largest_send: float,
    protocol: str = "auto",
) -> tuple[list[Protocol], NDArray[np.int64], tuple[str, ...]]:
    """The protocol for each size: candidates, index into them (same shape as ``size``), and remarks.

    Args:
        largest_send: all_to_all and send_recv: the largest message to one peer, as a share of ``size``.
        protocol: what the caller insists on, or ``auto``.
    """
    import numpy as np

    asked = parse_protocol(protocol)
    if asked != "auto":
        return [asked], np.zeros(size.shape, dtype=np.int64), ()
    if tuning is None or thinks is None:
        return ["Simple"], np.zeros(size.shape, dtype=np.int64), ()
    if op in ("all_to_all", "send_recv"):
        threshold = _threshold(topology.settings.env, tuning)
        return ["LL", "Simple"], (size * largest_send > threshold).astype(np.int64), ()
    candidates, notes = allowed_protocols(topology.settings.env, op)
    if len(candidates) == 1:
        return list(candidates), np.zeros(size.shape, dtype=np.int64), (*thinks.notes, *notes)
    times = np.stack([believed_time(tuning, thinks, op, ranks, name, size) for name in candidates])
    return list(candidates), np.argmin(times, axis=0), (*thinks.notes, *notes)


def _threshold(env: Mapping[str, str], tuning: LibraryTuning) -> float:
    text = env.get("NCCL_P2P_LL_THRESHOLD", "").strip()
    if not text:
        return tuning.p2p_ll_threshold
    if not re.fullmatch(r"\d{1,12}", text):
        raise InputError(f"NCCL_P2P_LL_THRESHOLD={text[:20]!r}: expected a whole number of bytes")
    # the variable counts one of the two parts into which a message is cut; the part file's number the whole message
    return 2.0 * float(text)
