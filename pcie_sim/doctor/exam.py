"""One box under examination: its facts, variants of it, and what calls cost on each (every prediction is made once)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import PurePath
from typing import Any

from pcie_sim import catalog
from pcie_sim.errors import InputError, NoDataError
from pcie_sim.importers.relate import Related
from pcie_sim.network import DECODE_BYTES, copy_rates, library_choice
from pcie_sim.results.ccl import CclChoice
from pcie_sim.results.finding import Cost, Finding, Severity
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.specs.part import LibraryPart
from pcie_sim.study import collective
from pcie_sim.topology import Topology, from_spec
from pcie_sim.units import format_bytes

SMALL, LARGE = DECODE_BYTES, 16 * 2**20
"""The two AllReduces that findings are priced with: one token of a large model, and a long prompt's."""
DEAR = 0.05
"""A finding that costs less than this share of both is a note."""
_LINES = 8
UNPRICED = "cannot be estimated"
OPEN = {"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "0"}
"""Environment in which the library refuses no pair."""
_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "All-to-All",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "send_recv": "send/recv",
}


class Exam:
    """What the checks look at.

    Attributes:
        box: the box as described, with the settings in force.
        related: the facts of files by its node names (empty where there are none).
        pairs: ordered pairs of GPUs of one host.
    """

    def __init__(self, box: Topology, related: Related | None = None) -> None:
        self.box = box
        self.related = related if related is not None else Related()
        self.pairs = [(a, b) for a, b in permutations(box.gpus, 2) if box.host_of(a) == box.host_of(b)]
        self._boxes: dict[tuple[Any, ...], Topology | None] = {}
        self._times: dict[tuple[Any, ...], float | None] = {}
        self._choices: dict[Topology, CclChoice | None] = {}
        self.known: dict[str, Any] = {}
        """What helpers worked out once."""

    def changed(self, nodes: Mapping[str, Mapping[str, Any]], box: Topology | None = None) -> Topology | None:
        """The box with other values in some nodes; None where that is no sound box."""
        old = box if box is not None else self.box
        key = (old, "nodes", tuple(sorted((name, tuple(sorted(new.items(), key=str))) for name, new in nodes.items())))
        if key not in self._boxes:
            made = {name: node.model_copy(update=dict(nodes[name])) if name in nodes else node for name, node in old.spec.nodes.items()}
            self._boxes[key] = _sound(old.spec.model_copy(update={"nodes": made}), old.name)
        return self._boxes[key]

    def linked(self, links: Mapping[str, PcieLink], box: Topology | None = None) -> Topology | None:
        """The box with other links."""
        return self.changed({name: {"link": link} for name, link in links.items()}, box)

    def set(self, **settings: Any) -> Topology:
        """The box with other settings (as :meth:`Topology.with_settings <pcie_sim.topology.Topology>`)."""
        key = ("set", repr(sorted(settings.items())))
        if key not in self._boxes:
            self._boxes[key] = self.box.with_settings(**settings)
        found = self._boxes[key]
        return found if found is not None else self.box

    def opened(self) -> Topology:
        """The box where driver, platform and library grant peer access to all pairs."""
        return self.set(p2p="on", env=OPEN)

    def time(
        self,
        box: Topology | None,
        size: int,
        *,
        order: Sequence[str] | None = None,
        algorithm: str = "auto",
        protocol: str = "auto",
        ranks: int | None = None,
    ) -> float | None:
        """Seconds of one AllReduce inside a CUDA graph; None where it cannot be predicted."""
        if box is None or len(box.gpus) < 2:
            return None
        key = (box, size, tuple(order) if order is not None else None, algorithm, protocol, ranks)
        if key not in self._times:
            try:
                found = collective(
                    box, "all_reduce", size, ranks=ranks, algorithm=algorithm, protocol=protocol, launch="graph", order=order
                )
                self._times[key] = found.time_s
            except (InputError, NoDataError):
                self._times[key] = None
        return self._times[key]

    def costs(self, fixed: Topology | None, now: Topology | None = None, sizes: Sequence[int] = (SMALL, LARGE)) -> tuple[Cost, ...]:
        """The finding's price: both AllReduces ``now`` (None: the box as it is) and ``fixed``."""
        found = []
        for size in sizes:
            before, after = self.time(now if now is not None else self.box, size), self.time(fixed, size)
            if before is not None and after is not None:
                found.append(Cost("all_reduce", size, before, after))
        return tuple(found)

    def copy_rate(self, pair: tuple[str, str], *, both: bool = False) -> float | None:
        """What a bare peer-to-peer copy of a pair alone reaches by the box's links, B/s; ``both``: the two ways at once, together."""
        places = self.box.places
        key = ("copy", places[pair[0]], places[pair[1]], both)
        if key not in self._times:
            try:
                asked = [pair, (pair[1], pair[0])] if both else [pair]
                self._times[key] = copy_rates(self.opened(), asked).total
            except InputError:
                self._times[key] = None
        return self._times[key]

    def wire_rate(self, pair: tuple[str, str]) -> float | None:
        """The payload rate of the slowest PCIe link on the way of a pair, B/s: no copy is faster."""
        key = ("wire", *pair)
        if key not in self._times:
            try:
                links = [name for name in self.opened().route(*pair).links if name.endswith((".up", ".dn"))]
            except InputError:
                links = []
            self._times[key] = min((self.box.links[name].rate.value for name in links), default=None)
        return self._times[key]

    def choice(self, box: Topology | None = None) -> CclChoice | None:
        """What the collective library decides; None where that is not modelled."""
        box = box if box is not None else self.box
        if box not in self._choices:
            try:
                self._choices[box] = library_choice(box)
            except (InputError, NoDataError):
                self._choices[box] = None
        return self._choices[box]

    def newest_library(self) -> Topology | None:
        """The box with the newest version of its library whose rules are known; None where that is in force or nothing is known."""
        ccl = self.box.settings.ccl
        if ccl.name == "none" or ccl.name not in catalog.names("parts"):
            return None
        tuning = catalog.load_typed_part(ccl.name, LibraryPart).tuning
        if tuning is None or tuning.versions is None:
            return None
        newest = tuning.versions[1]
        if ccl.version_tuple[:2] >= tuple(int(part) for part in newest.split("."))[:2]:
            return None
        return self.set(ccl=f"{ccl.name} {newest}")

    def names(self, nodes: Iterable[str]) -> str:
        """Nodes for a sentence; ``all 8 GPUs`` where it is all of them."""
        kept = list(dict.fromkeys(nodes))
        if len(kept) > 2 and set(kept) == set(self.box.gpus):
            return f"all {len(kept)} GPUs"
        return names(kept)

    def alike(self, rows: Iterable[tuple[str, str]]) -> list[str]:
        """(node, what is seen) as sentences: nodes of which the same is seen in one, with the lines of one file."""
        groups: dict[str, list[str]] = {}
        for node, text in rows:
            groups.setdefault(text, []).append(node)
        found = []
        for text, nodes in groups.items():
            source = next((name for node in nodes if (name := self.related.device_source.get(node))), "")
            lines = [str(one.line) for node in nodes if (one := self.related.devices.get(node)) is not None and one.line is not None]
            more = ", ..." if len(lines) > _LINES else ""
            where = at(source) + (f":{','.join(lines[:_LINES])}{more}" if lines else "")
            found.append(said(f"{self.names(nodes)}: {text}", where if source else ""))
        return found


