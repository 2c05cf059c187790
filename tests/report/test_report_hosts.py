"""What is shown of boxes of several hosts, of boxes without a network, and of boxes with something amiss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pcie_sim.cli.main import main
from pcie_sim.topology import load_topology

NODES = """schema: pcie-sim/topology/1
name: apart
nodes:
  cpu0: {{kind: socket, part: epyc-genoa{}}}
  cpu1: {{kind: socket, part: epyc-genoa{}}}
  gpu0: {{kind: gpu, part: rtx-4090, parent: cpu0}}
  gpu1: {{kind: gpu, part: rtx-4090, parent: cpu1, links: 8}}
"""


def shown(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(["topology", "show", name, *more]) == 0
    return capsys.readouterr().out


def test_choices_inside_one_host_are_said_to_be_that(capsys: pytest.CaptureFixture[str]) -> None:
    name = "rtx-pro-6000-16x-2host-ndr"
    text = shown(name, capsys)
    assert "What NCCL 2.28 will do inside one host (host0: 8 of 16 GPUs)" in text
    assert "with all 16 GPUs" not in text
    found = json.loads(shown(name, capsys, "--json"))["ccl"]
    assert found["holds_for"] == {"host": "host0", "ranks": 8, "gpus": [f"gpu{i}" for i in range(8)]}
    assert sorted(found["ring_order"]) == sorted(found["holds_for"]["gpus"])


@pytest.mark.parametrize("name", ["rtx-pro-6000-8x-2switch", "rtx-pro-6000-16x-2host-ndr"])
def test_no_way_to_a_network_that_the_search_does_not_know(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "to the network" not in shown(name, capsys)
    one = json.loads(shown("rtx-pro-6000-8x-2switch", capsys, "--json"))["ccl"]["holds_for"]
    assert (one["host"], one["ranks"]) == (None, 8)


@pytest.mark.parametrize(("ends", "words"), [(("", ""), "sockets cpu0 and cpu1"), ((", parent: h0", ", parent: h1"), "hosts h0 and h1")])
def test_what_is_not_joined_is_shown_with_a_note(
    ends: tuple[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A box can be looked at with what it lacks (exit 0); a question that needs the missing way is refused (exit 2)."""
    text = NODES.format(*ends)
    if ends[0]:
        text = text.replace("nodes:\n", "nodes:\n  h0: {kind: host}\n  h1: {kind: host}\n")
    path = tmp_path / "apart.yaml"
    path.write_text(text)
    assert f"{words} are not joined" in " ".join(shown(str(path), capsys).split())
    assert main(["collective", "all_reduce", "--topology", str(path), "--size", "1K"]) == 2
    assert f"{words} are not joined" in capsys.readouterr().err


def test_several_links_of_one_card_are_remarked(tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(NODES.format("", ""))
    (note,) = [note for note in load_topology(path).notes if "links: 8" in note]
    assert note.startswith("gpu1: ")
