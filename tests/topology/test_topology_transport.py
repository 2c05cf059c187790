"""Transport decisions against NCCL's rules (NVIDIA/nccl:src/graph/paths.cc: ncclGetLevel, ncclTopoCheckP2p; tags 2.18 to 2.30)."""

from __future__ import annotations

from typing import Any

import pytest

from pcie_sim.errors import InputError
from pcie_sim.specs.machine import CclSettings, SettingsSpec
from pcie_sim.topology import LEVELS, load_topology, parse_level
from pcie_sim.topology.policy import Pair, decide

OLD, NEW = "2.22.3", "2.28"


def _decide(
    path: Any,
    *,
    version: str = NEW,
    name: Any = "nccl",
    cpu: Any = "amd",
    gpus: int = 8,
    p2p: Any = "auto",
    stock: Any = "yes",
    env: dict[str, str] | None = None,
) -> str:
    settings = SettingsSpec(p2p=p2p, ccl=CclSettings(name=name, version=version), env=env or {})
    pair = Pair(path_type=path, cpu_vendor=cpu, gpus_in_box=gpus, drivers=(("card", stock, "profile"),) * 2)
    return decide(settings, pair).kind


@pytest.mark.parametrize(
    ("version", "cpu", "gpus", "farthest"),
    [
        ("2.23", "amd", 8, "PXB"),  # from 2.23.4 on: PXB on every CPU
        ("2.23.4", "intel", 8, "PXB"),
        ("2.30.7", "arm", 8, "PXB"),
        (NEW, "other", 4, "PXB"),
        (NEW, "amd", 3, "PXB"),
        (NEW, "amd", 2, "SYS"),  # except x86 AMD with at most two GPUs
        (NEW, "intel", 2, "PXB"),
        (OLD, "amd", 8, "SYS"),  # before: SYS, but PXB on Intel and Arm
        (OLD, "intel", 8, "PXB"),
        ("2.18.3", "arm", 2, "PXB"),
        ("2.18.3", "amd", 2, "SYS"),
        ("3.0", "amd", 8, "PXB"),
    ],
)
def test_default_level(version: str, cpu: str, gpus: int, farthest: str) -> None:
    for path in ("NVL", "PIX", "PXB", "PHB", "SYS"):
        expected = "P2P" if LEVELS.index(path) <= LEVELS.index(farthest) else "SHM"
        assert _decide(path, version=version, cpu=cpu, gpus=gpus) == expected, path


