"""Calibration files (contract ``pcie-sim/calibration/1``, also ``catalog/profiles/``) and the constants that a calibration fits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pcie_sim.evidence import Evidence
from pcie_sim.specs.base import Name, Spec, Text
from pcie_sim.specs.machine import EnvName, NodeName
from pcie_sim.specs.ops import CollectiveOp
from pcie_sim.units import MAX_BYTES

CurveLaunch = Literal["graph", "eager", "threads"]
"""How the calls of a curve were launched: inside a CUDA graph; one by one from one thread; one by one, every GPU from a thread or
process of its own (then the CPU's issue floor of many GPUs does not hold them up)."""
ConstantName = Annotated[str, Field(pattern=r"^[a-z_]+(\.[A-Za-z0-9_]+)?$", max_length=60)]
Positive = Annotated[float, Field(gt=1e-30, lt=1e30)]
Microseconds = Annotated[float, Field(ge=1e-6, le=1e12)]
Sigma = Annotated[float, Field(ge=0, le=10)]
MOST_POINTS = 20_000
"""Points of one curve."""


class InputRef(Spec):
    """One curve or table that went into a calibration: where it came from and what it covers.

    ``sha256`` is the hash of the file's bytes. ``points`` counts what was read of it, ``used`` what the fit saw.
    """

    file: Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    op: Text
    ranks: Annotated[int, Field(ge=1, le=4096)] | None = None
    launch: CurveLaunch | None = None
    ccl: Text | None = None
    points: Annotated[int, Field(ge=0)]
    used: Annotated[int, Field(ge=0)] | None = None
    range_bytes: tuple[float, float] | None = None


class CalibratedParameter(Spec):
    """One constant of the cost model on this box, in ``unit``.

    ``stderr`` is its standard error in the same unit (the parameter is fitted as ln(value): to first order the relative error), null
    where it could not be estimated. ``evidence`` is *fitted* where the measurements narrowed it, else that of its prior.
    """

    name: ConstantName
    value: Positive
    unit: Annotated[str, Field(max_length=20)]
    stderr: Annotated[float, Field(ge=0)] | None
    evidence: Evidence
    prior: Positive | None = None
    prior_stderr: Annotated[float, Field(ge=0)] | None = None
    at_bound: bool = False
    note: Text | None = None

    @property
    def sigma_log(self) -> float | None:
        """Standard error of ln(value)."""
        return None if self.stderr is None else self.stderr / self.value


class MeasuredCurve(Spec):
    """Measured times of one op on some GPUs under one state of the software: answered as they are inside their range.

    ``bytes`` rise; ``time_us`` has the same length; ``sigma_log`` is the spread of ln(time) from run to run. ``p2p``, ``ccl`` and
    ``env`` are the run's own where it says them (null, empty: those of the topology).
    """

    op: CollectiveOp
    ranks: Annotated[int, Field(ge=2, le=4096)]
    launch: CurveLaunch | None
    ccl: Text | None = None
    bytes: Annotated[tuple[Annotated[int, Field(gt=0, le=MAX_BYTES)], ...], Field(min_length=1, max_length=MOST_POINTS)]
    time_us: Annotated[tuple[Microseconds, ...], Field(min_length=1, max_length=MOST_POINTS)]
    sigma_log: Sigma
    gpus: tuple[NodeName, ...] = ()
    """GPU nodes in rank order; empty: the first ones in bus order."""
    p2p: Literal["on", "off"] | None = None
    env: Annotated[dict[EnvName, Text], Field(max_length=500)] = Field(default_factory=dict)
    outliers: tuple[int, ...] = ()
    """Sizes whose times stand far from their neighbours and the model: answered as measured, named, and not fitted."""
    file: Text | None = None

    @model_validator(mode="after")
    def _fits(self) -> MeasuredCurve:
        if len(self.bytes) != len(self.time_us):
            raise ValueError(f"bytes: {len(self.bytes)} sizes but {len(self.time_us)} times")
        if any(a >= b for a, b in zip(self.bytes, self.bytes[1:], strict=False)):
            raise ValueError("bytes: sizes must rise")
        if self.gpus and len(self.gpus) != self.ranks:
            raise ValueError(f"gpus: {len(self.gpus)} names for {self.ranks} ranks")
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError("gpus: a name twice")
        return self


class Misfit(Spec):
    """What the constants leave of the measurements: a smooth relative error with two parts, in standard deviations of ln(time).

    Each part falls off over ``octaves`` of size; what one op teaches of another, one number of ranks of another and one protocol of
    another is in :mod:`pcie_sim.calibration.misfit`. ``scale`` multiplies both and the noise (how this box compares with others).
    """

    sigma_log_by_op: dict[CollectiveOp, Sigma] = Field(default_factory=dict)
    scale: Annotated[float, Field(gt=0, le=100)] = 1.0
    noise: Sigma = 0.03


class CalibratedBox(Spec):
    """The box that was measured. ``id`` is what ``--leave-out`` names besides the file's own name."""

    name: Name
    gpus: Annotated[int, Field(ge=1, le=4096)]
    gpu: Text | None = None
    """GPU models, as ``8x rtx-4090`` (of several kinds: joined by commas)."""
    id: Name | None = None
    healthy: bool = True
    """False: something looked sick; such a box teaches others nothing unless asked for by name."""
    traits: dict[Annotated[str, Field(max_length=40)], Text] = Field(default_factory=dict)
    """What makes two boxes alike: PCIe generation, transport, processor, GPU architecture."""


class CalibrationSpec(Spec):
    """A calibrated box: parameters of the cost model with standard errors, the measured curves, and what the fit leaves."""

    schema_: Literal["pcie-sim/calibration/1"] = Field(alias="schema")
    name: Name | None = None
    title: Text = ""
    sources: tuple[Text, ...] = ()
    topology: CalibratedBox
    prior: Text = "none"
    prior_weights: dict[Name, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    inputs: Annotated[tuple[InputRef, ...], Field(max_length=4096)]
    parameters: Annotated[tuple[CalibratedParameter, ...], Field(max_length=200)]
    correlations: dict[Annotated[str, Field(max_length=130)], Annotated[float, Field(ge=-1, le=1)]] = Field(default_factory=dict)
    """``a ~ b`` -> correlation of the errors of two parameters (of their logarithms), those above 0.05 in size."""
    curves: Annotated[tuple[MeasuredCurve, ...], Field(max_length=2048)] = ()
    residual: Misfit = Misfit()
    warnings: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _names_once(self) -> CalibrationSpec:
        names = [parameter.name for parameter in self.parameters]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"parameters: {twice} is given twice")
        return self

    def value_of(self, name: str) -> CalibratedParameter | None:
        """The parameter of that name."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


class Constant(Spec):
    """One constant that a calibration may fit: where every fit begins and how far boxes lie apart.

    ``spread`` is the standard deviation of ln(value) before any box is known; ``between`` what boxes differ by once some are known.
    ``low`` and ``high`` bound it. ``needs`` names what must be among the measurements for it to matter: an op (``op:all_to_all``), a
    transport (``P2P``, ``SHM``), ``eager`` launches, ``sockets`` (pairs across sockets), ``copies``.
    """

    name: ConstantName
    title: Text
    value: Positive
    unit: Annotated[str, Field(max_length=20)]
    spread: Annotated[float, Field(gt=0, le=5)]
    between: Annotated[float, Field(gt=0, le=5)]
    low: Positive
    high: Positive
    evidence: Evidence
    source: Text
    needs: tuple[Text, ...] = ()
    discrete: bool = False
    """Moves switch points only, so that times jump: chosen from a list of values instead of fitted."""
    ceiling: bool = False
    """A limit that may bind only when it is far lower than expected: a fit also starts from low values of it."""
    sick: Literal["low", "high"] | None = None
    """A value far on this side of the prior looks like a sick box."""


class ConstantsFile(Spec):
    """``catalog/profiles/_constants.yaml``."""

    schema_: Literal["pcie-sim/constants/1"] = Field(alias="schema")
    constants: Annotated[tuple[Constant, ...], Field(min_length=1)]
    eager_shape: dict[int, Positive]
    """Issue floor of eager calls by GPUs, in units of ``floor``."""
    sources: tuple[Text, ...] = ()
