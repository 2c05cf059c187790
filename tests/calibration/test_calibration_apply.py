"""What a calibrated box answers: the curve itself where it was measured, and nowhere else; wider bands the further away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_box import EIGHT, FOUR, PAIR, Run, asked, measured, measurement, rows_of, true_times, truth

import pcie_sim as ps
from pcie_sim.calibration.apply import Calibrated
from pcie_sim.calibration.make import calibrate
from pcie_sim.errors import InputError
from pcie_sim.network import call_times, time_collective
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.topology import from_spec, load_topology

SWEEP = tuple(1 << power for power in range(13, 27))
"""8 KiB to 64 MiB: there is a below and an above."""
Z = 1.2815515655446004


def made_spec(name: str, *runs: Run, seed: int = 1, **settings: Any) -> CalibrationSpec:
    box = load_topology(name)
    box = box.with_settings(**settings) if settings else box
    return calibrate(box, [measured(box, truth(seed=seed), runs)], prior="none").report.calibration


@pytest.fixture(scope="module")
def spec() -> CalibrationSpec:
    """Four GPUs: AllReduce of 4 and of 2 in a graph, AllGather of 4 eagerly (small calls at the CPU's floor)."""
    return made_spec(
        FOUR,
        Run(sizes=SWEEP, noise=0.02),
        Run(ranks=2, sizes=SWEEP, noise=0.02),
        Run("all_gather", sizes=SWEEP, launch="eager", noise=0.02),
    )


@pytest.fixture(scope="module")
def box(spec: CalibrationSpec) -> Calibrated:
    return Calibrated(spec, load_topology(FOUR), source="mine.yaml")


@given(st.lists(st.integers(SWEEP[0], SWEEP[-1]), min_size=1, max_size=5))
def test_inside_a_curve_the_answer_is_the_curve(box: Calibrated, sizes: list[int]) -> None:
    """What the fitted constants leave of ln(time) is linear in ln(size) between neighbours (as far as they do not bend by e^0.35)."""
    curve = box.spec.curves[0]
    got = asked(box, Run(sizes=tuple(sizes)))

    def fitted(size: float) -> float:
        call = CollectiveCall("all_reduce", np.array([float(size)]), (tuple(range(len(box.box.gpus))),))
        with box.in_force():
            return float(call_times(box.box, call, gpu_of_rank=box.box.gpus).time_s[0])

    for size, time in zip(sizes, got.time_s, strict=True):
        after = next(place for place, known in enumerate(curve.bytes) if known >= size)
        before = max(after - 1, 0)
        share = 0.0 if after == before else np.log(size / curve.bytes[before]) / np.log(curve.bytes[after] / curve.bytes[before])
        left = [np.log(curve.time_us[place] * 1e-6 / fitted(curve.bytes[place])) for place in (before, after)]
        expected = fitted(size) * np.exp(left[0] * (1 - share) + left[1] * share)
        assert time == pytest.approx(expected, rel=1e-9)
    assert got.measured is not None
    assert got.measured.all()
    assert got.evidence == "measured"
    assert not got.extrapolated.any()


@pytest.mark.parametrize("engine", ["analytic", "event"])
def test_at_a_measured_size_it_is_the_measured_value(spec: CalibrationSpec, engine: Any) -> None:
    for place in (0, 5, len(SWEEP) - 1):
        got = ps.collective(FOUR, "all_reduce", SWEEP[place], launch="graph", engine=engine, calibration=spec)
        assert got.time_s * 1e6 == pytest.approx(spec.curves[0].time_us[place], rel=1e-12)
        assert got.evidence == "measured"
        assert not got.extrapolated
        assert got.time_s_p10 is not None
        assert got.time_s_p90 is not None
        assert got.time_s_p10 < got.time_s < got.time_s_p90
        assert sum(got.parts_s.values()) == pytest.approx(got.time_s)


def test_the_band_of_a_measured_size_is_its_spread_from_run_to_run(spec: CalibrationSpec) -> None:
    noise = spec.curves[0].sigma_log
    got = ps.collective(FOUR, "all_reduce", SWEEP[3], launch="graph", calibration=spec)
    assert got.time_s_p90 == pytest.approx(got.time_s * np.exp(Z * noise))
    assert got.time_s_p10 == pytest.approx(got.time_s / np.exp(Z * noise))


def test_sizes_together_or_one_by_one(box: Calibrated) -> None:
    sizes = (1, 100, 8192, 20_000, 1 << 22, 1 << 30)
    for run in (Run(), Run("reduce_scatter"), Run("all_gather", launch="eager")):
        whole = asked(box, Run(run.op, sizes=sizes, launch=run.launch))
        for place, size in enumerate(sizes):
            one = asked(box, Run(run.op, sizes=(size,), launch=run.launch))
            for field in ("time_s", "latency_s", "bytes_s", "sigma", "measured", "extrapolated"):
                assert np.asarray(getattr(one, field))[0] == pytest.approx(np.asarray(getattr(whole, field))[place], rel=1e-9), (
                    field,
                    size,
                )


def test_a_message_of_nothing_takes_what_the_constants_say(box: Calibrated) -> None:
    call = CollectiveCall("all_reduce", np.array([0.0, 8.0]), ((0, 1, 2, 3),))
    got = box.call_times(box.box, call, gpu_of_rank=box.box.gpus)
    alone = box.call_times(box.box, CollectiveCall("all_reduce", np.array([0.0]), ((0, 1, 2, 3),)), gpu_of_rank=box.box.gpus)
    assert got.time_s[0] == pytest.approx(alone.time_s[0])
    assert 0 < got.time_s[0] < got.time_s[1] * 1.2


def test_parts_sum_to_the_time_and_are_booked_once(box: Calibrated) -> None:
    for run in (Run(sizes=(1024, 1 << 14, 1 << 20, 1 << 28)), Run("broadcast", sizes=(1024, 1 << 20))):
        got = asked(box, run)
        np.testing.assert_allclose(got.latency_s + got.bytes_s, got.time_s, rtol=1e-12)
        np.testing.assert_allclose(sum(part.time_s for part in got.booked()), got.time_s, rtol=1e-12)
        for part in got.booked():
            assert np.all(part.time_s >= 0)
    causes = {part.cause for part in asked(box, Run(sizes=(1 << 14,))).booked() if part.time_s.any()}
    assert causes == {"net:all_reduce:4:measured"}


@pytest.mark.parametrize(
    "sizes", [tuple(1 << power for power in range(26, 36)), tuple(1 << power for power in range(13, 8, -1))], ids=["up", "down"]
)
def test_outside_it_is_extrapolated_and_less_and_less_sure(box: Calibrated, sizes: tuple[int, ...]) -> None:
    got = asked(box, Run(sizes=sizes))
    assert got.sigma is not None
    assert got.measured is not None
    assert got.measured.tolist() == [True] + [False] * (len(sizes) - 1)
    assert got.extrapolated.tolist() == [False] + [True] * (len(sizes) - 1)
    assert np.all(np.diff(got.sigma) > 0), got.sigma


def test_more_ranks_than_measured_are_extrapolated() -> None:
    spec = made_spec(EIGHT, Run(ranks=2, sizes=SWEEP, noise=0.01), Run(ranks=4, sizes=SWEEP, noise=0.01))
    box = Calibrated(spec, load_topology(EIGHT))
    three, eight = (asked(box, Run(ranks=ranks, sizes=(1 << 14, 1 << 20))) for ranks in (3, 8))
    assert not three.extrapolated.any()
    assert eight.extrapolated.all()
    assert three.sigma is not None
    assert eight.sigma is not None
    assert np.all(eight.sigma > three.sigma)


@pytest.mark.parametrize(
    "run",
    [Run("reduce_scatter"), Run("all_to_all"), Run("send_recv"), Run(ranks=3), Run("all_gather", ranks=2)],
    ids=lambda run: f"{run.op} {run.ranks}",
)
def test_what_was_not_measured_is_not_called_so(box: Calibrated, run: Run) -> None:
    got = asked(box, Run(run.op, run.ranks, SWEEP))
    assert got.measured is not None
    assert got.sigma is not None
    assert not got.measured.any()
    assert got.evidence != "measured"
    assert np.all(got.sigma > 0.02)
    one = ps.collective(FOUR, run.op, SWEEP[5], ranks=run.ranks, launch="graph", calibration=box.spec)
    assert one.evidence != "measured"
    assert one.time_s == pytest.approx(got.time_s[5])


def test_an_op_of_another_protocol_is_not_even_fitted(box: Calibrated) -> None:
    """Asked by name, a protocol that the library would not choose is no measured curve."""
    got = asked(box, Run(sizes=(1 << 14,)), protocol="Simple")
    assert got.measured is not None
    assert not got.measured.any()
    auto = asked(box, Run(sizes=(1 << 14,)))
    assert got.time_s[0] > auto.time_s[0]


def test_several_groups_at_once_are_not_what_was_measured(box: Calibrated) -> None:
    """Two pairs side by side share the host's memory; the curve is of one pair alone."""
    size = np.array([float(1 << 24)])
    order = box.box.gpus
    one = box.call_times(box.box, CollectiveCall("all_reduce", size, ((0, 1),)), gpu_of_rank=order)
    both = box.call_times(box.box, CollectiveCall("all_reduce", size, ((0, 1), (2, 3))), gpu_of_rank=order)
    assert one.evidence == "measured"
    assert both.evidence != "measured"
    assert both.time_s[0] >= 0.95 * one.time_s[0]


def test_twins_of_the_measured_gpus_are_fitted(box: Calibrated) -> None:
    """gpu2 and gpu3 hang like gpu0 and gpu1: the same time, one label lower."""
    first, second = asked(box, Run(ranks=2, sizes=SWEEP)), asked(box, Run(ranks=2, sizes=SWEEP, gpus=("gpu2", "gpu3")))
    np.testing.assert_allclose(second.time_s, first.time_s)
    assert (first.evidence, second.evidence) == ("measured", "fitted")


def test_eager_times_at_the_floor_are_not_a_graphs(box: Calibrated) -> None:
    """The AllGather was measured eagerly. Its small calls were held up by the CPU: in a graph they are faster, and no curve says how."""
    curve = box.spec.curves[2]
    assert (curve.op, curve.launch) == ("all_gather", "eager")
    eager, graph = (asked(box, Run("all_gather", sizes=SWEEP, launch=launch)) for launch in ("eager", "graph"))
    assert eager.measured is not None
    assert graph.measured is not None
    assert eager.measured.all()
    np.testing.assert_allclose(eager.time_s * 1e6, curve.time_us, rtol=1e-12)
    held = np.array([name == "floor" for name in _regimes(box, 2)])
    assert held.sum() >= 2
    assert not held.all()
    np.testing.assert_array_equal(graph.measured, ~held)
    assert np.all(graph.time_s[held] < 0.95 * eager.time_s[held])
    np.testing.assert_allclose(graph.time_s[~held], eager.time_s[~held], rtol=1e-12)


def _regimes(box: Calibrated, curve: int) -> list[str]:
    return [name for name, of in zip(box._rows.regime, box._rows.curve, strict=True) if of == curve]


def launched(launch: str | None, *, own_threads: bool | None = None) -> CalibrationSpec:
    """An AllReduce sweep of eight GPUs as a log of that launch mode has it (graph times; eager ones with the floor)."""
    box = load_topology(EIGHT)
    run = Run(sizes=SWEEP, launch="eager" if launch == "eager" and not own_threads else "graph")
    rows = [row | {"arm": "run", "launch": launch} for row in rows_of(run, box, true_times(box, truth(seed=1), run))]
    made = calibrate(box, [measurement(box, rows, arms={"run": {"own_threads": own_threads}})], prior="none")
    return made.report.calibration


@pytest.mark.parametrize("launch", ["graph", "eager"])
def test_a_collective_is_launched_as_the_log_was(launch: str) -> None:
    spec = launched(launch)
    got = ps.collective(EIGHT, "all_reduce", SWEEP[1], calibration=spec)
    assert got.launch == launch
    assert got.evidence == "measured"
    assert got.time_s * 1e6 == pytest.approx(spec.curves[0].time_us[1], rel=1e-12)
    assert ps.collective(EIGHT, "all_reduce", SWEEP[1]).launch == "eager"


@pytest.mark.parametrize(("launch", "own_threads"), [("eager", True), (None, None)], ids=["threads", "unknown"])
def test_a_collective_is_answered_by_its_log_whatever_its_launch(launch: str | None, own_threads: bool | None) -> None:
    spec = launched(launch, own_threads=own_threads)
    got = ps.collective(EIGHT, "all_reduce", SWEEP[1], calibration=spec)
    # asked in a graph: calls from threads of their own may have waited for the CPU
    assert got.evidence == ("fitted" if own_threads else "measured")
    assert got.time_s * 1e6 == pytest.approx(spec.curves[0].time_us[1], rel=1e-12)
    assert (got.time_s_p90 - got.time_s > 2e-6) == bool(own_threads)


def test_a_ring_in_another_order_is_not_what_was_measured() -> None:
    """Rank by rank across the sockets: every hop crosses; the library's own ring crosses twice."""
    spec = made_spec(EIGHT, Run(sizes=SWEEP))
    zigzag = [f"gpu{index}" for index in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert set(zigzag) == set(load_topology(EIGHT).gpus)
    assert ps.collective(EIGHT, "all_reduce", SWEEP[-1], launch="graph", order=zigzag, calibration=spec).evidence != "measured"


def test_a_gpu_on_a_narrow_link_is_no_twin() -> None:
    whole = load_topology(FOUR)
    narrow = whole.spec.nodes["gpu3"].model_copy(update={"link": whole.spec.nodes["gpu3"].link.model_copy(update={"width": 4})})  # type: ignore[union-attr]
    box = from_spec(whole.spec.model_copy(update={"nodes": {**whole.spec.nodes, "gpu3": narrow}}), source=FOUR)
    spec = calibrate(box, [measured(box, truth(seed=1), [Run(ranks=2, sizes=SWEEP)])], prior="none").report.calibration
    made = Calibrated(spec, box)
    wide, other = (asked(made, Run(ranks=2, sizes=(1 << 26,), gpus=gpus)).time_s[0] for gpus in (("gpu0", "gpu1"), ("gpu2", "gpu3")))
    assert other > 2 * wide  # 4 lanes for 16


@pytest.mark.parametrize(
    ("options", "answered"),
    [
        ({}, True),
        ({"env": {"NCCL_DEBUG": "INFO"}}, True),
        ({"nccl": "2.26.5"}, True),
        ({"env": {"NCCL_PROTO": "Simple"}}, False),
        ({"env": {"NCCL_MAX_NCHANNELS": "2"}}, False),
        ({"nccl": "2.29"}, False),
        ({"p2p": "on"}, True),  # the library refuses peers across root ports all the same
        ({"p2p": "on", "env": {"NCCL_P2P_LEVEL": "SYS"}}, False),
        ({"protocol": "Simple"}, False),
        ({"algorithm": "ring"}, False),
    ],
    ids=str,
)
def test_other_settings_are_not_what_was_measured(spec: CalibrationSpec, options: dict[str, Any], answered: bool) -> None:
    """The runs: NCCL 2.26.2, host-staged, no environment that the library's choices know."""
    got = ps.collective(FOUR, "all_reduce", SWEEP[5], launch="graph", calibration=spec, **options)
    assert (got.evidence == "measured") is answered


def test_settings_of_the_runs_are_taken_and_said() -> None:
    """Runs with NCCL 2.28 that forced Simple, on a box whose file says 2.26: asked plainly, the runs' state counts."""
    box = load_topology(FOUR)
    run = Run(sizes=SWEEP)
    times = true_times(box.with_settings(ccl="2.28", env={"NCCL_PROTO": "Simple"}), truth(seed=1), run)
    state = {"ccl": {"name": "nccl", "version": "2.28.9"}, "env": {"NCCL_PROTO": "Simple"}}
    spec = calibrate(box, [measurement(box, rows_of(run, box, times), software=state)], prior="none").report.calibration
    got = ps.collective(FOUR, "all_reduce", SWEEP[5], calibration=spec)
    assert got.evidence == "measured"
    assert got.time_s == pytest.approx(times[5], rel=1e-5)
    assert got.env == {"NCCL_PROTO": "Simple"}
    assert any("settings of the measured runs taken: nccl 2.28.9, NCCL_PROTO=Simple" in note for note in got.notes)
    back = ps.collective(FOUR, "all_reduce", SWEEP[1], calibration=spec, env={"NCCL_PROTO": "LL,Simple"})
    assert back.evidence != "measured"
    assert back.time_s < times[1]


def test_runs_that_disagree_leave_the_topology_as_it_is() -> None:
    box = load_topology(PAIR)
    run = Run(sizes=SWEEP)
    times = true_times(box, truth(seed=1), run)
    sets = [measurement(box, rows_of(run, box, times), source=f"{p2p}.log", software={"p2p": p2p}) for p2p in ("on", "off")]
    made = Calibrated(calibrate(box, sets, prior="none").report.calibration, box)
    assert made.box.settings.p2p == box.settings.p2p


OTHER = {
    "another count": ("rtx-4090-8x-direct-1socket", "4x rtx-5090", "8x rtx-4090"),
    "another model": ("rtx-4090-4x-direct-1socket", "4x rtx-5090", "4x rtx-4090"),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_calibration_of_other_gpus_is_refused(spec: CalibrationSpec, case: str) -> None:
    name, theirs, ours = OTHER[case]
    for ask in (
        lambda: ps.collective(name, "all_reduce", 1024, calibration=spec),
        lambda: ps.compare(name, model="llama-3.1-8b", calibration=spec),
        lambda: ps.predict(name, model="llama-3.1-8b", strategy="tp4", calibration=spec),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        text = str(caught.value)
        assert theirs in text
        assert ours in text
        assert FOUR in text
        assert name in text
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "step.LL256"}, r"step\.LL256 is not known"),
        ({"unit": "us"}, r"host_step in 'us'; its unit is 's'"),
        ({"value": 1.0}, r"host_step = 1 is outside 3e-07 to 3e-05"),
        ({"value": 1e-9}, r"host_step = 1e-09 is outside 3e-07 to 3e-05"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(spec: CalibrationSpec, change: dict[str, Any], said: str) -> None:
    parameters = tuple(item.model_copy(update=change) if item.name == "host_step" else item for item in spec.parameters)
    with pytest.raises(InputError, match=f"the calibration: parameters: {said}"):
        ps.collective(FOUR, "all_reduce", 1024, calibration=spec.model_copy(update={"parameters": parameters}))


def test_a_curve_on_gpus_that_the_box_lacks_is_refused(spec: CalibrationSpec) -> None:
    curve = spec.curves[1].model_copy(update={"gpus": ("gpu0", "gpu9")})
    with pytest.raises(InputError, match="gpu9"):
        ps.collective(FOUR, "all_reduce", 1024, calibration=spec.model_copy(update={"curves": (curve,)}))


def test_without_curves_the_constants_still_count(spec: CalibrationSpec) -> None:
    bare = spec.model_copy(update={"curves": ()})
    got = ps.collective(FOUR, "all_reduce", SWEEP[4], launch="graph", calibration=bare)
    fitted = {parameter.name: parameter.value for parameter in spec.parameters}
    assert got.time_s == pytest.approx(true_times(load_topology(FOUR), fitted, Run(sizes=(SWEEP[4],)))[0], rel=1e-9)
    assert got.evidence != "measured"


def test_the_catalog_is_as_before_afterwards(spec: CalibrationSpec) -> None:
    before = time_collective(load_topology(FOUR), "all_reduce", 1 << 20).time_s
    ps.collective(FOUR, "all_reduce", 1 << 20, calibration=spec)
    with pytest.raises(InputError):
        ps.collective(FOUR, "all_reduce", 1 << 20, ranks=99, calibration=spec)
    assert time_collective(load_topology(FOUR), "all_reduce", 1 << 20).time_s == before


def test_a_size_between_is_not_surer_than_what_may_happen_there() -> None:
    """Octaves apart, the time may jump anywhere between two measured sizes: the truth lies within four standard deviations."""
    box = load_topology(FOUR)
    values = truth(seed=1)
    made = Calibrated(calibrate(box, [measured(box, values, [Run()])], prior="none").report.calibration, box)
    between = Run(sizes=tuple(3 << power for power in range(4, 26)))
    got = asked(made, between)
    assert got.measured is not None
    assert got.sigma is not None
    assert got.measured.all()
    off = np.abs(np.log(got.time_s / true_times(box, values, between))) / got.sigma
    assert off.max() < 4
