from __future__ import annotations

import json
from typing import Any

import pytest

from advisor.readers.chrome import read_chrome_trace
from advisor.tables import EVENT_COLUMNS, Trace
from tests.trace_builders import RankTrace


def read(*events: dict[str, Any], **document: Any) -> Trace:
    return read_chrome_trace(json.dumps({"traceEvents": events, **document}).encode(), "t.json", rank=0)


def event(name: str = "aten::mm", **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10, "dur": 5, **fields}


# ------------------------------------------------------------------------------------------------------- times


def test_durations_that_are_missing_or_negative_are_zero() -> None:
    without = event("without")
    del without["dur"]
    events = read(without, event("negative", dur=-1)).events
    assert (events["end_ns"] - events["start_ns"]).tolist() == [0, 0]


# ----------------------------------------------------------------------------------------------------- documents


def test_events_are_sorted_by_start_with_the_longest_first() -> None:
    events = read(event("late", ts=20), event("inner", dur=1), event("outer", dur=9)).events
    assert events["name"].tolist() == ["outer", "inner", "late"]
    assert {name: str(dtype) for name, dtype in events.dtypes.items()} == EVENT_COLUMNS


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_spaces_do_not_matter(separators: tuple[str, str]) -> None:
    document = {"distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": [event()]}
    trace = read_chrome_trace(json.dumps(document, separators=separators).encode(), "t.json")
    assert (trace.rank, trace.world_size, len(trace.events)) == (3, 8, 1)


def test_a_bare_array_is_a_trace() -> None:
    trace = read_chrome_trace(b" \n" + json.dumps([event()]).encode(), "t.json", rank=4)
    assert (trace.rank, trace.world_size, trace.events["end_ns"].tolist()) == (4, None, [15_000])


def test_the_rank_in_the_file_wins_over_the_one_in_its_name() -> None:
    assert read(event(), distributedInfo={"rank": 3}).rank == 3
    assert read(event(), distributedInfo={"backend": "nccl"}).rank == 0


def test_only_complete_events_count() -> None:
    assert len(read(event(), event(ph="M"), event(ph="i"), {"ph": "X", "name": "without ts"}).events) == 1


@pytest.mark.parametrize(
    ("category", "device"), [("kernel", "cuda"), ("Kernel", "cuda"), ("cpu_op", "cpu"), (None, "cpu")]
)
def test_categories_are_read_in_any_case(category: str | None, device: str) -> None:
    assert read(event(cat=category)).device_type == device


def test_odd_fields_are_read_as_far_as_they_go() -> None:
    odd = event(
        cat="kernel",
        name=7,
        pid="python",
        tid=-(2**31) - 5,
        args={"stream": "7", "correlation": 2**40, "External id": "none"},
    )
    row = read(odd, record_shapes=True, unknown={"deep": [1]}).events.iloc[0]
    assert (row["name"], row["stream"], row["correlation"], row["external_id"]) == ("7", 7, 2**40, -1)


def test_threads_are_told_apart_by_process_and_thread() -> None:
    threads = read(event(pid=1, tid=2), event(pid=2, tid=2), event(pid="1", tid="2")).events["thread"]
    assert sorted(threads) == [0, 0, 1]


# ------------------------------------------------------------------------------------------------------- backend


@pytest.mark.parametrize(
    ("stated", "category", "name", "backend"),
    [
        ("nccl", "kernel", "gemm", "nccl"),
        ("NCCL", "kernel", "gemm", "nccl"),
        ("gloo", "user_annotation", "gloo:all_reduce", "gloo"),
        ("undefined", "kernel", "ncclDevKernel_AllReduce", "nccl"),
        ("undefined", "user_annotation", "gloo:all_reduce", "gloo"),
        ("cpu:gloo,cuda:nccl", "kernel", "gemm", "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu_op", "aten::mm", "gloo"),
        ("", "kernel", "gemm", "nccl"),
        ("", "cpu_op", "aten::mm", "unknown"),
        (None, "user_annotation", "gloo:broadcast", "gloo"),
        ("mpi", "cpu_op", "aten::mm", "mpi"),
    ],
)
def test_the_backend_is_the_one_of_the_device(stated: str | None, category: str, name: str, backend: str) -> None:
    assert read(event(name, cat=category), distributedInfo={"backend": stated}).backend == backend


# ---------------------------------------------------------------------------------------- shapes and collectives


def test_gradients_and_gloo_spans_get_their_size_from_shapes() -> None:
    trace = RankTrace()
    trace.gradient(0, 10, 12, "c10::BFloat16")
    trace.gloo(20, 30, 40, 500)
    trace.operator("aten::mm", 50, 60)
    events = trace.read().events.set_index("name")
    sizes = {name: (row["num_elements"], row["dtype"]) for name, row in events.iterrows()}
    assert sizes["torch::autograd::AccumulateGrad"] == (12, "bfloat16")
    assert sizes["gloo:all_reduce"] == (500, "float32")
    assert sizes["c10d::allreduce_"][0] == 500
    assert sizes["aten::mm"] == (-1, "")


def test_a_list_of_tensors_without_shapes_has_no_size() -> None:
    # torch 1.13 to 2.1 wrote the dims of a tensor list as [], which is a scalar's too.
    old = event("c10d::allreduce_", args={"Input Dims": [[], []], "Input type": ["TensorList", ""]})
    assert read(old).events["num_elements"].tolist() == [-1]


def test_collective_arguments_are_columns() -> None:
    trace = RankTrace(backend="nccl")
    trace.nccl(0, 5, 9, 2049000, dtype="Float", group="default_pg", sequence=17)
    row = trace.read().events.set_index("category").loc["kernel"]
    columns = ("collective", "num_elements", "dtype", "process_group", "sequence")
    assert [row[column] for column in columns] == ["allreduce", 2049000, "float32", "default_pg", 17]


def test_shapes_are_known_when_any_event_has_them() -> None:
    assert not read(event()).has_shapes
    assert read(event(dur=20, args={"Input Dims": [[2]]})).has_shapes
