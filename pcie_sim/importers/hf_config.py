"""Hugging Face ``config.json`` (and modelopt's ``hf_quant_config.json``) into a model spec.

Dimensions are read by their keys, over all the spellings of the model classes; what the file leaves out and the class fills in is listed
as assumed. Structures that a model file cannot hold are refused. Key spellings: vLLM's and transformers' config classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.importers.hf_attention import attention, refuse_unmodelled
from pcie_sim.importers.hf_fields import LAYERS, MAX_LAYERS, TEXT_SECTIONS, VOCABULARY, WIDTH, Fields, json_object, json_text, line_of
from pcie_sim.importers.hf_mlp import mlp
from pcie_sim.importers.hf_quantisation import FP16, Scheme, lay_over, read_scheme
from pcie_sim.importers.hf_vision import model_name, reach, vision_params
from pcie_sim.importers.imported import Imported, importer
from pcie_sim.importers.source import SourceText, quoted
from pcie_sim.specs.base import build
from pcie_sim.specs.model import ModelSpec
from pcie_sim.specs.quantisation import BF16, WeightFormat

_HEAD = 200_000
_SIGNS = re.compile(
    r'"(?:architectures|hidden_size|num_hidden_layers|n_layers|text_config|transformers_version|_diffusers_version|peft_type|quant_algo|ssm_cfg)"\s{0,8}:'
)
_START = re.compile(r"\ufeff?\s{0,400}(?://[^\n]{0,400}\n\s{0,400}){0,100}(?:\{|```|~~~)")
"""Comments in front are no JSON; they are complained about in words rather than not recognised."""
_OTHERS = re.compile(r'"(?:build_commit|avg_ts|mean_ttft_ms|benchmarks|output_throughput|input_config)"\s{0,8}:')
_ENCODERS = re.compile(
    r"(?:xlm-|distil|al|modern|cam)?(?:ro)?berta?|electra|deberta(?:-v2)?|mpnet|nomic_bert|longformer|vit|clip|siglip2?|dinov2|convnext|swin"
    r"|resnet|whisper|wav2vec2|hubert|u?m?t5|m?bart|pegasus|marian|sam|detr"
)
"""Model types of encoders and encoder-decoders, text, image and speech."""
_NO_LANGUAGE_MODEL = "is no decoder language model"
_TIED = ("gemma", "cohere", "falcon", "gpt2", "bloom", "mpt", "opt")
"""Model types whose class ties the embedding to lm_head where the file does not say (it then leaves the key out)."""
_LOW_BITS = re.compile(r"(?:^|[-_.])(nvfp4|mxfp4|fp4|fp8|awq|gptq|int4|int8|w4a16|w8a8|4bit|8bit)(?:$|[-_.])", re.IGNORECASE)


def sniff(source: SourceText) -> int | None:
    """The line of the first key that only a model's config has."""
    head = source.raw[:_HEAD]
    if not _START.match(head):
        return None
    found = _SIGNS.search(head)
    if found is None or _OTHERS.search(head):
        return None
    return head.count("\n", 0, found.start()) + 1


@importer("hf-config", "Hugging Face config.json", sniff=sniff, whole=True)
def read(source: SourceText) -> Imported:
    """The model that a ``config.json`` describes; of a ``hf_quant_config.json`` only its ``details["quantisation"]``.

    Raises:
        InputError: broken JSON, a key missing or wrong, or a model that cannot be described.
    """
    config = json_object(source)
    quantisation = config.get("quantization")
    if isinstance(quantisation, dict) and not _has_dimensions(config):
        return _quantisation_only(source, quantisation)
    _refuse_others(source, config)
    fields = Fields.of(source, config)
    refuse_unmodelled(fields)
    block, key = _block(fields)
    scheme = read_scheme(block, _place(fields, key)) if block is not None else None
    model = _model(fields, scheme)
    return Imported(source.name, ("hf-config",), model=model, remarks=tuple(fields.remarks))


def with_quantisation(model: ModelSpec, quant: Imported) -> ModelSpec:
    """``model`` with the weight formats of a ``hf_quant_config.json`` (an :class:`Imported` with ``details["quantisation"]``).

    Raises:
        InputError: ``quant`` holds none, or one that is not known.
    """
    block = quant.details.get("quantisation")
    if not isinstance(block, dict):
        raise InputError(f"{quant.source}: holds no quantisation (hf_quant_config.json)")
    scheme = read_scheme(block, quant.source)
    base = model.quantisation.embedding
    quantisation, assumed = lay_over(scheme, model, base)
    short = PurePath(quant.source).name or "hf_quant_config.json"
    provenance = tuple(one for one in model.provenance if "quantisation" not in one.fields)
    data = model.model_dump(mode="python", by_alias=True)
    data["quantisation"] = quantisation
    data["provenance"] = (*provenance, {"fields": ("quantisation",), "evidence": "nominal", "source": short[:200]})
    data["notes"] = (*model.notes, *_kv_note(scheme), *(f"Assumed: {one}."[:400] for one in assumed))
    return build(ModelSpec, data, source=quant.source)


