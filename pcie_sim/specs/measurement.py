"""Measured runs as data files (``validation/<id>/*.yaml``, contract ``pcie-sim/measurement/1``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pcie_sim.specs.base import Name, Spec, Text

Quality = Literal["good", "doubtful", "unreliable"]


class MachineRef(Spec):
    """The box: ``topology`` null when its tree is unknown."""

    topology: Name | None = None
    topology_evidence: Literal["measured", "assumed"] | None = None
    gpus: Annotated[int, Field(ge=1, le=4096)]
    gpu: Name | None = None
    notes: tuple[Text, ...] = ()


class CclRef(Spec):
    """Collective library; null parts are unknown."""

    name: Text | None = None
    version: Text | None = None


class SoftwareRef(Spec):
    """Software state of the run; null = unknown."""

    runtime: Text | None = None
    runtime_version: Text | None = None
    ccl: CclRef = CclRef()
    driver: Text | None = None
    cuda: Text | None = None
    env: dict[str, str] = Field(default_factory=dict)
    p2p: Literal["on", "off"] | None = None
    acs: Literal["on", "off"] | None = None
    iommu: Literal["on", "off"] | None = None
    options: dict[str, str] = Field(default_factory=dict)
    """Launch options of the engine, as given."""


class ArmSpec(Spec):
    """One configuration that was measured."""

    model: Name | None = None
    strategy: Text | None = None
    quantisation: Text | None = None
    kv_dtype: Text | None = None
    context: float | None = None
    context_range: tuple[float, float] | None = None
    """Where the context is not stated: between what and what it must have been. Predictions outside are not compared."""
    prompt: float | None = None
    output: float | None = None
    speculation: Text | None = None
    all_reduce: Text | None = None
    launch: Literal["graph", "eager"] | None = None
    software: SoftwareRef | None = None
    """Where it differs from the set's."""
    notes: tuple[Text, ...] = ()


UNITS: dict[str, dict[str, float]] = {
    "tpot": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "step_time": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "ttft": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "output_tokens_per_s": {"tok/s": 1.0},
    "user_tokens_per_s": {"tok/s": 1.0},
    "rate": {"GB/s": 1e9, "MB/s": 1e6, "B/s": 1.0},
}
"""Units that each metric may be given in, as factors to SI (s, tokens per second, B/s)."""


class MeasuredRow(Spec):
    """One measured value: serving rows name an arm and a concurrency (null: unknown, kept but not scored), collective rows
    an op, ranks and bytes.
    """

    arm: Text | None = None
    concurrency: Annotated[float, Field(gt=0)] | None = None
    context: float | None = None
    op: Text | None = None
    ranks: Annotated[int, Field(ge=1, le=4096)] | None = None
    bytes: Annotated[int, Field(ge=0)] | None = None
    launch: Literal["graph", "eager"] | None = None
    in_place: bool | None = None
    metric: Literal["tpot", "step_time", "ttft", "output_tokens_per_s", "user_tokens_per_s", "time", "rate"]
    value: Annotated[float, Field(gt=0)]
    unit: Annotated[str, Field(max_length=20)]
    quality: Quality
    note: Text | None = None

    @model_validator(mode="after")
    def _unit_fits(self) -> MeasuredRow:
        known = UNITS[self.metric]
        if self.unit not in known:
            raise ValueError(f"{self.metric} in {self.unit!r}: give it in {', '.join(known)}")
        return self

    @property
    def si_value(self) -> float:
        """The value in seconds, tokens per second or B/s."""
        return self.value * UNITS[self.metric][self.unit]


class MeasurementSet(Spec):
    """One set of measurements of one box."""

    schema_: Literal["pcie-sim/measurement/1"] = Field(alias="schema")
    id: Name
    kind: Literal["serving", "collective", "copy", "kernel"]
    use: Literal["score", "ratio", "calibrate", "context"]
    title: Text = ""
    sources: Annotated[tuple[Text, ...], Field(min_length=1)]
    machine: MachineRef
    software: SoftwareRef = SoftwareRef()
    arms: dict[str, ArmSpec] = Field(default_factory=dict)
    rows: Annotated[tuple[MeasuredRow, ...], Field(min_length=1, max_length=100_000)]
    notes: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _arms_exist(self) -> MeasurementSet:
        for number, row in enumerate(self.rows):
            if row.arm is not None and row.arm not in self.arms:
                raise ValueError(f"rows.{number}: arm {row.arm!r} is not among arms ({', '.join(self.arms)})")
            if self.kind == "serving" and row.arm is None:
                raise ValueError(f"rows.{number}: a serving row needs an arm")
            if self.kind == "collective" and (row.op is None or row.ranks is None or row.bytes is None):
                raise ValueError(f"rows.{number}: a collective row needs op, ranks and bytes")
        return self
