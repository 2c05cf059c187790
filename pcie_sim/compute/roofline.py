"""The roofline with a smooth corner that the model evaluates and the fit inverts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pcie_sim.compute.work import Work
from pcie_sim.specs.kernel_profile import KernelClassFit
from pcie_sim.specs.ops import Array


@dataclass(frozen=True)
class Efficiencies:
    """What a kernel reaches of its GPU; field by field that of ``specs.kernel_profile.KernelClassFit``, which explains them."""

    fixed_s: float
    bandwidth_share: float
    flops_share: float
    crowded_factor: float = 1.0
    per_item_s: float = 0.0
    serial_s: float = 0.0
    serial_cap: float | None = None
    sharpness: float | None = None

    @staticmethod
    def of(fit: KernelClassFit) -> Efficiencies:
        """The efficiencies of a profile's class."""
        return Efficiencies(
            fit.fixed_s,
            fit.bandwidth_share,
            fit.flops_share,
            fit.crowded_factor,
            fit.per_item_s,
            fit.serial_s,
            fit.serial_cap,
            fit.sharpness,
        )


TERMS = ("memory", "compute", "items", "serial")


def terms(work: Work, fit: Efficiencies, bandwidth: float, peak: float) -> Array:
    """The four terms in seconds, stacked on a first axis in the order of :data:`TERMS`.

    ``bandwidth`` B/s and ``peak`` flop/s are the datasheet's; the class's shares say what a kernel reaches of them.
    """
    serial = work.serial if fit.serial_cap is None else np.minimum(work.serial, fit.serial_cap)
    share = fit.bandwidth_share * (1.0 + work.crowded * (fit.crowded_factor - 1.0))
    return np.stack(
        [
            work.bytes / (share * bandwidth),
            work.flops / (fit.flops_share * peak),
            work.items * fit.per_item_s,
            serial * fit.serial_s,
        ]
    )


def combine(parts: Array, sharpness: float | None) -> Array:
    """The p-norm of ``parts`` over the first axis; None is the maximum (p without bound).

    p = 1 adds the terms (nothing overlaps), a large p lets the longest hide the others. Never below the largest term.
    """
    largest = np.asarray(parts.max(axis=0), dtype=np.float64)
    if sharpness is None:
        return largest
    safe = np.where(largest > 0, largest, 1.0)
    summed = np.asarray(((parts / safe) ** sharpness).sum(axis=0), dtype=np.float64)
    return np.asarray(largest * np.where(largest > 0, summed, 1.0) ** (1.0 / sharpness), dtype=np.float64)


def roofline(work: Work, fit: Efficiencies, bandwidth: float, peak: float) -> Array:
    """Time of a call in seconds, one per element of ``work``."""
    return fit.fixed_s + combine(terms(work, fit, bandwidth, peak), fit.sharpness)
