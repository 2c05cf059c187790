"""What people read: alignment, marks, order and completeness of the text reports, from hand-built results."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from dataclasses import replace

import pytest
from made_results import comparison, flows, point, prediction, timing

from pcie_sim.report.comparison import comparison_blocks, measured_blocks
from pcie_sim.report.console import NARROWEST, PLAIN_WIDTH, show, wants_colour, width_of
from pcie_sim.report.prediction import prediction_blocks
from pcie_sim.report.timing import flows_blocks, timing_blocks
from pcie_sim.results.comparison import MeasuredPoint, Note


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def text_of(blocks: list, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    show(blocks, stream)
    return stream.getvalue()


GRID = """\
Decode at context 1024: tokens/s of the whole box, ms per token of one request
        tp8                  pp8               ep8:a2a
 C    tok/s    ms/token    tok/s    ms/token     tok/s    ms/token
-------------------------------------------------------------------
 1   100.0*        10.0     40.0        25.0   (111.1)       (9.0)
 8    200.0        40.0   307.7*       26.0q   (400.0)      (20.0)
  * wins   ( ) no fit: the time it would have if it fitted   q requests queue: the figures are those at the cap
  - ep8:a2a does not fit: weights 90.0 GB exceed the 80.0 GB that a rank may use
"""

WINNERS = """\
 C   winner   tok/s   p10 to p90   margin   probability   bound by        evidence
-----------------------------------------------------------------------------------
 1   tp8      100.0    83 to 111    +150%          0.97   attention 60%   profile
 8   pp8      307.7   256 to 342     +54%          0.70   attention 60%   profile
  from C=8: pp8 instead of tp8
"""

MEASURED = """\
 strategy   C   measured   predicted   unit    residual   quality   note
-----------------------------------------------------------------------------
 tp8        1       50.0       100.0   tok/s       -50%   good      a remark
  without a prediction here (not asked, or concurrency not stated):
    tp8 C unknown: 808 tok/s
  from set-a
