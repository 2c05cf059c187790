"""Models and GPUs for people and programs: their numbers, what follows from them, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pcie_sim import catalog
from pcie_sim.report.console import bold, bullets, pairs, table
from pcie_sim.report.numbers import percent, quantity_text
from pcie_sim.results.base import plain
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.model import GqaAttention, MlaAttention, ModelSpec
from pcie_sim.specs.strategy import parse_strategy
from pcie_sim.strategies import resolve
from pcie_sim.strategies.weights import kv_bytes_per_request, rank_weights
from pcie_sim.units import counted, format_bytes

if TYPE_CHECKING:
    from pcie_sim.report.console import Block, Justify

_CONTEXTS = (1024, 32768)


def weight_bytes(model: ModelSpec) -> float:
    """Bytes of all weights at the model's own quantisation, on one GPU."""
    engine = catalog.load_runtime("generic")
    return sum(rank_weights(model, resolve(parse_strategy("tp1"), model, engine, gpus=1), engine))


def request_bytes(model: ModelSpec, context: int) -> float:
    """Bytes of KV cache and recurrent state of one request of ``context`` tokens, on one GPU."""
    engine = catalog.load_runtime("generic")
    resolved = resolve(parse_strategy("tp1"), model, engine, gpus=1)
    return sum(float(stage) for stage in kv_bytes_per_request(model, resolved, float(context)))


def model_document(model: ModelSpec) -> dict[str, Any]:
    """Schema ``pcie-sim/model-show/1``: the spec as written, and what follows from it under ``derived``."""
    found: dict[str, Any] = plain(
        {
            "schema": "pcie-sim/model-show/1",
            "name": model.name,
            "title": model.title,
            "spec": model.model_dump(mode="json", by_alias=True),
            "derived": {
                "total_params": model.total_params,
                "active_params": model.active_params,
                "total_vs_published": _against(model.total_params, model.published.total_B if model.published else None),
                "active_vs_published": _against(model.active_params, model.published.active_B if model.published else None),
                "weight_bytes": weight_bytes(model),
                "bytes_per_weight": dict(_formats(model)),
                "kv_bytes_per_token": model.kv_bytes_per_token,
                "kv_bytes_per_request": {str(context): request_bytes(model, context) for context in _CONTEXTS},
            },
        }
    )
    return found


def _against(value: float, published_B: float | None) -> float | None:
    return None if not published_B else value / (published_B * 1e9) - 1


def _formats(model: ModelSpec) -> list[tuple[str, float]]:
    quant = model.quantisation
    parts = [("attention", quant.attention_format)]
    if model.is_moe:
        parts.append(("experts", quant.experts))
    if model.mlp.shared_experts:
        parts.append(("shared experts", quant.shared_format))
    if model.count_layers("dense"):
        parts.append(("dense layers", quant.linear))
    parts += [("lm_head", quant.lm_head), ("embedding", quant.embedding)]
    return [(name, form.bytes_per_weight) for name, form in parts]


def model_blocks(model: ModelSpec, *, width: int) -> list[Block]:
    """Everything of one model."""
    published = model.published
    total = f"{model.total_params / 1e9:.1f} B weights, {model.active_params / 1e9:.2f} B active per token"
    said = ""
    if published is not None:
        figures = [(name, value) for name, value in (("total", published.total_B), ("active", published.active_B)) if value]
        ours = {"total": model.total_params, "active": model.active_params}
        said = ", ".join(
            f"{name} {value:g} B (ours {percent(ours[name] / value / 1e9 - 1, digits=1, sign=True)})" for name, value in figures
        )
        said += f" [{published.evidence}] {published.source}"
    weights = weight_bytes(model)
    facts = [
        ("layers", f"{model.num_layers}: {_layers(model)}; hidden {model.hidden_size}, vocabulary {model.vocab}"),
        ("attention", _attention(model)),
        ("MLP", _mlp(model)),
        ("counted", total + (f", and {model.extra_params / 1e9:.2f} B that no decode step reads" if model.extra_params else "")),
        ("published", said),
        ("quantisation", model.quantisation.method),
        ("bytes/weight", ", ".join(f"{name} {value:.4g}" for name, value in _formats(model))),
        ("weights", f"{format_bytes(weights)} ({weights / 1e9:.1f} GB) in all"),
        ("KV cache", f"{model.kv_bytes_per_token:,.0f} B per token on one GPU; a request of {_requests(model)}"),
    ]
    sources = [f"{', '.join(p.fields)} [{p.evidence}]: {p.source}{f' ({p.note})' if p.note else ''}" for p in model.provenance]
    blocks: list[Block] = [
        bold(f"{model.name}: {model.title}"),
        pairs(facts, width=width),
        "",
        bold("Sources"),
        *bullets(sources, width=width),
    ]
    return blocks + (["", bold("Notes"), *bullets(model.notes, width=width)] if model.notes else [])


