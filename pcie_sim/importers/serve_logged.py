"""The options that an engine logs at its start: SGLang's ``server_args=ServerArgs(...)``, vLLM's ``non-default args: {...}``, and older
vLLM's ``args: Namespace(...)``.

They are read with patterns, never evaluated. SGLang's and the older vLLM's lines have all options, so what stands at "none" is left out.
"""

from __future__ import annotations

import re

from pcie_sim.importers.serve_tokens import MAX_COMMAND, MAX_COMMANDS, Command
from pcie_sim.importers.source import SourceText

_LOGGED = re.compile(r"server_args=ServerArgs\(|non-default args: \{|\bargs: Namespace\(")
_PIECE = re.compile(r"""'(?:[^'\\]|\\.){0,1000}'|"(?:[^"\\]|\\.){0,1000}"|[^'"(){}\[\],]{1,1000}|.""", re.DOTALL)
_FIELD = re.compile(r"""['"]?([a-z][a-z0-9_]{1,60})['"]?\s{0,3}[=:]\s{0,3}(\S.*)""", re.DOTALL)
_PLAIN = re.compile(r"""'[^']{0,400}'|"[^"]{0,400}"|-?[0-9.]{1,20}|True|False|None""")
_MAPPINGS = ("speculative_config", "compilation_config")
_MODELS = ("model_tag", "model_path", "model")
_MAX_FIELD, _MAX_FIELDS = 2_000, 2_000
_DEFAULTS = ("None", "False", "'auto'", "'none'", "''", "[]")
_KEPT = re.compile(
    r"model(?:_path|_tag)?$|(?:tp|pp|dp|ep|dcp)_size$|(?:tensor|pipeline|data|decode_context)_parallel_size$|context_length|max_model_len$"
    r"|max_running_requests|max_num_seqs$|max_num_batched_tokens$|mem_fraction_static|gpu_memory_utilization$|kv_cache_dtype|quantization$"
    r"|attention_backend|moe_|all2all_backend$|enable_expert_parallel$|enable_dp_attention|enable_deepep_moe|enable_ep_moe|enforce_eager$"
    r"|disable_cuda_graph$|disable_custom_all_reduce|speculative_|num_speculative_tokens$|compilation_config$|chunked_prefill_size|nnodes$"
    r"|cuda_graph_max_bs"
)
"""Of the lines with all options: those that say something here."""


def logged(line: str) -> re.Match[str] | None:
    """Where a line begins to list an engine's options; None where it does not."""
    start = _LOGGED.search(line)
    if start is not None and start.group().startswith("args") and "tensor_parallel_size" not in line:
        return None  # any Python program may log its arguments so
    return start


def logged_options(source: SourceText) -> list[Command]:
    """Every logged set of options as the command that would have given it. Only the first is read; of the others only the line is kept."""
    found: list[Command] = []
    for number, line in enumerate(source.lines, 1):
        start = logged(line)
        if start is None:
            continue
        sglang = start.group().startswith("server_args")
        words = ["sglang" if sglang else "vllm", "serve"]
        if found:
            found.append(Command([*words, "--model"], number))
        else:
            found.append(_command(line[start.end() : start.end() + MAX_COMMAND], words, number, every="non-default" not in start.group()))
        if len(found) >= MAX_COMMANDS:
            break
    return found


def _command(text: str, words: list[str], number: int, *, every: bool) -> Command:
    """``every``: the line has the options that nobody set as well."""
    fields, closed = _fields(text)
    values = {name: value for name, value in fields if value not in _DEFAULTS and (not every or _KEPT.match(name))}
    model = next((values[name] for name in _MODELS if name in values), None)
    if model is not None:
        words += ["--model", model]
    for name, value in values.items():
        if name not in _MODELS:
            words += ["--" + name.replace("_", "-"), *([] if value == "True" else [value])]
    command = Command(words, number)
    if not closed:
        command.note("cut", "the line ends before its bracket closes: options behind that are not known")
    return command


def _fields(text: str) -> tuple[list[tuple[str, str]], bool]:
    """(name, value) of every plain ``name=value`` or ``'name': value`` up to the bracket that closes the list, and whether it closes."""
    found: list[tuple[str, str]] = []
    depth, parts = 0, [""]
    closed = False
    for piece in _PIECE.findall(text):
        depth += (piece in "([{") - (piece in ")]}")
        if depth < 0:
            closed = True
            break
        if piece == "," and depth == 0:
            parts.append("")
        elif len(parts[-1]) < _MAX_FIELD:
            parts[-1] += piece
    for part in parts[:_MAX_FIELDS]:
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            continue
        name, value = match.groups()
        if name in _MAPPINGS and value.startswith("{"):
            found.append((name, _as_json(value)))
        elif _PLAIN.fullmatch(value):
            bare = value in _DEFAULTS or value == "True"
            found.append((name, value if bare else value.strip("'\"")))
    return found, closed


def _as_json(text: str) -> str:
    """A Python mapping as it is printed, as JSON."""
    words = {"True": "true", "False": "false", "None": "null"}
    return re.sub(r"\b(?:True|False|None)\b", lambda one: words[one.group()], text.replace("'", '"'))
