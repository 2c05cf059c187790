"""What a call moves and multiplies: exact counts by hand, and arrays against loops."""

from __future__ import annotations

import numpy as np
import pytest

from pcie_sim.compute import bytes_moved, flops
from pcie_sim.compute.roofline import Efficiencies, combine, roofline, terms
from pcie_sim.compute.work import Work, work_of
from pcie_sim.specs.ops import BatchedGemm, DecodeAttention, Elementwise, Experts, Gemm, KernelCall, LinearAttentionStep, Sampling
from pcie_sim.specs.quantisation import WeightFormat

INT4 = WeightFormat(format="int4", bits=4, group=32, scale_bits=16)


def test_gemm_reads_its_weights_once_and_its_activations():
    # 7168 x 8192 bf16: 117 440 512 B of weights (Kimi K2 o_proj), one row in (8192) and one out (7168)
    call = Gemm(1, 7168, 8192)
    assert bytes_moved(call) == 117_440_512 + 2 * (8192 + 7168)
    assert flops(call) == 2 * 7168 * 8192


def test_int4_group_32_takes_half_a_byte_and_a_sixteenth():
    # 4 bits and one bf16 scale per 32 weights: 0.5625 B (Kimi K2: 24.77 MB an expert of 3 x 7168 x 2048)
    moved = bytes_moved(Experts(1, 8, 8, 384, 7168, 2048, INT4))
    weights = 8 * 3 * 7168 * 2048 * 0.5625
    slot = 2 * (6 * 2048 + 2 * 7168)  # gate and up out and in, activation out and in, down out and in, bf16
    assert moved == weights + 8 * slot + 2 * 2 * 7168
    assert flops(Experts(1, 8, 8, 384, 7168, 2048, INT4)) == 8 * 6 * 7168 * 2048


def test_mla_reads_1152_bytes_per_cached_token():
    # (512 latent + 64 rope) x 2 B, whatever the number of heads (DeepSeek V2 paper, arXiv 2405.04434)
    few = DecodeAttention(4, 1000, "mla", 8, 576.0, 576, 512)
    many = DecodeAttention(4, 1000, "mla", 64, 576.0, 576, 512)
    q_and_out = 4 * (576 + 512) * 2
    assert bytes_moved(few) - 8 * q_and_out == 4 * 1000 * 1152
    assert bytes_moved(many) - 64 * q_and_out == 4 * 1000 * 1152
    assert flops(many) == 8 * flops(few)


def test_items_are_kv_heads_for_gqa_and_head_blocks_for_mla():
    gqa = DecodeAttention(4, 1000, "gqa", 32, 8 * 256.0, 128, 128)
    assert work_of(gqa).items == 4 * 8
    mla = DecodeAttention(4, 1000, "mla", 24, 576.0, 576, 512)
    assert work_of(mla, heads_per_item=16).items == 4 * 2


def test_state_of_linear_attention_is_read_and_written():
    assert bytes_moved(LinearAttentionStep(3, 1e6)) == 6e6


B = np.array([[1.0], [4.0], [64.0]])
CTX = np.array([[16.0, 1024.0]])
GRIDS: list[tuple[KernelCall, object]] = [
    (Gemm(B, 512, 1024), lambda b, c: Gemm(b, 512, 1024)),
    (BatchedGemm(B, 8, 512, 128), lambda b, c: BatchedGemm(b, 8, 512, 128)),
    (DecodeAttention(B, CTX, "mla", 8, 576.0, 576, 512), lambda b, c: DecodeAttention(b, c, "mla", 8, 576.0, 576, 512)),
    (LinearAttentionStep(B, 1e6), lambda b, c: LinearAttentionStep(b, 1e6)),
    (Experts(B, B * 2, B * 8, 48, 7168, 256, INT4), lambda b, c: Experts(b, b * 2, b * 8, 48, 7168, 256, INT4)),
    (Elementwise(3, B * 100), lambda b, c: Elementwise(3, b * 100)),
    (Sampling(B, 1000), lambda b, c: Sampling(b, 1000)),
]


@pytest.mark.parametrize(("grid", "point"), GRIDS, ids=lambda item: type(item).__name__)
def test_grids_equal_loops(grid, point):
    work = work_of(grid, heads_per_item=16)
    for name in ("bytes", "flops", "items", "serial", "crowded"):
        part = getattr(work, name)
        assert part.shape == np.broadcast_shapes(part.shape, B.shape)
        full = np.broadcast_to(part, (3, 2))
        for i in range(3):
            for j in range(2):
                alone = work_of(point(float(B[i, 0]), float(CTX[0, j])), heads_per_item=16)
                assert full[i, j] == float(getattr(alone, name))


def test_crowded_is_more_tokens_than_local_experts():
    call = Experts(np.array([48.0, 49.0]), 48, 48, 48, 7168, 2048, INT4)
    assert work_of(call).crowded.tolist() == [0.0, 1.0]


def _work(*values: float) -> Work:
    return Work(*(np.asarray(value) for value in values))


def test_roofline_by_hand():
    fit = Efficiencies(fixed_s=1e-6, bandwidth_share=0.5, flops_share=0.25, per_item_s=1e-9, serial_s=1e-9, serial_cap=100.0)
    work = _work(1e6, 1e9, 7.0, 5000.0, 0.0)
    parts = terms(work, fit, 1e12, 1e15)
    np.testing.assert_allclose(parts, [2e-6, 4e-6, 7e-9, 1e-7])  # the serial length stops at its cap
    assert roofline(work, fit, 1e12, 1e15) == pytest.approx(5e-6)


def test_crowding_slows_the_memory_term_only():
    fit = Efficiencies(fixed_s=0.0, bandwidth_share=0.8, flops_share=0.5, crowded_factor=0.5)
    calm, full = (terms(_work(1e6, 1e6, 0.0, 0.0, flag), fit, 1e12, 1e15) for flag in (0.0, 1.0))
    assert full[0] == pytest.approx(2 * calm[0])
    assert full[1] == calm[1]


@pytest.mark.parametrize("sharpness", [1.0, 1.5, 3.0, 20.0, None])
def test_corner_lies_between_the_largest_and_the_sum(sharpness):
    rng = np.random.default_rng(1)
    parts = rng.exponential(size=(4, 100))
    parts[:, 0] = 0.0  # nothing to do takes no time
    got = combine(parts, sharpness)
    assert np.all(got >= parts.max(axis=0))
    assert np.all(got <= parts.sum(axis=0) * (1 + 1e-12))
    assert got[0] == 0.0


def test_corner_of_one_is_the_sum_and_of_none_the_maximum():
    parts = np.array([[1.0, 2.0], [3.0, 0.0]])
    np.testing.assert_allclose(combine(parts, 1.0), [4.0, 2.0])
    np.testing.assert_array_equal(combine(parts, None), [3.0, 2.0])
