"""The verbs of the Python API.

What reads other programs' files (:mod:`pcie_sim.study.imports`) is loaded on first use, so that a comparison of named things stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcie_sim.study.loading import load_gpu as load_gpu
from pcie_sim.study.loading import load_model as load_model
from pcie_sim.study.loading import load_topology as load_topology
from pcie_sim.study.verbs import collective as collective
from pcie_sim.study.verbs import compare as compare
from pcie_sim.study.verbs import flows as flows
from pcie_sim.study.verbs import predict as predict

if TYPE_CHECKING:
    from pcie_sim.study.calibrating import calibrate as calibrate
    from pcie_sim.study.calibrating import load_calibration as load_calibration
    from pcie_sim.study.imports import ImportResult as ImportResult
    from pcie_sim.study.imports import import_any as import_any
    from pcie_sim.study.imports import load_box as load_box

__all__ = [
    "ImportResult",
    "calibrate",
    "collective",
    "compare",
    "flows",
    "import_any",
    "load_box",
    "load_calibration",
    "load_gpu",
    "load_model",
    "load_topology",
    "predict",
]


def __getattr__(name: str) -> object:
    if name in ("ImportResult", "import_any", "load_box"):
        from pcie_sim.study import imports

        return getattr(imports, name)
    if name in ("calibrate", "load_calibration"):
        from pcie_sim.study import calibrating

        return getattr(calibrating, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
