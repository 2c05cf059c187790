"""Files that contradict the tree, or each other."""

from __future__ import annotations

from pcie_sim.doctor.copying import cells, place
from pcie_sim.doctor.exam import UNPRICED, Exam, at, finding
from pcie_sim.doctor.registry import check
from pcie_sim.importers.facts import bus_id
from pcie_sim.results.finding import Finding, Severity
from pcie_sim.topology import LEVELS

_WORDS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "SOC": "SYS"}
_NEAR = {"PIX", "PXB"}


@check(
    "paths", "files show the paths that the tree has", needs="`nvidia-smi topo -m` or an NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH log"
)
def paths(exam: Exam) -> list[Finding] | None:
    """Path types of a matrix or a log against those of the tree."""
    seen = 0
    wrong: dict[str, list[tuple[str, str, str, str]]] = {}
    for one in exam.related.matrices:
        if one.matrix.kind == "path":
            for a, b, word in cells(one):
                kind = "NVL" if str(word).startswith("NV") else _WORDS.get(str(word))
                if kind is not None and exam.box.host_of(a) == exam.box.host_of(b):
                    seen += 1
                    _compare(exam, wrong, place(one), a, b, kind, str(word))
    at_bus = {bus: name for name in exam.box.gpus if (bus := bus_id(exam.box.spec.nodes[name].bus or "")) is not None}
    for log in exam.related.ccl:
        for (first, second), word in log.ccl.paths.items():
            near, far = at_bus.get(bus_id(first) or ""), at_bus.get(bus_id(second) or "")
            if near is None or far is None or near == far or word not in LEVELS:
                continue
            seen += 1
            # where peer access is refused the library draws the path by way of the CPU
            if exam.box.transport(near, far).kind != "P2P" and word in ("PHB", "SYS"):
                continue
            _compare(exam, wrong, at(log.source, log.ccl.line), near, far, word, word)
    if not seen:
        return None
    findings = []
    for where, pairs in wrong.items():
        mild = all({word, has} <= _NEAR for _, _, word, has in pairs)
        more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
        shown = ", ".join(f"{a}-{b} {word} (tree: {has})" for a, b, word, has in pairs[:4]) + more
        evidence = [f"{where}: {shown}"]
        if mild:
            evidence.append("one switch or several: the library and tools flatten some chips, which changes little")
        advice = ("the topology file is of another box or state: import it again from the files at hand (`pcie-sim topology import`)",)
        title = f"{len(pairs)} path types differ from the tree's"
        level: Severity = "note" if mild else "problem"
        nodes = [gpu for a, b, _, _ in pairs for gpu in (a, b)]
        cost = None if mild else f"predictions may be of another box: {UNPRICED}"
        findings.append(finding("paths", title, level, evidence, cost=cost, advice=() if mild else advice, nodes=nodes))
    return findings


def _compare(exam: Exam, wrong: dict[str, list[tuple[str, str, str, str]]], where: str, a: str, b: str, said: str, word: str) -> None:
    has = exam.box.path_type(a, b)
    if has != said:
        wrong.setdefault(where, []).append((a, b, word, has))


@check("files", "files agree with each other", needs="two files about the box or more")
def files(exam: Exam) -> list[Finding] | None:
    """What importing the files found contradictory."""
    said = [remark for remark in exam.related.remarks if remark.kind == "conflict" and "the tree has" not in remark.text]
    if len(exam.related.sources) < 2 and not said:
        return None
    if not said:
        return []
    evidence = [f"{at(remark.source, remark.line)}: {remark.text}" if remark.source else remark.text for remark in said[:8]]
    if len(said) > 8:
        evidence.append(f"and {len(said) - 8} more")
    return [
        finding(
            "files",
            "files contradict each other",
            "note",
            evidence,
            cost=None,
            advice=("see which file is of this box, and leave the others out",),
        )
    ]
