"""Decimal microseconds, as they stand in a trace, to exact integer nanoseconds.

Epoch microseconds times 1000 exceed 2^53, so a float is only used where it tells one nanosecond from the next: below
2^43 microseconds, that is 101 days, within which Kineto writes times since `baseTimeNanoseconds`. Elsewhere the digits
are split at the point and scaled as integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Raw

Times: TypeAlias = npt.NDArray[np.int64]

EXACT_BELOW_US = 2.0**43
"""Floats below are at most 2^-10 µs apart, so the nearest one to a whole number of nanoseconds tells which it was."""
LATEST_NS = 2**62
"""Times stay below, so that a start plus a duration fits 64 bits; the year 2116."""
UNUSABLE = np.iinfo(np.int64).min
"""Stands for what is no time."""

_PLAIN = re.compile(rb'"?(-?\d+)(?:\.(\d{1,3}))?"?')
_ALL_WHOLE = re.compile(rb"(?:-?\d{1,16}(?:,|\Z))+")
_ALL_MILLI = re.compile(rb"(?:-?\d{1,16}\.\d{3}(?:,|\Z))+")


def parse_time_ns(raw: Raw | bytes) -> int:
    """Decimal microseconds, quoted or not, to exact integer nanoseconds; `UNUSABLE` where it is no time.

    Example: `1711964646416788.066` -> 1711964646416788066.
    """
    text = bytes(raw)
    plain = _PLAIN.fullmatch(text)
    if plain and len(text) < 32:
        whole, fraction = plain.groups()
        below = int((fraction or b"").ljust(3, b"0"))
        time_ns = int(whole) * 1000 + (-below if whole.startswith(b"-") else below)
    else:
        time_ns = _round_time_ns(text)
    return time_ns if abs(time_ns) < LATEST_NS else UNUSABLE


def parse_times_ns(raws: Sequence[Raw]) -> Times:
    """`parse_time_ns` of many, quickly where all are written alike."""
    text = b",".join(raws)
    if _ALL_MILLI.fullmatch(text):
        times_ns = [int(digits) for digits in text.replace(b".", b"").split(b",")]
    elif _ALL_WHOLE.fullmatch(text):
        times_ns = [1000 * int(digits) for digits in text.split(b",")]
    else:
        times_ns = [parse_time_ns(raw) for raw in raws]
    return np.array([time_ns if abs(time_ns) < LATEST_NS else UNUSABLE for time_ns in times_ns], dtype=np.int64)


def round_times_ns(times_us: npt.NDArray[np.float64]) -> Times | None:
    """Microseconds below `EXACT_BELOW_US` to nanoseconds; None where one is larger, and its digits are needed.

    The fraction is split off before it is scaled, which keeps it exact. NaN becomes `UNUSABLE`.
    """
    missing = None
    if not (times_us.min(initial=0) > -EXACT_BELOW_US and times_us.max(initial=0) < EXACT_BELOW_US):
        missing = np.isnan(times_us)
        times_us = np.where(missing, 0, times_us)
        if np.any(np.abs(times_us) >= EXACT_BELOW_US):
            return None
    whole_us = np.floor(times_us)
    times_ns: Times = whole_us.astype(np.int64) * 1000 + np.rint((times_us - whole_us) * 1000).astype(np.int64)
    return times_ns if missing is None else np.where(missing, UNUSABLE, times_ns)


def _round_time_ns(text: bytes) -> int:
    """Nanoseconds of a number in any other spelling; `LATEST_NS` where it is none."""
    try:
        exact = Decimal(text.decode().strip('"')) * 1000
        return int(exact.to_integral_value()) if abs(exact) < LATEST_NS else LATEST_NS
    except (ArithmeticError, ValueError):
        return LATEST_NS
