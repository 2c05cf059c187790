"""Shipped boxes and parts: all load, and every number has a label and a source that a reader can look up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from pcie_sim import catalog
from pcie_sim.evidence import LABELS
from pcie_sim.specs.base import Quantity
from pcie_sim.topology import load_topology

BOXES = catalog.topology_names()
PARTS = catalog.names("parts")
EXPECTED = {
    "h200-2x-host-staged": {"h200-sxm": 2},
    "rtx-4090-8x-rome-2socket": {"rtx-4090": 8},
    "rtx-pro-6000-8x-2switch": {"rtx-pro-6000-blackwell-server": 8},
    "rtx-pro-6000-8x-direct-1socket": {"rtx-pro-6000-blackwell-server": 8},
    "rtx-pro-6000-8x-direct-2socket": {"rtx-pro-6000-blackwell-server": 8},
    "rtx-pro-6000-8x-root-leaf": {"rtx-pro-6000-blackwell-server": 8},
    "a40-8x-rome-2socket-nvlink": {"a40": 8},
    "rtx-3090-2x-nvlink": {"rtx-3090": 2},
    "rtx-pro-6000-8x-asus-broadcom": {"rtx-pro-6000-blackwell-server": 8},
    "rtx-pro-6000-16x-8switch-pairs": {"rtx-pro-6000-blackwell-workstation": 16},
    "rtx-pro-6000-16x-2host-ndr": {"rtx-pro-6000-blackwell-server": 16},
    "l40s-8x-4switch-2socket": {"l40s": 8},
    "t4-4x-2socket-1plus3": {"t4": 4},
}


def quantities(value: Any) -> Iterator[Quantity]:
    if isinstance(value, Quantity):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from quantities(item)
    elif hasattr(value, "model_fields_set"):
        for key in type(value).model_fields:
            yield from quantities(getattr(value, key))


def test_the_named_boxes_are_there() -> None:
    assert set(EXPECTED) <= set(BOXES)


@pytest.mark.parametrize("name", BOXES)
def test_box(name: str) -> None:
    top = load_topology(name)
    assert top.name == name
    assert top.title != name
    assert top.spec.sources
    assert top.assumptions
    if name in EXPECTED:
        assert top.gpu_counts() == EXPECTED[name]
    for capacity in top.links.values():
        assert capacity.rate.evidence in LABELS
        assert len(capacity.rate.source) > 10
        assert capacity.rate.value > 0
    for a in top.gpus:
        for b in top.gpus:
            if a != b:
                if top.host_of(a) == top.host_of(b):
                    routes = [top.route(a, b), top.host_route(a, b), top.path(a, b)]
                else:
                    routes = [top.net_route(a, b), top.path(a, b)]
                for route in routes:
                    assert set(route.links) <= set(top.links)
                    assert route.latency.source
    text = top.spec.model_dump_json()
    assert "/work" not in text
    assert "shared/" not in text


@pytest.mark.parametrize("name", PARTS)
def test_part(name: str) -> None:
    part = catalog.load_part(name)
    found = list(quantities(part))
    assert found
    for quantity in found:
        assert len(quantity.source) > 10
        assert quantity.value > 0
        if quantity.evidence == "assumed":
            assert quantity.low is not None, "an assumed number states its range"
            assert quantity.high is not None
    text = part.model_dump_json()
    assert "/work" not in text
    assert "shared/" not in text


def test_units_of_parts_are_si() -> None:
    units = {quantity.unit for name in PARTS for quantity in quantities(catalog.load_part(name))}
    assert units <= {"B/s", "s", "B", "T/s", "1"}


def test_no_shipped_link_is_slower_than_its_file_says() -> None:
    assert [note for name in BOXES for note in load_topology(name).notes if "is faster than" in note] == []


def test_graph_of_a_box() -> None:
    top = load_topology("rtx-pro-6000-8x-direct-2socket")
    graph = top.to_networkx()
    assert graph.number_of_nodes() == len(top.spec.nodes) + 2  # and the two memories
    assert graph.edges["gpu0", "rp0"]["name"] == "gpu0.up"
    assert graph.edges["cpu1", "cpu0"] == {"name": "cpu0~cpu1.rev", "rate": top.capacities()["cpu0~cpu1.rev"], "peer": True}
    assert graph.edges["rp0", "cpu0"]["rate"] is None


def test_loading_is_quick() -> None:
    """A few milliseconds once the parts are read; the bound leaves a slow machine ten times that."""
    load_topology("rtx-pro-6000-8x-2switch")
    start = time.perf_counter()
    for _ in range(5):
        load_topology("rtx-pro-6000-8x-2switch")
    assert (time.perf_counter() - start) / 5 < 0.03


@pytest.mark.parametrize("name", BOXES)
def test_texts_of_a_box_hold_whatever_is_set(name: str) -> None:
    """They are printed under every setting: what the library uses now is said by the transports, not by them."""
    box = load_topology(name)
    for text in (*box.spec.notes, *box.spec.assumptions):
        for stale in (
            "go through host memory",
            "everything goes through",
            "is passed",
            "--env ",
            "--p2p ",
            "ACS is off",
            "peer access is off",
        ):
            assert stale not in text
