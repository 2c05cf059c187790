"""The verbs of the Python API."""

from pcie_sim.study.loading import load_gpu as load_gpu
from pcie_sim.study.loading import load_model as load_model
from pcie_sim.study.loading import load_topology as load_topology
from pcie_sim.study.verbs import collective as collective
from pcie_sim.study.verbs import compare as compare
from pcie_sim.study.verbs import flows as flows
from pcie_sim.study.verbs import predict as predict

__all__ = ["collective", "compare", "flows", "load_gpu", "load_model", "load_topology", "predict"]
