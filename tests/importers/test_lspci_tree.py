"""lspci -t: made-up trees in the program's drawing; expectations are the parents that the drawing shows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.catalog import identify
from pcie_sim.errors import InputError
from pcie_sim.importers import lspci_tree, lspci_verbose
from pcie_sim.importers.build import build_box
from pcie_sim.importers.facts import DeviceFact
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.source import source_of

BOX = r"""
-+-[0000:80]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
 |           +-01.1-[81-84]----00.0-[82-84]--+-00.0-[83]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |           |                               \-01.0-[84]--+-00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
 |           |                                            \-00.1  NVIDIA Corporation AD102 High Definition Audio Controller
 |           \-07.1-[85]--
 \-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
             +-01.1-[01]----00.0  NVIDIA Corporation Device 2bb5
             \-03.1-[02-03]----00.0-[03]----00.0  ASPEED Technology, Inc. ASPEED Graphics Family
"""
TREE = {
    "0000:80:01.1": ("root_port", None, None),
    "0000:81:00.0": ("bridge", "upstream", "0000:80:01.1"),
    "0000:82:00.0": ("bridge", "downstream", "0000:81:00.0"),
    "0000:83:00.0": ("nic", None, "0000:82:00.0"),
    "0000:82:01.0": ("bridge", "downstream", "0000:81:00.0"),
    "0000:84:00.0": ("gpu", None, "0000:82:01.0"),
    "0000:80:07.1": ("root_port", None, None),
    "0000:00:01.1": ("root_port", None, None),
    "0000:01:00.0": ("gpu", None, "0000:00:01.1"),
    "0000:00:03.1": ("root_port", None, None),
    "0000:02:00.0": ("bridge", None, "0000:00:03.1"),
}


def read(text: str) -> Imported:
    return lspci_tree.read(source_of(text, "tree.txt"))


def sniff(text: str) -> int | None:
    return lspci_tree.sniff(source_of(text, "tree.txt"))


def by_key(found: Imported) -> dict[str, DeviceFact]:
    return {device.key: device for device in found.box.devices}


def shape(found: Imported) -> dict[str, tuple[str, str | None, str | None]]:
    return {device.key: (device.kind, device.role, device.parent) for device in found.box.devices}


def kinds(found: Imported) -> list[str]:
    return [remark.kind for remark in found.remarks]


def test_two_root_buses_a_switch_and_a_card_of_two_functions() -> None:
    found = read(BOX)
    assert shape(found) == TREE
    assert [cpu.key for cpu in found.box.cpus] == ["bus-0000:80", "bus-0000:00"]
    devices = by_key(found)
    assert devices["0000:01:00.0"].ids == (0x10DE, 0x2BB5)
    assert devices["0000:84:00.0"].name == "NVIDIA Corporation AD102 [GeForce RTX 4090]"
    assert devices["0000:80:01.1"].cpu == "bus-0000:80"
    assert devices["0000:84:00.0"].link is None
    assert kinds(found) == ["ignored"]
    assert sniff(BOX) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "\n".join("# " + line for line in text.splitlines()),
        lambda text: "\n".join("> " + line for line in text.splitlines()),
        lambda text: "\n".join("log: " + line for line in text.splitlines()),
        lambda text: "```" + text.lstrip("\n") + "```\n",
        lambda text: "\n".join(line.lstrip(" |") for line in text.splitlines()),
        lambda text: re.sub(r"[ |]{3,}(?=[+\\])", " | ", text),
        lambda text: text.replace("\n", " "),
        lambda text: text.replace(
            " |           |                               \\-01.0", " |           |                                \\-01.0"
        ),
        lambda text: text.replace("\n             +-01.1", "\n           +-01.1"),
        lambda text: "$ lspci -tv\n" + text + "$ exit - done\n",
        lambda text: text.replace("0000:80", "00000000:80"),
        lambda text: "\n\n".join(text.splitlines()),
    ],
)
def test_damage_that_loses_no_parent(damage: object) -> None:
    text = damage(BOX)  # type: ignore[operator]
    assert sniff(text) is not None
    found = read(text)
    assert shape(found) == TREE
    assert {device.cpu for device in found.box.devices} == {None, "bus-0000:80", "bus-0000:00"}


def test_moved_columns_are_said() -> None:
    moved = read("\n".join(line.lstrip(" |") for line in BOX.splitlines()))
    assert "assumed" in kinds(moved)
    nudged = read(BOX.replace("                               \\-01.0", "                                \\-01.0"))
    assert "note" in kinds(nudged)


def test_numbers_and_old_drawing_without_domains() -> None:
    text = (
        "-[00]-+-00.0  Intel Corporation Device 1237 [8086:1237]\n      \\-01.0-[01]----00.0  NVIDIA Corporation GA100 [A100] [10de:20b5]\n"
    )
    found = read(text)
    assert shape(found) == {"0000:00:01.0": ("root_port", None, None), "0000:01:00.0": ("gpu", None, "0000:00:01.0")}
    assert by_key(found)["0000:01:00.0"].ids == (0x10DE, 0x20B5)
    assert by_key(found)["0000:01:00.0"].name == "NVIDIA Corporation GA100 [A100]"


def test_without_names_no_gpu_is_claimed() -> None:
    found = read("-[0000:00]-+-00.0\n           \\-01.1-[01]--+-00.0\n                        \\-00.1\n")
    assert {device.kind for device in found.box.devices} == {"other", "root_port"}
    assert kinds(found) == ["cut"]
    assert "-tvnn" in str(found.remarks[0])


def test_a_piece_without_a_root_and_a_tree_that_ends_early() -> None:
    piece = "+-00.0-[d8-db]----00.0-[d9-db]--+-00.0-[da]----00.0  Mellanox Technologies ConnectX\n"
    piece += "                                 \\-01.0-[db]----00.0  NVIDIA Corporation GA100 [A100X]\n"
    found = read(piece)
    assert shape(found) == {
        "above 0000:[d8-db]": ("bridge", None, None),
        "0000:d8:00.0": ("bridge", "upstream", "above 0000:[d8-db]"),
        "0000:d9:00.0": ("bridge", "downstream", "0000:d8:00.0"),
        "0000:da:00.0": ("nic", None, "0000:d9:00.0"),
        "0000:d9:01.0": ("bridge", "downstream", "0000:d8:00.0"),
        "0000:db:00.0": ("gpu", None, "0000:d9:01.0"),
    }
    assert found.box.cpus == ()
    assert "cut" in kinds(found)
    cut = read(BOX[: BOX.index(" \\-[0000:00]")].replace("           \\-07.1-[85]--\n", ""))
    assert shape(cut) == {key: value for key, value in TREE.items() if key.startswith("0000:8") and key != "0000:80:07.1"}
    assert any(remark.kind == "cut" and "lines are missing" in remark.text for remark in cut.remarks)


def test_a_column_against_the_bus_numbers() -> None:
    text = BOX.replace(" |           |                               \\-01.0-[84]", " |           \\-01.0-[84]")
    assert shape(read(text))["0000:84:00.0"][2] is not None
    crossed = """\
