"""Module-name patterns of quantisation blocks (plain names, ``*`` globs, ``re:`` expressions), matched in bounded time.

The patterns come from a stranger's file, so Python's ``re`` is not used on them: an expression is walked as a set of positions, which takes
at most (length of the name) x (length of the pattern) steps. Look-around and back-references are not understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_PATTERNS = 50_000
_MAX_LENGTH = 400
_MAX_GENERAL = 48
_BUDGET = 20_000
"""Most tests of a name against expressions that name layers by number, in one list."""


@dataclass(frozen=True)
class _Atom:
    """One character: ``chars`` None is any; ``negate`` all but these."""

    chars: frozenset[str] | None
    negate: bool = False

    def ends(self, text: str, starts: frozenset[int]) -> frozenset[int]:
        return frozenset(i + 1 for i in starts if i < len(text) and (self.chars is None or (text[i] in self.chars) != self.negate))


@dataclass(frozen=True)
class _Edge:
    """``^`` or ``$``."""

    at_end: bool

    def ends(self, text: str, starts: frozenset[int]) -> frozenset[int]:
        return starts & {len(text) if self.at_end else 0}


@dataclass(frozen=True)
class _Choice:
    """Alternatives, each a sequence of (item, least, repeats)."""

    options: tuple[tuple[tuple[_Item, int, bool], ...], ...]

    def ends(self, text: str, starts: frozenset[int]) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for option in self.options:
            reached = starts
            for item, least, repeats in option:
                reached = _repeat(item, least, repeats, text, reached)
                if not reached:
                    break
            found |= reached
        return found


_Item = _Atom | _Edge | _Choice
_CLASSES = {
    "d": frozenset("0123456789"),
    "w": frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
    "s": frozenset(" \t"),
}


def _repeat(item: _Item, least: int, repeats: bool, text: str, starts: frozenset[int]) -> frozenset[int]:
    """``least`` 0 with ``repeats``: ``*``; 1 with: ``+``; 0 without: ``?``; 1 without: once."""
    once = item.ends(text, starts)
    reached = once | starts if least == 0 else once
    if not repeats:
        return reached
    new = once
    while new:
        new = item.ends(text, new) - reached
        reached |= new
    return reached


class _NotUnderstood(Exception):  # noqa: N818  # not an error: the pattern is listed as ignored
    pass


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def choice(self, depth: int) -> _Choice:
        if depth > 8:
            raise _NotUnderstood
        options: list[tuple[tuple[_Item, int, bool], ...]] = []
        while True:
            options.append(self._sequence(depth))
            if self.at >= len(self.text) or self.text[self.at] != "|":
                return _Choice(tuple(options))
            self.at += 1

    def _sequence(self, depth: int) -> tuple[tuple[_Item, int, bool], ...]:
        items: list[tuple[_Item, int, bool]] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            item = self._item(depth)
            least, repeats = 1, False
            if self.at < len(self.text) and self.text[self.at] in "*+?":
                least, repeats = {"*": (0, True), "+": (1, True), "?": (0, False)}[self.text[self.at]]
                self.at += 1
                if self.at < len(self.text) and self.text[self.at] == "?":  # lazy: the same language
                    self.at += 1
            items.append((item, least, repeats))
        return tuple(items)

    def _item(self, depth: int) -> _Item:
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._set()
        if char == "\\":
            return self._escaped()
        if char in "^$":
            return _Edge(char == "$")
        if char == ".":
            return _Atom(None)
        if char in "*+?{":
            raise _NotUnderstood
        return _Atom(frozenset(char))

    def _group(self, depth: int) -> _Item:
        if self.text.startswith("?:", self.at):
            self.at += 2
        elif self.text.startswith("?", self.at):
            raise _NotUnderstood
        inside = self.choice(depth + 1)
        if not self.text.startswith(")", self.at):
            raise _NotUnderstood
        self.at += 1
        return inside

    def _escaped(self) -> _Item:
        if self.at >= len(self.text):
            raise _NotUnderstood
        char = self.text[self.at]
        self.at += 1
        if char in _CLASSES:
            return _Atom(_CLASSES[char])
        if char.isalnum():
            raise _NotUnderstood
        return _Atom(frozenset(char))

    def _set(self) -> _Item:
        end = self.at + 1 + self.text.startswith("^", self.at)  # a bracket right at the beginning is an ordinary character
        if self.text.startswith("\\", end - 1):
            end += 1
        while not self.text.startswith("]", end):
            if end >= len(self.text):
                raise _NotUnderstood
            end += 2 if self.text[end] == "\\" else 1
        body, self.at = self.text[self.at : end], end + 1
        negate = body.startswith("^")
        body = body[1:] if negate else body
        chars: set[str] = set()
        index = 0
        while index < len(body):
            if body[index] == "\\" and index + 1 < len(body):
                chars |= _CLASSES.get(body[index + 1], frozenset(body[index + 1]))
                index += 2
            elif index + 2 < len(body) and body[index + 1] == "-":
                chars |= {chr(code) for code in range(ord(body[index]), min(ord(body[index + 2]), 0x7F) + 1)}
                index += 3
            else:
                chars.add(body[index])
                index += 1
        return _Atom(frozenset(chars), negate)


def compile_expression(text: str) -> _Choice | None:
    """A regular expression, to be matched from the start of a name; None: not understood."""
    if len(text) > _MAX_LENGTH:
        return None
    parser = _Parser(text)
    try:
        found = parser.choice(0)
    except _NotUnderstood:
        return None
    return found if parser.at == len(text) else None


def _compile_glob(text: str) -> _Choice | None:
    return compile_expression("".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in text) + "$")


_WRAPPERS = ("model.language_model.", "language_model.")
"""What models with several parts put before the language model's module names."""


