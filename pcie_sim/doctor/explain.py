"""Which state of the box would explain a slow run: the run predicted under each, and the one that fits best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pcie_sim.doctor.copying import matrices, numbers
from pcie_sim.doctor.runs import Curve, expected
from pcie_sim.doctor.seen import NEAR, carried, logged, redirect_ruled_out
from pcie_sim.doctor.wires import payload, views
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.ops import Array
from pcie_sim.topology import Topology

if TYPE_CHECKING:
    from pcie_sim.doctor.exam import Exam

GOOD = math.log(1.6)
"""A state explains a run when its prediction is on average within this (ln) ..."""
_CARRIES = 1.05
"""A copy faster than this share of a link's payload rate shows that the link is no such link."""
_BOTH_WAYS = 1.6
BETTER = 0.6
"""... and its error at most this share of that of the box as described."""


@dataclass(frozen=True)
class Cause:
    """A state of the box: what would be the matter, what to look at, the box in that state."""

    text: str
    advice: str
    box: Callable[[Topology], Topology | None]
    protocol: str = "auto"


@dataclass(frozen=True, eq=False)
class Explanation:
    """Causes that give the same times, beside a run.

    ``error``: mean error, ln, of the prediction over all sizes that the CPU does not decide.
    """

    texts: tuple[str, ...]
    advice: tuple[str, ...]
    error: float
    times: Array

    @property
    def factor(self) -> float:
        """The mean error as a factor (1.2: within 20 %)."""
        return math.exp(self.error)


def explain(exam: Exam, curve: Curve, sick: np.ndarray, fine: np.ndarray) -> tuple[list[Explanation], int]:
    """The causes that fit ``curve``, best first, and how many were tried.

    They must come much nearer to its ``sick`` sizes than the box as described does, without missing the ``fine`` ones.
    """
    now = expected(curve, curve.box)
    if now is None:
        return [], 0
    both = sick | fine
    base, whole = _error(curve, now.times, sick), _error(curve, now.times, both)
    found, tried = [], 0
    for cause in _causes(exam, curve):
        got = expected(curve, cause.box(curve.box), protocol=cause.protocol)
        if got is None:
            continue
        tried += 1
        error = _error(curve, got.times, both)
        if _error(curve, got.times, sick) <= BETTER * base and error < whole and error <= GOOD:
            found.append(Explanation((cause.text,), (cause.advice,), error, got.times))
    return _merged(sorted(found, key=lambda item: item.error)), tried


def _merged(found: list[Explanation]) -> list[Explanation]:
    """Those with nearly equal times as one."""
    kept: list[Explanation] = []
    for item in found:
        same = next((index for index, other in enumerate(kept) if np.allclose(other.times, item.times, rtol=0.05)), None)
        if same is None:
            kept.append(item)
        else:
            old = kept[same]
            texts, advice = (
                tuple(dict.fromkeys((*first, *second))) for first, second in ((old.texts, item.texts), (old.advice, item.advice))
            )
            kept[same] = Explanation(texts, advice, old.error, old.times)
    return kept


def _error(curve: Curve, times: Array, mask: np.ndarray) -> float:
    """Mean of |ln(measured / predicted)| over some sizes."""
    return float(np.mean(np.abs(np.log(curve.times[mask] / times[mask]))))


def _settings(**settings: Any) -> Callable[[Topology], Topology | None]:
    return lambda box: box.with_settings(**settings)


def _causes(exam: Exam, curve: Curve) -> Iterator[Cause]:
    """Everything that is tried, the usual first, but for what the files rule out."""
    kinds = set(logged(exam, curve.gpus).values())
    peers = "P2P" not in kinds and any(
        curve.box.transport(a, b, gpus=len(curve.gpus)).kind == "P2P" for a in curve.gpus for b in curve.gpus if a != b
    )
    staged = _settings(p2p="off")
    look = "`nvidia-smi topo -p2p r`, and `via SHM` lines of a run with NCCL_DEBUG=INFO"
    if peers:
        yield Cause("peer-to-peer refused: everything through host memory", look, staged)
    if "NCCL_P2P_LEVEL" in curve.box.settings.env and "P2P" not in kinds:
        text = "NCCL_P2P_LEVEL not in force in that run"
        yield Cause(text, "the environment of the ranks (mpirun -x, the container's -e)", _settings(env={"NCCL_P2P_LEVEL": ""}))
    if not kinds or "NET" in kinds:
        yield Cause(
            "everything by sockets: shared memory refused between the ranks",
            "shared memory of the containers (--ipc=host or --shm-size), `via NET/Socket` lines of a run with NCCL_DEBUG=INFO",
            _settings(p2p="off", env={"NCCL_SHM_DISABLE": "1"}),
        )
    yield from _link_causes(exam, curve, staged if peers else None)
    if curve.box.settings.acs == "off" and _may_redirect(exam):
        yield Cause("ACS redirect on", "ACSCtl of the switch ports in `sudo lspci -vvv`", _settings(acs="on"))
    for name in ("LL", "Simple"):
        yield Cause(f"protocol {name} forced (NCCL_PROTO={name}) or chosen wrongly", "NCCL_PROTO, and /etc/nccl.conf", _settings(), name)
    if not any((log.ccl.coll_channels or 0) > 1 for log in exam.related.ccl):
        yield Cause(
            "one channel only (NCCL_MAX_NCHANNELS=1, or a graph fallback)",
            "`coll channels` in the NCCL_DEBUG=INFO log",
            _settings(env={"NCCL_MAX_NCHANNELS": "1"}),
        )
    if "posted_write_collapse" not in curve.box.conditions:
        yield Cause(
            "posted-write collapse of the switches",
            "BIOS, driver and switch firmware versions; compare copies of one pair with copies of all pairs at once",
            _settings(conditions=("posted_write_collapse",)),
        )


