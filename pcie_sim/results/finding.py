"""What the doctor found in a box: findings with evidence, cost and advice, and what was or could not be checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pcie_sim.results.base import Result, plain

Severity = Literal["problem", "note"]
"""``problem``: it costs time, or the box is not what its files say; ``note``: worth knowing, nothing to repair."""


@dataclass(frozen=True)
class Cost:
    """One call as predicted now and with the finding repaired (s). ``bytes`` as nccl-tests counts them for ``op``."""

    op: str
    bytes: int
    now_s: float
    fixed_s: float

    @property
    def extra_s(self) -> float:
        """What the finding adds; negative where the repair would be slower."""
        return self.now_s - self.fixed_s

    @property
    def share(self) -> float:
        """The same over the repaired time."""
        return self.extra_s / self.fixed_s if self.fixed_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op": self.op,
            "bytes": self.bytes,
            "now_us": plain(self.now_s * 1e6),
            "fixed_us": plain(self.fixed_s * 1e6),
            "extra_us": plain(self.extra_s * 1e6),
        }


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a box, or worth knowing.

    Attributes:
        code: stable, for programs; the checks' codes.
        evidence: sentences with figures, and file and line where known.
        cost: in words; None where nothing is lost; "cannot be estimated" where nobody can say.
        advice: what to try, best first.
        nodes: nodes of the topology that it is about.
        costs: the figures behind ``cost``.
    """

    code: str
    title: str
    severity: Severity
    evidence: tuple[str, ...]
    cost: str | None = None
    advice: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``findings``."""
        return {
            "code": self.code,
            "title": self.title,
            "severity": self.severity,
            "evidence": list(self.evidence),
            "cost": self.cost,
            "costs": [cost.to_dict() for cost in self.costs],
            "advice": list(self.advice),
            "nodes": list(self.nodes),
        }


@dataclass(frozen=True)
class Diagnosis(Result):
    """What was found in one box.

    Attributes:
        findings: problems first, the dearest before the others.
        checked: (code, title) of the checks that had what they need.
        unchecked: (code, title, what is missing and how to get it) of the others.
        sources: what the box was drawn from, then the files that facts were read from.
        assumed: what stands where no file says it; predictions rest on it.
        conflicts: where files disagree, and which was believed.
        cut: files that end early.
        ignored: what files hold that was not understood or left out.
    """

    topology: str
    title: str
    findings: tuple[Finding, ...]
    checked: tuple[tuple[str, str], ...]
    unchecked: tuple[tuple[str, str, str], ...]
    sources: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    gpus: int = 0
    settings: str = field(default="", compare=False)
    """The library and settings that predictions were made with, in words."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are no mere notes."""
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The other findings."""
        return tuple(finding for finding in self.findings if finding.severity == "note")

    @property
    def sick(self) -> bool:
        """Whether anything is a problem."""
        return bool(self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Schema ``pcie-sim/doctor/1``."""
        return {
            "schema": "pcie-sim/doctor/1",
            "topology": self.topology,
            "title": self.title,
            "gpus": self.gpus,
            "settings": self.settings,
            "sick": self.sick,
            "findings": [finding.to_dict() for finding in self.findings],
            "checked": [{"code": code, "title": title} for code, title in self.checked],
            "unchecked": [{"code": code, "title": title, "missing": missing} for code, title, missing in self.unchecked],
            "sources": list(self.sources),
            "assumed": list(self.assumed),
            "conflicts": list(self.conflicts),
            "cut": list(self.cut),
            "ignored": list(self.ignored),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a finding."""
        return [
            {
                "topology": self.topology,
                "code": finding.code,
                "title": finding.title,
                "severity": finding.severity,
                "cost": finding.cost,
                "evidence": " ".join(finding.evidence),
                "advice": "; ".join(finding.advice),
                "nodes": " ".join(finding.nodes),
            }
            for finding in self.findings
        ]
