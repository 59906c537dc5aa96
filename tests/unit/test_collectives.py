"""Collectives found on one rank, and matched over the ranks; every time is in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from advisor.all_reduce import traffic_factor
from advisor.collectives import (
    Collective,
    count_bytes,
    find_collectives,
    match_collectives,
    measure_residuals,
)
from advisor.common_order import find_common_order
from tests.trace_builders import ALL_REDUCE_KERNEL, NCCL_STREAM, RankTrace, describe_collective

EPOCH_US = 1_711_964_646_416_788


def found(trace: RankTrace) -> list[Collective]:
    return find_collectives(trace.lay_out())


def times(collective: Collective) -> tuple[int, int, int]:
    return tuple(t // 1000 if t >= 0 else t for t in (collective.launch_ns, collective.start_ns, collective.end_ns))  # type: ignore[return-value]


# ---------------------------------------------------------------------------------------------------------- gloo


def test_a_gloo_collective_is_launched_by_one_thread_and_run_by_another() -> None:
    trace = RankTrace()
    trace.step(2, 0, 100)
    trace.forward(5, 10)
    trace.gradient(20, 40, 64)
    trace.gloo(38, 45, 60, 64)
    trace.optimizer(70, 80)
    (collective,) = found(trace)
    assert times(collective) == (38, 45, 60)
    assert (collective.step, collective.phase, collective.kind) == (2, "backward", "all_reduce")
    assert (collective.num_elements, collective.dtype, collective.num_bytes) == (64, "float32", 256)


def test_collectives_of_one_kind_and_size_start_in_the_order_of_their_launches() -> None:
    trace = RankTrace()
    trace.gloo(10, 20, 50, 64)
    trace.gloo(12, 21, 30, 32, worker=1)
    trace.gloo(14, 40, 70, 64, worker=1)
    trace.gloo(5, 15, 18, 64, kind="broadcast")
    assert [times(c) for c in found(trace)] == [(5, 15, 18), (10, 20, 50), (12, 21, 30), (14, 40, 70)]


def test_a_gloo_span_from_before_the_recording_has_no_launch() -> None:
    trace = RankTrace()
    trace.add("user_annotation", "gloo:all_reduce", 1, 9, tid=101, args={"Input Dims": [[64]], "Input type": ["float"]})
    trace.gloo(10, 20, 50, 64)
    assert [times(c) for c in found(trace)] == [(-1, 1, 9), (10, 20, 50)]


def test_launches_whose_size_was_not_written_are_told_by_their_order() -> None:
    # torch 1.13 to 2.1: the operator takes a list of tensors, whose sizes are missing; the span has them.
    trace = RankTrace()
    for launch, elements in ((10, 64), (12, 32)):
        dims = {"Input Dims": [[], []], "Input type": ["TensorList", ""]}
        trace.add("cpu_op", "c10d::allreduce_", launch, launch + 1, args=dims)
        span = {"Input Dims": [[elements]], "Input type": ["float"]}
        trace.add("user_annotation", "gloo:all_reduce", launch + 5, launch + 9, tid=101, args=span)
    assert [(times(c), c.num_elements) for c in found(trace)] == [((10, 15, 19), 64), ((12, 17, 21), 32)]


# ----------------------------------------------------------------------------------------------------------- GPU


def test_new_kernels_carry_their_arguments_and_belong_to_the_step_of_their_launch() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 100)
    trace.step(3, 100, 200)
    trace.nccl(50, 150, 180, 2049000, sequence=7)
    (collective,) = found(trace)
    assert (collective.step, collective.kind, collective.process_group) == (2, "all_reduce", "0")
    assert (collective.num_elements, collective.dtype, collective.num_bytes) == (2049000, "float32", 8196000)
    assert collective.sequence == 7
    assert times(collective) == (50, 150, 180)


def record(trace: RankTrace, start: float, end: float, external_id: int, **args: Any) -> None:
    trace.add("cpu_op", "record_param_comms", start, end, args={"External id": external_id, **args})


def test_kernels_without_arguments_name_their_record_by_external_id() -> None:
    trace = RankTrace(backend="nccl")
    record(trace, 10, 20, 41, **describe_collective(500, group="1"))
    record(trace, 30, 40, 42, **describe_collective(70, kind="broadcast", dtype="Long"))
    trace.kernel(35, 50, 60, "ncclDevKernel_Generic", stream=NCCL_STREAM, args={"External id": 41})
    (collective,) = found(trace)
    assert (collective.kind, collective.num_bytes, collective.process_group) == ("all_reduce", 2000, "1")


def test_kernels_whose_external_id_is_their_correlation_sit_in_their_record() -> None:
    trace = RankTrace(backend="nccl")
    record(trace, 10, 20, 2, **describe_collective(500))  # its id is the correlation of a kernel it did not launch
    record(trace, 30, 40, 99, **describe_collective(70, kind="broadcast", dtype="Long"))
    for launch in (15, 35):
        correlation = trace.kernel(launch, launch + 50, launch + 60, "ncclDevKernel_Generic", stream=NCCL_STREAM)
        trace.events[-1]["args"]["External id"] = correlation
    assert [(c.kind, c.num_bytes) for c in found(trace)] == [("all_reduce", 2000), ("broadcast", 560)]


def test_old_kernels_get_kind_and_size_from_the_annotation_around_their_launch() -> None:
    # torch 1.12 to 2.1: record_param_comms says nothing, the kernel's name not always what it is for.
    trace = RankTrace(backend="nccl")
    record(trace, 8, 32, 5, **{"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"]})
    shapes = {"Input Dims": [[6144]], "Input type": ["float"]}
    trace.add("user_annotation", "nccl:all_to_all", 10, 30, args=shapes)
    trace.add("user_annotation", "nccl:all_reduce", 10, 30, tid=9, args=shapes)
    correlation = trace.kernel(15, 40, 50, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", stream=NCCL_STREAM)
    trace.events[-1]["args"]["External id"] = correlation
    (collective,) = found(trace)
    assert (collective.kind, collective.num_bytes, collective.dtype) == ("all_to_all", 24576, "float32")


def test_a_record_around_a_finished_one_is_found() -> None:
    trace = RankTrace(backend="nccl")
    record(trace, 0, 100, 50, **describe_collective(500))
    record(trace, 10, 20, 51, **describe_collective(70))
    trace.kernel(90, 95, 99, ALL_REDUCE_KERNEL, stream=NCCL_STREAM)
    assert [c.num_elements for c in found(trace)] == [500]


def test_kernels_launched_before_the_recording_are_known_by_name_alone() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 100)
    trace.kernel(None, 5, 20, ALL_REDUCE_KERNEL, stream=NCCL_STREAM)
    (collective,) = found(trace)
    assert (collective.step, collective.phase, collective.kind, collective.num_bytes) == (None, None, "all_reduce", -1)


# ------------------------------------------------------------------------------------------------------ matching


def collective(rank: int, end_us: float, elements: int = 64, **fields: Any) -> Collective:
    """Ten microseconds of all-reduce, launched when it starts, in a step of unknown number unless told otherwise."""
    values: dict[str, Any] = {
        "step": None, "phase": None, "process_group": "0", "kind": "all_reduce", "dtype": "float32",
        "num_bytes": 4 * elements, "launch_ns": int(1000 * (end_us - 10)), "start_ns": int(1000 * (end_us - 10)),
    }  # fmt: skip
    return Collective(rank=rank, num_elements=elements, end_ns=int(1000 * end_us), **(values | fields))


def rank_of(rank: int, pattern: str, moments: Sequence[int], clock_us: int = 0) -> list[Collective]:
    """One collective a letter, of the letter's size, ending at the moments (in µs)."""
    return [collective(rank, t + clock_us, ord(x)) for x, t in zip(pattern, moments, strict=True) if x != "-"]


