"""Logs of NCCL_DEBUG=INFO and TRACE: transports, rings, searched graphs, path matrix, tree, choices, settings; spliced lines allowed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from pcie_sim.importers.facts import BoxFacts, GpuFact, bus_key
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.nccl_comm import OPS, Comm
from pcie_sim.importers.nccl_text import Notes, ccl_version, environment, log_parts
from pcie_sim.importers.nccl_tree import TreeReader, TuningTable, starts_tree
from pcie_sim.importers.source import SourceText

MAX_COMMS = 256
MAX_TREES = 64
_MOST_GPUS = 256
"""Of one host; more are ranks of several."""
_INIT = re.compile(
    r"\b(?:ncclCommInit[A-Za-z]{0,20}|ncclCommSplit) comm [^\s]{1,20} rank ([0-9]{1,7}) nranks ([0-9]{1,7}) .{0,120}Init START"
)
_CALL = re.compile(r"\b([A-Z][A-Za-z]{2,20}): opCount ")
_COMM_ID = re.compile(r"\bcommId 0x([0-9a-fA-F]{1,20})\b")
_START = re.compile(r"\bNCCL (?:INFO|TRACE) ")


def sniff(source: SourceText) -> int | None:
    """The first line that NCCL wrote."""
    if "NCCL " not in source.raw or source.raw.lstrip()[:1] in ("{", "<"):
        return None
    return next((number for number, line in enumerate(source.lines, 1) if "NCCL " in line and _START.search(line)), None)


@importer("nccl-debug", "NCCL_DEBUG=INFO log", sniff=sniff)
def read(source: SourceText) -> Imported:
    """One :class:`CclFact` per communicator, that with most ranks first, and the tree where the log draws it.

    Raises:
        InputError: log lines, but none that says anything about ranks, transports, graphs or settings.
    """
    notes = Notes(source)
    log = _Log(notes)
    for number, line in enumerate(source.lines, 1):
        log.feed(line, number)
    comms = sorted((comm for comm in log.comms.values() if not comm.empty), key=lambda comm: -(comm.nranks or len(comm.ranks)))
    facts = [comm.fact(log.name, log.version, log.env) for comm in comms]
    if not facts and (log.version or log.env):
        facts = [Comm(notes, sniff(source) or 1).fact(log.name, log.version, log.env)]
    if not facts:
        text = "holds NCCL log lines, but none that says ranks, transports, rings or graphs"
        raise source.error(f"{text}; run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH", sniff(source))
    tree = log.tree()
    if log.spliced or log.unread:
        text = f"{log.spliced} lines are written over each other" if log.spliced else ""
        text += (" and " if text and log.unread else "") + (f"{log.unread} messages are broken off" if log.unread else "")
        notes.add("ignored", f"{text} (several processes wrote one file): only what is whole of them is read", log.first_bad)
    gpus = _gpus(comms, log.hosts, notes) if tree is None and not any(comm.paths for comm in comms) else ()
    box = BoxFacts(
        ccl=tuple(facts), gpus=gpus, devices=tuple(tree.devices.values()) if tree else (), cpus=tuple(tree.cpus.values()) if tree else ()
    )
    details: dict[str, Any] = {}
    if tree is not None:
        first = next(iter(tree.devices.values())).line
        notes.add("note", "the log's tree gives bandwidths in NCCL's classes, not generation and width of links", first)
        details["nccl_tree_bandwidths"] = [[node, link, speed] for node, link, speed in tree.bandwidths]
    if log.table.rows:
        details["nccl_tuning_table"] = log.table.rows
    return Imported(source.name, ("nccl-debug",), box=box, remarks=notes.remarks(), details=details)


def _gpus(comms: Sequence[Comm], hosts: Collection[str], notes: Notes) -> tuple[GpuFact, ...]:
    """The GPUs of the ranks by bus id, where all ranks are of one host: numbered as the driver does (nvmlDev) where every rank says it,
    else as its process does (cudaDev), else by place in bus order.
    """
    if len(hosts) > 1 or any((comm.nodes or 1) > 1 or comm.disputed or len(set(comm.ranks.values())) < len(comm.ranks) for comm in comms):
        return ()
    known, wanted = max((len(comm.ranks) for comm in comms), default=0), max((comm.nranks or 0 for comm in comms), default=0)
    if 0 < known < wanted:
        line = comms[0].line
        notes.add("ignored", f"bus ids of {known} of {wanted} ranks: no box is drawn from them", line)
        return ()
    driver: dict[str, set[int]] = {}
    cuda: dict[str, set[int]] = {}
    for comm in comms:
        for rank, bus in comm.ranks.items():
            for said, numbers in ((comm.devices, driver), (comm.cuda, cuda)):
                numbers.setdefault(bus, set()).update({said[rank]} if rank in said else ())
    buses = sorted(driver, key=bus_key)
    if len(buses) > _MOST_GPUS or any(len(numbers) > 1 for numbers in driver.values()):
        return ()
    own = [number for bus in buses for number in driver[bus]]
    if len(own) == len(buses):
        if len(set(own)) < len(own):  # the same number twice: several hosts
            return ()
        return tuple(GpuFact(number, bus=bus) for number, bus in sorted(zip(own, buses, strict=True)))
    own = [number for bus in buses for number in cuda[bus]]
    own = own if len(own) == len(set(own)) == len(buses) else list(range(len(buses)))
    return tuple(GpuFact(number, bus=bus, numbering="cuda") for number, bus in sorted(zip(own, buses, strict=True)))


class _Log:
    """The whole file: who speaks, in which communicator."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.comms: dict[tuple[object, ...], Comm] = {}
        self.table = TuningTable()
        self.name = "nccl"
        self.version: str | None = None
        self.env: dict[str, str] = {}
        self.spliced = self.unread = 0
        self.first_bad: int | None = None
        self.hosts: set[str] = set()
        """Only how many is used; names are not stored."""
        self._speaks: dict[tuple[str, str], Comm] = {}
        self._inits: dict[tuple[str, str, int], int] = {}
        self._called: dict[tuple[str, str], str] = {}
        self._trees: dict[tuple[str, str], TreeReader] = {}
        self._all_trees: list[TreeReader] = []
        self._default: Comm | None = None

    def feed(self, line: str, number: int) -> None:
        """One line, with as many messages as it holds."""
        parts = list(log_parts(line))
        if len(parts) > 1:
            self._bad(number, spliced=True)
        elif parts and " busId " in line and len(self.hosts) < 2:  # a whole line: names in spliced ones are damaged
            self.hosts.add(parts[0][0].partition(":")[0])
        for process, device, level, message in parts:
            if level in ("INFO", "TRACE"):
                self._message((process, device), message, number)
        if not parts and ("CCL version" in line or "_DEBUG" in line):
            self._library(line)

    def _bad(self, number: int, *, spliced: bool) -> None:
        self.first_bad = self.first_bad or number
        if spliced:
            self.spliced += 1
        else:
            self.unread += 1

    def _library(self, text: str) -> None:
        if (said := ccl_version(text)) is not None:
            if self.version is not None and self.version != said[1]:
                self.notes.add("conflict", f"two versions of the library ({self.version} and {said[1]}): the first is kept")
            else:
                self.name, self.version = said[0], said[1]

    def _message(self, voice: tuple[str, str], text: str, number: int) -> None:
        if "CCL version" in text:
            self._library(text)
        elif "CCL_" in text:
            self._setting(text, number)
        tree = self._trees.get(voice)
        if starts_tree(text):
            if len(self._all_trees) < MAX_TREES:
                self._trees[voice] = TreeReader(Notes(self.notes.source) if self._all_trees else self.notes)
                self._all_trees.append(self._trees[voice])
            else:
                self._trees.pop(voice, None)
        elif tree is not None and tree.open:
            tree.feed(text, number)
        if "|" in text:
            self.table.feed(text)
        if "Init START" in text and (match := _INIT.search(text)) is not None:
            self._init(voice, match, text, number)
        if " opCount " in text and (call := _CALL.search(text)) is not None:
            self._called[voice] = OPS.get(call.group(1), "")
        if self._comm(voice, number).feed(text, number, self._called.get(voice, "")):
            self._bad(number, spliced=False)

    def _setting(self, text: str, number: int) -> None:
        for name, value in environment(text[:4000], self.notes, number).items():
            if len(self.env) < 200 and self.env.setdefault(name, value) != value:
                self.notes.add("conflict", f"{name} is set to different values: the first is kept", number)

    def _init(self, voice: tuple[str, str], match: re.Match[str], text: str, number: int) -> None:
        ranks = int(match.group(2))
        said = _COMM_ID.search(text)
        if said is not None and said.group(1).strip("0"):
            key: tuple[object, ...] = ("id", said.group(1), ranks)
        else:  # no id (or one that was blotted out): the n-th communicator of that many ranks that this GPU enters
            count = self._inits[(*voice, ranks)] = self._inits.get((*voice, ranks), 0) + 1
            key = ("nth", ranks, count)
        comm = self.comms.get(key)
        if comm is None:
            if len(self.comms) >= MAX_COMMS:
                self.notes.add("cut", f"more than {MAX_COMMS} communicators: the rest is read into the last ones", number)
                return
            comm = self.comms[key] = Comm(self.notes, number)
        self._speaks[voice] = comm

    def _comm(self, voice: tuple[str, str], number: int) -> Comm:
        comm = self._speaks.get(voice)
        if comm is not None:
            return comm
        if len(self.comms) == 1 and self._default is None and self._speaks:
            return next(iter(self.comms.values()))
        if self._default is None:
            self._default = self.comms[("default",)] = Comm(self.notes, number)
        return self._default

    def tree(self) -> TreeReader | None:
        """The first whole tree."""
        found = next((tree for tree in self._all_trees if tree.whole), None)
        if found is None and self._all_trees:
            self.notes.add("ignored", "the tree of the log is damaged or cut: left out", self.first_bad)
        elif found is not None and any(tree.whole and set(tree.devices) != set(found.devices) for tree in self._all_trees):
            self.notes.add(
                "conflict", "ranks draw different trees (several hosts?): the first is kept", next(iter(found.devices.values())).line
            )
        return found
