"""NCCL's topology XML, read and written. Fixtures have the shape of real dumps; rules are NVIDIA/nccl's src/graph/xml.cc and topo.cc."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.importers import nccl_topo
from pcie_sim.importers.build import build_box
from pcie_sim.importers.facts import DeviceFact, LinkFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.nccl_topo_write import write
from pcie_sim.importers.source import source_of
from pcie_sim.specs.machine import TopologySpec
from pcie_sim.topology import Topology, from_spec, load_topology
from pcie_sim.topology.capacity import trained_link

SWITCHES = """<system version="1">
  <cpu host_hash="0xabcdef0123456789" numaid="0" affinity="00000000,0000ffff,0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:0c:00.0" class="0x060400" vendor="0x11f8" device="0x4000" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:10:00.0" class="0x030000" vendor="0x10de" device="0x2204" subsystem_vendor="0x10de" subsystem_device="0x1454" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="86" rank="0" gdr="0"/>
      </pci>
      <pci busid="0000:0f:00.0" class="0x030000" vendor="0x10de" device="0x2204" link_speed="2.5 GT/s PCIe" link_width="8">
        <gpu dev="3" sm="86" rank="1" gdr="0"></gpu>
      </pci>
    </pci>
    <nic>
      <net name="docker0" dev="1" speed="10000" port="0" guid="0x1122334455667788" maxconn="65536" gdr="0"/>
    </nic>
    <pci busid="0000:11:00.0" class="0x010802" link_speed="Unknown" link_width="0"/>
  </cpu>
  <cpu host_hash="0xabcdef0123456789" numaid="1" affinity="00000000,ffff0000,ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:9a:00.0" class="0x020700" vendor="0x15b3" device="0x101b" link_speed="8 GT/s" link_width="16">
      <nic>
        <net name="mlx5_0" dev="0" speed="56000" port="1" latency="0.000000" guid="0x99aabbccddeeff00" maxconn="262144" gdr="0"/>
      </nic>
    </pci>
    <nic>
      <net name="docker0" dev="1" speed="10000" port="0" guid="0x1122334455667788" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
