"""Peer access: refused by driver or platform, by the library's level; what a log shows against the prediction; ForceP2P."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from pcie_sim import catalog
from pcie_sim.doctor.copying import cells
from pcie_sim.doctor.exam import OPEN, SMALL, Exam, at, cost_text, dear, finding, said
from pcie_sim.doctor.registry import check
from pcie_sim.doctor.seen import logged, transport_kind
from pcie_sim.errors import InputError
from pcie_sim.importers.imported import Launch
from pcie_sim.importers.relate import RelatedMatrix
from pcie_sim.results.finding import Cost, Finding, Severity
from pcie_sim.specs.strategy import parse_strategy
from pcie_sim.topology import LEVELS
from pcie_sim.units import counted

STATUS = {
    "NS": "not supported",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by a registry key",
    "DS": "disabled by a registry key",
}
"""Words of ``nvidia-smi topo -p2p`` that refuse (its own legend)."""
_GEFORCE = (
    "the stock driver refuses it on these cards: the open kernel modules with a peer-to-peer patch grant it (not supported by NVIDIA), "
    "with resizable BAR on and the IOMMU off; then `p2p: on` in the topology file"
)
_PLATFORM = (
    "in the BIOS: Above 4G Decoding and Resizable BAR on, IOMMU off (or iommu=pt), ACS off; in a virtual machine the host decides "
    "(ACS, the GPUs' placement on one virtual root complex)"
)
_KEYS = '"ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1;EnableResizableBar=1"'
"""As people with RTX PRO 6000 on root ports set them (local-inference-lab/rtx6kpro); some drivers then promise what they cannot do."""
_MEASURE_BOTH = (
    "on some hosts staging in host memory is as fast or faster (published: 8x A40 in NPS4, 8x L20, 3x CMP 170HX): measure both, "
    "NCCL_P2P_DISABLE=1 against the level"
)
"""NVIDIA/nccl-tests#74, NVIDIA/nccl#1817, PixelML/club-170hx."""
_ACCESS = ("", "r", "w", "p", "read", "write", "prop")

Pairs = list[tuple[str, str]]


@check("p2p-driver", "driver and platform grant peer access", needs="`nvidia-smi topo -p2p r` (and w), or p2pBandwidthLatencyTest")
def p2p_driver(exam: Exam) -> list[Finding] | None:
    """Pairs that driver or platform refuse: what the library would gain if they did not."""
    refused, asked, words, evidence = _measured_refusals(exam)
    box = exam.box
    if not asked:
        stock = {box.gpu_spec(gpu).name: box.gpu_spec(gpu).p2p.stock_driver for gpu in box.gpus}
        if box.settings.p2p == "auto" and "no" not in stock.values() and "unknown" in stock.values():
            return None
        if "P2P" in logged(exam).values():  # a log shows it at work: the driver is not the stock one
            return []
        kinds = {gpu: box.gpu_spec(gpu).p2p.stock_driver == "no" for gpu in box.gpus}
        refused = [
            (a, b)
            for a, b in exam.pairs
            if box.path_type(a, b) != "NVL" and (box.settings.p2p == "off" or (box.settings.p2p == "auto" and (kinds[a] or kinds[b])))
        ]
        if refused:
            evidence.append(f"{_pairs_text(exam, refused)}: {_reason(exam, refused[0])}")
    if not refused:
        return []
    whole = len(refused) == sum(box.path_type(a, b) != "NVL" for a, b in exam.pairs)
    now, fixed = exam.set(p2p="off"), exam.opened()
    costs = exam.costs(fixed, now)
    some = "" if whole else "if all pairs were refused: "
    stock_no = any(box.gpu_spec(gpu).p2p.stock_driver == "no" for pair in refused for gpu in pair)
    advice = [_GEFORCE] if stock_no else []
    if not stock_no or (asked and words != {"GNS"}):
        advice.append(_PLATFORM)
    if words & {"DR", "DS"}:
        advice.insert(
            0, "a driver option turns it off: look for RMForceP2P, NVreg_RegistryDwords in /etc/modprobe.d and /proc/driver/nvidia/params"
        )
    if asked and not words:
        advice.append("`nvidia-smi topo -p2p r` says why (CNS: the chipset, GNS: the GPU, TNS: the topology)")
    advice.append(
        "once it is granted, NCCL_P2P_LEVEL=SYS (or PHB) lets the library use it between root ports; check with p2pBandwidthLatencyTest"
    )
    advice.append(_MEASURE_BOTH)
    who = "the driver" if stock_no else "driver or platform"
    title = f"peer access refused by {who} for {'all pairs' if whole else f'{len(refused)} of {len(exam.pairs)} pairs'}"
    level, more = _level(costs)
    nodes = [gpu for gpu in box.gpus if any(gpu in pair for pair in refused)]
    return [finding("p2p-driver", title, level, [*evidence, more], costs=costs, cost=some + cost_text(costs), advice=advice, nodes=nodes)]


