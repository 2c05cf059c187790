"""Where a serve command stands in a text: shell lines, docker, compose and Kubernetes files, systemd units. Nothing is ever run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pcie_sim.errors import InputError
from pcie_sim.importers.source import SourceText
from pcie_sim.specs.loader import parse_yaml

MAX_COMMAND = 20_000
_MAX_COMMANDS = 200
_MAX_VALUES = 50_000
SERVER = re.compile(
    r"sglang\.launch_server|\bsglang\s{1,4}serve\b|\bvllm\s{1,4}serve\b|vllm\.entrypoints\.(?:openai\.)?api_server|\btrtllm-serve\b"
    r"|tensorrt_llm\.commands\.serve|\bllama-server\b|\btext-generation-launcher\b|\blmdeploy\s{1,4}serve\b|vllm/vllm-openai|lmsysorg/sglang"
)
"""What shows a serve command (on one line; a list of words puts them on several)."""
_LISTED = re.compile(r"^\s{0,40}(?:-\s{1,8})?(?:command|args|entrypoint|image)\s{0,4}:")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,79})=(.*)", re.DOTALL)
_END = ("|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>", "|&")
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " "})


@dataclass
class Command:
    """One command: its words, the environment that is set for it, the line it begins on."""

    words: list[str]
    line: int
    env: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None
    image: str = ""
    damaged: list[str] = field(default_factory=list)


def find_commands(source: SourceText) -> list[Command]:
    """Every command of the text that may be a server's, with the environment set before it."""
    if any(_LISTED.match(line) for line in source.lines[:20_000]):
        found = _from_yaml(source)
        if found:
            return found
    return _from_shell(source)


def _logical_lines(source: SourceText) -> Iterator[tuple[int, str, bool]]:
    """(first line, text, whether a continuation sign was followed by blanks): lines joined at a backslash (shell), back-tick or caret."""
    parts: list[str] = []
    size, start, loose = 0, 0, False
    for number, line in enumerate(source.lines, 1):
        text = line.translate(_QUOTES)
        stripped = text.strip()
        if stripped.startswith("#") and not SERVER.search(stripped):
            continue
        if not parts:
            start = number
        ended = stripped.rstrip("\\`^").rstrip() if stripped.endswith(("\\", " `", " ^")) else None
        piece = stripped if ended is None else ended
        if size < MAX_COMMAND:
            parts.append(piece[: MAX_COMMAND - size])
            size += len(piece) + 1
        if ended is not None:
            loose = loose or text.rstrip("\r\n") != text.rstrip()
            continue
        yield start, " ".join(parts), loose
        parts, size, loose = [], 0, False
    if parts:
        yield start, " ".join(parts), loose


def split(text: str) -> tuple[list[str], bool]:
    """Words of a shell line; True: its quotes do not close, so they were taken as ordinary characters."""
    try:
        return shlex.split(text[:MAX_COMMAND], comments=True), False
    except ValueError:
        return text[:MAX_COMMAND].replace('"', " ").replace("'", " ").split(), True


def _from_shell(source: SourceText) -> list[Command]:
    found: list[Command] = []
    env: dict[str, str] = {}
    for line, logical, loose in _logical_lines(source):
        if len(found) >= _MAX_COMMANDS:
            break
        is_server = SERVER.search(logical) is not None
        if not is_server and not re.match(r"(?:export\s|set\s|Environment=|[$>%]?\s{0,4}[A-Za-z_][A-Za-z0-9_]{0,79}=)", logical):
            continue
        text = re.sub(r"^(?:ExecStart=[-@:+!]{0,3}|Environment=|[$#>%]\s{1,4})", "", logical)
        words, broken = split(text)
        if not is_server:
            env.update(_assignments(words))
            continue
        command = Command(words, line, dict(env))
        if broken:
            command.damaged.append("quotes that do not close were taken as ordinary characters")
        if loose:
            command.damaged.append("blanks after a continuation sign: the lines were joined all the same")
        found.append(command)
    return [one for command in found for one in _unwrapped(command)]


