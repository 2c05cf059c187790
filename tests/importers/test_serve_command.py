"""Serve commands: shell, docker, compose, Kubernetes and systemd; strategies by the engines' own rules."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers import serve_command
from pcie_sim.importers.imported import Imported, Launch
from pcie_sim.importers.source import source_of
from pcie_sim.specs.strategy import parse_strategy

REFERENCE = """\
# the run that the figures come from
export NCCL_IB_DISABLE=1
export NCCL_P2P_LEVEL=5
NCCL_ALGO=Ring HF_TOKEN=hf_abcdefghijklmnop python3 -m sglang.launch_server \\
  --model-path moonshotai/Kimi-K2.6 \\
  --tp-size 8 --ep-size 8 \\
  --mem-fraction-static 0.88 --context-length 32768 \\
  --max-running-requests 64 --attention-backend triton --host 10.1.2.3 --port 30000
"""


def imported(text: str, name: str = "run.sh") -> Imported:
    source = source_of(text, name)
    assert serve_command.sniff(source) is not None
    return serve_command.read(source)


def launch(text: str) -> Launch:
    found = imported(text).launch
    assert found is not None
    assert parse_strategy(found.strategy).canonical == found.strategy
    return found


def said(text: str) -> str:
    return "\n".join(str(remark) for remark in imported(text).remarks)


def test_the_reference_command() -> None:
    """``--tp-size 8 --ep-size 8`` without a backend: no exchange is named (the engine runs AllReduces, its own rule)."""
    found = launch(REFERENCE)
    assert (found.runtime, found.strategy, found.model) == ("sglang", "tp8ep8", "moonshotai/Kimi-K2.6")
    assert (found.context, found.max_running, found.mem_fraction) == (32768, 64, 0.88)
    assert found.env == {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "5", "NCCL_ALGO": "Ring"}
    assert found.options["attention-backend"] == "triton"
    assert found.launch is None
    assert "hf_" not in repr(found)
    assert "10.1.2.3" not in repr(found)


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ("--tp 8", "tp8"),
        ("--tp=8 --pp=2", "tp8pp2"),
        ("--tensor-parallel-size 4 --pipeline-parallel-size 2", "tp4pp2"),
        ("--tp 8 --ep-size 4", "tp8ep4"),
        ("--tp 8 --expert-parallel-size 8 --moe-a2a-backend none", "tp8ep8"),
        ("--tp 8 --moe-a2a-backend deepep", "tp8ep8:a2a"),
        ("--tp 8 --enable-deepep-moe", "tp8ep8:a2a"),
        ("--tp 8 --enable-ep-moe", "tp8ep8"),
        ("--tp 8 --dp 4 --enable-dp-attention", "tp2dp4"),
        ("--tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend deepep", "dp8ep8:a2a"),
        ("--tp 4 --dp 2", "2xtp4"),
        ("", "tp1"),
    ],
)
def test_sglang_strategies(arguments: str, strategy: str) -> None:
    assert launch(f"python -m sglang.launch_server --model-path m/m {arguments}").strategy == strategy
    assert launch(f"sglang serve --model-path m/m {arguments}").strategy == strategy


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ("-tp 8", "tp8"),
        ("-tp=4 -pp 2", "tp4pp2"),
        ("--tensor-parallel-size 8 --enable-expert-parallel", "tp8ep8"),
        ("-tp 8 -dcp 8", "tp8dcp8"),
        ("-tp 8 --decode-context-parallel-size 2", "tp8dcp2"),
        ("-tp 2 -dp 4 --enable-expert-parallel", "tp2dp4ep8"),
        ("-dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency", "dp8ep8:a2a"),
        ("-dp 8 --enable-expert-parallel --all2all-backend allgather_reducescatter", "dp8ep8:ag_rs"),
        ("-tp 8 --enable-expert-parallel --all2all-backend deepep_low_latency", "tp8ep8"),
        ("--tensor_parallel_size 2", "tp2"),
    ],
)
def test_vllm_strategies(arguments: str, strategy: str) -> None:
    assert launch(f"vllm serve moonshotai/Kimi-K2.6 {arguments}").strategy == strategy
    assert launch(f"python -m vllm.entrypoints.openai.api_server --model moonshotai/Kimi-K2.6 {arguments}").strategy == strategy


def test_vllm_data_parallel_depends_on_the_model() -> None:
    """Copies of a dense model, attention data parallelism of one with experts, an assumption where the model is not known."""
    assert launch("vllm serve Qwen/Qwen3-32B -dp 2 -tp 4").strategy == "2xtp4"
    assert launch("vllm serve Qwen/Qwen3-235B-A22B -dp 2 -tp 4").strategy == "tp4dp2"
    assert launch("vllm serve someone/unheard-of -dp 2 -tp 4").strategy == "tp4dp2"
    assert "not in the catalog" in said("vllm serve someone/unheard-of -dp 2 -tp 4")


def test_expert_parallelism_of_a_dense_model_is_left_out() -> None:
    for text in ("vllm serve Qwen/Qwen3-32B -tp 4 --enable-expert-parallel", "sglang serve --model Qwen/Qwen3-32B --tp 4 --ep 4"):
        assert launch(text).strategy == "tp4"
        assert "has no experts" in said(text)


def test_options_that_engines_log() -> None:
    sglang = (
        "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='moonshotai/Kimi-K2.6', host='10.0.0.7', port=30000, "
        "tp_size=8, ep_size=8, dp_size=1, context_length=32768, mem_fraction_static=0.88, disable_cuda_graph=False, "
        "kv_cache_dtype='auto', enable_dp_attention=False, moe_a2a_backend='none', max_running_requests=64)"
    )
    found = launch(sglang)
    assert (found.runtime, found.strategy, found.model, found.context) == ("sglang", "tp8ep8", "moonshotai/Kimi-K2.6", 32768)
    assert (found.max_running, found.launch, found.kv_dtype) == (64, None, None)
    assert "10.0.0.7" not in repr(found)
    vllm = "INFO non-default args: {'model_tag': 'm/m', 'max_model_len': 8192, 'tensor_parallel_size': 4, 'enforce_eager': True}"
    found = launch(vllm)
    assert (found.runtime, found.strategy, found.model, found.context, found.launch) == ("vllm", "tp4", "m/m", 8192, "eager")


def test_vllm_settings() -> None:
    found = launch(
        "VLLM_ALL2ALL_BACKEND=naive vllm serve nvidia/Kimi-K2.6-NVFP4 -tp 8 --max-model-len 128k --gpu-memory-utilization=0.94 "
        "--max-num-seqs 32 --kv-cache-dtype fp8_e4m3 --quantization modelopt_fp4 --disable-custom-all-reduce --enforce-eager "
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}' --cuda-graph-sizes 1 2 4 --new-flag"""
    )
    assert (found.context, found.max_running, found.mem_fraction) == (128_000, 32, 0.94)
    assert (found.kv_dtype, found.quantisation) == ("fp8_e4m3", "modelopt_fp4")
    assert (found.launch, found.custom_all_reduce) == ("eager", False)
    assert found.speculation == "mtp, 2 draft tokens"
    assert found.options["cuda-graph-sizes"] == "1 2 4"
    assert "new-flag" not in found.options  # only what a prediction may depend on is kept
    assert found.options["env VLLM_ALL2ALL_BACKEND"] == "naive"
    text = """vllm serve m/m --compilation-config '{"cudagraph_mode": "NONE"}' --max-model-len auto"""
    assert launch(text).launch == "eager"
    assert launch(text).context is None


