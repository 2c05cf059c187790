"""What the builders of a step plan share: the strategy's cut, token counts, rank groups, and small constructors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.ops import Array, Axis, Breakdown, CollectiveCall, CollectiveOp, StepOp
from pcie_sim.specs.routing import Popularity
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.specs.strategy import Strategy
from pcie_sim.strategies.legal import Resolved
from pcie_sim.strategies.weights import Cut

Groups = tuple[tuple[int, ...], ...]
_BUCKET: dict[CollectiveOp, Breakdown] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "other",
    "reduce": "other",
    "send_recv": "send_recv",
}


@dataclass(frozen=True, eq=False)
class PlanContext:
    """Everything a builder needs. ``batch`` tokens of a micro-batch, ``batch_dp`` those of one dp rank; same shapes."""

    model: ModelSpec
    resolved: Resolved
    runtime: RuntimeSpec
    cut: Cut
    batch: Array
    batch_dp: Array
    context: Array
    popularity: Popularity

    @property
    def strategy(self) -> Strategy:
        """The strategy itself."""
        return self.resolved.strategy

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one token's hidden state, bf16."""
        return self.model.hidden_size * 2.0

    @property
    def padded(self) -> Array:
        """Tokens of all dp ranks together, each padded to the fullest."""
        return self.batch_dp * self.strategy.dp

    def tp_groups(self, stage: int) -> Groups:
        """Attention tensor-parallel groups of a stage, over all dp ranks and replicas."""
        s = self.strategy
        return tuple(tuple(range(first, first + s.tp)) for base in self._bases(stage) for first in range(base, base + s.tp * s.dp, s.tp))

    def width_groups(self, stage: int) -> Groups:
        """Groups of all tp x dp ranks of a stage, one per replica."""
        width = self.strategy.tp * self.strategy.dp
        return tuple(tuple(range(base, base + width)) for base in self._bases(stage))

    def dcp_groups(self, stage: int) -> Groups:
        """Decode-context-parallel groups: consecutive ranks inside each tp group."""
        size = self.strategy.dcp
        return tuple(group[i : i + size] for group in self.tp_groups(stage) for i in range(0, len(group), size))

    def hop_groups(self, stage: int) -> Groups:
        """Pairs (rank of this stage, rank of the next), all at once."""
        width = self.strategy.tp * self.strategy.dp
        return tuple((rank, rank + width) for base in self._bases(stage) for rank in range(base, base + width))

    def _bases(self, stage: int) -> list[int]:
        s = self.strategy
        return [replica * s.engine_world + stage * s.tp * s.dp for replica in range(s.replicas)]

    def comm(self, name: str, op: CollectiveOp, size: Axis, groups: Groups) -> StepOp:
        """A collective as a line of the plan, booked under its own name."""
        return StepOp(name, _BUCKET[op], CollectiveCall(op, size, groups))

    @staticmethod
    def repeat(op: StepOp, times: float) -> StepOp:
        """The line ``times`` as often."""
        return replace(op, count=op.count * times)

    @staticmethod
    def shifted(op: StepOp, times: float, offset: int) -> StepOp:
        """The line ``times`` as often, its rank groups moved up by ``offset`` (the same layer on a later stage)."""
        call = op.call
        if offset and isinstance(call, CollectiveCall):
            call = replace(call, groups=tuple(tuple(rank + offset for rank in group) for group in call.groups))
        return replace(op, count=op.count * times, call=call)
