"""``quantization_config`` (and modelopt's ``hf_quant_config.json``) as the format of each part of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.importers.hf_patterns import NamePatterns
from pcie_sim.importers.source import quoted
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.quantisation import BF16, Quantisation, WeightFormat

FP16 = WeightFormat(format="fp16", bits=16)
_NVFP4 = WeightFormat(format="nvfp4", bits=4, group=16, scale_bits=8)
_MXFP4 = WeightFormat(format="mxfp4", bits=4, group=32, scale_bits=8)
_FP8 = WeightFormat(format="fp8", bits=8)
_INT8 = WeightFormat(format="int8", bits=8)
_NOT_CONVERTED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")
_KEEP_LM_HEAD = ("fp8", "fbgemm_fp8", "awq", "gptq", "auto-round", "bitsandbytes", "mxfp4", "quark")
"""Methods whose engines leave lm_head alone unless told otherwise."""


@dataclass
class Scheme:
    """One quantisation block, read but not yet laid over a model: which format for which module names, and which names are left alone."""

    method: str
    groups: list[tuple[NamePatterns | None, WeightFormat]] = field(default_factory=list)
    """(module names, or None for every linear layer; format), the first that fits counts."""
    excluded: NamePatterns = field(default_factory=NamePatterns)
    lm_head: bool = False
    experts: WeightFormat | None = None
    """Format of the routed experts where the file says it apart."""
    kv_fp8: bool = False
    assumed: list[str] = field(default_factory=list)

    def of_module(self, names: tuple[str, ...], base: WeightFormat) -> WeightFormat:
        """The format of one module, which is known by several names."""
        if any(self.excluded.matches(name) for name in names):
            return base
        for patterns, chosen in self.groups:
            if patterns is None or any(patterns.matches(name) for name in names):
                return chosen
        return base


def read_scheme(block: Mapping[str, Any], where: str) -> Scheme:
    """The scheme of a ``quantization_config``, or of the ``quantization`` part of a ``hf_quant_config.json``.

    Raises:
        InputError: a method or format that is not known; ``where`` (file and line) begins the message.
    """
    method = str(block.get("quant_method") or ("modelopt" if block.get("quant_algo") else "")).lower()
    if not method and (block.get("load_in_4bit") or block.get("load_in_8bit")):
        method = "bitsandbytes"
    if not method and isinstance(block.get("config_groups"), dict):
        method = "compressed-tensors"
    readers = {
        "compressed-tensors": _compressed_tensors,
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "awq": _int_groups,
        "gptq": _int_groups,
        "auto-round": _int_groups,
        "auto_round": _int_groups,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "mxfp4": _mxfp4,
        "bitsandbytes": _bitsandbytes,
        "quark": _quark,
    }
    reader = readers.get(method)
    if reader is None:
        shown = quoted(method or "without a name", 40)
        known = ", ".join(readers)
        raise InputError(
            f"{where}: quantisation method {shown} is not read\nknown: {known}; or write quantisation into a model file by hand"
        )
    scheme = Scheme(method.replace("_", "-") if method == "auto_round" else method)
    reader(block, scheme, where)
    names: list[object] = []
    for key in _NOT_CONVERTED:
        value = block.get(key)
        names.extend(value if isinstance(value, list) else [value] if isinstance(value, str) else [])
    for key in ("dynamic", "extra_config"):  # GPTQModel's "-:name" and AutoRound's {"name": {"bits": 16}}
        names.extend(_per_module(block.get(key)))
    scheme.excluded = NamePatterns.of(names)
    if scheme.excluded.ignored:
        more = len(scheme.excluded.ignored)
        scheme.assumed.append(
            f"{more} patterns of modules to leave alone are not understood, the first {quoted(scheme.excluded.ignored[0])}"
        )
    if block.get("lm_head") is True or scheme.method not in _KEEP_LM_HEAD:
        scheme.lm_head = True
    scheme.kv_fp8 = _names_fp8_cache(block)
    return scheme


def _per_module(value: object) -> Iterable[str]:
    if not isinstance(value, dict):
        return
    for name, how in value.items():
        if name.startswith("-:"):
            yield "re:" + name[2:]
        elif isinstance(how, dict) and how.get("bits") == 16:
            yield name


def _names_fp8_cache(block: Mapping[str, Any]) -> bool:
    cache = block.get("kv_cache_scheme")
    by_scheme = isinstance(cache, dict) and cache.get("num_bits") == 8
    return by_scheme or str(block.get("kv_cache_quant_algo") or "").upper() == "FP8"


def _number(value: object, least: int, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


def _weights_format(weights: Mapping[str, Any], scheme: Scheme, where: str) -> WeightFormat:
    """One ``weights`` entry of compressed-tensors (or of modelopt's copy of it)."""
    bits, kind, strategy = _number(weights.get("num_bits"), 2, 16), weights.get("type", "int"), weights.get("strategy")
    group = _number(weights.get("group_size"), 1, 65536) or 0
    if bits is None:
        raise InputError(f"{where}: num_bits: expected 2 to 16")
    if kind == "float" and bits == 4:
        return _NVFP4 if group in (0, 16) else WeightFormat(format="mxfp4", bits=4, group=group, scale_bits=8)
    if kind == "float" and bits == 8:
        block = weights.get("block_structure")
        if strategy == "block" or block:
            return _fp8_block(block if block else [128, 128], where)
        return _FP8
    if kind == "float" and bits == 16:
        return BF16
    if kind != "int":
        raise InputError(f"{where}: weights of type {quoted(str(kind), 20)} with {bits} bits are not known")
    return _int_format(bits, group, symmetric=weights.get("symmetric") is not False, zeros=False, scheme=scheme)


def _int_format(bits: int, group: int, *, symmetric: bool, zeros: bool, scheme: Scheme) -> WeightFormat:
    if bits not in (4, 8):
        scheme.assumed.append(f"{bits}-bit weights: counted with their own size, computed as int{4 if bits < 8 else 8}")
    scale = 16 + (0 if symmetric and not zeros else bits)
    return WeightFormat(format="int4" if bits < 8 else "int8", bits=bits, group=group, scale_bits=scale if group else 0)


def _fp8_block(block: object, where: str) -> WeightFormat:
    sizes = [int(one) for one in block.lower().split("x") if one.isdecimal() and len(one) < 6] if isinstance(block, str) else block
    if not isinstance(sizes, list) or len(sizes) != 2 or any(_number(one, 1, 256) is None for one in sizes):
        raise InputError(f"{where}: weight_block_size: expected two sizes up to 256, like [128, 128]")
    return WeightFormat(format="fp8_block", bits=8, block=max(sizes), group=sizes[0] * sizes[1], scale_bits=32)


def _compressed_tensors(block: Mapping[str, Any], scheme: Scheme, where: str) -> None:
    groups = block.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InputError(f"{where}: config_groups: expected the groups of compressed-tensors")
    general: list[tuple[NamePatterns | None, WeightFormat]] = []
    for name, group in list(groups.items())[:64]:
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            if isinstance(group, str):  # a preset by name
                raise InputError(f"{where}: config_groups.{name[:40]}: presets by name are not read")
            continue  # activations only
        chosen = _weights_format(weights, scheme, where)
        targets = [one for one in group.get("targets") or ["Linear"] if isinstance(one, str)]
        if any(one == "Linear" for one in targets):
            general.append((None, chosen))
        classes = [one for one in targets if one != "Linear" and "." not in one and not one.startswith("re:") and one[:1].isupper()]
        if classes:
            scheme.assumed.append(f"targets by class name are left out: {quoted(classes[0], 40)}")
        patterns = NamePatterns.of(one for one in targets if one != "Linear" and one not in classes)
        if patterns:
            scheme.groups.append((patterns, chosen))
    scheme.groups.extend(general)


def _fp8(block: Mapping[str, Any], scheme: Scheme, where: str) -> None:
    size = block.get("weight_block_size")
    scheme.groups.append((None, _fp8_block(size, where) if size is not None else _FP8))
    if block.get("store_dtype") == "mxfp4":
        scheme.experts = WeightFormat(format="mxfp4", bits=4, group=_number(block.get("mxfp4_block_size"), 1, 65536) or 32, scale_bits=8)
        scheme.assumed.append("store_dtype mxfp4 is taken as the format of the routed experts")


def _int_groups(block: Mapping[str, Any], scheme: Scheme, where: str) -> None:
    bits = _number(block.get("bits", block.get("w_bit")), 2, 8)
    if bits is None:
        raise InputError(f"{where}: bits: expected 2 to 8")
    group = _number(block.get("group_size", block.get("q_group_size")), 1, 65536) or 0
    zeros = block.get("zero_point") is True if scheme.method == "awq" else True
    scheme.groups.append((None, _int_format(bits, group, symmetric=not zeros, zeros=zeros, scheme=scheme)))
    only = block.get("modules_in_block_to_quantize")
    if isinstance(only, list):
        names = [name for one in only for name in (one if isinstance(one, list) else [one])]
        scheme.groups[-1] = (NamePatterns.of(names), scheme.groups[-1][1])


def _algorithm(name: str, group: object, scheme: Scheme, where: str) -> WeightFormat:
    name = name.upper()
    size = _number(group, 1, 65536)
    if name in ("NVFP4", "NVFP4_AWQ", "NVFP4_SVDQUANT", "W4A16_NVFP4"):
        return WeightFormat(format="nvfp4", bits=4, group=size or 16, scale_bits=8)
    if name in ("MXFP4", "W4A8_MXFP4_FP8"):
        return _MXFP4
    if name == "FP8":
        return _FP8
    if name in ("FP8_PB_WO", "FP8_BLOCK_SCALES", "FP8_PB_REAL"):
        return _fp8_block([128, 128], where)
    if name in ("FP8_PER_CHANNEL_PER_TOKEN", "FP8_PC_PT"):
        return _FP8
    if name in ("W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ", "W4A16"):
        return _int_format(4, size or 128, symmetric=True, zeros=False, scheme=scheme)
    if name in ("W8A16", "W8A8_SQ_PER_CHANNEL", "INT8_SQ"):
        return _INT8
    raise InputError(f"{where}: quant_algo {quoted(name, 40)} is not known; write quantisation into a model file by hand")


def _modelopt(block: Mapping[str, Any], scheme: Scheme, where: str) -> None:
    algorithm = block.get("quant_algo")
    mixed = block.get("quantized_layers")
    if str(algorithm).upper() == "MIXED_PRECISION" and isinstance(mixed, dict):
        by_format: dict[WeightFormat, list[str]] = {}
        for name, how in mixed.items():
            if isinstance(how, dict) and isinstance(how.get("quant_algo"), str):
                by_format.setdefault(_algorithm(how["quant_algo"], how.get("group_size"), scheme, where), []).append(name)
        scheme.groups.extend((NamePatterns.of(names), chosen) for chosen, names in by_format.items())
        return
    if isinstance(algorithm, str) and algorithm:
        scheme.groups.append((None, _algorithm(algorithm, block.get("group_size"), scheme, where)))
        return
    if isinstance(block.get("config_groups"), dict):
        _compressed_tensors(block, scheme, where)
        return
    raise InputError(f"{where}: quant_algo: expected the name of a format, like NVFP4")


def _mxfp4(_block: Mapping[str, Any], scheme: Scheme, _where: str) -> None:
    scheme.groups.append((NamePatterns.of(["experts"]), _MXFP4))  # the method knows no other modules


def _bitsandbytes(block: Mapping[str, Any], scheme: Scheme, where: str) -> None:
    if block.get("load_in_8bit") is True:
        scheme.groups.append((None, _INT8))
        return
    if block.get("load_in_4bit") is not True:
        raise InputError(f"{where}: bitsandbytes with neither load_in_4bit nor load_in_8bit")
    double = block.get("bnb_4bit_use_double_quant") is True
    scheme.groups.append((None, WeightFormat(format="int4", bits=4, group=64, scale_bits=8 if double else 32)))
    scheme.assumed.append("bitsandbytes' 4-bit weights (blocks of 64) are computed as int4")


def _quark(block: Mapping[str, Any], scheme: Scheme, where: str) -> None:
    whole = block.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    if isinstance(weight, list) and weight:
        weight = weight[0]
    dtype = str(weight.get("dtype", "")).lower() if isinstance(weight, dict) else ""
    known = {"fp4": _MXFP4, "mxfp4": _MXFP4, "fp8_e4m3": _FP8, "int8": _INT8}
    if dtype not in known:
        raise InputError(f"{where}: Quark weights of dtype {quoted(dtype, 20)} are not read")
    scheme.groups.append((None, known[dtype]))


_Modules = tuple[tuple[str, ...], ...]
"""The matrices of one part of a layer, each with every name that it has in some model class."""
_EXPERTS: _Modules = (
    ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "mlp.experts.gate_up_proj", "feed_forward.experts.gate_up_proj"),
    ("mlp.experts.0.up_proj", "block_sparse_moe.experts.0.w3", "mlp.experts.gate_up_proj", "feed_forward.experts.gate_up_proj"),
    ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2", "mlp.experts.down_proj", "feed_forward.experts.down_proj"),
)
_DENSE: _Modules = (
    ("mlp.gate_proj", "mlp.gate_up_proj", "feed_forward.gate_proj"),
    ("mlp.up_proj", "mlp.gate_up_proj", "feed_forward.up_proj"),
    ("mlp.down_proj", "feed_forward.down_proj"),
)
_SHARED: _Modules = (
    ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "feed_forward.shared_expert.gate_proj", "mlp.shared_mlp.gate_proj"),
    ("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj", "feed_forward.shared_expert.up_proj", "mlp.shared_mlp.up_proj"),
    ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj", "feed_forward.shared_expert.down_proj", "mlp.shared_mlp.down_proj"),
)
_MLA: _Modules = (("self_attn.q_a_proj",), ("self_attn.q_b_proj",), ("self_attn.kv_a_proj_with_mqa",), ("self_attn.kv_b_proj",))
_GQA: _Modules = (
    ("self_attn.q_proj", "self_attn.qkv_proj"),
    ("self_attn.k_proj", "self_attn.qkv_proj"),
    ("self_attn.v_proj", "self_attn.qkv_proj"),
)
_LINEAR: _Modules = (
    ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv"),
    ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_z"),
)


