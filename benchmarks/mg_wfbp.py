"""MG-WFBP's merge rule: the published heuristic to compare our exact buckets with.

**Source**: Shi, Chu and Li, MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms
(INFOCOM 2019), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence


def merge_gradients(ready: Sequence[float], num_bytes: Sequence[int], *, alpha: float, beta: float) -> tuple[int, ...]:
    """Merges gradients into the next one wherever waiting for it takes less than the latency that merging saves.

    Args:
        ready: When each gradient is ready, in ready order.
        num_bytes: Their bytes.
        alpha: The latency of a collective, in the unit of `ready`.
        beta: Its time per byte.

    Returns:
        Per bucket the number of gradients up to its end.
    """
    ends = []
    free = 0.0
    merged_bytes = 0
    for index, own_bytes in enumerate(num_bytes):
        start = max(free, ready[index])
        merged_bytes += own_bytes
        is_last = index + 1 == len(num_bytes)
        if is_last or ready[index + 1] - start >= alpha:
            ends.append(index + 1)
            free = start + alpha + beta * merged_bytes
            merged_bytes = 0
    return tuple(ends)
