"""What of a stranger's command line may be kept: no tokens, keys, addresses, host names, files or folders of people.

Of options and settings only those are kept that a prediction may depend on, and only numbers, booleans and short words of them.
"""

from __future__ import annotations

import re

LEFT_OUT = "(left out)"
_SECRET_NAME = re.compile(
    r"token(?!iz)(?!s)|secret|passw|api[-_]?key|access[-_]?key|credential|auth(?!or)|private|(?:^|[-_])ssl|keyfile|(?:^|[-_])key(?:$|[-_])|cert",
    re.IGNORECASE,
)
_ADDRESS_NAME = re.compile(
    r"(?:^|[-_])(?:host|hostname|addr|address|ip|url|uri|endpoint|rdzv|master|user|username|email|node-?name|bootstrap-server)(?:$|[-_])",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]{1,20}://|(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])|[A-Za-z0-9._-]{1,64}@[A-Za-z0-9-]|(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}"
)
_TOKEN = re.compile(
    r"\b(?:hf|sk|pk|ghp|gho|ghs|glpat|nvapi|xox[a-z]|AKIA|eyJ)[-_A-Za-z0-9]{8,}|GPU-[0-9a-fA-F]{8}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
_SPOKEN = re.compile(
    r"\bbearer\b|\bauthorization\b|\bbasic\s{1,4}[A-Za-z0-9+/=]{8}"
    r"|(?:token(?!iz)(?!s)|secret|passw|api[-_]?key|access[-_]?key|credential|(?<![a-z])key)[A-Za-z0-9_-]{0,20}[\"']?\s{0,4}[:=]",
    re.IGNORECASE,
)
"""A value that holds a secret under its own name: a header, a JSON or Python mapping."""
_LONG = re.compile(
    r"(?<![A-Za-z0-9_/+=-])(?=[A-Za-z0-9_+=-]{0,200}[0-9])(?=[A-Za-z0-9_+=-]{0,200}[A-Za-z])[A-Za-z0-9_+=]{32,}(?![A-Za-z0-9_])"
)
_WORD = re.compile(r"[A-Za-z0-9_.,:-]{1,60}")
_NUMBERS = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?: -?[0-9]{1,15}(?:\.[0-9]{1,15})?){0,99}")
_SETTING = re.compile(r"[A-Za-z0-9_.,:;^=+%-]{0,200}")
"""NCCL writes lists with ``;`` and ``=`` and exclusions with ``^`` (``NCCL_PROTO=^LL128``)."""
_PRIVATE_SETTING = re.compile(r"_FILE|_PLUGIN|IFNAME|HOSTID|COMM_ID|_ADDR|_(?:PATH|DIR|HOSTS?)$")
_ENGINE_SETTING = re.compile(
    r"(?:VLLM|SGLANG|SGL)_\w{0,40}(?:ALL2ALL|ALLREDUCE|ALL_REDUCE|ATTENTION|ATTN|MOE|DEEPEP|DEEP_GEMM|DEEPGEMM|FLASHINFER|TRITON|CUTLASS|MARLIN"
    r"|NCCL|RCCL|AITER|CUDAGRAPH|CUDA_GRAPH|USE_V1|USE_V2|SYMM_MEM|SCHEDUL|BLOCK_SIZE|CHUNK|MLA|FP8|FP4|MXFP|QUICK_REDUCE)\w{0,60}"
    r"|CUDA_DEVICE_MAX_CONNECTIONS|TORCH_NCCL_\w{1,60}"
)
_MATTERS = re.compile(
    # parallelism and its exchanges
    r"tp|pp|dp|ep|dcp|pcp|(?:tp|pp|dp|ep|dcp|pcp|cp|attn-cp|moe-dp|moe-dense-tp)-size|nnodes|load-balance-method|distributed-executor-backend"
    r"|(?:tensor|pipeline|data|expert|(?:decode-|attention-|prefill-)?context)-parallel-size(?:-local)?|data-parallel-backend"
    r"|enable-(?:expert-parallel|ep-moe|deepep-moe|dp-attention|dp-lm-head|eplb|two-batch-overlap|single-batch-overlap|dbo)|dbo-[a-z-]{1,40}"
    r"|eplb-(?:algorithm|rebalance-num-iterations)|ep-num-redundant-experts|num-redundant-experts|disable-shared-experts-fusion"
    r"|moe-(?:a2a-backend|runner-backend|backend)|all2all-backend|deepep-mode|disaggregation-mode|tbo-token-distribution-threshold"
    r"|(?:disable|enable)-(?:custom-all-reduce|quick-all-reduce|flashinfer-allreduce-fusion|mscclpp|nccl-nvls|symm-mem|torch-symm-mem|p2p-check)"
    # memory, context, batching, scheduling
    r"|mem-fraction-static|gpu-memory-utilization|kv-cache-free-gpu-memory-fraction|kv-cache-memory-bytes|swap-space|cpu-offload-gb"
    r"|max-(?:total-tokens|num-tokens|num-batched-tokens|num-seqs|running-requests|batch-size|prefill-tokens|model-len|seq-len|seq-len-to-capture)"
    r"|context-length|num-gpu-blocks-override|block-size|page-size|chunked-prefill-size|prefill-max-requests|long-prefill-token-threshold"
    r"|(?:no-)?(?:enable-)?(?:chunked-prefill|prefix-caching|async-scheduling)|enable-mixed-chunk|disable-radix-cache|disable-overlap-schedule"
    r"|schedule-policy|scheduling-policy|schedule-conservativeness|num-scheduler-steps|num-continuous-decode-steps|stream-interval"
    # numbers and kernels
    r"|q|quantization|dtype|kv-cache-dtype|calculate-kv-scales|load-format|(?:fp8|fp4|bf16)-gemm(?:-runner)?-backend|sampling-backend"
    r"|(?:prefill-|decode-|mm-|linear-)?(?:attention|attn)-backend|nsa-(?:prefill|decode)(?:-backend)?|language-model-only"
    r"|enforce-eager|disable-cuda-graph(?:-padding)?|cuda-graph-(?:max-bs|bs|sizes)|cudagraph-capture-sizes|max-cudagraph-capture-size"
    r"|enable-torch-compile|torch-compile-max-bs|(?:enable|disable)-piecewise-cuda-graph"
    r"|speculative-(?:algorithm|algo|num-steps|eagle-topk|num-draft-tokens|attention-mode|moe-a2a-backend|draft-model-quantization)"
    r"|num-speculative-tokens"
)


