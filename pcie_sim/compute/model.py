"""How long a kernel takes on a GPU: one roofline per kernel class, with the efficiencies of the GPU's profile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pcie_sim.catalog import load_kernel_profile
from pcie_sim.compute.roofline import TERMS, Efficiencies, combine, terms
from pcie_sim.compute.work import work_of
from pcie_sim.errors import NoDataError
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.specs.base import DEFAULT_SIGMA_LOG
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.kernel_profile import KernelClassFit, KernelProfile
from pcie_sim.specs.ops import (
    Array,
    BatchedGemm,
    DecodeAttention,
    Elementwise,
    Experts,
    Gemm,
    KernelCall,
    LinearAttentionStep,
    Sampling,
)

NOMINAL = "kernels-nominal"
"""The profile that answers for GPUs, and for classes, that no table covers."""

Launch = Literal["graph", "eager"]

_SAME = {"gemm:fp16": "gemm:bf16", "experts:fp16": "experts:bf16"}
"""Classes that run the same kernels at the same speed (fp16 and bf16 share tensor-core rates)."""

_KIN: dict[str, tuple[str, ...]] = {
    # one-byte weights: same bytes, another kernel
    "gemm:int8": ("gemm:fp8",),
    "experts:fp8": ("experts:fp8_block",),
    "experts:fp8_block": ("experts:fp8",),
    "experts:int8": ("experts:fp8", "experts:fp8_block"),
    # four-bit weights: Marlin also serves NVFP4 and MXFP4 where the matrix unit has no fp4
    "experts:nvfp4": ("experts:int4",),
    "experts:mxfp4": ("experts:int4",),
    "attention:mla:fp8": ("attention:mla",),
    "attention:gqa:fp8": ("attention:gqa",),
}
"""Nearest fitted class of the same GPU when a class has no table of its own; its label then drops to nominal."""


@dataclass(frozen=True)
class KernelTime:
    """Time of a call.

    ``time_s`` and ``sigma_log`` (standard deviation of ln(true/predicted)) have the call's broadcast shape. ``extrapolated``: bytes
    moved outside what the fit covered. ``bound``: what takes most of the time over the whole array: memory, compute, items,
    serial, fixed or launch.
    """

    time_s: Array
    evidence: Evidence
    sigma_log: Array
    extrapolated: NDArray[np.bool_]
    bound: str


def class_key(call: KernelCall) -> str:
    """The profile key of ``call``'s kernel class."""
    match call:
        case Gemm():
            return f"gemm:{call.weight.format}"
        case BatchedGemm():
            return "bmm"
        case DecodeAttention():
            return f"attention:{call.kind}" + (":fp8" if call.kv_bytes_per_element < 2 else "")
        case LinearAttentionStep():
            return "linear_attention"
        case Experts():
            return f"experts:{call.weight.format}"
        case Elementwise():
            return "elementwise"
        case Sampling():
            return "sampling"