@dataclass
class _Survey:
    """Formats of the modules of one part, over all layers."""

    counts: dict[WeightFormat, int] = field(default_factory=dict)

    def add(self, chosen: WeightFormat) -> None:
        self.counts[chosen] = self.counts.get(chosen, 0) + 1

    @property
    def most(self) -> WeightFormat | None:
        return max(self.counts, key=lambda one: self.counts[one]) if self.counts else None


def lay_over(scheme: Scheme | None, model: ModelSpec, base: WeightFormat) -> tuple[Quantisation, list[str]]:
    """The format of each part of ``model``, and what was assumed where its layers differ.

    Args:
        scheme: None: not quantised.
        model: dimensions and layers (its own quantisation is not looked at).
        base: the format of what is left alone.
    """
    if scheme is None:
        return Quantisation(method=f"none ({base.format})", experts=base, linear=base, lm_head=base, embedding=base), []
    parts: dict[str, _Survey] = {name: _Survey() for name in ("experts", "dense", "attention", "attention_out", "shared")}
    for layer, (kind, mlp_kind) in enumerate(model.layers):
        for name, modules in _modules(model, kind, mlp_kind):
            for names in modules:
                parts[name].add(scheme.of_module(tuple(f"model.layers.{layer}.{one}" for one in names), base))
    remarks = list(scheme.assumed)
    if scheme.excluded.exhausted:
        remarks.append("the modules to leave alone are too many patterns with layer numbers; some were not looked at")
    chosen: dict[str, WeightFormat] = {}
    for name, survey in parts.items():
        best = survey.most
        if best is None:
            continue
        chosen[name] = best
        other = sum(survey.counts.values()) - survey.counts[best]
        if other:
            total = sum(survey.counts.values())
            remarks.append(f"{name.replace('_', ' ')}: {other} of {total} modules are stored otherwise; all are taken as {best.format}")
    if scheme.experts is not None and "experts" in chosen:
        chosen["experts"] = scheme.experts
    lm_head = scheme.of_module(("lm_head",), base) if scheme.lm_head else base
    if lm_head != base and model.tie_embeddings:
        lm_head = base  # it is the embedding, which is no linear layer
    return _assemble(scheme, chosen, lm_head, base), remarks


