"""What the lines of an NCCL log say about one communicator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pcie_sim.importers.facts import CclFact, ChoiceFact, GraphFact, RingFact, bus_id_of_int
from pcie_sim.importers.nccl_text import Notes

MAX_RANKS = 4096
MAX_CHANNELS = 128
MAX_CHOICES = 4096

_MEMBER = re.compile(r"\brank ([0-9]{1,7}) n[rR]anks ([0-9]{1,7})(?: nNodes ([0-9]{1,5})\b)?")
_CALLED_WITH = re.compile(r"\[nranks=([0-9]{1,7})\]")
_PLACE = re.compile(r"\brank ([0-9]{1,7}) nranks [0-9]{1,7} cudaDev ([0-9]{1,4})(?: nvmlDev ([0-9]{1,4}))? busId ([0-9a-fA-F]{1,12})\b")
_VIA = re.compile(
    r"Channel ([0-9]{1,4})(?:/[0-9]{1,4})?[ ]{1,4}:[ ]{1,4}([0-9]{1,7})\[([0-9a-fA-F]{1,12})\] -> "
    r"([0-9]{1,7})\[([0-9a-fA-F]{1,12})\](?: \[(?:send|receive)\])? via "
    r"(?:(P2P|SHM|NET|COLLNET)/([A-Za-z0-9_/ .()\-]{0,80})|direct shared memory)"
)
_ORDER = re.compile(r"Channel ([0-9]{1,4})/[0-9]{1,4}[ ]{1,4}:[ ]{1,8}([0-9][0-9 ]*)$")
_RING = re.compile(r"Ring ([0-9]{1,4})[ ]{1,4}: ([0-9]{1,7}) -> ([0-9]{1,7}) -> ([0-9]{1,7})(?![0-9])")
_PATTERN = re.compile(
    r"Pattern ([0-9]{1,2}), crossNic [0-9]{1,2}, nChannels ([0-9]{1,4}), "
    r"(?:bw|speed) ([0-9]{1,6}\.[0-9]{1,6})/[0-9.]{1,14}, type ([A-Z0-9]{2,4})/"
)
_FELL_BACK = re.compile(r"Could not find a path for pattern ([0-9]{1,2}), falling back to simple order")
_CHANNELS = re.compile(r"([0-9]{1,4}) coll channels,")
_P2P_CHANNELS = re.compile(r"([0-9]{1,4}) p2p channels(?!\s{0,4}per)")
_PATHS = re.compile(r"^\s{0,8}GPU/([0-9a-fA-F]{1,12}(?:-[0-9a-fA-F]{1,12})?) ?: ?(?=GPU/|CPU/|PCI/|NET/|NVS/)")
_NODE = re.compile(r"\] - GPU/([0-9a-fA-F]{1,12}(?:-[0-9a-fA-F]{1,12})?) \(([0-9]{1,5})\)")
_PATH = re.compile(r"GPU/([0-9a-fA-F]{1,12}(?:-[0-9a-fA-F]{1,12})?) \([0-9]{1,4}/[0-9.]{1,14}/([A-Z0-9]{2,4})\)")
_CHOICE = re.compile(
    r"(?:\b([A-Z][A-Za-z]{2,20}): )?([0-9]{1,18}) Bytes -> Algo ([A-Za-z0-9_]{1,20}) proto ([A-Za-z0-9_]{1,12})"
    r"(?: channel\{Lo\.\.Hi\}=\{([0-9]{1,4})\.\.([0-9]{1,4})\})?"
)
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""By their numbers (NCCL: src/include/nccl_common.h; 0 and 1 have been the same since 2.5)."""
PROTOCOLS = {"0": "LL", "1": "LL128", "2": "Simple", "LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
OPS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "SendRecv": "send_recv",
}
"""Names of ncclFuncToString."""
_PER_RANK = frozenset(("all_gather", "reduce_scatter"))


