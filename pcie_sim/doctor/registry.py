"""The registry of checks: what each looks for, and what it needs to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcie_sim.results.finding import Finding

if TYPE_CHECKING:
    from pcie_sim.doctor.exam import Exam

Run = Callable[["Exam"], "list[Finding] | None"]
"""Findings (none: nothing wrong), or None where the check lacks its input."""


@dataclass(frozen=True)
class Check:
    """One check. ``title`` says what a healthy box passes; ``needs`` what is missing when it cannot be made, and how to get it."""

    code: str
    title: str
    needs: str
    run: Run


CHECKS: dict[str, Check] = {}
"""Every check by code, in the order of reports."""


def check(code: str, title: str, *, needs: str) -> Callable[[Run], Run]:
    """Register the decorated function as the check ``code``."""

    def add(run: Run) -> Run:
        CHECKS[code] = Check(code, title, needs, run)
        return run

    return add
