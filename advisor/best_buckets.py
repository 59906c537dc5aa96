"""The best buckets: exactly for one first-in first-out channel, by search with replay for everything else.

Buckets are written as their ends: (2, 5, 6) are the first two gradients in ready order, the next three and the last.
With c(b) the time of a collective of b bytes, r_j the time at which the j-th gradient is ready, and S_j the bytes up to
it, the buckets of the first j gradients are through at

    F(0) = 0,  F(j) = min over i < j of max(F(i), r_j) + c(S_j - S_i)

This is exact for any cost that grows with the bytes: a prefix that is through earlier never hurts what follows.

    bytes 2, 1, 1 ready at 0, 2, 5, c(b) = 3 + b: (1, 3) sends 0-5 and 5-10, which is the best; (3,) ends at 12

**Source**: the recurrence is Bellman's for a chain; Shi, Chu and Li, MG-WFBP (INFOCOM 2019) pose the problem and give a
greedy merge, which ends at 12 in the example.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from advisor.bucketing import MIB, assign_rebuilt, find_distinct_caps, round_cap_mb

Floats = npt.NDArray[np.float64]
Ends = tuple[int, ...]
"""Per bucket the number of gradients up to its end, so that the last entry is the number of all."""
Cost = Callable[[Floats], Floats]
"""Bytes of collectives to their times, any unit; never falling."""

MOST_STARTS = 500
NUM_CLIMBS = 4
MOST_EVALUATIONS = 1500
"""Bounds of the search: starting points, how many of them are improved, and settings that are judged in all."""


class BestBuckets(NamedTuple):
    """Buckets and when the last of them is through, in the unit of the ready times."""

    ends: Ends
    finish: float


def find_best_buckets(ready: Sequence[float], num_bytes: Sequence[int], cost: Cost) -> BestBuckets:
    """Finds the buckets whose last collective ends earliest, in O(n²), and leaves out every border that nothing needs.

    Args:
        ready: When each gradient is ready, in ready order.
        num_bytes: Its bytes; all of one dtype, or they could not share a bucket.
        cost: The time of collectives of the given bytes.
    """
    ready_by = np.maximum.accumulate(np.asarray(ready, dtype=np.float64))
    sent = np.concatenate([[0.0], np.cumsum(num_bytes, dtype=np.float64)])
    num = len(num_bytes)
    finish = np.zeros(num + 1)
    previous = np.zeros(num + 1, dtype=np.int64)
    for end in range(1, num + 1):
        if num_bytes[end - 1] == 0 and end < num:
            finish[end] = np.inf  # no limit closes a bucket behind a gradient that adds nothing
            continue
        through = np.maximum(finish[:end], ready_by[end - 1]) + cost(sent[end] - sent[:end])
        previous[end] = np.argmin(through)
        finish[end] = through[previous[end]]
    ends: Ends = ()
    end = num
    while end > 0:
        ends, end = (end, *ends), int(previous[end])
    for border in ends[:-1]:
        without = tuple(other for other in ends if other != border)
        if _find_finish(without, ready_by, sent, cost) <= finish[num]:
            ends = without
    return BestBuckets(ends, float(finish[num]))


def _find_finish(ends: Ends, ready_by: Floats, sent: Floats, cost: Cost) -> float:
    borders = np.array((0, *ends))
    now = 0.0
    for ready, takes in zip(ready_by[borders[1:] - 1], cost(np.diff(sent[borders])), strict=True):
        now = max(now, ready) + takes
    return float(now)


def list_caps_mb(num_bytes: Sequence[int], ends: Ends) -> tuple[float, ...]:
    """The `bucket_cap_mb_list` with which torch forms exactly these buckets, in MiB, as round as they may be.

    A bucket closes at its last gradient when its limit lies above the bytes before that gradient and not above those
    with it. The last bucket needs no upper end.

    Args:
        num_bytes: Bytes of each gradient in ready order, all of one dtype.
        ends: The buckets.
    """
    caps = []
    for start, end in pairwise((0, *ends)):
        before = sum(num_bytes[start : end - 1])
        size = before + num_bytes[end - 1]
        highest = size if end < len(num_bytes) else math.ceil(size / MIB) * MIB
        caps.append(round_cap_mb(before + 1, max(highest, before + 1)))
    return tuple(caps)


def search_buckets(
    ready: Sequence[float],
    num_bytes: Sequence[int],
    *,
    costs: Sequence[Cost],
    evaluate: Callable[[Ends], float],
) -> BestBuckets:
    """Searches with `evaluate` as the judge, for collectives that share a link or slow computation down.

    The best few of the exact answers for one channel under several costs and of every distinct uniform cap are improved
    by adding, removing and moving one border at a time.

    Args:
        ready: When each gradient is ready, in ready order.
        num_bytes: Its bytes; all of one dtype.
        costs: Guesses of what a collective effectively costs, in the unit of `ready`.
        evaluate: What to make small: the time of the step with these buckets, in the unit of `ready`.

    Returns:
        The best buckets found, and their `evaluate`.
    """
    known: dict[Ends, float] = {}

    def judge(ends: Ends) -> tuple[float, int]:
        if ends not in known:
            known[ends] = evaluate(ends)
        return known[ends], len(ends)

    starts = [find_best_buckets(ready, num_bytes, cost).ends for cost in costs]
    uniform = list_uniform_buckets(num_bytes)
    starts += uniform[:: math.ceil(len(uniform) / MOST_STARTS)]
    found = []
    for best in sorted(dict.fromkeys(starts), key=judge)[:NUM_CLIMBS]:
        before: Ends = ()
        while best != before:
            before = best
            for place in range(len(num_bytes) - 1, 0, -1):
                if num_bytes[place - 1] > 0 and len(known) < MOST_EVALUATIONS:
                    best = min((best, *_change_border(best, place)), key=judge)
        found.append(best)
    best = min(found, key=judge)
    return BestBuckets(best, known[best])


def list_uniform_buckets(num_bytes: Sequence[int]) -> list[Ends]:
    """The buckets of every distinct uniform cap; gradients of one dtype in ready order."""
    one_dtype, order = [""] * len(num_bytes), range(len(num_bytes))
    return [
        tuple(bucket[-1] + 1 for bucket in assign_rebuilt(num_bytes, one_dtype, (lowest,), order))
        for lowest, _ in find_distinct_caps(num_bytes, one_dtype)
    ]


def _change_border(ends: Ends, place: int) -> Iterator[Ends]:
    """The buckets with the border at `place` gradients added or removed, and with either neighbour moved there."""
    at = bisect_left(ends, place)
    if ends[at] == place:
        yield ends[:at] + ends[at + 1 :]
        return
    yield (*ends[:at], place, *ends[at:])
    if at > 0:
        yield (*ends[: at - 1], place, *ends[at:])
    if at + 1 < len(ends):
        yield (*ends[:at], place, *ends[at + 1 :])
