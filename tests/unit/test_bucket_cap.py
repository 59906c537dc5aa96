from __future__ import annotations

import msgspec
import pytest

from advisor.replay import Job, check_baseline
from advisor.rules import bucket_cap
from advisor.rules.bench import build_bench
from advisor.rules.caps import rank_candidates
from advisor.schema import DDPConfig, Estimate
from advisor.verdict import Analysis
from tests.job_builders import MB, MS, build_config, build_job, exactly

MIB = 2**20


def analyze_job(job: Job, config: DDPConfig) -> Analysis:
    replayed = check_baseline(job, config, exactly(1)).replayed_ns
    return Analysis(
        config=config,
        parallelism="ddp",
        world_size=2,
        steps=(),
        buckets=(),
        comm_model=job.model,
        job=job,
        baseline=check_baseline(job, config, exactly(replayed.value)),
    )


def even_job(alpha_ns: float = 60_000, num: int = 100, **changes: Estimate) -> Job:
    """50 MB in `num` equal gradients ready evenly over 15 ms, at 100 µs/MB (C8)."""
    size = round(50 * MB / num)
    gradients = [(15 * (k + 1) / num, size) for k in range(num)]
    return build_job(gradients, backward_ms=15, alpha_ns=alpha_ns, beta_ns_per_byte=0.1, **changes)  # type: ignore[arg-type]


def test_one_large_bucket_is_cut() -> None:
    """One bucket of 50 MB blocks 5.06 ms; a cap between 0.5 and 1 MB leaves about a tenth of a millisecond."""
    found = bucket_cap.propose(analyze_job(even_job(), build_config(bucket_cap_mb=100.0)))
    assert found is not None
    assert set(found.change) == {"bucket_cap_mb"}
    assert found.saving_ns is not None
    assert 0 < found.saving_ns.value <= 5.06 * MS
    assert found.prediction is not None
    assert found.prediction.config.bucket_cap_mb == found.change["bucket_cap_mb"]
    assert found.evidence and found.sources and found.caveats


def test_the_best_of_all_uniform_caps_is_where_latency_and_waiting_meet() -> None:
    """200 gradients of 0.25 MB: one alone is too small to keep up (C8), two leave 60 + 50 µs, three 60 + 75."""
    candidates = rank_candidates(build_bench(even_job(num=200), build_config(bucket_cap_mb=100.0)))
    best = min(candidates, key=lambda candidate: candidate.steps_ns[0])
    assert best.num_buckets == 100
    assert (best.steps_ns[0] - 15 * MS) / MS == pytest.approx(0.11)


def test_nothing_is_proposed_where_today_is_as_good_as_the_best() -> None:
    assert bucket_cap.propose(analyze_job(even_job(), build_config(bucket_cap_mb=0.4))) is None


def test_nothing_is_proposed_when_the_saving_may_be_none() -> None:
    """Bandwidth so uncertain that communication may be free."""
    job = even_job(num=20)
    segment = msgspec.structs.replace(
        job.model.segments[0],
        alpha_ns=Estimate(value=100_000, low=0, high=10 * MS, basis="fitted"),
        beta_ns_per_byte=Estimate(value=0.02, low=0.0, high=0.2, basis="fitted"),
    )
    uncertain = Job(job.profile, job.calibration, msgspec.structs.replace(job.model, segments=(segment,)))
    assert bucket_cap.propose(analyze_job(uncertain, build_config(bucket_cap_mb=8.0))) is None


def test_it_is_silent_where_buckets_are_never_rebuilt() -> None:
    config = build_config(bucket_cap_mb=100.0, find_unused_parameters=True)
    assert bucket_cap.propose(analyze_job(even_job(), config)) is None


def test_a_list_is_given_up_for_a_cap() -> None:
    found = bucket_cap.propose(analyze_job(even_job(), build_config(bucket_cap_mb_list=(40.0, 10.0))))
    assert found is not None
    assert found.change.keys() == {"bucket_cap_mb", "bucket_cap_mb_list"}
    assert found.change["bucket_cap_mb_list"] is None


def test_it_is_silent_when_a_peer_is_missing() -> None:
    job = even_job()
    partial = Job(job.profile, job.calibration, msgspec.structs.replace(job.model, complete=False))
    assert bucket_cap.propose(analyze_job(partial, build_config(bucket_cap_mb=100.0))) is None


def test_an_indivisible_tensor_leaves_nothing_to_choose() -> None:
    """One gradient holds everything and is ready at the end: every cap gives the same bucket (C5)."""
    job = build_job([(2, 4_490_000)], backward_ms=2, beta_ns_per_byte=1)
    assert bucket_cap.propose(analyze_job(job, build_config(bucket_cap_mb=1.0))) is None


def test_the_inputs_are_left_unchanged() -> None:
    analysis = analyze_job(even_job(), build_config(bucket_cap_mb=100.0))
    before = msgspec.json.encode(analysis.job.profile if analysis.job else None)
    bucket_cap.propose(analysis)
    assert msgspec.json.encode(analysis.job.profile if analysis.job else None) == before


@pytest.mark.parametrize(
    ("sizes_mib", "today_mib", "chosen_mib", "said"),
    [
        ((4, 4, 4, 4), 1.0, 16.0, "Fewer buckets (1 instead of 4) pay less latency"),
        ((4, 4, 4, 4), 16.0, 8.0, "More buckets (2 instead of 1) leave less to the end (8.4 MB instead of 17 MB)"),
        ((4, 16, 4), 20.0, 4.0, "More buckets (3 instead of 2) end sooner"),  # 4 MiB are last in both
    ],
)
def test_what_is_said_of_other_buckets_is_true_of_them(
    sizes_mib: tuple[int, ...], today_mib: float, chosen_mib: float, said: str
) -> None:
    job = build_job([(k + 1, size * MIB) for k, size in enumerate(sizes_mib)], backward_ms=len(sizes_mib))
    bench = build_bench(job, build_config(bucket_cap_mb=today_mib))
    assert bucket_cap._say_effect(job, bench.today, bench.try_change({"bucket_cap_mb": chosen_mib})) == said


def test_as_many_buckets_are_not_called_more_or_smaller() -> None:
    """Unset gives 1 and 21 MiB; a cap of 14 gives 14 and 8, of which only 8 are left to the end."""
    job = build_job([(k + 1, size * MIB) for k, size in enumerate((1, 13, 8))], backward_ms=60)
    bench = build_bench(job, build_config())
    assert bucket_cap._say_effect(job, bench.today, bench.try_change({"bucket_cap_mb": 14.0})) == (
        "As many buckets (2), cut elsewhere, leave less to the end (8.4 MB instead of 22 MB)"
    )
