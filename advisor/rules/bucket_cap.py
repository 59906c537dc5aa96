"""Another `bucket_cap_mb`: every distinct uniform cap, and DDP's default, replayed against today's setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.bucketing import DEFAULT_BUCKET_CAP_MB
from advisor.replay import Job, bucket_gradients, rebuilds
from advisor.rules.bench import Trial, measure_saving, open_bench, rank_by_regret, show_steps
from advisor.rules.caps import count_decimals, rank_candidates
from advisor.rules.words import find_rows, say_bytes, say_ms, say_value
from advisor.schema import DDPConfig, Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "bucket_cap"
SOURCES = (
    "Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020), section 3.2",
    "torch/nn/parallel/distributed.py: bucket_cap_mb",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes the cap that saves most, or nothing where the best cannot be told from today's.

    Applies where buckets are rebuilt in ready order. Of the caps that are as good as the one with the least regret it
    takes the one nearest to today's, then the roundest, then the one with the fewest buckets.
    """
    bench = open_bench(analysis)
    if bench is None or not rebuilds(bench.config):
        return None
    today, *others = rank_candidates(bench)
    good = [trial for trial in others if bench.matters(measure_saving(today, trial))]
    if not good:
        return None
    best = next(trial for trial in rank_by_regret([today, *others]) if trial in good)
    equal = [trial for trial in good if trial.steps_ns[0] <= best.steps_ns[0] + bench.indifference_ns]
    chosen = min(equal, key=lambda trial: _rank_equal(trial, bench.config))
    saving = measure_saving(today, chosen)
    caps = {trial.config.bucket_cap_mb for trial in equal if trial.config.bucket_cap_mb is not None}
    change = {"bucket_cap_mb": chosen.config.bucket_cap_mb}
    return Recommendation(
        rule=RULE,
        title=f"Set bucket_cap_mb to {_name_cap(chosen.config)} (today: {_name_cap(bench.config)})",
        message=(
            f"{_say_effect(bench.job, today, chosen)}: replay predicts {say_ms(saving.value)} less a step. "
            "Set the cap and measure it beside today's before you keep it."
        ),
        change=change | {"bucket_cap_mb_list": None} if bench.config.bucket_cap_mb_list else change,
        saving_ns=saving,
        status="predicted",
        evidence=(
            *show_steps(today, chosen, find_rows(analysis.steps)),
            Evidence(
                name="buckets today",
                value=today.num_buckets,
                unit="",
                table="buckets",
                rows=find_rows(analysis.buckets),
            ),
        ),
        caveats=tuple(_list_caveats(bench.job)),
        sources=SOURCES,
        prediction=bench.predict(chosen.config),
        acts_on_ns=bench.communication_ns,
        equally_good={"bucket_cap_mb": tuple(sorted(caps))},
    )


def _rank_equal(trial: Trial, today: DDPConfig) -> tuple[int, int, int]:
    return round(10 * _distance(trial.config, today)), count_decimals(trial.config), trial.num_buckets


def _distance(config: DDPConfig, today: DDPConfig) -> float:
    ours = config.bucket_cap_mb or DEFAULT_BUCKET_CAP_MB
    return abs(math.log(ours / (today.bucket_cap_mb or DEFAULT_BUCKET_CAP_MB)))


def _say_effect(job: Job, today: Trial, chosen: Trial) -> str:
    """How the chosen buckets differ from today's, and what that does: as far as both are seen in them."""
    if chosen.num_buckets < today.num_buckets:
        return f"Fewer buckets ({chosen.num_buckets} instead of {today.num_buckets}) pay less latency"
    buckets = (
        f"More buckets ({chosen.num_buckets} instead of {today.num_buckets})"
        if chosen.num_buckets > today.num_buckets
        else f"As many buckets ({chosen.num_buckets}), cut elsewhere,"
    )
    last, last_today = (_sum_last_bucket(job, trial.config) for trial in (chosen, today))
    if last < last_today:
        return f"{buckets} leave less to the end ({say_bytes(last)} instead of {say_bytes(last_today)})"
    return f"{buckets} end sooner"


def _sum_last_bucket(job: Job, config: DDPConfig) -> int:
    """Bytes of the gradients in the bucket that is launched last."""
    return sum(job.profile.slowest.gradients[i].num_bytes for i in bucket_gradients(job.profile, config)[-1])


def _name_cap(config: DDPConfig) -> str:
    if config.bucket_cap_mb_list:
        return f"a list of {len(config.bucket_cap_mb_list)}"
    return say_value("bucket_cap_mb", config.bucket_cap_mb)


def _list_caveats(job: Job) -> Sequence[str]:
    caveats = ["Gradient sums are added in another order, so results are not bit-identical."]
    if not job.model.latency_known:
        caveats.append("Latency could not be fitted: buckets much smaller than today's are extrapolated.")
    if not job.profile.sizes_known:
        caveats.append("The trace has no gradient sizes: buckets were only merged, never split.")
    return caveats
