"""The published table: fresh, recomputed in part by hand, and the bars that it says are reached."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest

from pcie_sim import catalog
from pcie_sim.network import call_times
from pcie_sim.scoring import collective, communication, one_shot
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.specs.part import LibraryPart
from pcie_sim.topology import load_topology


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return communication.figures(communication.load_fits())


def test_the_table_is_fresh(found: dict[str, Any]) -> None:
    path = catalog.shipped_dir("validation") / communication.TABLE
    assert path.read_text(encoding="utf-8") == communication.table(found), "run python -m pcie_sim.scoring.communication"


def test_bars_of_copies(found: dict[str, Any]) -> None:
    assert found["copies"]["contended"]["median"] <= communication.BARS["contended"]
    assert found["copies"]["all pairs"]["median"] <= communication.BARS["all pairs"]
    assert found["copies"]["contended"]["rows"] >= 60
    assert found["copies"]["all pairs"]["rows"] >= 20


def test_bar_of_all_reduce(found: dict[str, Any]) -> None:
    assert found["all_reduce"]["median"] <= communication.BARS["all_reduce"]
    assert found["all_reduce"]["machine_median"] <= communication.BARS["all_reduce"]
    assert len(found["all_reduce"]["by_machine"]) >= 12
    assert {"2", "4", "8", "16"} <= set(found["all_reduce"]["by_ranks"])


def test_small_eight_rank_values_are_near_or_named(found: dict[str, Any]) -> None:
    assert len(found["small"]) >= 12
    for row in found["small"]:
        assert abs(row["error"]) <= communication.BARS["small"] or row["explains"], row


def test_all_to_all_against_all_reduce_as_measured(found: dict[str, Any]) -> None:
    item = found["all_to_all"]
    assert item["faster_below"]
    assert item["slower_above"]
    assert all(row["faster_below"] for row in item["trees"])


def test_one_row_by_hand(found: dict[str, Any]) -> None:
    """4x RTX 5090 on one socket, host-staged, 128 MiB: the ring's 6 steps of a quarter, at half of what kernels read and write at once
    over a Gen5 x16 link, blended with four channels (whose rate is that of a host with steps of 2.3 us).
    """
    fits = communication.load_fits()["collectives"]["left_out"]["rtx-5090-4x-direct-1socket"]
    rate = 32e9 * 16 / 8 * 0.984615385 * 256 / 280 * 0.98
    size = 128 << 20
    links, channels = rate * fits["duplex"] / 2, 4 * fits["channel.shm"] * 2.3e-6 / fits["host_step"]
    by_hand = fits["base"] + fits["simple_extra"] + size * 1.5 / (links**-2.2 + channels**-2.2) ** (-1 / 2.2)
    items = [case for case in collective.measured_collectives() if case.machine == "rtx-5090-4x-direct-1socket" and case.row.bytes == size]
    score = collective.score(items, {"rtx-5090-4x-direct-1socket": fits})
    assert score[0].transport == "SHM"
    assert score[0].predicted == pytest.approx(by_hand, rel=0.02)  # the steps' latency is left out above


def test_a_fit_without_a_machine_never_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    items = collective.measured_collectives()
    seen: list[set[str]] = []
    monkeypatch.setattr(collective, "fit", lambda rest: seen.append({case.machine for case in rest}) or {})
    collective.leave_one_out(items)
    machines = list(dict.fromkeys(case.machine for case in items))
    assert [set(machines) - used for used in seen] == [{machine} for machine in machines]


def test_fitted_constants_replace_the_catalog_inside_the_block_only() -> None:
    before = catalog.load_typed_part("nccl", LibraryPart)
    with catalog.using_parts(collective.parts_with({"base": 1e-3})):
        inside = catalog.load_typed_part("nccl", LibraryPart)
        box = load_topology("rtx-pro-6000-8x-2switch")
        call = CollectiveCall("all_reduce", np.array([512.0]), (tuple(range(8)),))
        slow = call_times(box, call, gpu_of_rank=box.gpus).time_s[0]
    assert inside.base_latency["all_reduce"].value == 1e-3
    assert slow > 1e-3
    assert catalog.load_typed_part("nccl", LibraryPart) is before


def test_the_reference_case_made_no_constant() -> None:
    sets = {case.held.id for case in collective.measured_collectives()}
    assert not any("reference" in name or "kimi" in name for name in sets)
    assert not any(case.held.machine.topology == "rtx-pro-6000-8x-2switch" for case in collective.measured_collectives())


def test_every_machine_has_its_own_constants() -> None:
    fits = communication.load_fits()
    assert set(fits["collectives"]["left_out"]) == {case.machine for case in collective.measured_collectives()}
    for constants in fits["collectives"]["left_out"].values():
        assert set(constants) == set(collective.START)


def test_crossing_is_between_neighbours() -> None:
    assert one_shot.crossing([1.0, 4.0], [1.0, 4.0], [2.0, 2.0]) == pytest.approx(2.0)
    assert one_shot.crossing([1.0, 4.0], [3.0, 4.0], [2.0, 2.0]) is None


def test_measured_crossovers(found: dict[str, Any]) -> None:
    """Broadcom box, 8 ranks: one-shot 30.6 against 57.2 us at 4 KiB, 64.3 against 57.6 at 8 KiB (the published rows)."""
    row = next(item for item in found["crossovers"] if item["ranks"] == 8 and "asus" in item["set_id"])
    assert 4096 < cast(float, row["measured"]) < 8192


def test_command_refuses_what_it_does_not_know() -> None:
    assert communication.main(["--fits"]) == 2
    for word in ("-h", "--help"):
        assert communication.main([word, "--fit"]) == 0


def test_json_output() -> None:
    run = subprocess.run([sys.executable, "-m", "pcie_sim.scoring.communication", "--json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["all_reduce"]["rows"] > 200


@pytest.mark.long
def test_kept_constants_come_from_the_fit() -> None:
    kept = communication.load_fits()["collectives"]["all"]
    again = collective.fit(collective.measured_collectives())
    for name, value in kept.items():
        assert again[name] == pytest.approx(value, rel=0.05), name


def test_hosts_without_a_tree_help_the_fit_and_are_never_scored() -> None:
    scored = {case.held.id for case in collective.measured_collectives()}
    helping = collective.helpers()
    assert {case.held.id for case in helping} == set(collective.STAND_IN)
    assert not scored & set(collective.STAND_IN)
    assert max(cast(int, case.row.bytes) for case in helping) <= collective.LATENCY_ONLY
