"""What findings rest on: assumptions, remarks, GPUs that took part, measurements beside costs; what other files rule out."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_facts import GBPS, SIZES, SYS, codes, load, log, matrix, measured, only, passed, port, predicted

from pcie_sim import study
from pcie_sim.doctor import diagnose
from pcie_sim.importers.facts import LinkFact
from pcie_sim.importers.relate import Related
from pcie_sim.importers.source import Remark
from pcie_sim.report.console import show
from pcie_sim.report.doctor import doctor_blocks
from pcie_sim.results.finding import Diagnosis

TOPO = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNODE\tSYS\tSYS\t0-31\t0\t\tN/A
GPU1\tNODE\t X \tSYS\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNODE\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNODE\t X \t32-63\t1\t\tN/A
"""


def text_of(found: Diagnosis) -> str:
    stream = io.StringIO()
    show(doctor_blocks(found, width=100), stream)
    return stream.getvalue()


def test_a_run_is_judged_on_the_gpus_that_took_part() -> None:
    """Two GPUs of each switch of the two-switch box: its own prediction of just those is sound; beside the first four (one switch) it
    would look slow, and the other way round the first four's times are too fast for no one.
    """
    box = load(env=SYS)
    four = ("gpu0", "gpu1", "gpu4", "gpu5")
    staged = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    for one in (box, staged):
        rows = {size: study.collective(one, "all_reduce", size, ranks=4, order=four, launch="graph").time_s for size in SIZES}
        run = replace(measured(rows, ranks=4), nodes=four)
        assert passed(diagnose(one, Related(measurements=(run,))), "collectives")
    across = {size: study.collective(staged, "all_reduce", size, ranks=4, order=four, launch="graph").time_s for size in SIZES}
    inside = {size: study.collective(staged, "all_reduce", size, ranks=4, launch="graph").time_s for size in SIZES}
    assert max(across[size] / inside[size] for size in SIZES) > 1.5  # so that the nodes decide
    unknown = diagnose(staged, Related(measurements=(measured(across, ranks=4),)))
    assert not passed(unknown, "collectives")


def test_assumptions_and_remarks_are_shown_once(tmp_path: Path) -> None:
    file = tmp_path / "topo.txt"
    file.write_text(TOPO, encoding="utf-8")
    found = diagnose(*study.load_box(str(file)))
    assert sum(text.startswith("CPU of cpu0") for text in found.assumed) == 1
    assert sum(text.startswith("GPU model of gpu0") for text in found.assumed) == 1
    assert len(set(found.assumed)) == len(found.assumed)
    assert [Path(name).name for name in found.sources] == ["topo.txt"]
    assert found.to_dict()["assumed"] == list(found.assumed)
    text = text_of(found)
    assert text.count("CPU of cpu0") == 1
    assert "Assumed where no file says it" in text


def test_problems_say_that_their_models_are_assumed(tmp_path: Path) -> None:
    """The library's ring search depends on the GPU's compute capability and the CPU's maker (NVIDIA/nccl:src/graph/topo.h)."""
    file = tmp_path / "topo.txt"
    file.write_text(TOPO, encoding="utf-8")
    one = only(diagnose(*study.load_box(str(file))), "search-fallback")
    assert any(text.startswith("the CPU is assumed (generic-amd): lscpu would tell") for text in one.evidence)
    assert any(text.startswith("the GPU model is assumed (rtx-pro-6000") for text in one.evidence)
    known = only(diagnose(*study.load_box(str(file), gpu="rtx-pro-6000")), "search-fallback")
    assert not any("GPU model is assumed" in text for text in known.evidence)
    drawn = only(diagnose(load("rtx-pro-6000-8x-direct-2socket", env=SYS)), "search-fallback")
    assert not any("is assumed" in text for text in drawn.evidence)


def test_conflicts_and_cuts_come_before_the_findings() -> None:
    remarks = (
        Remark("conflict", "GPU0-GPU1 PIX, the tree has PHB", "topo.txt", 2),
        Remark("cut", "the log ends inside a table", "run.log", 90),
        Remark("ignored", "12 lines of another program", "run.log", 1),
        Remark("assumed", "NCCL 2.28", "run.log"),
    )
    found = diagnose(load("rtx-4090-8x-2switch"), Related(remarks=(*remarks, *remarks), sources=("topo.txt", "run.log")))
    assert found.conflicts == ("topo.txt:2: GPU0-GPU1 PIX, the tree has PHB",)
    assert found.cut == ("run.log:90: the log ends inside a table",)
    assert found.ignored == ("run.log:1: 12 lines of another program",)
    assert found.assumed[-1] == "run.log: NCCL 2.28"
    assert found.sources == (*load("rtx-4090-8x-2switch").spec.sources, "topo.txt", "run.log")
    text = text_of(found)
    places = [text.index(part) for part in ("Files disagree", "Files end early", "Problems, the", "Assumed where", "Left out of")]
    assert places == sorted(places)


def test_a_conflict_in_a_finding_is_not_listed_twice() -> None:
    remarks = (Remark("conflict", "x8; a.txt says x16, which is kept", "b.txt", 4),)
    found = diagnose(load(env=SYS), Related(remarks=remarks, sources=("a.txt", "b.txt")))
    assert only(found, "files").evidence == found.conflicts
    assert text_of(found).count("which is kept") == 1


