"""What may be asked of an engine: grids, pipeline splits and the settings that change a step."""

from __future__ import annotations

import itertools
import math

import pytest

from pcie_sim.errors import InputError
from pcie_sim.specs.workload import DEFAULT_CONCURRENCY, Workload


def test_defaults_are_those_of_the_design() -> None:
    asked = Workload.parse()
    assert asked == Workload()
    assert asked.concurrency == DEFAULT_CONCURRENCY == (1, 2, 4, 8, 16, 32, 64)
    assert asked.context == (1024,)
    assert (asked.launch, asked.pp_layers, asked.popularity, asked.mem_fraction, asked.max_running) == (None, None, "uniform", None, None)


def test_text_and_numbers_mean_the_same() -> None:
    text = Workload.parse("1, 8", "1024,4096", pp_layers="8,8,7", launch="graph", popularity="zipf:1", mem_fraction=0.88, max_running=64)
    numbers = Workload.parse(
        [1, 8], (1024, 4096), pp_layers=[8, 8, 7], launch="graph", popularity="zipf:1", mem_fraction=0.88, max_running=64
    )
    assert text == numbers
    assert text.pp_layers == (8, 8, 7)  # equal stages are not duplicates
    assert hash(text) == hash(numbers)
    assert Workload.parse(4).concurrency == (4,)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"concurrency": 0}, "concurrency 0 is out of range; it goes from 1 to 65536"),
        ({"concurrency": "70000"}, "concurrency 70000 is out of range"),
        ({"concurrency": "many"}, "concurrency 'many' is not a whole number"),
        ({"concurrency": []}, "concurrency"),
        ({"concurrency": None}, "concurrency"),
        ({"concurrency": range(1, 5000)}, "concurrency: at most 512 numbers, got 4999"),
        ({"concurrency": ",".join(map(str, range(1, 514)))}, "concurrency: at most 512 numbers, got 513"),
        ({"concurrency": itertools.count(1)}, "concurrency: at most 512 numbers$"),
        ({"concurrency": "99999999999999999999"}, "concurrency 99999999999999999999 is out of range; it goes from 1 to 65536"),
        ({"concurrency": "9" * 5000}, r"concurrency 9+\.\.\. is out of range"),
        ({"concurrency": "1,"}, "concurrency '1,': an entry is empty; write a list like 1,4,16"),
        ({"concurrency": "1,,2"}, "an entry is empty"),
        ({"concurrency": ""}, "concurrency: nothing is given"),
        ({"concurrency": b"18"}, "concurrency b'18' is not a whole number"),
        ({"concurrency": {1: 2}}, "is not a whole number"),
        ({"concurrency": "x", "single": True}, "concurrency 'x' is not a whole number; write a number like 8"),
        ({"concurrency": 1, "context": "1,2", "single": True}, "predict takes one context, got 2; compare takes lists"),
        ({"mem_fraction": True}, "memory fraction True"),
        ({"popularity": None}, "popularity 'None' is not understood"),
        ({"context": 0}, "context 0 is out of range; it goes from 1 to 16777216"),
        ({"context": "1.5"}, "context"),
        ({"context": range(1, 66)}, "context: at most 64 numbers, got 65"),
        ({"launch": "fast"}, "launch 'fast' is not known; use graph or eager"),
        ({"mem_fraction": 0.05}, "memory fraction 0.05 is out of range"),
        ({"mem_fraction": 1.5}, "memory fraction"),
        ({"mem_fraction": math.nan}, "memory fraction"),
        ({"mem_fraction": "0.9"}, "memory fraction"),
        ({"max_running": 0}, "max-running 0 is out of range"),
        ({"max_running": 1.5}, "max-running 1.5 is not a whole number"),
        ({"max_running": "lots"}, "max-running"),
        ({"pp_layers": ""}, "pp-layers"),
        ({"pp_layers": "8,,8"}, "pp-layers '8,,8': an entry is empty"),
        ({"pp_layers": "8,0"}, "every stage needs at least one layer"),
        ({"pp_layers": "8,-1"}, "every stage needs at least one layer"),
        ({"pp_layers": []}, "every stage needs at least one layer"),
        ({"pp_layers": 8}, "pp-layers '8' is not understood"),
        ({"pp_layers": [8, 1.5]}, "pp-layers"),
        ({"pp_layers": [True]}, "pp-layers"),
        ({"pp_layers": "9" * 5000}, "pp-layers"),
    ],
)
def test_refused(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        Workload.parse(**arguments)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 160
