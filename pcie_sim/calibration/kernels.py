"""Fit the kernel profiles of the catalog from published kernel tables.

``python -m pcie_sim.calibration.kernels TABLES_DIR [--write]`` reads the tables, fits every kernel class of every GPU that has
tables, prints each fit's parameters and its error on held-out shapes, and with ``--write`` renews ``catalog/profiles``.
The tables themselves are not shipped; the fitted numbers are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pcie_sim.calibration import kernel_tables as tables
from pcie_sim.calibration.kernel_fit import ClassResult, ClassSpec, fit_class, largest_resident
from pcie_sim.calibration.kernel_tables import Left, Row, split
from pcie_sim.catalog import load_gpu
from pcie_sim.errors import InputError, PcieSimError
from pcie_sim.results.fit import FitReport
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.kernel_profile import KernelClassFit, KernelProfile

Peak = Literal["fp16", "bf16", "fp8", "fp4", "int8"]
Rows = Callable[[], Iterator[Row | Left]]

LARGEST_TOKENS = 512
"""Rows with more tokens are prefill; decode batches stay below."""
ROOF = ("fixed_s", "bandwidth_share", "flops_share", "sharpness")

AICONFIGURATOR = "ai-dynamo/aiconfigurator:aic-core/src/aiconfigurator_core/systems/data (aiconfigurator-core 0.12.0, Apache-2.0)"
LLMSERVINGSIM = "casys-kaist/LLMServingSim:profiler/perf at 5daddb2 (MIT)"


@dataclass(frozen=True)
class Job:
    """One class to fit: where its rows come from, its form, and rows of the same run that show what the cache held."""

    spec: ClassSpec
    rows: Rows
    peak: Peak
    kernels: int
    source: str
    cache: str
    """Jobs of one name share the largest resident working set: they were measured the same way on the same cache."""
    note: str | None = None


@dataclass(frozen=True)
class Target:
    """One GPU: its name in the catalog, in the tables' file names, and in the layer profiles."""

    gpu: str
    stem: str
    profile: str
    title: str
    layers: str | None


TARGETS = (
    Target("rtx-pro-6000-blackwell-server", "rtxpro6000", "kernels-rtx-pro-6000", "RTX PRO 6000 Blackwell kernels", "RTXPRO6000"),
    Target("l40s", "l40s", "kernels-l40s", "L40S kernels", None),
)

_EXPERTS: dict[str, dict[str, tuple[str, str, str, Peak, tuple[str, ...]]]] = {
    # class -> framework, kernel source, dtype in the table, peak, extra parameters
    "rtxpro6000": {
        "experts:int4": ("sglang", "sglang_marlin_moe", "int4_wo", "bf16", ("crowded_factor",)),
        "experts:bf16": ("sglang", "sglang_fused_moe_triton", "bfloat16", "bf16", ("crowded_factor",)),
        "experts:fp8_block": ("sglang", "sglang_fused_moe_triton", "fp8_block", "fp8", ("crowded_factor",)),
        "experts:fp8": ("vllm", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "fp8", "fp8", ()),
        "experts:nvfp4": ("sglang", "sglang_flashinfer_cutlass_moe", "nvfp4", "fp4", ("per_item_s",)),
        "experts:mxfp4": ("vllm", "vllm_gptossmxfp4moe_marlin_marlinexperts", "w4a16_mxfp4", "bf16", ()),
    },
    "l40s": {
        "experts:int4": ("sglang", "sglang_marlin_moe", "int4_wo", "bf16", ("crowded_factor",)),
        "experts:bf16": ("sglang", "sglang_fused_moe_triton", "bfloat16", "bf16", ("crowded_factor",)),
        "experts:fp8_block": ("vllm", "vllm_fp8moe_triton_tritonexperts", "fp8_block", "fp8", ("crowded_factor",)),
        "experts:fp8": ("vllm", "vllm_modeloptfp8moe_triton_tritonexperts", "fp8", "fp8", ("crowded_factor",)),
        "experts:mxfp4": ("vllm", "vllm_gptossmxfp4moe_marlin_marlinexperts", "w4a16_mxfp4", "bf16", ()),
    },
}
EXPERT_SHARPNESS, EXPERT_FLOPS = 1.5, 0.5
"""Decode rows do not determine them: the corner that held-out shapes like best (1.5, against 1, 2 and 3), and the middle of the
compute shares that rows of up to 2048 tokens give (0.35 to 0.7)."""
_VERSION = {"sglang": "sglang 0.5.14", "vllm": "vllm 0.24.0"}


