"""The sentences that every renderer says alike: verdict, ceiling, baseline, silence and sweep."""

from __future__ import annotations

from statistics import median
from typing import Final

from advisor.schema import Estimate, Evidence, Recommendation, Report, Sweep, SweepArm, VerdictCode
from reports.text import (
    format_change,
    format_estimate_ns,
    format_fraction,
    format_ns,
    format_quantity,
    format_share,
    visible,
)

VERDICT_TITLES: Final[dict[VerdictCode, str]] = {
    "host_bound": "Host-bound",
    "input_bound": "Input-bound",
    "straggler": "Straggler",
    "compute_bound": "Compute-bound",
    "latency_bound": "Latency-bound",
    "bandwidth_bound": "Bandwidth-bound",
    "balanced": "Communication-bound",
    "not_ddp": "Not DDP",
    "single_rank": "Single rank",
    "unknown": "Unknown",
}

_SILENCE: Final[dict[VerdictCode, str]] = {
    "host_bound": "communication is not what holds this step back: the device waits for the host.",
    "input_bound": "communication is not what holds this step back: it waits for its data.",
    "straggler": "the ranks wait for a late one, which no bucket size and no hook changes.",
    "compute_bound": "communication is hidden behind computation already.",
    "not_ddp": "this run does not reduce its gradients as DistributedDataParallel does.",
    "single_rank": "a single rank has nobody to communicate with.",
    "unknown": "the traces do not show enough of the step.",
}


def say_ceiling(report: Report) -> str:
    """What the step would take if communication were free, and what that saves: the most that a comm hook can."""
    ceiling = report.verdict.ceiling_ns
    if ceiling is None:
        return ""
    if report.baseline is None or report.baseline.replayed_ns.value <= 0:
        return f"With free communication the step would take {format_estimate_ns(ceiling)}."
    residual = report.calibration.baseline_residual_fraction.value if report.calibration else 0.0
    today_ns = report.baseline.replayed_ns.value * (1 + residual)
    saving = 1 - ceiling.value / today_ns
    if saving < 0.001:
        return "With free communication the step would take as long as it does now: no comm hook can save anything."
    change = format_change(Estimate(value=1 + residual, low=1 + residual, high=1 + residual, basis="fitted"))
    corrected = f" than today's {format_ns(today_ns)} (the replayed step, corrected by {change})" if residual else ""
    return (
        f"With free communication the step would take {format_estimate_ns(ceiling)}, {format_fraction(saving)} less"
        f"{corrected}: no comm hook can save more, and a bucket size only by fewer launches."
    )


def say_baseline(report: Report) -> str:
    """How well the replay reproduces the step that was measured, beside the limit for speed advice."""
    baseline = report.baseline
    if baseline is None:
        return "The step was not replayed, so there is no speed advice."
    error = format_fraction(abs(baseline.error_fraction))
    times = f"measured {format_estimate_ns(baseline.measured_ns)}, replayed {format_estimate_ns(baseline.replayed_ns)}"
    limit, floor = format_fraction(baseline.limit_fraction), format_fraction(baseline.noise_floor_fraction)
    limits = f"limit {limit}, noise floor {floor}"
    if baseline.trusted:
        return f"Replay reproduces the measured step within {error} ({limits}): {times}."
    return f"Replay misses the measured step by {error} ({limits}), so there is no speed advice: {times}."


def say_silence(report: Report) -> str:
    """Why there is no recommendation; empty where there is one."""
    if report.recommendations:
        return ""
    reason = _SILENCE.get(report.verdict.code)
    if reason is None and report.baseline is None:
        reason = "the step could not be replayed."
    elif reason is None and report.baseline is not None and not report.baseline.trusted:
        reason = "the replay misses the measured step by more than the limit."
    elif reason is None and not all(model.complete for model in report.comm_models):
        reason = "a rank's trace is missing, and its lateness cannot be told from latency."
    reason = reason or "none is predicted to matter beyond the noise."
    return f"No change of the DDP settings is recommended, because {reason}"


