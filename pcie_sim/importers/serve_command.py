"""Serve command lines of SGLang and vLLM (shell, docker, compose, Kubernetes, systemd) into strategy, engine and library settings.

The text is only taken apart, never run. Tokens, keys, addresses and folders of people are not kept.
"""

from __future__ import annotations

import re
from typing import cast

from pcie_sim.errors import InputError
from pcie_sim.importers.imported import Imported, Launch, importer
from pcie_sim.importers.serve_env import MAX_LIBRARY, VISIBLE, Settings
from pcie_sim.importers.serve_flags import (
    Options,
    eager,
    fraction,
    parse_options,
    sglang_strategy,
    speculation,
    tokens,
    trtllm_strategy,
    vllm_strategy,
    whole,
)
from pcie_sim.importers.serve_logged import logged, logged_options
from pcie_sim.importers.serve_privacy import is_engine_setting, kept, kept_model, kept_setting, kept_word, matters
from pcie_sim.importers.serve_tokens import MAX_COMMAND, MAX_COMMANDS, SERVER, Command, shell_commands, unlisted
from pcie_sim.importers.serve_yaml import find_containers
from pcie_sim.importers.source import Remark, RemarkKind, SourceText, quoted
from pcie_sim.specs.strategy import parse_strategy

_ENGINES = {
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "tensorrt_llm.commands.serve": "trtllm",
    "trtllm-serve": "trtllm",
    "llama-server": "llama.cpp's llama-server",
    "text-generation-launcher": "Text Generation Inference",
}
_WORDS = (
    "serve",
    "launch_server",
    "api_server",
    "text-generation-launcher",
    "vllm-openai",
    "lmsysorg/sglang",
    "server_args=",
    "non-default args",
    "args: Namespace(",
)
_USED = frozenset({"model", "model-path", "m", "speculative-config", "sc", "compilation-config", "O", "config"})
"""Options that are read and not kept as they stand (their values are names or JSON)."""


def sniff(source: SourceText) -> int | None:
    """The first line with a serve command, or with the options that an engine logs at its start."""
    if not any(word in source.raw for word in _WORDS):
        return None
    for number, line in enumerate(source.lines, 1):
        if not any(word in line for word in _WORDS):
            continue
        if SERVER.search(unlisted(line)) or logged(line):
            return number
        if "launch_server" in line or line.strip().strip("\"'-, ") == "serve":  # a list with one word per line
            return number if _listed(source, number) else None
    return None


def _listed(source: SourceText, number: int) -> bool:
    near = " ".join(line.strip().strip("\"'-, ") for line in source.lines[max(0, number - 4) : number])
    return SERVER.search(near) is not None


@importer("serve-command", "SGLang or vLLM serve command", sniff=sniff)
def read(source: SourceText) -> Imported:
    """The first serve command of the text.

    Raises:
        InputError: no command with options, an engine that is not modelled, a number that is none, or a strategy that cannot be.
    """
    commands = _commands(source)
    located = [
        (command, place) for command in commands if (place := _locate(command)) is not None and (command.cut or _is_command(place[1]))
    ]
    if not located:
        line = sniff(source)
        raise source.error("names a server and holds no command line that starts one; paste the whole command", line)
    command, (runtime, rest) = located[0]
    if runtime not in ("sglang", "vllm", "trtllm"):
        raise source.error(f"{runtime}: this engine is not modelled (modelled: SGLang, vLLM)", command.line)
    if command.cut:
        raise source.error(
            f"this command is longer than {MAX_COMMAND:,} characters, so its end is not read; shorten it to the options that matter",
            command.line,
        )
    launch, remarks = _launch(source, command, runtime, rest)
    if len(located) > 1:
        more = f"{len(located) - 1} {'or ' if len(commands) >= MAX_COMMANDS else ''}more serve commands; only the first is read"
        remarks.append(source.remark("ignored", more, located[1][0].line))
    return Imported(source.name, ("serve-command",), launch=launch, remarks=tuple(remarks))


def _commands(source: SourceText) -> list[Command]:
    """The commands of containers, of shell lines, or those that an engine logged."""
    containers = find_containers(source, most=MAX_COMMANDS)
    if containers.commands:
        return containers.commands
    commands = shell_commands(source)
    if containers.broken is not None:
        for command in commands[:1]:
            text = f"the container at line {containers.broken} is no YAML that can be read: its environment and GPUs are not known"
            command.note("ignored", text)
    return commands or logged_options(source)


def _locate(command: Command) -> tuple[str, list[str]] | None:
    """(engine, the words behind the command's own), None where no server is started here."""
    words = command.words
    for index, word in enumerate(words):
        base = word.rpartition("/")[2]
        behind = words[index + 1] if index + 1 < len(words) else ""
        if base in ("vllm", "sglang") and behind == "serve":
            return base, words[index + 2 :]
        if base == "lmdeploy" and behind == "serve":
            return "LMDeploy", words[index + 2 :]
        if base in _ENGINES or word in _ENGINES:
            return _ENGINES.get(base) or _ENGINES[word], words[index + 1 :]
    for index, word in enumerate(words):  # an image whose entry point is the server
        if re.search(r"vllm-openai(?::|@|$)", word) and index + 1 < len(words):
            return "vllm", words[index + 1 :]
    return None