def _modules(model: ModelSpec, kind: str, mlp_kind: str) -> list[tuple[str, _Modules]]:
    found: list[tuple[str, _Modules]] = []
    if kind == "linear":
        found += [("attention", _LINEAR), ("attention_out", (("linear_attn.out_proj",),))]
    else:
        found.append(("attention", _MLA if model.attention.kind == "mla" else _GQA))
        found.append(("attention_out", (("self_attn.o_proj",),)))
    if mlp_kind == "dense":
        found.append(("dense", _DENSE))
    else:
        found.append(("experts", _EXPERTS))
        if model.mlp.shared_experts:
            found.append(("shared", _SHARED))
    return found


def _assemble(scheme: Scheme, chosen: Mapping[str, WeightFormat], lm_head: WeightFormat, base: WeightFormat) -> Quantisation:
    attention = chosen["attention"]
    linear = chosen.get("dense", attention)
    out, shared = chosen["attention_out"], chosen.get("shared", linear)
    experts = chosen.get("experts", base)
    quantised = {name for name, one in chosen.items() if one != base}
    formats = sorted({chosen[name].format for name in quantised})
    what = (
        f"fp8 ({linear.block} x {linear.block} blocks)" if formats == ["fp8_block"] and linear.block else " + ".join(formats) or base.format
    )
    label = what if what.startswith(scheme.method) else f"{scheme.method} {what}"
    if quantised == {"experts"}:
        label += " (routed experts)"
    return Quantisation(
        method=label,
        experts=experts,
        linear=linear,
        attention=attention if attention != linear else None,
        attention_out=out if out != attention else None,
        shared=shared if shared != linear else None,
        lm_head=lm_head,
        embedding=base,
    )
