"""How a job trains on several ranks: with DistributedDataParallel, or with something else that it has no say in."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.collectives import Collective
from advisor.readers.names import AUTOGRAD_NODE, COPY_BACK, DDP_FORWARD, OTHER_PARALLELISMS
from advisor.schema import Parallelism, marks


def name_parallelism(names: frozenset[str], collectives: Sequence[Collective]) -> Parallelism:
    """The kind of parallelism that one rank's events speak of.

    DDP is told by its forward, its copies out of the buckets or our wrapper's marks. Training that reduces something
    without any known wrapper is hand-written.

    Args:
        names: The distinct names of the rank's events.
        collectives: What the rank exchanged.
    """
    if names & DDP_FORWARD or COPY_BACK in names or any(marks.BUCKET_LAUNCH in name for name in names):
        return "ddp"
    for pattern, parallelism in OTHER_PARALLELISMS:
        if any(pattern.search(name) for name in names):
            return parallelism
    reduces = any(collective.kind in ("all_reduce", "reduce_scatter", "reduce") for collective in collectives)
    trains = any(name.startswith(AUTOGRAD_NODE) for name in names)
    return "hand_written" if reduces and trains else "unknown"
