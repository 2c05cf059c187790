"""compare, predict, collective, flows: one verb each, everything but the first arguments keyword-only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from pcie_sim.errors import InputError
from pcie_sim.network import call_times, load_flows, run_flows, time_collective
from pcie_sim.network.call_times import CallTimer
from pcie_sim.results.comparison import Comparison, Crossover, Note, Point, Prediction, Winner
from pcie_sim.results.timing import FlowsResult, Timing
from pcie_sim.serving import StrategyResult, evaluate
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.specs.strategy import default_strategies, parse_strategy
from pcie_sim.specs.workload import DEFAULT_CONCURRENCY, DEFAULT_CONTEXT, Workload
from pcie_sim.strategies import Resolved, resolve
from pcie_sim.study.advice import advice
from pcie_sim.study.arguments import (
    Where,
    engine_of,
    library_of,
    name_text,
    one_of,
    order_of,
    path_text,
    ranks_of,
    settings_of,
    strategies_of,
)
from pcie_sim.study.loading import load_model, load_topology
from pcie_sim.study.measured import compare_with, serving_sets
from pcie_sim.study.notes import comparison_notes
from pcie_sim.topology import Topology
from pcie_sim.units import parse_bytes

if TYPE_CHECKING:
    from pcie_sim.calibration.apply import Calibrated

Launch = Literal["graph", "eager"]


def compare(
    topology: Topology | Where,
    *,
    model: ModelSpec | Where,
    strategies: str | Sequence[str] | None = None,
    concurrency: object = DEFAULT_CONCURRENCY,
    context: object = DEFAULT_CONTEXT,
    runtime: RuntimeSpec | str = "sglang",
    nccl: str | None = None,
    env: Mapping[str, str] | None = None,
    p2p: Literal["auto", "on", "off"] | None = None,
    launch: Launch | None = None,
    pp_layers: object = None,
    popularity: str = "uniform",
    mem_fraction: float | None = None,
    max_running: int | None = None,
    calibration: object = None,
) -> Comparison:
    """Strategies against each other on one box, over concurrencies and contexts.

    Args:
        topology: a box, a shipped name, or a path.
        model: a model, a catalog name, or a path.
        strategies: text as in ``tp8,pp8,ep8:a2a`` or a list; None for the usual ones of this box and model.
        concurrency: requests of the whole box in decode (a number, a list, or text like ``1,8,64``).
        context: tokens in each request's KV cache (likewise).
        runtime: serving engine by name.
        nccl: collective-library version, for example ``"2.28"``; None for the box's own.
        env: settings of the collective library, over the box's own.
        p2p: peer access as the driver and platform grant it; None for the box's own.
        launch: ``graph`` or ``eager``; None for the runtime's.
        pp_layers: layers per pipeline stage; None for the runtime's split.
        popularity: how tokens choose experts: ``uniform`` or ``zipf:S``.
        mem_fraction: static memory fraction; None for the runtime's rule.
        max_running: cap on running requests; None for the runtime's.
        calibration: what :func:`calibrate` gave, a calibration file, the name of a shipped profile, or a raw log of nccl-tests (fitted
            in passing). The box is then taken under the settings of the measured runs, unless ``nccl``, ``env`` or ``p2p`` say otherwise.

    Raises:
        InputError: an unknown name, a bad number, a calibration of another box, or a strategy that the engine would refuse.
        NoDataError: the box has parts that are not modelled yet.
    """
    workload = Workload.parse(
        concurrency,
        context,
        pp_layers=pp_layers,
        launch=launch,
        popularity=popularity,
        mem_fraction=mem_fraction,
        max_running=max_running,
    )
    with _asked(topology, model, runtime, nccl, env, p2p, calibration) as question:
        return _compared(question, strategies, workload)


def _compared(question: _Question, strategies: str | Sequence[str] | None, workload: Workload) -> Comparison:
    box, spec, engine = question.box, question.model, question.runtime
    asked, left_out = _strategy_list(strategies, box, spec, engine)
    resolved = _resolve_all(asked, box, spec, engine, workload)
    results = [evaluate(box, spec, engine, one, workload, question.calls) for one in resolved]
    points = tuple(
        result.point(i, j, workload) for result in results for j in range(len(workload.context)) for i in range(len(workload.concurrency))
    )
    winners = _winners(results, points, workload)
    measured = tuple(
        row
        for at in workload.context
        for row in compare_with(serving_sets(box.name, spec.name, engine.name), points, context=at, settings=box.settings.env)
        if at == workload.context[0] or row.context is not None
    )
    return Comparison(
        topology=box.name,
        model=spec.name,
        runtime=engine.name,
        ccl=_ccl(box),
        env=dict(box.settings.env),
        launch=workload.launch or engine.launch,
        points=points,
        winners=winners,
        crossovers=_crossovers(winners, workload),
        notes=(*question.notes, *_mixed_gpus(box), *comparison_notes(box, spec, engine, results, points, measured, workload), *left_out),
        measured=measured,
        advice=advice(box, spec, engine, results, points, workload),
        gpus=len(box.gpus),
        calibration=question.calibration,
        titles={"topology": box.title, "model": spec.title, "runtime": engine.title},
    )


def predict(
    topology: Topology | Where,
    *,
    model: ModelSpec | Where,
    strategy: str,
    concurrency: int = 1,
    context: int = DEFAULT_CONTEXT,
    runtime: RuntimeSpec | str = "sglang",
    nccl: str | None = None,
    env: Mapping[str, str] | None = None,
    p2p: Literal["auto", "on", "off"] | None = None,
    launch: Launch | None = None,
    pp_layers: object = None,
    popularity: str = "uniform",
    mem_fraction: float | None = None,
    max_running: int | None = None,
    calibration: object = None,
) -> Prediction:
    """One strategy at one concurrency and context, with every line of its step. Arguments as in :func:`compare`.

    Raises:
        InputError: as in :func:`compare`, or more than one concurrency, context or strategy.
    """
    workload = Workload.parse(
        concurrency,
        context,
        pp_layers=pp_layers,
        launch=launch,
        popularity=popularity,
        mem_fraction=mem_fraction,
        max_running=max_running,
        single=True,
    )
    with _asked(topology, model, runtime, nccl, env, p2p, calibration) as question:
        return _predicted(question, strategy, workload)


def _predicted(question: _Question, strategy: str, workload: Workload) -> Prediction:
    box, spec, engine = question.box, question.model, question.runtime
    (resolved,) = _resolve_all((strategy,), box, spec, engine, workload)
    result = evaluate(box, spec, engine, resolved, workload, question.calls)
    point = result.point(0, 0, workload)
    measured = compare_with(serving_sets(box.name, spec.name, engine.name), [point], context=workload.context[0], settings=box.settings.env)
    mine = tuple(row for row in measured if row.predicted is not None)
    return Prediction(
        topology=box.name,
        model=spec.name,
        runtime=engine.name,
        ccl=_ccl(box),
        env=dict(box.settings.env),
        launch=workload.launch or engine.launch,
        point=point,
        ops=result.ops(0, 0),
        notes=(*question.notes, *_mixed_gpus(box), *comparison_notes(box, spec, engine, [result], (point,), mine, workload)),
        measured=mine,
        calibration=question.calibration,
    )


def collective(
    topology: Topology | Where,
    op: str,
    size: str | int,
    *,
    ranks: int | None = None,
    algorithm: str = "auto",
    protocol: str = "auto",
    launch: Launch | None = None,
    engine: Literal["analytic", "event"] = "analytic",
    nccl: str | None = None,
    env: Mapping[str, str] | None = None,
    p2p: Literal["auto", "on", "off"] | None = None,
    order: str | Sequence[str] | None = None,
    calibration: object = None,
) -> Timing:
    """The time of one collective call. ``size`` is the message as nccl-tests counts it for ``op``.

    ``order`` names GPUs rank by rank (a list, or text like ``gpu0,gpu4``): a ring follows them as they stand. ``launch`` None: that of
    the calibration's runs, else eager. ``calibration`` as in :func:`compare`.

    Raises:
        InputError: unknown op, algorithm, protocol, engine or GPU, a bad size, fewer than two ranks or more than GPUs, a calibration of
            another box.
    """
    if launch is not None:
        one_of(launch, "launch", ("graph", "eager"))
    one_of(engine, "engine", ("analytic", "event"))
    asked: dict[str, Any] = {
        "ranks": ranks_of(ranks),
        "algorithm": name_text(algorithm, "algorithm", "auto or one like ring"),
        "protocol": name_text(protocol, "protocol", "auto, LL, LL128 or Simple"),
        "engine": engine,
        "order": order_of(order),
    }
    what, size_bytes = name_text(op, "op", "an operation like all_reduce"), parse_bytes(size)
    if calibration is None:
        return time_collective(_box(topology, nccl, env, p2p), what, size_bytes, launch=launch or "eager", **asked)
    box = topology if isinstance(topology, Topology) else load_topology(topology)
    made, notes = _calibrated(calibration, box)
    with made.in_force():
        settled = _settled(made.box, nccl, env, p2p)
        found = made.time_collective(settled, what, size_bytes, launch=launch or made.launch, **asked)
    return replace(found, notes=(*found.notes, *(note.text for note in (*notes, *_other_state(made, settled)))))


def flows(source: Where | Mapping[str, Any]) -> FlowsResult:
    """Finish times of explicit flows on explicit links, max-min fair: the bare event engine.

    ``source``: a file (``pcie-sim`` flows format) or the same as plain data.

    Raises:
        InputError: a missing or broken file, an unknown link or route, a bad number.
    """
    if isinstance(source, Mapping):
        return run_flows(dict(source), source="<data>")
    return load_flows(path_text(source, "flows"))


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked about: the box under its settings, and who prices its collectives."""

    box: Topology
    model: ModelSpec
    runtime: RuntimeSpec
    calls: CallTimer
    notes: tuple[Note, ...] = ()
    calibration: str | None = None


