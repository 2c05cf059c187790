"""Messages of broken files, quantities with their spread, and the texts of topology files (links, versions, environment)."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pcie_sim.errors import InputError
from pcie_sim.evidence import LABELS
from pcie_sim.specs.base import DEFAULT_SIGMA_LOG, Quantity, build
from pcie_sim.specs.gpu import PcieLink
from pcie_sim.specs.loader import parse_yaml
from pcie_sim.specs.machine import MAX_NODES, CclSettings, SettingsSpec, TopologySpec
from pcie_sim.specs.model import ModelSpec

BOX = """schema: pcie-sim/topology/1
name: tiny
nodes:
  cpu0: {kind: socket, part: generic-amd}
  gpu0:
    kind: gpu
    part: l40s
    parent: cpu0
    link: gen4 x16
peers:
  - {between: [cpu0, gpu0], part: xgmi-rome}
settings: {p2p: auto, ccl: {name: nccl, version: "2.28"}, env: {NCCL_P2P_LEVEL: 5}}
"""


def read(text: str) -> TopologySpec:
    return build(TopologySpec, parse_yaml(text, source="box.yaml"), source="box.yaml", text=text)


def test_a_sound_file() -> None:
    box = read(BOX)
    assert box.nodes["gpu0"].link == PcieLink(gen=4, width=16)
    assert box.settings.env == {"NCCL_P2P_LEVEL": "5"}
    assert build(TopologySpec, box.model_dump(by_alias=True), source="again") == box


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: gpu", "kind: gpuu", r"^box\.yaml:6: nodes\.gpu0\.kind: use host, .* or fabric, found 'gpuu'$"),
        ("kind: gpu", "kind: gpu\n    colour: red", r"^box\.yaml:7: nodes\.gpu0\.colour: unknown key$"),
        ("    kind: gpu\n", "", r"^box\.yaml:5: nodes\.gpu0\.kind: required key is missing$"),
        ("name: tiny\n", "", r"^box\.yaml(:\d+)?: name: required key is missing$"),
        ("name: tiny", "name: a/b", r"^box\.yaml:2: name: a name has letters, digits"),
        ("name: tiny", "name: 5", r"^box\.yaml:2: name: expected text, found a number$"),
        ("gen4 x16", "gen4 x3", r"^box\.yaml:9: nodes\.gpu0\.link: link 'gen4 x3' is not understood; write it like 'gen5 x16'"),
        ("gen4 x16", "5", r"^box\.yaml:9: nodes\.gpu0\.link: link '5' is not understood"),
        ("[cpu0, gpu0]", "[cpu0, cpu0]", r"^box\.yaml:11: peers\.0: a peer connection needs two different nodes$"),
        ("[cpu0, gpu0]", "[cpu0]", r"^box\.yaml:11: peers\.0\.between"),
        ('"2.28"', "2.28", r'^box\.yaml:12: settings\.ccl\.version: put the version in quotes, like version: "2\.28"'),
        ('"2.28"', '"two"', r"^box\.yaml:12: settings\.ccl\.version: write a version in quotes, like"),
        ("p2p: auto", "p2p: yes", r"^box\.yaml:12: settings\.p2p: use auto, on or off, found 'yes'$"),
        ("NCCL_P2P_LEVEL: 5", "NCCL_P2P_LEVEL: true", r"^box\.yaml:12: settings\.env\.NCCL_P2P_LEVEL: expected text, found true or false$"),
        ("NCCL_P2P_LEVEL: 5", "A B: 5", r"^box\.yaml:12: settings\.env\.A B: this key is not allowed: a setting's name has"),
        ("  gpu0:", "  gpu.0:", r"^box\.yaml:5: nodes\.gpu\.0: this key is not allowed: a node's name has"),
        ("  gpu0:", "  7:", r"^box\.yaml:5: nodes\.7: this key is not allowed: expected text, found a number"),
        ("name: tiny", "name: tiny\n3: 4", r"^box\.yaml:3: 3: Keys should be strings"),
        ("topology/1", "topology/2", r"^box\.yaml:1: schema: use pcie-sim/topology/1, found 'pcie-sim/topology/2'$"),
        ("schema: pcie-sim/topology/1", "schema: [a, b]", r"^box\.yaml:1: schema: use pcie-sim/topology/1, found a list$"),
        ("schema: pcie-sim/topology/1", "schema: {a: 1}", r"^box\.yaml:1: schema: use pcie-sim/topology/1, found keys and values$"),
    ],
)
def test_messages_name_file_line_key_and_what(old: str, new: str, message: str) -> None:
    assert BOX.count(old) == 1
    with pytest.raises(InputError, match=message) as caught:
        read(BOX.replace(old, new))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


def test_further_mistakes_are_counted() -> None:
    with pytest.raises(InputError, match=r"\(and 2 more\)$"):
        read(BOX.replace("kind: gpu", "kind: gpuu").replace("x16", "x17").replace("name: tiny", "name: ''"))


@pytest.mark.parametrize(
    ("data", "what"), [([1], "a list"), ("text", "text"), (None, "nothing"), (5, "a number"), (2.5, "a number"), (True, "true or false")]
)
def test_no_mapping_at_all(data: object, what: str) -> None:
    with pytest.raises(InputError, match=rf"^box\.yaml: expected keys and values \(a mapping\), found {what}$"):
        build(TopologySpec, data, source="box.yaml")


@pytest.mark.parametrize("key", ["x" * 10_000, "a\nb", "\x00\r\n"])
def test_wild_keys_and_values_stay_one_short_line(key: str) -> None:
    for data in ({key: 1}, {"schema": key}, {"nodes": {key: key}}, {"nodes": {"a": {"kind": key}}}):
        with pytest.raises(InputError) as caught:
            build(TopologySpec, data, source="box.yaml")
        assert len(str(caught.value)) < 420
        assert "\n" not in str(caught.value)


def test_without_the_text_the_line_is_left_out() -> None:
    with pytest.raises(InputError, match=r"^box\.yaml: colour: unknown key$"):
        build(TopologySpec, {**parse_yaml(BOX), "colour": 1}, source="box.yaml")


def test_too_many_nodes() -> None:
    nodes = {f"n{number}": {"kind": "socket"} for number in range(MAX_NODES + 1)}
    with pytest.raises(InputError, match=r"nodes: at most 512 entries, found 513"):
        build(TopologySpec, {**parse_yaml(BOX), "nodes": nodes}, source="box.yaml")


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(anything, st.sampled_from(["schema", "name", "nodes", "peers", "settings", "assumptions", "title"]))
def test_any_data_is_a_spec_or_an_input_error(value: Any, key: str) -> None:
    for kind, data in (
        (TopologySpec, {**parse_yaml(BOX), key: value}),
        (ModelSpec, {"attention": value, "mlp": value}),
        (TopologySpec, value),
    ):
        try:
            build(kind, data, source="any")  # type: ignore[type-var]
        except InputError as exc:
            assert str(exc).startswith("any: ")  # noqa: PT017 - any other exception fails the test
            assert "\n" not in str(exc)  # noqa: PT017


def test_specs_are_frozen() -> None:
    box = read(BOX)
    with pytest.raises(ValidationError, match="frozen"):
        box.name = "other"  # type: ignore[misc]


# -- quantities -------------------------------------------------------------------------------------------------------


def quantity(**fields: Any) -> Quantity:
    return Quantity(**{"value": 10.0, "unit": "s", "evidence": "nominal", "source": "a test", **fields})


DISORDER = [{"low": 11.0}, {"high": 9.0}, {"low": 12.0, "high": 8.0}]
ENDLESS = [{"value": math.nan}, {"value": math.inf}, {"low": -math.inf}, {"high": math.nan}, {"value": 10**400}]
WRONG = [{"value": "ten"}, {"evidence": "guess"}, {"unit": "u" * 21}, {"source": "x" * 4001}, {"colour": "red"}]


@pytest.mark.parametrize("fields", [*DISORDER, *ENDLESS, *WRONG])
def test_impossible_quantities(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        quantity(**fields)


def test_low_value_high_may_be_equal() -> None:
    assert quantity(low=10.0, high=10.0).sigma_log == 0.0


Z90 = statistics.NormalDist().inv_cdf(0.9)  # 1.2816: the 10 % and 90 % points of a normal are +- this many deviations away


@pytest.mark.parametrize(
    ("fields", "sigma"),
    [
        ({"low": 5.0, "high": 20.0}, math.log(4) / (2 * Z90)),
        ({"low": 5.0}, math.log(2) / Z90),  # one side alone counts for both
        ({"high": 20.0}, math.log(2) / Z90),
        ({"low": 0.0, "high": 20.0}, math.log(2) / Z90),  # ln 0 says nothing
        ({"low": 0.0}, 0.20),
        ({"low": -5.0, "high": 20.0}, 0.20),
        ({}, 0.20),
        ({"value": 0.0, "high": 20.0}, 0.20),
        ({"value": -10.0, "low": -20.0}, 0.20),
        ({"value": 1.0, "low": 1e-300, "high": 1e300}, 600 * math.log(10) / (2 * Z90)),
    ],
)
def test_sigma_log_by_hand(fields: dict[str, float], sigma: float) -> None:
    assert quantity(**fields).sigma_log == pytest.approx(sigma, rel=1e-3)


def test_the_default_spread_grows_with_the_label() -> None:
    spreads = [quantity(evidence=label).sigma_log for label in LABELS]
    assert spreads == sorted(spreads)
    assert spreads == [DEFAULT_SIGMA_LOG[label] for label in LABELS]


def test_low_and_high_are_the_ten_percent_points_of_the_lognormal_drawn_from_sigma_log() -> None:
    rng = random.Random(7)  # noqa: S311
    held = quantity(low=5.0, high=20.0)
    draws = sorted(held.value * math.exp(held.sigma_log * rng.gauss(0, 1)) for _ in range(20_000))
    assert draws[2000] == pytest.approx(5.0, rel=0.03)
    assert draws[18_000] == pytest.approx(20.0, rel=0.03)


# -- texts of topology files ------------------------------------------------------------------------------------------


def link(text: object) -> PcieLink | None:
    return build(TopologySpec, {**parse_yaml(BOX), "nodes": {"n": {"kind": "gpu", "link": text}}}, source="x").nodes["n"].link


@pytest.mark.parametrize(
    ("text", "gen", "width"), [("gen5 x16", 5, 16), ("Gen4 x8", 4, 8), ("gen 3 x1", 3, 1), (" gen1  x32 ", 1, 32), ("GEN7 X4", 7, 4)]
)
def test_links(text: str, gen: int, width: int) -> None:
    assert link(text) == PcieLink(gen=gen, width=width)


@pytest.mark.parametrize(
    "text",
    [
        "gen5",
        "x16",
        "gen5x16",
        "gen0 x16",
        "gen8 x16",
        "gen5 x3",
        "gen5 x64",
        "gen5 x016",
        "5 x16",
        "gen5 x16 x16",
        "pcie5 x16",
        "",
        "gen5 x１６",
        5,
        5.16,
        True,
        ["gen5 x16"],
        {"gen": 5},
    ],
)
def test_bad_links(text: object) -> None:
    with pytest.raises(InputError, match=r"nodes\.n\.link: link .* is not understood; write it like 'gen5 x16'"):
        link(text)


def test_no_link_is_the_parts_default() -> None:
    assert link(None) is None


@given(st.integers(1, 7), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_link_round_trip(gen: int, width: int) -> None:
    text = f"gen{gen} x{width}"
    box = build(TopologySpec, {**parse_yaml(BOX), "nodes": {"n": {"kind": "gpu", "link": text}}}, source="x")
    assert box.model_dump()["nodes"]["n"]["link"] == text


@pytest.mark.parametrize(("text", "numbers"), [("2.28", (2, 28)), ("2.30", (2, 30)), ("2.28.3", (2, 28, 3))])
def test_versions(text: str, numbers: tuple[int, ...]) -> None:
    assert CclSettings(version=text).version_tuple == numbers


@pytest.mark.parametrize("version", [2.28, 2, "2", "2.28-1", "v2.28", "2.28.3.1", "", None, True])
def test_bad_versions(version: object) -> None:
    with pytest.raises(ValidationError):
        CclSettings(version=version)  # type: ignore[arg-type]


def test_defaults_of_the_settings() -> None:
    settings = SettingsSpec()
    assert (settings.p2p, settings.acs, settings.iommu, settings.ccl.name, settings.ccl.version, settings.env) == (
        "auto",
        "off",
        "off",
        "nccl",
        "2.28",
        {},
    )
