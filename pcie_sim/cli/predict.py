"""``pcie-sim predict``: one point with its full breakdown."""

from __future__ import annotations

from typing import Annotated

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
from pcie_sim.cli.output import check_output, emit, files_of
from pcie_sim.cli.serving import ServeOption, asked
from pcie_sim.errors import InputError


def predict(
    topology: TopologyOption,
    concurrency: Annotated[str, typer.Option("--concurrency", metavar="C", help="Requests of the whole box in decode at once.")],
    model: ModelOption = None,
    strategy: Annotated[str | None, typer.Option("--strategy", metavar="S", help="Like tp8, tp4pp2, 2xtp4 or ep8:a2a.")] = None,
    serve: ServeOption = None,
    runtime: RuntimeOption = None,
    context: Annotated[str, typer.Option("--context", metavar="N", help="Tokens in each request's KV cache.")] = "1024",
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
) -> None:
    """One strategy at one concurrency: time per token, where it goes op by op, and the memory.

    Exit code 1 when the point does not fit; the answer is printed all the same.
    """
    from pcie_sim import study
    from pcie_sim.report.prediction import prediction_blocks

    check_output(output, reads=files_of(topology=topology, model=model, more=serve, calibration=calibration))
    question = asked(
        "predict",
        serve,
        model=model,
        runtime=runtime,
        strategy=strategy,
        env=parse_env(env),
        launch=launch,
        mem_fraction=mem_fraction,
        max_running=max_running,
    )
    if question.strategy is None:
        raise InputError("missing option --strategy (like tp8; or --serve with a command)\nsee: pcie-sim predict --help")
    with calibrated_by(calibration) as measured:
        found = study.predict(
            topology if gpu is None else study.load_topology(topology, gpu=gpu),
            model=question.model,
            strategy=question.strategy,
            concurrency=concurrency,  # type: ignore[arg-type]
            context=context,  # type: ignore[arg-type]
            runtime=question.runtime,
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
    emit(
        found.to_dict,
        lambda width: prediction_blocks(found, width=width, calibration=calibration_text(calibration)),
        as_json=json,
        output=output,
    )
    if not found.point.fits:
        raise typer.Exit(1)
