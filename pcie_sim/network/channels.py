"""What the library's channels move: how many a call gets, with how many threads, and what they reach whatever the links could.

A thread of LL polls for 8 bytes at a time, so a channel moves (threads x 8 B) per round trip of polling, and a message is moved in
whole passes of that size: the first is part of a step's latency. Simple hands slices of its buffer over, which costs a fixed time
each. Constants stand in the library's part with their sources; the rules are NVIDIA/nccl:src/enqueue.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pcie_sim.collectives import MOST_CHUNKS, PIPELINE_CHUNKS
from pcie_sim.evidence import weakest
from pcie_sim.network.costs import Amount, amount
from pcie_sim.network.nccl_tuning import TimeModel
from pcie_sim.specs.part import Algorithm, LibraryPart, LibraryTuning, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Way = Literal["p2p", "shm"]


@dataclass(frozen=True)
class Lanes:
    """What one call runs on: channels, threads of each; ``buffer`` and ``chunk`` in bytes (of Simple in a ring; of a send)."""

    channels: int
    threads: int
    buffer: float
    chunk: float | None = None
    """None: a ring or tree, not a send."""
    pieces: int | None = None
    """Pieces of a pipelined broadcast, reduce or tree; None: the schedule's own number."""


@dataclass(frozen=True)
class LaneRule:
    """How a library that is modelled gives calls their channels: by ``model`` (rings, trees), else as sends of ``share`` x size."""

    tuning: LibraryTuning
    model: TimeModel | None
    channels: int
    threads: int | None
    buffer: float
    chunk: float
    share: float = 1.0
    pipelined: bool = False

    def lanes(self, algorithm: str, protocol: Protocol, size: NDArray[np.float64]) -> list[tuple[Lanes, NDArray[np.bool_]]]:
        """The different lanes among ``size``, each with the mask of its sizes."""
        import numpy as np

        if self.model is not None:
            way: Algorithm = "tree" if "tree" in algorithm else "ring"
            channels, threads = self.model.trimmed(way, protocol, self.channels, self.threads, size)
            chunk = None
        else:
            parts = np.ceil(size * self.share / self.tuning.send_part).astype(np.int64)
            channels = np.clip(parts, 1, self.channels) if protocol == "LL" else np.full(size.shape, self.channels)
            threads = np.full(size.shape, self.tuning.threads.send)
            chunk = self.chunk
        pieces = self._pieces(algorithm, protocol, size, channels)
        found: list[tuple[Lanes, NDArray[np.bool_]]] = []
        for a, b, c in sorted({(int(a), int(b), int(c)) for a, b, c in zip(channels.flat, threads.flat, pieces.flat, strict=True)}):
            mask = (channels == a) & (threads == b) & (pieces == c)
            found.append((Lanes(a, b, self.buffer, chunk, c or None), mask))
        return found

    def _pieces(self, algorithm: str, protocol: Protocol, size: NDArray[np.float64], channels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slices of Simple's buffer that a pipelined message fills, as a power of two from the schedules' own number up; 0: that number."""
        import numpy as np

        if protocol != "Simple" or not (self.pipelined or "tree" in algorithm):
            return np.zeros(size.shape, dtype=np.int64)
        slices = np.maximum(size / (self.buffer / self.tuning.slices * channels), 1.0)
        power = 2 ** np.ceil(np.log2(slices)).astype(np.int64)
        return np.where(power > PIPELINE_CHUNKS, np.minimum(power, MOST_CHUNKS), 0)


def channel_rate(part: LibraryPart, tuning: LibraryTuning, protocol: Protocol, way: Way, lanes: Lanes, step_s: float) -> Amount:
    """User bytes per second of all channels of a call over one edge whose steps take ``step_s`` with a small message, whatever the
    links could carry.
    """
    once, moved = one_pass(part, tuning, protocol, way, lanes, step_s)
    if moved:
        share = amount(part.poll_share[way]) if part.poll_share is not None else Amount(1.0, 0.0, "measured")
        return Amount(moved / once, share.sigma, share.evidence, share.sources)
    if lanes.chunk is not None:
        return _send_rate(part, way, lanes, lanes.chunk)
    full = part.channel_rate[way].get(protocol)
    if full is None:
        return Amount(math.inf, 0.0, "measured")
    most = tuning.threads.most[protocol]
    each = full.value
    used = [full]
    if way == "shm" and part.channel_step is not None:
        each *= part.channel_step.value / step_s
    if protocol != "Simple" or part.half_threads is None:
        each *= lanes.threads / most
    else:
        half = part.half_threads[way].value
        each *= (lanes.threads / (lanes.threads + half)) / (most / (most + half))
        used += [part.half_threads[way]] if lanes.threads < most else []
    if protocol == "Simple" and part.slice_latency is not None and lanes.buffer != tuning.buffer:
        used.append(part.slice_latency[way])
        handing = part.slice_latency[way].value * (tuning.slices / lanes.buffer - tuning.slices / tuning.buffer)
        each = 1.0 / (1.0 / each + handing)
    return Amount(each * lanes.channels, full.sigma_log, weakest(item.evidence for item in used), tuple(item.source for item in used))


def _send_rate(part: LibraryPart, way: Way, lanes: Lanes, chunk: float) -> Amount:
    if part.send_channel_rate is None or part.send_chunk_latency is None:
        return Amount(math.inf, 0.0, "measured")
    full, handing = part.send_channel_rate[way], part.send_chunk_latency[way]
    each = 1.0 / (1.0 / full.value + handing.value / chunk)
    return Amount(each * lanes.channels, full.sigma_log, weakest((full.evidence, handing.evidence)), (full.source, handing.source))


def one_pass(part: LibraryPart, tuning: LibraryTuning, protocol: Protocol, way: Way, lanes: Lanes, step_s: float) -> tuple[float, float]:
    """(seconds of one pass, user bytes that all channels of an edge move in it); (0, 0) where threads do not poll line by line."""
    line = tuning.line_bytes[protocol]
    if not line or part.poll_share is None:
        return 0.0, 0.0
    return part.poll_share[way].value * step_s, float(line * lanes.threads * lanes.channels)


def pass_filled(size: Any, pass_bytes: float) -> Any:
    """How much of its last pass a message fills: next to 0 right after a pass has begun, 1 at its end.

    A step of x = size / pass_bytes passes takes (start-up - pass) + ceil(x) passes; with the bytes' own time x that is the start-up
    less this share of a pass. No bytes count as a pass just begun.
    """
    import numpy as np

    x = np.asarray(size, dtype=float) / pass_bytes
    return np.where(x > 0, 1.0 - (np.ceil(x - 1e-9) - x), 0.0)


def blend(part: LibraryPart, first: float, second: float) -> float:
    """The rate under two limits, a little below the smaller one where they are close."""
    low, high = min(first, second), max(first, second)
    if part.rate_blend is None or math.isinf(high):
        return low
    return low * float((1.0 + (low / high) ** part.rate_blend.value) ** (-1.0 / part.rate_blend.value))
