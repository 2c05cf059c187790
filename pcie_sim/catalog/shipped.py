"""Where ``topologies/`` and ``validation/`` are: inside the installed package, else beside it (a checkout)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pcie_sim.catalog.lookup import is_name, normalise, stems
from pcie_sim.errors import unknown_name

PACKAGE = Path(__file__).parents[1]
Shipped = Literal["topologies", "validation"]


def shipped_dir(kind: Shipped) -> Path:
    """The folder of the shipped topologies or measurements; it may be missing in a broken installation."""
    inside = PACKAGE / "_shipped" / kind
    return inside if inside.is_dir() else PACKAGE.parent / kind


def topology_names() -> tuple[str, ...]:
    """Names of the shipped topologies, sorted. Lists the folder, reads no file."""
    return stems(shipped_dir("topologies"))


def shipped_topology(name: str) -> Path:
    """The file of the shipped topology of that name (any case, ``_`` for ``-``).

    Raises:
        UnknownNameError: no such topology; the message offers the nearest three.
    """
    key = normalise(name)
    path = shipped_dir("topologies") / f"{key}.yaml"
    if not is_name(key) or not path.is_file():
        raise unknown_name("topology", name[:80], topology_names(), command="pcie-sim topology list")
    return path
