"""Several files of one rank: joined where they are windows of one recording, refused where they are not."""

from __future__ import annotations

import pytest

from advisor.errors import InputError
from advisor.readers.chrome import read_chrome_trace
from advisor.readers.windows import join_windows
from advisor.tables import EVENT_COLUMNS, Trace
from advisor.timeline import build_timeline
from tests.trace_builders import RankTrace
from tests.trace_files import make_trace


def read(start: int, step: int | None) -> Trace:
    return read_chrome_trace(make_trace(start=start, step=step), f"at{start}.json")


def record_gpu_window(start: float, step: int, file: str) -> Trace:
    """A step of 100 µs that launches one kernel, whose correlation is 1 in every window."""
    trace = RankTrace(backend="nccl")
    trace.step(step, start, start + 100)
    trace.kernel(start + 10, start + 40, start + 90)
    return read_chrome_trace(trace.to_json(), file)


def test_windows_are_joined_in_the_order_of_time() -> None:
    joined = join_windows([read(1000, 8), read(10, 3)])
    assert joined.file == "at10.json and 1 more"
    assert list(joined.events["start_ns"]) == [10_000, 15_000, 1_000_000, 1_005_000]
    assert [step.number for step in build_timeline(joined).steps] == [3, 8]
    assert {column: str(joined.events[column].dtype) for column in EVENT_COLUMNS} == EVENT_COLUMNS


def test_launches_stay_linked_within_their_window() -> None:
    first, second = record_gpu_window(0, 3, "a.json"), record_gpu_window(1000, 8, "b.json")
    assert set(first.events["correlation"]) == set(second.events["correlation"]) == {-1, 1}
    joined = join_windows([first, second])
    assert set(joined.events["correlation"]) == {-1, 1, 3}
    timeline = build_timeline(joined)
    assert list(timeline.device["launch_ns"]) == [10_000, 1_010_000]
    assert [step.end_ns for step in timeline.steps] == [100_000, 1_100_000]


def test_threads_are_told_apart_by_window() -> None:
    first, second = record_gpu_window(0, 3, "a.json"), record_gpu_window(1000, 8, "b.json")
    threads = join_windows([first, second]).events["thread"]
    assert len(set(threads)) == 4


def test_without_steps_the_last_window_stands_for_all() -> None:
    windows = [read(10, None), read(1000, None)]
    assert join_windows(windows) is windows[1]


def test_two_recordings_at_once_are_of_two_runs() -> None:
    with pytest.raises(InputError, match=r"at10\.json and at20\.json are both rank 0, recorded at the same time"):
        join_windows([read(20, 8), read(10, 3)])


def test_the_same_step_twice_is_of_two_runs() -> None:
    with pytest.raises(InputError, match=r"are both rank 0 and both hold step 3: they are of different runs"):
        join_windows([read(10, 3), read(1000, 3)])
