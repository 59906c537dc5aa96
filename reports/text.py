"""Numbers and names as a person reads them, rounded to what is known; every renderer goes through here.

Sizes of buckets are in binary units (KiB, MiB, GiB), because `bucket_cap_mb` means MiB; rates, traffic and memory in
powers of ten, as links and devices are sold.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

from advisor.schema import Estimate

UNKNOWN = "–"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_TRAFFIC_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BYTE_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:^&])")


def format_ns(nanoseconds: float | None) -> str:
    """A duration with three significant digits: 12 340 000 is `12.3 ms`."""
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return UNKNOWN
    if nanoseconds == 0:
        return "0 ms"
    scale, unit = _time_unit(abs(nanoseconds))
    return f"{_significant(nanoseconds / scale)} {unit}"


def format_ms(nanoseconds: float | None) -> str:
    """A duration for a column headed "ms": two decimals, one from a second on."""
    if nanoseconds is None or not math.isfinite(nanoseconds):
        return UNKNOWN
    milliseconds = nanoseconds / 1e6
    if milliseconds == 0:
        return "0"
    return f"{milliseconds:.1f}" if abs(milliseconds) >= 1000 else f"{milliseconds:.2f}"


def format_estimate_ns(estimate: Estimate | None) -> str:
    """A duration with its 95 % interval, in digits the interval leaves standing: `12.3 ms [11.9, 12.8]`."""
    if estimate is None or not math.isfinite(estimate.value):
        return UNKNOWN
    if estimate.low == estimate.high:
        return format_ns(estimate.value)
    if not math.isfinite(estimate.high - estimate.low):
        return f"{format_ns(estimate.value)} [{UNKNOWN}, {UNKNOWN}]"
    scale, unit = _time_unit(max(abs(estimate.low), abs(estimate.high), abs(estimate.value)))
    value, low, high = _rounded_together(estimate, scale)
    return f"{value} {unit} [{low}, {high}]"


def format_rate(ns_per_byte: Estimate) -> str:
    """The bandwidth that a time per byte means, in 1e9 bytes per s: 0.5 ns a byte is `2.0 GB/s [1.9, 2.1]`."""
    if ns_per_byte.low <= 0:
        return UNKNOWN
    value, low, high = (1e9 / ns for ns in (ns_per_byte.value, ns_per_byte.high, ns_per_byte.low))
    return format_bandwidth(Estimate(value=value, low=low, high=high, basis=ns_per_byte.basis))


def format_bandwidth(bytes_per_s: Estimate | None) -> str:
    """A bandwidth in 1e9 bytes per s, as nccl-tests prints it: `2.0 GB/s [1.9, 2.1]`."""
    if bytes_per_s is None:
        return UNKNOWN
    value, low, high = _rounded_together(bytes_per_s, 1e9)
    return f"{value} GB/s [{low}, {high}]"


def format_factor(factor: Estimate | None) -> str:
    """How many times as much: `1.9 × [1.8, 2.0]`."""
    if factor is None:
        return UNKNOWN
    if factor.low == factor.high:
        return f"{_significant(factor.value)} ×"
    value, low, high = _rounded_together(factor, 1.0)
    return f"{value} × [{low}, {high}]"


def format_share(share: Estimate) -> str:
    """A share in percent with its interval: 0.71 is `71 % [65, 75]`."""
    if not math.isfinite(share.value):
        return UNKNOWN
    if share.low == share.high:
        return format_fraction(share.value)
    value, low, high = _rounded_together(share, 0.01)
    return f"{value} % [{low}, {high}]"


def format_change(ratio: Estimate | None) -> str:
    """A ratio as the change it means, in percent with its interval: 0.95 is `−5.0 % [−6.1, −3.9]`."""
    if ratio is None or not math.isfinite(ratio.value):
        return UNKNOWN
    change = Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1, basis=ratio.basis)
    if change.low == change.high:
        return f"{change.value * 100:+.1f} %".replace("-", "−")
    value, low, high = (_signed(number) for number in _rounded_together(change, 0.01))
    return f"{value} % [{low}, {high}]"


def format_bytes(num_bytes: float) -> str:
    """A size with three significant digits in binary units: 26 214 400 is `25 MiB`; one below 0 is unknown."""
    if num_bytes < 0:
        return UNKNOWN
    scale, unit = next(((scale, unit) for scale, unit in _BYTE_UNITS if abs(num_bytes) >= scale), (1, "B"))
    number = num_bytes / scale
    return f"{number:.0f} {unit}" if number.is_integer() else f"{_significant(number)} {unit}"


def format_traffic(num_bytes: float) -> str:
    """What is sent or must fit, with three significant digits in powers of ten: 27 562 500 000 is `27.6 GB`."""
    scale, unit = next(((scale, unit) for scale, unit in _TRAFFIC_UNITS if abs(num_bytes) >= scale), (1.0, "B"))
    number = num_bytes / scale
    return f"{number:.0f} {unit}" if float(number).is_integer() else f"{_significant(number)} {unit}"


def format_fraction(fraction: float | None, decimals: int | None = None) -> str:
    """A share in percent with two significant digits, whole from 10 % on: 0.158 is `16 %`, 0.03 is `3 %`.

    Or with so many decimals: 0.0995 with two is `9.95 %`.
    """
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    percent = fraction * 100
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.1:
        return "< 0.1 %" if percent > 0 else "> −0.1 %"
    if decimals is not None:
        return f"{percent:.{decimals}f} %".replace("-", "−")
    return (f"{percent:.0f} %" if abs(percent) >= 10 else f"{percent:.2g} %").replace("-", "−")


def format_quantity(value: float | None, unit: str, decimals: int | None = None) -> str:
    """A number of evidence in its own unit: 0.12 in `of the step` is `12 % of the step`, 2e6 in `ns` is `2.00 ms`.

    Shares have as many decimals as asked for.
    """
    if value is None:
        return UNKNOWN
    if unit == "ns":
        return format_ns(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "fraction" or unit.startswith("of "):
        return f"{format_fraction(value, decimals)} {visible(unit.removeprefix('fraction'))}".rstrip()
    number = f"{value:.0f}" if float(value).is_integer() else _significant(value)
    return f"{number} {visible(unit)}".rstrip()


def format_setting(name: str, value: Any) -> str:
    """A value of `DDPConfig` as a person would type it: `unset`, `4 MiB`, `[1, 4] MiB`, `on`."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    unit = " MiB" if name.startswith("bucket_cap_mb") else ""
    if isinstance(value, (int, float)):
        return f"{value:.6g}{unit}"
    if isinstance(value, (list, tuple)):
        return (
            f"[{', '.join(f'{item:.6g}' if isinstance(item, (int, float)) else visible(item) for item in value)}]{unit}"
        )
    return visible(value)


