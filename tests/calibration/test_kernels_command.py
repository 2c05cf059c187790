"""`python -m pcie_sim.calibration.kernels`: small made-up tables of a known machine in, profiles out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcie_sim.calibration import kernels
from pcie_sim.calibration.kernel_tables import FORMATS, balanced_experts
from pcie_sim.catalog import load_gpu, load_kernel_profile
from pcie_sim.compute.roofline import Efficiencies, roofline
from pcie_sim.compute.work import work_of
from pcie_sim.specs.base import build
from pcie_sim.specs.kernel_profile import KernelProfile
from pcie_sim.specs.loader import load_yaml
from pcie_sim.specs.ops import DecodeAttention, Experts, Gemm

L40S = next(target for target in kernels.TARGETS if target.gpu == "l40s")
GPU = load_gpu("l40s")
TRUE_SHARE = 0.71


def microseconds(call, peak, **changes):
    values = {"fixed_s": 5e-6, "bandwidth_share": TRUE_SHARE, "flops_share": 0.4, "sharpness": 2.0, **changes}
    time = roofline(work_of(call, heads_per_item=16), Efficiencies(**values), GPU.memory_bandwidth.value, GPU.peak_flops[peak].value)
    return f"{float(time) * 1e6:.6g}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tables of an L40S-like machine without a cache, every class at 0.71 of the bandwidth."""
    where = tmp_path_factory.mktemp("tables")
    lines = ["kernel_source,gemm_dtype,m,n,k,latency_us"]
    for dtype, peak in (("bfloat16", "bf16"), ("fp8", "fp8")):
        lines += [
            f"k,{dtype},{m},{n},{k},{microseconds(Gemm(m, n, k, FORMATS[dtype]), peak, serial_s=1e-9)}"
            for n in (512, 1024, 4096, 8192)
            for k in (512, 2048, 4096, 8192)
            for m in (1, 8, 64, 512)
        ]
    (where / "gemm_sglang_l40s.csv").write_text("\n".join(lines) + "\n")
    lines = ["kernel_source,kv_cache_dtype,num_heads,num_key_value_heads,head_dim,batch_size,ctx,latency_us"]
    for kv, width in (("bfloat16", 2.0), ("fp8", 1.0)):
        for heads, kv_heads in ((8, 1), (32, 8), (32, 32), (64, 8)):
            for batch in (1, 16, 64):
                for context in (16, 512, 4096, 32768):
                    call = DecodeAttention(batch, context, "gqa", heads, kv_heads * 256.0, 128, 128, width)
                    lines.append(f"flashinfer,{kv},{heads},{kv_heads},128,{batch},{context},{microseconds(call, 'bf16', per_item_s=5e-9)}")
    (where / "attention_decode_sglang_l40s.csv").write_text("\n".join(lines) + "\n")
    lines = ["framework,table,kernel_source,kv_cache_dtype,num_heads,batch_size,isl,step,latency_us"]
    for heads in (8, 16, 64, 128):
        for batch in (1, 4, 16, 64):
            for context in (16, 512, 4096, 16384, 65536):
                call = DecodeAttention(batch, context, "mla", heads, 576.0, 576, 512)
                time = microseconds(call, "bf16", per_item_s=5e-7, serial_s=6e-9, serial_cap=6000.0)
                lines.append(f"sglang,generation_mla,triton,bfloat16,{heads},{batch},{context - 1},1,{time}")
    (where / "mla_decode_l40s.csv").write_text("\n".join(lines) + "\n")
    lines = [
        "framework,kernel_source,moe_dtype,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,num_tokens,distribution,latency_us"
    ]
    for framework, source, dtype, peak, _ in kernels._EXPERTS["l40s"].values():
        for tp, ep in ((1, 1), (1, 8), (8, 1), (2, 2), (4, 1)):
            for tokens in (1, 4, 16, 64, 256):
                distinct, slots = balanced_experts(tokens, 8, 128, ep)
                call = Experts(tokens, distinct, slots, 128 // ep, 4096, 2048 // tp, FORMATS[dtype])
                time = microseconds(call, peak, sharpness=1.5, flops_share=0.5)
                lines.append(f"{framework},{source},{dtype},4096,2048,8,128,{tp},{ep},{tokens},balanced,{time}")
    (where / "moe_kernels_l40s.csv").write_text("\n".join(lines) + "\n")
    return where


@pytest.fixture(scope="module")
def fitted(folder, tmp_path_factory) -> tuple[KernelProfile, Path]:
    out = tmp_path_factory.mktemp("profiles")
    return kernels.run(folder, write_to=out, targets=(L40S,))["kernels-l40s"], out / "kernels-l40s.yaml"


def test_every_class_finds_the_machine(fitted):
    profile, _ = fitted
    shipped = load_kernel_profile("kernels-l40s")
    assert set(profile.classes) == set(shipped.classes)
    for key, fit in profile.classes.items():
        assert fit.bandwidth_share == pytest.approx(TRUE_SHARE, rel=0.05), key
        assert fit.fixed_s == pytest.approx(5e-6, rel=0.1), key
        assert fit.held_out_rows > 0
        assert fit.held_out_median_ape is not None
        assert fit.held_out_median_ape < 0.03, key
        assert fit.evidence == "profile"


def test_the_written_file_reads_back(fitted):
    profile, path = fitted
    assert build(KernelProfile, load_yaml(path), source=path.name) == profile


def test_the_report_says_what_was_used_and_how_well(folder, capsys):
    kernels.run(folder, targets=(L40S,))
    text = capsys.readouterr().out
    assert "== l40s" in text
    for key in ("gemm:bf16", "attention:mla", "experts:int4"):
        assert f"{key}: " in text
    assert "held out median" in text
    assert "bandwidth_share" in text
    assert "wrote" not in text


def test_missing_tables_exit_2(tmp_path, capsys):
    assert kernels.main([str(tmp_path)]) == 2
    assert "no such table" in capsys.readouterr().err


def test_broken_table_exits_2_and_names_the_line(folder, tmp_path, capsys):
    for path in folder.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    for stem in ("gemm_sglang", "attention_decode_sglang", "mla_decode", "moe_kernels"):
        (tmp_path / f"{stem}_rtxpro6000.csv").write_text((folder / f"{stem}_l40s.csv").read_text())
    (tmp_path / "gemm_sglang_rtxpro6000.csv").write_text("gemm_dtype,m,n,k,latency_us\nbfloat16,1,512,512,fast\n")
    (tmp_path / "layer_profiles_llmservingsim.csv").write_text("gpu,model,tp,layer,tokens,time_us\n")
    assert kernels.main([str(tmp_path)]) == 2
    assert "gemm_sglang_rtxpro6000.csv:2: latency_us is 'fast'" in capsys.readouterr().err
