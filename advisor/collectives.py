"""The collectives of every rank, and the same collective seen from all of them.

A collective's own duration on one rank holds waiting for peers; the rank that arrives last does not wait. So the
transfer is the shortest duration over the ranks, whatever their clocks say: even processes on one host were seen to
write times that are 12 ms apart. Who arrived when is known once the clocks are aligned on ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from advisor.readers.names import (
    ANNOTATION,
    COLLECTIVE_OP,
    COLLECTIVE_RECORD,
    DTYPE_BYTES,
    NCCL_SPAN,
    OPERATOR,
    CollectiveKind,
    name_collective_kind,
)
from advisor.schema import Phase
from advisor.timeline import RankTimeline, match_names

Row = dict[Hashable, Any]
"""One event, by column."""
DEEPEST_RECORD = 4
"""How many records of collectives may enclose each other, as those of a coalesced one do."""


@dataclass(frozen=True)
class Collective:
    """One collective on one rank, on that rank's clock; -1 where a number is unknown."""

    rank: int
    step: int | None
    phase: Phase | None
    """Where the host launched it."""
    process_group: str
    kind: CollectiveKind | None
    dtype: str
    num_elements: int
    num_bytes: int
    launch_ns: int
    start_ns: int
    end_ns: int
    sequence: int = -1
    """NCCL's own count within the process group."""

    @property
    def signature(self) -> Hashable:
        """What must agree for two ranks to speak of the same collective."""
        return (self.step, self.process_group, self.kind, self.num_elements, self.sequence)


@dataclass(frozen=True)
class MatchedCollective:
    """One collective on the ranks that recorded it; what it tells is on the reference rank's clock."""

    members: tuple[Collective, ...]
    """By rank, each on its own clock."""
    offsets_ns: tuple[int, ...]
    """By member: its clock minus the reference clock."""
    complete: bool
    """Whether every rank of the process group is here, so that waiting can be told from transfer."""

    @property
    def last_arrival_ns(self) -> int:
        """When the last rank started it."""
        return max(m.start_ns - offset for m, offset in zip(self.members, self.offsets_ns, strict=True))

    @property
    def transfer_ns(self) -> int:
        """What it took without waiting: the shortest duration over the ranks, at least 1."""
        return max(1, min(member.end_ns - member.start_ns for member in self.members))

    def arrival_on_clock_of(self, member: Collective) -> int:
        """The last arrival on a member's own clock, within that member's span."""
        offset = self.offsets_ns[self.members.index(member)]
        return min(max(self.last_arrival_ns + offset, member.start_ns), member.end_ns)


def find_collectives(timeline: RankTimeline) -> list[Collective]:
    """The collectives of one rank, in launch order."""
    found = _from_kernels(timeline) if timeline.trace.device_type == "cuda" else _from_gloo_spans(timeline)
    return sorted(found, key=lambda c: (c.launch_ns if c.launch_ns >= 0 else c.start_ns, c.start_ns))


def match_collectives(ranks: Sequence[Sequence[Collective]], world_size: int) -> list[MatchedCollective]:
    """Finds the same collective on every rank, tolerant of missing and extra members.

    Ranks are aligned to the first one, by the longest common order of what step, process group, kind, size and (where
    recorded) NCCL's sequence number say. Clocks are shifted so that ends agree in the median.
    """
    reference = list(ranks[0])
    members: list[list[Collective]] = [[collective] for collective in reference]
    offsets: list[list[int]] = [[0] for _ in reference]
    for other in ranks[1:]:
        pairs = _align(reference, other)
        offset = _median([other[j].end_ns - reference[i].end_ns for i, j in pairs]) if pairs else 0
        for i, j in pairs:
            members[i].append(other[j])
            offsets[i].append(offset)
    return [
        MatchedCollective(tuple(group), tuple(shifts), complete=len(group) == world_size)
        for group, shifts in zip(members, offsets, strict=True)
    ]


def _align(reference: Sequence[Collective], other: Sequence[Collective]) -> list[tuple[int, int]]:
    """Index pairs of the same collective.

    A row of collectives that are all alike can be aligned in several ways: the ends say whether its first or its last
    ones are missing.
    """
    left = [collective.signature for collective in reference]
    right = [collective.signature for collective in other]
    if left == right:
        return [(i, i) for i in range(len(left))]
    early = find_common_order(left, right)
    mirrored = find_common_order(left[::-1], right[::-1])
    late = [(len(left) - 1 - i, len(right) - 1 - j) for i, j in reversed(mirrored)]
    return min(early, late, key=lambda pairs: _spread([other[j].end_ns - reference[i].end_ns for i, j in pairs]))


