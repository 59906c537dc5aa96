"""Uniform caps and two-entry lists beside today's setting, each tried once however many rules ask."""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec.structs import replace

from advisor.best_settings import find_best_first_bucket
from advisor.bucketing import find_distinct_caps, round_cap_mb
from advisor.replay import Job, bucket_gradients, find_gap
from advisor.rules.bench import Bench, Trial
from advisor.schema import DDPConfig

FINALISTS = 24
"""Candidates that are replayed under every scenario; the others fall out by their central prediction."""
NEIGHBOUR_RATIO = 1.05
MANY_CAPS = 500


@lru_cache(maxsize=1)
def rank_candidates(bench: Bench) -> tuple[Trial, ...]:
    """Today's setting first, then the finalists that can be predicted, by their central prediction."""
    job, config = bench.job, bench.config
    ours = bucket_gradients(job.profile, config)
    configs = [
        c for c in list_configs(job, config) if bucket_gradients(job.profile, c) != ours and not find_gap(job, c)
    ]
    central = [bench.try_config(c, central=True) for c in configs]
    finalists = sorted(central, key=lambda trial: trial.steps_ns[0])[:FINALISTS]
    return bench.today, *(bench.try_config(finalist.config) for finalist in finalists)


def list_configs(job: Job, config: DDPConfig) -> list[DDPConfig]:
    """The setting with the cap unset, and with every distinct uniform cap.

    Of caps closer than `NEIGHBOUR_RATIO` that give equally many buckets only the roundest is kept: biases of a few
    bytes make hundreds of caps distinct that differ in nothing else. Beyond `MANY_CAPS` the number of buckets, which
    takes time to count, is left aside.
    """
    gradients = job.profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    ranges = find_distinct_caps(sizes, keys, caps_first_bucket=config.caps_first_bucket)
    roundest: dict[tuple[int, int], DDPConfig] = {}
    for low, high in ranges:
        cap = round_cap_mb(low, high)
        candidate = replace(config, bucket_cap_mb=cap, bucket_cap_mb_list=None)
        num_buckets = 0 if len(ranges) > MANY_CAPS else len(bucket_gradients(job.profile, candidate))
        cell = math.floor(math.log(cap, NEIGHBOUR_RATIO)), num_buckets
        roundest[cell] = min(roundest.get(cell, candidate), candidate, key=count_decimals)
    return [replace(config, bucket_cap_mb=None, bucket_cap_mb_list=None), *roundest.values()]


def find_best_uniform(bench: Bench) -> Trial:
    """The cap with the shortest central step, today's setting among them."""
    return min(rank_candidates(bench), key=lambda trial: float(trial.steps_ns[0]))


@lru_cache(maxsize=1)
def find_best_first(bench: Bench) -> Trial:
    """The best two-entry list: a first bucket of its own size before equal ones."""
    cap = find_best_uniform(bench).config.bucket_cap_mb
    return bench.try_config(find_best_first_bucket(bench.job, bench.config, cap))


def count_decimals(config: DDPConfig) -> int:
    """Digits of the cap behind the point."""
    return len(f"{config.bucket_cap_mb or 0:g}".partition(".")[2])