def jobs(folder: Path, target: Target) -> list[Job]:
    """The classes that ``folder`` has tables for."""
    return [*_gemm_jobs(folder, target), *_attention_jobs(folder, target), *_expert_jobs(folder, target), *_sampler_jobs(folder, target)]


def _gemm_jobs(folder: Path, target: Target) -> Iterator[Job]:
    path = folder / f"gemm_sglang_{target.stem}.csv"
    layers = folder / "layer_profiles_llmservingsim.csv"

    def bf16() -> Iterator[Row | Left]:
        yield from tables.gemm_rows(path, "bfloat16", largest_m=LARGEST_TOKENS)
        if target.layers is not None:
            yield from tables.lm_head_rows(layers, target.layers, largest_m=LARGEST_TOKENS)

    extra = f"; lm_head rows of {LLMSERVINGSIM}" if target.layers is not None else ""
    yield Job(ClassSpec("gemm:bf16", ROOF), bf16, "bf16", 1, f"{AICONFIGURATOR}: gemm, sglang 0.5.14 torch linear{extra}", "gemm")
    narrow: list[tuple[str, Peak, str]] = [("fp8", "fp8", "sgl_kernel fp8_scaled_mm")]
    if target.stem == "rtxpro6000":
        narrow.append(("nvfp4", "fp4", "flashinfer cutlass nvfp4"))
    for dtype, peak, kernel in narrow:
        yield Job(
            ClassSpec(f"gemm:{dtype}", (*ROOF, "serial_s")),
            lambda dtype=dtype: tables.gemm_rows(path, dtype, largest_m=LARGEST_TOKENS),  # type: ignore[misc]
            peak,
            1,
            f"{AICONFIGURATOR}: gemm, sglang 0.5.14 {kernel}",
            "gemm",
            "No split-K: one thread block walks all of k, which decides the time of small matrices.",
        )


def _attention_jobs(folder: Path, target: Target) -> Iterator[Job]:
    path = folder / f"attention_decode_sglang_{target.stem}.csv"
    for kv, key in (("bfloat16", "attention:gqa"), ("fp8", "attention:gqa:fp8")):
        yield Job(
            ClassSpec(key, (*ROOF, "per_item_s")),
            lambda kv=kv: tables.attention_rows(path, "flashinfer", kv, shortest=1),  # type: ignore[misc]
            "bf16",
            2,
            f"{AICONFIGURATOR}: generation_attention, sglang 0.5.14 flashinfer, {kv} KV, head dimension 128",
            "attention",
        )
    mla = folder / f"mla_decode_{target.stem}.csv"
    yield Job(
        ClassSpec("attention:mla", (*ROOF, "per_item_s", "serial_s", "serial_cap"), heads_per_item=16),
        lambda: tables.mla_rows(mla, fewest_heads=2),
        "bf16",
        2,
        f"{AICONFIGURATOR}: generation_mla, sglang 0.5.14 triton, bf16 KV (attention kernel only)",
        "attention",
        "Triton blocks hold 16 query heads; the context loop is split only up to a number of pieces, then serially.",
    )


def _expert_jobs(folder: Path, target: Target) -> Iterator[Job]:
    path = folder / f"moe_kernels_{target.stem}.csv"
    for key, (framework, kernel, dtype, peak, extra) in _EXPERTS[target.stem].items():
        given = {"flops_share": EXPERT_FLOPS}
        free: tuple[str, ...] = ("fixed_s", "bandwidth_share")
        if "per_item_s" in extra:
            free = (*free, "sharpness")  # many small experts determine the corner
        else:
            given["sharpness"] = EXPERT_SHARPNESS
        yield Job(
            ClassSpec(key, (*free, *extra), given),
            lambda a=framework, b=kernel, c=dtype: tables.expert_rows(path, a, b, c, largest_tokens=LARGEST_TOKENS),  # type: ignore[misc]
            peak,
            5,
            f"{AICONFIGURATOR}: moe, {_VERSION[framework]} {kernel.removeprefix(framework + '_')}, balanced",
            "moe",
        )


def _sampler_jobs(folder: Path, target: Target) -> Iterator[Job]:
    if target.layers is not None:
        layers, gpu = folder / "layer_profiles_llmservingsim.csv", target.layers
        yield Job(
            ClassSpec("sampling", ("fixed_s", "bandwidth_share"), {"flops_share": 1.0, "sharpness": 1.0}),
            lambda: tables.sampler_rows(layers, gpu),
            "bf16",
            6,
            f"{LLMSERVINGSIM}: sampler, vLLM 0.19.0",
            "sampling",
        )


