"""``pcie-sim gpu``: the GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from pcie_sim.cli.options import JsonOption, OutputOption
from pcie_sim.cli.output import check_output, emit

app = typer.Typer(help="GPUs: list the shipped ones, show one.")


@app.command("list")
def list_(json: JsonOption = False, output: OutputOption = None) -> None:
    """The shipped GPUs."""
    from pcie_sim import catalog
    from pcie_sim.report.catalog import gpu_list_blocks, gpu_list_document

    check_output(output)
    gpus = [catalog.load_gpu(name) for name in catalog.names("gpus")]
    emit(lambda: gpu_list_document(gpus), lambda _width: gpu_list_blocks(gpus), as_json=json, output=output)


@app.command()
def show(
    gpu: Annotated[str, typer.Argument(metavar="G", help="A catalog name or alias.")],
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """One GPU: its numbers with evidence and source."""
    from pcie_sim import study
    from pcie_sim.report.catalog import gpu_blocks, gpu_document

    check_output(output)
    found = study.load_gpu(gpu)
    emit(lambda: gpu_document(found), lambda width: gpu_blocks(found, width=width), as_json=json, output=output)
