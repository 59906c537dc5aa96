"""The check that comes before all advice: replay against the step that was measured."""

from __future__ import annotations

import numpy as np

from advisor.replay.prediction import predict
from advisor.replay.scenarios import NORMAL_95, Job
from advisor.schema import Baseline, DDPConfig, Estimate

BASELINE_LIMIT = 0.10
NOISE_FLOORS_IN_LIMIT = 3.0


def check_baseline(job: Job, config: DDPConfig, measured_ns: Estimate) -> Baseline:
    """Replays the profiled setting itself; beyond the limit no speed advice is given.

    error = (replayed - measured) / measured; limit = max(10 %, three times the noise floor), the noise floor being
    the standard error of the measured median, which one step alone does not tell.
    """
    replayed = predict(job, config).step_ns
    spread_ns = measured_ns.high - measured_ns.low
    floor = spread_ns / (2 * NORMAL_95) / measured_ns.value if job.profile.num_steps > 1 else None
    return Baseline(
        measured_ns=measured_ns,
        replayed_ns=replayed,
        error_fraction=(replayed.value - measured_ns.value) / measured_ns.value,
        noise_floor_fraction=floor,
        limit_fraction=max(BASELINE_LIMIT, NOISE_FLOORS_IN_LIMIT * (floor or 0.0)),
    )


def estimate_residual(baseline: Baseline) -> Estimate:
    """The correction of later predictions: only what exceeds twice the measurement's standard error, as a fraction.

    Example: measured 110, replayed 100, standard error 2: the residual is 10, of which 6 exceed 2 · 2, so 6 %.
    Where the standard error is unknown nothing is corrected, and all of the residual, or none, may be due to replay.
    """
    residual = baseline.measured_ns.value - baseline.replayed_ns.value
    if baseline.noise_floor_fraction is None:
        miss = residual / baseline.replayed_ns.value
        return Estimate(value=0.0, low=min(0.0, miss), high=max(0.0, miss), basis="extrapolated")
    error = baseline.noise_floor_fraction * baseline.measured_ns.value
    excess = float(np.sign(residual) * max(0.0, abs(residual) - 2 * error))
    value = excess / baseline.replayed_ns.value
    spread = NORMAL_95 * error / baseline.replayed_ns.value
    return Estimate(value=value, low=value - spread, high=value + spread, basis="fitted")