def _is_command(words: list[str]) -> bool:
    """Prose that names a server has words behind it and no options."""
    return len(words) == 1 or any(word.startswith(("-", "\u2013", "\u2014")) for word in words)


def _launch(source: SourceText, command: Command, runtime: str, rest: list[str]) -> tuple[Launch, list[Remark]]:
    options = parse_options(rest, runtime=runtime)

    def error(message: str) -> InputError:
        return source.error(message, command.line)

    model = _model(options)
    env = command.env
    if runtime == "sglang":
        text = sglang_strategy(options, model, error)
    elif runtime == "vllm":
        text = vllm_strategy(options, env.get("VLLM_ALL2ALL_BACKEND"), model, error)
    else:
        text = trtllm_strategy(options, error)
        options.note("assumed", "trtllm-serve: TensorRT-LLM is not modelled; the generic engine's rules are taken")
    try:
        strategy = parse_strategy(text)
    except InputError as exc:
        raise error(str(exc)) from exc
    gpus = _gpus(command)
    if gpus is not None and gpus < strategy.world:
        options.note("conflict", f"{strategy.canonical} needs {strategy.world} GPUs and {gpus} are visible to the command")
    if (whole(options, "nnodes", error) or 1) > 1:
        options.note("note", "--nnodes above 1: the strategy is that of all nodes together")
    if "config" in options.values:
        options.note("ignored", "--config: options in that file are not known here")
    for kind, text in dict.fromkeys(command.notes):
        options.note(kind, text)
    launch = Launch(
        runtime="generic" if runtime == "trtllm" else runtime,
        strategy=strategy.canonical,
        model=model,
        context=_context(options),
        max_running=whole(options, "max-running", error, most=1_000_000),
        mem_fraction=_fraction(options),
        launch="eager" if eager(options) else None,
        kv_dtype=_word(options, "kv-dtype"),
        quantisation=_word(options, "quantization"),
        custom_all_reduce=False if options.on("disable-custom-all-reduce") else None,
        env=_library(options, env),
        options=_kept_options(options, env),
        speculation=speculation(options),
        gpus=gpus,
    )
    return launch, [source.remark(cast(RemarkKind, kind), text, command.line) for kind, text in dict.fromkeys(options.remarks)]


def _model(options: Options) -> str | None:
    stated = (options.values.get("model") or (options.positional[0] if options.positional else "")).strip()
    if not stated:
        options.note("ignored", "the command names no model")
        return None
    if "$" in stated:
        options.note("ignored", "the model is a variable of the shell: its name is not known")
        return None
    model = kept_model(stated.split()[0])
    if model is None:
        options.note("ignored", f"the model's name is not one: {quoted(kept('model', stated), 40)}")
    return model


def _context(options: Options) -> int | None:
    stated = options.values.get("context")
    found = tokens(stated)
    if stated and found is None and stated.lower() not in ("auto", "-1"):
        options.note("ignored", f"--{options.given['context']} {quoted(kept('context', stated), 30)} is no number of tokens")
    return found


def _fraction(options: Options) -> float | None:
    stated = options.values.get("mem-fraction")
    found = fraction(stated)
    if stated and found is None:
        options.note(
            "ignored", f"--{options.given['mem-fraction']} {quoted(kept('fraction', stated), 30)} is no fraction above 0 and up to 1"
        )
    return found


def _word(options: Options, name: str) -> str | None:
    text = options.values.get(name, "").split(" ")[0]
    return text.lower() if re.fullmatch(r"[A-Za-z0-9_.+-]{1,40}", text) and kept(name, text) == text else None


def _library(options: Options, env: Settings) -> dict[str, str]:
    """The settings of NCCL and RCCL that say nothing about anyone."""
    found = {name: value for name, stated in sorted(env.library.items()) if (value := kept_setting(name, stated)) is not None}
    if env.more:
        options.note("cut", f"more than {MAX_LIBRARY} settings of NCCL or RCCL: {env.more:,} more are not read")
    left = len(env.library) - len(found)
    if left:
        options.note("ignored", f"settings of files, plugins and interfaces, and values that are no short words, are not kept ({left})")
    return found


def _kept_options(options: Options, env: Settings) -> dict[str, str]:
    """Options under the names they were given, and the engine's own settings as ``env NAME``: those that a prediction may depend on."""
    found: dict[str, str] = {}
    left = 0
    for name, value in options.values.items():
        shown = kept_word(value) if matters(options.given[name]) else None
        if shown is not None:
            found[options.given[name]] = shown
        elif options.given[name] not in _USED:
            left += 1
    for name, value in sorted(env.others.items()):
        if name in VISIBLE:
            continue
        shown = kept_word(value) if is_engine_setting(name) else None
        if shown is not None:
            found[f"env {name}"] = shown
        else:
            left += 1
    if left:
        options.note("ignored", f"options and settings that are not read here, and values that are no short words, are not kept ({left})")
    return found


def _gpus(command: Command) -> int | None:
    for name in VISIBLE:
        listed = [
            one
            for one in command.env.get(name).split(",")
            if re.fullmatch(r"\s*(?:[0-9]{1,4}|GPU-[0-9a-fA-F-]{4,60}|MIG-\S{1,80})\s*", one)
        ]
        if listed:
            return min(len(listed), 4096)
    return command.gpus
