"""The best cap and the best list of caps for a job, as replay judges them under the central numbers.

The list is exact where one all-reduce runs at a time and nothing disturbs anything; elsewhere it is searched for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from msgspec.structs import replace

from advisor.best_buckets import Cost, Ends, find_best_buckets, list_caps_mb, search_buckets
from advisor.bucketing import DEFAULT_BUCKET_CAP_MB, find_distinct_caps, round_cap_mb
from advisor.replay import Job, Scenario, count_wire_bytes, draw_scenarios, replay_scenarios, step_ns
from advisor.schema import POWERSGD, DDPConfig

NEIGHBOURS = 5
"""Caps of the other buckets that are tried behind every first bucket."""
MOST_FIRST_BUCKETS = 24
ROUNDING_DIGITS = 3
"""Steps that differ by less than a picosecond are the same."""
EFFECTIVE_LATENCIES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on the latency, each of which gives the search a starting point: sharing a link makes latency matter less,
launching and copying make it matter more."""


def find_best_cap(job: Job, config: DDPConfig) -> DDPConfig:
    """`config` with the cap, or unset, whose step is shortest; of equal ones the one with the fewest buckets."""
    gradients = job.profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    ranges = find_distinct_caps(sizes, keys, caps_first_bucket=config.caps_first_bucket)
    caps = [None, *(round_cap_mb(low, high) for low, high in ranges)]
    return min((replace(config, bucket_cap_mb=cap, bucket_cap_mb_list=None) for cap in caps), key=_judge_with(job))


def find_best_first_bucket(job: Job, config: DDPConfig, cap_mb: float | None) -> DDPConfig:
    """`config` with the two-entry list, the first bucket's cap and that of all others, whose step is shortest.

    First buckets of whole gradients are tried with `cap_mb`, such as the best uniform cap, and with its neighbours.
    """
    gradients = job.profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    caps = [round_cap_mb(low, high) for low, high in find_distinct_caps(sizes, keys, caps_first_bucket=True)]
    best = cap_mb or DEFAULT_BUCKET_CAP_MB
    others = sorted(caps, key=lambda cap: abs(math.log(cap / best)))[:NEIGHBOURS]
    firsts = caps[:: max(1, len(caps) // MOST_FIRST_BUCKETS)]
    lists = [(first, other) for first in firsts for other in others if first < other] or [(best, best)]
    return min((replace(config, bucket_cap_mb=None, bucket_cap_mb_list=pair) for pair in lists), key=_judge_with(job))


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
    judge = _judge_with(job)

    def of_list(ends: Ends) -> DDPConfig:
        return replace(config, bucket_cap_mb=None, bucket_cap_mb_list=list_caps_mb(sizes, ends))

    is_chained = config.comm_hook.startswith(POWERSGD)
    if job.calibration.concurrency == 1 and _nothing_disturbs(central) and not is_chained:
        return of_list(find_best_buckets(ready, sizes, _find_cost(central, on_wire)).ends)
    costs = [
        _find_cost(dataclasses.replace(central, alpha_ns=factor * central.alpha_ns), on_wire)
        for factor in EFFECTIVE_LATENCIES
    ]
    return of_list(search_buckets(ready, sizes, costs=costs, evaluate=lambda ends: judge(of_list(ends))[0]).ends)


def _find_cost(scenario: Scenario, on_wire: float) -> Cost:
    """The time of an all-reduce over the bytes of its gradients, of which the share `on_wire` is sent."""
    return lambda num_bytes: scenario.transfer_ns(on_wire * num_bytes)


def _judge_with(job: Job) -> Callable[[DDPConfig], tuple[float, int]]:
    """A judge of settings: the step, then the number of buckets."""
    central = draw_scenarios(job)[:1]

    def judge(config: DDPConfig) -> tuple[float, int]:
        run = replay_scenarios(job, config, central)[0]
        return round(step_ns(job, config, run), ROUNDING_DIGITS), len(run.ends)

    return judge


def _nothing_disturbs(scenario: Scenario) -> bool:
    """Whether all-reduces cost nothing but their own time: no slow-down, no launch and no copy."""
    slowdowns = scenario.compute_slowdown, scenario.communication_slowdown
    return slowdowns == (1.0, 1.0) and scenario.copy_out_ns_per_byte == scenario.launch_ns == 0.0
