"""Bus bandwidth: what the slowest link carries, comparable between collectives and world sizes.

**Source**: nccl-tests, doc/PERFORMANCE.md: busbw = algbw · 2 (P - 1) / P for all-reduce, algbw · (P - 1) / P for
all-gather, reduce-scatter and all-to-all, algbw for broadcast and reduce, with algbw = S / t and S the whole array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

LARGE_BYTES = 2**18
"""A bandwidth needs messages at least this large: smaller ones are all latency."""
BUS_SHARES: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: ranks - 1,  # of each rank's input, which is 1 / P of the whole array
    "broadcast": lambda ranks: 1,
    "reduce": lambda ranks: 1,
}


def find_bus_share(kind: str, world_size: int) -> float | None:
    """Bytes over the slowest link for each byte of a rank's input; None where nccl-tests defines none.

    Example: an all-reduce of 1 GB on 4 ranks in 1 s has algbw 1 GB/s and busbw 1.5 GB/s.
    """
    share = BUS_SHARES.get(kind)
    return share(world_size) if share is not None and world_size > 1 else None
