"""The note on transports speaks of the GPUs that the strategies really exchange among."""

from __future__ import annotations

import pytest

import pcie_sim as ps


@pytest.mark.parametrize(
    ("strategy", "words"), [("tp2", "2 of 2 ring neighbours (PHB) by P2P"), ("tp8", "8 of 8 ring neighbours (PHB) by SHM")]
)
def test_two_gpus_of_an_amd_box_are_peers_in_the_note_too(strategy: str, words: str) -> None:
    found = ps.predict(ps.load_topology("rtx-pro-6000-8x-direct-1socket"), model="qwen3-32b", strategy=strategy, concurrency=8)
    assert any(words in note.text for note in found.notes if note.code == "transport")
