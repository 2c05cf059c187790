"""No setting is without effect in silence: what is recorded only, ignored, unknown or refused."""

from __future__ import annotations

import pytest

import pcie_sim as ps
from pcie_sim import catalog
from pcie_sim.network import library_choice, settings_notes, time_collective
from pcie_sim.specs.part import LibraryPart
from pcie_sim.topology import Topology, load_topology

BOX = load_topology("rtx-pro-6000-8x-2switch")
ARC = load_topology("arc-pro-b70-2x-tr1950x")
HOSTS = load_topology("rtx-pro-6000-16x-2host-ndr")


def about(word: str, box: Topology = BOX, **env: str) -> list[str]:
    return [note for note in settings_notes(box.with_settings(env=env)) if word in note]


@pytest.mark.parametrize(
    "key", ["NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL", "NCCL_ALGO"]
)
def test_empty_is_not_set(key: str) -> None:
    """NVIDIA/nccl:src/misc/param.cc takes an empty text for no value."""
    for text in ("", " "):
        box = BOX.with_settings(env={key: text})
        assert [box.transport("gpu0", name) for name in box.gpus[1:]] == [BOX.transport("gpu0", name) for name in BOX.gpus[1:]]
        assert time_collective(box, "all_reduce", "1MiB").time_s == time_collective(BOX, "all_reduce", "1MiB").time_s
        assert about(key, **{key: text}) == [f"{key} is empty: as if it were not set"]


def test_rubbish_that_the_library_ignores_is_named() -> None:
    assert "is not a whole number" in about("NCCL_CUMEM_ENABLE", NCCL_CUMEM_ENABLE="x")[0]
    assert "is not PARALLEL or GROUP" in about("NCCL_LAUNCH_MODE", NCCL_LAUNCH_MODE="x")[0]
    assert "is recorded" in about("NCCL_LAUNCH_MODE", NCCL_LAUNCH_MODE="GROUP")[0]
    assert "is recorded" in about("NCCL_CUMEM_ENABLE", NCCL_CUMEM_ENABLE="0x1")[0]
    assert "is not a whole number" in about("NCCL_CHECKS_DISABLE", NCCL_CHECKS_DISABLE="yes")[0]


def test_names_with_a_kind_of_value_are_known_names() -> None:
    tuning = catalog.load_typed_part("nccl", LibraryPart).tuning
    assert tuning is not None
    assert tuning.environment is not None
    names = tuning.environment
    known = {*names.recorded, *names.one_node, *names.known}
    assert {*names.whole, *names.choices} <= known
    assert set(names.routes) <= set(names.one_node)