@contextmanager
def _asked(
    topology: Topology | Where,
    model: ModelSpec | Where,
    runtime: RuntimeSpec | str,
    nccl: str | None,
    env: Mapping[str, str] | None,
    p2p: Literal["auto", "on", "off"] | None,
    calibration: object,
) -> Iterator[_Question]:
    """The question; inside the block a calibration's parts are in force."""
    if calibration is None:
        box, spec, engine = _question(topology, model, runtime, nccl, env, p2p)
        yield _Question(box, spec, engine, call_times)
        return
    box, spec, engine = _question(topology, model, runtime, None, None, None)
    made, notes = _calibrated(calibration, box)
    with made.in_force():
        asked = _settled(made.box, nccl, env, p2p)
        yield _Question(asked, spec, engine, made.call_times, (*notes, *_other_state(made, asked)), made.source)


def _other_state(made: Calibrated, asked: Topology) -> tuple[Note, ...]:
    if not made.curves or made.answers(asked):
        return ()
    return (Note("calibration", f"{made.source}: was measured under other settings than asked here: nothing is read off its curves"),)


def _calibrated(calibration: object, box: Topology) -> tuple[Calibrated, tuple[Note, ...]]:
    from pcie_sim.study.calibrating import calibrated

    return calibrated(calibration, box)


