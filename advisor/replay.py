"""What the step would take under other settings: one backward replayed with its buckets, and the step around it.

Time flows through piecewise-constant rates. Computation advances at 1, or at 1 / s while a collective runs. n
collectives in flight advance at 1 / n each, and at 1 / (n · c) while computation runs beside them (s and c are the
calibrated slow-downs). A bucket is launched when its last gradient is ready, in bucket order; launching costs the
backward thread `launch_ns`; at most `concurrency` collectives run, the others wait in order.

After the last gradient the step goes on when each bucket in turn has ended and been copied out, or, on a GPU, when the
host has launched what follows, whichever is later. The slowest rank decides when a gradient is ready.

    buckets ready at 2, 4, 6, 8 ms, 3 ms each, one in flight: they end at 5, 8, 11, 14 ms, so 6 ms block
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from advisor.bucketing import assign_rebuilt, bucket_limits
from advisor.schema import (
    Baseline,
    BucketSpan,
    Calibration,
    CommDraw,
    CommModel,
    DDPConfig,
    Estimate,
    GradientReady,
    Prediction,
    StepProfile,
)

Floats = npt.NDArray[np.float64]

NUM_DRAWS = 64
LEAST = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
"""No draw of alpha, the slow-down of communication, beta, that of computation, copying and launching goes below these,
however wide its interval: overlap never speeds anything up."""
NORMAL_95 = 1.96
BASELINE_LIMIT = 0.10
NOISE_FLOORS_IN_LIMIT = 3.0
WIRE_BYTES: Mapping[str, int] = {"fp16": 2, "bf16": 2}
"""Bytes an element on the wire under a hook that casts."""


@dataclass(frozen=True)
class Scenario:
    """One draw of everything uncertain, as plain numbers; ns and ns per byte."""

    alpha_ns: float
    beta_ns_per_byte: float
    compute_slowdown: float
    communication_slowdown: float
    copy_out_ns_per_byte: float
    launch_ns: float
    kinks: tuple[tuple[float, float], ...] = ()
    """Bytes from which on beta is larger, and by how much."""

    def transfer_ns(self, num_bytes: Floats) -> Floats:
        """The times of collectives that have the link and the cores for themselves."""
        times = self.alpha_ns + self.beta_ns_per_byte * num_bytes
        for kink, change in self.kinks:
            times = times + change * np.maximum(num_bytes - kink, 0.0)
        return times


class Replayed(NamedTuple):
    """One replayed synchronising backward; ns from its start."""

    starts: list[float]
    ends: list[float]
    readies: list[float]
    compute_end: float
    finish_end: float
    blocking: float
    exposed: float


@dataclass(frozen=True)
class Job:
    """All that does not depend on the settings."""

    profile: StepProfile
    calibration: Calibration
    model: CommModel


def replay_backward(
    work: Sequence[float], sizes: Sequence[float], backward_ns: float, concurrency: int, scenario: Scenario
) -> Replayed:
    """Replays one synchronising backward.

    Args:
        work: Clean compute time after which each bucket is ready, ascending, in ns.
        sizes: Bytes of each bucket on the wire.
        backward_ns: Clean compute time of the whole backward, in ns.
        concurrency: Collectives in flight at most.
        scenario: The model's numbers.
    """
    num = len(work)
    launch_at = [ready + k * scenario.launch_ns for k, ready in enumerate(work)]
    compute_total = max(backward_ns, work[-1] if num else 0.0) + num * scenario.launch_ns
    alone = scenario.transfer_ns(np.asarray(sizes, dtype=np.float64)).tolist()
    compute_pace, communication_pace = scenario.compute_slowdown, scenario.communication_slowdown
    starts, ends, readies = [0.0] * num, [0.0] * num, [0.0] * num
    in_flight: list[tuple[float, int]] = []  # a heap: how far `served` is when a bucket ends, and the bucket
    now = done = served = 0.0
    launched = started = 0
    while done < compute_total:
        while launched < num and launch_at[launched] <= done:
            readies[launched] = now
            launched += 1
        while started < launched and len(in_flight) < concurrency:
            starts[started] = now
            heappush(in_flight, (served + alone[started], started))
            started += 1
        target = launch_at[launched] if launched < num else compute_total
        if not in_flight:
            now += target - done
            done = target
            continue
        pace = len(in_flight) * communication_pace
        until_target, until_end = (target - done) * compute_pace, (in_flight[0][0] - served) * pace
        if until_target < until_end:
            now += until_target
            served += until_target / pace
            done = target
        else:
            now += until_end
            done += until_end / compute_pace
            served, bucket = heappop(in_flight)
            ends[bucket] = now
    compute_end = now
    readies[launched:] = [now] * (num - launched)
    while started < num or in_flight:
        while started < num and len(in_flight) < concurrency:
            starts[started] = now
            heappush(in_flight, (served + alone[started], started))
            started += 1
        now += (in_flight[0][0] - served) * len(in_flight)
        served, bucket = heappop(in_flight)
        ends[bucket] = now
    exposed = now - compute_end
    at, blocking = compute_end, 0.0
    for end, size in zip(ends, sizes, strict=True):
        if end > at:
            blocking += end - at
            at = end
        at += scenario.copy_out_ns_per_byte * size
    return Replayed(starts, ends, readies, compute_end, at, blocking, exposed)


def bucket_gradients(profile: StepProfile, config: DDPConfig) -> list[list[int]]:
    """The buckets of `config`, as indices into the gradients in ready order, in launch order."""
    gradients = profile.slowest.gradients
    limits = bucket_limits(config.bucket_cap_mb, config.bucket_cap_mb_list, caps_first_bucket=config.caps_first_bucket)
    sizes = [gradient.num_bytes for gradient in gradients]
    keys = [gradient.dtype for gradient in gradients]
    return assign_rebuilt(sizes, keys, limits, range(len(gradients)))


def predict(job: Job, config: DDPConfig, scenarios: Sequence[Scenario] | None = None) -> Prediction:
    """Predicts the step under `config`.

    Args:
        job: Profile, calibration and communication model of the profiled run.
        config: The setting to predict; K accumulation steps are K - 1 silent micro-steps and one that synchronises.
        scenarios: Draws of the uncertain numbers, the central one first; `draw_scenarios(job)` by default.

    Returns:
        Times in ns per optimizer step, with 95 % intervals over the scenarios.
    """
    runs = replay_scenarios(job, config, scenarios or draw_scenarios(job))
    central = runs[0]
    buckets = bucket_gradients(job.profile, config)
    gradients = job.profile.slowest.gradients
    return Prediction(
        config=config,
        step_ns=_summarize([step_ns(job, config, run) for run in runs]),
        blocking_ns=_summarize([run.blocking for run in runs]),
        exposed_ns=_summarize([run.exposed for run in runs]),
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
    )


def replay_scenarios(job: Job, config: DDPConfig, scenarios: Sequence[Scenario]) -> list[Replayed]:
    """Replays the synchronising backward of `config` once per scenario."""
    gradients = job.profile.slowest.gradients
    ready = [gradient.ready_device_ns for gradient in gradients]
    buckets = bucket_gradients(job.profile, config)
    work = [float(t) for t in np.maximum.accumulate([max(ready[i] for i in bucket) for bucket in buckets])]
    sizes = [sum(count_wire_bytes(gradients[i], config) for i in b) for b in buckets]
    backward = job.profile.slowest.backward_ns
    free = sends_nothing(config)
    concurrency = job.calibration.concurrency
    return [
        replay_backward(work, sizes, backward, concurrency, free_communication(s) if free else s) for s in scenarios
    ]


def step_ns(job: Job, config: DDPConfig, run: Replayed) -> float:
    """The whole optimizer step around a replayed backward, residual included."""
    slowest, calibration = job.profile.slowest, job.calibration
    micro_steps = config.accumulation_steps
    around = slowest.data_ns + slowest.optimizer_ns + slowest.other_ns
    computed = micro_steps * slowest.forward_ns + (micro_steps - 1) * slowest.backward_ns
    exchanged = max(run.finish_end, run.compute_end + calibration.host_tail_ns.value)
    return (around + computed + exchanged) * (1 + calibration.baseline_residual_fraction.value)


def predict_ceiling(job: Job, config: DDPConfig) -> Estimate:
    """The step with free communication: what no change of DDP's settings can beat."""
    scenarios = [free_communication(scenario) for scenario in draw_scenarios(job)]
    return _summarize([step_ns(job, config, run) for run in replay_scenarios(job, config, scenarios)])


