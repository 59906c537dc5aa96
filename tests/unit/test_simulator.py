"""Simulated runs: their schedule is right where it can be worked by hand, and the analysis finds it in the traces."""

from __future__ import annotations

from typing import Literal

import pytest

from benchmarks.accuracy import measure_errors, measure_fit
from tests.simulated_schedule import MS, Scenario
from tests.simulator import draw_ladder, draw_scenario, simulate

BACKENDS: tuple[Literal["nccl", "gloo"], ...] = ("nccl", "gloo")
SEEDS = range(1000, 1003)
"""Of the runs in these tests; the benchmark's are others."""


def scenario(**changes: object) -> Scenario:
    """Two buckets of 1 MB, ready at 2 and 4 of 5 ms of backward; 1 ms + 1 ns a byte, so 2 ms each."""
    fields = {
        "num_steps": 1, "gradients": ((2.0, 250_000), (4.0, 250_000)), "buckets": (1, 1), "backward_ms": 5.0,
        "segments": ((0, 1000.0, 1.0),), "data_ms": 0.0, "forward_ms": 1.0, "copy_ms": 0.0, **changes,
    }  # fmt: skip
    return Scenario(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_buckets_that_do_not_meet_take_what_the_link_needs(backend: str) -> None:
    """3 to 5 and 5 to 7 ms, and backward ends at 6."""
    buckets = [b for b in simulate(scenario(backend=backend)).buckets if b.rank == 0]
    assert [(b.start_ns / MS, b.end_ns / MS, b.blocking_ns / MS) for b in buckets] == [(3, 5, 0), (5, 7, 1)]


def test_nccl_runs_one_after_the_other_and_gloo_two_at_once() -> None:
    """Ready at 2 and 3 ms, so at 3 and 4: one after the other until 5 and 7, or together from 4 on until 6 and 7."""
    ends = {
        backend: [
            b.end_ns / MS
            for b in simulate(scenario(backend=backend, gradients=((2.0, 250_000), (3.0, 250_000)))).buckets
            if b.rank == 0
        ]
        for backend in BACKENDS
    }
    assert ends["nccl"] == [5, 7]
    assert ends["gloo"] == pytest.approx([6, 7])


def test_everybody_waits_for_the_late_rank() -> None:
    """Rank 1's forward takes 3 ms longer: its buckets are ready at 6 and 8, and rank 0 waits 3 ms for each."""
    buckets = simulate(scenario(late_rank=1, late_phase="forward", late_ms=3.0)).buckets
    assert [(b.start_ns / MS, b.transfer_start_ns / MS, b.end_ns / MS) for b in buckets if b.rank == 0] == [
        (3, 6, 8),
        (8, 8, 10),
    ]
    assert [b.blocking_ns / MS for b in buckets if b.rank == 0] == [2, 2]
    assert [b.blocking_ns / MS for b in buckets if b.rank == 1] == [0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_straggler_and_what_each_bucket_blocks_are_found(backend: Literal["nccl", "gloo"], seed: int) -> None:
    errors = measure_errors(draw_scenario(seed, backend))
    assert errors.straggler_found
    assert errors.phase_found
    assert errors.blocking < 0.02
    assert abs(errors.cost) < 0.2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("has_kink", [False, True])
def test_latency_bandwidth_and_kinks_are_found(backend: Literal["nccl", "gloo"], has_kink: bool) -> None:
    errors = measure_fit(draw_ladder(SEEDS[0], backend, has_kink=has_kink))
    assert errors.kinks_found
    assert abs(errors.alpha) < 0.05
    assert abs(errors.beta) < 0.05


@pytest.mark.parametrize("seed", [3, 22])
def test_a_kink_between_two_sizes_buys_no_second_one_where_gloo_may_have_one(seed: int) -> None:
    """The sampled sizes beside it are far apart, so at none of them a kink fits well."""
    assert measure_fit(draw_ladder(seed, "gloo", has_kink=True)).kinks_found