"""  # noqa: E501 - lines as NCCL writes them


def read(text: str) -> Imported:
    return nccl_topo.read(source_of(text, "topo.xml"))


def devices(text: str) -> dict[str, DeviceFact]:
    return {device.key: device for device in read(text).box.devices}


def kinds(found: Imported) -> list[str]:
    return [remark.kind for remark in found.remarks]


def box(inside: str, cpu: str = 'numaid="0"') -> str:
    return f'<system version="1"><cpu {cpu}>{inside}</cpu></system>'


def pci(bus: str, code: str = "0x030200", inside: str = "", more: str = "") -> str:
    return f'<pci busid="{bus}" class="{code}" {more}>{inside}</pci>'


def test_switches_gpus_and_cards_in_the_order_of_the_file() -> None:
    found = read(SWITCHES)
    assert [(device.key, device.kind, device.role, device.parent, device.cpu) for device in found.box.devices] == [
        ("0000:0c:00.0", "bridge", "switch", None, "numa0"),
        ("0000:10:00.0", "gpu", None, "0000:0c:00.0", None),
        ("0000:0f:00.0", "gpu", None, "0000:0c:00.0", None),
        ("0000:11:00.0", "other", None, None, "numa0"),
        ("0000:9a:00.0", "nic", None, None, "numa1"),
    ]
    by = devices(SWITCHES)
    gpu = by["0000:10:00.0"]
    assert (gpu.gpu_index, gpu.rank, gpu.sm, gpu.ids, gpu.subsystem, gpu.numa) == (0, 0, 86, (0x10DE, 0x2204), (0x10DE, 0x1454), 0)
    assert (gpu.link, gpu.link_max, gpu.line) == (LinkFact(4, 16), None, 4)
    assert (by["0000:0f:00.0"].gpu_index, by["0000:0f:00.0"].rank) == (3, 1)
    assert by["0000:11:00.0"].link is None
    assert (by["0000:9a:00.0"].name, by["0000:9a:00.0"].link) == ("mlx5_0", LinkFact(3, 16))
    assert found.details["nccl_topo"]["gdr"] == {"0000:10:00.0": False, "0000:0f:00.0": False}


def test_an_idle_gpu_and_virtual_interfaces_are_said_once() -> None:
    found = read(SWITCHES)
    assert sorted(kinds(found)) == ["ignored", "note"]
    idle = next(remark for remark in found.remarks if remark.kind == "note")
    assert "1 of 2 GPUs show a slower link (Gen1)" in idle.text
    assert "2.30.7" in idle.text
    assert idle.line == 7
    virtual = next(remark for remark in found.remarks if remark.kind == "ignored")
    assert virtual.text.endswith(": 1")  # one interface, listed under both CPUs
    assert virtual.line == 12


def test_nothing_that_identifies_the_machine_is_kept() -> None:
    kept = repr(read(SWITCHES))
    for secret in ("abcdef0123456789", "1122334455667788", "99aabbccddeeff00", "docker0"):
        assert secret not in kept
    named = box(pci("0000:01:00.0", "0x020000", '<nic><net name="enx001122aabbcc" dev="0"/></nic>'))
    assert "001122aabbcc" not in repr(read(named))


def test_cpus_have_the_family_of_the_manuals() -> None:
    """NCCL writes base + (extended << 4): AMD 17h (Rome) is 143; files of cloud vendors have 23."""
    rome = 'numaid="3" affinity="00000000,ff000000" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'
    [cpu] = read(box("", rome)).box.cpus
    assert (cpu.key, cpu.numa, cpu.family, cpu.model, cpu.vendor, cpu.cpus) == ("numa3", 3, 23, 49, "AuthenticAMD", ((24, 31),))
    assert [read(box("", f'familyid="{raw}"')).box.cpus[0].family for raw in (175, 191, 23, 6)] == [25, 26, 23, 6]
    assert read(box("", 'vendor="  Shanghai  "')).box.cpus[0].vendor == "Shanghai"


def test_a_virtual_machine_says_no_numa_node_and_no_width() -> None:
    text = box(
        pci("0000:00:06.0", inside='<gpu dev="0" sm="90"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu>',
            more='link_speed="32.0 GT/s PCIe" link_width="0"'),
        'numaid="-1"',
    )  # fmt: skip
    [cpu] = read(text).box.cpus
    gpu = devices(text)["0000:00:06.0"]
    assert (cpu.numa, gpu.numa, gpu.link, gpu.nvlinks) == (None, None, LinkFact(5, None), (("", 18),))


def test_nvlinks_to_gpus_switches_and_others() -> None:
    def gpu(bus: str, *links: str) -> str:
        return pci(bus, inside=f'<gpu dev="0">{"".join(links)}</gpu>')

    text = box(
        gpu("0000:01:00.0", '<nvlink target="0000:02:00.0" count="4" tclass="0x030000"/>')
        + gpu("0000:02:00.0", '<nvlink target="0000:01:00.0" count="2"/><nvlink target="0000:01:00.0" count="2"/>')
        + gpu("0000:03:00.0", *(f'<nvlink target="0000:{bus}:00.0" count="2" tclass="0x068000"/>' for bus in ("a3", "a4", "a5", "a6")))
        + gpu("0000:04:00.0", '<nvlink target="0000:09:00.0" count="4" tclass="0x030200"/>', '<nvlink target="0000:01:00.0" count="-4"/>')
    )
    by = devices(text)
    assert by["0000:01:00.0"].nvlinks == (("0000:02:00.0", 4),)
    assert by["0000:02:00.0"].nvlinks == (("0000:01:00.0", 4),)
    assert by["0000:03:00.0"].nvlinks == (("", 8),)
    assert by["0000:04:00.0"].nvlinks == ()
    assert kinds(read(text)) == ["ignored", "ignored"]


def test_class_decides_where_there_is_no_gpu_tag() -> None:
    """Azure's files have plain <pci> entries; class prefixes are NCCL's (kvDictPciClass)."""
    text = box(
        pci("ffff:ff:01.0", "0x060400", pci("0001:00:00.0", "0x030200") + pci("0101:00:00.0", "0x020700"))
        + pci("0000:05:00.0", "0x068000")
        + pci("0000:06:00.0", "0x080100", pci("0000:07:00.0", "0x120000", more='vendor="0x1002" device="0x74a1"'))
        + pci("0000:08:00.0", "0x120000", more='vendor="0x1da3" device="0x1020"')
    )
    assert [device.kind for device in read(text).box.devices] == ["bridge", "gpu", "nic", "other", "bridge", "gpu", "other"]


def test_stacked_ports_of_one_chip_and_trees_of_switches() -> None:
    chip = 'vendor="0x15b3" device="0x197c"'
    inner = pci("0000:19:00.0", "0x060400", pci("0000:1b:00.0"), chip)
    card = pci("0000:18:00.0", "0x020000")
    stacked = box(pci("0000:16:00.0", "0x060400", inner + card, chip))
    assert [device.role for device in read(stacked).box.devices] == ["switch", "downstream", None, None]
    assert kinds(read(stacked)) == ["assumed"]
    leaf = pci("0000:1a:00.0", "0x060400", pci("0000:1c:00.0"), chip)
    two = box(pci("0000:16:00.0", "0x060400", inner + leaf, chip))
    assert [device.role for device in read(two).box.devices] == ["switch", "switch", None, "switch", None]
    assert kinds(read(two)) == []
    plain = box(pci("0000:16:00.0", "0x060400", pci("0000:19:00.0", "0x060400", pci("0000:1b:00.0"))))  # no ids: nothing says one chip
    assert [device.role for device in read(plain).box.devices] == ["switch", "switch", None]


def test_the_rccl_dialect() -> None:
    text = """<!--
 - Copyright
 -->
