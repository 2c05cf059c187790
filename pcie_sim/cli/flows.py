"""``pcie-sim flows``: the bare event engine."""

from __future__ import annotations

from typing import Annotated

import typer

from pcie_sim.cli.options import JsonOption
from pcie_sim.cli.output import emit


def flows(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Links, routes and flows, as YAML or JSON.")], json: JsonOption = False
) -> None:
    """When explicit flows on explicit links end, sharing each link max-min fairly."""
    from pcie_sim import study
    from pcie_sim.report.timing import flows_blocks

    found = study.flows(file)
    emit(found.to_dict, lambda _width: flows_blocks(found), as_json=json)
