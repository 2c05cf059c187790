"""What all tests share. Hypothesis profiles: ``ci`` (50 examples, always the same) and ``long`` (500), chosen by PCIE_SIM_LONG=1."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=500, deadline=None, derandomize=True)
settings.load_profile("long" if os.environ.get("PCIE_SIM_LONG") == "1" else "ci")


@pytest.fixture(autouse=True)
def _plain_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are laid out for COLUMNS where it is set: expectations are not those of the tester's own window."""
    monkeypatch.delenv("COLUMNS", raising=False)
