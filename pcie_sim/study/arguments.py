"""Arguments of the Python verbs that are of no usable type: each is an InputError that names the argument, never a TypeError inside."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from itertools import islice

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.specs.machine import CclSettings
from pcie_sim.specs.runtime import RuntimeSpec

MAX_STRATEGIES = 64
_MOST_RANKS = 4096
"""More than any box has GPUs."""
_MOST_DIGITS = 19
"""As a 64-bit number has: the collective library's settings hold no more."""
Where = str | os.PathLike[str]


def path_text(value: object, what: str) -> str:
    """A name as it is; a path object as text that is taken for a path.

    Raises:
        InputError: neither, or blank.
    """
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        text = path if isinstance(path, str) else os.fsdecode(path)
        return text if catalog.is_path(text) else os.path.join(".", text)  # noqa: PTH118 - a path object is always a path
    return name_text(value, what, "a name or a path")


def name_text(value: object, what: str, wanted: str = "a name") -> str:
    """``value`` if it is text with something in it.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{what}: give {wanted}, not {shown(value)}")
    return value


def shown(value: object) -> str:
    """``value`` for a message: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a stranger's __repr__, or integers of thousands of digits
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


def engine_of(runtime: object) -> RuntimeSpec:
    """The engine by name, or as it is.

    Raises:
        InputError: unknown, or no name.
    """
    if isinstance(runtime, RuntimeSpec):
        return runtime
    return catalog.load_runtime(name_text(runtime, "runtime", "a name like sglang"))


def library_of(nccl: object) -> CclSettings | str | None:
    """The version of the collective library as text; None for the box's own.

    Raises:
        InputError: a number (2.30 and 2.3 would be the same) or anything else that is no text.
    """
    if nccl is None or isinstance(nccl, str | CclSettings):
        return nccl
    if isinstance(nccl, int | float) and not isinstance(nccl, bool):
        raise InputError(f'nccl {shown(nccl)}: write nccl as text: "2.28" (as numbers 2.3 and 2.30 are the same)')
    raise InputError(f'nccl: give a version as text, like "2.28", not {shown(nccl)}')


def settings_of(env: object) -> dict[str, str | int] | None:
    """Settings of the collective library; None when there are none.

    Raises:
        InputError: no mapping, or a name or value that is no text (whole numbers pass as values).
    """
    if env is None:
        return None
    if not isinstance(env, Mapping):
        raise InputError(f'env: give names and values, like {{"NCCL_P2P_LEVEL": "SYS"}}, not {shown(env)}')
    found: dict[str, str | int] = {}
    for name, value in env.items():
        if not isinstance(name, str):
            raise InputError(f"env: the name {shown(name)} is no text")
        whole = None if isinstance(value, str) else _whole(value)
        if whole is None and not isinstance(value, str):
            raise InputError(f"env {shown(name)}: give the value as text, not {shown(value)}")
        if whole is not None and abs(whole) >= 10**_MOST_DIGITS:
            raise InputError(f"env {shown(name)}: the number has more than {_MOST_DIGITS} digits; no setting is that large")
        found[name] = value if whole is None else whole
    return found or None


def one_of(value: object, what: str, options: tuple[str, ...]) -> str:
    """``value`` if it is one of ``options`` (arrays, which compare item by item, are none of them).

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str) or value not in options:
        raise InputError(f"{what} {shown(value)} is not known; use {' or '.join(options)}")
    return value


def _whole(value: object) -> int | None:
    """A whole number of any type (numpy's too); None for truth values, arrays of several, and anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except TypeError:  # an array of several numbers
        return None


def strategies_of(strategies: object) -> tuple[str, ...]:
    """The strategies asked, without repetition.

    Raises:
        InputError: none, too many, an empty entry, or something that is no text.
    """
    example = "write a list like tp8,pp8,ep8:a2a"
    if isinstance(strategies, str):
        names: list[object] = [part.strip() for part in strategies.split(",")]
    elif isinstance(strategies, Iterable) and not isinstance(strategies, bytes | Mapping):
        names = list(islice(strategies, MAX_STRATEGIES + 1))
    else:
        raise InputError(f"strategies {shown(strategies)}: {example}")
    if not names or names == [""]:
        raise InputError(f"strategies: none is given; {example}")
    found: dict[str, None] = {}
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"strategies: {shown(name)} is no text; {example}")
        if not name.strip():
            raise InputError(f"strategies {shown(strategies)}: an entry is empty; {example}")
        found[name.strip()] = None
    if len(names) > MAX_STRATEGIES:
        raise InputError(f"strategies: at most {MAX_STRATEGIES}")
    return tuple(found)


def ranks_of(ranks: object) -> int | None:
    """A number of ranks, numpy's integers too; None for all GPUs.

    Raises:
        InputError: no whole number.
    """
    if ranks is None:
        return None
    whole = _whole(ranks)
    if whole is None:
        raise InputError(f"ranks: give a whole number, not {shown(ranks)}")
    return whole


def order_of(order: object) -> list[str] | None:
    """GPUs in the order of their ranks; None for bus order.

    Raises:
        InputError: an empty entry, something that is no text, or a set (which has no order).
    """
    example = "write GPU names like gpu0,gpu1"
    if order is None:
        return None
    if isinstance(order, str):
        names: list[object] = [name.strip() for name in order.split(",")]
    elif isinstance(order, Set):
        raise InputError("order: a set has no order; give a list like ['gpu0', 'gpu1']")
    elif isinstance(order, Iterable) and not isinstance(order, bytes | Mapping):
        names = list(islice(order, _MOST_RANKS + 1))
    else:
        raise InputError(f"order {shown(order)}: {example}")
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"order: {shown(name)} is no text; {example}")
        if not name:
            raise InputError(f"order {shown(order)}: an entry is empty; {example}")
    return [str(name) for name in names]
