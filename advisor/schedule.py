"""Which all-reduce is which bucket, when each was ready, launched and run, and how much of it lengthened the step.

*Exposed* is communication with no compute beside it. *Blocking* is what lengthens the step:

- CPU: the backward thread waits, after its last gradient, for a bucket that is not yet reduced.
- GPU: from B, the later of (last backward kernel's end, host's launch of the first kernel after backward), to E, the
  earlier of (last bucket's end, that kernel's start); max(0, E - B).

Each instant of it is charged to one bucket, so that the buckets' shares add up to the step's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.collectives import Collective, MatchedCollective, count_bytes
from advisor.intervals import Intervals, build_intervals, clip, difference, total
from advisor.readers.names import (
    ACCUMULATE_GRAD,
    ACCUMULATE_GRAD_OP,
    AUTOGRAD_NODE,
    COLLECTIVE_OP,
    COPY_BACK,
    OPERATOR,
    is_floating,
)
from advisor.schema import BucketSummary, CollectiveRole, GradientReady, marks
from advisor.timeline import PhaseSpan, RankTimeline, StepTimeline, match_names


@dataclass(frozen=True)
class StepSchedule:
    """The gradient exchange of one step on one rank; absolute times are on the rank's own clock."""

    rank: int
    step: int
    buckets: tuple[BucketSummary, ...]
    gradients: tuple[GradientReady, ...]
    """As observed, relative to the start of the synchronising backward; empty without AccumulateGrad nodes."""
    backward: PhaseSpan
    """The backward that synchronised (the last one of the step)."""
    finish: PhaseSpan | None
    blocking: Intervals
    num_backwards: int
    num_syncs: int
    launch_spans: Intervals
    """Host time spent in launching collectives."""
    copy_back_ns: int
    """Host time spent in copying averages back into the gradients."""
    clock_offset_ns: int
    """The rank's clock minus the reference rank's."""
    host_tail_ns: int
    """GPU: from the last backward kernel's end to the host's launch of the first kernel after backward."""

    @property
    def blocking_ns(self) -> int:
        """How much the exchange lengthened this step."""
        return total(self.blocking)


def classify_collective(collective: Collective) -> CollectiveRole:
    """What a collective is for, from its kind, dtype, size and the phase of its launch.

    DDP reduces buckets during backward in the gradients' dtype; its mark of unused parameters is an integer
    all-reduce; it broadcasts buffers before forward; `Join` sends single elements before forward and during backward.
    """
    if collective.kind == "broadcast" and collective.phase in ("forward", "data", "other"):
        return "buffer"
    if collective.kind == "all_reduce" and collective.phase == "forward" and collective.num_elements == 1:
        return "join"
    if collective.kind != "all_reduce" or collective.phase not in ("backward", "gradient_finish"):
        return "other"
    if collective.dtype and not is_floating(collective.dtype):
        return "unused_parameter_mark"
    return "join" if collective.num_elements == 1 else "bucket"


def build_schedules(
    timelines: Sequence[RankTimeline],
    collectives: Sequence[Sequence[Collective]],
    matched: Sequence[MatchedCollective],
) -> list[StepSchedule]:
    """Builds the gradient exchange of every step that has one, by rank and step."""
    match_of = {member: match for match in matched for member in match.members}
    group = _find_ddp_group(collectives)
    schedules = []
    for timeline, own in zip(timelines, collectives, strict=True):
        for step in timeline.steps:
            buckets = [
                c
                for c in own
                if c.step == step.number and c.process_group == group and classify_collective(c) == "bucket"
            ]
            if buckets and step.find_spans("backward"):
                schedules.append(_build_schedule(timeline, step, buckets, match_of))
    return schedules


def _find_ddp_group(collectives: Sequence[Sequence[Collective]]) -> str | None:
    """The process group that carries the gradients: the one with most bucket-like collectives."""
    counts = Counter(c.process_group for own in collectives for c in own if classify_collective(c) == "bucket")
    return counts.most_common(1)[0][0] if counts else None


