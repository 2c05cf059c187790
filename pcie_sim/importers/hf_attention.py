"""The attention part of a config.json: grouped-query, sliding, hybrid linear, latent (MLA)."""

from __future__ import annotations

import re
from typing import Any

from pcie_sim.importers.hf_fields import Fields, fit_every
from pcie_sim.importers.source import quoted
from pcie_sim.specs.messages import found

_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
    "num_attention_groups",
    "kv_n_heads",
)
_HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
_NOT_MODELLED = {
    "linear_attn_config": "Kimi delta attention",
    "hybrid_override_pattern": "Mamba layers",
    "layers_block_type": "Mamba layers",
    "mamba_d_state": "Mamba layers",
    "mamba_d_ssm": "Mamba layers",
    "ssm_cfg": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "routed_expert_hidden_size": "latent experts",
    "altup_num_inputs": "alternating updates (Gemma 3n)",
    "sparse_attention_config": "block-sparse attention",
    "enable_moe_block": "a dense MLP beside the experts (Gemma 4)",
    "cross_attention_layers": "cross-attention layers",
}
"""Keys that mean a structure which a model file cannot hold."""
_STATE_SPACE = re.compile(r"mamba|rwkv|retnet|xlstm|hyena|recurrent_?gemma|griffin|jamba|zamba|bamba")
"""Names of model classes whose layers keep a state in place of a KV cache, all of them or most."""
_STATES = ("state_size", "time_step_rank", "d_state", "lru_width")
_SLIDING_WORDS = ("sliding_attention", "chunked_attention", "local_attention", "sliding", "local")
_FULL_WORDS = ("full_attention", "global_attention", "full", "global", "attention")


def refuse_unmodelled(fields: Fields) -> None:
    """Refuse layers that no model file can hold.

    Raises:
        InputError: the config has them.
    """
    names = fields.whole_config.get("architectures")
    architecture = str(names[0])[:80] if isinstance(names, list) and names else ""
    known = architecture or fields.text("model_type")
    shown = quoted(known, 60) if known else "state-space layers"
    states = fields.has(*_STATES) or "ssm_cfg" in fields.data  # Mamba's own files have it empty
    if _STATE_SPACE.search(f"{architecture} {fields.model_type}".lower()) or (states and not fields.has("num_attention_heads")):
        key = next((one for one in ("architectures", "model_type", "ssm_cfg") if one in fields.whole_config), None)
        raise fields.error(f"this architecture ({shown}) is not modelled: pcie-sim knows models whose layers are attention and an MLP", key)
    for key, what in _NOT_MODELLED.items():
        value = fields.data.get(key)
        if value not in (None, False, 0, [], {}):
            raise fields.error(f"{key}: {what} cannot be modelled yet; write a model file by hand (pcie-sim model show)", key)
    kinds = fields.data.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise fields.error("attn_type_list: lightning attention layers cannot be modelled yet", "attn_type_list")


def attention(fields: Fields, hidden: int, layers: int) -> dict[str, Any]:
    """The ``attention`` mapping of a model file.

    Raises:
        InputError: a key is missing or wrong, or the layers cannot be modelled.
    """
    heads = fields.need(*_HEADS, what="the number of attention heads")
    if fields.has("compress_ratios", "o_lora_rank"):
        return _compressed(fields, heads, hidden, layers)
    if fields.has("kv_lora_rank"):
        return _mla(fields, heads, layers)
    return _gqa(fields, heads, hidden, layers)


def _mla(fields: Fields, heads: int, layers: int) -> dict[str, Any]:
    if "q_lora_rank" not in fields.data:
        raise fields.missing(("q_lora_rank",), "the rank of the query projection (null: none)")
    found_one = {
        "kind": "mla",
        "heads": heads,
        "q_lora_rank": fields.whole("q_lora_rank"),
        "kv_lora_rank": fields.need("kv_lora_rank", what="the rank of the KV cache"),
        "qk_nope_head_dim": fields.need("qk_nope_head_dim", what="a dimension of latent attention"),
        "qk_rope_head_dim": fields.need("qk_rope_head_dim", what="a dimension of latent attention"),
        "v_head_dim": fields.need("v_head_dim", what="a dimension of latent attention"),
    }
    indexer = _indexer(fields)
    if indexer:
        found_one["indexer"] = indexer
        kinds = fields.per_layer("indexer_types", layers)
        own = sum(kind == "full" for kind in kinds) if kinds else layers
        if own < layers:
            fields.assume(
                f"every layer gets an indexer of its own; in the file {own} of {layers} have one and the rest reuse its choice",
                "indexer_types",
            )
    return found_one


