"""From caps to buckets: torch's rule, to the letter, on sizes alone.

A bucket closes once its running bytes reach its limit, so it may overshoot; a gradient is never split; gradients of
different dtype or device never share a bucket.

    four gradients of 3, 3, 1 and 5 bytes, limits (4, 6): [3, 3] closes at 6 >= 4, then [1, 5] closes at 6 >= 6

**Source**: `compute_bucket_assignment_by_size` (torch/csrc/distributed/c10d/reducer.cpp) and `_BucketCapacityConfig`
(torch/nn/parallel/distributed.py), torch 2.13.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TypeAlias

from advisor.errors import UsageError

MIB = 1024 * 1024
DEFAULT_FIRST_BUCKET_MB = 1.0
DEFAULT_BUCKET_CAP_MB = 25.0
UNLIMITED = 2**63 - 1


def bucket_limits(
    bucket_cap_mb: float | None, bucket_cap_mb_list: Sequence[float] | None, *, caps_first_bucket: bool = True
) -> tuple[int, ...]:
    """Turns DDP's two settings into the size limits of the buckets, in launch order; the last one repeats.

    Unset means a small first bucket, so that communication starts early; an explicit cap holds for the first bucket
    too, even when it is the default's 25. Before torch 2.4 the first bucket was always small.

    Args:
        bucket_cap_mb: The cap in MiB, or None for unset.
        bucket_cap_mb_list: One cap a bucket in MiB; wins over `bucket_cap_mb`.
        caps_first_bucket: False is the rule before torch 2.4.

    Returns:
        The limits in bytes.

    Raises:
        UsageError: A cap is negative or no number.
    """
    if bucket_cap_mb_list:
        caps = tuple(bucket_cap_mb_list)
    elif bucket_cap_mb is not None:
        caps = (bucket_cap_mb,) if caps_first_bucket else (DEFAULT_FIRST_BUCKET_MB, bucket_cap_mb)
    else:
        caps = (DEFAULT_FIRST_BUCKET_MB, DEFAULT_BUCKET_CAP_MB)
    if not all(cap >= 0 for cap in caps):
        raise UsageError(f"A bucket cap of {min(caps)} MiB cannot be meant: give a size of 0 MiB or more.")
    return tuple(int(cap * MIB) for cap in caps)


def assign_buckets(
    num_bytes: Sequence[int], keys: Sequence[Hashable], limits: Sequence[int], *, order: Sequence[int] | None = None
) -> list[list[int]]:
    """Fills buckets greedily; each key (dtype and device) has its own open bucket and its own place in `limits`.

    Args:
        num_bytes: Bytes of each gradient, by index.
        keys: What must not be mixed in one bucket, by index.
        limits: Bytes at which the first, second, … bucket of a key closes; the last one repeats.
        order: The indices in the order to fill in; None means 0, 1, 2, ….

    Returns:
        Buckets of indices: with `order` as they close and then the unfinished ones, without it by smallest index.
    """
    closed: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    open_bytes: dict[Hashable, int] = {}
    num_closed: dict[Hashable, int] = {}
    for index in range(len(num_bytes)) if order is None else order:
        key = keys[index]
        open_buckets.setdefault(key, []).append(index)
        open_bytes[key] = open_bytes.get(key, 0) + num_bytes[index]
        place = num_closed.setdefault(key, 0)
        if open_bytes[key] >= limits[min(place, len(limits) - 1)]:
            closed.append(open_buckets[key])
            open_buckets[key], open_bytes[key], num_closed[key] = [], 0, place + 1
    # torch walks a std::unordered_map here, which yields the key that was met last first.
    buckets = closed + [bucket for bucket in reversed(open_buckets.values()) if bucket]
    return sorted(buckets, key=min) if order is None else buckets


def assign_first(num_bytes: Sequence[int], keys: Sequence[Hashable], limits: Sequence[int]) -> list[list[int]]:
    """Assigns before any backward ran: registration order, and the list of buckets reversed.

    Backward produces gradients roughly from the last layer to the first, so the last bucket is launched first. Its
    inside stays in registration order, and the limits count from the first layer.
    """
    return assign_buckets(num_bytes, keys, limits)[::-1]


def assign_rebuilt(
    num_bytes: Sequence[int], keys: Sequence[Hashable], limits: Sequence[int], ready_order: Sequence[int]
) -> list[list[int]]:
    """Assigns again in the order in which gradients were seen to become ready, so that buckets fill one by one."""
    return assign_buckets(num_bytes, keys, limits, order=ready_order)


def first_limits(limits: Sequence[int], *, cap_list_given: bool, will_rebuild: bool) -> tuple[int, ...]:
    """Limits of the first assignment: none while the order is unknown and a rebuild will follow.

    The registration order may differ from the execution order, and then an early bucket could wait for the end of
    backward; so torch sends step 0 as one bucket a dtype. A cap list is obeyed from the start.
    """
    return tuple(limits) if cap_list_given or not will_rebuild else (UNLIMITED,)


def find_distinct_caps(
    num_bytes: Sequence[int], keys: Sequence[Hashable], *, caps_first_bucket: bool = True
) -> list[tuple[int, int]]:
    """Every uniform cap that gives different buckets, as ranges of bytes (lowest, highest) with the same buckets.

    A bucket closes when its running bytes reach the cap, so the buckets stay the same up to the smallest closed one:
    start at one byte, bucket, raise the cap to the smallest closed bucket plus one, repeat.

    Example: gradients of 4, 4, 8 bytes have the caps 1-4 (4, 4, 8), 5-8 (8, 8) and 9-16 (16).

    Once nothing closes any more only the order of several dtypes can still change; that last range is given up to twice
    its lowest cap.

    Args:
        num_bytes: Bytes of each gradient, in ready order.
        keys: What must not be mixed in one bucket.
        caps_first_bucket: False is the rule before torch 2.4.
    """
    first = () if caps_first_bucket else (int(DEFAULT_FIRST_BUCKET_MB * MIB),)
    rows = [_SizesOfKey(num_bytes, [i for i, own in enumerate(keys) if own == key]) for key in dict.fromkeys(keys)]
    ranges: list[tuple[int, int]] = []
    cap, before = 1, None
    while True:
        buckets = _order_buckets([row.fill((*first, cap)) for row in rows])
        closed = [size for _, _, size in buckets if size >= cap]
        if not closed:
            return ranges if buckets == before or not buckets else [*ranges, (cap, 2 * cap)]
        # A last bucket that was closed may stay open under the larger cap with the same gradients in it.
        ranges = [*ranges[:-1], (ranges[-1][0], min(closed))] if buckets == before else [*ranges, (cap, min(closed))]
        cap, before = min(closed) + 1, buckets


_Bucket: TypeAlias = tuple[int, int, int]
"""The indices of its first and last gradient, and its bytes."""


class _SizesOfKey:
    """The gradients of one key, which fill buckets of their own: in running sums the end of one is looked up."""

    def __init__(self, num_bytes: Sequence[int], indices: Sequence[int]) -> None:
        self.indices = indices
        self.sums = [0, *accumulate(num_bytes[i] for i in indices)]

    def fill(self, limits: Sequence[int]) -> tuple[list[_Bucket], list[_Bucket]]:
        """The buckets that `assign_rebuilt` closes, and the one that it leaves open, if any."""
        closed: list[_Bucket] = []
        start, num = 0, len(self.indices)
        while start < num:
            limit = limits[min(len(closed), len(limits) - 1)]
            end = bisect_left(self.sums, self.sums[start] + limit, start + 1)
            if end > num:
                return closed, [self._describe(start, num)]
            closed.append(self._describe(start, end))
            start = end
        return closed, []

    def _describe(self, start: int, end: int) -> _Bucket:
        return self.indices[start], self.indices[end - 1], self.sums[end] - self.sums[start]


def _order_buckets(filled: Sequence[tuple[list[_Bucket], list[_Bucket]]]) -> list[_Bucket]:
    """All buckets in launch order, from those of each key in the order in which keys are met."""
    if len(filled) == 1:
        return filled[0][0] + filled[0][1]
    closed = sorted((bucket for of_key, _ in filled for bucket in of_key), key=itemgetter(1))
    return closed + [bucket for _, left in reversed(filled) for bucket in left]


def round_cap_mb(lowest: int, highest: int) -> float:
    """The roundest cap in MiB within a range of bytes: as few decimals as possible.

    Example: 5 000 000 to 9 000 000 bytes (4.77 to 8.58 MiB) -> 8.0; the largest of the roundest.
    """
    for decimals in range(7):
        step = 10.0**-decimals
        candidate = round(math.floor(highest / MIB / step) * step, decimals)
        if candidate > 0 and lowest <= int(candidate * MIB) <= highest:
            return candidate
    return highest / MIB