def visible(name: object) -> str:
    r"""`name` with every control, format and line-breaking character spelled out, so that none of them acts.

    Names come from other people's traces: `\x1b[2J` must be seen, not obeyed.
    """
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _INVISIBLE else character
        for character in str(name)
    )


def visible_code(code: str) -> str:
    """Lines of code: like `visible`, but line breaks stay."""
    return "\n".join(visible(line) for line in code.expandtabs(4).split("\n"))


def escape_markdown(text: object) -> str:
    """`text` as Markdown that renders to exactly these characters: no link, image, formula or HTML in it is live."""
    return _MARKDOWN.sub(r"\\\1", visible(text))


def _time_unit(magnitude: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in _TIME_UNITS if magnitude >= scale), _TIME_UNITS[-1])


def _significant(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _rounded_together(estimate: Estimate, scale: float) -> tuple[str, str, str]:
    """Value, low and high in units of `scale`, with as many digits as the interval leaves standing, four at most.

    Half the interval keeps one digit, or two where they are below 36, so that rounding never moves much of it.
    Source: Particle Data Group, "Review of Particle Physics", introduction, rounding.
    """
    value, low, high = (number / scale for number in (estimate.value, estimate.low, estimate.high))
    half_width = (high - low) / 2
    largest = max(abs(value), abs(low), abs(high))
    known = -math.floor(math.log10(half_width / 3.55)) if math.isfinite(half_width) and half_width > 0 else 3
    decimals = min(known, 3 - math.floor(math.log10(largest)))

    def show(number: float) -> str:
        return f"{round(number, decimals) + 0.0:.{max(0, decimals)}f}"  # adding zero drops the sign of minus zero

    return show(value), show(low), show(high)


def _signed(number: str) -> str:
    return number.replace("-", "−") if number.startswith("-") else f"+{number}"