<system version="2">
  <cpu numaid="0" affinity="00ff00ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:18:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:1b:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
        <pci busid="0000:1d:00.0" class="0x038000" link_speed="16 GT/s" link_width="16">
          <gpu dev="0" sm="64" gcn="906" arch="38911" rank="0" gdr="1"><xgmi target="0000:20:00.0" count="1" tclass="0x038000"/></gpu>
        </pci>
      </pci>
      <pci busid="0000:1e:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
        <pci busid="0000:20:00.0" class="0x038000" link_speed="16 GT/s" link_width="16">
          <gpu dev="1" sm="104" gcn="910" arch="38911" rank="1" gdr="1"/>
        </pci>
      </pci>
    </pci>
  </cpu>
</system>"""
    found, by = read(text), devices(text)
    first = by["0000:1d:00.0"]
    assert (first.name, first.sm, first.nvlinks) == ("gfx906", None, (("0000:20:00.0", 1),))  # sm is the number of compute units here
    assert by["0000:20:00.0"].name == "gfx90a"
    assert found.details["nccl_topo"]["dialect"] == "rccl"
    assert [remark.text for remark in found.remarks if "the cards' own" in remark.text]


def test_a_file_without_gpus_is_read_and_says_so() -> None:
    """Amazon's file for g5.48xlarge has bus ids only; NCCL fills in the rest on the machine."""
    found = read(box('<pci busid="0000:00:16.0"/><pci busid="0000:00:17.0"/>'))
    assert [device.kind for device in found.box.devices] == ["other", "other"]
    [remark] = found.remarks
    assert "no <pci> entry is a GPU" in remark.text
    assert "2 have no class" in remark.text


