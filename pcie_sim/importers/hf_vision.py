"""What a config.json says beside the language model: the vision tower's size, and the model's name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from pcie_sim.importers.hf_fields import Fields

_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}/[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_NO_NAME = (
    "",
    ".",
    "..",
    "config",
    "hf_quant_config",
    "text",
    "stdin",
    "tmp",
    "model",
    "models",
    "downloads",
    "desktop",
    "documents",
    "home",
    "root",
)
_ENDINGS = re.compile(r"(?:[._-](?:hf[._-]?quant|trimmed|reduced|config|hf))+$", re.IGNORECASE)
_CACHE = re.compile(r"models--([A-Za-z0-9._-]{1,80}?)--([A-Za-z0-9._-]{1,80})")


def _size(part: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = part.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**6:
            return value
    return None


def vision_params(fields: Fields, hidden: int) -> int:
    """Weights of the vision tower and its projector, computed from ``vision_config`` and rounded to 1e6; 0 where there is none.

    layers x (4 h^2 + MLP) + patch and position embeddings + projector: within some percent of the real towers. Always remarked.
    """
    part = fields.whole_config.get("vision_config")
    if part is None:
        return 0
    if not isinstance(part, dict):
        fields.remark("ignored", "vision_config is not understood: the vision tower's weights are left out", "vision_config")
        return 0
    width = _size(part, "vt_hidden_size", "hidden_size", "embed_dim", "width")
    depth = _size(part, "vt_num_hidden_layers", "num_hidden_layers", "depth", "layers", "num_layers")
    patch = _size(part, "patch_size")
    if width is None or depth is None or patch is None or depth > 1000:
        fields.remark("ignored", "vision_config without its dimensions: the vision tower's weights are left out", "vision_config")
        return 0
    inner = _size(part, "vt_intermediate_size", "intermediate_size", "mlp_hidden_dim")
    if inner is None:
        ratio = part.get("mlp_ratio")
        inner = int(width * ratio) if isinstance(ratio, int | float) and not isinstance(ratio, bool) and 1 <= ratio <= 16 else 4 * width
    gated = str(part.get("model_type", "")).startswith(("pixtral", "qwen2_5_vl")) or str(part.get("hidden_act")) == "silu"
    tower = depth * (4 * width * width + (3 if gated else 2) * width * inner)
    channels = _size(part, "in_channels", "in_chans", "num_channels") or 3
    patches = channels * patch * patch * (_size(part, "temporal_patch_size") or 1) * width
    total = tower + patches + _positions(part, patch) * width + _projector(part, width, hidden)
    rounded = max(1, round(total / 1e6)) * 10**6
    if rounded > 10**12:
        fields.remark("ignored", "vision_config with dimensions that cannot be right: left out", "vision_config")
        return 0
    fields.assume(
        f"a vision tower with projector of {rounded / 1e9:.3f}e9 weights, computed from vision_config: every rank loads it", "vision_config"
    )
    return rounded


def _positions(part: Mapping[str, Any], patch: int) -> int:
    known = _size(part, "num_position_embeddings")
    if known is not None:
        return known
    high, wide = _size(part, "init_pos_emb_height"), _size(part, "init_pos_emb_width")
    if high and wide:
        return min(high * wide, 10**7)
    image = _size(part, "image_size")
    return min((image // patch) ** 2, 10**6) if image and "rope" not in str(part.get("model_type", "")) else 0


def _projector(part: Mapping[str, Any], width: int, hidden: int) -> int:
    ratio = part.get("pixel_shuffle_ratio")
    out = _size(part, "vision_output_dim")
    if isinstance(ratio, float) and 0.05 <= ratio <= 1 and out is not None:  # Llama 4: two layers after the shuffle, then the projector
        return int(width / ratio**2) * out + out * out + out * hidden
    merge = _size(part, "spatial_merge_size", "merge_kernel_size") or 1
    text = _size(part, "out_hidden_size", "text_hidden_size") or hidden
    merged = width * min(merge, 16) ** 2
    return merged * merged + merged * text if merge > 1 else merged * text


def model_name(fields: Fields) -> tuple[str, str]:
    """(catalog-like name, title) of a config: from the file's name, its folder, or ``_name_or_path``; folders of people are not kept."""
    stated = fields.whole_config.get("_name_or_path") or fields.data.get("_name_or_path")
    stated = stated if isinstance(stated, str) else ""
    title = _from_path(fields.source.name) or (stated if _HUB.fullmatch(stated) else "") or _base(stated)
    if not title:
        fields.assume("neither the file's name nor the config says which model this is: it is called 'model'")
        return "model", "model"
    return _as_name(title.rpartition("/")[2]), title


def _as_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9._+-]+", "-", text.lower()[:80]).strip("-._+")
    return name or "model"


def _from_path(path: str) -> str:
    cached = _CACHE.search(path[-600:])
    if cached is not None:
        return f"{cached.group(1)}/{cached.group(2)}"
    parts = [part for part in re.split(r"[\\/]", path[-600:]) if part]
    if not parts:
        return ""
    stem = re.sub(r"\.(?:json|txt)$", "", parts[-1], flags=re.IGNORECASE)
    stem = _ENDINGS.sub("", stem)
    owner, dashes, name = stem.partition("--")
    if dashes and owner and name:
        return f"{_clean(owner)}/{_clean(name)}"
    if stem.lower() not in _NO_NAME and not stem.startswith("<") and re.search(r"[A-Za-z]", stem):
        return _clean(stem)
    folder, above = (parts[-2] if len(parts) > 1 else ""), (parts[-3].lower() if len(parts) > 2 else "")
    if folder.lower() in _NO_NAME or above in ("home", "users") or re.fullmatch(r"[0-9a-f]{32,64}", folder):
        return ""
    return _clean(folder)


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text[:80]).strip("-")


def _base(path: str) -> str:
    """The last part of a local path: the parts above may name a person."""
    name = PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name
    return "" if name.lower() in _NO_NAME else _clean(name)


def reach(fields: Fields) -> int | None:
    """``max_position``: what the config says, with YaRN's factor where the file's own figure does not hold it yet."""
    most = 2**30
    stated = fields.whole(
        "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "model_max_length", "n_ctx", most=most
    )
    scaling = fields.data.get("rope_scaling") or fields.data.get("rope_parameters")
    if not isinstance(scaling, dict) or (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        return stated
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not math.isfinite(factor) or not 1 <= factor <= 1e6:
        return stated
    if isinstance(original, bool) or not isinstance(original, int) or not 1 <= original <= most:
        return stated
    scaled = int(min(factor * original, most))
    if stated is not None and scaled > stated:
        fields.remark(
            "note",
            f"max_position {scaled} with YaRN (factor {factor:g} of {original}); max_position_embeddings says {stated}",
            "rope_scaling",
        )
    return scaled if stated is None or scaled > stated else stated
