"""The few kinds of failure, sorted by what the user can do about them.

Every message is one or two lines: what is wrong, where (file and line, or key), and what to do. The command line turns
each kind into its exit code; anything else that escapes is a bug (exit code 70).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PcieSimError(Exception):
    """Base of every failure that pcie-sim raises on purpose.

    Attributes:
        exit_code: what the command line exits with for this kind.
    """

    exit_code: int = 70


class InputError(PcieSimError):
    """The question or a file is wrong: unknown name, bad value, broken file (exit code 2)."""

    exit_code = 2


class InfeasibleError(PcieSimError):
    """The question is sound and the answer is 'it does not fit' (exit code 1)."""

    exit_code = 1


class NoDataError(PcieSimError):
    """The question is sound but no data, or no model yet, answers it (exit code 3)."""

    exit_code = 3


class UnknownNameError(InputError):
    """A name that is not in the catalog; the message offers the nearest three."""


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """The ``count`` known names most like ``name``, best first.

    First a name with the same letters and digits (``kimi-k26`` finds ``kimi-k2.6`` before ``kimi-k2``), then by difflib's
    ratio on the lower-cased text, with names that contain (or are contained in) the asked one before the others, so that
    ``kimi`` finds ``kimi-k2.6`` before ``mimi``.
    """
    asked = name.lower()

    def letters(text: str) -> str:
        return "".join(char for char in text if char.isalnum())

    def score(candidate: str) -> tuple[bool, float, str]:
        low = candidate.lower()
        ratio = difflib.SequenceMatcher(None, asked, low).ratio()
        inside = bool(asked) and (asked in low or low in asked)
        return (letters(low) != letters(asked), -(ratio + (1.0 if inside else 0.0)), candidate)

    return sorted(set(known), key=score)[:count]


def unknown_name(kind: str, name: str, known: Iterable[str], *, command: str | None = None) -> UnknownNameError:
    """An :class:`UnknownNameError` that names the nearest three, and the command that lists them all."""
    shown = name if len(name) <= 60 else name[:57] + "..."
    close = nearest(name, known)
    text = f"unknown {kind} {shown!r}"
    if close:
        text += "; nearest: " + ", ".join(close)
    if command:
        text += f" (all: {command})"
    return UnknownNameError(text)
