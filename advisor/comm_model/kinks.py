"""Where the time over bytes changes its slope: a further segment has to pay for itself.

Samples of one size share whatever is special about that size, so sizes are counted, not samples: the criterion is
m · ln(mean squared error of the m sizes' medians) + ln(m) for every number that is fitted. A kink that is known
beforehand costs one number; one found by searching costs two, and a margin for the search.

**Source**: Schwarz, Estimating the dimension of a model (1978); Kass and Raftery, Bayes factors (1995), for the margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor.comm_model.lines import DELTA, GAMMA, Floats, Samples, Terms, fit_line, guess, pose, solve

MOST_SEARCHED = 3
FEWEST_BESIDE = 2
"""Sizes within each segment, its ends not counted."""
VERY_STRONG_EVIDENCE = 10.0
"""By how much the criterion has to fall for a kink that was searched."""
EXPECTED_ERROR = 0.03
"""Of the median of one size; beyond, it counts less and less."""
SMALLEST_ERROR = 0.01
"""No segment is bought to explain less."""
STEPS_BETWEEN_SIZES = 4
"""A kink is searched at every sampled size, and at points between two of them that divide their ratio so."""
MOST_SIZES = 24
"""Of more sizes only so many, evenly spread, are searched."""

Kinks = tuple[float, ...]


def find_kinks(samples: Samples, terms: Terms, known: Sequence[float]) -> Kinks:
    """The kinks that pay for themselves, in bytes, ascending: found beside those known, or instead of them."""
    medians = _take_medians(samples, terms)
    fixed: Kinks = ()
    score = _score(medians, terms, [fixed], 0)[0]
    for kink in known:
        with_it = _join(fixed, kink)
        if _has_room(medians.num_bytes, with_it):
            better = _score(medians, terms, [with_it], len(with_it))[0]
            fixed, score = (with_it, better) if better < score else (fixed, score)
    found = [_search(medians, terms, start) for start in dict.fromkeys((fixed, ()))]
    return min(found, key=lambda kinks_and_score: kinks_and_score[1])[0]


def _search(medians: Samples, terms: Terms, fixed: Kinks) -> tuple[Kinks, float]:
    """Adds kinks to the fixed ones as long as the criterion falls; all of them, and the criterion."""
    searched: Kinks = ()
    score = _score(medians, terms, [fixed], len(fixed))[0]
    for _ in range(MOST_SEARCHED):
        more, better = _place_one_more(medians, terms, fixed, searched)
        if better + VERY_STRONG_EVIDENCE >= score:
            break
        searched, score = more, better
    return _join(fixed, *searched), score


def _place_one_more(medians: Samples, terms: Terms, fixed: Kinks, searched: Kinks) -> tuple[Kinks, float]:
    """The best place for one more kink, then anew for each before it, given the others; and the score of them all."""
    sizes = medians.num_bytes
    num_fitted = len(fixed) + 2 * (len(searched) + 1)
    if len(sizes) < num_fitted + 3:  # latency and first slope are fitted too, and one size has to judge
        return searched, np.inf
    others, ours, score = searched, searched, np.inf
    for _ in range(len(searched) + 1):
        places = [place for place in _list_places(sizes) if _has_room(sizes, _join(fixed, *others, place))]
        if not places:
            return searched, np.inf
        scores = _score(medians, terms, [_join(fixed, *others, place) for place in places], num_fitted)
        best = int(np.argmin(scores))
        ours, score = (*others, places[best]), scores[best]
        others = ours[1:]
    return ours, score


def _take_medians(samples: Samples, terms: Terms) -> Samples:
    """By size, the median time freed from what else a single line explains: computation beside it, another source."""
    (line,), _ = fit_line(samples, terms, ())
    explained = np.log1p(line[GAMMA] * samples.busy) + line[DELTA] * samples.elsewhere
    logarithms = np.log(samples.times_ns) - explained
    sizes = np.unique(samples.num_bytes)
    times = np.exp([np.median(logarithms[samples.num_bytes == size]) for size in sizes])
    return Samples(sizes, times, np.zeros(len(sizes)), np.zeros(len(sizes)))


def _score(medians: Samples, terms: Terms, candidates: Sequence[Kinks], spent: int) -> Floats:
    """The criterion of each candidate; all have equally many kinks."""
    fixed = replace(terms, noise=EXPECTED_ERROR, spread_of_kinks=(0.0,) * len(candidates[0]))
    problems = pose(medians, fixed, candidates)
    errors, _ = problems.evaluate(solve(problems, guess(medians, fixed)))
    num = len(medians.num_bytes)
    squares = np.mean(errors**2, axis=1) + SMALLEST_ERROR**2
    return np.asarray(num * np.log(squares) + spent * np.log(num))


def _list_places(sizes: Floats) -> list[float]:
    """Sampled sizes first, then the points between them."""
    spread = sizes[np.unique(np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(int))]
    steps = np.arange(1, STEPS_BETWEEN_SIZES) / STEPS_BETWEEN_SIZES
    between = np.exp(np.log(spread[:-1, None]) + np.diff(np.log(spread))[:, None] * steps)
    return [float(place) for place in (*spread, *between.ravel().round())]


def _has_room(sizes: Floats, kinks: Kinks) -> bool:
    """Whether every segment holds enough sizes to have a slope of its own."""
    edges = np.array([0.0, *kinks, np.inf])
    inside = (sizes[:, None] > edges[:-1]) & (sizes[:, None] < edges[1:])
    return bool(np.all(inside.sum(axis=0) >= FEWEST_BESIDE))


def _join(kinks: Kinks, *others: float) -> Kinks:
    return tuple(sorted((*kinks, *others)))
