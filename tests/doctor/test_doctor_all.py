"""The doctor as a whole: every shipped box, the registry, odd facts, the JSON, text and command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from doctor_facts import SYS, codes, load, log, matrix, measured, predicted
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pcie_sim import catalog, study
from pcie_sim.cli.doctor import doctor
from pcie_sim.doctor import checks, diagnose
from pcie_sim.importers.facts import DeviceFact, GpuFact, GraphFact, LinkFact, MatrixFact, RingFact
from pcie_sim.importers.relate import Related, RelatedMatrix
from pcie_sim.report.console import show
from pcie_sim.report.doctor import doctor_blocks

KEYS = ["schema", "topology", "title", "gpus", "settings", "sick", "findings", "checked", "unchecked", "sources"]
KEYS += ["assumed", "conflicts", "cut", "ignored"]
FINDING = ["code", "title", "severity", "evidence", "cost", "costs", "advice", "nodes"]


@pytest.mark.parametrize("name", catalog.topology_names())
def test_every_shipped_box(name: str) -> None:
    """No box fails, none is flooded, and what is found is found in its own terms."""
    box = study.load_topology(name)
    found = diagnose(box)
    assert {code for code, _ in found.checked} | {code for code, _, _ in found.unchecked} == set(checks())
    assert len(found.problems) <= 3, [item.title for item in found.problems]
    assert len(found.notes) <= 3, [item.title for item in found.notes]
    for item in found.findings:
        assert item.code in checks()
        assert item.evidence
        assert set(item.nodes) <= set(box.spec.nodes)
        assert item.severity == "note" or item.advice
    document = json.loads(found.to_json())
    assert list(document) == KEYS
    assert all(list(item) == FINDING for item in document["findings"])


HEALTHY = {
    "rtx-pro-6000-8x-2switch": SYS,
    "rtx-pro-6000-8x-direct-1socket": SYS,
    "rtx-pro-6000-16x-turin-4switch-star": SYS,
    "rtx-pro-6000-8x-root-leaf": {},
    "rtx-3090-2x-nvlink": {},
    "mi210-2x-milan": {},
    "a100-pcie-4x-xeon-2socket": SYS,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_boxes_have_no_problem(name: str) -> None:
    found = diagnose(load(name, env=HEALTHY[name]))
    assert codes(found) == set()
    assert not found.sick


def test_problems_come_first_and_the_dearest_of_them_first() -> None:
    found = diagnose(load("rtx-4090-8x-2switch"))
    assert [item.severity for item in found.findings] == sorted((item.severity for item in found.findings), reverse=True)
    weights = [max((cost.share for cost in item.costs), default=0.0) for item in found.problems]
    assert weights == sorted(weights, reverse=True)


def test_a_full_examination_of_sixteen_gpus_sees_what_is_sick() -> None:
    box = load("rtx-pro-6000-16x-turin-4switch-star", env=SYS)
    sick = measured({size: 6 * t for size, t in predicted(box).items()}, ranks=16)
    half = measured({size: 6 * t for size, t in predicted(box).items()}, ranks=8)
    facts = Related(measurements=(sick, half), matrices=(matrix(box, "bandwidth", 20e9, p2p=True), matrix(box, "latency", 1e-5, p2p=True)))
    found = diagnose(box, facts)
    assert {"collectives", "peer-latency"} <= codes(found)


def test_a_single_gpu() -> None:
    box = load("rtx-3090-2x-direct")
    data = box.spec.model_dump(mode="json", by_alias=True)
    del data["nodes"]["gpu1"]
    from pcie_sim.topology import from_spec

    found = diagnose(from_spec(type(box.spec).model_validate(data)))
    assert not found.sick


LINKS = st.one_of(st.none(), st.builds(LinkFact, st.one_of(st.none(), st.integers(1, 7)), st.sampled_from([None, 1, 2, 4, 8, 16, 32])))
NODES = st.sampled_from([*(f"gpu{index}" for index in range(8)), "sw0", "rp0", "cpu0"])
SIZES = st.one_of(st.none(), st.integers(0, 2**60))
DEVICES = st.builds(
    DeviceFact,
    key=st.text(max_size=4),
    kind=st.sampled_from(["gpu", "bridge", "root_port"]),
    link=LINKS,
    link_max=LINKS,
    acs_redirect=st.sampled_from([None, True, False]),
    max_payload=SIZES,
    max_payload_cap=SIZES,
    bar1_bytes=SIZES,
    line=SIZES,
)
CELLS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["OK", "GNS", "NODE", "PIX", "X", "?"]))
MATRICES = st.builds(
    lambda kind, rows, nodes, p2p, both: RelatedMatrix(
        MatrixFact(kind, tuple(range(len(rows))), tuple(tuple(row) for row in rows), p2p=p2p, bidirectional=both), tuple(nodes), "m"
    ),
    st.sampled_from(["path", "p2p_status", "peer_access", "bandwidth", "latency"]),
    st.lists(st.lists(CELLS, max_size=4), max_size=4),
    st.lists(st.one_of(st.none(), st.sampled_from([f"gpu{index}" for index in range(8)])), max_size=4),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
RANK = st.integers(-2, 9)
LOGS = st.builds(
    lambda transports, rings, graphs: log(
        load(),
        transports=transports,
        rings=tuple(RingFact(0, tuple(members), by=by) for members, by in rings),
        graphs=tuple(GraphFact(pattern, 1, speed, "SYS", fell_back=fell) for pattern, speed, fell in graphs),
    ),
    st.dictionaries(st.tuples(RANK, RANK), st.sampled_from(["P2P/IPC", "SHM", "NET/Socket", "", "?"]), max_size=4),
    st.lists(st.tuples(st.lists(RANK, max_size=9), st.sampled_from(["rank", "dev"])), max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e12), st.booleans()), max_size=2),
)


@given(
    devices=st.dictionaries(NODES, DEVICES, max_size=3),
    above=st.dictionaries(NODES, DEVICES, max_size=3),
    gpus=st.dictionaries(NODES, st.builds(GpuFact, st.integers(0, 9), link=LINKS, link_max=LINKS, bar1_bytes=SIZES), max_size=3),
    matrices=st.lists(MATRICES, max_size=3),
    logs=st.lists(LOGS, max_size=2),
)
def test_odd_facts_never_break_it(
    devices: dict[str, DeviceFact], above: dict[str, DeviceFact], gpus: dict[str, GpuFact], matrices: list[RelatedMatrix], logs: list
) -> None:
    facts = Related(
        devices=devices,
        above=above,
        gpus=gpus,
        matrices=tuple(matrices),
        ccl=tuple(logs),
        acs_ports=tuple(one for one in above.values() if one.acs_redirect is not None),
    )
    diagnose(load(), facts).to_json()


@given(
    rows=st.dictionaries(st.integers(1, 2**62), st.floats(1e-12, 1e12), min_size=1, max_size=8),
    op=st.sampled_from(["all_reduce", "all_gather", "all_to_all", "send_recv", "reduce"]),
    ranks=st.sampled_from([1, 2, 7, 8, 9]),
    launch=st.sampled_from(["graph", "eager", None]),
    env=st.dictionaries(st.sampled_from(["NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "A B"]), st.text(max_size=4), max_size=2),
)
def test_odd_runs_never_break_it(rows: dict[int, float], op: str, ranks: int, launch: str | None, env: dict[str, str]) -> None:
    run = measured(rows, op=op, ranks=ranks, launch=launch, env=env)
    diagnose(load(), Related(measurements=(run,))).to_json()


def text_of(found: object, width: int = 100) -> str:
    import io

    stream = io.StringIO()
    show(doctor_blocks(found, width=width), stream)  # type: ignore[arg-type]
    return stream.getvalue()


def test_the_text_of_a_sick_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = text_of(diagnose(load("rtx-4090-8x-2switch")))
    assert "2 problems" in text
    assert "[p2p-driver]" in text
    assert "us for each 14 KiB AllReduce (" in text
    assert "Not checked, and what it takes" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_text_of_a_healthy_box_is_short() -> None:
    text = text_of(diagnose(load("rtx-pro-6000-8x-direct-1socket", env=SYS)))
    assert "nothing found (of " in text
    assert "Checked, nothing wrong" in text
    assert "Problems" not in text
    assert "Notes" not in text


APP = typer.Typer()
APP.command()(doctor)


def test_the_command_exits_with_1_where_it_finds_a_problem(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ran = CliRunner().invoke(APP, ["rtx-4090-8x-2switch", "--json", "-o", str(out)])
    assert ran.exit_code == 1
    document = json.loads(ran.stdout)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert document["sick"] is True


def test_the_command_exits_with_0_where_there_is_none() -> None:
    ran = CliRunner().invoke(APP, ["rtx-pro-6000-8x-2switch", "--env", "NCCL_P2P_LEVEL=SYS"])
    assert ran.exit_code == 0
    assert "no problems" in ran.stdout


TOPO = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\t0-31\t0\t\tN/A
GPU1\tSYS\t X \t32-63\t1\t\tN/A
"""


def test_the_command_reads_files_about_the_box(tmp_path: Path) -> None:
    """A matrix of another box beside a shipped one: its paths are said to differ."""
    file = tmp_path / "topo.txt"
    file.write_text(TOPO, encoding="utf-8")
    ran = CliRunner().invoke(APP, ["rtx-pro-6000-2x-b650-switch", str(file), "--json"])
    document = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert "paths" in [item["code"] for item in document["findings"]]
    assert document["sources"] == [*study.load_topology("rtx-pro-6000-2x-b650-switch").spec.sources, "topo.txt"]


def test_the_command_does_not_overwrite_what_it_reads(tmp_path: Path) -> None:
    file = tmp_path / "topo.txt"
    file.write_text(TOPO, encoding="utf-8")
    ran = CliRunner().invoke(APP, ["rtx-pro-6000-2x-b650-switch", str(file), "-o", str(file)])
    assert ran.exception is not None
    assert file.read_text(encoding="utf-8") == TOPO
