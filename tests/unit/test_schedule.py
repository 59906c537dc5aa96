"""The gradient exchange of one step, worked by hand; every time is in microseconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from advisor.collectives import Collective
from advisor.exchange import classify_collective
from advisor.schedule import StepSchedule
from advisor.schema import BucketSummary, CollectiveRole
from tests.trace_builders import NODE, RankTrace, describe_collective, lay_out


def blocking_spans(schedule: StepSchedule) -> list[tuple[int, int]]:
    return [(int(start) // 1000, int(end) // 1000) for start, end in schedule.exchange.blocking]


def shares(schedule: StepSchedule) -> list[int]:
    """What each bucket blocks, which must add up to what the step does."""
    assert sum(bucket.blocking_ns for bucket in schedule.buckets) == schedule.exchange.blocking_ns
    return [bucket.blocking_ns // 1000 for bucket in schedule.buckets]


def us(bucket: BucketSummary, *names: str) -> list[int | None]:
    values = [getattr(bucket, f"{name}_ns") for name in names]
    return [None if value is None else value // 1000 for value in values]


# --------------------------------------------------------------------------------------------------------- roles


@pytest.mark.parametrize(
    ("fields", "role"),
    [
        ({"phase": "backward"}, "bucket"),
        ({"phase": "gradient_finish"}, "bucket"),
        ({"phase": "backward", "dtype": ""}, "bucket"),
        ({"phase": "backward", "dtype": "bfloat16"}, "bucket"),
        ({"phase": "backward", "dtype": "int32", "num_elements": 16}, "unused_parameter_mark"),
        ({"phase": "backward", "num_elements": 1}, "join"),
        ({"phase": "forward", "num_elements": 1}, "join"),
        ({"phase": "forward"}, "other"),
        ({"phase": "optimizer"}, "other"),
        ({"phase": None}, "other"),
        ({"phase": "forward", "kind": "broadcast"}, "buffer"),
        ({"phase": "forward", "kind": "broadcast", "dtype": "int64"}, "buffer"),
        ({"phase": "backward", "kind": "broadcast"}, "other"),
        ({"phase": "backward", "kind": "reduce_scatter"}, "other"),
        ({"phase": "backward", "kind": None}, "other"),
        ({"phase": "backward", "node": NODE + "torch::autograd::AccumulateGrad"}, "bucket"),
        ({"phase": "backward", "node": NODE + "CompiledFunctionBackward"}, "bucket"),
        ({"phase": "backward", "node": NODE + "SyncBatchNormBackward"}, "sync_batch_norm"),
        ({"phase": "backward", "node": NODE + "_ReduceFromModelParallelRegionBackward"}, "other"),
    ],
)
def test_what_a_collective_is_for(fields: dict[str, Any], role: CollectiveRole) -> None:
    values: dict[str, Any] = {
        "rank": 0, "step": 2, "process_group": "0", "kind": "all_reduce", "dtype": "float32", "num_elements": 100,
        "num_bytes": 400, "launch_ns": 0, "start_ns": 0, "end_ns": 1,
    }  # fmt: skip
    assert classify_collective(Collective(**(values | fields))) == role


# ----------------------------------------------------------------------------------------------------------- CPU


def cpu_rank(rank: int = 0, clock_us: int = 0) -> RankTrace:
    """Three buckets; backward ends at 500, and the last two are waited for: 510 to 600, and 620 to 700."""
    trace = RankTrace(rank, clock_us=clock_us)
    trace.step(2, 0, 1000)
    trace.forward(0, 100)
    trace.gloo(20, 25, 40, 7, kind="broadcast")
    trace.gradient(200, 300, 100)
    trace.gloo(290, 300, 450, 100)
    trace.gradient(300, 400, 50)
    trace.gloo(390, 400, 600, 50, worker=1)
    trace.gradient(400, 450, 20)
    trace.gradient(450, 500, 5)
    trace.gloo(490, 510, 700, 25)
    trace.copy_back(500, 510)
    trace.copy_back(600, 620)
    trace.copy_back(700, 710)
    trace.optimizer(800, 900)
    return trace


def test_a_cpu_step_blocks_while_its_backward_thread_waits() -> None:
    for schedule in lay_out(cpu_rank(), cpu_rank(1)).schedules:
        assert blocking_spans(schedule) == [(510, 600), (620, 700)]
        assert shares(schedule) == [0, 90, 80]
        assert (schedule.exchange.num_backwards, schedule.exchange.num_syncs) == (1, 1)
        assert schedule.exchange.copy_back_ns == 40_000
        assert schedule.exchange.host_tail_ns == 0


def test_the_buckets_of_a_cpu_step() -> None:
    front = lay_out(cpu_rank(), cpu_rank(1))
    first, second, third = front.schedules[0].buckets
    names = ("ready_host", "launch", "start", "end", "queue_wait", "peer_wait", "transfer", "exposed")
    assert us(first, *names) == [290, 290, 300, 450, 10, 0, 150, 0]
    assert us(second, *names) == [390, 390, 400, 600, 10, 0, 200, 90]
    assert us(third, *names) == [490, 490, 510, 700, 20, 0, 190, 170]
    assert [bucket.num_bytes for bucket in (first, second, third)] == [400, 200, 100]
    assert [bucket.bucket for bucket in (first, second, third)] == [0, 1, 2]


def test_gradients_are_ready_at_their_node_but_before_the_launch_it_holds() -> None:
    (schedule,) = lay_out(cpu_rank()).schedules
    gradients = [(g.index, g.num_bytes, g.dtype, g.ready_host_ns // 1000) for g in schedule.exchange.gradients]
    assert gradients == [
        (0, 400, "float32", 90),
        (1, 200, "float32", 190),
        (2, 80, "float32", 250),
        (3, 20, "float32", 290),
    ]
    assert [g.ready_device_ns for g in schedule.exchange.gradients] == [
        g.ready_host_ns for g in schedule.exchange.gradients
    ]


def test_another_clock_changes_nothing_but_the_offset() -> None:
    here, there = lay_out(cpu_rank(), cpu_rank(1)), lay_out(cpu_rank(), cpu_rank(1, clock_us=5000))
    assert [s.clock_offset_ns for s in there.schedules] == [0, 5_000_000]
    assert [s.buckets for s in here.schedules] == [s.buckets for s in there.schedules]


def test_without_the_peer_waiting_is_unknown() -> None:
    (schedule,) = lay_out(cpu_rank()).schedules
    assert shares(schedule) == [0, 90, 80]
    assert [us(bucket, "peer_wait", "transfer") for bucket in schedule.buckets] == [[None, None]] * 3


def test_blocking_goes_to_the_transfer_else_to_the_wait_for_peers() -> None:
    # Bucket 1 is sent until 560. Bucket 0 waits until 580, when rank 1's worker takes it up: rank 0 waits for its peer,
    # rank 1 for its own queue, and both for 20 of sending.
    ranks = []
    for rank, start in enumerate((490, 580)):
        trace = RankTrace(rank)
        trace.step(2, 0, 1000)
        trace.forward(0, 100)
        trace.gradient(300, 490, 100)
        trace.gloo(480, start, 600, 100)
        trace.gradient(490, 500, 50)
        trace.gloo(492, 495, 560, 50, worker=1)
        trace.copy_back(600, 610)
        trace.optimizer(700, 800)
        ranks.append(trace)
    for schedule, queue_wait, peer_wait in zip(lay_out(*ranks).schedules, (10, 100), (90, 0), strict=True):
        assert blocking_spans(schedule) == [(500, 600)]
        assert shares(schedule) == [20 + 20, 60]
        first, second = (us(bucket, "queue_wait", "peer_wait", "transfer") for bucket in schedule.buckets)
        assert first == [queue_wait, peer_wait, 20]
        assert second == [3, 0, 65]


def test_a_mark_of_unused_parameters_and_a_join_are_no_buckets() -> None:
    trace = cpu_rank()
    trace.gloo(495, 702, 705, 16, dtype="int")
    trace.gloo(12, 13, 14, 1)
    (schedule,) = lay_out(trace).schedules
    assert [bucket.num_elements for bucket in schedule.buckets] == [100, 50, 25]


def test_what_batch_norm_exchanges_in_backward_is_no_bucket() -> None:
    trace = cpu_rank()
    trace.node(105, 195, "SyncBatchNormBackward")
    trace.gloo(150, 160, 180, 128)
    front = lay_out(trace)
    assert [bucket.num_elements for bucket in front.schedules[0].buckets] == [100, 50, 25]
    assert Counter(classify_collective(c) for c in front.observations[0].collectives)["sync_batch_norm"] == 1


def test_a_metric_and_a_norm_that_are_reduced_after_backward_are_no_buckets() -> None:
    trace = cpu_rank()
    trace.gloo(720, 725, 730, 1)
    trace.gloo(740, 745, 750, 512)
    (schedule,) = lay_out(trace).schedules
    assert [bucket.num_elements for bucket in schedule.buckets] == [100, 50, 25]


def micro_steps(*, silent: bool) -> RankTrace:
    """Two backwards of one step, of which the first is silent or not."""
    trace = RankTrace()
    trace.step(2, 0, 1000)
    for zero in (0, 400):
        trace.forward(zero, zero + 100)
        trace.gradient(zero + 150, zero + 200, 64)
        if zero or not silent:
            trace.gloo(zero + 195, zero + 205, zero + 300, 64)
            trace.copy_back(zero + 300, zero + 310)
    trace.optimizer(800, 900)
    return trace


@pytest.mark.parametrize(("silent", "num_syncs"), [(True, 1), (False, 2)])
def test_of_several_micro_steps_the_last_one_that_synchronised_counts(silent: bool, num_syncs: int) -> None:
    (schedule,) = lay_out(micro_steps(silent=silent)).schedules
    assert (schedule.exchange.num_backwards, schedule.exchange.num_syncs) == (2, num_syncs)
    assert [us(bucket, "launch", "start", "end") for bucket in schedule.buckets] == [[595, 605, 700]]
    assert blocking_spans(schedule) == [(600, 700)]
    assert schedule.exchange.backward.host_start_ns == 550_000


def test_buckets_launched_after_the_last_gradient_are_a_synchronisation_too() -> None:
    # DDP with a static graph does so in its first step.
    trace = micro_steps(silent=False)
    trace.step(3, 1000, 1500)
    trace.forward(1000, 1100)
    trace.gradient(1150, 1200, 64)
    trace.gloo(1201, 1205, 1300, 64)
    trace.copy_back(1300, 1310)
    first, second = lay_out(trace).schedules
    assert (first.exchange.num_syncs, second.exchange.num_syncs) == (2, 1)
    assert blocking_spans(second) == [(1200, 1201), (1202, 1300)]
    assert shares(second) == [99]


def test_a_step_without_an_exchange_has_no_schedule() -> None:
    trace = RankTrace()
    trace.step(2, 0, 100)
    trace.forward(0, 10)
    trace.gradient(20, 30, 64)
    assert lay_out(trace).schedules == []


# ----------------------------------------------------------------------------------------------------------- GPU


def gpu_rank(*following: tuple[int, int]) -> RankTrace:
    """Backward's kernels end at 500, the last of two buckets at 700; then a kernel for each (launch, start)."""
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 1000)
    trace.forward(0, 50)
    trace.nccl(10, 60, 70, 53120, kind="broadcast")
    trace.kernel(20, 70, 150)
    trace.gradient(100, 150, 100)
    trace.kernel(110, 150, 300)
    trace.nccl(140, 300, 420, 100)
    trace.gradient(150, 200, 50)
    trace.kernel(155, 300, 500)
    trace.nccl(190, 520, 700, 50)
    trace.copy_back(210, 230)
    trace.kernel(215, 700, 710, "copy")
    trace.optimizer(240, 990)
    for launch, start in following:
        trace.kernel(launch, start, start + 10)
    return trace