def test_sglang_settings() -> None:
    found = launch(
        "sglang serve --model m/m --tp 2 --context-length 1000000 --disable-cuda-graph --speculative-algorithm EAGLE "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --mem-fraction-static 1.5"
    )
    assert (found.context, found.launch) == (1_000_000, "eager")
    assert found.speculation == "EAGLE, 3 steps, 1 topk, 4 draft tokens"
    assert found.mem_fraction is None


DOCKER = (
    """docker run --rm --gpus '"device=0,1,2,3"' --ipc=host -e NCCL_P2P_LEVEL=SYS --env HF_TOKEN=$HF_TOKEN -v ~/.cache:/root/.cache \\\n"""
    """  -p 8000:8000 vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-32B --tensor-parallel-size 4"""
)
DOCKER_BASH = (
    'docker run --gpus all lmsysorg/sglang:v0.5.10 bash -c "export NCCL_PROTO=LL && python3 -m sglang.launch_server '
    '--model-path /home/alice/models/GLM-5 --tp 8"'
)
COMPOSE = """\
services:
  vllm:
    image: vllm/vllm-openai:v0.19.0
    environment:
      - NCCL_P2P_DISABLE=1
      - HF_TOKEN=hf_secretsecretsecret
    command: >
      --model Qwen/Qwen3-8B
      --tensor-parallel-size 2
      --enforce-eager
    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, count: 2, capabilities: [gpu]}
"""
KUBERNETES = """\
apiVersion: v1
kind: Service
metadata: {name: front}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: engine
        image: lmsysorg/sglang:latest
        command:
        - python3
        - -m
        - sglang.launch_server
        args:
        - --model-path
        - zai-org/GLM-4.7-FP8
        - --tp
        - "8"
        env:
        - {name: NCCL_DEBUG, value: INFO}
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
        resources:
          limits:
            nvidia.com/gpu: 8
"""
SYSTEMD = """\
[Service]
Environment="CUDA_VISIBLE_DEVICES=0,1,2,3" "NCCL_PROTO=LL"
User=alice
ExecStart=/home/alice/venv/bin/vllm serve /data/models/Qwen3-32B \\
    --tensor-parallel-size 4
Restart=always
"""


