"""Reading other programs' files: how the cost grows with their length, as ratios within one run (medians of interleaved repeats)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from plot_growth import ratio

from pcie_sim.errors import InputError
from pcie_sim.importers import formats, read_any, source_of

pytestmark = pytest.mark.bench

ROW = "  16384          4096     float     sum      -1    27.12    0.60    1.06       0    26.80    0.61    1.07       0\n"
TABLE = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    + "".join(f"#  Rank  {i} Group  0 Pid  1 on  box device  {i} [0000:{16 + i:02x}:00] NVIDIA GeForce RTX 4090\n" for i in range(8))
)
HEAD = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
INFO = "box:1:2 [0] NCCL INFO Channel {0:02d}/0 : 0[0] -> 1[1] via SHM/direct/direct\nbox:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1\n"
PORT = (
    "{0:02x}:01.0 PCI bridge: Some Maker Device 0001 (prog-if 00 [Normal decode])\n\tBus: primary={0:02x}, secondary=ff, subordinate=ff\n"
    "\tCapabilities: [70] Express (v2) Downstream Port (Slot-)\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\n"
)
TEXTS: dict[str, Callable[[int], str]] = {
    "nccl-tests": lambda n: TABLE + HEAD + ROW * (20 * n),
    "nccl-debug": lambda n: "box:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n" + "".join(INFO.format(i % 32) for i in range(20 * n)),
    "lspci -vvv": lambda n: "".join(PORT.format(i % 250) for i in range(4 * n)),
    "prose": lambda n: "a box of eight GPUs behind two switches, [0000:00] and so on\n" * (50 * n),
    "one line": lambda n: "+-[0000:00]-" * (200 * n),
    "blanks": lambda n: (" " * 400 + "\n") * (10 * n),
}


@pytest.mark.parametrize("name", TEXTS)
def test_twice_the_text_takes_about_twice_as_long(name: str) -> None:
    formats()

    def reading(n: int) -> Callable[[], None]:
        text = TEXTS[name](n)

        def run() -> None:
            try:
                read_any(source_of(text, "x"))
            except InputError:
                return

        return run

    assert ratio(reading(60), reading(240), 5) < 8, "four times as much"


def test_a_full_examination_costs_a_few_dozen_predictions() -> None:
    """22 checks, two sick runs explained by some thirty states of the box each, against one plain report of the box."""
    from pcie_sim.doctor import diagnose
    from pcie_sim.importers.relate import Related
    from pcie_sim.report.box import box_document
    from pcie_sim.topology import load_topology

    box = load_topology("rtx-pro-6000-16x-turin-4switch-star")
    assert ratio(lambda: box_document(box), lambda: diagnose(box, Related()), 5) < 20
