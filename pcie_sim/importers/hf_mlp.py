"""The feed-forward part of a config.json: dense, experts, shared experts, and which layers have which."""

from __future__ import annotations

from typing import Any

from pcie_sim.importers.hf_fields import Fields, fit_moe

_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
_WIDTH = ("moe_intermediate_size", "expert_hidden_dim", "moe_ffn_hidden_size", "expert_ffn_hidden_size")
_DENSE = ("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "hidden_dim", "n_inner", "ffn_dim")
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
_EXPERT_IS_INTERMEDIATE = ("mixtral", "minimax", "gpt_oss", "phimoe", "llama4", "olmoe", "granitemoe", "dbrx", "grok")
"""Model types whose ``intermediate_size`` is the width of one expert."""
_UNGATED = ("falcon", "gpt2", "gptj", "gpt_neox", "opt", "bloom", "mpt", "phi", "starcoder2", "gpt_bigcode", "nemotron")
"""Model types whose MLP has two matrices (up, down) and no gate."""


def mlp(fields: Fields, hidden: int, layers: int) -> dict[str, Any]:
    """The ``mlp`` mapping of a model file.

    Raises:
        InputError: a key is missing or wrong.
    """
    experts = fields.whole(*_EXPERTS, least=0)
    if not experts or (experts == 1 and not fields.has(*_TOP_K)):
        return {"dense_intermediate": _dense_width(fields, hidden)}
    top_k = fields.whole(*_TOP_K)
    if top_k is None:
        top_k = fields.whole("top_k")
        if top_k is None:
            raise fields.missing(_TOP_K, "how many experts a token goes to")
        fields.assume("top_k is taken as the number of experts per token; elsewhere that key is a sampling default", "top_k")
    if top_k > experts:
        raise fields.error(f"{top_k} experts per token of {experts} experts", fields.find(*_TOP_K, "top_k")[0])  # type: ignore[index]
    width = _expert_width(fields)
    found: dict[str, Any] = {"moe_intermediate": width, "experts": experts, "top_k": top_k, **_shared(fields, width)}
    moe = _moe_layers(fields, layers)
    if not any(moe):
        raise fields.error(f"{experts} experts, and no layer that uses them")
    first, every, differ = fit_moe(moe)
    if differ:
        fields.assume(
            f"layers with experts are taken as every {every}. after the first {first}; {differ} of {layers} layers differ from the file"
        )
    if first:
        found["first_k_dense"] = first
    if every > 1:
        found["moe_every"] = every
    if first or every > 1:
        found["dense_intermediate"] = _dense_width(fields, hidden)
    return found


def _dense_width(fields: Fields, hidden: int) -> int:
    width = fields.whole(*_DENSE)
    if width is None and fields.model_type in _UNGATED:
        width = 4 * hidden
        fields.assume(f"no intermediate_size: 4 x hidden_size = {width}")
    if width is None:
        raise fields.missing(_DENSE, "the width of the dense MLP")
    if fields.model_type in _UNGATED:
        as_three = max(128, round(2 * width / 3 / 128) * 128)
        fields.assume(f"this MLP has no gate: its two matrices of width {width} are counted as three of width {as_three}")
        return as_three
    return width


def _expert_width(fields: Fields) -> int:
    width = fields.whole(*_WIDTH)
    if width is not None:
        return width
    width = fields.need("intermediate_size", "ffn_hidden_size", "hidden_dim", what="the width of one expert (moe_intermediate_size)")
    if not fields.model_type.startswith(_EXPERT_IS_INTERMEDIATE):
        fields.assume("no moe_intermediate_size: intermediate_size is taken as the width of one expert", "intermediate_size")
    return width


def _shared(fields: Fields, width: int) -> dict[str, int]:
    count = fields.whole(*_SHARED, least=0)
    own = fields.whole(*_SHARED_WIDTH, least=0)
    if fields.model_type.startswith("llama4") and count is None and own is None:
        fields.assume("one shared expert of the experts' width: Llama 4 has it and its config has no key for it")
        return {"shared_experts": 1, "shared_intermediate": width}
    if count == 0 or own == 0 or (count is None and own is None):
        return {}
    return {"shared_experts": count or 1, "shared_intermediate": own or width}


def _moe_layers(fields: Fields, layers: int) -> list[bool]:
    """Per layer: whether it has experts. The rules are those of the model classes; what no key says is MoE."""
    words = fields.per_layer("mlp_layer_types", layers)
    if words is not None:
        return [word != "dense" for word in words]
    flags = fields.per_layer("moe_layer_freq", layers)
    if flags is not None:
        return [bool(flag) for flag in flags]
    explicit = fields.data.get("moe_layers")
    if isinstance(explicit, list) and explicit:
        chosen = {one for one in explicit if isinstance(one, int)}
        return [i in chosen for i in range(layers)]
    step = fields.whole("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval", "route_every_n", most=1000) or 1
    moe = [(i + 1) % step == 0 for i in range(layers)]
    stride = fields.whole("moe_layer_freq", most=1000) or 1
    first = fields.whole("first_k_dense_replace", "moe_layer_num_skipped", "moe_layer_start_index", least=0) or 0
    last = fields.whole("moe_layer_end_index", least=-1)
    last = layers - 1 if last is None or last < 0 else last
    dense_only = fields.data.get("mlp_only_layers")
    dense = {one for one in dense_only if isinstance(one, int)} if isinstance(dense_only, list) else set()
    return [one and first <= i <= last and i % stride == 0 and i not in dense for i, one in enumerate(moe)]
