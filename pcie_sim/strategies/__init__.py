"""Model + strategy -> step plan: ordered compute and communication per rank, and weights and KV per rank. Knows no link."""

from pcie_sim.strategies.legal import Resolved as Resolved
from pcie_sim.strategies.legal import pipeline_split as pipeline_split
from pcie_sim.strategies.legal import resolve as resolve
from pcie_sim.strategies.plan import Stage as Stage
from pcie_sim.strategies.plan import StepPlan as StepPlan
from pcie_sim.strategies.plan import build_plan as build_plan
from pcie_sim.strategies.weights import kv_bytes_per_request as kv_bytes_per_request
from pcie_sim.strategies.weights import rank_weights as rank_weights

__all__ = ["Resolved", "Stage", "StepPlan", "build_plan", "kv_bytes_per_request", "pipeline_split", "rank_weights", "resolve"]
