"""Shipped data: GPUs, models, parts, runtimes and profiles as one small YAML file each, found by name.

One file is read per name and kept; a folder is never read as a whole. A name that is no file stem is looked up in the
folder's generated ``_aliases.yaml`` (see :mod:`pcie_sim.catalog.aliases`). Lookup ignores case and takes ``_`` for ``-``.
"""

from __future__ import annotations

from pcie_sim.catalog.load import (
    calibration_names,
    kernel_profile_names,
    load_calibration_profile,
    load_constants,
    load_gpu,
    load_kernel_profile,
    load_model_spec,
    load_part,
    load_runtime,
    load_typed_part,
    using_parts,
    without_replacements,
)
from pcie_sim.catalog.lookup import KINDS, Kind, is_path, names, resolve
from pcie_sim.catalog.shipped import Shipped, shipped_dir, shipped_topology, topology_names

__all__ = [
    "KINDS",
    "Kind",
    "Shipped",
    "calibration_names",
    "is_path",
    "kernel_profile_names",
    "load_calibration_profile",
    "load_constants",
    "load_gpu",
    "load_kernel_profile",
    "load_model_spec",
    "load_part",
    "load_runtime",
    "load_typed_part",
    "names",
    "resolve",
    "shipped_dir",
    "shipped_topology",
    "topology_names",
    "using_parts",
    "without_replacements",
]