def say_predicted_change(sweep: Sweep, arm: SweepArm) -> str:
    """The predicted step over the one that was predicted for the first arm, as a change; empty for that one itself."""
    today = sweep.arms[0].predicted_ns
    if arm.outcome == "reference" or arm.predicted_ns is None or today is None:
        return ""
    ratio = arm.predicted_ns.value / today.value
    return format_change(Estimate(value=ratio, low=ratio, high=ratio, basis=arm.predicted_ns.basis))


def say_sweep(sweep: Sweep) -> str:
    """How the comparison was measured, and what counts as a tie."""
    return (
        f"Today's setting against itself differs by {format_fraction(sweep.noise_floor_fraction)} (noise floor); below "
        f"{format_fraction(sweep.tie_fraction)} two settings are called a tie. {sweep.num_blocks} interleaved blocks "
        f"of {sweep.steps_per_block} steps for each setting; the predictions were frozen before the first of them "
        f"(sha256 {sweep.predictions_sha256[:12]}). They hold what the profiler adds to a step, which the "
        "measured steps do not: compare the changes."
    )


def headline_numbers(report: Report) -> tuple[tuple[str, str, str], ...]:
    """The few numbers to see first, as (name, value, explanation); steps are told as the verdict judges them."""
    numbers: list[tuple[str, str, str]] = []
    if report.steps:
        numbers.append(("Step", format_ns(median(step.duration_ns for step in report.steps)), "median"))
    if report.steps and report.buckets:
        blocking = median(step.blocking_ns / max(1, step.duration_ns) for step in report.steps)
        numbers.append(("Blocking", format_fraction(blocking), "of the step, median"))
    if report.verdict.ceiling_ns is not None:
        numbers.append(("Ceiling", format_ns(report.verdict.ceiling_ns.value), "if communication were free"))
    best = next((advice for advice in report.recommendations if advice.saving_ns is not None), None)
    if best is not None and best.saving_ns is not None:
        numbers.append(("Saving", format_ns(best.saving_ns.value), f"a step, {best.status}"))
    return tuple(numbers)


def say_saving(recommendation: Recommendation) -> tuple[str, str, str]:
    """What a piece of advice saves, as three parts to be set apart: `Saves`, `12 ms [9, 15]`, `a step (fitted)`.

    A saving that may be none is told as no measurable effect, and an unknown one by the most that it can be.
    """
    saving, most = recommendation.saving_ns, recommendation.acts_on_ns
    if saving is None:
        return ("", "", "") if most is None else ("Saves at most", format_ns(most), "a step")
    if saving.low <= 0:
        return "No measurable effect is certain:", format_estimate_ns(saving), f"a step ({saving.basis})"
    return "Saves", format_estimate_ns(saving), f"a step ({saving.basis})"


def say_evidence(evidence: Evidence) -> tuple[str, str, str]:
    """One number that decides, as (name, value, threshold); the threshold is empty where there is none.

    A share that rounds to its threshold and is another number gets the decimals that tell them apart.
    """
    value, limit, unit = evidence.value, evidence.threshold, evidence.unit
    if value is not None and evidence.low is not None and evidence.high is not None:
        share = Estimate(value=value, low=evidence.low, high=evidence.high, basis="fitted")
        shown = f"{format_share(share)} {visible(unit)}"
    else:
        shown = format_quantity(value, unit, _count_decimals(value, limit))
    if limit is None:
        return evidence.name, shown, ""
    return evidence.name, shown, format_quantity(limit, "fraction" if unit.startswith("of ") else unit)


def _count_decimals(share: float | None, limit: float | None) -> int | None:
    """The decimals in percent that a share needs to be told from its limit; None where it is told as it is."""
    if share is None or limit is None or share == limit or format_fraction(share) != format_fraction(limit):
        return None
    return next((n for n in range(1, 9) if round(100 * share, n) != round(100 * limit, n)), None)