def _build_schedule(
    timeline: RankTimeline,
    step: StepTimeline,
    collectives: list[Collective],
    match_of: Mapping[Collective, MatchedCollective],
) -> StepSchedule:
    backwards = step.find_spans("backward")
    syncs = [b for b in backwards if any(b.host_start_ns <= c.launch_ns < b.host_end_ns for c in collectives)]
    backward = syncs[-1] if syncs else backwards[-1]
    last = [c for c in collectives if c.launch_ns < 0 or c.launch_ns >= backward.host_start_ns]
    finish = next((s for s in step.find_spans("gradient_finish") if s.host_start_ns >= backward.host_end_ns), None)
    host_tail = 0
    if timeline.trace.device_type == "cuda":
        blocking, host_tail = _find_device_blocking(timeline, backward, finish, last)
    else:
        blocking = _find_host_blocking(timeline, backward, finish, last)
    shares = _share_blocking(blocking, last, match_of)
    gradients, ready_host = _find_gradients(timeline, backward)
    return StepSchedule(
        rank=timeline.trace.rank,
        step=step.number,
        buckets=tuple(
            _summarize_bucket(timeline, step, index, c, (match_of.get(c), share, ready_host))
            for index, (c, share) in enumerate(zip(last, shares, strict=True))
        ),
        gradients=gradients,
        backward=backward,
        finish=finish,
        blocking=blocking,
        num_backwards=len(backwards),
        num_syncs=len(syncs),
        launch_spans=_find_launch_spans(timeline, backward),
        copy_back_ns=_sum_copy_back(timeline, finish),
        clock_offset_ns=_find_clock_offset(last, match_of),
        host_tail_ns=host_tail,
    )


def _find_clock_offset(buckets: list[Collective], match_of: Mapping[Collective, MatchedCollective]) -> int:
    for bucket in buckets:
        if bucket in match_of:
            match = match_of[bucket]
            return match.offsets_ns[match.members.index(bucket)]
    return 0


def _summarize_bucket(
    timeline: RankTimeline,
    step: StepTimeline,
    index: int,
    collective: Collective,
    context: tuple[MatchedCollective | None, int, np.ndarray],
) -> BucketSummary:
    match, blocking_ns, ready_host = context
    launch = collective.launch_ns if collective.launch_ns >= 0 else None
    before = int(np.searchsorted(ready_host, launch, side="right")) if launch is not None else 0
    host = int(ready_host[before - 1]) if before else None
    device = host
    if timeline.trace.device_type == "cuda" and launch is not None:
        device = find_device_done(timeline, launch)
    begins = max((t for t in (launch, device) if t is not None), default=collective.start_ns)
    complete = match is not None and match.complete
    arrival = match.arrival_on_clock_of(collective) if match is not None else collective.start_ns
    own = build_intervals([collective.start_ns], [collective.end_ns])
    zero = step.start_ns
    return BucketSummary(
        rank=timeline.trace.rank,
        step=step.number,
        bucket=index,
        num_bytes=collective.num_bytes,
        num_elements=collective.num_elements,
        dtype=collective.dtype,
        ready_host_ns=None if host is None else host - zero,
        ready_device_ns=None if device is None else device - zero,
        launch_ns=None if launch is None else launch - zero,
        start_ns=collective.start_ns - zero,
        end_ns=collective.end_ns - zero,
        queue_wait_ns=max(0, collective.start_ns - begins),
        peer_wait_ns=arrival - collective.start_ns if complete else None,
        transfer_ns=match.transfer_ns if match is not None and complete else None,
        exposed_ns=total(difference(own, timeline.compute)),
        blocking_ns=blocking_ns,
    )


# --------------------------------------------------------------------------------------------------- gradients


def _find_gradients(timeline: RankTimeline, backward: PhaseSpan) -> tuple[tuple[GradientReady, ...], np.ndarray]:
    """The gradients of one backward in ready order, and the host times at which they were ready.

    A gradient is ready when its AccumulateGrad node ended, hooks and copy into the bucket included, but not the launch
    of the collective that it may have completed.
    """
    window = _select(timeline.trace.events, backward.host_start_ns, backward.host_end_ns)
    nodes = window[match_names(window, lambda name: name == ACCUMULATE_GRAD)]
    operators = window[match_names(window, lambda name: name == ACCUMULATE_GRAD_OP)]
    launches = np.sort(window["start_ns"].to_numpy()[match_names(window, COLLECTIVE_OP.match)])
    node_starts, node_ends = nodes["start_ns"].to_numpy(), nodes["end_ns"].to_numpy()
    first_launch = np.searchsorted(launches, node_starts)
    padded = np.append(launches, np.iinfo(np.int64).max)
    ready_host = np.minimum(padded[first_launch], node_ends)
    inside = np.searchsorted(operators["start_ns"].to_numpy(), node_starts)
    if len(operators) != len(nodes) or not np.array_equal(inside, np.arange(len(nodes))):
        return (), ready_host
    on_gpu = timeline.trace.device_type == "cuda"
    zero_host, zero = backward.host_start_ns, backward.start_ns
    gradients = tuple(
        GradientReady(
            index=index,
            num_bytes=count_bytes(int(elements), str(dtype)),
            dtype=str(dtype),
            ready_host_ns=int(ready) - zero_host,
            ready_device_ns=(find_device_done(timeline, int(ready)) - zero) if on_gpu else int(ready) - zero,
        )
        for index, (ready, elements, dtype) in enumerate(
            zip(ready_host, operators["num_elements"], operators["dtype"], strict=True)
        )
    )
    return gradients, ready_host


