"""What a device of an lspci listing is, by its class, numbers and printed name; and the roles of bridges by their place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pcie_sim.importers.facts import BridgeRole, DeviceKind

MOST_DEVICES = 4096
GPU_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
"""PCI-SIG numbers of those who make GPUs."""
_DISPLAY = {0x0300: "VGA compatible controller", 0x0302: "3D controller", 0x0380: "Display controller", 0x1200: "Processing accelerators"}
_CLASSES = {text.lower(): number for number, text in _DISPLAY.items()} | {
    "pci bridge": 0x0604,
    "host bridge": 0x0600,
    "ethernet controller": 0x0200,
    "infiniband controller": 0x0207,
    "encryption controller": 0x1080,
    "bridge": 0x0680,
}
_MAKERS = (
    (re.compile(r"NVIDIA\b"), 0x10DE),
    (re.compile(r"Advanced Micro Devices, Inc\. \[AMD/ATI\]|AMD/ATI\b"), 0x1002),
    (re.compile(r"Intel\b"), 0x8086),
)
_NO_GPU = re.compile(
    r"audio|\bUSB\b|UCSI|NVSwitch|bridge|ethernet|bluefield|connectx|serial bus|host controller|\bSoC\b|SMBus", re.IGNORECASE
)
_AMD_GPU = re.compile(r"Radeon|Instinct|FirePro|\bMI[0-9]{2,3}", re.IGNORECASE)
_INTEL_GPU = re.compile(r"\bArc\b|Data Center GPU|Flex Series|Ponte Vecchio|Battlemage|\bDG[12]\b", re.IGNORECASE)
_NIC = re.compile(r"ethernet|infiniband|connectx|network (?:controller|adapter|connection)|\bNIC\b|\bGbE\b|gigabit", re.IGNORECASE)
_NO_NIC = re.compile(r"management interface|audio|\bUSB\b|bridge|switch", re.IGNORECASE)
_IDS = re.compile(r"\[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_UNKNOWN = re.compile(r"\bDevice ([0-9a-f]{4})$")
_TAIL = re.compile(r"\s{0,4}\((?:rev [0-9a-fA-F]{2}|prog-if [^()]{0,60})\)")


@dataclass(frozen=True)
class Named:
    """Name without numbers and revision, and the numbers (None: not printed)."""

    name: str
    ids: tuple[int, int] | None


def named(text: str) -> Named:
    """Split ``NVIDIA Corporation Device [10de:2bb5] (rev a1)``.

    >>> named("NVIDIA Corporation Device 2bb5 [10de:2bb5] (rev a1) (prog-if 00 [Normal decode])")
    Named(name='NVIDIA Corporation Device 2bb5', ids=(4318, 11189))
    """
    text = _TAIL.sub("", text[:400])
    found = _IDS.search(text)
    name = " ".join(_IDS.sub("", text).split())[:160]
    ids = (int(found.group(1), 16), int(found.group(2), 16)) if found is not None else None
    unknown = _UNKNOWN.search(name) if ids is None else None
    if unknown is not None and (who := maker(name, None)) is not None:  # what lspci's list does not know it prints as a number
        ids = (who, int(unknown.group(1), 16))
    return Named(name, ids)


def class_number(text: str) -> int | None:
    """The class number of a printed class name, for the classes that matter here."""
    return _CLASSES.get(text.strip().lower())


def maker(name: str, ids: tuple[int, int] | None) -> int | None:
    """The vendor number, by numbers or by the printed name, for those who make GPUs."""
    if ids is not None:
        return ids[0] if ids[0] in GPU_VENDORS else None
    return next((number for pattern, number in _MAKERS if pattern.match(name)), None)


def kind_by_class(number: int | None, name: str, ids: tuple[int, int] | None) -> DeviceKind | None:
    """What a device of class ``number`` is; None: nothing that is kept. A display controller of a board's BMC is ``other``."""
    if number == 0x0604:
        return "bridge"
    if number in (0x0200, 0x0207):
        return "nic"
    if number in _DISPLAY:
        return "gpu" if maker(name, ids) is not None else ("other" if number != 0x1200 else None)
    return None


def kind_by_name(name: str, ids: tuple[int, int] | None, function: int) -> DeviceKind | None:
    """What an end of a tree is, where no class is printed. Audio and USB functions of a graphics card are none."""
    who = maker(name, ids)
    if who is not None and function == 0 and not _NO_GPU.search(name):
        if who == 0x10DE:
            return "gpu"
        if (who == 0x1002 and _AMD_GPU.search(name)) or (who == 0x8086 and _INTEL_GPU.search(name)):
            return "gpu"
    return "nic" if _NIC.search(name) and not _NO_NIC.search(name) else None


def integrated(name: str, ids: tuple[int, int] | None, *, below_port: bool, siblings: Iterable[str]) -> bool:
    """Whether a display controller is part of the CPU: Intel's stand on the root bus, AMD's share their slot with a security processor."""
    who = maker(name, ids)
    if who == 0x8086:
        return not below_port
    return who == 0x1002 and any("PSP" in other or "CCP" in other or "Encryption" in other for other in siblings)


def roles(bridges: Mapping[str, str | None]) -> dict[str, tuple[DeviceKind, BridgeRole | None]]:
    """Kind and role of every bridge from its place: key -> parent key (None: on a root bus).

    A bridge on a root bus is a root port. Below a root or downstream port, one with bridges below it is a switch's upstream port, and those
    are its downstream ports; one without is some other bridge.
    """
    below: dict[str, list[str]] = {}
    for key, parent in bridges.items():
        if parent is not None:
            below.setdefault(parent, []).append(key)
    found: dict[str, tuple[DeviceKind, BridgeRole | None]] = {}
    todo: list[tuple[str, bool]] = [(key, True) for key, parent in bridges.items() if parent is None or parent not in bridges]
    for key, _port in todo:
        found[key] = ("root_port", None)
    while todo:
        key, port = todo.pop()
        for child in below.get(key, ()):
            if child in found:
                continue
            if not port:
                found[child] = ("bridge", "downstream")
            else:
                found[child] = ("bridge", "upstream" if below.get(child) else None)
            todo.append((child, not port))
    return found
