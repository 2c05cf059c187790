"""Which transport the collective library uses between two GPUs of one box, and why.

Rules read from the libraries' sources: NVIDIA/nccl:src/graph/paths.cc (ncclGetLevel, ncclTopoCheckP2p) of tags 2.18 to 2.30,
NVIDIA/nccl:src/transport/shm.cc, ROCm/rccl:src/graph/paths.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.evidence import Evidence, weakest
from pcie_sim.specs.machine import CclSettings, SettingsSpec
from pcie_sim.specs.part import LibraryPart
from pcie_sim.topology.routes import PathType

LEVELS: tuple[str, ...] = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Path classes from near to far (NVIDIA/nccl:src/graph/topo.h, 2.30)."""
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
_PXB_SINCE = (2, 23)
"""From this version the default level is PXB on every CPU (2.23.4; before, by CPU vendor)."""
_SMALL_BOX = 2


@dataclass(frozen=True)
class Transport:
    """``P2P``, ``SHM`` (through host memory) or ``NET`` (cards or sockets), with one sentence why and how sure that is."""

    kind: Literal["P2P", "SHM", "NET"]
    reason: str
    evidence: Evidence


@dataclass(frozen=True)
class Pair:
    """What the decision needs to know about two GPUs and their box."""

    path_type: PathType
    cpu_vendor: Literal["amd", "intel", "arm", "other"]
    gpus_in_box: int
    """Of the communicator, on one host: the library sees no others and searches each host apart."""
    drivers: Sequence[tuple[str, Literal["yes", "no", "unknown"], Evidence]]
    """Name, stock driver's peer access and its evidence, for each of the two GPUs' models."""


def parse_level(text: str, key: str = "NCCL_P2P_LEVEL") -> str:
    """The path class that ``text`` means: a name, or the old integers (0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and above SYS).

    Raises:
        InputError: neither (the library would ignore it in silence).

    >>> parse_level("5"), parse_level("PXB")
    ('SYS', 'PXB')
    """
    if text in LEVELS:
        return text
    if re.fullmatch(r"[0-9]{1,9}", text):
        return _OLD_LEVELS[min(int(text), len(_OLD_LEVELS) - 1)]
    case = "; names are upper case" if text.upper() in LEVELS else ""
    raise InputError(f"{key}={text[:30]!r} is not a level{case}; use LOC, NVL, PIX, PXB, PHB, SYS or 0 to 5 (4 and above mean SYS)")


def env_text(env: Mapping[str, str], key: str) -> str | None:
    """The value of ``key``; None where it is not set or empty, which the library takes for the same (src/misc/param.cc)."""
    text = env.get(key, "")
    return text if text.strip() else None


def env_flag(env: Mapping[str, str], key: str) -> int:
    """The whole number in ``key``; 0 when it is not set or empty.

    Raises:
        InputError: anything else.
    """
    text = env_text(env, key)
    if text is None:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text.strip()):
        raise InputError(f"{key}={text[:30]!r} is not a whole number; use 0 or 1")
    return int(text)


def check_env(settings: SettingsSpec) -> None:
    """Refuse values of the variables that decide the transport which the library would not understand.

    Raises:
        InputError: names the variable.
    """
    if settings.ccl.name not in ("nccl", "rccl"):
        return
    for key in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"):
        env_flag(settings.env, key)
    for key in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        text = env_text(settings.env, key)
        if text is not None:
            parse_level(text, key)


def check_version(ccl: CclSettings) -> None:
    """Refuse versions that no release of the library has: major 0, or another major than those that its rules were read for.

    Raises:
        InputError: names the version and the range.
    """
    if ccl.name == "none":
        return
    span = None
    if ccl.name in catalog.names("parts"):
        tuning = catalog.load_typed_part(ccl.name, LibraryPart).tuning
        span = None if tuning is None else tuning.versions
    majors = range(1, 10_000) if span is None else range(int(span[0].split(".")[0]), int(span[1].split(".")[0]) + 1)
    if ccl.version_tuple[0] not in majors:
        known = "" if span is None else f"; the rules were read for {span[0]} to {span[1]}"
        raise InputError(f"collective library {ccl.name} {ccl.version}: there is no such version{known}")


def uses_sockets(env: Mapping[str, str]) -> bool:
    """The network goes by sockets whatever the cards: NCCL_IB_DISABLE, or NCCL_NET names the socket transport (any case).

    Raises:
        InputError: NCCL_IB_DISABLE is no number.
    """
    return env_flag(env, "NCCL_IB_DISABLE") != 0 or (env_text(env, "NCCL_NET") or "").strip().lower() == "socket"


