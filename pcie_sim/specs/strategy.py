"""Parallel strategies as text: ``[Rx](tpN|ppN|dpN|epN|dcpN)+[:allreduce|ag_rs|a2a]`` (design section 4.2)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from pcie_sim.errors import InputError

MoeComm = Literal["allreduce", "ag_rs", "a2a"]
MOE_COMMS: tuple[MoeComm, ...] = ("allreduce", "ag_rs", "a2a")
AXES = ("tp", "dp", "pp", "ep", "dcp")
_AXIS = re.compile(r"(dcp|tp|dp|pp|ep)([0-9]{1,5})")
_WHOLE = re.compile(r"(?:([0-9]{1,5})x)?((?:(?:dcp|tp|dp|pp|ep)[0-9]{1,5})+)(?::([a-z0-9_]+))?")
_GRAMMAR = "[Rx](tpN|ppN|dpN|epN|dcpN)+[:allreduce|ag_rs|a2a], for example tp8, pp8, tp4pp2, 2xtp4, ep8:a2a"


@dataclass(frozen=True)
class Strategy:
    """One strategy, its shorthands resolved.

    ``tp`` attention tensor parallel, ``dp`` attention data parallel, ``pp`` pipeline stages, ``ep`` expert parallel (1: the
    experts are sliced over tp x dp), ``dcp`` decode context parallel, ``replicas`` copies of the whole engine.
    ``moe_comm`` None leaves it to the runtime's rule. ``text`` is what was asked.
    """

    text: str
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    dcp: int = 1
    replicas: int = 1
    moe_comm: MoeComm | None = None

    @property
    def engine_world(self) -> int:
        """Ranks of one replica."""
        return self.tp * self.dp * self.pp

    @property
    def world(self) -> int:
        """Ranks in all: R x tp x dp x pp."""
        return self.replicas * self.engine_world

    @property
    def expert_tp(self) -> int:
        """Over how many ranks one expert is sliced: tp x dp / ep."""
        return self.tp * self.dp // self.ep

    @property
    def canonical(self) -> str:
        """The canonical spelling: tp dp pp ep dcp, ones left out (``tp1`` when nothing is left)."""
        axes = "".join(f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1) or "tp1"
        head = f"{self.replicas}x" if self.replicas > 1 else ""
        return head + axes + (f":{self.moe_comm}" if self.moe_comm else "")

    def with_moe_comm(self, moe_comm: MoeComm | None) -> Strategy:
        """The same shape with another MoE exchange."""
        return replace(self, moe_comm=moe_comm)


def parse_strategy(text: str) -> Strategy:
    """The strategy that ``text`` names, shorthands resolved (``ep8`` = ``tp8ep8``, ``ep8:a2a`` = ``dp8ep8:a2a``).

    Raises:
        InputError: not the grammar, an axis twice or zero, ep that does not divide tp x dp, dcp that does not divide tp.

    >>> parse_strategy("ep8").canonical, parse_strategy("ep8:a2a").canonical, parse_strategy("pp2tp4").canonical
    ('tp8ep8', 'dp8ep8:a2a', 'tp4pp2')
    """
    if not isinstance(text, str):
        raise InputError(f"a strategy is text, not {str(text)[:40]}; write {_GRAMMAR}")
    asked = text.strip()
    match = _WHOLE.fullmatch(asked.lower()) if len(asked) <= 80 else None
    if match is None:
        raise InputError(f"strategy {asked[:40]!r} is not understood; write {_GRAMMAR}")
    axes: dict[str, int] = {}
    for axis, number in _AXIS.findall(match.group(2)):
        if axis in axes:
            raise InputError(f"strategy {asked!r} names {axis} twice; give each axis once")
        axes[axis] = int(number)
    replicas = int(match.group(1)) if match.group(1) else 1
    if replicas < 1 or min(axes.values()) < 1:
        raise InputError(f"strategy {asked!r}: every number must be 1 or more")
    suffix = match.group(3)
    if suffix is not None and suffix not in MOE_COMMS:
        raise InputError(f"strategy {asked!r}: unknown suffix {suffix!r}; use one of {', '.join(MOE_COMMS)}")
    moe_comm: MoeComm | None = suffix
    if "ep" in axes and "tp" not in axes and "dp" not in axes:
        axes["dp" if moe_comm == "a2a" else "tp"] = axes["ep"]
    found = Strategy(text=asked, replicas=replicas, moe_comm=moe_comm, **axes)
    if (found.tp * found.dp) % found.ep:
        width = found.tp * found.dp
        raise InputError(f"strategy {asked!r}: ep{found.ep} must divide tp x dp = {width}; use ep in {_divisors(width, found.ep)}")
    if found.tp % found.dcp:
        legal = _divisors(found.tp, found.dcp)
        raise InputError(f"strategy {asked!r}: dcp{found.dcp} must divide tp{found.tp}; use dcp in {legal}")
    return found


def _divisors(number: int, near: int, most: int = 8) -> str:
    """The divisors of ``number`` as text; where there are many, those nearest to ``near``."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    every = {*small, *(number // d for d in small)}
    return ", ".join(map(str, sorted(sorted(every, key=lambda d: abs(d - near))[:most])))


def default_strategies(gpus: int, *, moe: bool) -> tuple[str, ...]:
    """What ``compare`` asks when nothing is named: tp{n}, pp{n}; if MoE ep{n}, ep{n}:a2a; even n >= 4 tp{n/2}pp2, 2xtp{n/2}."""
    if gpus == 1:
        return ("tp1",)
    names = [f"tp{gpus}", f"pp{gpus}"]
    if moe:
        names += [f"ep{gpus}", f"ep{gpus}:a2a"]
    if gpus >= 4 and gpus % 2 == 0:
        names += [f"tp{gpus // 2}pp2", f"2xtp{gpus // 2}"]
    return tuple(names)
