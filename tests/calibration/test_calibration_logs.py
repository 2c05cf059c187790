"""Logs as nccl-tests prints them, straight as calibrations: what little is enough, what tells nothing, other libraries and links."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from made_box import FOUR, PAIR, SWEEP, Run, noisy, true_times, truth

import pcie_sim as ps
from pcie_sim.errors import InputError, NoDataError
from pcie_sim.topology import load_topology

DEVICES = {FOUR: "NVIDIA GeForce RTX 5090", PAIR: "NVIDIA H200"}


def log(rows: Sequence[tuple[int, float]], *, ranks: int = 4, op: str = "all_reduce", graph: int = 1, name: str = DEVICES[FOUR]) -> str:
    """The text of one nccl-tests run: (bytes, us) rows, in-place times the same."""
    head = [
        f"# Collective test starting: {op}_perf",
        f"# nThread 1 nGpus {ranks} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        f"validation: 1 graph: {graph}",
        "#",
        "# Using devices",
        *(f"#  Rank {rank:2d} Group  0 Pid  47450 on node0 device {rank:2d} [0000:{rank + 1:02x}:00] {name}" for rank in range(ranks)),
        "#",
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    body = [
        f"{size:12d} {size // 4:12d}     float     sum      -1 {time:8.2f} {size / max(time, 1e-9) / 1e3:7.2f}    0.00      0 "
        f"{time:8.2f}    0.00    0.00      0"
        for size, time in rows
    ]
    return "\n".join([*head, *body, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", "#", ""])


def written(tmp_path: Path, text: str, name: str = "run.log") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_log_is_a_calibration(tmp_path: Path) -> None:
    """The first thing a user has: text of all_reduce_perf. Fitted in passing, said so, and answered as printed."""
    box = load_topology(FOUR)
    times = noisy(true_times(box, truth(seed=1), Run()), 0.01, 1) * 1e6
    path = written(tmp_path, log(list(zip(SWEEP, times, strict=True))))
    report = ps.calibrate(FOUR, path, prior="none")
    (curve,) = report.calibration.curves
    assert (curve.op, curve.ranks, curve.launch, curve.file) == ("all_reduce", 4, "graph", "run.log")
    assert curve.gpus == box.gpus
    np.testing.assert_allclose(curve.time_us, np.round(times, 2))
    got = ps.collective(FOUR, "all_reduce", 16384, calibration=path)
    assert (got.launch, got.evidence) == ("graph", "measured")
    assert got.time_s * 1e6 == pytest.approx(round(times[SWEEP.index(16384)], 2))
    assert any("run.log: raw measurements, fitted in passing" in note for note in got.notes)
    (read,) = report.calibration.inputs
    assert read.file == "run.log"
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "rows",
    [[(16384, 30.0)], [(16384, 30.0), (16384, 31.0), (16384, 90.0)], [(8, 18.0), (16, 18.1)], [(0, 15.0), (16384, 30.0)]],
    ids=["one row", "one size thrice", "two sizes", "a row of nothing"],
)
def test_little_is_enough(tmp_path: Path, rows: list[tuple[int, float]]) -> None:
    """One size calibrates: its median is answered, and the report says what it cannot tell."""
    report = ps.calibrate(FOUR, written(tmp_path, log(rows)), prior="none")
    (curve,) = report.calibration.curves
    known = sorted({size for size, _ in rows if size})
    assert list(curve.bytes) == known
    for size, time in zip(curve.bytes, curve.time_us, strict=True):
        assert time == pytest.approx(float(np.median([other for at, other in rows if at == size])))
    assert len(report.unidentified) > 5
    assert {check.what: check.errors for check in report.crosschecks if check.what != "sizes"} == {"op": None, "ranks": None}
    assert all("could not be estimated" in str(check.reason) for check in report.crosschecks if check.what != "sizes")
    assert ps.collective(FOUR, "all_reduce", known[-1], calibration=report).evidence == "measured"
    assert np.isfinite(ps.collective(FOUR, "all_to_all", 1 << 20, calibration=report).time_s)


NOTHING: dict[str, tuple[str, str]] = {
    "only rows of size 0": (log([(0, 15.0), (0, 15.1)]), "no times of collectives"),
    "no rows": (log([]), "nothing to calibrate"),
    "more ranks than the box has": (log([(1024, 20.0), (2048, 21.0)], ranks=8), "runs of 8 ranks, which this box does not have"),
    "one rank": (log([(1024, 5.0), (2048, 5.0)], ranks=1), "no times of collectives"),
    "an op without a cost model": (log([(1024, 20.0)], op="hypercube"), "nothing to calibrate"),
    "no log": ("hello\n", "no known format"),
    "nothing": ("", "is empty"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_logs_that_tell_nothing_are_said_to(tmp_path: Path, case: str) -> None:
    text, said = NOTHING[case]
    for ask in (
        lambda path: ps.calibrate(FOUR, path),
        lambda path: ps.collective(FOUR, "all_reduce", 1024, calibration=path),
        lambda path: ps.compare(FOUR, model="llama-3.1-8b", calibration=path),
    ):
        with pytest.raises(InputError) as caught:
            ask(written(tmp_path, text))
        assert said in str(caught.value)
        assert caught.value.exit_code == 2


def test_a_mixed_lot_uses_what_it_can_and_says_what_not(tmp_path: Path) -> None:
    good, wide = written(tmp_path, log([(1024, 20.0), (4096, 21.0)])), written(tmp_path, log([(1024, 20.0)], ranks=8), "wide.log")
    report = ps.calibrate(FOUR, [good, wide], prior="none")
    assert [curve.ranks for curve in report.calibration.curves] == [4]
    assert any("wide.log" in text and "8 ranks" in text for text in report.unused)
    assert [item.file for item in report.calibration.inputs] == ["run.log"]


def test_two_ops_two_files_two_hashes(tmp_path: Path) -> None:
    first = written(tmp_path, log([(1024, 20.0), (4096, 21.0), (65536, 30.0)]))
    second = written(tmp_path, log([(1024, 18.0), (4096, 19.0), (65536, 25.0)], op="all_gather"), "gather.log")
    report = ps.calibrate(FOUR, [first, second], prior="none")
    assert [(item.file, item.op) for item in report.calibration.inputs] == [("run.log", "all_reduce"), ("gather.log", "all_gather")]
    assert len({item.sha256 for item in report.calibration.inputs}) == 2
    assert {check.left_out for check in report.crosschecks if check.what == "op"} == {"all_reduce", "all_gather"}
    assert all(check.errors is not None for check in report.crosschecks if check.what == "op")


def test_the_same_file_twice_is_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, log([(1024, 20.0), (4096, 21.0), (65536, 30.0)]))
    once, twice = ps.calibrate(FOUR, [path], prior="none"), ps.calibrate(FOUR, [path, path], prior="none")
    assert len(twice.calibration.curves) == 1
    assert twice.calibration.curves[0].time_us == once.calibration.curves[0].time_us


@pytest.mark.parametrize(("name", "library"), [("arc-pro-b70-2x-tr1950x", "oneccl"), ("mi210-2x-milan", "rccl")])
def test_boxes_with_another_library_answer_by_their_curve(tmp_path: Path, name: str, library: str) -> None:
    """Constants of another library's cost model or none: the measured curve stands all the same, and other ops get a finite answer or
    are said to have none.
    """
    path = written(tmp_path, log([(1024, 20.0), (65536, 30.0), (1 << 20, 200.0)], ranks=2, name="GPU"))
    report = ps.calibrate(name, path, prior="none")
    got = ps.collective(name, "all_reduce", 65536, calibration=report)
    assert got.ccl.startswith(library)
    assert got.time_s == pytest.approx(30e-6)
    with contextlib.suppress(NoDataError):
        assert np.isfinite(ps.collective(name, "all_to_all", 65536, calibration=report).time_s)


@pytest.mark.parametrize("name", ["rtx-3090-2x-nvlink", "a40-8x-rome-2socket-nvlink"])
def test_boxes_with_nvlink_calibrate_too(tmp_path: Path, name: str) -> None:
    """Pairs over a bridge: whatever constants they tell, the curve is the answer."""
    path = written(tmp_path, log([(1024, 12.0), (65536, 20.0), (1 << 20, 60.0), (1 << 24, 600.0)], ranks=2, name="GPU"))
    report = ps.calibrate(name, path, prior="none")
    got = ps.collective(name, "all_reduce", 65536, ranks=2, calibration=report)
    assert got.time_s == pytest.approx(20e-6)
    assert np.isfinite(ps.collective(name, "all_gather", 65536, ranks=2, calibration=report).time_s)
