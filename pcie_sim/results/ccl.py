"""What the collective library will do on a box: ring, channels, protocol by size, and choices that cost time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pcie_sim.results.base import Result, plain


@dataclass(frozen=True)
class CclSearch:
    """One search result: channels, B/s of each, path classes inside the box and out of it; ``fallback``: nothing fitted."""

    channels: int
    speed_Bps: float
    type_intra: str
    type_inter: str
    fallback: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "channels": self.channels,
            "speed_GBps": plain(self.speed_Bps / 1e9),
            "type_intra": self.type_intra,
            "type_inter": self.type_inter,
            "fallback": self.fallback,
        }


@dataclass(frozen=True)
class CclSegment:
    """From this many bytes on: algorithm and protocol."""

    from_bytes: int
    algorithm: str
    protocol: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"from_bytes": self.from_bytes, "algorithm": self.algorithm, "protocol": self.protocol}


@dataclass(frozen=True)
class CclSmall:
    """Channels and threads per channel of one small AllReduce."""

    bytes: int
    protocol: str
    channels: int
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"bytes": self.bytes, "protocol": self.protocol, "channels": self.channels, "threads": self.threads}


@dataclass(frozen=True)
class CclWarning:
    """A choice that costs time by this prediction: ``cost_s`` of ``time_s`` for one AllReduce of ``bytes``; ``setting`` undoes it.

    ``code`` is stable: fallback, shm or protocol.
    """

    code: str
    text: str
    setting: str
    bytes: int
    time_s: float
    cost_s: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "code": self.code,
            "text": self.text,
            "setting": self.setting,
            "bytes": self.bytes,
            "time_us": plain(self.time_s * 1e6),
            "cost_us": plain(self.cost_s * 1e6),
        }


@dataclass(frozen=True)
class CclChoice(Result):
    """Everything that the library decides for the GPUs of one box (``order``: along its ring).

    ``ranks`` counts the GPUs of the box; the answer holds for ``gpus`` (in bus order): all of them, or those of ``host``, one of several.
    ``net``: the search knew a network card, so that ``type_inter`` means something.
    """

    library: str
    version: str
    ranks: int
    order: tuple[str, ...]
    ring: CclSearch
    tree: CclSearch
    channels: int
    choices: Mapping[str, tuple[CclSegment, ...]]
    small: tuple[CclSmall, ...]
    warnings: tuple[CclWarning, ...]
    notes: tuple[str, ...]
    host: str | None = None
    gpus: tuple[str, ...] = ()
    net: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data: key ``ccl`` of ``pcie-sim/topology-show/1``."""
        return {
            "library": self.library,
            "version": self.version,
            "ranks": self.ranks,
            "holds_for": {"host": self.host, "ranks": len(self.gpus), "gpus": list(self.gpus)},
            "ring_order": list(self.order),
            "ring": self.ring.to_dict(),
            "tree": self.tree.to_dict(),
            "channels": self.channels,
            "choices": {op: [segment.to_dict() for segment in segments] for op, segments in self.choices.items()},
            "small_all_reduce": [item.to_dict() for item in self.small],
            "warnings": [item.to_dict() for item in self.warnings],
            "notes": list(self.notes),
        }