def _level(costs: Sequence[Cost]) -> tuple[Severity, str]:
    """A problem where something gets faster; and what to say where something gets slower."""
    slower = [cost for cost in costs if cost.share <= -0.02]
    if slower and not dear(costs):
        return "note", "by prediction granting it would make these calls slower: leave it as it is, unless a measurement says otherwise"
    if slower:
        return "problem", "small and large messages disagree: measure both ways before you decide"
    return ("problem" if dear(costs) else "note"), ""


def _measured_refusals(exam: Exam) -> tuple[Pairs, bool, set[str], list[str]]:
    """(refused pairs, whether any file says, the driver's words, evidence) from status and peer-access matrices."""
    refused: dict[tuple[str, str], None] = {}
    words: set[str] = set()
    evidence: list[str] = []
    asked = False
    for one in exam.related.matrices:
        if one.matrix.kind not in ("p2p_status", "peer_access") or (
            one.matrix.kind == "p2p_status" and one.matrix.access.lower() not in _ACCESS
        ):
            continue
        found: dict[str, Pairs] = {}
        for a, b, value in cells(one):
            asked = True
            if value in STATUS or value == 0:
                found.setdefault(str(value), []).append((a, b))
        for word, pairs in found.items():
            what = f"{word} ({STATUS[word]})" if word in STATUS else "no peer access"
            words |= {word} & set(STATUS)
            evidence.append(said(f"{what} for {_pairs_text(exam, pairs)}", _place(one)))
            refused |= dict.fromkeys(pairs)
    return list(refused), asked, words, evidence


def _reason(exam: Exam, pair: tuple[str, str]) -> str:
    return exam.box.transport(*pair).reason.partition(": through")[0]


def _place(one: RelatedMatrix) -> str:
    return at(one.source, one.matrix.line)


def _pairs_text(exam: Exam, pairs: Pairs) -> str:
    """Which ordered pairs, as short as it can be said: all, all of some path types, else the first few."""
    if len(pairs) == len(exam.pairs):
        return f"all {len(pairs)} ordered pairs"
    whole = f"of {counted(len(exam.pairs), 'ordered pair')}"
    kinds = sorted({exam.box.path_type(*pair) for pair in pairs}, key=(*LEVELS, "NET").index)
    if len(pairs) == sum(exam.box.path_type(*pair) in kinds for pair in exam.pairs):
        return f"{len(pairs)} {whole} (all {' and '.join(kinds)} ones)"
    shown = ", ".join(f"{a}-{b}" for a, b in pairs[:6])
    return f"{shown}{f' and {len(pairs) - 6} more' if len(pairs) > 6 else ''} {whole}"