def _has_dimensions(config: Mapping[str, Any]) -> bool:
    return any(key in config for key in ("hidden_size", "num_hidden_layers", "n_layers", "text_config", "architectures"))


def _quantisation_only(source: SourceText, block: dict[str, Any]) -> Imported:
    scheme = read_scheme(block, f"{source.name}:{line_of(source, ('quantization',)) or 1}")
    what = ", ".join(dict.fromkeys(chosen.format for _patterns, chosen in scheme.groups))
    note = source.remark(
        "note", f"says only how weights are stored ({what}), not a model's dimensions: give the model's config.json beside it"
    )
    return Imported(source.name, ("hf-config",), details={"quantisation": block}, remarks=(note,))


def _refuse_others(source: SourceText, config: Mapping[str, Any]) -> None:
    """Say what a file is that is no language model's config.

    Raises:
        InputError: it is something else.
    """
    kind = str(config.get("model_type") or "").lower()
    names = config.get("architectures")
    names = [str(one) for one in names[:4]] if isinstance(names, list) else []
    if "_diffusers_version" in config or "_class_name" in config:
        raise source.error("a diffusers config: an image model's part, not a language model", line_of(source, ("_class_name",)))
    if "peft_type" in config:
        raise source.error("an adapter's config (LoRA); give the config.json of its base model", line_of(source, ("peft_type",)))
    if config.get("is_encoder_decoder") is True or _ENCODERS.fullmatch(kind[:60]):
        raise source.error(
            f"model_type {quoted(kind, 40)} {_NO_LANGUAGE_MODEL} (encoder or encoder-decoder)", line_of(source, ("model_type",))
        )
    if names and all(re.search(r"For(?:MaskedLM|\w{0,40}Classification|QuestionAnswering)$|VisionModel$", one[:80]) for one in names):
        raise source.error(f"{quoted(names[0], 60)} {_NO_LANGUAGE_MODEL}", line_of(source, ("architectures",)))
    if not _has_dimensions(config) and not any(key in config for key in (*WIDTH, *TEXT_SECTIONS)):
        what = "a generation_config.json" if "_from_model_config" in config or "eos_token_id" in config else "not a model's config.json"
        raise source.error(f"this is {what}: it has no dimensions (hidden_size, num_hidden_layers); give the model's config.json", 1)
    if "vision_config" in config and not any(isinstance(config.get(key), dict) for key in ("text_config", "llm_config", "language_config")):
        if not any(key in config for key in ("hidden_size", "num_hidden_layers")):
            raise source.error("has a vision part and no language model with dimensions (text_config)", line_of(source, ("vision_config",)))
    elif "patch_size" in config and "vocab_size" not in config and "text_config" not in config:
        raise source.error(f"a vision model's config: it {_NO_LANGUAGE_MODEL}", line_of(source, ("patch_size",)))


def _block(fields: Fields) -> tuple[Mapping[str, Any] | None, str]:
    """The quantisation block: in the language model's section, at the top, or under modelopt's own name."""
    for key in ("quantization_config", "compression_config", "quantization"):
        block = fields.data.get(key)
        if isinstance(block, dict) and block:
            return block, key
        if block not in (None, {}):
            raise fields.error(f"{key}: expected keys and values", key)
    return None, ""


def _place(fields: Fields, key: str) -> str:
    line = fields.line(key)
    return f"{fields.source.name}:{line}" if line else fields.source.name


def _base_format(fields: Fields) -> WeightFormat:
    dtype = fields.text("torch_dtype", "dtype").lower().removeprefix("torch.")
    if dtype in ("float16", "half", "fp16"):
        return FP16
    if dtype in ("bfloat16", "bf16"):
        return BF16
    if dtype.startswith("float8"):
        return WeightFormat(format="fp8", bits=8)
    fields.assume(
        f"{'dtype ' + quoted(dtype, 20) if dtype else 'no torch_dtype'}: weights that are not quantised are taken as bf16", "torch_dtype"
    )
    return BF16