def _sound(spec: TopologySpec, name: str) -> Topology | None:
    try:
        return from_spec(spec, source=name)
    except (InputError, NoDataError):
        return None


def at(source: str, line: int | None = None) -> str:
    """A file's name and line.

    >>> at("/home/me/lspci.txt", 120), at("log"), at("")
    ('lspci.txt:120', 'log', '')
    """
    if not source:
        return ""
    return PurePath(source).name + (f":{line}" if line else "")


def said(text: str, where: str) -> str:
    """``text`` with the place that says it."""
    return f"{text} ({where})" if where else text


def dear(costs: Iterable[Cost], share: float = DEAR) -> bool:
    """Whether some call takes this share longer than with the finding repaired."""
    return any(cost.share >= share for cost in costs)


def severity(costs: Sequence[Cost], share: float = DEAR) -> Severity:
    """A problem where it costs, else a note."""
    return "problem" if dear(costs, share) else "note"


def cost_text(costs: Sequence[Cost]) -> str:
    """The costs in words: what each call takes longer, from what to what, in us, and in percent."""
    if not costs:
        return UNPRICED
    return "; ".join(_one(cost) for cost in costs)


def _one(cost: Cost) -> str:
    call = f"{format_bytes(cost.bytes)} {_NAMES.get(cost.op, cost.op)}"
    span = f"{_us(cost.fixed_s)} -> {_us(cost.now_s)} us"
    if abs(cost.share) < 0.01:
        return f"nothing for a {call} ({_us(cost.now_s)} us)"
    return f"{'+' if cost.extra_s > 0 else '-'}{_us(abs(cost.extra_s))} us for each {call} ({span}, {cost.share:+.0%})"


def _us(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def op_name(op: str) -> str:
    """``AllReduce`` for ``all_reduce``."""
    return _NAMES.get(op, op)


def names(nodes: Sequence[str], most: int = 6) -> str:
    """Node names for a sentence.

    >>> names(["gpu0", "gpu1"]), names([f"gpu{i}" for i in range(9)], 3)
    ('gpu0 and gpu1', 'gpu0, gpu1, gpu2 and 6 more')
    """
    if len(nodes) > most:
        return ", ".join(nodes[:most]) + f" and {len(nodes) - most} more"
    return " and ".join(part for part in (", ".join(nodes[:-1]), nodes[-1]) if part) if nodes else ""


def finding(
    code: str,
    title: str,
    level: Severity,
    evidence: Iterable[str],
    *,
    costs: Sequence[Cost] = (),
    cost: str | None = "",
    advice: Iterable[str] = (),
    nodes: Iterable[str] = (),
) -> Finding:
    """A :class:`Finding`; ``cost`` "" stands for the words of ``costs``."""
    words = cost_text(costs) if cost == "" else cost
    kept = tuple(dict.fromkeys(text for text in evidence if text))
    return Finding(code, title, level, kept, words, tuple(text for text in advice if text), tuple(dict.fromkeys(nodes)), tuple(costs))