def fit_target(folder: Path, target: Target, gpu: GpuSpec) -> dict[str, tuple[Job, ClassResult]]:
    """Every class of one GPU, fitted.

    Raises:
        InputError: a table is missing or broken, or holds too few rows.
    """
    todo = [(job, *split(job.rows())) for job in jobs(folder, target)]
    bandwidth = gpu.memory_bandwidth.value
    resident: dict[str, float] = {}
    for job, rows, _ in todo:
        resident[job.cache] = max(resident.get(job.cache, 0.0), largest_resident(rows, bandwidth))
    found = {}
    for job, rows, left in todo:
        spec = ClassSpec(job.spec.key, job.spec.free, job.spec.given, job.spec.heads_per_item, resident[job.cache])
        peak = gpu.peak_flops[job.peak].value
        found[spec.key] = (job, fit_class(spec, rows, left, bandwidth=bandwidth, peak=peak))
    return found


def as_class(job: Job, result: ClassResult) -> KernelClassFit:
    """The fitted class as the profile file holds it: four significant digits, error figures beside."""
    guess, report = result.guess, result.report
    low, high = report.range_bytes or (0.0, 0.0)
    return KernelClassFit(
        fixed_s=_short(guess.fixed_s),
        bandwidth_share=_short(guess.bandwidth_share),
        crowded_factor=_short(guess.crowded_factor),
        flops_share=_short(guess.flops_share),
        peak=job.peak,
        per_item_s=_short(guess.per_item_s),
        heads_per_item=job.spec.heads_per_item,
        serial_s=_short(guess.serial_s),
        serial_cap=None if guess.serial_cap is None else _short(guess.serial_cap),
        sharpness=None if guess.sharpness is None else _short(guess.sharpness),
        kernels=job.kernels,
        sigma_log=_short(report.sigma_log, 2),
        cold_from_bytes=_short(result.cold_from_bytes, 3) if result.cold_from_bytes else None,
        cold_doubt=COLD_DOUBT if result.cold_from_bytes else 0.0,
        evidence="profile",
        rows=report.rows,
        held_out_rows=report.held_out_rows,
        median_ape=_short(report.median_ape, 2),
        held_out_median_ape=None if report.held_out_median_ape is None else _short(report.held_out_median_ape, 2),
        range_bytes=(_short(low, 3, np.floor), _short(high, 3, np.ceil)),
        source=job.source,
        note=job.note,
    )


def _short(value: float, digits: int = 4, how: Callable[[float], float] = np.round) -> float:
    if value == 0:
        return 0.0
    scale = 10.0 ** (digits - 1 - int(np.floor(np.log10(abs(value)))))
    return float(f"{how(value * scale) / scale:.{digits}g}")


def profile_of(folder: Path, target: Target, gpu: GpuSpec, fits: dict[str, tuple[Job, ClassResult]]) -> KernelProfile:
    """The kernel profile of one GPU: fitted classes, and the floor of small kernels.

    With layer profiles the floor is the median of norms, rope and activations at decode batches; without, the fastest row of
    the GEMM table bounds it.
    """
    classes = {key: as_class(job, result) for key, (job, result) in fits.items()}
    if target.layers is not None:
        small = tables.small_kernel_times(folder / "layer_profiles_llmservingsim.csv", target.layers)
        if not small:
            raise InputError(f"layer_profiles_llmservingsim.csv: no small-kernel rows of {target.layers}")
        floor, spread = float(np.median(small)), float(np.std(np.log(small)))
        classes["elementwise"] = KernelClassFit(
            fixed_s=0.0,
            bandwidth_share=classes["gemm:bf16"].bandwidth_share,
            flops_share=1.0,
            peak="bf16",
            sigma_log=_short(max(spread, 0.05), 2),
            evidence="profile",
            rows=len(small),
            source=f"{LLMSERVINGSIM}: median of layernorm, qk_norm, rotary_emb and act_fn at up to 16 tokens",
            note="the floor is small_kernel_graph_s; bytes at the bandwidth share of gemm:bf16",
        )
        notes = ["small_kernel_graph_s: kernel times of an eager run; launch gaps inside a graph are not in it"]
    else:
        rows = split(tables.gemm_rows(folder / f"gemm_sglang_{target.stem}.csv", "bfloat16", largest_m=LARGEST_TOKENS))[0]
        floor = min(row.time_s for row in rows)
        notes = ["small_kernel_graph_s: the fastest row of the GEMM table, no table of norms or rope exists for this GPU"]
    return KernelProfile(
        schema="pcie-sim/kernel-profile/1",
        name=target.profile,
        title=target.title,
        gpu=target.gpu,
        classes=classes,
        small_kernel_graph_s=_short(floor, 2),
        small_kernel_eager_s=EAGER_S,
        sources=(AICONFIGURATOR, LLMSERVINGSIM),
        notes=(
            *notes,
            "small_kernel_eager_s is assumed: 5 to 10 us of CPU time per kernel launched from Python",
            "Working sets that stayed in the last-level cache are not used for bandwidth shares: decode is cold. Largest resident "
            "working sets, found as rows that read faster than the memory's peak: "
            + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in _resident(fits).items()),
            f"Below cold_from_bytes no row was measured out of the cache: the memory term gains a doubt of {COLD_DOUBT:g} (assumed).",
            f"Shares are of {gpu.memory_bandwidth.value / 1e9:g} GB/s and of the dense peaks in gpus/{gpu.name}.yaml.",
        ),
    )


