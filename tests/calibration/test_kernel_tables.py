"""Reading kernel tables: shapes to work, and complaints about broken files that name file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcie_sim.calibration import kernel_tables as tables
from pcie_sim.calibration.kernel_tables import Left, balanced_experts, split
from pcie_sim.errors import InputError
from pcie_sim.specs.ops import DecodeAttention, Experts, Gemm

GEMM = "kernel_source,gemm_dtype,m,n,k,latency_us\n"
MOE = (
    "framework,framework_version,kernel_source,moe_dtype,hidden_size,inter_size,topk,num_experts,"
    "moe_tp_size,moe_ep_size,num_tokens,distribution,latency_us\n"
)


def gemm(folder: Path, text: str) -> list[object]:
    path = folder / "gemm.csv"
    path.write_text(text, encoding="utf-8")
    return list(tables.gemm_rows(path, "bfloat16", largest_m=512))


def test_gemm_row(tmp_path):
    (row,) = gemm(tmp_path, GEMM + "x,bfloat16,4,1024,2048,7.5\n")
    assert isinstance(row.call, Gemm)
    assert (row.shape, row.time_s, row.working_set) == ("1024x2048", pytest.approx(7.5e-6), 1024 * 2048 * 2)


def test_other_dtypes_are_not_rows_and_prefill_is_left_out(tmp_path):
    rows, left = split(iter(gemm(tmp_path, GEMM + "x,fp8,4,1024,2048,7.5\nx,bfloat16,1024,1024,2048,7.5\n")))
    assert rows == []
    assert left == {"more than 512 tokens (prefill)": 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"gemm\.csv:1: column 'gemm_dtype' is missing"),
        ("gemm_dtype,m,n\n", "column 'k' is missing"),
        (GEMM.replace("kernel_source", "m"), "twice"),
        (GEMM + "x,bfloat16,4,1024,2048\n", r"gemm\.csv:2: 5 cells where the head has 6"),
        (GEMM + "x,bfloat16,4,1024,2048,1,1\n", "7 cells"),
        (GEMM + "x,bfloat16,four,1024,2048,1\n", r"gemm\.csv:2: m is 'four'"),
        (GEMM + "x,bfloat16,0,1024,2048,1\n", "from 1 to"),
        (GEMM + "x,bfloat16,-1,1024,2048,1\n", "from 1 to"),
        (GEMM + "x,bfloat16,1e3,1024,2048,1\n", "whole number"),
        (GEMM + "x,bfloat16," + "9" * 5000 + ",1024,2048,1\n", "from 1 to"),
        (GEMM + "x,bfloat16,1,1024,2048,nan\n", "latency_us is 'nan'"),
        (GEMM + "x,bfloat16,1,1024,2048,inf\n", "microseconds"),
        (GEMM + "x,bfloat16,1,1024,2048,0\n", "microseconds above 0"),
        (GEMM + "x,bfloat16,1,1024,2048,-3\n", "microseconds above 0"),
        (GEMM + "x,bfloat16,1,1024,2048,\n", "latency_us is ''"),
        (GEMM + "x,bfloat16,1,1024," + "2" * 200_000 + ",1\n", "not a UTF-8 CSV table"),
    ],
)
def test_broken_tables(tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        gemm(tmp_path, text)
    assert len(str(caught.value)) < 300


def test_binary_file(tmp_path):
    path = tmp_path / "gemm.csv"
    path.write_bytes(b"\xff\xfe\x00\x01" * 100)
    with pytest.raises(InputError, match=r"gemm\.csv"):
        list(tables.gemm_rows(path, "bfloat16", largest_m=512))


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match="no such table"):
            list(tables.gemm_rows(path, "bfloat16", largest_m=512))


def test_too_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_ROWS", 3)
    with pytest.raises(InputError, match="more than 3 rows"):
        gemm(tmp_path, GEMM + "x,bfloat16,4,1024,2048,7.5\n" * 4)


def test_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        gemm(tmp_path, GEMM + "x,bfloat16,4,1024,2048,7.5\n" * 100_000)


@pytest.mark.parametrize(
    ("tokens", "topk", "experts", "ep", "distinct", "slots"),
    [
        (1, 8, 384, 1, 8, 8),
        (1, 8, 384, 8, 1, 1),
        (1, 8, 384, 16, 1, 1),  # eight slots on sixteen ranks: the fullest has one
        (2, 8, 384, 8, 2, 2),
        (48, 8, 384, 1, 384, 384),
        (64, 8, 384, 8, 48, 64),
        (3, 2, 8, 4, 2, 2),
    ],
)
def test_balanced_load_of_the_fullest_rank(tokens, topk, experts, ep, distinct, slots):
    assert balanced_experts(tokens, topk, experts, ep) == (distinct, slots)


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 16, 48, 64, 200])
def test_balanced_load_equals_dealing_slots_out(tokens, ep):
    topk, experts = 8, 128
    rank_experts: list[set[int]] = [set() for _ in range(ep)]
    for slot in range(tokens * topk):
        expert = slot % experts
        rank_experts[expert % ep].add(expert)  # ranks take experts in turn, so that the load is as even as it can be
    assert balanced_experts(tokens, topk, experts, ep)[0] == max(len(found) for found in rank_experts)


def test_expert_rows(tmp_path):
    path = tmp_path / "moe.csv"
    head = "sglang,1,k,int4_wo,7168,2048,8,"
    path.write_text(
        MOE
        + head
        + "384,1,8,8,balanced,159\n"
        + head
        + "384,1,8,8,power_law_1.2,200\n"
        + head
        + "256,1,8,8,balanced,200\n"
        + head
        + "384,1,8,1024,balanced,200\n"
        + head
        + "384,3,1,8,balanced,200\n"
        + head.replace("sglang", "vllm")
        + "384,1,8,8,balanced,159\n",
        encoding="utf-8",
    )
    rows, left = split(tables.expert_rows(path, "sglang", "k", "int4_wo", largest_tokens=512))
    (row,) = rows
    assert isinstance(row.call, Experts)
    assert (row.call.distinct, row.call.slots, row.call.local, row.call.tokens) == (8, 8, 48, 8)
    assert row.working_set == 8 * 3 * 7168 * 2048 * 0.5625
    assert sum(left.values()) == 4
    assert len(left) == 4


def test_attention_and_mla_rows(tmp_path):
    path = tmp_path / "attention.csv"
    path.write_text(
        "kernel_source,kv_cache_dtype,num_heads,num_key_value_heads,head_dim,batch_size,ctx,latency_us\n"
        "flashinfer,bfloat16,32,8,128,4,1000,20\ntriton,bfloat16,32,8,128,4,1000,20\n",
        encoding="utf-8",
    )
    rows, left = split(tables.attention_rows(path, "flashinfer", "bfloat16", shortest=1))
    assert rows[0].working_set == 4 * 1000 * 8 * 256 * 2
    assert left == {"another kernel than flashinfer": 1}
    path.write_text(
        "framework,table,kernel_source,kv_cache_dtype,num_heads,batch_size,isl,step,latency_us\n"
        "sglang,generation_mla,triton,bfloat16,8,2,1023,1,20\nsglang,generation_mla,triton,bfloat16,1,2,1023,1,20\n"
        "trtllm,generation_mla,default,bfloat16,8,2,1023,1,20\n",
        encoding="utf-8",
    )
    rows, left = split(tables.mla_rows(path, fewest_heads=2))
    (row,) = rows
    assert isinstance(row.call, DecodeAttention)
    assert row.working_set == 2 * 1024 * 1152
    assert sum(left.values()) == 2


def test_layer_profiles(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(
        "gpu,model,tp,layer,tokens,kv_per_seq,activated_experts,time_us\n"
        "G,meta-llama/Llama-3.1-8B,2,lm_head,4,,,349\nG,meta-llama/Llama-3.1-8B,1,sampler,4,,,26\n"
        "G,meta-llama/Llama-3.1-8B,2,sampler,4,,,26\nG,x,1,layernorm,4,,,2.4\nG,x,1,layernorm,64,,,3.4\nH,x,1,layernorm,4,,,9\n",
        encoding="utf-8",
    )
    ((head,), _) = split(tables.lm_head_rows(path, "G", largest_m=512))
    assert head.working_set == 64128 * 4096 * 2
    rows, left = split(tables.sampler_rows(path, "G"))
    assert (len(rows), left) == (1, {"repeats the tp 1 row": 1})
    assert tables.small_kernel_times(path, "G") == [pytest.approx(2.4e-6)]


def test_unused_row_has_a_reason():
    assert Left("why").reason == "why"