def test_odd_entries_are_counted_not_repeated() -> None:
    text = (
        '<system><pci busid="0000:77:00.0" class="0x030200"/><cpu numaid="0">'
        + pci("0000:01:00.0", inside='<gpu dev="0"/><strange/><strange/><other/>')
        + pci("0000:01:00.0")
        + pci("nonsense")
        + pci("nonsense")
        + pci("0000:02:00.0", "0x060400", '<pcilink target="0000:03:00.0"/>')
        + '</cpu><cpu numaid="0"/></system>'
    )
    found = read(text)
    assert len(found.box.devices) == 5
    assert [cpu.key for cpu in found.box.cpus] == ["numa0", "numa0.1"]
    assert found.details["nccl_topo"]["pcilinks"] == [("0000:02:00.0", "0000:03:00.0")]
    texts = " / ".join(remark.text for remark in found.remarks)
    for said in (
        "outside of any <cpu>",
        "<strange> (3 times)",
        "before: the first is kept",
        "without a readable busid (2 times)",
        "same numaid",
    ):
        assert said in texts


def test_of_several_hosts_the_first_is_read() -> None:
    text = "".join(f'<cpu host_hash="0x{host}" numaid="0">{pci("0000:01:00.0")}</cpu>' for host in (1, 2, 3))
    found = read(f"<system>{text}</system>")
    assert len(found.box.devices) == 1
    assert "3 hosts" in found.remarks[0].text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SWITCHES[:900], r"topo\.xml:\d+: the file ends inside <\w+> \(line \d+\): it is cut"),
        ("<graphs/>", r"topo\.xml:1: the root tag is <graphs>"),
        ("<system>\n</system>", r"topo\.xml:1: a <system> without <cpu> and <pci>"),
        (box("".join(pci(f"0000:{i >> 5:02x}:{i & 31:02x}.0") for i in range(600))), r"topo\.xml:1: more than 512 GPUs"),
        (box("".join(pci(f"{i >> 8:04x}:{i & 255:02x}:00.0", "0x01") for i in range(5000))), r"topo\.xml:1: more than 4096 <pci>"),
    ],
)
def test_refusals_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


def test_only_its_own_root_is_recognised() -> None:
    assert nccl_topo.sniff(source_of(SWITCHES, "f")) == 1
    assert nccl_topo.sniff(source_of("<graphs/>", "f")) is None
    assert nccl_topo.sniff(source_of("GPU0 GPU1 <system>", "f")) is None


@given(st.integers(0, len(SWITCHES)), st.integers(0, 60), st.text(max_size=20))
def test_damaged_files_are_read_or_refused(at: int, length: int, put: str) -> None:
    text = SWITCHES[:at] + put + SWITCHES[at + length :]
    if not text.strip():
        return
    source = source_of(text, "topo.xml")
    nccl_topo.sniff(source)
    message = "topo.xml"
    try:
        nccl_topo.read(source)
    except InputError as exc:
        message = str(exc)
    assert message.startswith("topo.xml")


