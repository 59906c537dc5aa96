"""The computation of a typical step; every time is in microseconds."""

from __future__ import annotations

import msgspec
import pytest

from advisor.schema import StepProfile
from advisor.step_profile import build_step_profile
from tests.trace_builders import RankTrace, lay_out

EPOCH_US = 1_711_964_646_416_788


def profile(clock_us: int, compute_slowdown: float = 1.0) -> StepProfile:
    """Two ranks; backward from 200 to 400, gradients at 301 and 400, the first one's bucket sent from 303 to 353."""
    ranks = []
    for rank in (0, 1):
        trace = RankTrace(rank, clock_us=clock_us + 3 * rank)
        trace.step(2, 0, 1000)
        trace.forward(100, 200)
        trace.gradient(200, 301, 64)
        trace.gloo(300, 303, 353, 64)
        trace.gradient(302, 400, 32)
        trace.gloo(399, 403, 450, 32)
        trace.copy_back(450, 460)
        trace.optimizer(800, 900)
        ranks.append(trace)
    front = lay_out(*ranks)
    found = build_step_profile(front.observations, front.schedules, compute_slowdown)
    assert found is not None
    return found


@pytest.mark.parametrize("compute_slowdown", [1.0, 1.25])
def test_it_is_the_same_to_the_nanosecond_on_any_clock(compute_slowdown: float) -> None:
    assert profile(EPOCH_US, compute_slowdown) == profile(0, compute_slowdown)


def test_launching_and_what_communication_beside_it_cost_are_taken_out() -> None:
    """Of 200, 2 went into launching and 50 ran beside communication, which at a slow-down of 1.25 cost a fifth."""
    assert profile(0).slowest.backward_ns == 198_000
    assert profile(0, 1.25).slowest.backward_ns == 198_000 - 50_000 / 5
    assert [g.ready_device_ns for g in profile(0).slowest.gradients] == [100_000, 198_000]


def test_a_rank_that_is_alone_is_its_own_slowest() -> None:
    both = profile(0)
    assert [msgspec.structs.replace(rank, rank=-1) for rank in both.ranks] == [both.slowest] * 2


def test_with_views_of_buckets_backward_returns_when_the_host_goes_on_after_the_last_bucket() -> None:
    """The last gradient is there at 400 and its bucket at 450; small operators run at 402 and, next, at 455."""
    trace = RankTrace(0)
    trace.step(2, 0, 1000)
    trace.forward(100, 200)
    trace.gradient(200, 400, 64)
    trace.gloo(399, 403, 450, 64)
    trace.operator("aten::as_strided", 402, 403)
    trace.operator("aten::as_strided", 455, 456)
    trace.optimizer(800, 900)
    (exchange,) = lay_out(trace).observations[0].exchanges
    assert [exchange.step.sum_phase_ns(phase) for phase in ("gradient_finish", "other")] == [55_000, 445_000]
    assert exchange.blocking_ns == 49_000
