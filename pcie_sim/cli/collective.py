"""``pcie-sim collective``: one collective call, as nccl-tests would measure it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pcie_sim.cli.calibration import CalibrationOption, calibrated_by
from pcie_sim.cli.options import (
    EnvOption,
    GpuOption,
    JsonOption,
    NcclOption,
    OutputOption,
    P2pOption,
    TopologyOption,
    parse_env,
)
from pcie_sim.cli.output import check_output, emit, files_of


class WithAlgorithms(typer.core.TyperCommand):
    """A command whose help ends with the algorithms of each operation, read from the registry when it is asked for."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the list."""
        super().format_epilog(ctx, formatter)
        from pcie_sim.collectives import OPS, algorithms

        with formatter.section("Algorithms"):
            formatter.write_dl([(op, ", ".join(algorithms(op))) for op in OPS])


_OPS = "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv"


def collective(
    op: Annotated[str, typer.Argument(metavar="OP", help=_OPS)],
    topology: TopologyOption,
    size: Annotated[str, typer.Option("--size", metavar="S", help="Message as nccl-tests counts it: 14KiB, 1MB, 16K (binary), 14336.")],
    ranks: Annotated[int | None, typer.Option("--ranks", metavar="N", help="How many GPUs, in bus order; default: all.")] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="A", help="One of the list below; auto: what the library would choose.")
    ] = "auto",
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="P", help="LL, LL128 or Simple; auto: what the library would choose.")
    ] = "auto",
    launch: Annotated[
        str | None,
        typer.Option("--launch", metavar="graph|eager", help="CUDA graphs or single launches; default: the calibration's, else eager."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="analytic|event", help="Closed form, or every transfer simulated.")
    ] = "analytic",
    order: Annotated[
        str | None, typer.Option("--order", metavar="LIST", help="GPUs rank by rank, like gpu0,gpu4,gpu1: a ring follows them.")
    ] = None,
    calibration: CalibrationOption = None,
    gpu: GpuOption = None,
    env: EnvOption = None,
    nccl: NcclOption = None,
    p2p: P2pOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """The time of one collective call on a box, its bus bandwidth, and the link that limits it."""
    from pcie_sim import study
    from pcie_sim.report.timing import timing_blocks

    check_output(output, reads=files_of(topology=topology, calibration=calibration))
    with calibrated_by(calibration) as measured:
        found = study.collective(
            topology if gpu is None else study.load_topology(topology, gpu=gpu),
            op,
            size,
            ranks=ranks,
            algorithm=algorithm,
            protocol=protocol,
            launch=launch,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            order=order,
            nccl=nccl,
            env=parse_env(env),
            p2p=p2p,  # type: ignore[arg-type]
            calibration=measured,
        )
    emit(found.to_dict, lambda width: timing_blocks(found, width=width), as_json=json, output=output)