-[0000:00]-+-01.0-[01-04]----00.0-[02-04]--+-00.0-[03]----00.0  NVIDIA Corporation x
           |                               |
           |                               \\-01.0-[07]----00.0  NVIDIA Corporation y
           \\-02.0-[05-08]----00.0-[06-08]----00.0-[08]----00.0  NVIDIA Corporation z
"""
    found = read(crossed)
    assert "conflict" in kinds(found)


def test_integrated_graphics_audio_usb_and_nvswitch() -> None:
    text = r"""
-[0000:00]-+-02.0  Intel Corporation Raptor Lake-S GT1 [UHD Graphics 770]
           +-01.1-[01-03]----00.0-[02-03]----00.0-[03]--+-00.0  Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XTX]
           |                                            \-00.1  Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 HDMI/DP Audio
           +-01.2-[04]--+-00.0  NVIDIA Corporation GH100 [H100 NVSwitch]
           |            \-00.2  NVIDIA Corporation TU102 USB 3.1 Host Controller
           +-01.3-[05]----00.0  Intel Corporation Battlemage G21 [Arc B580]
           \-08.1-[12]--+-00.0  Advanced Micro Devices, Inc. [AMD/ATI] Granite Ridge [Radeon Graphics]
                        \-00.2  Advanced Micro Devices, Inc. [AMD] Family 19h PSP/CCP
