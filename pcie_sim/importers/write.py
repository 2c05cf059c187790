"""Topology and model files as text, laid out as people write them: one node a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pcie_sim.specs.dumper import flow
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.model import ModelSpec


def topology_text(spec: TopologySpec) -> str:
    """The file of ``spec`` (schema ``pcie-sim/topology/1``). Reading it back gives an equal spec."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    lines = [f"{key}: {flow(data[key])}" for key in ("schema", "name", "title") if key in data]
    lines += _listed("sources", data)
    lines.append("nodes:")
    lines += [f"  {name}: {flow(node)}" for name, node in data["nodes"].items()]
    lines += _listed("peers", data)
    settings = spec.settings.model_dump(mode="json", exclude_none=True)
    lines.append(f"settings: {flow({key: value for key, value in settings.items() if value != [] or key == 'env'})}")
    lines += _listed("assumptions", data)
    lines += _listed("notes", data)
    return "\n".join(lines) + "\n"


def model_text(spec: ModelSpec) -> str:
    """The file of ``spec`` (schema ``pcie-sim/model/1``). Reading it back gives an equal spec."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    lines: list[str] = []
    for key, value in data.items():
        if key in ("provenance", "notes", "aliases") or not isinstance(value, Mapping):
            lines += _listed(key, data) if isinstance(value, list) else [f"{key}: {flow(value)}"]
        elif any(isinstance(item, Mapping) for item in value.values()):
            lines.append(f"{key}:")
            lines += [f"  {name}: {flow(item)}" for name, item in value.items()]
        else:
            lines.append(f"{key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def _listed(key: str, data: Mapping[str, Any]) -> list[str]:
    items = data.get(key) or []
    return [f"{key}:", *(f"- {flow(item)}" for item in items)] if items else []
