"""``pcie-sim calibrate``: the cost model of a box from its own measurements."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcie_sim.cli.options import GpuOption, JsonOption, TopologyOption, checked_name
from pcie_sim.cli.output import announce, check_output, emit, files_of, working, wrote
from pcie_sim.errors import InputError, PcieSimError

if TYPE_CHECKING:
    from pcie_sim.report.console import Block
    from pcie_sim.results.calibration import CalibrationReport

_LONGEST = 300
"""Letters of a warning of the doctor."""


def calibrate(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG", help="Measurements of the box: nccl-tests tables or -J files, p2pBandwidthLatencyTest, nvbandwidth."),
    ],
    topology: TopologyOption,
    prior: Annotated[
        str,
        typer.Option("--prior", metavar="auto|none|NAME", help="Profiles of public boxes (the more alike the more), no profile, or one."),
    ] = "auto",
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", metavar="ID", help="Profile, or its box, that the prior must not use; repeatable.")
    ] = None,
    gpu: GpuOption = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call the calibration.")] = None,
    json: JsonOption = False,
    output: Annotated[
        str | None, typer.Option("-o", metavar="FILE.yaml", help="Write the calibration there; without it, nothing is written.")
    ] = None,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Also draw the fit into a .png or .svg file.")] = None,
) -> None:
    """Fit latencies, protocols and efficiencies of a box to its own logs of nccl-tests, and say how sure that is.

    One AllReduce sweep is enough, more data always helps: other operations, numbers of GPUs, with and without CUDA graphs (-G 10), copy
    tests. What -o writes is for --calibration of compare, predict and collective.
    """
    from pcie_sim import study
    from pcie_sim.report.calibration import calibration_blocks
    from pcie_sim.report.files import write_whole
    from pcie_sim.study.calibrating import calibration_text

    check_output(output, plot=plot, reads=[*files_of(topology=topology), *(Path(log) for log in logs)])
    checked_name(name)
    if "-" in logs:
        raise InputError("calibrate reads files, not standard input: a calibration names its files and their hashes; save the paste first")
    announce(logs)
    with working("fitting"):
        box = study.load_topology(topology, gpu=gpu)
        report = study.calibrate(box, logs, prior=prior, leave_out=leave_out or (), name=name)
        report = _with_warnings(report, _doctor(topology, logs, gpu))
    if output is not None:  # before the plot, which copies alone do not give
        wrote(write_whole(output, calibration_text(report.calibration).encode(), what="-o"))
    if plot is not None:
        from pcie_sim.report.calibration_plot import save_calibration_plot

        wrote(save_calibration_plot(report, plot))
    then = _then(topology, output, gpu)
    emit(report.to_dict, lambda width: [*calibration_blocks(report, width=width), "", then], as_json=json)


def _doctor(topology: str, logs: Sequence[str], gpu: str | None) -> list[str]:
    """Problems that the doctor finds in the same box and logs, as warnings."""
    from pcie_sim import study
    from pcie_sim.doctor import diagnose

    try:
        found = diagnose(*study.load_box(topology, logs, gpu=gpu))
    except PcieSimError as exc:  # the calibration stands all the same
        return [_warning(f"could not look at this box ({exc})")]
    return [_warning(f"{item.title} [{item.code}]" + (f": {item.cost}" if item.cost else "")) for item in found.problems]


def _warning(text: str) -> str:
    from pcie_sim.report.console import clean

    return textwrap.shorten(f"doctor: {clean(text)}", _LONGEST, placeholder=" ...")


def _with_warnings(report: CalibrationReport, texts: Sequence[str]) -> CalibrationReport:
    """``report`` and its calibration with further warnings."""
    held = report.calibration.model_copy(update={"warnings": (*report.calibration.warnings, *texts)})
    return replace(report, calibration=held, warnings=(*report.warnings, *texts))


def _then(topology: str, output: str | None, gpu: str | None) -> Block:
    """What to do next, as a command."""
    from pcie_sim import catalog

    written = output or "cal.yaml"
    if not catalog.is_path(written):  # a bare name would be looked up among the shipped profiles
        written = f"./{written}"
    box = f"--topology {shlex.quote(topology)}" + (f" --gpu {shlex.quote(gpu)}" if gpu is not None else "")
    use = f"pcie-sim compare {box} --model MODEL --calibration {shlex.quote(written)}"
    return f"next: {use}" if output is not None else f"nothing is written; add -o cal.yaml to keep it, then: {use}"
