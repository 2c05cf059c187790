"""Where a serve command stands in a text of shell lines, docker commands and systemd units. Nothing is ever run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from pcie_sim.importers.serve_env import LIBRARY, Settings
from pcie_sim.importers.source import MAX_LINE, SourceText

MAX_COMMAND = 20_000
"""Characters of one command, its continued lines joined; a longer one is not read (what it ends with would be missing)."""
MAX_COMMANDS = 200
_MAX_SET = 20_000
"""Lines that set something and are read before the first command."""
SERVER = re.compile(
    r"sglang\.launch_server|\bsglang\s{1,4}serve\b|\bvllm\s{1,4}serve\b|vllm\.entrypoints\.(?:openai\.)?api_server|\btrtllm-serve\b"
    r"|tensorrt_llm\.commands\.serve|\bllama-server\b|\btext-generation-launcher\b|\blmdeploy\s{1,4}serve\b|vllm/vllm-openai|lmsysorg/sglang"
)
"""What shows a serve command (on one line; a list of words puts them on several)."""
ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,79})=(.*)", re.DOTALL)
_END = ("|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>", "|&")
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " "})
UNCLOSED = "quotes that do not close were taken as ordinary characters"


@dataclass
class Command:
    """One command: its words, the environment that is set for it, the line it begins on.

    ``notes``: (kind, text) of what was noticed. ``cut``: it is longer than is read.
    """

    words: list[str]
    line: int
    env: Settings = field(default_factory=Settings)
    gpus: int | None = None
    image: str = ""
    notes: list[tuple[str, str]] = field(default_factory=list)
    cut: bool = False

    def note(self, kind: str, text: str) -> None:
        """Keep a remark."""
        self.notes.append((kind, text))

    def inner(self, words: list[str]) -> Command:
        """The same with other words."""
        return Command(words, self.line, self.env.copy(), self.gpus, self.image, list(self.notes), self.cut)


@dataclass
class _Logical:
    """Lines joined at a backslash (shell), back-tick or caret. ``loose``: such a sign was followed by blanks."""

    line: int
    text: str
    loose: bool
    cut: bool


def _logical_lines(source: SourceText) -> Iterator[_Logical]:
    parts: list[str] = []
    size, start, loose, cut = 0, 0, False, False
    for number, line in enumerate(source.lines, 1):
        text = line.translate(_QUOTES)
        stripped = text.strip()
        if stripped.startswith("#") and not SERVER.search(stripped):
            continue
        start = start or number
        ended = stripped.rstrip("\\`^").rstrip() if stripped.endswith(("\\", " `", " ^")) else None
        piece = stripped if ended is None else ended
        cut = cut or size + len(piece) > MAX_COMMAND or len(line) >= MAX_LINE
        if piece and size < MAX_COMMAND:
            parts.append(piece[: MAX_COMMAND - size])
            size += len(piece) + 1
        if ended is not None:
            loose = loose or text.rstrip("\r\n") != text.rstrip()
            continue
        yield _Logical(start, " ".join(parts), loose, cut)
        parts, size, start, loose, cut = [], 0, 0, False, False
    if parts:
        yield _Logical(start, " ".join(parts), loose, cut)


def split(text: str) -> tuple[list[str], bool]:
    """Words of a shell line; True: its quotes do not close, so they were taken as ordinary characters."""
    try:
        return shlex.split(text[:MAX_COMMAND], comments=True), False
    except ValueError:
        return text[:MAX_COMMAND].replace('"', " ").replace("'", " ").split(), True


def unlisted(line: str) -> str:
    """A line without the signs of a list of words (``["vllm", "serve"]``), where it has one."""
    return re.sub(r"[\"',\[\]\s]{1,40}", " ", line) if "[" in line and "]" in line else line


def shell_commands(source: SourceText) -> list[Command]:
    """Every command of the text that may be a server's, with the environment set before it."""
    found: list[Command] = []
    env = Settings()
    env_cut = ""
    lines = 0
    for logical in _logical_lines(source):
        if len(found) >= MAX_COMMANDS:
            break
        listed = re.match(r"(?:CMD|ENTRYPOINT)\s{0,8}\[(.*)\]\s{0,8}$", logical.text)  # Dockerfile
        if listed is not None:
            logical.text = re.sub(r"([\"']),\s{0,8}", r"\1 ", listed.group(1))
        is_server = SERVER.search(logical.text if listed is None else unlisted(f"[{logical.text}]")) is not None
        if not is_server and not re.match(r"(?:export\s|set\s|Environment=|[$>%]?\s{0,4}[A-Za-z_][A-Za-z0-9_]{0,79}=)", logical.text):
            continue
        lines += not is_server
        if lines > _MAX_SET and not is_server:
            env_cut = env_cut or f"more than {_MAX_SET:,} lines of settings: from line {logical.line} on they are not read"
            continue
        text = re.sub(r"^(?:ExecStart=[-@:+!]{0,3}|Environment=|[$#>%]\s{1,4})", "", logical.text)
        words, broken = split(text)
        if not is_server:
            _assign(words, env)
            if logical.cut and any(one in logical.text for one in LIBRARY):
                env_cut = (
                    env_cut or f"the settings at line {logical.line} are longer than {MAX_COMMAND:,} characters: their end is not read"
                )
            continue
        command = Command(words, logical.line, env.copy(), cut=logical.cut)
        if broken:
            command.note("assumed", UNCLOSED)
        if logical.loose:
            command.note("assumed", "blanks after a continuation sign: the lines were joined all the same")
        if env_cut:
            command.note("cut", env_cut)
        found.append(command)
    return [one for command in found for one in unwrapped(command)]


