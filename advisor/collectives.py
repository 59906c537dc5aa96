"""The collectives of every rank, and the same collective seen from all of them.

A collective's own duration on one rank holds waiting for peers; the rank that arrives last does not wait. So the
transfer is the shortest duration over the ranks, whatever their clocks say: even processes on one host were seen to
write times that are 12 ms apart. Who arrived when is known once the clocks are aligned on ends, as far as the ends
agree after that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import linear_sum_assignment

from advisor.clocks import Clock, find_spread, fit_clock
from advisor.common_order import find_common_order
from advisor.launch_queue import find_launches
from advisor.readers.names import (
    ANNOTATION,
    AUTOGRAD_NODE,
    COLLECTIVE_OP,
    COLLECTIVE_RECORD,
    DTYPE_BYTES,
    NCCL_SPAN,
    OPERATOR,
    CollectiveKind,
    name_collective_kind,
    name_protocol,
)
from advisor.schema import Phase
from advisor.tables import match_names
from advisor.timeline import RankTimeline

Row = dict[Hashable, Any]
"""One event, by column."""
Place = tuple[int, int]
"""Thread and time of a launch."""
NOWHERE: Place = (-1, -1)
DEEPEST_RECORD = 4
"""How many records of collectives, or autograd nodes, may enclose each other, as those of a coalesced one do."""
ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Kinds in which nobody can leave before everybody came; the root of a broadcast can."""
AGREEING_ENDS = 0.9
"""The share of ends that agree within the residual of a clock."""


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
    protocol: str = ""
    """NCCL's algorithm and protocol, such as `RING_LL`, where the kernel's name tells them."""
    group_size: int = -1
    node: str = ""
    """The autograd node during which the host launched it."""

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
    transient: bool = False
    """Whether it is the first one that some rank's profiler saw, which tells about the profiler's start."""

    @cached_property
    def arrivals_ns(self) -> tuple[int, ...]:
        """When each member started it."""
        return tuple(m.start_ns - offset for m, offset in zip(self.members, self.offsets_ns, strict=True))

    @cached_property
    def last_arrival_ns(self) -> int:
        """When the last rank started it."""
        return max(self.arrivals_ns)

    @cached_property
    def transfer_ns(self) -> int:
        """What it took without waiting: the shortest duration over the ranks, at least 1."""
        return max(1, min(member.end_ns - member.start_ns for member in self.members))

    @cached_property
    def offset_of(self) -> dict[int, int]:
        """The clock of each rank minus the reference clock."""
        return {member.rank: offset for member, offset in zip(self.members, self.offsets_ns, strict=True)}

    def arrival_on_clock_of(self, member: Collective) -> int:
        """The last arrival on a member's own clock, within that member's span."""
        return min(max(self.last_arrival_ns + self.offset_of[member.rank], member.start_ns), member.end_ns)


def find_collectives(timeline: RankTimeline) -> list[Collective]:
    """The collectives of one rank, in launch order; an unknown launch came before those of all that started later."""
    found = _from_kernels(timeline) if timeline.trace.device_type == "cuda" else _from_gloo_spans(timeline)
    placed: list[tuple[int, Collective]] = []
    earliest = np.iinfo(np.int64).max
    for collective in sorted(found, key=lambda c: c.start_ns, reverse=True):
        launch = collective.launch_ns if collective.launch_ns >= 0 else min(collective.start_ns, earliest)
        earliest = min(earliest, launch)
        placed.append((launch, collective))
    return [collective for _, collective in sorted(placed, key=lambda place: (place[0], place[1].start_ns))]


