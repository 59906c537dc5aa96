"""torch's bucketing rule: by hand, and against torch itself on random models."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from random import Random

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel.distributed import _BucketCapacityConfig

from advisor.bucketing import (
    MIB,
    assign_buckets,
    assign_first,
    assign_rebuilt,
    bucket_limits,
    find_distinct_caps,
    first_limits,
    round_cap_mb,
)
from advisor.errors import UsageError

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize(
    ("cap", "cap_list", "expected"),
    [
        (None, None, (MIB, 25 * MIB)),
        (25, None, (25 * MIB,)),
        (0.5, None, (MIB // 2,)),
        (None, [1, 2.5], (MIB, 5 * MIB // 2)),
        (25, [1, 2.5], (MIB, 5 * MIB // 2)),
        (None, [], (MIB, 25 * MIB)),
        (0, None, (0,)),
    ],
)
def test_limits_of_the_settings(cap: float | None, cap_list: list[float] | None, expected: tuple[int, ...]) -> None:
    assert bucket_limits(cap, cap_list) == expected


@pytest.mark.parametrize(("cap", "expected"), [(None, (MIB, 25 * MIB)), (25, (MIB, 25 * MIB)), (4, (MIB, 4 * MIB))])
def test_before_torch_2_4_the_first_bucket_was_always_small(cap: float | None, expected: tuple[int, ...]) -> None:
    assert bucket_limits(cap, None, caps_first_bucket=False) == expected


@pytest.mark.parametrize("cap", [None, 25, 0.5, 1, 7])
@pytest.mark.parametrize("cap_list", [None, [1, 2.5, 4]])
@pytest.mark.parametrize("static_graph", [False, True])
@pytest.mark.parametrize("find_unused_parameters", [False, True])
def test_limits_equal_torchs_before_and_after_the_rebuild(
    cap: float | None, cap_list: list[float] | None, static_graph: bool, find_unused_parameters: bool
) -> None:
    """Torch says "no limit" as sys.maxsize, and hands the limits after the rebuild to the reducer by two numbers."""
    torchs = _BucketCapacityConfig.create(cap, cap_list, use_python_reducer=False)  # type: ignore[arg-type]
    first, rebuilt = torchs.compute_bucket_size_limits(static_graph, find_unused_parameters)
    will_rebuild = static_graph or not find_unused_parameters
    limits = bucket_limits(cap, cap_list)
    assert first_limits(limits, cap_list_given=cap_list is not None, will_rebuild=will_rebuild) == tuple(first)
    handed = rebuilt or list(dict.fromkeys([torchs.first_bucket_bytes_cap, torchs.bucket_bytes_cap]))
    assert limits == tuple(handed)


@pytest.mark.parametrize("cap", [-1.0, float("nan")])
def test_a_cap_that_cannot_be_meant_is_refused(cap: float) -> None:
    with pytest.raises(UsageError, match="MiB cannot be meant"):
        bucket_limits(cap, None)


def test_a_bucket_closes_at_its_limit_and_may_overshoot() -> None:
    assert assign_buckets([3, 3, 1, 5, 2], "aaaaa", (4, 6)) == [[0, 1], [2, 3], [4]]


def test_each_key_has_its_own_bucket_and_its_own_limits() -> None:
    assert assign_buckets([4, 2, 4, 2, 2], "abaab", (4, 6)) == [[0], [1, 4], [2, 3]]


def test_the_first_assignment_is_launched_from_the_last_layer() -> None:
    assert assign_first([4, 4, 2], "aaa", (4,)) == [[2], [1], [0]]


def test_the_rebuild_fills_in_ready_order() -> None:
    assert assign_rebuilt([4, 4, 2], "aaa", (6,), [2, 1, 0]) == [[2, 1], [0]]


@pytest.mark.parametrize(("listed", "rebuild", "expected"), [(False, True, 1), (False, False, 2), (True, True, 2)])
def test_caps_hold_from_the_start_only_without_a_rebuild_or_with_a_list(
    listed: bool, rebuild: bool, expected: int
) -> None:
    limits = first_limits((4,), cap_list_given=listed, will_rebuild=rebuild)
    assert len(assign_first([4, 4], "aa", limits)) == expected


models = st.lists(st.tuples(st.integers(1, 60), st.sampled_from(range(len(DTYPES)))), min_size=1, max_size=40)
limit_lists = st.lists(st.integers(0, 500), min_size=1, max_size=4)


@given(models, limit_lists, st.randoms(use_true_random=False))
def test_buckets_equal_torchs(model: list[tuple[int, int]], limits: list[int], random: Random) -> None:
    tensors = [torch.empty(numel, dtype=DTYPES[kind]) for numel, kind in model]
    num_bytes, keys = [t.nbytes for t in tensors], [t.dtype for t in tensors]
    in_registration_order, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    assert assign_buckets(num_bytes, keys, limits) == in_registration_order

    order = list(range(len(tensors)))
    random.shuffle(order)
    in_ready_order, _ = dist._compute_bucket_assignment_by_size(
        [tensors[i] for i in order], limits, [False] * len(tensors), order
    )
    assert assign_rebuilt(num_bytes, keys, limits, order) == in_ready_order


def test_bucketing_needs_no_torch() -> None:
    code = "import sys, advisor.bucketing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_distinct_cap_is_found() -> None:
    """Gradients of 4, 4, 8 bytes: alone up to 4, then 8 + 8, then all in one."""
    assert find_distinct_caps([4, 4, 8], ["f"] * 3) == [(1, 4), (5, 8), (9, 16)]


def test_a_small_first_bucket_changes_which_caps_are_distinct() -> None:
    """1, 1, 1 MiB and the first closed at 1 already: caps up to 1 leave three buckets, above it two."""
    ranges = find_distinct_caps([MIB] * 3, ["f"] * 3, caps_first_bucket=False)
    assert ranges == [(1, MIB), (MIB + 1, 2 * MIB)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.data())
def test_no_cap_gives_buckets_that_are_not_among_the_distinct_ones(sizes: list[int], data: st.DataObject) -> None:
    keys = [data.draw(st.sampled_from("ab")) for _ in sizes]
    ranges = find_distinct_caps(sizes, keys)
    order = range(len(sizes))
    known = {low: assign_rebuilt(sizes, keys, (low,), order) for low, _ in ranges}
    assert all(left != right for left, right in pairwise(known.values()))
    for cap in range(1, sum(sizes) + 2):
        low = max((low for low, _ in ranges if low <= cap))
        assert assign_rebuilt(sizes, keys, (cap,), order) == known[low]


@pytest.mark.parametrize(
    ("lowest", "highest", "cap_mb"),
    [(5_000_000, 9_000_000, 8.0), (1, MIB, 1.0), (MIB + 1, MIB + MIB // 2, 1.5), (1, 1000, 0.0009)],
)
def test_a_cap_is_written_with_as_few_decimals_as_its_range_allows(lowest: int, highest: int, cap_mb: float) -> None:
    assert round_cap_mb(lowest, highest) == cap_mb
    assert lowest <= bucket_limits(cap_mb, None)[0] <= highest
