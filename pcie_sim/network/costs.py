"""What a collective costs besides bytes on wires: t = base + steps x (wire + software) + bytes / (rate x wire share).

Every constant stands in a part of kind ``collective_library`` (``catalog/parts/nccl.yaml`` ...) with source, label and range.
With the library ``none`` all of them are zero or one: bare wires.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.catalog import load_typed_part, names
from pcie_sim.errors import NoDataError
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.machine import CclSettings
from pcie_sim.specs.part import AllReduceKernelPart, LibraryPart, NetTransportPart, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Amount:
    """A number with the relative uncertainty (sd of ln), label and sources that it inherits."""

    value: float
    sigma: float
    evidence: Evidence
    sources: tuple[str, ...] = ()


def amount(quantity: Quantity) -> Amount:
    """``quantity`` as an :class:`Amount`."""
    return Amount(quantity.value, quantity.sigma_log, quantity.evidence, (quantity.source,))


def add(parts: Iterable[Amount]) -> Amount:
    """Sum of independent parts: relative uncertainties weighted by share, label of the weakest part of at least 5 %."""
    items = [part for part in parts if part.value > 0]
    whole = math.fsum(part.value for part in items)
    if whole <= 0:
        return Amount(0.0, 0.0, "measured")
    sigma = math.sqrt(math.fsum((part.value * part.sigma) ** 2 for part in items)) / whole
    heavy = [part.evidence for part in items if part.value >= 0.05 * whole]
    return Amount(whole, sigma, weakest(heavy), tuple(dict.fromkeys(source for part in items for source in part.sources)))


@dataclass(frozen=True)
class Costs:
    """The constants of one library, ready to use. ``part`` None stands for bare wires."""

    part: LibraryPart | None

    def base(self, op: str, protocol: Protocol, peers: int) -> Amount:
        """Fixed cost of one call inside a CUDA graph; ``peers`` counts the others in an All-to-All."""
        if self.part is None:
            return Amount(0.0, 0.0, "measured")
        items = [amount(self.part.base_latency[op])]  # type: ignore[index]  # all ops are keys, checked on loading
        if protocol == "Simple" and op not in ("send_recv", "all_to_all"):
            items.append(amount(self.part.simple_extra_latency))
        if op == "all_to_all" and self.part.peer_issue is not None:
            issue = amount(self.part.peer_issue)
            items.append(Amount(issue.value * peers, issue.sigma, issue.evidence, issue.sources))
        return add(items)

    def step(self, protocol: Protocol, transport: str, network: str | None = None) -> Amount:
        """Software cost of one step besides the route's own latency; a host-staged step, and one over the network (by the part
        ``network``), have LL's in that latency already.
        """
        if self.part is None:
            return Amount(0.0, 0.0, "measured")
        if network is not None:
            steps = load_typed_part(network, NetTransportPart).step_latency
            over = amount(steps[protocol])
            return Amount(max(0.0, over.value - steps["LL"].value), over.sigma, over.evidence, over.sources)
        own = amount(self.part.step_software[protocol])
        if transport != "SHM":
            return own
        least = self.part.step_software["LL"].value
        return Amount(max(0.0, own.value - least), own.sigma, own.evidence, own.sources)

    def share(self, protocol: Protocol, transport: str, network: str | None = None) -> Amount:
        """User bytes over the rate of the slowest link that one flow reaches."""
        if self.part is None:
            return Amount(1.0, 0.0, "measured")
        if network is not None:
            return amount(load_typed_part(network, NetTransportPart).line_share[protocol])
        table = self.part.wire_share_host if transport == "SHM" else self.part.wire_share
        return amount(table[protocol])

    def link_share(self, protocol: Protocol, transport: str, network: str | None = None) -> float:
        """User bytes over bytes charged to PCIe and socket links: flows that share a port or an uplink lose together. Host-staged ones
        lose what one of them was measured to lose (what holds a GPU's kernels back is a capacity of its own); over a network only what
        its transport really sends is charged.
        """
        if self.part is None:
            return 1.0
        if network is not None:
            return load_typed_part(network, NetTransportPart).line_share[protocol].value
        if transport == "SHM":
            return self.part.line_share[protocol].value * self.part.wire_share_host["Simple"].value
        return self.part.wire_share[protocol].value

    def memory_relief(self) -> float:
        """Bytes that host-staged flows charge to links over bytes that host memory and kernels see: those carry the protocol's lines,
        not the links' losses.
        """
        return 1.0 if self.part is None else 1.0 / self.part.wire_share_host["Simple"].value

    def extrapolates(self, ranks: int, size: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether the constants were never measured at so many ranks, or messages of ``size`` bytes."""
        import numpy as np

        outside = np.zeros(np.shape(size), dtype=np.bool_)
        if self.part is None:
            return outside
        if self.part.covered_ranks is not None and not self.part.covered_ranks[0] <= ranks <= self.part.covered_ranks[1]:
            return ~outside
        if self.part.covered_bytes is not None:
            outside = (size < self.part.covered_bytes[0]) | (size > self.part.covered_bytes[1])
        return np.asarray(outside)

    def floor(self, gpus: int, op: str) -> Amount:
        """Least time per call when eager calls follow each other (the CPU's issue floor), by GPUs driven; sends have their own."""
        if self.part is None:
            return Amount(0.0, 0.0, "measured")
        table = self.part.eager_floor
        fits = [count for count in table if count <= gpus]
        found = amount(table[max(fits)] if fits else table[min(table)])
        if op == "send_recv" and self.part.eager_send_share is not None:
            share = amount(self.part.eager_send_share)
            return Amount(found.value * share.value, found.sigma, found.evidence, (*found.sources, *share.sources))
        return found


@dataclass(frozen=True)
class KernelCosts(Costs):
    """The constants of an engine's own AllReduce kernel; the issue floor of eager calls stays that of ``part``'s measurements.

    It knows no protocols and transports: those arguments of :class:`Costs` mean nothing here.
    """

    kernel: AllReduceKernelPart

    def base(self, op: str, protocol: Protocol, peers: int) -> Amount:  # noqa: ARG002
        """Fixed cost of one call with ``peers`` peers, exchanges apart."""
        own, issue, exchange = amount(self.kernel.base), amount(self.kernel.peer_issue), self.kernel.exchange.value
        first = Amount(max(0.0, own.value - exchange), own.sigma, own.evidence, own.sources)
        return add([first, Amount(issue.value * max(0, peers - 1), issue.sigma, issue.evidence, issue.sources)])

    def step(self, protocol: Protocol, transport: str, network: str | None = None) -> Amount:  # noqa: ARG002
        """One exchange of all pairs, the way apart."""
        return amount(self.kernel.exchange)

    def share(self, protocol: Protocol, transport: str, network: str | None = None) -> Amount:  # noqa: ARG002
        """Bytes per second of one flow over the rate of the slowest link."""
        return amount(self.kernel.rate_share)

    def link_share(self, protocol: Protocol, transport: str, network: str | None = None) -> float:  # noqa: ARG002
        """A kernel's bytes cross links as they are."""
        return 1.0

    def memory_relief(self) -> float:
        """And host memory."""
        return 1.0

    def extrapolates(self, ranks: int, size: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether the kernel was never measured at so many ranks."""
        import numpy as np

        low, high = self.kernel.covered_ranks
        return np.full(np.shape(size), not low <= ranks <= high)


_KERNEL = "one-shot-kernel"


def kernel_costs(library: Costs) -> KernelCosts:
    """The costs of serving engines' one-shot and two-shot kernels on a box where ``library`` is in force."""
    return KernelCosts(library.part, load_typed_part(_KERNEL, AllReduceKernelPart))


def library_costs(ccl: CclSettings) -> Costs:
    """The costs of the library in force.

    Raises:
        NoDataError: no part describes it yet.
    """
    if ccl.name == "none":
        return Costs(None)
    if ccl.name not in names("parts"):
        raise NoDataError(f"no costs are known for the collective library {ccl.name} yet; known: nccl, none (bare wires)")
    return Costs(load_typed_part(ccl.name, LibraryPart))