def _requests(model: ModelSpec) -> str:
    return ", of ".join(f"{context} tokens {format_bytes(request_bytes(model, context))}" for context in _CONTEXTS)


def _layers(model: ModelSpec) -> str:
    words = {"full": "full attention", "sliding": "sliding window", "linear": "linear attention", "moe": "MoE", "dense": "dense"}
    counts = [(words[kind], model.count_layers(kind)) for kind in ("full", "sliding", "linear", "moe", "dense")]
    return ", ".join(f"{count} {word}" for word, count in counts if count)


def _attention(model: ModelSpec) -> str:
    att = model.attention
    if isinstance(att, MlaAttention):
        text = (
            f"MLA, {att.heads} heads, latent {att.kv_lora_rank} + {att.qk_rope_head_dim} rope, queries by rank {att.q_lora_rank or 'none'}"
        )
        return text + (f", sparse: top {att.indexer.topk} tokens" if att.indexer else "")
    text = f"GQA, {att.heads} heads, {att.kv_heads} KV heads of {att.head_dim}"
    return text + _extras(att)


def _extras(att: GqaAttention) -> str:
    text = f", values {att.value_dim}" if att.value_dim != att.head_dim else ""
    if att.sliding is not None:
        text += f", window {att.sliding.window}, full every {att.sliding.full_every}"
    if att.linear is not None:
        text += f", {att.full_layers} full layers among linear ones ({att.linear.value_heads} value heads of {att.linear.value_head_dim})"
    return text


def _mlp(model: ModelSpec) -> str:
    mlp = model.mlp
    if not model.is_moe:
        return f"dense, width {mlp.dense_intermediate}"
    text = f"{mlp.experts} experts, top {mlp.top_k}, width {mlp.moe_intermediate}"
    text += f"; {mlp.shared_experts} shared, width {mlp.shared_intermediate}" if mlp.shared_experts else ""
    return text + (f"; dense layers {mlp.dense_intermediate}" if model.count_layers("dense") else "")


def model_list_document(models: Iterable[ModelSpec]) -> dict[str, Any]:
    """Schema ``pcie-sim/model-list/1``."""
    rows = [
        {
            "name": m.name,
            "title": m.title,
            "total_params": m.total_params,
            "active_params": m.active_params,
            "quantisation": m.quantisation.method,
        }
        for m in models
    ]
    return {"schema": "pcie-sim/model-list/1", "models": rows}


def model_list_blocks(models: Iterable[ModelSpec]) -> list[Block]:
    """A line per model."""
    columns: list[tuple[str, Justify]] = [
        ("name", "left"),
        ("total B", "right"),
        ("active B", "right"),
        ("attention", "left"),
        ("experts", "left"),
    ]
    columns += [("weights", "left"), ("title", "left")]
    rows = []
    for m in models:
        experts = f"{m.mlp.experts}, top {m.mlp.top_k}" if m.is_moe else "dense"
        kind = "MLA" if isinstance(m.attention, MlaAttention) else "GQA" if m.attention.linear is None else "hybrid"
        rows.append([m.name, f"{m.total_params / 1e9:.1f}", f"{m.active_params / 1e9:.2f}", kind, experts, m.quantisation.method, m.title])
    return [table(columns, rows, fold=(4, 5, 6)), f"  {counted(len(rows), 'model')}"]


