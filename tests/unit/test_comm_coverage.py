"""A few of the runs of `python -m benchmarks coverage`: intervals hold the truth, estimates are close to it."""

from __future__ import annotations

import pytest

from benchmarks.coverage import SITUATIONS, repeat

NUM_RUNS = 20
NEARLY_ALL = 16
"""Of 20 intervals of 95 % fewer hold the truth once in two thousand times."""


@pytest.mark.parametrize("situation", SITUATIONS)
def test_intervals_hold_the_truth_and_estimates_are_close(situation: str) -> None:
    outcomes = repeat(SITUATIONS[situation], NUM_RUNS)
    for name in outcomes[0].covered:
        assert sum(outcome.covered[name] for outcome in outcomes) >= NEARLY_ALL, name
        assert sum(abs(outcome.errors[name]) <= 0.05 for outcome in outcomes) >= NEARLY_ALL, name
    assert sum(outcome.kinks_found for outcome in outcomes) >= NUM_RUNS - 1
