"""pydantic's findings in plain words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pcie_sim.specs import messages
from pcie_sim.specs.messages import PATTERNS, readable, what_is


class One(BaseModel):
    kind: Literal["one"]
    number: int


class Two(BaseModel):
    kind: Literal["two"]


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    items: tuple[int, ...] = ()
    table: dict[str, int] = {}
    one: One | None = None
    few: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)] = (1,)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,79}$")] = "a"
    odd: Annotated[str, Field(pattern=r"^x{3}$")] = "xxx"
    whole: Annotated[int, Field(ge=1, le=8)] = 1
    real: Annotated[float, Field(gt=0, lt=2)] = 1
    word: Literal["x", "y", "z"] = "x"
    flag: bool = True
    short: Annotated[str, Field(max_length=3)] = "a"
    either: Annotated[One | Two, Field(discriminator="kind")] | None = None


FOUND: list[tuple[str, Any, str]] = [
    ("items", 5, "expected a list, found a number"),
    ("items", "abc", "expected a list, found 'abc'"),
    ("items", {"a": 1}, "expected a list, found keys and values"),
    ("table", 5, "expected keys and values, found a number"),
    ("table", [1], "expected keys and values, found a list"),
    ("one", True, "expected keys and values, found true or false"),
    ("one", {"kind": "one"}, "required key is missing"),
    ("few", [1, 2, 3], "at most 2 entries, found 3"),
    ("few", [], "at least 1 entry, found none"),
    ("name", "a/b", "a name has letters, digits and . _ + -, the first a letter or digit, at most 80 in all, found 'a/b'"),
    ("name", "x" * 100, f"a name has letters, digits and . _ + -, the first a letter or digit, at most 80 in all, found '{'x' * 37}...'"),
    ("name", 5, "expected text, found a number"),
    ("name", None, "expected text, found nothing"),
    ("odd", "y", "this is not written as the key asks, found 'y'"),
    ("whole", 0, "must be 1 or more, found 0"),
    ("whole", 9, "must be 8 or less, found 9"),
    ("whole", 1.5, "expected a whole number, found 1.5"),
    ("whole", "x", "expected a whole number, found 'x'"),
    ("whole", [1], "expected a whole number, found a list"),
    ("real", 0, "must be more than 0, found 0"),
    ("real", 2.5, "must be less than 2, found 2.5"),
    ("real", "fast", "expected a number, found 'fast'"),
    ("real", float("nan"), "expected a finite number"),
    ("word", "q", "use x, y or z, found 'q'"),
    ("word", 5, "use x, y or z, found 5"),
    ("flag", "perhaps", "expected true or false, found 'perhaps'"),
    ("short", "abcd", "at most 3 characters"),
    ("either", {"kind": "three"}, "kind 'three' is not known; use one of one, two"),
    ("either", {}, "required key kind is missing"),
    ("colour", 1, "unknown key"),
]


@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize(("key", "value", "words"), FOUND)
def test_words(key: str, value: Any, words: str, context: bool) -> None:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({key: value})
    assert readable(caught.value.errors(include_url=False, include_context=context)[0]) == words


def test_our_own_sentences_stay_as_they_are() -> None:
    assert readable({"type": "value_error", "msg": "Value error, low <= value\nfails", "input": 1}) == "low <= value fails"
    assert readable({"type": "brand_new", "msg": "Something else"}) == "Something else"


def patterns(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["pattern"]} if isinstance(node.get("pattern"), str) else set()
        return own.union(
            *(patterns(value) for value in node.values()), *([set(node["patternProperties"])] if "patternProperties" in node else [])
        )
    return set().union(*(patterns(value) for value in node)) if isinstance(node, list) else set()


def test_every_pattern_of_every_format_has_words() -> None:
    """The link text has a pattern in its schema only; its own check speaks for it."""
    folder = Path(messages.__file__).parent / "schemas"
    used = set().union(*(patterns(json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")))
    assert len(used) >= 4
    assert {pattern for pattern in used if not pattern.startswith("^gen")} == set(PATTERNS)


@pytest.mark.parametrize("value", [5, 2.5, "x", [], (), {}, None, True, object(), 10**5000], ids=range(10))
def test_every_value_has_a_kind_in_words(value: object) -> None:
    assert "object" not in what_is(value)
    assert messages.found(value)
