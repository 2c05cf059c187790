"""The one loader for every YAML (and JSON) file: YAML 1.2 core scalars, bounded, with line numbers in its complaints.

Only ``true``/``false`` are booleans and only ``null``/``~``/empty is null; ``5e-6`` is a number; ``off``, ``no``, ``41:00``
and dates stay text; ``<<`` is a key like any other (no merging). Duplicate keys and tags are refused with their line. Size,
aliases, and depth and number of nodes after expansion are bounded.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from pcie_sim.errors import InputError

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 50
MAX_ALIASES = 100
MAX_NODES = 2_000_000
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _ProblemError(Exception):
    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text)
        self.text, self.line = text, line


class _Loader(_BaseLoader):  # type: ignore[misc]  # libyaml's loader where it is built, else the pure one
    """Core-schema loader; bounds are checked on the event stream before anything is composed."""


def _line(event: Any) -> int | None:
    return event.start_mark.line + 1 if event.start_mark is not None else None


def _check_events(text: str, most: tuple[int, str] | None) -> None:
    depth = aliases = 0
    for values, event in enumerate(yaml.parse(text, Loader=_Loader)):
        tag = getattr(event, "tag", None)
        if tag is not None:  # even !!int: nothing here needs one, and on the wrong kind of node it breaks the constructors
            raise _ProblemError(f"tag {str(tag)[:60]!r} is not allowed", _line(event))
        if most is not None and values > most[0]:
            raise _ProblemError(f"more than {most[0]:,} values are too many: {most[1]}", _line(event))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _ProblemError(_TOO_DEEP, _line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if aliases > MAX_ALIASES:
                raise _ProblemError(f"more than {MAX_ALIASES} aliases", _line(event))


_FLOAT = re.compile(r"""^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$""")
RESOLVERS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), "~nN\0"),
    ("tag:yaml.org,2002:int", re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
    ("tag:yaml.org,2002:float", _FLOAT, "-+0123456789."),
)
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in RESOLVERS:
    for _char in _first:
        _Loader.yaml_implicit_resolvers.setdefault("" if _char == "\0" else _char, []).append((_tag, _pattern))


def _construct_int(_loader: Any, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > 400:
        raise _ProblemError("a number with more than 400 digits", node.start_mark.line + 1)
    return int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)


def _construct_float(_loader: Any, node: yaml.ScalarNode) -> float:
    text = node.value.lower()
    return float(text.replace(".", "") if text.endswith(("inf", "nan")) else text)


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True)
        try:
            twice = key in found
        except TypeError as exc:
            raise _ProblemError("a key must be plain text or a number", line) from exc
        if twice:
            raise _ProblemError(f"duplicate key {str(key)[:60]!r}", line)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _construct_unknown(_loader: Any, node: yaml.Node) -> Any:
    raise _ProblemError(f"tag {str(node.tag)[:60]!r} is not allowed", node.start_mark.line + 1)


_Loader.yaml_constructors = {
    "tag:yaml.org,2002:null": lambda _loader, _node: None,
    "tag:yaml.org,2002:bool": lambda _loader, node: node.value.lower() == "true",
    "tag:yaml.org,2002:int": _construct_int,
    "tag:yaml.org,2002:float": _construct_float,
    "tag:yaml.org,2002:str": lambda _loader, node: node.value,
    "tag:yaml.org,2002:seq": lambda loader, node: [loader.construct_object(item, deep=True) for item in node.value],
    "tag:yaml.org,2002:map": _construct_mapping,
    None: _construct_unknown,
}
_Loader.yaml_multi_constructors = {}


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of ``path`` (UTF-8, an optional BOM dropped), at most 8 MiB.

    Raises:
        InputError: missing, a folder, unreadable, too large, or not UTF-8 text.
    """
    shown = os.fspath(path)
    try:
        target = Path(path)
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown}: is a folder; give a file")
        if not stat.S_ISREG(mode):  # a pipe without a writer would hang, a device may never end
            raise InputError(f"{shown}: is no regular file")
        with target.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as exc:
        raise InputError(f"{shown}: no such file") from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise InputError(f"{shown}: cannot be read ({reason})") from exc
    if len(raw) > MAX_BYTES:
        raise InputError(f"{shown}: larger than 8 MiB; this is not a file for pcie-sim")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InputError(f"{shown}: not UTF-8 text (byte {exc.start})") from exc


def load_yaml(path: str | os.PathLike[str]) -> Any:
    """The content of a YAML file (or of a ``.json`` file, read as JSON) as plain dicts, lists and scalars.

    Raises:
        InputError: unreadable, broken, over a bound, or with a duplicate key; names the file and line.
    """
    shown = os.fspath(path)
    text = read_text(path)
    if shown.lower().endswith(".json"):
        return parse_json(text, source=shown)
    return parse_yaml(text, source=shown)


