"""All checks on one box."""

from __future__ import annotations

from importlib import import_module

from pcie_sim.doctor.exam import Exam
from pcie_sim.doctor.grounds import filled_in, grounded, sources, texts
from pcie_sim.doctor.registry import CHECKS
from pcie_sim.importers.relate import Related
from pcie_sim.results.finding import Diagnosis, Finding
from pcie_sim.topology import Topology

_ROOMS = ("wires", "peers", "platform", "rings", "measured", "contradictions", "conflicts")
"""Modules of checks in the order of reports."""


def checks() -> dict[str, tuple[str, str]]:
    """Every check: code -> (title, what it needs)."""
    for name in _ROOMS:
        import_module(f"pcie_sim.doctor.{name}")
    return {code: (one.title, one.needs) for code, one in CHECKS.items()}


def diagnose(topology: Topology, related: Related | None = None) -> Diagnosis:
    """What is wrong with a box, what it costs, and what to try.

    Args:
        topology: the box with the settings in force.
        related: the facts of files about it (:func:`pcie_sim.importers.relate.relate`); None: the topology file is all there is.
    """
    checks()
    exam = Exam(topology, related)
    findings: list[Finding] = []
    checked: list[tuple[str, str]] = []
    unchecked: list[tuple[str, str, str]] = []
    assumed = texts(exam, "assumed")
    unseen = filled_in(assumed)
    for one in CHECKS.values():
        found = one.run(exam)
        if found is None or (not found and one.code in unseen):
            unchecked.append((one.code, one.title, one.needs))
        else:
            checked.append((one.code, one.title))
            findings += found
    if any(found.code in ("link-width", "link-speed") and found.severity == "problem" for found in findings):
        checked = [one for one in checked if one[0] != "lanes" or any(found.code == "lanes" for found in findings)]
    findings = grounded(exam, findings, assumed)
    places = {code: place for place, code in enumerate(CHECKS)}
    findings.sort(key=lambda item: (item.severity != "problem", -_weight(item), places[item.code]))
    settings = topology.settings
    library = "no collective library" if settings.ccl.name == "none" else f"{settings.ccl.name.upper()} {settings.ccl.version}"
    env = " ".join(f"{key}={value}" for key, value in settings.env.items())
    return Diagnosis(
        topology=topology.name,
        title=topology.title,
        findings=tuple(findings),
        checked=tuple(checked),
        unchecked=tuple(unchecked),
        sources=sources(exam),
        assumed=assumed,
        conflicts=texts(exam, "conflict"),
        cut=texts(exam, "cut"),
        ignored=texts(exam, "ignored"),
        gpus=len(topology.gpus),
        settings=f"{library}, p2p {settings.p2p}, acs {settings.acs}, {env or 'no NCCL variables'}",
    )


def _weight(found: Finding) -> float:
    """How much the dearest call takes longer, as a share."""
    return max((cost.share for cost in found.costs), default=0.0)
