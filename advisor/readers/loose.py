"""JSON as it comes: values of any type, and all that Python takes for JSON, where the typed decoders give up."""

from __future__ import annotations

import json
from typing import TypeAlias

from msgspec import Raw

Word: TypeAlias = int | str | None

MALFORMED = (ValueError, RecursionError)
"""What decoders raise for text that is no JSON, msgspec's own errors among them."""
MOST_RANKS = 1_000_000
MOST_DIGITS = 4000
"""Python refuses to read longer integers."""


def decode_anything(text: bytes | Raw) -> object:
    """Keeps the digits of numbers that are no integers; takes NaN, Infinity, control characters and any bytes.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    return _ANYTHING.decode(bytes(text).decode(errors="replace"))


def to_text(value: object) -> str:
    """A string that UTF-8 can hold, which one with half a surrogate pair is not."""
    return (value if isinstance(value, str) else json.dumps(value)).encode(errors="replace").decode()


def to_word(value: object) -> Word:
    """A number or a string."""
    return value if value is None or (isinstance(value, int) and not isinstance(value, bool)) else to_text(value)


def read_count(value: object) -> int | None:
    """A number that counts something, quoted or not; None for what is none, and for what 64 bits do not hold."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else -1
    except ValueError:
        return None
    return number if 0 <= number < 2**63 else None


def read_rank(value: object) -> int | None:
    """The number of a rank, or of all ranks; None for what is none, and for more than any job has."""
    number = read_count(value)
    return number if number is not None and number <= MOST_RANKS else None


def to_digits(value: object) -> Raw:
    """A number as it is written."""
    return Raw(str(value).encode(errors="replace"))


def to_json(value: object) -> Raw:
    """The text of any value."""
    return Raw(json.dumps(value).encode())


def _read_integer(digits: str) -> int | str:
    return int(digits) if len(digits) < MOST_DIGITS else digits


_ANYTHING = json.JSONDecoder(strict=False, parse_int=_read_integer, parse_float=str, parse_constant=str)