VALUES = st.sampled_from(
    ["", "0", "-1", "nan", "0x", "9" * 500, "ffffffff:ff:1f.7", "0000:01:00.0", "1e9", "0x060400", "0x03", "16 GT/s", "\u0660"]
)
NAMES = (
    "busid",
    "class",
    "vendor",
    "device",
    "link_speed",
    "link_width",
    "dev",
    "sm",
    "rank",
    "gcn",
    "target",
    "count",
    "tclass",
    "numaid",
    "affinity",
)
PIECE = st.tuples(
    st.sampled_from(["cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "pcilink"]), st.dictionaries(st.sampled_from(NAMES), VALUES)
)


@given(st.recursive(PIECE.map(lambda piece: (piece, [])), lambda inner: st.tuples(PIECE, st.lists(inner, max_size=4)), max_leaves=12))
def test_any_nesting_with_any_values_is_read_or_refused(tree: object) -> None:
    def text(node: object) -> str:
        (tag, attrs), inner = node  # type: ignore[misc]
        return f"<{tag} {' '.join(f'{k}={v!r}' for k, v in attrs.items())}>{''.join(map(text, inner))}</{tag}>"  # type: ignore[has-type]

    message = "topo.xml"
    try:
        read(f"<system>{text(tree)}</system>")
    except InputError as exc:
        message = str(exc)
    assert message.startswith("topo.xml")


ONE_HOST = [name for name in catalog.topology_names() if sum(node.kind == "host" for node in load_topology(name).spec.nodes.values()) < 2]


@pytest.mark.parametrize("name", ONE_HOST)
def test_written_files_read_back_to_the_same_tree(name: str) -> None:
    """Switches above every GPU, NUMA groups, ranks, links as trained and NVLink pairs survive; expectations are the topology's own."""
    topology = load_topology(name)
    spec, tree = topology.spec, topology._tree
    found = read(write(spec))
    by = {device.key: device for device in found.box.devices}
    gpus = sorted((device for device in by.values() if device.kind == "gpu"), key=lambda device: device.rank or 0)
    assert len(gpus) == len(topology.gpus)
    same: dict[str, str] = {}
    sides: dict[str | None, set[str]] = {}
    for device, node in zip(gpus, topology.gpus, strict=True):
        above, at = [], device
        while at.parent is not None:
            at = by[at.parent]
            above.append(at.key)
        switches = [one for one in topology.chain(node) if spec.nodes[one].kind == "switch"]
        assert len(above) == len(switches)
        for key, switch in zip(above, switches, strict=True):
            assert same.setdefault(key, switch) == switch
            taken = trained_link(tree, switch)
            assert taken is not None
            assert by[key].link == LinkFact(taken.gen, taken.width)
        sides.setdefault(at.cpu, set()).add(tree.socket_of[node])
        taken = trained_link(tree, node)
        assert taken is not None
        assert device.link == LinkFact(taken.gen, taken.width)
        if spec.nodes[node].numa is not None:
            assert device.numa == spec.nodes[node].numa
        if spec.nodes[node].bus is not None and all(spec.nodes[gpu].bus for gpu in topology.gpus):
            assert (device.bus or "").endswith(str(spec.nodes[node].bus))
    assert all(len(sockets) == 1 for sockets in sides.values())
    assert len(set(same.values())) == len(same)
    pairs = {frozenset(peer.between) for peer in spec.peers if all(end in topology.gpus for end in peer.between)}
    node_of = dict(zip([device.key for device in gpus], topology.gpus, strict=True))
    assert {frozenset((node_of[device.key], node_of[peer])) for device in gpus for peer, _count in device.nvlinks} == pairs


@pytest.mark.parametrize("name", ONE_HOST)
def test_written_files_keep_to_what_the_parser_of_nccl_takes(name: str) -> None:
    """xml.h: at most 256 elements in a topology file, 16 attributes, names of 255 characters; no XML declaration."""
    text = write(load_topology(name).spec)
    assert not text.startswith("<?xml")
    elements = re.findall(r"<([a-z]+)([^>]*)>", text)
    assert len(elements) <= 256
    assert all(len(re.findall(r"[a-z_]+=", attributes)) <= 16 for _tag, attributes in elements)
    assert {tag for tag, _ in elements} <= {"system", "cpu", "pci", "gpu", "nvlink", "xgmi", "nic", "net"}


def spec_of(nodes: dict[str, dict[str, object]], peers: tuple[object, ...] = ()) -> TopologySpec:
    return TopologySpec.model_validate({"schema": "pcie-sim/topology/1", "name": "box", "nodes": nodes, "peers": peers})


def test_written_bus_ids_fill_the_gaps() -> None:
    nodes = {
        "cpu0": {"kind": "socket", "part": "epyc-turin"},
        "sw0": {"kind": "switch", "part": "generic-gen5-switch", "parent": "cpu0"},
        "gpu0": {"kind": "gpu", "part": "rtx-4090", "parent": "sw0", "bus": "02:00.0", "numa": 2},
        "nic0": {"kind": "nic", "part": "connectx-7", "parent": "sw0", "bus": "02:00.0"},
        "gpu1": {"kind": "gpu", "part": "rtx-4090", "parent": "cpu0", "bus": "01:00.0"},
        "cpu1": {"kind": "socket", "part": "epyc-turin"},
    }
    text = write(spec_of(nodes))
    by = devices(text)
    assert [key for key, device in by.items() if device.kind == "gpu"] == ["0000:01:00.0", "0000:02:00.0"]
    assert len(by) == 4
    assert by["0000:02:00.0"].link == LinkFact(4, 16)  # the card is Gen4
    assert [(cpu.numa, cpu.vendor) for cpu in read(text).box.cpus] == [(2, "AuthenticAMD"), (0, "AuthenticAMD")]
    assert 'speed="' in text
    del nodes["gpu1"]["bus"]  # one without: all are made up, in the order of the file
    text = write(spec_of(nodes))
    assert [device.bus for device in devices(text).values() if device.kind == "gpu"] == sorted(
        str(device.bus) for device in devices(text).values() if device.kind == "gpu"
    )
    assert [device.rank for device in devices(text).values() if device.kind == "gpu"] == [0, 1]


def test_written_numbers_are_the_parts_own() -> None:
    """Ids and CPU numbers of the catalog; the family as NCCL counts it: 26 is 15 + (11 << 4) = 191."""
    text = write(
        spec_of(
            {
                "cpu0": {"kind": "socket", "part": "epyc-turin"},
                "root": {"kind": "switch", "part": "pex890xx", "parent": "cpu0"},
                "leaf": {"kind": "switch", "part": "pex890xx", "parent": "root"},
                "gpu0": {"kind": "gpu", "part": "rtx-4090", "parent": "leaf"},
                "cpu1": {"kind": "socket", "part": "generic-amd"},
            }
        )
    )
    found = read(text)
    assert 'familyid="191"' in text
    assert [(cpu.family, cpu.vendor) for cpu in found.box.cpus] == [(26, "AuthenticAMD"), (None, "AuthenticAMD")]
    assert [(device.role, device.ids) for device in found.box.devices] == [
        ("switch", (0x1000, 0xC030)),
        ("switch", None),  # with ids the two would read as ports of one chip
        (None, (0x10DE, 0x2684)),
    ]


@pytest.mark.parametrize("name", ONE_HOST)
def test_topologies_come_back_through_the_builder(name: str) -> None:
    before = load_topology(name)
    after = from_spec(build_box([read(write(before.spec))]).spec)

    def paths(topology: Topology) -> list[list[str]]:
        return [[topology.path_type(a, b) if a != b else "X" for b in topology.gpus] for a in topology.gpus]

    assert paths(after) == paths(before)
    assert [after.spec.nodes[gpu].part for gpu in after.gpus] == [before.spec.nodes[gpu].part for gpu in before.gpus]
    switches = [sorted(str(node.part) for node in one.spec.nodes.values() if node.kind == "switch") for one in (before, after)]
    assert switches[0] == switches[1]


def test_writing_refuses_several_hosts_and_too_much() -> None:
    two = next(name for name in catalog.topology_names() if name not in ONE_HOST)
    with pytest.raises(InputError, match="2 hosts"):
        write(load_topology(two).spec)
    nodes: dict[str, dict[str, object]] = {"cpu0": {"kind": "socket", "part": "epyc-turin"}}
    nodes |= {f"gpu{i}": {"kind": "gpu", "part": "rtx-4090", "parent": "cpu0"} for i in range(200)}
    with pytest.raises(InputError, match=r"box: 402 elements, but NCCL reads no more than 256"):
        write(spec_of(nodes))


def test_amd_gpus_are_written_in_the_dialect_of_rccl() -> None:
    text = write(load_topology("mi210-2x-milan").spec)
    assert '<system version="2">' in text
    assert [device.name for device in devices(text).values()] == ["gfx90a", "gfx90a"]
    assert from_spec(load_topology("mi210-2x-milan").spec).gpus == ("gpu0", "gpu1")
