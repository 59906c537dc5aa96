"""One small recording of a GPU job in every dialect that is understood: whoever wrote it, it says the same.

The dialects are the rows of the first table in docs/dialects.md; tests/golden holds the two together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from advisor.collectives import find_collectives
from advisor.exchange import find_exchanges
from advisor.intervals import intersection, total
from advisor.readers.chrome import read_chrome_trace
from advisor.tables import Trace
from advisor.timeline import build_timeline
from tests.trace_builders import ALL_REDUCE_KERNEL, COMPUTE_STREAM, NCCL_STREAM, RankTrace

Document = dict[str, Any]
Event = dict[str, Any]
STEPS = (3, 4)


def record() -> Document:
    """Two steps of 100 µs: a kernel from 30 to 50 and, beside it, the all-reduce of 64 floats from 40 to 60."""
    trace = RankTrace(backend="nccl")
    for number, zero in zip(STEPS, (0, 100), strict=True):
        trace.step(number, zero, zero + 100)
        trace.forward(zero + 5, zero + 20)
        trace.gradient(zero + 25, zero + 29, 64)
        trace.kernel(zero + 26, zero + 30, zero + 50)
        trace.nccl(zero + 27, zero + 40, zero + 60, 64)
        trace.copy_back(zero + 61, zero + 62)
        trace.optimizer(zero + 70, zero + 90)
    document: Document = json.loads(trace.to_json(schemaVersion=1, deviceProperties=[{"id": 0, "name": "NVIDIA A100"}]))
    return document


@dataclass(frozen=True)
class Facts:
    steps: tuple[int, ...]
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    bucket_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]


FACTS = Facts(STEPS, 40_000, 40_000, 20_000, (256, 256), (256, 256))


def find_facts(trace: Trace) -> Facts:
    timeline = build_timeline(trace)
    exchanges = find_exchanges(timeline, find_collectives(timeline))
    return Facts(
        steps=tuple(step.number for step in timeline.steps),
        compute_ns=total(timeline.compute),
        communication_ns=total(timeline.communication),
        overlap_ns=total(intersection(timeline.compute, timeline.communication)),
        bucket_bytes=tuple(bucket.collective.num_bytes for exchange in exchanges for bucket in exchange.buckets),
        gradient_bytes=tuple(gradient.num_bytes for exchange in exchanges for gradient in exchange.gradients),
    )


def read(text: bytes) -> Trace:
    return read_chrome_trace(text, "rank0.json", rank=0)


# ------------------------------------------------------------------------------------------------------- the dialects


def rewrite(change: Callable[[Event], object]) -> Callable[[Document], bytes]:
    """A dialect in which every event is written otherwise."""

    def write(document: Document) -> bytes:
        for event in document["traceEvents"]:
            change(event)
        return json.dumps(document).encode()

    return write


def encode(encoding: str) -> Callable[[Document], bytes]:
    return lambda document: json.dumps(document).encode(encoding)


def rename_categories(**names: str) -> Callable[[Document], bytes]:
    return rewrite(lambda event: event.update(cat=names.get(event["cat"], event["cat"].capitalize())))


def shift_clock(document: Document) -> bytes:
    """Times in fractions of a microsecond since a base."""
    for event in document["traceEvents"]:
        event["ts"] = event["ts"] + 1_500_000_000_000.125
    return json.dumps({"baseTimeNanoseconds": 1_700_000_000_000_000_000, **document}).encode()


def count_from_epoch(document: Document) -> bytes:
    """Times in whole microseconds since 1970, whose nanoseconds no float holds."""
    for event in document["traceEvents"]:
        event["ts"] = int(event["ts"]) + 1_694_128_201_545_001
        event["dur"] = int(event["dur"])
    return json.dumps(document).encode()


def move_arguments_to_record(document: Document) -> bytes:
    """Kernels name their `record_param_comms` by `External id`."""
    for number, kernel in enumerate(list_kernels(document, ALL_REDUCE_KERNEL)):
        arguments = kernel["args"]
        kernel["args"] = {name: arguments[name] for name in ("stream", "correlation")} | {"External id": 900 + number}
        told = {name: value for name, value in arguments.items() if name not in ("stream", "correlation")}
        add_host_event(document, "record_param_comms", kernel, {**told, "External id": 900 + number})
    return json.dumps(document).encode()


def move_arguments_to_annotation(document: Document) -> bytes:
    """Kernels name only their launch, and the annotation around that one has the shapes."""
    for kernel in list_kernels(document, ALL_REDUCE_KERNEL):
        correlation = kernel["args"]["correlation"]
        kernel["args"] = {"stream": NCCL_STREAM, "correlation": correlation, "External id": correlation}
        kernel["name"] = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
        shapes = {"Input Dims": [[64]], "Input type": ["float"], "External id": 77}
        add_host_event(document, "nccl:all_reduce", kernel, shapes)
    return json.dumps(document).encode()


def list_kernels(document: Document, name: str) -> list[Event]:
    return [event for event in document["traceEvents"] if event["name"] == name]


def add_host_event(document: Document, name: str, kernel: Event, arguments: Document) -> None:
    """An event on the host around the launch of a kernel."""
    launch = next(
        event
        for event in document["traceEvents"]
        if event["cat"] == "cuda_runtime" and event["args"]["correlation"] == kernel["args"]["correlation"]
    )
    at = {"ts": launch["ts"] - 0.25, "dur": launch["dur"] + 0.5}
    document["traceEvents"].append({**launch, **at, "cat": "user_annotation", "name": name, "args": arguments})


def add_rows(*rows: Event) -> Callable[[Document], bytes]:
    def write(document: Document) -> bytes:
        document["traceEvents"] += [{"pid": 0, "tid": NCCL_STREAM, "ph": "X", **row} for row in rows]
        return json.dumps(document).encode()

    return write


def add_text(text: bytes, replacement: bytes) -> Callable[[Document], bytes]:
    def write(document: Document) -> bytes:
        written = json.dumps(document).encode()
        assert text in written
        return written.replace(text, replacement)

    return write


def drop_head(document: Document) -> bytes:
    return json.dumps(document["traceEvents"]).encode()


def drop_tail(document: Document) -> bytes:
    """A file that ends within an event, which is one too many here."""
    document["traceEvents"].append({"ph": "X", "cat": "python_function", "name": "x" * 99, "ts": 250, "dur": 1})
    return json.dumps(document).encode()[:-60]


OLD_CATEGORIES = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
SYNCHRONIZATION_ROWS = (
    {"cat": "cuda_sync", "name": "Event Sync", "ts": 0, "dur": 199, "args": {"stream": COMPUTE_STREAM}},
    {"cat": "kernel", "name": "Stream Wait Event", "ts": 0, "dur": 199, "args": {"stream": NCCL_STREAM}},
    {"cat": "Kernel", "name": "Context Sync", "ts": 0, "dur": 199, "args": {"stream": -1}},
    {"cat": "gpu_user_annotation", "name": "nccl:all_reduce", "ts": 0, "dur": 199},
)

DIALECTS: dict[str, Callable[[Document], bytes]] = {
    "as torch writes it": encode("utf-8"),
    "a bare array of events": drop_head,
    "compact JSON": lambda document: json.dumps(document, separators=(",", ":")).encode(),
    "one value a line": lambda document: json.dumps(document, indent=2).encode(),
    "a byte-order mark": encode("utf-8-sig"),
    "UTF-16": encode("utf-16"),
    "UTF-16 without a mark": encode("utf-16-le"),
    "times as strings": rewrite(lambda event: event.update(ts=str(event["ts"]), dur=str(event["dur"]))),
    "whole microseconds since 1970": count_from_epoch,
    "fractions since `baseTimeNanoseconds`": shift_clock,
    "capitalised categories": rename_categories(),
    "`Operator`, `Runtime` and `Kernel`": rename_categories(**OLD_CATEGORIES),
    "no categories": rewrite(lambda event: event.pop("cat")),
    "`ProfilerStep3` without its mark": add_text(b"ProfilerStep#", b"ProfilerStep"),
    "processes and threads as strings": rewrite(lambda e: e.update(pid=str(e["pid"]), tid=f"stream {e['tid']}")),
    "processes and threads beyond 32 bits": rewrite(lambda e: e.update(pid=e["pid"] + 2**40, tid=e["tid"] - 2**35)),
    "numbers of streams as strings": rewrite(
        lambda e: e["args"].update({key: str(e["args"][key]) for key in ("stream", "correlation") if key in e["args"]})
    ),
    "`NaN` and `Infinity`": rewrite(lambda event: event["args"].update(occupancy=math.nan, bandwidth=math.inf)),
    "lower-case `inf`": add_text(b'"stream"', b'"bandwidth": -inf, "stream"'),
    "keys given twice": add_text(b'"cat": ', b'"cat": "python_function", "cat": '),
    "no `args`": rewrite(lambda event: event["args"] or event.pop("args")),
    "missing and negative durations": add_rows(
        {"cat": "cpu_op", "name": "aten::a", "ts": 5}, {"cat": "kernel", "name": "gemm", "ts": 5, "dur": -1}
    ),
    "durations that overrun the next kernel": add_rows(
        {"cat": "kernel", "name": "gemm", "ts": 31, "dur": 19, "args": {"stream": COMPUTE_STREAM}}
    ),
    "control characters and back-slashes": add_text(b'"ph": "X"', b'"path": "C:\\Users\t\x01", "ph": "X"'),
    "quotes in names that are not escaped": add_text(b"ampere_sgemm_128x64_nn", b'ampere_sgemm<"128x64">'),
    "a file that is cut off": drop_tail,
    "arguments on `record_param_comms`": move_arguments_to_record,
    "shapes on the annotation around the launch": move_arguments_to_annotation,
    "synchronisation drawn on streams": add_rows(*SYNCHRONIZATION_ROWS),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_recording_says_the_same_in_every_dialect(dialect: str) -> None:
    assert find_facts(read(DIALECTS[dialect](record()))) == FACTS


# ----------------------------------------------------------------------------------- kernels by any other name (C10)

KERNEL_NAMES = (
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32",
    "nccldevkernel_allreduce_sum_f32_ring_ll",
    "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "oneccl_allreduce_local_barrier",
    "void deep_ep::internode_ll::dispatch<7168>(void*, float*)",
)


@pytest.mark.parametrize("with_arguments", [True, False])
@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_overlap_is_the_same_under_every_name_and_beside_synchronisation(name: str, with_arguments: bool) -> None:
    document = record()
    for kernel in list_kernels(document, ALL_REDUCE_KERNEL):
        kernel["name"] = name
        if not with_arguments:
            kernel["args"] = {key: kernel["args"][key] for key in ("stream", "correlation")}
    facts = find_facts(read(add_rows(*SYNCHRONIZATION_ROWS)(document)))
    assert (facts.compute_ns, facts.communication_ns, facts.overlap_ns) == (40_000, 40_000, 20_000)


@pytest.mark.parametrize("with_arguments", [True, False])
def test_communication_of_an_unknown_library_is_counted_and_named(with_arguments: bool) -> None:
    document = record()
    for kernel in list_kernels(document, ALL_REDUCE_KERNEL):
        kernel["name"] = "acme_fast_allreduce_v2"
        kernel["args"] = kernel["args"] if with_arguments else {"stream": NCCL_STREAM}
    trace = read(json.dumps(document).encode())
    assert find_facts(trace).overlap_ns == 20_000
    assert ["2 kernels" in note.message and "acme_fast_allreduce_v2" in note.message for note in trace.notes] == [True]


@pytest.mark.parametrize(
    "name", ["triton_red_fused_all_gather_0", "void at::native::reduce_kernel<512, 1>(all_reduce)"]
)
def test_computation_may_be_named_after_a_collective(name: str) -> None:
    document = record()
    for kernel in list_kernels(document, "ampere_sgemm_128x64_nn"):
        kernel["name"] = name
    assert find_facts(read(json.dumps(document).encode())) == FACTS
