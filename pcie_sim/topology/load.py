"""From a shipped name, a path or a spec to a :class:`~pcie_sim.topology.Topology`."""

from __future__ import annotations

import os
from pathlib import Path

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.base import build
from pcie_sim.specs.loader import parse_json, parse_yaml, read_text
from pcie_sim.specs.machine import MAX_NODES, MOST_VALUES, TopologySpec
from pcie_sim.topology.box import Topology
from pcie_sim.topology.tree import Where, check_raw


def load_topology(name_or_path: str | os.PathLike[str]) -> Topology:
    """The box described by a shipped name (``rtx-pro-6000-8x-2switch``) or by a file (YAML, or ``.json``).

    Text with ``/`` or ending in .yaml .yml .json .txt .xml .log is a path, anything else a name.

    Raises:
        InputError: no such name or file, a broken file, a broken tree, an unknown part; names file, line and key.
        NoDataError: something the format has but no model yet (several hosts, fabrics, a generation without data).
    """
    if isinstance(name_or_path, str) and not catalog.is_path(name_or_path):
        path = catalog.shipped_topology(name_or_path)
    else:
        path = Path(name_or_path)
        _offer_shipped(path)
    source = os.fspath(path)
    text = read_text(path)
    if source.lower().endswith(".json"):
        data = parse_json(text, source=source)
    else:
        data = parse_yaml(text, source=source, most=(MOST_VALUES, f"a box has at most {MAX_NODES} nodes"))
    where = Where(source, text)
    check_raw(data, where)
    return Topology(build(TopologySpec, data, source=source, text=text), where)


def _offer_shipped(path: Path) -> None:
    """A missing file that is called like a shipped box: names of those take no ending.

    Raises:
        InputError: names the box.
    """
    name = path.stem.lower().replace("_", "-")
    if path.suffix and name in catalog.topology_names() and not path.exists():
        raise InputError(f"{path}: no such file; the shipped box of that name is called {name}, without folder and ending")


def from_spec(spec: TopologySpec, *, source: str = "<spec>") -> Topology:
    """The box of ``spec``; ``source`` is named in messages.

    Raises:
        InputError, NoDataError: as :func:`load_topology`.
    """
    return Topology(spec, Where(source))
