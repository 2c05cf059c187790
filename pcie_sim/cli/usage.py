"""Usage errors of the command-line library in this program's words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

_WORD = 120
"""Longest word of a message (a path, mostly)."""
_LIKE = 0.7
"""How much alike two options are, by difflib, before one is offered for the other."""
_PYDANTIC = {
    "valid integer": "expected a whole number",
    "valid number": "expected a number",
    "valid boolean": "expected true or false",
}


def shortened(line: str) -> str:
    """``line`` with every word of more than 120 characters cut in its middle.

    >>> len(shortened("x" * 5000 + ": no such file"))
    133
    """
    return re.sub(rf"\S{{{_WORD + 1},}}", lambda match: f"{match.group()[:80]}...{match.group()[3 + 80 - _WORD :]}", line)


def usage_error(exc: Exception, program: Any, arguments: Sequence[str]) -> str | None:
    """The message of an error of the command-line library, and which help to read; None for any other.

    Told by its shape: typer carries its own copy of click from 0.26 on and click itself before.

    Args:
        program: the command of the whole program.
        arguments: what was typed, without the program's name.
    """
    message = getattr(exc, "format_message", None)
    if message is None or not hasattr(exc, "exit_code"):
        return None
    path, command = _verb(program, arguments)
    option = getattr(exc, "option_name", None)
    if isinstance(option, str) and hasattr(exc, "possibilities"):
        text = f"no such option {option}{_offer(option, command)}"
    else:
        text = " ".join(str(message()).split()).rstrip(".")
        for theirs, ours in _PYDANTIC.items():
            text = re.sub(rf"Input should be a {theirs}.*", ours, text)
    return f"{text[:1].lower()}{text[1:]}\nsee: {path} --help"


def _verb(program: Any, arguments: Sequence[str]) -> tuple[str, Any]:
    """The verb that was typed, as far as it exists: ``pcie-sim topology show`` and its command."""
    path, command = "pcie-sim", program
    for word in arguments:
        below = getattr(command, "commands", {})
        if word.startswith("-") and below:
            continue
        if word not in below:
            break
        path, command = f"{path} {word}", below[word]
    return path, command


def _offer(option: str, command: Any) -> str:
    """The options of ``command`` that ``option`` may be meant for: alike, or begun alike."""
    known = [name for parameter in getattr(command, "params", ()) for name in parameter.opts if name.startswith("--")]
    like = difflib.get_close_matches(option, known, cutoff=_LIKE)
    like += [name for name in known if len(option) >= 5 and name.startswith(option) and name not in like]
    return f"; did you mean {' or '.join(like[:3])}?" if like else ""
