"""Time over bytes as a broken line that never falls: fitted robustly, to many weightings of the samples at once.

    time = (alpha + sum over segments of beta_k · bytes within segment k) · (1 + gamma · busy) · exp(delta · elsewhere)

`busy` is the fraction of the transfer during which some rank computed, `elsewhere` is 1 for a sample that was not taken
in training. Errors are relative (a 1 MiB bucket counts as much as a 25 MiB one): differences of logarithms, under a
loss that grows linearly, so that spikes hardly move anything. No beta is below zero, so the line is monotone.

The minimum is found by Levenberg-Marquardt steps on reweighted squares, for a stack of problems together: a hundred
resamples take hardly longer than one.

**Source**: Huber, Robust estimation of a location parameter (1964), for the constant; Charbonnier et al., Deterministic
edge-preserving regularization (1997), for the smooth form of the loss; Marquardt, An algorithm for least-squares
estimation of nonlinear parameters (1963).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ALPHA, GAMMA, DELTA, FIRST_BETA = 0, 1, 2, 3
"""Columns of a solution: ln(alpha / usual latency), gamma, delta, by segment beta over the samples' ns per byte, and by
kink ln(kink / where it was found)."""
HUBER = 1.345
"""Errors beyond this many standard deviations count linearly: 95 % efficient where noise is normal."""
ROUGH_NOISE = 0.3
"""Taken until the noise is known, so that no spike looks like the rule."""
LEAST_NOISE = 0.01
ASSUMED_NOISE = 0.05
"""Where there are too few samples to see it."""
FEWEST_FREE_SAMPLES = 3
"""Samples beyond the number of columns below which their spread says nothing."""
LEAST_BETA = 1e-9
"""In units of the column: practically zero, yet the logarithm of a line without latency exists."""
SPREAD_OF_KINK = 0.5
"""How far a kink that was searched may lie from the sampled size beside it, as a difference of logarithms."""
MOST_STEPS = 40
CONVERGED = 1e-4
"""In units of a column, which are all about 1."""


@dataclass(frozen=True)
class Samples:
    """What was measured, by sample."""

    num_bytes: Floats
    times_ns: Floats
    busy: Floats
    elsewhere: Floats

    @cached_property
    def ns_per_byte(self) -> float:
        """Of the largest messages."""
        large = self.num_bytes >= 0.9 * self.num_bytes.max()
        return float(np.median(self.times_ns[large] / self.num_bytes[large]))


@dataclass(frozen=True)
class Terms:
    """What is fitted, and how far from 0 each column is expected: 0 leaves a term out, infinity expects nothing."""

    usual_latency_ns: float
    spread_of_alpha: float
    spread_of_gamma: float
    spread_of_delta: float
    spread_of_kinks: tuple[float, ...] = ()
    noise: float = ROUGH_NOISE
    """Standard deviation of the samples' relative errors."""

    @property
    def spreads(self) -> Floats:
        """By column; of the betas nothing is expected."""
        betas = [np.inf] * (len(self.spread_of_kinks) + 1)
        first = [self.spread_of_alpha, self.spread_of_gamma, self.spread_of_delta]
        return np.array([*first, *betas, *self.spread_of_kinks])

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """By column, what it is at least and at most."""
        num_kinks = len(self.spread_of_kinks)
        least = np.array([-12.0, 0.0, -np.inf, *[LEAST_BETA] * (num_kinks + 1), *[-np.log(2)] * num_kinks])
        most = np.array([np.inf] * (FIRST_BETA + num_kinks + 1) + [np.log(2)] * num_kinks)
        return least, most


