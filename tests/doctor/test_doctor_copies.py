"""Copies between GPUs against links and peer access; paths and files against the tree."""

from __future__ import annotations

import pytest
from doctor_facts import GBPS, SYS, codes, load, log, matrix, only, passed, port

from pcie_sim import study
from pcie_sim.doctor import diagnose
from pcie_sim.importers.facts import GpuFact, LinkFact
from pcie_sim.importers.relate import Related, RelatedMatrix
from pcie_sim.importers.source import Remark
from pcie_sim.topology import Topology


def test_published_copies_of_a_sound_switch_pass() -> None:
    """53 to 56.6 GB/s one way, 103 to 111 both ways, 0.4 us: a Gen5 x16 switch (local-inference-lab/rtx6kpro:hardware/*.md)."""
    box = load(env=SYS)
    facts = (
        matrix(box, "bandwidth", 54 * GBPS, p2p=True),
        matrix(box, "bandwidth", 106 * GBPS, p2p=True, bidirectional=True),
        matrix(box, "bandwidth", 23 * GBPS, p2p=False),
        matrix(box, "latency", 0.45e-6, p2p=True),
        matrix(box, "latency", 14e-6, p2p=False),
        matrix(box, "peer_access", 1.0),
    )
    found = diagnose(box, Related(matrices=facts))
    assert passed(found, "copy-rates")
    assert passed(found, "peer-latency")
    assert not found.sick


def test_both_ways_over_one_path() -> None:
    """52.3 one way and 51.0 both ways on a B650 board: a published test of a box whose switch ports redirect."""
    box = load("rtx-pro-6000-2x-b650-switch", acs="off")
    facts = (matrix(box, "bandwidth", 52.3 * GBPS, p2p=True), matrix(box, "bandwidth", 51.04 * GBPS, p2p=True, bidirectional=True))
    one = only(diagnose(box, Related(matrices=facts)), "copy-rates")
    assert "share one path" in one.title
    assert "ACS" in one.advice[0]
    assert one.costs[-1].extra_s > 0
    as_drawn = load("rtx-pro-6000-2x-b650-switch")  # its file says that redirect is on
    assert passed(diagnose(as_drawn, Related(matrices=facts)), "copy-rates")


def acs_box(shared: float, bus: dict[str, float]) -> tuple[object, ...]:
    """Copies of the ASUS box as published: pairs of one virtual switch both ways at ``shared``, of one chip at 103, across at 95
    (local-inference-lab/rtx6kpro:hardware/asus-esc8000a-e13p-broadcom-switches.md: 50 with ACS on, 103 off).
    """
    box = load("rtx-pro-6000-8x-asus-broadcom")
    way, both = {}, {}
    for a in box.gpus:
        for b in box.gpus:
            i, j = int(a[3:]), int(b[3:])
            way[a, b] = 53.5 * GBPS if i // 4 == j // 4 else 37 * GBPS
            both[a, b] = (bus.get(a, shared) if i // 2 == j // 2 else 103 if i // 4 == j // 4 else 95) * GBPS
    return matrix(box, "bandwidth", way, p2p=True), matrix(box, "bandwidth", both, p2p=True, bidirectional=True)


def test_the_published_acs_case_is_named_although_few_pairs_show_it() -> None:
    """4 of 28 pairs: those of one (virtual) switch."""
    box = load("rtx-pro-6000-8x-asus-broadcom", env=SYS)
    one = only(diagnose(box, Related(matrices=acs_box(50, {}))), "copy-rates")  # type: ignore[arg-type]
    assert one.severity == "problem"
    assert "ACS" in one.title
    assert "ACSCtl" in one.advice[0]
    assert set(one.nodes) == set(box.gpus)
    assert "8 pairs of 56" in one.evidence[0]
    assert any("8 of 8 ordered pairs below one switch" in text for text in one.evidence)
    assert not any("half_duplex" in text for text in one.advice)
    assert passed(diagnose(box, Related(matrices=acs_box(103, {}))), "copy-rates")  # type: ignore[arg-type]


def test_one_redirecting_switch_of_four() -> None:
    box = load("rtx-pro-6000-8x-asus-broadcom", env=SYS)
    facts = acs_box(103, {"gpu0": 50, "gpu1": 50})
    one = only(diagnose(box, Related(matrices=facts)), "copy-rates")  # type: ignore[arg-type]
    assert one.nodes == ("gpu0", "gpu1")
    assert (one.cost or "").startswith("if all ports redirected (upper bound): ")


def test_acs_is_not_named_where_the_ports_show_it_off() -> None:
    box = load("rtx-pro-6000-8x-asus-broadcom", env=SYS)
    ports = {gpu: port(gpu, LinkFact(5, 16), acs_redirect=False) for gpu in box.gpus}
    facts = Related(matrices=acs_box(50, {}), above=ports, acs_ports=tuple(ports.values()))  # type: ignore[arg-type]
    one = only(diagnose(box, facts), "copy-rates")
    assert "ACS" not in one.title
    assert not any("ACSCtl" in text for text in one.advice)
    assert one.advice


def staged_facts(box: Topology, **more: object) -> tuple[RelatedMatrix, ...]:
    """Everything by host memory though P2P is on: 23 GB/s, both ways 24, 14 us (p2pBandwidthLatencyTest of boxes without peers)."""
    return (
        matrix(box, "bandwidth", 23 * GBPS, p2p=True),
        matrix(box, "bandwidth", 23 * GBPS, p2p=False),
        matrix(box, "bandwidth", 24 * GBPS, p2p=True, bidirectional=True),
        matrix(box, "latency", more.get("late", 14e-6), p2p=True),
    )


def test_staged_copies_are_one_problem() -> None:
    """Neither the links' generation nor half-duplex nodes are blamed for the same rates."""
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS)
    found = diagnose(box, Related(matrices=staged_facts(box)))
    assert codes(found) == {"peer-latency"}
    assert passed(found, "copy-rates")
    # a link of Gen4 in lspci is not confirmed by copies that are staged
    now = {gpu: GpuFact(index, link=LinkFact(4, 16)) for index, gpu in enumerate(box.gpus)}
    found = diagnose(box, Related(matrices=staged_facts(box), gpus=now))
    assert codes(found) == {"peer-latency"}
    direct = diagnose(box, Related(matrices=(matrix(box, "bandwidth", 23 * GBPS, p2p=True),), gpus=now))
    assert "link-speed" in codes(direct)


