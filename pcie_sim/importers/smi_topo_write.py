"""A matrix of path words -> the text that ``nvidia-smi topo -m`` prints for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def write_topo_m(
    path: Callable[[int, int], str] | Sequence[Sequence[str]],
    numa: Sequence[int | None] = (),
    *,
    count: int | None = None,
    cpus: Sequence[str] = (),
    nics: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The text of ``nvidia-smi topo -m``, TAB-separated as the program prints it (without its terminal colours).

    Args:
        path: the word between GPU ``i`` and GPU ``j`` (``PIX``, ``NV4`` ...), as a function or as a matrix; the diagonal is always X.
        numa: NUMA node of each GPU (None: not known, printed N/A); empty: no affinity columns at all, as old drivers print it.
        count: how many GPUs, where neither ``numa`` nor a matrix says it.
        cpus: text of the CPU affinity column for each GPU; ``N/A`` where it is not given.
        nics: network card -> its word to each GPU; printed as NIC0, NIC1 ... with a legend. Between cards ``SYS`` is printed.

    Returns:
        Header, one row for each GPU (then for each card), legend; ends with a newline.

    Raises:
        ValueError: the number of GPUs is not said, or the arguments disagree about it.

    >>> print(write_topo_m([["X", "PIX"], ["PIX", "X"]], [0, 0]).splitlines()[1].split())
    ['GPU0', 'X', 'PIX', 'N/A', '0', 'N/A']
    """
    size = _count(path, numa, count)
    cards = dict(nics or {})
    for words in (*cards.values(), *((numa,) if numa else ()), *((cpus,) if cpus else ())):
        if len(words) != size:
            raise ValueError(f"{len(words)} entries for {size} GPUs")
    gpus, names = [f"GPU{i}" for i in range(size)], [f"NIC{k}" for k in range(len(cards))]
    columns = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] if numa else []
    lines = ["\t".join(["", *gpus, *names, *columns])]
    for i in range(size):
        cells = [" X " if i == j else _word(path, i, j) for j in range(size)] + [words[i] for words in cards.values()]
        node = numa[i] if numa else None
        tail = [cpus[i] if cpus else "N/A", "N/A" if node is None else str(node), "", "N/A"] if numa else []
        lines.append("\t".join([gpus[i], *cells, *tail]))
    for k, words in enumerate(cards.values()):
        lines.append("\t".join([names[k], *words, *(" X " if k == other else "SYS" for other in range(len(cards)))]))
    legend = _LEGEND
    if cards:
        legend += "\nNIC Legend:\n\n" + "".join(f"  {short}: {name}\n" for short, name in zip(names, cards, strict=True))
    return "\n".join(lines) + "\n" + legend


def _count(path: Callable[[int, int], str] | Sequence[Sequence[str]], numa: Sequence[int | None], count: int | None) -> int:
    if not callable(path):
        if any(len(row) != len(path) for row in path):
            raise ValueError("the matrix is not square")
        if count not in (None, len(path)):
            raise ValueError(f"{len(path)} rows for {count} GPUs")
        return len(path)
    size = count if count is not None else len(numa)
    if size < 1:
        raise ValueError("the number of GPUs is not said: give count or numa")
    return size


def _word(path: Callable[[int, int], str] | Sequence[Sequence[str]], i: int, j: int) -> str:
    return path(i, j) if callable(path) else path[i][j]
