"""Plots and files: whole or not at all."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from made_results import comparison, point

from pcie_sim.errors import InputError
from pcie_sim.report.files import same_file, write_whole
from pcie_sim.report.plots import comparison_figure, save_plot


def test_png_is_a_png_of_a_readable_size(tmp_path: Path) -> None:
    path = save_plot(comparison(), str(tmp_path / "a.png"))
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert width >= 1500
    assert 500 <= height < width


def test_svg_is_svg_and_the_same_twice(tmp_path: Path) -> None:
    first, second = (save_plot(comparison(), str(tmp_path / name)).read_text() for name in ("a.svg", "b.svg"))
    assert ET.fromstring(first).tag.endswith("svg")  # noqa: S314 - our own file
    assert "<dc:date>" not in first
    assert len(first) == len(second)


def test_plot_leaves_pyplot_alone(tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules
    save_plot(comparison(), str(tmp_path / "a.png"))
    assert ("matplotlib.pyplot" in sys.modules) is before


def test_panels_lines_bands_and_legend() -> None:
    figure = comparison_figure(comparison())
    left, right = figure.axes
    assert left.get_ylabel() == "ms per token"
    assert right.get_ylabel() == "tokens/s"
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "8"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["tp8", "pp8", "ep8:a2a (does not fit)", "p10 to p90", "measured", "requests queue"]
    assert len(left.collections) == 2, "a band for each strategy that fits"
    stars = [line for line in left.lines if line.get_marker() == "*"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in stars] == [([1], [20.0])]  # 50 tok/s at C=1
    tp8 = next(line for line in left.lines if list(line.get_ydata()) == [10.0, 40.0])
    assert stars[0].get_markerfacecolor() == tp8.get_color()
    assert "A model on A box of eight" in figure.get_suptitle()


def test_a_row_of_panels_per_context() -> None:
    points = tuple(point("tp8", c, 10.0, context=at) for at in (1024, 8192) for c in (1, 8))
    figure = comparison_figure(comparison(points=points, measured=()))
    assert len(figure.axes) == 4
    assert "context 8192" in figure.axes[2].get_title(loc="left")


def test_more_strategies_than_colours_stay_apart() -> None:
    names = [f"tp{n}" for n in range(1, 12)]
    figure = comparison_figure(comparison(points=tuple(point(name, 1, 10.0) for name in names), measured=(), winners=()))
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(looks) == len(names)


@pytest.mark.parametrize("name", ["x.gif", "x.pdf", "x", ".png/"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png or \.svg|folder"):
        save_plot(comparison(), str(tmp_path / name))


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_whole(str(path), b"old", what="-o")

    def broken(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(InputError, match="No space left"):
        write_whole(str(path), b"new", what="-o")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_mode_follows_umask_then_the_old_file(tmp_path: Path) -> None:
    import os

    path = tmp_path / "a.json"
    old = os.umask(0o027)
    try:
        write_whole(str(path), b"1", what="-o")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    write_whole(str(path), b"2", what="-o")
    assert path.stat().st_mode & 0o777 == 0o600


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_whole(str(link), b"new", what="-o")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    write_whole("/dev/null", b"new", what="-o")
    assert Path("/dev/null").is_char_device()


def test_letters_that_the_font_lacks_leave_the_name_and_no_warning(tmp_path: Path) -> None:
    """pytest turns warnings into errors."""
    odd = comparison(titles={"model": "\u65e5\u672c\u8a9e", "topology": "caf\u00e9"}, env={"A": "\u65e5"})
    assert "Decode: model on caf\u00e9\n" in comparison_figure(odd).get_suptitle()
    save_plot(odd, str(tmp_path / "a.png"))


@pytest.mark.parametrize("title", ["$x^2$", r"$\nonsense$", "a $ b", "long " * 800, "\x1b[31m\x00", "\udcff", "[/] \n\n x"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_any_title_can_be_drawn(kind: str, title: str, tmp_path: Path) -> None:
    path = save_plot(comparison(titles={"model": title, "topology": title}, env={"A": title}), str(tmp_path / f"a.{kind}"))
    if kind == "svg":
        ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - our own file


def test_a_dash_or_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="-o -: give a file name; use --json to print it"):
        write_whole("-", b"", what="-o")
    with pytest.raises(InputError, match="names a folder"):
        save_plot(comparison(), str(tmp_path / "x.png") + "/")


def test_same_file_sees_through_links_and_needs_no_file(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("x")
    (tmp_path / "soft.yaml").symlink_to(real)
    (tmp_path / "hard.yaml").hardlink_to(real)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("real.yaml", "soft.yaml", "hard.yaml", "../" + tmp_path.name + "/real.yaml"):
        assert same_file(tmp_path / name, real)
    assert same_file(tmp_path / "new", tmp_path / "." / "new")
    for name in ("new", "circle", "a\0b", "x" * 5000):
        assert not same_file(f"{tmp_path}/{name}", real)


def test_a_pipe_that_nobody_reads_is_an_error_at_once(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot write it"):
        write_whole(str(tmp_path / "pipe"), b"x", what="-o")
    write_whole("/dev/null", b"x", what="-o")