def _may_redirect(exam: Exam) -> bool:
    """Pairs below one switch whose traffic ACS could turn round: neither ACSCtl nor copies both ways show that it does not."""
    near = {pair for pair in exam.pairs if exam.box.path_type(*pair) in NEAR}
    if not near or redirect_ruled_out(exam):
        return False
    for p2p in (True, None):
        for both in matrices(exam, "bandwidth", p2p=p2p, bidirectional=True):
            for way in matrices(exam, "bandwidth", p2p=p2p):
                rates, single = numbers(both), numbers(way)
                told = [pair for pair in near if pair in rates and pair in single]
                if len(told) == len(near) and all(rates[pair] > _BOTH_WAYS * single[pair] for pair in told):
                    return False
    return True


def _possible(exam: Exam, node: str, link: PcieLink) -> bool:
    """No file rules out that the link of ``node`` is no better than ``link``: neither a copy over it nor its state in force."""
    if carried(exam).get(node, 0.0) > _CARRIES * payload(exam, link):
        return False
    if "links in force" not in exam.known:
        exam.known["links in force"] = {view.node: view.now for view in views(exam)}
    now = exam.known["links in force"].get(node)
    return now is None or ((now.width or 0) <= link.width and (now.gen or 0) <= link.gen)


def _link_causes(exam: Exam, curve: Curve, staged: Callable[[Topology], Topology | None] | None) -> Iterator[Cause]:
    look = "LnkSta of the GPUs and of the ports above them in `sudo lspci -vvv`, read while a copy runs"
    every = list(curve.gpus)
    half = len(every) // 2
    for single in (True, False):
        for change, text in (
            ({"gen": 1}, "Gen1"),
            ({"gen": -1}, "one generation lower"),
            ({"gen": -2}, "two generations lower"),
            ({"width": 8}, "x8"),
            ({"width": 4}, "x4"),
        ):
            if single:
                for gpu in (*every[half:], *every[:half]):
                    lower = _lowered(exam, [gpu], change)
                    if lower is not None:
                        yield Cause(f"the link of one GPU (like {gpu}) at {text}", look, _links(exam, lower))
                        break
                continue
            lower = _lowered(exam, every, change)
            if lower is None:
                continue
            yield Cause(f"the links of all GPUs at {text}", look, _links(exam, lower))
            if staged is not None:
                yield Cause(f"everything through host memory, over links at {text}", look, _both(staged, _links(exam, lower)))
    uplinks = [name for name, node in exam.box.spec.nodes.items() if node.kind == "switch" and exam.box.trained_link(name) is not None]
    for change, text in (({"gen": -1}, "one generation lower"), ({"width": 8}, "x8"), ({"width": 4}, "x4"), ({"gen": 1}, "Gen1")):
        lower = _lowered(exam, uplinks, change)
        if lower is not None:
            yield Cause(f"the switches' uplinks at {text}", look, _links(exam, lower))


def _lowered(exam: Exam, nodes: list[str], change: dict[str, int]) -> dict[str, PcieLink] | None:
    """Links of ``nodes`` with a lower generation or width; None where none would change, or where files rule one of them out."""
    found = {}
    for node in nodes:
        link = exam.box.trained_link(node)
        if link is None:
            continue
        gen, width = change.get("gen", 0), change.get("width")
        to = max(1, link.gen + gen) if gen < 0 else gen if gen else link.gen
        made = PcieLink.model_validate({"gen": min(to, link.gen), "width": min(width or link.width, link.width)})
        if made != link and not (gen == -2 and to == 1):  # as Gen1
            found[node] = made
            if not _possible(exam, node, made):
                return None
    return found or None


def _links(exam: Exam, links: dict[str, PcieLink]) -> Callable[[Topology], Topology | None]:
    return lambda box: exam.linked(links, box)


def _both(
    first: Callable[[Topology], Topology | None], second: Callable[[Topology], Topology | None]
) -> Callable[[Topology], Topology | None]:
    def made(box: Topology) -> Topology | None:
        inner = second(box)
        return None if inner is None else first(inner)

    return made
