"""Serve commands in compose and Kubernetes files: containers with their command, environment and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.importers.serve_env import Settings
from pcie_sim.importers.serve_tokens import ASSIGN, MAX_COMMAND, SERVER, UNCLOSED, Command, split, unwrapped
from pcie_sim.importers.source import MAX_LINE, SourceText
from pcie_sim.specs.loader import parse_yaml

_MAX_VALUES = 50_000
_MAX_DOCUMENTS = 64
_MAX_WORDS = 2_000
_MAX_SETTINGS = 10_000
_LISTED = re.compile(r"^\s{0,40}(?:-\s{1,8})?(?:command|args|entrypoint|image)\s{0,4}:")
_ELSEWHERE = ("env_file", "envFrom", "extends")
"""Keys that bring settings of another file in."""


@dataclass
class Containers:
    """The commands of a file's containers. ``broken``: the first line of what names a server and is no YAML that can be read."""

    commands: list[Command] = field(default_factory=list)
    broken: int | None = None


def find_containers(source: SourceText, *, most: int) -> Containers:
    """Every container of a YAML text that starts a server; nothing where no line looks like a container's."""
    found = Containers()
    if not any(_LISTED.match(line) for line in source.lines):
        return found
    documents, beyond = _documents(source)
    for first, text in documents:
        if not SERVER.search(text) and "serve" not in text and "launch_server" not in text:
            continue
        try:
            data = parse_yaml(text, source=source.name, most=(_MAX_VALUES, "no file that starts a server has as many"))
        except InputError:
            if SERVER.search(text) and found.broken is None:
                found.broken = first
            continue
        merges = Merges()
        for holder in _holders(merges.resolved(data)):
            command = _from_mapping(holder, first)
            if command is not None:
                command.line = next((first + i for i, one in enumerate(text.split("\n")) if SERVER.search(one)), first)
                command.cut = command.cut or any(len(one) >= MAX_LINE for one in text.split("\n"))
                if merges.left:
                    command.note("ignored", f"{merges.left} merge keys (<<) whose value is no mapping are left out")
                if beyond:
                    command.note("cut", f"only the first {_MAX_DOCUMENTS} YAML documents are read")
                found.commands.extend(unwrapped(command))
    found.commands = found.commands[:most]
    return found


def _documents(source: SourceText) -> tuple[list[tuple[int, str]], bool]:
    """(first line, text) of every document, and whether there are more than are read."""
    documents: list[tuple[int, str]] = []
    start = 1
    lines: list[str] = []
    for number, one in enumerate([*source.lines, "---"], 1):
        if one.strip() != "---":
            lines.append(one)
        elif len(documents) >= _MAX_DOCUMENTS:
            return documents, True
        else:
            documents.append((start, "\n".join(lines)))
            start, lines = number + 1, []
    return documents, False


class Merges:
    """Parsed YAML with its merge keys resolved (``<<: *a``, ``<<: [*a, *b]``): a mapping's own keys win, then the earlier mapping.

    What several aliases share is resolved once, so the work is bounded by what the loader allows (50 levels, 100 aliases).
    """

    def __init__(self) -> None:
        self.left = 0
        """Merge keys whose value is no mapping."""
        self._known: dict[int, Any] = {}

    def resolved(self, node: Any) -> Any:
        """``node`` without merge keys; what has none inside is the same data again."""
        if not isinstance(node, dict | list):
            return node
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = self._mapping(node) if isinstance(node, dict) else [self.resolved(one) for one in node]
        return known

    def _mapping(self, node: Mapping[Any, Any]) -> dict[Any, Any]:
        found = {key: self.resolved(value) for key, value in node.items() if key != "<<"}
        if "<<" in node:
            value = node["<<"]
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, dict):
                    self.left += 1
                    continue
                for key, inside in self.resolved(one).items():
                    found.setdefault(key, inside)
        return found


def _holders(data: Any) -> Iterator[Mapping[str, Any]]:
    """Mappings with a command or an image, anywhere in a file (of a compose file not its ``x-`` templates, which start nothing)."""
    if isinstance(data, dict) and isinstance(data.get("services"), dict):
        data = {key: value for key, value in data.items() if not str(key).startswith("x-")}
    layer, seen = [data], 0
    while layer and seen < 100_000:
        item = layer.pop()
        seen += 1
        if isinstance(item, dict):
            if any(key in item for key in ("command", "args", "image", "entrypoint")):
                yield item
            layer.extend(reversed(list(item.values())))
        elif isinstance(item, list):
            layer.extend(reversed(item[:10_000]))


def _from_mapping(holder: Mapping[str, Any], line: int) -> Command | None:
    words: list[str] = []
    command = Command(words, line)
    image = holder.get("image")
    if isinstance(image, str):
        words.append(image)
        command.image = image
    for key in ("entrypoint", "command", "args"):
        value = holder.get(key)
        if isinstance(value, str):
            command.cut = command.cut or len(value) > MAX_COMMAND
            more, broken = split(re.sub(r"\\\s*(?:\n|$)", " ", value))
            words.extend(more)
            if broken:
                command.note("assumed", UNCLOSED)
        elif isinstance(value, list):
            command.cut = command.cut or len(value) > _MAX_WORDS
            words.extend(str(one) for one in value[:_MAX_WORDS] if isinstance(one, str | int | float))
    if not SERVER.search(" ".join(words[: 2 * _MAX_WORDS])[: 2 * MAX_COMMAND]):
        return None
    for key in ("environment", "env"):
        _environment(holder.get(key), command.env)
    for key in _ELSEWHERE:
        if holder.get(key):
            command.note("ignored", f"{key}: settings that come from elsewhere are not known here")
    command.gpus = _yaml_gpus(holder)
    return command


def _environment(value: Any, env: Settings) -> None:
    if isinstance(value, dict):
        env.update({str(name): str(one) for name, one in value.items() if isinstance(one, str | int | float)})
    elif isinstance(value, list):
        for one in value[:_MAX_SETTINGS]:
            if isinstance(one, str) and (match := ASSIGN.fullmatch(one)) is not None:
                env.set(match.group(1), match.group(2))
            elif isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("value"), str | int | float):
                env.set(one["name"], str(one["value"]))


def _yaml_gpus(holder: Mapping[str, Any]) -> int | None:
    """GPUs of a container: Kubernetes' resource limits, compose's device reservations."""
    resources = holder.get("resources")
    deploy = holder.get("deploy")
    if isinstance(deploy, dict) and isinstance(deploy.get("resources"), dict):
        resources = deploy["resources"]
    if not isinstance(resources, dict):
        return None
    for part in ("limits", "requests", "reservations"):
        inside = resources.get(part)
        if not isinstance(inside, dict):
            continue
        for key in ("nvidia.com/gpu", "amd.com/gpu"):
            count = inside.get(key)
            if isinstance(count, int | str) and str(count).isdecimal() and len(str(count)) < 5:
                return int(count) or None
        for device in inside.get("devices") or [] if isinstance(inside.get("devices"), list) else []:
            if isinstance(device, dict):
                ids, count = device.get("device_ids"), device.get("count")
                if isinstance(ids, list) and ids:
                    return min(len(ids), 9999)
                if isinstance(count, int) and not isinstance(count, bool) and 1 <= count < 10_000:
                    return count
    return None