MOMENTS = (100, 230, 310, 520, 610, 790, 880, 930, 1190)
"""When the collectives of a reference rank end; no two distances are the same."""


@pytest.mark.parametrize("clock_us", [0, 5000, -5000, EPOCH_US])
@pytest.mark.parametrize(
    ("reference", "other"),
    [
        ("ABCABCABC", "ABCABCABC"),
        ("ABCABCABC", "ABC-BCABC"),  # one is missing inside
        ("ABCABCABC", "-BCABCABC"),  # at the start
        ("ABCABCABC", "ABCABCAB-"),  # at the end
        ("ABCABCABC", "---ABCABC"),  # a whole step
        ("ABC-BCABC", "ABCABCABC"),  # the other one has one more
        ("-BCABCABC", "ABCABCAB-"),  # each lacks one
        ("AAAAAAAAA", "-AAAAAAAA"),  # nothing but the times tell which
        ("AAAAAAAAA", "AAAAAAAA-"),
    ],
)
def test_missing_and_extra_members_shift_nothing(reference: str, other: str, clock_us: int) -> None:
    ranks = [rank_of(0, reference, MOMENTS), rank_of(1, other, MOMENTS, clock_us)]
    matched = match_collectives(ranks, world_size=2)
    assert len(matched) == len(ranks[0])
    both = sum(a != "-" and b != "-" for a, b in zip(reference, other, strict=True))
    assert sum(match.complete for match in matched) == both
    for match in matched:
        if match.complete:
            assert match.offsets_ns == (0, 1000 * clock_us)
            assert match.last_arrival_ns == match.members[0].start_ns  # no skew is invented
            assert match.transfer_ns == 10_000


