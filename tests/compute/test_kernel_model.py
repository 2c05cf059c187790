"""The kernel model over every GPU of the catalog and every kind of call, and against published kernel times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.catalog import kernel_profile_names, load_gpu, load_kernel_profile, names
from pcie_sim.compute import NOMINAL, KernelModel, class_key, kernel_model
from pcie_sim.errors import NoDataError
from pcie_sim.specs.gpu import GpuSpec
from pcie_sim.specs.kernel_profile import KernelProfile
from pcie_sim.specs.ops import BatchedGemm, DecodeAttention, Elementwise, Experts, Gemm, KernelCall, LinearAttentionStep, Sampling
from pcie_sim.specs.quantisation import WeightFormat

FORMATS = {
    "bf16": WeightFormat(format="bf16", bits=16),
    "fp16": WeightFormat(format="fp16", bits=16),
    "fp8": WeightFormat(format="fp8", bits=8),
    "fp8_block": WeightFormat(format="fp8_block", bits=8, group=16384, scale_bits=32, block=128),
    "int4": WeightFormat(format="int4", bits=4, group=32, scale_bits=16),
    "int8": WeightFormat(format="int8", bits=8),
    "nvfp4": WeightFormat(format="nvfp4", bits=4, group=16, scale_bits=8),
    "mxfp4": WeightFormat(format="mxfp4", bits=4, group=32, scale_bits=8),
}
INT4 = FORMATS["int4"]
GPUS = names("gpus")
PRO = "rtx-pro-6000-blackwell-server"


def calls(batch: object = 4.0, context: object = 1024.0) -> dict[str, KernelCall]:
    b, c = np.asarray(batch, dtype=float), np.asarray(context, dtype=float)
    found: dict[str, KernelCall] = {
        "bmm": BatchedGemm(b, 8, 512, 128),
        "gqa": DecodeAttention(b, c, "gqa", 32, 2048.0, 128, 128),
        "gqa8": DecodeAttention(b, c, "gqa", 32, 2048.0, 128, 128, 1.0),
        "mla": DecodeAttention(b, c, "mla", 64, 576.0, 576, 512),
        "mla8": DecodeAttention(b, c, "mla", 64, 576.0, 576, 512, 1.0),
        "linear": LinearAttentionStep(b, 2e6),
        "small": Elementwise(10, b * 14336),
        "sampling": Sampling(b, 163840),
    }
    for name, weight in FORMATS.items():
        found[f"gemm {name}"] = Gemm(b, 7168, 2048, weight)
        found[f"experts {name}"] = Experts(b, np.minimum(8 * b, 384), 8 * b, 384, 7168, 256, weight)
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_every_call_on_every_gpu(gpu):
    model = kernel_model(load_gpu(gpu))
    batch, context = np.array([[1.0], [8.0], [64.0]]), np.array([[128.0, 4096.0]])
    for name, call in calls(batch, context).items():
        for launch in ("graph", "eager"):
            got = model.time(call, launch=launch)
            assert got.time_s.shape in ((3, 2), (3, 1), ()), name
            assert got.extrapolated.shape == got.time_s.shape
            assert np.all(np.isfinite(got.time_s))
            assert np.all((got.time_s > 5e-7) & (got.time_s < 1.0)), name  # seconds: no kernel takes less than half a microsecond
            assert got.evidence in ("profile", "nominal", "assumed")
            assert got.sigma_log.shape == got.time_s.shape
            assert np.all((got.sigma_log > 0) & (got.sigma_log <= 1))
            assert got.bound in ("memory", "compute", "items", "serial", "fixed", "launch")


@pytest.mark.parametrize("gpu", GPUS)
def test_no_kernel_beats_the_datasheet(gpu):
    spec = load_gpu(gpu)
    model = kernel_model(spec)
    from pcie_sim.compute import bytes_moved

    for name, call in calls(np.array([1.0, 16.0, 256.0]), 2048.0).items():
        floor = bytes_moved(call) / spec.memory_bandwidth.value
        assert np.all(model.time(call).time_s >= floor), name


@pytest.mark.parametrize("gpu", [PRO, "l40s", "a100-pcie-80gb"])
@pytest.mark.parametrize("name", sorted(calls()))
@given(low=st.integers(1, 300), more=st.integers(0, 300), context=st.integers(1, 60_000), longer=st.integers(0, 60_000))
def test_time_grows_with_batch_and_context(gpu, name, low, more, context, longer):
    model = kernel_model(load_gpu(gpu))
    small, large = calls(low, context)[name], calls(low + more, context + longer)[name]
    assert model.time(large).time_s >= model.time(small).time_s * (1 - 1e-12)


@given(
    distinct=st.floats(0.0, 380.0),
    extra=st.floats(0.0, 4.0),
    tokens=st.integers(1, 512),
    weight=st.sampled_from(sorted(FORMATS)),
    gpu=st.sampled_from([PRO, "l40s", "l4"]),
)
def test_time_grows_with_distinct_experts(distinct, extra, tokens, weight, gpu):
    model = kernel_model(load_gpu(gpu))
    few = model.time(Experts(tokens, distinct, 8.0 * tokens, 384, 7168, 2048, FORMATS[weight])).time_s
    many = model.time(Experts(tokens, distinct + extra, 8.0 * tokens, 384, 7168, 2048, FORMATS[weight])).time_s
    assert many >= few * (1 - 1e-12)


@given(factor=st.floats(1.0, 10.0), name=st.sampled_from(sorted(calls())), batch=st.integers(1, 256), gpu=st.sampled_from(GPUS))
def test_more_bandwidth_or_flops_is_never_slower(factor, name, batch, gpu):
    spec = load_gpu(gpu)
    wide = spec.memory_bandwidth.model_copy(update={"value": spec.memory_bandwidth.value * factor})
    fast = {key: item.model_copy(update={"value": item.value * factor}) for key, item in spec.peak_flops.items()}
    call = calls(batch)[name]
    base = kernel_model(spec).time(call).time_s
    for change in ({"memory_bandwidth": wide}, {"peak_flops": fast}):
        assert kernel_model(spec.model_copy(update=change)).time(call).time_s <= base * (1 + 1e-12)


@pytest.mark.parametrize("name", sorted(calls()))
def test_grid_equals_loop(name):
    model = kernel_model(load_gpu(PRO))
    batch, context = np.array([[1.0], [8.0], [200.0]]), np.array([[128.0, 40000.0]])
    whole = model.time(calls(batch, context)[name])
    times, flags = np.broadcast_to(whole.time_s, (3, 2)), np.broadcast_to(whole.extrapolated, (3, 2))
    for i in range(3):
        for j in range(2):
            alone = model.time(calls(batch[i, 0], context[0, j])[name])
            assert times[i, j] == pytest.approx(float(alone.time_s), rel=1e-12)
            assert flags[i, j] == alone.extrapolated


# Published kernel times, RTX PRO 6000 Blackwell Server (ai-dynamo/aiconfigurator, sglang 0.5.14, CUDA-graph timed); working sets
# that do not fit the L2, so that they are what decode sees. Microseconds.
PUBLISHED = [
    ("o_proj 7168x8192 bf16", Gemm(1, 7168, 8192), 79.3, 0.10),
    ("qkv_a 2048x7168 bf16", Gemm(1, 2048, 7168), 23.7, 0.10),
    ("Marlin, 8 experts, 1 token", Experts(1, 8, 8, 384, 7168, 2048, INT4), 178.0, 0.15),
    ("Marlin, 64 experts, 8 tokens", Experts(8, 64, 64, 384, 7168, 2048, INT4), 1069.0, 0.05),
    ("Marlin, 64 eighths, 8 tokens", Experts(8, 64, 64, 384, 7168, 256, INT4), 152.0, 0.10),
    ("Marlin, ep8 rank, 16 tokens", Experts(16, 16, 16, 48, 7168, 2048, INT4), 295.0, 0.05),
    ("MLA 64 heads, 1k", DecodeAttention(1, 1024, "mla", 64, 576.0, 576, 512), 24.8, 0.10),
    ("MLA 8 heads, 1k", DecodeAttention(1, 1024, "mla", 8, 576.0, 576, 512), 22.8, 0.10),
    ("MLA 64 heads, 32 x 1k", DecodeAttention(32, 1024, "mla", 64, 576.0, 576, 512), 139.0, 0.15),
    ("GQA 32/8, 64 x 4k", DecodeAttention(64, 4096, "gqa", 32, 2048.0, 128, 128), 710.0, 0.05),
]


@pytest.mark.parametrize(("name", "call", "published_us", "share"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_kernels_of_the_rtx_pro_6000(name, call, published_us, share):
    got = kernel_model(load_gpu(PRO)).time(call)
    assert float(got.time_s) * 1e6 == pytest.approx(published_us, rel=share)
    assert got.evidence == "profile"


def test_small_matrices_are_predicted_cold():
    # o_proj cut eight ways: 14.7 MB. The table's 6.6 us read it from the L2 (2.2 TB/s); from memory it cannot pass in under
    # 14.7 MB / 1.792 TB/s = 8.2 us.
    got = float(kernel_model(load_gpu(PRO)).time(Gemm(1, 7168, 1024)).time_s)
    assert 8.2e-6 < got < 16e-6


def test_four_bit_experts_without_fp4_units_run_at_bf16():
    model = kernel_model(load_gpu("a100-pcie-80gb"))
    fit = model.kernel_class("experts:nvfp4")
    assert fit.peak == "fp4"
    assert model.peak(fit) == load_gpu("a100-pcie-80gb").peak_flops["bf16"].value


def test_stand_ins_are_nominal_and_say_for_what():
    model = kernel_model(load_gpu(PRO))
    stand_in, fitted = model.kernel_class("gemm:int8"), model.kernel_class("gemm:fp8")
    assert stand_in.evidence == "nominal"
    assert "gemm:fp8" in (stand_in.note or "")
    assert stand_in.sigma_log == pytest.approx(np.hypot(fitted.sigma_log, 0.2))  # another kernel than the one that was fitted
    assert model.kernel_class("gemm:fp8_block").evidence == "assumed"  # per-tensor tables do not speak for block-scaled kernels
    assert model.kernel_class("gemm:fp16") == model.kernel_class("gemm:bf16")
    assert model.kernel_class("bmm").evidence == "nominal"  # no table: the nominal profile answers
    assert model.kernel_class("something new").evidence == "assumed"  # the nominal default


def test_outside_the_fitted_bytes_is_flagged():
    model = kernel_model(load_gpu(PRO))
    assert not model.time(Gemm(1, 7168, 8192)).extrapolated
    assert model.time(Gemm(1, 163840, 7168)).extrapolated  # 2.3 GB: above every matrix in the tables
    assert model.time(Gemm(np.array([1.0, 1.0]), 64, 64)).extrapolated.tolist() == [True, True]


def test_eager_launch_is_a_floor_per_kernel():
    model = kernel_model(load_gpu(PRO))
    issue = model.profile.small_kernel_eager_s
    tiny, large = Gemm(1, 64, 64), Gemm(1, 16384, 16384)
    assert float(model.time(tiny, launch="eager").time_s) == pytest.approx(issue)
    assert model.time(tiny, launch="eager").bound == "launch"
    assert model.time(large, launch="eager").time_s == model.time(large).time_s
    assert float(model.time(Elementwise(10), launch="eager").time_s) == pytest.approx(10 * issue)
    assert float(model.time(Elementwise(0)).time_s) == 0.0


def test_gpu_without_any_peak_is_no_data():
    spec = load_gpu(PRO).model_copy(update={"peak_flops": {}})
    with pytest.raises(NoDataError, match=r"peak_flops\.bf16"):
        kernel_model(spec).time(Gemm(1, 64, 64))


def test_no_class_and_no_default_is_no_data():
    nominal = load_kernel_profile(NOMINAL)
    empty = nominal.model_copy(update={"classes": {}})
    model = KernelModel(load_gpu(PRO), empty, empty)
    with pytest.raises(NoDataError, match="kernel class"):
        model.time(Gemm(1, 64, 64))


def test_gpus_without_tables_answer_nominally():
    model = kernel_model(load_gpu("a100-pcie-80gb"))
    assert model.profile.name == NOMINAL
    assert model.time(Gemm(1, 4096, 4096)).evidence == "nominal"


def test_gpus_name_kernel_profiles_and_every_profile_is_some_gpus():
    assert {load_gpu(gpu).kernel_profile or NOMINAL for gpu in GPUS} == set(kernel_profile_names())


@pytest.mark.parametrize("name", kernel_profile_names())
def test_shipped_profiles_are_sane(name):
    profile = load_kernel_profile(name)
    assert profile.name == name
    assert 1e-6 <= profile.small_kernel_graph_s <= 5e-6 < profile.small_kernel_eager_s <= 2e-5
    for key, fit in profile.classes.items():
        assert fit.bandwidth_share <= 1.0, key
        assert fit.flops_share <= 1.0, key
        assert fit.fixed_s <= 1e-4, key
        if fit.evidence == "profile" and fit.held_out_rows:
            assert fit.held_out_median_ape is not None, key
            assert fit.held_out_median_ape < (0.3 if key == "sampling" else 0.1), key
            assert fit.range_bytes is not None
        assert "aiconfigurator" in fit.source or "LLMServingSim" in fit.source or fit.evidence != "profile"


@pytest.mark.parametrize("name", ["kernels-rtx-pro-6000", "kernels-l40s"])
def test_fitted_profiles_belong_to_their_gpu(name):
    profile: KernelProfile = load_kernel_profile(name)
    gpu: GpuSpec = load_gpu(str(profile.gpu))
    assert gpu.kernel_profile == name
    assert kernel_model(gpu).profile == profile


@pytest.mark.parametrize(("name", "key"), [(n, class_key(c)) for n, c in calls().items()])
def test_nominal_profile_answers_every_class_without_its_default(name, key):
    model = kernel_model(load_gpu("a100-pcie-80gb"))
    assert model.kernel_class(key) != model.nominal.classes["default"]
