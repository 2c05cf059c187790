"""What this machine says of itself: nvidia-smi, lspci and lscpu, read-only, as if their output had been pasted."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from pcie_sim.errors import InputError
from pcie_sim.importers import Imported, Remark, read_any, source_of

TIMEOUT_S = 30
_QUERY = "index,name,pci.bus_id,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,memory.total"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv"),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "topo", "-p2p", "r"),
    ("lspci", "-D", "-nn", "-vvv"),
    ("lscpu",),
)
"""What is run. Each only prints; none changes anything. lspci prints link widths, ACS and payload sizes to root only."""


@dataclass(frozen=True)
class Here:
    """What was read of this machine, and what was not: a remark for every tool that is missing or failed."""

    files: tuple[Imported, ...]
    remarks: tuple[Remark, ...]


def read_here() -> Here:
    """Run :data:`COMMANDS` and read what they print.

    Raises:
        InputError: no tool says anything about this machine's GPUs.
    """
    files: list[Imported] = []
    remarks: list[Remark] = []
    missing = sorted({command[0] for command in COMMANDS if shutil.which(command[0]) is None})
    remarks += [Remark("ignored", f"{tool} is not installed here: what it shows is not read") for tool in missing]
    for command in COMMANDS:
        if command[0] in missing:
            continue
        shown = " ".join(command) if len(" ".join(command)) < 40 else f"{command[0]} {command[1].split('=')[0]}"
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 - fixed commands
        except (OSError, subprocess.TimeoutExpired) as exc:
            reason = f"no answer within {TIMEOUT_S} s" if isinstance(exc, subprocess.TimeoutExpired) else str(exc.strerror or exc)
            remarks.append(Remark("ignored", f"`{shown}` failed ({reason})"))
            continue
        try:
            files.append(read_any(source_of(done.stdout, f"`{shown}`")))
        except InputError as exc:
            reason = str(exc).splitlines()[0]
            code = f"; it exited with {done.returncode}" if done.returncode else ""
            remarks.append(Remark("ignored", f"{reason}{code}"))
    if not any(one.box.gpus or any(device.kind == "gpu" for device in one.box.devices) for one in files):
        why = "; ".join(remark.text for remark in remarks[:3]) or "the tools list no GPU"
        raise InputError(
            f"no GPU is seen on this machine ({why})\nrun it on the GPU box, or copy the output of `nvidia-smi topo -m` into a file"
        )
    return Here(tuple(files), tuple(remarks))