def test_steps_tell_collectives_apart_that_nothing_else_does() -> None:
    steps = [[collective(rank, 100 * step, step=step) for step in range(2, 6)] for rank in range(2)]
    del steps[1][1]  # evenly spaced, all alike, and one is missing: its step says which
    matched = match_collectives(steps, world_size=2)
    assert [len(match.members) for match in matched] == [2, 1, 2, 2]
    assert all(match.members[0].step == match.members[-1].step for match in matched)


def test_sequence_numbers_tell_collectives_apart_that_nothing_else_does() -> None:
    ranks = [[collective(rank, 100 * number, sequence=number) for number in range(1, 5)] for rank in range(2)]
    del ranks[1][2]
    matched = match_collectives(ranks, world_size=2)
    assert [len(match.members) for match in matched] == [2, 2, 1, 2]


def test_groups_kinds_and_sizes_are_never_mixed() -> None:
    first = [collective(0, 100), collective(0, 200, kind="broadcast"), collective(0, 300, process_group="1")]
    second = [collective(1, 100, 65), collective(1, 200, kind="all_gather"), collective(1, 300, process_group="2")]
    assert [len(match.members) for match in match_collectives([first, second], world_size=2)] == [1, 1, 1, 1]


@pytest.mark.parametrize("clock_us", [0, 5000, EPOCH_US])
def test_waiting_is_told_from_transfer(clock_us: int) -> None:
    # Rank 1 is 30 µs late each time, on a clock of its own; what it sends takes 20 µs.
    first = [collective(0, end, start_ns=1000 * (end - 50)) for end in (100, 200, 300)]
    second = [
        collective(1, end + clock_us, start_ns=1000 * (end - 20 + clock_us)) for end in (100, 200, 300)
    ]  # fmt: skip
    for match in match_collectives([first, second], world_size=2):
        victim, straggler = match.members
        assert match.transfer_ns == 20_000
        assert match.arrival_on_clock_of(victim) - victim.start_ns == 30_000
        assert match.arrival_on_clock_of(straggler) - straggler.start_ns == 0


def test_clocks_are_aligned_on_the_median_end() -> None:
    ends = (50, 100, 200, 300)  # the first of which tells about the profiler's start
    first = [collective(0, end) for end in ends]
    second = [collective(1, end + 5000 + error) for end, error in zip(ends, (400, -1, 0, 90), strict=True)]
    (offset,) = {match.offsets_ns for match in match_collectives([first, second], world_size=2)}
    assert offset == (0, 5_000_000)


def test_what_a_profiler_sees_first_is_a_transient() -> None:
    sizes = {100: 64, 200: 65, 300: 66}
    ranks = [
        [collective(rank, end, sizes[end]) for end in ends] for rank, ends in enumerate([(100, 200, 300), (200, 300)])
    ]
    assert [match.transient for match in match_collectives(ranks, world_size=2)] == [True, True, False]


