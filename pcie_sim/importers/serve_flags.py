"""Options of SGLang's and vLLM's servers: what they say about strategy, context, memory and the rest.

Rules of the engines: SGLang 0.5.10 to 0.5.23 ``server_args.py``, vLLM 0.33 ``config/parallel.py`` and ``engine/arg_utils.py``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pcie_sim import catalog
from pcie_sim.errors import InputError
from pcie_sim.importers.serve_privacy import matters

MAX_OPTIONS = 400
_WORDS = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]{0,79}")
_BOOLEAN = frozenset(
    {
        "async-scheduling",
        "disable-cuda-graph",
        "disable-custom-all-reduce",
        "disable-log-requests",
        "disable-log-stats",
        "disable-overlap-schedule",
        "disable-radix-cache",
        "disable-shared-experts-fusion",
        "enable-auto-tool-choice",
        "enable-chunked-prefill",
        "enable-dbo",
        "enable-deepep-moe",
        "enable-dp-attention",
        "enable-dp-lm-head",
        "enable-ep-moe",
        "enable-eplb",
        "enable-expert-parallel",
        "enable-flashinfer-allreduce-fusion",
        "enable-layerwise-nvtx-marker",
        "enable-metrics",
        "enable-mixed-chunk",
        "enable-nccl-nvls",
        "enable-p2p-check",
        "enable-prefix-caching",
        "enable-symm-mem",
        "enable-torch-compile",
        "enable-torch-symm-mem",
        "enable-two-batch-overlap",
        "enforce-eager",
        "headless",
        "language-model-only",
        "no-async-scheduling",
        "no-enable-chunked-prefill",
        "no-enable-prefix-caching",
        "skip-server-warmup",
        "trust-remote-code",
    }
)
"""Options without a value, so that a model name behind one is not taken as its value."""
_ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "dcp": "dcp-size",
    "decode-context-parallel-size": "dcp-size",
    "attention-context-parallel-size": "cp-size",
    "pcp": "cp-size",
    "prefill-context-parallel-size": "cp-size",
    "model-path": "model",
    "m": "model",
    "context-length": "context",
    "max-model-len": "context",
    "max-seq-len": "context",
    "max-running-requests": "max-running",
    "max-num-seqs": "max-running",
    "max-batch-size": "max-running",
    "mem-fraction-static": "mem-fraction",
    "gpu-memory-utilization": "mem-fraction",
    "kv-cache-free-gpu-memory-fraction": "mem-fraction",
    "kv-cache-dtype": "kv-dtype",
    "q": "quantization",
    "sc": "speculative-config",
}
"""Spellings of options that mean the same to us (vLLM's and SGLang's)."""
_NO_A2A = ("none", "")
_AG_RS = ("allgather_reducescatter", "naive", "pplx")
"""vLLM backends that gather and scatter (the removed ones fall back to it)."""


@dataclass
class Options:
    """The options of one command: canonical name -> value ("" for none), positional words, and what was noticed."""

    values: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    remarks: list[tuple[str, str]] = field(default_factory=list)
    """(kind, text)."""

    def note(self, kind: str, text: str) -> None:
        """Keep a remark."""
        self.remarks.append((kind, text))

    def on(self, name: str) -> bool:
        """A switch is given (and not as false)."""
        return name in self.values and self.values[name].lower() not in ("false", "0", "no", "off")


def parse_options(words: list[str], *, runtime: str) -> Options:
    """Options out of words: ``--name value``, ``--name=value``, ``-tp 8``, several values behind one name."""
    found = Options()
    name: str | None = None
    dashes = 0
    for word in words:
        fixed = re.sub(r"^[\u2013\u2014\u2212]{1,2}(?=[A-Za-z])", "--", word)
        dashes += fixed != word
        if _WORDS.match(fixed) and not re.fullmatch(r"-[0-9.]+", fixed):
            head, equals, value = fixed.partition("=")
            name = _canonical(head, runtime)
            if len(found.values) >= MAX_OPTIONS:
                found.note("cut", f"more than {MAX_OPTIONS} options: the rest is not read")
                break
            given = head.lstrip("-").replace("_", "-")
            if name in found.values and equals and found.values[name] not in ("", value) and matters(given):
                found.note("conflict", f"--{given} is given twice; the last one counts")
            found.values[name] = value.strip()[:2000]
            found.given[name] = given
            if equals or name in _BOOLEAN:
                name = None
        elif name is None:
            found.positional.append(word)
        else:
            found.values[name] = f"{found.values[name]} {word}".strip()[:2000]
    if dashes:
        found.note("assumed", f"{dashes} options begin with a typographic dash; read as --")
    return found


def _canonical(head: str, runtime: str) -> str:
    name = head.lstrip("-").replace("_", "-")
    if runtime == "vllm" and name == "ep":
        return "enable-expert-parallel"
    if not head.startswith("--") and name in ("tp", "pp", "dp", "dcp", "pcp", "ep", "q", "sc", "m"):
        return _ALIASES[name]
    return _ALIASES.get(name, name)


def whole(options: Options, name: str, error: Callable[[str], InputError], *, most: int = 100_000) -> int | None:
    """A whole number of an option; a shell variable is remarked and counts as not said."""
    text = options.values.get(name)
    if text is None or not text.strip():
        return None
    if "$" in text:
        options.note("ignored", f"--{options.given[name]} is a variable of the shell: its value is not known")
        return None
    first = text.split()[0]
    if not re.fullmatch(r"[0-9]{1,7}", first) or not 1 <= int(first) <= most:
        raise error(f"--{options.given[name]}: expected a whole number from 1 to {most}, found {text[:30]!r}")
    return int(first)


def tokens(text: str | None) -> int | None:
    """A number of tokens as both engines write them: 32768, 32k (1000), 32K (1024), 1M, 25.6k; None: not said, or the model's own.

    >>> tokens("32768"), tokens("32k"), tokens("1M"), tokens("auto")
    (32768, 32000, 1048576, None)
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([kKmMgG]?)", (text or "").strip())
    if match is None:
        return None
    factor = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}[match.group(2)]
    count = int(float(match.group(1)) * factor)
    return count if 1 <= count <= 2**40 else None


