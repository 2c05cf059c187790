"""The registry of algorithms: a dict filled by a decorator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from pcie_sim.collectives.schedule import Schedule
from pcie_sim.errors import InputError, unknown_name

Fractions = tuple[tuple[float, ...], ...]
OPS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
MAX_RANKS = 4096
MAX_TRANSFERS = 2_000_000


class Builder(Protocol):
    """``build(ranks, fractions)``: the schedule for ``ranks`` >= 2; ``fractions`` is an n x n matrix for all_to_all, else None."""

    def __call__(self, ranks: int, fractions: Fractions | None = None) -> Schedule:
        """The schedule on ``ranks`` ranks."""
        ...


_BUILDERS: dict[tuple[str, str], Builder] = {}


def register(op: str, algorithm: str) -> Callable[[Builder], Builder]:
    """Decorator that files a builder under ``(op, algorithm)``; the first of an op is its default."""
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
    return tuple(name for known, name in _BUILDERS if known == op)


def default_algorithm(op: str) -> str:
    """The algorithm that ``op`` uses unless told otherwise."""
    return algorithms(op)[0]


def build_schedule(op: str, algorithm: str = "auto", ranks: int = 2, *, fractions: Sequence[Sequence[float]] | None = None) -> Schedule:
    """The schedule of ``op`` by ``algorithm`` on ``ranks`` ranks (cached).

    Args:
        fractions: all_to_all only: ``fractions[i][j]`` is what rank i sends to rank j as a share of the message (None: 1/n);
            the diagonal stays where it is and costs nothing.

    Raises:
        UnknownNameError: no such op or algorithm.
        InputError: ranks below 1 or absurdly many, a matrix for another op, of another size, or with a negative or
            non-finite entry.
    """
    name = default_algorithm(op) if algorithm == "auto" else algorithm
    if name not in algorithms(op):
        raise unknown_name(f"{op} algorithm", name, algorithms(op))
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"ranks {ranks!r}: give a whole number from 1 to {MAX_RANKS}")
    return _built(op, name, ranks, None if fractions is None else _matrix(op, ranks, fractions))


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
def _built(op: str, algorithm: str, ranks: int, fractions: Fractions | None) -> Schedule:
    if ranks == 1:
        own = (fractions[0][0] if fractions else 1.0,)
        return Schedule(op, algorithm, 1, (), 0, own)
    return _BUILDERS[op, algorithm](ranks, fractions)
