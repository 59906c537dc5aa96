"""Numbers as sentences of the analysis say them."""

from __future__ import annotations


def say_number(number: float) -> str:
    """Two digits, and no power of ten: 3141 is `3,100`."""
    return f"{float(f'{number:.2g}'):,.10g}"
