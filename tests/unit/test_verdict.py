from __future__ import annotations

import msgspec
import pytest

from advisor.recommend import recommend
from advisor.replay import check_baseline
from advisor.schema import BucketSummary, StepSummary, VerdictCode
from advisor.verdict import Analysis, judge, summarize_step_time
from tests.job_builders import MS, build_comm_model, build_config, build_job, exactly

STEP_MS = 100


def build_step(rank: int = 0, step: int = 2, **parts_ms: float) -> StepSummary:
    """A step of 100 ms; what the named parts leave is backward."""
    parts = {f"{name}_ns": round(ms * MS) for name, ms in parts_ms.items()}
    named = sum(parts.get(f"{name}_ns", 0) for name in ("data", "forward", "blocking", "optimizer", "other"))
    names = "data forward blocking optimizer other compute overlap exposed host_bound"
    zero = {f"{name}_ns": 0 for name in names.split()}
    fields = {**zero, "communication_ns": 1, **parts, "backward_ns": STEP_MS * MS - named}
    return StepSummary(rank=rank, step=step, start_ns=0, duration_ns=STEP_MS * MS, num_syncs=1, **fields)


def build_bucket(
    rank: int = 0, step: int = 2, *, length_ms: float, wait_ms: float = 0, blocking_ms: float = 0
) -> BucketSummary:
    return BucketSummary(
        rank=rank,
        step=step,
        bucket=0,
        num_bytes=1_000_000,
        num_elements=250_000,
        dtype="float32",
        ready_host_ns=0,
        ready_device_ns=0,
        launch_ns=0,
        start_ns=0,
        end_ns=round(length_ms * MS),
        queue_wait_ns=0,
        peer_wait_ns=round(wait_ms * MS),
        transfer_ns=round((length_ms - wait_ms) * MS),
        exposed_ns=0,
        blocking_ns=round(blocking_ms * MS),
    )


def build_analysis(steps: list[StepSummary], buckets: list[BucketSummary], /, **changes: object) -> Analysis:
    fields: dict[str, object] = {
        "config": build_config(),
        "is_ddp": True,
        "world_size": 2,
        "steps": tuple(steps),
        "buckets": tuple(buckets),
        "comm_model": build_comm_model(0, 1),
        "job": None,
        "baseline": None,
        **changes,
    }
    return Analysis(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts_ms", "alpha_ns", "beta", "code"),
    [
        ({"blocking": 20}, 0, 1, "bandwidth_bound"),
        ({"blocking": 20}, 1_000_000, 0.1, "latency_bound"),
        ({"blocking": 20}, 1_000_000, 1.0, "balanced"),
        ({"blocking": 2.9}, 0, 1, "compute_bound"),
        ({"blocking": 20, "data": 30}, 0, 1, "input_bound"),
        ({"blocking": 20, "data": 15}, 0, 1, "bandwidth_bound"),
        ({"blocking": 20, "host_bound": 30}, 0, 1, "host_bound"),
        ({"blocking": 35, "host_bound": 30}, 0, 1, "bandwidth_bound"),
    ],
)
def test_the_first_threshold_that_is_crossed_decides(
    parts_ms: dict[str, float], alpha_ns: float, beta: float, code: VerdictCode
) -> None:
    buckets = [build_bucket(length_ms=25, blocking_ms=parts_ms["blocking"])]
    analysis = build_analysis([build_step(**parts_ms)], buckets, comm_model=build_comm_model(alpha_ns, beta))
    assert judge(analysis).code == code


def test_the_straggler_is_the_rank_that_does_not_wait() -> None:
    """Rank 0 waits 30 of 40 ms in three steps of three: rank 1 is the culprit, though its collectives are short."""
    steps = [build_step(rank, step, blocking=30) for step in (2, 3, 4) for rank in (0, 1)]
    buckets = [build_bucket(0, step, length_ms=40, wait_ms=30) for step in (2, 3, 4)]
    buckets += [build_bucket(1, step, length_ms=10) for step in (2, 3, 4)]
    verdict = judge(build_analysis(steps, buckets))
    assert verdict.code == "straggler"
    assert verdict.message.startswith("Rank 1 ")


def test_ranks_that_are_late_in_turn_are_no_stragglers() -> None:
    steps = [build_step(rank, step, blocking=30) for step in (2, 3) for rank in (0, 1)]
    buckets = [build_bucket(late, step, length_ms=10) for late, step in ((0, 2), (1, 3))]
    buckets += [build_bucket(1 - late, step, length_ms=40, wait_ms=30) for late, step in ((0, 2), (1, 3))]
    assert judge(build_analysis(steps, buckets)).code != "straggler"


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"world_size": 1}, "single_rank"), ({"is_ddp": False}, "not_ddp"), ({"buckets": ()}, "unknown")],
)
def test_what_is_no_ddp_run_is_said_first(changes: dict[str, object], code: VerdictCode) -> None:
    analysis = build_analysis([build_step()], [build_bucket(length_ms=1)], **changes)
    verdict = judge(analysis)
    assert verdict.code == code
    assert recommend(analysis, verdict) == ()


def test_latency_is_not_claimed_while_a_peer_is_missing() -> None:
    model = msgspec.structs.replace(build_comm_model(1_000_000, 0.1), complete=False)
    steps, buckets = [build_step(blocking=20)], [build_bucket(length_ms=25, blocking_ms=20)]
    assert judge(build_analysis(steps, buckets, comm_model=model)).code == "balanced"


def test_every_threshold_is_shown_beside_the_number_it_judges() -> None:
    verdict = judge(build_analysis([build_step(blocking=20)], [build_bucket(length_ms=25, blocking_ms=20)]))
    shown = {evidence.name: (evidence.value, evidence.threshold) for evidence in verdict.evidence}
    assert shown["blocking communication"] == (0.2, 0.03)
    assert shown["device idle for late launches"] == (0.0, 0.25)


def test_no_speed_advice_when_replay_misses_the_step() -> None:
    """One bucket of 100 MB could be cut, but the measured step is twice the replayed one."""
    job = build_job([(k, 1_000_000) for k in range(1, 101)], backward_ms=100, beta_ns_per_byte=1)
    config = build_config(bucket_cap_mb=200.0)
    steps, buckets = [build_step(blocking=50)], [build_bucket(length_ms=100, blocking_ms=50)]
    replayed = check_baseline(job, config, exactly(1)).replayed_ns.value
    trusted = build_analysis(
        steps, buckets, job=job, config=config, baseline=check_baseline(job, config, exactly(replayed))
    )
    missed = build_analysis(
        steps, buckets, job=job, config=config, baseline=check_baseline(job, config, exactly(2 * replayed))
    )
    assert recommend(trusted, judge(trusted))
    assert recommend(missed, judge(missed)) == ()


def test_the_measured_step_is_the_mean_of_the_ranks_per_step() -> None:
    steps = [build_step(0, 2), msgspec.structs.replace(build_step(1, 2), duration_ns=200 * MS), build_step(0, 3)]
    assert summarize_step_time(steps) == [150 * MS, 100 * MS]
