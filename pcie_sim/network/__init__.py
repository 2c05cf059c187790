"""How long a schedule takes on a topology: max-min sharing, two engines, protocol costs and the library's own choices."""

from pcie_sim.network.call_times import CallTimes, call_times
from pcie_sim.network.ccl_choice import DECODE_BYTES, costly_choices, library_choice
from pcie_sim.network.events import ArrayRun, FlowArrays, FlowRun, FlowSet, simulate, simulate_arrays
from pcie_sim.network.flows import load_flows, run_flows
from pcie_sim.network.flows_on import CopyRates, copy_rates
from pcie_sim.network.flowset import all_pairs, tree_routes
from pcie_sim.network.settings_notes import settings_notes
from pcie_sim.network.sharing import max_min_rates
from pcie_sim.network.timing import rank_order, time_collective

__all__ = [
    "DECODE_BYTES",
    "ArrayRun",
    "CallTimes",
    "CopyRates",
    "FlowArrays",
    "FlowRun",
    "FlowSet",
    "all_pairs",
    "call_times",
    "copy_rates",
    "costly_choices",
    "library_choice",
    "load_flows",
    "max_min_rates",
    "rank_order",
    "run_flows",
    "settings_notes",
    "simulate",
    "simulate_arrays",
    "time_collective",
    "tree_routes",
]
