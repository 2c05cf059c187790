"""Which strategies an engine would run for a model on so many GPUs, and what each one's free choices become."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pcie_sim.errors import InputError
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.runtime import RuntimeSpec
from pcie_sim.specs.strategy import MoeComm, Strategy
from pcie_sim.units import counted


@dataclass(frozen=True)
class Resolved:
    """A legal strategy with every choice made.

    ``moe_comm`` is what the MoE layers use (None: a dense model without data parallelism); ``stage_layers`` how many layers
    each pipeline stage holds; ``gpus_idle`` how many GPUs of the box stay unused.
    """

    strategy: Strategy
    moe_comm: MoeComm | None
    stage_layers: tuple[int, ...]
    gpus_idle: int
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Ranks that share one MoE or MLP layer: tp x dp."""
        return self.strategy.tp * self.strategy.dp


def resolve(strategy: Strategy, model: ModelSpec, runtime: RuntimeSpec, *, gpus: int, pp_layers: tuple[int, ...] | None = None) -> Resolved:
    """Check that ``runtime`` would run ``strategy`` for ``model`` on ``gpus`` GPUs, and fill in what it leaves open.

    Raises:
        InputError: too many ranks, ep on a dense model, or a split that the engine would refuse; names the nearest legal form.
    """
    _check_world(strategy, model, gpus)
    _check_moe(strategy, model)
    _check_attention(strategy, model)
    _check_mlp(strategy, model, runtime)
    layers = _stage_layers(strategy, model, runtime, pp_layers)
    notes = []
    idle = gpus - strategy.world
    if idle:
        notes.append(f"{strategy.text} uses {strategy.world} of {counted(gpus, 'GPU')}, the first in bus order; {idle} stay idle")
    moe_comm = _moe_comm(strategy, model, runtime)
    if strategy.dcp > 1 and runtime.decode_context_parallel:
        notes.append(f"{strategy.text}: {runtime.decode_context_parallel}")
    if model.is_moe and strategy.expert_tp > 1 and model.mlp.moe_intermediate % strategy.expert_tp:
        padded = -(-model.mlp.moe_intermediate // strategy.expert_tp)
        notes.append(
            f"{strategy.text}: an expert of width {model.mlp.moe_intermediate} is cut {strategy.expert_tp} ways and padded to {padded}"
        )
    return Resolved(strategy, moe_comm, layers, idle, tuple(notes))


def _check_world(s: Strategy, model: ModelSpec, gpus: int) -> None:
    if s.world <= gpus:
        return
    raise InputError(f"strategy {s.text!r} needs {s.world} GPUs, the box has {gpus}; nearest: {_shrunk(s, model, gpus).canonical}")


def _shrunk(s: Strategy, model: ModelSpec, gpus: int) -> Strategy:
    """The strategy with its widest axes cut down, one after the other, until it fits and the heads divide."""
    found = replace(s, ep=1, dcp=1)
    for axis in sorted(("tp", "dp", "pp", "replicas"), key=lambda name: -getattr(s, name)):
        others = found.world // getattr(found, axis)
        room = max(1, min(getattr(found, axis), gpus // others))
        while axis == "tp" and room > 1 and model.attention.heads % room:
            room -= 1
        found = replace(found, **{axis: room})
        if found.world <= gpus:
            break
    width = found.tp * found.dp
    return replace(found, ep=math.gcd(s.ep, width), dcp=math.gcd(s.dcp, found.tp))


def _check_moe(s: Strategy, model: ModelSpec) -> None:
    plain = replace(s, ep=1, moe_comm=None)
    if not model.is_moe:
        if s.ep > 1:
            raise InputError(f"strategy {s.text!r}: {model.name} has no experts, ep means nothing; use {plain.canonical}")
        if s.moe_comm == "a2a":
            raise InputError(f"strategy {s.text!r}: {model.name} has no experts to exchange tokens for; use {plain.canonical}")
        return
    experts = model.mlp.experts
    if experts % s.ep:
        legal = max(d for d in range(1, s.ep + 1) if experts % d == 0 and (s.tp * s.dp) % d == 0)
        raise InputError(
            f"strategy {s.text!r}: {experts} experts of {model.name} do not divide over ep{s.ep}; use {replace(s, ep=legal).canonical}"
        )
    width = s.tp * s.dp
    if s.moe_comm == "a2a" and (s.ep != width or width == 1):
        if width == 1:
            raise InputError(f"strategy {s.text!r}: an All-to-All needs at least two ranks; use {replace(s, moe_comm=None).canonical}")
        better = replace(s, ep=width).canonical
        raise InputError(f"strategy {s.text!r}: an All-to-All needs whole experts on every rank (ep = tp x dp); use {better}")
    if s.moe_comm is not None and width == 1:
        raise InputError(f"strategy {s.text!r}: one rank exchanges nothing; use {replace(s, moe_comm=None).canonical}")


def _check_attention(s: Strategy, model: ModelSpec) -> None:
    att = model.attention
    cuts = {"attention heads": att.heads}
    if att.kind == "gqa" and att.linear is not None:
        cuts["linear-attention value heads"] = att.linear.value_heads
    for what, count in cuts.items():
        if count % s.tp:
            raise InputError(
                f"strategy {s.text!r}: {count} {what} of {model.name} do not divide over tp{s.tp}; use {_with_tp(s, count).canonical}"
            )
    if att.kind == "gqa" and att.kv_heads % s.tp and s.tp % att.kv_heads:
        raise InputError(
            f"strategy {s.text!r}: {att.kv_heads} KV heads of {model.name} neither divide over tp{s.tp} nor replicate; "
            f"use {_with_tp(s, att.kv_heads).canonical}"
        )
    if s.dcp > 1 and att.kind == "gqa":
        kv_heads = max(att.kv_heads_of(kind) for kind, _ in model.layers if kind != "linear")
        copies = max(1, s.tp // kv_heads)  # ranks that hold the same KV head: only these can share its context
        if copies % s.dcp:
            better = replace(s, dcp=math.gcd(s.dcp, copies)).canonical
            raise InputError(
                f"strategy {s.text!r}: decode context parallelism splits what tp ranks hold twice; {kv_heads} KV heads of "
                f"{model.name} over tp{s.tp} leave {copies} {'copy' if copies == 1 else 'copies'} of each; use {better}"
            )
    if s.pp > model.num_layers:
        better = replace(s, pp=model.num_layers).canonical
        raise InputError(f"strategy {s.text!r}: {model.name} has {model.num_layers} layers, fewer than pp{s.pp}; use {better}")


def _with_tp(s: Strategy, count: int, *, ok: int | None = None) -> Strategy:
    """``s`` with the largest tp below its own that divides ``count`` (and keeps ep and dcp legal)."""
    tp = ok or max(d for d in range(1, s.tp) if count % d == 0) if s.tp > 1 else 1
    width = tp * s.dp
    ep = max(d for d in range(1, s.ep + 1) if width % d == 0) if s.ep > 1 else 1
    dcp = max(d for d in range(1, s.dcp + 1) if tp % d == 0)
    return replace(s, tp=tp, ep=ep, dcp=dcp)


def _check_mlp(s: Strategy, model: ModelSpec, runtime: RuntimeSpec) -> None:
    mlp = model.mlp
    cut = s.expert_tp
    fmt = model.quantisation.experts
    if model.is_moe and cut > 1:
        inter = mlp.moe_intermediate
        per_rank, rest = divmod(inter, cut)
        block = fmt.block if fmt.block and runtime.moe.fp8_block_must_divide else 0
        packed = fmt.group if fmt.format in ("int4", "nvfp4") else 1
        if (block and (rest or per_rank % block)) or (packed > 1 and (rest or per_rank % packed)) or per_rank < 1:
            step = max(block, packed, 1)
            better = _nearest_expert_cut(s, inter, step)
            raise InputError(
                f"strategy {s.text!r}: an expert of {model.name} is {inter} wide; over {cut} ranks that leaves {inter / cut:g}, not a "
                f"multiple of the {fmt.format} {'block' if block else 'group'} {step}; use {better.canonical}"
            )
    width = s.tp * s.dp if runtime.moe.dense_with_dp == "gather" else s.tp
    if model.count_layers("dense") and mlp.dense_intermediate % width:
        raise InputError(
            f"strategy {s.text!r}: the dense MLP of {model.name} is {mlp.dense_intermediate} wide and does not divide over {width} ranks; "
            f"use {_with_tp(s, mlp.dense_intermediate).canonical}"
        )


def _nearest_expert_cut(s: Strategy, inter: int, step: int) -> Strategy:
    """The same ranks with the fewest expert-parallel parts that leave a legal width per rank."""
    width = s.tp * s.dp
    for ep in range(s.ep, width + 1):
        if width % ep == 0 and inter % (width // ep) == 0 and (inter // (width // ep)) % step == 0:
            return replace(s, ep=ep)
    return replace(s, ep=width)


def _moe_comm(s: Strategy, model: ModelSpec, runtime: RuntimeSpec) -> MoeComm | None:
    if s.tp * s.dp == 1:
        return None
    if not model.is_moe:
        return s.moe_comm
    if s.moe_comm is not None:
        return s.moe_comm
    return runtime.moe.tp_only if s.dp == 1 else runtime.moe.with_dp


def _stage_layers(s: Strategy, model: ModelSpec, runtime: RuntimeSpec, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    if asked is None or s.pp == 1:
        return pipeline_split(model.num_layers, s.pp, runtime.pipeline.remainder_to)
    if len(asked) != s.pp:
        raise InputError(f"pp-layers names {len(asked)} stages, {s.text} has {s.pp}")
    if sum(asked) != model.num_layers:
        raise InputError(f"pp-layers add up to {sum(asked)}, {model.name} has {model.num_layers} layers")
    return asked


def pipeline_split(layers: int, stages: int, remainder_to: str) -> tuple[int, ...]:
    """Layers per stage: equal parts, the remainder to the ``first``, ``last`` or ``middle`` stages.

    ``last``: SGLang 0.5.10 distributed/utils.py get_pp_indices. ``middle``: vLLM's get_pp_indices, from the stage before the
    last backwards. ``first``: the plain way.

    >>> pipeline_split(61, 8, "last"), pipeline_split(61, 8, "middle")
    ((7, 7, 7, 8, 8, 8, 8, 8), (7, 7, 8, 8, 8, 8, 8, 7))
    """
    base, rest = divmod(layers, stages)
    parts = [base] * stages
    for extra in range(rest):
        where = extra if remainder_to == "first" else stages - 1 - extra if remainder_to == "last" else (stages - 2 - extra) % stages
        parts[where] += 1
    return tuple(parts)