def _question(
    topology: Topology | Where,
    model: ModelSpec | Where,
    runtime: RuntimeSpec | str,
    nccl: str | None,
    env: Mapping[str, str] | None,
    p2p: Literal["auto", "on", "off"] | None,
) -> tuple[Topology, ModelSpec, RuntimeSpec]:
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    return _box(topology, nccl, env, p2p), spec, engine_of(runtime)


def _box(topology: Topology | Where, nccl: str | None, env: Mapping[str, str] | None, p2p: Literal["auto", "on", "off"] | None) -> Topology:
    return _settled(topology if isinstance(topology, Topology) else load_topology(topology), nccl, env, p2p)


def _settled(box: Topology, nccl: str | None, env: Mapping[str, str] | None, p2p: Literal["auto", "on", "off"] | None) -> Topology:
    library, settings = library_of(nccl), settings_of(env)
    if library is None and settings is None and p2p is None:
        return box
    return box.with_settings(ccl=library, env=settings, p2p=p2p)


def usual_strategies(topology: Topology | Where, model: ModelSpec | Where, runtime: RuntimeSpec | str) -> tuple[str, ...]:
    """What :func:`compare` takes when nothing is asked.

    Raises:
        InputError: an unknown name.
    """
    box, spec, engine = _question(topology, model, runtime, None, None, None)
    return _strategy_list(None, box, spec, engine)[0]


