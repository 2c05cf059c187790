"""Remarks on the settings in force: what is only recorded, ignored or unknown, so that no setting is without effect in silence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from pcie_sim.catalog import load_typed_part
from pcie_sim.errors import nearest
from pcie_sim.network.costs import library_costs
from pcie_sim.network.library import tuning_of
from pcie_sim.network.nccl_env import limits
from pcie_sim.network.nccl_rules import capability, version_pair
from pcie_sim.specs.part import EnvironmentNames, LibraryPart, LibraryTuning
from pcie_sim.topology.box import iommu_text
from pcie_sim.topology.policy import env_flag, env_text, uses_sockets

if TYPE_CHECKING:
    from pcie_sim.topology import Topology

_READS_NCCL = ("nccl", "rccl")
_WHOLE = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_NETS = ("socket", "ib")


def settings_notes(topology: Topology) -> tuple[str, ...]:
    """Remarks on all settings of the box: platform, library version, environment.

    Raises:
        InputError: an environment value that the library would not understand.
        NoDataError: no costs for the library.
    """
    platform = (iommu_text(),) if topology.settings.iommu == "on" else ()
    return (*platform, *library_notes(topology))


def library_notes(topology: Topology) -> tuple[str, ...]:
    """Those on the collective library's version and environment. Raises as :func:`settings_notes`."""
    tuning = tuning_of(topology, library_costs(topology.settings.ccl).part)
    found = [] if tuning is None else [*_version(topology, tuning), *_channels(topology.settings.env, tuning)]
    return (*found, *_environment(topology, tuning))


def protocol_note(topology: Topology, asked: str) -> tuple[str, ...]:
    """A remark where ``asked`` (LL, LL128, Simple or auto) is a protocol that the library in force does not have."""
    name = topology.settings.ccl.name
    if asked.lower() == "auto" or name in _READS_NCCL:
        return ()
    who = "bare wires have" if name == "none" else f"{name} has"
    return (f"protocol {asked} is ignored: {who} no such protocols (ccl {name})",)


def _version(topology: Topology, tuning: LibraryTuning) -> list[str]:
    """Versions outside those that the rules were read for, and older than the box's GPUs."""
    ccl = topology.settings.ccl
    name, asked = ccl.name.upper(), version_pair(ccl.version)
    found = []
    if tuning.versions is not None:
        oldest, newest = tuning.versions
        if not version_pair(oldest) <= asked <= version_pair(newest):
            word, taken = ("older", oldest) if asked < version_pair(oldest) else ("newer", newest)
            found.append(
                f"{name} {ccl.version} is {word} than the versions that its rules were read for ({oldest} to {newest}): taken as {taken}"
            )
    newest_gpu = max((capability(topology.gpu_spec(gpu).compute_capability) for gpu in topology.gpus), default=(0, 0))
    needed = [(capability(least), since) for least, since in tuning.capability_since.items() if capability(least) <= newest_gpu]
    if needed and asked < version_pair(max(needed)[1]):
        found.append(
            f"{name} knows GPUs of compute capability {newest_gpu[0]}.{newest_gpu[1]} from {max(needed)[1]} on: {ccl.version} would take "
            "them for older ones, if it runs here at all"
        )
    return found


def _channels(env: Mapping[str, str], tuning: LibraryTuning) -> list[str]:
    """Which of two limits wins where they exclude each other (see ``library.beliefs``)."""
    asked = limits(env, tuning)
    if asked.least_channels <= asked.most_channels:
        return []
    return [f"at least {asked.least_channels} channels are asked for and at most {asked.most_channels}: the minimum wins"]


def _environment(topology: Topology, tuning: LibraryTuning | None) -> list[str]:
    """A remark for every variable that is not wholly modelled."""
    ccl, env = topology.settings.ccl, topology.settings.env
    own = ccl.name in _READS_NCCL
    names = _names(tuning)
    networked = own and (len(topology.hosts) > 1 or env_flag(env, "NCCL_SHM_DISABLE") != 0)
    found: list[str] = []
    for name in sorted(env):
        text = env_text(env, name)
        theirs = name.upper().startswith("NCCL_")
        if theirs and not own:
            who = "there is no collective library here (ccl none)" if ccl.name == "none" else f"this box runs {ccl.name} {ccl.version}"
            found.append(f"{name} is ignored: {who}")
        elif theirs and text is None:
            found.append(f"{name} is empty: as if it were not set")
        elif theirs and text is not None:
            found += _of_library(name, text.strip(), names, networked)
        elif name in names.others:
            found.append(f"{name} is recorded, its effect is not predicted: {names.others[name]}")
        else:
            found.append(f"{name} is recorded without effect on predictions: no variable of the library that is known here")
    if networked and "NCCL_NET" in env:
        found += _transport_named(env)
    return found


def _of_library(name: str, text: str, names: EnvironmentNames, networked: bool) -> list[str]:
    """Remarks on one variable of the library that has a value."""
    words = names.choices.get(name)
    if (name in names.whole and not _WHOLE.fullmatch(text)) or (words is not None and text not in words):
        wanted = "a whole number" if words is None else " or ".join(words)
        return [f"{name}={text[:40]} is not {wanted}: the library ignores it"]
    if name in names.recorded:
        return [f"{name} is recorded, its effect is not predicted: {names.recorded[name]}"]
    if name in names.routes and networked:
        return []
    if name in names.one_node:
        if networked:
            return [f"{name} is recorded, its effect over the network is not predicted ({', '.join(names.routes)} change the route)"]
        return [f"{name} is recorded; it has no effect inside one box"]
    if name in names.modelled or name in names.known:
        return []
    every = (*names.modelled, *names.recorded, *names.one_node, *names.known)
    return [f"{name[:60]} is not known to the library, ignored; nearest: {', '.join(_nearest(name, every))}"]


@lru_cache(maxsize=256)
def _nearest(name: str, every: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(nearest(name, every))


def _transport_named(env: Mapping[str, str]) -> list[str]:
    """NCCL_NET with a transport that is not modelled, or against NCCL_IB_DISABLE."""
    text = (env_text(env, "NCCL_NET") or "").strip()
    if text and text.lower() not in _NETS:
        return [f"NCCL_NET={text[:40]}: only Socket and IB are modelled; the cards' own way is predicted"]
    if text.lower() == "ib" and uses_sockets(env):
        return ["NCCL_NET=IB with NCCL_IB_DISABLE: the library would find no network; sockets are predicted"]
    return []


def _names(tuning: LibraryTuning | None) -> EnvironmentNames:
    """The names of the library in force; NCCL's where it has none of its own."""
    if tuning is not None and tuning.environment is not None:
        return tuning.environment
    nccl = load_typed_part("nccl", LibraryPart).tuning
    if nccl is not None and nccl.environment is not None:
        return nccl.environment
    return EnvironmentNames(modelled=(), recorded={}, one_node=(), known=())
