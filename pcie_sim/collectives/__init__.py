"""Schedules free of size and place: who sends which share to whom, after what; each algorithm proves itself.

A new algorithm is one file with a builder under :func:`register`, imported here; every property test then runs over it.
"""

from pcie_sim.collectives import direct, ring
from pcie_sim.collectives.registry import OPS, algorithms, build_schedule, default_algorithm, register
from pcie_sim.collectives.schedule import Schedule, ScheduleError, Transfer

__all__ = [
    "OPS",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "algorithms",
    "build_schedule",
    "default_algorithm",
    "direct",
    "register",
    "ring",
]
