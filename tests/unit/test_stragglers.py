"""Who waits for whom; every time is in microseconds."""

from __future__ import annotations

import pytest

from advisor.intervals import EMPTY
from advisor.schema import Phase
from advisor.stragglers import Waiting, find_straggler, find_waiting
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


def queue_up(late_us: int, ends_us: tuple[int, ...] = (0, 0, 0)) -> Front:
    """A rank is late by so much for the first of three buckets that then run one after the other, 300 each.

    Forward lasts until 100; the other rank computes until 700, and the exchange goes on until 1000 + `late_us`. The
    next bucket starts 4 after the end of one, and `ends_us` says by how much later the other rank sees each end.
    """
    ranks = [RankTrace(rank) for rank in (0, 1)]
    for rank, trace in enumerate(ranks):
        late = late_us * rank
        trace.step(2, 0, 3000)
        trace.gloo(10, 11, 12, 7)
        trace.forward(20, 100)
        for bucket in range(3):
            ready = 200 + 10 * bucket + late
            trace.gradient(ready - 10, ready, 64)
            begin = 100 + 300 * bucket + late_us if bucket else ready
            trace.gloo(ready - 1, begin + 4, 400 + 300 * bucket + late_us + (ends_us[bucket] if rank else 0), 64)
        trace.node(230 + late, 700 + late)
        trace.copy_back(1000 + late_us, 1010 + late_us)
    return lay_out(*ranks)


@pytest.mark.parametrize("ends_us", [(0, 0, 0), (5, -5, 5)])
def test_what_is_late_beside_computation_costs_what_it_delays_the_end_of_the_queue(ends_us: tuple[int, ...]) -> None:
    """Rank 0 waits from 204 on, computes until 700, and would have been done 150 earlier."""
    front = queue_up(150, ends_us)
    straggler = find_straggler(front.observations, find_waiting(front.observations, front.matched))
    assert straggler is not None
    assert straggler.rank == 1
    assert straggler.delay_ns.value == pytest.approx(150_000, abs=12_000)


def test_what_the_clocks_cannot_tell_apart_is_nobodys_fault() -> None:
    """Ends agree within 3, so whoever comes 2 later may have come at the same time."""
    front = queue_up(2, (3, -3, 0))
    waiting = find_waiting(front.observations, front.matched)
    assert set(waiting.blame_ns.values()) == {0}
    assert find_straggler(front.observations, waiting) is None


def test_a_rank_that_costs_in_few_steps_is_named_before_one_that_never_does() -> None:
    """Rank 2 costs 200 in one step of three, and in the others nobody costs anything."""
    waiting = Waiting({(rank, step): EMPTY for rank in range(3) for step in (2, 3, 4)}, {(2, 3): 200_000})
    straggler = find_straggler(record({}, world_size=3).observations, waiting)
    assert straggler is not None
    assert (straggler.rank, straggler.delay_ns.value, straggler.last_fraction) == (2, 0, pytest.approx(1 / 3))


def test_one_hiccup_does_not_outdo_what_most_steps_wait_for() -> None:
    blame_ns = {(1, 2): 900_000, (2, 2): 50_000, (2, 3): 50_000, (2, 4): 50_000}
    waiting = Waiting({(rank, step): EMPTY for rank in range(3) for step in (2, 3, 4)}, blame_ns)
    straggler = find_straggler(record({}, world_size=3).observations, waiting)
    assert straggler is not None
    assert (straggler.rank, straggler.delay_ns.value, straggler.last_fraction) == (2, 50_000, pytest.approx(2 / 3))


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
