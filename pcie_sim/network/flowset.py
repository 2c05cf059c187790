"""What the event engine is asked and what it answers: flows in lists, and flows by the million in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class FlowSet:
    """Flows on capacities. Seconds, bytes, B/s.

    ``routes`` and ``caps`` are per class of flows, ``of_class`` gives each flow's class; all other sequences are per flow.
    ``previous`` is the flow before it in its stream, or -1. An empty ``deps``, ``latency`` or ``previous`` stands for none.
    ``charges`` is per class, beside its route: how many bytes of each link one byte of a flow takes (empty: 1 each).
    """

    capacity: Sequence[float]
    routes: Sequence[tuple[int, ...]]
    caps: Sequence[float]
    of_class: Sequence[int]
    size: Sequence[float]
    start: Sequence[float] = ()
    latency: Sequence[float] = ()
    deps: Sequence[tuple[int, ...]] = ()
    previous: Sequence[int] = ()
    charges: Sequence[tuple[int, ...]] = ()

    def link_bytes(self) -> list[float]:
        """Bytes over each capacity, by index."""
        by_class = [0.0] * len(self.routes)
        for index, size in zip(self.of_class, self.size, strict=True):
            by_class[index] += size
        found = [0.0] * len(self.capacity)
        if not self.charges:
            for route, size in zip(self.routes, by_class, strict=True):
                for link in route:
                    found[link] += size
            return found
        for route, charges, size in zip(self.routes, self.charges, by_class, strict=True):
            for link, times in zip(route, charges, strict=True):
                found[link] += size * times
        return found


@dataclass(frozen=True)
class FlowRun:
    """What happened: completion time of each flow (s), the last of them, and how many moments something changed."""

    finish: list[float]
    makespan: float
    events: int


@dataclass(frozen=True, eq=False)
class FlowArrays:
    """Many flows that wait for nothing but their start. Seconds, bytes, B/s.

    Args:
        capacity: (links,) B/s.
        routes: (width, flows) links of each flow, one column a flow, in the order of its way; -1 anywhere stands for nothing.
        size: (flows,) bytes, or one number for all; likewise ``cap`` (B/s), ``start`` and ``latency`` (s).
        copies: how many equal flows each of them stands for (they end together: one finish).
    """

    capacity: NDArray[np.float64]
    routes: NDArray[np.int32]
    size: NDArray[np.float64] | float
    cap: NDArray[np.float64] | float = float("inf")
    start: NDArray[np.float64] | float = 0.0
    latency: NDArray[np.float64] | float = 0.0
    copies: NDArray[np.int64] | int = 1

    @property
    def count(self) -> int:
        """Flows."""
        return int(self.routes.shape[1])


@dataclass(frozen=True, eq=False)
class ArrayRun:
    """Completion time of each flow (s), the last of them, the moments at which something changed, and how many groups of equal
    flows were told apart (as many as flows when no symmetry was found).
    """

    finish: NDArray[np.float64]
    makespan: float
    events: int
    groups: int


def arrays_of(flows: FlowSet) -> FlowArrays:
    """The same flows in arrays.

    Raises:
        ValueError: flows that wait for others, or charges.
    """
    import numpy as np

    if flows.deps or flows.previous or flows.charges:
        raise ValueError("arrays hold only flows that wait for nothing but their start")

    of_class = np.asarray(flows.of_class, dtype=np.int64)
    by_class = _columns(flows.routes)
    caps = np.asarray(flows.caps, dtype=float)
    return FlowArrays(
        capacity=np.asarray(flows.capacity, dtype=float),
        routes=by_class[:, of_class],
        size=np.asarray(flows.size, dtype=float),
        cap=caps[of_class] if len(caps) else float("inf"),
        start=np.asarray(flows.start, dtype=float) if len(flows.start) else 0.0,
        latency=np.asarray(flows.latency, dtype=float) if len(flows.latency) else 0.0,
    )


def _columns(rows: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Rows of different length as columns, filled up with -1."""
    from itertools import chain

    import numpy as np

    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    width = int(lengths.max(initial=0))
    found = np.full((len(rows), width), -1, dtype=np.int32)
    found[np.arange(width) < lengths[:, None]] = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))
    return np.ascontiguousarray(found.T)


def lists_of(flows: FlowArrays) -> FlowSet:
    """The same flows in lists; flows with the same way and cap are one class."""
    import numpy as np

    count = flows.count
    cap = np.broadcast_to(np.asarray(flows.cap, dtype=float), (count,)).tolist()
    copies = np.broadcast_to(np.asarray(flows.copies, dtype=np.int64), (count,)).tolist()
    known: dict[tuple[tuple[int, ...], float, int], int] = {}
    of_class: list[int] = []
    for column, limit, times in zip(flows.routes.T.tolist(), cap, copies, strict=True):
        of_class.append(known.setdefault((tuple([link for link in column if link >= 0]), limit, times), len(known)))

    def per_flow(values: NDArray[np.float64] | float) -> list[float]:
        return [float(value) for value in np.broadcast_to(np.asarray(values, dtype=float), (count,))]

    return FlowSet(
        capacity=flows.capacity.tolist(),
        routes=[route for route, _, _ in known],
        caps=[limit for _, limit, _ in known],
        of_class=of_class,
        size=per_flow(flows.size),
        start=per_flow(flows.start),
        latency=per_flow(flows.latency),
        charges=[(times,) * len(route) for route, _, times in known] if any(times > 1 for _, _, times in known) else (),
    )


def all_pairs(endpoints: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sources and targets of all ordered pairs of different endpoints, (n (n - 1),) each, source by source."""
    import numpy as np

    target = np.arange(endpoints * (endpoints - 1), dtype=np.int32)
    source = target // max(endpoints - 1, 1)
    target -= source * (endpoints - 1)
    target += target >= source
    return source, target


def tree_routes(parent: Sequence[int], source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int32]:
    """Ways through a tree: up from each source to the lowest common node and down to the target.

    Args:
        parent: of each node, -1 for a root. Node v has the links 2 v (up, towards its parent) and 2 v + 1 (down).
        source: (flows,) nodes; ``target`` too.

    Returns:
        (width, flows) links, for :class:`FlowArrays`; the ways of two trees join without limit between their roots.
    """
    import numpy as np

    nodes = len(parent)
    chains: list[list[int]] = []
    for node in range(nodes):
        chain = [node]
        while parent[chain[-1]] >= 0:
            chain.append(parent[chain[-1]])
            if len(chain) > nodes:
                raise ValueError("the parents form a cycle")
        chains.append(chain[::-1])
    deepest = max(map(len, chains), default=0)
    rows: list[NDArray[np.int32]] = []
    for depth in range(deepest):
        ancestor = np.array([chain[depth] if depth < len(chain) else -1 for chain in chains], dtype=np.int32)
        ours, theirs = ancestor[source], ancestor[target]
        apart = ours != theirs
        up = np.where(apart & (ours >= 0), 2 * ours, np.int32(-1))
        down = np.where(apart & (theirs >= 0), 2 * theirs + 1, np.int32(-1))
        rows = [up, *rows, down]
    used = [row for row in rows if row.size and int(row.max()) >= 0]
    return np.stack(used) if used else np.zeros((0, len(source)), dtype=np.int32)
