"""Reading values out of a stranger's config.json: spellings, types and bounds, with the line in every complaint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.importers.hf_json import read_json
from pcie_sim.importers.source import Remark, RemarkKind, SourceText
from pcie_sim.specs.loader import line_of_key
from pcie_sim.specs.messages import found

MOST = 10**7
"""Largest dimension that is believed (the spec's own bound)."""
MAX_LAYERS = 1000
_EXACT = 300_000
WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
VOCABULARY = ("vocab_size", "padded_vocab_size", "n_vocab")
_OF_THE_MODEL = frozenset({*WIDTH, *LAYERS, *VOCABULARY, "max_position_embeddings"})
"""Keys of the whole model, which no list per layer can stand for."""
TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
"""Keys under which models with several parts keep the language model (vLLM's and transformers' spellings)."""
CLASS_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
    }
}
"""Defaults of transformers' config classes whose published files leave out dimensions (Gemma 3)."""


def json_text(source: SourceText) -> str:
    """The JSON of a file: as it stands, without a byte mark and without a Markdown fence around it.

    Raises:
        InputError: the file was longer than is read.
    """
    if not source.complete:
        raise source.error("this JSON file is longer than is read, so it is not whole; no config.json is that long")
    text = source.raw.lstrip("\ufeff")
    stripped = text.strip()
    if stripped.startswith(("```", "~~~")):
        first, _, rest = stripped.partition("\n")
        return "\n" * text[: text.find(first)].count("\n") + "\n" + rest.rstrip("`~ \r\n")
    return text


def json_object(source: SourceText) -> dict[str, Any]:
    """The JSON object that a file is.

    Raises:
        InputError: broken JSON, over a bound, or no object.
    """
    value = read_json(json_text(source), source)
    if not isinstance(value, dict):
        raise source.error("a config.json is one JSON object in { }; this is something else", 1)
    return value


def line_of(source: SourceText, path: tuple[str | int, ...]) -> int | None:
    """The line of a value, for messages (JSON is YAML enough for that); None where it cannot be found."""
    try:
        text = json_text(source)
        if len(text) <= _EXACT:
            return line_of_key(text, path)
    except (ValueError, TypeError, InputError):
        return None
    place = text.find(f'"{path[-1]}"')  # a huge file: its first key of that name
    return text.count("\n", 0, place) + 1 if place >= 0 else None


@dataclass
class Fields:
    """One config's keys: those of the language model, beside those of the whole where only the whole has them.

    ``where`` is the path to the language model's section. ``remarks`` collects what was assumed.
    """

    source: SourceText
    data: Mapping[str, Any]
    whole_config: Mapping[str, Any]
    where: tuple[str, ...] = ()
    remarks: list[Remark] = field(default_factory=list)

    @classmethod
    def of(cls, source: SourceText, config: Mapping[str, Any]) -> Fields:
        """The fields of a parsed config: goes down into the language model's section, keeps what only the top says."""
        section: Mapping[str, Any] = config
        where: list[str] = []
        merged: dict[str, Any] = {key: value for key, value in config.items() if not isinstance(value, dict)}
        for _ in range(3):
            key = next((name for name in TEXT_SECTIONS if isinstance(section.get(name), dict)), None)
            if key is None:
                break
            section = section[key]
            where.append(key)
            merged.update({name: value for name, value in section.items() if value is not None or name not in merged})
        for key in ("attn_config", "ffn_config", "moe"):  # DBRX and Mistral's params.json keep these apart
            part = section.get(key)
            if isinstance(part, dict):
                merged.update({name: value for name, value in part.items() if name not in merged})
        for key, value in section.items():
            merged.setdefault(key, value)
        for key, value in config.items():
            merged.setdefault(key, value)
        fields = cls(source, merged, config, tuple(where))
        fields._fill_defaults()
        return fields

    def _fill_defaults(self) -> None:
        """What a model type's class fills in, where its published files rely on that."""
        absent = {key: value for key, value in CLASS_DEFAULTS.get(self.model_type, {}).items() if self.data.get(key) is None}
        if absent and self.has("hidden_size") and "transformers_version" in self.whole_config:
            self.data = {**self.data, **absent}
            shown = ", ".join(f"{key} {value}" for key, value in absent.items())
            self.assume(f"left out of the file, as its class ({self.model_type}) fills it in: {shown}")

    def find(self, *names: str) -> tuple[str, Any] | None:
        """The first of these keys that is there and not null."""
        return next(((name, self.data[name]) for name in names if self.data.get(name) is not None), None)

    def has(self, *names: str) -> bool:
        """One of these keys is there and not null."""
        return self.find(*names) is not None

    def line(self, key: str) -> int | None:
        """The line of a key, in the language model's section or at the top."""
        section: Any = self.whole_config
        for part in self.where:
            section = section.get(part, {})
        if key in section:
            return line_of(self.source, (*self.where, key))
        return line_of(self.source, (key,)) if key in self.whole_config else None

    def error(self, message: str, key: str | None = None) -> InputError:
        """A complaint with the key's line."""
        return self.source.error(message, self.line(key) if key else None)

    def missing(self, names: tuple[str, ...], what: str) -> InputError:
        """A complaint about a key that every model of this kind has."""
        other = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        section = f" in {'.'.join(self.where)}" if self.where else ""
        hint = "this is a reduced copy, or not a language model's config.json; get the file from the model's repository"
        return self.source.error(f"no {names[0]}{other}{section}: {what}\n{hint}")

    def remark(self, kind: RemarkKind, text: str, key: str | None = None) -> None:
        """Note what was done with the file."""
        self.remarks.append(self.source.remark(kind, text, self.line(key) if key else None))

    def assume(self, text: str, key: str | None = None) -> None:
        """Note an assumption."""
        self.remark("assumed", text, key)

    def whole(self, *names: str, least: int = 1, most: int = MOST) -> int | None:
        """A whole number under the first of these keys that is there; a list with the same number for every layer counts as that number.

        Raises:
            InputError: anything else stands there, or a number out of bounds.
        """
        hit = self.find(*names)
        if hit is None:
            return None
        key, value = hit
        if isinstance(value, list):
            if key in _OF_THE_MODEL or len(value) < max(2, self._layers()):
                raise self.error(f"{key}: expected a whole number, found {found(value)}", key)
            if any(item != value[0] or isinstance(item, bool) for item in value):
                raise self.error(f"{key} differs from layer to layer, which is not modelled", key)
            value = value[0]
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{key}: expected a whole number, found {found(value)}", key)
        if not least <= value <= most:
            raise self.error(f"{key}: must be {least} to {most:,}, found {found(value)}", key)
        return value

    def _layers(self) -> int:
        """The number of layers where it is plain; else 0."""
        hit = self.find(*LAYERS)
        return hit[1] if hit is not None and isinstance(hit[1], int) and not isinstance(hit[1], bool) else 0

    def need(self, *names: str, what: str, least: int = 1, most: int = MOST) -> int:
        """As :meth:`whole`; a missing key is an error."""
        value = self.whole(*names, least=least, most=most)
        if value is None:
            raise self.missing(names, what)
        return value

    def flag(self, *names: str) -> bool | None:
        """A boolean; None where no key says it."""
        hit = self.find(*names)
        if hit is None:
            return None
        if not isinstance(hit[1], bool):
            raise self.error(f"{hit[0]}: expected true or false, found {found(hit[1])}", hit[0])
        return hit[1]

    def text(self, *names: str) -> str:
        """Text; empty where no key says it or something else stands there."""
        hit = self.find(*names)
        return hit[1][:200] if hit is not None and isinstance(hit[1], str) else ""

    def per_layer(self, key: str, layers: int) -> list[Any] | None:
        """A list with one value per layer (further ones belong to multi-token prediction); None where the key holds no list.

        Raises:
            InputError: fewer values than layers.
        """
        value = self.data.get(key)
        if not isinstance(value, list):
            return None
        if len(value) < layers:
            raise self.error(f"{key} has {len(value)} entries for {layers} layers; the copy is cut or edited", key)
        return value[:layers]

    @property
    def model_type(self) -> str:
        """The language model's type."""
        return self.text("model_type").lower()


