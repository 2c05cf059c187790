"""The options that an engine logs at its start: SGLang's ``server_args=ServerArgs(...)``, vLLM's ``non-default args: {...}``.

They are read with a pattern, never evaluated. SGLang logs all its options, so what stands at its default is left out.
"""

from __future__ import annotations

import re

from pcie_sim.importers.serve_tokens import MAX_COMMAND, Command
from pcie_sim.importers.source import SourceText

LOGGED = re.compile(r"server_args=ServerArgs\(|non-default args: \{")
_FIELD = re.compile(
    r"""['"]?([a-z][a-z0-9_]{1,60})['"]?\s{0,3}[=:]\s{0,3}('[^']{0,400}'|"[^"]{0,400}"|-?[0-9.]{1,20}|True|False|None)(?=\s{0,3}[,)}])"""
)
_DEFAULTS = ("None", "False", "'auto'", "'none'", "''", "[]")
_KEPT = re.compile(
    r"model(?:_path|_tag)?$|(?:tp|pp|dp|ep)_size$|context_length|max_running_requests|mem_fraction_static|kv_cache_dtype|quantization|attention_backend"
    r"|moe_|enable_dp_attention|enable_deepep_moe|enable_ep_moe|disable_cuda_graph$|disable_custom_all_reduce|speculative_|chunked_prefill_size"
    r"|nnodes$|cuda_graph_max_bs"
)
"""Of SGLang's options: those that say something here."""


def logged_options(source: SourceText, *, most: int = 50) -> list[Command]:
    """Every logged set of options as the command that would have given it."""
    found: list[Command] = []
    for number, line in enumerate(source.lines, 1):
        start = LOGGED.search(line)
        if start is None:
            continue
        sglang = start.group().startswith("server_args")
        words = ["sglang", "serve"] if sglang else ["vllm", "serve"]
        for name, value in _FIELD.findall(line[start.end() : start.end() + MAX_COMMAND]):
            if value in _DEFAULTS or (sglang and not _KEPT.match(name)):
                continue
            if name in ("model_tag", "model_path", "model"):
                name = "model"  # noqa: PLW2901
            words.append("--" + name.replace("_", "-"))
            if value != "True":
                words.append(value.strip("'\""))
        found.append(Command(words, number))
        if len(found) >= most:
            break
    return found