def _strategy_list(
    strategies: str | Sequence[str] | None, box: Topology, model: ModelSpec, engine: RuntimeSpec
) -> tuple[tuple[str, ...], list[Note]]:
    """What was asked; with nothing asked, the usual ones that the engine runs, and a note for each that it refuses."""
    if strategies is not None:
        return strategies_of(strategies), []
    legal: list[str] = []
    notes: list[Note] = []
    for text in default_strategies(len(box.gpus), moe=model.is_moe):
        try:
            resolve(parse_strategy(text), model, engine, gpus=len(box.gpus))
        except InputError as exc:
            notes.append(Note("left_out", f"{text} was left out: {exc}"))
        else:
            legal.append(text)
    return tuple(legal) or ("tp1",), notes


def _resolve_all(asked: Sequence[str], box: Topology, model: ModelSpec, engine: RuntimeSpec, workload: Workload) -> list[Resolved]:
    """Every strategy with its choices made. ``pp_layers`` applies where the number of stages fits; it must fit somewhere."""
    parsed = [parse_strategy(text) for text in asked]
    layers = workload.pp_layers
    if layers is not None and all(s.pp == 1 or s.pp != len(layers) for s in parsed):
        raise InputError(f"pp-layers names {len(layers)} stages, but no strategy asked has pp{len(layers)}")
    return [
        resolve(s, model, engine, gpus=len(box.gpus), pp_layers=layers if layers is not None and s.pp == len(layers) else None)
        for s in parsed
    ]


def _winners(results: Sequence[StrategyResult], points: Sequence[Point], workload: Workload) -> tuple[Winner, ...]:
    """Best tokens/s among what fits; its probability is the share of plausible worlds in which it stays the best."""
    import numpy as np

    by_key = {(p.strategy, p.concurrency, p.context): p for p in points}
    found = []
    for j, context in enumerate(workload.context):
        for i, concurrency in enumerate(workload.concurrency):
            fitting = [r for r in results if by_key[r.strategy, concurrency, context].fits]
            if not fitting:
                continue
            ranked = sorted(fitting, key=lambda r: -by_key[r.strategy, concurrency, context].tokens_per_s)
            best = by_key[ranked[0].strategy, concurrency, context]
            margin = None
            probability = 1.0
            if len(ranked) > 1:
                second = by_key[ranked[1].strategy, concurrency, context]
                margin = best.tokens_per_s / second.tokens_per_s - 1
                worlds = np.stack([r.running[i, j] / r.samples[:, i, j] for r in ranked])
                ahead = worlds[0] >= worlds[1:].max(axis=0) * (1 - 1e-12)
                probability = float(np.mean(ahead))
            found.append(Winner(concurrency, context, best.strategy, margin, probability))
    return tuple(found)


def _crossovers(winners: Iterable[Winner], workload: Workload) -> tuple[Crossover, ...]:
    found = []
    for context in workload.context:
        ordered = sorted((w for w in winners if w.context == context), key=lambda w: w.concurrency)
        for before, after in pairwise(ordered):
            if before.strategy != after.strategy:
                found.append(Crossover(context, before.strategy, after.strategy, after.concurrency))
    return tuple(found)


def _mixed_gpus(box: Topology) -> tuple[Note, ...]:
    """Which GPU the times and the memory are those of, where the box has several models (as ``serving.evaluate`` takes it)."""
    counts = box.gpu_counts()
    if len(counts) < 2:
        return ()
    gpus = [box.gpu_spec(node) for node in box.gpus]
    slowest = min(gpus, key=lambda gpu: gpu.memory_bandwidth.value).name
    smallest = min(gpus, key=lambda gpu: gpu.memory.value).name
    held = ", ".join(f"{count}x {name}" for name, count in counts.items())
    text = f"mixed ({held}): every rank computes like {slowest}, the slowest memory, and holds what {smallest} does, the smallest"
    return (Note("mixed_gpus", f"{text}; a strategy on fewer GPUs goes by those it uses"),)


def _ccl(box: Topology) -> str:
    ccl = box.settings.ccl
    return "none" if ccl.name == "none" else f"{ccl.name} {ccl.version}"
