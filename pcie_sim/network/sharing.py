"""Max-min fair sharing of directed capacities by progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2).

All flows grow at the same pace; when a capacity is full, the flows that cross it stop growing; when a flow reaches its own
cap, it stops. A capacity that stands twice in a route is charged twice. Flows with the same route and cap are one *class*
with a weight (how many they are): they always get the same rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIE = 1e-12
"""Two levels or times that differ by less than this share of themselves are one."""
SMALL = 160
"""Up to this many classes plain Python is faster than arrays (measured; both give the same rates)."""
INFINITY = float("inf")
Charged = tuple[tuple[int, int], ...]
"""A route: each link once, and how often it is charged."""


def max_min_rates(
    capacity: Sequence[float],
    routes: Sequence[Sequence[int]],
    *,
    weights: Sequence[int] | None = None,
    caps: Sequence[float] | None = None,
) -> list[float]:
    """The max-min fair rate (B/s) of one flow of each class.

    Args:
        capacity: B/s of each link, positive (infinity: no limit).
        routes: for each class, the links it crosses by index; a repeated index is charged once per occurrence.
        weights: flows in each class (default 1); a class of weight 0 gets rate 0.
        caps: most that one flow of the class reaches (default no cap).

    A flow without links and without a cap gets infinity.

    >>> max_min_rates([10.0, 4.0], [[0], [0, 1], [0, 1]])
    [6.0, 2.0, 2.0]
    """
    count = len(routes)
    weight = [1] * count if weights is None else list(weights)
    limit = [INFINITY] * count if caps is None else list(caps)
    if count <= SMALL:
        return fill_small(capacity, routes, weight, limit)
    return [float(rate) for rate in LargeFill(capacity, routes, limit).rates(weight)]


def charged_route(route: Sequence[int], times: Sequence[int] | None = None) -> Charged:
    """The links of a route, each once, with how often one byte of a flow is charged to it.

    >>> charged_route((3, 5, 3))
    ((3, 2), (5, 1))
    """
    if times is None and len(set(route)) == len(route):
        return tuple([(link, 1) for link in route])
    found: dict[int, int] = {}
    for place, link in enumerate(route):
        found[link] = found.get(link, 0) + (times[place] if times is not None else 1)
    return tuple(found.items())


def fill_small(capacity: Sequence[float], routes: Sequence[Sequence[int]], weights: Sequence[int], caps: Sequence[float]) -> list[float]:
    """Plain Python filling; see :func:`max_min_rates`."""
    rates = [0.0] * len(routes)
    load: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    growing: set[int] = set()
    for index, weight in enumerate(weights):
        if not weight:
            continue
        growing.add(index)
        for link in routes[index]:
            if link in load:
                load[link] += weight
                users[link].append(index)
            else:
                load[link] = weight
                users[link] = [index]
    capped = sorted(((caps[index], index) for index in growing if caps[index] < INFINITY), reverse=True)
    left = {link: capacity[link] for link in load}
    while growing:
        level = min([left[link] / weight for link, weight in load.items()], default=INFINITY)
        while capped and capped[-1][1] not in growing:
            capped.pop()
        if capped:
            level = min(level, capped[-1][0])
        if level == INFINITY:
            for index in growing:
                rates[index] = INFINITY
            break
        edge = level * (1.0 + TIE)
        full = [link for link, weight in load.items() if left[link] / weight <= edge]
        frozen = {index for link in full for index in users[link] if index in growing}
        while capped and capped[-1][0] <= edge:
            frozen.add(capped.pop()[1])
        frozen &= growing
        growing -= frozen
        for index in sorted(frozen):
            rates[index] = level
            weight = weights[index]
            for link in routes[index]:
                left[link] -= level * weight
                load[link] -= weight
                if not load[link]:
                    del load[link]
    return rates


class LargeFill:
    """Array filling for many classes; built once for a set of classes, asked with different weights."""

    def __init__(self, capacity: Sequence[float], routes: Sequence[Sequence[int]], caps: Sequence[float]) -> None:
        import numpy as np

        self.capacity = np.asarray(capacity, dtype=float)
        lengths = np.fromiter((len(route) for route in routes), dtype=np.int64, count=len(routes))
        self.entry_class = np.repeat(np.arange(len(routes)), lengths)
        self.entry_link = np.fromiter((link for route in routes for link in route), dtype=np.int64, count=int(lengths.sum()))
        self.caps = np.asarray(caps, dtype=float)
        self.any_cap = bool(np.isfinite(self.caps).any())

    def rates(self, weights: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Rate of one flow of each class; see :func:`max_min_rates`."""
        import numpy as np

        weight = np.asarray(weights, dtype=float)
        rates = np.zeros(len(weight))
        growing = weight > 0
        keep = growing[self.entry_class]
        entry_class, entry_link = self.entry_class[keep], self.entry_link[keep]
        links = len(self.capacity)
        left = self.capacity.copy()
        load = np.bincount(entry_link, weights=weight[entry_class], minlength=links)
        while growing.any():
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(load > 0.5, left / load, np.inf)
            level = float(share.min()) if links else INFINITY
            if self.any_cap:
                level = min(level, float(self.caps[growing].min()))
            if level == INFINITY:
                rates[growing] = INFINITY
                break
            edge = level * (1.0 + TIE)
            frozen = np.zeros(len(weight), dtype=bool)
            frozen[entry_class[share[entry_link] <= edge]] = True
            if self.any_cap:
                frozen |= growing & (self.caps <= edge)
            rates[frozen] = level
            growing &= ~frozen
            gone = frozen[entry_class]
            taken = np.bincount(entry_link[gone], weights=weight[entry_class[gone]], minlength=links)
            left -= level * taken
            load -= taken
            entry_class, entry_link = entry_class[~gone], entry_link[~gone]
        return rates