def fraction(text: str | None) -> float | None:
    """A fraction in (0, 1]; None: not said, or no such number."""
    try:
        value = float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) and 0 < value <= 1 else None


def sglang_strategy(options: Options, model: str | None, error: Callable[[str], InputError]) -> str:
    """The strategy of SGLang's options.

    ``--ep-size`` without an All-to-All backend changes only who holds which expert, so no exchange is named; a backend forces ep = tp.
    Without ``--enable-dp-attention``, ``--dp-size`` runs copies of the engine.
    """
    tp, pp = whole(options, "tp-size", error) or 1, whole(options, "pp-size", error) or 1
    dp, ep = whole(options, "dp-size", error) or 1, whole(options, "ep-size", error) or 1
    backend = options.values.get("moe-a2a-backend", "none").lower()
    if options.on("enable-deepep-moe"):
        backend = "deepep"
    if backend not in _NO_A2A:
        if ep not in (1, tp):
            options.note("conflict", f"--ep-size {ep} beside an All-to-All backend: the engine sets it to tp-size ({tp})")
        ep = tp
    elif options.on("enable-ep-moe"):
        ep = tp
    if ep > 1 and _is_moe(model) is False:
        options.note("ignored", f"expert parallelism of {ep}: the model has no experts")
        ep, backend = 1, "none"
    _context_parallel(options, error)
    attention_dp = options.on("enable-dp-attention") and dp > 1
    if attention_dp and tp % dp:
        raise error(f"--dp-size {dp} with --enable-dp-attention must divide --tp-size {tp}")
    axes = f"tp{tp // dp}dp{dp}" if attention_dp else f"tp{tp}"
    suffix = ":a2a" if backend not in _NO_A2A and tp > 1 else ""
    text = f"{axes}pp{pp}ep{ep}{_dcp(options, error)}{suffix}"
    return text if attention_dp or dp == 1 else f"{dp}x{text}"


