"""Calibration files: written and read back exactly; broken and hostile ones refused in one line; logs that say little or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_box import FOUR, Run, measured, truth

import pcie_sim as ps
from pcie_sim.calibration.constants import constants
from pcie_sim.calibration.make import calibrate
from pcie_sim.errors import InputError
from pcie_sim.evidence import LABELS
from pcie_sim.specs.calibration import CalibrationSpec
from pcie_sim.study.calibrating import calibration_text, load_calibration
from pcie_sim.topology import load_topology

NUMBERS = ["1e5", "0o17", "12E03", "-1e-5"]
"""Numbers in YAML 1.2, which the loader reads, and text in YAML 1.1, which PyYAML writes without quotes."""
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")
# Text that YAML of one version or another takes for something else, and what must not break out of its quotes.
NASTY = [
    "0x1f", "017", "1_000", "12:30", "41:00.0", "no", "off", "Yes", "null", "~", "", " ", "true", ".5", ".inf",
    ".nan", "-", "-1",
    "2024-01-01", "=", "<<", "*a", "&a", "!!int 3", "a: b", "a #b", "'", '"', "a'b\"c", "\\n", "a\nb", "\n", "a\tb",
    "%", "@x", "`x`", "[x]", "{x}",
    "x, y", "?", "ü€ 漢字 🙂", "a\u2028b", "\ufeffx", "x" * 3000, "word " * 200, "trailing ", " leading", "...", "---", "#",
]  # fmt: skip
plain = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=40)
texts = st.sampled_from(NASTY) | plain.filter(lambda text: _NUMBER.fullmatch(text) is None)
names = st.sampled_from(["1.5", "0x10", "no", "null", "007", "1_0"]) | st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._+-]{0,30}\Z").filter(
    lambda text: _NUMBER.fullmatch(text) is None
)
positive = st.floats(1e-12, 1e12) | st.sampled_from([1e-05, 1.0, 3e22, 0.1 + 0.2, 123456789.123456789])
small = st.floats(0, 10)


@st.composite
def curves(draw: st.DrawFn) -> dict[str, Any]:
    sizes = sorted(draw(st.sets(st.integers(1, 2**50), min_size=1, max_size=6)))
    ranks = draw(st.integers(2, 4))
    return {
        "op": draw(st.sampled_from(["all_reduce", "all_gather", "send_recv", "all_to_all"])),
        "ranks": ranks,
        "launch": draw(st.sampled_from(["graph", "eager", "threads", None])),
        "ccl": draw(st.none() | texts),
        "bytes": sizes,
        "time_us": draw(
            st.lists(st.floats(1e-6, 1e12) | positive.map(lambda x: min(max(x, 1e-6), 1e12)), min_size=len(sizes), max_size=len(sizes))
        ),
        "sigma_log": draw(small),
        "gpus": draw(st.sampled_from([[], [f"gpu{rank}" for rank in range(ranks)]])),
        "p2p": draw(st.sampled_from(["on", "off", None])),
        "env": draw(st.dictionaries(st.from_regex(r"\A[A-Z][A-Z0-9_]{0,20}\Z"), texts, max_size=3)),
        "outliers": draw(st.lists(st.sampled_from(sizes), max_size=2)),
        "file": draw(st.none() | texts),
    }


@st.composite
def specs(draw: st.DrawFn) -> CalibrationSpec:
    """Any calibration that its spec allows."""
    known = draw(st.lists(st.sampled_from(sorted(constants())), max_size=4, unique=True))
    data = {
        "schema": "pcie-sim/calibration/1",
        "name": draw(st.none() | names),
        "title": draw(texts),
        "sources": draw(st.lists(texts, max_size=3)),
        "topology": {
            "name": draw(names),
            "gpus": draw(st.integers(1, 4096)),
            "gpu": draw(st.none() | texts),
            "id": draw(st.none() | names),
            "healthy": draw(st.booleans()),
            "traits": draw(st.dictionaries(st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=10), texts, max_size=3)),
        },
        "prior": draw(names),
        "prior_weights": draw(st.dictionaries(names, st.floats(0, 1), max_size=3)),
        "inputs": draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "file": texts,
                        "sha256": st.from_regex(r"\A[0-9a-f]{64}\Z").filter(lambda text: _NUMBER.fullmatch(text) is None)
                        | st.just("0" * 64),
                        "op": texts,
                        "ranks": st.none() | st.integers(1, 4096),
                        "points": st.integers(0, 10**12),
                        "range_bytes": st.none() | st.tuples(positive, positive),
                    }
                ),
                max_size=3,
            )
        ),
        "parameters": [
            {
                "name": name,
                "value": draw(positive),
                "unit": constants()[name].unit,
                "stderr": draw(st.none() | small),
                "evidence": draw(st.sampled_from(LABELS)),
                "prior": draw(st.none() | positive),
                "prior_stderr": draw(st.none() | small),
                "at_bound": draw(st.booleans()),
                "note": draw(st.none() | texts),
            }
            for name in known
        ],
        "correlations": draw(st.dictionaries(texts.filter(lambda text: len(text) <= 130), st.floats(-1, 1), max_size=3)),
        "curves": draw(st.lists(curves(), max_size=3)),
        "residual": {"sigma_log_by_op": {"all_reduce": draw(small)}, "scale": draw(st.floats(0.01, 100)), "noise": draw(small)},
        "warnings": draw(st.lists(texts, max_size=3)),
        "notes": draw(st.lists(texts, max_size=3)),
    }
    return CalibrationSpec.model_validate(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrations")


def reread(folder: Path, text: str, name: str = "x.yaml") -> CalibrationSpec:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_calibration(path)


@given(specs())
def test_what_is_written_is_read_back(folder: Path, spec: CalibrationSpec) -> None:
    again = reread(folder, calibration_text(spec))
    assert again.model_dump() == spec.model_dump()
    assert calibration_text(again) == calibration_text(spec)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("key", ["title", "prior"])
def test_text_that_looks_like_a_number_stays_text(folder: Path, spec: CalibrationSpec, number: str, key: str) -> None:
    changed = spec.model_copy(update={key: number})
    assert reread(folder, calibration_text(changed)) == changed


@given(specs())
def test_json_is_read_as_well(folder: Path, spec: CalibrationSpec) -> None:
    assert reread(folder, json.dumps(spec.model_dump(mode="json", by_alias=True)), "x.json") == spec


@pytest.fixture(scope="module")
def spec() -> CalibrationSpec:
    box = load_topology(FOUR)
    runs = [Run(sizes=(1024, 4096, 1 << 20), noise=0.01)]
    return calibrate(box, [measured(box, truth(seed=1), runs)], prior="none").report.calibration


@pytest.fixture(scope="module")
def text(spec: CalibrationSpec) -> str:
    return calibration_text(spec)


def test_a_file_answers_as_the_result_does(folder: Path, spec: CalibrationSpec, text: str) -> None:
    path = folder / "box.yaml"
    path.write_text(text, encoding="utf-8")
    for op, size in (("all_reduce", 2000), ("all_gather", 4096), ("send_recv", 1 << 24)):
        by_file, by_spec = (ps.collective(FOUR, op, size, calibration=one) for one in (path, spec))
        assert by_file.time_s == by_spec.time_s
        assert by_file.time_s_p90 == by_spec.time_s_p90
        assert by_file.evidence == by_spec.evidence


def test_a_curves_sizes_and_times_stand_on_one_line_each(text: str, spec: CalibrationSpec) -> None:
    """So that a shared file can be read and compared line by line."""
    lines = text.splitlines()
    assert "  bytes: [1024, 4096, 1048576]" in lines
    (times,) = [line for line in lines if line.startswith("  time_us: [")]
    assert [float(item) for item in times[12:-1].split(", ")] == list(spec.curves[0].time_us)
    assert sum(line.startswith("- {name: ") for line in lines) == len(constants())


Change = Callable[[str], str]


def line(key: str, value: str) -> Change:
    """The first curve's ``key`` with another value (added where it is not there)."""

    def change(text: str) -> str:
        head, mark, tail = text.partition("curves:\n")
        found = re.subn(rf"(?m)^(- |  ){key}: .*$", lambda hit: f"{hit.group(1)}{key}: {value}", tail, count=1)
        body = found[0] if found[1] else tail.replace("  bytes:", f"  {key}: {value}\n  bytes:", 1)
        return head + mark + body

    return change


