"""What the doctor found, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcie_sim.report.console import bold, pairs, wrapped
from pcie_sim.results.finding import Diagnosis, Finding
from pcie_sim.units import counted

if TYPE_CHECKING:
    from pcie_sim.report.console import Block

_MOST = 8


def doctor_blocks(found: Diagnosis, *, width: int) -> list[Block]:
    """Problems, notes, what was checked, and what could not be."""
    sources = ", ".join(found.sources[:6]) + (f" and {len(found.sources) - 6} more" if len(found.sources) > 6 else "")
    head = pairs([("GPUs", str(found.gpus)), ("settings", found.settings), ("read from", sources)], width=width)
    blocks: list[Block] = [bold(f"{found.topology}: {found.title}"), head, "", _verdict(found)]
    told = {text for item in found.findings for text in item.evidence}
    for title, texts in (("Files disagree", [text for text in found.conflicts if text not in told]), ("Files end early", found.cut)):
        blocks += _listed(title, texts, width)
    for title, items in (("Problems, the dearest first", found.problems), ("Notes", found.notes)):
        if items:
            blocks += ["", bold(title)]
            for number, item in enumerate(items, start=1):
                blocks += [*([""] if number > 1 else []), *_finding(item, number, width)]
    blocks += _listed("Assumed where no file says it", found.assumed, width)
    blocks += _listed("Left out of the files", found.ignored, width)
    passed = _passed(found)
    if passed:
        blocks += ["", bold("Checked, nothing wrong"), wrapped("; ".join(passed), width=width, first="  ")]
    if found.unchecked:
        blocks += ["", bold("Not checked, and what it takes"), pairs(_missing(found), width=width)]
    return blocks


def _listed(title: str, texts: Sequence[str], width: int) -> list[Block]:
    """The texts below a heading, a dash each; nothing without texts."""
    if not texts:
        return []
    shown = [wrapped(text, width=width, first="  - ") for text in texts[:_MOST]]
    more = [f"  and {len(texts) - _MOST} more (--json has all)"] if len(texts) > _MOST else []
    return ["", bold(title), *shown, *more]


def _verdict(found: Diagnosis) -> Block:
    problems, notes = len(found.problems), len(found.notes)
    count = len(found.checked)
    checks = f"of {counted(count, 'check')} made" + (f", {len(found.unchecked)} not made for want of files" if found.unchecked else "")
    if not problems:
        return bold(f"nothing found ({checks})" if not notes else f"no problems, {counted(notes, 'note')} ({checks})", colour="green")
    more = f" and {counted(notes, 'note')}" if notes else ""
    return bold(f"{counted(problems, 'problem')}{more} ({checks})", colour="red")


def _finding(item: Finding, number: int, width: int) -> list[Block]:
    lead = f"  {number}. "
    room = " " * len(lead)
    lines: list[Block] = [wrapped(f"{item.title} [{item.code}]", width=width, first=lead)]
    rows = [("seen", text) for text in item.evidence]
    if item.cost is not None:
        rows.append(("cost", item.cost))
    rows += [("try", text) for text in item.advice]
    lines.append(pairs(_once(rows), width=width, indent=room))
    return lines


def _once(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each key on its first line only."""
    found: list[tuple[str, str]] = []
    last = ""
    for key, text in rows:
        found.append(("" if key == last else key, text))
        last = key
    return found


def _passed(found: Diagnosis) -> list[str]:
    """Titles of the checks without a finding."""
    told = {item.code for item in found.findings}
    return [title for code, title in found.checked if code not in told]


def _missing(found: Diagnosis) -> list[tuple[str, str]]:
    """What checks need, those that need the same together."""
    by_need: dict[str, list[str]] = {}
    for code, _title, need in found.unchecked:
        by_need.setdefault(need, []).append(code)
    return [(", ".join(codes), need) for need, codes in by_need.items()]
