"""The collectives of every rank, and the same collective seen from all of them.

A collective's own duration on one rank holds waiting for peers. Seen from all ranks it falls apart into
wait = last arrival - own arrival, and transfer = end - last arrival, once the ranks' clocks are aligned on ends.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np
import pandas as pd

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
    """One collective on the ranks that recorded it; times on the reference rank's clock."""

    members: tuple[Collective, ...]
    """By rank, each shifted to the reference clock."""
    complete: bool
    """Whether every rank of the process group is here, so that waiting can be told from transfer."""

    @property
    def last_arrival_ns(self) -> int:
        """When the last rank started it."""
        return max(member.start_ns for member in self.members)

    @property
    def transfer_ns(self) -> int:
        """From the last arrival to the end, at least 1."""
        ends = [member.end_ns for member in self.members]
        return max(1, round(float(np.median(ends))) - self.last_arrival_ns)

    def wait_ns(self, member: Collective) -> int:
        """How long one member waited for the last to arrive."""
        return min(self.last_arrival_ns, member.end_ns) - member.start_ns


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
    groups: list[list[Collective]] = [[collective] for collective in reference]
    for other in ranks[1:]:
        pairs = _align(reference, other)
        offset = round(float(np.median([other[j].end_ns - reference[i].end_ns for i, j in pairs]))) if pairs else 0
        for i, j in pairs:
            shifted = replace(other[j], start_ns=other[j].start_ns - offset, end_ns=other[j].end_ns - offset)
            groups[i].append(shifted)
    return [MatchedCollective(tuple(group), complete=len(group) == world_size) for group in groups]


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
    """gloo: the launch is a c10d operator on the caller's thread, the execution a span on a worker thread, first in first out."""
    events = timeline.trace.events
    operators = events[match_names(events, COLLECTIVE_OP.match) & events["category"].isin(OPERATOR).to_numpy()]
    queues: dict[tuple[CollectiveKind | None, int], deque[int]] = defaultdict(deque)
    for operator in operators.itertuples():
        queues[name_collective_kind(str(operator.name)), int(operator.num_elements)].append(int(operator.start_ns))
    found = []
    for span in events[timeline.communication_rows].itertuples():
        kind, elements = name_collective_kind(str(span.name)), int(span.num_elements)
        queue = queues[kind, elements]
        launch = queue.popleft() if queue and queue[0] <= span.start_ns else -1
        step, phase = _locate(timeline, launch if launch >= 0 else int(span.start_ns))
        found.append(
            Collective(
                rank=timeline.trace.rank,
                step=step,
                phase=phase,
                process_group=str(span.process_group),
                kind=kind,
                dtype=str(span.dtype),
                num_elements=elements,
                num_bytes=count_bytes(elements, str(span.dtype)),
                launch_ns=launch,
                start_ns=int(span.start_ns),
                end_ns=int(span.end_ns),
            )
        )
    return found


def _from_kernels(timeline: RankTimeline) -> list[Collective]:
    """GPU: what a kernel carries lies on the kernel itself, else on the `record_param_comms` that its launch sits in."""
    events = timeline.trace.events
    records = events[match_names(events, lambda name: name == COLLECTIVE_RECORD)]
    by_external_id = records[records["external_id"] >= 0].drop_duplicates("external_id").set_index("external_id")
    found = []
    for launch in timeline.device[timeline.device["communication"]].itertuples():
        kernel = events.loc[launch.row]
        source = kernel
        if not kernel["collective"]:
            if kernel["external_id"] in by_external_id.index and kernel["external_id"] != kernel["correlation"]:
                source = by_external_id.loc[kernel["external_id"]]
            else:
                source = _find_enclosing(records, launch, kernel)
        step, phase = _locate(timeline, int(launch.launch_ns))
        elements, dtype = int(source["num_elements"]), str(source["dtype"])
        found.append(
            Collective(
                rank=timeline.trace.rank,
                step=step,
                phase=phase,
                process_group=str(source["process_group"]),
                kind=name_collective_kind(str(source["collective"]) or str(kernel["name"])),
                dtype=dtype,
                num_elements=elements,
                num_bytes=count_bytes(elements, dtype),
                launch_ns=int(launch.launch_ns),
                start_ns=int(kernel["start_ns"]),
                end_ns=int(kernel["end_ns"]),
            )
        )
    return found


def _find_enclosing(records: pd.DataFrame, launch: object, kernel: pd.Series) -> pd.Series:
    at, thread = launch.launch_ns, launch.launch_thread  # type: ignore[attr-defined]
    around = records[(records["thread"] == thread) & (records["start_ns"] <= at) & (records["end_ns"] > at)]
    return around.iloc[-1] if len(around) else kernel


def count_bytes(num_elements: int, dtype: str) -> int:
    """Bytes of a message, -1 where its size or dtype is unknown."""
    return num_elements * DTYPE_BYTES[dtype] if num_elements >= 0 and dtype in DTYPE_BYTES else -1


def count_ring_bytes(num_bytes: int, world_size: int) -> float:
    """Bytes each rank sends in a ring all-reduce, 2 · (P - 1) / P · bytes (Patarasuk and Yuan, 2009)."""
    return 2 * (world_size - 1) / world_size * num_bytes if world_size else math.nan
