"""compare and predict with a calibration in force: narrower where AllReduce decides, another winner where it is slow."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from made_box import FOUR, SWEEP, Run, measurement, noisy, rows_of, true_times, truth

import pcie_sim as ps
from pcie_sim.calibration.apply import Calibrated, CalibratedTimes
from pcie_sim.calibration.constants import start
from pcie_sim.calibration.make import calibrate
from pcie_sim.catalog import load_runtime
from pcie_sim.network import call_times
from pcie_sim.results.calibration import CalibrationReport
from pcie_sim.results.comparison import Comparison, Point
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import load_topology

BOX = "rtx-pro-6000-8x-2switch"
KIMI: dict[str, Any] = {"model": "kimi-k2.6", "strategies": ["tp8", "pp8", "ep8:a2a", "2xtp4"], "concurrency": [1, 8, 64]}


@lru_cache
def swept(name: str, slower: float, ranks: int | None = None) -> CalibrationReport:
    """An AllReduce sweep in a graph, so many times slower than the start values say."""
    box = load_topology(name)
    run = Run(ranks=ranks)
    times = noisy(true_times(box, start(), run), 0.01, 1) * slower
    return calibrate(box, [measurement(box, rows_of(run, box, times))], prior="none").report


@pytest.fixture(scope="module")
def runs() -> dict[str, Comparison]:
    """Without a calibration, with one of a box as the start values have it, and of one whose AllReduce takes eight times as long."""
    return {
        "plain": ps.compare(BOX, **KIMI),
        "usual": ps.compare(BOX, **KIMI, calibration=swept(BOX, 1.0)),
        "slow": ps.compare(BOX, **KIMI, calibration=swept(BOX, 8.0)),
    }


def point(run: Comparison, strategy: str, concurrency: int) -> Point:
    return next(one for one in run.points if (one.strategy, one.concurrency) == (strategy, concurrency))


def width(one: Point) -> float:
    """ln of p90 over p10."""
    assert one.tpot_ms_p10 is not None
    assert one.tpot_ms_p90 is not None
    return float(np.log(one.tpot_ms_p90 / one.tpot_ms_p10))


@pytest.mark.parametrize("case", ["plain", "usual", "slow"])
def test_breakdowns_sum_to_the_time(runs: dict[str, Comparison], case: str) -> None:
    for one in runs[case].points:
        assert sum(one.breakdown_ms.values()) == pytest.approx(one.tpot_ms, rel=1e-9)
        assert sum(one.evidence_share.values()) == pytest.approx(1.0)
        assert one.tpot_ms_p10 is not None
        assert one.tpot_ms_p90 is not None
        assert one.tpot_ms_p10 <= one.tpot_ms <= one.tpot_ms_p90


def narrowing(before: Point, after: Point) -> float:
    """Width of the calibrated answer over the plain one's; AllReduce's share of the step is booked as measured."""
    assert "measured" not in before.evidence_share
    share = after.breakdown_ms["all_reduce"] / after.tpot_ms
    assert after.evidence_share["measured"] == pytest.approx(share, rel=0.05)
    assert not after.extrapolated
    return width(after) / width(before)


@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_a_measured_all_reduce_narrows_tp8(concurrency: int) -> None:
    """Llama 3.1 70B sends 16 KiB a request: sizes that were measured."""
    asked: dict[str, Any] = {"model": "llama-3.1-70b", "strategy": "tp8", "concurrency": concurrency}
    plain, usual = (ps.predict(BOX, **asked, calibration=one).point for one in (None, swept(BOX, 1.0)))
    assert narrowing(plain, usual) < 0.98


def test_a_measured_all_reduce_narrows_kimi(runs: dict[str, Comparison]) -> None:
    """Kimi K2.6 sends 14,336 B a request, between 8 and 16 KiB."""
    assert narrowing(point(runs["plain"], "tp8", 1), point(runs["usual"], "tp8", 1)) < 0.98


def test_what_sends_no_all_reduce_stays_as_wide(runs: dict[str, Comparison]) -> None:
    before, after = (point(runs[case], "pp8", 1) for case in ("plain", "usual"))
    assert width(after) == pytest.approx(width(before), rel=0.05)
    assert after.tpot_ms == pytest.approx(before.tpot_ms, rel=0.02)
    assert "measured" not in after.evidence_share


def test_the_winner_is_surer(runs: dict[str, Comparison]) -> None:
    """Two candidates, tp8 against pp8, where they are close: 64 requests at once."""
    asked: dict[str, Any] = {"model": "kimi-k2.6", "strategies": ["tp8", "pp8"], "concurrency": 64}
    before = ps.compare(BOX, **asked).winners[0]
    after = ps.compare(BOX, **asked, calibration=swept(BOX, 1.0)).winners[0]
    assert before.strategy == after.strategy == "tp8"
    assert before.probability < 0.97
    assert after.probability > before.probability


def test_a_slow_all_reduce_moves_the_winner(runs: dict[str, Comparison]) -> None:
    for winner in runs["plain"].winners:
        assert winner.strategy in ("tp8", "ep8")
    for winner in runs["slow"].winners:
        assert winner.strategy not in ("tp8", "ep8")
    assert [winner.strategy for winner in runs["usual"].winners] == [winner.strategy for winner in runs["plain"].winners]
    for concurrency in KIMI["concurrency"]:
        plain, slow = (point(runs[case], "tp8", concurrency) for case in ("usual", "slow"))
        assert slow.breakdown_ms["all_reduce"] == pytest.approx(8 * plain.breakdown_ms["all_reduce"], rel=0.1)
        assert slow.breakdown_ms["attention"] == pytest.approx(plain.breakdown_ms["attention"])
        assert slow.bound_by == "all_reduce"


def test_the_notes_say_what_the_numbers_rest_on(runs: dict[str, Comparison]) -> None:
    def said(case: str) -> str:
        return " ".join(note.text for note in runs[case].notes if note.code == "calibration")

    assert said("plain") == ""
    assert "looks sick" in said("slow")
    assert "looks sick" not in said("usual")


def test_a_step_books_its_all_reduces_as_measured() -> None:
    """Kimi K2.6 on eight GPUs, one request: two AllReduces of each of 61 layers and one of the embedding, of 14,336 B, from the curve."""
    report = swept(BOX, 2.0)
    got = ps.predict(BOX, model="kimi-k2.6", strategy="tp8", concurrency=1, calibration=report)
    lines = [op for op in got.ops if op.kind == "all_reduce"]
    alone = ps.collective(BOX, "all_reduce", 14336, launch="graph", calibration=report)
    curve = report.calibration.curves[0]
    place = curve.bytes.index(16384)
    assert alone.time_s > 0.95e-6 * min(curve.time_us[place - 1 : place + 1])
    assert sum(line.count for line in lines) == 2 * 61 + 1
    for line in lines:
        assert line.bytes == 14336
        assert line.ms == pytest.approx(line.count * alone.time_s * 1e3, rel=1e-6)
        assert line.evidence == "measured"


def test_groups_side_by_side_are_modelled() -> None:
    """2xtp4 runs two AllReduces at once, of four GPUs each: the eight-GPU curve is no answer, but it teaches."""
    report = swept(BOX, 2.0)
    got = ps.predict(BOX, model="kimi-k2.6", strategy="2xtp4", concurrency=8, calibration=report)
    plain = ps.predict(BOX, model="kimi-k2.6", strategy="2xtp4", concurrency=8)
    lines = [op for op in got.ops if op.kind == "all_reduce"]
    assert lines
    assert all(op.evidence != "measured" for op in lines)
    assert got.point.breakdown_ms["all_reduce"] > 1.3 * plain.point.breakdown_ms["all_reduce"]


def test_a_step_takes_no_floor_of_eager_runs_for_its_wires() -> None:
    """Measured eagerly, small calls show the CPU: inside a step, where the CPU is a track of its own, the wire's time counts."""
    box = load_topology(BOX)
    run = Run(launch="eager")
    report = calibrate(box, [measurement(box, rows_of(run, box, true_times(box, start(), run)))], prior="none").report
    held = next(point for point in report.points if point.bytes == 8192)
    assert held.regime == "floor"
    for launch in ("graph", "eager"):
        got = ps.predict(BOX, model="llama-3.1-8b", strategy="tp8", launch=launch, calibration=report)  # type: ignore[arg-type]
        (line,) = [op for op in got.ops if op.name == "attention all_reduce"]
        assert line.bytes == 8192
        assert line.ms / line.count < 0.9 * held.measured_s * 1e3
        assert line.evidence != "measured"


