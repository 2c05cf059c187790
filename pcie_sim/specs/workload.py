"""What is asked of the engine: concurrency, context and the settings that change a decode step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from typing import Literal

from pcie_sim.errors import InputError
from pcie_sim.units import parse_int_list

DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_CONTEXT = 1024
MAX_CONCURRENCIES, MAX_CONTEXTS = 512, 64
"""Most points of each axis: more than that is no table that anybody reads, and takes minutes."""
MAX_STAGES = 1024


@dataclass(frozen=True)
class Workload:
    """A grid of decode points.

    ``concurrency``: requests of the whole box in decode at once; ``context``: tokens already in each one's KV cache.
    ``pp_layers``: layers per pipeline stage, None for the runtime's split. ``popularity``: ``uniform`` or ``zipf:S``.
    ``mem_fraction``: static memory fraction, None for the runtime's rule. ``max_running``: engine's cap, None for its own.
    """

    concurrency: tuple[int, ...] = DEFAULT_CONCURRENCY
    context: tuple[int, ...] = (DEFAULT_CONTEXT,)
    launch: Literal["graph", "eager"] | None = None
    pp_layers: tuple[int, ...] | None = None
    popularity: str = "uniform"
    mem_fraction: float | None = None
    max_running: int | None = None

    @staticmethod
    def parse(
        concurrency: object = DEFAULT_CONCURRENCY,
        context: object = DEFAULT_CONTEXT,
        *,
        pp_layers: object = None,
        launch: str | None = None,
        popularity: str = "uniform",
        mem_fraction: float | None = None,
        max_running: int | None = None,
        single: bool = False,
    ) -> Workload:
        """A checked workload from text or numbers; with ``single``, one concurrency and one context (what ``predict`` takes).

        Raises:
            InputError: a number out of range or not a number, or a list where one number is asked.
        """
        if launch is not None and (not isinstance(launch, str) or launch not in ("graph", "eager")):
            raise InputError(f"launch {str(launch)[:40]!r} is not known; use graph or eager")
        if mem_fraction is not None:
            mem_fraction = _fraction(mem_fraction)
        if max_running is not None:
            (max_running,) = parse_int_list([max_running], "max-running", example="a number like 64")
        if not isinstance(popularity, str):
            raise InputError(f"popularity {str(popularity)[:30]!r} is not understood; use uniform or zipf:1.0 (0 to 3)")
        layers = None if pp_layers is None else _layers(pp_layers)
        return Workload(
            concurrency=_axis(concurrency, "concurrency", high=65536, most=MAX_CONCURRENCIES, single=single),
            context=_axis(context, "context", high=16_777_216, most=MAX_CONTEXTS, single=single),
            launch=launch,  # type: ignore[arg-type]
            pp_layers=layers,
            popularity=popularity,
            mem_fraction=mem_fraction,
            max_running=max_running,
        )


def _axis(value: object, what: str, *, high: int, most: int, single: bool) -> tuple[int, ...]:
    example = "a number like 8" if single else "a list like 1,4,16"
    found = parse_int_list(value, what, high=high, most=most, example=example)  # type: ignore[arg-type]
    if single and len(found) != 1:
        raise InputError(f"predict takes one {what}, got {len(found)}; compare takes lists")
    return found


def _fraction(value: object) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not 0.1 <= number <= 1.0:
        raise InputError(f"memory fraction {str(value)[:40]} is out of range; it is a number from 0.1 to 1")
    return number


def _layers(value: object) -> tuple[int, ...]:
    """Layers per stage, in order; unlike other lists, the same number may stand twice."""
    if isinstance(value, str) and value.strip() and not all(part.strip() for part in value.split(",")):
        raise InputError(f"pp-layers {value[:40]!r}: an entry is empty; write it like 8,8,7")
    try:
        parts = value.split(",") if isinstance(value, str) else list(islice(iter(value), MAX_STAGES + 1))  # type: ignore[call-overload]
        layers = tuple(int(str(part).strip().encode("ascii")) for part in parts)
    except (TypeError, ValueError) as exc:
        raise InputError(f"pp-layers {str(value)[:40]!r} is not understood; write it like 8,8,7") from exc
    if len(layers) > MAX_STAGES:
        raise InputError(f"pp-layers: at most {MAX_STAGES} stages")
    if not layers or any(count < 1 for count in layers):
        raise InputError("pp-layers: every stage needs at least one layer; write it like 8,8,7")
    return layers
