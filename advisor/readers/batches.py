"""In which order ranks are read, and which of them together: those of one archive go through it in few passes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

from advisor.readers.archives import Member, OpenArchives
from advisor.readers.run_files import RankFiles

MOST_PASSES = 16
"""Batches that the ranks of one archive are cut into where several workers read them: enough to keep sixteen busy."""


def split_ranks(ranks: Sequence[RankFiles], most_passes: int = MOST_PASSES) -> list[tuple[RankFiles, ...]]:
    """Puts the ranks that lie in one archive into batches, in the order in which they lie; any other rank is one alone.

    Example: ranks 0, 1, 2, 3 that lie as 2, 0, 3, 1, with two passes: (2, 0) and (3, 1).

    Args:
        ranks: By rank.
        most_passes: The most batches of an archive. Each is one pass through it, up to the last rank of the batch,
            where a rank is one file or its files lie side by side.
    """
    groups: dict[object, list[RankFiles]] = defaultdict(list)
    for files in ranks:
        location = files.sources[0].location
        groups[location.archive if isinstance(location, Member) else files.rank].append(files)
    batches = []
    for group in groups.values():
        size = math.ceil(len(group) / most_passes)
        group.sort(key=_find_position)
        batches += [tuple(group[first : first + size]) for first in range(0, len(group), size)]
    return batches


def order_ranks(ranks: Sequence[RankFiles]) -> tuple[RankFiles, ...]:
    """The ranks in the order in which one process reads them."""
    return tuple(files for batch in split_ranks(ranks, most_passes=1) for files in batch)


def open_archives(ranks: Sequence[RankFiles]) -> AbstractContextManager[OpenArchives]:
    """What the files of these ranks are opened with."""
    return closing(OpenArchives(source.location for files in ranks for source in files.sources))


def _find_position(files: RankFiles) -> int:
    location = files.sources[0].location
    return location.position if isinstance(location, Member) else 0
