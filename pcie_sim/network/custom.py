"""A serving engine's own AllReduce kernel for small messages: where its rules pick it, and what it costs between two GPUs.

Rules from the runtime's file (world sizes, PCIe limit, largest message, peer access); cost ``t = base + bytes / (share x slowest
link)`` from a part of kind ``all_reduce_kernel`` (ai-dynamo/aiconfigurator, two GPUs in a CUDA graph).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.catalog import load_typed_part
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.network.costs import Amount, amount
from pcie_sim.specs.part import AllReduceKernelPart
from pcie_sim.specs.runtime import CustomAllReduce

if TYPE_CHECKING:
    from pcie_sim.topology import Topology

_PART = "one-shot-kernel"
_PAIR = 2
NAME = "one-shot"
"""How the kernel is called where a protocol is shown."""


@dataclass(frozen=True)
class Kernel:
    """The kernel ready to use: base cost, seconds per byte, its label, and the largest message that takes it."""

    base: Amount
    per_byte: Amount
    most: int
    sources: tuple[str, ...]


def refusal(topology: Topology, groups: Sequence[tuple[str, ...]], custom: CustomAllReduce) -> str | None:
    """Why the engine would not use its kernel for ``groups``; None when it would."""
    ranks = max(len(group) for group in groups)
    if ranks not in custom.world_sizes:
        return f"{ranks} ranks are not among its world sizes"
    pairs = [(a, b) for group in groups for a in group for b in group if a != b]
    nvlink = all(topology.path_type(a, b) == "NVL" for a, b in pairs)
    if ranks > custom.max_pcie_gpus and not nvlink:
        return f"refused above {custom.max_pcie_gpus} GPUs without NVLink"
    if custom.needs_p2p and not _granted(topology, pairs):
        return "no peer access"
    return None


def _granted(topology: Topology, pairs: Sequence[tuple[str, str]]) -> bool:
    """Driver and platform grant peer access to every pair: the engine asks them, not the collective library's level."""
    if topology.settings.ccl.name not in ("nccl", "rccl"):
        return all(topology.transport(a, b).kind == "P2P" for a, b in pairs)
    open_box = topology.with_settings(env={"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "0"})
    return all(open_box.transport(a, b).kind == "P2P" for a, b in pairs)


def kernel(topology: Topology, groups: Sequence[tuple[str, ...]], custom: CustomAllReduce) -> tuple[Kernel | None, tuple[str, ...]]:
    """The kernel for ``groups`` (two GPUs each), or None with a remark when the engine's rules pick one that has no price yet."""
    if refusal(topology, groups, custom) is not None:
        return None, ()
    if any(len(group) != _PAIR for group in groups):
        return None, ("the engine's own AllReduce kernel would run here; it is priced for two GPUs only, the library's used",)
    part = load_typed_part(_PART, AllReduceKernelPart)
    routes = [topology.route(a, b) for a, b in ((*group[:2],) for group in groups) for a, b in ((a, b), (b, a))]
    crowd = Counter(link for route in routes for link in route.links)
    slowest: tuple[float, Amount] | None = None
    for route in routes:
        for link in route.links:
            rate = amount(topology.links[link].rate)
            each = rate.value / crowd[link]
            if slowest is None or each < slowest[0]:
                slowest = (each, rate)
        if route.flow_rate is not None and (slowest is None or route.flow_rate.value < slowest[0]):
            slowest = (route.flow_rate.value, amount(route.flow_rate))
    if slowest is None:
        return None, ()
    share, rate = amount(part.rate_share), slowest[1]
    label: Evidence = weakest((share.evidence, rate.evidence))
    spread = (share.sigma**2 + rate.sigma**2) ** 0.5
    per_byte = Amount(1.0 / (share.value * slowest[0]), spread, label, (*share.sources, *rate.sources))
    base = amount(part.base)
    return Kernel(base, per_byte, custom.max_bytes, (*base.sources, *per_byte.sources, custom.source)), ()
