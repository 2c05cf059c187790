"""``pcie-sim topology import`` and ``pcie-sim model import``: other people's files into ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcie_sim.cli.options import GpuOption, JsonOption, NameOption, checked_name
from pcie_sim.cli.output import announce, check_output, emit, files_of, say, wrote
from pcie_sim.errors import InputError

if TYPE_CHECKING:
    from pcie_sim.importers import Remark
    from pcie_sim.study import ImportResult


def topology(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Files about one box, in any order.")] = None,
    here: Annotated[bool, typer.Option("--here", help="Ask this machine: nvidia-smi, lspci and lscpu, read-only.")] = False,
    gpu: GpuOption = None,
    name: NameOption = None,
    json: JsonOption = False,
    output: Annotated[str | None, typer.Option("-o", metavar="FILE.yaml", help="Write the topology file there.")] = None,
) -> None:
    """Make a topology file from what is at hand: nvidia-smi topo -m, lspci, an NCCL topology dump or log, hwloc, nccl-tests and more.

    Several files about one box are merged. What none of them says is filled in, marked and listed; conflicts are listed, too. Without
    -o the topology goes to standard output and the remarks to standard error.
    """
    from pcie_sim.importers import write
    from pcie_sim.report.files import write_whole
    from pcie_sim.study import imports

    given = files or []
    check_output(output, reads=[Path(file) for file in given])
    if not given and not here:
        raise InputError(
            "no file given; name what you have (nvidia-smi topo -m, lspci -vvv, an NCCL dump ...), or --here to ask this machine"
        )
    checked_name(name)
    announce(given)
    read = list(imports.read_files(given)) if given else []
    remarks: tuple[Remark, ...] = ()
    if here:
        from pcie_sim.study.here import read_here

        found = read_here()
        read += found.files
        remarks = found.remarks
        name = name or ("here" if not given else None)
    result = imports.assemble(read, gpu=gpu, name=name, force=True, more=remarks)
    assert result.topology is not None  # noqa: S101 - forced
    text = write.topology_text(result.topology.spec)
    if output is not None:
        wrote(write_whole(output, text.encode(), what="-o"))
    _hand_out(result, text, as_json=json, written=output is not None)


def export(
    topology: Annotated[str, typer.Argument(metavar="T", help="A shipped name, a topology file, or a file that shows a box.")],
    as_: Annotated[str, typer.Option("--as", metavar="nccl-xml|topo-m", help="A file for NCCL_TOPO_FILE, or nvidia-smi's matrix.")],
    gpu: GpuOption = None,
    json: JsonOption = False,
    output: Annotated[str | None, typer.Option("-o", metavar="FILE", help="Write it there; default: standard output.")] = None,
) -> None:
    """A box in another program's format."""
    from pcie_sim import study
    from pcie_sim.report.files import write_whole
    from pcie_sim.study.arguments import one_of
    from pcie_sim.study.exports import EXPORTS

    check_output(output, reads=files_of(topology=topology))
    box = study.load_topology(topology, gpu=gpu)
    text = EXPORTS[one_of(as_, "--as", tuple(EXPORTS))](box)
    if output is not None:
        wrote(write_whole(output, text.encode(), what="-o"))
    if json:
        emit(lambda: {"schema": "pcie-sim/export/1", "topology": box.name, "format": as_, "text": text}, lambda _width: [], as_json=True)
    elif output is None:
        sys.stdout.write(text)


def model(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="config.json, with hf_quant_config.json where there is one; or the folder.")
    ],
    name: NameOption = None,
    json: JsonOption = False,
    output: Annotated[str | None, typer.Option("-o", metavar="FILE.yaml", help="Write the model file there.")] = None,
) -> None:
    """Make a model file from a Hugging Face config.json."""
    from pcie_sim.importers import write
    from pcie_sim.report.files import write_whole
    from pcie_sim.study import imports

    check_output(output, reads=[Path(file) for file in files])
    checked_name(name)
    result = imports.import_model(*files, name=name)
    assert result.model is not None  # noqa: S101 - else refused
    text = write.model_text(result.model)
    if output is not None:
        wrote(write_whole(output, text.encode(), what="-o"))
    _hand_out(result, text, as_json=json, written=output is not None)


def _hand_out(result: ImportResult, text: str, *, as_json: bool, written: bool) -> None:
    """JSON alone; the report where the file is written; else the file on standard output and the remarks on standard error."""
    from pcie_sim.report.imported import import_blocks, remark_lines

    if as_json or written:
        emit(result.to_dict, lambda width: import_blocks(result, width=width), as_json=as_json)
        return
    sys.stdout.write(text)
    for line in remark_lines(result):
        say(line)
