"""Measured rows beside the box they were measured on: shipped sets as things to predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.loader import load_yaml
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.measurement import ArmSpec, MeasuredRow, MeasurementSet, SoftwareRef
from pcie_sim.study.measured import INDEX, load_set
from pcie_sim.topology import Topology, from_spec, load_topology


@dataclass(frozen=True)
class Case:
    """One measured row: its set, and the box, software and conditions that it ran under. ``machine`` is what is left out together:
    sets of one physical box share it (the first source, where a set names no topology).
    """

    held: MeasurementSet
    row: MeasuredRow

    @property
    def arm(self) -> ArmSpec:
        """The row's arm; an empty one where it names none."""
        return self.held.arms[self.row.arm] if self.row.arm is not None else ArmSpec()

    @property
    def software(self) -> SoftwareRef:
        """The software of the run."""
        return self.arm.software or self.held.software

    @property
    def machine(self) -> str:
        """Name of the physical box."""
        return self.held.machine.box or self.held.machine.topology or self.held.id

    @property
    def value(self) -> float:
        """SI value: s or B/s."""
        return self.row.si_value


def cases(kind: str, *, use: tuple[str, ...] = ("score",)) -> list[Case]:
    """All rows of the shipped sets of ``kind`` whose box has a topology, in the order of the index."""
    index = load_yaml(catalog.shipped_dir("validation") / INDEX)["sets"]
    chosen = [entry for entry in index if entry["kind"] == kind and entry["use"] in use and entry["topology"]]
    return [Case(held, row) for entry in chosen for held in (load_set(entry["file"]),) for row in held.rows]


def scored(case: Case) -> bool:
    """Whether the row counts: good or doubtful, and not one that told how the box is wired."""
    return case.row.quality != "unreliable" and not case.row.infers_tree


_SPECS: dict[str, TopologySpec] = {}


def box(case: Case) -> Topology:
    """The row's topology with the settings of the run, built from the parts in force (:func:`pcie_sim.catalog.using_parts`).

    Raises:
        InputError: the set names no topology, or the row GPUs that it does not have.
    """
    name = case.held.machine.topology
    if name is None:
        raise InputError(f"{case.held.id}: no topology, so nothing can be predicted")
    if name not in _SPECS:
        _SPECS[name] = load_topology(name).spec
    run = case.software
    settings: dict[str, Any] = {}
    if run.p2p is not None:
        settings["p2p"] = run.p2p
    if run.acs is not None:
        settings["acs"] = run.acs
    if run.ccl.version is not None:
        settings["ccl"] = f"{run.ccl.name or 'nccl'} {run.ccl.version}"
    if run.env:
        settings["env"] = run.env
    if case.arm.conditions:
        settings["conditions"] = case.arm.conditions
    return from_spec(_SPECS[name], source=name).with_settings(**settings)


def key_of(case: Case) -> tuple[object, ...]:
    """Equal for rows of one box under one software state."""
    run = case.software
    items: Mapping[str, str] = run.env
    state = (run.p2p, run.acs, run.ccl.name, run.ccl.version, tuple(sorted(items.items())))
    return (case.held.machine.topology, state, case.arm.conditions, case.arm.gpus)
