"""Names, aliases and the loader's promises, over every kind of catalog file."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import catalog
from pcie_sim.catalog import KINDS, Kind, aliases, ids, load, lookup, shipped
from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.specs.part import SocketPart, SwitchPart

LOADERS: dict[str, tuple[Kind, Any]] = {
    "gpus": ("gpus", catalog.load_gpu),
    "models": ("models", catalog.load_model_spec),
    "parts": ("parts", catalog.load_part),
    "runtimes": ("runtimes", catalog.load_runtime),
    "kernel profiles": ("profiles", catalog.load_kernel_profile),
    "calibrations": ("profiles", catalog.load_calibration_profile),
}
"""What is loaded by name: its folder and loader. The folder of profiles holds those of kernels and those of boxes."""
NAMES = {
    **{what: catalog.names(kind) for what, (kind, _) in LOADERS.items() if kind != "profiles"},
    "kernel profiles": catalog.kernel_profile_names(),
    "calibrations": catalog.calibration_names(),
}
FILES = [(what, name) for what in LOADERS for name in NAMES[what]]
HOSTILE = [
    "../x",
    "a/b",
    "..",
    ".",
    "",
    "_aliases",
    "../gpus/l40s",
    "/etc/passwd",
    "l40s\0",
    "l40s.yaml",
    "x" * 100_000,
    "~",
    "l40s\nx",
    "ſ",
]

SWITCH = """schema: pcie-sim/part/1
kind: switch
name: {name}
title: a switch
aliases: [{alias}]
upstream: {{gen: 5, width: 16}}
latency: {{value: 1e-7, unit: s, evidence: assumed, source: a test}}
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty catalog in a folder of its own; caches are dropped before and after."""

    def drop() -> None:
        for cached in (lookup.names, lookup.aliases, lookup.resolve, load._load_file, ids.known):
            cached.cache_clear()

    for kind in KINDS:
        (tmp_path / kind).mkdir()
    monkeypatch.setattr(lookup, "folder", lambda kind: tmp_path / kind)
    monkeypatch.setattr(aliases, "folder", lambda kind: tmp_path / kind)
    drop()
    yield tmp_path
    drop()


def write_switch(folders: Path, stem: str, *, name: str | None = None, alias: str = "other") -> None:
    (folders / "parts" / f"{stem}.yaml").write_text(SWITCH.format(name=name or stem, alias=alias))


@pytest.mark.parametrize(("what", "name"), FILES)
def test_every_file_loads_under_its_stem_and_aliases(what: str, name: str) -> None:
    _, load_it = LOADERS[what]
    spec = load_it(name)
    assert spec.name == name == name.lower()
    assert load_it(name.upper()) is spec
    for alias in getattr(spec, "aliases", ()):
        assert load_it(alias) is spec


def test_every_profile_is_of_kernels_or_of_a_box() -> None:
    assert sorted([*NAMES["kernel profiles"], *NAMES["calibrations"]]) == list(catalog.names("profiles"))
    assert all(name.startswith("kernels-") for name in NAMES["kernel profiles"])


@pytest.mark.parametrize("name", NAMES["kernel profiles"])
def test_a_kernel_profile_is_no_calibration(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is a profile of kernels, not of a box; known: .*rtx-4090-8x-rome"):
        catalog.load_calibration_profile(name)


@pytest.mark.parametrize("name", NAMES["calibrations"])
def test_a_calibration_is_no_kernel_profile(name: str) -> None:
    with pytest.raises(InputError, match="use pcie-sim/kernel-profile/1, found 'pcie-sim/calibration/1'"):
        catalog.load_kernel_profile(name)


@pytest.mark.parametrize("kind", KINDS)
def test_alias_index_is_fresh(kind: Kind) -> None:
    path = lookup.folder(kind) / lookup.ALIAS_FILE
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    expected = aliases.index_text(kind) if aliases.alias_index(kind) else ""
    assert found == expected, "run: python -m pcie_sim.catalog.aliases"


@pytest.mark.parametrize("what", LOADERS)
@pytest.mark.parametrize("name", [*HOSTILE, "_constants", "_CONSTANTS"])
def test_hostile_names_are_unknown_and_open_nothing(what: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, load_it = LOADERS[what]
    lookup.aliases(kind)

    def refuse(path: object) -> str:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(load, "read_text", refuse)
    monkeypatch.setattr(lookup, "read_text", refuse)
    with pytest.raises(UnknownNameError) as caught:
        load_it(name)
    assert len(str(caught.value)) < 300
    assert caught.value.exit_code == 2


@given(st.text(max_size=100))
def test_any_text_is_a_known_name_or_unknown(text: str) -> None:
    with contextlib.suppress(UnknownNameError):
        assert catalog.load_gpu(text).name in catalog.names("gpus")


@pytest.mark.parametrize(
    ("load_it", "asked", "near"),
    [
        (catalog.load_model_spec, "kimi", ["kimi-k2", "kimi-k2.5", "kimi-k2.6"]),
        (catalog.load_model_spec, "kimi-k2.7", ["kimi-k2", "kimi-k2.5", "kimi-k2.6"]),
        (catalog.load_gpu, "rtx6000pro-server", ["rtx-pro-6000-blackwell-server"]),
        (catalog.load_gpu, "rtx-4085", ["rtx-4080"]),
        (catalog.load_gpu, "a100-pcie-80", None),
    ],
)
def test_nearest_three(load_it: Any, asked: str, near: list[str] | None) -> None:
    if near is None:
        assert load_it(asked).name == "a100-pcie-80gb"
        return
    with pytest.raises(UnknownNameError) as caught:
        load_it(asked)
    offered = str(caught.value).split("nearest: ")[1].split(" (all:")[0].split(", ")
    assert len(offered) == len(set(offered)) == 3
    assert set(near) <= set(offered)


def test_no_file_is_read_twice_and_only_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    real = load.read_text

    def count(path: Path) -> str:
        reads[path.name] += 1
        return real(path)

    load._load_file.cache_clear()
    monkeypatch.setattr(load, "read_text", count)
    for name in ("l40s", "L40S", "nvidia-l40s", "l40s"):
        catalog.load_gpu(name)
    for name in ("kimi-k2", "Kimi-K2-Instruct"):
        catalog.load_model_spec(name)
    assert reads == {"l40s.yaml": 1, "kimi-k2.yaml": 1}


def test_an_alias_that_means_two_files_is_refused(folders: Path) -> None:
    write_switch(folders, "one")
    write_switch(folders, "two")
    with pytest.raises(InputError, match="alias 'other' of two already means one"):
        aliases.alias_index("parts")


def test_an_alias_that_is_a_name_is_refused(folders: Path) -> None:
    write_switch(folders, "one", alias="Two")
    write_switch(folders, "two", alias="two-b")
    with pytest.raises(InputError, match="alias 'Two' of one already means two"):
        aliases.alias_index("parts")


def test_indexes_are_written_and_dropped(folders: Path) -> None:
    write_switch(folders, "one", alias='"8x"')
    aliases.write_indexes()
    assert catalog.load_part("8X").name == "one"
    assert sorted(path.name for path in folders.rglob("*.yaml")) == ["_aliases.yaml", "one.yaml"]
    write_switch(folders, "one", alias="")
    aliases.write_indexes()
    assert sorted(path.name for path in folders.rglob("*.yaml")) == ["one.yaml"]


def test_the_name_in_the_file_must_be_its_stem(folders: Path) -> None:
    write_switch(folders, "one", name="uno")
    with pytest.raises(InputError, match=r"one\.yaml: name: 'uno' must be the file's stem 'one'"):
        catalog.load_part("one")


def test_a_part_of_another_kind_is_refused(folders: Path) -> None:
    write_switch(folders, "one")
    assert catalog.load_typed_part("one", SwitchPart).latency.value == 1e-7
    with pytest.raises(InputError, match="'one' is of kind switch; a part of kind socket is needed"):
        catalog.load_typed_part("one", SocketPart)


def test_a_part_of_no_kind_is_refused(folders: Path) -> None:
    (folders / "parts" / "one.yaml").write_text("name: one\nkind: bridge\n")
    with pytest.raises(InputError, match=r"one\.yaml: kind: must be one of pcie, socket, .*, found 'bridge'"):
        catalog.load_part("one")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="unknown kind 'cpus'"):
        catalog.names("cpus")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "path"), [("a/b", True), ("T.yml", True), ("x.LOG", True), ("kimi-k2.6", False), ("box", False), ("topo.xml", True)]
)
def test_is_path(text: str, path: bool) -> None:
    assert catalog.is_path(text) is path


def test_shipped_topologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pcie_sim"
    for where in (package / "_shipped" / "topologies", tmp_path / "topologies", tmp_path / "validation"):
        where.mkdir(parents=True)
    (package / "_shipped" / "topologies" / "box-a.yaml").touch()
    monkeypatch.setattr(shipped, "PACKAGE", package)
    assert catalog.topology_names() == ("box-a",)
    assert catalog.shipped_topology("BOX_A") == package / "_shipped" / "topologies" / "box-a.yaml"
    assert catalog.shipped_dir("validation") == tmp_path / "validation"
    for name in ("../box-a", "box-b", "x" * 100_000):
        with pytest.raises(UnknownNameError, match="nearest: box-a"):
            catalog.shipped_topology(name)


def test_import_is_light() -> None:
    code = "import sys, pcie_sim.catalog; print(sorted({'scipy', 'networkx', 'matplotlib', 'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]"
