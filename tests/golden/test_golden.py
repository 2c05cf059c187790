"""Golden predictions: a change in any answer shows up in review.

The file holds what the package predicted when it was last accepted; it says nothing about truth (tests/study and validation/ do).
After an intended change run ``PCIE_SIM_UPDATE_GOLDEN=1 pytest tests/golden``, look at the diff, and say in CHANGELOG.md which
predictions moved, by how much and why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import pcie_sim as ps

FILE = Path(__file__).with_name("predictions.json")
BOXES = (
    "h200-2x-host-staged",
    "rtx-4090-8x-rome-2socket",
    "rtx-pro-6000-8x-2switch",
    "rtx-pro-6000-8x-direct-1socket",
    "rtx-pro-6000-8x-direct-2socket",
    "rtx-pro-6000-8x-root-leaf",
    "a40-8x-rome-2socket-nvlink",
    "rtx-pro-6000-8x-asus-broadcom",
    "rtx-pro-6000-16x-2host-ndr",
)
"""The first boxes and three that differ most from them; all of them would make the file too long to read."""
MODELS = ("kimi-k2.6", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.1-70b")
CONCURRENCY = (1, 8, 64)
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
SIZES = (14336, 1 << 20, 1 << 26)
TOLERANCE = 1e-6


def current() -> dict[str, dict[str, float]]:
    """Every golden number, keyed by what was asked."""
    serving: dict[str, float] = {}
    for box in BOXES:
        for model in MODELS:
            for runtime in ("sglang", "vllm"):
                found = ps.compare(box, model=model, concurrency=CONCURRENCY, runtime=runtime)
                for point in found.points:
                    key = f"{box} {model} {runtime} {point.strategy} C={point.concurrency}"
                    serving[key] = float(f"{point.tpot_ms:.9g}")
    collectives: dict[str, float] = {}
    for box in BOXES:
        for op in OPS:
            for size in SIZES:
                for launch in ("graph", "eager"):
                    timing = ps.collective(box, op, size, launch=launch, ranks=2 if op == "send_recv" else None)  # type: ignore[arg-type]
                    collectives[f"{box} {op} {size} {launch}"] = float(f"{timing.time_s * 1e6:.9g}")
    return {"tpot_ms": serving, "collective_us": collectives}


def test_golden_predictions() -> None:
    found = current()
    if os.environ.get("PCIE_SIM_UPDATE_GOLDEN"):
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        pytest.skip("golden file rewritten; look at its diff")
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    moved = []
    for group, numbers in found.items():
        assert set(numbers) == set(kept[group]), "questions changed: run with PCIE_SIM_UPDATE_GOLDEN=1 and review the diff"
        for key, value in numbers.items():
            before = kept[group][key]
            if abs(value - before) > TOLERANCE * abs(before):
                moved.append(f"{group} {key}: {before:g} -> {value:g} ({value / before - 1:+.2%})")
    assert not moved, f"{len(moved)} predictions moved, first: " + "; ".join(moved[:8])