"""
    found = read(text)
    assert [device.key for device in found.box.devices if device.kind == "gpu"] == ["0000:03:00.0", "0000:05:00.0"]
    assert shape(found)["0000:12:00.0"][0] == "other"
    assert "note" in kinds(found)
    assert shape(found)["0000:01:00.0"][1] == "upstream"  # the card's own switch


def test_same_parents_as_the_verbose_listing_of_the_same_box() -> None:
    verbose = "".join(
        f"{bus} PCI bridge: Broadcom / LSI x\n\tBus: primary={bus[:2]}, secondary={first}, subordinate={last}, sec-latency=0\n\n"
        for bus, first, last in [
            ("80:01.1", "81", "84"),
            ("81:00.0", "82", "84"),
            ("82:00.0", "83", "83"),
            ("82:01.0", "84", "84"),
            ("80:07.1", "85", "85"),
            ("00:01.1", "01", "01"),
            ("00:03.1", "02", "03"),
            ("02:00.0", "03", "03"),
        ]
    )
    verbose += "84:00.0 VGA compatible controller: NVIDIA Corporation AD102\n\n01:00.0 3D controller: NVIDIA Corporation Device 2bb5\n\n"
    verbose += "83:00.0 Infiniband controller: Mellanox Technologies MT2910\n\n"
    assert shape(lspci_verbose.read(source_of(verbose, "v"))) == TREE


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("hello - world\n", 1, "no tree"),
        ("x\n  +-00.0  NVIDIA Corporation x\n  \\-01.0  NVIDIA Corporation y\n", 2, "nothing can be placed"),
    ],
)
def test_refused(text: str, line: int, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert str(caught.value).startswith(f"tree.txt:{line}: ")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "00:01.1 PCI bridge: Advanced Micro Devices [AMD] Device 153e (prog-if 00 [Normal decode])\n\tBus: primary=00, secondary=01\n",
        "- [01] an item\n- [02] another\n+-----+\n",
        "2024-01-01 [0000:01] something\n",
        "[2024-05-01 00.0] - [01]\n",
    ],
)
def test_does_not_fire_on_other_texts(text: str) -> None:
    assert sniff(text) is None


@given(st.text())
def test_any_text(text: str) -> None:
    _only_input_errors(text)


TOKENS = [
    "-",
    "--",
    "----",
    "+-",
    "\\-",
    "|",
    " ",
    "  ",
    "\n",
    "[0000:00]",
    "[01-04]",
    "[02]",
    "00.0",
    "01.1",
    "NVIDIA",
    "-+-",
    "--+-",
    "-[03]-",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=80))
def test_any_heap_of_tokens(tokens: list[str]) -> None:
    _only_input_errors("".join(tokens))


@given(st.data())
def test_any_cut_hole_and_lost_blanks(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(BOX)))
    last = data.draw(st.integers(first, min(len(BOX), first + 100)))
    text = BOX[:first] + data.draw(st.text(max_size=5)) + BOX[last:]
    _only_input_errors(re.sub(" +", " " * data.draw(st.integers(1, 3)), text))


def _only_input_errors(text: str) -> None:
    try:
        source = source_of(text, "any.txt")
        line = lspci_tree.sniff(source)
        assert line is None or 1 <= line <= len(source.lines)
        found = lspci_tree.read(source)
    except InputError:
        return
    keys = by_key(found)
    assert len(keys) == len(found.box.devices)
    for device in found.box.devices:
        seen: set[str] = set()
        at: str | None = device.key
        while at is not None:
            assert at not in seen
            seen.add(at)
            assert at in keys
            at = keys[at].parent


@pytest.mark.parametrize(
    "text",
    [
        "-[0000:00]-" + "".join(f"--{i % 32:02x}.0-[{i % 256:02x}-ff]--" for i in range(700)),
        "-[0000:00]-" + "+-00.0-[01-ff]-" * 500,
        "".join(f"-[{i:04x}:00]-+-00.0\n           \\-01.0-[01]----00.0  NVIDIA Corporation x\n" for i in range(30_000)),
        "".join(" " * (i % 4_000) + "+-01.0-[02-ff]--+-00.0  x\n" for i in range(3_000)),
        ("+-" * 4_000 + "\n") * 300,
        ("-[" * 3_900 + "\n") * 300,
        "-[0000:00]-+-00.0" + " " * 7_000 + "+-" * 400,
    ],
)
def test_hostile_sizes_end_soon(text: str) -> None:
    _only_input_errors(text)


AMD = "Advanced Micro Devices, Inc. [AMD]"
AM5 = rf"""
-[0000:00]-+-00.0  {AMD} Raphael/Granite Ridge Root Complex
           +-00.2  {AMD} Raphael/Granite Ridge IOMMU
           +-01.1-[01]----00.0  NVIDIA Corporation GB202 [GeForce RTX 5090]
           +-02.1-[02-06]----00.0-[03-06]--+-00.0-[04]----00.0  NVIDIA Corporation GB202 [GeForce RTX 5090]
           |                               +-0c.0-[05]----00.0  {AMD} 600 Series Chipset USB 3.2 Controller
           |                               \-0d.0-[06]----00.0  {AMD} 600 Series Chipset SATA Controller
           \-14.0  {AMD} FCH SMBus Controller