@pytest.mark.parametrize(
    ("following", "spans", "host_tail"),
    [
        ([(250, 710)], [(500, 700)], 0),  # the optimizer was launched early and waits for the last bucket
        ([(600, 710)], [(600, 700)], 100),  # the host was late by 100: that part is not communication's fault
        ([(900, 905)], [], 400),  # all of it ran while the host was still busy
        ([(250, 550)], [(500, 550)], 0),  # what follows did not wait for communication
        ([(800, 810), (250, 710)], [(500, 700)], 0),  # the first launch counts
        ([], [(500, 700)], 0),  # nothing follows
    ],
)
def test_a_gpu_step_blocks_from_compute_or_launch_to_the_last_bucket_or_the_next_kernel(
    following: list[tuple[int, int]], spans: list[tuple[int, int]], host_tail: int
) -> None:
    (schedule,) = lay_out(gpu_rank(*following)).schedules
    assert blocking_spans(schedule) == spans
    assert schedule.exchange.host_tail_ns == 1000 * host_tail
    assert shares(schedule) == [0, sum(end - start for start, end in spans)]


def test_what_an_earlier_step_left_to_do_does_not_block_this_one() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 200)
    trace.kernel(10, 100, 440)
    trace.step(3, 200, 500)
    trace.forward(210, 220)
    trace.gradient(250, 290, 64)
    trace.nccl(260, 350, 400, 64)  # beside the earlier step's kernel, on a stream of its own
    trace.optimizer(350, 360)
    (schedule,) = lay_out(trace).schedules
    assert blocking_spans(schedule) == []
    assert schedule.exchange.backward.end_ns == 440_000