"""
"""Looked at once, then kept: decimals in line, marks behind them, heads over their columns."""


def test_comparison_as_people_read_it() -> None:
    text = text_of(comparison_blocks(comparison(), width=120))
    for part in (GRID, WINNERS, MEASURED):
        assert part in text
    head = text.splitlines()
    assert head[0] == "A model on A box of eight"
    assert "nccl 2.28, environment NCCL_P2P_LEVEL=5" in text
    assert "launch graph" in text
    assert "ep8:a2a (= dp8ep8): AllReduce" in text
    assert text.index("Collectives assumed") < text.index("MoE layers exchange by All-to-All") < text.index("Measured on")


def test_the_last_line_is_the_advice_alone() -> None:
    long = "NCCL_P2P_LEVEL=5 all_reduce_perf " + "-x 1 " * 60
    text = text_of(comparison_blocks(comparison(advice=long), width=120))
    assert text.endswith("\n")
    assert text.splitlines()[-1] == long.strip()


def test_every_line_but_the_advice_keeps_to_120_columns() -> None:
    many = [
        point(name, c, 10.0 + c)
        for name in ("tp8", "pp8", "ep8:allreduce", "ep8:a2a", "tp4pp2", "2xtp4", "tp2dp4:ag_rs", "tp8dcp8")
        for c in (1, 64)
    ]
    text = text_of(comparison_blocks(comparison(points=tuple(many), winners=(), crossovers=()), width=120))
    assert max(map(len, text.splitlines()[:-1])) <= PLAIN_WIDTH
    assert text.count("tok/s    ms/token") >= 8, "all strategies are shown, in as many tables as it takes"
    assert "tp2dp4:ag_rs" in text


def test_nothing_fits_is_said() -> None:
    none = tuple(point("tp8", c, 10.0, fits=False) for c in (1, 8))
    text = text_of(comparison_blocks(comparison(points=none, winners=(), crossovers=(), measured=()), width=120))
    assert "Nothing fits." in text
    assert "* wins" not in text
    assert "(100.0)" in text


def test_a_block_per_context() -> None:
    from pcie_sim.results.comparison import Crossover, Winner

    points = tuple(point("tp8", c, 10.0, context=at) for at in (1024, 8192) for c in (1, 8))
    winners = tuple(Winner(c, at, "tp8", None, 1.0) for at in (1024, 8192) for c in (1, 8))
    found = comparison(points=points, winners=winners, crossovers=(Crossover(8192, "tp8", "pp8", 8),), measured=())
    text = text_of(comparison_blocks(found, width=120))
    assert "Decode at context 1024" in text
    assert "Decode at context 8192" in text
    assert "from C=8 (context 8192): pp8 instead of tp8" in text
    assert re.search(r"^ +8192 +1 +tp8 +100.0 .* alone ", text, re.M)


def test_no_trailing_spaces_and_no_escape_codes() -> None:
    text = text_of(comparison_blocks(comparison(), width=120))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_terminal_gets_colour_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in text_of(comparison_blocks(comparison(), width=120), Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    assert "\x1b" not in text_of(comparison_blocks(comparison(), width=120), Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())


def test_width_is_columns_then_the_terminals_then_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((83, 24)))
    assert width_of(Terminal()) == 83
    assert width_of(io.StringIO()) == PLAIN_WIDTH
    monkeypatch.setenv("COLUMNS", "40")
    assert width_of(Terminal()) == width_of(io.StringIO()) == NARROWEST == 60
    monkeypatch.setenv("COLUMNS", "200")
    assert width_of(Terminal()) == width_of(io.StringIO()) == 200
    for nonsense in ("", "0", "many", "-80", "9" * 400):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert width_of(io.StringIO()) == PLAIN_WIDTH


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_narrow_terminal_loses_no_number(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables fold their long columns and are printed whole where that is not enough; prose keeps to the width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    note = "one remark of many words " * 6
    rows = tuple(replace(row, note=note) for row in comparison().measured)
    text = text_of(comparison_blocks(comparison(measured=rows), width=columns))
    words = re.findall(r"\S+", text)
    monkeypatch.setenv("COLUMNS", "300")
    wide = text_of(comparison_blocks(comparison(measured=rows), width=300))
    assert set(re.findall(r"[\w.*()+%]+", wide)) == {word for part in words for word in re.findall(r"[\w.*()+%]+", part)}
    prose = text[text.index("\nNotes") : text.index("\nThe measurement")]
    assert max(map(len, prose.splitlines())) <= columns


ESCAPES = {
    "\x1b[31mred\x1b[0m": r"\x1b[31mred\x1b[0m",
    "\x9b2J": r"\x9b2J",
    "bell\x07": r"bell\x07",
    "back\r": r"back\x0d",
    "\u202eesrever": r"\u202eesrever",
}


@pytest.mark.parametrize(("raw", "shown"), ESCAPES.items(), ids=range(len(ESCAPES)))
def test_what_a_terminal_would_obey_is_shown_instead(raw: str, shown: str) -> None:
    """Whoever made the block: a title in bold, a cell, a line of prose, a tree."""
    from rich.text import Text
    from rich.tree import Tree

    found = comparison(
        titles={"model": raw, "topology": raw},
        env={"A": raw},
        notes=(Note("x", raw),),
        advice=f"run {raw}",
        measured=tuple(replace(row, note=raw) for row in comparison().measured),
    )
    for stream in (io.StringIO(), Terminal()):
        text = text_of([*comparison_blocks(found, width=120), Tree(Text(raw)), raw], stream)
        text = re.sub(r"\x1b\[[0-9;]*m", "", text) if stream.isatty() else text  # what rich itself puts round bold text
        assert not [letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf") and letter != "\n"]
        assert text.count(shown) >= (1 if raw.endswith("\r") else 5), "a return is white space: prose drops it, as rich does"


def test_measured_rows_without_a_prediction_are_one_line_per_strategy() -> None:
    def row(strategy: str, concurrency: float | None, value: float) -> MeasuredPoint:
        return MeasuredPoint("set-a", strategy, concurrency, None, "output_tokens_per_s", value, "tok/s", "good", None, None)

    rows = (
        row("ep8:allreduce", 1, 66.2),
        row("tp8", None, 808),
        row("ep8:allreduce", 1, 62.3),
        row("ep8:allreduce", 4, 95.9),
        row("tp8", 1, 5),
    )
    lines = text_of(measured_blocks(rows, width=120)).splitlines()
    assert "    ep8:allreduce C=1: 62.3 to 66.2 tok/s (2 rows); C=4: 95.9 tok/s" in lines
    assert "    tp8 C unknown: 808 tok/s; C=1: 5 tok/s" in lines


def test_measurements_that_contradict_the_winner_stand_under_the_winners() -> None:
    notes = (*comparison().notes, Note("measured_disagrees", "at C=1 ep8 measured 65 tok/s, more than any row of tp8"))
    text = text_of(comparison_blocks(comparison(notes=notes), width=120))
    line = "\n! at C=1 ep8 measured 65 tok/s, more than any row of tp8\n"
    assert text.count("more than any row of tp8") == 1
    assert text.index("Who wins") < text.index(line) < text.index("Collectives assumed")


def test_mixed_boxes_say_in_the_head_whose_figures_these_are() -> None:
    note = Note("mixed_gpus", "mixed (1x a, 1x b): every rank computes like a")
    for text in (
        text_of(comparison_blocks(comparison(notes=(note,)), width=120)),
        text_of(prediction_blocks(prediction(notes=(note,)), width=120)),
    ):
        assert re.search(r"^  GPUs +mixed \(1x a, 1x b\): every rank computes like a$", text, re.M)
        assert text.count("computes like a") == 1


def test_one_is_singular() -> None:
    assert "box: 1 GPU\n" in text_of(comparison_blocks(comparison(gpus=1), width=120))
    assert "over 1 rank\n" in text_of(timing_blocks(timing(ranks=1), width=120))
    assert ", 1 step, " in text_of(timing_blocks(timing(steps=1), width=120))
    assert "1 of 1 request running" in text_of(prediction_blocks(prediction(), width=120))


def test_ops_that_run_beside_another_say_so() -> None:
    ops = prediction().ops
    assert "hidden" not in text_of(prediction_blocks(prediction(), width=120))
    beside = replace(ops[0], name="shared experts", ms=0.0, hidden_by="experts")
    text = text_of(prediction_blocks(prediction(ops=(ops[1], beside)), width=120))
    assert re.search(r"^ op .* evidence +hidden$", text, re.M)
    assert re.search(r"^ shared experts .* 0\.000 +profile +beside experts$", text, re.M)


def test_markup_in_names_is_shown_as_it_is() -> None:
    """A file's title may hold what rich would take for a style."""
    text = text_of(comparison_blocks(comparison(titles={"model": "[red]M[/red] :smile:", "topology": "[/]"}), width=120))
    assert text.startswith("[red]M[/red] :smile: on [/]\n")


