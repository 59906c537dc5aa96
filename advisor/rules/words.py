"""Numbers and rows as rules speak of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from advisor.schema import BucketSummary, StepSummary


def say_ms(ns: float) -> str:
    """A duration in the two or three digits that are known of it: `0.21 ms`, `4.3 ms`, `17 ms`, `152 ms`, `1.01 s`."""
    ms = ns / 1e6
    if abs(ms) >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.0f} ms" if abs(ms) >= 9.95 else f"{ms:.1f} ms" if abs(ms) >= 0.95 else f"{ms:.2g} ms"


def say_bytes(num_bytes: float) -> str:
    """Bytes in 1e6 or 1e9: `4.5 MB`, `400 MB`, `2.8 GB`."""
    unit, scale = ("GB", 1e9) if num_bytes >= 1e9 else ("MB", 1e6)
    number = num_bytes / scale
    return f"{number:.0f} {unit}" if number >= 9.95 else f"{number:.2g} {unit}"


def say_fraction(fraction: float) -> str:
    """A share in whole per cent."""
    return f"{100 * fraction:.0f} %"


def say_value(name: str, value: Any) -> str:
    """A setting as one types it: `4 MiB`, `[1, 4] MiB`, `True`, `unset`."""
    if value is None:
        return "unset"
    unit = " MiB" if name.startswith("bucket_cap_mb") else ""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(f'{item:g}' for item in value)}]{unit}"
    return f"{value:g}{unit}" if isinstance(value, float) else f"{value}{unit}"


def find_rows(
    table: Iterable[StepSummary | BucketSummary], matters: Callable[[Any], bool] = lambda _: True
) -> tuple[int, ...]:
    """The rows of a table of the report that matter."""
    return tuple(number for number, row in enumerate(table) if matters(row))
