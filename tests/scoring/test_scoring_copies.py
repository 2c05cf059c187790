"""Concurrent copies: hand computation, the fit without the scored box, broken measurement files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.network import copy_rates
from pcie_sim.scoring import contention
from pcie_sim.scoring.rows import Case, box, cases, scored
from pcie_sim.specs.part import PciePart, SwitchPart
from pcie_sim.study.measured import load_set_file
from pcie_sim.topology import load_topology

GEN5_X16 = 32e9 * 16 / 8 * 0.984615385 * 256 / 280 * 0.98
"""PCI-SIG rate, line code, 256 B payload in 280 B packets, link layer: B/s of one direction."""


def shares() -> tuple[float, float, float]:
    part = catalog.load_typed_part("pm50100", SwitchPart)
    assert part.contended_share is not None
    assert part.fan_share is not None
    assert part.read_share is not None
    return part.contended_share.value, part.fan_share.value, part.read_share.value


def everyone(gpus: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(a, b) for a in gpus for b in gpus if a != b]


def test_one_flow_has_the_link_to_itself() -> None:
    found = copy_rates(load_topology("rtx-pro-6000-8x-2switch"), [("gpu0", "gpu1")])
    assert found.total == pytest.approx(GEN5_X16, rel=1e-12)
    assert found.shared == ()


def test_pairs_over_one_uplink_share_its_contended_rate() -> None:
    contended, _, _ = shares()
    found = copy_rates(load_topology("rtx-pro-6000-16x-wrx90-4switch"), [("gpu0", "gpu4"), ("gpu1", "gpu5")])
    assert found.total == pytest.approx(GEN5_X16 * contended, rel=1e-12)
    assert set(found.shared) == {"sw0.up", "sw1.dn"}


def test_all_pairs_of_one_switch_are_bound_by_crowded_ports() -> None:
    """12 flows of size s: each port carries three in and three out, so s/t = rate x contended x fan / 3 a flow; reads by the share."""
    contended, fan, read = shares()
    box = load_topology("rtx-pro-6000-16x-turin-4switch-star")
    pairs = everyone(box.gpus[:4])
    wrote, read_back = copy_rates(box, pairs), copy_rates(box, pairs, access="read")
    assert wrote.total == pytest.approx(4 * GEN5_X16 * contended * fan, rel=1e-12)
    assert read_back.total == pytest.approx(wrote.total * read, rel=1e-12)
    assert len(wrote.crowded) == 8


def test_all_pairs_of_two_switches_are_bound_by_the_uplinks() -> None:
    """16 of 56 flows cross each uplink in each direction: total = 56/16 of its rate; its fan is not charged."""
    contended, _, _ = shares()
    box = load_topology("rtx-pro-6000-16x-wrx90-4switch")
    assert copy_rates(box, everyone(box.gpus[:8])).total == pytest.approx(56 / 16 * GEN5_X16 * contended, rel=1e-12)


def test_staggered_copies_report_the_mean_flow() -> None:
    """Shift by two over two switches of four: four flows share the uplinks two by two, four are free."""
    contended, _, _ = shares()
    box = load_topology("rtx-pro-6000-16x-wrx90-4switch")
    found = copy_rates(box, [(f"gpu{i}", f"gpu{(i + 2) % 8}") for i in range(8)])
    assert found.mean == pytest.approx((4 * GEN5_X16 + 4 * GEN5_X16 * contended / 2) / 8, rel=1e-12)


def test_collapse_is_in_force_only_when_asked_and_only_for_writes() -> None:
    box = load_topology("rtx-pro-6000-8x-asus-broadcom")
    pairs = [("gpu0", "gpu4"), ("gpu1", "gpu6")]
    faulty = box.with_settings(conditions=["posted_write_collapse"])
    assert copy_rates(faulty, pairs).total == pytest.approx(2.7e9)
    assert copy_rates(faulty, pairs, access="read").total == copy_rates(box, pairs).total > 4e10


def test_copies_without_peer_access_are_staged() -> None:
    box = load_topology("rtx-pro-6000-8x-2switch")
    assert copy_rates(box.with_settings(p2p="off"), [("gpu0", "gpu1")]).staged
    assert not copy_rates(box, [("gpu0", "gpu4")]).staged  # the library's level does not bind a copy


@pytest.mark.parametrize(
    ("pairs", "options", "says"),
    [
        ([], {}, "0 pairs"),
        ([("gpu0", "gpu0")], {}, "twice"),
        ([("gpu0", "gpu99")], {}, "gpu99"),
        ([("gpu0", "gpu1")], {"size_bytes": 0}, "above 0"),
        ([("gpu0", "gpu1")], {"access": "peek"}, "write or read"),
    ],
)
def test_bad_questions(pairs: list[tuple[str, str]], options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        copy_rates(load_topology("rtx-pro-6000-8x-2switch"), pairs, **options)  # type: ignore[arg-type]


def test_pooled_shares_stand_in_for_parts_without_figures() -> None:
    pcie = catalog.load_typed_part("pcie", PciePart)
    link = load_topology("rtx-4090-8x-rome-2socket").links["gpu0.up"]
    assert link.contended_share == pcie.contended_share
    assert link.fan_share == pcie.fan_share
    assert link.read_share is None


def test_rows_that_showed_the_tree_are_not_scored() -> None:
    kept = {id(case.row) for case in contention.measured_copies()}
    told = [case for case in cases("copy", use=("score", "context")) if case.row.infers_tree]
    assert len(told) >= 60
    assert not any(id(case.row) in kept for case in told)


def test_a_fit_without_a_box_never_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    items = contention.measured_copies()
    seen: list[set[str]] = []
    monkeypatch.setattr(contention, "fit", lambda rest: seen.append({case.machine for case in rest}) or {})
    contention.leave_one_out(items)
    machines = list(dict.fromkeys(case.machine for case in items))
    assert len(machines) >= 8
    for machine, used in zip(machines, seen, strict=True):
        assert used == set(machines) - {machine}


def test_wirings_of_one_box_are_left_out_together() -> None:
    names = {case.held.id: case.machine for case in contention.measured_copies()}
    assert len({names[f"copies-rtx-pro-6000-8x-wrx90-2vs-{variant}"] for variant in ("v1", "v2", "v3")}) == 1


def test_constants_of_the_left_out_box_are_replaced() -> None:
    """Without the only box of a family, its parts get the pooled shares, not what the catalog says of them."""
    items = [
        case for case in contention.measured_copies() if case.machine == "rtx-pro-6000-8x-turin-direct" or "turin-direct" in case.held.id
    ]
    constants = contention.fit(items)
    assert constants["pm50100.fan_share"] == constants["pcie.fan_share"]
    assert constants["pex890xx.fan_share"] == constants["pcie.fan_share"]
    with catalog.using_parts(contention.parts_with(constants)):
        switch = catalog.load_typed_part("pm50100", SwitchPart)
        assert switch.fan_share is not None
        assert switch.fan_share.value == constants["pcie.fan_share"]
        assert switch.read_share is not None
        assert switch.read_share.value == 1.0
    shipped = catalog.load_typed_part("pm50100", SwitchPart).fan_share
    assert shipped is not None
    assert shipped.value == shares()[1]


HEAD = """schema: pcie-sim/measurement/1
id: x
kind: copy
use: score
sources: [nowhere]
machine: {topology: rtx-pro-6000-8x-2switch, topology_evidence: measured, gpus: 8}
rows:
"""


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{metric: rate, value: 1, unit: GB/s, quality: good}", "needs flows"),
        ("{flows: [[gpu0, gpu0]], metric: rate, value: 1, unit: GB/s, quality: good}", "to itself"),
        ("{flows: [[gpu0, gpu1]], metric: time, value: 1, unit: us, quality: good}", "needs flows and the metric rate"),
        ("{flows: [[gpu0, gpu1]], metric: rate, value: 1, unit: us, quality: good}", "give it in"),
        ("{flows: [[gpu0, gpu1]], metric: rate, value: .inf, unit: GB/s, quality: good}", "finite"),
        ("{flows: [[gpu0, gpu1]], metric: rate, value: -1, unit: GB/s, quality: good}", "more than 0"),
        ("{flows: [[gpu0]], metric: rate, value: 1, unit: GB/s, quality: good}", "required|missing"),
        ("{flows: [[gpu0, gpu1]], access: guess, metric: rate, value: 1, unit: GB/s, quality: good}", "write"),
        ("{flows: [[gpu0, '../x']], metric: rate, value: 1, unit: GB/s, quality: good}", "a name has letters"),
        ("{arm: none, flows: [[gpu0, gpu1]], metric: rate, value: 1, unit: GB/s, quality: good}", "not among arms"),
    ],
)
def test_hostile_copy_rows(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{HEAD}  - {row}\n", encoding="utf-8")
    with pytest.raises(InputError, match=says):
        load_set_file(str(path))


def test_flows_are_for_copies_only(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    text = HEAD.replace("kind: copy", "kind: collective")
    row = "{op: all_reduce, ranks: 2, bytes: 8, flows: [[gpu0, gpu1]], metric: time, value: 1, unit: us, quality: good}"
    path.write_text(f"{text}  - {row}\n", encoding="utf-8")
    with pytest.raises(InputError, match="kind copy"):
        load_set_file(str(path))


def test_a_row_with_a_gpu_that_the_box_lacks(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{HEAD}  - {{flows: [[gpu0, gpu77]], metric: rate, value: 1, unit: GB/s, quality: good}}\n", encoding="utf-8")
    held = load_set_file(str(path))
    with pytest.raises(InputError, match="gpu77"):
        contention.predict(Case(held, held.rows[0]))


def test_a_set_without_a_tree_cannot_be_predicted() -> None:
    held = next(case for case in cases("copy")).held
    lost = held.model_copy(update={"machine": held.machine.model_copy(update={"topology": None})})
    with pytest.raises(InputError, match="no topology"):
        box(Case(lost, held.rows[0]))


def test_unreliable_rows_are_kept_and_not_scored() -> None:
    unreliable = [case for case in cases("copy") if case.row.quality == "unreliable"]
    assert unreliable
    assert not any(scored(case) for case in unreliable)
