"""``pcie-sim model``: the models."""

from __future__ import annotations

from typing import Annotated

import typer

from pcie_sim.cli import importing
from pcie_sim.cli.options import JsonOption, OutputOption
from pcie_sim.cli.output import check_output, emit, files_of

app = typer.Typer(help="Models: list, show, import.")


@app.command("list")
def list_(json: JsonOption = False, output: OutputOption = None) -> None:
    """The shipped models."""
    from pcie_sim import catalog
    from pcie_sim.report.catalog import model_list_blocks, model_list_document

    check_output(output)
    models = [catalog.load_model_spec(name) for name in catalog.names("models")]
    emit(lambda: model_list_document(models), lambda _width: model_list_blocks(models), as_json=json, output=output)


@app.command(short_help="One model: dimensions, weights, KV cache, sources.")
def show(
    model: Annotated[str, typer.Argument(metavar="M", help="A catalog name or a path to a model file.")],
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """One model: dimensions, weights counted and published, bytes per weight, KV cache, sources."""
    from pcie_sim import study
    from pcie_sim.report.catalog import model_blocks, model_document

    check_output(output, reads=files_of(model=model))
    found = study.load_model(model)
    emit(lambda: model_document(found), lambda width: model_blocks(found, width=width), as_json=json, output=output)


app.command("import", short_help="A model file from a Hugging Face config.json.")(importing.model)
