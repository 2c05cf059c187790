"""What files show of a box beyond doubt: ports that redirect, transports of logs, what each link was seen to carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pcie_sim.doctor.copying import copies, numbers
from pcie_sim.errors import InputError
from pcie_sim.importers.facts import DeviceFact

if TYPE_CHECKING:
    from pcie_sim.doctor.exam import Exam

NEAR = ("PIX", "PXB")
"""Path types of pairs below one switch."""


def above_gpus(exam: Exam) -> list[DeviceFact]:
    """Ports with an ACS capability on the way of GPUs; all of them where the files do not show which those are."""
    chains = {node for gpu in exam.box.gpus for node in exam.box.chain(gpu)}
    keys = {port.key for node, port in exam.related.above.items() if node in chains}
    keys |= {fact.key for node, fact in exam.related.devices.items() if node in chains and node not in exam.box.gpus}
    found = [port for port in exam.related.acs_ports if port.key in keys]
    return found or list(exam.related.acs_ports)


def redirect_ruled_out(exam: Exam) -> bool:
    """The files print ACS of the ports above GPUs, and none redirects."""
    ports = above_gpus(exam)
    return bool(ports) and not any(port.acs_redirect for port in ports)


def meeting(exam: Exam, a: str, b: str) -> str | None:
    """The nearest node below the socket that both GPUs hang on."""
    other = set(exam.box.chain(b))
    return next((node for node in exam.box.chain(a) if node in other), None)


def transport_kind(words: str) -> str | None:
    """``P2P``, ``SHM`` or ``NET`` of a log's word."""
    return next((kind for kind in ("P2P", "SHM", "NET") if words.upper().startswith(kind)), None)


def logged(exam: Exam, gpus: Iterable[str] | None = None) -> dict[tuple[str, str], str]:
    """(GPU, GPU) -> transport of logs, for pairs (of ``gpus``) that no NVLink joins."""
    members = set(exam.box.gpus if gpus is None else gpus)
    found: dict[tuple[str, str], str] = {}
    for log in exam.related.ccl:
        for (first, second), words in log.ccl.transports.items():
            a, b, kind = log.nodes.get(first), log.nodes.get(second), transport_kind(words)
            if kind is None or a is None or b is None or a == b or not {a, b} <= members:
                continue
            if exam.box.path_type(a, b) != "NVL":
                found[a, b] = kind
    return found


def carried(exam: Exam) -> dict[str, float]:
    """Node -> the fastest one-way copy that was measured over its link, B/s: the link carries as much at least."""
    if "carried" not in exam.known:
        best: dict[str, float] = {}
        box = exam.opened()
        for one in copies(exam):
            for (a, b), rate in numbers(one).items():
                try:
                    links = box.route(a, b).links if box.path_type(a, b) != "NVL" else ()
                except InputError:
                    continue
                for name in links:
                    if name.endswith((".up", ".dn")):
                        best[name[:-3]] = max(best.get(name[:-3], 0.0), rate)
        exam.known["carried"] = best
    found: dict[str, float] = exam.known["carried"]
    return found
