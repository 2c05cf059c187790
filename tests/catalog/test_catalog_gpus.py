"""The shipped GPUs: known figures, rules that hold for all of them, and the profile they point at."""

from __future__ import annotations

import pytest

from pcie_sim.catalog import load_gpu, names
from pcie_sim.specs.base import Quantity
from pcie_sim.specs.gpu import GpuSpec

UNITS = {"memory": "B", "memory_bandwidth": "B/s", "l2_cache": "B", "multiprocessors": "1", "boost_clock": "Hz", "power": "W"}


@pytest.fixture(params=names("gpus"))
def gpu(request: pytest.FixtureRequest) -> GpuSpec:
    return load_gpu(request.param)


def test_all_are_there() -> None:
    assert len(names("gpus")) == 75


def test_units_and_sources(gpu: GpuSpec) -> None:
    for field, unit in UNITS.items():
        quantity = getattr(gpu, field)
        assert isinstance(quantity, Quantity)
        assert quantity.unit == unit
        assert quantity.source.strip()
    assert {quantity.unit for quantity in gpu.peak_flops.values()} == {"flop/s"}
    assert gpu.p2p.source.strip()


def test_figures_are_of_a_gpu(gpu: GpuSpec) -> None:
    assert gpu.memory.value % 2**20 == 0, "the driver reports whole MiB"
    assert 10e9 < gpu.memory.value < 210e9
    assert 0.2e12 < gpu.memory_bandwidth.value < 6e12
    assert "fp16" in gpu.peak_flops
    if "bf16" in gpu.peak_flops:
        assert gpu.peak_flops["bf16"].value == gpu.peak_flops["fp16"].value
    if "fp8" in gpu.peak_flops:
        assert gpu.peak_flops["fp8"].value == pytest.approx(2 * gpu.peak_flops["bf16"].value, rel=0.02)


# Dense fp16 flop per clock and multiprocessor with fp32 accumulation, by architecture (NVIDIA white papers of Volta, Turing,
# Ampere, Ada and Blackwell; GeForce parts run at half rate). Left out: parts rated below their boost clock, and AMD.
FLOP_PER_CLOCK = {
    "v100-pcie": 1024,
    "t4": 1024,
    "a100-pcie-40gb": 2048,
    "a100-pcie-80gb": 2048,
    "a10": 1024,
    "a40": 1024,
    "rtx-a6000": 1024,
    "rtx-3090": 512,
    "rtx-4090": 512,
    "l4": 1024,
    "l40s": 1024,
    "rtx-6000-ada": 1024,
    "rtx-5090": 512,
    "rtx-2080-ti": 512,
    "titan-rtx": 1024,
    "rtx-6000d": 1024,
    "rtx-pro-5000-blackwell": 1024,
    "cmp-170hx-64gb": 2048,
    "rtx-pro-6000-blackwell-server": 1024,
    "rtx-pro-6000-blackwell-workstation": 1024,
    "rtx-pro-6000-blackwell-max-q": 1024,
    "rtx-a4000": 1024,
    "rtx-a4500": 1024,
    "rtx-a5000": 1024,
    "a30": 2048,
    "a100-sxm-40gb": 2048,
    "a100-sxm-80gb": 2048,
    "a800-pcie-80gb": 2048,
    "a800-sxm-80gb": 2048,
    "rtx-3060": 512,
    "rtx-3080": 512,
    "rtx-3090-ti": 512,
    "titan-v": 1024,
    "v100-pcie-16gb": 1024,
    "v100s-pcie-32gb": 1024,
    "v100-sxm2-16gb": 1024,
    "v100-sxm2-32gb": 1024,
    "v100-sxm3-32gb": 1024,
    "quadro-rtx-6000": 1024,
    "quadro-rtx-8000": 1024,
    "rtx-4000-ada": 1024,
    "rtx-4500-ada": 1024,
    "rtx-5000-ada": 1024,
    "rtx-4070-ti-super": 512,
    "rtx-4080": 512,
    "rtx-4080-super": 512,
    "rtx-4090-d": 512,
    "rtx-5060-ti": 512,
    "rtx-5070-ti": 512,
    "rtx-5080": 512,
    "rtx-5090-d": 512,
    "rtx-pro-4000-blackwell": 1024,
    "rtx-pro-4500-blackwell": 1024,
    "rtx-pro-5000-72gb-blackwell": 1024,
}


@pytest.mark.parametrize("name", FLOP_PER_CLOCK)
def test_tensor_rate_follows_from_clock_and_multiprocessors(name: str) -> None:
    found = load_gpu(name)
    computed = FLOP_PER_CLOCK[name] * found.multiprocessors.value * found.boost_clock.value
    assert found.peak_flops["fp16"].value == pytest.approx(computed, rel=0.015)


@pytest.mark.parametrize(
    ("name", "mib"),
    [("rtx-pro-6000-blackwell-server", 97887), ("l40s", 46068), ("h200-sxm", 143771), ("rtx-4090", 24564), ("a100-pcie-80gb", 81920)],
)
def test_memory_is_what_the_driver_reports(name: str, mib: int) -> None:
    assert load_gpu(name).memory.value == mib * 2**20


def test_flags_of_the_boards() -> None:
    forced = {name for name in names("gpus") if load_gpu(name).force_p2p_needed}
    profiled = {name: load_gpu(name).kernel_profile for name in names("gpus") if load_gpu(name).kernel_profile}
    boards = {"rtx-pro-6000-blackwell-server", "rtx-pro-6000-blackwell-workstation", "rtx-pro-6000-blackwell-max-q"}
    assert forced == boards
    assert profiled == {**dict.fromkeys(boards, "kernels-rtx-pro-6000"), "l40s": "kernels-l40s"}
    assert {name for name in names("gpus") if load_gpu(name).p2p.stock_driver == "no"} == {
        "rtx-5090",
        "rtx-4090",
        "rtx-3090",
        "rtx-2080-ti",
        "titan-rtx",
        "cmp-170hx-64gb",
        "rtx-3060",
        "rtx-3080",
        "rtx-3090-ti",
        "rtx-4070-ti-super",
        "rtx-4080",
        "rtx-4080-super",
        "rtx-4090-d",
        "rtx-5060-ti",
        "rtx-5070-ti",
        "rtx-5080",
        "rtx-5090-d",
    }
    assert {name for name in names("gpus") if load_gpu(name).p2p.stock_driver == "yes"} == boards


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("rtx-pro-6000", "rtx-pro-6000-blackwell-server"),
        ("rtx6000pro", "rtx-pro-6000-blackwell-server"),
        ("rtx_pro_6000_bw_server", "rtx-pro-6000-blackwell-server"),
        ("RTX_PRO_6000_BW_WS", "rtx-pro-6000-blackwell-workstation"),
        ("L40S", "l40s"),
        ("5090", "rtx-5090"),
        ("h200", "h200-sxm"),
    ],
)
def test_aliases(asked: str, name: str) -> None:
    assert load_gpu(asked).name == name
