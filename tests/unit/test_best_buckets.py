"""The exact best buckets: the example by hand, and brute force on thousands of instances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest

from advisor.best_buckets import (
    Cost,
    Ends,
    find_best_buckets,
    list_caps_mb,
    list_uniform_buckets,
    search_buckets,
)
from advisor.bucketing import MIB
from benchmarks.mg_wfbp import merge_gradients


def line(alpha: float, beta: float) -> Cost:
    return lambda num_bytes: alpha + beta * num_bytes


def finish_on_one_channel(ready: Sequence[float], num_bytes: Sequence[int], cost: Cost, ends: Ends) -> float:
    """Sends the buckets one after the other, each when its last gradient is ready."""
    now = 0.0
    for start, end in pairwise((0, *ends)):
        sent = np.array([float(sum(num_bytes[start:end]))])
        now = max(now, *ready[start:end]) + float(cost(sent)[0])
    return now


def all_buckets(num: int) -> Iterator[Ends]:
    """Every way to cut a row of `num` gradients."""
    for num_borders in range(num):
        for borders in combinations(range(1, num), num_borders):
            yield (*borders, num)


def test_the_best_buckets_of_a_small_model_by_hand() -> None:
    """Bytes 2, 1, 1 ready at 0, 2, 5 with 3 + b: sent 0-5 and 5-10. MG-WFBP's rule merges all: 5 + 7 = 12."""
    assert find_best_buckets([0, 2, 5], [2, 1, 1], line(3, 1)) == ((1, 3), 10)
    merged = merge_gradients([0, 2, 5], [2, 1, 1], alpha=3, beta=1)
    assert finish_on_one_channel([0, 2, 5], [2, 1, 1], line(3, 1), merged) == 12


def test_the_best_buckets_equal_brute_force() -> None:
    """2000 random models of up to 7 gradients, under straight, kinked and stepped costs; MG-WFBP is never better."""
    random = Random(6)
    for _ in range(2000):
        num = random.randint(1, 7)
        ready = sorted(random.uniform(0, 30) for _ in range(num))
        num_bytes = [random.randint(1, 20) for _ in range(num)]
        alpha, beta, kink = random.uniform(0, 10), random.uniform(0.01, 2), random.uniform(5, 60)
        cost = random.choice(
            [
                line(alpha, beta),
                lambda b, alpha=alpha, beta=beta, kink=kink: alpha + beta * b + 3 * beta * np.maximum(0, b - kink),
                lambda b, alpha=alpha, kink=kink: alpha * (1 + b // kink),
            ]
        )
        best = find_best_buckets(ready, num_bytes, cost)
        least = min(finish_on_one_channel(ready, num_bytes, cost, ends) for ends in all_buckets(num))
        assert best.finish == pytest.approx(least, rel=1e-12)
        assert finish_on_one_channel(ready, num_bytes, cost, best.ends) == pytest.approx(least, rel=1e-12)
        fewer = [tuple(e for e in best.ends if e != border) for border in best.ends[:-1]]
        assert all(finish_on_one_channel(ready, num_bytes, cost, ends) > best.finish for ends in fewer)
        merged = merge_gradients(ready, num_bytes, alpha=alpha, beta=beta)
        greedy = finish_on_one_channel(ready, num_bytes, line(alpha, beta), merged)
        assert greedy >= find_best_buckets(ready, num_bytes, line(alpha, beta)).finish - 1e-9


def test_without_latency_every_gradient_goes_alone_and_with_much_of_it_all_go_together() -> None:
    assert find_best_buckets([0, 1, 2], [1, 1, 1], line(0, 1)).ends == (1, 2, 3)
    assert find_best_buckets([0, 1, 2], [1, 1, 1], line(100, 1)).ends == (3,)


def test_a_border_that_nothing_needs_is_left_out() -> None:
    """Half a second each, ready a second apart: the first two may wait for each other, the last one is alone."""
    assert find_best_buckets([1, 2, 3], [1, 1, 1], line(0, 0.5)).ends == (2, 3)


def test_no_bucket_ends_behind_a_gradient_without_bytes() -> None:
    """No limit could close it there: 0 more bytes reach nothing that was not reached before."""
    assert find_best_buckets([1, 1, 2], [4, 0, 4], line(0, 1)).ends == (1, 3)


def test_caps_are_as_round_as_they_may_be() -> None:
    """3 + 3 MiB close between 3 and 6, the last 1.5 MiB may stay open below 2."""
    mib = [3 * MIB, 3 * MIB, 3 * MIB // 2]
    assert list_caps_mb(mib, (2, 3)) == (6.0, 2.0)


def test_uniform_buckets_are_those_of_every_distinct_cap() -> None:
    """4, 4, 8 bytes: alone up to 4, then 8 + 8, then all in one."""
    assert list_uniform_buckets([4, 4, 8]) == [(1, 2, 3), (2, 3), (3,)]


def test_the_search_finds_the_exact_answer_where_one_channel_is_all() -> None:
    random = Random(7)
    for _ in range(50):
        num = random.randint(1, 9)
        ready = sorted(random.uniform(0, 30) for _ in range(num))
        num_bytes = [random.randint(1, 20) for _ in range(num)]
        cost = line(3, 0.5)
        found = search_buckets(
            ready,
            num_bytes,
            costs=[cost],
            evaluate=lambda ends, r=ready, b=num_bytes, c=cost: finish_on_one_channel(r, b, c, ends),
        )
        assert found.finish == pytest.approx(find_best_buckets(ready, num_bytes, cost).finish)


def test_the_search_obeys_its_judge() -> None:
    """A judge that wants exactly three buckets of even length gets them, whatever latency and bandwidth say."""

    def judge(ends: Ends) -> float:
        lengths = [end - start for start, end in pairwise((0, *ends))]
        return abs(len(ends) - 3) + float(np.std(lengths))

    found = search_buckets(range(12), [1] * 12, costs=[line(1, 1)], evaluate=judge)
    assert found == ((4, 8, 12), 0.0)
