"""NCCL's graph XML. Layout and meaning: NVIDIA/nccl:src/graph/search.cc (ncclTopoGetXmlFromGraph)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import nccl_graph
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of


def channel(*gpus: str, net: bool = False) -> str:
    card = '<net dev="0"/>' if net else ""
    return f"<channel>{card}{''.join(f'<gpu {gpu}/>' for gpu in gpus)}{card}</channel>"


def graph(*channels: str, pattern: str = "4", count: int | None = None, speed: str = "38", kind: str = "PHB", number: int = 0) -> str:
    many = len(channels) if count is None else count
    head = f'<graph id="{number}" pattern="{pattern}" crossnic="0" nchannels="{many}" speedintra="{speed}" speedinter="32" latencyinter="0"'
    return f'{head} typeintra="{kind}" typeinter="PIX" samechannels="1">\n{"".join(channels)}</graph>\n'


def file(*graphs: str) -> str:
    return f'<graphs version="1">\n{"".join(graphs)}</graphs>\n'


EMPTY = graph(pattern="5", speed="0", kind="LOC", number=3)
OLD = channel(*(f'dev="{i}"' for i in range(12)))
NEW = channel(*(f'dev="{"0" if i == 0 else hex(i)}"' for i in range(12)))


def read(text: str) -> Imported:
    return nccl_graph.read(source_of(text, "graph.xml"))


@pytest.mark.parametrize("form", [OLD, NEW])
def test_decimal_and_hexadecimal_devices_are_the_same(form: str) -> None:
    found = read(file(graph(form, form), graph(form, pattern="1", number=1), EMPTY))
    [ccl] = found.box.ccl
    assert [(ring.channel, ring.members, ring.by) for ring in ccl.rings] == [(0, tuple(range(12)), "dev"), (1, tuple(range(12)), "dev")]
    assert (ccl.nranks, ccl.nodes, found.remarks) == (12, 1, ())
    assert [(one.pattern, one.channels, one.speed_intra, one.type_intra, one.fell_back) for one in ccl.graphs] == [
        (4, 2, 38e9, "PHB", False),
        (1, 1, 38e9, "PHB", False),
    ]
    assert [one["pattern"] for one in found.details["nccl_graph"]] == ["ring", "balanced tree"]


def test_ranks_are_taken_where_all_gpus_have_one() -> None:
    """The rank attribute came with 2.29; dev and rank differ under CUDA_VISIBLE_DEVICES."""
    [ccl] = read(file(graph(channel('dev="0x4" rank="3"', 'dev="0" rank="0"', 'dev="0x3" rank="2"', 'dev="0x1" rank="1"')))).box.ccl
    assert [(ring.members, ring.by) for ring in ccl.rings] == [((3, 0, 2, 1), "rank")]
    [ccl] = read(file(graph(channel('dev="0x4" rank="3"', 'dev="0"')))).box.ccl
    assert [(ring.members, ring.by) for ring in ccl.rings] == [((4, 0), "dev")]


def test_the_fallback_is_seen() -> None:
    """A search that finds nothing leaves one channel of 0.1 GB/s, SYS (search.cc: simple order)."""
    [ccl] = read(file(graph(channel('dev="0"', 'dev="1"'), speed="0.1", kind="SYS"))).box.ccl
    assert [(one.fell_back, one.speed_intra) for one in ccl.graphs] == [(True, pytest.approx(1e8))]


def test_channels_through_network_cards_are_a_run_of_several_hosts() -> None:
    found = read(file(graph(channel('dev="0"', 'dev="1"', net=True))))
    [ccl] = found.box.ccl
    assert (ccl.nranks, ccl.nodes, ccl.rings[0].members) == (None, None, (0, 1))
    assert [(remark.kind, remark.line) for remark in found.remarks] == [("note", 3)]


def test_devices_of_other_hosts() -> None:
    far = hex((1 << 56) + 1)
    found = read(file(graph(channel('dev="0"', f'dev="{far}"'))))
    assert found.box.ccl[0].rings == ()
    assert {remark.kind for remark in found.remarks} == {"ignored", "note"}


def test_disagreements_are_said_not_hidden() -> None:
    both = channel('dev="0"', 'dev="1"')
    found = read(file(graph(both, count=4, speed="nan", kind="FAST"), graph(both, channel('dev="0"', 'dev="2"'), channel())))
    texts = [(remark.kind, remark.text) for remark in found.remarks]
    assert ("conflict", "nchannels is 4, but 1 are listed: those listed are taken") in texts
    assert any(kind == "ignored" and "speedintra 'nan'" in text for kind, text in texts)
    assert any(kind == "ignored" and "typeintra 'FAST'" in text for kind, text in texts)
    assert any(kind == "conflict" and "same GPUs" in text for kind, text in texts)
    assert any(kind == "ignored" and "without GPUs: 1" in text for kind, text in texts)
    assert len(found.box.ccl[0].graphs) == 1  # the one whose speed is none is left out
    assert found.box.ccl[0].nranks is None


@pytest.mark.parametrize("speed", ["-3", "inf", "1e400", "9" * 50, ""])
def test_speeds_that_are_none(speed: str) -> None:
    assert read(file(graph(channel('dev="0"'), speed=speed))).box.ccl[0].graphs == ()


def test_placeholders_only() -> None:
    found = read(file(EMPTY))
    assert found.box.ccl[0].graphs == ()
    assert "placeholder" in found.remarks[0].text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<graphs>\n</graphs>", r"graph\.xml:1: a <graphs> without <graph>"),
        ("<system/>", r"graph\.xml:1: the root tag is <system>"),
        (file(graph(channel('dev="0"', 'dev="1"', 'dev="0"'))), r"graph\.xml:2: channel 0 of the ring graph goes through GPU 0 twice"),
        (file(graph(channel('dev="zero"'))), r"graph\.xml:3: dev 'zero' is no GPU number"),
        (file(graph(channel('dev="1e3"'))), r"graph\.xml:3: dev '1e3' is no GPU number"),
        (file(graph(channel('dev="5000"'))), r"graph\.xml:3: GPU number 5000 is beyond"),
        (file(*[EMPTY] * 65), r"graph\.xml:\d+: more than 64 graphs"),
        (file(graph(*["<channel/>"] * 4097)), r"graph\.xml:3: more than 4096 channels"),
        (file(graph(OLD))[:-30], r"graph\.xml:\d: the file ends inside <\w+>"),
    ],
)
def test_refusals_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


def test_only_its_own_root_is_recognised() -> None:
    assert nccl_graph.sniff(source_of("<!-- mine -->\n" + file(EMPTY), "f")) == 2
    assert nccl_graph.sniff(source_of("<graph/>", "f")) is None


WHOLE = file(graph(OLD, NEW), graph(OLD, pattern="1", number=1), EMPTY)


@given(
    st.integers(0, len(WHOLE)),
    st.integers(0, 40),
    st.text(max_size=20) | st.sampled_from(['dev="', "<gpu/>", "-1", "0x", "999999999999999999999"]),
)
def test_damaged_files_are_read_or_refused(at: int, length: int, put: str) -> None:
    text = WHOLE[:at] + put + WHOLE[at + length :]
    if not text.strip():
        return
    source = source_of(text, "graph.xml")
    nccl_graph.sniff(source)
    message = "graph.xml"
    try:
        nccl_graph.read(source)
    except InputError as exc:
        message = str(exc)
    assert message.startswith("graph.xml")
