"""The ``pcie-sim`` program: verbs, exit codes, and every error in one or two lines.

Exit codes: 0 ok; 1 a finding (nothing fits); 2 bad input or usage; 3 no data answers the question; 70 a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import pcie_sim
from pcie_sim.cli import calibrate, collective, compare, demo, flows, gpu, model, predict, topology
from pcie_sim.cli.output import mute, say
from pcie_sim.cli.usage import shortened, usage_error
from pcie_sim.errors import InputError, PcieSimError

BUG = 70
INTERRUPTED = 130
"""128 + SIGINT, as shells do."""
_LINE = 500
"""Longest line of an error message."""

WELCOME = """\
pcie-sim {version}: which parallelism wins on a PCIe multi-GPU box, by how much, at which concurrency, and why
  pcie-sim demo            # the case it was built for, beside its measurements
  pcie-sim topology list   # the boxes that come with it
  pcie-sim compare --topology rtx-pro-6000-8x-2switch --model kimi-k2.6   # your own question
every verb and option: pcie-sim --help, pcie-sim compare --help"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,  # noqa: ARG001
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error (before or after the verb).")] = False,  # noqa: ARG001
) -> None:
    """Which parallelism wins on a PCIe multi-GPU box for LLM inference, by how much, at which concurrency, and why.

    Exit codes: 0 ok; 1 a finding (nothing fits); 2 bad input or usage; 3 no data answers the question; 70 a bug.
    """
    if context.invoked_subcommand is None:
        sys.stdout.write(WELCOME.format(version=pcie_sim.__version__) + "\n")


app.command("demo", short_help="The case it was built for, beside its measurements.")(demo.demo)
app.command("compare", short_help="Strategies against each other: who wins, by how much, why.")(compare.compare)
app.command("predict", short_help="One strategy at one concurrency, op by op.")(predict.predict)
app.command("collective", cls=collective.WithAlgorithms, short_help="The time of one collective call.")(collective.collective)
app.command("calibrate", short_help="A box's own constants, from its logs of nccl-tests.")(calibrate.calibrate)
app.command("flows", short_help="Explicit flows on explicit links, shared fairly.")(flows.flows)
app.add_typer(topology.app, name="topology")
app.add_typer(model.app, name="model")
app.add_typer(gpu.app, name="gpu")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises.

    Args:
        argv: arguments without the program's name; None for the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    _forgiving_streams()
    try:
        code = _version() if "--version" in arguments else _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as exc:
        mute(sys.stdout)
        return _fail(
            f"cannot write the answer ({exc.strerror or exc})" if exc.filename is None else f"{exc.filename}: {exc.strerror}", 2, debug
        )
    except PcieSimError as exc:
        return _fail(str(exc), exc.exit_code, debug)
    except Exception as exc:  # noqa: BLE001 - the last line of defence: usage errors of the library, and bugs
        usage = usage_error(exc, typer.main.get_command(app), arguments)
        if usage is not None:
            return _fail(usage, InputError.exit_code, debug)
        hint = "" if debug else "; run again with --debug for the traceback"
        return _fail(f"internal error: {type(exc).__name__}: {exc}{hint}", BUG, debug)
    return code


def _version() -> int:
    sys.stdout.write(f"pcie-sim {pcie_sim.__version__}\n")
    return 0


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not command.main(): that one handles closed pipes, interrupts and usage errors in its own way.
        with command.make_context("pcie-sim", arguments) as context:
            command.invoke(context)
    except typer.Exit as exc:
        return int(exc.exit_code)
    except typer.Abort as exc:
        raise KeyboardInterrupt from exc
    return 0


def _forgiving_streams() -> None:
    """A terminal without UTF-8 shows ``?`` for what it cannot, and a closed stream swallows what it gets, instead of failing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        say(traceback.format_exc())
    # No control character of a broken file reaches the terminal, and the message keeps to two lines.
    lines = ["".join(c if c.isprintable() else "?" for c in shortened(line))[:_LINE] for line in message.strip().splitlines()[:2]]
    say("error: " + "\n".join(lines or ["unknown"]))
    return code


def _reader_left() -> int:
    """The reader of our output (``head``, a closed pager) has what it wanted: no message, and none at exit either."""
    mute(sys.stdout)
    return 0
