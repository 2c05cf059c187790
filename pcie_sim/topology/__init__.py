"""The graph of one box: directed full-duplex capacities, routes, path types, transport policy and bus order."""

from pcie_sim.topology.box import Topology
from pcie_sim.topology.capacity import Capacity
from pcie_sim.topology.load import from_spec, load_topology
from pcie_sim.topology.pairs import place_pairs
from pcie_sim.topology.policy import LEVELS, Transport, parse_level
from pcie_sim.topology.routes import Access, PathType, Route

__all__ = [
    "LEVELS",
    "Access",
    "Capacity",
    "PathType",
    "Route",
    "Topology",
    "Transport",
    "from_spec",
    "load_topology",
    "parse_level",
    "place_pairs",
]