def test_prediction_as_people_read_it() -> None:
    text = text_of(prediction_blocks(prediction(), width=120))
    assert "10.00 ms (9.00 to 12.00)" in text
    assert re.search(r"^ attention +6\.000 +60\.0% +#{24}$", text, re.M)
    assert re.search(r"^ all +10\.000$", text, re.M)
    assert re.search(r"^ AllReduce +all_reduce +123 +14 KiB +4\.000 +nominal$", text, re.M)
    assert "profile (by time: profile 60%, nominal 40%)" in text
    assert "65.19 GiB" in text  # 70e9 B of weights
    assert "does not fit" not in text


def test_prediction_that_does_not_fit_says_so_and_why() -> None:
    where = point(fits=False, memory=replace(point().memory, kv_free_bytes=-1.0, max_concurrency=0, reason="weights exceed the budget"))
    text = text_of(prediction_blocks(prediction(point=where), width=120))
    assert "does not fit" in text
    assert "weights exceed the budget" in text
    assert re.search(r"left for KV +none", text)


def test_collective_as_people_read_it() -> None:
    """algbw = 14336 B / 30 us = 477.9 MB/s; busbw = algbw x 2 x 7/8 (nccl-tests doc/PERFORMANCE.md)."""
    text = text_of(timing_blocks(timing(), width=120))
    assert "all_reduce of 14,336 B (14 KiB) over 8 ranks" in text
    assert "30.00 us (25.00 to 40.00)" in text
    assert "477.9 MB/s, 836.3 MB/s" in text
    assert "base 4.00 us, steps 24.00 us, bytes 2.00 us" in text
    assert "gpu7.up, full 7% of the time" in text
    assert "Busiest links (5 of 8)" in text
    assert re.findall(r"^ (gpu\d)\.up ", text, re.M) == ["gpu7", "gpu6", "gpu5", "gpu4", "gpu3"]
    assert "left out: something" in text
    assert "source: somewhere" in text


def test_flows_as_people_read_them() -> None:
    assert text_of(flows_blocks(flows())).splitlines()[-1].split() == ["one", "2", "ms", "1", "ms", "2", "2", "100", "us"]