def _assign(words: list[str], env: Settings) -> None:
    for word in words:
        if word in ("export", "set", "env", "$", "sudo", "-x"):
            continue
        match = ASSIGN.fullmatch(word)
        if match is None:
            break
        env.set(match.group(1), match.group(2))


def unwrapped(command: Command) -> Iterator[Command]:
    """Take ``bash -c "..."``, assignments in front and docker's own options off the words."""
    words = command.words
    for index, word in enumerate(words[:-1]):
        if word in ("-c", "-lc", "-ec") and SERVER.search(words[index + 1]):
            inner, broken = split(re.sub(r"\s*(?:&&|;)\s*", " ; ", words[index + 1]))
            _docker(command, words[:index])
            for part in _parts(inner):
                if SERVER.search(" ".join(part)):
                    if broken:
                        command.note("assumed", UNCLOSED)
                    yield command.inner(_front(command, part))
                    return
                _assign(part, command.env)
    for part in _parts(words):
        if SERVER.search(" ".join(part)):
            _docker(command, part)
            yield command.inner(_front(command, part))
            return
        _assign(part, command.env)


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
        match = ASSIGN.fullmatch(word)
        if match is not None and not word.startswith("-"):
            command.env.set(match.group(1), match.group(2))
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
        if name == "--env-file":
            command.note("ignored", "--env-file: settings that come from elsewhere are not known here")
        elif name in ("-e", "--env"):
            match = ASSIGN.fullmatch(value)
            if match is not None:
                command.env.set(match.group(1), match.group(2))
        elif word.startswith("-e") and (match := ASSIGN.fullmatch(word[2:])) is not None and not word.startswith("--"):
            command.env.set(match.group(1), match.group(2))
        elif name == "--gpus":
            listed = re.search(r"device=([0-9,]{1,400})", word + " " + value)
            if listed is not None:
                command.gpus = len([one for one in listed.group(1).split(",") if one])
            elif value.isdecimal() and len(value) < 5:
                command.gpus = int(value) or None
        elif re.search(r"(?:vllm-openai|/sglang|/vllm)(?::|@|$)", word):
            command.image = word
