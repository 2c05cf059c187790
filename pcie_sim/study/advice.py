"""The one measurement that would narrow an answer most, as a command to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import numpy as np

from pcie_sim.results.comparison import Point
from pcie_sim.serving import StrategyResult
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.specs.workload import Workload
from pcie_sim.study.notes import lines_of
from pcie_sim.topology import Topology
from pcie_sim.units import format_bytes

CLOSE = 0.05
"""Two strategies closer than this (5 % in tokens/s) count as equally close."""
_PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "send_recv": "sendrecv_perf",
}
"""Programs of nccl-tests by operation."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")


def advice(
    box: Topology, model: ModelSpec, runtime: RuntimeSpec, results: Sequence[StrategyResult], points: Sequence[Point], workload: Workload
) -> str:
    """The measurement that would narrow the answer most, as a command to paste.

    At every point the best two strategies are taken; what each cause contributes to the doubt about their order is added up over the
    points, the closer the two the heavier, and the largest sum decides.
    """
    fits = {(p.strategy, p.concurrency, p.context) for p in points if p.fits}
    doubt: dict[str, float] = {}
    where: dict[str, tuple[float, StrategyResult, StrategyResult, int]] = {}
    for j, context in enumerate(workload.context):
        for i, concurrency in enumerate(workload.concurrency):
            here = [r for r in results if (r.strategy, concurrency, context) in fits] or list(results)
            ranked = sorted(here, key=lambda r: float(r.tpot_s[i, j] / r.running[i, j]))[:2]
            first, second = ranked[0], ranked[-1]
            gap = float(second.tpot_s[i, j] / second.running[i, j]) / float(first.tpot_s[i, j] / first.running[i, j]) - 1
            for cause in {**first.causes.time, **second.causes.time}:
                parts = [_doubt(result, cause, i, j) for result in (first, second)]
                share = (abs(parts[0] - parts[1]) if first is not second else parts[0]) / (gap + CLOSE)
                doubt[cause] = doubt.get(cause, 0.0) + share
                if share > where.get(cause, (-1.0,))[0]:
                    where[cause] = (share, first, second, concurrency)
    if not doubt:
        return ""
    cause = max(doubt, key=lambda name: doubt[name])
    _, first, second, concurrency = where[cause]
    return _command(cause, box, model, runtime, (first, second), concurrency, workload)


def _doubt(result: StrategyResult, cause: str, i: int, j: int) -> float:
    """Standard deviation of ln(time) that one cause gives a strategy at a point."""
    if cause not in result.causes.time:
        return 0.0
    return float(result.causes.time[cause][i, j]) / float(result.tpot_s[i, j]) * float(result.causes.sigma(cause)[i, j])


def _command(
    cause: str,
    box: Topology,
    model: ModelSpec,
    runtime: RuntimeSpec,
    pair: tuple[StrategyResult, StrategyResult],
    concurrency: int,
    workload: Workload,
) -> str:
    first, second = pair
    gpus = max(first.resolved.width, second.resolved.width, 2)
    env = " ".join(f"{key}={shlex.quote(value)}" for key, value in box.settings.env.items())
    prefix = f"{env} " if env else ""
    if cause.startswith("cpu:hop"):
        stages = max(first.resolved.strategy.pp, second.resolved.strategy.pp)
        why = f"the cost of a pipeline hop decides; compare it with the engine's own time per hop at pp{stages}"
        return f"{prefix}sendrecv_perf -b 4K -e 1M -f 2 -g 2 -w 50 -n 200 -G 10   # {why}"
    if cause.startswith(("kernel:", "cpu:", "engine:")):
        what = (
            "the kernels of the " + cause.split(":")[1] + " decide" if cause.startswith("kernel:") else "the CPU's part of a step decides"
        )
        return f"{prefix}{_engine_command(runtime, model, first, concurrency, workload)}   # {what}"
    op = next((name for name in _PROGRAMS if cause.startswith(f"net:{name}:")), "all_reduce")
    sizes = [float(np.max(line.call.bytes)) for r in (first, second) for line in lines_of(r, op)]
    biggest = max(2 ** int(np.ceil(np.log2(max([*sizes, 1.0])))), 2**24)
    top = format_bytes(biggest).replace(" ", "").replace("iB", "")
    if op != "all_reduce":
        count = 2 if op == "send_recv" else gpus
        return f"{prefix}{_PROGRAMS[op]} -b 1K -e {top} -f 2 -g {count} -w 50 -n 200 -G 10   # the box's own {op} decides"
    return f"{prefix}all_reduce_perf -b 1K -e {top} -f 2 -g {gpus} -w 50 -n 200 -G 10   # the box's own small AllReduce decides"


def _engine_command(runtime: RuntimeSpec, model: ModelSpec, result: StrategyResult, batch: int, workload: Workload) -> str:
    """A one-batch run of the engine itself with the better strategy."""
    s, context = result.resolved.strategy, workload.context[0]
    weights = model.title if _REPOSITORY.fullmatch(model.title) else shlex.quote(model.name)  # a title may be any text
    if runtime.name == "vllm":
        shape = f"--tensor-parallel-size {s.tp} --pipeline-parallel-size {s.pp}"
        return f"vllm bench latency --model {weights} {shape} --batch-size {batch} --input-len {context} --output-len 64"
    shape = f"--tp-size {s.tp * s.dp} --pp-size {s.pp}"
    return f"python -m sglang.bench_one_batch --model-path {weights} {shape} --batch-size {batch} --input-len {context} --output-len 64"
