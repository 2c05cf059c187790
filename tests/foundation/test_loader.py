"""The one loader: YAML 1.2 core scalars, bounds, duplicate keys, and nothing but InputError for whatever is in the file."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.specs import loader
from pcie_sim.specs.loader import line_of_key, load_yaml, parse_json, parse_yaml, read_text

# YAML 1.2.2, chapter 10.3.2 (core schema), and the examples of design 4.4
SCALARS: list[tuple[str, Any]] = [
    ("true", True),
    ("True", True),
    ("FALSE", False),
    ("yes", "yes"),
    ("no", "no"),
    ("on", "on"),
    ("off", "off"),
    ("y", "y"),
    ("Off", "Off"),
    ("null", None),
    ("~", None),
    ("", None),
    ("Null", None),
    ("none", "none"),
    ("5e-6", 5e-6),
    ("5E3", 5e3),
    ("1.", 1.0),
    (".5", 0.5),
    ("-.5e1", -5.0),
    ("+1.25", 1.25),
    ("1e5", 1e5),
    ("12", 12),
    ("-12", -12),
    ("+12", 12),
    ("017", 17),
    ("0o17", 15),
    ("0x1F", 31),
    ("0b11", "0b11"),
    ("-0x1F", "-0x1F"),
    ("1_000", "1_000"),
    ("1,000", "1,000"),
    ("41:00", "41:00"),
    ("0000:c1:00.0", "0000:c1:00.0"),
    ("190:20:30", "190:20:30"),
    ("2024-12-01", "2024-12-01"),
    ("2024-12-01T10:00:00Z", "2024-12-01T10:00:00Z"),
    ("2.28.3", "2.28.3"),
    ("1.5x", "1.5x"),
    ("e5", "e5"),
    (".", "."),
    ("-", None),  # a list with one empty item, see below
    ("=", "="),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("1e999", math.inf),
    ("inf", "inf"),
    ("nan", "nan"),
    ("gen5 x16", "gen5 x16"),
    ("'12'", "12"),
    ('"true"', "true"),
    ("''", ""),
    ("9" * 400, int("9" * 400)),
]


@pytest.mark.parametrize(("text", "value"), [pair for pair in SCALARS if pair[0] != "-"], ids=lambda item: str(item)[:24])
def test_core_scalars(text: str, value: object) -> None:
    for found in (parse_yaml(f"a: {text}\n")["a"], parse_yaml(f"- {text}\n")[0]):
        assert found == value
        assert type(found) is type(value)


def test_nan_and_empty_items() -> None:
    assert math.isnan(parse_yaml("a: .nan")["a"])
    assert parse_yaml("-\n-\n") == [None, None]
    assert parse_yaml("{a, b: }") == {"a": None, "b": None}


def test_keys_follow_the_same_rules() -> None:
    assert parse_yaml("{off: 1, 41:00: 2, 5: 3, 0x10: 4, true: 5}") == {"off": 1, "41:00": 2, 5: 3, 16: 4, True: 5}


def test_structures_and_block_text() -> None:
    text = "a: [1, {b: c}]\nd: |\n  two\n  lines\ne: >\n  one\n  line\nf: &x {g: 1}\nh: *x\n"
    assert parse_yaml(text) == {"a": [1, {"b": "c"}], "d": "two\nlines\n", "e": "one line\n", "f": {"g": 1}, "h": {"g": 1}}


def test_merge_keys_are_keys_like_any_other() -> None:
    assert parse_yaml("base: &b {x: 1}\nbox:\n  <<: *b\n  y: 2\n") == {"base": {"x": 1}, "box": {"<<": {"x": 1}, "y": 2}}


def refused(text: str, match: str, **kwargs: Any) -> str:
    with pytest.raises(InputError, match=match) as caught:
        parse_yaml(text, source="box.yaml", **kwargs)
    message = str(caught.value)
    assert message.startswith("box.yaml")
    assert len(message) < 240
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("a: 1\na: 2\n", 2, "a"),
        ("a: 1\n'a': 2\n", 2, "a"),
        ("x:\n  b: 1\n  c: 2\n  b: 3\n", 4, "b"),
        ("x:\n- b: 1\n  c: {d: 1,\n      d: 2}\n", 4, "d"),
        ("1: a\n0x1: b\n", 2, "1"),
        ("a: &r {b: 1, b: 2}\nc: *r\n", 1, "b"),
        ("base: &b {x: 1}\nbox:\n  <<: *b\n  <<: *b\n", 4, "<<"),
    ],
)
def test_duplicate_keys_are_refused_with_their_line(text: str, line: int, key: str) -> None:
    refused(text, rf"^box\.yaml:{line}: duplicate key '{key}'$")


ODD_NODES = ["!!map [1]", "!!seq {a: 1}", "!!str [a]", "!!int {}", "!!set {a}", "!!merge x"]  # each a trap for a constructor
CODE = ["!!python/object/apply:os.system [ls]", "!!python/name:os.system"]
PLAIN_TAGS = ["! 5", "!x 5", "!!str 5", "!!int '5'", "!!binary aGk=", "!!timestamp 2024-01-01", "!<tag:yaml.org,2002:int> x"]


@pytest.mark.parametrize("text", [*PLAIN_TAGS, *ODD_NODES, *CODE, "%TAG ! tag:x,2000:\n---\n!foo a"])
def test_tags_are_refused(text: str) -> None:
    refused(text, r"^box\.yaml:\d: tag '.*' is not allowed$")
    refused(f"a:\n - {text}" if not text.startswith("%") else text, r"^box\.yaml:[23]: tag '.*' is not allowed$")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a: 1\n---\nb: 2\n", r":2: broken YAML: more than one document"),
        ("a: b: c", r":1: broken YAML: mapping values"),
        ("a:\n\t- b", r":2: broken YAML: .*character"),
        ("a: 'x", r":1: broken YAML: "),
        ("[1, 2", r"broken YAML: "),
        ("a: *nowhere", r":1: broken YAML: found undefined alias"),
        ("a: @b", r":1: broken YAML: "),
        ("a: \x00", r"broken YAML: .*characters are not allowed"),
        ("a: \x1b[31m", r"broken YAML: .*characters are not allowed"),
        ("a: \ud800", r"broken YAML: "),
        ("? [a, b]\n: 1", r":1: a key must be plain text or a number"),
        ("a:\n  {b: c}: 1", r":2: a key must be plain text or a number"),
        ("%YAML 3.0\n---\na: 1", r"broken YAML: "),
    ],
)
def test_broken_text(text: str, match: str) -> None:
    refused(text, rf"^box\.yaml{match}" if match.startswith(":") else match)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_depth(opening: str, closing: str) -> None:
    assert parse_yaml(opening * 50 + "1" + closing * 50) is not None
    refused(opening * 51 + "1" + closing * 51, "nested deeper than 50 levels")
    refused(opening * 100_000, "nest")


def test_block_depth_names_the_line() -> None:
    text = "".join(f"{' ' * level}k:\n" for level in range(51))
    refused(text, r"^box\.yaml:51: nested deeper than 50 levels$")
    assert parse_yaml(text[: text.rindex("k", 0, -3)].rstrip(" ")) is not None


def test_aliases() -> None:
    assert parse_yaml("- &a 7\n" + "- *a\n" * 100) == [7] * 101
    refused("- &a 7\n" + "- *a\n" * 101, r"^box\.yaml:102: more than 100 aliases$")


def test_alias_bomb_is_refused_quickly() -> None:
    levels = [f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 10)]
    begun = time.perf_counter()
    refused("k0: &k0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(levels), "aliases expand to too many values")
    assert time.perf_counter() - begun < 1.0


def test_aliases_do_not_get_around_the_depth() -> None:
    chain = "".join(f"a{i}: &a{i} {'[' * 40}*a{i - 1}{']' * 40}\n" for i in range(1, 60))
    refused("a0: &a0 [1]\n" + chain, r"^box\.yaml:3: aliases nest deeper than 50 levels$")
    assert parse_yaml(f"a: &a {'[' * 24}1{']' * 24}\nb: {'[' * 25}*a{']' * 25}") is not None


@pytest.mark.parametrize("text", ["a: &a [*a]", "&a [b, *a]", "a: &x {b: {c: *x}}"])
def test_an_alias_that_contains_itself(text: str) -> None:
    refused(text, r"^box\.yaml:1: an alias that contains itself$")


def test_numbers_of_a_million_digits() -> None:
    begun = time.perf_counter()
    refused("a:\n- " + "9" * 10**6, r"^box\.yaml:2: a number with more than 400 digits$")
    assert parse_yaml("a: 0." + "3" * 10**6) == {"a": pytest.approx(1 / 3)}
    assert time.perf_counter() - begun < 2.0


def test_text_over_eight_mebibytes() -> None:
    refused("#" * (loader.MAX_BYTES + 1), "larger than 8 MiB")
    assert parse_yaml("#" * loader.MAX_BYTES) is None
    with pytest.raises(InputError, match="larger than 8 MiB"):
        parse_json(" " * (loader.MAX_BYTES + 1))


# -- files ------------------------------------------------------------------------------------------------------------


def written(folder: Path, content: bytes | str, name: str = "box.yaml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_files_that_are_fine(tmp_path: Path) -> None:
    assert load_yaml(written(tmp_path, "")) is None
    assert load_yaml(written(tmp_path, "# only a comment\n")) is None
    assert load_yaml(written(tmp_path, b"\xef\xbb\xbfa: 1\n")) == {"a": 1}
    assert load_yaml(written(tmp_path, b"a: 1\r\nb:\r\n  - c\r\n")) == {"a": 1, "b": ["c"]}
    assert load_yaml(written(tmp_path, b"a: 1\t# caf\xc3\xa9\n")) == {"a": 1}
    assert load_yaml(str(written(tmp_path, '{"a": [1, 2.5, null, true, "off"]}', "box.JSON"))) == {"a": [1, 2.5, None, True, "off"]}
    assert load_yaml(written(tmp_path, b'\xef\xbb\xbf{"a": 1}', "bom.json")) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"a: caf\xe9\n", r"not UTF-8 text \(byte 6\)"),
        ("a: 1\n".encode("utf-16"), r"not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\x00", r"not UTF-8 text \(byte 0\)"),
        (b"a: \x00\n", "characters are not allowed"),
        (b"a: 1\n\ta: 2\n", r"box\.yaml:2: "),
        (b"#" * (8 * 2**20 + 1), "larger than 8 MiB"),
    ],
)
def test_files_that_are_broken(tmp_path: Path, content: bytes, match: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=match) as caught:
        load_yaml(path)
    assert str(caught.value).startswith(str(path))


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    held = written(tmp_path, "a: 1")
    for path, match in [
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a folder"),
        (held / "child.yaml", "cannot be read"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        ("a\0b.yaml", "cannot be read"),
        ("", "is a folder"),
    ]:
        with pytest.raises(InputError, match=match):
            load_yaml(path)


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "a: 1")

    def denied(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)$"):
        read_text(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = written(tmp_path, "a: 1")
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        load_yaml(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_an_endless_file() -> None:
    with pytest.raises(InputError, match="no regular file"):
        read_text("/dev/zero")


# -- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"a": 1, "a": 2}', r"x\.json: duplicate key 'a'"),
        ('{"b": [{"a": 1, "a": 2}]}', r"x\.json: duplicate key 'a'"),
        ('{"a": NaN}', r"x\.json: NaN is not JSON"),
        ("[-Infinity]", r"x\.json: -Infinity is not JSON"),
        ('{"a": 1,\n"b": }', r"x\.json:2: broken JSON: "),
        ("", r"x\.json:1: broken JSON: "),
        ("{'a': 1}", r"x\.json:1: broken JSON: "),
        ("[1] [2]", r"x\.json:1: broken JSON: Extra data"),
        ("[" + "9" * 10**6 + "]", r"x\.json: broken JSON: "),
        ("[" * 51 + "]" * 51, r"x\.json: nested deeper than 50 levels"),
        ("[" * 100_000 + "]" * 100_000, r"x\.json: (nested deeper|broken JSON)"),
        ("[" * 100_000, r"x\.json.*: (broken JSON|nested deeper than 50 levels; look for brackets)"),
    ],
    ids=range(12),
)
def test_broken_json(text: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, text, "x.json")
    with pytest.raises(InputError, match=f"^{match}") as caught:
        load_yaml("x.json")
    assert len(str(caught.value)) < 240


def test_json_depth_fifty() -> None:
    assert parse_json("[" * 50 + "]" * 50) is not None
    assert parse_json('{"a": ' * 50 + "1" + "}" * 50) is not None
    with pytest.raises(InputError, match="deeper than 50"):
        parse_json('{"a": ' * 51 + "1" + "}" * 51)


# -- whatever is in the file ------------------------------------------------------------------------------------------

yaml_like = st.lists(
    st.sampled_from([*"abx01.-+:,[]{}&*!|>'\"%@`#?~<= \n\t\\\x00é", "- ", ": ", "\n  ", "&a ", "*a", "<<: ", "!!", "---\n", "1e9", ".inf"]),
    max_size=60,
).map("".join)


@given(st.one_of(st.text(max_size=200), yaml_like))
@example("a: !!map [1]")
@example("? ? ? ?")
@example("- - - - &a\n- *a")
def test_any_text_loads_or_is_an_input_error(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        try:
            parse(text)
        except InputError as exc:
            assert len(str(exc)) < 300  # noqa: PT017 - any other exception fails the test
            assert "\n" not in str(exc)  # noqa: PT017


@given(content=st.binary(max_size=200))
def test_any_bytes_load_or_are_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name in ("any.yaml", "any.json"):
        try:
            load_yaml(written(folder, content, name))
        except InputError as exc:
            assert str(folder) in str(exc)  # noqa: PT017


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("abcXYZ 0189:,-_.#é", max_size=12),
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text("abcXYZ", min_size=1, max_size=6), inner, max_size=4)),
    max_leaves=20,
)


class QuotedDumper(yaml.SafeDumper):
    """Quotes all text, so that what 1.1 and 1.2 take for other things does not matter."""


QuotedDumper.add_representer(str, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"'))


@given(trees)
def test_what_others_write_comes_back(tree: object) -> None:
    assert parse_json(json.dumps(tree)) == tree
    assert parse_yaml(json.dumps(tree)) == tree  # JSON is YAML 1.2
    for flow in (False, True):
        assert parse_yaml(yaml.dump(tree, Dumper=QuotedDumper, default_flow_style=flow, allow_unicode=True)) == tree


@given(
    st.recursive(
        st.one_of(st.integers(), st.booleans(), st.none(), st.text("abcxyz", min_size=1, max_size=8).map(lambda s: "k" + s)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text("abc", min_size=1).map(lambda s: "k" + s), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_safe_dump_round_trip(tree: object) -> None:
    assert parse_yaml(yaml.safe_dump(tree)) == tree


# -- lines of keys ----------------------------------------------------------------------------------------------------

LINES = "a: 1\nb:\n  - c: 2\n    d: 3\n  - {e: 4,\n     f: 5}\n7: g\n"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("a",), 1),
        (("b",), 2),
        (("b", 0), 3),
        (("b", 0, "d"), 4),
        (("b", 1, "e"), 5),
        (("b", 1, "f"), 6),
        ((7,), 7),
        (("b", 0, "none"), 3),
        (("b", 9), 2),
        (("none",), 1),
        (("a", "x"), 1),
        ((), None),
    ],
)
def test_line_of_key(keys: tuple[str | int, ...], line: int | None) -> None:
    assert line_of_key(LINES, keys) == line


@pytest.mark.parametrize("text", ["", "{", "{b: [", "b: !x", "\x07"])
def test_line_of_key_gives_up_in_broken_text(text: str) -> None:
    assert line_of_key(text, ("a",)) in (None, 1)
    assert line_of_key(text, ("a", 0, "c")) in (None, 1)


def test_line_of_key_reads_no_further_than_the_key() -> None:
    assert line_of_key("b: {a: 1}\n? [x]\n: 1\na: 2\nc: [\n", ("a",)) == 4


def test_line_of_key_in_json() -> None:
    assert line_of_key('{"a": 1,\n "b": {"c":\n 2}}', ("b", "c")) == 2


def test_a_pipe_without_a_writer_does_not_hang(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match="no regular file"):
        load_yaml(tmp_path / "pipe.yaml")
