"""The whole optimizer step around a replayed backward, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from advisor.powersgd import find_cost
from advisor.replay.backward import Backward, Replayed, replay_backward
from advisor.replay.buckets import bucket_gradients, plan_backward, sends_nothing
from advisor.replay.scenarios import Job, Scenario, draw_scenarios, free_communication, summarize_draws
from advisor.replay.waterfall import explain_step, sum_around
from advisor.schema import Basis, BucketSpan, Calibration, DDPConfig, Estimate, Prediction
from advisor.wording import say_number

NOTHING = Estimate(value=0.0, low=0.0, high=0.0, basis="measured")


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
    backward = plan_backward(job, config)
    runs = _replay(backward, config, scenarios)
    assumed = tuple(_list_assumed(job, config, backward))
    basis: Basis = "extrapolated" if assumed else "fitted"
    step = summarize_draws([step_ns(job, config, run) for run in runs], basis)
    return Prediction(
        config=config,
        step_ns=step,
        blocking_ns=summarize_draws([blocking_ns(job, run) for run in runs], basis),
        exposed_ns=summarize_draws([run.exposed for run in runs], basis),
        buckets=tuple(_list_buckets(job, backward, config, runs[0])),
        waterfall=explain_step(job, config, scenarios[0], step.value if measured_ns is None else measured_ns),
        assumed=assumed,
    )


def _list_buckets(job: Job, backward: Backward, config: DDPConfig, run: Replayed) -> Iterator[BucketSpan]:
    """Each bucket from the start of its first transfer to the end of its last one."""
    gradients, chains = job.profile.slowest.gradients, backward.chains
    for number, bucket in enumerate(bucket_gradients(job.profile, config)):
        own = [number] if chains is None else _list_transfers(backward, number)
        yield BucketSpan(
            bucket=number,
            num_bytes=sum(gradients[i].num_bytes for i in bucket),
            ready_ns=round(run.readies[own[0]]),
            start_ns=round(run.starts[own[0]]),
            end_ns=round(run.ends[own[-1]]),
        )


def _list_transfers(backward: Backward, bucket: int) -> list[int]:
    assert backward.chains is not None
    of_bucket = enumerate(zip(backward.chains.buckets, backward.sizes, strict=False))
    return [place for place, (own, size) in of_bucket if own == bucket and size > 0]


def _list_assumed(job: Job, config: DDPConfig, backward: Backward) -> Iterator[str]:
    """What a setting takes for granted: PowerSGD's computation, and that buckets of unknown gradients merge whole."""
    costs = _find_costs(job.calibration, config) if backward.chains else ()
    if any(cost.basis == "extrapolated" for cost in costs):
        yield _say_computation(job.calibration, config)
    buckets = bucket_gradients(job.profile, config)
    if not job.profile.sizes_known and len(buckets) < len(job.profile.slowest.gradients):
        yield "today's buckets merge whole, though DDP may cut between any two gradients (their sizes are unknown)"


def _find_costs(calibration: Calibration, config: DDPConfig) -> tuple[Estimate, Estimate]:
    """What PowerSGD computes for a byte and for a matrix."""
    costs = calibration.hook_ns_per_byte, calibration.hook_ns_per_matrix
    per_byte, per_matrix = (find_cost(each, config.comm_hook, NOTHING) for each in costs)
    return per_byte, per_matrix


def _say_computation(calibration: Calibration, config: DDPConfig) -> str:
    per_byte, per_matrix = (
        f"{say_number(cost.low / unit)} to {say_number(cost.high / unit)}"
        for cost, unit in zip(_find_costs(calibration, config), (1, 1e3), strict=True)
    )
    return (
        f"what {config.comm_hook} computes takes {per_byte} ns a byte of matrices, and {per_matrix} µs a matrix "
        "(it was not timed)"
    )


def replay_scenarios(job: Job, config: DDPConfig, scenarios: Sequence[Scenario]) -> list[Replayed]:
    """Replays the synchronising backward of `config` once per scenario."""
    return _replay(plan_backward(job, config), config, scenarios)


def _replay(backward: Backward, config: DDPConfig, scenarios: Sequence[Scenario]) -> list[Replayed]:
    free = sends_nothing(config)
    return [replay_backward(backward, free_communication(s) if free else s) for s in scenarios]


def step_ns(job: Job, config: DDPConfig, run: Replayed) -> float:
    """The whole optimizer step around a replayed backward, residual included."""
    exchanged = max(run.finish_end, run.compute_end + job.calibration.host_tail_ns.value)
    around = sum_around(job, job.profile.slowest, config.accumulation_steps)
    return (around + exchanged) * (1 + job.calibration.baseline_residual_fraction.value)


def blocking_ns(job: Job, run: Replayed) -> float:
    """What a replayed backward waits for communication, beyond what a GPU waits for its late host anyway."""
    waiting_after = run.finish_end - run.compute_end
    return max(0.0, run.blocking - min(job.calibration.host_tail_ns.value, waiting_after))


def predict_ceiling(job: Job, config: DDPConfig) -> Estimate:
    """The step with free communication, as the hook that sends nothing has it: no other hook can beat it."""
    free = replace(config, comm_hook="noop")
    runs = replay_scenarios(job, free, draw_scenarios(job))
    return summarize_draws([step_ns(job, free, run) for run in runs])
