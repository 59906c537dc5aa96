"""Robust summaries of repeated measurements, their 95 % intervals, and when two of them are the same.

Step times are skewed: a few steps in a hundred are spikes of many milliseconds, so nothing here uses the plain mean.
Intervals come from the percentile bootstrap (Efron & Tibshirani, *An Introduction to the Bootstrap*, 1993, §13.3).
A sweep visits its settings in rounds; a block holds the steps of one visit, and the blocks of one round share whatever
the machine did meanwhile. So a ratio resamples whole rounds, for numerator and denominator together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from advisor.schema import Estimate

Values = npt.NDArray[np.float64]
Blocks = Sequence[Sequence[float]]
"""Step times by block, in ns; the blocks of two settings pair up by position."""

MIN_TIE_FRACTION = 0.02
"""Two settings closer than this are the same to a person, however well they were measured."""
FLOORS_IN_A_TIE = 2.0
CONFIDENCE = 0.95
MANY = 1000
"""From so many values on, the interval of their median needs no resampling."""


class Statistic(Protocol):
    """Reduces one axis of an array, as `numpy.median` does."""

    def __call__(self, values: Any, /, *, axis: int) -> Any:
        """The statistic along `axis`."""
        ...


def trimmed_mean(values: npt.ArrayLike, fraction: float = 0.2, *, axis: int = -1) -> Any:
    """The mean without the floor(fraction · n) smallest and as many of the largest values.

    Example: `trimmed_mean([1, 2, 3, 4, 100])` drops 1 and 100 and is 3.

    Args:
        values: At least one value, any unit.
        fraction: Share cut from each end, below 0.5.
        axis: The axis to reduce.

    Returns:
        A float for one dimension, else an array, in the unit of `values`.
    """
    return stats.trim_mean(np.asarray(values, dtype=np.float64), fraction, axis=axis)


def bootstrap(values: npt.ArrayLike, statistic: Statistic, *, num_resamples: int = 2000, seed: int = 0) -> Estimate:
    """`statistic` of `values` with its percentile bootstrap interval; a single value is its own interval.

    Args:
        values: At least one value, independent of each other, any unit.
        statistic: Called as `statistic(array, axis=-1)`, once on all values and once on all resamples.
        num_resamples: Resamples drawn with replacement.
        seed: The same seed gives the same interval.

    Returns:
        An estimate in the unit of `values`, basis `measured`.

    Raises:
        ValueError: There are no values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("a bootstrap needs at least one value")
    draws = np.random.default_rng(seed).integers(0, sample.size, size=(num_resamples, sample.size))
    return _estimate(float(statistic(sample, axis=-1)), statistic(sample[draws], axis=-1))


def median_estimate(values: npt.ArrayLike) -> Estimate:
    """The median with its bootstrap interval, in the unit of `values`.

    Resampling many values takes long and tells nothing new: their interval lies between the order statistics whose
    ranks are the quantiles of Binomial(n, 1/2), to which the bootstrap's converges.

    **Source**: Conover, Practical Nonparametric Statistics (1999), §3.2.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.size < MANY:
        return bootstrap(values, np.median)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.asarray(stats.binom.ppf([tail, 1 - tail], ordered.size, 0.5), dtype=np.int64)
    return Estimate(
        value=float(np.median(ordered)), low=float(ordered[low - 1]), high=float(ordered[high]), basis="measured"
    )


def block_estimate(blocks: Blocks, statistic: Statistic = trimmed_mean) -> Estimate:
    """`statistic` of all steps, with an interval that resamples whole blocks; in the unit of the steps.

    Raises:
        ValueError: There are no blocks, or one of them is empty.
    """
    resamples = _resample(_arrays(blocks), _draw_rounds(len(blocks)), statistic)
    return _estimate(float(statistic(_pool(_arrays(blocks)), axis=-1)), resamples)


def paired_ratio(numerator_blocks: Blocks, denominator_blocks: Blocks, statistic: Statistic = trimmed_mean) -> Estimate:
    """The statistic of all numerator steps over that of all denominator steps; the interval resamples whole rounds.

    Example: blocks `[[2, 2], [4, 4]]` over `[[1, 1], [2, 2]]` give exactly 2 with the interval [2, 2]: what a round
    does to both of them cancels.

    Args:
        numerator_blocks: The steps of one setting, a block a round.
        denominator_blocks: The steps of the reference in the same rounds.
        statistic: `trimmed_mean` or `numpy.median`.

    Returns:
        A ratio without unit, below 1 where the numerator is faster.

    Raises:
        ValueError: The two have not the same number of blocks, or a block is empty.
    """
    if len(numerator_blocks) != len(denominator_blocks):
        raise ValueError(f"{len(numerator_blocks)} blocks cannot be paired with {len(denominator_blocks)}")
    numerator, denominator = _arrays(numerator_blocks), _arrays(denominator_blocks)
    rounds = _draw_rounds(len(numerator))
    ratio = float(statistic(_pool(numerator), axis=-1)) / float(statistic(_pool(denominator), axis=-1))
    return _estimate(ratio, _resample(numerator, rounds, statistic) / _resample(denominator, rounds, statistic))


def noise_floor(first_blocks: Blocks, again_blocks: Blocks) -> float:
    """How far apart two measurements of the same setting come out (an A/A pair), as a fraction.

    floor = max(|r − 1|, (high − low) / 4) with r the paired ratio of the two; a quarter of the 95 % interval is about
    one standard error, so that a lucky r does not promise more than was measured.
    """
    ratio = paired_ratio(again_blocks, first_blocks)
    return max(abs(ratio.value - 1.0), (ratio.high - ratio.low) / 4.0)


def tie_fraction(floor: float | None) -> float:
    """The difference below which two settings are the same: max(2 %, twice the noise floor, where it is known)."""
    return max(MIN_TIE_FRACTION, FLOORS_IN_A_TIE * (floor or 0.0))


def is_tie(ratio: Estimate, floor: float) -> bool:
    """Whether a ratio cannot be told from 1: closer than `tie_fraction(floor)`, or 1 lies in its interval."""
    return abs(ratio.value - 1.0) < tie_fraction(floor) or ratio.low <= 1.0 <= ratio.high


def _arrays(blocks: Iterable[Sequence[float]]) -> list[Values]:
    arrays = [np.asarray(block, dtype=np.float64) for block in blocks]
    if not arrays or any(array.size == 0 for array in arrays):
        raise ValueError("every block needs at least one step")
    return arrays


def _pool(blocks: Sequence[Values]) -> Values:
    return np.concatenate(blocks)


def _draw_rounds(num_rounds: int, num_resamples: int = 2000, seed: int = 0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, num_rounds, size=(num_resamples, num_rounds))


def _resample(blocks: Sequence[Values], rounds: npt.NDArray[np.int64], statistic: Statistic) -> Values:
    if len({block.size for block in blocks}) == 1:
        return np.asarray(statistic(np.stack(blocks)[rounds].reshape(len(rounds), -1), axis=-1))
    return np.array([statistic(_pool([blocks[i] for i in row]), axis=-1) for row in rounds])


def _estimate(value: float, resamples: Values) -> Estimate:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resamples, [tail, 100 - tail])
    return Estimate(value=value, low=float(low), high=float(high), basis="measured")
