"""Every stage's answer in one `Report`, in the order in which the stages depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import msgspec

from advisor.alarms import ALARMS
from advisor.bucketing import DEFAULT_BUCKET_CAP_MB
from advisor.calibrate import Calibrated, calibrate
from advisor.collectives import match_collectives
from advisor.comm_model import CommFit, collect_transfers, fit_sources
from advisor.contents import describe_contents
from advisor.forecast import MOST_RANKS, find_obstacle, forecast_ranks
from advisor.next_measurement import suggest_measurement
from advisor.observation import RunObservation
from advisor.profiled_config import ASSUMED_SETTINGS, identify_config, list_assumed
from advisor.recommend import recommend
from advisor.registration import register_gradients
from advisor.replay import Job, check_baseline, estimate_residual, predict
from advisor.schedule import StepSchedule, build_schedules
from advisor.schema import Baseline, DDPConfig, Forecast, Prediction, QualityNote, Report, StepSource, StepSummary
from advisor.statistics import median_estimate
from advisor.stragglers import find_straggler, find_waiting
from advisor.summaries import summarize_collectives, summarize_ranks, summarize_steps
from advisor.verdict import Analysis, judge, summarize_step_time

FORECAST_TIMES = (1, 2, 4, 8)
"""The numbers of ranks to forecast, as multiples of today's."""

CALL_STEP = "Give torch.profiler.profile a schedule and call prof.step() after every optimizer step."
STEPS_TOLD_BY: dict[StepSource, str] = {
    "optimizer": f"No ProfilerStep marks: steps were told apart by optimizer steps. {CALL_STEP}",
    "forward": f"No ProfilerStep marks: steps were told apart by DDP's forward. {CALL_STEP}",
    "window": f"Nothing tells steps apart, so the whole recording is shown as one. {CALL_STEP}",
}
"""What a report says where the profiler's own marks are missing."""


