"""The best cap and the best list of caps for a job, as replay judges them under the central numbers.

The list is exact where one all-reduce runs at a time and nothing disturbs anything; elsewhere it is searched for.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from advisor.best_buckets import Ends, find_best_buckets, list_caps_mb, search_buckets
from advisor.bucketing import find_distinct_caps, round_cap_mb
from advisor.replay import Job, Scenario, count_wire_bytes, draw_scenarios, replay_scenarios, step_ns
from advisor.schema import DDPConfig

ROUNDING_DIGITS = 3
"""Steps that differ by less than a picosecond are the same."""


def find_best_cap(job: Job, config: DDPConfig) -> DDPConfig:
    """`config` with the uniform cap whose step is shortest; of equal ones the one with the fewest buckets."""
    gradients = job.profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    ranges = find_distinct_caps(sizes, keys, caps_first_bucket=config.caps_first_bucket)
    caps = [round_cap_mb(low, high) for low, high in ranges]
    return min((replace(config, bucket_cap_mb=cap, bucket_cap_mb_list=None) for cap in caps), key=_judge_with(job))


def find_best_list(job: Job, config: DDPConfig) -> DDPConfig | None:
    """`config` with the `bucket_cap_mb_list` whose step is shortest.

    None where gradients have several dtypes: each of them counts through the list by itself, so it cannot say which
    bucket closes when.
    """
    gradients = job.profile.slowest.gradients
    if len({gradient.dtype for gradient in gradients}) > 1:
        return None
    sizes, ready = [g.num_bytes for g in gradients], [g.ready_device_ns for g in gradients]
    central = draw_scenarios(job)[0]
    on_wire = sum(count_wire_bytes(gradient, config) for gradient in gradients) / sum(sizes)
    alpha, beta = central.alpha_ns, central.beta_ns_per_byte * on_wire
    judge = _judge_with(job)

    def of_list(ends: Ends) -> DDPConfig:
        return replace(config, bucket_cap_mb=None, bucket_cap_mb_list=list_caps_mb(sizes, ends))

    if job.calibration.concurrency == 1 and _nothing_disturbs(central):
        return of_list(find_best_buckets(ready, sizes, lambda num_bytes: alpha + beta * num_bytes).ends)
    best = search_buckets(ready, sizes, alpha_beta=(alpha, beta), evaluate=lambda ends: judge(of_list(ends))[0])
    return of_list(best.ends)


def _judge_with(job: Job) -> Callable[[DDPConfig], tuple[float, int]]:
    """A judge of settings: the step, then the number of buckets."""
    central = draw_scenarios(job)[:1]

    def judge(config: DDPConfig) -> tuple[float, int]:
        run = replay_scenarios(job, config, central)[0]
        return round(step_ns(job, config, run), ROUNDING_DIGITS), len(run.ends)

    return judge


def _nothing_disturbs(scenario: Scenario) -> bool:
    """Whether all-reduces cost nothing but their own time: no slow-down, no launch and no copy."""
    return scenario == Scenario(scenario.alpha_ns, scenario.beta_ns_per_byte, 1.0, 1.0, 0.0, 0.0)
