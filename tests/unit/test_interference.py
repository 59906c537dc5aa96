"""How much communication slows the same work down; every time is in microseconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advisor.interference import measure_interference
from advisor.schema import Interference
from tests.trace_builders import NCCL_STREAM, RankTrace, describe_collective, lay_out

SHAPES = {"Input Dims": [[8, 8], [8, 8]]}


def on_cpu(trace: RankTrace, start: float, end: float, launch: float) -> None:
    trace.add("cpu_op", "aten::mm", start, end, args=SHAPES)


def on_gpu(trace: RankTrace, start: float, end: float, launch: float) -> None:
    trace.add("cpu_op", "aten::mm", launch, launch + 25, args=SHAPES)
    trace.operator("aten::empty", launch + 1, launch + 2)
    trace.kernel(launch + 5, start, end)


Work = Callable[[RankTrace, float, float, float], None]


def record(work: Work, beside_us: float, num_clean: int = 3) -> RankTrace:
    """Two steps: clean products of 100 each, then two of `beside_us` beside 500 of communication."""
    gpu = work is on_gpu
    trace = RankTrace(backend="nccl" if gpu else "gloo")
    for n in range(2):
        zero = 2000 * n
        trace.step(2 + n, zero, zero + 2000)
        for k in range(num_clean):
            work(trace, zero + 100 + 100 * k, zero + 200 + 100 * k, zero + 40 * k)
        for k in range(2):
            start = zero + 1000 + beside_us * k
            work(trace, start, start + beside_us, zero + 400 + 40 * k)
        if gpu:
            args = describe_collective(64)
            trace.kernel(zero + 390, zero + 1000, zero + 1500, "ncclDevKernel", stream=NCCL_STREAM, args=args)
        else:
            trace.gloo(zero + 990, zero + 1000, zero + 1500, 64)
    return trace


def measure(trace: RankTrace) -> Interference | None:
    return measure_interference(lay_out(trace).observations)


@pytest.mark.parametrize("work", [on_cpu, on_gpu])
def test_the_tax_is_what_the_same_work_takes_longer_beside_communication(work: Work) -> None:
    found = measure(record(work, 125))
    assert found is not None
    assert found.slowdown.value == 1.25
    assert found.tax_ns.value == pytest.approx(50_000)  # two products a step lose 25 each
    assert (found.num_executions, found.compared_fraction) == (4, 1.0)


@pytest.mark.parametrize("work", [on_cpu, on_gpu])
def test_work_that_is_not_slowed_pays_nothing(work: Work) -> None:
    found = measure(record(work, 100))
    assert found is not None
    assert (found.slowdown.value, found.tax_ns.value) == (1.0, 0.0)


@pytest.mark.parametrize("work", [on_cpu, on_gpu])
def test_without_clean_executions_nothing_is_known(work: Work) -> None:
    assert measure(record(work, 125, num_clean=1)) is None
