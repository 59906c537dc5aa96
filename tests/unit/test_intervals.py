from __future__ import annotations

import numpy as np
import pytest

from advisor.intervals import (
    Intervals,
    build_intervals,
    clip,
    difference,
    intersection,
    measure_coverage,
    measure_exclusive_times,
    total,
    union,
)

EPOCH_NS = 1_711_964_646_416_788_066
"""A time of 2024 in nanoseconds: floats near it are 256 apart."""


def of(*pairs: tuple[int, int]) -> Intervals:
    return build_intervals([start for start, _ in pairs], [end for _, end in pairs])


def pairs(intervals: Intervals) -> list[tuple[int, int]]:
    return [(int(start), int(end)) for start, end in intervals]


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        ([], []),
        ([(0, 2), (1, 3), (3, 4), (6, 6)], [(0, 4)]),
        ([(5, 6), (0, 1)], [(0, 1), (5, 6)]),
        ([(0, 10), (2, 3), (4, 5)], [(0, 10)]),
        ([(4, 2)], []),
    ],
)
def test_intervals_are_sorted_and_merged_and_empty_ones_vanish(
    given: list[tuple[int, int]], merged: list[tuple[int, int]]
) -> None:
    assert pairs(of(*given)) == merged


def test_algebra_by_hand() -> None:
    left, right = of((0, 4), (6, 9)), of((2, 7), (8, 10))
    assert pairs(union(left, right)) == [(0, 10)]
    assert pairs(intersection(left, right)) == [(2, 4), (6, 7), (8, 9)]
    assert pairs(difference(left, right)) == [(0, 2), (7, 8)]
    assert pairs(difference(right, left)) == [(4, 6), (9, 10)]
    assert pairs(clip(left, 3, 7)) == [(3, 4), (6, 7)]
    assert total(left) == 7


def test_algebra_with_nothing() -> None:
    nothing, something = of(), of((1, 2))
    assert pairs(union()) == pairs(intersection(something, nothing)) == pairs(difference(nothing, something)) == []
    assert pairs(difference(something, nothing)) == pairs(union(nothing, something)) == [(1, 2)]
    assert total(nothing) == 0


def test_nothing_is_rounded_at_epoch_times() -> None:
    parts = of((EPOCH_NS, EPOCH_NS + 3), (EPOCH_NS + 7, EPOCH_NS + 8))
    assert pairs(difference(parts, of((EPOCH_NS + 1, EPOCH_NS + 2)))) == [
        (EPOCH_NS, EPOCH_NS + 1),
        (EPOCH_NS + 2, EPOCH_NS + 3),
        (EPOCH_NS + 7, EPOCH_NS + 8),
    ]
    assert total(parts) == 4


@pytest.mark.parametrize("zero", [0, EPOCH_NS])
def test_coverage_counts_what_lies_before_a_time(zero: int) -> None:
    covered = measure_coverage(of((zero + 10, zero + 20), (zero + 30, zero + 40)))
    times = np.array([0, 10, 15, 20, 25, 31, 40, 99], dtype=np.int64)
    assert covered(zero + times).tolist() == [0, 0, 5, 10, 10, 11, 20, 20]


def test_coverage_of_nothing_is_zero() -> None:
    assert measure_coverage(of())([1, 2]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("span", "beside", "exclusive"),
    [
        ((0, 10), [], 10),
        ((0, 10), [(6, 14)], 8),  # 6 alone, 4 shared by two
        ((6, 14), [(0, 10)], 6),
        ((0, 10), [(0, 10)], 5),
        ((0, 12), [(0, 12), (0, 12), (4, 8)], 8 / 3 + 1),
        ((0, 10), [(10, 20), (-5, 0)], 10),
        ((3, 3), [], 1),
        ((0, 100), [(10 * n, 10 * n + 10) for n in range(10)], 50),  # one long beside ten short ones, two at a time
        ((90, 100), [(0, 100), *((10 * n, 10 * n + 10) for n in range(9))], 5),
    ],
)
def test_time_beside_another_transfer_counts_half(
    span: tuple[int, int], beside: list[tuple[int, int]], exclusive: float
) -> None:
    assert measure_exclusive_times([span, *beside])[0] == pytest.approx(exclusive)