def _indexer(fields: Fields) -> dict[str, int] | None:
    if not fields.has("index_n_heads", "index_topk"):
        return None
    return {
        "heads": fields.need("index_n_heads", what="heads of the sparse-attention indexer"),
        "head_dim": fields.need("index_head_dim", what="a dimension of the sparse-attention indexer"),
        "topk": fields.need("index_topk", what="how many tokens the indexer picks"),
    }


def _compressed(fields: Fields, heads: int, hidden: int, layers: int) -> dict[str, Any]:
    """DeepSeek V4: one shared latent KV head per layer, its tokens compressed in most layers, a grouped low-rank output projection."""
    head_dim = fields.need("head_dim", what="the width of the shared KV head")
    rope = fields.need("qk_rope_head_dim", what="the rotated part of a head")
    if rope >= head_dim:
        raise fields.error(f"qk_rope_head_dim {rope} is not smaller than head_dim {head_dim}", "qk_rope_head_dim")
    latent = head_dim - rope
    out_rank = fields.need("o_lora_rank", what="the rank of the output projection")
    groups = fields.need("o_groups", what="the groups of the output projection")
    out = heads * head_dim * out_rank + groups * out_rank * hidden
    v_head_dim = max(1, min(round((out - latent * heads * latent) / (heads * (latent + hidden))), head_dim))
    mla: dict[str, Any] = {
        "kind": "mla",
        "heads": heads,
        "q_lora_rank": fields.need("q_lora_rank", what="the rank of the query projection"),
        "kv_lora_rank": latent,
        "qk_nope_head_dim": latent,
        "qk_rope_head_dim": rope,
        "v_head_dim": v_head_dim,
    }
    indexer = _indexer(fields)
    if indexer:
        mla["indexer"] = indexer
    ratios = fields.per_layer("compress_ratios", layers)
    compressed = sum(isinstance(ratio, int) and ratio > 1 for ratio in ratios) if ratios else 0
    fields.assume(
        f"compressed attention is taken as latent attention of the same KV width, v_head_dim {v_head_dim} chosen so that the "
        f"weights of its output side come out; the KV cache, compressed in {compressed} of {layers} layers, counts in full",
        "compress_ratios",
    )
    return mla


