"""JSON Schemas of the file formats, for editors. After a change of a spec: ``python -m pcie_sim.specs.publish``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pcie_sim.specs.calibration import CalibrationSpec, ConstantsFile
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.kernel_profile import KernelProfile
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.measurement import MeasurementSet
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.part import Part
from pcie_sim.specs.runtime import RuntimeSpec

SPECS: dict[str, Any] = {
    "calibration": CalibrationSpec,
    "constants": ConstantsFile,
    "gpu": GpuSpec,
    "kernel-profile": KernelProfile,
    "measurement": MeasurementSet,
    "model": ModelSpec,
    "part": Part,
    "runtime": RuntimeSpec,
    "topology": TopologySpec,
}
"""File kind -> its spec; the schema's file is ``<kind>.schema.json``."""
SCHEMA_DIR = Path(__file__).parent / "schemas"


def schema_text(kind: str) -> str:
    """The JSON Schema (draft 2020-12) of files of ``kind``, as text."""
    schema = TypeAdapter(SPECS[kind]).json_schema(by_alias=True, mode="validation")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"pcie-sim/{kind}/1"}
    return json.dumps({**head, **schema}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas(directory: Path = SCHEMA_DIR) -> tuple[Path, ...]:
    """Write the schema of every kind into ``directory`` and return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in SPECS:
        path = directory / f"{kind}.schema.json"
        path.write_text(schema_text(kind), encoding="utf-8")
        written.append(path)
    return tuple(written)


if __name__ == "__main__":
    write_schemas()