def _bare(pattern: str) -> str:
    for wrapper in _WRAPPERS:
        if pattern.startswith(wrapper):
            rest = pattern.removeprefix(wrapper)
            return rest if rest.startswith(("model.", "lm_head")) else "model." + rest
    return pattern


@dataclass
class NamePatterns:
    """A list of patterns for module names (without the wrapper's prefix). A plain name matches the module of that name, all inside it,
    and every module with that run of components (``gate`` is the router, not ``gate_proj``).
    """

    plain: set[str] = field(default_factory=set)
    prefixes: set[str] = field(default_factory=set)
    general: list[tuple[_Choice, bool, bool]] = field(default_factory=list)
    """(expression, whether blocks that hold the module count too, whether it names layers by number)."""
    ignored: list[str] = field(default_factory=list)
    left: int = _BUDGET
    _known: dict[tuple[int, str], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, patterns: Iterable[object]) -> NamePatterns:
        """From a file's list; what is no text is left out."""
        found = cls()
        for number, pattern in enumerate(patterns):
            if number < MAX_PATTERNS and isinstance(pattern, str) and pattern.strip():
                found._add(pattern.strip())
        return found

    def _add(self, pattern: str) -> None:
        numbered = any("0" <= char <= "9" for char in re.sub(r"\[[^\]]{0,40}\]", "", pattern))
        if pattern.startswith("re:"):
            compiled, blocks = compile_expression(pattern[3:]), False
        elif "*" not in pattern and "?" not in pattern:
            self.plain.add(_bare(pattern.removesuffix(".weight")))
            return
        elif pattern.find("*") == len(pattern) - 1:
            self.prefixes.add(_bare(pattern[:-1]))
            return
        else:
            compiled, blocks = _compile_glob(_bare(pattern.removesuffix(".weight"))), True
        if compiled is None or len(self.general) >= _MAX_GENERAL:
            self.ignored.append(pattern)
        else:
            self.general.append((compiled, blocks, numbered))

    def __bool__(self) -> bool:
        return bool(self.plain or self.prefixes or self.general)

    @property
    def exhausted(self) -> bool:
        """Too many layers by number in general patterns: the rest were not looked at."""
        return self.left <= 0

    def matches(self, name: str) -> bool:
        """Whether a module's full name (``model.layers.3.self_attn.o_proj``) is on the list."""
        parts = name.split(".")
        if self.plain and any(".".join(parts[i:j]) in self.plain for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)):
            return True
        if self.prefixes and any(name[:end] in self.prefixes for end in range(len(name) + 1)):
            return True
        same = ".".join("1" * len(part) if part.isdecimal() else part for part in parts)
        for index, (expression, blocks, numbered) in enumerate(self.general):
            shown = name if numbered else same
            known = self._known.get((index, shown))
            if known is None:
                if numbered:
                    self.left -= 1
                    if self.exhausted:
                        continue
                known = self._known[(index, shown)] = _fits(expression, shown, blocks)
            if known:
                return True
        return False


def _fits(expression: _Choice, name: str, blocks: bool) -> bool:
    start = frozenset({0})
    if not blocks:
        variants = (name, "language_model." + name, "model.language_model." + name.removeprefix("model."))
        return any(expression.ends(one, start) for one in variants)
    parts = name.split(".")
    return any(expression.ends(".".join(parts[:end]), start) for end in range(len(parts), 0, -1))
