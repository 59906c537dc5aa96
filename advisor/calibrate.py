"""How computation and communication disturb each other on this machine, and what bucketing itself costs.

The slow-down of computation is measured on operators that ran both beside communication and alone, on the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from advisor.comm_model import CommFit
from advisor.intervals import total
from advisor.observation import RankObservation
from advisor.schedule import StepSchedule
from advisor.schema import Backend, Calibration, Estimate, StepProfile
from advisor.statistics import median_estimate
from advisor.step_profile import build_step_profile

CONCURRENCY: dict[Backend, int] = {"gloo": 2, "nccl": 1, "unknown": 1}
"""Collectives in flight per process group: gloo runs two worker threads, NCCL one stream."""

FEWEST_OPERATORS = 3


@dataclass(frozen=True)
class Calibrated:
    """What replay needs; no profile where the buckets' bytes or the steps are unknown."""

    profile: StepProfile | None
    calibration: Calibration


def calibrate(
    observations: Sequence[RankObservation], schedules: Sequence[StepSchedule], fit: CommFit | None, backend: Backend
) -> Calibrated:
    """Builds the step profile and the calibration of one run.

    Args:
        observations: All ranks.
        schedules: Their gradient exchanges.
        fit: The communication model of the gradients' all-reduce.
        backend: Decides how many collectives run at once.
    """
    assumed: list[str] = []
    compute_slowdown = _measure_compute_slowdown(observations)
    if compute_slowdown is None:
        assumed.append("computation is not slowed down by communication (no operator ran both with and without it)")
        compute_slowdown = _assume(1.0)
    if fit is None:
        assumed.append("communication is not slowed down by computation (no communication model)")
    on_cpu = observations[0].device_type == "cpu"
    sent = [(s, sum(max(b.num_bytes, 0) for b in s.buckets)) for s in schedules] if on_cpu else []
    copies = [s.exchange.copy_back_ns / num_bytes for s, num_bytes in sent if num_bytes]
    launches = [total(s.exchange.launch_spans) / max(1, len(s.buckets)) for s in schedules] if on_cpu else []
    if not on_cpu:
        assumed.append("copies out of the bucket cost no device time")
    calibration = Calibration(
        concurrency=CONCURRENCY[backend],
        compute_slowdown=compute_slowdown,
        communication_slowdown=fit.communication_slowdown if fit else _assume(1.0),
        copy_in_ns_per_byte=_assume(0.0),
        copy_out_ns_per_byte=median_estimate(copies) if copies else _assume(0.0),
        launch_ns=median_estimate(launches) if launches else _assume(0.0),
        host_tail_ns=median_estimate([s.exchange.host_tail_ns for s in schedules]) if schedules else _assume(0.0),
        baseline_residual_fraction=_assume(0.0),
        assumed=tuple(assumed),
    )
    return Calibrated(build_step_profile(observations, schedules, compute_slowdown.value), calibration)


def _assume(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, basis="extrapolated")


def _measure_compute_slowdown(observations: Sequence[RankObservation]) -> Estimate | None:
    """How much longer the same operator on the same shapes takes beside communication."""
    operators = pd.concat([observation.operators for observation in observations], ignore_index=True)
    clean = operators[~operators["overlapped"].astype(bool)].groupby(["name", "dims"])["duration"]
    overlapped = operators[operators["overlapped"].astype(bool)]
    reference = clean.median()[clean.size() >= FEWEST_OPERATORS].rename("clean")
    pairs = overlapped.merge(reference, left_on=["name", "dims"], right_index=True)
    if len(pairs) < FEWEST_OPERATORS:
        return None
    per_step = pairs.groupby(["rank", "step"])[["duration", "clean"]].sum()
    found = median_estimate((per_step["duration"] / per_step["clean"]).to_numpy())
    return Estimate(value=max(1.0, found.value), low=max(1.0, found.low), high=max(1.0, found.high), basis="fitted")
