"""Links: lanes and generations against what both ends allow, few lanes among many, uplinks."""

from __future__ import annotations

import pytest
from doctor_facts import GBPS, SYS, codes, device, linked, load, matrix, only, passed, port, relinked

from pcie_sim import study
from pcie_sim.doctor import diagnose
from pcie_sim.importers.facts import GpuFact, LinkFact
from pcie_sim.importers.relate import Related
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import from_spec

FULL = LinkFact(5, 16)


def test_lost_lanes_are_a_problem_with_the_predicted_cost() -> None:
    box = load(env=SYS)
    found = diagnose(box, linked({"gpu3": LinkFact(5, 8), "gpu4": FULL}, FULL, FULL))
    one = only(found, "link-width")
    assert one.severity == "problem"
    assert one.nodes == ("gpu3",)
    assert "x8 in force; the device can Gen5 x16, the port above it Gen5 x16 (lspci.txt:100)" in one.evidence[0]
    narrow = study.collective(relinked(box, gpu3="gen5 x8"), "all_reduce", "16MiB", launch="graph").time_s
    wide = study.collective(box, "all_reduce", "16MiB", launch="graph").time_s
    large = one.costs[-1]
    assert (large.now_s, large.fixed_s) == pytest.approx((narrow, wide))
    assert large.extra_s > 0
    assert one.cost is not None
    assert f"{narrow * 1e6:.0f} us" in one.cost


def test_a_slot_that_has_no_more_lanes_is_no_loss() -> None:
    """LnkCap of the port says x8: the link is as wide as both ends allow; that it is worse than the others is another finding."""
    found = diagnose(load(env=SYS), linked({"gpu3": LinkFact(5, 8)}, FULL, LinkFact(5, 8)))
    assert passed(found, "link-width")
    assert only(found, "lanes").nodes == ("gpu3",)


def test_without_the_port_a_narrow_link_may_be_wired_so() -> None:
    """NCCL's XML and nvidia-smi do not say what the slot has."""
    found = diagnose(load(env=SYS), linked({"gpu3": LinkFact(5, 8)}, FULL, None))
    one = only(found, "link-width")
    assert "than the device offers" in one.title
    assert any("wired with fewer lanes" in text for text in one.advice)


def test_x4_among_x16() -> None:
    box = relinked(load(env=SYS), gpu5="gen5 x4")
    one = only(diagnose(box), "lanes")
    assert one.severity == "problem"
    assert one.nodes == ("gpu5",)
    assert "gpu5 Gen5 x4; others have Gen5 x16" in one.evidence[0]
    assert max(cost.share for cost in one.costs) > 1  # a quarter of the link under a ring: more than twice the time


def test_a_drawn_link_of_few_lanes_is_a_note() -> None:
    """All L4 of this AWS instance are drawn x8 (its lspci says so); nothing shows that they could have more."""
    one = only(diagnose(load("l4-4x-g6-12xlarge")), "link-width")
    assert one.severity == "note"
    assert "lanes" not in codes(diagnose(load("l4-4x-g6-12xlarge")))


def test_gen1_alone_is_what_idle_gpus_show() -> None:
    found = diagnose(load(env=SYS), linked(dict.fromkeys(load().gpus, LinkFact(1, 16)), FULL, FULL))
    one = only(found, "link-speed")
    assert one.severity == "note"
    assert one.title == "all 8 GPUs: Gen1, as idle GPUs show"
    assert any("idle GPU" in text for text in one.evidence)
    assert "under load" in (one.cost or "")
    assert not found.sick


def test_gen1_under_load_is_a_problem() -> None:
    """Copies at 3.6 GB/s are what Gen1 x16 carries (4 GB/s raw, 8b/10b included; reference: PCI-SIG rates), not Gen5."""
    box = load(env=SYS)
    slow = {pair: 3.4 * GBPS for other in box.gpus if other != "gpu2" for pair in (("gpu2", other), (other, "gpu2"))}
    copies = matrix(box, "bandwidth", {None: 52 * GBPS, **slow}, p2p=True)
    now = {gpu: LinkFact(1, 16) for gpu in box.gpus}
    found = diagnose(box, linked(now, FULL, FULL, matrices=(copies,)))
    real = next(item for item in found.findings if item.code == "link-speed" and item.severity == "problem")
    assert real.nodes == ("gpu2",)
    assert any("copies reach 3.4 GB/s" in text for text in real.evidence)
    idle = next(item for item in found.findings if item.code == "link-speed" and item.severity == "note")
    assert "gpu2" not in idle.nodes
    slow_copies = next(item for item in found.findings if item.code == "copy-rates")
    assert "gpu2" in slow_copies.title


def test_a_lower_generation_that_both_ends_exceed_is_a_problem() -> None:
    found = diagnose(load(env=SYS), linked({"gpu0": LinkFact(4, 16)}, FULL, FULL))
    one = only(found, "link-speed")
    assert one.severity == "problem"
    assert one.costs[-1].share > 0.5  # half the rate


def test_a_lower_generation_with_an_unknown_slot_is_a_note() -> None:
    one = only(diagnose(load(env=SYS), linked({"gpu0": LinkFact(4, 16)}, LinkFact(None, 16), None)), "link-speed")
    assert one.severity == "note"


