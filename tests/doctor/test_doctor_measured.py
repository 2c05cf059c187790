"""Measured collectives against what the tree should give, and the state that explains them."""

from __future__ import annotations

import pytest
from doctor_facts import GBPS, SYS, codes, load, many, matrix, measured, only, passed, predicted, relinked

from pcie_sim.doctor import diagnose
from pcie_sim.importers.relate import Related


def test_a_healthy_run_passes() -> None:
    box = load(env=SYS)
    found = diagnose(box, Related(measurements=(measured(predicted(box), ranks=8),)))
    assert passed(found, "collectives")
    assert not found.sick


def test_doubt_of_the_prediction_is_no_sickness() -> None:
    box = load(env=SYS)
    found = diagnose(box, Related(measurements=(measured(predicted(box, factor=1.4), ranks=8),)))
    assert passed(found, "collectives")


def test_the_published_l40s_plateau_is_sick() -> None:
    """8x L40S: 1.45 GB/s bus bandwidth at 512 MiB in one published table, 20.8 in another of the same GPUs
    (ai-dynamo/aiconfigurator: l40s nccl/2.27.3 and sglang/0.5.12).
    """
    box = many("l40s-4x-direct-1socket", 8)
    rows = {2**20: 1343e-6, 16 * 2**20: 19376e-6, 64 * 2**20: 79e-3, 256 * 2**20: 320e-3, 512 * 2**20: 649.5e-3}
    one = only(diagnose(box, Related(measurements=(measured(rows, ranks=8),))), "collectives")
    assert one.severity == "problem"
    assert "plateau" in one.title
    assert any("bus bandwidth 1.447 GB/s at 512 MiB" in text for text in one.evidence)
    assert any("16 MiB to 512 MiB" in text for text in one.evidence)
    assert one.costs[-1].bytes == 16 * 2**20
    assert one.costs[-1].now_s == pytest.approx(19376e-6)


@pytest.mark.parametrize("launch", ["graph", "eager", None])
def test_the_published_205_us_are_sick_however_they_were_launched(launch: str | None) -> None:
    """12 KiB, 8x RTX PRO 6000 on two NUMA nodes: 205.1 us (sgl-project/sglang 0.5.23: pcie_ipc_ar.py); others have 17 to 27."""
    box = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    one = only(diagnose(box, Related(measurements=(measured({12288: 205.1e-6}, ranks=8, launch=launch),))), "collectives")
    assert one.severity == "problem"
    assert "floor" in one.title
    assert (launch != "graph") == any("-G 10" in text for text in one.advice)


def test_an_eager_floor_is_the_cpus() -> None:
    """Eager nccl-tests of 8 GPUs publish 27 to 66 us at small sizes whatever the wires: nothing is said about those, but a note."""
    box = load(env=SYS)
    rows = {size: max(time, 66e-6) for size, time in predicted(box).items()}
    found = diagnose(box, Related(measurements=(measured(rows, ranks=8, launch="eager"),)))
    one = only(found, "collectives")
    assert one.severity == "note"
    assert "CPU's launches" in one.title
    assert not found.sick
    in_graph = diagnose(box, Related(measurements=(measured(rows, ranks=8, launch="graph"),)))
    assert "collectives" in codes(in_graph)


def test_one_slow_size_is_a_hiccup() -> None:
    box = load(env=SYS)
    rows = predicted(box)
    rows[2**20] *= 4
    assert passed(diagnose(box, Related(measurements=(measured(rows, ranks=8),))), "collectives")


def explained(text: str, rows: dict[int, float], name: str = "rtx-pro-6000-8x-2switch") -> None:
    box = load(name, env=SYS)
    one = only(diagnose(box, Related(measurements=(measured(rows, ranks=len(box.gpus)),))), "collectives")
    best = next(line for line in one.evidence if line.startswith("fits best"))
    assert text in best, one.evidence


def test_staged_traffic_is_recognised() -> None:
    explained("peer-to-peer refused", predicted(load(p2p="off"), factor=1.05))


def test_sockets_are_recognised() -> None:
    explained("by sockets", predicted(load(p2p="off", env={"NCCL_SHM_DISABLE": "1"}), factor=1.05))


