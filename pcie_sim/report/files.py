"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pcie_sim.errors import InputError


def check_target(path: str, what: str) -> Path:
    """``path`` as a file that can be written.

    Raises:
        InputError: empty, ``-``, a folder, or its folder does not exist.
    """
    if not path.strip() or "\0" in path:
        raise InputError(f"{what}: give a file name, not {path[:40]!r}")
    if path == "-":
        raise InputError(f"{what} -: give a file name; use --json to print it")
    if path.endswith(("/", os.sep)):
        raise InputError(f"{what} {path}: this names a folder; give a file name")
    target = Path(path)
    try:
        if target.is_dir():
            raise InputError(f"{what} {path}: this is a folder; give a file name")
        if not target.absolute().parent.is_dir():
            raise InputError(f"{what} {path}: folder {target.parent} does not exist; make it first")
    except OSError as exc:
        raise InputError(f"{what} {path[:80]}: {exc.strerror or exc}") from exc
    return target


def same_file(a: str | Path, b: str | Path) -> bool:
    """Whether two paths are one file, by whatever links they lead to it; it need not exist."""
    try:
        return Path(a).resolve() == Path(b).resolve() or Path(a).samefile(b)
    except (OSError, ValueError, RuntimeError):  # not there yet, no path at all, or links in a circle
        return False


def write_whole(path: str, content: bytes, *, what: str) -> Path:
    """Write ``content`` beside the target and move it there, so that nobody ever reads half a file.

    Devices and pipes (``/dev/null``) are written to as they are.

    Raises:
        InputError: the target cannot be written.
    """
    target = check_target(path, what)
    try:
        if target.exists() and not target.is_file():
            _into(target, content)
        else:
            _replace(target.resolve(), content)
    except OSError as exc:
        raise InputError(f"{what} {path}: cannot write it ({exc.strerror or exc})") from exc
    return target


def _into(target: Path, content: bytes) -> None:
    """Write to a device or pipe; a pipe that nobody reads is an error at once instead of a wait for ever."""
    handle = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)


def _replace(target: Path, content: bytes) -> None:
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        part.chmod(mode)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)  # there is no way to read it without setting it
    os.umask(current)
    return current
