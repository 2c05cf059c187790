"""Every broken topology file is refused with its file, line and key, and with what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pcie_sim.errors import InputError, UnknownNameError
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import from_spec, load_topology

GOOD = """\
schema: pcie-sim/topology/1
name: t
nodes:
  cpu0: {kind: socket, part: epyc-turin}
  rp0: {kind: root_port, parent: cpu0}
  sw0: {kind: switch, part: pm50100, parent: rp0, link: gen5 x16}
  gpu0: {kind: gpu, part: rtx-4090, parent: sw0}
  gpu1: {kind: gpu, part: rtx-4090, parent: sw0}
settings: {p2p: auto, acs: off, iommu: off, ccl: {name: nccl, version: "2.28"}, env: {}}
"""
GPU1 = "  gpu1: {kind: gpu, part: rtx-4090, parent: sw0}"
SW0 = "  sw0: {kind: switch, part: pm50100, parent: rp0, link: gen5 x16}"
ENV = "env: {}"


def write(tmp_path: Path, text: str, name: str = "box.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_good_file_loads(tmp_path: Path) -> None:
    top = load_topology(write(tmp_path, GOOD))
    assert (top.name, top.title, top.gpus, top.assumptions, top.notes) == ("t", "t", ("gpu0", "gpu1"), (), ())
    assert top.gpu_spec("gpu0").name == "rtx-4090"
    assert load_topology(str(write(tmp_path, GOOD))).links == top.links


# old text, new text, line of the complaint, what it says
BROKEN = [
    pytest.param(GPU1, GPU1.replace("sw0", "sw1"), 8, r"nodes\.gpu1\.parent: unknown node 'sw1'; nearest: sw0", id="unknown parent"),
    pytest.param(
        GPU1, GPU1.replace("parent: sw0", "parent: [sw0, rp0]"), 8, r"one parent, found a list \(sw0, rp0\).*peers", id="two parents"
    ),
    pytest.param(GPU1, GPU1 + "\n" + GPU1, 9, r"duplicate key 'gpu1'", id="node twice"),
    pytest.param("parent: sw0}\n  gpu1", "parent: sw0, parent: rp0}\n  gpu1", 7, r"duplicate key 'parent'", id="parent twice"),
    pytest.param(
        GPU1, GPU1.replace(", parent: sw0", ""), 8, r"nodes\.gpu1: a gpu needs a parent.*no way to a root", id="gpu without parent"
    ),
    pytest.param(SW0, SW0.replace("parent: rp0, ", ""), 6, r"nodes\.sw0: a switch needs a parent", id="switch without parent"),
    pytest.param(SW0, SW0.replace("rp0", "sw0"), 6, r"nodes\.sw0\.parent: .*cycle", id="own parent"),
    pytest.param(
        SW0,
        SW0.replace("rp0", "sw1") + "\n  sw1: {kind: switch, part: pm50100, parent: sw0}",
        6,
        r"cycle of parents: sw0 -> sw1 -> sw0",
        id="cycle",
    ),
    pytest.param(
        SW0,
        SW0.replace("rp0", "cpu0"),
        6,
        r"cpu0 is a socket; the parent of a switch must be a root_port or switch; put a root",
        id="no port",
    ),
    pytest.param(
        GPU1, GPU1.replace("sw0", "gpu0"), 8, r"gpu0 is a gpu; the parent of a gpu must be a root_port or switch or socket", id="on a gpu"
    ),
    pytest.param("parent: cpu0}", "parent: sw0}", 5, r"sw0 is a switch; the parent of a root_port must be a socket", id="port on a switch"),
    pytest.param(
        GPU1, GPU1.replace("rtx-4090", "rtx-4091"), 8, r"nodes\.gpu1\.part: unknown GPU 'rtx-4091'; nearest: rtx-4090, ", id="unknown gpu"
    ),
    pytest.param(
        SW0, SW0.replace("pm50100", "pm5010"), 6, r"nodes\.sw0\.part: unknown part 'pm5010'; nearest: pm50100, ", id="unknown part"
    ),
    pytest.param(
        SW0, SW0.replace("pm50100", "epyc-turin"), 6, r"nodes\.sw0\.part: .*'epyc-turin' is of kind socket", id="part of another kind"
    ),
    pytest.param(SW0, SW0.replace("part: pm50100, ", ""), 6, r"nodes\.sw0: a switch needs a part, for example", id="no part"),
    pytest.param("parent: cpu0}", "parent: cpu0, part: pm50100}", 5, r"nodes\.rp0\.part: a root_port takes no part", id="port with a part"),
    pytest.param("epyc-turin}", "epyc-turin, link: gen5 x16}", 4, r"nodes\.cpu0\.link: a socket has no PCIe link", id="socket with a link"),
    pytest.param("epyc-turin}", "epyc-turin, links: 2}", 4, r"nodes\.cpu0\.links: a socket has no PCIe link", id="socket with links"),
    pytest.param(
        "epyc-turin}", "epyc-turin, parent: rp0}", 4, r"rp0 is a root_port; the parent of a socket must be a host", id="socket on a port"
    ),
    pytest.param("gen5 x16", "gen5x16", 6, r"nodes\.sw0\.link: .*write it like 'gen5 x16'", id="link text"),
    pytest.param("gen5 x16", "gen5 x3", 6, r"nodes\.sw0\.link", id="link width"),
    pytest.param(GPU1, GPU1.replace("kind: gpu", "kind: tpu"), 8, r"nodes\.gpu1\.kind: .*'tpu'", id="unknown kind"),
    pytest.param(GPU1, GPU1.replace("}", ", lanes: 8}"), 8, r"nodes\.gpu1\.lanes: unknown key", id="unknown key"),
    pytest.param(
        GPU1, GPU1.replace("}", ", bus: 4x}"), 8, r"nodes\.gpu1\.bus: '4x' is not a bus id; write it like 0000:c1:00.0", id="bus text"
    ),
    pytest.param(
        "sw0}\n" + GPU1, 'sw0, bus: "41:00.0"}\n' + GPU1.replace("}", ', bus: "0:41:0.0"}'), 8, r"already gpu0's", id="bus id twice"
    ),
    pytest.param(ENV, "env: {NCCL_P2P_LEVEL: five}", 9, r"settings\.env: NCCL_P2P_LEVEL='five' is not a level", id="level"),
    pytest.param('"2.28"', "2.30", 9, r"settings\.ccl\.version: put the version in quotes", id="version as a number"),
    pytest.param("acs: off", "acs: false", 9, r"settings\.acs", id="acs as a boolean"),
    pytest.param(
        "settings:", "peers: [{between: [gpu0, gpu1], part: xgmi-turin}]\nsettings:", 9, r"peers\.0\.part: .*role socket", id="peer role"
    ),
    pytest.param(
        "settings:", "peers: [{between: [gpu0, cpu0], part: xgmi-turin}]\nsettings:", 9, r"between a gpu and a socket", id="peer kinds"
    ),
    pytest.param(
        "settings:", "peers: [{between: [sw0, rp0], part: xgmi-turin}]\nsettings:", 9, r"joins two sockets or two gpus", id="peer of switch"
    ),
    pytest.param(
        "settings:", "peers: [{between: [gpu0, gpu9], part: xgmi-turin}]\nsettings:", 9, r"unknown node 'gpu9'", id="peer unknown"
    ),
    pytest.param(
        "settings:", "peers: [{between: [gpu0, gpu0], part: xgmi-turin}]\nsettings:", 9, r"two different nodes", id="peer of itself"
    ),
    pytest.param(
        "settings:", "peers: [{between: [gpu0, gpu1], part: xgmi}]\nsettings:", 9, r"unknown part 'xgmi'; nearest: xgmi-", id="peer part"
    ),
    pytest.param(
        "settings:",
        "peers:\n- {between: [gpu0, gpu1], part: nvlink-bridge-ampere}\n- {between: [gpu1, gpu0], part: nvlink-bridge-ampere}\nsettings:",
        11,
        r"gpu1 and gpu0 are joined twice",
        id="peer twice",
    ),
    pytest.param(
        "nodes:\n",
        "nodes:\n  h: {kind: host}\n  cpu1: {kind: socket, part: epyc-turin, parent: h}\n",
        6,
        r"two trees: cpu0",
        id="two trees",
    ),
    pytest.param(GPU1, GPU1.replace("}", ", chip: A}"), 8, r"nodes\.gpu1\.chip: a gpu is no part of a switch chip", id="chip of a gpu"),
    pytest.param(
        SW0,
        SW0.replace("}", ", chip: A}") + "\n  sw1: {kind: switch, part: pex890xx, parent: rp0, chip: A}",
        7,
        r"sw1 and sw0 cannot be one chip: other parts",
        id="chip of two parts",
    ),
    pytest.param("parent: cpu0}", "parent: cpu0, half_duplex: true}", 5, r"half_duplex needs a link", id="half duplex without link"),
    pytest.param("epyc-turin}", "epyc-turin, half_duplex: true}", 4, r"nodes\.cpu0\.half_duplex: a socket has no", id="half-duplex socket"),
    pytest.param(ENV, "env: {}, max_payload: 1024", 9, r"settings\.max_payload", id="payload"),
    pytest.param(ENV, "env: {}, conditions: [slow]", 9, r"settings\.conditions\.0", id="condition"),
    pytest.param(ENV, "env: {NCCL_NET_GDR_LEVEL: near}", 9, r"NCCL_NET_GDR_LEVEL='near' is not a level", id="gdr level"),
    pytest.param(
        "nodes:\n", "nodes:\n  f: {kind: fabric, part: pm50100}\n", 4, r"nodes\.f\.part: a fabric takes no part", id="fabric part"
    ),
    pytest.param(
        "nodes:\n", "nodes:\n  f: {kind: fabric, parent: cpu0}\n", 4, r"a fabric has no parent; .*by `peers`", id="fabric with a parent"
    ),
    pytest.param(
        "settings:",
        "peers: [{between: [nic0, f], part: infiniband-ndr}]\nsettings:".replace(
            "peers", "  f: {kind: fabric}\n  nic0: {kind: nic, parent: sw0}\npeers"
        ),
        10,
        r"nodes\.nic0: a nic on a network needs a part",
        id="nic without part",
    ),
    pytest.param(
        "settings:",
        "  f: {kind: fabric}\n  n: {kind: nic, part: connectx-7, parent: sw0}\npeers: [{between: [n, f], part: xgmi-turin}]\nsettings:",
        11,
        r"peers\.0\.part: .*between a nic and a fabric it takes one of role fabric",
        id="network role",
    ),
    pytest.param(
        "settings:",
        "peers: [{between: [gpu0, sw0], part: infiniband-ndr}]\nsettings:",
        9,
        r"or a nic to a fabric or a nic",
        id="peer of gpu",
    ),
    pytest.param("schema: pcie-sim/topology/1", "schema: pcie-sim/model/1", 1, r"schema: .*pcie-sim/topology/1", id="schema"),
    pytest.param("  cpu0", " cpu0", 5, r"broken YAML", id="indentation"),
]


@pytest.mark.parametrize(("old", "new", "line", "says"), BROKEN)
def test_broken_files(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert GOOD.count(old) >= 1
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_topology(path)
    message = str(caught.value)
    assert re.search(says, message), message
    assert message.startswith(f"{path}:{line}: "), message
    assert message.count("\n") <= 1
    assert caught.value.exit_code == 2


def test_unknown_parts_are_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError):
        load_topology(write(tmp_path, GOOD.replace("pm50100", "pm5010")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected keys and values"),
        ("[]", "expected keys and values"),
        ("nodes: 3", "nodes"),
        ("nodes: {}\nname: t\nschema: pcie-sim/topology/1", "nodes"),
        ("schema: pcie-sim/topology/1\nname: t\nnodes: {cpu0: {kind: socket, part: epyc-turin}}", "no node of kind gpu"),
        ("schema: pcie-sim/topology/1\nname: t\nnodes: {gpu0: {kind: gpu, part: rtx-4090}}", "no node of kind socket"),
        (
            "schema: pcie-sim/topology/1\nname: t\nnodes: {h: {kind: host, parent: c}, c: {kind: socket, part: epyc-turin, parent: h}}",
            "has no parent",
        ),
    ],
)
def test_files_without_a_box(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_topology(write(tmp_path, text))


def test_one_host_and_network_cards_are_fine(tmp_path: Path) -> None:
    text = GOOD.replace("nodes:\n  cpu0: {", "nodes:\n  h: {kind: host}\n  nic0: {kind: nic, parent: sw0}\n  cpu0: {parent: h, ")
    top = load_topology(write(tmp_path, text))
    assert top.route("gpu0", "gpu1").links == ("gpu0.up", "gpu1.dn")
    assert any("network cards (nic0)" in note for note in top.notes)


def test_missing_socket_peer_is_named_when_a_route_needs_it(tmp_path: Path) -> None:
    more = "nodes:\n  cpu1: {kind: socket, part: epyc-turin}\n  gpu2: {kind: gpu, part: rtx-4090, parent: cpu1}\n"
    path = write(tmp_path, GOOD.replace("nodes:\n", more))
    top = load_topology(path)
    assert top.path_type("gpu0", "gpu2") == "SYS"
    for ask in (top.route, top.host_route, top.path):
        with pytest.raises(
            InputError, match=r"sockets cpu0 and cpu1 are not joined; add `- \{between: \[cpu0, cpu1\], part: xgmi-turin\}` to `peers`"
        ) as caught:
            ask("gpu0", "gpu2")
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("socket", "advice"),
    [
        ("epyc-genoa", r"part: xgmi-genoa\}` to `peers`$"),
        ("epyc-9004", r"part: xgmi-genoa\}` to `peers`$"),
        ("epyc-rome", r"part: xgmi-rome\}` to `peers`$"),
        ("xeon-ice-lake", r"part: upi-ice-lake\}` to `peers`$"),
        ("xeon-broadwell", r"part: qpi-broadwell\}` to `peers`$"),
        ("generic-amd", r"part: generic-xgmi\}` to `peers`$"),
        ("epyc-4004", r"part: PART\}` to `peers`, where PART is an interconnect part$"),
    ],
)
def test_advice_for_unjoined_sockets_is_of_their_generation(socket: str, advice: str, tmp_path: Path) -> None:
    nodes = "".join(
        f"  cpu{i}: {{kind: socket, part: {socket}}}\n  gpu{i}: {{kind: gpu, part: rtx-4090, parent: cpu{i}}}\n" for i in (0, 1)
    )
    path = tmp_path / "box.yaml"
    path.write_text(f"schema: pcie-sim/topology/1\nname: t\nnodes:\n{nodes}")
    top = load_topology(path)
    with pytest.raises(InputError, match=advice):
        top.route("gpu0", "gpu1")
    (note,) = [note for note in top.notes if "not joined" in note]
    assert re.search(advice, note)


def test_a_shipped_box_has_no_sockets_apart() -> None:
    from pcie_sim import catalog

    assert not [note for name in catalog.topology_names() for note in load_topology(name).notes if "not joined" in note]


def test_unknown_shipped_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown topology 'rtx-pro-6000-2switch'; nearest: rtx-pro-6000-8x-2switch"):
        load_topology("rtx-pro-6000-2switch")


def test_names_and_paths_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_topology(str(tmp_path / "missing.yaml"))
    with pytest.raises(InputError, match="no such file"):
        load_topology("missing.json")
    with pytest.raises(InputError, match="is a folder"):
        load_topology(tmp_path)


def test_json_and_spec_give_the_same_box(tmp_path: Path) -> None:
    spec = load_topology(write(tmp_path, GOOD)).spec
    data = json.loads(spec.model_dump_json(by_alias=True))
    top = load_topology(write(tmp_path, json.dumps(data, indent=1), "box.json"))
    assert top.spec == spec
    assert from_spec(TopologySpec.model_validate(data)).capacities() == top.capacities()
    data["nodes"]["gpu1"]["parent"] = "nowhere"
    path = write(tmp_path, json.dumps(data, indent=1), "bad.json")
    with pytest.raises(InputError, match=r"bad\.json:\d+: nodes\.gpu1\.parent: unknown node 'nowhere'"):
        load_topology(path)
    with pytest.raises(InputError, match=r"^<spec>: nodes\.gpu1\.parent: unknown node 'nowhere'"):
        from_spec(TopologySpec.model_validate(data))


def test_environment_numbers_may_be_written_plainly(tmp_path: Path) -> None:
    top = load_topology(write(tmp_path, GOOD.replace(ENV, "env: {NCCL_P2P_LEVEL: 5}")))
    assert top.settings.env == {"NCCL_P2P_LEVEL": "5"}


def test_shared_port_and_partial_bus_ids_are_noted(tmp_path: Path) -> None:
    text = GOOD.replace("parent: sw0}\n  gpu1", 'parent: rp0, bus: "c1:00.0"}\n  gpu1')
    top = load_topology(write(tmp_path, text))
    assert top.gpus == ("gpu0", "gpu1")
    assert any("1 of 2 GPUs have a bus id" in note for note in top.notes)
    assert any("rp0 has 2 devices directly below it" in note for note in top.notes)
    assert top.route("gpu0", "gpu1").links == ("gpu0.up", "sw0.dn", "gpu1.dn")
    assert top.path_type("gpu0", "gpu1") == "PHB"