def test_one_narrow_link_is_recognised() -> None:
    box = relinked(load(env=SYS), gpu6="gen5 x4")
    explained("one GPU (like gpu4) at x4", predicted(box, factor=0.97))


def test_acs_is_recognised() -> None:
    explained("ACS redirect on", predicted(load(env=SYS, acs="on")))


def test_what_nothing_explains_is_said() -> None:
    box = load(env=SYS)
    rows = {size: time * (40 if size < 2**16 else 1.0) for size, time in predicted(box).items()}
    one = only(diagnose(box, Related(measurements=(measured(rows, ranks=8),))), "collectives")
    assert any(line.startswith("none of the") for line in one.evidence)
    assert any("other sizes (64 KiB to 256 MiB)" in line for line in one.evidence)


def test_the_settings_of_the_run_count() -> None:
    """A run with peers disabled is beside the prediction of that, not of the box's own settings."""
    box = load(env=SYS)
    rows = predicted(load(env={"NCCL_P2P_DISABLE": "1"}))
    sick = diagnose(box, Related(measurements=(measured(rows, ranks=8),)))
    assert "collectives" in codes(sick)
    fair = diagnose(box, Related(measurements=(measured(rows, ranks=8, env={"NCCL_P2P_DISABLE": "1"}),)))
    assert passed(fair, "collectives")


def test_further_runs_of_a_file_are_one_finding() -> None:
    box = load(env=SYS)
    slow = {size: 5 * time for size, time in predicted(box).items() if size >= 2**22}
    gathered = measured(slow, ranks=8, op="all_gather")
    reduced = measured(slow, ranks=8, op="reduce_scatter")
    found = diagnose(box, Related(measurements=(gathered, reduced, measured(slow, ranks=8))))
    titles = [item.title for item in found.findings if item.code == "collectives"]
    assert len(titles) == 2
    assert titles[0].startswith("8-GPU all_reduce")
    assert "2 further runs" in titles[1]


def test_faster_than_the_links_is_another_box() -> None:
    """56 GB/s is what Gen5 x16 carries: a bus bandwidth of 200 needs an NVLink."""
    box = load(env=SYS)
    rows = {2**28: 2**28 / (200 * GBPS) * 2 * 7 / 8, 2**27: 2**27 / (200 * GBPS) * 2 * 7 / 8}
    one = only(diagnose(box, Related(measurements=(measured(rows, ranks=8),))), "collectives")
    assert "faster than the tree's links" in one.title


def test_good_copies_and_a_slow_collective_point_at_the_library() -> None:
    box = load(env=SYS)
    copies = matrix(box, "bandwidth", 54 * GBPS, p2p=True)
    slow = measured({size: 4 * time for size, time in predicted(box).items()}, ranks=8)
    one = only(diagnose(box, Related(matrices=(copies,), measurements=(slow,))), "copies-collectives")
    assert one.severity == "problem"
    assert any("the wires are fine" in text for text in one.evidence)


def test_slow_copies_and_a_slow_collective_point_at_the_wires() -> None:
    box = load(env=SYS)
    copies = matrix(box, "bandwidth", 12 * GBPS, p2p=True)
    slow = measured({size: 4 * time for size, time in predicted(box).items()}, ranks=8)
    found = diagnose(box, Related(matrices=(copies,), measurements=(slow,)))
    assert only(found, "copies-collectives").severity == "note"
    assert "copy-rates" in codes(found)


def test_a_collective_faster_than_its_copies_is_a_contradiction() -> None:
    box = load(env=SYS)
    copies = matrix(box, "bandwidth", 14 * GBPS, p2p=True)
    found = diagnose(box, Related(matrices=(copies,), measurements=(measured(predicted(box), ranks=8),)))
    assert "moves more than copies" in only(found, "copies-collectives").title


def test_rows_that_do_not_fit_the_box_are_left_out() -> None:
    found = diagnose(load("rtx-3090-2x-direct"), Related(measurements=(measured({2**20: 1.0}, ranks=16),)))
    assert "collectives" in {code for code, _, _ in found.unchecked}