@dataclass
class Comm:
    """Facts gathered so far; lines of all its ranks go here."""

    notes: Notes
    line: int
    nranks: int | None = None
    nodes: int | None = None
    ranks: dict[int, str] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    cuda: dict[int, int] = field(default_factory=dict)
    """Rank -> the device number in its own process (cudaDev)."""
    disputed: bool = False
    """Two lines give one rank two bus ids."""
    transports: dict[tuple[int, int], str] = field(default_factory=dict)
    paths: dict[tuple[str, str], str] = field(default_factory=dict)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    after: dict[int, dict[int, int]] = field(default_factory=dict)
    graphs: dict[int, GraphFact] = field(default_factory=dict)
    fell_back: dict[int, int] = field(default_factory=dict)
    choices: dict[tuple[str, int, str, str], ChoiceFact] = field(default_factory=dict)
    coll_channels: int | None = None
    p2p_channels: int | None = None

    @property
    def empty(self) -> bool:
        """Nothing but noise was read."""
        return not (
            self.nranks or self.ranks or self.transports or self.paths or self.orders or self.after
            or self.graphs or self.fell_back or self.choices or self.coll_channels
        )  # fmt: skip

    def feed(self, text: str, number: int, called: str = "") -> bool:
        """One message; ``called``: the op that the same thread was called for last. True where the message is of a kind that is read here
        but could not be.
        """
        if "GPU/" in text and self._place(text, number):
            return False
        if "anks " in text or "[nranks=" in text:
            self._member(text, number)
        if "Channel " in text or "Ring " in text:
            return self._connection(text, number)
        if "Pattern " in text or "falling back" in text:
            return self._graph(text, number)
        if "coll channels" in text:
            return self._counts(text, number)
        if " Bytes -> " in text:
            return self._choice(text, number, called)
        return False

    def _place(self, text: str, number: int) -> bool:
        """A line of the path matrix or of the tree."""
        if (match := _PATHS.match(text)) is not None:
            self._path(match, text, number)
        elif (match := _NODE.search(text)) is not None:
            self._bus(int(match.group(2)), match.group(1).rpartition("-")[2], number)
        return match is not None

    def _once(self, name: str, value: int, what: str, number: int) -> None:
        mine = getattr(self, name)
        if value == 0:
            return
        if mine is None:
            setattr(self, name, value)
        elif mine != value:
            self.notes.add("conflict", f"ranks disagree about {what} ({mine} and {value}): the first is kept", number)

    def _member(self, text: str, number: int) -> None:
        match = _MEMBER.search(text)
        if match is None and (given := _CALLED_WITH.search(text)) is not None:
            self._once("nranks", int(given.group(1)), "the number of ranks", number)
        if match is not None:
            self._once("nranks", int(match.group(2)), "the number of ranks", number)
            if match.group(3):
                self._once("nodes", int(match.group(3)), "the number of hosts", number)
        place = _PLACE.search(text)
        if place is not None:
            rank = int(place.group(1))
            self._bus(rank, place.group(4), number)
            if rank < MAX_RANKS:
                self.cuda.setdefault(rank, int(place.group(2)))
                if place.group(3) is not None:
                    self.devices.setdefault(rank, int(place.group(3)))

    def _bus(self, rank: int, text: str, number: int) -> None:
        bus = bus_id_of_int(text)
        if bus is None:
            return
        if rank >= MAX_RANKS:
            self.notes.add("cut", f"ranks above {MAX_RANKS} are left out", number)
        elif self.ranks.setdefault(rank, bus) != bus:
            self.disputed = True
            self.notes.add(
                "conflict", "two lines disagree about the bus id of a rank (several hosts, or several runs): the first is kept", number
            )

    def _connection(self, text: str, number: int) -> bool:
        if (match := _VIA.search(text)) is not None:
            source, target = int(match.group(2)), int(match.group(4))
            for rank, place in ((source, match.group(3)), (target, match.group(5))):
                if len(place) >= 4:  # before NCCL 2.15 or so the bus id stands in brackets, after it the device number
                    self._bus(rank, place, number)
            word = transport(match.group(6) or "SHM", match.group(7) or "")
            if max(source, target) >= MAX_RANKS or len(self.transports) >= 200_000:
                self.notes.add("cut", f"connections of ranks above {MAX_RANKS} are left out", number)
            elif self.transports.setdefault((source, target), word).split("/")[0] != word.split("/")[0]:
                self.notes.add("conflict", "two lines disagree about the transport of one pair: the first is kept", number)
            return False
        if (match := _RING.search(text)) is not None:
            channel, before, rank, after = (int(part) for part in match.groups())
            if channel < MAX_CHANNELS and max(before, rank, after) < MAX_RANKS:
                ring = self.after.setdefault(channel, {})
                if ring.setdefault(before, rank) != rank or ring.setdefault(rank, after) != after:
                    self.notes.add("conflict", "two lines disagree about the order of a ring: the first is kept", number)
            return False
        if (match := _ORDER.search(text.rstrip()[:20_000])) is not None:
            members = tuple(int(word[:8]) for word in match.group(2).split()[: MAX_RANKS + 1])
            channel = int(match.group(1))
            if channel < MAX_CHANNELS and len(members) <= MAX_RANKS and len(set(members)) == len(members):
                if self.orders.setdefault(channel, members) != members:
                    self.notes.add("conflict", "two lines disagree about the order of a ring: the first is kept", number)
                return False
            return True
        return re.search(r"Channel [0-9]{1,4}(?:/[0-9]{1,4})?[ ]{1,4}:|Ring [0-9]{1,4} :", text) is not None

    def _graph(self, text: str, number: int) -> bool:
        if (match := _FELL_BACK.search(text)) is not None:
            self.fell_back.setdefault(int(match.group(1)), number)
            return False
        if (match := _PATTERN.search(text)) is None:
            return "Pattern " in text and "nChannels" in text
        pattern, channels, speed = int(match.group(1)), int(match.group(2)), float(match.group(3)) * 1e9
        fact = GraphFact(pattern, channels, speed, match.group(4), number, pattern in self.fell_back)
        mine = self.graphs.setdefault(pattern, fact)
        if (mine.channels, mine.speed_intra, mine.type_intra) != (fact.channels, fact.speed_intra, fact.type_intra):
            self.notes.add("conflict", "ranks disagree about a searched graph: the first is kept", number)
        return False

    def _counts(self, text: str, number: int) -> bool:
        coll, p2p = _CHANNELS.search(text), _P2P_CHANNELS.search(text)
        if coll is not None:
            self._once("coll_channels", int(coll.group(1)), "the number of channels", number)
        if p2p is not None:
            self._once("p2p_channels", int(p2p.group(1)), "the number of p2p channels", number)
        return coll is None

    def _choice(self, text: str, number: int, called: str) -> bool:
        match = _CHOICE.search(text)
        if match is None:
            return True
        op = OPS.get(match.group(1) or "", "")
        protocol = PROTOCOLS.get(match.group(4).upper())
        name = match.group(3)
        algorithm = (ALGORITHMS[int(name)] if int(name) < len(ALGORITHMS) else None) if name.isdigit() and len(name) < 3 else name.lower()
        if protocol is None or algorithm is None or (match.group(1) and not op):
            return False
        if not op and called:
            op = called
            self.notes.add("assumed", "choices do not name the collective (NCCL 2.22 and older): that of the call before them", number)
        elif not op:
            self.notes.add("note", "choices do not name the collective (NCCL 2.22 and older)", number)
        size = int(match.group(2))
        low, high = match.group(5), match.group(6)
        channels = int(high) - int(low) + 1 if low is not None and int(high) >= int(low) else None
        if channels is not None and op in _PER_RANK and self.nranks:  # these lines count one rank's share
            size *= self.nranks
        if len(self.choices) < MAX_CHOICES:
            self.choices.setdefault((op, size, algorithm, protocol), ChoiceFact(op, size, algorithm, protocol, channels))
        else:
            self.notes.add("cut", f"more than {MAX_CHOICES} choices: the rest is left out", number)
        return False

    def _path(self, head: re.Match[str], text: str, number: int) -> None:
        source = node_bus(head.group(1))
        for match in _PATH.finditer(text, head.end()):
            target = node_bus(match.group(1))
            if source is None or target is None or source == target or len(self.paths) >= 300_000:
                continue
            if self.paths.setdefault((source, target), match.group(2)) != match.group(2):
                self.notes.add("conflict", "ranks disagree about the path between two GPUs: the first is kept", number)

    def fact(self, name: str, version: str | None, env: Mapping[str, str]) -> CclFact:
        """Everything as one fact; incomplete rings become remarks."""
        graphs = list(self.graphs.values())
        for pattern, line in self.fell_back.items():
            if pattern not in self.graphs:
                graphs.append(GraphFact(pattern, 1, 0.1e9, "SYS", line, fell_back=True))
                self.notes.add("assumed", "a search fell back to simple order: one channel, 0.1 GB/s, SYS, as NCCL then sets", line)
        return CclFact(
            name="rccl" if name == "rccl" else "nccl",
            version=version,
            env=dict(env),
            nranks=self.nranks,
            nodes=self.nodes,
            transports=dict(self.transports),
            ranks=dict(sorted(self.ranks.items())),
            devices=dict(sorted(self.devices.items())),
            paths=dict(self.paths),
            rings=self._rings(),
            graphs=tuple(graphs),
            choices=tuple(self.choices.values()),
            coll_channels=self.coll_channels,
            p2p_channels=self.p2p_channels,
            line=self.line,
        )

    def _rings(self) -> tuple[RingFact, ...]:
        found = dict(self.orders)
        for channel, after in self.after.items():
            chain = _chain(after)
            if channel in found:
                continue
            closed = after.get(chain[-1]) == chain[0] and len(chain) == len(after)
            if len(chain) == self.nranks or (self.nranks is None and closed):
                found[channel] = chain
            else:
                shown = " -> ".join(str(rank) for rank in chain[:20]) + (" ..." if len(chain) > 20 else "")
                self.notes.add("ignored", f"of the ring of channel {channel} only {shown} is in the log: left out", self.line)
        return tuple(RingFact(channel, _from_zero(members)) for channel, members in sorted(found.items()))


