"""Schedules free of size and place: who sends which share to whom, after what; each algorithm proves itself.

A new algorithm is a builder under :func:`register` in a file imported here; every property test then runs over it.
"""

from pcie_sim.collectives import direct, halving, hierarchical, ring, shots, tree
from pcie_sim.collectives.registry import MOST_CHUNKS, OPS, Groups, algorithms, build_schedule, default_algorithm, options_of, register
from pcie_sim.collectives.schedule import Schedule, ScheduleError, Transfer
from pcie_sim.collectives.trees import PIPELINE_CHUNKS

__all__ = [
    "MOST_CHUNKS",
    "OPS",
    "PIPELINE_CHUNKS",
    "Groups",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "algorithms",
    "build_schedule",
    "default_algorithm",
    "direct",
    "halving",
    "hierarchical",
    "options_of",
    "register",
    "ring",
    "shots",
    "tree",
]
