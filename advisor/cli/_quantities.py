"""Numbers with units as people type them: `25MB`, `100Gbit/s`, `60us`, `12x7M`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from advisor.errors import UsageError

SIZES: Final[dict[str, float]] = {
    "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
RATES: Final[dict[str, float]] = {
    "MB/s": 1e6, "GB/s": 1e9, "MiB/s": 2**20, "GiB/s": 2**30, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8,
}  # fmt: skip
TIMES_NS: Final[dict[str, float]] = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
COUNTS: Final[dict[str, float]] = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.+-]*)\s*")
_LAYERS = re.compile(r"\s*(?:(?P<times>\d+)\s*[x×]\s*)?(?P<size>[^/]+?)(?:\s*/\s*(?P<parts>\d+))?\s*")


def read_quantity(text: str, name: str, units: Mapping[str, float]) -> float:
    """The number of `text` in the base unit of `units`; zero needs no unit.

    Raises:
        UsageError: It is no number, its unit is not among them, or it is negative.
    """
    match = _QUANTITY.fullmatch(text)
    number = float(match[1]) if match else math.nan
    unit = match[2] if match else ""
    if number < 0:
        raise UsageError(f"{name} {text!r} is below zero: give 0 or more.")
    if number == 0 and not unit:
        return 0.0
    if unit not in units or not math.isfinite(number * units[unit]):
        known = ", ".join(unit for unit in units if unit)
        raise UsageError(f"{name} {text!r} is not understood: write a number and one of {known}.")
    return number * units[unit]


def read_layers(text: str, item_bytes: int) -> tuple[int, ...]:
    """Parameters of each layer: sizes with commas between them, `12x7M` for twelve alike, `84M/12` for parts of one.

    Example: `1M,2x8MB` with 4 bytes a parameter is 1 000 000, 2 000 000, 2 000 000.

    Args:
        text: Sizes in parameters (K, M, G) or in bytes (KB, MB, GB, MiB, …).
        item_bytes: Bytes a parameter.

    Raises:
        UsageError: It is written otherwise.
    """
    layers: list[int] = []
    for word in text.split(","):
        match = _LAYERS.fullmatch(word)
        if match is None:
            raise UsageError(f"LAYERS {word!r} is not understood: write 12x7M, 350MB/24, or sizes such as 1M,4M,8M.")
        total = _read_parameters(match["size"], item_bytes)
        times, parts = int(match["times"] or 1), int(match["parts"] or 1)
        if not 0 < times * parts <= 10_000:
            raise UsageError(f"LAYERS {word!r} makes {times * parts} layers: give at least one, and no more than 1000.")
        borders = [round(total * part / parts) for part in range(parts + 1)]
        layers += [end - start for start, end in pairwise(borders)] * times
    return tuple(layers)


def _read_parameters(text: str, item_bytes: int) -> float:
    if re.fullmatch(r"[\d.\s]+B", text):
        raise UsageError(
            f"LAYERS {text!r} may mean bytes or billions: write {text[:-1]}G for parameters, or KB, MB or GB for bytes."
        )
    sizes = {unit: factor / item_bytes for unit, factor in SIZES.items()}
    return read_quantity(text, "LAYERS", {**COUNTS, **sizes})