def test_a_clock_that_gains_is_aligned_all_along() -> None:
    # 10 µs gained a second, over 3 seconds: an offset alone would be off by 15 µs at either end.
    moments = [100_000 * k for k in range(1, 31)]
    ranks = [[collective(rank, t * (1 + 1e-5 * rank) + 5000 * rank) for t in moments] for rank in (0, 1)]
    matched = match_collectives(ranks, world_size=2)
    assert max(abs(m.arrivals_ns[1] - m.arrivals_ns[0]) for m in matched) < 10
    assert measure_residuals(matched)[1] < 10


def test_the_residual_says_how_well_ends_agree() -> None:
    first = [collective(0, 100 * k) for k in range(11)]
    second = [collective(1, 100 * k + 5000 + (k % 2 or -1)) for k in range(11)]
    assert measure_residuals(match_collectives([first, second], world_size=2)) == {1: 1000}


def test_groups_that_lack_ranks_are_complete_with_their_own() -> None:
    # Ranks 0 and 1 exchange in one group, 2 and 3 in another one, all four of them in the first.
    ranks = [
        [
            collective(rank, 100 + 1000 * rank),
            *(collective(rank, t + 1000 * rank, process_group=str(1 + rank // 2)) for t in (200, 300)),
        ]
        for rank in range(4)
    ]
    matched = match_collectives(ranks, world_size=4)
    assert sorted([m.rank for m in match.members] for match in matched) == [
        [0, 1],
        [0, 1],
        [0, 1, 2, 3],
        [2, 3],
        [2, 3],
    ]
    for match in matched:
        assert match.complete
        assert match.offsets_ns == tuple(1_000_000 * member.rank for member in match.members)
    assert not any(match.complete for match in match_collectives(ranks[:3], world_size=4))  # who else is in group 2?


def test_the_size_of_a_group_is_read_where_it_is_written() -> None:
    ranks = [[collective(rank, t, process_group="1", group_size=2) for t in (100, 200)] for rank in (0, 1)]
    assert all(match.complete for match in match_collectives(ranks, world_size=8))
    assert not any(match.complete for match in match_collectives(ranks[:1], world_size=8))


def test_an_arrival_lies_within_the_members_span() -> None:
    # By the clocks' median the last rank arrives after the first one's end: it cannot have been later than that.
    first, second = collective(0, 100), collective(1, 140, start_ns=120_000)
    ranks = [[collective(rank, 300), collective(rank, 400), own] for rank, own in enumerate((first, second))]
    match = match_collectives(ranks, world_size=2)[2]
    assert match.arrival_on_clock_of(first) == 100_000
    assert match.arrival_on_clock_of(second) == 120_000
    assert match.transfer_ns == 10_000  # which does not depend on the clocks
    assert match_collectives([[first]], world_size=1)[0].arrival_on_clock_of(first) == first.start_ns


def test_a_rank_alone_is_complete_only_in_a_world_of_one() -> None:
    alone = [collective(0, 100)]
    assert [match.complete for match in match_collectives([alone], world_size=1)] == [True]
    assert [match.complete for match in match_collectives([alone], world_size=2)] == [False]
    assert [match.complete for match in match_collectives([[], alone], world_size=2)] == [False]


# --------------------------------------------------------------------------------------------------------- bytes


def test_the_longest_common_order_by_hand() -> None:
    assert find_common_order("abcabc", "abcbc") == [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4)]
    assert find_common_order("", "abc") == find_common_order("abc", "xyz") == []


@pytest.mark.parametrize(
    ("elements", "dtype", "expected"),
    [(10, "float32", 40), (10, "bfloat16", 20), (53, "int64", 424), (-1, "float32", -1), (10, "", -1)],
)
def test_bytes_are_known_with_size_and_dtype(elements: int, dtype: str, expected: int) -> None:
    assert count_bytes(elements, dtype) == expected


@pytest.mark.parametrize(("gigabytes", "world_size", "sent"), [(14, 64, 27.5625), (4, 8, 7), (4, 16, 7.5), (4, 1, 0)])
def test_ring_bytes(gigabytes: int, world_size: int, sent: float) -> None:
    assert traffic_factor(world_size) * gigabytes == pytest.approx(sent)