def test_a_cost_above_what_was_measured_is_an_upper_bound() -> None:
    """Eager runs have the CPU's launches in them: one that is below the prediction of a graph shows that this is too slow here."""
    box = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    bare = only(diagnose(box), "search-fallback")
    predicted_s = study.collective(box, "all_reduce", 16384, launch="graph").time_s
    assert predicted_s > 43.1e-6
    run = measured({16384: 43.1e-6}, ranks=8, launch="eager")
    one = only(diagnose(box, Related(measurements=(run,))), "search-fallback")
    said = next(text for text in one.evidence if text.startswith("measured here"))
    assert said.startswith(f"measured here 43.1 us at 16 KiB, predicted {predicted_s * 1e6:.4g} us: the cost in us is an upper bound")
    small = one.costs[0]
    share = 43.1e-6 / predicted_s
    assert small.now_s == pytest.approx(bare.costs[0].now_s * share)
    assert small.extra_s <= 43.1e-6
    assert small.share == pytest.approx(bare.costs[0].share)
    assert f"{small.now_s * 1e6:.1f} us" in (one.cost or "")


def test_a_cost_that_measurements_do_not_show_is_a_note() -> None:
    """Both sizes are measured as fast as predicted with the better protocol (published with a graph file: 26.2 to 37.3 us at 32 to 256
    KiB, local-inference-lab/rtx6kpro:optimization/nccl-tuning.md).
    """
    box = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    bare = only(diagnose(box), "search-fallback")
    rows = {cost.bytes: 0.95 * cost.fixed_s for cost in bare.costs}
    one = only(diagnose(box, Related(measurements=(measured(rows, ranks=8),))), "search-fallback")
    assert one.severity == "note"
    assert sum("as fast as predicted without this finding" in text for text in one.evidence) == len(bare.costs)


def test_a_measurement_above_the_prediction_contradicts_nothing() -> None:
    """An eager run has the CPU's launches in it."""
    box = load("rtx-pro-6000-8x-direct-2socket", env=SYS)
    bare = only(diagnose(box), "search-fallback")
    for run in (measured({16384: 66e-6}, ranks=8, launch="eager"), measured({16384: 20e-6}, ranks=4)):
        one = only(diagnose(box, Related(measurements=(run,))), "search-fallback")
        assert (one.costs, one.cost) == (bare.costs, bare.cost)


def fits(box_env: dict[str, str], rows: dict[int, float], **facts: object) -> list[str]:
    box = load(env=box_env)
    one = only(diagnose(box, Related(measurements=(measured(rows, ranks=8),), **facts)), "collectives")  # type: ignore[arg-type]
    return [text for text in one.evidence if text.startswith(("fits", "none of"))]


def test_copies_at_full_rate_rule_out_slow_links() -> None:
    """Gen5 x16 carries 56 GB/s; copies of 54 cannot have crossed less."""
    box = load(env=SYS)
    slow = {size: study.collective(_gen1(), "all_reduce", size, launch="graph").time_s for size in SIZES}
    assert any("Gen1" in text for text in fits(SYS, slow))
    copies = matrix(box, "bandwidth", 54 * GBPS, p2p=True)
    assert not any("Gen1" in text or "narrower" in text or "x4" in text for text in fits(SYS, slow, matrices=(copies,)))


def _gen1() -> object:
    from doctor_facts import relinked

    return relinked(load(env=SYS), **{f"gpu{index}": "gen1 x16" for index in range(8)})


def test_ports_without_redirect_rule_out_acs() -> None:
    rows = predicted(load(env=SYS, acs="on"))
    assert any("ACS" in text for text in fits(SYS, rows) if text.startswith("fits"))
    ports = {f"gpu{index}": port(f"gpu{index}", LinkFact(5, 16), acs_redirect=False) for index in range(8)}
    left = fits(SYS, rows, above=ports, acs_ports=tuple(ports.values()))
    assert not any("ACS" in text for text in left if text.startswith("fits"))
    both = (
        matrix(load(), "bandwidth", 54 * GBPS, p2p=True),
        matrix(load(), "bandwidth", 103 * GBPS, p2p=True, bidirectional=True),  # published with ACS off
    )
    assert not any("ACS" in text for text in fits(SYS, rows, matrices=both) if text.startswith("fits"))


def test_a_log_with_peers_rules_out_refusal() -> None:
    rows = predicted(load(p2p="off"), factor=1.05)
    assert any("refused" in text for text in fits(SYS, rows))
    seen = log(load(), transports={(rank, (rank + 1) % 8): "P2P/CUMEM" for rank in range(8)})
    assert not any("refused" in text or "host memory" in text for text in fits(SYS, rows, ccl=(seen,)))


def test_between_one_and_a_half_and_twice_is_a_note() -> None:
    """All operations alike; from twice on a problem."""
    box = load(env=SYS)
    for op in ("all_reduce", "all_gather"):
        right = {size: study.collective(box, op, size, launch="graph").time_s for size in SIZES if size >= 2**22}
        mild = diagnose(box, Related(measurements=(measured({s: 1.8 * t for s, t in right.items()}, ranks=8, op=op),)))
        one = only(mild, "collectives")
        assert one.severity == "note"
        assert "slower than predicted" in one.title
        far = diagnose(box, Related(measurements=(measured({s: 2.5 * t for s, t in right.items()}, ranks=8, op=op),)))
        assert "collectives" in codes(far)


def test_what_was_filled_in_is_not_checked(tmp_path: Path) -> None:
    """A matrix of path words has no link data: nothing about widths can be right or wrong by it."""
    (tmp_path / "topo.txt").write_text(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-31\t0\nGPU1\tPIX\t X \t0-31\t0\n", encoding="utf-8"
    )
    box, related = study.load_box(str(tmp_path / "topo.txt"), gpu="rtx-4090")
    found = diagnose(box, related)
    assert not {"link-width", "lanes", "link-speed"} & {code for code, _title in found.checked}
    assert {"link-width", "lanes"} <= {code for code, _title, _needs in found.unchecked}