def _quantities(gpu: GpuSpec) -> list[tuple[str, Quantity]]:
    named = [
        ("memory", gpu.memory),
        ("memory bandwidth", gpu.memory_bandwidth),
        ("L2 cache", gpu.l2_cache),
        ("multiprocessors", gpu.multiprocessors),
        ("boost clock", gpu.boost_clock),
        ("power", gpu.power),
    ]
    return named + [(f"peak {name}", value) for name, value in gpu.peak_flops.items()]


def gpu_blocks(gpu: GpuSpec, *, width: int) -> list[Block]:
    """Everything of one GPU."""
    peer = gpu.p2p
    facts = [
        ("chip", f"{gpu.architecture}, compute capability {gpu.compute_capability}, {gpu.vendor}"),
        ("port", f"gen{gpu.pcie.gen} x{gpu.pcie.width}"),
        ("aliases", ", ".join(gpu.aliases)),
        ("peer access", f"stock driver: {peer.stock_driver} [{peer.evidence}] {peer.source}{'. ' + peer.note if peer.note else ''}"),
        ("kernels", gpu.kernel_profile or "no fitted profile: the nominal one is used"),
    ]
    columns: list[tuple[str, Justify]] = [("", "left"), ("value", "left"), ("evidence", "left"), ("source", "left")]
    rows = [[name, _amount(q), q.evidence, q.source + (f" ({q.note})" if q.note else "")] for name, q in _quantities(gpu)]
    blocks: list[Block] = [bold(f"{gpu.name}: {gpu.title}"), pairs(facts, width=width), "", table(columns, rows, fold=(3,))]
    return blocks + (["", bold("Notes"), *bullets(gpu.notes, width=width)] if gpu.notes else [])


def _amount(quantity: Quantity) -> str:
    if quantity.unit == "B":
        return f"{format_bytes(quantity.value)} ({quantity.value / 2**20:,.0f} MiB)"
    scaled = {"flop/s": (1e12, "Tflop/s"), "Hz": (1e9, "GHz")}.get(quantity.unit)
    if scaled is None:
        return quantity_text(quantity)
    low = "" if quantity.low is None else f" (from {quantity.low / scaled[0]:.4g})"
    return f"{quantity.value / scaled[0]:.4g} {scaled[1]}{low}"


def gpu_document(gpu: GpuSpec) -> dict[str, Any]:
    """Schema ``pcie-sim/gpu-show/1``: the spec as written."""
    return {"schema": "pcie-sim/gpu-show/1", "name": gpu.name, "title": gpu.title, "spec": gpu.model_dump(mode="json", by_alias=True)}


def gpu_list_document(gpus: Iterable[GpuSpec]) -> dict[str, Any]:
    """Schema ``pcie-sim/gpu-list/1``."""
    rows = [
        {
            "name": g.name,
            "title": g.title,
            "architecture": g.architecture,
            "memory_bytes": g.memory.value,
            "memory_GBps": g.memory_bandwidth.value / 1e9,
            "pcie": f"gen{g.pcie.gen} x{g.pcie.width}",
            "peer_access": g.p2p.stock_driver,
            "kernel_profile": g.kernel_profile,
        }
        for g in gpus
    ]
    return {"schema": "pcie-sim/gpu-list/1", "gpus": plain(rows)}


def gpu_list_blocks(gpus: Iterable[GpuSpec]) -> list[Block]:
    """A line per GPU."""
    columns: list[tuple[str, Justify]] = [("name", "left"), ("chip", "left"), ("memory", "right"), ("GB/s", "right"), ("port", "left")]
    columns += [("peer access", "left"), ("kernels", "left")]
    rows = [
        [
            g.name,
            g.architecture,
            format_bytes(g.memory.value),
            f"{g.memory_bandwidth.value / 1e9:.0f}",
            f"gen{g.pcie.gen} x{g.pcie.width}",
            g.p2p.stock_driver,
            "fitted" if g.kernel_profile else "nominal",
        ]
        for g in gpus
    ]
    return [table(columns, rows, fold=(1, 2, 5, 6)), f"  {counted(len(rows), 'GPU')}"]
