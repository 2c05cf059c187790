"""ACS, IOMMU, packet size, BAR1."""

from __future__ import annotations

import pytest
from doctor_facts import SYS, device, load, only, passed, port

from pcie_sim import study
from pcie_sim.doctor import diagnose
from pcie_sim.importers.facts import DeviceFact, LinkFact
from pcie_sim.importers.relate import Related

FULL = LinkFact(5, 16)


def test_acs_at_switch_ports() -> None:
    """With redirect on, traffic between two GPUs of one switch crosses its uplink twice: about half the bandwidth (50 against 103 GB/s
    both ways, local-inference-lab/rtx6kpro:hardware/asus-esc8000a-e13p-broadcom-switches.md).
    """
    box = load(env=SYS)
    ports = {gpu: port(gpu, FULL, acs_redirect=gpu != "gpu7", line=50) for gpu in box.gpus}
    one = only(diagnose(box, Related(above=ports, acs_ports=tuple(ports.values()))), "acs")
    assert one.severity == "problem"
    assert "on at 7 of 8 ports" in one.evidence[0]
    assert "0000:00:00.0 above gpu0 (line 50)" in one.evidence[0]
    on = study.collective(box.with_settings(acs="on"), "all_reduce", "16MiB", launch="graph").time_s
    assert one.costs[-1].now_s == pytest.approx(on)
    assert one.costs[-1].share > 0.5


def test_acs_at_one_port() -> None:
    """One GPU's requests are turned round: three ordered pairs of its switch of four; the price is that of all ports."""
    box = load(env=SYS)
    ports = {gpu: port(gpu, FULL, acs_redirect=gpu == "gpu2", line=50) for gpu in box.gpus}
    one = only(diagnose(box, Related(above=ports, acs_ports=tuple(ports.values()))), "acs")
    assert one.title == "ACS request redirect is on at 1 of 8 ports"
    assert one.nodes == ("gpu2",)
    assert any(text.startswith("3 of 24 ordered pairs below one switch") for text in one.evidence)
    assert (one.cost or "").startswith("if all ports redirected (upper bound): +")


def test_acs_off_everywhere_or_not_said() -> None:
    box = load(env=SYS)
    ports = tuple(port(gpu, FULL, acs_redirect=False) for gpu in box.gpus)
    assert passed(diagnose(box, Related(acs_ports=ports)), "acs")
    assert "acs" in {code for code, _, _ in diagnose(box).unchecked}


def test_acs_at_ports_of_other_devices_is_not_looked_at() -> None:
    box = load(env=SYS)
    above = {gpu: port(gpu, FULL, acs_redirect=False) for gpu in box.gpus}
    drive = DeviceFact(key="nvme", kind="root_port", acs_redirect=True)
    assert passed(diagnose(box, Related(above=above, acs_ports=(*above.values(), drive))), "acs")


def test_acs_at_root_ports_above_switches_turns_nothing_round() -> None:
    """Traffic inside a switch never reaches the root port."""
    box = load(env=SYS)
    root = DeviceFact(key="root", kind="root_port", bus="0000:00:01.0", acs_redirect=True)
    one = only(diagnose(box, Related(above={"sw0": root}, acs_ports=(root,))), "acs")
    assert one.severity == "note"
    assert one.cost is None


def test_acs_on_root_ports_costs_nothing_there() -> None:
    one = only(diagnose(load("rtx-pro-6000-8x-direct-1socket", env=SYS, acs="on")), "acs")
    assert one.severity == "note"
    assert any("through the root complex anyway" in text for text in one.evidence)


def test_acs_of_the_settings() -> None:
    """This box was measured with redirect on: 51 GB/s both ways over one x16 uplink."""
    assert only(diagnose(load("rtx-pro-6000-2x-b650-switch")), "acs").severity == "problem"


def test_small_packets() -> None:
    """128 B instead of 256: 84.2 against 91.4 % payload at 24 B overhead (reference: PCIe physics), some 8 %."""
    box = load(env=SYS)
    facts = {gpu: device(gpu, None, None, max_payload=128 if gpu == "gpu1" else 256, max_payload_cap=256) for gpu in box.gpus}
    one = only(diagnose(box, Related(devices=facts, device_source=dict.fromkeys(box.gpus, "lspci.txt"))), "max-payload")
    assert one.nodes == ("gpu1",)
    assert "MaxPayload 128 bytes; it can 256" in one.evidence[0]
    assert 0.03 < one.costs[-1].share < 0.12
    assert one.severity == "problem"


def test_packets_as_large_as_they_can_be() -> None:
    box = load(env=SYS)
    facts = {gpu: device(gpu, None, None, max_payload=128, max_payload_cap=128) for gpu in box.gpus}
    assert passed(diagnose(box, Related(devices=facts)), "max-payload")


def test_translation_is_priced_by_the_published_figure() -> None:
    """About 15 % of a flow (local-inference-lab/rtx6kpro:hardware/collapse-report.md)."""
    one = only(diagnose(load(env=SYS), Related(iommu=True)), "iommu")
    assert one.severity == "problem"
    assert "15%" in (one.cost or "")
    assert passed(diagnose(load(env=SYS), Related(iommu=False)), "iommu")
    assert only(diagnose(load("rtx-4090-4x-direct-1socket", iommu="on")), "iommu").severity == "note"  # no peers there


def test_a_small_window() -> None:
    """256 MiB is what GPUs show with resizable BAR off."""
    box = load(env=SYS)
    facts: dict[str, DeviceFact] = {gpu: device(gpu, None, None, bar1_bytes=2**28 if gpu == "gpu0" else 2**37) for gpu in box.gpus}
    one = only(diagnose(box, Related(devices=facts)), "bar1")
    assert one.nodes == ("gpu0",)
    assert "BAR1 of 256 MiB" in one.evidence[0]
    assert passed(diagnose(box, Related(devices={"gpu1": facts["gpu1"]})), "bar1")