def test_nvidia_smi_counts_gpu_and_system_in_its_maximum() -> None:
    """pcie.link.gen.max is that of GPU and system together (nvidia-smi --help-query-gpu)."""
    facts = {"gpu0": GpuFact(0, link=LinkFact(4, 16), link_max=FULL)}
    assert only(diagnose(load(env=SYS), Related(gpus=facts)), "link-speed").severity == "problem"
    facts = {"gpu0": GpuFact(0, link=LinkFact(4, 16), link_max=LinkFact(4, 16))}
    assert passed(diagnose(load(env=SYS), Related(gpus=facts)), "link-speed")


def test_an_uplink_that_costs_nothing_is_a_note() -> None:
    """Four x16 GPUs under one x16 uplink: 4:1, but a ring sends one flow each way over it (reference: 0 slowdown)."""
    one = only(diagnose(load(env=SYS)), "uplink")
    assert one.severity == "note"
    assert "4 GPUs below, together 4 times" in one.evidence[0]
    assert all(abs(cost.share) < 0.1 for cost in one.costs)


def test_an_uplink_that_staged_traffic_crosses_is_a_problem() -> None:
    """Without peer access all four GPUs of a switch send everything up its uplink."""
    one = only(diagnose(load("rtx-4090-8x-2switch")), "uplink")
    assert one.severity == "problem"
    assert max(cost.share for cost in one.costs) > 0.5


def test_one_slower_uplink() -> None:
    """Gen4 x16 among Gen5 x16 uplinks of the same part: half the rate for what leaves the switch."""
    name = "rtx-pro-6000-16x-turin-4switch-star"
    box = relinked(load(name, env=SYS), sw2="gen4 x16")
    one = only(diagnose(box), "lanes")
    assert one.nodes == ("sw2",)
    assert "sw2 Gen4 x16; others have Gen5 x16" in one.evidence[0]
    now = study.collective(box, "all_reduce", "16MiB", launch="graph").time_s
    fixed = study.collective(load(name, env=SYS), "all_reduce", "16MiB", launch="graph").time_s
    assert (one.costs[-1].now_s, one.costs[-1].fixed_s) == pytest.approx((now, fixed))
    assert one.severity == "problem"
    assert one.advice
    assert passed(diagnose(load(name, env=SYS)), "lanes")
    narrow = only(diagnose(relinked(load(name, env=SYS), sw0="gen5 x8")), "lanes")
    assert narrow.nodes == ("sw0",)


def test_an_uplink_that_files_show_below_the_others() -> None:
    """The port above it can no more than Gen4: nothing is lost at this link, but the others are faster. Gen1 in force is idling."""
    box = load(env=SYS)
    for now in (LinkFact(4, 16), LinkFact(1, 16)):
        facts = Related(
            devices={"sw0": device("sw0", now, FULL), "sw1": device("sw1", FULL, FULL)},
            above={"sw0": port("sw0", LinkFact(4, 16)), "sw1": port("sw1", FULL)},
        )
        assert only(diagnose(box, facts), "lanes").nodes == ("sw0",)
    lost = Related(devices={"sw0": device("sw0", LinkFact(4, 16), FULL)}, above={"sw0": port("sw0", FULL)})
    found = diagnose(box, lost)
    assert "lanes" not in codes(found), "link-speed tells"
    assert not passed(found, "lanes"), "and nobody says that all links are equal"
    assert "link-speed" in codes(found)


def test_no_links_said_at_all() -> None:
    found = diagnose(load())
    assert "link-speed" in {code for code, _, _ in found.unchecked}
    assert "lspci" in next(need for code, _, need in found.unchecked if code == "link-speed")


def test_a_card_behind_a_chipset_costs_what_its_uplink_costs() -> None:
    """Gen4 x4 above the card: repaired means a slot of the processor, not a wider slot of the chipset."""
    gpus = {"gpu0": {"kind": "gpu", "part": "rtx-4090", "parent": "c0"}, "gpu1": {"kind": "gpu", "part": "rtx-4090", "parent": "sw0"}}
    nodes = {
        "c0": {"kind": "socket", "part": "epyc-4004"},
        "rp0": {"kind": "root_port", "parent": "c0"},
        "sw0": {"kind": "switch", "part": "amd-chipset-am5", "parent": "rp0"},
        **gpus,
    }
    slow = from_spec(TopologySpec.model_validate({"schema": "pcie-sim/topology/1", "name": "slow", "nodes": nodes}))
    fast = {**nodes, "gpu1": {**gpus["gpu1"], "parent": "c0"}}
    good = from_spec(TopologySpec.model_validate({"schema": "pcie-sim/topology/1", "name": "good", "nodes": fast}))
    one = only(diagnose(slow), "lanes")
    now, fixed = (study.collective(box, "all_reduce", "16MiB", launch="graph").time_s for box in (slow, good))
    assert (one.costs[-1].now_s, one.costs[-1].fixed_s) == pytest.approx((now, fixed))
    assert now > 2 * fixed
