"""Advice put to the test: freeze what replay predicts, measure it beside today's setting, judge the advice by that.

The first arm is today's setting; the sweep measures it twice (A/A), which gives the noise floor of this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from advisor.pipeline import find_job, what_if
from advisor.replay import find_gap
from advisor.rules.bench import build_bench
from advisor.rules.caps import rank_candidates
from advisor.rules.guards import apply_change
from advisor.schema import DDPConfig, Recommendation, RecommendationStatus, Report, Sweep, SweepArm
from reports.text import format_setting
from workloads.job import JobSpec
from workloads.requests import Arm, SweepRequest

if TYPE_CHECKING:
    from workloads.launch import OnProgress

DATABASE = "sweep.sqlite"


def prove(report: Report, job: JobSpec, folder: Path, budget_s: float, on_progress: OnProgress | None = None) -> Report:
    """Measures the best candidate of `report` beside today's setting and returns the report with both.

    Args:
        report: The analysis of a run of `job`.
        job: What to train.
        folder: The run folder; the measured steps and the frozen predictions go there.
        budget_s: How long to measure, in seconds.
        on_progress: Called with seconds used, seconds of the budget and what is happening.

    Returns:
        The report with the sweep and the status of each recommendation that was measured; as it was where replay
        knows no other setting to measure.

    Raises:
        RunError: Today's setting could not be measured.
    """
    from workloads.sweep import measure_arms, summarise

    arms = choose_arms(report)
    if len(arms) < 2:
        return report
    database = folder / DATABASE
    database.unlink(missing_ok=True)  # of an earlier proof: these predictions are frozen now
    measure_arms(SweepRequest(job=job, arms=arms, database=str(database), budget_s=budget_s), on_progress)
    return attach_sweep(report, summarise(database))


def choose_arms(report: Report) -> tuple[Arm, ...]:
    """Today's setting and the best candidate with their predicted steps; fewer where replay cannot predict.

    The candidate is the first recommendation's that keeps the samples of a step: more micro-steps are another training,
    and their step another amount of work. Without one it is the setting with the shortest predicted step, since a
    prediction of "no difference" is worth a test as well.
    """
    job, today = find_job(report), report.config
    if job is None or today is None:
        return ()
    advised = [apply_change(today, advice.change) for advice in report.recommendations if is_measurable(advice)]
    ranked = advised or [candidate.config for candidate in rank_candidates(build_bench(job, today))[1:]]
    named = [("today", today), *((_describe(config, today), config) for config in ranked[:1] if config != today)]
    predicted = {name: what_if(report, config).step_ns for name, config in named if not find_gap(job, config)}
    return tuple(Arm(name=name, config=config, predicted_ns=predicted.get(name)) for name, config in named)


def is_measurable(advice: Recommendation) -> bool:
    """Whether an arm can run the advice: it changes settings of DDP, and not how many samples a step has."""
    return bool(advice.change) and "accumulation_steps" not in advice.change


def attach_sweep(report: Report, sweep: Sweep) -> Report:
    """The report with the measurement, and every recommendation judged by the arm that measured it."""
    today = report.config
    assert today is not None, "a sweep starts from the profiled setting"
    arms = {arm.config: arm for arm in sweep.arms if arm.outcome != "reference"}
    judged = tuple(
        msgspec.structs.replace(recommendation, status=judge(recommendation, arm, sweep.arms[0]))
        if recommendation.change and (arm := arms.get(apply_change(today, recommendation.change)))
        else recommendation
        for recommendation in report.recommendations
    )
    return msgspec.structs.replace(report, recommendations=judged, sweep=sweep)


def judge(recommendation: Recommendation, arm: SweepArm, reference: SweepArm) -> RecommendationStatus:
    """Says what a measurement makes of an advice.

    Faster confirms it and slower refutes it. A tie refutes only a promise so large that a tie cannot hide it (the
    least predicted saving exceeds the largest measured one) and leaves a smaller one undecided.

    Example: 8 to 12 of 100 ms promised, 99 % of the step measured with the interval [97 %, 101 %]: at most 3 % are
    saved where at least 8 % were promised, so it is refuted.
    """
    if arm.outcome == "failed" or arm.ratio is None or reference.predicted_ns is None:
        return "predicted"
    if arm.outcome == "faster":
        return "confirmed"
    promised = recommendation.saving_ns
    least_promised = promised.low / reference.predicted_ns.value if promised else 0.0
    return "refuted" if arm.outcome == "slower" or least_promised > 1 - arm.ratio.low else "undecided"


def _describe(config: DDPConfig, today: DDPConfig) -> str:
    """The fields that differ from today's, with their values."""
    changed = [name for name in config.__struct_fields__ if getattr(config, name) != getattr(today, name)]
    return ", ".join(f"{name} {format_setting(name, getattr(config, name))}" for name in changed)
