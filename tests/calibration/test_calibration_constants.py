"""What a fit may move: every constant is the number of some part, matters where its needs say so, and nowhere else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_box import EIGHT, FOUR, PAIR, SWITCHED, Run, made_of, true_times

from pcie_sim import catalog
from pcie_sim.calibration.constants import Z80, Fitted, constants, parts_with, start, used_parts
from pcie_sim.calibration.model import BoxModel
from pcie_sim.calibration.points import Copies, Curve, State
from pcie_sim.network import call_times, rank_order
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.ops import CollectiveCall
from pcie_sim.specs.part import LibraryPart
from pcie_sim.topology import Topology, load_topology

SIZES = np.array([8.0, 4096, 65536, 1 << 19, 1 << 22, 1 << 26])
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
BOXES = (PAIR, EIGHT, "rtx-2080-ti-2x-switch", "rtx-pro-6000-8x-2switch")


@pytest.mark.parametrize("name", constants())
def test_every_constant_begins_inside_its_bounds(name: str) -> None:
    item = constants()[name]
    assert item.low < item.value < item.high
    assert item.between <= item.spread  # known boxes cannot leave more doubt than none
    assert math.log(item.high / item.value) < 8
    assert item.unit in ("s", "B/s", "1")
    assert item.source
    assert item.evidence in ("nominal", "assumed")  # taken from no measured box


def test_the_floors_shape_grows_slower_than_the_gpus() -> None:
    shape = catalog.load_constants().eager_shape
    for fewer, more in zip(sorted(shape), sorted(shape)[1:], strict=False):
        assert shape[fewer] < shape[more] < shape[fewer] * more / fewer


def curve(box: Topology, op: str, launch: str, ranks: int | None = None, **env: str) -> Curve:
    gpus = rank_order(box, ranks or len(box.gpus))
    state = State(env=tuple(sorted(env.items())))
    return Curve(op, tuple(gpus), launch, SIZES, np.full(len(SIZES), 1e-5), state, ("made",))  # type: ignore[arg-type]


def moves(model: BoxModel) -> dict[str, float]:
    """How far ln(time) of the model's points moves at most when one constant, of all there are, grows by 30 % or falls far."""
    begin = {**start(), "believed_rate": model.switch}
    zero = np.zeros(len(model.names))
    found: dict[str, float] = {}
    base = model.ln_times(zero)
    for name, item in constants().items():
        if item.discrete:
            continue
        most = 0.0
        for factor in (1.3, 0.05):
            value = min(max(item.value * factor, item.low), item.high)
            model.values = lambda _, changed={**begin, name: value}: changed  # type: ignore[method-assign,misc]
            most = max(most, float(np.abs(model.ln_times(zero) - base).max()))
        del model.values
        found[name] = most
    return found


@pytest.fixture(scope="module")
def moved() -> dict[str, dict[str, tuple[float, bool]]]:
    """Box -> constant -> how far it moves any of the measurements, and whether the fit would move it."""
    found: dict[str, dict[str, tuple[float, bool]]] = {}
    for name in BOXES:
        box = load_topology(name)
        curves = [curve(box, op, "graph") for op in OPS] + [curve(box, op, "eager") for op in ("all_reduce", "send_recv")]
        curves.append(curve(box, "all_reduce", "graph", NCCL_PROTO="LL128"))
        peers = curve(box, "all_reduce", "graph", NCCL_P2P_LEVEL="SYS")
        curves.append(replace(peers, state=replace(peers.state, p2p="on")))
        pair = tuple(box.gpus[:2])
        copies = [Copies((pair[0], pair[1]), "write", State(), 2e10, 0.02, 1, "made", "PHB")]
        model = BoxModel(box, curves, copies)
        found[name] = {key: (most, key in model.names) for key, most in moves(model).items()}
        own = BoxModel(box, [curve(box, "all_reduce", "threads")])
        found[name]["floor_threads"] = (moves(own)["floor_threads"], "floor_threads" in own.names)
    return found


def test_every_constant_matters_somewhere(moved: dict[str, dict[str, tuple[float, bool]]]) -> None:
    for name, item in constants().items():
        if not item.discrete:
            assert max(box[name][0] for box in moved.values()) > 0.01, name


def test_what_is_left_out_of_a_fit_moves_nothing(moved: dict[str, dict[str, tuple[float, bool]]]) -> None:
    """A constant whose needs are not met stays at its prior: so no measurement may depend on it."""
    for box, found in moved.items():
        for name, (most, fitted) in found.items():
            if not fitted:
                assert most < 1e-9, (box, name)


