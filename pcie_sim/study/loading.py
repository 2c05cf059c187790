"""Names or paths -> boxes, models, GPUs."""

from __future__ import annotations

from pcie_sim import catalog
from pcie_sim.errors import NoDataError
from pcie_sim.specs.base import build
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.loader import parse_json, parse_yaml, read_text
from pcie_sim.specs.model import ModelSpec
from pcie_sim.study.arguments import Where, name_text, path_text
from pcie_sim.topology import Topology
from pcie_sim.topology import load_topology as _load_topology


def load_topology(name_or_path: Where) -> Topology:
    """A box by its shipped name or from a file.

    Raises:
        InputError: unknown name (with the nearest three), or a file that is missing, broken or not a sound tree.
    """
    return _load_topology(path_text(name_or_path, "topology"))


def load_model(name_or_path: Where) -> ModelSpec:
    """A model by its catalog name or from a model file (schema ``pcie-sim/model/1``).

    Raises:
        InputError: unknown name (with the nearest three), or a missing or broken file.
        NoDataError: a Hugging Face ``config.json``: importing those is not there yet.
    """
    text = path_text(name_or_path, "model")
    if not catalog.is_path(text):
        return catalog.load_model_spec(text)
    content = read_text(text)
    data = parse_json(content, source=text) if text.lower().endswith(".json") else parse_yaml(content, source=text)
    if isinstance(data, dict) and "schema" not in data and ("model_type" in data or "architectures" in data):
        raise NoDataError(f"{text}: a Hugging Face config; importing those is not there yet. Write a model file (see CONTRIBUTING.md)")
    return build(ModelSpec, data, source=text, text=content)


def load_gpu(name: str) -> GpuSpec:
    """A GPU by its catalog name.

    Raises:
        InputError: unknown name (with the nearest three).
    """
    return catalog.load_gpu(name_text(name, "GPU"))
