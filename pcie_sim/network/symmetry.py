"""Equal flows are solved once: the coarsest grouping of flows and links that max-min sharing cannot tell apart.

Colour refinement (the equitable partition; Grohe, Kersting, Mladenov and Selman, Dimension Reduction via Colour Refinement,
ESA 2014, for the linear programs that max-min sharing is made of): flows start with the colour of their size, cap, start and
start-up, links with that of their capacity; then flows are told apart by the colours of the links on their way, and
links by how many flows of each colour cross them, until nothing changes. Then every link of one colour
carries the same numbers of flows of each colour, so that all of one colour fill up, and all flows of one colour end, at the
same moment: one flow and one link of each colour give the exact answer. No hashes: equal colours are equal counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcie_sim.network.flowset import FlowArrays, FlowSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Colours = NDArray[np.int32]

_WORTH = 4
"""Flows per group from which groups pay (below, the engine on single flows is as fast)."""
_TABLE = 1 << 25
"""Most numbers in a table of counts or of new names (32 to 256 MB)."""
_SPARSE = 32
"""Entries of a table of names per code from which sorting the codes is quicker (measured)."""


def quotient(flows: FlowArrays) -> tuple[FlowSet, Colours] | None:
    """One flow for each group of equal flows, on one link for each group of equal links; and the group of every flow.

    None when there are too few equal flows to gain by it.
    """
    import numpy as np

    found = _refine(flows)
    if found is None:
        return None
    colour, counts, link_colour = found
    groups = counts.shape[1]
    first = np.zeros(groups, dtype=np.int64)
    first[colour[::-1]] = np.arange(len(colour) - 1, -1, -1)
    kinds = int(link_colour.max(initial=-1)) + 1
    link = np.zeros(kinds, dtype=np.int64)
    link[link_colour[::-1]] = np.arange(len(link_colour) - 1, -1, -1)
    copies = np.broadcast_to(np.asarray(flows.copies, dtype=np.int64), colour.shape)[first]
    crossing = (counts[link].T * copies[:, None]).tolist()  # by group: how many of its flows cross one link of each kind

    def of_first(values: NDArray[np.float64] | float) -> list[float]:
        array = np.asarray(values, dtype=float)
        picked: list[float] = (array[first] if array.ndim else np.full(groups, float(array))).tolist()
        return picked

    one = FlowSet(
        capacity=np.asarray(flows.capacity, dtype=float)[link].tolist(),
        routes=[tuple(kind for kind, times in enumerate(row) if times) for row in crossing],
        caps=of_first(flows.cap),
        of_class=list(range(groups)),
        size=of_first(flows.size),
        start=of_first(flows.start),
        latency=of_first(flows.latency),
        charges=[tuple(times for times in row if times) for row in crossing],
    )
    return one, colour


def _refine(flows: FlowArrays) -> tuple[Colours, NDArray[np.int64], Colours] | None:
    """Colour of each flow, how many flows of each colour cross each link (links, colours), and colour of each link."""
    import numpy as np

    count, links = flows.count, len(flows.capacity)
    colour, groups = _beginning(flows)
    link_colour, kinds = _names(np.unique(np.asarray(flows.capacity, dtype=float), return_inverse=True)[1], max(links, 1))
    counts = np.zeros((links, 1), dtype=np.int64)
    while groups * _WORTH <= count and (links + 1) * groups <= _TABLE:
        before = groups, kinds
        # index -1 (nothing) reads the last entry, a colour of its own
        padded = np.append(link_colour, np.int32(kinds))
        colour, groups = _mixed(colour, groups, (padded[row] for row in flows.routes), kinds + 1)
        if groups * _WORTH > count or (links + 1) * groups > _TABLE:
            break
        counts = _crossings(flows.routes, colour, groups, links)
        rows = np.unique(np.column_stack((link_colour, counts)), axis=0, return_inverse=True)[1].reshape(-1)
        link_colour, kinds = _names(rows, max(links, 1))
        if (groups, kinds) == before:
            return colour, counts, link_colour
    return None


def _beginning(flows: FlowArrays) -> tuple[Colours, int]:
    """Flows by size, cap, start, start-up and copies."""
    import numpy as np

    colour, groups = np.zeros(flows.count, dtype=np.int32), 1 if flows.count else 0
    for values in (flows.size, flows.cap, flows.start, flows.latency, flows.copies):
        array = np.asarray(values, dtype=float)
        if array.ndim and array.size and bool((array != array[0]).any()):
            kinds, which = np.unique(array, return_inverse=True)
            colour, groups = _mixed(colour, groups, [which], len(kinds))
    return colour, groups


def _mixed(colour: Colours, groups: int, columns: object, kinds: int) -> tuple[Colours, int]:
    """Told apart also by each of ``columns``, whose values are below ``kinds``."""
    import numpy as np

    code, bound = colour, groups
    small = np.iinfo(np.int32).max
    for column in columns:  # type: ignore[attr-defined]
        if bound * kinds > _TABLE:
            code, bound = _names(code, bound)
        if bound * kinds > small:
            code = code.astype(np.int64)
        code = code * code.dtype.type(kinds)
        code += column
        bound *= kinds
    return _names(code, bound)


def _names(code: NDArray[np.int32] | NDArray[np.int64], bound: int) -> tuple[Colours, int]:
    """Equal codes as equal small numbers, and how many."""
    import numpy as np

    if bound > min(_TABLE, _SPARSE * len(code)):
        kinds, which = np.unique(code, return_inverse=True)
        return which.astype(np.int32), len(kinds)
    present = np.zeros(bound, dtype=bool)
    present[code] = True
    name = np.cumsum(present, dtype=np.int32) - np.int32(1)
    return name[code], int(name[-1]) + 1 if bound else 0


def _crossings(routes: NDArray[np.int32], colour: Colours, groups: int, links: int) -> NDArray[np.int64]:
    """How many flows of each colour cross each link, as often as they do."""
    import numpy as np

    total = np.zeros((links + 1) * groups, dtype=np.int64)
    for row in routes:
        key = row + np.int32(1)
        if (links + 1) * groups > np.iinfo(np.int32).max:
            key = key.astype(np.int64)
        key *= key.dtype.type(groups)
        key += colour
        total += np.bincount(key, minlength=len(total))
    return total.reshape(links + 1, groups)[1:]
