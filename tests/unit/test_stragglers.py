"""Who waits for whom; every time is in microseconds."""

from __future__ import annotations

import pytest

from advisor.schema import Phase
from advisor.stragglers import find_straggler, find_waiting
from tests.trace_builders import Front, RankTrace, lay_out

NUM_STEPS = 3
STEP_US = 1000


def record(late: dict[int, dict[str, float]], *, world_size: int = 2, clock_us: tuple[int, ...] = (0, 0, 0)) -> Front:
    """Steps of 1000: forward 100 to 200, backward 200 to 300, then an all-reduce of 50 from the last arrival on.

    `late` holds by how much each rank's phases are longer.
    """
    ranks = [RankTrace(rank, world_size=world_size, clock_us=clock_us[rank]) for rank in range(world_size)]
    for n in range(NUM_STEPS):
        zero = STEP_US * n
        ready = [300 + sum(late.get(rank, {}).values()) for rank in range(world_size)]
        end = zero + max(ready) + 50
        for rank, trace in enumerate(ranks):
            data, forward, backward = (late.get(rank, {}).get(name, 0) for name in ("data", "forward", "backward"))
            trace.step(2 + n, zero, zero + STEP_US)
            trace.gloo(zero + 10, zero + 11, zero + 12, 7, kind="broadcast")
            trace.forward(zero + 100 + data, zero + 150 + data)
            begin = zero + 200 + data + forward
            trace.gradient(begin, begin + 100 + backward, 64)
            trace.gloo(begin + 99 + backward, zero + ready[rank], end, 64)
            trace.copy_back(end, end + 10)
            trace.optimizer(zero + 900, zero + 950)
    return lay_out(*ranks)


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
@pytest.mark.parametrize("clock_us", [(0, 0, 0), (0, 5000, 9000)])
def test_the_straggler_is_named_with_its_delay_and_its_phase(phase: Phase, clock_us: tuple[int, int, int]) -> None:
    front = record({1: {phase: 200}}, world_size=3, clock_us=clock_us)
    waiting = find_waiting(front.observations, front.matched)
    straggler = find_straggler(front.observations, waiting)
    assert straggler is not None
    assert (straggler.rank, straggler.last_fraction, straggler.delay_ns.value) == (1, 1.0, 200_000)
    assert straggler.step_fraction == 0.2
    assert (straggler.phase, straggler.phase_excess_ns) == (phase, 200_000)
    for step in (2, 3, 4):
        assert [waiting.sum_wait_ns(rank, step) for rank in range(3)] == [200_000, 0, 200_000]


def test_a_clock_that_is_5_ms_off_makes_no_straggler() -> None:
    front = record({}, clock_us=(0, 5000, 0))
    waiting = find_waiting(front.observations, front.matched)
    assert {waiting.sum_wait_ns(rank, step) for rank in (0, 1) for step in (2, 3, 4)} == {0}
    assert find_straggler(front.observations, waiting) is None


def test_what_two_ranks_are_late_for_is_blamed_on_the_last_one_alone() -> None:
    front = record({0: {"backward": 60}, 2: {"backward": 100}}, world_size=3)
    straggler = find_straggler(front.observations, find_waiting(front.observations, front.matched))
    assert straggler is not None
    assert (straggler.rank, straggler.delay_ns.value) == (2, 40_000)


def test_waiting_beside_computation_costs_nothing() -> None:
    # Rank 0's first bucket waits from 210 to 260 for rank 1's, while rank 0 computes until 300.
    ranks = [RankTrace(rank) for rank in (0, 1)]
    for rank, trace in enumerate(ranks):
        trace.step(2, 0, 1000)
        trace.gloo(10, 11, 12, 7)
        trace.forward(100, 200)
        trace.gradient(200, 210 + 50 * rank, 64)
        trace.gloo(209 + 50 * rank, 210 + 50 * rank, 290, 64)
        trace.node(260, 300)
        trace.node(210 + 50 * rank, 260)
        trace.copy_back(301, 310)
    front = lay_out(*ranks)
    waiting = find_waiting(front.observations, front.matched)
    assert waiting.sum_wait_ns(0, 2) == 50_000
    assert waiting.blame_ns[1, 2] == 0
    assert find_straggler(front.observations, waiting) is None


def test_a_delay_that_no_phase_explains_has_no_phase() -> None:
    # Rank 1's bucket is started late although its backward is as long as rank 0's.
    ranks = [RankTrace(rank) for rank in (0, 1)]
    for rank, trace in enumerate(ranks):
        trace.step(2, 0, 1000)
        trace.gloo(10, 11, 12, 7)
        trace.forward(100, 200)
        trace.gradient(200, 300, 64)
        trace.gloo(299, 300 + 200 * rank, 550, 64)
        trace.copy_back(550, 560)
    front = lay_out(*ranks)
    straggler = find_straggler(front.observations, find_waiting(front.observations, front.matched))
    assert straggler is not None
    assert (straggler.rank, straggler.phase) == (1, None)


def test_without_a_peer_nobody_knows() -> None:
    trace = RankTrace(0)
    trace.step(2, 0, 100)
    trace.gloo(10, 11, 50, 64)
    front = lay_out(trace)
    assert find_straggler(front.observations, find_waiting(front.observations, front.matched)) is None


def test_the_first_collective_of_a_recording_is_set_aside() -> None:
    # 7 µs on one rank and 11 265 on the other: the profiler of one was not up yet.
    ranks = [RankTrace(rank) for rank in (0, 1)]
    for rank, trace in enumerate(ranks):
        trace.step(2, 0, 20_000)
        trace.gloo(10, 11, 18 if rank else 11_276, 100)
        trace.gloo(15_000, 15_010, 15_050, 64)
    front = lay_out(*ranks)
    waiting = find_waiting(front.observations, front.matched)
    assert [waiting.sum_wait_ns(rank, 2) for rank in (0, 1)] == [0, 0]
