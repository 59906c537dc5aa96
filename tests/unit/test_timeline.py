"""Steps, phases and unions on traces of one rank; every time is in microseconds."""

from __future__ import annotations

import pytest

from advisor.intervals import Intervals, intersection, total
from advisor.timeline import RankTimeline, StepTimeline
from tests.trace_builders import COMPUTE_STREAM, GLOO_THREADS, HOST_PROCESS, NCCL_STREAM, RankTrace

EPOCH_US = 1_711_964_646_416_788


def phases(step: StepTimeline, zero_us: int = 0) -> list[tuple[str, int, int]]:
    """The step's spans that have a length."""
    spans = [(s.phase, s.start_ns // 1000 - zero_us, s.end_ns // 1000 - zero_us) for s in step.spans]
    return [span for span in spans if span[1] < span[2]]


def pairs(intervals: Intervals) -> list[tuple[int, int]]:
    return [(int(start) // 1000, int(end) // 1000) for start, end in intervals]


def cpu_step(trace: RankTrace, number: int, zero: int = 0) -> None:
    """1000 µs: data 100, forward 300, backward 200, waiting for the only bucket 80, copy 40, optimizer 50."""
    trace.step(number, zero, zero + 1000)
    trace.forward(zero + 100, zero + 300)
    trace.operator("aten::mm", zero + 110, zero + 290)
    trace.node(zero + 400, zero + 450)
    trace.gradient(zero + 450, zero + 500, 64)
    trace.gradient(zero + 550, zero + 600, 64)
    trace.gloo(zero + 598, zero + 610, zero + 680, 128)
    trace.copy_back(zero + 680, zero + 720)
    trace.optimizer(zero + 900, zero + 950)


def assert_steps_add_up(timeline: RankTimeline) -> None:
    for step in timeline.steps:
        assert sum(span.end_ns - span.start_ns for span in step.spans) == step.end_ns - step.start_ns
        assert all(a.end_ns == b.start_ns for a, b in zip(step.spans, step.spans[1:], strict=False))
        assert all(a.host_end_ns == b.host_start_ns for a, b in zip(step.spans, step.spans[1:], strict=False))
        assert (step.spans[0].host_start_ns, step.spans[-1].host_end_ns) == (step.host_start_ns, step.host_end_ns)


# --------------------------------------------------------------------------------------------------------- steps


def test_steps_after_the_rebuild_count_where_there_are_any() -> None:
    trace = RankTrace()
    for number in range(4):
        cpu_step(trace, number, 1000 * number)
    timeline = trace.lay_out()
    assert timeline.step_source == "profiler"
    assert [(step.number, step.host_start_ns // 1000) for step in timeline.steps] == [(2, 2000), (3, 3000)]


def test_early_steps_are_better_than_none() -> None:
    trace = RankTrace()
    cpu_step(trace, 1)
    assert [step.number for step in trace.lay_out().steps] == [1]


def test_profiler_steps_are_found_in_the_first_formats_too() -> None:
    trace = RankTrace()
    trace.add("Operator", "ProfilerStep#7", 0, 100)
    trace.add("Operator", "aten::mm", 10, 20)
    timeline = trace.lay_out()
    assert [(step.number, timeline.step_source) for step in timeline.steps] == [(7, "profiler")]
    assert pairs(timeline.compute) == [(10, 20)]


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op"])
def test_optimizer_steps_stand_in_for_profiler_steps(category: str) -> None:
    trace = RankTrace()
    for start in (100, 300, 600):
        trace.forward(start - 50, start - 40)
        trace.add(category, "Optimizer.step#SGD.step", start, start + 10)
    timeline = trace.lay_out()
    assert timeline.step_source == "optimizer"
    assert [(s.host_start_ns // 1000, s.host_end_ns // 1000) for s in timeline.steps] == [(110, 310), (310, 610)]


def test_forwards_stand_in_for_optimizer_steps() -> None:
    trace = RankTrace()
    for start in (100, 300):
        trace.forward(start, start + 10)
    timeline = trace.lay_out()
    assert timeline.step_source == "forward"
    assert [(s.host_start_ns // 1000, s.host_end_ns // 1000) for s in timeline.steps] == [(100, 300)]


@pytest.mark.parametrize("name", ["Optimizer.step#SGD.step", "DistributedDataParallel.forward"])
def test_the_gpus_copies_of_annotations_are_no_steps(name: str) -> None:
    # Kineto repeats every annotation that launched kernels on the GPU's own track.
    trace = RankTrace(backend="nccl")
    for start in (100, 300):
        trace.add("user_annotation", name, start, start + 10)
        trace.add("gpu_user_annotation", name, start + 5, start + 55, pid=0, tid=COMPUTE_STREAM)
        trace.kernel(start + 1, start + 5, start + 55)
    assert len(trace.lay_out().steps) == 1


def test_a_trace_without_any_mark_is_one_window() -> None:
    trace = RankTrace()
    trace.operator("aten::mm", 10, 30)
    timeline = trace.lay_out()
    assert timeline.step_source == "window"
    assert [phases(step) for step in timeline.steps] == [[("other", 10, 30)]]


def test_steps_without_length_are_left_out() -> None:
    trace = RankTrace()
    trace.step(5, 10, 10)
    assert trace.lay_out().steps == ()
    cpu_step(trace, 6, 1000)
    assert [step.number for step in trace.lay_out().steps] == [6]


# -------------------------------------------------------------------------------------------------------- phases


def test_the_phases_of_a_cpu_step_add_up_to_it() -> None:
    trace = RankTrace()
    cpu_step(trace, 2)
    timeline = trace.lay_out()
    (step,) = timeline.steps
    assert phases(step) == [
        ("data", 0, 100),
        ("forward", 100, 400),
        ("backward", 400, 600),
        ("gradient_finish", 600, 720),
        ("other", 720, 900),
        ("optimizer", 900, 950),
        ("other", 950, 1000),
    ]
    assert step.sum_phase_ns("other") == 230_000
    assert step.host_bound_ns == 0
    assert_steps_add_up(timeline)


def test_every_micro_step_has_its_own_phases() -> None:
    trace = RankTrace()
    trace.step(2, 0, 1000)
    for zero in (100, 500):
        trace.forward(zero, zero + 50)
        trace.node(zero + 60, zero + 100)
        trace.gradient(zero + 100, zero + 200, 64)
    trace.gloo(698, 700, 740, 64)
    trace.copy_back(740, 750)
    trace.operator("aten::add", 310, 320)
    trace.optimizer(800, 900)
    timeline = trace.lay_out()
    (step,) = timeline.steps
    assert phases(step) == [
        ("data", 0, 100),
        ("forward", 100, 160),
        ("backward", 160, 300),
        ("gradient_finish", 300, 310),
        ("other", 310, 500),
        ("forward", 500, 560),
        ("backward", 560, 700),
        ("gradient_finish", 700, 750),
        ("other", 750, 800),
        ("optimizer", 800, 900),
        ("other", 900, 1000),
    ]
    assert [len(step.find_spans(phase)) for phase in ("forward", "backward", "gradient_finish")] == [2, 2, 2]
    assert_steps_add_up(timeline)


def test_a_micro_step_that_follows_at_once_still_leaves_the_wait_to_the_one_before() -> None:
    trace = RankTrace()
    trace.step(2, 0, 500)
    for zero in (0, 200):
        trace.forward(zero, zero + 40)
        trace.gradient(zero + 50, zero + 100, 64)
        trace.gloo(zero + 98, zero + 101, zero + 190, 64)
    trace.optimizer(400, 450)
    (step,) = trace.lay_out().steps
    assert [span for span in phases(step) if span[0] == "gradient_finish"] == [
        ("gradient_finish", 100, 200),
        ("gradient_finish", 300, 400),
    ]


def test_without_copies_backward_returns_before_the_hosts_next_event_and_not_a_workers() -> None:
    # With gradients as bucket views nothing is copied back; the second bucket starts after backward, on gloo's thread.
    trace = RankTrace()
    trace.step(2, 0, 500)
    trace.forward(0, 40)
    trace.gradient(50, 100, 64)
    trace.gloo(60, 61, 120, 64)
    trace.gloo(98, 125, 290, 32)
    trace.operator("aten::copy_", 130, 140, tid=GLOO_THREADS[0])
    trace.optimizer(300, 400)
    (step,) = trace.lay_out().steps
    assert phases(step)[:4] == [
        ("forward", 0, 50), ("backward", 50, 100), ("gradient_finish", 100, 300), ("optimizer", 300, 400)
    ]  # fmt: skip


def test_an_execution_that_was_lost_is_not_waited_for_in_the_next_step() -> None:
    trace = RankTrace()
    for number, zero in ((2, 0), (3, 500)):
        trace.step(number, zero, zero + 500)
        trace.forward(zero, zero + 40)
        trace.gradient(zero + 50, zero + 100, 64)
        trace.gloo(zero + 60, zero + 61, zero + 120, 64)
        trace.gloo(zero + 98, zero + 125, zero + 290, 32)
        trace.optimizer(zero + 300, zero + 400)
    trace.events.remove(next(e for e in trace.events if e["name"] == "gloo:all_reduce" and e["ts"] == 125))
    finishes = [span for step in trace.lay_out().steps for span in phases(step) if span[0] == "gradient_finish"]
    assert finishes == [("gradient_finish", 100, 300), ("gradient_finish", 600, 800)]


def test_the_forwards_of_several_ddp_modules_are_one_forward() -> None:
    trace = RankTrace()
    trace.step(2, 0, 500)
    trace.forward(50, 80)
    trace.forward(100, 140)
    trace.gradient(200, 300, 64)
    trace.optimizer(300, 400)
    (step,) = trace.lay_out().steps
    assert phases(step)[:3] == [("data", 0, 50), ("forward", 50, 200), ("backward", 200, 300)]


def test_a_step_without_any_backward_still_has_its_forwards() -> None:
    trace = RankTrace()
    trace.step(2, 0, 500)
    trace.forward(50, 150)
    trace.operator("aten::add", 160, 170)
    trace.forward(200, 400)
    timeline = trace.lay_out()
    assert phases(timeline.steps[0]) == [
        ("data", 0, 50), ("forward", 50, 150), ("other", 150, 200), ("forward", 200, 400), ("other", 400, 500)
    ]  # fmt: skip
    assert_steps_add_up(timeline)


def test_a_forward_after_the_last_backward_is_forward_until_it_returns() -> None:
    trace = RankTrace()
    cpu_step(trace, 2)
    trace.forward(750, 850)  # without gradients, as an evaluation
    timeline = trace.lay_out()
    assert phases(timeline.steps[0])[-5:] == [
        ("other", 720, 750), ("forward", 750, 850), ("other", 850, 900), ("optimizer", 900, 950), ("other", 950, 1000)
    ]  # fmt: skip
    assert_steps_add_up(timeline)


def test_a_forward_without_a_backward_lasts_until_its_kernels_are_done() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 100)
    trace.forward(10, 40)
    trace.kernel(20, 30, 180)
    trace.kernel(50, 180, 200)
    timeline = trace.lay_out()
    assert phases(timeline.steps[0]) == [("data", 0, 10), ("forward", 10, 180), ("other", 180, 200)]
    assert_steps_add_up(timeline)


def test_our_own_wrapper_is_read_from_its_marks() -> None:
    trace = RankTrace()
    trace.step(2, 0, 500)
    trace.add("user_annotation", "BucketedDDP.forward", 0, 40)
    trace.gradient(50, 100, 64)
    trace.add("user_annotation", "bucketed_ddp::bucket_wait#0", 110, 200)
    trace.add("user_annotation", "bucketed_ddp::copy_back#0", 210, 230)
    trace.optimizer(300, 400)
    timeline = trace.lay_out()
    assert ("gradient_finish", 100, 230) in phases(timeline.steps[0])


# ----------------------------------------------------------------------------------------------------------- GPU


def gpu_step(trace: RankTrace, number: int, host: int, device: int) -> None:
    """100 µs of host time; its kernels run for 320 µs from `device` on: 100, 150, an all-reduce of 50, and 20."""
    trace.step(number, host, host + 100)
    trace.forward(host + 10, host + 40)
    trace.kernel(host + 20, device, device + 100)
    trace.gradient(host + 50, host + 70, 64)
    trace.kernel(host + 55, device + 100, device + 250)
    trace.nccl(host + 65, device + 250, device + 300, 64)
    trace.optimizer(host + 80, host + 90)
    trace.kernel(host + 85, device + 300, device + 320)


@pytest.mark.parametrize("clock_us", [0, EPOCH_US])
def test_steps_of_a_gpu_that_lags_behind_are_told_by_their_launches(clock_us: int) -> None:
    trace = RankTrace(backend="nccl", clock_us=clock_us)
    trace.kernel(None, 10, 195)  # the step before, of which only the kernels were recorded
    gpu_step(trace, 4, 0, 200)
    gpu_step(trace, 5, 100, 520)
    timeline = trace.lay_out()
    assert [phases(step, clock_us) for step in timeline.steps] == [
        [("forward", 195, 300), ("backward", 300, 450), ("gradient_finish", 450, 500), ("optimizer", 500, 520)],
        [("forward", 520, 620), ("backward", 620, 770), ("gradient_finish", 770, 820), ("optimizer", 820, 840)],
    ]
    assert [step.host_bound_ns for step in timeline.steps] == [0, 0]
    assert_steps_add_up(timeline)


def test_a_launch_is_exact_even_where_others_are_missing() -> None:
    trace = RankTrace(backend="nccl", clock_us=EPOCH_US)
    trace.kernel(None, 0, 5)
    trace.kernel(11, 12, 13)
    assert trace.lay_out().device["launch_ns"].tolist() == [-1, 1000 * (EPOCH_US + 11)]


def test_what_the_host_does_before_its_first_kernel_counts_in_every_step() -> None:
    trace = RankTrace(backend="nccl")
    for number, zero in ((4, 0), (5, 1000)):
        trace.step(number, zero, zero + 1000)
        trace.forward(zero + 600, zero + 700)
        trace.kernel(zero + 650, zero + 660, zero + 790)
        trace.gradient(zero + 800, zero + 900, 64)
        trace.kernel(zero + 850, zero + 860, zero + 950)
    timeline = trace.lay_out()
    assert [step.sum_phase_ns("data") for step in timeline.steps] == [600_000, 600_000]
    assert [step.end_ns - step.start_ns for step in timeline.steps] == [1_000_000, 1_000_000]
    # The device idles for late launches up to 650, from 790 to 850, and from 950 on.
    assert [step.host_bound_ns for step in timeline.steps] == [760_000, 760_000]
    assert_steps_add_up(timeline)


def test_idling_behind_an_earlier_launch_is_not_the_hosts_fault() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 100)
    trace.kernel(None, 0, 5)
    trace.kernel(1, 10, 20)
    trace.kernel(2, 30, 40)  # launched long before, it waited for something else
    trace.kernel(45, 50, 100)
    assert trace.lay_out().steps[0].host_bound_ns == 5_000


# -------------------------------------------------------------------------------------------------------- unions


def test_compute_on_the_cpu_is_operators_off_the_gloo_threads() -> None:
    trace = RankTrace()
    trace.operator("aten::mm", 0, 10)
    trace.gloo(9, 12, 30, 64)
    trace.operator("aten::copy_", 13, 14, tid=GLOO_THREADS[0])
    trace.operator("aten::mm", 20, 25)
    trace.add("user_annotation", "forward of mine", 0, 100)
    timeline = trace.lay_out()
    assert pairs(timeline.compute) == [(0, 10), (20, 25)]
    assert pairs(timeline.communication) == [(12, 30)]
    assert timeline.communication_rows.sum() == 1


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "ncclDevKernel_Generic",
        "ncclSymkDevKernel_AllReduce_sum_f32",
        "nccldevkernel_allreduce_sum_f32_ring_ll",
        "rcclGenericKernel<1, false>",
    ],
)
@pytest.mark.parametrize("category", ["kernel", "Kernel"])
def test_overlap_does_not_depend_on_names(name: str, category: str) -> None:
    trace = RankTrace(backend="nccl")
    trace.add(category, "gemm", 0, 50, pid=0, tid=COMPUTE_STREAM)
    trace.add(category, name, 30, 80, pid=0, tid=NCCL_STREAM)
    trace.add("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 60, 70, pid=0, tid=9)
    trace.add("cuda_sync", "Event Synchronize", 0, 99, pid=HOST_PROCESS)
    trace.add("cuda_runtime", "cudaStreamSynchronize", 0, 99)
    trace.add("gpu_user_annotation", "nccl:all_reduce", 30, 99, pid=0, tid=NCCL_STREAM)
    timeline = trace.lay_out()
    assert pairs(timeline.compute) == [(0, 50)]
    assert pairs(timeline.communication) == [(30, 80)]
    assert total(intersection(timeline.compute, timeline.communication)) == 20_000
