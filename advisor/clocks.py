"""One clock against another, from moments that both of them timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEWEST_FOR_DRIFT = 12
"""Moments from which on a drift is looked for."""
DRIFT_PAYS = 0.5
"""A drift is believed where it brings the residual below this share of what a mere offset leaves."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clock:
    """A clock that reads `offset_ns` more than the reference at `origin_ns`, its own time, and gains `drift` a ns."""

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0

    def measure_offset(self, own_ns: int) -> int:
        """How much more than the reference it reads at one of its own times."""
        return self.offset_ns + round(self.drift * (own_ns - self.origin_ns))


def fit_clock(reference_ns: Sequence[int], own_ns: Sequence[int]) -> Clock:
    """The clock that explains best what two clocks read at the same moments; robust to single delays.

    The offset is the median difference. A drift is a resistant line through it: the medians of the first and of the
    last third of the moments.

    Args:
        reference_ns: What the reference read, at least one moment.
        own_ns: What the clock read at the same moments.

    **Source**: Tukey, Exploratory Data Analysis (1977), resistant line.
    """
    own = np.array(own_ns, dtype=np.int64)
    difference = own - np.array(reference_ns, dtype=np.int64)
    offset = find_median(difference)
    if len(own) < FEWEST_FOR_DRIFT:
        return Clock(offset)
    order = np.argsort(own, kind="stable")
    third = len(own) // 3
    first, last = order[:third], order[-third:]
    elapsed = find_median(own[last]) - find_median(own[first])
    drift = (find_median(difference[last]) - find_median(difference[first])) / max(1, elapsed)
    origin = find_median(own)
    level = difference - np.rint(drift * (own - origin)).astype(np.int64)
    drifting = Clock(find_median(level), drift, origin)
    pays = find_spread(level) < DRIFT_PAYS * find_spread(difference)
    return drifting if pays else Clock(offset)


def find_median(values: Times) -> int:
    """The median of times that may be too large for floats."""
    return int(values[0]) + round(float(np.median(values - values[0])))


def find_spread(values: Times) -> int:
    """The median distance from the median; 0 without values."""
    return find_median(np.abs(values - find_median(values))) if len(values) else 0