def free_communication(scenario: Scenario) -> Scenario:
    """The same machine with collectives that take no time."""
    return Scenario(0.0, 0.0, 1.0, 1.0, scenario.copy_out_ns_per_byte, scenario.launch_ns)


def sends_nothing(config: DDPConfig) -> bool:
    """Whether nothing goes over the wire: one rank alone, or the hook that only measures the ceiling."""
    return config.world_size == 1 or config.comm_hook == "noop"


def count_wire_bytes(gradient: GradientReady, config: DDPConfig) -> float:
    """Bytes of a gradient on the wire, after a hook that casts."""
    width = WIRE_BYTES.get(config.comm_hook)
    own = {"float16": 2, "bfloat16": 2, "float64": 8}.get(gradient.dtype, 4)
    return gradient.num_bytes if width is None else gradient.num_bytes * width / own


# ------------------------------------------------------------------------------------------------- uncertainty


def draw_scenarios(job: Job) -> list[Scenario]:
    """The central scenario, then draws from the intervals; the same for every setting: differences are paired.

    Latency, slopes and slow-down of communication are drawn jointly, as the model's fit left them.
    """
    model, calibration = job.model, job.calibration
    terms = (calibration.compute_slowdown, calibration.copy_out_ns_per_byte, calibration.launch_ns)
    central = CommDraw(
        alpha_ns=model.segments[0].alpha_ns.value,
        communication_slowdown=calibration.communication_slowdown.value,
        betas_ns_per_byte=tuple(segment.beta_ns_per_byte.value for segment in model.segments),
        kinks_bytes=model.kinks_bytes,
    )
    normals = _draw_normals()
    drawn = model.draws[: len(normals)] or [_draw_apart(job, row) for row in normals]
    others = [[_shift(t, z, least) for t, z, least in zip(terms, row[3:], LEAST[3:], strict=True)] for row in normals]
    return [
        _build_scenario(central, [term.value for term in terms]),
        *(_build_scenario(draw, other) for draw, other in zip(drawn, others, strict=True)),
    ]


