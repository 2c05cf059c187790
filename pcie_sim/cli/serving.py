"""``--serve FILE``: what a serve command says, for every option that was not typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from pcie_sim.cli.output import say
from pcie_sim.errors import InputError, UnknownNameError

ServeOption = Annotated[
    str | None,
    typer.Option("--serve", metavar="FILE", help="SGLang or vLLM command: model, strategy, engine and settings, unless given here."),
]


@dataclass(frozen=True)
class Asked:
    """The question, filled in."""

    model: str
    runtime: str
    strategy: str | None
    env: Mapping[str, str] | None
    launch: str | None
    mem_fraction: float | None
    max_running: int | None
    taken: tuple[str, ...] = field(default=())


def asked(
    verb: str,
    serve: str | None,
    *,
    model: str | None,
    runtime: str | None,
    strategy: str | None,
    env: dict[str, str] | None,
    launch: str | None,
    mem_fraction: float | None,
    max_running: int | None,
) -> Asked:
    """What was typed, and from the command in the file ``serve`` what was not. What was taken is said on standard error.

    Raises:
        InputError: no model in either, a file without a serve command, or a model that the catalog does not have.
    """
    if serve is None:
        if model is None:
            raise InputError(f"missing option --model (or --serve with a command that names one)\nsee: pcie-sim {verb} --help")
        return Asked(model, runtime or "sglang", strategy, env, launch, mem_fraction, max_running)
    from pcie_sim.study.imports import import_any

    found = import_any(serve)
    command = found.launch
    if command is None:
        raise InputError(f"--serve {serve}: no serve command in it (SGLang: sglang.launch_server, vLLM: vllm serve)")
    for remark in found.remarks:
        say(f"{remark.kind}: {remark}")
    taken = []
    if runtime is None:
        runtime = command.runtime
        taken.append(f"engine {runtime}")
    if model is None:
        model = _model_of(serve, command.model)
        taken.append(f"model {model}")
    if strategy is None:
        strategy = command.strategy
        taken.append(f"strategy {strategy}")
    if command.env:
        env = {**command.env, **(env or {})}
        taken.append(" ".join(f"{key}={value}" for key, value in command.env.items()))
    if launch is None and command.launch is not None:
        launch = command.launch
        taken.append(f"launch {launch}")
    if mem_fraction is None and command.mem_fraction is not None:
        mem_fraction = command.mem_fraction
        taken.append(f"memory fraction {mem_fraction:g}")
    if max_running is None and command.max_running is not None:
        max_running = command.max_running
        taken.append(f"at most {max_running} requests")
    if taken:
        say(f"from {serve}: {', '.join(taken)}")
    if command.speculation is not None:
        say(f"not predicted: speculative decoding ({command.speculation}); the answer is without it")
    return Asked(model, runtime, strategy, env, launch, mem_fraction, max_running, tuple(taken))


def _model_of(serve: str, name: str | None) -> str:
    """The catalog's name of a model as a command has it (``moonshotai/Kimi-K2.6``, a local folder)."""
    from pcie_sim import catalog

    if name is None:
        raise InputError(f"--serve {serve}: the command names no model; say it with --model")
    last = name.rstrip("/").rpartition("/")[2]
    try:
        return catalog.resolve("models", last)
    except UnknownNameError as exc:
        raise UnknownNameError(f"--serve {serve}: {exc}\nor give its config.json: --model config.json") from exc
