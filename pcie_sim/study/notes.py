"""What the reader must know about an answer: which collectives were assumed, what an AllReduce would have to cost, what did
not fit, what stays unexplained, and the one measurement worth making. Codes are stable; texts are for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pcie_sim.network import costly_choices, rank_order, settings_notes
from pcie_sim.results.ccl import CclWarning
from pcie_sim.results.comparison import MeasuredPoint, Note, Point
from pcie_sim.serving import StrategyResult
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.specs.routing import Popularity, expected_distinct, parse_popularity
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.specs.workload import Workload
from pcie_sim.study.measured import landmark_all_reduces, measured_tpot_ms
from pcie_sim.topology import Topology
from pcie_sim.units import format_bytes, format_time

WORTH_A_STEP = 0.05
"""A choice of the collective library that costs more than this share of a step gets a note."""
WORTH_NAMING = 0.25
"""A measured row further than this from the prediction gets a note of its own (the residual itself is always listed)."""


def comparison_notes(
    box: Topology,
    model: ModelSpec,
    runtime: RuntimeSpec,
    results: Sequence[StrategyResult],
    points: Sequence[Point],
    measured: Sequence[MeasuredPoint],
    workload: Workload,
) -> tuple[Note, ...]:
    """All notes of a comparison (or of one prediction), most important first."""
    notes = _disagreements(points, measured)
    notes += _moe_comm(model, runtime, results)
    notes += _a2a_winner(results, points)
    notes += _fit(results, points)
    notes += _all_reduce_cost(box, results, workload)
    notes += _residuals(box, results, measured, workload)
    notes += _routing(model, results, workload)
    notes += _hops(results, runtime)
    notes += _network_state(box, results)
    notes += [Note("settings", text) for text in settings_notes(box)]
    notes += _beyond(model, workload)
    notes += _ccl_choice(box, runtime, results, workload)
    notes += [Note("strategy", text) for result in results for text in result.resolved.notes]
    notes += _reach(results, points)
    notes += [Note("topology_assumed", text) for text in box.assumptions]
    notes += [Note("model_assumed", text.removeprefix("assumed: ")) for text in model.notes if text.startswith("assumed: ")]
    return tuple(dict.fromkeys(notes))


def _moe_comm(model: ModelSpec, runtime: RuntimeSpec, results: Sequence[StrategyResult]) -> list[Note]:
    if not model.is_moe:
        return []
    words = {"allreduce": "AllReduce", "ag_rs": "AllGather + ReduceScatter", "a2a": "All-to-All dispatch and combine", None: "nothing"}
    notes = []
    for result in results:
        s = result.resolved.strategy
        if s.ep == 1 and s.dp == 1 and s.moe_comm is None:
            continue
        how = "as asked" if s.moe_comm else f"{runtime.title}'s own rule"
        notes.append(Note("moe_comm", f"{s.text}: MoE layers exchange by {words[result.resolved.moe_comm]} ({how})"))
    if any(r.resolved.strategy.ep > 1 for r in results):
        default = words[runtime.moe.tp_only]
        notes.append(
            Note(
                "ep_is_not_all_to_all",
                f"{runtime.title} with expert parallelism, one attention data-parallel rank and no All-to-All backend runs the "
                f"{default}s of plain TP: same count, same bytes; only the shape of the expert weights changes. "
                f"Rows with :a2a assume a backend that real PCIe boxes rarely have",
            )
        )
    return notes


def _disagreements(points: Sequence[Point], measured: Sequence[MeasuredPoint]) -> list[Note]:
    """Where measured runs order two strategies the other way round than predicted."""
    best: dict[tuple[float, int], dict[str, tuple[float, float]]] = {}
    for row in measured:
        if row.predicted is None or row.concurrency is None or row.metric != "output_tokens_per_s" or row.quality == "unreliable":
            continue
        seen = best.setdefault((row.concurrency, points[0].context), {})
        seen.setdefault(row.strategy, (row.value, row.predicted))
    notes = []
    for (concurrency, _), rows in sorted(best.items()):
        if len(rows) < 2:
            continue
        truly = max(rows, key=lambda name: rows[name][0])
        expected = max(rows, key=lambda name: rows[name][1])
        if truly != expected:
            notes.append(
                Note(
                    "measured_disagrees",
                    f"at C={concurrency:g} a published run of this case has {truly} ahead of {expected} ({rows[truly][0]:.0f} against "
                    f"{rows[expected][0]:.0f} tok/s), predicted is the opposite ({rows[truly][1]:.0f} against {rows[expected][1]:.0f}): "
                    "see the residuals for what would explain it",
                )
            )
    return notes


def _beyond(model: ModelSpec, workload: Workload) -> list[Note]:
    """A context that the model was not made for."""
    limit = model.max_position
    if limit is None or max(workload.context) <= limit:
        return []
    return [Note("context_beyond", f"context {max(workload.context):,} is beyond the {limit:,} positions that {model.name} was made for")]


def _a2a_winner(results: Sequence[StrategyResult], points: Sequence[Point]) -> list[Note]:
    """Where an All-to-All strategy comes out best, what remains best if no backend for it runs on the box."""
    exchange = {result.strategy for result in results if result.resolved.moe_comm == "a2a"}
    if not exchange or len(exchange) == len(results):
        return []
    won: list[str] = []
    for key in dict.fromkeys((p.concurrency, p.context) for p in points):
        here = sorted((p for p in points if p.fits and (p.concurrency, p.context) == key), key=lambda p: -p.tokens_per_s)
        plain = [p for p in here if p.strategy not in exchange]
        if here and here[0].strategy in exchange and plain:
            behind = here[0].tokens_per_s / plain[0].tokens_per_s - 1
            won.append(f"C={key[0]}: {plain[0].strategy} ({behind:.0%} behind)")
    if not won:
        return []
    return [
        Note("a2a_wins", f"an All-to-All strategy wins only where a backend for it runs on this box; without one: {', '.join(won[:6])}")
    ]


def _fit(results: Sequence[StrategyResult], points: Sequence[Point]) -> list[Note]:
    notes = []
    for result in results:
        mine = [p for p in points if p.strategy == result.strategy]
        refused = [p for p in mine if not p.fits]
        if refused:
            where = (
                "" if len(refused) == len(mine) else f" at context {', '.join(str(c) for c in dict.fromkeys(p.context for p in refused))}"
            )
            notes.append(Note("does_not_fit", f"{result.strategy} does not fit{where}: {refused[0].memory.reason}"))
        queued = [p for p in mine if p.queued]
        if queued:
            first = min(queued, key=lambda p: p.concurrency)
            notes.append(Note("queued", f"{result.strategy} from C={first.concurrency}: {first.memory.reason}"))
        slow = [p for p in mine if p.launch == "eager"]
        if slow and len(slow) < len(mine):
            first = min(slow, key=lambda p: p.concurrency)
            notes.append(
                Note("eager", f"{result.strategy} runs without CUDA graphs from C={first.concurrency}: above the engine's largest graph")
            )
    return notes


def all_reduces(result: StrategyResult) -> tuple[float, np.ndarray]:
    """(AllReduces per step, their exposed seconds in all) of a strategy without a pipeline."""
    return result.plan.count("all_reduce"), result.parts.buckets["all_reduce"]


def _all_reduce_cost(box: Topology, results: Sequence[StrategyResult], workload: Workload) -> list[Note]:
    """What the answer becomes when one AllReduce costs what has been published for such boxes."""
    notes = []
    for result in results:
        count, booked = all_reduces(result)
        s = result.resolved.strategy
        if not count or s.pp > 1 or s.tp * s.dp < 2:
            continue
        size = max(float(np.broadcast_to(op.call.bytes, booked.shape)[0, 0]) for op in lines_of(result, "all_reduce"))
        rest = (float(result.tpot_s[0, 0]) - float(booked[0, 0])) * 1e3
        each = float(booked[0, 0]) / count
        text = (
            f"{result.strategy} at C={workload.concurrency[0]}: {count:.0f} AllReduces of {size:,.0f} B at {each * 1e6:.1f} us each "
            f"({booked[0, 0] * 1e3:.2f} ms) on top of {rest:.2f} ms of everything else"
        )
        landmarks = landmark_all_reduces(box.gpu_spec(box.gpus[0]).architecture, s.tp * s.dp)
        good = [row for _, row in landmarks if row.quality == "good"]
        if good:
            shown = [f"{row.si_value * 1e6:.3g} us -> {rest + count * row.si_value * 1e3:.1f} ms" for row in good]
            sizes = sorted({row.bytes or 0 for row in good})
            text += f"; with what such boxes have measured per AllReduce of {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}: "
            text += ", ".join(shown)
        notes.append(Note("all_reduce_cost", text))
    return notes


def lines_of(result: StrategyResult, op: str) -> list:  # type: ignore[type-arg]
    """The lines of a plan, over all its stages, that are calls of the collective ``op``."""
    every = [line for stage in result.plan.stages for line in stage.ops]
    return [line for line in every if isinstance(line.call, CollectiveCall) and line.call.op == op]


def _residuals(box: Topology, results: Sequence[StrategyResult], measured: Sequence[MeasuredPoint], workload: Workload) -> list[Note]:
    """Measured beside predicted, the gap by name, and what one AllReduce would have to cost to explain it."""
    notes = []
    for strategy, rows in _by_strategy(measured).items():
        row = rows[0]
        if row.predicted is None:
            continue
        took = measured_tpot_ms(row)
        result = next((r for r in results if _same(r, row)), None)
        if result is None or row.concurrency is None:
            continue
        i = workload.concurrency.index(int(row.concurrency))
        j = workload.context.index(int(row.context)) if row.context in workload.context else 0
        tpot = float(result.tpot_s[i, j]) * 1e3
        text = f"{strategy} at C={row.concurrency:g}: measured {took:.1f} ms per token, predicted {tpot:.1f} ms; "
        text += f"residual {took - tpot:+.1f} ms"
        count, booked = all_reduces(result)
        if count and result.resolved.strategy.pp == 1:
            rest = tpot - float(booked[i, j]) * 1e3
            needed = (took - rest) / count * 1e3
            each = float(booked[i, j]) / count * 1e6
            text += f". One AllReduce would have to cost {needed:.0f} us to explain it (predicted {each:.0f} us)"
            landmarks = landmark_all_reduces(box.gpu_spec(box.gpus[0]).architecture, result.resolved.width)
            good = [held.si_value * 1e6 for _, held in landmarks if held.quality == "good"]
            if good and needed > good[-1]:
                text += f"; healthy boxes measure {good[0]:.0f} to {good[-1]:.0f} us, "
                text += f"the slowest published host {landmarks[-1][1].si_value * 1e6:.0f} us"
        others = _others(rows[1:], row)
        if others:
            text += f". At other concurrencies (measured against predicted): {others}"
        if any(abs(1 / (1 + (r.residual or 0.0)) - 1) > WORTH_NAMING for r in rows if r.residual is not None):
            text += ". What is off by more than a quarter is left unexplained, not fitted away"
        notes.append(Note("residual", text))
    return notes


def _others(rows: Sequence[MeasuredPoint], first: MeasuredPoint) -> str:
    """The other concurrencies of the same strategy, ms per token measured against predicted."""
    shown: dict[float, str] = {}
    for row in rows:
        if row.concurrency in (None, first.concurrency) or row.predicted is None or row.residual is None:
            continue
        took = measured_tpot_ms(row)
        predicted = took * (1 + row.residual) if row.metric.endswith("tokens_per_s") else took / (1 + row.residual)
        shown.setdefault(row.concurrency or 0.0, f"C={row.concurrency:g} {took:.1f} against {predicted:.1f} ms")
    return ", ".join(shown.values())


def _by_strategy(measured: Iterable[MeasuredPoint]) -> dict[str, list[MeasuredPoint]]:
    """Rows with a prediction by strategy: lowest concurrency first, good rows first."""
    rows = [row for row in measured if row.predicted is not None and row.quality != "unreliable"]
    found: dict[str, list[MeasuredPoint]] = {}
    for row in sorted(rows, key=lambda r: r.concurrency or 0):
        found.setdefault(row.strategy, []).append(row)
    return found


def _same(result: StrategyResult, row: MeasuredPoint) -> bool:
    from pcie_sim.specs.strategy import parse_strategy

    wanted = parse_strategy(row.strategy)
    shape = wanted.with_moe_comm(None).canonical == result.resolved.strategy.with_moe_comm(None).canonical
    return shape and (wanted.moe_comm is None or result.resolved.moe_comm in (None, wanted.moe_comm))


def _routing(model: ModelSpec, results: Sequence[StrategyResult], workload: Workload) -> list[Note]:
    """What the popularity of experts leaves open, at the largest batch asked."""
    popularity = parse_popularity(workload.popularity)
    if not model.is_moe or popularity != Popularity() or not results:
        return []
    mlp, largest = model.mlp, max(float(np.max(result.plan.load.batch)) for result in results)
    even = float(expected_distinct(largest, mlp.experts, mlp.top_k))
    skewed = float(expected_distinct(largest, mlp.experts, mlp.top_k, Popularity("zipf", 1.0)))
    if even < skewed * 1.1:
        return []
    return [
        Note(
            "routing",
            f"experts are taken as chosen evenly: a batch of {largest:.0f} then reads {even:.0f} of {mlp.experts} a layer; with popular "
            f"ones (--popularity zipf:1) {skewed:.0f}. The error bars hold this doubt; requests that resemble each other read fewer still",
        )
    ]


def _hops(results: Sequence[StrategyResult], runtime: RuntimeSpec) -> list[Note]:
    notes = []
    for result in results:
        hops = len(result.plan.boundaries)
        if not hops:
            continue
        each = float(result.hop_s[0, 0]) / hops
        cpu = runtime.pipeline.hop_cpu
        layers = ",".join(str(count) for count in result.resolved.stage_layers)
        notes.append(
            Note(
                "pipeline",
                f"{result.strategy}: {hops} {'hop' if hops == 1 else 'hops'} of {format_time(each)} each, "
                f"{format_time(cpu.value)} of it CPU-side [{cpu.evidence}]; "
                f"layers per stage {layers}",
            )
        )
    return notes


def _network_state(box: Topology, results: Sequence[StrategyResult]) -> list[Note]:
    """Which transport ring neighbours get, and why: in the largest group of GPUs that any strategy exchanges in."""
    calls = [line.call for result in results for stage in result.plan.stages for line in stage.ops if isinstance(line.call, CollectiveCall)]
    groups = [group for call in calls for group in call.groups if len(group) > 1]
    if not groups:
        return []
    if box.settings.ccl.name == "none":
        return [Note("transport", "no collective library (ccl none): bare wires without any software cost, a lower bound and no forecast")]
    order = [box.gpus[rank] for rank in max(groups, key=len)]
    kinds: dict[tuple[str, str], tuple[int, str]] = {}
    for a, b in zip(order, (*order[1:], order[0]), strict=True):
        near = sum(box.host_of(gpu) == box.host_of(a) for gpu in order)
        found, path = box.transport(a, b, gpus=near), box.path_type(a, b)
        count, reason = kinds.get((found.kind, path), (0, found.reason))
        kinds[found.kind, path] = (count + 1, reason)
    parts = [f"{count} of {len(order)} ring neighbours ({path}) by {kind}: {reason}" for (kind, path), (count, reason) in kinds.items()]
    return [Note("transport", "; ".join(parts))]


def _ccl_choice(box: Topology, runtime: RuntimeSpec, results: Sequence[StrategyResult], workload: Workload) -> list[Note]:
    """Choices of the collective library that cost more than a share of a step, with the setting that undoes each: a note a choice."""
    dearest: dict[str, tuple[float, str]] = {}
    for result in results:
        calls = lines_of(result, "all_reduce")
        if not calls:
            continue
        largest = max(calls, key=lambda op: float(np.broadcast_to(op.call.bytes, result.tpot_s.shape)[0, 0]))
        size = float(np.broadcast_to(largest.call.bytes, result.tpot_s.shape)[0, 0])
        order = rank_order(box, result.resolved.strategy.world)
        groups = [tuple(order[rank] for rank in group) for group in largest.call.groups]
        custom = runtime.custom_all_reduce if not result.eager[0, 0] else None
        count = result.plan.count("all_reduce")
        for item in costly_choices(box, groups, size, custom=custom):
            share = count * item.cost_s / float(result.tpot_s[0, 0])
            if share > WORTH_A_STEP and share > dearest.get(item.code, (0.0, ""))[0]:
                dearest[item.code] = share, _choice_text(item, result.strategy, count, share, workload)
    return [Note("ccl_choice", text) for _, text in sorted(dearest.values(), reverse=True)]


def _choice_text(item: CclWarning, strategy: str, count: float, share: float, workload: Workload) -> str:
    each = f"{item.cost_s * 1e6:.0f} of {item.time_s * 1e6:.0f} us per AllReduce of {item.bytes:,} B"
    return (
        f"{item.text}. By this prediction that costs {strategy} at C={workload.concurrency[0]} {each}, {count:.0f} times: "
        f"{share:.0%} of a step; try {item.setting}"
    )


def _reach(results: Sequence[StrategyResult], points: Sequence[Point]) -> list[Note]:
    beyond = [r.strategy for r in results if any(p.extrapolated for p in points if p.strategy == r.strategy)]
    if not beyond:
        return []
    return [Note("extrapolated", f"outside the range of the fitted kernel tables for some points of {', '.join(beyond)}")]
