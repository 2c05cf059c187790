"""The doctor: what is wrong with a box, with evidence, cost and advice."""

from pcie_sim.doctor.diagnose import checks as checks
from pcie_sim.doctor.diagnose import diagnose as diagnose

__all__ = ["checks", "diagnose"]
