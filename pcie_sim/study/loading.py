"""Names or paths -> boxes, models, GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pcie_sim import catalog
from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.specs.base import build
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.loader import parse_yaml, read_text
from pcie_sim.specs.model import ModelSpec
from pcie_sim.study.arguments import Where, name_text, path_text
from pcie_sim.topology import Topology
from pcie_sim.topology import load_topology as _load_topology

YAML = (".yaml", ".yml")
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}/[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""A model's name on a hub (``Qwen/Qwen3-8B``)."""
FoundT = TypeVar("FoundT")


def hinted(text: str, load: Callable[[], FoundT]) -> FoundT:
    """What ``load`` finds by the name ``text``; where there is no such name but a file, the message says how to mean it.

    Raises:
        UnknownNameError: no such name.
    """
    try:
        return load()
    except UnknownNameError as exc:
        if not catalog.is_path(text) and len(text) < 200 and Path(text).is_file():
            raise UnknownNameError(f"{exc}\nthere is a file of that name: write ./{text}") from exc
        raise


def _hub_error(text: str) -> InputError:
    """A hub's name is no file: the catalog's own name of the model, where it has one."""
    try:
        name = catalog.resolve("models", text.rpartition("/")[2])
    except UnknownNameError as exc:
        return InputError(f"{text}: no such file; if that is a model on a hub, give its config.json, or a name of the catalog\n{exc}")
    return InputError(f"{text}: no such file; the catalog has that model under the name {name}")


def load_topology(name_or_path: Where, *, gpu: str | None = None) -> Topology:
    """A box by its shipped name, from a topology file, or from a file of another program that shows one (``nvidia-smi topo -m``, lspci,
    an NCCL topology dump ...: see :func:`pcie_sim.import_any`); what such a file does not say is among the box's ``assumptions``.

    Args:
        name_or_path: the box.
        gpu: the GPU model where a file of another program does not say it.

    Raises:
        InputError: unknown name (with the nearest three), or a file that is missing, broken, no sound tree, or of no known format.
    """
    text = path_text(name_or_path, "topology")
    if catalog.is_path(text) and not text.lower().endswith(YAML) and Path(text).is_file():
        from pcie_sim.study.imports import box_of_file

        box = box_of_file(text, gpu)
        if box is not None:
            return box
    box = hinted(text, lambda: _load_topology(text))
    if gpu is not None:
        raise InputError(f"--gpu {gpu[:40]}: {box.name} names its GPUs; --gpu is for files of other programs that do not")
    return box


def load_model(name_or_path: Where) -> ModelSpec:
    """A model by its catalog name, from a model file (schema ``pcie-sim/model/1``), or from a Hugging Face ``config.json`` (the file, or
    the folder that holds it); what such a file does not say is among the model's ``notes`` as ``assumed: ...``.

    Raises:
        InputError: unknown name (with the nearest three), or a missing, broken or incomplete file.
    """
    text = path_text(name_or_path, "model")
    if not catalog.is_path(text):
        return hinted(text, lambda: catalog.load_model_spec(text))
    if _HUB.fullmatch(text) and not Path(text).exists():
        raise _hub_error(text)
    if not text.lower().endswith(YAML):
        from pcie_sim.study.imports import model_of_files

        return model_of_files(text)
    content = read_text(text)
    return build(ModelSpec, parse_yaml(content, source=text), source=text, text=content)


def load_gpu(name: str) -> GpuSpec:
    """A GPU by its catalog name.

    Raises:
        InputError: unknown name (with the nearest three).
    """
    return catalog.load_gpu(name_text(name, "GPU"))
