"""Peer access: driver, library's level, logs, ForceP2P."""

from __future__ import annotations

import pytest
from doctor_facts import SYS, codes, load, log, matrix, only, passed

from pcie_sim import study
from pcie_sim.doctor import diagnose
from pcie_sim.importers.imported import Launch
from pcie_sim.importers.relate import Related


def test_the_librarys_level_costs_what_both_predictions_say() -> None:
    box = load()
    one = only(diagnose(box), "p2p-level")
    assert one.severity == "problem"
    assert "NCCL 2.28 allows no more than PXB by default" in one.evidence[0]
    assert "32 of 56 ordered pairs (all PHB ones)" in one.evidence[0]  # 2 x 4 x 4 ordered pairs meet at the socket
    assert one.advice[0].startswith("NCCL_P2P_LEVEL=PHB")
    for cost in one.costs:
        now = study.collective(box, "all_reduce", cost.bytes, launch="graph").time_s
        fixed = study.collective(box, "all_reduce", cost.bytes, launch="graph", env=SYS).time_s
        assert (cost.now_s, cost.fixed_s) == pytest.approx((now, fixed))


def test_a_level_that_allows_all_passes() -> None:
    found = diagnose(load(env=SYS))
    assert passed(found, "p2p-level")
    assert not found.sick


def test_disabled_peers_are_to_be_enabled() -> None:
    one = only(diagnose(load(env={"NCCL_P2P_DISABLE": "1"})), "p2p-level")
    assert one.advice[0].startswith("unset NCCL_P2P_DISABLE and set NCCL_P2P_LEVEL=PHB")
    assert one.severity == "problem"


def test_the_stock_driver_of_geforce() -> None:
    one = only(diagnose(load("rtx-4090-4x-direct-1socket")), "p2p-driver")
    assert one.severity == "problem"
    assert "stock driver grants no PCIe peer access on rtx-4090" in one.evidence[0]
    assert "patch" in one.advice[0]
    assert all(cost.extra_s > 0 for cost in one.costs)


def test_words_of_the_driver_name_pairs_and_reasons() -> None:
    """nvidia-smi topo -p2p: CNS chipset not supported."""
    box = load()
    status = matrix(
        box, "p2p_status", {None: "OK", ("gpu0", "gpu4"): "CNS", ("gpu4", "gpu0"): "CNS"}, access="r", source="topo.txt", line=12
    )
    one = only(diagnose(box, Related(matrices=(status,))), "p2p-driver")
    assert "CNS (chipset not supported) for gpu0-gpu4, gpu4-gpu0 of 56 ordered pairs (topo.txt:12)" in one.evidence[0]
    assert one.nodes == ("gpu0", "gpu4")
    assert (one.cost or "").startswith("if all pairs were refused")


def test_the_stock_driver_is_named_whatever_word_it_has() -> None:
    """GeForce cards print NS (nvidia-smi topo -p2p r) or connectivity 0 (p2pBandwidthLatencyTest) with the stock driver."""
    box = load("rtx-4090-4x-direct-1socket")
    for facts in (matrix(box, "p2p_status", "NS", access="r"), matrix(box, "peer_access", 0.0)):
        one = only(diagnose(box, Related(matrices=(facts,))), "p2p-driver")
        assert "patch" in one.advice[0]
        assert any("BIOS" in text for text in one.advice)
    other = load(env=SYS)
    one = only(diagnose(other, Related(matrices=(matrix(other, "p2p_status", "NS", access="r"),))), "p2p-driver")
    assert not any("patch" in text for text in one.advice)


STAGING = "NCCL_P2P_DISABLE=1 against the level"


def test_advice_for_peers_says_that_staging_may_be_as_fast() -> None:
    """Published: 8x A40 in NPS4 (NVIDIA/nccl-tests#74), 8x L20 (NVIDIA/nccl#1817), 3x CMP 170HX (PixelML/club-170hx)."""
    for name, code in (("rtx-4090-4x-direct-1socket", "p2p-driver"), ("rtx-pro-6000-8x-2switch", "p2p-level")):
        assert any(STAGING in text and "A40" in text for text in only(diagnose(load(name)), code).advice)


def test_a_level_is_a_note_where_the_driver_is_not_known() -> None:
    """Whether the platform grants peer access is not known for this GPU (its catalog entry): the level may change nothing."""
    one = only(diagnose(load("l40s-4x-direct-1socket")), "p2p-level")
    assert one.severity == "note"
    assert max(cost.share for cost in one.costs) > 0.05
    assert only(diagnose(load("l40s-4x-direct-1socket", p2p="on")), "p2p-level").severity == "problem"


def test_a_log_with_peers_beyond_the_level_had_another_one() -> None:
    box = load()
    ring = {(rank, (rank + 1) % 8): "P2P/CUMEM" for rank in range(8)}
    one = only(diagnose(box, Related(ccl=(log(box, transports=ring),))), "p2p-level")
    assert one.severity == "note"
    assert any("gpu3-gpu4, gpu7-gpu0 of 56 ordered pairs" in text for text in one.evidence)