def parse_yaml(text: str, *, source: str = "<text>", most: tuple[int, str] | None = None) -> Any:
    """As :func:`load_yaml`, from text; ``source`` is named in messages. ``most``: values (keys and the ends of lists and mappings
    counted) from which a file is refused without reading the rest, and the reason in words.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"{source}: larger than 8 MiB; this is not a file for pcie-sim")
    try:
        _check_events(text, most)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _bound_nodes(node)
            return loader.construct_object(node, deep=True)
        finally:
            loader.dispose()
    except _ProblemError as exc:
        where = f"{source}:{exc.line}" if exc.line else source
        raise InputError(f"{where}: {exc.text}") from exc
    except yaml.YAMLError as exc:
        raise InputError(_yaml_message(exc, source)) from exc
    except RecursionError as exc:
        raise InputError(f"{source}: nested too deeply") from exc
    except ValueError as exc:
        raise InputError(f"{source}: broken YAML: {str(exc)[:120]}") from exc


def _bound_nodes(root: yaml.Node) -> None:
    """Refuse alias bombs: bound number and depth of the nodes after every alias is expanded, without expanding them."""
    known: dict[int, tuple[int, int]] = {}
    open_nodes: set[int] = set()

    def measure(node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        key = id(node)
        if key in known:
            return known[key]
        if key in open_nodes:
            raise _ProblemError("an alias that contains itself", node.start_mark.line + 1)
        open_nodes.add(key)
        total, deepest = 1, 0
        for item in node.value:
            children = item if isinstance(item, tuple) else (item,)
            for child in children:
                size, depth = measure(child)
                total, deepest = total + size, max(deepest, depth)
            if total > MAX_NODES:
                raise _ProblemError("aliases expand to too many values", node.start_mark.line + 1)
        if deepest >= MAX_DEPTH:
            raise _ProblemError(f"aliases nest deeper than {MAX_DEPTH} levels", node.start_mark.line + 1)
        open_nodes.discard(key)
        known[key] = (total, deepest + 1)
        return known[key]

    measure(root)


def _yaml_message(exc: yaml.YAMLError, source: str) -> str:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    problem = getattr(exc, "problem", None) or str(exc).splitlines()[0]
    if problem == "but found another document":
        problem = "more than one document; keep one and drop the '---' before the next"
    where = f"{source}:{mark.line + 1}" if mark is not None else source
    return f"{where}: broken YAML: {str(problem)[:120]}"


def parse_json(text: str, *, source: str = "<text>") -> Any:
    """JSON text with the same bounds: duplicate keys refused, depth 50, no NaN or Infinity spelled as words."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise InputError(f"{source}: duplicate key {key[:60]!r}")
            found[key] = value
        return found

    def refuse(word: str) -> Any:
        raise InputError(f"{source}: {word} is not JSON")

    if len(text) > MAX_BYTES:
        raise InputError(f"{source}: larger than 8 MiB; this is not a file for pcie-sim")
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    except json.JSONDecodeError as exc:
        raise InputError(f"{source}:{exc.lineno}: broken JSON: {exc.msg}") from exc
    except RecursionError as exc:
        raise InputError(f"{source}: {_TOO_DEEP}; look for brackets that are not closed") from exc
    except ValueError as exc:
        raise InputError(f"{source}: broken JSON: {str(exc)[:120]}") from exc
    if _depth(value) > MAX_DEPTH:
        raise InputError(f"{source}: {_TOO_DEEP}; look for brackets that are not closed")
    return value


def _depth(value: Any) -> int:
    level, layer = 0, [value]
    while layer:
        level += 1
        if level > MAX_DEPTH + 1:
            break
        children: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                children.extend(item.values())
            elif isinstance(item, list):
                children.extend(item)
        layer = [child for child in children if isinstance(child, dict | list)]
    return level


def line_of_key(text: str, keys: tuple[str | int, ...]) -> int | None:
    """Line (from 1) of the value at ``keys`` in YAML ``text``, for messages; None when it cannot be found.

    Reads no further than the value: of a file that is refused for its size, not the whole.
    """
    events: Any = yaml.parse(text, Loader=_Loader)
    try:
        return _line_at(events, keys)
    except (yaml.YAMLError, _ProblemError, RecursionError, StopIteration):
        return None
    finally:
        events.close()


def _line_at(events: Any, keys: tuple[str | int, ...]) -> int | None:
    event = next(events)
    while isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
        event = next(events)
    line: int | None = None
    for key in keys:
        if isinstance(event, yaml.StreamEndEvent):
            return line
        line = _line(event) if line is None else line
        if isinstance(event, yaml.MappingStartEvent):
            name = next(events)
            while not (isinstance(name, yaml.ScalarEvent) and name.value == str(key)):
                if isinstance(name, yaml.MappingEndEvent):
                    return line
                _skip(name, events)
                _skip(next(events), events)
                name = next(events)
            line, event = _line(name), next(events)
        elif isinstance(event, yaml.SequenceStartEvent) and isinstance(key, int):
            event = next(events)
            for _ in range(key):
                if isinstance(event, yaml.SequenceEndEvent):
                    return line
                _skip(event, events)
                event = next(events)
            if isinstance(event, yaml.SequenceEndEvent):
                return line
            line = _line(event)
        else:
            return line
    return line


def _skip(event: Any, events: Any) -> None:
    """Pass over what ``event`` begins."""
    depth = int(isinstance(event, yaml.CollectionStartEvent))
    while depth:
        inside = next(events)
        depth += isinstance(inside, yaml.CollectionStartEvent) - isinstance(inside, yaml.CollectionEndEvent)