"""
"""A desktop board with a card in a slot of the processor and one behind the chipset (names: pci.ids)."""


def root(first: str, *more: str) -> str:
    """A root bus with a card and these devices."""
    lines = [first, *more]
    return "-[0000:00]-+-00.0  " + lines[0] + "\n" + "".join(
        f"           +-{number:02x}.0  {name}\n" for number, name in enumerate(lines[1:], 4)
    ) + "           \\-01.1-[01]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]\n"  # fmt: skip


@pytest.mark.parametrize(
    ("names", "telling", "part"),
    [
        ((f"{AMD} Genoa/Bergamo Root Complex",), 0, "epyc-genoa"),
        ((f"{AMD} Device 14a4",), 0, "epyc-genoa"),
        ((f"{AMD} Device [1022:153a]",), 0, "epyc-turin"),
        ((f"{AMD} Turin Root Complex [1022:153a]",), 0, "epyc-turin"),
        ((f"{AMD} Starship/Matisse Root Complex",), 0, "epyc-rome"),
        ((f"{AMD} Starship/Matisse Root Complex", f"{AMD} Milan IOMMU"), 1, "epyc-milan"),
        ((f"{AMD} Raphael/Granite Ridge Root Complex",), 0, "epyc-4004"),
        (("Intel Corporation Xeon E7 v4/Xeon E5 v4/Xeon E3 v4/Xeon D DMI2",), 0, "xeon-broadwell"),
        (("Intel Corporation Sky Lake-E DMI3 Registers",), 0, "xeon-cascade-lake"),
        (("Intel Corporation Ice Lake Memory Map/VT-d", "Intel Corporation Ice Lake IEH"), 1, "xeon-ice-lake"),
        (("Intel Corporation Ice Lake Memory Map/VT-d", "Intel Corporation Device 0b23"), 1, "xeon-sapphire-rapids"),
        (("Intel Corporation 12th Gen Core Processor Host Bridge",), 0, "generic-intel"),
    ],
)
def test_the_processor_by_devices_of_its_root_bus(names: tuple[str, ...], telling: int, part: str) -> None:
    """Names and numbers of pci.ids; the catalog's rules say which parts they mean."""
    found = read(root(*names))
    (cpu,) = found.box.cpus
    assert cpu.of_device
    assert cpu.name.replace("Device 153a", "Device [1022:153a]") == names[telling].replace("Complex [1022:153a]", "Complex")
    match = identify.socket_part(cpu.vendor, None, None, cpu.name)
    assert match is not None
    assert match.name == part
    assert build_box([found]).spec.nodes["cpu0"].part == part


