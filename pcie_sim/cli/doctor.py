"""``pcie-sim topology doctor``: what is wrong with a box."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pcie_sim.cli.options import EnvOption, GpuOption, JsonOption, NcclOption, OutputOption, P2pOption, parse_env
from pcie_sim.cli.output import announce, check_output, emit, files_of

FOUND = 1
"""Exit code where there is a problem."""


def doctor(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="T", help="A shipped name, a topology file, or a file that shows the box (nvidia-smi topo -m, lspci and more)."
        ),
    ],
    logs: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG", help="More about the same box: NCCL_DEBUG logs, nccl-tests tables, copy tests, serve commands."),
    ] = None,
    gpu: GpuOption = None,
    env: EnvOption = None,
    nccl: NcclOption = None,
    p2p: P2pOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """What is wrong with a box: links, peer access, ACS, NUMA, rings, collectives and copies against what its tree should give.

    Each finding comes with its evidence, its cost by prediction, and what to try. Exit code 1 where anything is a problem.
    """
    from pcie_sim import study
    from pcie_sim.doctor import diagnose
    from pcie_sim.report.doctor import doctor_blocks

    files = list(logs or ())
    check_output(output, reads=[*files_of(topology=topology), *(Path(file) for file in files)])
    announce(files)
    box, related = study.load_box(topology, files, gpu=gpu)
    settings = parse_env(env)
    if settings or nccl is not None or p2p is not None:
        box = box.with_settings(env=settings, ccl=nccl, p2p=p2p)  # type: ignore[arg-type]
    found = diagnose(box, related)
    emit(found.to_dict, lambda width: doctor_blocks(found, width=width), as_json=json, output=output)
    if found.sick:
        raise typer.Exit(FOUND)
