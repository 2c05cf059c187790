"""The published JSON Schemas are those of the code, and the shipped files point at them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pcie_sim.catalog import KINDS, Kind, kernel_profile_names, names
from pcie_sim.catalog.lookup import file_of
from pcie_sim.specs.loader import load_yaml
from pcie_sim.specs.publish import SCHEMA_DIR, SPECS, schema_text, write_schemas

SCHEMA_OF = {"gpus": "gpu", "models": "model", "parts": "part", "runtimes": "runtime"}


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_schemas_are_fresh(kind: str) -> None:
    published = (SCHEMA_DIR / f"{kind}.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(kind), "run: python -m pcie_sim.specs.publish"


def test_all_are_written(tmp_path: Path) -> None:
    written = write_schemas(tmp_path / "new")
    assert sorted(path.name for path in written) == sorted(path.name for path in SCHEMA_DIR.iterdir())


@pytest.mark.parametrize("kind", sorted(set(SPECS) - {"part"}))
def test_editors_see_the_schema_key_and_no_unknown_ones(kind: str) -> None:
    schema = json.loads(schema_text(kind))
    assert schema["properties"]["schema"]["const"] == f"pcie-sim/{kind}/1"
    assert "schema" in schema["required"]
    assert schema["additionalProperties"] is False


def schema_of(kind: Kind, name: str) -> str:
    """The schema of a catalog file: the folder of profiles holds kernel profiles, calibrations of boxes and the constants."""
    if kind != "profiles":
        return SCHEMA_OF[kind]
    if name == "_constants":
        return "constants"
    return "kernel-profile" if name in kernel_profile_names() else "calibration"


FILES = [(kind, name) for kind in KINDS for name in (*names(kind), *(["_constants"] if kind == "profiles" else []))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_line_points_at_the_right_file(kind: Kind) -> None:
    for name in [name for other, name in FILES if other == kind]:
        path = file_of(kind, name)
        first = path.read_text(encoding="utf-8").splitlines()[0]
        if "$schema=" in first:
            target = (path.parent / first.split("$schema=")[1].strip()).resolve()
            assert target == (SCHEMA_DIR / f"{schema_of(kind, name)}.schema.json").resolve()


@pytest.mark.parametrize("name", [*names("profiles"), "_constants"])
def test_a_profile_says_the_schema_that_its_name_promises(name: str) -> None:
    """A kernel profile is one whose name begins with kernels-: the file itself must agree."""
    said = load_yaml(file_of("profiles", name))["schema"]
    assert said == f"pcie-sim/{schema_of('profiles', name)}/1"
