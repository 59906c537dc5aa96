"""What a fit leaves uncertain, as joint draws: latency, slope and slow-down make up for each other.

Whole steps are weighted anew, because the samples of one step share its disturbances. The weights are Dirichlet's: a
step counts less or more but never nothing, so that no draw lacks a size that few steps have. The centres of what was
expected are drawn along with them (randomized maximum a posteriori), so that what the samples leave open is wide.

**Source**: Rubin, The Bayesian bootstrap (1981); Bardsley et al., Randomize-Then-Optimize (2014); for few values
Hesterberg, What Teachers Should Know About the Bootstrap (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from advisor.comm_model.lines import FIRST_BETA, Floats, Problems, solve

NUM_DRAWS = 119
"""So the ends of a 95 % interval are the third value from either end."""
FEWEST_STEPS = 3
"""Fewer steps cannot be weighted anew: errors as large as the noise are drawn instead."""
MOST_SAMPLES_AT_ONCE = 200_000
"""Over all draws that are solved together, so that memory stays small."""


def draw_lines(problem: Problems, line: Floats, steps: Sequence[str]) -> Floats:
    """Solutions around `line`, the one of `problem`, as far apart as so many steps leave them.

    Args:
        problem: The problem of all samples.
        line: Its solution, shape (1, columns).
        steps: By sample, what shares its disturbances.

    Returns:
        One solution a row, shape (draws, columns).
    """
    random = np.random.default_rng(0)
    step_of = np.unique(np.array(steps), return_inverse=True)[1]
    num_steps = int(step_of.max()) + 1
    spreads = problem.terms.spreads
    centres = random.standard_normal((NUM_DRAWS, len(spreads))) * np.where(np.isfinite(spreads), spreads, 0.0)
    if num_steps < FEWEST_STEPS:
        noise = random.standard_normal((NUM_DRAWS, len(steps))) * problem.terms.noise
        return _solve_in_parts(replace(problem, centres=centres, shifts=noise), line)
    weights = num_steps * random.dirichlet(np.ones(num_steps), size=NUM_DRAWS)
    drawn = _solve_in_parts(replace(problem, centres=centres, weights=weights[:, step_of]), line)
    least, most = problem.terms.bounds
    return np.asarray(np.clip(_widen(drawn, line, num_steps), least, most))


def take_interval(values: Floats) -> tuple[float, float]:
    """The ends of the 95 % interval of some draws."""
    low, high = np.quantile(values, [0.025, 0.975], method="weibull")
    return float(low), float(high)


def _widen(drawn: Floats, line: Floats, num_steps: int) -> Floats:
    """Moves draws away from their centre, because few steps show too little.

    The variance of a Bayesian bootstrap over n values is too small by (n - 1) / (n + 1), and their own spread is known
    only from n values (Student's t). What may not be negative shrinks by a factor and grows by a difference.
    """
    few = stats.t.ppf(0.975, num_steps - 1) / stats.norm.ppf(0.975)
    by = float(few * np.sqrt((num_steps + 1) / (num_steps - 1)))
    wide = line + by * (drawn - line)
    betas = slice(FIRST_BETA, FIRST_BETA + (line.shape[1] - FIRST_BETA + 1) // 2)
    factors = np.minimum(drawn[:, betas] / line[:, betas], 1.0) ** by
    wide[:, betas] = np.where(factors < 1, factors * line[:, betas], wide[:, betas])
    return np.asarray(wide)


def _solve_in_parts(problems: Problems, line: Floats) -> Floats:
    num_parts = -(-NUM_DRAWS * problems.shifts.shape[1] // MOST_SAMPLES_AT_ONCE)
    rows: list[npt.NDArray[np.int64]] = np.array_split(np.arange(NUM_DRAWS), num_parts)
    return np.vstack([solve(problems.take(part), line) for part in rows])
