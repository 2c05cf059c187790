"""The collective library's environment: values that change its choices, lists of algorithms and protocols.

Parsing as NVIDIA/nccl:src/graph/tuning.cc (parseList), src/graph/connect.cc and docs.nvidia.com's page of environment variables.
The variables that decide the transport (NCCL_P2P_LEVEL ...) are read in ``topology.policy``; remarks are made in ``settings_notes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pcie_sim.errors import InputError, unknown_name
from pcie_sim.specs.part import Algorithm, LibraryTuning, Protocol

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree")
_BY_LOWER: Mapping[str, Protocol] = {name.lower(): name for name in PROTOCOLS}
_OTHER_ALGORITHMS = ("collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree", "pat")
_OPS_IN_ENV = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_WARP = 32
_LEAST_THREADS = 64


def parse_protocol(text: str) -> Protocol | Literal["auto"]:
    """``auto``, ``LL``, ``LL128`` or ``Simple`` in any case.

    Raises:
        UnknownNameError: none of them.
    """
    low = text.lower()
    if low == "auto":
        return "auto"
    if low not in _BY_LOWER:
        raise unknown_name("protocol", text, ("auto", *PROTOCOLS))
    return _BY_LOWER[low]


def env_list(text: str, op: str) -> tuple[list[str], bool]:
    """The names in an NCCL_ALGO or NCCL_PROTO value that hold for ``op``, and whether they are excluded (``^``).

    From NCCL 2.24 a value may be a list per function: ``allreduce:LL;broadcast:Simple`` (a first entry without a function holds
    for all; empty ones, as after a last ``;``, are skipped).
    """
    chosen: tuple[list[str], bool] = ([], False)
    for entry in text.split(";"):
        if not entry.strip():
            continue
        head, colon, rest = entry.partition(":")
        if colon and _OPS_IN_ENV.get(head.strip().lower()) != op:
            continue
        names = (rest if colon else entry).strip()
        excluded = names.startswith("^")
        chosen = ([name.strip() for name in names.lstrip("^").split(",") if name.strip()], excluded)
    return chosen


@dataclass(frozen=True)
class Allowed:
    """Protocols and algorithms that may be picked for one op. ``ll128_listed``: NCCL_PROTO asks for LL128 by name."""

    protocols: tuple[Protocol, ...]
    algorithms: tuple[Algorithm, ...]
    ll128_listed: bool
    notes: tuple[str, ...]


def allowed(env: Mapping[str, str], op: str, tuning: LibraryTuning) -> Allowed:
    """What NCCL_PROTO and NCCL_ALGO leave for ``op``; LL128 is among the protocols, its own rule (off on PCIe) comes later."""
    protocols, listed, notes = _protocols(env.get("NCCL_PROTO", ""), op, tuning)
    algorithms, more = _algorithms(env.get("NCCL_ALGO", ""), op, tuning)
    return Allowed(protocols, algorithms, listed, (*notes, *more))


def _readable(key: str, text: str, tuning: LibraryTuning) -> tuple[str, tuple[str, ...]]:
    """The value, or nothing when it is a list per function and the version knows none."""
    if not tuning.lists_by_function and (";" in text or ":" in text):
        return "", (f"{key}={text[:40]}: lists per function are understood from NCCL 2.24 on; ignored here",)
    heads = [entry.partition(":")[0].strip() for entry in text.split(";") if ":" in entry]
    unknown = [head for head in heads if head.lower() not in _OPS_IN_ENV]
    if unknown:
        names = ", ".join(_OPS_IN_ENV)
        return text.strip(), (f"{key}={text[:40]}: {', '.join(unknown)[:40] or 'nothing'} is not a function ({names}), ignored",)
    return text.strip(), ()


def _protocols(text: str, op: str, tuning: LibraryTuning) -> tuple[tuple[Protocol, ...], bool, tuple[str, ...]]:
    value, notes = _readable("NCCL_PROTO", text, tuning)
    names, excluded = env_list(value, op)
    unknown = [name for name in names if name.lower() not in _BY_LOWER]
    if unknown:
        notes = (*notes, f"NCCL_PROTO={text[:40]}: {', '.join(unknown)[:40]} is not a protocol, ignored")
    listed = {_BY_LOWER[name.lower()] for name in names if name.lower() in _BY_LOWER}
    if not listed:
        return PROTOCOLS, False, notes
    kept = tuple(name for name in PROTOCOLS if (name in listed) != excluded)
    if not kept or (excluded and kept == ("LL128",)):
        return PROTOCOLS, False, (*notes, f"NCCL_PROTO={text[:40]} leaves no protocol, ignored")
    return kept, not excluded and "LL128" in listed, notes


def _algorithms(text: str, op: str, tuning: LibraryTuning) -> tuple[tuple[Algorithm, ...], tuple[str, ...]]:
    possible: tuple[Algorithm, ...] = tuning.algorithms if op == "all_reduce" else ("ring",)
    value, notes = _readable("NCCL_ALGO", text, tuning)
    names, excluded = env_list(value, op)
    low = [name.lower() for name in names]
    unknown = [name for name in low if name not in ALGORITHMS and name not in _OTHER_ALGORITHMS]
    if unknown:
        notes = (*notes, f"NCCL_ALGO={text[:40]}: {', '.join(unknown)[:40]} is not an algorithm, ignored")
    known = [name for name in low if name not in unknown]
    if not known:
        return possible, notes
    kept = tuple(name for name in possible if (name in known) != excluded)
    if kept:
        return kept, notes
    wanted = f"without {', '.join(known)}" if excluded else ", ".join(known)
    return ("ring",), (*notes, f"NCCL_ALGO={text[:40]}: {wanted[:40]} leaves nothing for {op} inside one box; ring used")


@dataclass(frozen=True)
class Limits:
    """Numbers from the environment, or the library's own; ``threads`` (of LL and Simple): None where it is silent. Bytes: ``buffer``
    of Simple, ``chunk`` of a send.
    """

    least_channels: int
    most_channels: int
    threads: int | None
    ll_threshold: float
    buffer: float
    chunk: float
    send_channels: int


def limits(env: Mapping[str, str], tuning: LibraryTuning) -> Limits:
    """Channels, threads, buffers and the send threshold that the environment asks for.

    Raises:
        InputError: a value that is not a whole number in range (the library would warn and use another).
    """
    top = tuning.most_channels
    least = max(_number(env, key, 1, top, 1) for key in ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"))
    most = min(_number(env, key, 1, top, top) for key in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"))
    threads = None
    if env.get("NCCL_NTHREADS", "").strip():
        threads = _number(env, "NCCL_NTHREADS", _LEAST_THREADS, max(tuning.threads.most.values()), _LEAST_THREADS)
        if threads % _WARP:
            raise InputError(f"NCCL_NTHREADS={threads}: expected a multiple of {_WARP}")
    return Limits(
        least_channels=least,
        most_channels=most,
        threads=threads,
        ll_threshold=_threshold(env, tuning),
        buffer=_number(env, "NCCL_BUFFSIZE", _LEAST_BUFFER, _MOST_BUFFER, int(tuning.buffer)),
        chunk=_number(env, "NCCL_P2P_PCI_CHUNKSIZE", _LEAST_BUFFER, _MOST_BUFFER, int(tuning.send_chunk)),
        send_channels=tuning.send_channels,
    )


_LEAST_BUFFER, _MOST_BUFFER = 1 << 10, 1 << 31


def _number(env: Mapping[str, str], key: str, low: int, high: int, default: int) -> int:
    text = env.get(key, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
        raise InputError(f"{key}={text[:20]!r}: expected a whole number from {low} to {high}")
    return int(text)


def _threshold(env: Mapping[str, str], tuning: LibraryTuning) -> float:
    text = env.get("NCCL_P2P_LL_THRESHOLD", "").strip()
    if not text:
        return tuning.p2p_ll_threshold
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise InputError(f"NCCL_P2P_LL_THRESHOLD={text[:20]!r}: expected a whole number of bytes")
    # the variable counts one of the two parts into which a message is cut; the part file's number the whole message
    return 2.0 * float(text)
