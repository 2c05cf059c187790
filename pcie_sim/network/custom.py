"""A serving engine's own AllReduce kernel for small messages: where its rules pick it, and which of its two forms.

Rules from the runtime's file (world sizes, PCIe limit, largest message, peer access, one exchange or two); the price is that of the
one-shot and two-shot schedules, whose costs stand in a part of kind ``all_reduce_kernel``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.network.analytic import Lines, solve
from pcie_sim.network.placement import Placement, place
from pcie_sim.specs.ops import Array
from pcie_sim.specs.runtime import CustomAllReduce

if TYPE_CHECKING:
    import numpy as np

    from pcie_sim.topology import Topology

_PAIR = 2
ONE_SHOT, TWO_SHOT = "one-shot", "two-shot"
"""How the kernel's two forms are called where a protocol is shown."""


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


@dataclass(frozen=True)
class Kernel:
    """The kernel ready to use: its placement and lines by the sizes that take it (one exchange up to ``one_shot_below`` bytes, two
    above), and the largest message.
    """

    one_shot: Placement
    two_shot: Placement
    one_shot_below: float
    most: int
    source: str

    def pieces(self, size: Array) -> list[tuple[str, np.ndarray, Placement, Lines]]:
        """(name, mask, placement, lines) of the sizes that the engine's rules give it."""
        first = (size <= self.most) & (size <= self.one_shot_below)
        second = (size <= self.most) & ~first
        ways = (ONE_SHOT, first, self.one_shot), (TWO_SHOT, second, self.two_shot)
        return [(name, mask, placed, solve(placed, "Simple")) for name, mask, placed in ways if mask.any()]


def kernel(topology: Topology, groups: Sequence[tuple[str, ...]], custom: CustomAllReduce) -> Kernel | None:
    """The engine's kernel for ``groups``, or None where its rules do not pick it."""
    if refusal(topology, groups, custom) is not None:
        return None
    ranks = max(len(group) for group in groups)
    below = math.inf if ranks == _PAIR else min((size for most, size in custom.one_stage_below.items() if ranks <= most), default=0)
    shots = [place(topology, "all_reduce", groups, algorithm=f"{way}_shot_pull") for way in ("one", "two")]
    return Kernel(shots[0], shots[1], below, custom.max_bytes, custom.source)