def parameter(key: str, value: str) -> Change:
    """``host_step``'s ``key`` with another value."""
    return lambda text: re.sub(rf"(?m)^(- {{name: host_step.*?{key}: )[^,}}]*", lambda hit: hit.group(1) + value, text, count=1)


def put(old: str, new: str) -> Change:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join(['*' + before] * 9)}]\n" for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE: dict[str, tuple[Change, str]] = {
    "another schema": (put("calibration/1", "calibration/2"), r":1: schema: use pcie-sim/calibration/1"),
    "nothing but the schema": (lambda _: "schema: pcie-sim/calibration/1\n", r":1: topology: required key is missing"),
    "a list": (lambda _: "- schema: pcie-sim/calibration/1\n", r"a mapping"),
    "a scalar": (lambda _: '"pcie-sim/calibration/1"\n', r"no known format"),
    "a bomb": (lambda text: BOMB + text, r":\d+: aliases expand to too many values"),
    "endless aliases": (lambda text: "a: &a x\nb: [" + ", ".join(["*a"] * 101) + "]\n" + text, r":2: more than 100 aliases"),
    "deep": (lambda text: text + "x: " + "[" * 60 + "]" * 60, r"nested deeper than 50"),
    "very deep": (lambda text: text + "x: " + "[" * 20_000, r"nest"),
    "a tag": (line("op", "!!python/object:os.system x"), r"tag .* is not allowed"),
    "two documents": (lambda text: text + "---\n" + text, r"more than one document"),
    "a key twice": (lambda text: text + "notes: []\n", r"duplicate key 'notes'"),
    "an unknown key": (lambda text: text + "extra: 1\n", r":\d+: extra: unknown key"),
    "a control character": (put("made.log", "made\x07.log"), r"control characters are not allowed"),
    "an escaped control character": (line("file", r'"a\x1b[2J"'), r":\d+: curves\.0\.file: holds a control character"),
    "half a pair": (line("file", r'"a\ud800"'), r"x\.yaml"),
    "no sizes": (line("bytes", "[]"), r":\d+: curves\.0\.bytes: at least 1 entry"),
    "lengths differ": (line("bytes", "[1024, 4096]"), r"curves\.0: bytes: 2 sizes but 3 times"),
    "sizes fall": (line("bytes", "[4096, 1024, 1048576]"), r"curves\.0: bytes: sizes must rise"),
    "sizes stay": (line("bytes", "[1024, 1024, 1048576]"), r"curves\.0: bytes: sizes must rise"),
    "size 0": (line("bytes", "[0, 1024, 1048576]"), r"curves\.0\.bytes\.0: must be more than 0"),
    "a negative size": (line("bytes", "[-8, 1024, 1048576]"), r"curves\.0\.bytes\.0: must be more than 0"),
    "half a byte": (line("bytes", "[1024.5, 4096, 1048576]"), r"curves\.0\.bytes\.0: expected a whole number"),
    "an infinite size": (line("bytes", "[1024, 4096, 1e400]"), r"curves\.0\.bytes\.2: expected a finite number"),
    "500 digits": (line("bytes", "[1024, 4096, 1" + "0" * 500 + "]"), r":\d+: a number with more than 400 digits"),
    "words for sizes": (line("bytes", "[a, b, c]"), r"curves\.0\.bytes\.0: expected a whole number"),
    "NaN": (line("time_us", "[1, 2, .nan]"), r"curves\.0\.time_us\.2: expected a finite number"),
    "infinity": (line("time_us", "[1, 2, .inf]"), r"curves\.0\.time_us\.2: expected a finite number"),
    "1e400": (line("time_us", "[1, 2, 1e400]"), r"curves\.0\.time_us\.2: expected a finite number"),
    "no time": (line("time_us", "[1, 2, 0]"), r"curves\.0\.time_us\.2: must be 0.000001 or more"),
    "time back": (line("time_us", "[1, 2, -3]"), r"curves\.0\.time_us\.2: must be 0.000001 or more"),
    "a wide spread": (line("sigma_log", "11"), r"curves\.0\.sigma_log: must be 10 or less"),
    "a GPU twice": (line("gpus", "[gpu0, gpu0, gpu1, gpu2]"), r"curves\.0: gpus: a name twice"),
    "GPUs and ranks": (line("ranks", "3"), r"curves\.0: gpus: 4 names for 3 ranks"),
    "an unknown op": (line("op", "all_sum"), r"curves\.0\.op: use all_reduce, "),
    "an unknown launch": (line("launch", "later"), r"curves\.0\.launch: use graph, eager or threads"),
    "a hostile setting": (line("env", '{"A B": x}'), r"curves\.0\.env"),
    "a GPU that is not there": (line("gpus", "[gpu0, gpu1, gpu2, gpu9]"), r"gpu9, which rtx-5090-4x-direct-1socket does not have"),
    "a value of NaN": (parameter("value", ".nan"), r"parameters\.\d+\.value: expected a finite number"),
    "a negative value": (parameter("value", "-1.7e-06"), r"parameters\.\d+\.value: must be more than 0"),
    "a value out of bounds": (parameter("value", "0.5"), r"host_step = 0\.5 is outside"),
    "an infinite error": (parameter("stderr", ".inf"), r"parameters\.\d+\.stderr: expected a finite number"),
    "a negative error": (parameter("stderr", "-1"), r"parameters\.\d+\.stderr: must be 0 or more"),
    "a parameter twice": (lambda text: re.sub(r"(?m)^(- {name: host_step.*\n)", r"\1\1", text), r"host_step is given twice"),
    "a correlation of 2": (lambda text: re.sub(r"(?m)^correlations:.*\n", "correlations:\n  a ~ b: 2\n", text), r"correlations"),
    "a million sizes": (line("bytes", "[" + ",".join(map(str, range(1, 900_000))) + "]"), r":\d+: more than 400,000 values are too many"),
    "too many sizes": (line("bytes", "[" + ",".join(map(str, range(1, 20_002))) + "]"), r"curves\.0\.bytes: at most 20000 entries"),
    "a hundred thousand curves": (
        lambda text: text.partition("curves:\n")[0] + "curves:\n" + "- {op: all_reduce, bytes: [1]}\n" * 100_000,
        r":\d+: more than 400,000 values are too many: a calibration has at most 2048 curves",
    ),
    "no text": (lambda text: text.replace("made.log", "\x00"), r"x\.yaml"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_broken_files_are_refused_with_file_and_key(folder: Path, text: str, case: str) -> None:
    change, said = HOSTILE[case]
    path = folder / "x.yaml"
    path.write_text(change(text), encoding="utf-8", errors="surrogatepass")
    assert path.read_text() != text
    with pytest.raises(InputError) as caught:
        ps.collective(FOUR, "all_reduce", 2048, calibration=path)
    message = str(caught.value)
    assert "x.yaml" in message
    assert re.search(said, message), message
    assert len(message) < 500
    assert message.replace("\n", "").isprintable()
    assert caught.value.exit_code == 2


def test_a_size_of_350_digits_is_refused(folder: Path, text: str) -> None:
    path = folder / "x.yaml"
    path.write_text(line("bytes", "[1024, 4096, 1" + "0" * 350 + "]")(text))
    with pytest.raises(InputError):
        ps.collective(FOUR, "all_reduce", 2048, calibration=path)


def test_a_time_of_nearly_nothing_is_refused(folder: Path, text: str) -> None:
    path = folder / "x.yaml"
    path.write_text(line("time_us", "[1, 2, 1e-320]")(text))
    with pytest.raises(InputError):
        ps.collective(FOUR, "all_reduce", 2048, calibration=path)


@pytest.mark.parametrize(
    "change",
    [
        line("time_us", "[1.0e+12, 1.0e-6, 1.0e+12]"),
        line("sigma_log", "10"),
        line("outliers", "[1" + "0" * 350 + "]"),
        parameter("stderr", "1.0e+300"),
        parameter("stderr", "0"),
        parameter("stderr", "null"),
        put("  scale: ", "  scale: 1.0e-300 # "),
        put("  scale: ", "  scale: 100 # "),
        lambda text: re.sub(
            r"(?s)correlations:.*?curves", "correlations: {host_step ~ duplex: 1, duplex ~ duplex: -1, x: 1}\ncurves", text
        ),
        lambda text: re.sub(r"(?s)parameters:.*?correlations", "parameters: []\ncorrelations", text),
    ],
    ids=["times", "spread", "outlier", "error", "exact", "unknown", "scale", "wide", "correlations", "no parameters"],
)
def test_extreme_but_legal_files_give_finite_answers(folder: Path, text: str, change: Change) -> None:
    path = folder / "x.yaml"
    path.write_text(change(text))
    for op, size in (("all_reduce", 2048), ("all_gather", 1 << 22)):
        got = ps.collective(FOUR, op, size, calibration=path)
        assert np.isfinite(got.time_s)
        assert got.time_s_p10 is not None
        assert got.time_s_p90 is not None
        assert 0 <= got.time_s_p10 <= got.time_s <= got.time_s_p90


def test_many_points_are_no_trouble(folder: Path, spec: CalibrationSpec) -> None:
    """A file at its limit of one curve's sizes: answered, and other ops taught, without a matrix of 20,000 x 20,000."""
    sizes = tuple(range(1000, 21_000))
    many = spec.model_copy(update={"curves": (spec.curves[0].model_copy(update={"bytes": sizes, "time_us": (20.0,) * len(sizes)}),)})
    path = folder / "many.yaml"
    path.write_text(calibration_text(many))
    assert ps.collective(FOUR, "all_reduce", 2048, calibration=path).time_s == pytest.approx(20e-6)
    assert 1e-6 < ps.collective(FOUR, "all_gather", 2048, calibration=path).time_s < 40e-6


@pytest.mark.parametrize("given_it", [3, b"x.yaml", [], {}, object()], ids=["number", "bytes", "empty list", "mapping", "object"])
def test_what_can_be_no_calibration_is_said(given_it: object) -> None:
    with pytest.raises(InputError, match="calibration"):
        ps.collective(FOUR, "all_reduce", 2048, calibration=given_it)


def test_a_missing_file_and_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        ps.load_calibration(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="nearest: rtx-5090-4x-genoa"):
        ps.load_calibration("rtx-5090-4x-genova")
    with pytest.raises(InputError, match="is a profile of kernels, not of a box"):
        ps.load_calibration("kernels-l40s")