@pytest.mark.parametrize(
    ("level", "means"),
    [
        ("0", "LOC"),
        ("1", "PIX"),
        ("2", "PXB"),
        ("3", "PHB"),
        ("4", "SYS"),
        ("5", "SYS"),
        ("99", "SYS"),
        *[(name, name) for name in ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")],
    ],
)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_level_from_the_environment_beats_the_default(level: str, means: str, version: str) -> None:
    assert parse_level(level) == means
    for path in ("NVL", "PIX", "PXB", "PHB", "SYS"):
        expected = "P2P" if LEVELS.index(path) <= LEVELS.index(means) else "SHM"
        assert _decide(path, version=version, env={"NCCL_P2P_LEVEL": level}) == expected


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("PIX", {"env": {"NCCL_P2P_DISABLE": "1"}}, "SHM"),
        ("NVL", {"env": {"NCCL_P2P_DISABLE": "1"}}, "SHM"),  # same as level LOC: seen on two NVLink-joined H200
        ("PIX", {"env": {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}}, "SHM"),  # the switch wins over the level
        ("PIX", {"env": {"NCCL_P2P_DISABLE": "0"}}, "P2P"),
        ("SYS", {"env": {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}}, "P2P"),
        ("PHB", {"env": {"NCCL_SHM_DISABLE": "1"}}, "NET"),
        ("PIX", {"env": {"NCCL_SHM_DISABLE": "1"}}, "P2P"),
        ("PIX", {"p2p": "off", "env": {"NCCL_SHM_DISABLE": "1"}}, "NET"),
        ("PIX", {"p2p": "off"}, "SHM"),
        ("SYS", {"p2p": "off", "env": {"NCCL_P2P_LEVEL": "SYS"}}, "SHM"),
        ("PIX", {"stock": "no"}, "SHM"),  # GeForce: NVML says not supported, whatever the level
        ("PIX", {"stock": "no", "env": {"NCCL_P2P_LEVEL": "SYS"}}, "SHM"),
        ("PIX", {"stock": "no", "p2p": "on"}, "P2P"),
        ("PHB", {"stock": "no", "p2p": "on"}, "SHM"),  # p2p: on grants access, the library's level still decides
        ("PHB", {"p2p": "on"}, "SHM"),
        ("PHB", {"stock": "no", "p2p": "on", "env": {"NCCL_P2P_LEVEL": "PHB"}}, "P2P"),
        ("SYS", {"stock": "no", "p2p": "on", "env": {"NCCL_P2P_LEVEL": "PHB"}}, "SHM"),
        ("NVL", {"stock": "no"}, "P2P"),  # an NVLink bridge needs no PCIe peer access
        ("PIX", {"stock": "unknown"}, "P2P"),
        ("SYS", {"name": "none"}, "P2P"),
        ("SYS", {"name": "none", "stock": "no"}, "SHM"),
        ("SYS", {"name": "none", "env": {"NCCL_P2P_DISABLE": "1"}}, "P2P"),
        ("SYS", {"name": "rccl", "version": "2.22"}, "P2P"),  # ROCm/rccl:src/graph/paths.cc keeps the old rule
        ("SYS", {"name": "rccl", "version": "2.26"}, "P2P"),
        ("PHB", {"name": "rccl", "version": "2.26", "cpu": "intel"}, "SHM"),
        ("SYS", {"name": "oneccl", "version": "2021.1"}, "P2P"),
    ],
)
def test_settings(path: str, options: dict[str, Any], expected: str) -> None:
    assert _decide(path, **options) == expected


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("NCCL_P2P_LEVEL", "sys", "upper case"),
        ("NCCL_P2P_LEVEL", "NODE", "is not a level"),
        ("NCCL_P2P_LEVEL", "-1", "is not a level"),
        ("NCCL_P2P_LEVEL", "5.0", "is not a level"),
        ("NCCL_P2P_DISABLE", "yes", "whole number"),
        ("NCCL_SHM_DISABLE", "true", "whole number"),
    ],
)
def test_values_that_the_library_would_ignore_are_refused(key: str, value: str, says: str) -> None:
    with pytest.raises(InputError, match=f"{key}=.*{says}"):
        _decide("PIX", env={key: value})
    with pytest.raises(InputError, match=f"{key}=.*{says}"):
        load_topology("rtx-pro-6000-8x-2switch").with_settings(env={key: value})


def test_reasons_name_what_decided() -> None:
    box = load_topology("rtx-pro-6000-8x-direct-1socket")
    assert "2.28 allows no more than PXB by default" in box.transport("gpu0", "gpu1").reason
    assert "NCCL_P2P_LEVEL=5 allows up to SYS" in box.with_settings(env={"NCCL_P2P_LEVEL": 5}).transport("gpu0", "gpu1").reason
    assert "NCCL_P2P_DISABLE=1" in box.with_settings(env={"NCCL_P2P_DISABLE": "1"}).transport("gpu0", "gpu1").reason
    assert "p2p: off" in box.with_settings(p2p="off").transport("gpu0", "gpu1").reason
    geforce = load_topology("rtx-4090-8x-rome-2socket")
    assert "stock driver grants no PCIe peer access on rtx-4090" in geforce.transport("gpu0", "gpu1").reason
    modified = geforce.with_settings(p2p="on", env={"NCCL_P2P_LEVEL": "SYS"})
    assert "modified driver" in modified.transport("gpu0", "gpu1").reason