def find_device_done(timeline: RankTimeline, host_ns: int) -> int:
    """When the last compute kernel that the host had launched by `host_ns` ended; at least `host_ns` itself."""
    return max(host_ns, int(timeline.compute_done[np.searchsorted(timeline.launches, host_ns)]))


def _find_launch_spans(timeline: RankTimeline, backward: PhaseSpan) -> Intervals:
    window = _select(timeline.trace.events, backward.host_start_ns, backward.host_end_ns)
    rows = window[match_names(window, COLLECTIVE_OP.match)]
    return build_intervals(rows["start_ns"], rows["end_ns"])


def _sum_copy_back(timeline: RankTimeline, finish: PhaseSpan | None) -> int:
    if finish is None:
        return 0
    window = _select(timeline.trace.events, finish.host_start_ns, finish.host_end_ns)
    rows = window[match_names(window, lambda name: name == COPY_BACK or name.startswith(marks.COPY_BACK))]
    return total(build_intervals(rows["start_ns"], rows["end_ns"]))


def _select(events: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    low, high = np.searchsorted(events["start_ns"].to_numpy(), [start, end])
    return events.iloc[low:high]


# ---------------------------------------------------------------------------------------------------- blocking


def _find_host_blocking(
    timeline: RankTimeline, backward: PhaseSpan, finish: PhaseSpan | None, buckets: list[Collective]
) -> Intervals:
    """The gaps of the backward thread between its last gradient and the end of the last bucket."""
    if finish is None:
        return build_intervals([], [])
    events = timeline.trace.events
    until = min(finish.host_end_ns, max(bucket.end_ns for bucket in buckets))
    during = _select(events, backward.host_start_ns, backward.host_end_ns)
    nodes = during["thread"].to_numpy()[match_names(during, lambda name: name.startswith(AUTOGRAD_NODE))]
    rows = events[(events["thread"] == nodes[-1]) & events["category"].isin(OPERATOR)]
    busy = build_intervals(rows["start_ns"], rows["end_ns"])
    return difference(build_intervals([finish.host_start_ns], [until]), busy)


def _find_device_blocking(
    timeline: RankTimeline, backward: PhaseSpan, finish: PhaseSpan | None, buckets: list[Collective]
) -> tuple[Intervals, int]:
    done = find_device_done(timeline, backward.host_end_ns)
    after = finish.host_end_ns if finish is not None else backward.host_end_ns
    device = timeline.device
    following = device[(device["launch_ns"] >= after) & ~device["communication"]]
    until = max(bucket.end_ns for bucket in buckets)
    begin = done
    if len(following):
        begin = max(done, int(following["launch_ns"].iloc[0]))
        until = min(until, int(following["start_ns"].iloc[0]))
    return build_intervals([begin], [until]), begin - done


def _share_blocking(
    blocking: Intervals, buckets: list[Collective], match_of: Mapping[Collective, MatchedCollective]
) -> list[int]:
    """Charges each instant to the bucket in transfer, else the one waiting for peers, else the next in the queue."""
    arrivals = [match_of[b].arrival_on_clock_of(b) if b in match_of else b.start_ns for b in buckets]
    claims = [
        *(build_intervals([arrival], [b.end_ns]) for arrival, b in zip(arrivals, buckets, strict=True)),
        *(build_intervals([b.start_ns], [arrival]) for arrival, b in zip(arrivals, buckets, strict=True)),
        *(build_intervals([b.launch_ns if b.launch_ns >= 0 else b.start_ns], [b.start_ns]) for b in buckets),
    ]
    shares = [0] * len(buckets)
    rest = blocking
    for number, claim in enumerate(claims):
        if len(claim) and len(rest):
            shares[number % len(buckets)] += total(clip(rest, int(claim[0, 0]), int(claim[0, 1])))
            rest = difference(rest, claim)
    shares[-1] += total(rest)
    return shares
