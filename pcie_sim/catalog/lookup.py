"""Names: which exist, which file a name means, and what is a name at all."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from pcie_sim.errors import InputError, UnknownNameError, nearest, unknown_name
from pcie_sim.specs.loader import parse_yaml, read_text

Kind = Literal["gpus", "models", "parts", "runtimes", "profiles"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ALIAS_FILE = "_aliases.yaml"

_WORD: dict[Kind, str] = {"gpus": "GPU", "models": "model", "parts": "part", "runtimes": "runtime", "profiles": "profile"}
_COMMAND: dict[Kind, str] = {"gpus": "pcie-sim gpu list", "models": "pcie-sim model list"}
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,79}")
_PATH_ENDINGS = (".yaml", ".yml", ".json", ".txt", ".xml", ".log")


def is_path(text: str) -> bool:
    """True when ``text`` is a file and not a name: it holds a ``/`` or ends in .yaml .yml .json .txt .xml .log.

    >>> is_path("rtx-pro-6000"), is_path("./box"), is_path("box.YAML"), is_path("kimi-k2.6")
    (False, True, True, False)
    """
    return "/" in text or os.sep in text or text.lower().endswith(_PATH_ENDINGS)


def normalise(name: str) -> str:
    """The spelling under which names are compared: lower case, ``-`` for ``_``.

    >>> normalise("RTX_Pro_6000")
    'rtx-pro-6000'
    """
    return name.strip().lower().replace("_", "-")


def is_name(key: str) -> bool:
    """True when the normalised ``key`` can be a name (so it is never a path, a hidden file or thousands of characters)."""
    return _NAME.fullmatch(key) is not None


def folder(kind: Kind) -> Path:
    """The folder of the shipped files of ``kind``."""
    return Path(__file__).parent / kind


def file_of(kind: Kind, name: str) -> Path:
    """The file of the canonical ``name``; it need not exist."""
    return folder(kind) / f"{name}.yaml"


def stems(directory: Path) -> tuple[str, ...]:
    """Stems of the YAML files of a folder, sorted, generated ones (``_...``) left out; none when there is no folder."""
    return tuple(sorted(path.stem for path in directory.glob("*.yaml") if is_name(normalise(path.stem)) and path.stem[0] != "_"))


@lru_cache(maxsize=len(KINDS))
def names(kind: Kind) -> tuple[str, ...]:
    """Canonical names of ``kind``, sorted. Lists the folder, reads no file.

    Raises:
        InputError: an unknown kind.
    """
    if kind not in KINDS:
        raise InputError(f"unknown kind {str(kind)[:40]!r}; use one of {', '.join(KINDS)}")
    return stems(folder(kind))


@lru_cache(maxsize=len(KINDS))
def aliases(kind: Kind) -> dict[str, str]:
    """Normalised alias -> canonical name, from the folder's generated index; empty where there is none."""
    path = folder(kind) / ALIAS_FILE
    if not path.is_file():
        return {}
    found = parse_yaml(read_text(path), source=str(path))
    return {str(alias): str(name) for alias, name in (found or {}).items()}


@lru_cache(maxsize=1024)
def resolve(kind: Kind, name: str) -> str:
    """The canonical name that ``name`` (a name or an alias, any case) means.

    Raises:
        UnknownNameError: nothing of that name; the message offers the nearest three.
    """
    key = normalise(name)
    if is_name(key):
        if file_of(kind, key).is_file():
            return key
        known = aliases(kind).get(key)
        if known is not None:
            return known
    raise _unknown(kind, name)


def _unknown(kind: Kind, name: str) -> UnknownNameError:
    """Nearest by name or alias, told by canonical name."""
    spellings = {**aliases(kind), **{stem: stem for stem in names(kind)}}
    asked = normalise(name)[:80]
    ranked = nearest(asked, spellings, count=len(spellings)) if asked else sorted(spellings)
    close = list(dict.fromkeys(spellings[spelling] for spelling in ranked))[:3]
    return unknown_name(_WORD[kind], name[:80], close, command=_COMMAND.get(kind))