def _gqa(fields: Fields, heads: int, hidden: int, layers: int) -> dict[str, Any]:
    kv_heads = fields.whole(*_KV_HEADS)
    if kv_heads is None or (fields.model_type == "falcon" and not fields.flag("new_decoder_architecture")):
        single = bool(fields.flag("multi_query"))
        kv_heads = 1 if single else heads
        if not single:
            fields.assume(f"no num_key_value_heads: as many as heads ({heads})")
    head_dim = fields.whole(*_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise fields.missing(_HEAD_DIM, f"and hidden_size {hidden} is not a multiple of {heads} heads")
        head_dim = hidden // heads
        fields.assume(f"no head_dim: hidden_size / heads = {head_dim}")
    if heads % kv_heads:
        raise fields.error(f"{heads} attention heads are not a multiple of {kv_heads} KV heads")
    att: dict[str, Any] = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    v_head_dim = fields.whole("v_head_dim")
    if v_head_dim is not None and v_head_dim != head_dim:
        att["v_head_dim"] = v_head_dim
    kinds = _kinds(fields, layers)
    if "linear" in kinds:
        att.update(_linear(fields, kinds))
    elif "sliding" in kinds:
        att["sliding"] = _sliding(fields, kinds, att)
    return att


def _kinds(fields: Fields, layers: int) -> list[str]:
    """Per layer: full, sliding or linear."""
    types = fields.per_layer("layer_types", layers)
    if types is not None:
        return _from_types(fields, types)
    if fields.has("linear_num_key_heads", "linear_num_value_heads"):
        every = fields.need("full_attention_interval", what="which layers are full attention (or layer_types)", most=1000)
        return ["full" if (i + 1) % every == 0 else "linear" for i in range(layers)]
    pattern = fields.per_layer("hybrid_layer_pattern", layers)
    if pattern is not None:
        return ["sliding" if one else "full" for one in pattern]
    if fields.has("attention_chunk_size"):  # Llama 4: layers without rope see everything
        without = fields.per_layer("no_rope_layers", layers)
        if without is not None:
            return ["sliding" if one else "full" for one in without]
        every = fields.whole("no_rope_layer_interval", most=1000) or 4
        if not fields.has("no_rope_layer_interval"):
            fields.assume("no no_rope_layers: every fourth layer sees everything (the class's own default)", "attention_chunk_size")
        return ["full" if (i + 1) % every == 0 else "sliding" for i in range(layers)]
    return _by_window(fields, layers)


def _by_window(fields: Fields, layers: int) -> list[str]:
    window = _window(fields)
    if window is None or fields.flag("use_sliding_window") is False:
        return ["full"] * layers
    reach = fields.whole("max_position_embeddings", most=2**30)
    if reach is not None and window >= reach:
        return ["full"] * layers
    every = fields.whole("sliding_window_pattern", "_sliding_window_pattern", most=1000)
    if every is None and fields.model_type.startswith(("gemma2", "gemma3")):
        every = 2 if fields.model_type.startswith("gemma2") else 6
        fields.assume(f"no layer_types: every layer in {every} sees everything (the class's own default)", "sliding_window")
    if every is not None:
        return ["full" if (i + 1) % every == 0 else "sliding" for i in range(layers)]
    if fields.flag("use_sliding_window"):
        first = fields.whole("max_window_layers", least=0) or 0
        return ["full" if i < first else "sliding" for i in range(layers)]
    return ["sliding"] * layers


def _window(fields: Fields) -> int | None:
    return fields.whole("sliding_window", "sliding_window_size", "attention_chunk_size", most=2**30)


def _from_types(fields: Fields, types: list[Any]) -> list[str]:
    kinds = []
    for index, word in enumerate(types):
        if word in _FULL_WORDS:
            kinds.append("full")
        elif word in _SLIDING_WORDS:
            kinds.append("sliding")
        elif word == "linear_attention":
            kinds.append("linear")
        else:
            raise fields.error(f"layer_types: layer {index} is {found(word)}, which cannot be modelled yet", "layer_types")
    if "sliding" in kinds and fields.flag("use_sliding_window") is False:
        raise fields.error("layer_types has sliding layers and use_sliding_window is false; one of them is wrong", "layer_types")
    if {"sliding", "linear"} <= set(kinds):
        raise fields.error("layer_types mixes linear and sliding layers, which cannot be modelled yet", "layer_types")
    return kinds


def _linear(fields: Fields, kinds: list[str]) -> dict[str, Any]:
    full, layers = kinds.count("full"), len(kinds)
    if not full:
        raise fields.error("a model of linear attention layers only cannot be modelled yet")
    even = ["full" if (i + 1) * full // layers > i * full // layers else "linear" for i in range(layers)]
    differ = sum(a != b for a, b in zip(kinds, even, strict=True))
    if differ:
        fields.assume(
            f"the {full} full-attention layers are spread evenly; {differ} of {layers} layers differ from the file", "layer_types"
        )
    gate = fields.flag("attn_output_gate")
    if gate is None:
        gate = fields.model_type.startswith("qwen3_next")
        if gate:
            fields.assume("no attn_output_gate: q_proj is twice as wide, as the class of this model type has it")
    linear = {
        "key_heads": fields.need("linear_num_key_heads", what="a dimension of the linear attention layers"),
        "value_heads": fields.need("linear_num_value_heads", what="a dimension of the linear attention layers"),
        "key_head_dim": fields.need("linear_key_head_dim", what="a dimension of the linear attention layers"),
        "value_head_dim": fields.need("linear_value_head_dim", what="a dimension of the linear attention layers"),
        "conv_kernel": fields.need("linear_conv_kernel_dim", what="a dimension of the linear attention layers"),
    }
    return {"output_gate": gate, "full_layers": full, "linear": linear}


def _sliding(fields: Fields, kinds: list[str], att: dict[str, Any]) -> dict[str, Any]:
    window = fields.whole("attention_chunk_size", most=MOST_WINDOW) if fields.has("attention_chunk_size") else None
    if window is not None and not fields.has("hybrid_layer_pattern"):
        fields.assume(
            f"attention inside chunks of {window} tokens is taken as a window of that width (an upper bound)", "attention_chunk_size"
        )
    else:
        window = fields.need("sliding_window", "sliding_window_size", what="the width of the sliding window", most=MOST_WINDOW)
    first, every, differ = fit_every([kind == "full" for kind in kinds])
    if differ:
        fields.assume(
            f"the layers that see everything are taken as the first {first} and every {every}th; "
            f"{differ} of {len(kinds)} layers differ from the file",
            "layer_types",
        )
    sliding: dict[str, Any] = {"window": window, "full_every": every}
    if first:
        sliding["first_k_full"] = first
    own = fields.whole("swa_num_key_value_heads")
    if own is not None and own != att["kv_heads"]:
        sliding["kv_heads"] = own
    for key, name, usual in (
        ("swa_num_attention_heads", "heads", att["heads"]),
        ("swa_head_dim", "head_dim", att["head_dim"]),
        ("swa_v_head_dim", "v_head_dim", att.get("v_head_dim", att["head_dim"])),
        ("global_head_dim", "head_dim", att["head_dim"]),
    ):
        value = fields.whole(key)
        if value is not None and value != usual:
            fields.assume(f"{name} {usual} is taken for all layers; {key} says {value}", key)
    return sliding


MOST_WINDOW = 10**7
