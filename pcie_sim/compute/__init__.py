"""How long a kernel takes: roofline with fitted efficiencies."""

from __future__ import annotations

from pcie_sim.compute.model import NOMINAL, KernelModel, KernelTime, class_key, kernel_model
from pcie_sim.compute.work import bytes_moved, flops

__all__ = ["NOMINAL", "KernelModel", "KernelTime", "bytes_moved", "class_key", "flops", "kernel_model"]