def test_equal_copies_with_fast_latencies_are_one_problem_too() -> None:
    box = load("rtx-pro-6000-8x-direct-1socket", env=SYS)
    found = diagnose(box, Related(matrices=staged_facts(box, late=0.5e-6)))
    one = only(found, "copy-rates")
    assert codes(found) == {"copy-rates"}
    assert any("as fast with P2P disabled" in text for text in one.evidence)
    assert not any("half_duplex" in text or "BIOS: slot" in text for text in one.advice)


def test_staging_of_some_pairs_is_priced_for_those() -> None:
    """Pairs between the switches at 14 us, inside at 0.5: what the library does at NCCL_P2P_LEVEL=PXB."""
    box = load(env=SYS)
    late = {(a, b): 14e-6 if box.path_type(a, b) == "PHB" else 0.5e-6 for a in box.gpus for b in box.gpus if a != b}
    one = only(diagnose(box, Related(matrices=(matrix(box, "latency", late, p2p=True),))), "peer-latency")
    level = study.collective(box, "all_reduce", "16MiB", launch="graph", env={"NCCL_P2P_LEVEL": "PXB"}).time_s
    assert one.costs[-1].now_s == pytest.approx(level)
    late["gpu0", "gpu1"] = 14e-6
    one = only(diagnose(box, Related(matrices=(matrix(box, "latency", late, p2p=True),))), "peer-latency")
    assert (one.cost or "").startswith("if all pairs were staged: ")


def test_slow_one_way_is_one_problem() -> None:
    """A link's generation is that of both ways."""
    box = load(env=SYS)
    cells = {None: 55 * GBPS} | {("gpu3", other): 25 * GBPS for other in box.gpus}
    one = only(diagnose(box, Related(matrices=(matrix(box, "bandwidth", cells, p2p=True),))), "copy-rates")
    assert "one way than back" in one.title


def test_slow_copies_name_the_link_that_they_are_like() -> None:
    """26 GB/s of 56: what Gen4 x16 (or Gen5 x8) carries."""
    box = load(env=SYS)
    one = only(diagnose(box, Related(matrices=(matrix(box, "bandwidth", 26 * GBPS, p2p=True),))), "copy-rates")
    assert one.title == "copies of all pairs are far below their links"
    assert any("Gen4 x16" in text for text in one.evidence)
    assert "p2p.log:7" in one.evidence[0]


def test_one_gpu_is_named() -> None:
    box = load(env=SYS)
    slow = {pair: 13 * GBPS for other in box.gpus if other != "gpu5" for pair in (("gpu5", other), (other, "gpu5"))}
    one = only(diagnose(box, Related(matrices=(matrix(box, "bandwidth", {None: 54 * GBPS, **slow}, p2p=True),))), "copy-rates")
    assert one.title == "copies of gpu5 are far below their links"