def test_granted_by_every_file() -> None:
    box = load(env=SYS)
    access = matrix(box, "peer_access", 1.0)
    assert passed(diagnose(box, Related(matrices=(access,))), "p2p-driver")


def test_unknown_stock_driver_is_not_guessed() -> None:
    found = diagnose(load("l40s-4x-direct-1socket"))
    assert "p2p-driver" in {code for code, _, _ in found.unchecked}


def test_a_log_with_shm_where_peers_are_predicted() -> None:
    box = load(env=SYS)
    ring = {(rank, (rank + 1) % 8): "SHM/direct/direct" for rank in range(8)}
    one = only(diagnose(box, Related(ccl=(log(box, transports=ring),))), "transports")
    assert one.severity == "problem"
    assert "8 connections of 8 by SHM where P2P is predicted" in one.evidence[0]
    assert "nccl.log:3" in one.evidence[0]
    staged = study.collective(box, "all_reduce", "16MiB", launch="graph", p2p="off").time_s
    assert one.costs[-1].now_s == pytest.approx(staged) or one.costs[-1].fixed_s == pytest.approx(staged)
    assert one.costs[-1].extra_s > 0


def test_a_log_as_predicted_passes() -> None:
    box = load(env=SYS)
    ring = {(rank, (rank + 1) % 8): "P2P/CUMEM" for rank in range(8)}
    assert passed(diagnose(box, Related(ccl=(log(box, transports=ring),))), "transports")


def test_a_log_with_peers_says_that_the_driver_is_modified() -> None:
    box = load("rtx-4090-8x-direct-1socket")
    ring = {(rank, (rank + 1) % 8): "P2P/IPC" for rank in range(8)}
    found = diagnose(box, Related(ccl=(log(box, transports=ring),)))
    assert passed(found, "p2p-driver")
    assert only(found, "transports").severity == "note"


def test_sockets_inside_one_host() -> None:
    box = load(env=SYS)
    ring = {(rank, (rank + 1) % 8): "NET/Socket/0" for rank in range(8)}
    one = only(diagnose(box, Related(ccl=(log(box, transports=ring),))), "transports")
    assert one.severity == "problem"
    assert any("--ipc=host" in text for text in one.advice)
    assert one.costs[0].extra_s > 100e-6


ENGINE = Launch(runtime="sglang", strategy="tp2")
"""Two GPUs: SGLang's own kernel is on by default (above two it is refused without NVLink)."""


def test_force_p2p_with_an_engine_that_uses_its_own_kernel() -> None:
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS, force_p2p=False)
    one = only(diagnose(box, Related(launches=(ENGINE,))), "force-p2p")
    assert one.severity == "problem"
    slow = study.collective(box, "all_reduce", 14336, ranks=2, algorithm="one_shot_pull", launch="graph").time_s
    assert one.costs[0].now_s == pytest.approx(slow)
    assert one.costs[0].extra_s > 0
    assert "ForceP2P" in one.advice[0]


def test_force_p2p_not_said() -> None:
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS)
    assert only(diagnose(box, Related(launches=(ENGINE,))), "force-p2p").severity == "note"
    assert "force-p2p" in {code for code, _, _ in diagnose(box).unchecked}


def test_force_p2p_where_it_does_not_matter() -> None:
    """Eight GPUs: the stock engine refuses its kernel; behind one root switch: no root complex on the way; keys set: nothing to say."""
    eight = Launch(runtime="sglang", strategy="tp8")
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS, force_p2p=False)
    assert only(diagnose(box, Related(launches=(eight,))), "force-p2p").severity == "note"
    assert passed(diagnose(load("rtx-pro-6000-8x-root-leaf")), "force-p2p")
    assert passed(diagnose(load("rtx-pro-6000-8x-direct-1socket", env=SYS, force_p2p=True)), "force-p2p")


def test_no_library_no_level() -> None:
    from pcie_sim.specs.machine import CclSettings

    found = diagnose(load(ccl=CclSettings(name="none")))
    assert "p2p-level" in {code for code, _, _ in found.unchecked}
    assert codes(found) == set()


def test_a_switch_that_would_be_slower_is_not_recommended() -> None:
    """People measure peer-to-peer slower than host memory on some hosts (NVIDIA/nccl-tests#74, NVIDIA/nccl#1817)."""
    from pcie_sim.doctor.exam import cost_text
    from pcie_sim.doctor.peers import _level
    from pcie_sim.results.finding import Cost

    slower, faster = Cost("all_reduce", 14336, 20e-6, 25e-6), Cost("all_reduce", 2**24, 2e-3, 1e-3)
    level, text = _level((slower,))
    assert level == "note"
    assert "slower" in text
    level, text = _level((slower, faster))
    assert level == "problem"
    assert "disagree" in text
    assert cost_text((slower,)) == "-5.0 us for each 14 KiB AllReduce (25.0 -> 20.0 us, -20%)"
    assert cost_text((faster,)) == "+1000 us for each 16 MiB AllReduce (1000 -> 2000 us, +100%)"
    assert cost_text(()) == "cannot be estimated"
