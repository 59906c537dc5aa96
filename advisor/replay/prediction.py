"""The whole optimizer step around a replayed backward, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.replay.backward import Replayed, replay_backward
from advisor.replay.buckets import bucket_gradients, plan_backward, sends_nothing
from advisor.replay.scenarios import Job, Scenario, draw_scenarios, free_communication, summarize_draws
from advisor.replay.waterfall import explain_step, sum_around
from advisor.schema import BucketSpan, DDPConfig, Estimate, Prediction


def predict(
    job: Job, config: DDPConfig, scenarios: Sequence[Scenario] | None = None, *, measured_ns: float | None = None
) -> Prediction:
    """Predicts the step under `config`.

    Args:
        job: Profile, calibration and communication model of the profiled run.
        config: The setting to predict; K accumulation steps are K - 1 silent micro-steps and one that synchronises.
        scenarios: Draws of the uncertain numbers, the central one first; `draw_scenarios(job)` by default.
        measured_ns: The step that was measured under `config`, where it was: the waterfall then ends there.

    Returns:
        Times in ns per optimizer step, with 95 % intervals over the scenarios.
    """
    scenarios = scenarios or draw_scenarios(job)
    runs = replay_scenarios(job, config, scenarios)
    central = runs[0]
    buckets = bucket_gradients(job.profile, config)
    gradients = job.profile.slowest.gradients
    step = summarize_draws([step_ns(job, config, run) for run in runs])
    return Prediction(
        config=config,
        step_ns=step,
        blocking_ns=summarize_draws([run.blocking for run in runs]),
        exposed_ns=summarize_draws([run.exposed for run in runs]),
        buckets=tuple(
            BucketSpan(
                bucket=k,
                num_bytes=sum(gradients[i].num_bytes for i in bucket),
                ready_ns=round(central.readies[k]),
                start_ns=round(central.starts[k]),
                end_ns=round(central.ends[k]),
            )
            for k, bucket in enumerate(buckets)
        ),
        waterfall=explain_step(job, config, scenarios[0], step.value if measured_ns is None else measured_ns),
    )


def replay_scenarios(job: Job, config: DDPConfig, scenarios: Sequence[Scenario]) -> list[Replayed]:
    """Replays the synchronising backward of `config` once per scenario."""
    backward, free = plan_backward(job, config), sends_nothing(config)
    return [replay_backward(backward, free_communication(s) if free else s) for s in scenarios]


def step_ns(job: Job, config: DDPConfig, run: Replayed) -> float:
    """The whole optimizer step around a replayed backward, residual included."""
    exchanged = max(run.finish_end, run.compute_end + job.calibration.host_tail_ns.value)
    around = sum_around(job, job.profile.slowest, config.accumulation_steps)
    return (around + exchanged) * (1 + job.calibration.baseline_residual_fraction.value)


def predict_ceiling(job: Job, config: DDPConfig) -> Estimate:
    """The step with free communication: what no change of DDP's settings can beat."""
    scenarios = [free_communication(scenario) for scenario in draw_scenarios(job)]
    return summarize_draws([step_ns(job, config, run) for run in replay_scenarios(job, config, scenarios)])