def build_report(run: RunObservation) -> Report:
    """Analyses a run."""
    collectives = [rank.collectives for rank in run.ranks]
    matched = match_collectives(collectives, run.world_size)
    schedules = build_schedules(run.ranks, matched)
    transfers = collect_transfers(matched, run.ranks)
    fits, ladders, notes = fit_sources(transfers, run.ladders, run.world_size, run.backend)
    fit = _choose_fit(fits, schedules)
    calibrated = calibrate(run.ranks, schedules, fit, run.backend, ladders)
    if calibrated.profile is not None:
        calibrated = replace(calibrated, profile=register_gradients(calibrated.profile, run.manifest))
    config = identify_config(run, schedules, calibrated.profile)
    assumed = list_assumed(run, schedules, calibrated.profile)
    waiting = find_waiting(run.ranks, matched)
    steps = summarize_steps(run.ranks, schedules, waiting)
    job, baseline = _check_replay(calibrated, fit, config, steps)
    analysis = Analysis(
        config=config,
        parallelism=run.parallelism,
        world_size=run.world_size,
        steps=steps,
        buckets=tuple(bucket for schedule in schedules for bucket in schedule.buckets),
        comm_model=fit.model if fit else None,
        job=job,
        baseline=baseline,
        straggler=find_straggler(run.ranks, waiting),
        run=run,
    )
    verdict = judge(analysis)
    advice = recommend(analysis, verdict)
    return Report(
        tool_version=find_tool_version(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=run.source,
        manifest=run.manifest,
        config=config,
        assumed_settings=assumed,
        notes=(*run.notes, *notes, *_note_quality(run, schedules, calibrated, config), *_note_assumed(assumed, job)),
        verdict=verdict,
        alarms=tuple(alarm for check in ALARMS if (alarm := check(analysis)) is not None),
        baseline=baseline,
        recommendations=advice,
        next_measurement=suggest_measurement(analysis, verdict, advice),
        step_profile=calibrated.profile,
        calibration=job.calibration if job else calibrated.calibration,
        comm_models=tuple(fit.model for fit in fits),
        steps=steps,
        buckets=analysis.buckets,
        collectives=summarize_collectives(collectives, matched),
        ranks=summarize_ranks(run.ranks, matched, waiting),
        parallelism=run.parallelism,
        today=_predict_today(job, config, baseline),
        forecast=_forecast(job, config, baseline),
        straggler=analysis.straggler,
        interference=calibrated.interference,
        bucket_contents=describe_contents(schedules, run.manifest),
    )


def find_tool_version() -> str:
    """The installed version of ddp-advisor."""
    try:
        return version("ddp-advisor")
    except PackageNotFoundError:
        return "unknown"


def _choose_fit(fits: Sequence[CommFit], schedules: Sequence[StepSchedule]) -> CommFit | None:
    """The model of the gradients' own all-reduce: its kind, and the buckets' dtype."""
    dtypes = {bucket.dtype for schedule in schedules for bucket in schedule.buckets}
    wanted = [fit for fit in fits if fit.model.kind == "all_reduce" and fit.model.dtype in dtypes]
    return max(wanted, key=lambda fit: len(fit.model.samples), default=None)


def _check_replay(
    calibrated: Calibrated, fit: CommFit | None, config: DDPConfig | None, steps: Sequence[StepSummary]
) -> tuple[Job | None, Baseline | None]:
    """Replays the profiled setting; the job that comes back carries the residual for later predictions."""
    if calibrated.profile is None or fit is None or config is None:
        return None, None
    job = Job(calibrated.profile, calibrated.calibration, fit.model, config)
    baseline = check_baseline(job, config, median_estimate(summarize_step_time(steps)))
    calibration = msgspec.structs.replace(
        calibrated.calibration, baseline_residual_fraction=estimate_residual(baseline)
    )
    return replace(job, calibration=calibration), baseline


def _predict_today(job: Job | None, config: DDPConfig | None, baseline: Baseline | None) -> Prediction | None:
    """The profiled setting as replay sees it, explained up to the measured step."""
    if job is None or config is None or baseline is None:
        return None
    return predict(job, config, measured_ns=baseline.measured_ns.value)


def _forecast(job: Job | None, config: DDPConfig | None, baseline: Baseline | None) -> Forecast | None:
    """More ranks, where nothing stands in the way of saying."""
    if job is None or config is None or find_obstacle(job, config, baseline):
        return None
    sizes = [times * config.world_size for times in FORECAST_TIMES]
    return forecast_ranks(job, config, [size for size in sizes if size <= MOST_RANKS])


def _note_quality(
    run: RunObservation, schedules: Sequence[StepSchedule], calibrated: Calibrated, config: DDPConfig | None
) -> list[QualityNote]:
    notes = [
        STEPS_TOLD_BY[source] for source in sorted({rank.step_source for rank in run.ranks} & STEPS_TOLD_BY.keys())
    ]
    if config is not None and calibrated.profile is None:
        notes.append(_say_why_nothing_is_replayed(run, schedules))
    elif config is not None and not any(rank.has_shapes for rank in run.ranks):
        notes.append("No shapes: buckets can be merged but not split. Record with record_shapes=True.")
    if config is not None and config.bucket_cap_mb == DEFAULT_BUCKET_CAP_MB and config.caps_first_bucket:
        notes.append(
            "bucket_cap_mb=25 is not the default: left unset, DDP's first bucket is one of 1 MiB, so that "
            "communication starts earlier."
        )
    return [QualityNote(message=message) for message in notes]


def _say_why_nothing_is_replayed(run: RunObservation, schedules: Sequence[StepSchedule]) -> str:
    if not any(rank.steps for rank in run.ranks):
        return "No step was recorded from its beginning to its end, so nothing can be replayed."
    if not schedules:
        return (
            "No step holds a backward together with the all-reduces of its gradients, so nothing can be replayed. "
            "Record whole optimizer steps that synchronise, with prof.step() after each."
        )
    newer = " From torch 2.2 on, NCCL's collectives tell their size without it." if run.backend == "nccl" else ""
    return f"The buckets' bytes are unknown, so nothing can be replayed. Record with record_shapes=True.{newer}"


def _note_assumed(settings: Sequence[str], job: Job | None) -> list[QualityNote]:
    """What is taken for granted of the profiled setting; and of its costs, where something can be replayed."""
    costs = job.calibration.assumed if job else ()
    taken = (*(ASSUMED_SETTINGS[field] for field in settings), *costs)
    return [QualityNote(message=f"Assumed: {assumption}.") for assumption in taken]
