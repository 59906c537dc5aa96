"""The collectives of every rank, and the same collective seen from all of them.

A collective's own duration on one rank holds waiting for peers. Seen from all ranks it falls apart into
wait = last arrival - own arrival, and transfer = end - last arrival, once the ranks' clocks are aligned on ends.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from advisor.readers.names import (
    COLLECTIVE_OP,
    COLLECTIVE_RECORD,
    DTYPE_BYTES,
    OPERATOR,
    CollectiveKind,
    name_collective_kind,
)
from advisor.schema import Phase
from advisor.timeline import RankTimeline, match_names


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

    @property
    def signature(self) -> tuple[str, str | None, int]:
        """What must agree for two ranks to speak of the same collective."""
        return (self.process_group, self.kind, self.num_elements)


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
    def end_ns(self) -> int:
        """When it ended, as the median of the ranks has it."""
        return round(float(np.median([m.end_ns - o for m, o in zip(self.members, self.offsets_ns, strict=True)])))

    @property
    def transfer_ns(self) -> int:
        """From the last arrival to the end, at least 1."""
        return max(1, self.end_ns - self.last_arrival_ns)

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

    Ranks are aligned to the first one: the n-th collective with the same process group, kind and size, as the longest
    common subsequence has it. Clocks are shifted so that ends agree in the median.
    """
    reference = list(ranks[0])
    members: list[list[Collective]] = [[collective] for collective in reference]
    offsets: list[list[int]] = [[0] for _ in reference]
    for other in ranks[1:]:
        pairs = _align(reference, other)
        offset = round(float(np.median([other[j].end_ns - reference[i].end_ns for i, j in pairs]))) if pairs else 0
        for i, j in pairs:
            members[i].append(other[j])
            offsets[i].append(offset)
    return [
        MatchedCollective(tuple(group), tuple(shifts), complete=len(group) == world_size)
        for group, shifts in zip(members, offsets, strict=True)
    ]


def _align(reference: Sequence[Collective], other: Sequence[Collective]) -> list[tuple[int, int]]:
    left = [collective.signature for collective in reference]
    right = [collective.signature for collective in other]
    if left == right:
        return [(i, i) for i in range(len(left))]
    blocks = SequenceMatcher(a=left, b=right, autojunk=False).get_matching_blocks()
    return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]


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
        queue = queues[kind, elements]
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
    """GPU: its arguments lie on the kernel itself, else on the `record_param_comms` that its launch sits in."""
    events = timeline.trace.events
    records = events[match_names(events, lambda name: name == COLLECTIVE_RECORD)].to_dict("records")
    by_external_id = {record["external_id"]: record for record in records if record["external_id"] >= 0}
    launches = timeline.device[timeline.device["communication"]]
    kernels = events.loc[launches["row"]].to_dict("records")
    found = []
    for launch, kernel in zip(launches.to_dict("records"), kernels, strict=True):
        source = kernel
        if not kernel["collective"]:
            linked = (
                by_external_id.get(kernel["external_id"]) if kernel["external_id"] != kernel["correlation"] else None
            )
            source = linked or _find_enclosing(records, launch) or kernel
        step, phase = _locate(timeline, launch["launch_ns"])
        found.append(
            Collective(
                rank=timeline.trace.rank,
                step=step,
                phase=phase,
                process_group=source["process_group"],
                kind=name_collective_kind(source["collective"] or kernel["name"]),
                dtype=source["dtype"],
                num_elements=source["num_elements"],
                num_bytes=count_bytes(source["num_elements"], source["dtype"]),
                launch_ns=launch["launch_ns"],
                start_ns=kernel["start_ns"],
                end_ns=kernel["end_ns"],
            )
        )
    return found


def _find_enclosing(records: list[dict[Hashable, Any]], launch: dict[Hashable, Any]) -> dict[Hashable, Any] | None:
    at, thread = launch["launch_ns"], launch["launch_thread"]
    around = [r for r in records if r["thread"] == thread and r["start_ns"] <= at < r["end_ns"]]
    return around[-1] if around else None


def count_bytes(num_elements: int, dtype: str) -> int:
    """Bytes of a message, -1 where its size or dtype is unknown."""
    return num_elements * DTYPE_BYTES[dtype] if num_elements >= 0 and dtype in DTYPE_BYTES else -1


def count_ring_bytes(num_bytes: int, world_size: int) -> float:
    """Bytes each rank sends in a ring all-reduce, 2 · (P - 1) / P · bytes (Patarasuk and Yuan, 2009)."""
    return 2 * (world_size - 1) / world_size * num_bytes if world_size else math.nan
