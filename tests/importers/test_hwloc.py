"""hwloc's XML, v1 to v3. Shapes are those of open-mpi/hwloc's tests/hwloc/xml; rates are hwloc's own formula (pci-common.c)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import hwloc
from pcie_sim.importers.facts import DeviceFact, LinkFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
INFOS = (
    '<info name="CPUVendor" value="GenuineIntel"/><info name="CPUFamilyNumber" value="6"/>'
    '<info name="CPUModelNumber" value="85"/><info name="CPUModel" value="Intel(R) Xeon(R) Platinum 8174"/>'
)


def obj(kind: str, inside: str = "", **attrs: str) -> str:
    return f'<object type="{kind}" {" ".join(f"{k}={v!r}" for k, v in attrs.items())}>\n{inside}</object>\n'


def info(name: str, value: str) -> str:
    return f'<info name="{name}" value="{value}"/>\n'


def host(inside: str, pci: str = "0000:[00-ff]") -> str:
    return obj("Bridge", inside, bridge_type="0-1", depth="0", bridge_pci=pci)


def bridge(bus: str, inside: str = "", ids: str = "8086:2030", speed: str = "15.753846", name: str = "") -> str:
    said = info("PCIDevice", name) if name else ""
    kind = f"0604 [{ids}] [0000:0000] 04 00"
    return obj("Bridge", said + inside, bridge_type="1-1", bridge_pci="0000:[01-ff]", pci_busid=bus, pci_type=kind, pci_link_speed=speed)


def card(bus: str, code: str = "0302", ids: str = "10de:1db8", inside: str = "", speed: str = "15.753846") -> str:
    return obj("PCIDev", inside, pci_busid=bus, pci_type=f"{code} [{ids}] [10de:131d] a1 00", pci_link_speed=speed)


def nvml(number: int) -> str:
    secret = info("NVIDIASerial", "0324018012345") + info("NVIDIAUUID", "GPU-4d9e5f12-aaaa") + info("GPUModel", "Tesla V100-SXM3-32GB-H")
    return obj("OSDev", secret, name=f"nvml{number}", osdev_type="12")


def package(number: int, inside: str, numas: tuple[int, ...] | None = None) -> str:
    nodes = (number,) if numas is None else numas
    mask = f"0x{0xFF << 8 * number:08x}"
    memory = "".join(
        obj("NUMANode", os_index=str(node), cpuset=mask if len(nodes) == 1 else f"0x{0xF << 8 * number + 4 * place:x}", local_memory="1")
        for place, node in enumerate(nodes)
    )
    return obj("Package", INFOS + memory + inside, os_index=str(number), cpuset=mask)


def machine(inside: str, version: str = ' version="3.0"', after: str = "") -> str:
    return f"{HEAD}<topology{version}>\n{obj('Machine', inside, os_index='0', cpuset='0x0000ffff')}{after}</topology>\n"


SWITCH = bridge(
    "0000:2b:00.0",
    bridge(
        "0000:2c:00.0",
        bridge(
            "0000:2d:04.0",
            bridge(
                "0000:32:00.0",
                bridge("0000:33:00.0", card("0000:34:00.0", inside=nvml(0)), "10b5:9781")
                + bridge("0000:33:10.0", card("0000:36:00.0", inside=nvml(1)), "10b5:9781"),
                "10b5:9781",
            ),
            "10b5:9781",
        )
        + bridge("0000:2d:10.0", card("0000:61:00.0", "0680", "10de:1ac2"), "10b5:9781"),
        "10b5:9781",
    ),
)
"""The half of a DGX-2 socket: root port, switch, switch, two GPUs; an NVSwitch beside them."""
BOX = machine(
    package(0, host(SWITCH))
    + package(
        1,
        host(bridge("0000:ae:00.0", card("0000:af:00.0", "0207", "15b3:1021", obj("OSDev", name="mlx5_0", osdev_type="32"), "63.015385"))),
    ),
    after=info("Architecture", "x86_64") + info("HostName", "secret-host"),
)


def read(text: str) -> Imported:
    return hwloc.read(source_of(text, "box.xml"))


def devices(text: str) -> dict[str, DeviceFact]:
    return {device.key: device for device in read(text).box.devices}


def test_bridges_get_their_roles_by_nesting() -> None:
    found = [(device.key, device.kind, device.role, device.parent) for device in read(BOX).box.devices]
    assert found == [
        ("0000:2b:00.0", "root_port", None, None),
        ("0000:2c:00.0", "bridge", "upstream", "0000:2b:00.0"),
        ("0000:2d:04.0", "bridge", "downstream", "0000:2c:00.0"),
        ("0000:32:00.0", "bridge", "upstream", "0000:2d:04.0"),
        ("0000:33:00.0", "bridge", "downstream", "0000:32:00.0"),
        ("0000:34:00.0", "gpu", None, "0000:33:00.0"),
        ("0000:33:10.0", "bridge", "downstream", "0000:32:00.0"),
        ("0000:36:00.0", "gpu", None, "0000:33:10.0"),
        ("0000:2d:10.0", "bridge", "downstream", "0000:2c:00.0"),
        ("0000:61:00.0", "other", None, "0000:2d:10.0"),
        ("0000:ae:00.0", "root_port", None, None),
        ("0000:af:00.0", "nic", None, "0000:ae:00.0"),
    ]


def test_gpus_cards_cpus_and_host() -> None:
    found, by = read(BOX), devices(BOX)
    gpu = by["0000:36:00.0"]
    assert (gpu.gpu_index, gpu.name, gpu.ids, gpu.subsystem, gpu.numa) == (
        1,
        "Tesla V100-SXM3-32GB-H",
        (0x10DE, 0x1DB8),
        (0x10DE, 0x131D),
        0,
    )
    assert (by["0000:af:00.0"].name, by["0000:af:00.0"].numa, by["0000:ae:00.0"].cpu) == ("mlx5_0", 1, "numa1")
    assert [(cpu.key, cpu.numa, cpu.package, cpu.cpus) for cpu in found.box.cpus] == [
        ("numa0", 0, 0, ((0, 7),)),
        ("numa1", 1, 1, ((8, 15),)),
    ]
    assert {(cpu.arch, cpu.vendor, cpu.family, cpu.model) for cpu in found.box.cpus} == {("x86_64", "GenuineIntel", 6, 85)}
    assert found.box.host is not None
    assert (found.box.host.sockets, found.box.host.numa_nodes, found.box.host.cpu_name) == (2, 2, "Intel(R) Xeon(R) Platinum 8174")
    assert found.details == {"hwloc": {"version": "3.0"}}


def test_nothing_that_identifies_the_machine_is_kept() -> None:
    kept = repr(read(BOX))
    for secret in ("0324018012345", "4d9e5f12", "secret-host"):
        assert secret not in kept


@pytest.mark.parametrize(
    ("rate", "link"),
    [
        ("15.753846", None),  # Gen3 x16, Gen4 x8 or Gen5 x4
        ("31.507692", None),  # Gen4 x16 or Gen5 x8
        ("63.015385", LinkFact(5, 16)),
        ("121.000000", LinkFact(6, 16)),
        ("0.250000", LinkFact(1, 1)),
        ("8.000000", LinkFact(2, 16)),
        ("4.000000", None),  # Gen1 x16 or Gen2 x8, and not Gen3 x4, which is 3.94
        ("0.000000", None),
        ("17.3", None),
        ("-4", None),
        ("nan", None),
        ("9" * 400, None),
    ],
)
def test_a_rate_is_a_link_only_where_one_pair_has_it(rate: str, link: LinkFact | None) -> None:
    text = machine(package(0, host(bridge("0000:00:01.0", card("0000:01:00.0", speed=rate)))))
    assert devices(text)["0000:01:00.0"].link == link


def test_what_a_rate_may_be_is_said_once() -> None:
    [remark] = read(BOX).remarks
    assert remark.text == "pci_link_speed 15.75 GB/s may be Gen5 x4 or Gen4 x8 or Gen3 x16: left open (2 GPUs)"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (bridge("0000:00:1c.0", card("0000:05:00.0", "0300", "1a03:2000")), "other", "a server's own VGA chip"),
        (bridge("0000:00:1e.0", card("0000:05:03.0", "0300", "102b:0532")), "other", "a server's own VGA chip"),
        (card("0000:00:02.0", "0300", "8086:4692"), "other", "integrated or board graphics"),
        (
            bridge("0000:00:1e.0", card("0000:01:03.0", "0300", "1002:515e"), name="82801 PCI Bridge"),
            "other",
            "integrated or board graphics",
        ),
        (
            bridge("0000:00:1e.0", card("0000:01:00.0", "0300", "1002:515e"), name="82801 PCI Bridge"),
            "other",
            "integrated or board graphics",
        ),
        (
            bridge("0000:00:08.1", card("0000:0d:00.0", "0300", "1002:164e"), name="Family 17h Internal PCIe GPP Bridge 0 to bus"),
            "other",
            "integrated or board graphics",
        ),
        (bridge("0000:00:01.0", card("0000:01:00.0", "0300", "1002:744c"), name="PCI Express Root Port 1"), "gpu", "taken for a GPU"),
        (bridge("0000:00:01.0", card("0000:01:00.0", "0300", "8086:e223", obj("OSDev", name="ze0", osdev_type="12"))), "gpu", ""),
        (bridge("0000:00:01.0", card("0000:01:00.0", "0380", "1002:740f", obj("OSDev", name="rsmi0", osdev_type="12"))), "gpu", ""),
        (bridge("0000:00:01.0", card("0000:01:00.0", "1200", "1002:74a1")), "gpu", ""),
        (card("0000:00:06.0", "0302", "10de:2335"), "gpu", ""),
        (bridge("0000:00:01.0", card("0000:01:00.0", "0300", "10de:2684")), "gpu", ""),
        (bridge("0000:00:01.0", card("0000:01:00.0", "0c06", "15b3:6746")), "nic", ""),
        (bridge("0000:00:01.0", card("0000:01:00.0", "0000", "0000:0000")), "other", ""),
    ],
)
def test_which_display_controllers_are_gpus(text: str, kind: str, said: str) -> None:
    found = read(machine(package(0, host(text))))
    assert found.box.devices[-1].kind == kind
    assert any(said in remark.text for remark in found.remarks) or not said


def test_a_lone_pci_bridge_is_no_switch() -> None:
    text = machine(package(0, host(bridge("0000:00:1c.0", bridge("0000:04:00.0", card("0000:05:00.0", "0300", "1a03:2000"), "1a03:1150")))))
    assert [(device.kind, device.role) for device in read(text).box.devices] == [("root_port", None), ("bridge", None), ("other", None)]


def test_two_numa_nodes_in_a_package() -> None:
    """Sub-NUMA clusters: I/O hangs on the package; where it hangs on one node, hwloc puts it into a Group or Die around that node."""
    inside = host(bridge("0000:00:01.0", card("0000:01:00.0")))
    group = obj("Group", host(bridge("0000:40:01.0", card("0000:41:00.0"))), cpuset="0x000000f0")
    text = machine(package(0, inside + group, numas=(0, 1)) + package(1, "", numas=(2, 3)))
    found, by = read(text), devices(text)
    assert (by["0000:00:01.0"].cpu, by["0000:01:00.0"].numa) == ("package0", None)
    assert (by["0000:40:01.0"].cpu, by["0000:41:00.0"].numa) == ("numa1", 1)
    assert [(cpu.key, cpu.numa, cpu.package) for cpu in found.box.cpus] == [
        ("numa0", 0, 0),
        ("numa1", 1, 0),
        ("numa2", 2, 1),
        ("numa3", 3, 1),
        ("package0", None, 0),
    ]


def test_io_of_a_group_of_packages_and_of_the_machine() -> None:
    groups = "".join(
        obj("Group", package(2 * g, "") + package(2 * g + 1, "") + host(bridge(f"0000:{g}0:01.0", card(f"0000:{g}1:00.0"))), cpuset=cpus)
        for g, cpus in enumerate(("0x0000ffff", "0xffff0000"))
    )
    text = machine(groups + host(bridge("0000:80:01.0", card("0000:81:00.0")))).replace("cpuset='0x0000ffff'", "cpuset='0xffffffff'", 1)
    found, by = read(text), devices(text)
    assert [by[f"0000:{g}0:01.0"].cpu for g in (0, 1)] == ["package0", "package2"]
    assert by["0000:80:01.0"].cpu is None
    assert {(remark.kind, remark.line is not None) for remark in found.remarks} == {("assumed", True), ("note", True), ("note", False)}


def test_pci_locality_names_the_cpus_of_a_bus() -> None:
    inside = package(0, host(bridge("0000:00:01.0", card("0000:01:00.0")))) + package(1, "")
    moved = machine(inside, after='<pci_locality domain="0x0" bus_min="0x0" bus_max="0x9" cpuset="0x0000ff00"/>\n')
    assert devices(moved)["0000:00:01.0"].cpu == "numa1"
    assert any("pci_locality" in remark.text for remark in read(moved).remarks)
    same = machine(inside, after='<pci_locality domain="0x0" bus_min="0x0" bus_max="0x9" cpuset="0x000000ff"/>\n')
    assert devices(same)["0000:00:01.0"].cpu == "numa0"
    other = machine(inside, after='<pci_locality domain="0x1" bus_min="0x0" bus_max="0x9" cpuset="0x0000ff00"/>\n')
    assert devices(other)["0000:00:01.0"].cpu == "numa0"


def test_version_1_files() -> None:
    """hwloc 1: NUMANode around Socket, no version, no prog-if in pci_type."""
    gpu = obj("PCIDev", pci_busid="0000:06:00.0", pci_type="0302 [10de:06d2] [00de:0030] a3", pci_link_speed="8.000000")
    socket = obj("Socket", info("CPUModel", "Intel(R) Xeon(R) CPU E5-2650"), os_index="0", cpuset="0x0000ffff")
    inside = obj("NUMANode", socket + host(bridge("0000:00:07.0", gpu)), os_index="0", cpuset="0x0000ffff", local_memory="1")
    text = machine(inside, version="").replace("hwloc2.dtd", "hwloc.dtd")
    found = read(text)
    assert [(device.kind, device.link, device.numa) for device in found.box.devices] == [
        ("root_port", None, 0),
        ("gpu", LinkFact(2, 16), 0),
    ]
    assert [(cpu.key, cpu.package, cpu.name) for cpu in found.box.cpus] == [("numa0", 0, "Intel(R) Xeon(R) CPU E5-2650")]
    assert found.details["hwloc"]["version"] == "1"


def test_a_machine_without_numa_nodes_has_its_packages() -> None:
    text = machine(obj("Package", host(card("0000:01:00.0")), os_index="0", cpuset="0x0000ffff"))
    assert [(cpu.key, cpu.numa, cpu.package) for cpu in read(text).box.cpus] == [("package0", None, 0)]
    assert devices(text)["0000:01:00.0"].cpu == "package0"
    bare = read(machine(host(card("0000:01:00.0"))))
    assert (bare.box.cpus, bare.box.host, bare.box.devices[0].cpu) == ((), None, None)


def test_numbers_of_nvml_go_before_those_of_cuda() -> None:
    names = obj("OSDev", name="cuda1", osdev_type="12") + nvml(0)
    found = read(machine(package(0, host(card("0000:01:00.0", inside=names)))))
    assert found.box.devices[0].gpu_index == 0
    assert any("differently" in remark.text for remark in found.remarks)


def test_odd_entries_are_counted_not_repeated() -> None:
    inside = host(card("0000:01:00.0") + card("0000:01:00.0") + card("0000:01:00.0") + card("none") + card("none"))
    inside += obj("Bridge", card("0000:09:00.0"), bridge_type="1-2")
    found = read(machine(package(0, inside), after='<distances2hetero name="NVLinkBandwidth"/>') + "trailing words")
    assert len(found.box.devices) == 3
    texts = " / ".join(remark.text for remark in found.remarks)
    for said in (
        "before: the first is kept (2 times)",
        "without a readable pci_busid (2 times)",
        "does not lead to PCI",
        "NVLink",
        "after the end",
    ):
        assert said in texts


def test_of_several_machines_the_first_is_read() -> None:
    text = f"<topology>{obj('System', obj('Machine', card('0000:01:00.0')) + obj('Machine', card('0000:02:00.0')))}</topology>"
    found = read(text)
    assert [device.key for device in found.box.devices] == ["0000:01:00.0"]
    assert any("2 machines" in remark.text for remark in found.remarks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<topology>\n<sockets/></topology>", r'box\.xml:1: a <topology> without <object type="Machine">'),
        ("<system/>", r"box\.xml:1: the root tag is <system>"),
        (BOX[:1500], r"box\.xml:\d+: the file ends inside <\w+> \(line \d+\): it is cut"),
        (machine("".join(card(f"{i >> 8:04x}:{i & 255:02x}:00.0") for i in range(600))), r"box\.xml:\d+: more than 512 GPUs"),
        (
            machine("".join(card(f"{i >> 8:04x}:{i & 255:02x}:00.0", "0108") for i in range(4200))),
            r"box\.xml:\d+: more than 4096 PCI devices",
        ),
        (machine("".join(obj("NUMANode", os_index=str(i), cpuset="0x1") for i in range(1100))), r"box\.xml:\d+: more than 1024 packages"),
        (HEAD.replace('SYSTEM "hwloc2.dtd"', "[<!ENTITY a 'b'>]") + "<topology/>", r"box\.xml:2: the DOCTYPE holds declarations"),
    ],
)
def test_refusals_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


def test_only_its_own_root_is_recognised() -> None:
    assert hwloc.sniff(source_of(BOX, "f")) == 3
    assert hwloc.sniff(source_of("<topologies/>", "f")) is None


PUT = st.text(max_size=20) | st.sampled_from(['cpuset="0xf...f"', '<object type="Bridge">', "-1", "0x", ",,", "9" * 500, "[0000:"])


@given(st.integers(0, len(BOX)), st.integers(0, 60), PUT)
def test_damaged_files_are_read_or_refused(at: int, length: int, put: str) -> None:
    text = BOX[:at] + put + BOX[at + length :]
    if not text.strip():
        return
    source = source_of(text, "box.xml")
    hwloc.sniff(source)
    message = "box.xml"
    try:
        hwloc.read(source)
    except InputError as exc:
        message = str(exc)
    assert message.startswith("box.xml")


VALUES = st.sampled_from(
    ["", "0", "-1", "0-1", "1-1", "0xf...f", ",,0x0", "9" * 500, "0000:01:00.0", "0302 [10de:1db8] [10de:131d] a1", "15.75", "nan", "cuda0"]
)
NAMES = ("bridge_type", "pci_busid", "pci_type", "pci_link_speed", "os_index", "cpuset", "name", "value", "osdev_type")
PIECE = st.tuples(
    st.sampled_from(["Machine", "Package", "Socket", "NUMANode", "Group", "Bridge", "PCIDev", "OSDev", "PU"]),
    st.dictionaries(st.sampled_from(NAMES), VALUES),
)


@given(st.recursive(PIECE.map(lambda piece: (piece, [])), lambda inner: st.tuples(PIECE, st.lists(inner, max_size=4)), max_leaves=12))
def test_any_nesting_with_any_values_is_read_or_refused(tree: object) -> None:
    def text(node: object) -> str:
        (kind, attrs), inner = node  # type: ignore[misc]
        return obj(kind, "".join(map(text, inner)), **attrs)  # type: ignore[has-type]

    message = "box.xml"
    try:
        read(machine(text(tree)))
    except InputError as exc:
        message = str(exc)
    assert message.startswith("box.xml")
