"""``pcie-sim demo``: the case that the project was started for."""

from __future__ import annotations

from typing import Annotated

import typer

from pcie_sim.cli.compare import hand_out
from pcie_sim.cli.options import JsonOption, OutputOption
from pcie_sim.cli.output import check_output, say, wrote

TOPOLOGY = "rtx-pro-6000-8x-2switch"
MODEL = "kimi-k2.6"
STRATEGIES = "tp8,pp8,ep8:allreduce,ep8:a2a"
CONCURRENCY = "1,2,4,8,16,32,64,128,256"
ENV = {"NCCL_P2P_LEVEL": "5", "NCCL_IB_DISABLE": "1", "NCCL_ALGO": "Ring"}
"""The known settings of the measured EP8 run (validation set reference-kimi-k2.6-8x-rtx-pro-6000)."""
PLOT = "demo.png"


def demo(
    plot: Annotated[str, typer.Option("--plot", metavar="FILE", help="Where the picture goes (.png or .svg).")] = PLOT,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw nothing.")] = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """The reference comparison: Kimi K2.6 on 8x RTX PRO 6000 over PCIe with SGLang, beside what was measured there."""
    from pcie_sim import study
    from pcie_sim.errors import InputError

    check_output(output, plot=None if no_plot else plot)
    found = study.compare(TOPOLOGY, model=MODEL, strategies=STRATEGIES, concurrency=CONCURRENCY, env=ENV)
    if not no_plot:
        from pcie_sim.report.plots import save_plot

        try:
            wrote(save_plot(found, plot))
        except InputError as exc:
            if plot != PLOT:
                raise
            say(f"no picture: {exc}")  # nobody asked for that file by name: a folder without write access is no failure
    if not json:
        env = " ".join(f"--env {name}={value}" for name, value in ENV.items())
        say("the same by hand:")
        say(f"  pcie-sim compare --topology {TOPOLOGY} --model {MODEL} --strategies {STRATEGIES} --concurrency {CONCURRENCY} {env}")
    hand_out(found, as_json=json, output=output)