def vllm_strategy(options: Options, stated: str, model: str | None, error: Callable[[str], InputError]) -> str:
    """The strategy of vLLM's options; ``stated``: the All-to-All backend of the environment.

    ``--enable-expert-parallel`` puts experts over tp x dp; only dp > 1 makes an exchange of its own.
    """
    tp, pp, dp = (whole(options, name, error) or 1 for name in ("tp-size", "pp-size", "dp-size"))
    _context_parallel(options, error)
    expert, moe = options.on("enable-expert-parallel"), _is_moe(model)
    if expert and moe is False:
        options.note("ignored", "--enable-expert-parallel: the model has no experts")
        expert = False
    backend = (options.values.get("all2all-backend") or stated).lower().replace("-", "_")
    suffix = ""
    if backend and expert and dp > 1:
        suffix = ":ag_rs" if backend in _AG_RS else ":a2a"
    elif backend:
        options.note("ignored", "the All-to-All backend has no effect without --enable-expert-parallel and --data-parallel-size above 1")
    tail = f"pp{pp}{f'ep{tp * dp}' if expert else ''}{_dcp(options, error)}{suffix}"
    if dp == 1:
        return f"tp{tp}{tail}"
    if moe is False:
        options.note("note", f"--data-parallel-size {dp} of a dense model: {dp} copies that do not wait for each other")
        return f"{dp}xtp{tp}{tail}"
    if moe is None and not expert:
        options.note(
            "assumed",
            "the model is not in the catalog: --data-parallel-size is taken as attention data parallelism of a model with experts",
        )
    return f"tp{tp}dp{dp}{tail}"


def trtllm_strategy(options: Options, error: Callable[[str], InputError]) -> str:
    """The strategy of trtllm-serve's options."""
    tp, pp, ep = (whole(options, name, error) or 1 for name in ("tp-size", "pp-size", "ep-size"))
    return f"tp{tp}pp{pp}ep{ep}"


def _dcp(options: Options, error: Callable[[str], InputError]) -> str:
    dcp = whole(options, "dcp-size", error) or 1
    return f"dcp{dcp}" if dcp > 1 else ""


def _context_parallel(options: Options, error: Callable[[str], InputError]) -> None:
    if (whole(options, "cp-size", error) or 1) > 1:
        options.note("ignored", f"--{options.given['cp-size']}: context parallelism of the prefill is not modelled")


def _is_moe(model: str | None) -> bool | None:
    """Whether the catalog knows this model as one with experts."""
    if not model:
        return None
    name = model.rpartition("/")[2]
    try:
        return catalog.load_model_spec(name).is_moe
    except InputError:
        return None


def speculation(options: Options) -> str | None:
    """Speculative decoding in words; None: not said."""
    config = options.values.get("speculative-config")
    if config:
        return _from_json(config, options)
    algorithm = options.values.get("speculative-algorithm") or options.values.get("speculative-algo")
    if algorithm:
        word = algorithm.split()[0]
        parts = [word if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", word) else "yes, not understood"]
        for name, what in (
            ("speculative-num-steps", "steps"),
            ("speculative-eagle-topk", "topk"),
            ("speculative-num-draft-tokens", "draft tokens"),
        ):
            value = options.values.get(name, "")
            if re.fullmatch(r"[0-9]{1,4}", value):
                parts.append(f"{value} {what}")
        return ", ".join(parts)
    if "speculative-model" in options.values or "num-speculative-tokens" in options.values:
        count = options.values.get("num-speculative-tokens", "")
        return "draft model" + (f", {count} draft tokens" if re.fullmatch(r"[0-9]{1,4}", count) else "")
    return None


def _from_json(text: str, options: Options) -> str | None:
    try:
        found: Any = json.loads(text[:2000])
    except (ValueError, RecursionError):
        options.note("ignored", "--speculative-config is not JSON that can be read")
        return "yes, not understood"
    if not isinstance(found, dict):
        return "yes, not understood"
    method = found.get("method")
    count = found.get("num_speculative_tokens")
    parts = [method[:40] if isinstance(method, str) and re.fullmatch(r"[A-Za-z0-9_. -]{1,40}", method) else "draft model"]
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 10_000:
        parts.append(f"{count} draft tokens")
    return ", ".join(parts)


def eager(options: Options) -> bool:
    """CUDA graphs are switched off."""
    if options.on("enforce-eager") or options.on("disable-cuda-graph"):
        return True
    config = options.values.get("compilation-config", "") + options.values.get("O", "")
    return re.search(r"cudagraph_mode\W{1,6}NONE\b", config) is not None
