from __future__ import annotations

import numpy as np
import pytest
from msgspec import Raw

from advisor.readers.times import EXACT_BELOW_US, UNUSABLE, parse_time_ns, parse_times_ns, round_times_ns


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        (b"1711964646416788.066", 1_711_964_646_416_788_066),  # 2^53 is 9_007_199_254_740_992
        (b'"1711964646416788.066"', 1_711_964_646_416_788_066),
        (b"4611686018427387.903", 2**62 - 1),
        (b"5", 5_000),
        (b"5.0", 5_000),
        (b"0.25", 250),
        (b"-0.5", -500),
        (b"-7.125", -7_125),
        (b"1.5e3", 1_500_000),
        (b"12.3456", 12_346),
    ],
)
def test_times_are_converted_from_their_digits(text: bytes, nanoseconds: int) -> None:
    assert parse_time_ns(Raw(text)) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [b"", b'"yesterday"', b"null", b'"NaN"', b'"Infinity"', b"[1]", b"9" * 30, b"9" * 5000, b"1e400", b"1e99999999"],
)
def test_what_is_no_time_is_unusable(text: bytes) -> None:
    assert parse_time_ns(Raw(text)) == UNUSABLE


@pytest.mark.parametrize(
    "texts",
    [
        [b"1711964646416788.066", b"-0.500", b"7.125"],
        [b"1711964646416788", b"-5", b"0"],
        [b"9999999999999999", b"9999999999999999.999"],
        [b"5", b"5.0", b'"12.5"', b"null"],
        [],
    ],
    ids=["thousandths", "whole", "too late", "mixed", "none"],
)
def test_many_times_are_those_of_each(texts: list[bytes]) -> None:
    assert parse_times_ns([Raw(text) for text in texts]).tolist() == [parse_time_ns(text) for text in texts]


def test_floats_are_exact_up_to_101_days() -> None:
    nanoseconds = [0, 1, 999, 1_000, -1, -1_234, int(EXACT_BELOW_US) * 1000 - 1, 7_775_999_999_999_999]
    rounded = round_times_ns(np.array([nanosecond / 1000 for nanosecond in nanoseconds]))
    assert rounded is not None
    assert rounded.tolist() == nanoseconds


def test_a_missing_float_is_unusable() -> None:
    rounded = round_times_ns(np.array([1.5, float("nan")]))
    assert rounded is not None
    assert rounded.tolist() == [1500, UNUSABLE]


@pytest.mark.parametrize("time_us", [EXACT_BELOW_US, -EXACT_BELOW_US, 1711964646416788.066, float("inf")])
def test_later_floats_do_not_tell_the_nanosecond(time_us: float) -> None:
    assert round_times_ns(np.array([5.0, time_us])) is None
