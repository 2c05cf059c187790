"""One GPU while nvidia-smi's lists are being read."""

from __future__ import annotations

from dataclasses import dataclass, field

from pcie_sim.importers.facts import GpuFact, LinkFact


@dataclass
class Seen:
    """What one list says of one GPU. ``index`` None: not printed; ``order`` is then its place in the list."""

    line: int
    index: int | None = None
    name: str = ""
    bus: str | None = None
    memory: int | None = None
    bar1: int | None = None
    gens: dict[str, int] = field(default_factory=dict)
    """By the words of ``-q``: Max, Current, Device Current, Device Max, Host Max."""
    widths: dict[str, int] = field(default_factory=dict)
    order: int = 0

    def fact(self, index: int) -> GpuFact:
        """As a fact about GPU ``index``."""
        gen_now = self.gens.get("Current", self.gens.get("Device Current"))
        return GpuFact(
            index,
            name=self.name,
            bus=self.bus,
            link=_link(gen_now, self.widths.get("Current")),
            link_max=_link(self.gens.get("Max"), self.widths.get("Max")),
            memory_bytes=self.memory,
            device_gen=self.gens.get("Device Max"),
            host_gen=self.gens.get("Host Max"),
            bar1_bytes=self.bar1,
        )


def _link(gen: int | None, width: int | None) -> LinkFact | None:
    return LinkFact(gen, width) if gen is not None or width is not None else None