@pytest.mark.parametrize(
    ("text", "runtime", "model", "strategy", "env", "gpus"),
    [
        (DOCKER, "vllm", "Qwen/Qwen3-32B", "tp4", {"NCCL_P2P_LEVEL": "SYS"}, 4),
        (DOCKER_BASH, "sglang", "GLM-5", "tp8", {"NCCL_PROTO": "LL"}, None),
        (COMPOSE, "vllm", "Qwen/Qwen3-8B", "tp2", {"NCCL_P2P_DISABLE": "1"}, 2),
        (KUBERNETES, "sglang", "zai-org/GLM-4.7-FP8", "tp8", {"NCCL_DEBUG": "INFO"}, 8),
        (SYSTEMD, "vllm", "Qwen3-32B", "tp4", {"NCCL_PROTO": "LL"}, 4),
    ],
    ids=["docker", "docker-bash", "compose", "kubernetes", "systemd"],
)
def test_wrappers(text: str, runtime: str, model: str, strategy: str, env: dict[str, str], gpus: int | None) -> None:
    found = imported(text)
    assert found.launch is not None
    assert (found.launch.runtime, found.launch.model, found.launch.strategy, found.launch.gpus) == (runtime, model, strategy, gpus)
    assert dict(found.launch.env) == env
    assert "alice" not in repr(found)
    assert "hf_" not in repr(found)


