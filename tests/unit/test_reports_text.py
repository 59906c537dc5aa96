"""Numbers are rounded to what is known; names cannot act."""

from __future__ import annotations

import math

import pytest

from advisor.schema import Estimate
from reports import text
from tests.builders import MIB, estimate, estimate_ms


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0 ms"),
        (850, "850 ns"),
        (12_340, "12.3 µs"),
        (12_340_000, "12.3 ms"),
        (181_500_000, "182 ms"),
        (2_500_000_000, "2.50 s"),
        (-12_340_000, "-12.3 ms"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(nanoseconds: float | None, expected: str) -> None:
    assert text.format_ns(nanoseconds) == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (12.34, 11.9, 12.78, "12.3 ms [11.9, 12.8]"),  # half the interval is 0.44: one digit
        (12.34, 12.19, 12.49, "12.34 ms [12.19, 12.49]"),  # 0.15: two digits
        (181.5, 180.0, 183.0, "181.5 ms [180.0, 183.0]"),
        (184.4, 144.4, 224.4, "180 ms [140, 220]"),  # 40: tens
        (0.0, 0.0, 0.0, "0 ms"),
        (5.0, 5.0, 5.0, "5.00 ms"),  # without an interval, three digits
        (-1.0, -5.0, 3.0, "-1 ms [-5, 3]"),
        (5.0, 1.0, math.inf, "5.00 ms [–, –]"),
    ],
)
def test_an_estimate_shows_the_digits_its_interval_leaves_standing(
    value: float, low: float, high: float, expected: str
) -> None:
    made = Estimate(value=value * 1e6, low=low * 1e6, high=high * 1e6, basis="fitted")
    assert text.format_estimate_ns(made) == expected


def test_value_and_interval_share_one_unit() -> None:
    assert text.format_estimate_ns(estimate_ms(0.9, 0.3)) == "0.90 ms [0.60, 1.20]"


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(400, "400 B"), (25 * MIB, "25 MiB"), (8_196_000, "7.82 MiB"), (3 * 2**30, "3 GiB"), (1536, "1.50 KiB")],
)
def test_sizes_are_binary_and_say_so(num_bytes: int, expected: str) -> None:
    assert text.format_bytes(num_bytes) == expected


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.158, "16 %"),
        (0.03, "3 %"),
        (0.0056, "0.56 %"),
        (0.00005, "< 0.1 %"),
        (0.0, "0 %"),
        (-0.02, "−2 %"),
        (None, "–"),
    ],
)
def test_shares_are_percent(fraction: float | None, expected: str) -> None:
    assert text.format_fraction(fraction) == expected


def test_a_ratio_is_told_as_a_change() -> None:
    assert text.format_change(estimate(0.95, 0.01)) == "−5.0 % [−6.0, −4.0]"
    assert text.format_change(estimate(1.0, 0.005)) == "+0.0 % [−0.5, +0.5]"


def test_a_time_per_byte_is_told_as_bandwidth_in_1e9_bytes_a_second() -> None:
    assert text.format_rate(Estimate(value=0.5, low=0.4, high=0.625, basis="fitted")) == "2.0 GB/s [1.6, 2.5]"
    assert text.format_rate(estimate(0.5, 0.6)) == "–"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("bucket_cap_mb", None, "unset"),
        ("bucket_cap_mb", 8.0, "8 MiB"),
        ("bucket_cap_mb_list", (1.0, 4.5), "[1, 4.5] MiB"),
        ("static_graph", True, "on"),
        ("accumulation_steps", 4, "4"),
        ("comm_hook", "bf16", "bf16"),
    ],
)
def test_a_setting_reads_as_one_would_type_it(name: str, value: object, expected: str) -> None:
    assert text.format_setting(name, value) == expected


def test_evidence_is_formatted_by_its_unit() -> None:
    assert text.format_quantity(2e6, "ns") == "2.00 ms"
    assert text.format_quantity(0.122, "of the step") == "12 % of the step"
    assert text.format_quantity(4, "steps") == "4 steps"
    assert text.format_quantity(0.5, "") == "0.500"


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert text.visible("a\x1b[2Jb\nc\u202ed\u200be\ud800") == r"a\x1b[2Jb\nc\u202ed\u200be\ud800"
    assert text.visible("Größe 25\u00a0MiB ✓") == "Größe 25\u00a0MiB ✓"


def test_code_keeps_its_lines_but_nothing_else_that_acts() -> None:
    assert text.visible_code("a = 1\n\tb\x07") == "a = 1\n    b\\x07"


def test_markdown_is_made_inert() -> None:
    assert text.escape_markdown("![x](http://a) **b** $c$") == r"\!\[x\]\(http\://a\) \*\*b\*\* \$c\$"


def test_a_size_that_no_trace_tells_is_unknown() -> None:
    assert text.format_bytes(-1) == text.UNKNOWN
    assert text.format_bytes(0) == "0 B"