@dataclass(frozen=True)
class KernelModel:
    """The kernels of one GPU. ``bandwidth`` B/s; ``profile`` its own fits, ``nominal`` what fills the gaps."""

    gpu: GpuSpec
    profile: KernelProfile
    nominal: KernelProfile

    def kernel_class(self, key: str) -> KernelClassFit:
        """The class that answers for ``key``, its label already weakened when it is a stand-in.

        Order: the GPU's own fit; the same kernels under another name; a kin class of the GPU; the nominal class; the
        nominal default.

        Raises:
            NoDataError: neither profile has the class nor a default.
        """
        for profile, name, exact in self._candidates(key):
            found = profile.classes.get(name)
            if found is not None:
                if exact:
                    return found
                note = f"stands in for {key}: {name} of {profile.name}"
                sigma = math.hypot(found.sigma_log, DEFAULT_SIGMA_LOG["nominal"])  # another kernel than the one that was fitted
                return found.model_copy(update={"evidence": weakest([found.evidence, "nominal"]), "sigma_log": sigma, "note": note})
        raise NoDataError(f"{self.profile.name}: no kernel class {key!r} and no default; add it to catalog/profiles/{NOMINAL}.yaml")

    def _candidates(self, key: str) -> Iterator[tuple[KernelProfile, str, bool]]:
        for profile in (self.profile, self.nominal):
            yield profile, key, True
            if key in _SAME:
                yield profile, _SAME[key], True
            for kin in _KIN.get(key, ()):
                yield profile, kin, False
        yield self.nominal, "default", True

    def peak(self, fit: KernelClassFit) -> float:
        """Dense peak in flop/s that ``fit`` is measured against.

        A format that the matrix unit lacks is weight-only: weights are widened and multiplied in bf16 (or fp16).

        Raises:
            NoDataError: the GPU's file has no usable peak at all.
        """
        for name in (fit.peak, "bf16", "fp16"):
            quantity = self.gpu.peak_flops.get(name)
            if quantity is not None and quantity.value > 0:
                return float(quantity.value)
        raise NoDataError(f"gpu {self.gpu.name}: no bf16 or fp16 peak; add peak_flops.bf16 to its catalog file")

    def time(self, call: KernelCall, *, launch: Launch = "graph") -> KernelTime:
        """Seconds of ``call``, for every point of its arrays at once.

        ``launch="eager"``: the CPU issues the call's kernels one by one, so the call takes at least their number times the
        profile's ``small_kernel_eager_s``.

        Raises:
            NoDataError: no kernel class answers.
        """
        fit = self.kernel_class(class_key(call))
        if isinstance(call, Elementwise):
            return self._small(call, fit, launch)
        work = work_of(call, heads_per_item=fit.heads_per_item)
        parts = terms(work, Efficiencies.of(fit), self.gpu.memory_bandwidth.value, self.peak(fit))
        body = combine(parts, fit.sharpness)
        time = np.asarray(fit.fixed_s + body, dtype=np.float64)
        totals = {name: float(part.sum()) for name, part in zip(TERMS, parts, strict=True)}
        totals["fixed"] = fit.fixed_s * body.size
        if launch == "eager":
            issue = fit.kernels * self.profile.small_kernel_eager_s
            totals["launch"] = issue * body.size if issue > float(time.mean()) else 0.0
            time = np.maximum(time, issue)
        sigma = _sigma(work.bytes, parts[TERMS.index("memory")], time, fit)
        return KernelTime(time, fit.evidence, sigma, _outside(work.bytes, fit), max(totals, key=totals.__getitem__))

    def _small(self, call: Elementwise, fit: KernelClassFit, launch: Launch) -> KernelTime:
        """``kernels`` small kernels in a row: each has a floor, and together they move ``bytes``."""
        moved = np.asarray(call.bytes, dtype=np.float64)
        memory = moved / (fit.bandwidth_share * self.gpu.memory_bandwidth.value)
        floor = call.kernels * self.profile.small_kernel_graph_s
        time = np.asarray(floor + memory, dtype=np.float64)
        bound = "memory" if float(memory.mean()) > floor else "fixed"
        if launch == "eager":
            issue = call.kernels * self.profile.small_kernel_eager_s
            bound = "launch" if issue > float(time.mean()) else bound
            time = np.maximum(time, issue)
        return KernelTime(time, fit.evidence, np.full(time.shape, fit.sigma_log), np.zeros(time.shape, dtype=np.bool_), bound)


def _sigma(moved: Array, memory_s: Array, time_s: Array, fit: KernelClassFit) -> Array:
    """The class's spread; where no row was measured out of the cache, the memory term's share of the time adds its doubt."""
    base = np.full(time_s.shape, fit.sigma_log)
    if fit.cold_from_bytes is None or not fit.cold_doubt:
        return base
    share = np.minimum(memory_s / np.maximum(time_s, 1e-15), 1.0)
    return np.where(moved < fit.cold_from_bytes, np.hypot(base, fit.cold_doubt * share), base)


def _outside(moved: Array, fit: KernelClassFit) -> NDArray[np.bool_]:
    if fit.range_bytes is None:
        return np.zeros(moved.shape, dtype=np.bool_)
    low, high = fit.range_bytes
    return np.asarray((moved < low) | (moved > high), dtype=np.bool_)


def kernel_model(gpu: GpuSpec) -> KernelModel:
    """The kernel model of ``gpu``: its fitted profile where the catalog has one, else the nominal one.

    Raises:
        InputError: the GPU names a profile that the catalog does not have.
    """
    nominal = load_kernel_profile(NOMINAL)
    return KernelModel(gpu, load_kernel_profile(gpu.kernel_profile) if gpu.kernel_profile else nominal, nominal)