def test_on_a_gpu_a_bucket_is_ready_when_its_last_kernel_ended_not_when_it_starts() -> None:
    (schedule,) = lay_out(gpu_rank((250, 710))).schedules
    names = ("ready_host", "ready_device", "launch", "start", "end", "queue_wait", "exposed")
    assert [us(bucket, *names) for bucket in schedule.buckets] == [
        [140, 300, 140, 300, 420, 0, 0],
        [190, 500, 190, 520, 700, 20, 180],
    ]
    # The host's backward starts at 100, the device's at 150: it still ran the forward.
    assert [(g.ready_host_ns // 1000, g.ready_device_ns // 1000) for g in schedule.exchange.gradients] == [
        (40, 150),
        (90, 350),
    ]


def test_only_the_group_with_most_buckets_is_ddps() -> None:
    trace = gpu_rank((250, 710))
    trace.kernel(
        195, 430, 440, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=21, args=describe_collective(999, group="7")
    )
    (schedule,) = lay_out(trace).schedules
    assert [bucket.num_elements for bucket in schedule.buckets] == [100, 50]


def test_time_between_buckets_goes_to_the_next_in_the_queue() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 1000)
    trace.forward(0, 50)
    trace.gradient(100, 200, 100)
    trace.kernel(110, 150, 300)
    trace.nccl(150, 250, 400, 100)
    trace.nccl(160, 450, 600, 50)
    trace.optimizer(240, 250)
    trace.kernel(245, 600, 610)
    (schedule,) = lay_out(trace).schedules
    assert blocking_spans(schedule) == [(300, 600)]
    assert shares(schedule) == [100, 50 + 150]