@dataclass(frozen=True)
class Problems:
    """A stack of problems with the same samples; every array has a row for each problem, or one row for all."""

    samples: Samples
    terms: Terms
    kinks: Floats
    """Where they were found, in bytes, ascending: shape (problems, kinks)."""
    weights: Floats
    """How often each sample counts: shape (problems, samples)."""
    centres: Floats
    """What is expected of each column: shape (problems, columns)."""
    shifts: Floats
    """Added to the logarithms of the times: shape (problems, samples)."""

    @property
    def precision(self) -> Floats:
        """By column, how strongly it is held to its centre."""
        spreads = self.terms.spreads
        return np.asarray(np.where(spreads > 0, 1 / np.maximum(spreads, 1e-9), 1.0) ** 2)  # what is left out stays

    def take(self, rows: npt.NDArray[np.int64]) -> Problems:
        """Some of the problems."""
        weights, centres, shifts = (a[rows] if len(a) > 1 else a for a in (self.weights, self.centres, self.shifts))
        return replace(self, weights=weights, centres=centres, shifts=shifts)

    def evaluate(self, solutions: Floats) -> tuple[Floats, Floats]:
        """ln(fitted / measured time), shape (problems, samples), and its slopes by column as a third axis."""
        samples, terms = self.samples, self.terms
        alpha = np.exp(solutions[:, ALPHA, None]) * terms.usual_latency_ns * (terms.spread_of_alpha > 0)
        num_kinks = self.kinks.shape[1]
        betas = solutions[:, FIRST_BETA : FIRST_BETA + num_kinks + 1] * samples.ns_per_byte
        kinks = place_kinks(self.kinks, solutions)
        parts = split_bytes(samples.num_bytes, kinks)
        line = alpha + np.matmul(parts, betas[:, :, None])[:, :, 0]
        busy = samples.busy * (terms.spread_of_gamma > 0)
        slower = 1 + solutions[:, GAMMA, None] * busy
        elsewhere = samples.elsewhere * (terms.spread_of_delta > 0)
        errors = np.log(line * slower / samples.times_ns) + solutions[:, DELTA, None] * elsewhere - self.shifts
        by = np.stack([alpha / line, busy / slower, np.broadcast_to(elsewhere, line.shape)], axis=2)
        by_beta = parts * samples.ns_per_byte / line[:, :, None]
        bends = (betas[:, :-1] - betas[:, 1:]) * kinks * (np.array(terms.spread_of_kinks) > 0)
        by_kink = (samples.num_bytes[:, None] > kinks[:, None, :]) * bends[:, None, :] / line[:, :, None]
        return errors, np.concatenate([by, by_beta, by_kink], axis=2)

    def sum_losses(self, solutions: Floats, errors: Floats) -> Floats:
        """What is minimised, by problem."""
        scaled = errors / (HUBER * self.terms.noise)
        data = 2 * HUBER**2 * np.sum(self.weights * (np.sqrt(1 + scaled**2) - 1), axis=1)
        return np.asarray(data + np.sum(self.precision * (solutions - self.centres) ** 2, axis=1))


def pose(samples: Samples, terms: Terms, kinks: Sequence[Sequence[float]]) -> Problems:
    """A problem for each choice of kinks: every sample counts once, and nothing is drawn."""
    ones, zeros = np.ones((1, len(samples.num_bytes))), np.zeros((1, len(samples.num_bytes)))
    return Problems(samples, terms, np.array(kinks, dtype=np.float64), ones, np.zeros((1, len(terms.spreads))), zeros)


def place_kinks(kinks: Floats, solutions: Floats) -> Floats:
    """The kinks where each solution has moved them, in bytes; none goes past the next one: they stay ascending."""
    moved = kinks * np.exp(solutions[:, solutions.shape[1] - kinks.shape[1] :])
    return np.asarray(np.maximum.accumulate(moved, axis=1)) if kinks.shape[1] else moved


def split_bytes(num_bytes: Floats, kinks: Floats) -> Floats:
    """Bytes of each message within each segment, shape (problems, messages, segments); kinks are (problems, kinks).

    Example: 7 bytes with a kink at 5 are 5 in the first segment and 2 in the second.
    """
    starts = np.concatenate([np.zeros((len(kinks), 1)), kinks], axis=1)[:, None, :]
    ends = np.concatenate([kinks, np.full((len(kinks), 1), np.inf)], axis=1)[:, None, :]
    return np.asarray(np.clip(num_bytes[None, :, None], starts, ends) - starts)


