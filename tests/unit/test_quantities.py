"""Numbers with units, as typed: what is understood, and the one sentence where nothing is."""

from __future__ import annotations

import pytest

from advisor.cli._quantities import COUNTS, RATES, SIZES, TIMES_NS, read_layers, read_quantity
from advisor.errors import UsageError


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("25MB", SIZES, 25e6),
        (" 1.5 GiB ", SIZES, 1.5 * 2**30),
        ("100Gbit/s", RATES, 12.5e9),
        ("400 MB/s", RATES, 400e6),
        ("60us", TIMES_NS, 60e3),
        ("60µs", TIMES_NS, 60e3),
        ("0.8s", TIMES_NS, 0.8e9),
        (".5ms", TIMES_NS, 0.5e6),
        ("0", TIMES_NS, 0),
        ("1e9", COUNTS, 1e9),
        ("7M", COUNTS, 7e6),
    ],
)
def test_a_quantity_is_read_in_its_base_unit(text: str, units: dict[str, float], value: float) -> None:
    assert read_quantity(text, "--option", units) == pytest.approx(value)


@pytest.mark.parametrize("text", ["15", "15 parsecs", "ms", "", "1.2.3ms", "nan", "inf", "1e999s", "1,5ms", "1-2ms"])
def test_what_is_no_quantity_is_refused_with_the_units_there_are(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_quantity(text, "--backward", TIMES_NS)
    assert str(refused.value) == f"--backward {text!r} is not understood: write a number and one of ns, us, µs, ms, s."


def test_a_quantity_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="--latency '-3us' is below zero: give 0 or more"):
        read_quantity("-3us", "--latency", TIMES_NS)


@pytest.mark.parametrize(
    ("text", "item_bytes", "layers"),
    [
        ("12x7M", 4, (7_000_000,) * 12),
        ("2 × 28MB", 4, (7_000_000,) * 2),
        ("175MB", 2, (87_500_000,)),
        ("1M,2x8MB", 4, (1_000_000, 2_000_000, 2_000_000)),
        ("10/4", 4, (2, 3, 3, 2)),
    ],
)
def test_layers_are_read_as_parameters(text: str, item_bytes: int, layers: tuple[int, ...]) -> None:
    assert read_layers(text, item_bytes) == layers


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("7B", "may mean bytes or billions: write 7G for parameters, or KB, MB or GB for bytes"),
        ("0x7M", "makes 0 layers"),
        ("999999x7M", "makes 999999 layers"),
        ("12xx7M", "is not understood"),
        ("1M,,2M", "is not understood"),
        ("-4M", "is below zero"),
        ("4M/0", "makes 0 layers|is not understood"),
    ],
)
def test_layers_that_cannot_be_meant_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_layers(text, 4)
