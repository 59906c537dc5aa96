"""What a run tells of its machine, and what is said of the rest; times of the traces in microseconds."""

from __future__ import annotations

import re

import pytest

from advisor.calibrate import GPU_CAST, MOST_SLOWDOWN, Calibrated, calibrate
from advisor.comm_model import CommFit
from advisor.schema import Ladder, LadderPoint
from tests.job_builders import build_comm_model, exactly
from tests.trace_builders import RankTrace, lay_out

MIB = 2**20


def trace(rank: int, *, copies: bool = True) -> RankTrace:
    """Two gradients of 256 bytes, 1 us each from their sum to being ready; a copy out of both takes 10 us."""
    one = RankTrace(rank)
    one.step(2, 0, 1000)
    one.forward(100, 200)
    one.gradient(200, 301, 64)
    one.gradient(302, 400, 64)
    one.gloo(399, 403, 450, 128)
    if copies:
        one.copy_back(450, 460)
    one.optimizer(800, 900)
    return one


def calibrate_run(*ladders: Ladder, fit: CommFit | None = None, copies: bool = True) -> Calibrated:
    front = lay_out(trace(0, copies=copies), trace(1, copies=copies))
    return calibrate(front.observations, front.schedules, fit, "gloo", ladders)


def ladder() -> Ladder:
    """1 MiB takes 1 ms alone, two at once 1.8 ms; computation beside it takes 1.25 times as long."""
    alone = LadderPoint(
        kind="all_reduce", dtype="float32", num_bytes=MIB, rounds_ns=((1_000_000,),) * 3, compute_slowdowns=(1.25,) * 3
    )
    both = LadderPoint(kind="all_reduce", dtype="float32", num_bytes=MIB, in_flight=2, rounds_ns=((1_800_000,),) * 3)
    return Ladder(world_size=2, backend="gloo", points=(alone, both))


def test_what_nothing_tells_has_a_wide_interval_and_is_named() -> None:
    calibration = calibrate_run().calibration
    for slowdown in (calibration.compute_slowdown, calibration.communication_slowdown):
        assert (slowdown.value, slowdown.high, slowdown.basis) == (1.0, MOST_SLOWDOWN, "extrapolated")
    named = " ".join(calibration.assumed)
    for what in (
        "computation is not slowed down",
        "communication is not slowed down",
        "in flight",
        "a hook that casts",
    ):
        assert what in named


def test_a_probe_tells_the_slow_down_and_what_two_at_once_cost() -> None:
    calibration = calibrate_run(ladder()).calibration
    assert calibration.compute_slowdown.value == 1.25
    assert calibration.two_in_flight.value == pytest.approx(1.8)
    assert not any("computation is not slowed" in text or "in flight" in text for text in calibration.assumed)


def test_a_missing_rank_leaves_the_slow_down_of_communication_open() -> None:
    alone = CommFit(build_comm_model(0, 1, complete=False), exactly(1.0))
    assert calibrate_run(fit=alone).calibration.communication_slowdown.high == MOST_SLOWDOWN
    known = CommFit(build_comm_model(0, 1), exactly(1.2))
    assert calibrate_run(fit=known).calibration.communication_slowdown == exactly(1.2)


def test_copies_and_the_casts_of_a_hook_go_at_the_pace_of_memory() -> None:
    """10 us for 512 bytes, so 19.5 ns a byte; a cast moves 12 bytes an element where a copy moves 8."""
    calibration = calibrate_run().calibration
    assert calibration.copy_out_ns_per_byte.value == pytest.approx(10_000 / 512)
    cast = calibration.hook_ns_per_byte["bf16"]
    assert cast.value == pytest.approx(1.5 * 10_000 / 512)
    assert cast.low < cast.value / 2.9 < cast.value * 2.9 < cast.high
    assert cast.basis == "extrapolated"


@pytest.mark.parametrize("copy_us", [0.005, 1, 100, 100_000])
def test_what_is_assumed_reads_as_plain_numbers(copy_us: float) -> None:
    ranks = [trace(rank, copies=False) for rank in range(2)]
    for one in ranks:
        one.copy_back(450, 450 + copy_us)
    front = lay_out(*ranks)
    assumed = calibrate(front.observations, front.schedules, None, "gloo").calibration.assumed
    assert not any(re.search(r"\de[+-]", text) for text in assumed)


def test_without_copies_a_cast_costs_what_is_usual() -> None:
    assert calibrate_run(copies=False).calibration.hook_ns_per_byte["fp16"].low > 0
    assert GPU_CAST.low < GPU_CAST.value < GPU_CAST.high
