"""JSON of a config.json, and what is wrong with JSON that is none: trailing commas, comments, Python's spelling, cut or edited copies."""

from __future__ import annotations

import json
import re
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.importers.source import SourceText, quoted
from pcie_sim.specs.loader import MAX_BYTES, MAX_DEPTH, parse_json

_MOST_DIGITS = 400
_BLANKS = ", \n\r\t"
_LONG_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*+"?|(?<![0-9])[0-9]{401}', re.DOTALL)
_PYTHON = re.compile(r"(?:True|False|None)\b")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def read_json(text: str, source: SourceText) -> Any:
    """``text`` as JSON; complaints say what is wrong, on which line and what to do.

    Raises:
        InputError: broken, over a bound (50 levels, 8 MiB, 400 digits), or with a duplicate key.
    """
    try:
        return parse_json(text, source=source.name)
    except InputError as exc:
        if len(text) > MAX_BYTES:
            raise
        better = _explained(text)
        if better is None:
            raise
        raise source.error(*better) from exc


def _explained(text: str) -> tuple[str, int | None] | None:
    """(what is wrong and what to do, line); None where the loader's own words are as good."""
    try:
        json.loads(text, parse_constant=lambda _word: None)
    except json.JSONDecodeError as exc:
        what = _at(text, exc.pos)
        return (f"broken JSON: {what}", exc.lineno) if what else None
    except RecursionError:
        pass
    except ValueError:  # Python turns no number of more than 4300 digits into an int
        return _long_number(text)
    depth, line = _depth(text)
    if depth > MAX_DEPTH:
        return f"nested {depth:,} levels deep, more than {MAX_DEPTH}: no config.json is; look for brackets that are not closed", line
    return None


def _at(text: str, place: int) -> str | None:
    """What stands where the reading stopped."""
    rest = text[place : place + 80]
    before = text[max(0, place - 4000) : place].rstrip()
    if rest.startswith(("//", "/*", "#")):
        return f"a comment ({'#' if rest[0] == '#' else rest[:2]}) is not JSON; remove it"
    if (rest[:1] in ("}", "]") and before.endswith(",")) or re.match(r",\s{0,60}[}\]]", rest):
        return f"a comma before the closing {rest.lstrip(_BLANKS)[:1] or 'bracket'} is not JSON; remove it"
    if rest.startswith(("...", "\u2026")):
        return "lines were left out of this copy (...); get the whole file"
    if rest.startswith("'"):
        return "keys and text stand in double quotes; this looks like Python's spelling: write it with json.dumps"
    if _PYTHON.match(rest):
        return "this looks like Python's spelling; JSON has true, false and null: write it with json.dumps"
    if not rest.strip():
        return "the text ends before its brackets close; the copy is cut: get the whole file"
    if re.search(r'[}\]"0-9el]\Z', before) and re.match(r'["\[{0-9]', rest):
        return f"a comma is missing before {quoted(rest, 30)}"
    return None


def _long_number(text: str) -> tuple[str, int | None] | None:
    key = ""
    for match in _LONG_NUMBER.finditer(text):
        if not match.group().startswith('"'):
            name = f"{key}: " if re.fullmatch(r"\w{1,60}", key) else ""
            return f"{name}a number of more than {_MOST_DIGITS} digits is not believed", text.count("\n", 0, match.start()) + 1
        key = match.group()[1:-1] if len(match.group()) < 70 else ""
    return None


def _depth(text: str) -> tuple[int, int]:
    """(deepest nesting, line of the first bracket that is too deep)."""
    level = deepest = 0
    line = 1
    for match in _BRACKET.finditer(text):
        if match.group() in ("[", "{"):
            level += 1
            if level == MAX_DEPTH + 1 and deepest <= MAX_DEPTH:
                line = text.count("\n", 0, match.start()) + 1
            deepest = max(deepest, level)
        elif match.group() in ("]", "}"):
            level -= 1
    return deepest, line