def find_common_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, the earliest where there are several.

    Row i, an integer, has bit j clear where the first i of `left` have one more in common with the first j + 1 of
    `right` than with the first j.

    Example: "abcabc" and "abcbc" share "abcbc": [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4)].

    **Source**: Hyyrö, Bit-parallel LCS-length computation revisited (2004).
    """
    places: dict[Hashable, int] = defaultdict(int)
    for j, item in enumerate(right):
        places[item] |= 1 << j
    everywhere = (1 << len(right)) - 1
    rows = [everywhere]
    for item in left:
        shared = rows[-1] & places[item]
        rows.append(((rows[-1] + shared) | (rows[-1] - shared)) & everywhere)
    pairs = []
    i, j = len(left), len(right)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def _median(values: Sequence[int]) -> int:
    """The median of times that may be too large for floats."""
    return values[0] + round(float(np.median([value - values[0] for value in values])))


def _spread(values: Sequence[int]) -> int:
    """The median distance from the median."""
    middle = _median(values) if values else 0
    return _median([abs(value - middle) for value in values]) if values else 0


def _locate(timeline: RankTimeline, host_ns: int) -> tuple[int | None, Phase | None]:
    """The step and the host phase in which an instant lies."""
    for step in timeline.steps:
        if step.host_start_ns <= host_ns < step.host_end_ns:
            span = next((s for s in step.spans if s.host_start_ns <= host_ns < s.host_end_ns), None)
            return step.number, span.phase if span else None
    return None, None


def _from_gloo_spans(timeline: RankTimeline) -> list[Collective]:
    """Gloo: launched by a c10d operator on the caller's thread, executed first in first out as a worker's span."""
    events = timeline.trace.events
    operators = events[match_names(events, COLLECTIVE_OP.match) & events["category"].isin(OPERATOR).to_numpy()]
    queues: dict[tuple[CollectiveKind | None, int], deque[int]] = defaultdict(deque)
    for operator in operators.to_dict("records"):
        queues[name_collective_kind(operator["name"]), operator["num_elements"]].append(operator["start_ns"])
    found = []
    for span in events[timeline.communication_rows].to_dict("records"):
        kind, elements = name_collective_kind(span["name"]), span["num_elements"]
        queue = queues[kind, elements] or queues[kind, -1]
        launch = queue.popleft() if queue and queue[0] <= span["start_ns"] else -1
        step, phase = _locate(timeline, launch if launch >= 0 else span["start_ns"])
        found.append(
            Collective(
                rank=timeline.trace.rank,
                step=step,
                phase=phase,
                process_group=span["process_group"],
                kind=kind,
                dtype=span["dtype"],
                num_elements=elements,
                num_bytes=count_bytes(elements, span["dtype"]),
                launch_ns=launch,
                start_ns=span["start_ns"],
                end_ns=span["end_ns"],
            )
        )
    return found


def _from_kernels(timeline: RankTimeline) -> list[Collective]:
    """GPU: what a kernel does stands on itself, on its `record_param_comms`, or on the annotation around its launch."""
    events = timeline.trace.events
    records = events[match_names(events, lambda name: name == COLLECTIVE_RECORD) & (events["collective"] != "")]
    annotations = events[match_names(events, NCCL_SPAN.match) & events["category"].isin(OPERATOR | ANNOTATION)]
    record_of = {row["external_id"]: row for row in records.to_dict("records") if row["external_id"] >= 0}
    records_on, annotations_on = _group_by_thread(records), _group_by_thread(annotations)

    def find_source(kernel: Row, launch: Row) -> Row:
        if kernel["collective"]:
            return kernel
        if kernel["external_id"] in record_of and kernel["external_id"] != kernel["correlation"]:
            return record_of[kernel["external_id"]]
        thread, at = launch["launch_thread"], launch["launch_ns"]
        return _find_enclosing(records_on[thread], at) or _find_enclosing(annotations_on[thread], at) or kernel

    launches = timeline.device[timeline.device["communication"]]
    kernels = events.loc[launches["row"]].to_dict("records")
    found = []
    for launch, kernel in zip(launches.to_dict("records"), kernels, strict=True):
        source = find_source(kernel, launch)
        step, phase = _locate(timeline, launch["launch_ns"])
        found.append(
            Collective(
                rank=timeline.trace.rank,
                step=step,
                phase=phase,
                process_group=source["process_group"],
                kind=name_collective_kind(source["collective"] or source["name"]),
                dtype=source["dtype"],
                num_elements=source["num_elements"],
                num_bytes=count_bytes(source["num_elements"], source["dtype"]),
                launch_ns=launch["launch_ns"],
                start_ns=kernel["start_ns"],
                end_ns=kernel["end_ns"],
                sequence=source["sequence"],
            )
        )
    return found


def _group_by_thread(rows: pd.DataFrame) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows.to_dict("records"):
        groups[row["thread"]].append(row)
    return groups


def _find_enclosing(rows: Sequence[Row], at: int) -> Row | None:
    """The innermost of the rows (sorted by start) that holds an instant."""
    last = bisect_right(rows, at, key=lambda row: row["start_ns"])
    return next((row for row in reversed(rows[max(0, last - DEEPEST_RECORD) : last]) if at < row["end_ns"]), None)


def count_bytes(num_elements: int, dtype: str) -> int:
    """Bytes of a message, -1 where its size or dtype is unknown."""
    return num_elements * DTYPE_BYTES[dtype] if num_elements >= 0 and dtype in DTYPE_BYTES else -1


def count_ring_bytes(num_bytes: int, world_size: int) -> float:
    """Bytes each rank sends in a ring all-reduce, 2 · (P - 1) / P · bytes (Patarasuk and Yuan, 2009)."""
    return 2 * (world_size - 1) / world_size * num_bytes if world_size else math.nan