def fit_every(special: list[bool]) -> tuple[int, int, int]:
    """Which ``(first, every)`` marks these layers best, and how many layers differ from it: layer i is marked where ``i < first`` or
    ``i + 1`` is a multiple of ``every`` (2 to 1000).

    >>> fit_every([True, False, False, True, False, False])[:2], fit_every([False, True] * 3)
    ((1, 4), (0, 2, 0))
    """
    layers = len(special)
    lead = next((i for i, one in enumerate(special) if not one), layers)
    if lead == layers:
        return layers, 2, 0
    for first in range(lead + 1):
        rest = [i + 1 for i in range(first, layers) if special[i]]
        every = math.gcd(*rest) if rest else 1000
        if every >= 2 and all((i + 1) % every == 0 for i in range(first, layers) if special[i]):
            marked = layers // every - first // every if rest else 0
            if marked == len(rest):
                return first, min(every, 1000), 0
    return _nearest_every(special, lead, least=2)


def fit_moe(moe: list[bool]) -> tuple[int, int, int]:
    """Which ``(first_k_dense, moe_every)`` marks the MoE layers best, and how many layers differ from it.

    >>> fit_moe([False, True, True]), fit_moe([False, True, False, True])
    ((1, 1, 0), (0, 2, 0))
    """
    layers = len(moe)
    lead = next((i for i, one in enumerate(moe) if one), layers)
    rest = [i + 1 for i in range(layers) if moe[i]]
    every = math.gcd(*rest)
    for first in range(lead + 1):
        if layers // every - first // every == len(rest):
            return first, every, 0
    best = (lead, 1, layers)
    for first in sorted({0, lead}):
        for step in range(1, layers + 1):
            marks = range(step - 1, layers, step)
            hits = sum(moe[i] for i in marks if i >= first)
            wrong = len(rest) + sum(1 for i in marks if i >= first) - 2 * hits
            if wrong < best[2]:
                best = (first, step, wrong)
    return best


def _nearest_every(special: list[bool], lead: int, *, least: int) -> tuple[int, int, int]:
    layers = len(special)
    best = (0, 1000, sum(special))
    for first in sorted({0, lead}):
        total = sum(special[first:])
        for step in range(least, layers + 1):
            marks = [i for i in range(step - 1, layers, step) if i >= first]
            wrong = total + len(marks) - 2 * sum(special[i] for i in marks)
            if wrong < best[2]:
                best = (first, step, wrong)
    return best
