"""`topology import --here`: what this machine's tools print, with fake tools in front; nothing is changed, what is missing is named."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pcie_sim.errors import InputError
from pcie_sim.study import here
from pcie_sim.study.imports import assemble

SMI = """#!/bin/sh
case "$*" in
  *--query-gpu*) printf "index, name, pci.bus_id, pcie.link.gen.current, pcie.link.gen.max, "
    echo "pcie.link.width.current, pcie.link.width.max, memory.total [MiB]"
    echo "0, NVIDIA GeForce RTX 4090, 00000000:01:00.0, 1, 4, 16, 16, 24564 MiB"
    echo "1, NVIDIA GeForce RTX 4090, 00000000:41:00.0, 1, 4, 8, 16, 24564 MiB";;
  "topo -m") printf '\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\tNODE\\t0-31\\t0\\nGPU1\\tNODE\\t X \\t0-31\\t0\\n';;
  *) printf ' \\tGPU0\\tGPU1\\n GPU0\\tX\\tGNS\\n GPU1\\tGNS\\tX\\n';;
esac
"""
LSCPU = """#!/bin/sh
echo "Architecture:        x86_64
CPU(s):              64
Vendor ID:           AuthenticAMD
Model name:          AMD EPYC 7542 32-Core Processor
CPU family:          23
Model:               49
Thread(s) per core:  2
Core(s) per socket:  32
Socket(s):           1
NUMA node(s):        1
NUMA node0 CPU(s):   0-63"
"""


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("sh", "echo", "printf", "sleep"):  # the fakes are scripts
        real = next((Path(folder) / name for folder in ("/bin", "/usr/bin") if (Path(folder) / name).exists()), None)
        if real is not None:
            (tmp_path / name).symlink_to(real)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_the_box_of_this_machine_with_the_missing_tool_named(tools: Path) -> None:
    tool(tools, "nvidia-smi", SMI)
    tool(tools, "lscpu", LSCPU)
    found = here.read_here()
    result = assemble(found.files, force=True, more=found.remarks)
    assert result.topology is not None
    spec = result.topology.spec
    assert [spec.nodes[gpu].part for gpu in ("gpu0", "gpu1")] == ["rtx-4090", "rtx-4090"]
    assert [str(spec.nodes[gpu].link) for gpu in ("gpu0", "gpu1")] == ["gen=4 width=16", "gen=4 width=8"], "Gen1 is the idle state"
    assert spec.nodes["cpu0"].part == "epyc-rome"
    assert spec.settings.p2p == "off", "GNS: the GPU does not support it"
    assert "lspci is not installed here" in "\n".join(result.said("ignored"))
    assert [spec.nodes[gpu].bus for gpu in ("gpu0", "gpu1")] == ["0000:01:00.0", "0000:41:00.0"]


def test_a_machine_without_tools_or_gpus(tools: Path) -> None:
    with pytest.raises(InputError, match=r"no GPU is seen on this machine .*lscpu is not installed here"):
        here.read_here()
    tool(tools, "lscpu", LSCPU)
    tool(tools, "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'\nexit 9\n")
    with pytest.raises(InputError, match="no GPU is seen on this machine"):
        here.read_here()


def test_a_tool_that_hangs_is_left_out(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tools, "nvidia-smi", SMI)
    tool(tools, "lscpu", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(here, "TIMEOUT_S", 1)
    found = here.read_here()
    assert any("lscpu` failed (no answer within 1 s)" in str(remark) for remark in found.remarks)


def test_no_command_can_change_anything() -> None:
    assert {command[0] for command in here.COMMANDS} == {"nvidia-smi", "lspci", "lscpu"}
    for command in here.COMMANDS:
        assert not set(command) & {"-pm", "-r", "--gpu-reset", "-lgc", "-pl", "-mig", "-c", "-e", "--applications-clocks"}
