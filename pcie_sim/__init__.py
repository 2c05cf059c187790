"""pcie-sim: which parallelism wins on this PCIe box, by how much, at which concurrency, and why.

>>> import pcie_sim as ps
>>> box = ps.load_topology("rtx-pro-6000-8x-2switch")
>>> runs = ps.compare(box, model="kimi-k2.6", strategies=["tp8", "pp8"], concurrency=[1, 8])
>>> [winner.strategy for winner in runs.winners]
['tp8', 'tp8']

Names are resolved on first use (PEP 562), so that ``import pcie_sim`` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pcie_sim.errors import InfeasibleError as InfeasibleError
    from pcie_sim.errors import InputError as InputError
    from pcie_sim.errors import NoDataError as NoDataError
    from pcie_sim.errors import PcieSimError as PcieSimError
    from pcie_sim.study import calibrate as calibrate
    from pcie_sim.study import collective as collective
    from pcie_sim.study import compare as compare
    from pcie_sim.study import flows as flows
    from pcie_sim.study import import_any as import_any
    from pcie_sim.study import load_calibration as load_calibration
    from pcie_sim.study import load_gpu as load_gpu
    from pcie_sim.study import load_model as load_model
    from pcie_sim.study import load_topology as load_topology
    from pcie_sim.study import predict as predict

_HOMES = {
    "InfeasibleError": "pcie_sim.errors",
    "InputError": "pcie_sim.errors",
    "NoDataError": "pcie_sim.errors",
    "PcieSimError": "pcie_sim.errors",
    "calibrate": "pcie_sim.study",
    "collective": "pcie_sim.study",
    "compare": "pcie_sim.study",
    "flows": "pcie_sim.study",
    "import_any": "pcie_sim.study",
    "load_calibration": "pcie_sim.study",
    "load_gpu": "pcie_sim.study",
    "load_model": "pcie_sim.study",
    "load_topology": "pcie_sim.study",
    "predict": "pcie_sim.study",
}

__all__ = [
    "InfeasibleError",
    "InputError",
    "NoDataError",
    "PcieSimError",
    "__version__",
    "calibrate",
    "collective",
    "compare",
    "flows",
    "import_any",
    "load_calibration",
    "load_gpu",
    "load_model",
    "load_topology",
    "predict",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pcie_sim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
