"""What is asked of the engine: concurrency, context and the settings that change a decode step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pcie_sim.errors import InputError
from pcie_sim.units import parse_int_list

DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_CONTEXT = 1024


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
    ) -> Workload:
        """A checked workload from text or numbers.

        Raises:
            InputError: a number out of range or not a number.
        """
        if launch not in (None, "graph", "eager"):
            raise InputError(f"launch {launch!r} is not known; use graph or eager")
        if mem_fraction is not None and not (isinstance(mem_fraction, int | float) and 0.1 <= mem_fraction <= 1.0):
            raise InputError(f"memory fraction {mem_fraction} is out of range; it goes from 0.1 to 1")
        if max_running is not None:
            (max_running,) = parse_int_list([max_running], "max-running")
        layers = None if pp_layers is None else _layers(pp_layers)
        return Workload(
            concurrency=parse_int_list(concurrency, "concurrency", high=65536, most=4096),  # type: ignore[arg-type]
            context=parse_int_list(context, "context", high=16_777_216, most=512),  # type: ignore[arg-type]
            launch=launch,  # type: ignore[arg-type]
            pp_layers=layers,
            popularity=popularity,
            mem_fraction=mem_fraction,
            max_running=max_running,
        )


def _layers(value: object) -> tuple[int, ...]:
    """Layers per stage, in order; unlike other lists, the same number may stand twice."""
    try:
        parts = value.split(",") if isinstance(value, str) else list(value)  # type: ignore[call-overload]
        layers = tuple(int(str(part).strip()) for part in parts)
    except (TypeError, ValueError) as exc:
        raise InputError(f"pp-layers {str(value)[:40]!r} is not understood; write it like 8,8,7") from exc
    if not layers or any(count < 1 for count in layers):
        raise InputError("pp-layers: every stage needs at least one layer; write it like 8,8,7")
    return layers