def match_collectives(ranks: Sequence[Sequence[Collective]], world_size: int) -> list[MatchedCollective]:
    """Finds the same collective on every rank of its process group, tolerant of missing and extra members.

    Ranks are aligned to the first one that knows the process group, by the longest common order of what step, process
    group, kind, size and (where recorded) NCCL's sequence number say. Clocks are shifted so that ends agree in the
    median, and by their drift where that explains the ends much better.
    """
    matched: list[list[Collective]] = []
    rest = [list(own) for own in ranks]
    for place, reference in enumerate(rest):
        if not reference:
            continue  # its collectives are all in the rows of earlier ranks
        rows = [[collective] for collective in reference]
        known = {collective.process_group for collective in reference}
        for other in range(place + 1, len(rest)):
            shared = {c.process_group for c in rest[other]} & known
            mine = [row for row in rows if row[0].process_group in shared]
            theirs = [collective for collective in rest[other] if collective.process_group in shared]
            for i, j in _align([row[0] for row in mine], theirs):
                mine[i].append(theirs[j])
            rest[other] = [c for c in rest[other] if c.process_group not in known]
        matched += rows
    firsts = {id(own[0]) for own in ranks if own}
    transient = [any(id(member) in firsts for member in row) for row in matched]
    clocks = _align_clocks(matched, transient)
    sizes = _count_members(ranks, world_size)
    return [
        MatchedCollective(
            members=tuple(row),
            offsets_ns=tuple(clocks[member.rank].measure_offset(member.end_ns) for member in row),
            complete=len(row)
            == (max(m.group_size for m in row) if row[0].group_size > 0 else sizes[row[0].process_group]),
            transient=is_first,
        )
        for row, is_first in zip(matched, transient, strict=True)
    ]


def measure_residuals(matched: Sequence[MatchedCollective]) -> dict[int, int]:
    """How far apart the ends of a rank and of the first member still are on aligned clocks, by rank in ns.

    Nine in ten ends agree within the residual: arrivals that differ by less may not differ at all.
    """
    apart: dict[int, list[int]] = defaultdict(list)
    for match in matched:
        ends = [m.end_ns - offset for m, offset in zip(match.members, match.offsets_ns, strict=True)]
        if match.members[0].kind in ENDS_TOGETHER:
            for member, end in zip(match.members[1:], ends[1:], strict=True):
                apart[member.rank].append(abs(end - ends[0]))
    return {rank: round(float(np.quantile(distances, AGREEING_ENDS))) for rank, distances in apart.items()}


def _align_clocks(matched: Sequence[Sequence[Collective]], transient: Sequence[bool]) -> dict[int, Clock]:
    """Every rank's clock against the first rank's, through other ranks where the two exchange nothing themselves.

    Ends that tell most are asked first: of collectives that end together, and of no profiler's first.
    """
    together = [row for row in matched if row[0].kind in ENDS_TOGETHER]
    steady = [row for row, first in zip(matched, transient, strict=True) if not first and row[0].kind in ENDS_TOGETHER]
    clocks: dict[int, Clock] = {}
    while unknown := [member.rank for row in matched for member in row if member.rank not in clocks]:
        ends = next(filter(None, (_collect_ends(rows, clocks) for rows in (steady, together, matched))), {})
        clocks |= {rank: fit_clock(*zip(*moments, strict=True)) for rank, moments in ends.items()}
        if not ends:
            clocks[unknown[0]] = Clock()
    return clocks


def _collect_ends(
    rows: Sequence[Sequence[Collective]], clocks: Mapping[int, Clock]
) -> dict[int, list[tuple[int, int]]]:
    """Ends on the reference clock and on the own one, for the ranks whose clock is not known yet."""
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        known = next((member for member in row if member.rank in clocks), None)
        if known is not None:
            moment = known.end_ns - clocks[known.rank].measure_offset(known.end_ns)
            for member in row:
                if member.rank not in clocks:
                    ends[member.rank].append((moment, member.end_ns))
    return ends


def _count_members(ranks: Sequence[Sequence[Collective]], world_size: int) -> dict[str, int]:
    """How many ranks each process group has, where its collectives do not tell: as many as use it, else all."""
    users = Counter(name for own in ranks for name in {collective.process_group for collective in own})
    all_here = len(ranks) == world_size
    return {name: users[name] if name and all_here and users[name] > 1 else world_size for name in users}


def _align(reference: Sequence[Collective], other: Sequence[Collective]) -> list[tuple[int, int]]:
    """Index pairs of the same collective.

    A row of collectives that are all alike can be aligned in several ways: the ends say which of them are missing.
    """
    left = [collective.signature for collective in reference]
    right = [collective.signature for collective in other]
    if left == right:
        return [(i, i) for i in range(len(left))]
    early = find_common_order(left, right)
    mirrored = find_common_order(left[::-1], right[::-1])
    late = [(len(left) - 1 - i, len(right) - 1 - j) for i, j in reversed(mirrored)]
    return _settle_alike(reference, other, min(early, late, key=lambda pairs: _measure_fit(reference, other, pairs)))