def test_staged_copies_of_refused_pairs_are_not_judged() -> None:
    box = load("rtx-2080-ti-2x-switch")
    facts = (matrix(box, "bandwidth", 6 * GBPS, p2p=True), matrix(box, "peer_access", 0.0))
    found = diagnose(box, Related(matrices=facts))
    assert passed(found, "copy-rates")
    assert "p2p-driver" in codes(found)


def test_faster_than_the_links() -> None:
    box = load("rtx-4090-8x-direct-1socket")
    one = only(diagnose(box, Related(matrices=(matrix(box, "bandwidth", 55 * GBPS, p2p=True),))), "copy-rates")
    assert one.title == "copies faster than the tree's links"  # Gen4 x16 carries 28


def test_one_way_faster_than_back() -> None:
    box = load(env=SYS)
    cells = {None: 54 * GBPS, ("gpu0", "gpu1"): 38 * GBPS}
    one = only(diagnose(box, Related(matrices=(matrix(box, "bandwidth", cells, p2p=True),))), "copy-rates")
    assert "one way than back" in one.title
    assert "gpu1 -> gpu0: 54 GB/s, back 38 GB/s" in one.evidence[0]


def test_peers_on_paper_only() -> None:
    """P2P on, and a small write takes 14 us as without: host memory (p2pBandwidthLatencyTest: 0.4 us with, 14 without)."""
    box = load(env=SYS)
    facts = (
        matrix(box, "latency", 14e-6, p2p=True),
        matrix(box, "latency", 14e-6, p2p=False),
        matrix(box, "bandwidth", 40 * GBPS, p2p=True),
        matrix(box, "bandwidth", 40 * GBPS, p2p=False),
    )
    one = only(diagnose(box, Related(matrices=facts)), "peer-latency")
    assert one.severity == "problem"
    assert "14 us" in one.evidence[0]
    assert any("equally fast" in text for text in one.evidence)
    refused = load(p2p="off")
    assert passed(diagnose(refused, Related(matrices=facts)), "peer-latency")


def test_paths_of_another_box() -> None:
    box = load()
    word = {None: "SYS"}
    one = only(diagnose(box, Related(matrices=(matrix(box, "path", word, source="topo.txt", line=2),))), "paths")
    assert one.severity == "problem"
    assert "topo.txt:2: gpu0-gpu1 SYS (tree: PIX)" in one.evidence[0]


def test_paths_as_drawn() -> None:
    box = load()
    words = {(a, b): {"PHB": "NODE"}.get(box.path_type(a, b), box.path_type(a, b)) for a in box.gpus for b in box.gpus if a != b}
    assert passed(diagnose(box, Related(matrices=(matrix(box, "path", words),))), "paths")


def test_one_switch_or_several_is_a_note() -> None:
    """Tools and the library flatten some two-level chips."""
    box = load("rtx-pro-6000-8x-root-leaf")
    one = only(diagnose(box, Related(matrices=(matrix(box, "path", {None: "PIX"}),))), "paths")
    assert one.severity == "note"


def test_paths_of_a_log_by_bus_id() -> None:
    box = load("rtx-pro-6000-8x-2switch")
    data = box.spec.model_dump(mode="json", by_alias=True)
    for index in range(8):
        data["nodes"][f"gpu{index}"]["bus"] = f"0000:{16 * index + 1:02x}:00.0"
    from pcie_sim.topology import from_spec

    named = from_spec(type(box.spec).model_validate(data))
    paths = {("0000:01:00.0", "0000:11:00.0"): "SYS", ("0000:01:00.0", "0000:41:00.0"): "PHB", ("0000:01:00.0", "0000:99:00.0"): "SYS"}
    one = only(diagnose(named, Related(ccl=(log(named, paths=paths),))), "paths")
    assert "gpu0-gpu1 SYS (tree: PIX)" in one.evidence[0]
    assert one.title.startswith("1 path type")


def test_conflicts_of_files_are_passed_on() -> None:
    remarks = (Remark("conflict", "0000:01:00.0: x8; a.txt says x16, which is kept", "b.txt", 4), Remark("assumed", "something"))
    found = diagnose(load(env=SYS), Related(remarks=remarks, sources=("a.txt", "b.txt")))
    one = only(found, "files")
    assert one.evidence == ("b.txt:4: 0000:01:00.0: x8; a.txt says x16, which is kept",)
    assert one.severity == "note"
