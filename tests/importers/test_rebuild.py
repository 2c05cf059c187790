"""Round trips of boxes: every shipped box through `nvidia-smi topo -m`, through NCCL's XML, and through our own text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.importers import read_any, source_of
from pcie_sim.importers.build import build_box
from pcie_sim.importers.nccl_topo_write import write
from pcie_sim.importers.smi_topo_write import write_topo_m
from pcie_sim.importers.write import model_text, topology_text
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec, load_topology

BOXES = catalog.topology_names()


def words(box: Topology, gpus: Sequence[str]) -> list[list[str]]:
    """What nvidia-smi prints: NODE between host bridges of one NUMA node, a number of links for NVLink."""
    found = []
    for a in gpus:
        row = []
        for b in gpus:
            kind = "X" if a == b else box.path_type(a, b)
            row.append({"PHB": "NODE", "NVL": "NV4"}.get(kind, kind))
        found.append(row)
    return found


def paths(box: Topology, gpus: Sequence[str]) -> list[list[str]]:
    return [["X" if a == b else box.path_type(a, b) for b in gpus] for a in gpus]


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("affinity", [True, False], ids=["with NUMA column", "without"])
def test_topo_m_alone_gives_the_same_path_types(name: str, affinity: bool) -> None:
    box = load_topology(name)
    for host in box.hosts:
        gpus = [gpu for gpu in box.gpus if box.host_of(gpu) == host]
        numa = [box.numa_of(gpu) for gpu in gpus] if affinity else []
        text = write_topo_m(words(box, gpus), numa, count=len(gpus))
        found = from_spec(build_box([read_any(source_of(text, "topo.txt"))], gpu=box.gpu_spec(gpus[0]).name).spec)
        assert paths(found, list(found.spec.nodes and found.gpus)) == paths(box, gpus)
        assert found.assumptions, "a matrix has no bandwidths: what was filled in is listed"


@pytest.mark.parametrize("name", [name for name in BOXES if len(load_topology(name).hosts) == 1])
def test_ncclxml_keeps_the_tree(name: str) -> None:
    """Same path types, same switches above every GPU, same links, NUMA nodes and NVLink pairs."""
    box = load_topology(name)
    found = from_spec(build_box([read_any(source_of(write(box.spec), "topo.xml"))]).spec)
    assert len(found.gpus) == len(box.gpus)
    assert paths(found, found.gpus) == paths(box, box.gpus)
    assert shape(found) == shape(box)
    assert [found.trained_link(gpu) for gpu in found.gpus] == [box.trained_link(gpu) for gpu in box.gpus]
    assert found.gpu_counts() == box.gpu_counts()
    assert [node.part for node in found.spec.nodes.values() if node.kind == "switch" and not str(node.part).startswith("generic")] == [
        node.part for node in box.spec.nodes.values() if node.kind == "switch" and not str(node.part).startswith("generic")
    ]


def shape(box: Topology) -> list[list[tuple[str, ...]]]:
    """For every pair of GPUs: the kinds of the switches above the first, and which of them stand above the second, too."""
    found = []
    for a in box.gpus:
        above = [node for node in box.chain(a) if box.spec.nodes[node].kind == "switch"]
        found.append([tuple("shared" if node in box.chain(b) else "own" for node in above) for b in box.gpus])
    return found


def test_several_hosts_are_no_nccl_file() -> None:
    spec = load_topology("rtx-pro-6000-16x-2host-ndr").spec
    with pytest.raises(InputError, match="host"):
        write(spec)


@pytest.mark.parametrize("name", BOXES)
def test_our_own_text_reads_back_equal(name: str) -> None:
    spec = load_topology(name).spec
    found = read_any(source_of(topology_text(spec), "box.yaml")).topology
    assert isinstance(found, TopologySpec)
    assert found == spec


@pytest.mark.parametrize("name", catalog.names("models"))
def test_a_models_text_reads_back_equal(name: str) -> None:
    spec = catalog.load_model_spec(name)
    assert read_any(source_of(model_text(spec), "model.yaml")).model == spec


def test_a_models_required_null_is_written() -> None:
    """DeepSeek-V2-Lite has no query rank: the key is required, its value nothing."""
    spec = catalog.load_model_spec("deepseek-v3")
    lite = spec.model_copy(update={"attention": spec.attention.model_copy(update={"q_lora_rank": None})})
    assert read_any(source_of(model_text(lite), "model.yaml")).model == lite
