from __future__ import annotations

import msgspec
import pytest

from advisor.recommend import recommend
from advisor.replay import check_baseline
from advisor.schema import BucketSummary, StepSummary, Straggler, VerdictCode
from advisor.verdict import Analysis, judge, summarize_step_time
from tests.job_builders import MS, build_comm_model, build_config, build_job, exactly

STEP_MS = 100


def build_step(rank: int = 0, step: int = 2, **parts_ms: float) -> StepSummary:
    """A step of 100 ms; what the named parts leave is backward."""
    parts = {f"{name}_ns": round(ms * MS) for name, ms in parts_ms.items()}
    named = sum(parts.get(f"{name}_ns", 0) for name in ("data", "forward", "blocking", "optimizer", "other"))
    names = "data forward blocking optimizer other compute overlap exposed host_bound wait"
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
        "parallelism": "ddp",
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


def build_straggler(**changes: object) -> Straggler:
    fields = {
        "rank": 1,
        "num_steps": 3,
        "last_fraction": 1.0,
        "delay_ns": exactly(30 * MS),
        "step_fraction": 0.3,
        **changes,
    }
    return Straggler(**{"phase": "backward", "phase_excess_ns": 30 * MS, **fields})  # type: ignore[arg-type]


def wait_in_turns(wait_ms: float, communication_ms: float) -> list[StepSummary]:
    """Rank 0 waits in each of three steps; rank 1 does not."""
    waits = ((rank, step, wait_ms * (rank == 0)) for step in (2, 3, 4) for rank in (0, 1))
    return [
        build_step(rank, step, blocking=20, wait=wait, communication=communication_ms) for rank, step, wait in waits
    ]


def test_a_straggler_is_named_with_its_delay_and_the_phase_that_loses_it() -> None:
    """30 of rank 0's 40 ms of communication, and none of rank 1's 10, are waiting."""
    steps = wait_in_turns(30, 25)
    verdict = judge(build_analysis(steps, [build_bucket(length_ms=40)], straggler=build_straggler()))
    assert verdict.code == "straggler"
    assert verdict.message.startswith("Rank 1 is late in 100 % of the steps, by 30 ms that it loses in backward")


@pytest.mark.parametrize(
    ("wait_ms", "communication_ms", "straggler", "code"),
    [
        (30, 40, {}, "bandwidth_bound"),  # 30 of 80 ms of communication
        (30, 25, {"step_fraction": 0.04}, "bandwidth_bound"),
        (30, 25, {"last_fraction": 0.7}, "bandwidth_bound"),  # ranks that are late in turn
        (30, 25, {"num_steps": 1}, "bandwidth_bound"),
        (30, 25, {"last_fraction": 0.75}, "straggler"),
    ],
)
def test_a_straggler_must_matter(
    wait_ms: float, communication_ms: float, straggler: dict[str, object], code: VerdictCode
) -> None:
    analysis = build_analysis(
        wait_in_turns(wait_ms, communication_ms),
        [build_bucket(length_ms=25, blocking_ms=20)],
        straggler=build_straggler(**straggler),
        comm_model=build_comm_model(0, 1),
    )
    assert judge(analysis).code == code


def test_a_straggler_is_told_without_any_bucket_too() -> None:
    assert judge(build_analysis(wait_in_turns(30, 25), [], straggler=build_straggler())).code == "straggler"


def test_what_is_no_ddp_is_called_by_its_name() -> None:
    said = {
        parallelism: judge(build_analysis([build_step()], [], parallelism=parallelism)).message
        for parallelism in ("fsdp", "deepspeed", "tensor_parallel", "hand_written", "unknown")
    }
    for parallelism, word in {
        "fsdp": "FSDP",
        "deepspeed": "DeepSpeed",
        "tensor_parallel": "tensor parallelism",
    }.items():
        assert word in said[parallelism]
    assert len(set(said.values())) == 5


def test_the_observed_ceiling_is_the_step_without_what_blocks() -> None:
    """Steps of 100 ms that block 20 and 30 on rank 0, and nothing on rank 1: 90 and 85 ms in the mean."""
    steps = [build_step(0, 2, blocking=20), build_step(1, 2), build_step(0, 3, blocking=30), build_step(1, 3)]
    ceiling = judge(build_analysis(steps, [build_bucket(length_ms=25, blocking_ms=20)])).observed_ceiling_ns
    assert ceiling is not None
    assert ceiling.value == 87.5 * MS


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"world_size": 1}, "single_rank"), ({"parallelism": "unknown"}, "not_ddp"), ({"buckets": ()}, "unknown")],
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
