"""What must hold for whatever events a trace holds, in whatever order a broken or foreign program wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.intervals import build_intervals, clip, difference, intersection, total, union
from advisor.stragglers import find_waiting
from advisor.summaries import summarize_steps
from advisor.timeline import StepTimeline
from tests.trace_builders import RankTrace, lay_out

STARTS, LENGTHS = st.integers(0, 390), st.integers(0, 60)
HOST = st.tuples(
    st.sampled_from(["forward", "node", "gradient", "copy_back", "optimizer", "operator"]), STARTS, LENGTHS
)
DEVICE = st.tuples(
    st.sampled_from(["kernel", "orphan", "nccl"]), STARTS, st.integers(0, 300), LENGTHS, st.integers(1, 3)
)
GLOO = st.tuples(STARTS, st.integers(0, 50), LENGTHS, st.integers(1, 3), st.integers(0, 1))


@st.composite
def traces(draw: st.DrawFn, rank: int = 0) -> RankTrace:
    """Two steps of 200 µs, mostly with a DDP step's parts and always with others at any place."""
    on_gpu = draw(st.booleans())
    trace = RankTrace(rank, backend="nccl" if on_gpu else "gloo")
    trace.step(2, 0, 200)
    trace.step(3, 200, 400)
    for zero in (0, 200):
        if draw(st.booleans()):
            trace.forward(zero + 10, zero + 40)
            trace.gradient(zero + 50, zero + 90, 64)
            trace.optimizer(zero + 150, zero + 160)
    for kind, start, length in draw(st.lists(HOST, max_size=12)):
        if kind == "gradient":
            trace.gradient(start, start + length, 8)
        elif kind == "operator":
            trace.operator("aten::mm", start, start + length)
        else:
            getattr(trace, kind)(start, start + length)
    if on_gpu:
        trace.kernel(60, 70, 120)
        for kind, launch, lag, length, elements in draw(st.lists(DEVICE, max_size=12)):
            start = launch + lag
            if kind == "nccl":
                trace.nccl(launch, start, start + length, elements)
            else:
                trace.kernel(None if kind == "orphan" else launch, start, start + length)
    else:
        for launch, queue, length, elements, worker in draw(st.lists(GLOO, max_size=8)):
            trace.gloo(launch, launch + queue, launch + queue + length, elements, worker=worker)
    return trace


def assert_phases_tile(steps: Sequence[StepTimeline]) -> None:
    for step in steps:
        assert sum(span.end_ns - span.start_ns for span in step.spans) == step.end_ns - step.start_ns
        assert all(span.start_ns <= span.end_ns for span in step.spans)
        assert all(a.end_ns == b.start_ns and a.host_end_ns == b.host_start_ns for a, b in pairwise(step.spans))
        assert (step.spans[0].host_start_ns, step.spans[-1].host_end_ns) == (step.host_start_ns, step.host_end_ns)
        assert 0 <= step.host_bound_ns <= step.end_ns - step.start_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(steps))


@settings(max_examples=15)
@given(traces())
def test_the_parts_of_a_step_are_the_step(trace: RankTrace) -> None:
    front = lay_out(trace)
    (rank,) = front.observations
    assert_phases_tile(rank.steps)
    timeline = trace.lay_out()
    both = (timeline.compute, timeline.communication)
    for step in rank.steps:
        window = build_intervals([step.start_ns], [step.end_ns])
        compute, communication = (clip(part, step.start_ns, step.end_ns) for part in both)
        parts = (
            difference(compute, communication),
            difference(communication, compute),
            intersection(compute, communication),
            difference(window, union(compute, communication)),
        )
        assert sum(map(total, parts)) == step.end_ns - step.start_ns
    for row in summarize_steps(front.observations, front.schedules, find_waiting(front.observations, front.matched)):
        shares = (row.data_ns, row.forward_ns, row.backward_ns, row.blocking_ns, row.optimizer_ns, row.other_ns)
        assert min(shares) >= 0
        assert sum(shares) == row.duration_ns
        assert row.exposed_ns + row.overlap_ns == row.communication_ns
        assert row.compute_ns + row.exposed_ns + row.copy_ns + row.idle_ns == row.duration_ns
        assert min(row.copy_ns, row.idle_ns) >= 0


@settings(max_examples=15)
@given(traces(), traces(rank=1))
def test_what_buckets_block_is_what_the_step_loses(first: RankTrace, second: RankTrace) -> None:
    for schedule in lay_out(first, second).schedules:
        assert sum(bucket.blocking_ns for bucket in schedule.buckets) == schedule.exchange.blocking_ns
        for bucket in schedule.buckets:
            assert 0 <= bucket.exposed_ns <= bucket.end_ns - bucket.start_ns
            assert min(bucket.queue_wait_ns, bucket.blocking_ns, bucket.peer_wait_ns or 0) >= 0
            assert bucket.transfer_ns is None or bucket.transfer_ns >= 1