def _assignments(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        if word in ("export", "set", "env", "$", "sudo", "-x"):
            continue
        match = _ASSIGN.fullmatch(word)
        if match is None:
            break
        if len(found) < 500:
            found[match.group(1)] = match.group(2)
    return found


def _unwrapped(command: Command) -> Iterator[Command]:
    """Take ``bash -c "..."``, assignments in front and docker's own options off the words."""
    words = command.words
    for index, word in enumerate(words[:-1]):
        if word in ("-c", "-lc", "-ec") and SERVER.search(words[index + 1]):
            inner, broken = split(re.sub(r"\s*(?:&&|;)\s*", " ; ", words[index + 1]))
            _docker(command, words[:index])
            for part in _parts(inner):
                if SERVER.search(" ".join(part)):
                    damaged = [*command.damaged, *(["quotes that do not close were taken as ordinary characters"] if broken else [])]
                    yield Command(_front(command, part), command.line, dict(command.env), command.gpus, command.image, damaged)
                    return
                command.env.update(_assignments(part))
    for part in _parts(words):
        if SERVER.search(" ".join(part)):
            _docker(command, part)
            yield Command(_front(command, part), command.line, dict(command.env), command.gpus, command.image, command.damaged)
            return
        command.env.update(_assignments(part))


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, split at ``;``, ``&&``, pipes and redirections (what follows a redirection is dropped)."""
    part: list[str] = []
    for word in words:
        ends = word.endswith(";") and len(word) > 1
        if word in _END or re.match(r"[0-9&]?>", word):
            if part:
                yield part
            part = []
        else:
            part.append(word.rstrip(";") if ends else word)
            if ends:
                yield part
                part = []
    if part:
        yield part


def _front(command: Command, words: list[str]) -> list[str]:
    """The words without assignments in front of them, which go into the environment."""
    for index, word in enumerate(words):
        match = _ASSIGN.fullmatch(word)
        if match is not None and not word.startswith("-"):
            command.env[match.group(1)] = match.group(2)
        elif word not in ("env", "sudo", "nohup", "exec", "time", "numactl", "export"):
            return words[index:]
    return []


def _docker(command: Command, words: list[str]) -> None:
    """Settings of ``docker run`` (also podman): environment, GPUs, image."""
    if not any(word.rpartition("/")[2] in ("docker", "podman", "nerdctl") for word in words[:6]):
        return
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        value = value or (words[index + 1] if index + 1 < len(words) else "")
        if name in ("-e", "--env"):
            match = _ASSIGN.fullmatch(value)
            if match is not None:
                command.env[match.group(1)] = match.group(2)
        elif word.startswith("-e") and (match := _ASSIGN.fullmatch(word[2:])) is not None and not word.startswith("--"):
            command.env[match.group(1)] = match.group(2)
        elif name == "--gpus":
            listed = re.search(r"device=([0-9,]{1,400})", word + " " + value)
            if listed is not None:
                command.gpus = len([one for one in listed.group(1).split(",") if one])
            elif value.isdecimal() and len(value) < 5:
                command.gpus = int(value) or None
        elif re.search(r"(?:vllm-openai|/sglang|/vllm)(?::|@|$)", word):
            command.image = word


def _from_yaml(source: SourceText) -> list[Command]:
    documents: list[tuple[int, str]] = []
    start = 1
    lines: list[str] = []
    for number, one in enumerate([*source.lines, "---"], 1):
        if one.strip() == "---" and len(documents) < 64:
            documents.append((start, "\n".join(lines)))
            start, lines = number + 1, []
        else:
            lines.append(one)
    found: list[Command] = []
    for first, text in documents:
        if not SERVER.search(text) and "serve" not in text and "launch_server" not in text:
            continue
        try:
            data = parse_yaml(text, source=source.name, most=(_MAX_VALUES, "no file that starts a server has as many"))
        except InputError:
            continue
        for holder in _holders(data):
            command = _from_mapping(holder, first)
            if command is not None:
                line = next((first + i for i, one in enumerate(text.split("\n")) if SERVER.search(one)), first)
                command.line = line
                found.extend(_unwrapped(command))
    return found[:_MAX_COMMANDS]


def _holders(data: Any) -> Iterator[Mapping[str, Any]]:
    """Mappings with a command or an image, anywhere in a file."""
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
    image = holder.get("image")
    if isinstance(image, str):
        words.append(image)
    damaged = []
    for key in ("entrypoint", "command", "args"):
        value = holder.get(key)
        if isinstance(value, str):
            more, broken = split(re.sub(r"\\\s*(?:\n|$)", " ", value))
            words.extend(more)
            if broken:
                damaged.append("quotes that do not close were taken as ordinary characters")
        elif isinstance(value, list):
            words.extend(str(one) for one in value[:2000] if isinstance(one, str | int | float))
    if not SERVER.search(" ".join(words[:4000])[: 2 * MAX_COMMAND]):
        return None
    env: dict[str, str] = {}
    for key in ("environment", "env"):
        value = holder.get(key)
        if isinstance(value, dict):
            env.update({str(name): str(one) for name, one in value.items() if isinstance(one, str | int | float)})
        elif isinstance(value, list):
            for one in value[:500]:
                if isinstance(one, str) and (match := _ASSIGN.fullmatch(one)) is not None:
                    env[match.group(1)] = match.group(2)
                elif isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("value"), str | int | float):
                    env[one["name"]] = str(one["value"])
    return Command(words, line, env, _yaml_gpus(holder), image if isinstance(image, str) else "", damaged)


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
