"""The same job on other numbers of ranks: by hand, today's number exactly, and what stands in the way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.all_reduce import count_ring_messages, count_tree_messages, traffic_factor
from advisor.errors import UsageError
from advisor.forecast import find_obstacle, forecast_ranks
from advisor.replay import NUM_DRAWS, Job, check_baseline, predict
from advisor.schema import CommDraw, Estimate
from tests.job_builders import MB, MS, build_comm_model, build_config, build_job, exactly


def fitted(value: float) -> Estimate:
    return Estimate(value=value, low=0.8 * value, high=1.2 * value, basis="fitted")


def test_what_an_all_reduce_takes_on_paper() -> None:
    """8 ranks send 2 · 7/8, 16 ranks 1.875; 14 and 30 messages in a ring, 6 and 8 in a tree."""
    assert [traffic_factor(ranks) for ranks in (1, 2, 8, 16)] == [0, 1, 1.75, 1.875]
    assert [count_ring_messages(ranks) for ranks in (2, 8, 16)] == [2, 14, 30]
    assert [count_tree_messages(ranks) for ranks in (2, 8, 16)] == [2, 6, 8]


def test_bytes_approach_twice_those_of_two_ranks() -> None:
    """4 MB after 2 ms of backward, 1 ns a byte and no latency on 2 ranks: 2 + 4, 2 + 7 and 2 + 7.5 ms; alone 2 ms."""
    job = build_job([(2, 4 * MB)], backward_ms=2)
    rows = forecast_ranks(job, build_config(), [1, 2, 8, 16]).rows
    assert [row.step_ns.value / MS for row in rows] == pytest.approx([2, 6, 9, 9.5])
    assert [row.blocking_ns.value / MS for row in rows] == pytest.approx([0, 4, 7, 7.5])
    assert [row.efficiency_fraction.value for row in rows] == pytest.approx([6 / 2, 1, 6 / 9, 6 / 9.5])
    assert [row.step_ns.basis for row in rows] == ["extrapolated", "fitted", "extrapolated", "extrapolated"]


@pytest.mark.parametrize(("backend", "value_ms"), [("gloo", 9), ("nccl", 5)])
def test_latency_grows_as_in_a_ring_or_a_tree_and_the_band_spans_both(backend: str, value_ms: float) -> None:
    """1 ms of latency on 2 ranks is 7 ms in a ring of 8 and 3 ms in a tree, after 2 ms of backward."""
    job = build_job([(2, 0)], backward_ms=2)
    job = Job(job.profile, job.calibration, build_comm_model(1 * MS, 1))
    step = forecast_ranks(job, build_config(backend=backend), [8]).rows[0].step_ns
    assert (step.low / MS, step.value / MS, step.high / MS) == pytest.approx((5, value_ms, 9))


def test_a_shared_batch_divides_the_computation() -> None:
    """Backward 8 ms, forward 4, optimizer 1 and nothing to send: 13 ms on 2 ranks, 3 + 1 ms on 8."""
    job = build_job([(8, 0)], backward_ms=8, around_ms=(0, 4, 1))
    row = forecast_ranks(job, build_config(), [8], "divided").rows[0]
    assert row.step_ns.value == 4 * MS
    assert row.efficiency_fraction.value == pytest.approx(13 / 4 / 4)


@pytest.mark.parametrize("compute", ["constant", "divided"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("world_size", [2, 3, 7, 64])
def test_today_s_number_of_ranks_is_replay_s_own_prediction(compute: str, backend: str, world_size: int) -> None:
    config = build_config(world_size=world_size, backend=backend, bucket_cap_mb=2.0)
    job = build_job(
        [(1, 3 * MB), (2.5, 4 * MB), (3, 1 * MB)],
        backward_ms=4,
        around_ms=(1, 2, 3),
        concurrency=2,
        compute_slowdown=fitted(1.3),
        communication_slowdown=fitted(1.1),
        launch_ns=fitted(50_000),
    )
    row = forecast_ranks(job, config, [world_size], compute).rows[0]  # type: ignore[arg-type]
    prediction = predict(job, config)
    assert row.step_ns == prediction.step_ns
    assert row.blocking_ns == prediction.blocking_ns
    assert row.efficiency_fraction == Estimate(value=1.0, low=1.0, high=1.0, basis="fitted")


@pytest.mark.parametrize(("backend", "on_four_ms"), [("nccl", 10.5), ("gloo", 7.5)])
def test_a_broken_line_steepens_as_a_whole_and_its_kinks_move_where_data_are_cut(
    backend: str, on_four_ms: float
) -> None:
    """1 ns a byte up to 1 MB and 3 from there: 3 MB take 1 + 6 ms on two ranks; on four 1.5 times that in a tree.

    A ring of four cuts the data into twice as many pieces: the kink is at 2 MB, and 3 MB take 1.5 · (2 + 3) ms.
    """
    job = build_job([(2, 3 * MB)], backward_ms=2)
    first = replace(job.model.segments[0], to_bytes=MB)
    second = replace(first, beta_ns_per_byte=exactly(3), from_bytes=MB, to_bytes=None)
    draws = (CommDraw(alpha_ns=0, communication_slowdown=1, betas_ns_per_byte=(1, 3)),) * NUM_DRAWS
    job = Job(job.profile, job.calibration, replace(job.model, segments=(first, second), draws=draws))
    config = build_config(backend=backend)
    rows = forecast_ranks(job, config, [2, 4]).rows
    assert [row.blocking_ns.value / MS for row in rows] == pytest.approx([7, on_four_ms])
    assert rows[0].step_ns == predict(job, config).step_ns


@pytest.mark.parametrize("asked", [0, -4])
def test_a_number_of_ranks_that_cannot_be_meant_is_refused(asked: int) -> None:
    with pytest.raises(UsageError, match=f"{asked} ranks cannot be forecast"):
        forecast_ranks(build_job([(2, MB)], backward_ms=2), build_config(), [asked])


def test_what_stands_in_the_way_of_a_forecast_is_named() -> None:
    job, config = build_job([(2, MB)], backward_ms=2), build_config()
    close = check_baseline(job, config, exactly(3 * MS))
    far = check_baseline(job, config, exactly(9 * MS))
    alone = Job(job.profile, job.calibration, replace(job.model, complete=False))
    one_size = Job(job.profile, job.calibration, replace(job.model, latency_known=False))
    assert find_obstacle(job, config, close) is None
    assert "unknown" in str(find_obstacle(None, config, close))
    assert "one rank" in str(find_obstacle(job, build_config(world_size=1), close))
    assert "replay" in str(find_obstacle(job, config, far))
    assert "missing" in str(find_obstacle(alone, config, close))
    assert "latency" in str(find_obstacle(one_size, config, close))
