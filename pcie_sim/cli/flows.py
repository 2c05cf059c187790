"""``pcie-sim flows``: the bare event engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pcie_sim.cli.options import JsonOption, OutputOption
from pcie_sim.cli.output import check_output, emit


def flows(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Links, routes and flows, as YAML or JSON.")],
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """When explicit flows on explicit links end, sharing each link max-min fairly."""
    from pcie_sim import study
    from pcie_sim.report.timing import flows_blocks

    check_output(output, reads=(Path(file),))
    found = study.flows(file)
    emit(found.to_dict, lambda _width: flows_blocks(found), as_json=json, output=output)
