"""lspci -vvv: a made-up box in the program's layout; expectations are the values written into its paragraphs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import lspci_verbose
from pcie_sim.importers.build import build_box
from pcie_sim.importers.facts import DeviceFact, GpuFact, LinkFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of


def bridge(bus: str, secondary: str, last: str, role: str, numa: int = 0, acs: str = "-", sta: str = "32GT/s, Width x16") -> str:
    return f"""\
{bus} PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
\tControl: I/O+ Mem+ BusMaster+
\tNUMA node: {numa}
\tBus: primary={bus.split(":")[-2]}, secondary={secondary}, subordinate={last}, sec-latency=0
\tCapabilities: [58] Express (v2) {role}, MSI 00
\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq-
\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
\t\tDevSta:\tCorrErr- NonFatalErr-
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <64us
\t\tLnkSta:\tSpeed {sta}
\t\tLnkCap2: Supported Link Speeds: 2.5-32GT/s
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{acs} CmpltRedir{acs} UpstreamFwd+

"""


def gpu(bus: str, numa: int = 0) -> str:
    return f"""\
{bus} 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)
\tSubsystem: NVIDIA Corporation Device 204e
\tNUMA node: {numa}
\tRegion 0: Memory at 7b000000000 (64-bit, prefetchable) [size=64M]
\tRegion 1: Memory at b0000000 (32-bit, non-prefetchable) [size=512G]
\tRegion 2: Memory at 76000000000 (64-bit, prefetchable) [size=128G]
\tCapabilities: [60] Express (v2) Legacy Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0
\t\tDevCtl:\tCorrErr+
\t\t\tMaxPayload 128 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
\tCapabilities: [100 v1] Device Serial Number 12-34-56-78-9a-bc-de-f0