@pytest.mark.parametrize(
    ("box", "settings", "a", "b", "expected"),
    [
        ("rtx-pro-6000-8x-2switch", {}, "gpu0", "gpu3", "P2P"),
        ("rtx-pro-6000-8x-2switch", {}, "gpu0", "gpu4", "SHM"),
        ("rtx-pro-6000-8x-2switch", {"env": {"NCCL_P2P_LEVEL": "5"}}, "gpu0", "gpu4", "P2P"),  # the reference case's EP8 run
        ("rtx-pro-6000-8x-2switch", {"ccl": "2.22.3"}, "gpu0", "gpu4", "P2P"),
        ("rtx-pro-6000-8x-2switch", {"acs": "on"}, "gpu0", "gpu3", "P2P"),  # NCCL does not see ACS
        ("rtx-pro-6000-8x-root-leaf", {}, "gpu0", "gpu7", "P2P"),
        ("rtx-pro-6000-8x-direct-2socket", {"env": {"NCCL_P2P_LEVEL": "PHB"}}, "gpu0", "gpu3", "P2P"),
        ("rtx-pro-6000-8x-direct-2socket", {"env": {"NCCL_P2P_LEVEL": "PHB"}}, "gpu0", "gpu4", "SHM"),
        ("rtx-4090-8x-rome-2socket", {}, "gpu0", "gpu1", "SHM"),
        ("rtx-4090-8x-rome-2socket", {"p2p": "on", "ccl": "2.20.5"}, "gpu0", "gpu7", "P2P"),  # second run of the 4090 page
        ("h200-2x-host-staged", {"env": {"NCCL_P2P_LEVEL": "SYS"}}, "gpu0", "gpu1", "SHM"),
    ],
)
def test_shipped_boxes(box: str, settings: dict[str, Any], a: str, b: str, expected: str) -> None:
    top = load_topology(box).with_settings(**settings)
    assert top.transport(a, b).kind == expected
    assert top.transport(b, a).kind == expected
    assert top.path(a, b).transport == expected
    assert top.path(a, b) == (top.route(a, b) if expected == "P2P" else top.host_route(a, b))


def test_network_transport_inside_a_host_is_a_loopback_through_sockets() -> None:
    top = load_topology("rtx-pro-6000-8x-direct-1socket").with_settings(env={"NCCL_SHM_DISABLE": 1})
    chosen = top.transport("gpu0", "gpu1")
    assert chosen.kind == "NET"
    assert chosen.reason.endswith("NCCL_SHM_DISABLE leaves the network: by sockets inside the host, through host memory")
    assert top.path("gpu0", "gpu1").network == "net-sockets"


def test_with_settings_merges_and_checks() -> None:
    top = load_topology("rtx-pro-6000-8x-2switch").with_settings(env={"A": "1"}, ccl="2.20")
    again = top.with_settings(env={"B": "2"})
    assert (dict(again.settings.env), again.settings.ccl.version) == ({"A": "1", "B": "2"}, "2.20")
    assert top.with_settings(ccl="rccl 2.22").settings.ccl == CclSettings(name="rccl", version="2.22")
    assert top.with_settings(ccl=CclSettings(name="none")).settings.ccl.name == "none"
    assert again.gpus == top.gpus
    assert again.links is top.links
    for bad in ({"p2p": "maybe"}, {"acs": "yes"}, {"iommu": "pt"}):
        with pytest.raises(InputError, match=f"setting {next(iter(bad))}: .*found"):
            top.with_settings(**bad)  # type: ignore[arg-type]
    for text in ("", "latest", "2", "mpi 4.1"):
        with pytest.raises(InputError, match=r"write a version like 2\.28"):
            top.with_settings(ccl=text)
    with pytest.raises(InputError, match="setting env"):
        top.with_settings(env={"not a name": "1"})


def test_evidence_of_a_decision() -> None:
    unknown = SettingsSpec(ccl=CclSettings(version=NEW))
    pair = Pair(path_type="PIX", cpu_vendor="amd", gpus_in_box=8, drivers=(("card", "unknown", "profile"),) * 2)
    assert decide(unknown, pair).evidence == "assumed"
    known = Pair(path_type="PIX", cpu_vendor="amd", gpus_in_box=8, drivers=(("card", "yes", "profile"),) * 2)
    assert decide(unknown, known).evidence == "nominal"