def is_secret_name(name: str) -> bool:
    """A setting whose value is nobody's business."""
    return _SECRET_NAME.search(name) is not None or _ADDRESS_NAME.search(name) is not None


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./", "../", "\\\\")) or re.match(r"[A-Za-z]:[\\/]", text) is not None


def kept(name: str, value: str) -> str:
    """``value`` as it may be kept under this name: as it is, or :data:`LEFT_OUT` (also a path: its last part can name people as well).

    >>> kept("tp-size", "8"), kept("hf-token", "abc"), kept("chat-template", "/home/me/a.jinja"), kept("host", "10.0.0.1")
    ('8', '(left out)', '(left out)', '(left out)')
    """
    value = "".join(char for char in value[:400] if char.isprintable())
    if is_secret_name(name) or _is_path(value) or any(one.search(value) for one in (_ADDRESS, _TOKEN, _SPOKEN, _LONG)):
        return LEFT_OUT
    return re.sub(r"(?:/home|/Users|/root)/[^\s\"',:]{0,200}", LEFT_OUT, value)


def kept_word(value: str) -> str | None:
    """A value that says nothing about anyone: a number, a boolean, a short word, nothing, or a list of numbers; None: any other.

    >>> kept_word("fp8_e4m3"), kept_word("1 2 4"), kept_word("Bearer abc"), kept_word("/data"), kept_word("")
    ('fp8_e4m3', '1 2 4', None, None, '')
    """
    text = value.strip()
    if _NUMBERS.fullmatch(text[:400]) and len(text) <= 400:
        return text
    return text if not text or (_WORD.fullmatch(text) and kept("option", text) == text) else None


def matters(name: str) -> bool:
    """Whether a prediction may depend on this option of a serve command (name without its dashes, ``-`` between words)."""
    return _MATTERS.fullmatch(name) is not None


def kept_setting(name: str, value: str) -> str | None:
    """The value of a NCCL or RCCL setting that may be kept; of a topology or graph file only "set". None: it is not kept.

    >>> kept_setting("NCCL_ALGO", "Ring"), kept_setting("NCCL_TOPO_FILE", "/home/me/t.xml"), kept_setting("NCCL_SOCKET_IFNAME", "eth0")
    ('Ring', 'set', None)
    """
    if name in ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE"):
        return "set" if value.strip() else ""
    if _PRIVATE_SETTING.search(name) or is_secret_name(name) or not _SETTING.fullmatch(value) or kept(name, value) != value:
        return None
    return value


def is_engine_setting(name: str) -> bool:
    """Whether a prediction may depend on this setting of an engine (``VLLM_ALL2ALL_BACKEND``)."""
    return _ENGINE_SETTING.fullmatch(name) is not None


def kept_model(text: str) -> str | None:
    """The model as the command names it; of a local path only its last part, of a hub's cache the repository."""
    cached = re.search(r"models--([A-Za-z0-9._-]{1,80}?)--([A-Za-z0-9._-]{1,80})", text[:600])
    if cached is not None:
        return f"{cached.group(1)}/{cached.group(2)}"
    if "://" in text or _is_path(text):
        text = re.split(r"[\\/]", text.rstrip("/\\"))[-1]
    name = kept("model", text)
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+/:-]{0,160}", name) else None