def _model(fields: Fields, scheme: Scheme | None) -> ModelSpec:
    hidden = fields.need(*WIDTH, what="the width of the model")
    layers = fields.need(*LAYERS, what="the number of layers", most=MAX_LAYERS)
    name, title = model_name(fields)
    short = PurePath(fields.source.name).name[:120] or "config.json"
    data: dict[str, Any] = {
        "schema": "pcie-sim/model/1",
        "name": name,
        "title": title,
        "hidden_size": hidden,
        "num_layers": layers,
        "attention": attention(fields, hidden, layers),
        "mlp": mlp(fields, hidden, layers),
        "vocab": fields.need(*VOCABULARY, what="the number of tokens"),
        "tie_embeddings": _tied(fields),
        "mtp_layers": _mtp(fields),
        "max_position": reach(fields),
        "quantisation": {"method": "none"},
        "extra_params": vision_params(fields, hidden),
        "provenance": _provenance(short, scheme),
    }
    plain = build(ModelSpec, data, source=fields.source.name)
    scheme = _stored_apart(fields, scheme)
    quantisation, assumed = lay_over(scheme, plain, _base_format(fields))
    for text in assumed:
        fields.assume(text, "quantization_config")
    _remark_copy(fields, scheme, title)
    notes = list(_kv_note(scheme)) if scheme is not None else []
    if scheme is not None and scheme.kv_fp8:
        fields.remark("note", "the checkpoint names FP8 for its KV cache; 2 bytes are taken, the engines' default", "quantization_config")
    for kind, what in (("audio_config", "audio"), ("audio_encoder_config", "audio")):
        if kind in fields.whole_config:
            fields.remark("ignored", f"{kind}: the {what} part's weights are left out", kind)
    return plain.model_copy(update={"quantisation": quantisation, "notes": tuple(notes)})


def _stored_apart(fields: Fields, scheme: Scheme | None) -> Scheme | None:
    """DeepSeek V4 stores its routed experts in fp4 beside a block for fp8."""
    dtype = fields.text("expert_dtype").lower()
    if scheme is None or dtype not in ("fp4", "mxfp4"):
        return scheme
    fields.assume("expert_dtype fp4: the routed experts are taken as mxfp4 (groups of 32 with one 8-bit scale)", "expert_dtype")
    return replace(scheme, experts=WeightFormat(format="mxfp4", bits=4, group=32, scale_bits=8))


def _provenance(short: str, scheme: Scheme | None) -> tuple[dict[str, Any], ...]:
    dims = ("hidden_size", "num_layers", "vocab", "max_position", "attention", "mlp", "mtp_layers")
    stored = "quantisation block of the same file" if scheme is not None else "no quantisation block in the same file"
    return (
        {"fields": dims, "evidence": "nominal", "source": short},
        {"fields": ("quantisation",), "evidence": "nominal", "source": stored},
        {"fields": ("kv_bytes_per_element",), "evidence": "nominal", "source": "the engines' default, the checkpoint's bf16"},
        {"fields": ("extra_params",), "evidence": "assumed", "source": "computed from vision_config, where there is one"},
    )


def _kv_note(scheme: Scheme) -> tuple[str, ...]:
    text = "The checkpoint names FP8 for its KV cache; set kv_bytes_per_element to 1 where the engine follows it."
    return (text,) if scheme.kv_fp8 else ()


def _tied(fields: Fields) -> bool:
    stated = fields.flag("tie_word_embeddings", "tied_embeddings")
    if stated is not None:
        return stated
    tied = fields.model_type.startswith(_TIED)
    fields.assume(f"no tie_word_embeddings: {'tied' if tied else 'not tied'}, as the class of this model type has it")
    return tied


def _mtp(fields: Fields) -> int:
    if fields.flag("use_mtp") is False:
        return 0
    return fields.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", least=0, most=100) or 0


def _remark_copy(fields: Fields, scheme: Scheme | None, title: str) -> None:
    """Name what looks like a reduced copy, and a name that promises formats which the file does not say."""
    if "transformers_version" not in fields.whole_config and "transformers_version" not in fields.data and "n_layers" not in fields.data:
        fields.assume("no transformers_version: this looks like a reduced copy; what it leaves out (quantisation?) is taken as not there")
    elif re.search(r"trimmed|reduced", PurePath(fields.source.name).name[-200:], re.IGNORECASE):
        fields.remark("note", "the file's name says that it is a trimmed copy")
    if (
        fields.where
        and "ForConditionalGeneration" in str(fields.whole_config.get("architectures"))
        and "vision_config" not in fields.whole_config
    ):
        fields.assume(
            "a model with several parts and no vision_config: a reduced copy; the vision tower's weights are left out", "architectures"
        )
    promised = _LOW_BITS.search(title)
    if scheme is None and promised is not None:
        fields.assume(
            f"the name says {promised.group(1)} and the file has no quantization_config: all weights are taken as stored in "
            "16 bits; give its hf_quant_config.json beside it if there is one"
        )


__all__ = ["json_text", "read", "sniff", "with_quantisation"]
