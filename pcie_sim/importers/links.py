"""Which link a node has to its parent, from what its two ends say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pcie_sim import catalog
from pcie_sim.importers.facts import WIDTHS, GpuFact, LinkFact, either
from pcie_sim.importers.parts import span
from pcie_sim.importers.sketch import Spot
from pcie_sim.importers.source import Remark
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.part import LibraryPart

_SLOWEST_SLOT = 3
"""A slot of fewer lanes is likelier than one of a generation before this."""
_CLASS_STEP = 0.051e9
"""B/s: classes are printed with one decimal of GB/s."""
_IDLE_GEN = 1
"""Idle GPUs train down to Gen1, and the switch ports above them with them."""


@dataclass
class Links:
    """Links by node name; what was assumed is kept by its reason, so that eight equal GPUs make one line."""

    of: dict[str, PcieLink] = field(default_factory=dict)
    assumed: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    open_width: set[str] = field(default_factory=set)
    """Nodes whose width no file says."""

    def decide(self, spot: Spot, own: PcieLink, fact: GpuFact | None, whose: str) -> None:
        """The link of ``spot`` whose part offers ``own``.

        Generation: the lower of what both ends can where a file says that; else the one in force, unless it is Gen1 (an idle GPU), which
        says nothing. Width: the one in force (it does not change when a GPU idles), else what both ends can. What is open then follows
        from the class that NCCL's log gives the link, where there is one; the rest is the part's.
        """
        device, port = spot.device, spot.port
        current = either(device.link if device is not None else None, fact.link if fact is not None else None)
        current = either(current, port.link if port is not None else None)
        mine = either(device.link_max if device is not None else None, fact.link_max if fact is not None else None)
        theirs = port.link_max if port is not None else None
        gen = _least(mine.gen if mine is not None else None, theirs.gen if theirs is not None else None)
        idle = False
        if gen is None and current is not None and current.gen is not None:
            idle = current.gen <= _IDLE_GEN < own.gen
            gen = None if idle else current.gen
        width = current.width if current is not None and current.width is not None else None
        if width is None:
            width = _least(mine.width if mine is not None else None, theirs.width if theirs is not None else None)
        rate = device.rate_class if device is not None else None
        if rate is not None and (gen is None or width is None):
            classed = self._of_class(spot, own, rate, LinkFact(gen, width), whose)
            gen, width = (classed.gen, classed.width) if classed is not None else (gen, width)
        if width is None:
            self.open_width.add(spot.name)
        self._say(spot, own, gen, width, whose, idle=idle)
        if gen is not None and gen > own.gen:
            text = f"a link of Gen{gen}, but {whose} has Gen{own.gen}: Gen{own.gen} taken (a file edited by hand, or another device)"
            self.assumed.setdefault((text, "conflict"), []).append(spot.name)
            gen = own.gen
        self.of[spot.name] = PcieLink.model_validate({"gen": gen or own.gen, "width": width or own.width})

    def fit(self, spots: Sequence[Spot], lanes: int, whose: str) -> None:
        """No more lanes on one socket than its processor has for cards: what no file says is narrowed to an equal split."""
        loose = [spot for spot in spots if spot.name in self.open_width]
        told = sum(self.of[spot.name].width for spot in spots if spot.name not in self.open_width and spot.name in self.of)
        if not loose or told + sum(self.of[spot.name].width for spot in loose) <= lanes:
            return
        share = max((width for width in WIDTHS if width * len(loose) <= max(lanes - told, len(loose))), default=1)
        narrowed = [spot.name for spot in loose if self.of[spot.name].width > share]
        for name in narrowed:
            self.of[name] = PcieLink.model_validate({"gen": self.of[name].gen, "width": share})
        for key, names in list(self.assumed.items()):
            kept = [name for name in names if name not in narrowed or "not said" not in key[0]]
            moved = [name for name in names if name not in kept]
            if moved:
                what = "width not said; x" if key[0].startswith("width") else f"not said; gen{self.of[moved[0]].gen} x"
                text = f"{what}{share} assumed: {whose} has {lanes} lanes for cards, and no file says how they are split"
                self.assumed[key] = kept
                self.assumed.setdefault((text, "assumed"), []).extend(moved)
        self.assumed = {key: names for key, names in self.assumed.items() if names}

    def _of_class(self, spot: Spot, own: PcieLink, rate: float, known: LinkFact, whose: str) -> LinkFact | None:
        """Generation and width by NCCL's class: all lanes at a lower generation where one fits, else fewer lanes at the part's own."""
        tuning = catalog.load_typed_part("nccl", LibraryPart).tuning
        lanes = tuning.lane_rate if tuning is not None else {}
        if not lanes:
            return None
        if rate > lanes.get(own.gen, max(lanes.values())) * own.width + _CLASS_STEP:
            text = f"{rate / 1e9:g} GB/s in NCCL's classes, more than {whose} can (gen{own.gen} x{own.width}): the part's own taken"
            self.assumed.setdefault((text, "conflict"), []).append(spot.name)
            return None
        fitting = [
            LinkFact(gen, width)
            for gen, lane in lanes.items()
            for width in WIDTHS
            if gen <= own.gen and width <= own.width and abs(lane * width - rate) <= _CLASS_STEP
            and known.gen in (None, gen) and known.width in (None, width)
        ]  # fmt: skip
        if not fitting:
            return None
        fitting.sort(key=lambda link: (not (link.width == own.width and (link.gen or 0) >= _SLOWEST_SLOT), -(link.gen or 0)))
        best, *others = fitting
        if others:
            also = ", ".join(f"gen{one.gen} x{one.width}" for one in others)
            unread = "; NCCL takes the same where it cannot read a link" if abs(rate - lanes[3] * 16) <= _CLASS_STEP else ""
            text = f"{rate / 1e9:g} GB/s in NCCL's classes; gen{best.gen} x{best.width} assumed ({also} would be the same{unread})"
            self.assumed.setdefault((text, "assumed"), []).append(spot.name)
        return best

    def _say(self, spot: Spot, own: PcieLink, gen: int | None, width: int | None, whose: str, *, idle: bool) -> None:
        if idle and gen is None:
            text = f"Gen1 in force is what an idle GPU shows; gen{own.gen} ({whose}'s own) assumed"
        elif gen is None and width is None:
            text = f"not said; gen{own.gen} x{own.width} ({whose}'s own) assumed"
        elif gen is None:
            text = f"generation not said; gen{own.gen} ({whose}'s own) assumed"
        elif width is None:
            text = f"width not said; x{own.width} ({whose}'s own) assumed"
        else:
            return
        self.assumed.setdefault((text, "assumed"), []).append(spot.name)

    def said(self) -> list[Remark]:
        """One remark for each reason, naming its nodes."""
        found = []
        for (text, kind), names in self.assumed.items():
            word = "uplink" if names[0].startswith("sw") else "link"
            found.append(Remark("conflict" if kind == "conflict" else "assumed", f"{word} of {span(names)}: {text}"))
        return [*self.remarks, *found]


def _least(first: int | None, second: int | None) -> int | None:
    known = [one for one in (first, second) if one is not None]
    return min(known) if known else None
