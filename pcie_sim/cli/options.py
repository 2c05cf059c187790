"""Options that several verbs share, each written once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from pcie_sim.errors import InputError

TopologyOption = Annotated[
    str, typer.Option("--topology", metavar="T", help="Box: a shipped name, a topology file, or what nvidia-smi, lspci or NCCL print.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="M", help="Model: a catalog name, a model file, or a Hugging Face config.json.")
]
GpuOption = Annotated[str | None, typer.Option("--gpu", metavar="G", help="GPU model, where no file says it (pcie-sim gpu list).")]
NameOption = Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call it; default: after the first file.")]
RuntimeOption = Annotated[
    str | None, typer.Option("--runtime", metavar="R", help="Serving engine: sglang (unless given), vllm or generic.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
OutputOption = Annotated[str | None, typer.Option("-o", metavar="FILE", help="Also write the answer as JSON into FILE.")]
NcclOption = Annotated[
    str | None, typer.Option("--nccl", metavar="VERSION", help="Collective library version, like 2.28; default: the box's own.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Setting of the collective library, like NCCL_P2P_LEVEL=SYS; repeatable."),
]
P2pOption = Annotated[
    str | None, typer.Option("--p2p", metavar="auto|on|off", help="Peer access as driver and platform grant it; default: the box's own.")
]
LaunchOption = Annotated[
    str | None, typer.Option("--launch", metavar="graph|eager", help="CUDA graphs or single launches; default: the engine's.")
]
PpLayersOption = Annotated[
    str | None, typer.Option("--pp-layers", metavar="LIST", help="Layers per pipeline stage, like 8,8,7; default: the engine's split.")
]
PopularityOption = Annotated[
    str, typer.Option("--popularity", metavar="uniform|zipf:S", help="How tokens choose experts: evenly, or skewed with exponent S.")
]
MemFractionOption = Annotated[
    float | None, typer.Option("--mem-fraction", metavar="F", help="Share of GPU memory for weights and KV; default: the engine's rule.")
]
MaxRunningOption = Annotated[
    int | None, typer.Option("--max-running", metavar="N", help="Most requests in decode at once; default: the engine's.")
]


def checked_name(name: str | None) -> None:
    """Refuse a ``--name`` that is none.

    Raises:
        InputError: other letters than a name has, or too many.
    """
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}", name):
        raise InputError(f"--name {name[:40]!r}: a name has letters, digits and . _ + -, the first a letter or digit, at most 80 in all")


def parse_env(items: Sequence[str] | None) -> dict[str, str] | None:
    """``NAME=VALUE`` items as a dict; None when there are none.

    Raises:
        InputError: an item without ``=`` or without a name.
    """
    found: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--env {item[:60]!r} is not understood; write it like --env NCCL_P2P_LEVEL=SYS")
        found[name.strip()] = value
    return found or None
