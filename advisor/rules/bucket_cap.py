"""Another `bucket_cap_mb`: every distinct uniform cap, and DDP's default, replayed against today's setting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.bucketing import DEFAULT_BUCKET_CAP_MB, find_distinct_caps, round_cap_mb
from advisor.replay import Job, Scenario, bucket_gradients, draw_scenarios, predict, replay_scenarios, step_ns
from advisor.schema import DDPConfig, Estimate, Evidence, Recommendation
from advisor.statistics import tie_fraction
from advisor.verdict import Analysis

RULE = "bucket_cap"
FINALISTS = 24
"""Candidates that are replayed under every scenario; the others fall out by their central prediction."""
NEIGHBOUR_RATIO = 1.05
SOURCES = (
    "Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020), section 3.2",
    "torch/nn/parallel/distributed.py: bucket_cap_mb",
)


@dataclass(frozen=True)
class Candidate:
    """One setting and its step under every scenario, in ns; the central scenario first."""

    config: DDPConfig
    num_buckets: int
    steps_ns: npt.NDArray[np.float64]


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes the cap that saves most, or nothing where the best cannot be told from today's.

    Applies where buckets are rebuilt in ready order (no `find_unused_parameters`), and where every rank's trace is
    there: what looks like latency may be waiting for a missing one, which no bucket size shortens.
    """
    job, config, baseline = analysis.job, analysis.config, analysis.baseline
    if job is None or config is None or baseline is None or not job.model.complete:
        return None
    if config.find_unused_parameters:
        return None
    candidates = rank_candidates(job, config)
    today, indifference = candidates[0], tie_fraction(baseline.noise_floor_fraction) * baseline.replayed_ns.value
    good = [c for c in candidates[1:] if _saving(today, c).low > 0 and _saving(today, c).value > indifference]
    if not good:
        return None
    best = min(good, key=_p95_regret(candidates))
    equal = [c for c in good if c.steps_ns[0] <= best.steps_ns[0] + indifference]
    chosen = min(equal, key=lambda c: (round(10 * _distance(c.config, config)), _decimals(c.config), c.num_buckets))
    return _recommend(job, today, chosen, equal)


def rank_candidates(job: Job, config: DDPConfig) -> list[Candidate]:
    """Today's setting first, then the finalists by their central prediction."""
    scenarios = draw_scenarios(job)
    configs = [
        c
        for c in list_configs(job, config)
        if bucket_gradients(job.profile, c) != bucket_gradients(job.profile, config)
    ]
    central = [_replay(job, c, scenarios[:1]) for c in configs]
    finalists = sorted(central, key=lambda candidate: candidate.steps_ns[0])[:FINALISTS]
    return [_replay(job, c, scenarios) for c in (config, *(finalist.config for finalist in finalists))]


def list_configs(job: Job, config: DDPConfig) -> list[DDPConfig]:
    """The setting with the cap unset, and with every distinct uniform cap.

    Of caps closer than `NEIGHBOUR_RATIO` that give equally many buckets only the roundest is kept: biases of a few
    bytes make hundreds of caps distinct that differ in nothing else.
    """
    gradients = job.profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    ranges = find_distinct_caps(sizes, keys, caps_first_bucket=config.caps_first_bucket)
    roundest: dict[tuple[int, int], DDPConfig] = {}
    for low, high in ranges:
        cap = round_cap_mb(low, high)
        candidate = msgspec.structs.replace(config, bucket_cap_mb=cap, bucket_cap_mb_list=None)
        cell = math.floor(math.log(cap, NEIGHBOUR_RATIO)), len(bucket_gradients(job.profile, candidate))
        roundest[cell] = min(roundest.get(cell, candidate), candidate, key=_decimals)
    return [msgspec.structs.replace(config, bucket_cap_mb=None, bucket_cap_mb_list=None), *roundest.values()]


def _replay(job: Job, config: DDPConfig, scenarios: list[Scenario]) -> Candidate:
    runs = replay_scenarios(job, config, scenarios)
    return Candidate(config, len(runs[0].ends), np.array([step_ns(job, config, run) for run in runs]))


def _saving(today: Candidate, other: Candidate) -> Estimate:
    saved = today.steps_ns - other.steps_ns
    low, high = np.quantile(saved, [0.025, 0.975])
    value = float(saved[0])
    return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)), basis="fitted")


def _p95_regret(candidates: list[Candidate]):  # type: ignore[no-untyped-def]
    best = np.min([candidate.steps_ns for candidate in candidates], axis=0)
    return lambda candidate: float(np.quantile(candidate.steps_ns - best, 0.95))


def _distance(config: DDPConfig, today: DDPConfig) -> float:
    ours = config.bucket_cap_mb or DEFAULT_BUCKET_CAP_MB
    return abs(math.log(ours / (today.bucket_cap_mb or DEFAULT_BUCKET_CAP_MB)))


def _decimals(config: DDPConfig) -> int:
    return len(f"{config.bucket_cap_mb or 0:g}".partition(".")[2])


def _name_cap(config: DDPConfig) -> str:
    if config.bucket_cap_mb_list:
        return f"a list of {len(config.bucket_cap_mb_list)}"
    return "unset" if config.bucket_cap_mb is None else f"{config.bucket_cap_mb:g} MiB"


def _name_change(config: DDPConfig, today: DDPConfig) -> dict[str, float | None]:
    change: dict[str, float | None] = {"bucket_cap_mb": config.bucket_cap_mb}
    return change | {"bucket_cap_mb_list": None} if today.bucket_cap_mb_list else change


def _recommend(job: Job, today: Candidate, chosen: Candidate, equal: list[Candidate]) -> Recommendation:
    saving = _saving(today, chosen)
    caveats = ["Gradient sums are added in another order, so results are not bit-identical."]
    if not job.model.latency_known:
        caveats.append("Latency could not be fitted: buckets much smaller than today's are extrapolated.")
    if not job.profile.sizes_known:
        caveats.append("The trace has no gradient sizes: buckets were only merged, never split.")
    return Recommendation(
        rule=RULE,
        title=f"Set bucket_cap_mb to {_name_cap(chosen.config)} (today: {_name_cap(today.config)})",
        message=(
            f"Replay predicts {saving.value / 1e6:.1f} ms less a step with {chosen.num_buckets} buckets instead of "
            f"{today.num_buckets}. Measure it before you keep it."
        ),
        change=_name_change(chosen.config, today.config),
        saving_ns=saving,
        status="predicted",
        evidence=(
            Evidence(name="step today, replayed", value=float(today.steps_ns[0]) / 1e6, unit="ms", table="steps"),
            Evidence(name="step with the change", value=float(chosen.steps_ns[0]) / 1e6, unit="ms", table="steps"),
            Evidence(name="buckets today", value=today.num_buckets, unit="", table="buckets"),
        ),
        caveats=tuple(caveats),
        sources=SOURCES,
        prediction=predict(job, chosen.config),
        equally_good={"bucket_cap_mb": tuple(sorted(c.config.bucket_cap_mb or 0.0 for c in equal))},
    )