def _build_scenario(draw: CommDraw, others: Sequence[float]) -> Scenario:
    compute_slowdown, copy_out_ns_per_byte, launch_ns = others
    changes = [after - before for before, after in pairwise(draw.betas_ns_per_byte)]
    return Scenario(
        alpha_ns=draw.alpha_ns,
        beta_ns_per_byte=draw.betas_ns_per_byte[0],
        compute_slowdown=compute_slowdown,
        communication_slowdown=draw.communication_slowdown,
        copy_out_ns_per_byte=copy_out_ns_per_byte,
        launch_ns=launch_ns,
        kinks=tuple(zip(draw.kinks_bytes, changes, strict=True)),
    )


def _draw_apart(job: Job, row: Sequence[float]) -> CommDraw:
    """A draw for a model of an older report, which kept only the intervals of one segment."""
    segment = job.model.segments[0]
    terms = (segment.alpha_ns, job.calibration.communication_slowdown, segment.beta_ns_per_byte)
    alpha, slowdown, beta = (_shift(t, z, least) for t, z, least in zip(terms, row[:3], LEAST[:3], strict=True))
    return CommDraw(alpha_ns=alpha, communication_slowdown=slowdown, betas_ns_per_byte=(beta,))


@lru_cache(maxsize=1)
def _draw_normals() -> tuple[tuple[float, ...], ...]:
    values: npt.NDArray[np.float64] = np.random.default_rng(0).standard_normal((NUM_DRAWS, 6))
    return tuple(tuple(float(z) for z in row) for row in values)


def _shift(term: Estimate, z: float, least: float) -> float:
    side = term.high - term.value if z > 0 else term.value - term.low
    return max(min(least, term.value), term.value + z * side / NORMAL_95)


def _summarize(values: Sequence[float]) -> Estimate:
    low, high = np.quantile(values, [0.025, 0.975])
    value = values[0]
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value), basis="fitted")


# --------------------------------------------------------------------------------------------------- the check


def check_baseline(job: Job, config: DDPConfig, measured_ns: Estimate) -> Baseline:
    """Replays the profiled setting itself; beyond the limit no speed advice is given.

    error = (replayed - measured) / measured; limit = max(10 %, three times the noise floor), the noise floor being
    the standard error of the measured median.
    """
    replayed = predict(job, config).step_ns
    floor = (measured_ns.high - measured_ns.low) / (2 * NORMAL_95) / measured_ns.value
    return Baseline(
        measured_ns=measured_ns,
        replayed_ns=replayed,
        error_fraction=(replayed.value - measured_ns.value) / measured_ns.value,
        noise_floor_fraction=floor,
        limit_fraction=max(BASELINE_LIMIT, NOISE_FLOORS_IN_LIMIT * floor),
    )


def estimate_residual(baseline: Baseline) -> Estimate:
    """The correction of later predictions: only what exceeds twice the measurement's standard error, as a fraction.

    Example: measured 110, replayed 100, standard error 2: the residual is 10, of which 6 exceed 2 · 2, so 6 %.
    """
    residual = baseline.measured_ns.value - baseline.replayed_ns.value
    error = baseline.noise_floor_fraction * baseline.measured_ns.value
    excess = float(np.sign(residual) * max(0.0, abs(residual) - 2 * error))
    value = excess / baseline.replayed_ns.value
    spread = NORMAL_95 * error / baseline.replayed_ns.value
    return Estimate(value=value, low=value - spread, high=value + spread, basis="fitted")