def test_other_makers_name_no_processor() -> None:
    (cpu,) = read(root("Lenovo Device 781d")).box.cpus
    assert (cpu.vendor, cpu.name, cpu.of_device) == ("", "", False)


def test_sockets_by_the_buses_that_hold_links_between_them() -> None:
    """A Xeon E5 has its links between sockets on the last bus of its range (7f and ff on two sockets)."""
    link = "Intel Corporation Xeon E7 v4/Xeon E5 v4/Xeon E3 v4/Xeon D QPI Link 0"
    two = f"-+-[0000:ff]-+-08.0  {link}\n |           \\-08.2  {link}\n +-[0000:7f]-+-08.0  {link}\n |           \\-08.2  {link}\n"
    rest = " \\-" + root("Intel Corporation Xeon E7 v4/Xeon E5 v4/Xeon E3 v4/Xeon D DMI2")[1:]
    found = read(two + rest)
    assert found.box.host is not None
    assert found.box.host.sockets == 2
    assert {cpu.key: cpu.package for cpu in found.box.cpus} == {"bus-0000:00": 0}
    far = rest.replace(" \\-[0000:00]", " \\-[0000:80]").replace("[01]----", "[81]----")
    assert {cpu.key: cpu.package for cpu in read(two + far).box.cpus} == {"bus-0000:80": 1}
    one = read("-+" + two[2:].split(" +-[0000:7f]", maxsplit=1)[0] + rest)
    assert one.box.host is None
    assert any("how many sockets is not certain" in remark.text for remark in one.remarks)
    assert read(BOX).box.host is None


def test_a_chipset_is_known_by_what_hangs_on_it() -> None:
    """The chipset of AM5 boards has Gen4 x4 to the processor (AMD)."""
    found = read(AM5)
    devices = by_key(found)
    assert "600 Series Chipset" in devices["0000:02:00.0"].name
    assert devices["0000:03:00.0"].name == ""
    assert "assumed" in kinds(found)
    nodes = build_box([found]).spec.nodes
    chip = next(node for node in nodes.values() if node.kind == "switch")
    assert chip.part == "amd-chipset-am5"
    assert chip.link is not None
    assert (chip.link.gen, chip.link.width) == (4, 4)
    assert all(device.name == "" for device in read(BOX).box.devices if device.kind == "bridge")


def test_a_chipset_by_the_functions_beside_it_and_its_own_name_first() -> None:
    text = rf"""
-[0000:00]-+-00.0  {AMD} Starship/Matisse Root Complex
           \-01.2-[01-03]--+-00.0  {AMD} 500 Series Chipset USB 3.1 XHCI Controller
                           +-00.1  {AMD} 500 Series Chipset SATA Controller
                           \-00.2-[02-03]----00.0-[03]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
"""
    found = read(text)
    assert "500 Series Chipset" in by_key(found)["0000:01:00.2"].name
    chip = next(node for node in build_box([found]).spec.nodes.values() if node.kind == "switch")
    assert chip.part == "amd-chipset-am4"


def test_a_port_of_intels_chipset_is_said() -> None:
    text = """
-[0000:00]-+-00.0  Intel Corporation 12th Gen Core Processor Host Bridge
           +-01.0-[01]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
           \\-1c.4-[02]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]
"""
    notes = [str(remark) for remark in read(text).remarks if remark.kind == "note"]
    assert notes == [
        "tree.txt:4: 0000:02:00.0 hangs on a port of the chipset (0000:00:1c.4): at most four lanes, and the chipset's own link is shared"
    ]


def test_a_tree_that_ends_early_names_its_own_line() -> None:
    """Bus 80 (128) stands in line 4 of the text."""
    text = BOX.replace(" |           \\-07.1-[85]--\n", "").replace(" \\-[0000:00]", " \\-[0000:90]")
    (cut,) = [remark for remark in read(text).remarks if remark.kind == "cut"]
    assert cut.line is not None
    assert text.splitlines()[cut.line - 1].startswith(" \\-[0000:90]")