def default_level(ccl: CclSettings, cpu_vendor: str, gpus_in_box: int) -> tuple[str, str]:
    """The library's level without environment, and the rule in words.

    NCCL >= 2.23: PXB, but SYS on x86 AMD where the communicator has at most two GPUs. NCCL <= 2.22 and RCCL: SYS, but PXB on Intel and
    Arm.
    """
    label = f"{ccl.name.upper()} {ccl.version}"
    if ccl.name == "nccl" and ccl.version_tuple[:2] >= _PXB_SINCE:
        if cpu_vendor == "amd" and gpus_in_box <= _SMALL_BOX:
            return "SYS", f"{label} allows SYS by default between at most {_SMALL_BOX} GPUs of an AMD box"
        return "PXB", f"{label} allows no more than PXB by default"
    if cpu_vendor in ("intel", "arm"):
        return "PXB", f"{label} allows no more than PXB by default on {cpu_vendor.capitalize()} CPUs"
    return "SYS", f"{label} allows SYS by default on {'AMD' if cpu_vendor == 'amd' else 'these'} CPUs"


def decide(settings: SettingsSpec, pair: Pair) -> Transport:
    """The transport of one pair.

    Driver and platform must grant peer access (``settings.p2p``; `auto` asks the GPUs' stock driver; an NVLink bridge needs no PCIe
    grant), and the pair must be within the library's level (NCCL_P2P_DISABLE=1 refuses all, else NCCL_P2P_LEVEL, else its default).
    What is refused goes through host memory, or over the network with NCCL_SHM_DISABLE; different hosts always do.

    Raises:
        InputError: an environment value that the library would not understand.
    """
    check_env(settings)
    if pair.path_type == "NET":
        return Transport("NET", "different hosts", "nominal")
    ccl = settings.ccl
    granted, why, evidence = _driver(settings, pair)
    if not granted:
        return _refused(settings, why, evidence)
    if ccl.name in ("nccl", "rccl"):
        level, rule = _level(settings, pair)
        if LEVELS.index(pair.path_type) > LEVELS.index(level):
            return _refused(settings, f"{rule}, the pair is {pair.path_type}", "nominal")
        return Transport("P2P", f"{rule}, the pair is {pair.path_type}; {why}", weakest(("nominal", evidence)))
    if ccl.name == "none":
        return Transport("P2P", f"without a collective library the driver decides: {why}", evidence)
    return Transport("P2P", f"{ccl.name}'s own limits are not known: {why}", "assumed")


def _level(settings: SettingsSpec, pair: Pair) -> tuple[str, str]:
    if env_flag(settings.env, "NCCL_P2P_DISABLE") == 1:
        return "LOC", "NCCL_P2P_DISABLE=1 refuses peer-to-peer"
    text = env_text(settings.env, "NCCL_P2P_LEVEL")
    if text is not None:
        level = parse_level(text)
        return level, f"NCCL_P2P_LEVEL={text} allows up to {level}"
    return default_level(settings.ccl, pair.cpu_vendor, pair.gpus_in_box)


def _driver(settings: SettingsSpec, pair: Pair) -> tuple[bool, str, Evidence]:
    """Whether driver and platform grant peer access, in words, and the evidence of that."""
    if settings.p2p == "off":
        return False, "p2p: off (driver or platform refuses peer access)", "nominal"
    if pair.path_type == "NVL":
        return True, "an NVLink bridge needs no PCIe peer access", "nominal"
    if settings.p2p == "on":
        modified = sorted({name for name, stock, _ in pair.drivers if stock == "no"})
        extra = f", which for {' and '.join(modified)} means a modified driver" if modified else ""
        return True, f"p2p: on (driver and platform grant peer access{extra})", "nominal"
    evidence = weakest(label for _, _, label in pair.drivers)
    for name, stock, label in pair.drivers:
        if stock == "no":
            return False, f"the stock driver grants no PCIe peer access on {name} (p2p: on if it is modified)", label
    unknown = sorted({name for name, stock, _ in pair.drivers if stock == "unknown"})
    if unknown:
        return (
            True,
            f"peer access of the stock driver on {' and '.join(unknown)} is not known: assumed (p2p: on or off settles it)",
            "assumed",
        )
    return True, "the stock driver grants peer access", evidence


def _refused(settings: SettingsSpec, why: str, evidence: Evidence) -> Transport:
    if settings.ccl.name in ("nccl", "rccl") and env_flag(settings.env, "NCCL_SHM_DISABLE") != 0:
        return Transport("NET", f"{why}; NCCL_SHM_DISABLE leaves the network", evidence)
    return Transport("SHM", f"{why}: through host memory", evidence)