"""


AMD = "Advanced Micro Devices, Inc. [AMD]"
HOST = "{} Host bridge: Advanced Micro Devices, Inc. [AMD] Device 153a\n\tControl: I/O- Mem-\n\tNUMA node: {}\n\n"
PARTS = [
    HOST.format("00:00.0", 0),
    bridge("00:01.1", "01", "04", "Root Port (Slot+)", acs="+"),
    bridge("01:00.0", "02", "04", "Upstream Port"),
    bridge("02:00.0", "03", "03", "Downstream Port (Slot+)", sta="2.5GT/s, Width x16"),
    gpu("03:00.0"),
    bridge("02:01.0", "04", "04", "Downstream Port (Slot+)"),
    gpu("04:00.0"),
    HOST.format("80:00.0", 1),
    bridge("80:01.1", "81", "81", "Root Port (Slot+)", numa=1),
    "81:00.0 Ethernet controller: Intel Corporation Ethernet Controller X710 (rev 02)\n\tNUMA node: 1\n"
    "\t\tLnkCap:\tPort #0, Speed 8GT/s, Width x8\n\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (ok)\n\n",
]
BOX = "".join(PARTS)


def read(text: str) -> Imported:
    return lspci_verbose.read(source_of(text, "pci.txt"))


def sniff(text: str) -> int | None:
    return lspci_verbose.sniff(source_of(text, "pci.txt"))


def by_key(found: Imported) -> dict[str, DeviceFact]:
    return {device.key: device for device in found.box.devices}


def shape(found: Imported) -> dict[str, tuple[str, str | None, str | None]]:
    return {device.key: (device.kind, device.role, device.parent) for device in found.box.devices}


def kinds(found: Imported) -> list[str]:
    return [remark.kind for remark in found.remarks]


TREE = {
    "0000:00:01.1": ("root_port", None, None),
    "0000:01:00.0": ("bridge", "upstream", "0000:00:01.1"),
    "0000:02:00.0": ("bridge", "downstream", "0000:01:00.0"),
    "0000:03:00.0": ("gpu", None, "0000:02:00.0"),
    "0000:02:01.0": ("bridge", "downstream", "0000:01:00.0"),
    "0000:04:00.0": ("gpu", None, "0000:02:01.0"),
    "0000:80:01.1": ("root_port", None, None),
    "0000:81:00.0": ("nic", None, "0000:80:01.1"),
}


def test_tree_and_fields() -> None:
    found = read(BOX)
    assert shape(found) == TREE
    devices = by_key(found)
    card = devices["0000:03:00.0"]
    assert (card.link, card.link_max) == (LinkFact(1, 8), LinkFact(5, 16))
    assert (card.max_payload, card.max_payload_cap, card.bar1_bytes) == (128, 256, 128 * 2**30)
    assert (card.ids, card.subsystem, card.name, card.numa) == ((0x10DE, 0x2BB5), (0x10DE, 0x204E), "NVIDIA Corporation Device 2bb5", 0)
    port = devices["0000:02:00.0"]
    assert (port.link, port.link_max, port.acs_redirect) == (LinkFact(1, 16), LinkFact(5, 16), False)
    assert (port.max_payload, port.max_payload_cap) == (256, 512)
    assert devices["0000:00:01.1"].acs_redirect is True
    assert [(cpu.key, cpu.numa) for cpu in found.box.cpus] == [("numa0", 0), ("numa1", 1)]
    assert (devices["0000:00:01.1"].cpu, devices["0000:80:01.1"].cpu, card.cpu) == ("numa0", "numa1", None)
    assert kinds(found) == ["ignored"]
    assert "9a-bc" not in repr(found)
    assert sniff("# box\n" + BOX) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda: "".join(reversed(PARTS)),
        lambda: "\n".join("> " + line for line in BOX.splitlines()),
        lambda: "\n".join("log: " + line for line in BOX.splitlines()),
        lambda: "\n".join(line.strip() for line in BOX.splitlines()),
        lambda: BOX.replace("\n\n", "\n"),
        lambda: BOX.replace("\t", "    ").replace("\n", "\r\n"),
        lambda: "```\n$ sudo lspci -vvv\n" + BOX + "```\nthat is all: really\n",
        lambda: re.sub(r"^([0-9a-f]{2}:)", r"0000:\1", BOX, flags=re.MULTILINE),
        lambda: re.sub(r"\tCapabilities: \[58\].*\n", "", BOX),
    ],
)
def test_damage_that_loses_no_parent(damage: object) -> None:
    text = damage()  # type: ignore[operator]
    assert sniff(text) is not None
    assert shape(read(text)) == TREE


def test_numbers_in_brackets_and_numbers_only() -> None:
    text = BOX.replace("3D controller: NVIDIA Corporation Device 2bb5", "3D controller [0302]: NVIDIA Corporation GB202GL [10de:2bb5]")
    text = text.replace("PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch", "PCI bridge [0604]: Broadcom / LSI PEX890xx [1000:c030]")
    devices = by_key(read(text))
    assert devices["0000:03:00.0"].ids == (0x10DE, 0x2BB5)
    assert devices["0000:03:00.0"].name == "NVIDIA Corporation GB202GL"
    assert devices["0000:01:00.0"].ids == (0x1000, 0xC030)
    bare = BOX.replace("3D controller: NVIDIA Corporation Device 2bb5", "0302: 10de:2bb5")
    bare = bare.replace("PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch", "0604: 1000:c030")
    devices = by_key(read(bare))
    assert (devices["0000:04:00.0"].kind, devices["0000:04:00.0"].ids) == ("gpu", (0x10DE, 0x2BB5))
    assert devices["0000:02:01.0"].role == "downstream"


def test_domains_are_kept_apart() -> None:
    other = re.sub(r"^([0-9a-f]{2}:)", r"10000:\1", "".join(PARTS[:7]), flags=re.MULTILINE)
    found = shape(read(BOX + other))
    assert found["10000:03:00.0"][2] == "10000:02:00.0"
    assert found["0000:03:00.0"] == TREE["0000:03:00.0"]


def test_access_denied_is_said_once_and_roles_come_from_places() -> None:
    text = re.sub(r"\tCapabilities: \[58\](.*\n)+?\n", "\tCapabilities: <access denied>\n\n", BOX)
    text = re.sub(r"\tCapabilities: \[60\](.*\n)+?\n", "\tCapabilities: <access denied>\n\n", text)
    found = read(text)
    assert shape(found) == TREE
    assert by_key(found)["0000:03:00.0"].link is None
    denied = [remark for remark in found.remarks if "as root" in remark.text]
    assert [(remark.kind, remark.line) for remark in denied] == [("cut", 5)]


def test_a_missing_port_and_a_text_that_ends_early() -> None:
    found = read("".join(part for place, part in enumerate(PARTS) if place != 3))
    assert shape(found)["0000:03:00.0"] == ("gpu", None, "0000:01:00.0")
    assert any("right above 0000:03:00.0 is not listed" in remark.text for remark in found.remarks)
    found = read(BOX[: BOX.index("04:00.0 3D") + 120])
    assert any(remark.kind == "cut" and "inside 0000:04:00.0" in remark.text for remark in found.remarks)
    found = read("".join(PARTS[4:]))
    assert any(remark.kind == "cut" and "no bridge leads to 0000:03:00.0" in remark.text for remark in found.remarks)


def test_board_graphics_and_integrated_graphics_are_no_gpus() -> None:
    more = (
        "00:02.0 VGA compatible controller: Intel Corporation Raptor Lake-S GT1 [UHD Graphics 770] (rev 04)\n\tControl: I/O+\n\n"
        + bridge("00:08.1", "12", "12", "Root Port (Slot-)")
        + "12:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Raphael (rev c1)\n\tControl: I/O+\n\n"
        "12:00.2 Encryption controller: Advanced Micro Devices, Inc. [AMD] Family 19h PSP/CCP\n\tControl: I/O+\n\n"
        + bridge("50:03.3", "51", "52", "Root Port (Slot-)")
        + "51:00.0 PCI bridge: ASPEED Technology, Inc. AST1150 PCI-to-PCI Bridge (rev 06)\n"
        "\tBus: primary=51, secondary=52, subordinate=52, sec-latency=0\n"
        "\tCapabilities: [80] Express (v2) PCI-Express to PCI/PCI-X Bridge\n\n"
        "52:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 52)\n\tControl: I/O+\n\n"
    )
    found = read(BOX + more)
    assert {key: shape(found)[key][:2] for key in ("0000:00:02.0", "0000:12:00.0", "0000:52:00.0", "0000:51:00.0")} == {
        "0000:00:02.0": ("other", None),
        "0000:12:00.0": ("other", None),
        "0000:52:00.0": ("other", None),
        "0000:51:00.0": ("bridge", None),
    }
    assert any("integrated graphics" in remark.text for remark in found.remarks)
    arc = "03:00.0 VGA compatible controller: Intel Corporation Battlemage G21 [Arc B580]"
    assert shape(read(BOX.replace("03:00.0 3D controller: NVIDIA Corporation Device 2bb5", arc)))["0000:03:00.0"][0] == "gpu"
    amd = "03:00.0 Display controller: Advanced Micro Devices, Inc. [AMD/ATI] Aldebaran/MI200 [Instinct MI210]"
    assert shape(read(BOX.replace("03:00.0 3D controller: NVIDIA Corporation Device 2bb5", amd)))["0000:03:00.0"][0] == "gpu"


def test_a_plain_list_and_a_list_of_gpus_alone() -> None:
    plain = (
        "00:00.0 Host bridge: Intel Corporation Device 1237\n41:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2331] (rev a1)\n"
    )
    plain += "01:00.0 VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)\n"
    plain += "01:00.1 Audio device: NVIDIA Corporation x\n"
    found = read(plain + "user@host$ exit\n")
    assert found.box.devices == ()
    assert found.box.gpus == (
        GpuFact(0, "NVIDIA Corporation AD102 [GeForce RTX 4090]", "0000:01:00.0"),
        GpuFact(1, "NVIDIA Corporation GH100", "0000:41:00.0"),
    )
    assert kinds(found) == ["ignored", "assumed"]
    only = read(gpu("41:00.0", 1) + gpu("01:00.0"))
    assert [(one.bus, one.link, one.device_gen, one.numa) for one in only.box.gpus] == [
        ("0000:01:00.0", LinkFact(1, 8), 5, (0,)),
        ("0000:41:00.0", LinkFact(1, 8), 5, (1,)),
    ]
    virtual = read(gpu("00:06.0") + gpu("00:07.0"))  # a virtual machine: GPUs on the root bus
    assert shape(virtual) == {"0000:00:06.0": ("gpu", None, None), "0000:00:07.0": ("gpu", None, None)}


def test_doubled_devices_and_loops() -> None:
    found = read(BOX + gpu("03:00.0").replace("128G", "1G"))
    assert by_key(found)["0000:03:00.0"].bar1_bytes == 128 * 2**30
    assert "conflict" in kinds(found)
    loop = bridge("01:00.0", "02", "02", "Upstream Port") + bridge("02:00.0", "01", "02", "Downstream Port") + gpu("02:01.0")
    found = read(loop)
    assert "conflict" in kinds(found)
    for device in found.box.devices:
        seen = set()
        at: str | None = device.key
        while at is not None:
            assert at not in seen
            seen.add(at)
            at = by_key(found)[at].parent


def test_no_numa_nodes_gives_a_cpu_for_each_root_bus() -> None:
    found = read(re.sub(r"\tNUMA node: .\n", "", BOX))
    assert [(cpu.key, cpu.numa) for cpu in found.box.cpus] == [("bus-0000:00", None), ("bus-0000:80", None)]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("00:1f.2 SATA controller: Intel Corporation x\n00:1f.3 SMBus: Intel Corporation y\n", 1, "neither a GPU nor a bridge"),
        ("x\n00:00.0 PCI bridge: Intel Corporation x\n00:1f.3 SMBus: Intel Corporation y\n", 2, "without a GPU"),
        ("hello\n", 1, "no device of an lspci listing"),
    ],
)
def test_refused(text: str, line: int, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert str(caught.value).startswith(f"pci.txt:{line}: ")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "at 12:30:01.1 Something: happened\nat 12:30:02.1 Something: happened\n",
        "-[0000:00]-+-00.0  Intel Corporation x\n           +-01.0-[01]----00.0  NVIDIA Corporation y\n",
        "01:00.0 is the GPU\n02:00.0 is another\n",
        "[1.0] pci 0000:01:00.0: [10de:2bb5] type 00 class 0x030200\n" * 3,
        "|   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                    0 |\n" * 2,
    ],
)
def test_does_not_fire_on_other_texts(text: str) -> None:
    assert sniff(text) is None


@given(st.text())
def test_any_text(text: str) -> None:
    _only_input_errors(text)


@given(st.data())
def test_any_cut_hole_and_order(data: st.DataObject) -> None:
    text = "".join(data.draw(st.permutations(PARTS)))
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 200)))
    _only_input_errors(text[:first] + data.draw(st.text(max_size=5)) + text[last:])


def _only_input_errors(text: str) -> None:
    try:
        source = source_of(text, "any.txt")
        line = lspci_verbose.sniff(source)
        assert line is None or 1 <= line <= len(source.lines)
        found = lspci_verbose.read(source)
    except InputError:
        return
    keys = by_key(found)
    assert len(keys) == len(found.box.devices)
    assert all(device.parent is None or device.parent in keys for device in found.box.devices)
    cpus = {cpu.key for cpu in found.box.cpus}
    assert all((device.cpu in cpus) == (device.parent is None) for device in found.box.devices)


@pytest.mark.parametrize(
    "text",
    [
        "".join(bridge(f"{i:04x}:01:00.0", "02", "ff", "Upstream Port") for i in range(6_000)),
        "".join(bridge(f"{i % 256:02x}:{i // 256:02x}.0", f"{(i * 7) % 256:02x}", "ff", "Root Port") for i in range(4_000)),
        ("00:01.1 PCI bridge: " + "x" * 19_000 + "\n") * 500,
        ("00:01.1 " + "A" * 590 + "\n") * 20_000,
        "00:00.0 Host bridge: x\n" * 100_000,
        "01:00.0 3D controller: NVIDIA Corporation x\n" + "\tRegion 1: Memory at " + "prefetchable)" * 1_000 + "\n",
        "01:00.0 3D controller: NVIDIA Corporation x\n" + "\t\tMaxPayload 99999999 bytes\n\tNUMA node: 99999999999999\n" * 1000,
    ],
)
def test_hostile_sizes_end_soon(text: str) -> None:
    _only_input_errors(text)


def test_the_processor_by_its_host_bridge() -> None:
    assert {cpu.name for cpu in read(BOX).box.cpus} == {f"{AMD} Device 153a"}
    found = read(BOX.replace(f"{AMD} Device 153a", f"{AMD} Turin Root Complex"))
    assert {(cpu.vendor, cpu.name, cpu.of_device) for cpu in found.box.cpus} == {(AMD, f"{AMD} Turin Root Complex", True)}
    assert build_box([found]).spec.nodes["cpu0"].part == "epyc-turin"


def test_a_chipset_by_its_number() -> None:
    """1022:43f4 and 1022:43f5: pci.ids, 600 Series Chipset PCIe Switch."""
    text = BOX.replace("01:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch", f"01:00.0 PCI bridge: {AMD} Device [1022:43f4]")
    assert text != BOX
    nodes = build_box([read(text)]).spec.nodes
    assert [node.part for node in nodes.values() if node.kind == "switch"] == ["amd-chipset-am5"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("secondary=02, subordinate=04", "secondary=04, subordinate=02", "0000:01:00.0: buses 04-02, an end before the beginning"),
        (
            "secondary=03, subordinate=03",
            "secondary=03, subordinate=05",
            "0000:01:00.0 (buses 02-04) and 0000:02:00.0 (buses 03-05) cannot",
        ),
        (
            "secondary=04, subordinate=04",
            "secondary=03, subordinate=03",
            "0000:02:00.0 (buses 03-03) and 0000:02:01.0 (buses 03-03) cannot",
        ),
        (
            "secondary=81, subordinate=81",
            "secondary=04, subordinate=04",
            "0000:02:01.0 (buses 04-04) and 0000:80:01.1 (buses 04-04) cannot",
        ),
    ],
)
def test_bus_ranges_that_cannot_be(old: str, new: str, text: str) -> None:
    assert BOX.count(old) == 1
    found = read(BOX.replace(old, new))
    assert [remark.text.startswith(text) for remark in found.remarks if remark.kind == "conflict"] == [True]
    assert not any(remark.kind == "conflict" for remark in read(BOX).remarks)