def test_an_engines_own_kernel_is_not_the_librarys_curve() -> None:
    """Two GPUs with peer access: sglang sends small messages by its own kernel, whatever NCCL was measured to take."""
    box = load_topology(FOUR).with_settings(p2p="on", env={"NCCL_P2P_LEVEL": "SYS"})
    custom = load_runtime("sglang").custom_all_reduce
    assert custom is not None
    run = Run(ranks=2)
    rows = rows_of(run, box, true_times(box, truth(seed=1), run) * 5)
    made = Calibrated(calibrate(box, [measurement(box, rows)], prior="none").report.calibration, box)
    call = CollectiveCall("all_reduce", np.array([14336.0, float(1 << 25)]), ((0, 1),))
    got = made.call_times(made.box, call, gpu_of_rank=made.box.gpus, custom=custom)
    with made.in_force():
        bare = call_times(made.box, call, gpu_of_rank=made.box.gpus, custom=custom)
    assert isinstance(got, CalibratedTimes)
    assert got.measured is not None
    assert list(np.broadcast_to(got.protocol, 2)) == list(np.broadcast_to(bare.protocol, 2))
    assert str(np.broadcast_to(got.protocol, 2)[0]).endswith("shot")
    assert got.measured.tolist() == [False, True]
    assert got.time_s[0] == pytest.approx(bare.time_s[0])


def test_a_calibration_by_any_road_is_the_same(tmp_path: Any) -> None:
    """A report, its calibration, and the file of it."""
    from pcie_sim.study.calibrating import calibration_text

    report = swept(FOUR, 1.5)
    path = tmp_path / "mine.yaml"
    path.write_text(calibration_text(report.calibration))
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "strategies": ["tp4", "pp4"], "concurrency": [1, 16]}
    found = [ps.compare(FOUR, **asked, calibration=one).to_dict()["points"] for one in (report, report.calibration, path, str(path))]
    assert all(one == found[0] for one in found)


def test_shipped_profiles_are_calibrations_of_their_boxes() -> None:
    """By name: the profile's own curve answers on the box it was made on."""
    got = ps.collective(FOUR, "all_reduce", "1MiB", calibration="rtx-5090-4x-genoa")
    held = ps.load_calibration("rtx-5090-4x-genoa").curves[0]
    assert got.evidence == "measured"
    assert got.time_s * 1e6 == pytest.approx(held.time_us[held.bytes.index(1 << 20)])


def test_the_curve_decides_over_the_whole_sweep() -> None:
    """Every fourth of 25 sizes as measured, eight GPUs."""
    curve = swept(BOX, 8.0).calibration.curves[0]
    assert curve.bytes == SWEEP
    for size, time in list(zip(curve.bytes, curve.time_us, strict=True))[::4]:
        got = ps.collective(BOX, "all_reduce", size, calibration=swept(BOX, 8.0))
        assert got.time_s * 1e6 == pytest.approx(time)