def test_the_minimum_of_channels_wins() -> None:
    (note,) = about("channels", NCCL_MIN_NCHANNELS="8", NCCL_MAX_NCHANNELS="2")
    assert "the minimum wins" in note
    found = library_choice(BOX.with_settings(env={"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "2"}))
    assert found is not None
    assert found.channels == 8
    assert not about("channels", NCCL_MIN_NCHANNELS="2", NCCL_MAX_NCHANNELS="8")


def test_network_variables_by_what_the_box_is() -> None:
    assert "no effect inside one box" in about("NCCL_IB_HCA", NCCL_IB_HCA="mlx5_0")[0]
    for box, more in ((HOSTS, {}), (BOX, {"NCCL_SHM_DISABLE": "1"})):
        (note,) = about("NCCL_IB_HCA", box, NCCL_IB_HCA="mlx5_0", **more)
        assert "over the network is not predicted" in note
        assert "inside one box" not in note
        for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET_GDR_LEVEL", "SYS"), ("NCCL_NET", "Socket")):
            assert not about("inside one box", box, **{name: value}, **more)
            assert not about("recorded", box, **{name: value}, **more)
    assert "only Socket and IB are modelled" in about("NCCL_NET", HOSTS, NCCL_NET="AWS Libfabric")[0]
    assert "no network" in about("NCCL_NET", HOSTS, NCCL_NET="IB", NCCL_IB_DISABLE="1")[0]


@pytest.mark.parametrize("text", ["Socket", "socket", " SOCKET "])
def test_nccl_net_socket_is_as_good_as_no_infiniband(text: str) -> None:
    """ncclNet picks by name, in any case (NVIDIA/nccl:src/net.cc)."""
    forced, off = (HOSTS.with_settings(env=env) for env in ({"NCCL_NET": text}, {"NCCL_IB_DISABLE": "1"}))
    a, b = HOSTS.gpus[0], HOSTS.gpus[-1]
    assert HOSTS.path(a, b).network == "net-rdma"
    assert forced.path(a, b).network == off.path(a, b).network == "net-sockets"
    assert forced.path(a, b).links == off.path(a, b).links
    assert HOSTS.with_settings(env={"NCCL_NET": "IB"}).path(a, b).network == "net-rdma"


@pytest.mark.parametrize("version", ["0.0", "99.99", "9999.999.999", "1.3", "２.２８", "2.٢٨"])
def test_versions_that_do_not_exist(version: str) -> None:
    with pytest.raises(ps.InputError, match="collective library") as caught:
        ps.collective("rtx-pro-6000-8x-2switch", "all_reduce", "1K", nccl=version)
    assert len(str(caught.value)) < 160


def test_versions_outside_those_that_were_read() -> None:
    for version, words in (("2.31", "newer"), ("2.17", "older"), ("2.3", "older")):
        notes = settings_notes(load_topology("l40s-4x-direct-1socket").with_settings(ccl=version))
        assert any(words in note and "2.18 to 2.30" in note for note in notes)
    for version in ("2.18", "2.28.9", "2.30.4"):
        assert not settings_notes(load_topology("l40s-4x-direct-1socket").with_settings(ccl=version))


def test_blackwell_needs_2_25() -> None:
    (note,) = settings_notes(BOX.with_settings(ccl="2.24"))
    assert "12.0 from 2.25 on" in note
    assert not settings_notes(BOX.with_settings(ccl="2.25"))
    assert not settings_notes(load_topology("h200-2x-host-staged").with_settings(ccl="2.24"))


def test_boxes_without_nccl() -> None:
    with pytest.raises(ps.InputError, match="this box runs oneccl"):
        ps.collective(ARC, "all_reduce", "1K", nccl="2.28")
    assert ARC.with_settings(ccl="oneccl 2022.1").settings.ccl.version == "2022.1"
    plain = ps.collective(ARC, "all_reduce", "1K")
    asked = ps.collective(ARC, "all_reduce", "1K", protocol="LL", env={"NCCL_PROTO": "LL"})
    assert (asked.time_s, asked.protocol) == (plain.time_s, plain.protocol)
    assert any("protocol LL is ignored: oneccl has no such protocols" in note for note in asked.notes)
    assert any("NCCL_PROTO is ignored: this box runs oneccl" in note for note in asked.notes)
    bare = BOX.with_settings(ccl=BOX.settings.ccl.model_copy(update={"name": "none"}), env={"NCCL_ALGO": "Ring"})
    notes = ps.collective(bare, "all_reduce", "1K", protocol="LL").notes
    assert any("protocol LL is ignored: bare wires have no such protocols" in note for note in notes)
    assert any("NCCL_ALGO is ignored: there is no collective library here" in note for note in notes)
    with pytest.raises(ps.InputError, match="unknown protocol"):
        ps.collective(ARC, "all_reduce", "1K", protocol="LL256")


def test_the_iommu_is_said_beside_every_answer() -> None:
    """local-inference-lab/rtx6kpro:hardware/collapse-report.md: about 15 % of a single flow."""
    box = BOX.with_settings(iommu="on")
    texts = [
        *ps.collective(box, "all_reduce", "1K").notes,
        *(note.text for note in ps.compare(box, model="qwen3-8b", strategies="tp8", concurrency=1).notes),
        *box.notes,
    ]
    mine = [text for text in texts if text.startswith("iommu: on is recorded")]
    assert len(mine) == 3
    assert all("15%" in text for text in mine)


def test_settings_are_noted_beside_predictions_too() -> None:
    env = {"NCCL_CUMEM_ENABLE": "x", "OMP_NUM_THREADS": "8"}
    found = ps.compare(BOX, model="qwen3-8b", strategies="tp8", concurrency=1, env=env)
    assert len([note for note in found.notes if note.code == "settings"]) == 2


def test_the_launch_floor_says_that_it_decides() -> None:
    eager = ps.collective(BOX, "all_reduce", "1K")
    assert any("the CPU decides" in note and "--launch graph" in note for note in eager.notes)
    assert not any("the CPU decides" in note for note in ps.collective(BOX, "all_reduce", "1K", launch="graph").notes)
    assert not any("the CPU decides" in note for note in ps.collective(BOX, "all_reduce", "64M").notes)