@check("p2p-level", "the library uses the peer access that is granted", needs="a box with NCCL or RCCL (settings.ccl)")
def p2p_level(exam: Exam) -> list[Finding] | None:
    """Pairs beyond the library's level: through host memory although peer access is granted."""
    box = exam.box
    if box.settings.ccl.name not in ("nccl", "rccl"):
        return None
    opened = exam.set(env=OPEN)
    held = [(a, b) for a, b in exam.pairs if box.transport(a, b).kind != "P2P" and opened.transport(a, b).kind == "P2P"]
    if not held:
        return []
    level = max((box.path_type(a, b) for a, b in held), key=LEVELS.index)
    disabled = box.settings.env.get("NCCL_P2P_DISABLE", "").strip() == "1"
    costs = exam.costs(opened)
    how = box.transport(*held[0])
    way = "host memory" if how.kind == "SHM" else "the network"
    evidence = [f"{_pairs_text(exam, held)} go through {way}: {_reason(exam, held[0])}"]
    unknown = sorted({box.gpu_spec(gpu).name for pair in held for gpu in pair if box.gpu_spec(gpu).p2p.stock_driver == "unknown"})
    severity, more = _level(costs)
    if box.settings.p2p == "auto" and unknown and not _measured_refusals(exam)[1]:
        evidence.append(f"whether the stock driver grants peer access on {', '.join(unknown)} is not known here")
        severity = "note"
    shown = [pair for pair, kind in logged(exam).items() if kind == "P2P" and pair in held]
    if shown:
        evidence.append(f"a log shows peer-to-peer between {_pairs_text(exam, shown)}: that run had another level (say it with --env)")
        severity = "note"
    setting = (
        "unset NCCL_P2P_DISABLE" + (f" and set NCCL_P2P_LEVEL={level}" if level in ("PHB", "SYS") else "")
        if disabled
        else f"NCCL_P2P_LEVEL={level}"
    )
    advice = [f"{setting} in the environment of every rank", "check first that peer copies are right and fast: p2pBandwidthLatencyTest"]
    if severity == "note":
        advice = [f"{setting} is the switch, if you want to measure it"]
    advice.append(_MEASURE_BOTH)
    title = f"the library's level keeps {len(held)} of {len(exam.pairs)} pairs from peer-to-peer"
    nodes = [gpu for gpu in box.gpus if any(gpu in pair for pair in held)]
    return [finding("p2p-level", title, severity, [*evidence, more], costs=costs, advice=advice, nodes=nodes)]


@check(
    "transports",
    "a log shows the transports that are predicted",
    needs="a log of a run with NCCL_DEBUG=INFO (its `via P2P`, `via SHM` lines)",
)
def transports(exam: Exam) -> list[Finding] | None:
    """Connections of a log against the prediction: what software or container state the files do not show."""
    seen = 0
    odd: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for log in exam.related.ccl:
        count = len(log.nodes)
        for (first, second), words in log.ccl.transports.items():
            a, b = log.nodes.get(first), log.nodes.get(second)
            kind = transport_kind(words)
            if a is None or b is None or a == b or kind is None or exam.box.host_of(a) != exam.box.host_of(b):
                continue
            seen += 1
            predicted: str = exam.box.transport(a, b, gpus=count).kind
            if predicted != kind:
                odd.setdefault((predicted, kind), {})[a, b] = f"{words} ({at(log.source, log.ccl.line)})"
    if not seen:
        return None
    findings = []
    for (predicted, kind), pairs in odd.items():
        (a, b), words = next(iter(pairs.items()))
        evidence = [
            f"{counted(len(pairs), 'connection')} of {seen} by {kind} where {predicted} is predicted, like {a} -> {b}: {words}",
            f"predicted, because {exam.box.transport(a, b).reason}",
        ]
        worse = ("P2P", "SHM", "NET").index(kind) > ("P2P", "SHM", "NET").index(predicted)
        costs = exam.costs(exam.box, exam.set(p2p="off", env={"NCCL_SHM_DISABLE": "1" if kind == "NET" else "0"})) if worse else ()
        level: Severity = "problem" if worse and dear(costs) else "note"
        title = f"the log shows {kind} where {predicted} is expected"
        cost = "" if worse else None
        findings.append(
            finding("transports", title, level, evidence, costs=costs, cost=cost, advice=_why_seen(predicted, kind), nodes=sum(pairs, ()))
        )
    return findings


