"""Our own files (topology, model, measurement), so that they may stand among others."""

from __future__ import annotations

import re

from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import SourceText
from pcie_sim.specs.base import build
from pcie_sim.specs.loader import parse_json, parse_yaml
from pcie_sim.specs.machine import MAX_NODES, MOST_VALUES, TopologySpec
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.specs.model import ModelSpec

_SCHEMA = re.compile(
    r"""^[ \t{]{0,20}["']?schema["']?[ \t]{0,20}:[ \t]{0,20}["']?pcie-sim/([a-z-]{1,30})/([0-9]{1,3})["']?""", re.MULTILINE
)
_IN_JSON = re.compile(r"""[{,]\s{0,200}"schema"\s{0,20}:\s{0,20}"pcie-sim/([a-z-]{1,30})/([0-9]{1,3})\"""")
_HEAD = 200_000
_KINDS = ("topology", "model", "measurement")


def sniff(source: SourceText) -> int | None:
    """The line of ``schema: pcie-sim/...``."""
    match = _found(source)
    return source.raw.count("\n", 0, match.start(1)) + 1 if match is not None else None


def _found(source: SourceText) -> re.Match[str] | None:
    head = source.raw[:_HEAD]
    return _IN_JSON.search(head) if head.lstrip("\ufeff \t\r\n").startswith("{") else _SCHEMA.search(head)


@importer("pcie-sim", "pcie-sim files", sniff=sniff, whole=True)
def read(source: SourceText) -> Imported:
    """The spec in the file.

    Raises:
        InputError: another schema than topology, model or measurement, or a broken file.
    """
    match = _found(source)
    kind = match.group(1) if match is not None else ""
    if kind not in _KINDS:
        raise source.error(f"a file of schema pcie-sim/{kind}; here belongs one of {', '.join(_KINDS)}", sniff(source))
    if not source.complete:
        raise source.error("too large for a file of this kind")
    if source.raw.lstrip("\ufeff \t\r\n").startswith("{"):
        data = parse_json(source.raw, source=source.name)
    else:
        most = (MOST_VALUES, f"a box has at most {MAX_NODES} nodes") if kind == "topology" else None
        data = parse_yaml(source.raw, source=source.name, most=most)
    text = source.raw
    if kind == "topology":
        return Imported(source.name, ("pcie-sim",), topology=build(TopologySpec, data, source=source.name, text=text))
    if kind == "model":
        return Imported(source.name, ("pcie-sim",), model=build(ModelSpec, data, source=source.name, text=text))
    measured = build(MeasurementSet, data, source=source.name, text=text)
    return Imported(source.name, ("pcie-sim",), measurements=(measured,))
