"""Profiler steps of single micro-batches joined to the steps that update the weights."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.step_windows import join_micro_steps
from tests.trace_builders import RankTrace


def windows(*numbers: int) -> list[tuple[int, int, int]]:
    return [(number, 100 * number, 100 * (number + 1)) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "updates", "joined"),
    [
        ((3, 4, 5, 6, 7, 8), (4, 6, 8), [(4, 300, 500), (6, 500, 700), (8, 700, 900)]),
        ((2, 3, 4, 5, 6), (2, 4, 6), [(4, 300, 500), (6, 500, 700)]),  # of the first one, a part was recorded
        ((2, 3, 4, 5, 6), (3, 5), [(3, 200, 400), (5, 400, 600)]),  # the last one has not ended
        ((2, 3, 12, 13), (3, 13), [(3, 200, 400), (13, 1200, 1400)]),  # two recordings
    ],
)
def test_windows_without_an_update_belong_to_the_next_one(
    numbers: tuple[int, ...], updates: tuple[int, ...], joined: list[tuple[int, int, int]]
) -> None:
    moments = np.array([100 * number + 90 for number in updates])
    assert join_micro_steps(windows(*numbers), moments) == joined


@pytest.mark.parametrize("updates", [(), (4,), (2, 3, 4, 5, 6), (3, 4, 6)])
def test_without_a_rhythm_every_window_is_a_step(updates: tuple[int, ...]) -> None:
    moments = np.array([100 * number + 90 for number in updates])
    assert join_micro_steps(windows(2, 3, 4, 5, 6), moments) == windows(2, 3, 4, 5, 6)


def test_an_accumulation_that_is_profiled_by_micro_batch_is_one_step() -> None:
    trace = RankTrace()
    for number in range(2, 8):
        zero = 1000 * number
        trace.step(number, zero, zero + 1000)
        trace.forward(zero + 100, zero + 300)
        trace.gradient(zero + 400, zero + 500, 64)
        if number % 2:
            trace.gloo(zero + 498, zero + 500, zero + 600, 64)
            trace.copy_back(zero + 600, zero + 610)
            trace.optimizer(zero + 800, zero + 900)
    steps = trace.lay_out().steps
    assert [(step.number, len(step.find_spans("backward"))) for step in steps] == [(3, 2), (5, 2), (7, 2)]
    assert [step.sum_phase_ns("backward") for step in steps] == [200_000] * 3
