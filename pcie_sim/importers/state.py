"""Settings of a box (peer access, ACS, IOMMU, payload, the collective library) from what files say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pcie_sim.importers.facts import MatrixFact
from pcie_sim.importers.gather import Gathered
from pcie_sim.importers.sketch import Sketch
from pcie_sim.importers.source import Remark, quoted
from pcie_sim.specs.machine import SettingsSpec

_ENV = re.compile(r"(?:NCCL|RCCL)_[A-Z0-9_]{1,70}")
_REFUSED = {"NS", "GNS", "CNS", "TNS", "DR", "DS"}
_WHERE = ("NCCL_SOCKET_IFNAME", "NCCL_HOSTID", "NCCL_COMM_ID", "NCCL_CONF_FILE")
_FILES = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
_ABOUT_P2P = ("", "r", "w", "p", "read", "write", "prop")


def settings_of(found: Gathered, sketch: Sketch) -> tuple[SettingsSpec, list[Remark]]:
    """The settings of a box made from files, and what was assumed, left out or contradictory on the way."""
    remarks: list[Remark] = []
    data: dict[str, Any] = {"p2p": _p2p(found, remarks) or "auto"}
    acs = _acs(found, sketch, remarks)
    data["acs"] = "on" if acs else "off"
    if acs is None:
        remarks.append(Remark("assumed", "ACS redirect: no file says it; off (`sudo lspci -vvv` says it: ACSCtl of the switch ports)"))
    data["iommu"] = "on" if found.iommu else "off"
    if found.iommu is None:
        remarks.append(Remark("assumed", "IOMMU translation: no file says it; off"))
    payload = _payload(sketch)
    if payload is not None:
        data["max_payload"] = payload
    version, name = _version(found, remarks)
    if version is not None:
        data["ccl"] = {"name": name, "version": version}
    else:
        text = "version of the collective library: no file says it; NCCL 2.28 (the first lines of an NCCL_DEBUG=INFO log say it)"
        remarks.append(Remark("assumed", text))
    env = _env(found, remarks)
    if env:
        data["env"] = env
    return _valid(data, remarks), remarks


def settings_over(own: SettingsSpec, found: Gathered) -> tuple[SettingsSpec, list[Remark]]:
    """The settings of a topology file with what logs, tables and commands of the box say is in force; each change is said.

    The library's version and variables and peer access come from the files; ACS, IOMMU and payload stay the topology's (the doctor
    compares them).
    """
    remarks: list[Remark] = []
    data = own.model_dump()
    p2p = _p2p(found, remarks)
    if p2p is not None and p2p != own.p2p:
        kind: Any = "note" if own.p2p == "auto" else "conflict"
        remarks.append(Remark(kind, f"peer access is {p2p} by the files; the topology says {own.p2p}: the files' is taken"))
        data["p2p"] = p2p
    version, name = _version(found, remarks)
    if version is not None and (version, name) != (own.ccl.version, own.ccl.name) and not version.startswith(own.ccl.version + "."):
        here = f"{own.ccl.name.upper()} {own.ccl.version}"
        remarks.append(Remark("note", f"the library is {name.upper()} {version} by the files, over the topology's {here}"))
        data["ccl"] = {"name": name, "version": version}
    env = _env(found, remarks)
    changed = {key: value for key, value in env.items() if own.env.get(key) != value}
    if changed:
        shown = ", ".join(f"{key}={quoted(value, 30)[1:-1]}" for key, value in list(changed.items())[:6])
        over = [key for key in changed if key in own.env]
        more = f" (over the topology's {', '.join(over)})" if over else ""
        remarks.append(Remark("conflict" if over else "note", f"in force by the files: {shown}{more}"))
        data["env"] = {**own.env, **env}
    return _valid(data, remarks), remarks


def _valid(data: dict[str, Any], remarks: list[Remark]) -> SettingsSpec:
    """The settings; one odd value of a log must not cost the whole box."""
    try:
        return SettingsSpec.model_validate(data)
    except ValidationError as exc:
        bad = {str(error["loc"][1]) for error in exc.errors() if error["loc"][0] == "env" and len(error["loc"]) > 1}
        remarks.append(Remark("ignored", f"values of {', '.join(sorted(bad)) or 'the library'} that are no plain text"))
        kept = {**data, "env": {key: value for key, value in data.get("env", {}).items() if key not in bad}}
        if not bad:
            kept.pop("ccl", None)
        return SettingsSpec.model_validate(kept)


def _p2p(found: Gathered, remarks: list[Remark]) -> str | None:
    """``on`` or ``off`` where files say so: the driver's tables before the connectivity test, before what a log shows in use; None else."""
    answers: list[tuple[bool, str, int | None]] = []
    matrices = [(matrix, source) for matrix, source in found.matrices if matrix.kind in ("p2p_status", "peer_access")]
    matrices.sort(key=lambda item: item[0].kind != "p2p_status")
    for matrix, source in matrices:
        if matrix.kind == "p2p_status" and matrix.access.lower() not in _ABOUT_P2P:
            continue
        known = [one for cell in _off_diagonal(matrix) if (one := _granted(cell)) is not None]
        if any(known) and not all(known):
            text = f"peer access is granted to {sum(known)} of {len(known)} ordered pairs: left to the driver's rule (p2p: auto)"
            remarks.append(Remark("conflict", text, source, matrix.line))
        elif known:
            answers.append((all(known), source, matrix.line))
    for ccl, source in found.ccl:
        if any(words.startswith("P2P") for words in ccl.transports.values()) and not _has_nvlink(found):
            answers.append((True, source, ccl.line))
    if not answers:
        return None
    first = answers[0]
    for other in answers[1:]:
        if other[0] != first[0]:
            text = f"peer access {'granted' if other[0] else 'refused'}; {first[1]} says otherwise and is kept"
            remarks.append(Remark("conflict", text, other[1], other[2]))
    return "on" if first[0] else "off"


