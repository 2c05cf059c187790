"""``pcie-sim compare``: strategies against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pcie_sim.cli.calibration import CalibrationOption, calibrated_by, calibration_text
from pcie_sim.cli.options import (
    EnvOption,
    GpuOption,
    JsonOption,
    LaunchOption,
    MaxRunningOption,
    MemFractionOption,
    ModelOption,
    NcclOption,
    OutputOption,
    P2pOption,
    PopularityOption,
    PpLayersOption,
    RuntimeOption,
    TopologyOption,
    parse_env,
)
from pcie_sim.cli.output import check_output, emit, files_of, wrote
from pcie_sim.cli.serving import ServeOption, asked

if TYPE_CHECKING:
    from pcie_sim.results.comparison import Comparison

DEFAULT_CONCURRENCY = "1,2,4,8,16,32,64"


def compare(
    topology: TopologyOption,
    model: ModelOption = None,
    serve: ServeOption = None,
    runtime: RuntimeOption = None,
    strategies: Annotated[
        str | None, typer.Option("--strategies", metavar="LIST", help="Like tp8,pp8,ep8:a2a; default: the usual ones of this box.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="LIST", help="Requests of the whole box in decode at once.")
    ] = DEFAULT_CONCURRENCY,
    context: Annotated[str, typer.Option("--context", metavar="LIST", help="Tokens in each request's KV cache.")] = "1024",
    calibration: CalibrationOption = None,
    gpu: GpuOption = None,
    env: EnvOption = None,
    nccl: NcclOption = None,
    p2p: P2pOption = None,
    launch: LaunchOption = None,
    pp_layers: PpLayersOption = None,
    popularity: PopularityOption = "uniform",
    mem_fraction: MemFractionOption = None,
    max_running: MaxRunningOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Also draw the comparison into a .png or .svg file.")] = None,
) -> None:
    """Which strategy wins on this box for this model, by how much, at which concurrency, and why.

    Exit code 1 when nothing at all fits.
    """
    from pcie_sim import study
    from pcie_sim.specs.strategy import parse_strategy
    from pcie_sim.study.verbs import usual_strategies

    check_output(output, plot=plot, reads=files_of(topology=topology, model=model, more=serve, calibration=calibration))
    question = asked(
        "compare",
        serve,
        model=model,
        runtime=runtime,
        strategy=None,
        env=parse_env(env),
        launch=launch,
        mem_fraction=mem_fraction,
        max_running=max_running,
    )
    box = study.load_topology(topology, gpu=gpu)
    spec = study.load_model(question.model)
    if strategies is None and question.strategy is not None:
        usual = usual_strategies(box, spec, question.runtime)
        same = parse_strategy(question.strategy).canonical
        strategies = ",".join((question.strategy, *(one for one in usual if parse_strategy(one).canonical != same)))
    with calibrated_by(calibration) as measured:
        found = study.compare(
            box,
            model=spec,
            runtime=question.runtime,
            strategies=strategies,
            concurrency=concurrency,
            context=context,
            nccl=nccl,
            env=question.env,
            p2p=p2p,  # type: ignore[arg-type]
            launch=question.launch,  # type: ignore[arg-type]
            pp_layers=pp_layers,
            popularity=popularity,
            mem_fraction=question.mem_fraction,
            max_running=question.max_running,
            calibration=measured,
        )
    if plot is not None:
        from pcie_sim.report.plots import save_plot

        wrote(save_plot(found, plot))
    hand_out(found, as_json=json, output=output, calibration=calibration_text(calibration))
    if not found.anything_fits:
        raise typer.Exit(1)


def hand_out(comparison: Comparison, *, as_json: bool, output: str | None = None, calibration: str = "") -> None:
    """Print a comparison as text or JSON, and write ``-o``. ``calibration`` is what it was made with, in words."""
    from pcie_sim.report.comparison import comparison_blocks

    emit(
        comparison.to_dict,
        lambda width: comparison_blocks(comparison, width=width, calibration=calibration),
        as_json=as_json,
        output=output,
    )
