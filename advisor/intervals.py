"""Sets of half-open time intervals [start, end) as sorted, disjoint int64 arrays of shape (n, 2), in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Intervals: TypeAlias = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def build_intervals(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Merges arbitrary intervals into a set; empty and negative ones vanish.

    Example: [0, 2), [1, 3), [3, 4), [6, 6) -> [0, 4).
    """
    pairs = np.column_stack([np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)])
    pairs = pairs[pairs[:, 1] > pairs[:, 0]]
    if len(pairs) == 0:
        return EMPTY
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    opens = np.concatenate([[True], pairs[1:, 0] > reach[:-1]])
    closes = np.concatenate([np.flatnonzero(opens)[1:] - 1, [len(pairs) - 1]])
    return np.column_stack([pairs[opens, 0], reach[closes]])


def union(*sets: Intervals) -> Intervals:
    """Every instant that lies in at least one of the sets."""
    stacked = np.concatenate([EMPTY, *sets])
    return build_intervals(stacked[:, 0], stacked[:, 1])


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """Every instant that lies in both sets."""
    if len(left) == 0 or len(right) == 0:
        return EMPTY
    first = np.searchsorted(right[:, 1], left[:, 0], side="right")
    stop = np.searchsorted(right[:, 0], left[:, 1], side="left")
    counts = np.maximum(stop - first, 0)
    mine = np.repeat(np.arange(len(left)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    other = np.repeat(first, counts) + within
    starts = np.maximum(left[mine, 0], right[other, 0])
    ends = np.minimum(left[mine, 1], right[other, 1])
    return build_intervals(starts, ends)


def difference(left: Intervals, right: Intervals) -> Intervals:
    """Every instant of `left` that does not lie in `right`."""
    if len(left) == 0 or len(right) == 0:
        return left
    start, end = left[0, 0], left[-1, 1]
    right = right[np.searchsorted(right[:, 1], start, side="right") : np.searchsorted(right[:, 0], end)]
    if len(right) == 0:
        return left
    low, high = min(start, right[0, 0]), max(end, right[-1, 1])
    gaps = np.column_stack([np.append(low, right[:, 1]), np.append(right[:, 0], high)])
    return intersection(left, build_intervals(gaps[:, 0], gaps[:, 1]))


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The part of the set within [start, end)."""
    if end <= start:
        return EMPTY
    first = np.searchsorted(intervals[:, 1], start, side="right")
    stop = np.searchsorted(intervals[:, 0], end, side="left")
    return np.clip(intervals[first:stop], start, end)


def total(intervals: Intervals) -> int:
    """Length of the set in nanoseconds."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def measure_coverage(intervals: Intervals) -> Callable[[npt.ArrayLike], npt.NDArray[np.float64]]:
    """How much of a set of intervals lies before each of some times, as a function of the times; all in ns."""
    lengths = intervals[:, 1] - intervals[:, 0]
    origin = intervals[:1, 0].sum()  # floats are exact from here on, not from the epoch
    times = (intervals - origin).reshape(-1).astype(np.float64)
    values = np.column_stack([np.cumsum(lengths) - lengths, np.cumsum(lengths)]).reshape(-1).astype(np.float64)

    def covered(at: npt.ArrayLike) -> npt.NDArray[np.float64]:
        since = np.asarray(np.asarray(at) - origin, dtype=np.float64)
        return np.interp(since, times, values) if len(times) else np.zeros_like(since)

    return covered


def measure_exclusive_times(spans: Sequence[tuple[int, int]]) -> list[float]:
    """For each span the integral of 1 / (number of spans under way) from its start to its end, at least 1.

    Example: [0, 10) beside [6, 14): 6 alone and 4 shared by two, 6 + 4 / 2 = 8; and the other one 4 / 2 + 4 = 6.
    """
    starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    cuts = np.unique([starts, ends])
    begun, over = (np.searchsorted(np.sort(times), cuts[:-1], side="right") for times in (starts, ends))
    shared = np.concatenate([[0.0], np.cumsum(np.diff(cuts) / np.maximum(begun - over, 1))])
    own = shared[np.searchsorted(cuts, ends)] - shared[np.searchsorted(cuts, starts)]
    return [float(time_ns) for time_ns in np.maximum(own, 1.0)]
