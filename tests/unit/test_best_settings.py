"""The best settings of a job beat every other one that can be had, also where all-reduces share a link."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from msgspec.structs import replace

from advisor.best_buckets import list_caps_mb
from advisor.best_settings import find_best_cap, find_best_list
from advisor.replay import Job, predict
from advisor.schema import DDPConfig
from tests.job_builders import MB, MS, build_comm_model, build_config, build_job, exactly


def step_ms(job: Job, config: DDPConfig | None) -> float:
    assert config is not None
    return predict(job, config).step_ns.value / MS


def test_one_channel_by_hand() -> None:
    """2, 1, 1 MB ready at 0, 2, 5 ms with 3 ms + 1 ms/MB: in all 12 ms, alone 0-5, 5-9, 9-13, best 0-5 and 5-10."""
    job = build_job([(0, 2 * MB), (2, 1 * MB), (5, 1 * MB)], backward_ms=5)
    job = Job(job.profile, job.calibration, build_comm_model(3 * MS, 1))
    assert step_ms(job, build_config(bucket_cap_mb=100.0)) == 12
    assert step_ms(job, build_config(bucket_cap_mb=0.0)) == 13
    best = find_best_list(job, build_config())
    assert step_ms(job, best) == 10
    assert [bucket.num_bytes for bucket in predict(job, best or build_config()).buckets] == [2 * MB, 2 * MB]
    assert step_ms(job, find_best_cap(job, build_config())) == 10


def test_gradients_of_two_dtypes_have_no_best_list_but_a_best_cap() -> None:
    job = build_job([(1, MB), (2, MB)], backward_ms=2)
    first, second = job.profile.slowest.gradients
    slowest = replace(job.profile.slowest, gradients=(first, replace(second, dtype="bfloat16")))
    profile = replace(job.profile, slowest=slowest)
    job = Job(profile, job.calibration, job.model)
    assert find_best_list(job, build_config()) is None
    assert step_ms(job, find_best_cap(job, build_config())) == 3


@pytest.mark.parametrize("seed", range(12))
def test_the_search_equals_brute_force_where_two_share_the_link(seed: int) -> None:
    """Up to eight gradients, two all-reduces at once, computation and communication in each other's way."""
    random = Random(seed)
    num = random.randint(3, 8)
    gradients = [(ms, random.randint(1, 20) * MB) for ms in sorted(random.uniform(0, 40) for _ in range(num))]
    job = build_job(
        gradients,
        backward_ms=40,
        concurrency=2,
        compute_slowdown=exactly(1.4),
        communication_slowdown=exactly(1.2),
        copy_out_ns_per_byte=exactly(0.2),
        launch_ns=exactly(100_000),
    )
    job = Job(job.profile, job.calibration, build_comm_model(random.uniform(0, 5) * MS, random.uniform(0.1, 1.5)))
    sizes = [num_bytes for _, num_bytes in gradients]
    cuts = [(*borders, num) for num_borders in range(num) for borders in combinations(range(1, num), num_borders)]
    least = min(step_ms(job, build_config(bucket_cap_mb_list=list_caps_mb(sizes, cut))) for cut in cuts)
    assert step_ms(job, find_best_list(job, build_config())) == pytest.approx(least, rel=1e-9)
    assert step_ms(job, find_best_cap(job, build_config())) >= least


@pytest.mark.parametrize("seed", range(12))
def test_no_setting_of_the_comparison_beats_the_best_cap_nor_that_the_best_list(seed: int) -> None:
    """Unset is a setting as well: its first bucket of 1 MiB is smaller than the others, which no cap gives."""
    random = Random(seed)
    gradients = [(2.0 * (k + 1), random.randint(1, 6) * MB) for k in range(random.randint(2, 8))]
    job = build_job(gradients, backward_ms=2 * len(gradients), alpha_ns=random.choice((0, MS)), concurrency=2)
    best = step_ms(job, find_best_cap(job, build_config()))
    assert step_ms(job, find_best_list(job, build_config())) <= best + 1e-9
    for cap in (None, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0):
        assert best <= step_ms(job, build_config(bucket_cap_mb=cap)) + 1e-9
