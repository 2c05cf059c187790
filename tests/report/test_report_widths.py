"""Boxes fit the screen: no table, matrix or line of a tree is wider than it."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from pcie_sim import catalog
from pcie_sim.cli.main import main
from pcie_sim.report.box import box_blocks, box_list_blocks
from pcie_sim.report.console import show
from pcie_sim.topology import load_topology

WIDTHS = (60, 80, 120, 200)


def lines_wider(text: str, width: int) -> list[str]:
    """Lines wider than the screen, but for a single word (an address) that is."""
    return [
        line
        for line in text.splitlines()
        if cell_len(line) > width and max(cell_len(word) for word in line.split()) < width - len("  [10] ")
    ]


@pytest.mark.parametrize("name", catalog.topology_names())
def test_a_box_fits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    box = load_topology(name)
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        stream = io.StringIO()
        show(box_blocks(box, width=width), stream)
        text = stream.getvalue()
        assert lines_wider(text, width) == []
        rows = [line.split() for line in text.splitlines() if line.split()[:1] == [box.gpus[0]]]
        cells = [cell for row in rows for cell in row[1:] if cell in ("X", "PIX", "PXB", "PHB", "SYS", "NVL", "NET")]
        assert len(cells) == len(box.gpus)  # blocks of a matrix hold every column once
        for gpu in box.gpus:
            assert f"── {gpu}  " in text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_fits(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["topology", "list"]) == 0
    text = capsys.readouterr().out
    assert lines_wider(text, width) == []
    for name in catalog.topology_names():
        assert name in text.split()


def test_the_list_is_a_table_where_there_is_room() -> None:
    boxes = [load_topology("rtx-3090-2x-direct")]
    assert len(box_list_blocks(boxes, width=120)) == 2
    assert len(box_list_blocks(boxes, width=60)) == 3