def test_secrets_and_people_are_not_kept() -> None:
    text = (
        "HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaa NCCL_TOPO_FILE=/home/alice/topo.xml VLLM_HOST_IP=192.168.1.7 VLLM_API_KEY=zzz vllm serve "
        "s3://bucket-of-alice/Qwen3-8B --api-key sk-proj-abcdefgh12345678 --host gpu-box-17 --served-model-name q --chat-template "
        "/home/alice/t.jinja --ssl-keyfile k.pem --hf-overrides alice@example.com --extra abcdef0123456789abcdef0123456789abcd "
        "--download-dir '/home/alice/my dir' --dist-init-addr 10.0.0.1:50000 --tokenizer Qwen/Qwen3-8B"
    )
    found = imported(text)
    shown = repr(found)
    for secret in ("hf_aaaa", "alice", "192.168", "zzz", "sk-proj", "gpu-box-17", "k.pem", "abcdef0123", "10.0.0.1", "bucket"):
        assert secret not in shown, secret
    assert found.launch is not None
    assert found.launch.model == "Qwen3-8B"
    assert found.launch.env["NCCL_TOPO_FILE"] == "set"
    assert found.launch.options == {}
    assert "are not kept (12)" in said(text)  # 10 options, 2 settings of the engine


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("vllm serve m/m \u2014tensor-parallel-size 4", "typographic dash"),
        ('vllm serve "m/m -tp 4', "quotes that do not close"),
        ("vllm serve m/m \\  \n  -tp 4", "blanks after a continuation sign"),
        ("vllm serve m/m -tp $TP --max-model-len 32x", "variable of the shell"),
        ("vllm serve $MODEL -tp 4", "the model is a variable"),
        ("sglang serve --tp 4", "names no model"),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m/m -tp 4", "tp4 needs 4 GPUs and 2 are visible"),
        ("vllm serve m/m -tp 2\nvllm serve n/n -tp 4", "1 more serve commands"),
        ("sglang serve --model m/m --tp 8 --nnodes 2 --node-rank 0", "all nodes together"),
        ("vllm serve m/m --config cfg.yaml -tp 2", "--config"),
        ("trtllm-serve m/m --tp_size 4", "TensorRT-LLM is not modelled"),
        ("vllm serve m/m -tp 2 --all2all-backend naive", "has no effect"),
    ],
)
def test_damage_and_gaps_are_said(text: str, remark: str) -> None:
    assert remark in said(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m/m -tp 4 > log 2>&1", "tp4"),
        ("$ vllm serve m/m -tp 4", "tp4"),
        ("# vllm serve m/m -tp 4", "tp4"),
        ("cd /x && source venv/bin/activate && vllm serve m/m -tp 4 | tee a.log", "tp4"),
        ("sudo nohup env NCCL_DEBUG=INFO vllm serve m/m -tp 4 &", "tp4"),
        ("\u201cvllm\u201d serve m/m -tp 4", None),
        ("numactl --cpunodebind=0 vllm serve m/m \u2013tp 4", "tp4"),
        ("vllm serve --enable-expert-parallel m/m -tp 4", "tp4ep4"),
        ('services:\n  a:\n    command: ["vllm", "serve", "m/m", "-tp", "4"]\n', "tp4"),
        ('FROM x\nCMD ["vllm", "serve", "m/m", "-tp", "4"]\n', "tp4"),
        ("vllm serve m/m -tp 2 -tp 4", "tp4"),
        ("```bash\nvllm serve m/m \\\n  # two cards\n  -tp 2\n```", "tp2"),
    ],
)
def test_shell_habits(text: str, expected: str | None) -> None:
    if expected is None:
        assert serve_command.sniff(source_of(text, "x")) is None
    else:
        found = launch(text)
        assert (found.strategy, found.model) == (expected, "m/m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-server -m model.gguf -ngl 99", r"^run.sh:1: llama.cpp's llama-server: this engine is not modelled"),
        ("text-generation-launcher --model-id m/m --num-shard 4", "Text Generation Inference"),
        ("\nvllm serve m/m -tp eight", r"^run.sh:2: --tp: expected a whole number"),
        ("vllm serve m/m -tp 0", "from 1 to"),
        ("vllm serve m/m -tp " + "9" * 5000, "whole number"),
        ("vllm serve m/m -tp -4", "expected a whole number|names no"),
        ("vllm serve m/m -tp 8 -dcp 3", r"^run.sh:1: .*dcp3 must divide tp8"),
        ("sglang serve --model m/m --tp 8 --dp 3 --enable-dp-attention", "must divide"),
        ("We then used vllm serve to start the thing", "paste the whole command"),
        ("docker pull lmsysorg/sglang:latest", "paste the whole command"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(text)


COMPOSE_MERGED = """\
x-env: &env
  NCCL_P2P_LEVEL: SYS
  NCCL_ALGO: Ring
x-gpus: &gpus
  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 4}]}}}
x-vllm: &vllm
  <<: *gpus
  image: vllm/vllm-openai:v0.19.0
  command: --model none/none -tp 1
  environment: {NCCL_DEBUG: WARN}
services:
  a:
    <<: MERGE
    command: --model Qwen/Qwen3-8B --tensor-parallel-size 4
    environment:
      <<: *env
      NCCL_ALGO: Tree
"""


@pytest.mark.parametrize("merge", ["*vllm", "[*gpus, *vllm]"])
def test_merge_keys_are_resolved(merge: str) -> None:
    """YAML 1.1 merge keys: own keys win over merged ones, and earlier mappings over later ones; a template starts no server."""
    text = COMPOSE_MERGED.replace("MERGE", merge)
    found = launch(text)
    assert (found.model, found.strategy, found.gpus) == ("Qwen/Qwen3-8B", "tp4", 4)
    assert found.env == {"NCCL_ALGO": "Tree", "NCCL_P2P_LEVEL": "SYS"}
    assert said(text) == ""
    assert "1 merge keys" in said(text.replace("<<: *env", "<<: [*env, 5]"))


def test_merge_keys_are_bounded() -> None:
    """Each level merges two copies of the level below: the work stays linear in the levels, or the loader refuses."""
    for levels in (10, 40):
        lines = ["x0: &x0 {environment: {NCCL_ALGO: Ring}}"]
        lines += [f"x{i}: &x{i} {{<<: [*x{i - 1}, *x{i - 1}], k{i}: 1}}" for i in range(1, levels)]
        text = "\n".join([*lines, "services:", "  a:", f"    <<: *x{levels - 1}", "    command: vllm serve m/m -tp 2", ""])
        found = launch(text)
        assert found.strategy == "tp2"
        if levels == 10:
            assert found.env == {"NCCL_ALGO": "Ring"}


def test_settings_that_come_from_elsewhere_are_said() -> None:
    base = COMPOSE.replace("    environment:", "    env_file: secrets.env\n    environment:")
    assert "env_file: settings that come from elsewhere" in said(base)
    assert "--env-file: settings" in said("docker run --env-file my.env --gpus 2 vllm/vllm-openai --model m/m -tp 2")
    broken = COMPOSE + "  other: [\n"
    with pytest.raises(InputError):
        imported(broken)  # no line of it has a whole command
    whole = "services:\n  a:\n    command: vllm serve m/m -tp 2\n    environment: [NCCL_ALGO=Ring\n"
    assert "is no YAML that can be read" in said(whole)
    assert launch(whole).env == {}
    many = "a: 1\n---\n" * 70 + COMPOSE
    with pytest.raises(InputError):
        imported(many)
    assert "only the first 64 YAML documents" in said(COMPOSE + "---\na: 1\n" * 70)


def test_a_command_is_read_to_its_end_or_refused() -> None:
    """What a bound cuts off may be the strategy, so it is never dropped silently."""
    assert launch("vllm serve m/m \\\n" + "\\\n" * 30_000 + "-tp 4").strategy == "tp4"
    for long in ("vllm serve m/m " + "--x 1 " * 4000 + "-tp 4", "vllm serve m/m \\\n" + "--x 1 \\\n" * 4000 + "-tp 4"):
        with pytest.raises(InputError, match=r"^run.sh:1: this command is longer than 20,000 characters"):
            imported(long)
    for listed in ("[vllm, serve, m/m" + ", x" * 2100 + ", -tp, 4]", "vllm serve m/m " + "x " * 11_000 + "-tp 4"):
        with pytest.raises(InputError, match="longer than"):
            imported(f"services:\n  a:\n    command: {listed}\n")
    settings = "export NCCL_ALGO=Ring \\\n" + "  A=aaaaaaaaaaaaaaaa \\\n" * 2000 + "  NCCL_PROTO=LL\nvllm serve m/m -tp 4"
    assert launch(settings).env == {"NCCL_ALGO": "Ring"}
    assert [remark.kind for remark in imported(settings).remarks] == ["cut"]
    assert "from line 20001 on they are not read" in said("export A=1\n" * 20_001 + "vllm serve m/m -tp 4")


def test_many_settings_are_cut_and_counted() -> None:
    exports = "".join(f"export NCCL_X{i}={i}\nexport OTHER_{i}=1\n" for i in range(8000))
    found = imported(exports + "NCCL_X1=9 vllm serve m/m -tp 4")
    assert found.launch is not None
    assert len(found.launch.env) == 200
    assert found.launch.env["NCCL_X1"] == "9"
    assert [(remark.kind, remark.text) for remark in found.remarks] == [
        ("cut", "more than 200 settings of NCCL or RCCL: 7,800 more are not read")
    ]
    listed = "services:\n  a:\n    command: vllm serve m/m -tp 4\n    environment:\n" + "".join(f"    - NCCL_X{i}=1\n" for i in range(300))
    assert "100 more are not read" in said(listed)


@pytest.mark.parametrize(
    "option",
    [
        "--headers 'Authorization: Bearer abc-alice'",
        "--quantization 'Bearer alice'",
        "--dtype Authorization",
        """--hf-overrides '{"auth_token": "alice", "private_key": "alice"}'""",
        """--compilation-config '{"hub_key": "alice"}'""",
        """--speculative-config '{"model": "alice/secret", "token": "alice"}'""",
        "--speculative-algorithm /home/alice/x",
        "--root-path /alice",
        "--download-dir ~/alice",
        "--served-model-name alice-corp",
        "--metrics-label-keys alice",
        "--middleware alice.auth.Check",
        "--revision alice-branch",
        "--attention-backend /opt/alice/backend.so",
        "--attention-backend '~alice'",
        "--kv-cache-dtype hf_alicealicealice",
        "--alice-flag 1 --alice-flag=2",
    ],
)
def test_options_keep_nothing_private(option: str) -> None:
    for text in (f"vllm serve m/m -tp 4 --block-size 16 {option}", f"sglang serve --model m/m --tp 4 --block-size 16 {option}"):
        found = imported(text)
        assert "alice" not in repr(found).lower()
        assert "Bearer" not in repr(found)
        assert found.launch is not None
        assert found.launch.options["block-size"] == "16"


def test_library_settings_keep_nothing_private() -> None:
    text = (
        "NCCL_SOCKET_IFNAME=alice0 NCCL_NET_PLUGIN=alice NCCL_TUNER_PLUGIN=alice NCCL_CONF_FILE=alice.conf NCCL_DEBUG_FILE=/alice/x "
        "NCCL_HOSTID=alice NCCL_COMM_ID=alice:1 NCCL_GRAPH_FILE=/home/alice/set.xml NCCL_TOPO_DUMP_FILE=alice NCCL_NET='Bearer alice' "
        "NCCL_ALGO='allreduce:ring,tree;broadcast:ring' NCCL_PROTO=^LL128 NCCL_P2P_DIRECT_DISABLE=1 VLLM_CACHE_ROOT=/alice "
        "VLLM_USE_V1=1 VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m/m -tp 4"
    )
    found = imported(text)
    assert found.launch is not None
    assert found.launch.env == {
        "NCCL_ALGO": "allreduce:ring,tree;broadcast:ring",
        "NCCL_GRAPH_FILE": "set",
        "NCCL_P2P_DIRECT_DISABLE": "1",
        "NCCL_PROTO": "^LL128",
    }
    assert found.launch.options == {"tp": "4", "env VLLM_ATTENTION_BACKEND": "FLASHINFER", "env VLLM_USE_V1": "1"}
    assert "alice" not in repr(found)
    assert "(9)" in said(text)


NAMESPACE = (
    "INFO 03-04 10:12:33 [api_server.py:1043] args: Namespace(subparser='serve', model_tag='Qwen/Qwen3-32B', config='', host='box-17', "
    "port=8000, allowed_origins=['*'], api_key='sk-abcdefghijklmnop', lora_modules=None, chat_template='it\\'s, {x}', "
    "model='facebook/opt-125m', max_model_len=8192, tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=1, "
    "enable_expert_parallel=False, gpu_memory_utilization=0.9, max_num_seqs=None, kv_cache_dtype='auto', enforce_eager=True, "
    "override_generation_config={'tensor_parallel_size': 1}, speculative_config={'method': 'mtp', 'num_speculative_tokens': 2, 'x': None}, "
    "compilation_config=None, disable_custom_all_reduce=True, dispatch_function=<function serve at 0x7f>)"
)


def test_an_older_vllm_logs_all_its_options() -> None:
    """vLLM before its ``non-default args``: argparse's Namespace, with the defaults in it."""
    found = launch(NAMESPACE)
    assert (found.runtime, found.strategy, found.model, found.context) == ("vllm", "tp4", "Qwen/Qwen3-32B", 8192)
    assert (found.mem_fraction, found.max_running, found.launch, found.custom_all_reduce) == (0.9, None, "eager", False)
    assert found.speculation == "mtp, 2 draft tokens"
    assert "box-17" not in repr(imported(NAMESPACE))
    assert "sk-" not in repr(imported(NAMESPACE))
    half = NAMESPACE.partition("pipeline_parallel_size")[0]
    assert launch(half).strategy == "tp4"
    assert "ends before its bracket closes" in said(half)
    assert "2 more serve commands" in said(f"{NAMESPACE}\n{NAMESPACE}\n{NAMESPACE}")
    other = source_of("INFO args: Namespace(model_tag='m/m', lr=4)", "train.log")  # any program's
    assert serve_command.sniff(other) is None


HOSTILE = [
    "vllm serve m/m " + "-tp 4 " * 100_000,
    "vllm serve m/m " + "\\\n" * 50_000 + "-tp 4",
    "vllm serve m/m " + "'" * 20_001,
    "command: " + "[" * 3000 + "vllm serve",
    "a: &a [x]\nb: [*a,*a]\ncommand: vllm serve m/m -tp 2\n",
    "vllm serve " + "m/m " * 10_000,
    "python -m sglang.launch_server --speculative-config " + "[" * 5000,
    "vllm serve m/m --x" * 5000,
    "vllm serve m/m -tp 2\n" * 20_000,
    "vllm serve `rm -rf /` $(reboot) -tp 2",
    "args: Namespace(tensor_parallel_size=" + "\"\\'" * 9000,
    "args: Namespace(tensor_parallel_size=" + "[" * 19_000,
    "args: Namespace(tensor_parallel_size=4" + ", a=1" * 3900 + ")",
    "services:\n  a: &a\n    <<: *a\n    command: vllm serve m/m -tp 2\n",
    "services:\n  a:\n    <<: [[[[[[]]]]]]\n    command: vllm serve m/m -tp 2\n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_commands(text: str) -> None:
    source = source_of(text, "h.sh")
    assert serve_command.sniff(source) is not None
    with contextlib.suppress(InputError):
        serve_command.read(source)


PIECES = [
    "vllm serve",
    "sglang serve",
    "-tp",
    "--tp=8",
    "--dp 4",
    "m/m",
    "\\\n",
    "'",
    '"',
    "$X",
    "&&",
    "A=B",
    "docker run",
    "-e",
    "--gpus",
    "command:",
    "<<: *a",
    "args: Namespace(",
    "tensor_parallel_size=4,",
    "- ",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=25))
def test_only_input_errors_leave(pieces: list[str]) -> None:
    text = " ".join(["vllm serve", *pieces])
    source = source_of(text, "fuzz.sh")
    serve_command.sniff(source)
    with contextlib.suppress(InputError):
        serve_command.read(source)
