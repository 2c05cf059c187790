"""``pcie-sim topology``: the boxes."""

from __future__ import annotations

from typing import Annotated

import typer

from pcie_sim.cli import doctor, importing
from pcie_sim.cli.options import EnvOption, GpuOption, JsonOption, NcclOption, OutputOption, P2pOption, parse_env
from pcie_sim.cli.output import check_output, emit, files_of

app = typer.Typer(help="Boxes: list, show, import, examine.")


@app.command("list")
def list_(json: JsonOption = False, output: OutputOption = None) -> None:
    """The shipped boxes."""
    from pcie_sim import catalog, study
    from pcie_sim.report.box import box_list_blocks, box_list_document

    check_output(output)
    boxes = [study.load_topology(name) for name in catalog.topology_names()]
    emit(lambda: box_list_document(boxes), lambda width: box_list_blocks(boxes, width=width), as_json=json, output=output)


@app.command(short_help="One box: its tree, paths, transports and capacities.")
def show(
    topology: Annotated[str, typer.Argument(metavar="T", help="A shipped name, a topology file, or a file that shows a box.")],
    gpu: GpuOption = None,
    env: EnvOption = None,
    nccl: NcclOption = None,
    p2p: P2pOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """One box: its tree, path types and transports between GPUs, what the collective library will do, capacities, assumptions."""
    from pcie_sim import study
    from pcie_sim.report.box import box_blocks, box_document

    check_output(output, reads=files_of(topology=topology))
    box = study.load_topology(topology, gpu=gpu)
    settings = parse_env(env)
    if settings or nccl is not None or p2p is not None:
        box = box.with_settings(env=settings, ccl=nccl, p2p=p2p)  # type: ignore[arg-type]
    emit(lambda: box_document(box), lambda width: box_blocks(box, width=width), as_json=json, output=output)


app.command("import", short_help="A topology file from what nvidia-smi, lspci or NCCL print.")(importing.topology)
app.command("export", short_help="A box as NCCL's topology XML or nvidia-smi's matrix.")(importing.export)
app.command("doctor", short_help="What is wrong with a box, what it costs, what to try.")(doctor.doctor)
