"""Published kernel tables (CSV) -> rows that a kernel fit can use: what a kernel had to do, and how long it took.

Tables: ai-dynamo/aiconfigurator (Apache-2.0) GEMM, MoE, attention and MLA decode tables, CUDA-graph timed; and
casys-kaist/LLMServingSim (MIT) layer profiles, timed kernel by kernel. Files come from strangers: size, rows and every
number are checked.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcie_sim.compute.work import work_of
from pcie_sim.errors import InputError
from pcie_sim.specs.ops import Array, DecodeAttention, Experts, Gemm, KernelCall, Sampling
from pcie_sim.specs.quantisation import BF16, WeightFormat

MAX_FILE_BYTES = 64 * 2**20
MAX_ROWS = 500_000
MAX_WHOLE = 10**9
MAX_TIME_US = 1e9
MAX_TP = 64

FORMATS: dict[str, WeightFormat] = {
    "bfloat16": BF16,
    "fp8": WeightFormat(format="fp8", bits=8),
    "fp8_block": WeightFormat(format="fp8_block", bits=8, group=128 * 128, scale_bits=32, block=128),
    "int4_wo": WeightFormat(format="int4", bits=4, group=32, scale_bits=16),
    "nvfp4": WeightFormat(format="nvfp4", bits=4, group=16, scale_bits=8),
    "w4a16_mxfp4": WeightFormat(format="mxfp4", bits=4, group=32, scale_bits=8),
}
"""The tables' dtype names as weight formats (int4_wo: group 32 with bf16 scales, as Kimi K2 ships)."""

MLA_LATENT, MLA_ROPE = 512, 64
"""DeepSeek V3 and Kimi K2: kv_lora_rank and qk_rope_head_dim (their config.json); the MLA tables hold no other shape."""

GROUP_LIMITED_EXPERTS = 256
"""Number of experts of the model in the tables whose router first picks 4 of 8 groups (DeepSeek V3, its config.json)."""

VOCABULARY = {"Llama-3.1-8B": 128_256, "Qwen3-32B": 151_936, "Qwen3-30B-A3B-Instruct-2507": 151_936}
HIDDEN = {"Llama-3.1-8B": 4096, "Qwen3-32B": 5120, "Qwen3-30B-A3B-Instruct-2507": 2048}
"""vocab_size and hidden_size of the profiled models (their config.json): the shape of lm_head and sampler."""

SMALL_LAYERS = ("layernorm", "final_layernorm", "qk_norm", "rotary_emb", "act_fn")
"""Layers of the layer profiles that are one small kernel each."""


@dataclass(frozen=True)
class Row:
    """One measurement. ``shape`` names what is held out together; ``working_set`` bytes that repeat from run to run."""

    shape: str
    call: KernelCall
    time_s: float
    working_set: float
    tokens: float


@dataclass(frozen=True)
class Left:
    """A row that is not used, and why."""

    reason: str


class _Line:
    """A CSV line whose cells are read with their file and line in every complaint."""

    def __init__(self, path: Path, number: int, cells: dict[str, str]) -> None:
        self.path, self.number, self.cells = path, number, cells

    def text(self, key: str) -> str:
        return self.cells[key]

    def _fail(self, key: str, want: str) -> InputError:
        return InputError(f"{self.path.name}:{self.number}: {key} is {self.cells[key][:40]!r}; expected {want}")

    def whole(self, key: str, low: int = 1, high: int = MAX_WHOLE) -> int:
        try:
            value = int(self.cells[key][:20])
        except ValueError:
            raise self._fail(key, "a whole number") from None
        if not low <= value <= high:
            raise self._fail(key, f"a number from {low} to {high}")
        return value

    def seconds(self, key: str) -> float:
        try:
            value = float(self.cells[key][:40])
        except ValueError:
            raise self._fail(key, "microseconds") from None
        if not (math.isfinite(value) and 0 < value <= MAX_TIME_US):
            raise self._fail(key, "microseconds above 0 and at most 1e9")
        return value * 1e-6