def guess(samples: Samples, terms: Terms) -> Floats:
    """Where to start: the smallest message is all latency, the largest all bytes; shape (1, columns)."""
    alpha = np.log(samples.times_ns[np.argmin(samples.num_bytes)] / terms.usual_latency_ns)
    num_kinks = len(terms.spread_of_kinks)
    return np.array([[alpha if terms.spread_of_alpha else 0.0, 0.0, 0.0, *[1.0] * (num_kinks + 1), *[0.0] * num_kinks]])


def fit_line(samples: Samples, terms: Terms, kinks: Sequence[float]) -> tuple[Floats, Terms]:
    """The solution for all samples, shape (1, columns), and `terms` with the noise as it was found."""
    problem = pose(samples, terms, [kinks])
    rough = solve(problem, guess(samples, terms))
    noise = _measure_noise(problem.evaluate(rough)[0][0], rough.shape[1])
    known = replace(terms, noise=noise)
    return solve(replace(problem, terms=known), rough), known


def solve(problems: Problems, start: Floats) -> Floats:
    """The solution of each problem, shape (problems, columns), beginning at `start`, shape (problems or 1, columns)."""
    num = max(len(start), len(problems.kinks), len(problems.weights), len(problems.centres), len(problems.shifts))
    found = np.broadcast_to(start, (num, start.shape[1])).copy()
    least, most = problems.terms.bounds
    damping = np.full(num, 1e-3)
    errors, slopes = problems.evaluate(found)
    losses = problems.sum_losses(found, errors)
    for _ in range(MOST_STEPS):
        moved = np.clip(found - _step(problems, (found, errors, slopes), damping), least, most)
        their_errors, their_slopes = problems.evaluate(moved)
        their_losses = problems.sum_losses(moved, their_errors)
        better = their_losses <= losses
        change = np.where(better, np.max(np.abs(moved - found), axis=1), np.inf)
        found = np.where(better[:, None], moved, found)
        errors = np.where(better[:, None], their_errors, errors)
        slopes = np.where(better[:, None, None], their_slopes, slopes)
        losses = np.where(better, their_losses, losses)
        damping = np.where(better, damping / 10, damping * 10)
        if np.all((change < CONVERGED) | (damping > 1e6)):
            break
    return found


def _step(problems: Problems, at: tuple[Floats, Floats, Floats], damping: Floats) -> Floats:
    """Minus the damped Gauss-Newton step; a column that is at one of its bounds and would go beyond stays."""
    found, errors, slopes = at
    least, most = problems.terms.bounds
    noise = problems.terms.noise
    weights = problems.weights / np.sqrt(1 + (errors / (HUBER * noise)) ** 2) / noise**2
    weighted = np.swapaxes(slopes * weights[:, :, None], 1, 2)
    curvature = weighted @ slopes
    downhill = (weighted @ errors[:, :, None])[:, :, 0] + problems.precision * (found - problems.centres)
    held = ((found <= least) & (downhill > 0)) | ((found >= most) & (downhill < 0))
    free = np.where(held, 0.0, 1.0)
    curvature = curvature * free[:, :, None] * free[:, None, :]
    diagonal = np.einsum("bii->bi", curvature) + problems.precision
    index = np.arange(found.shape[1])
    curvature[:, index, index] = diagonal * (1 + damping[:, None]) + held + 1e-9
    return np.asarray(np.linalg.solve(curvature, (downhill * free)[:, :, None])[:, :, 0])


def _measure_noise(errors: Floats, num_columns: int) -> float:
    """The standard deviation of relative errors, from their median size."""
    free = len(errors) - num_columns
    if free < FEWEST_FREE_SAMPLES:
        return ASSUMED_NOISE
    spread = 1.4826 * float(np.median(np.abs(errors))) * float(np.sqrt(len(errors) / free))
    return float(np.clip(spread, LEAST_NOISE, ROUGH_NOISE))