@pytest.mark.parametrize("op", OPS)
def test_one_op_alone_needs_no_more_than_its_constants(op: str) -> None:
    for name in (FOUR, "rtx-2080-ti-2x-switch"):
        box = load_topology(name)
        model = BoxModel(box, [curve(box, op, "graph")])
        for constant, most in moves(model).items():
            if constant not in model.names:
                assert most < 1e-9, (name, constant)


def test_the_start_values_are_what_parts_with_nothing_gives() -> None:
    box = load_topology(FOUR)
    used = used_parts(box.spec)
    assert parts_with({}, used) == parts_with(start(), used)


@given(st.dictionaries(st.sampled_from(sorted(constants())), st.floats(0.5, 2.0), max_size=6), st.sampled_from([PAIR, FOUR, SWITCHED]))
def test_parts_stay_valid_and_carry_spread_and_label(factors: dict[str, float], name: str) -> None:
    box = load_topology(name)
    known = constants()
    given_it = {key: Fitted(known[key].value * factor, 0.1, "fitted") for key, factor in factors.items()}
    for part in parts_with(given_it, used_parts(box.spec)).values():
        again = type(part).model_validate(part.model_dump(by_alias=True))
        assert again == part
    library = parts_with(given_it, used_parts(box.spec))["nccl"]
    assert isinstance(library, LibraryPart)
    step = library.step_software["LL"]
    assert step.value == pytest.approx(1e-6 * factors.get("step.LL", 1.0))
    assert step.evidence == ("fitted" if "step.LL" in factors else known["step.LL"].evidence)
    assert step.sigma_log == pytest.approx(0.1 if "step.LL" in factors else known["step.LL"].spread, rel=1e-3)
    _ordered(step)


def _ordered(quantity: Quantity) -> None:
    assert quantity.low is not None
    assert quantity.high is not None
    assert math.log(quantity.high / quantity.value) == pytest.approx(Z80 * quantity.sigma_log, rel=1e-3)


def test_times_scale_with_their_constants() -> None:
    """By hand: an AllReduce's fixed cost counts once; a ring of four by LL has 2 (4 - 1) host-staged steps."""
    box, run = load_topology(FOUR), Run(sizes=(8,))
    plain = true_times(box, {}, run)[0]
    assert true_times(box, {"base.all_reduce": 2 * 6.6e-6}, run)[0] - plain == pytest.approx(6.6e-6, rel=1e-3)
    assert true_times(box, {"host_step": 2 * 1.7e-6}, run)[0] - plain == pytest.approx(6 * 1.7e-6, rel=0.01)


@pytest.mark.parametrize(("op", "steps"), [("all_reduce", 6), ("all_gather", 3), ("reduce_scatter", 3)])
def test_the_last_receive_of_a_ring(op: str, steps: int) -> None:
    """Of a ring's n primitives by Simple the last only receives: its bytes take (1 + share / steps) of those of the steps
    (NVIDIA/nccl:src/device/all_gather.h); a call by LL knows no such thing, nor do grouped sends.
    """
    box, large, small = load_topology(FOUR), Run(op, sizes=(1 << 30,)), Run(op, sizes=(64,))

    def moved(share: float, run: Run) -> float:
        with made_of(box, {"last_receive": share}) as made:
            call = CollectiveCall(run.op, np.array(run.sizes, dtype=float), ((0, 1, 2, 3),))  # type: ignore[arg-type]
            found = call_times(made, call, gpu_of_rank=made.gpus)
            assert found.protocol == ("Simple" if run is large else "LL")
            return float(found.bytes_s[0])

    assert moved(1.2, large) / moved(0.3, large) == pytest.approx((1 + 1.2 / steps) / (1 + 0.3 / steps), rel=1e-3)
    assert moved(1.2, small) == moved(0.3, small)
    sends = [true_times(box, {"last_receive": share}, Run("all_to_all", sizes=(1 << 30,)))[0] for share in (0.3, 1.2)]
    assert sends[0] == sends[1]


def test_plain_times_are_booked_in_two_parts() -> None:
    """Latency and bytes, each with its own spread and cause: what serving sums over a step."""
    box = load_topology(FOUR)
    found = call_times(box, CollectiveCall("all_reduce", SIZES, ((0, 1, 2, 3),)), gpu_of_rank=box.gpus)
    latency, moved = found.booked()
    assert (latency.cause, moved.cause) == ("net:latency", "net:bytes")
    np.testing.assert_array_equal(latency.time_s, found.latency_s)
    np.testing.assert_array_equal(moved.time_s, found.bytes_s)
    np.testing.assert_allclose(latency.time_s + moved.time_s, found.time_s)
    np.testing.assert_array_equal(latency.sigma, found.sigma_latency)
    assert (latency.evidence, moved.evidence) == (found.evidence_latency, found.evidence_bytes)
