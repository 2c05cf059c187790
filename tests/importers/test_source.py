"""Reading a stranger's file: what is decoded, what is refused, what is cut, and that lines keep their numbers."""

from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import FORMATS, Imported, formats
from pcie_sim.importers.imported import importer
from pcie_sim.importers.source import MAX_BYTES, MAX_LINE, SourceText, quoted, read_source, source_of
from pcie_sim.specs.model import ModelSpec


def test_lines_keep_their_numbers_through_colours_fences_and_line_ends() -> None:
    source = source_of("```text\r\n\x1b[4mGPU0\tGPU1\x1b[0m\r\nGPU0\t X \tPIX\n~~~\n", "paste.txt")
    assert source.lines[:4] == ("", "GPU0\tGPU1", "GPU0\t X \tPIX", "")
    assert source.line_of(source.text.index("PIX")) == 3


def test_tabs_survive_and_other_control_characters_do_not() -> None:
    assert source_of("a\tb\x08c\x7f", "x").lines == ("a\tbc",)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_as_windows_shells_write_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "topo.txt"
    path.write_bytes("GPU0\tGPU1\r\nGPU0\t X \tPHB\r\n".encode(encoding))
    source = read_source(path)
    assert source.lines[0] == "GPU0\tGPU1"
    assert any("UTF-16" in remark.text for remark in source.remarks)


def test_a_mark_at_the_beginning_is_dropped() -> None:
    assert source_of(b"\xef\xbb\xbf<system/>", "x").raw == "<system/>"


def test_bytes_that_are_no_utf8_are_shown_and_said() -> None:
    source = source_of("GPU\nCaf\xe9".encode("latin-1"), "x")
    assert source.lines[1] == "Caf\ufffd"
    assert [(remark.kind, remark.line) for remark in source.remarks] == [("note", 2)]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"  \n\t\n", "is empty"),
        (gzip.compress(b"hello", mtime=0), "archive (gzip)"),
        (b"PK\x03\x04rest", "archive (zip)"),
        (b"GPU0\nabc\x00def", "x:2: a NUL byte (byte 8)"),
    ],
    ids=["nothing", "blanks", "gzip", "zip", "binary"],
)
def test_what_is_no_text_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        source_of(raw, "x")
    assert words in str(caught.value)


def test_missing_files_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "none", "no such file"), (tmp_path, "is a folder"), (tmp_path / "pipe", "no regular file")):
        with pytest.raises(InputError, match=words):
            read_source(path)


def test_a_file_beyond_the_bound_is_cut_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    with path.open("wb") as stream:
        stream.truncate(0)
        stream.write(b"first line\n")
        stream.write(b"x" * (MAX_BYTES + 5))
    source = read_source(path)
    assert source.lines[0] == "first line"
    assert len(source.lines[1]) == MAX_LINE
    assert not source.complete
    assert [remark.kind for remark in (*source.remarks, *source.cuts)] == ["cut", "cut"]


def test_a_character_cut_by_the_bound_is_no_complaint() -> None:
    raw = b"a" * (MAX_BYTES - 1) + "é".encode() + b"tail"
    assert not any(remark.kind == "note" for remark in source_of(raw, "x").remarks)


def test_quoted_text_is_short_and_printable() -> None:
    assert quoted("a\x1b[31m\tb" + "c" * 500, 20) == repr("a?[31m?b" + "c" * 9 + "...")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(InputError):
        source = source_of(raw, "x")
        assert all(char == "\t" or ord(char) >= 32 for line in source.lines for char in line)


def test_formats_are_asked_in_one_order_whatever_was_imported_first() -> None:
    """Our own files first: a model file of ours would else be taken for a config.json."""
    names = list(formats())
    assert names[0] == "pcie-sim"
    assert names.index("nvidia-smi-topo") < names.index("nccl-tests")


def test_a_figure_that_no_spec_can_hold_is_bad_input() -> None:
    @importer("never", "a format of this test", sniff=lambda _source: None)
    def read(source: SourceText) -> Imported:
        return Imported(source.name, ("never",), model=ModelSpec.model_validate({"hidden_size": -1}))

    FORMATS.pop("never")
    with pytest.raises(InputError, match="x: a format of this test: a value that cannot be"):
        read(source_of("text", "x"))
