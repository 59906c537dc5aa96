from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from advisor.readers.times import parse_time_ns

NANOSECONDS = st.integers(-(2**62) + 1, 2**62 - 1)


@given(NANOSECONDS, st.booleans())
def test_every_nanosecond_survives_being_written_in_microseconds(time_ns: int, as_string: bool) -> None:
    sign, digits = "-" * (time_ns < 0), f"{abs(time_ns):04d}"
    text = f"{sign}{digits[:-3]}.{digits[-3:]}"
    assert parse_time_ns(Raw((f'"{text}"' if as_string else text).encode())) == time_ns
    assert parse_time_ns(Raw(f"{time_ns}e-3".encode())) == time_ns


@given(st.integers(0, 2**52))
def test_whole_microseconds_need_no_point(time_us: int) -> None:
    assert parse_time_ns(Raw(str(time_us).encode())) == 1000 * time_us