COLD_DOUBT = 0.2
"""Assumed doubt about the memory term of sets that were only measured inside the cache: no cold row of that size exists, and the
rows inside the cache bound it from below only. Written to the profile with that meaning."""

EAGER_S = 7e-6
"""Assumed CPU time per kernel launched from Python (5 to 10 us); no table has it. Written to the profile with that label."""


def _resident(fits: dict[str, tuple[Job, ClassResult]]) -> dict[str, float]:
    return {job.cache: result.resident_bytes for job, result in fits.values() if result.resident_bytes > 0}


def to_yaml(profile: KernelProfile) -> str:
    """The profile file's text, defaults left out."""
    import yaml

    data: dict[str, Any] = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    head = "# Generated by `python -m pcie_sim.calibration.kernels TABLES --write`; do not edit by hand.\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=130, allow_unicode=True)


def table_text(report: FitReport) -> str:
    """A fit for people: counts, errors, parameters."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    lines = [
        f"{report.name}: {report.rows} cold rows fitted, {report.held_out_rows} held out;"
        f" APE median {percent(report.median_ape)} p90 {percent(report.p90_ape)};"
        f" held out median {percent(report.held_out_median_ape)} p90 {percent(report.held_out_p90_ape)}; sigma {report.sigma_log:.3f}"
        + ("" if report.success else f"; DID NOT CONVERGE: {report.message}")
    ]
    for item in report.parameters:
        error = "at its bound" if item.at_bound else "no standard error" if item.stderr is None else f"+- {item.stderr:.2g}"
        lines.append(f"    {item.name:16s} {item.value:10.4g} {item.unit:6s} {error}")
    lines += [f"    left out {count:6d}: {reason}" for reason, count in report.left_out.items()]
    return "\n".join(lines) + "\n"


def run(folder: Path, *, write_to: Path | None = None, targets: Sequence[Target] = TARGETS) -> dict[str, KernelProfile]:
    """Fit all GPUs, print the reports, and write the profiles when ``write_to`` names a folder.

    Raises:
        InputError: a table is missing or broken.
    """
    found = {}
    for target in targets:
        gpu = load_gpu(target.gpu)
        sys.stdout.write(f"== {target.gpu}\n")
        fits = fit_target(folder, target, gpu)
        for _, result in fits.values():
            sys.stdout.write(table_text(result.report))
        profile = profile_of(folder, target, gpu, fits)
        sys.stdout.write(f"small kernel: {profile.small_kernel_graph_s * 1e6:.2f} us\n")
        if write_to is not None:
            (write_to / f"{target.profile}.yaml").write_text(to_yaml(profile), encoding="utf-8")
            sys.stdout.write(f"wrote {target.profile}.yaml\n")
        found[target.profile] = profile
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code (2 for bad tables)."""
    parser = argparse.ArgumentParser(prog="python -m pcie_sim.calibration.kernels", description="Fit the kernel profiles of the catalog.")
    parser.add_argument("tables", type=Path, help="folder with the kernel tables (CSV)")
    parser.add_argument("--write", action="store_true", help="renew pcie_sim/catalog/profiles")
    options = parser.parse_args(argv)
    profiles = Path(__file__).resolve().parents[1] / "catalog" / "profiles"
    try:
        run(options.tables, write_to=profiles if options.write else None)
    except PcieSimError as exc:
        sys.stderr.write(f"{exc}\n")
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
