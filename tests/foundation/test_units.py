"""Text <-> SI: every unit of the design, what is refused, and that what we print we can read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim import units
from pcie_sim.errors import InputError

BYTES = [
    # IEC 80000-13: binary prefixes are powers of 1024, decimal ones powers of 1000
    ("512", 512),
    ("512B", 512),
    ("1KiB", 1024),
    ("1MiB", 1024**2),
    ("1GiB", 1024**3),
    ("1TiB", 1024**4),
    ("1KB", 1000),
    ("1MB", 1000**2),
    ("1GB", 1000**3),
    ("1TB", 1000**4),
    # nccl-tests' parsesize(): K, M and G are shifts by 10, 20 and 30
    ("1K", 1 << 10),
    ("8M", 8 << 20),
    ("2G", 2 << 30),
    ("8m", 8 << 20),
    ("14 KiB", 14336),
    (" 14KiB ", 14336),
    ("14kib", 14336),
    ("1.5MiB", 1572864),
    (".5K", 512),
    ("2.K", 2048),
    ("1e3", 1000),
    ("1E3 KB", 1_000_000),
    ("+7", 7),
    ("0", 0),
    ("0 GiB", 0),
]
RATES = [
    ("56GB/s", 56e9),
    ("56 GBps", 56e9),
    ("1GiB/s", 2.0**30),
    ("1MB/s", 1e6),
    ("1KB/s", 1e3),
    ("3TB/s", 3e12),
    ("7B/s", 7.0),
    ("2MiB/s", 2.0**21),
]
TIMES = [("2s", 2.0), ("1.5 ms", 1.5e-3), ("5us", 5e-6), ("5µs", 5e-6), ("5μs", 5e-6), ("250ns", 250e-9), ("0.25", 0.25), ("1e-6", 1e-6)]

NEVER = [
    "14 potatoes",
    "1e400",
    "-5",
    "nan",
    "inf",
    "",
    " ",
    "x",
    "KiB",
    "1,5KiB",
    "0x10",
    "1_000",
    "1 2",
    "--1",
    "9" * 200,
    "9" * 63 + "KiB",
    "5\n6",
    "5;",
]


@pytest.mark.parametrize(("text", "value"), BYTES)
def test_bytes(text: str, value: int) -> None:
    found = units.parse_bytes(text)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize(("text", "value"), RATES)
def test_rates(text: str, value: float) -> None:
    assert units.parse_rate(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "value"), TIMES)
def test_times(text: str, value: float) -> None:
    assert units.parse_time(text) == pytest.approx(value, rel=1e-15)


def test_binary_and_decimal_are_never_mixed_up() -> None:
    assert units.parse_bytes("1000KiB") == 1_024_000
    assert units.parse_bytes("1000KB") == 1_000_000
    assert units.parse_rate("1GiB/s") / units.parse_rate("1GB/s") == pytest.approx(1.073741824)


@pytest.mark.parametrize("number", [7, 7.0, np.int64(7), np.float64(7.0), np.float32(7.0), np.uint8(7)])
def test_plain_numbers_are_si(number: float) -> None:
    assert units.parse_bytes(number) == 7
    assert units.parse_rate(number) == 7.0
    assert units.parse_time(number) == 7.0


@pytest.mark.parametrize("parse", [units.parse_bytes, units.parse_rate, units.parse_time])
@pytest.mark.parametrize(
    "text",
    [
        *NEVER,
        True,
        False,
        None,
        [1],
        b"5",
        math.nan,
        math.inf,
        -1,
        -1e-9,
        pytest.param(10**400, id="400-digits"),
        pytest.param(10**5000, id="5000-digits"),
        object(),
    ],
)
def test_refused_by_all_three(parse: object, text: object) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)  # type: ignore[operator]
    message = str(caught.value)
    assert len(message) < 200
    assert message.startswith(("size", "rate", "time"))


@pytest.mark.parametrize("text", ["1.5", "0.5B", 0.5, 1000000.5, "0.0001KiB", "1023.5B"])
def test_a_fraction_of_a_byte_is_refused(text: str | float) -> None:
    with pytest.raises(InputError, match="whole number of bytes"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["2000000TiB", 2**60 + 2**10, "1e30"])
def test_absurd_sizes(text: str | int) -> None:
    with pytest.raises(InputError, match="out of range"):
        units.parse_bytes(text)
    assert units.parse_bytes(2**60) == 2**60


@pytest.mark.parametrize("text", ["24Gbps", "24Gb/s", "24gb/s", "100Mbps", "8b/s"])
def test_bits_are_not_taken_for_bytes(text: str) -> None:
    with pytest.raises(InputError, match="bits per second"):
        units.parse_rate(text)


@pytest.mark.parametrize("text", ["56G", "56GB", "56/s", "56G/s", "56ps", "56 us", "56 GB/h"])
def test_not_a_rate(text: str) -> None:
    with pytest.raises(InputError, match="rate"):
        units.parse_rate(text)


@pytest.mark.parametrize("text", ["5m", "5MS", "5min", "5h", "5KiB", "5 US"])
def test_not_a_time(text: str) -> None:
    with pytest.raises(InputError, match="time"):
        units.parse_time(text)


@pytest.mark.parametrize("text", ["5 PiB", "5Q", "5bits", "5/s"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(InputError, match="unknown unit"):
        units.parse_bytes(text)


# -- round trips ------------------------------------------------------------------------------------------------------
# Four significant digits are printed: half a unit of the last one is at most 5e-4 of the value.


@given(st.integers(0, 2**60 - 2**50))
def test_bytes_round_trip(value: int) -> None:
    back = units.parse_bytes(units.format_bytes(value))
    assert abs(back - value) <= max(0.5, 5.001e-4 * value)
    if value < 1024:
        assert back == value


@given(st.floats(0, 1e18))
def test_rate_round_trip(value: float) -> None:
    assert units.parse_rate(units.format_rate(value)) == pytest.approx(value, rel=5.001e-4)


@given(st.floats(0, 1e9))
def test_time_round_trip(value: float) -> None:
    assert units.parse_time(units.format_time(value)) == pytest.approx(value, rel=5.001e-4)


@given(st.text(max_size=80))
def test_any_text_is_a_number_or_an_input_error(text: str) -> None:
    for parse in (units.parse_bytes, units.parse_rate, units.parse_time):
        try:
            found = parse(text)
        except InputError as exc:
            assert len(str(exc)) < 220  # noqa: PT017 - any other exception fails the test
        else:
            assert found >= 0
            assert math.isfinite(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1365, "1.333 KiB"),
        (14336, "14 KiB"),
        (2**20 - 1, "1024 KiB"),
        (2**20, "1 MiB"),
        (1572864, "1.5 MiB"),
        (95_000_000_000, "88.48 GiB"),
        (2**50, "1024 TiB"),
        (2**60, "1048576 TiB"),
    ],
)
def test_format_bytes(value: int, text: str) -> None:
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 B/s"), (999.0, "999 B/s"), (1e3, "1 KB/s"), (56.1e9, "56.1 GB/s"), (1.8e12, "1.8 TB/s"), (2e16, "20000 TB/s")],
)
def test_format_rate(value: float, text: str) -> None:
    assert units.format_rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ns"),
        (17.3e-6, "17.3 us"),
        (1e-6, "1 us"),
        (1e-3, "1 ms"),
        (0.0384615, "38.46 ms"),
        (1.0, "1 s"),
        (3.2e-7, "320 ns"),
        (36000.0, "36000 s"),
    ],
)
def test_format_time(value: float, text: str) -> None:
    assert units.format_time(value) == text


def test_format_gb_is_decimal() -> None:
    assert units.format_gb(95.56e9) == "95.6 GB"
    assert units.format_gb(2**30) == "1.1 GB"


# -- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "found"),
    [
        ("1,2,4", (1, 2, 4)),
        (" 4 , 2,1 ", (4, 2, 1)),
        ("+8", (8,)),
        ("2,2,1,2", (2, 1)),
        (7, (7,)),
        (7.0, (7,)),
        ([1, 2.0, "3"], (1, 2, 3)),
        (range(1, 4), (1, 2, 3)),
        (np.array([1, 8]), (1, 8)),
        (np.array(5), (5,)),
        (np.int64(5), (5,)),
        ((number for number in (3, 1)), (3, 1)),
    ],
)
def test_int_list(given_: object, found: tuple[int, ...]) -> None:
    result = units.parse_int_list(given_, "concurrency")  # type: ignore[arg-type]
    assert result == found
    assert all(type(number) is int for number in result)


BAD_TEXTS = ["", " ", "1,,2", "1,", "1;2", "1.0", "1e3", "one", "0x1", "1_0", "9" * 200, "-1", "1000001"]
BAD_ITEMS = [
    None,
    [],
    {},
    True,
    [True],
    [1.5],
    [math.nan],
    [math.inf],
    [None],
    [[1]],
    object(),
    0,
    -1,
    10**7,
    pytest.param(10**5000, id="long"),
]


@pytest.mark.parametrize("bad", [*BAD_TEXTS, *BAD_ITEMS])
def test_bad_int_lists(bad: object) -> None:
    with pytest.raises(InputError, match=r"^concurrency") as caught:
        units.parse_int_list(bad, "concurrency")  # type: ignore[arg-type]
    assert len(str(caught.value)) < 160


def test_int_list_bounds() -> None:
    assert units.parse_int_list("5,9", "n", low=5, high=9, most=2) == (5, 9)
    for bad in ("4", "10", "5,6,7"):
        with pytest.raises(InputError, match="n"):
            units.parse_int_list(bad, "n", low=5, high=9, most=2)


@pytest.mark.parametrize("text", ["１４KiB", "٣", "1e٣", "1.٥MB"])
def test_digits_are_ascii(text: str) -> None:
    with pytest.raises(InputError, match="is not understood"):
        units.parse_bytes(text)
