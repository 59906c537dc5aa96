"""How computation and communication disturb each other on this machine, and what bucketing itself costs.

The slow-down of computation is measured on work that ran both beside communication and alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.comm_model import CommFit, estimate_compute_slowdown
from advisor.interference import measure_interference
from advisor.intervals import total
from advisor.observation import RankObservation
from advisor.schedule import StepSchedule
from advisor.schema import Backend, Calibration, Estimate, Interference, Ladder, StepProfile
from advisor.statistics import median_estimate
from advisor.step_profile import build_step_profile

CONCURRENCY: dict[Backend, int] = {"gloo": 2, "nccl": 1, "unknown": 1}
"""Collectives in flight per process group: gloo runs two worker threads, NCCL one stream."""


@dataclass(frozen=True)
class Calibrated:
    """What replay needs; no profile where the buckets' bytes or the steps are unknown."""

    profile: StepProfile | None
    calibration: Calibration
    interference: Interference | None


def calibrate(
    observations: Sequence[RankObservation],
    schedules: Sequence[StepSchedule],
    fit: CommFit | None,
    backend: Backend,
    ladders: Sequence[Ladder] = (),
) -> Calibrated:
    """Builds the step profile and the calibration of one run.

    Args:
        observations: All ranks.
        schedules: Their gradient exchanges.
        fit: The communication model of the gradients' all-reduce.
        backend: Decides how many collectives run at once.
        ladders: Tell the slow-down of computation where the traces do not.
    """
    assumed: list[str] = []
    interference = measure_interference(observations)
    measured = estimate_compute_slowdown(ladders) if interference is None else interference.slowdown
    compute_slowdown = _assume(1.0) if measured is None else _at_least_one(measured)
    if measured is None:
        assumed.append("computation is not slowed down by communication (no operator ran both with and without it)")
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
    profile = build_step_profile(observations, schedules, compute_slowdown.value)
    return Calibrated(profile, calibration, interference)


def _at_least_one(ratio: Estimate) -> Estimate:
    """A slow-down as replay takes it: communication makes nothing faster."""
    value, low, high = (max(1.0, bound) for bound in (ratio.value, ratio.low, ratio.high))
    return Estimate(value=value, low=low, high=high, basis="fitted")


def _assume(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, basis="extrapolated")
