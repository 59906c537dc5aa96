from __future__ import annotations

import msgspec
import pytest

from advisor.recommend import recommend
from advisor.replay import check_baseline
from advisor.schema import BucketSummary, CommDraw, CommModel, StepSummary, Straggler, Verdict, VerdictCode
from advisor.verdict import Analysis, judge, summarize_step_time
from tests.job_builders import MS, build_comm_model, build_config, build_job, exactly

STEP_MS = 100


def build_step(rank: int = 0, step: int = 2, **parts_ms: float) -> StepSummary:
    """A step of 100 ms; what the named parts leave is backward."""
    parts = {f"{name}_ns": round(ms * MS) for name, ms in parts_ms.items()}
    named = sum(parts.get(f"{name}_ns", 0) for name in ("data", "forward", "blocking", "optimizer", "other"))
    names = "data forward blocking blocking_wait optimizer other compute overlap exposed host_bound wait"
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


def judge_blocking(model: CommModel | None, *, wait_ms: float | None = 0, buckets: bool = True) -> Verdict:
    """A step of 100 ms of which 20 block; for `wait_ms` of these its rank waits."""
    wait_ns = None if wait_ms is None else round(wait_ms * MS)
    step = msgspec.structs.replace(build_step(blocking=20), wait_ns=wait_ns, blocking_wait_ns=wait_ns)
    found = [build_bucket(length_ms=25, blocking_ms=20)] if buckets else []
    return judge(build_analysis([step], found, comm_model=model))


def values_of(verdict: Verdict) -> dict[str, float | None]:
    return {evidence.name: evidence.value for evidence in verdict.evidence}


def test_what_a_missing_rank_hides_is_unknown_and_never_zero() -> None:
    verdict = judge_blocking(msgspec.structs.replace(build_comm_model(1_000_000, 0.1), complete=False), wait_ms=None)
    assert verdict.code == "balanced"
    assert "how much of that is waiting for late ranks, latency or bandwidth is unknown" in verdict.message
    values = values_of(verdict)
    for name in (
        "waiting for late ranks",
        "lost to the latest rank",
        "that rank is the latest",
        "blocked by late ranks",
        "blocked by latency",
    ):
        assert values[name] is None
    assert values["blocking communication"] == 0.2


def test_where_all_ranks_are_known_nobody_late_is_zero() -> None:
    values = values_of(judge_blocking(build_comm_model(0, 1)))
    assert (values["lost to the latest rank"], values["that rank is the latest"]) == (0.0, 0.0)


def test_without_a_bucket_nobody_knows_what_blocks() -> None:
    values = values_of(judge_blocking(None, buckets=False))
    assert values["blocking communication"] is None
    assert "blocked by latency" not in values


def test_one_size_alone_does_not_tell_latency_from_bandwidth() -> None:
    verdict = judge_blocking(msgspec.structs.replace(build_comm_model(1_000_000, 0.1), latency_known=False))
    assert verdict.code == "balanced"
    assert "how much of that is latency and how much bandwidth is unknown" in verdict.message
    assert values_of(verdict)["blocked by latency"] is None


def test_waiting_is_neither_latency_nor_bandwidth() -> None:
    """Of 20 ms that block, 16 are waiting; of 8, the transfers' 60 % are bytes: less than two thirds of all."""
    verdict = judge_blocking(build_comm_model(0, 1), wait_ms=16)
    assert verdict.code == "balanced"
    assert "80 % of that is waiting for ranks that come later" in verdict.message
    verdict = judge_blocking(build_comm_model(0, 1), wait_ms=8)
    assert verdict.code == "balanced"
    assert "40 % of that is waiting for late ranks, 0 % latency and 60 % bandwidth" in verdict.message


def test_a_share_of_latency_that_is_uncertain_is_said_to_be() -> None:
    """1 MB takes 1 ms: the draws make 0, 20 and 40 % of that latency."""
    draws = tuple(
        CommDraw(alpha_ns=alpha, communication_slowdown=1, betas_ns_per_byte=(1 - alpha / 1e6,), kinks_bytes=())
        for alpha in (0.0, 200_000.0, 400_000.0)
    )
    verdict = judge_blocking(build_comm_model(200_000, 0.8, draws=draws))
    assert verdict.code == "bandwidth_bound"
    assert "most of that is probably bytes over bandwidth" in verdict.message
    (latency,) = (evidence for evidence in verdict.evidence if evidence.name == "blocked by latency")
    assert latency.value == pytest.approx(0.2)
    assert (latency.low, latency.high) == pytest.approx((0.01, 0.39))
    assert "probably" not in judge_blocking(build_comm_model(200_000, 0.8)).message


def test_no_step_at_all_is_said_as_it_is() -> None:
    verdict = judge(build_analysis([], []))
    assert (verdict.code, verdict.evidence) == ("unknown", ())
    assert verdict.message.startswith("No step was recorded from its beginning to its end.")


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


def test_what_powersgd_computes_is_named_where_nothing_blocks() -> None:
    """It hides no communication: bucket sizes change nothing, the hook may."""
    config = build_config(comm_hook="powersgd:2")
    verdict = judge(
        build_analysis([build_step(blocking=1)], [build_bucket(length_ms=25, blocking_ms=1)], config=config)
    )
    assert verdict.code == "compute_bound"
    assert "compare with comm_hook none" in verdict.message
