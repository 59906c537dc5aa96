from __future__ import annotations

import numpy as np
import pytest

from advisor.schema import Estimate
from advisor.statistics import (
    block_estimate,
    bootstrap,
    is_tie,
    median_estimate,
    noise_floor,
    paired_ratio,
    tie_fraction,
    trimmed_mean,
)


def ratio(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, basis="measured")


def test_trimmed_mean_drops_a_fifth_at_each_end() -> None:
    assert trimmed_mean([1, 2, 3, 4, 100]) == 3
    assert trimmed_mean([1, 2, 3, 100]) == 26.5  # floor(0.2 * 4) = 0: nothing to drop


def test_median_estimate_of_one_value_is_that_value() -> None:
    assert median_estimate([7.0]) == ratio(7.0, 7.0, 7.0)


def test_median_estimate_covers_the_median_and_is_reproducible() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1000.0]
    estimate = median_estimate(values)
    assert estimate.value == 5.0
    assert 1.0 < estimate.low < 5.0 < estimate.high < 1000.0
    assert median_estimate(values) == estimate


def test_the_interval_of_many_values_is_that_of_resampling() -> None:
    """Of 0 to 2000 the order statistics are 1000 ∓ 1.96 · sqrt(2001) / 2, so 956 and 1044."""
    values = np.arange(2001.0)
    found, resampled = median_estimate(values), bootstrap(values, np.median)
    assert (found.value, found.low, found.high) == (1000.0, 956.0, 1044.0)
    assert (resampled.low, resampled.high) == (pytest.approx(956, abs=3), pytest.approx(1044, abs=3))


def test_bootstrap_of_the_mean_agrees_with_the_standard_error() -> None:
    values = np.random.default_rng(1).normal(100.0, 10.0, size=400)
    estimate = bootstrap(values, np.mean)
    standard_error = values.std() / 20
    assert (estimate.high - estimate.low) / 2 == pytest.approx(1.96 * standard_error, rel=0.1)


def test_bootstrap_refuses_an_empty_sample() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        median_estimate([])


def test_block_estimate_resamples_blocks_not_steps() -> None:
    # Two blocks, constant inside: a resample holds both, or one of them twice.
    estimate = block_estimate([[1.0] * 50, [3.0] * 50], statistic=np.mean)
    assert estimate == ratio(2.0, 1.0, 3.0)


def test_what_a_round_does_to_both_cancels_in_the_ratio() -> None:
    assert paired_ratio([[2, 2], [4, 4]], [[1, 1], [2, 2]]) == ratio(2.0, 2.0, 2.0)


def test_blocks_of_different_lengths_are_allowed() -> None:
    assert paired_ratio([[2, 2], [2]], [[1], [1, 1, 1]]).value == 2.0


@pytest.mark.parametrize("denominator", [[[1.0]], [[1.0], []]])
def test_blocks_that_do_not_pair_are_refused(denominator: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="block"):
        paired_ratio([[1.0], [1.0]], denominator)


def test_noise_floor_is_the_distance_of_an_exact_pair() -> None:
    assert noise_floor([[100.0], [200.0]], [[103.0], [206.0]]) == pytest.approx(0.03)


def test_noise_floor_of_a_lucky_pair_is_a_quarter_of_its_interval() -> None:
    first, again = [[100.0], [100.0]], [[90.0], [110.0]]
    assert paired_ratio(again, first) == ratio(1.0, 0.9, 1.1)
    assert noise_floor(first, again) == pytest.approx(0.05)


def test_a_tie_is_below_two_percent_or_twice_the_floor() -> None:
    assert tie_fraction(0.001) == 0.02
    assert tie_fraction(0.03) == 0.06
    assert is_tie(ratio(0.985, 0.98, 0.99), floor=0.001)
    assert not is_tie(ratio(0.95, 0.94, 0.96), floor=0.001)
    assert is_tie(ratio(0.95, 0.94, 0.96), floor=0.03)


def test_a_ratio_whose_interval_holds_one_is_a_tie() -> None:
    assert is_tie(ratio(0.90, 0.75, 1.05), floor=0.001)
