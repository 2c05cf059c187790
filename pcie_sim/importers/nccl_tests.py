"""What nccl-tests prints, every version: one measurement set per run, and the GPUs that its device lines name."""

from __future__ import annotations

import re

from pcie_sim.importers.facts import BoxFacts
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.nccl_rows import HEADER, OLD_HEADER, Layout, figures_of, head_of
from pcie_sim.importers.nccl_runs import CONFIG, DEVICE, STARTING, Run, runs_of
from pcie_sim.importers.nccl_sets import gpus_of, sets_of
from pcie_sim.importers.nccl_text import Notes, strip_prefix
from pcie_sim.importers.source import SourceText

_SIGNS = (CONFIG, STARTING, HEADER, DEVICE)
_TEST_FAILED = re.compile(r"Test (?:NCCL|CUDA) failure [^\s]{1,80}:[0-9]")


def _may_show(line: str) -> bool:
    """A cheap look before :func:`_shows`, for logs of half a million lines: every sign has one of these words."""
    return (
        "size" in line or "algbw" in line or "nThread" in line or "Rank" in line or "Test " in line or "Collective test" in line
        or "float" in line or "half" in line or "int" in line or "double" in line or "char" in line or "f8e" in line or "fp8" in line
    )  # fmt: skip


def _shows(text: str) -> bool:
    if any(sign.search(text) for sign in _SIGNS) or OLD_HEADER.match(text) or _TEST_FAILED.search(text):
        return True
    head = head_of(text, Layout())  # rows alone: at least one half must be there, so that no other table looks like it
    if head is None:
        return False
    words = text[head[3] :].split()
    return len(words) >= 5 and figures_of(" ".join(words[1:])) is not None


def sniff(source: SourceText) -> int | None:
    """The line of a configuration, device, header or table row."""
    if source.raw.lstrip()[:1] == "{":
        return None
    lines = enumerate(source.lines, 1)
    return next((number for number, line in lines if len(line) > 8 and _may_show(line) and _shows(strip_prefix(line)[0])), None)


@importer("nccl-tests", "nccl-tests output (all_reduce_perf ...)", sniff=sniff)
def read(source: SourceText) -> Imported:
    """Every run with whole rows as a set of kind ``collective``; times in us, sizes in bytes as nccl-tests counts them.

    Raises:
        InputError: neither a usable table nor a device line.
    """
    notes = Notes(source)
    runs = runs_of(source, notes)
    sets = sets_of(runs, source.name, notes)
    gpus = gpus_of(runs, notes)
    if not sets and not gpus:
        raise source.error(*_why_not(source, runs, notes))
    if not sets:
        notes.add("note", "no table with a usable row: only the GPUs are read", runs[0].line or None)
    return Imported(source.name, ("nccl-tests",), box=BoxFacts(gpus=gpus), measurements=sets, remarks=notes.remarks())


def _why_not(source: SourceText, runs: list[Run], notes: Notes) -> tuple[str, int | None]:
    """The reason of a refusal, and its line."""
    old = next((number for number, line in enumerate(source.lines, 1) if OLD_HEADER.match(strip_prefix(line)[0])), None)
    if old is not None:
        return (
            "is the table of NCCL 1's tests (until 2016), whose N and time are not what nccl-tests prints; run nccl-tests 2 or newer",
            old,
        )
    failures = [failure for run in runs for failure in run.failures]
    if failures and not any(run.rows for run in runs):
        line, text = failures[0]
        more = f" ({len(failures)} such lines)" if len(failures) > 1 else ""
        return f"holds no table: the run failed with {text!r}{more}; cure that and run the test again", line
    told = [remark for remark in notes.remarks() if remark.kind in ("ignored", "cut")]
    if told:
        worst = max(told, key=lambda remark: (remark.kind == "ignored", "left out" not in remark.text))
        return worst.text, worst.line
    return "looks like nccl-tests output, but has no whole row; give the whole output", sniff(source)