def read_lines(path: Path, columns: Sequence[str]) -> Iterator[_Line]:
    """The lines of a CSV that must have ``columns`` (more are allowed).

    Raises:
        InputError: no such file, too large, not UTF-8 CSV, a column missing or twice, a line of another length, too many rows.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such table; give the folder that holds the kernel tables")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path.name}: larger than {MAX_FILE_BYTES // 2**20} MiB; that is no kernel table")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            head = [name.strip() for name in next(reader, [])]
            missing = [name for name in columns if name not in head]
            if missing or len(set(head)) != len(head):
                what = f"column {missing[0]!r} is missing" if missing else "a column stands twice"
                raise InputError(f"{path.name}:1: {what}; the table needs {', '.join(columns)}")
            for count, cells in enumerate(reader, start=1):
                if count > MAX_ROWS:
                    raise InputError(f"{path.name}: more than {MAX_ROWS} rows; split the table")
                if len(cells) != len(head):
                    raise InputError(f"{path.name}:{reader.line_num}: {len(cells)} cells where the head has {len(head)}")
                yield _Line(path, reader.line_num, dict(zip(head, cells, strict=True)))
    except (UnicodeDecodeError, csv.Error) as exc:
        raise InputError(f"{path.name}: not a UTF-8 CSV table ({str(exc)[:80]})") from exc


def gemm_rows(path: Path, dtype: str, *, largest_m: int) -> Iterator[Row | Left]:
    """Dense products of one dtype with at most ``largest_m`` rows of activations."""
    weight = FORMATS[dtype]
    for line in read_lines(path, ("gemm_dtype", "m", "n", "k", "latency_us")):
        if line.text("gemm_dtype") != dtype:
            continue
        m, n, k = line.whole("m"), line.whole("n"), line.whole("k")
        if m > largest_m:
            yield Left(f"more than {largest_m} tokens (prefill)")
            continue
        yield Row(f"{n}x{k}", Gemm(m, n, k, weight), line.seconds("latency_us"), n * k * weight.bytes_per_weight, m)


def lm_head_rows(path: Path, gpu: str, *, largest_m: int) -> Iterator[Row | Left]:
    """The bf16 lm_head of the layer profiles: the largest GEMMs that a decode step has."""
    for line in read_lines(path, ("gpu", "model", "tp", "layer", "tokens", "time_us")):
        model = line.text("model").rsplit("/", 1)[-1]
        if line.text("gpu") != gpu or line.text("layer") != "lm_head" or model not in HIDDEN:
            continue
        m, n, k = line.whole("tokens"), VOCABULARY[model] // line.whole("tp", high=MAX_TP), HIDDEN[model]
        if m > largest_m:
            yield Left(f"more than {largest_m} tokens (prefill)")
            continue
        yield Row(f"{n}x{k}", Gemm(m, n, k), line.seconds("time_us"), n * k * 2.0, m)


def attention_rows(path: Path, kernel: str, kv: str, *, shortest: int) -> Iterator[Row | Left]:
    """GQA decode of one kernel source and KV dtype, head dimension 128 for keys and values."""
    width = {"bfloat16": 2.0, "fp8": 1.0}[kv]
    columns = ("kernel_source", "kv_cache_dtype", "num_heads", "num_key_value_heads", "head_dim", "batch_size", "ctx", "latency_us")
    for line in read_lines(path, columns):
        if line.text("kv_cache_dtype") != kv:
            continue
        if line.text("kernel_source") != kernel:
            yield Left(f"another kernel than {kernel}")
            continue
        heads, kv_heads, dim = line.whole("num_heads"), line.whole("num_key_value_heads"), line.whole("head_dim")
        batch, context = line.whole("batch_size"), line.whole("ctx")
        if context < shortest:
            yield Left(f"context below {shortest}")
            continue
        call = DecodeAttention(batch, context, "gqa", heads, 2.0 * kv_heads * dim, dim, dim, width)
        yield Row(f"{heads}/{kv_heads}", call, line.seconds("latency_us"), batch * context * call.kv_elements * width, batch)


def mla_rows(path: Path, *, fewest_heads: int) -> Iterator[Row | Left]:
    """SGLang's Triton MLA decode kernel (table generation_mla), bf16 KV. Heads are those of one rank."""
    columns = ("framework", "table", "kernel_source", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step", "latency_us")
    for line in read_lines(path, columns):
        if line.text("framework") != "sglang" or line.text("table") != "generation_mla" or line.text("kv_cache_dtype") != "bfloat16":
            yield Left("another framework, the whole MLA block, or fp8 KV")
            continue
        heads, batch = line.whole("num_heads"), line.whole("batch_size")
        context = line.whole("isl", 0) + line.whole("step", 0)
        if heads < fewest_heads:
            yield Left(f"fewer than {fewest_heads} heads (another kernel)")
            continue
        latent = MLA_LATENT + MLA_ROPE
        call = DecodeAttention(batch, context, "mla", heads, float(latent), latent, MLA_LATENT)
        yield Row(f"{heads} heads", call, line.seconds("latency_us"), batch * context * latent * 2.0, batch)


def balanced_experts(tokens: int, topk: int, experts: int, ep: int) -> tuple[int, int]:
    """Distinct experts and token-expert pairs on the most loaded rank when the load is as even as it can be.

    ``tokens x topk`` slots go round robin over ``experts``, and experts round robin over ``ep`` ranks (what the tables' times with
    ep > 1 agree with: one token on 8 ranks takes the time of one expert).

    >>> balanced_experts(1, 8, 384, 1), balanced_experts(8, 8, 384, 8), balanced_experts(64, 8, 384, 8)
    ((8, 8), (8, 8), (48, 64))
    """
    slots = tokens * topk
    distinct = min(slots, experts)
    return min(-(-distinct // ep), experts // ep), -(-slots // ep)


def expert_rows(path: Path, framework: str, kernel: str, dtype: str, *, largest_tokens: int) -> Iterator[Row | Left]:
    """Balanced MoE rows of one framework, kernel source and dtype; rows with ep > 1 time the most loaded rank.

    Models whose router picks groups of experts first (256 experts: DeepSeek V3, 4 of 8 groups) are left out: balanced logits
    then reach only half of the experts, and how many a small batch reaches is not recorded.
    """
    weight = FORMATS[dtype]
    columns = (
        "framework",
        "kernel_source",
        "moe_dtype",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "num_tokens",
        "distribution",
        "latency_us",
    )
    for line in read_lines(path, columns):
        if (line.text("framework"), line.text("kernel_source"), line.text("moe_dtype")) != (framework, kernel, dtype):
            continue
        hidden, inter, topk, experts = (line.whole(key) for key in ("hidden_size", "inter_size", "topk", "num_experts"))
        tp, ep, tokens = line.whole("moe_tp_size"), line.whole("moe_ep_size"), line.whole("num_tokens")
        if line.text("distribution") != "balanced":
            yield Left("skewed load (distinct experts not recorded)")
        elif experts == GROUP_LIMITED_EXPERTS:
            yield Left("group-limited router (distinct experts not recorded)")
        elif tokens > largest_tokens:
            yield Left(f"more than {largest_tokens} tokens (prefill)")
        elif inter % tp or experts % ep:
            yield Left("width or experts do not divide")
        else:
            distinct, slots = balanced_experts(tokens, topk, experts, ep)
            call = Experts(tokens, distinct, slots, experts // ep, hidden, inter // tp, weight)
            size = distinct * 3.0 * hidden * (inter // tp) * weight.bytes_per_weight
            yield Row(f"{hidden}/{inter} {experts} tp{tp} ep{ep}", call, line.seconds("latency_us"), size, tokens)


def sampler_rows(path: Path, gpu: str) -> Iterator[Row | Left]:
    """The sampler of the layer profiles, one shape per vocabulary and model; tp2 repeats tp1 and is left out."""
    for line in read_lines(path, ("gpu", "model", "tp", "layer", "tokens", "time_us")):
        model = line.text("model").rsplit("/", 1)[-1]
        if line.text("gpu") != gpu or line.text("layer") != "sampler" or model not in VOCABULARY:
            continue
        if line.text("tp") != "1":
            yield Left("repeats the tp 1 row")
            continue
        rows = line.whole("tokens")
        yield Row(model, Sampling(rows, VOCABULARY[model]), line.seconds("time_us"), rows * VOCABULARY[model] * 4.0, rows)


def small_kernel_times(path: Path, gpu: str, *, largest_tokens: int = 16) -> list[float]:
    """Seconds of norms, rope and activation kernels at decode batches (each one small kernel)."""
    lines = read_lines(path, ("gpu", "layer", "tokens", "time_us"))
    chosen = (line for line in lines if line.text("gpu") == gpu and line.text("layer") in SMALL_LAYERS)
    return [line.seconds("time_us") for line in chosen if line.whole("tokens") <= largest_tokens]


def split(rows: Iterator[Row | Left]) -> tuple[list[Row], dict[str, int]]:
    """Used rows, and how many were left out for which reason."""
    used: list[Row] = []
    left: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Left):
            left[row.reason] = left.get(row.reason, 0) + 1
        else:
            used.append(row)
    return used, left


def totals(rows: Sequence[Row], heads_per_item: int) -> Array:
    """Bytes, flops, items, serial length, crowded flag and seconds of every row: an array of shape (6, rows)."""
    table = np.empty((6, len(rows)))
    for column, row in enumerate(rows):
        work = work_of(row.call, heads_per_item=heads_per_item)
        parts = (work.bytes, work.flops, work.items, work.serial, work.crowded)
        table[:, column] = (*(float(part) for part in parts), row.time_s)
    return table
