"""What pydantic found, in words for the writer of a file: no class names, no regular expressions, no Python types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_NAME = "letters, digits and . _ + -, the first a letter or digit, at most 80 in all"
PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,79}$": f"a name has {_NAME}",
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$": "a node's name has letters, digits, _ and -, the first a letter or digit, at most 40 in all",
    r"^[A-Za-z_][A-Za-z0-9_]{0,79}$": "a setting's name has letters, digits and _, the first no digit, at most 80 in all",
    r"^[0-9]{1,4}\.[0-9]{1,3}(\.[0-9]{1,3})?$": 'write a version in quotes, like "2.28" or "2.28.3"',
    r"^[0-9a-f]{4}:[0-9a-f]{4}( [0-9a-f]{4}:[0-9a-f]{4})?$": 'write a PCI id in quotes and lower case, like "10de:2684"',
    r"^[0-9]{1,4}\.[0-9]{1,3}$": 'write a version in quotes, like "2.28"',
    r"^[0-9a-f]{64}$": "a SHA-256 has 64 digits and letters a to f",
    r"^[a-z_]+(\.[A-Za-z0-9_]+)?$": "a constant's name is like step.LL",
}
"""Patterns of text fields, by what they ask for."""

HALF_CHARACTER = "holds half of a character"
"""Half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
_LIST, _MAPPING, _TEXT = "expected a list", "expected keys and values", "expected text"
_WHOLE, _NUMBER = "expected a whole number", "expected a number"
_SAYS_TYPE = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "dict_type": _MAPPING,
    "mapping_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "string_type": _TEXT,
    "string_sub_type": _TEXT,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "none_required": "expected nothing (null)",
}
_BOUNDS = {
    "greater_than_equal": "must be {} or more",
    "greater_than": "must be more than {}",
    "less_than_equal": "must be {} or less",
    "less_than": "must be less than {}",
    "multiple_of": "must be a multiple of {}",
}


def readable(error: Mapping[str, Any]) -> str:
    """One entry of ``ValidationError.errors()`` in plain words, without the place and without a full stop.

    Where the kind of value is wrong, the words end with what stands there: ``expected a list, found a number``. Works with and
    without the entry's ``ctx``. What is not known here comes back as pydantic says it, on one line.

    >>> readable({"type": "tuple_type", "msg": "Input should be a valid tuple", "input": 5})
    'expected a list, found a number'
    """
    kind, message, value = str(error["type"]), " ".join(str(error["msg"]).split()), error.get("input")
    if kind in _SAYS_TYPE:
        wants_number = _SAYS_TYPE[kind] in (_WHOLE, _NUMBER)
        return f"{_SAYS_TYPE[kind]}, found {found(value) if wants_number or isinstance(value, str) else what_is(value)}"
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(message, value)
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind].format(message.rpartition(' ')[2])}, found {found(value)}"
    return message.removeprefix("Value error, ")


def found(value: object) -> str:
    """What stands in the file: short text and numbers as they are, anything else by its kind."""
    if isinstance(value, bool) or value is None or isinstance(value, dict | list | tuple):
        return what_is(value)
    try:
        text = " ".join(str(value).split())
    except ValueError:  # whole numbers of thousands of digits
        return what_is(value)
    text = text if len(text) <= 40 else text[:37] + "..."
    if isinstance(value, int | float):
        return text
    return repr(text) if isinstance(value, str) else what_is(value)


def what_is(value: object) -> str:
    """The kind of a value as the writer of a file thinks of it.

    >>> what_is(5), what_is([]), what_is({}), what_is(None), what_is(True)
    ('a number', 'a list', 'keys and values', 'nothing', 'true or false')
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        ((int, float), "a number"),
        (str, "text"),
        ((list, tuple), "a list"),
        (dict, "keys and values"),
    )
    return next((words for kind, words in kinds if isinstance(value, kind)), "something else")


def _count(message: str, which: str, one: str, many: str) -> str:
    """``at most 64 entries`` from pydantic's sentence about a length."""
    match = re.search(r"at (?:most|least) (\d+)", message)
    number = match.group(1) if match is not None else "?"
    return f"at {which} {number} {one if number == '1' else many}"


def _too_long(message: str, value: object) -> str:
    has = f", found {len(value)}" if isinstance(value, dict | list | tuple) else ""
    return _count(message, "most", "entry", "entries") + has


def _too_short(message: str, value: object) -> str:
    has = f", found {len(value) or 'none'}" if isinstance(value, dict | list | tuple) else ""
    return _count(message, "least", "entry", "entries") + has


def _pattern(message: str, value: object) -> str:
    match = re.search(r"pattern '(.*)'$", message)
    words = PATTERNS.get(match.group(1) if match is not None else "", "this is not written as the key asks")
    return f"{words}, found {found(value)}"


def _choice(message: str, value: object) -> str:
    options = message.removeprefix("Input should be ").replace("'", "")
    return f"use {options}, found {found(value)}"


def _tag(message: str, _value: object) -> str:
    match = re.fullmatch(r"Input tag '(.*)' found using '(\w+)' does not match any of the expected tags: (.*)", message)
    if match is None:
        return message
    tag, key, tags = match.groups()
    return f"{key} {tag[:40]!r} is not known; use one of {tags.replace(chr(39), '')}"


def _no_tag(message: str, _value: object) -> str:
    match = re.search(r"discriminator '(\w+)'", message)
    return f"required key {match.group(1)} is missing" if match is not None else message


_SPECIAL: dict[str, Callable[[str, object], str]] = {
    "extra_forbidden": lambda _message, _value: "unknown key",
    "missing": lambda _message, _value: "required key is missing",
    "finite_number": lambda _message, _value: "expected a finite number",
    "string_unicode": lambda _message, _value: f"{HALF_CHARACTER}; write plain text",
    "too_long": _too_long,
    "too_short": _too_short,
    "string_too_long": lambda message, _value: _count(message, "most", "character", "characters"),
    "string_too_short": lambda message, _value: _count(message, "least", "character", "characters"),
    "string_pattern_mismatch": _pattern,
    "literal_error": _choice,
    "union_tag_invalid": _tag,
    "union_tag_not_found": _no_tag,
}
