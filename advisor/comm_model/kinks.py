"""Where the time over bytes changes its slope: a further segment has to pay for itself.

Samples of one size share whatever is special about that size, so sizes are counted, not samples: the criterion is
m · ln(mean squared error of the m sizes' medians) + ln(m) for every number that is fitted. A kink that is known
beforehand costs one number; one found by searching costs two, and a margin for the search. What computation beside a
transfer costs is fitted with every candidate: a line without the kink would take the one for the other.

**Source**: Schwarz, Estimating the dimension of a model (1978); Kass and Raftery, Bayes factors (1995), for the margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.comm_model.lines import SPREAD_OF_KINK, Floats, Samples, Terms, guess, pose, solve

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

MOSTLY = 0.5
"""A sample with more of it beside computation is set apart from those with less."""

Kinks = tuple[float, ...]


@dataclass(frozen=True)
class Medians:
    """Typical samples; those of one size share its weight of 1."""

    samples: Samples
    sizes: Floats
    weights: Floats


def find_kinks(samples: Samples, terms: Terms, known: Sequence[float]) -> Kinks:
    """The kinks that pay for themselves, in bytes, ascending: found beside those known, or instead of them."""
    medians = _take_medians(samples)
    fixed: Kinks = ()
    score = _score(medians, terms, [fixed], 0)[0]
    for kink in known:
        with_it = _join(fixed, kink)
        if _has_room(medians.sizes, with_it):
            better = _score(medians, terms, [with_it], len(with_it))[0]
            fixed, score = (with_it, better) if better < score else (fixed, score)
    found = [_search(medians, terms, start) for start in dict.fromkeys((fixed, ()))]
    return min(found, key=lambda kinks_and_score: kinks_and_score[1])[0]


def _search(medians: Medians, terms: Terms, fixed: Kinks) -> tuple[Kinks, float]:
    """Adds kinks to the fixed ones as long as the criterion falls; all of them, and the criterion."""
    searched: Kinks = ()
    score = _score(medians, terms, [fixed], len(fixed))[0]
    for _ in range(MOST_SEARCHED):
        more, better = _place_one_more(medians, terms, fixed, searched)
        if better + VERY_STRONG_EVIDENCE >= score:
            break
        searched, score = more, better
    return _join(fixed, *searched), score


def _place_one_more(medians: Medians, terms: Terms, fixed: Kinks, searched: Kinks) -> tuple[Kinks, float]:
    """The best place for one more kink, then anew for each before it, given the others; and the score of them all."""
    sizes = medians.sizes
    num_fitted = len(fixed) + 2 * (len(searched) + 1)
    if len(sizes) < num_fitted + 3:  # latency and first slope are fitted too, and one size has to judge
        return searched, np.inf
    others, ours = searched, searched
    for _ in range(len(searched) + 1):
        places = [place for place in _list_places(sizes) if _has_room(sizes, _join(fixed, *others, place))]
        if not places:
            return searched, np.inf
        scores = _score(medians, terms, [_join(fixed, *others, place) for place in places], num_fitted)
        ours = (*others, places[int(np.argmin(scores))])
        others = ours[1:]
    return ours, _score(medians, terms, [_join(fixed, *ours)], num_fitted, moving=ours)[0]


def _take_medians(samples: Samples) -> Medians:
    """By size, and apart what was mostly beside computation and what another source measured, the typical sample."""
    rows = np.column_stack([samples.num_bytes, samples.busy >= MOSTLY, samples.elsewhere])
    kinds, kind_of = np.unique(rows, axis=0, return_inverse=True)
    members = [kind_of.ravel() == kind for kind in range(len(kinds))]
    times = np.exp([np.median(np.log(samples.times_ns[own])) for own in members])
    busy = np.array([np.median(samples.busy[own]) for own in members])
    sizes, size_of, rows_of = np.unique(kinds[:, 0], return_inverse=True, return_counts=True)
    return Medians(Samples(kinds[:, 0], times, busy, kinds[:, 2]), sizes, 1 / rows_of[size_of])


def _score(medians: Medians, terms: Terms, candidates: Sequence[Kinks], spent: int, moving: Kinks = ()) -> Floats:
    """The criterion of each candidate; all have equally many kinks, of which some may move to where they fit best."""
    spreads = tuple(SPREAD_OF_KINK if kink in moving else 0.0 for kink in candidates[0])
    expected = replace(terms, noise=EXPECTED_ERROR, spread_of_kinks=spreads)
    problems = replace(pose(medians.samples, expected, candidates), weights=medians.weights[None])
    errors, _ = problems.evaluate(solve(problems, guess(medians.samples, expected)))
    num = len(medians.sizes)
    squares = errors**2 @ medians.weights / num + SMALLEST_ERROR**2
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