def _has_nvlink(found: Gathered) -> bool:
    """NVLink shows as peer-to-peer in a log whatever PCIe does."""
    cells = (cell for matrix, _ in found.matrices if matrix.kind == "path" for row in matrix.cells for cell in row)
    return any(device.nvlinks for device in found.gpu_devices()) or any(isinstance(cell, str) and cell.startswith("NV") for cell in cells)


def _granted(cell: str | float | None) -> bool | None:
    if isinstance(cell, str):
        return True if cell == "OK" else False if cell in _REFUSED else None
    return None if cell is None else bool(cell)


def _off_diagonal(matrix: MatrixFact) -> list[str | float | None]:
    return [cell for i, row in enumerate(matrix.cells) for j, cell in enumerate(row) if i != j]


def _acs(found: Gathered, sketch: Sketch, remarks: list[Remark]) -> bool | None:
    """Whether traffic between siblings is redirected: a switch's downstream port above a GPU has request redirect on. None: not said.

    Redirect at a root port does not count: what passes it goes by the root complex anyway.
    """
    ports = {spot.port.key: spot.port for spot in sketch.spots if spot.port is not None}
    states = {key: port.acs_redirect for key, port in ports.items() if port.acs_redirect is not None}
    inner = {key: state for key, state in states.items() if ports[key].role == "downstream"}
    on = sorted(key for key, state in inner.items() if state)
    where = found.tree_source or ""
    if on and len(on) < len(inner):
        text = f"ACS redirect is on at {len(on)} of {len(inner)} switch ports above GPUs ({', '.join(on[:4])}): taken as on"
        remarks.append(Remark("note", text, where))
    roots = sorted(key for key, state in states.items() if state and key not in inner)
    if roots and not on:
        text = f"ACS redirect is on at root ports only ({', '.join(roots[:4])}): peers below one switch are not redirected, taken as off"
        remarks.append(Remark("note", text, where))
    return bool(on) if states else found.acs_redirect


def _payload(sketch: Sketch) -> int | None:
    sizes = [spot.device.max_payload for spot in sketch.spots if spot.device is not None and spot.device.max_payload is not None]
    least = min(sizes, default=None)
    return least if least in (128, 256, 512) else None


def _version(found: Gathered, remarks: list[Remark]) -> tuple[str | None, str]:
    """The library's version as logs say it, else as test tables do; another one of another file is a contradiction."""
    said: dict[str, tuple[str, str]] = {}
    for ccl, source in found.ccl:
        if ccl.version is not None:
            said.setdefault(_short(ccl.version), (source, ccl.name))
    for measured, source in found.measurements:
        version = measured.software.ccl.version
        if version is not None:
            said.setdefault(_short(version), (source, "rccl" if (measured.software.ccl.name or "").lower() == "rccl" else "nccl"))
    said = {version: where for version, where in said.items() if version}
    if not said:
        return None, next((ccl.name for ccl, _ in found.ccl), "nccl")
    (first, (source, name)), *others = said.items()
    if others:
        more = ", ".join(f"{version} ({where})" for version, (where, _) in others[:3])
        remarks.append(Remark("conflict", f"collective library {first} ({source}) and {more}: the first is kept"))
    return first, name


def _short(version: str) -> str:
    """``2.28.9`` of ``2.28.9+cuda13.0``; empty where it is no version."""
    match = re.match(r"[0-9]{1,4}\.[0-9]{1,3}(?:\.[0-9]{1,3})?", version)
    return match.group() if match is not None else ""


def _env(found: Gathered, remarks: list[Remark]) -> dict[str, str]:
    env: dict[str, str] = {}
    told: dict[str, str] = {}
    for source, one in _environments(found):
        for key, value in one.items():
            if not _ENV.fullmatch(key) or _private(key):
                continue
            value = "set" if key in _FILES else value  # noqa: PLW2901 - where a file lies is private
            if key in env and env[key] != value:
                text = f"{key}={quoted(value, 30)}; {told[key]} has {quoted(env[key], 30)}, which is kept"
                remarks.append(Remark("conflict", text, source))
            elif len(env) < 200:
                env.setdefault(key, value)
                told.setdefault(key, source)
    return env


def _environments(found: Gathered) -> list[tuple[str, Mapping[str, str]]]:
    """Logs before commands, measurements last: what the library itself printed is what was in force."""
    logs = [(source, ccl.env) for ccl, source in found.ccl]
    commands = [(source, launch.env) for launch, source in found.launches]
    return [*logs, *commands, *((source, measured.software.env) for measured, source in found.measurements)]


def _private(key: str) -> bool:
    """File names and interface lists say where and who, and change no prediction inside a box."""
    return key.startswith("NCCL_DEBUG") or key in _WHERE or ("_FILE" in key and key not in _FILES)
