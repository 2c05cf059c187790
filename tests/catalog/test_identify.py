"""From printed names and numbers to catalog entries.

The printed names are what the tools print (nvidia-smi -L, nccl-tests' device lines, lspci with and without names, rocm-smi), taken from
public reports; the PCI ids are those of pci.ids and of the list in NVIDIA's open kernel modules.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pcie_sim import catalog
from pcie_sim.catalog import aliases, identify, ids, load, lookup, printed
from pcie_sim.errors import InputError
from pcie_sim.specs.part import CpuRule, InterconnectPart, NicPart, SocketPart, SwitchPart

PRO = "rtx-pro-6000-blackwell"
EXACT = {
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": f"{PRO}-server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": f"{PRO}-workstation",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": f"{PRO}-max-q",
    "GB202GL [RTX PRO 6000 Blackwell Server Edition]": f"{PRO}-server",
    "NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Workstation Edition] (rev a1)": f"{PRO}-workstation",
    "NVIDIA Corporation Device 2bb5 (rev a1)": f"{PRO}-server",
    "NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition] [10de:2bb5] (rev a1)": f"{PRO}-server",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "GeForce RTX 4090": "rtx-4090",
    "AD102 [GeForce RTX 4090]": "rtx-4090",
    "NVIDIA GeForce RTX 4090 D": "rtx-4090-d",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA GeForce RTX 5060 Ti": "rtx-5060-ti",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti",
    "TU102 [GeForce RTX 2080 Ti Rev. A]": "rtx-2080-ti",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "GA100 [A100 PCIe 80GB]": "a100-pcie-80gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "GH100 [H100 SXM5 80GB]": "h100-sxm",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA H800": "h800-sxm",
    "NVIDIA H800 PCIe": "h800-pcie",
    "NVIDIA H20": "h20",
    "NVIDIA L40": "l40",
    "NVIDIA L40S": "l40s",
    "NVIDIA L20": "l20",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie",
    "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "Tesla V100-SXM3-32GB-H": "v100-sxm3-32gb",
    "NVIDIA TITAN V": "titan-v",
    "NVIDIA RTX A4000": "rtx-a4000",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "Quadro RTX 6000": "quadro-rtx-6000",
    "AMD Instinct MI210": "mi210",
    "Advanced Micro Devices, Inc. [AMD/ATI] Aldebaran/MI200 [Instinct MI210] (rev 02)": "mi210",
    "Intel Corporation Battlemage G31 [Arc Pro B70] [8086:e223]": "arc-pro-b70",
    "V100 PCIe 16 GB": "v100-pcie-16gb",
    "RTX 3090 24 GB": "rtx-3090",
    "RTX PRO 6000 Blackwell Max-Q 300 W": f"{PRO}-max-q",
}
NONE = [
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "GA104M [GeForce RTX 3080 Mobile / Max-Q 8GB/16GB]",
    "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU",
    "NVIDIA RTX 4000 SFF Ada Generation",
    "NVIDIA A40-48Q",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "GRID A100D-20C",
    "NVIDIA A100X",
    "NVIDIA H20-3e",
    "NVIDIA GeForce ...",
    "NVIDIA DGX Display",
    "RTX 6000",
    "Tesla K40m",
    "NVIDIA Corporation Device ffff (rev a1)",
    "Device 2bb5",
    "ASPEED Technology, Inc. ASPEED Graphics Family",
    "Advanced Micro Devices, Inc. [AMD/ATI]",
    "",
    "[]",
    "...",
]


@pytest.mark.parametrize(("text", "name"), EXACT.items())
def test_printed_names(text: str, name: str) -> None:
    assert identify.gpu_by_name(text) == identify.Match(name)


@pytest.mark.parametrize("text", NONE)
def test_names_of_other_products_and_no_names(text: str) -> None:
    assert identify.gpu_by_name(text) is None


@pytest.mark.parametrize("name", catalog.names("gpus"))
def test_every_gpu_is_found_by_its_title_its_file_and_what_tools_print(name: str) -> None:
    gpu = catalog.load_gpu(name)
    for text in (gpu.title, name, *gpu.printed_names):
        assert identify.gpu_by_name(text, int(gpu.memory.value)) == identify.Match(name)
    for alias in gpu.aliases:
        found = identify.gpu_by_name(alias)
        assert found is not None
        assert found.name == name, "an alias of people may be short, but never means another entry"


@pytest.mark.parametrize(
    ("text", "name", "candidates"),
    [
        ("NVIDIA RTX PRO 6000 Blac...", f"{PRO}-server", {f"{PRO}-server", f"{PRO}-workstation", f"{PRO}-max-q"}),
        ("RTX PRO 6000", f"{PRO}-server", {f"{PRO}-server", f"{PRO}-workstation", f"{PRO}-max-q"}),
        ("8x RTX PRO 6000 Blackwell", f"{PRO}-server", {f"{PRO}-server", f"{PRO}-workstation", f"{PRO}-max-q"}),
        ("A100", "a100-pcie-80gb", {"a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb"}),
        ("NVIDIA A100 40GB", "a100-pcie-40gb", {"a100-pcie-40gb", "a100-sxm-40gb"}),
        ("NVIDIA H100", "h100-pcie", {"h100-pcie", "h100-sxm", "h100-nvl"}),
        ("Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]", "rx-7900-xt", {"rx-7900-xt", "rx-7900-xtx"}),
        ("NVIDIA GeForce RTX 4090 48GB", "rtx-4090", {"rtx-4090"}),
    ],
)
def test_names_that_may_be_several(text: str, name: str, candidates: set[str]) -> None:
    found = identify.gpu_by_name(text)
    assert found is not None
    assert (found.name, found.exact, set(found.candidates)) == (name, False, candidates)
    assert found.why


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA RTX 4000 Ada Gene...", "rtx-4000-ada"),
        ("RTX PRO 6000 Blackwell Server Edition (GCP G4)", f"{PRO}-server"),
        ("AD102GL [L6000 / RTX 6000 Ada Generation]", "rtx-6000-ada"),
    ],
)
def test_one_product_but_not_its_whole_name(text: str, name: str) -> None:
    found = identify.gpu_by_name(text)
    assert found is not None
    assert (found.name, found.exact, found.candidates) == (name, False, ())


def test_the_memory_that_the_driver_reports_decides() -> None:
    for mib, name in ((40960, "a100-pcie-40gb"), (81920, "a100-pcie-80gb")):
        assert identify.gpu_by_name("A100 PCIe", mib * 2**20) == identify.Match(name)
    modded = identify.gpu_by_name("NVIDIA GeForce RTX 4090", 49140 * 2**20)
    assert modded is not None
    assert not modded.exact


@pytest.mark.parametrize(
    ("vendor", "device", "subsystem", "name"),
    [
        (0x10DE, 0x2BB5, None, f"{PRO}-server"),
        (0x10DE, 0x2BB5, (0x10DE, 0x204E), f"{PRO}-server"),
        (0x10DE, 0x2BB3, (0x10DE, 0x204D), "rtx-pro-5000-blackwell"),
        (0x10DE, 0x2BB3, (0x10DE, 0x227A), "rtx-pro-5000-72gb-blackwell"),
        (0x10DE, 0x26BA, (0x10DE, 0x1957), "l20"),
        (0x10DE, 0x2684, (0x1462, 0x510B), "rtx-4090"),
        (0x10DE, 0x2204, (0x10DE, 0x1454), "rtx-3090"),
        (0x10DE, 0x2230, (0x10DE, 0x1459), "rtx-a6000"),
        (0x10DE, 0x2324, (0x10DE, 0x17A6), "h800-sxm"),
        (0x10DE, 0x1DB8, (0x10DE, 0x131D), "v100-sxm3-32gb"),
        (0x10DE, 0x1E30, (0x10DE, 0x129E), "quadro-rtx-8000"),
        (0x10DE, 0x1E30, None, None),
        (0x1002, 0x740F, (0x1002, 0x0C34), "mi210"),
        (0x8086, 0xE223, None, "arc-pro-b70"),
        (0x102B, 0x0532, None, None),
        (0x10DE, 0xFFFFFF, None, None),
    ],
)
def test_gpu_ids(vendor: int, device: int, subsystem: tuple[int, int] | None, name: str | None) -> None:
    assert identify.gpu_by_id(vendor, device, subsystem) == name


@pytest.mark.parametrize(
    ("vendor", "device", "name", "gen"),
    [
        (0x1F18, 0x0101, "pm50100", 5),
        (0x11F8, 0x5000, "pm50100", 5),
        (0x11F8, 0x4000, "switchtec-gen4", 4),
        (0x11F8, 0x8536, "switchtec-gen3", 3),
        (0x1000, 0xC030, "pex890xx", 5),
        (0x1000, 0xC010, "pex880xx", 4),
        (0x10B5, 0x8747, "pex8747", 3),
        (0x10B5, 0x9797, "plx-gen3", 3),
        (0x15B3, 0x197C, "connectx-8-switch", 6),
        (0x15B3, 0x1979, "connectx-7-switch", 5),
        (0x1022, 0x43F4, "amd-chipset-am5", 4),
        (0x1022, 0x57AD, "amd-chipset-x570", 4),
        (0x1022, 0x43E9, "amd-chipset-am4", 3),
        (0x1022, 0x14C7, None, None),
    ],
)
def test_switch_ids(vendor: int, device: int, name: str | None, gen: int | None) -> None:
    assert identify.switch_by_id(vendor, device) == name
    if name is not None:
        assert catalog.load_typed_part(name, SwitchPart).upstream.gen == gen


@pytest.mark.parametrize(
    ("text", "device", "name"),
    [
        ("MT2910 Family [ConnectX-7]", 0x1021, "connectx-7"),
        ("Mellanox Technologies MT28908 Family [ConnectX-6]", 0x101B, "connectx-6"),
        ("Mellanox Technologies MT2892 Family [ConnectX-6 Dx]", 0x101D, "connectx-6-dx"),
        ("MT27800 Family [ConnectX-5]", 0x1017, "connectx-5"),
        ("MT27700 Family [ConnectX-4]", 0x1013, "connectx-4"),
        ("CX8 Family [ConnectX-8]", 0x1023, "connectx-8"),
        ("Mellanox Technologies Device 1023", 0x1023, "connectx-8"),
    ],
)
def test_network_cards(text: str, device: int, name: str) -> None:
    assert identify.nic_by_name(text) == identify.Match(name)
    assert identify.nic_by_id(0x15B3, device) == name
    assert catalog.load_typed_part(name, NicPart).rdma


@pytest.mark.parametrize(
    "text", ["MT27710 Family [ConnectX-4 Lx]", "MT28908 Family [ConnectX-6 Virtual Function]", "Ethernet Controller X550", ""]
)
def test_other_network_cards(text: str) -> None:
    assert identify.nic_by_name(text) is None
    assert identify.nic_by_id(0x8086, 0x1563) is None


@pytest.mark.parametrize(
    ("cpu", "part", "exact"),
    [
        # numbers as NCCL's XML writes them (143 = family 23), and as /proc/cpuinfo does
        (("AuthenticAMD", 143, 49, None), "epyc-rome", False),
        (("AuthenticAMD", 23, 49, "AMD EPYC 7542 32-Core Processor"), "epyc-rome", True),
        (("AuthenticAMD", 23, 49, "AMD EPYC 7V12 64-Core Processor"), "epyc-rome", True),
        (("AuthenticAMD", 23, 49, "AMD EPYC-Rome Processor"), "epyc-rome", True),
        (("AuthenticAMD", 23, 49, "AMD Ryzen Threadripper 3970X 32-Core Processor"), "epyc-rome", False),
        (("AuthenticAMD", 175, 1, None), "epyc-milan", True),
        (("AuthenticAMD", 25, 1, "AMD EPYC Processor"), "epyc-milan", False),
        ((None, None, None, "AMD EPYC 7V13 64-Core Processor"), "epyc-milan", True),
        (("AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor"), "epyc-genoa", True),
        (("AuthenticAMD", 191, 2, None), "epyc-turin", True),
        (("AuthenticAMD", 26, 2, "AMD EPYC 9575F 64-Core Processor"), "epyc-turin", True),
        (("AuthenticAMD", 25, 24, "AMD Ryzen Threadripper PRO 7955WX 16-Cores"), "threadripper-pro-7000", True),
        (("AuthenticAMD", 26, 8, "AMD Ryzen Threadripper PRO 9965WX 24-Cores"), "threadripper-pro-7000", False),
        (("AuthenticAMD", 25, 24, None), "threadripper-pro-7000", False),
        (("AuthenticAMD", 25, 97, "AMD Ryzen 9 7950X 16-Core Processor"), "epyc-4004", False),
        (("AuthenticAMD", 23, 1, "AMD Ryzen Threadripper 1950X 16-Core Processor"), "threadripper-1000", True),
        (("AuthenticAMD", 23, 1, "AMD EPYC 7601 32-Core Processor"), "generic-amd", False),
        (("AuthenticAMD", None, None, None), "generic-amd", False),
        (("GenuineIntel", 6, 79, "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"), "xeon-broadwell", True),
        (("GenuineIntel", 6, 85, None), "xeon-cascade-lake", True),
        (("GenuineIntel", 6, 85, "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz"), "xeon-cascade-lake", True),
        (("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz"), "xeon-ice-lake", True),
        (("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480+"), "xeon-sapphire-rapids", True),
        (("GenuineIntel", 6, 143, "Intel(R) Xeon(R) w9-3495X"), "xeon-sapphire-rapids", False),
        (("GenuineIntel", 6, 207, "INTEL(R) XEON(R) PLATINUM 8580"), "xeon-emerald-rapids", True),
        (("GenuineIntel", 6, 173, None), "xeon-granite-rapids", True),
        (("GenuineIntel", 6, 173, "Intel(R) Xeon(R) 6960P"), "xeon-granite-rapids", True),
        (("GenuineIntel", 6, 151, "12th Gen Intel(R) Core(TM) i9-12900K"), "generic-intel", False),
        (("ARM", None, None, "Neoverse-V2"), "generic-arm", False),
        (("  Shanghai  ", 7, 59, None), "generic-other", False),
    ],
)
def test_sockets(cpu: tuple[str | None, int | None, int | None, str | None], part: str, exact: bool) -> None:
    found = identify.socket_part(*cpu)
    assert found is not None
    assert (found.name, found.exact) == (part, exact)
    assert catalog.load_typed_part(part, SocketPart)
    assert exact or found.why


@pytest.mark.parametrize(
    ("names", "telling"),
    [
        (["Advanced Micro Devices, Inc. [AMD] Starship/Matisse Root Complex", "Advanced Micro Devices, Inc. [AMD] Milan IOMMU"], 1),
        (["Intel Corporation Device 352a", "Intel Corporation Ice Lake Memory Map/VT-d"], 0),
        (["Intel Corporation Ice Lake Memory Map/VT-d", "Intel Corporation Ice Lake Mesh 2 PCIe"], 0),
        (["NVIDIA Corporation AD102 [GeForce RTX 4090]", "Lenovo Device 781d", ""], None),
    ],
)
def test_the_most_telling_device_of_a_root_bus(names: list[str], telling: int | None) -> None:
    """pci.ids gives one name to devices of several processors; those of fewer say more."""
    assert identify.telling_device(names) == (None if telling is None else names[telling])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Advanced Micro Devices, Inc. [AMD] 600 Series Chipset PCIe Switch Upstream Port", "amd-chipset-am5"),
        ("Advanced Micro Devices, Inc. [AMD] 800 Series Chipset USB 3.x XHCI Controller", "amd-chipset-am5"),
        ("Advanced Micro Devices, Inc. [AMD] Matisse Switch Upstream", "amd-chipset-x570"),
        ("Advanced Micro Devices, Inc. [AMD] 400 Series Chipset PCIe Bridge", "amd-chipset-am4"),
        ("Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge", None),
        ("Intel Corporation 500 Series Chipset Family PCI Express Root Port #1", None),
    ],
)
def test_chipsets_by_name(text: str, name: str | None) -> None:
    assert identify.switch_by_name(text) == name


def test_a_processor_of_which_nothing_is_said() -> None:
    assert identify.socket_part(None, None, None, None) is None
    assert identify.socket_part("", 25, 17, "") is None, "numbers without a vendor mean nothing"


@pytest.mark.parametrize("name", [name for name in catalog.names("parts") if isinstance(catalog.load_part(name), SocketPart)])
def test_every_socket_has_a_link_to_another(name: str) -> None:
    part = catalog.load_part(identify.socket_link(name))
    assert isinstance(part, InterconnectPart)
    assert part.role == "socket"


def test_links_of_sockets() -> None:
    assert identify.socket_link("epyc-turin") == "xgmi-turin"
    assert identify.socket_link("xeon-emerald-rapids") == "upi-sapphire-rapids"
    assert identify.socket_link("generic-amd") == identify.socket_link("epyc-4004") == "generic-xgmi"
    assert identify.socket_link("generic-intel") == "generic-upi"


def test_switches_by_generation() -> None:
    assert [identify.generic_switch(gen) for gen in (1, 3, 4, 5, 6, 7)] == [f"generic-gen{gen}-switch" for gen in (3, 3, 4, 5, 6, 6)]
    for gen in (3, 4, 5, 6):
        assert catalog.load_typed_part(identify.generic_switch(gen), SwitchPart).upstream.gen == gen


@pytest.mark.parametrize(
    ("gpu", "links", "name"),
    [
        ("a40", 4, "nvlink-bridge-ampere"),
        ("a100-pcie-80gb", 12, "nvlink-ga100-x12"),
        ("h200-sxm", 18, "nvlink-hopper-x18"),
        ("h100-pcie", 12, "nvlink-hopper-x12"),
        ("v100-sxm2-16gb", 2, "nvlink-volta-x2"),
        ("v100-sxm2-16gb", 5, "nvlink-volta-x6"),
        ("rtx-2080-ti", 2, "nvlink-bridge-turing"),
        ("h100-nvl", None, "nvlink-hopper-x18"),
        ("mi210", 1, "nvlink-generic"),
    ],
)
def test_nvlink(gpu: str, links: int | None, name: str) -> None:
    assert identify.nvlink_part(gpu, links) == name
    assert catalog.load_typed_part(name, InterconnectPart).role == "nvlink"


def test_capability_alone_gives_candidates() -> None:
    assert identify.gpus_of_capability("gfx906") == ("mi50", "mi60")
    assert "l40s" in identify.gpus_of_capability("8.9")
    assert identify.gpus_of_capability("1.0") == ()


def test_assumed_entries_exist_and_say_why() -> None:
    found = identify.assumed_defaults()
    assert {"gpu", "socket", "switch", "nvlink", "nic", "socket_link"} <= set(found)
    for key, one in found.items():
        assert one.reason
        (catalog.load_gpu if key.partition("_")[0] == "gpu" else catalog.load_part)(one.name)
    assert not [name for name in catalog.names("parts") if name.startswith("_")]


@pytest.mark.parametrize("kind", ids.INDEXED)
def test_id_index_is_fresh(kind: catalog.Kind) -> None:
    assert (lookup.folder(kind) / ids.ID_FILE).read_text(encoding="utf-8") == ids.id_text(kind), "run: python -m pcie_sim.catalog.aliases"


def test_a_look_up_reads_indexes_and_not_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    real = load.read_text

    def count(path: Path) -> str:
        reads[f"{path.parent.name}/{path.name}"] += 1
        return real(path)

    for module in (load, lookup, ids, printed, identify):
        monkeypatch.setattr(module, "read_text", count)
    for cached in (ids.known, printed.word_lists, lookup.aliases, lookup.resolve, identify.assumed_defaults):
        cached.cache_clear()
    identify.gpu_by_id(0x10DE, 0x2BB5)
    assert reads == {"gpus/_ids.yaml": 1}
    for text in [*EXACT, *NONE, "A100"]:
        identify.gpu_by_name(text)
    assert reads == {"gpus/_ids.yaml": 1, "gpus/_words.yaml": 1, "gpus/_aliases.yaml": 1}
    identify.switch_by_id(0x1000, 0xC030)
    identify.nic_by_name("MT2910 Family [ConnectX-7]")
    identify.socket_part("AuthenticAMD", 25, 17, None)
    assert set(reads) == {"gpus/_ids.yaml", "gpus/_words.yaml", "gpus/_aliases.yaml", "parts/_ids.yaml", "parts/_assumed.yaml"}
    assert set(reads.values()) == {1}


@given(st.text(max_size=400))
def test_any_text_is_found_or_not(text: str) -> None:
    for find in (identify.gpu_by_name, identify.nic_by_name):
        found = find(text)
        assert found is None or found.name in (*catalog.names("gpus"), *catalog.names("parts"))
    identify.socket_part(text, 25, 17, text)


def test_long_text_is_cut() -> None:
    for text in ("a" * 10**6, "[" * 10**6, "(uuid" * 10**5, "rtx 4090 " * 10**5, "8x " * 10**5, "1 " * 10**5 + "gb"):
        identify.gpu_by_name(text)
        identify.socket_part(text, None, None, text)


def test_an_id_in_two_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts").mkdir()
    for name in ("one", "two"):
        (tmp_path / "parts" / f"{name}.yaml").write_text(
            f'schema: pcie-sim/part/1\nkind: switch\nname: {name}\ntitle: a switch\npci_ids: ["1000:c030"]\n'
            "upstream: {gen: 5, width: 16}\nlatency: {value: 1e-7, unit: s, evidence: assumed, source: a test}\n"
        )
    monkeypatch.setattr(lookup, "folder", lambda kind: tmp_path / kind)
    for cached in (lookup.names, lookup.aliases, lookup.resolve, load._load_file, ids.known):
        cached.cache_clear()
    try:
        with pytest.raises(InputError, match="switches: PCI id 1000:c030 of two already means one"):
            ids.id_index("parts")
    finally:
        for cached in (lookup.names, lookup.aliases, lookup.resolve, load._load_file, ids.known):
            cached.cache_clear()


def test_the_command_renews_both_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(aliases, "write_id_indexes", lambda: written.append("ids"))
    monkeypatch.setattr(aliases, "folder", lambda kind: tmp_path)
    aliases.write_indexes()
    assert written == ["ids"]


def test_every_rule_finds_its_own_part() -> None:
    """The numbers of every rule lead to the part that has it, or, where they are shared, to one that says so."""
    vendors = {"amd": "AuthenticAMD", "intel": "GenuineIntel"}
    parts = [part for part in map(catalog.load_part, catalog.names("parts")) if isinstance(part, SocketPart)]
    for part in parts:
        name = part.name
        for rule in part.cpus:
            if rule.models is not None:
                for model in {*rule.models}:
                    found = identify.socket_part(vendors[part.vendor], rule.family, model, None)
                    assert found is not None
                    assert found.name == name
                    assert found.exact == (not rule.near and rule.also is None)
            elif rule.name is not None:
                sample = re.sub(r"\*", "", rule.name).replace("?", "0")
                found = identify.socket_part(None, None, None, sample)
                assert found is not None
                assert found.name == name, sample


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"family": 25}, "family and models go together"),
        ({}, "give either a name or family and models"),
        ({"name": "amd epyc 9??4*", "family": 25, "models": (16, 23)}, "give either a name or family and models"),
        ({"name": "AMD EPYC 9??4*"}, "lower case"),
        ({"name": "****"}, "at most three"),
    ],
)
def test_rules_that_say_too_little_or_too_much(rule: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CpuRule.model_validate(rule)


def test_a_memory_of_nothing_says_nothing() -> None:
    """Damaged text: no size to compare with."""
    found = identify.gpu_by_name("NVIDIA GeForce RTX 4090 0GB")
    assert found is not None
    assert found.name == "rtx-4090"