def _chain(after: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks in order, beginning where nobody comes before (or at the lowest)."""
    starts = sorted(set(after) - set(after.values())) or [min(after)]
    chain = [starts[0]]
    seen = {starts[0]}
    while (rank := after.get(chain[-1])) is not None and rank not in seen:
        chain.append(rank)
        seen.add(rank)
    return tuple(chain)


def _from_zero(members: tuple[int, ...]) -> tuple[int, ...]:
    at = members.index(min(members)) if members else 0
    return members[at:] + members[:at]


def transport(kind: str, rest: str) -> str:
    """The log's words without what varies from call to call.

    >>> transport("P2P", "CUMEM/read"), transport("SHM", "direct/direct"), transport("NET", "IB/0/GDRDMA")
    ('P2P/CUMEM', 'SHM/direct', 'NET/IB/GDRDMA')
    """
    words = [word.strip() for word in rest.split("/") if word.strip()]
    if kind == "SHM":
        return "SHM/CE" if "CE" in words else "SHM/direct"
    first = re.match(r"[A-Za-z][A-Za-z_]{0,20}(?: pointer)?", words[0]) if words else None
    named = f"{kind}/{first.group(0)}" if first is not None else kind
    return f"{named}/GDRDMA" if kind == "NET" and "GDRDMA" in words else named


def node_bus(text: str) -> str | None:
    """The bus id of a node in NCCL's graph, with or without the system number before it (``0-26000``)."""
    return bus_id_of_int(text.rpartition("-")[2])
