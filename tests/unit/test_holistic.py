"""HTA's answers about traces small enough to work them out, and what happens where it has none."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from advisor import holistic
from advisor.holistic import INSTALL, MOST_KERNELS, examine_rank, merge_answers
from advisor.hta_rows import WAITS
from advisor.schema import CriticalPath, DeviceTime, Holistic, HolisticRank, KernelTime, OverlapCheck, StreamIdle
from advisor.survey import survey_rank
from advisor.tables import Trace
from tests.trace_builders import ALL_REDUCE_KERNEL, COMPUTE_STREAM, GEMM, NCCL_STREAM, RankTrace

pytest.importorskip("hta", reason="asking HolisticTraceAnalysis needs the extra `hta`")

US = 1000
SPELLINGS = (
    "ncclKernel_AllReduce_RING_LL_Sum_float", "ncclDevKernel_Generic", "ncclSymkDevKernel_AllReduce",
    "ncclkernel_allreduce", "rcclAllReduceKernel", "oneccl_allreduce",
)  # fmt: skip


def record(communication: str = ALL_REDUCE_KERNEL, *, rank: int = 0, clock_us: int = 0) -> RankTrace:
    """Two steps of 100 µs; in each a GEMM and a collective that has it beside for 10 µs.

    The GEMMs run at 10-40 and 110-150 µs, the collectives at 30-60 and 140-180 µs.
    """
    trace = RankTrace(rank=rank, backend="nccl", clock_us=clock_us)
    for number, (gemm, collective) in enumerate((((10, 40), (30, 60)), ((110, 150), (140, 180))), start=2):
        at = 100 * (number - 2)
        trace.step(number, at, at + 100)
        trace.operator("aten::mm", at + 3, at + 9)
        trace.kernel(at + 5, *gemm, GEMM)
        trace.operator("c10d::allreduce_", at + 19, at + 22)
        trace.kernel(at + 20, *collective, communication, stream=NCCL_STREAM)
    return trace


def ask(trace: RankTrace | Trace, **options: int) -> HolisticRank:
    answers = examine_rank(trace.read() if isinstance(trace, RankTrace) else trace, **options)
    assert answers.messages == ()
    return answers.ranks[0]


def examine_run(traces: list[Trace]) -> Holistic:
    return merge_answers([examine_rank(trace, MOST_KERNELS // len(traces)) for trace in traces], len(traces))


@pytest.fixture(scope="module")
def plain() -> HolisticRank:
    """The answers about `record()`."""
    return ask(record())


# -------------------------------------------------------------------------------------------- answers worked out


def test_the_device_s_time_is_idle_computation_and_other(plain: HolisticRank) -> None:
    expected = DeviceTime(span_ns=170 * US, idle_ns=50 * US, computation_ns=70 * US, other_ns=50 * US)
    assert plain.device_time == expected


def test_the_overlap_is_20_of_70_for_both_of_us(plain: HolisticRank) -> None:
    overlap = plain.overlap
    assert overlap is not None
    assert overlap.ours_fraction == pytest.approx(20 / 70)
    assert overlap.hta_fraction == pytest.approx(0.2857)
    assert overlap.agrees


def test_a_stream_waits_for_a_late_launch(plain: HolisticRank) -> None:
    """The GEMM of the second step is launched 65 µs after the first one ended, the collective 60 µs."""
    assert plain.idle == (
        StreamIdle(stream=COMPUTE_STREAM, host_wait_ns=70 * US, kernel_wait_ns=0, other_ns=0),
        StreamIdle(stream=NCCL_STREAM, host_wait_ns=80 * US, kernel_wait_ns=0, other_ns=0),
    )


def test_gaps_below_30_us_mean_nothing_and_longer_ones_something_else() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 200)
    for launch, start, end in ((1, 10, 20), (2, 49, 60), (3, 95, 100)):
        trace.kernel(launch, start, end)
    expected = StreamIdle(stream=COMPUTE_STREAM, host_wait_ns=0, kernel_wait_ns=29 * US, other_ns=35 * US)
    assert ask(trace).idle == (expected,)


def test_a_queue_holds_what_is_launched_and_not_yet_started() -> None:
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 200)
    for number in range(3):
        trace.kernel(2 * number, 50 + 10 * number, 60 + 10 * number)  # lengths 1, 2, 3, 2, 1, 0
    (queue,) = ask(trace).queues
    assert (queue.stream, queue.mean_length, queue.median_length, queue.max_length) == (COMPUTE_STREAM, 1.5, 1.5, 3)


def test_launches_by_any_call_are_counted(plain: HolisticRank) -> None:
    trace = record()
    for event in trace.events:
        if event["cat"] == "cuda_runtime":
            event.update(cat="cuda_driver", name="cuLaunchKernelEx")
    assert ask(trace).queues == plain.queues


def test_more_kernels_than_are_listed_keep_their_own_mean_and_extremes() -> None:
    """HTA merges kernels beyond `num_kernels`, and then gives sums for means."""
    trace = RankTrace(backend="nccl")
    trace.step(2, 0, 10_000)
    for number in range(15):
        for call in range(2):
            start = 100 * number + 50 * call
            trace.kernel(start, start + 1, start + 1 + number + 10 * call, f"kernel_{number:02}")
    kernels = ask(trace).kernels
    assert [kernel.name for kernel in kernels] == [f"kernel_{number:02}" for number in range(14, 4, -1)]
    assert kernels[0] == KernelTime(
        name="kernel_14", kind="computation", num_calls=2, total_ns=38 * US, mean_ns=19.0 * US, min_ns=14 * US,
        max_ns=24 * US, stddev_ns=pytest.approx(50**0.5 * US),
    )  # fmt: skip


def test_kinds_that_run_at_the_same_time_are_told_apart() -> None:
    trace = record()
    trace.add("gpu_memcpy", "Memcpy HtoD", 170, 190, pid=0, tid=9, args={"stream": 9, "correlation": 99})
    trace.add("cuda_runtime", "cudaMemcpyAsync", 125, 126, args={"correlation": 99})
    times = {frozenset(kind.kinds): kind.total_ns / US for kind in ask(trace).kinds}
    assert times == {
        frozenset({"computation"}): 50,
        frozenset({"communication"}): 40,
        frozenset({"computation", "communication"}): 20,
        frozenset({"communication", "memory"}): 10,
        frozenset({"memory"}): 10,
    }


# ------------------------------------------------------------------------------------- where HTA alone goes wrong


def test_it_answers_as_with_its_own_parser_where_that_rounds_nothing(tmp_path: Path, plain: HolisticRank) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps(json.loads(record().to_json()), indent=1))
    with holistic._silence():
        from hta.trace_analysis import TraceAnalysis

        theirs = TraceAnalysis({0: str(file)}, str(tmp_path), include_last_profiler_step=True)
        time = theirs.get_temporal_breakdown(visualize=False).iloc[0]
        idle = theirs.get_idle_time_breakdown(ranks=[0], visualize=False)[0].groupby("stream")["idle_time"].sum()
        lengths = theirs.get_queue_length_summary(ranks=[0])["queue_length"]["max"].tolist()
    ours = plain
    assert ours.device_time.span_ns == time["kernel_time(us)"] * US
    assert ours.device_time.idle_ns == time["idle_time(us)"] * US
    assert ours.device_time.computation_ns == time["compute_time(us)"] * US
    assert {stream.stream: stream.host_wait_ns for stream in ours.idle} == (idle * US).to_dict()
    assert [queue.max_length for queue in ours.queues] == lengths


def test_nanoseconds_and_epoch_times_are_exact() -> None:
    trace = record(clock_us=1_711_964_646_000_000)
    trace.kernel(150, 190, 191)
    trace.events[-1]["dur"] = 0.001
    assert ask(trace).device_time.span_ns == 180 * US + 1


def test_host_rows_with_a_stream_are_no_kernels(plain: HolisticRank) -> None:
    trace = record()
    trace.add("cpu_op", "triton_poi_fused_add", 60, 110, args={"stream": 0})
    assert ask(trace) == plain


def test_synchronisation_is_neither_computation_nor_busy(plain: HolisticRank) -> None:
    trace = record()
    trace.add("cuda_sync", "Stream Wait Event", 60, 110, pid=0, tid=7, args={"stream": 7, "correlation": 77})
    assert ask(trace) == plain


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_kernels_of_any_communication_library_are_communication(spelling: str, plain: HolisticRank) -> None:
    rank = ask(record(spelling))
    assert rank.device_time == plain.device_time
    assert [kind.total_ns for kind in rank.kinds] == [kind.total_ns for kind in plain.kinds]
    assert {kernel.name: kernel.kind for kernel in rank.kernels} == {GEMM: "computation", spelling: "communication"}


def test_a_kernel_that_hta_misreads_is_a_named_disagreement() -> None:
    answers = examine_run([record("rcclAllReduceKernel").read()])
    assert answers.disagreements == answers.ranks
    expected = OverlapCheck(
        ours_fraction=20 / 70, hta_fraction=None, tolerance_fraction=0.5e-4, misread=("rcclAllReduceKernel",)
    )
    assert answers.ranks[0].overlap == expected


def test_a_kernel_that_only_sounds_like_synchronisation_is_computation(plain: HolisticRank) -> None:
    trace = record()
    for event in trace.events:
        if event["name"] == GEMM:
            event["name"] = "void batchNormSyncKernel"
    rank = ask(trace)
    assert rank.device_time == plain.device_time
    assert rank.overlap is not None
    assert (rank.overlap.hta_fraction, rank.overlap.misread) == (0.0, ("void batchNormSyncKernel",))


def test_the_last_step_counts_and_what_was_launched_after_it_does_not(plain: HolisticRank) -> None:
    trace = record()
    trace.kernel(250, 300, 400)
    rank = ask(trace)
    assert rank.device_time == plain.device_time
    assert (rank.num_kernels, rank.num_recorded_kernels) == (4, 5)


def test_a_graph_launches_many_kernels_with_one_call() -> None:
    trace = record()
    for start in (60, 70):
        event = {**trace.events[-1], "ts": start, "dur": 5, "args": {"stream": 30, "correlation": 50}}
        trace.events.append(event)
    trace.add("cuda_runtime", "cudaGraphLaunch", 55, 56, args={"correlation": 50})
    assert ask(trace).queues[-1].max_length == 2


# --------------------------------------------------------------------------------------------------- critical path


def record_synchronized() -> Trace:
    """Three steps in which a collective waits for a GEMM and the host for the collective, with what waits for what."""
    trace = RankTrace(backend="nccl")
    waits: dict[int, tuple[int, int]] = {}
    for number in (2, 3, 4):
        at, first = 1000 * number, 10 * number
        calls = (
            ("cudaLaunchKernel", 20, 30), ("cudaEventRecord", 62, 64), ("cudaStreamWaitEvent", 66, 68),
            ("cudaLaunchKernel", 75, 85), ("cudaStreamSynchronize", 110, 810),
        )  # fmt: skip
        device = (
            ("kernel", GEMM, 40, 300, 7, 0), ("cuda_sync", "Stream Wait Event", 68, 300, 20, 2),
            ("kernel", ALL_REDUCE_KERNEL, 302, 800, 20, 3), ("cuda_sync", "Stream Sync", 110, 808, 20, 4),
        )  # fmt: skip
        trace.step(number, at, at + 1000)
        for name, start, end in (("aten::mm", 10, 60), ("c10d::allreduce_", 61, 100), ("aten::item", 105, 815)):
            trace.operator(name, at + start, at + end)
        trace.operator("aten::add_", at + 820, at + 990)
        for call, (name, start, end) in enumerate(calls):
            trace.add("cuda_runtime", name, at + start, at + end, args={"correlation": first + call})
        for category, name, start, end, stream, call in device:
            args = {"stream": stream, "correlation": first + call}
            trace.add(category, name, at + start, at + end, pid=0, tid=stream, args=args)
        waits[first + 2] = (7, first + 1)
    read = trace.read()
    on_device = read.events["stream"] >= 0
    links = [waits.get(call, (-1, -1)) for call in read.events["correlation"].where(on_device)]
    events = read.events.assign(**dict(zip(WAITS, zip(*links, strict=True), strict=True)))
    return replace(read, events=events)


def test_the_critical_path_crosses_streams_by_what_waits_for_what() -> None:
    """10 µs of host, 20 of launching, the GEMM's 260, the collective's 498, then 5 + 170 of host."""
    path = ask(record_synchronized()).critical_path
    assert path == CriticalPath(
        step=3, host_ns=185 * US, computation_ns=260 * US, communication_ns=498 * US, launch_ns=20 * US, gap_ns=0
    )


def test_without_synchronisation_there_is_no_critical_path(plain: HolisticRank) -> None:
    trace = record_synchronized()
    assert plain.critical_path is None
    assert ask(replace(trace, events=trace.events.drop(columns=WAITS))).critical_path is None


def test_a_step_too_large_has_no_critical_path_and_says_so() -> None:
    answers = examine_rank(record_synchronized(), most_kernels=10)
    expected = "ProfilerStep#3 has 14 events, more than the 10 that can be looked at in time"
    assert answers.messages == (f"HolisticTraceAnalysis finds no critical path on rank 0: {expected}.",)
    assert answers.ranks[0].critical_path is None


def test_an_incoherent_critical_path_costs_nothing_else() -> None:
    trace = record_synchronized()
    renamed = trace.events["name"].astype(str).replace("Stream Sync", "Unknown Sync").astype("category")
    answers = examine_rank(replace(trace, events=trace.events.assign(name=renamed)))
    assert answers.messages == ("HolisticTraceAnalysis finds no critical path on rank 0: AssertionError: .",)
    assert answers.ranks[0].device_time == ask(trace).device_time


# ---------------------------------------------------------------------------------------- what cannot be answered


def test_without_gpu_events_it_says_so_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holistic, "find_obstacle", lambda: pytest.fail("loads hta"))
    trace = RankTrace()
    trace.operator("aten::mm", 0, 10)
    answers = examine_run([trace.read(), replace(trace.read(), rank=1)])
    assert answers.messages == ("There are no GPU events, so HolisticTraceAnalysis has nothing to add.",)
    assert (answers.ranks, answers.hta_version, answers.elapsed_ns) == ((), None, 0)


def test_where_the_extra_is_absent_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta.analyzers.breakdown_analysis", None)
    answers = examine_run([record().read(), record(rank=1).read()])
    assert answers.messages == (f"HolisticTraceAnalysis is not installed: {INSTALL}",)
    assert answers.ranks == ()


def test_what_it_lacks_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "hta"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert examine_run([record().read()]).messages == (f"HolisticTraceAnalysis lacks psutil: {INSTALL}",)


def test_another_version_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holistic, "version", lambda name: "0.6.0")
    expected = f"HolisticTraceAnalysis 0.6.0 is installed, and only 0.5.0 is understood: {INSTALL}"
    assert examine_run([record().read()]).messages == (expected,)


def test_pandas_3_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pandas.__version__", "3.0.1")
    expected = f"HolisticTraceAnalysis 0.5.0 gives wrong answers with pandas 3.0.1: {INSTALL}"
    assert examine_run([record().read()]).messages == (expected,)


def test_what_it_stumbles_over_is_told_and_costs_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = holistic._measure_queues

    def fail_on_rank_1(handed):
        if handed.trace.rank == 1:
            raise IndexError("single positional indexer is out-of-bounds")
        return honest(handed)

    monkeypatch.setattr(holistic, "_measure_queues", fail_on_rank_1)
    answers = examine_run([record().read(), record(rank=1).read()])
    assert [rank.rank for rank in answers.ranks] == [0]
    assert answers.messages == (
        "HolisticTraceAnalysis does not answer for rank 1: IndexError: single positional indexer is out-of-bounds.",
    )


def test_kernels_without_any_launch_are_told() -> None:
    trace = record()
    trace.events = [event for event in trace.events if event["cat"] != "cuda_runtime"]
    answers = examine_run([trace.read()])
    assert answers.messages == (
        "HolisticTraceAnalysis does not answer for rank 0: no launch of its kernels was recorded.",
    )


def test_without_communication_there_is_no_overlap_to_compare() -> None:
    trace = RankTrace(backend="nccl")
    trace.kernel(0, 1, 2)
    assert ask(trace).overlap is None


# ------------------------------------------------------------------------------------------------- time and noise


def test_of_a_long_recording_the_last_whole_steps_are_handed_over() -> None:
    rank = ask(record(), most_kernels=3)
    assert (rank.num_kernels, rank.num_recorded_kernels) == (2, 4)
    assert rank.device_time.span_ns == 70 * US


def test_of_a_long_step_its_end_is_handed_over() -> None:
    rank = ask(record(), most_kernels=1)
    assert rank.num_kernels == 1
    assert rank.device_time.span_ns == 40 * US


def test_of_many_ranks_the_first_are_handed_over() -> None:
    surveys = [survey_rank(record(rank=rank).read(), examined={0}) for rank in (0, 1)]
    answers = merge_answers([survey.holistic for survey in surveys if survey.holistic], len(surveys))
    assert [rank.rank for rank in answers.ranks] == [0]
    assert answers.messages == ("To save time, only the first 1 of 2 ranks were handed over.",)
    assert answers.elapsed_ns > 0


def test_nothing_is_printed_logged_or_left_behind(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    root, hta = logging.getLogger(), logging.getLogger("hta")
    before = (list(root.handlers), root.level, hta.level, list(hta.handlers), list(warnings.filters))
    ask(record_synchronized())
    assert (list(root.handlers), root.level, hta.level, list(hta.handlers), list(warnings.filters)) == before
    assert capfd.readouterr() == ("", "")
    assert [entry for entry in caplog.records if entry.name == "hta"] == []


def test_the_events_stay_as_they_were() -> None:
    trace = record().read()
    before = trace.events.copy()
    examine_rank(trace)
    assert trace.events.equals(before)