def _own_kernel_ranks(launch: Launch) -> int:
    """GPUs of the engine's own AllReduce, where it runs: asked for, or on by default and within the engine's rules for PCIe; else 0."""
    try:
        ranks = parse_strategy(launch.strategy).tp
        if launch.custom_all_reduce is not None:
            return ranks if launch.custom_all_reduce and ranks > 1 else 0
        rules = catalog.load_runtime(launch.runtime).custom_all_reduce
    except InputError:
        return 0
    return ranks if rules is not None and ranks in rules.world_sizes and ranks <= rules.max_pcie_gpus else 0


def _why_seen(predicted: str, kind: str) -> Iterable[str]:
    if kind == "NET":
        return (
            "ranks in different containers, or /dev/shm missing or too small: run with --ipc=host or --shm-size=16g",
            "unset NCCL_SHM_DISABLE",
        )
    if kind == "SHM" and predicted == "P2P":
        return (
            "look in the log for 'P2P is disabled' and NCCL_ lines: a level or NCCL_P2P_DISABLE from elsewhere (/etc/nccl.conf, the image)",
            "containers need the same PID and IPC namespaces, or NCCL_CUMEM_ENABLE, to open each other's memory",
            "if the driver refuses: `nvidia-smi topo -p2p r`; say it with `p2p: off` in the topology file",
        )
    return ("the topology file says less than the box can: set `p2p: on`, or the environment of the run, in its settings",)


@check(
    "force-p2p",
    "kernels reach peers directly (ForceP2P keys, where GPUs need them)",
    needs="`grep -i registry /proc/driver/nvidia/params` (ForceP2P), then force_p2p in the topology's settings",
)
def force_p2p(exam: Exam) -> list[Finding] | None:
    """An engine's own AllReduce on root-port boards: without the driver's keys its loads and stores go through system memory."""
    box = exam.box
    pairs = [
        (a, b)
        for a, b in exam.pairs
        if all(box.gpu_spec(gpu).force_p2p_needed for gpu in (a, b))
        and box.path_type(a, b) in ("PHB", "SYS")
        and exam.set(force_p2p=False).sm_route(a, b).transport == "SHM"
        and exam.opened().transport(a, b).kind == "P2P"
    ]
    if not pairs or box.settings.force_p2p or box.settings.p2p == "off":
        return []
    asked = [(launch, ranks) for launch in exam.related.launches if (ranks := _own_kernel_ranks(launch))]
    if box.settings.force_p2p is None and not asked:
        return None
    count = min(max((ranks for _, ranks in asked), default=len(box.gpus)), len(box.gpus))
    slow, fast = (exam.time(exam.set(force_p2p=state), SMALL, algorithm="one_shot_pull", ranks=count) for state in (False, True))
    costs = (Cost("all_reduce", SMALL, slow, fast),) if slow is not None and fast is not None else ()
    known = box.settings.force_p2p is False
    models = ", ".join(sorted({box.gpu_spec(a).name for a, _ in pairs}))
    evidence = [
        f"{_pairs_text(exam, pairs)} meet at the root complex; {models} need the keys there",
        "settings of the topology file: force_p2p false" if known else "whether the keys are set is not said",
    ]
    evidence += [f"{launch.runtime} {launch.strategy}: its own AllReduce kernel is on" for launch, _ in asked]
    if not asked:
        evidence.append("no serve command says that an engine's own AllReduce is used: the collective library does not need the keys")
    advice = (
        f"options nvidia NVreg_RegistryDwords={_KEYS} in /etc/modprobe.d, reboot, then check that peer copies are right",
        "or leave the engine's own AllReduce off (--disable-custom-all-reduce)",
    )
    level: Severity = "problem" if known and asked and dear(costs) else "note"
    words = cost_text(costs)
    cost = f"of the engine's own kernel on {count} GPUs: {words}" if costs else words
    title = "ForceP2P keys are not set" if known else "ForceP2P keys: not known whether they are set"
    nodes = cast("Iterable[str]", sum(pairs, ()))
    return [finding("force-p2p", title, level, evidence, costs=costs, cost=cost, advice=advice, nodes=nodes)]
