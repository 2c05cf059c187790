"""``--calibration``: what a box has measured, for every verb that predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from pcie_sim.cli.output import announce, working
from pcie_sim.errors import InputError, UnknownNameError, unknown_name

CalibrationOption = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="What calibrate wrote, a shipped profile's name, or a raw log of nccl-tests (fitted in passing; several: repeat it).",
    ),
]


def calibration_of(given: Sequence[str] | None) -> str | list[str] | None:
    """``--calibration`` as the verbs of :mod:`pcie_sim.study` take it: one name or path, several logs, or nothing.

    Raises:
        InputError: a blank, standard input, or an unknown name.
    """
    if not given:
        return None
    for item in given:
        if not item.strip():
            raise InputError("--calibration: give a calibration file, a log of nccl-tests, or the name of a shipped profile")
        if item == "-":
            raise InputError("--calibration -: give a file, not standard input")
    if len(given) > 1:
        return list(given)
    from pcie_sim import catalog
    from pcie_sim.study.loading import hinted

    name = given[0]
    if not catalog.is_path(name):
        hinted(name, lambda: _profile(name))
    return name


def _profile(name: str) -> None:
    """Refuse a name that no shipped calibration has (the other profiles, of kernels, are not offered)."""
    from pcie_sim import catalog

    try:
        catalog.load_calibration_profile(name)
    except UnknownNameError as exc:
        raise unknown_name("calibration", name, catalog.calibration_names()) from exc


@contextmanager
def calibrated_by(given: Sequence[str] | None) -> Iterator[str | list[str] | None]:
    """``--calibration`` for a verb of :mod:`pcie_sim.study`, with a sign of life while the block runs: raw logs are fitted in it.

    Raises:
        InputError: as :func:`calibration_of`.
    """
    found = calibration_of(given)
    if found is None:
        yield None
        return
    announce(given or ())
    with working("predicting with the calibration"):
        yield found


def calibration_text(given: Sequence[str] | None) -> str:
    """What ``--calibration`` named, for a report's head."""
    return ", ".join(given or ())
