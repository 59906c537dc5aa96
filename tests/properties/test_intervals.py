"""Interval algebra against sets of integers: an interval is the instants in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from advisor.intervals import (
    Intervals,
    build_intervals,
    clip,
    difference,
    intersection,
    measure_coverage,
    total,
    union,
)

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)
Pairs = list[tuple[int, int]]


def build(pairs: Pairs) -> Intervals:
    return build_intervals([start for start, _ in pairs], [end for _, end in pairs])


def instants(pairs: Pairs) -> set[int]:
    return {instant for start, end in pairs for instant in range(start, end)}


def read(intervals: Intervals) -> set[int]:
    """The instants of a set, which must be sorted, and disjoint without touching."""
    flat = intervals.reshape(-1).tolist()
    assert flat == sorted(set(flat))
    return instants([(int(start), int(end)) for start, end in intervals])


@given(PAIRS, PAIRS)
def test_algebra_is_that_of_sets(left: Pairs, right: Pairs) -> None:
    mine, yours = build(left), build(right)
    assert read(mine) == instants(left)
    assert read(union(mine, yours)) == instants(left) | instants(right)
    assert read(intersection(mine, yours)) == instants(left) & instants(right)
    assert read(difference(mine, yours)) == instants(left) - instants(right)
    assert total(mine) == len(instants(left))


@given(PAIRS, st.integers(-5, 35), st.integers(-5, 35))
def test_clipping_keeps_what_lies_inside(pairs: Pairs, start: int, end: int) -> None:
    assert read(clip(build(pairs), start, end)) == instants(pairs) & set(range(start, end))


@given(PAIRS, st.integers(-5, 35), st.sampled_from([0, 1_711_964_646_416_788_066]))
def test_coverage_counts_the_instants_before(pairs: Pairs, at: int, zero: int) -> None:
    moved = [(start + zero, end + zero) for start, end in pairs]
    assert measure_coverage(build(moved))([at + zero]) == [len({i for i in instants(pairs) if i < at})]
