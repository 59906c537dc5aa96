"""The pair survives what a case does to it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.gloo_pair import CaseError, GlooPair


def add_ranks() -> float:
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    return total.item()


def fail_on_rank_1() -> None:
    assert dist.get_rank() == 0, "rank 1 does not like it"


def sleep_on_rank_0() -> None:
    time.sleep(60 * (1 - dist.get_rank()))


@pytest.mark.parametrize(
    ("case", "timeout_s", "message"),
    [
        (fail_on_rank_1, 60, "(?s)rank 1 ended.*rank 1 does not like it"),
        (sleep_on_rank_0, 1, "rank 0 was not done in time"),
    ],
)
def test_a_bad_case_is_reported_and_the_next_one_runs(
    gloo_pair: GlooPair, case: Callable[[], None], timeout_s: float, message: str
) -> None:
    assert gloo_pair.run(add_ranks) == [3.0, 3.0]
    with pytest.raises(CaseError, match=message):
        gloo_pair.run(case, timeout_s=timeout_s)
    assert gloo_pair.run(add_ranks) == [3.0, 3.0]
