"""Step plans -> TPOT and throughput against concurrency; memory fit; micro-batches."""

from pcie_sim.serving.evaluate import StrategyResult as StrategyResult
from pcie_sim.serving.evaluate import evaluate as evaluate
from pcie_sim.serving.memory import Capacity as Capacity
from pcie_sim.serving.memory import capacity as capacity

__all__ = ["Capacity", "StrategyResult", "capacity", "evaluate"]