def _settle_alike(
    reference: Sequence[Collective], other: Sequence[Collective], pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Pairs anew, by their ends, what is alike within a step and of which one side has fewer."""
    if not pairs:
        return []
    offset = median_low(other[j].end_ns - reference[i].end_ns for i, j in pairs)
    left, right = _group_places(reference), _group_places(other)
    uneven = {key for key in left.keys() & right.keys() if len(left[key]) != len(right[key])}
    settled = [(i, j) for i, j in pairs if reference[i].signature not in uneven]
    for key in uneven:
        own, theirs = left[key], right[key]
        apart = [[abs(other[j].end_ns - reference[i].end_ns - offset) for j in theirs] for i in own]
        rows, columns = linear_sum_assignment(apart)
        settled += [(own[row], theirs[column]) for row, column in zip(sorted(rows), sorted(columns), strict=True)]
    return sorted(settled)


def _group_places(collectives: Sequence[Collective]) -> dict[Hashable, list[int]]:
    """The places of what is alike within a step."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, collective in enumerate(collectives):
        if collective.step is not None:
            places[collective.signature].append(place)
    return dict(places)


def _measure_fit(reference: Sequence[Collective], other: Sequence[Collective], pairs: Sequence[tuple[int, int]]) -> int:
    """How much the distances between the ends differ."""
    return find_spread(np.array([other[j].end_ns - reference[i].end_ns for i, j in pairs], dtype=np.int64))


def _locate(timeline: RankTimeline, host_ns: int) -> tuple[int | None, Phase | None]:
    """The step and the host phase in which an instant lies."""
    for step in timeline.steps:
        if step.host_start_ns <= host_ns < step.host_end_ns:
            span = next((s for s in step.spans if s.host_start_ns <= host_ns < s.host_end_ns), None)
            return step.number, span.phase if span else None
    return None, None


def _from_gloo_spans(timeline: RankTimeline) -> list[Collective]:
    """Gloo: launched by a c10d operator on the caller's thread, executed as a worker's span."""
    events = timeline.trace.events
    operators = events[match_names(events, COLLECTIVE_OP.match) & events["category"].isin(OPERATOR).to_numpy()]
    spans = events[timeline.communication_rows]
    places = [*zip(operators["thread"], operators["start_ns"].tolist(), strict=True), NOWHERE]
    launch_of = find_launches(operators, spans, [step.host_start_ns for step in timeline.steps])
    find_node = _find_nodes(events, operators["start_ns"].to_numpy())
    found = []
    for span, place in zip(spans.to_dict("records"), launch_of, strict=True):
        launch, elements = places[place], span["num_elements"]
        step, phase = _locate(timeline, launch[1] if launch[1] >= 0 else span["start_ns"])
        found.append(
            Collective(
                rank=timeline.trace.rank,
                step=step,
                phase=phase,
                process_group=span["process_group"],
                kind=name_collective_kind(span["name"]),
                dtype=span["dtype"],
                num_elements=elements,
                num_bytes=count_bytes(elements, span["dtype"]),
                launch_ns=launch[1],
                start_ns=span["start_ns"],
                end_ns=span["end_ns"],
                node=find_node(launch),
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
    find_node = _find_nodes(events, np.sort(launches["launch_ns"].to_numpy()))
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
                protocol=name_protocol(kernel["name"]),
                group_size=source["group_size"],
                node=find_node((launch["launch_thread"], launch["launch_ns"])),
            )
        )
    return found


def _find_nodes(events: pd.DataFrame, launches: npt.NDArray[np.int64]) -> Callable[[Place], str]:
    """Names the innermost autograd node on a thread at one of some instants (sorted); "" where there is none."""
    is_node = match_names(events, lambda name: name.startswith(AUTOGRAD_NODE))
    nodes = events.loc[is_node, ["name", "thread", "start_ns", "end_ns"]]
    holds_one = np.searchsorted(launches, nodes["start_ns"]) < np.searchsorted(launches, nodes["end_ns"])
    nodes_on = _group_by_thread(nodes[holds_one])

    def find_node(place: Place) -> str:
        node = _find_enclosing(nodes_on[place[0]], place[1])
        return str(node["name"]) if node else ""

    return find_node


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
