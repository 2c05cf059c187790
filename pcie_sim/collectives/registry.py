"""The registry of algorithms: a dict filled by a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache

from pcie_sim.collectives.schedule import Schedule
from pcie_sim.errors import InputError, UnknownNameError, unknown_name

Fractions = tuple[tuple[float, ...], ...]
Groups = tuple[tuple[int, ...], ...]
OPS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
MAX_RANKS = 4096
MAX_TRANSFERS = 2_000_000
MOST_CHUNKS = 256
MOST_CHANNELS = 64

Builder = Callable[..., Schedule]
"""``build(ranks, **options)``: the schedule for ``ranks`` >= 2. The keyword arguments that a builder names are the options that
its algorithm takes, each with a default: ``fractions`` (all_to_all: an n x n matrix or None), ``groups`` (a partition of the
ranks or None), ``chunks`` and ``channels`` (whole numbers).
"""

_BUILDERS: dict[tuple[str, str], Builder] = {}
_DEFAULTS = {"all_to_all": "direct", "send_recv": "direct"}
"""Algorithm of each op unless told otherwise; ``ring`` for the rest."""


def register(op: str, algorithm: str) -> Callable[[Builder], Builder]:
    """Decorator that files a builder under ``(op, algorithm)``."""
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}")

    def keep(builder: Builder) -> Builder:
        if (op, algorithm) in _BUILDERS:
            raise ValueError(f"{op}/{algorithm} is registered twice")
        _BUILDERS[op, algorithm] = builder
        return builder

    return keep


def algorithms(op: str) -> tuple[str, ...]:
    """The algorithms of ``op``, the default first.

    Raises:
        UnknownNameError: no such op.
    """
    if op not in OPS:
        raise unknown_name("collective", op, OPS)
    found = [name for known, name in _BUILDERS if known == op]
    return tuple(sorted(found, key=lambda name: name != _DEFAULTS.get(op, "ring")))


def default_algorithm(op: str) -> str:
    """The algorithm that ``op`` uses unless told otherwise."""
    return algorithms(op)[0]


def _named(op: str, algorithm: str) -> str:
    name = default_algorithm(op) if algorithm == "auto" else algorithm
    if name not in algorithms(op):
        shown = name if len(name) <= 60 else name[:57] + "..."  # few enough to name them all
        raise UnknownNameError(f"unknown {op} algorithm {shown!r}; use auto, {', '.join(algorithms(op))}")
    return name


def options_of(op: str, algorithm: str) -> tuple[str, ...]:
    """The options of :func:`build_schedule` that the algorithm takes, like ``("chunks", "channels")``.

    Raises:
        UnknownNameError: no such op or algorithm.
    """
    return tuple(inspect.signature(_BUILDERS[op, _named(op, algorithm)]).parameters)[1:]


def build_schedule(
    op: str,
    algorithm: str = "auto",
    ranks: int = 2,
    *,
    fractions: Sequence[Sequence[float]] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    chunks: int | None = None,
    channels: int | None = None,
) -> Schedule:
    """The schedule of ``op`` by ``algorithm`` on ``ranks`` ranks (cached).

    Args:
        fractions: all_to_all only: ``fractions[i][j]`` is what rank i sends to rank j as a share of the message (None: 1/n);
            the diagonal stays where it is and costs nothing.
        groups: hierarchical algorithms only: the ranks that are near each other, every rank in one group (None: two halves).
        chunks: pieces that a pipelined algorithm sends one after the other (None: the algorithm's own number).
        channels: equal copies of a ring, chain or tree side by side, each with its share of the message (None: one).

    Raises:
        UnknownNameError: no such op or algorithm.
        InputError: ranks below 1 or absurdly many; an option that the algorithm does not take; a matrix for another op, of
            another size, or with a negative or non-finite entry; groups that are no partition of the ranks.
    """
    name = _named(op, algorithm)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"ranks {ranks!r}: give a whole number from 1 to {MAX_RANKS}")
    given: dict[str, Hashable] = {}
    if fractions is not None:
        given["fractions"] = _matrix(op, ranks, fractions)
    if groups is not None:
        given["groups"] = _partition(op, ranks, groups)
    if chunks is not None:
        given["chunks"] = _count("chunks", chunks, MOST_CHUNKS)
    if channels is not None:
        given["channels"] = _count("channels", channels, MOST_CHANNELS)
    known = options_of(op, name)
    for key in given:
        if key not in known:
            raise InputError(f"{op}/{name} takes no {key}; it takes {', '.join(known) or 'nothing but the number of ranks'}")
    return _built(op, name, ranks, tuple(given.items()))


def _count(key: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"{key} {value!r}: give a whole number from 1 to {most}")
    return value


def _partition(op: str, ranks: int, groups: Sequence[Sequence[int]]) -> Groups:
    found = tuple(tuple(group) for group in groups)
    if sorted(rank for group in found for rank in group) != list(range(ranks)) or not all(found):
        raise InputError(f"{op} groups: every rank from 0 to {ranks - 1} must be in one group, and no group may be empty")
    return found


def _matrix(op: str, ranks: int, fractions: Sequence[Sequence[float]]) -> Fractions:
    if op != "all_to_all":
        raise InputError(f"{op}: fractions are for all_to_all only")
    matrix = tuple(tuple(float(item) for item in row) for row in fractions)
    if len(matrix) != ranks or any(len(row) != ranks for row in matrix):
        raise InputError(f"all_to_all fractions: need {ranks} rows of {ranks} numbers, one row a sender")
    for row in matrix:
        for item in row:
            if not 0.0 <= item < float("inf"):
                raise InputError(f"all_to_all fractions: {item} is not a share (finite, 0 or more)")
    return matrix


@lru_cache(maxsize=512)
def _built(op: str, algorithm: str, ranks: int, given: tuple[tuple[str, Hashable], ...]) -> Schedule:
    options = dict(given)
    if ranks == 1:
        matrix = options.get("fractions")
        own = matrix[0][0] if isinstance(matrix, tuple) else 1.0
        return Schedule(op, algorithm, 1, (), 0, (own,))
    return _BUILDERS[op, algorithm](ranks, **options)


def require_at_most(ranks: int, most: int, what: str) -> None:
    """Refuse an algorithm that is unrolled transfer by transfer on too many ranks.

    Raises:
        InputError: more than ``most`` ranks.
    """
    if ranks > most:
        raise InputError(f"{what} of {ranks} ranks is unrolled step by step; give at most {most}")
