"""How computation and communication disturb each other on this machine, and what bucketing itself costs.

Each term is measured in the run itself where it can be, else by a probe of its machines, else assumed: then its
interval spans what is usual, and a sentence in `assumed` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.comm_model import CommFit, estimate_compute_slowdown, measure_overlap
from advisor.interference import measure_interference
from advisor.intervals import intersection, total
from advisor.observation import RankObservation
from advisor.powersgd import split_bucket
from advisor.schedule import StepSchedule
from advisor.schema import (
    POWERSGD,
    Backend,
    Calibration,
    DeviceType,
    Estimate,
    Interference,
    Ladder,
    StepProfile,
)
from advisor.statistics import median_estimate
from advisor.step_profile import CASTING_HOOKS, build_step_profile, find_compression
from advisor.wording import say_number

CONCURRENCY: dict[Backend, int] = {"gloo": 2, "nccl": 1, "unknown": 1}
"""Collectives in flight per process group: gloo runs two worker threads, NCCL one stream."""
MOST_SLOWDOWN = 1.4
"""Where nothing tells how much computation and communication slow each other down, they may do so by this factor."""
CAST_BYTES, COPY_BYTES = 12, 8
"""Memory traffic an element: a cast of float32 to 16 bits and back reads 4 + 2 and writes 2 + 4, a copy 4 and 4."""
UNCERTAIN_CAST = 3.0
"""A cast may cost this many times more or less than its memory traffic tells."""
GPU_CAST = Estimate(value=0.003, low=0.001, high=0.02, basis="extrapolated")
"""ns a byte of gradients: their traffic at 1 TB/s; between 3 TB/s and 150 GB/s."""
CPU_CAST = Estimate(value=0.3, low=0.1, high=0.9, basis="extrapolated")
"""ns a byte of gradients where no copy was seen: their traffic at 10 GB/s, and three times more or less."""
THIN_COPIES, VECTOR_COPIES = (28.0, 65.0), (5.5, 16.5)
"""What PowerSGD's computation takes on a CPU, in copies of the same gradients: usually, and at most.

As `python -m benchmarks powersgd` measured our hook: products with thin matrices run far below the pace of memory. With
rank 1 they are products with vectors, and 44 bytes of traffic an element, 5.5 times a copy's, tell the time.
"""
CPU_COPY_NS_PER_BYTE = 0.2
"""A copy's 8 bytes an element at 10 GB/s."""
CPU_MATRIX = Estimate(value=40e3, low=0.0, high=360e3, basis="extrapolated")
"""ns a matrix, however small: from the same benchmark, of rank 2 and of rank 32."""
GPU_COMPRESSION = Estimate(value=0.011, low=0.0, high=0.073, basis="extrapolated")
"""ns a byte of gradients: 44 bytes of traffic an element at 1 TB/s, and at 150 GB/s."""
GPU_MATRIX = Estimate(value=100e3, low=0.0, high=1e6, basis="extrapolated")
"""ns a matrix: torch's hook launches 19 kernels for one of rank 2, of usually 5 µs and at most 50 µs each."""
NOTHING = Estimate(value=0.0, low=0.0, high=0.0, basis="measured")
SHARED = 2.0
"""The time of two collectives at once over that of one, on a link that they share evenly."""


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
        ladders: What `fit_sources` left of them; they tell slow-downs, and what two collectives at once cost each
            other, where the traces do not.
    """
    assumed: list[str] = []
    device = observations[0].device_type
    interference = measure_interference(observations)
    compute_slowdown = _find_compute_slowdown(interference, ladders, assumed)
    copy_out = _find_copy_out(schedules, device, assumed)
    measured = _measure_compression(observations, schedules, compute_slowdown.value)
    calibration = Calibration(
        concurrency=CONCURRENCY[backend],
        compute_slowdown=compute_slowdown,
        communication_slowdown=_find_communication_slowdown(fit, assumed),
        two_in_flight=_find_two_in_flight(fit, ladders, backend, assumed),
        copy_in_ns_per_byte=_find_copy_in(schedules, device),
        copy_out_ns_per_byte=copy_out,
        launch_ns=_find_launch(schedules, device, assumed),
        hook_ns_per_byte=_find_casts(copy_out, device, assumed) | _find_compression(copy_out, device) | measured,
        hook_ns_per_matrix={POWERSGD: CPU_MATRIX if device == "cpu" else GPU_MATRIX} | dict.fromkeys(measured, NOTHING),
        host_tail_ns=median_estimate([s.exchange.host_tail_ns for s in schedules]) if schedules else _assume(0.0),
        baseline_residual_fraction=_assume(0.0),
        assumed=tuple(assumed),
    )
    profile = build_step_profile(observations, schedules, compute_slowdown.value)
    return Calibrated(profile, calibration, interference)


def _find_compute_slowdown(
    interference: Interference | None, ladders: Sequence[Ladder], assumed: list[str]
) -> Estimate:
    measured = estimate_compute_slowdown(ladders) if interference is None else interference.slowdown
    if measured is not None:
        return _limit(measured, 1.0)
    assumed.append(
        "computation is not slowed down by communication, and by a factor of "
        f"{MOST_SLOWDOWN:g} at most (no operator ran both with and without it)"
    )
    return _assume(1.0, high=MOST_SLOWDOWN)


def _find_communication_slowdown(fit: CommFit | None, assumed: list[str]) -> Estimate:
    """The fit's own, which holds a probe's samples too; without all ranks it tells none."""
    if fit is not None and fit.model.complete:
        return fit.communication_slowdown
    why = "no all-reduce of gradients was timed" if fit is None else "a rank's trace is missing"
    assumed.append(
        f"communication is not slowed down by computation, and by a factor of {MOST_SLOWDOWN:g} at most ({why})"
    )
    return _assume(1.0, high=MOST_SLOWDOWN)


def _find_two_in_flight(
    fit: CommFit | None, ladders: Sequence[Ladder], backend: Backend, assumed: list[str]
) -> Estimate:
    if CONCURRENCY[backend] == 1:
        return _assume(SHARED)
    dtype = fit.model.dtype if fit else "float32"
    measured = [measure_overlap(ladder, "all_reduce", dtype).two_in_flight for ladder in ladders]
    known = next((ratio for ratio in measured if ratio is not None), None)
    if known is not None:
        return _limit(known, 1.0, SHARED)
    assumed.append("two collectives in flight share the link evenly (no probe in use started two at once)")
    return _assume(SHARED)


def _find_copy_in(schedules: Sequence[StepSchedule], device: DeviceType) -> Estimate:
    """What every gradient costs on its way into its bucket; on a GPU it is part of the computation."""
    sent = [(s.exchange.copy_in_ns, sum(g.num_bytes for g in s.exchange.gradients)) for s in schedules]
    rates = [copy_ns / num_bytes for copy_ns, num_bytes in sent if num_bytes > 0]
    return median_estimate(rates) if rates and device == "cpu" else _assume(0.0)


def _find_copy_out(schedules: Sequence[StepSchedule], device: DeviceType, assumed: list[str]) -> Estimate:
    if device != "cpu":
        assumed.append("copies out of the buckets are part of what follows backward, whatever the buckets")
        return _assume(0.0)
    sent = [(s.exchange.copy_back_ns, _count_held_bytes(s)) for s in schedules]
    rates = [copy_ns / num_bytes for copy_ns, num_bytes in sent if num_bytes]
    return median_estimate(rates) if rates else _assume(0.0)


def _count_held_bytes(schedule: StepSchedule) -> int:
    """Bytes of gradients in the buckets, compressed or not."""
    if schedule.exchange.hook is not None:
        return sum(gradient.num_bytes for gradient in schedule.exchange.gradients)
    return sum(max(bucket.num_bytes, 0) for bucket in schedule.buckets)


def _find_launch(schedules: Sequence[StepSchedule], device: DeviceType, assumed: list[str]) -> Estimate:
    """The host's time for launching one collective; on a GPU only a late host passes it on."""
    launches = [total(s.exchange.launch_spans) / max(1, len(s.buckets)) for s in schedules]
    if not launches:
        return _assume(0.0)
    measured = median_estimate(launches)
    if device == "cpu":
        return measured
    at_most = f"{measured.value / 1e3:.0f} µs"
    assumed.append(f"launching a bucket costs the GPU nothing, and the {at_most} of the host at most")
    return _assume(0.0, high=measured.value)


def _find_casts(copy_out: Estimate, device: DeviceType, assumed: list[str]) -> dict[str, Estimate]:
    """What a hook's casts cost a byte of float32 gradients: their memory traffic, at the pace of the copies out."""
    if device == "cpu" and copy_out.value > 0:
        value = copy_out.value * CAST_BYTES / COPY_BYTES
        cast = _assume(value, low=value / UNCERTAIN_CAST, high=value * UNCERTAIN_CAST)
    else:
        cast = CPU_CAST if device == "cpu" else GPU_CAST
    assumed.append(
        f"a hook that casts gradients to 16 bits costs {say_number(cast.low)} to {say_number(cast.high)} ns a byte, "
        f"{CAST_BYTES} bytes of memory traffic an element (no cast was timed)"
    )
    return dict.fromkeys(CASTING_HOOKS.values(), cast)


def _find_compression(copy_out: Estimate, device: DeviceType) -> dict[str, Estimate]:
    """What PowerSGD computes for a byte of float32 gradients; perhaps nothing that is worth mentioning.

    No sentence in `assumed` names it: only a prediction with PowerSGD takes it for granted, and names it itself.
    """
    if device != "cpu":
        return {POWERSGD: GPU_COMPRESSION}
    copy = copy_out.value or CPU_COPY_NS_PER_BYTE
    return {
        hook: _assume(usual * copy, low=0.0, high=most * copy)
        for hook, (usual, most) in ((POWERSGD, THIN_COPIES), (f"{POWERSGD}:1", VECTOR_COPIES))
    }


def _measure_compression(
    observations: Sequence[RankObservation], schedules: Sequence[StepSchedule], slowdown: float
) -> dict[str, Estimate]:
    """What the profiled PowerSGD computed for a byte of matrices, its matrices' own costs included; clean.

    Per step the rank counts that computed longest, since the others wait for it, and then the median over the steps.
    """
    communication_of = {observation.rank: observation.communication for observation in observations}
    rates: dict[str, dict[int, float]] = {}
    for schedule in schedules:
        exchange = schedule.exchange
        rank = find_compression(exchange)
        if rank is not None and exchange.hook is not None:
            parts = split_bucket([(g.num_bytes, exchange.shapes[g.index]) for g in exchange.gradients], rank)
            beside = total(intersection(exchange.hook.computing, communication_of[schedule.rank]))
            clean = total(exchange.hook.computing) - beside * (1 - 1 / slowdown)
            of_step = rates.setdefault(f"{POWERSGD}:{rank}", {})
            of_step[schedule.step] = max(of_step.get(schedule.step, 0.0), clean / parts.computed_bytes)
    return {hook: median_estimate(list(of_step.values())) for hook, of_step in rates.items()}


def _limit(ratio: Estimate, least: float, most: float = float("inf")) -> Estimate:
    """A factor as replay takes it: communication makes nothing faster."""
    value, low, high = (min(most, max(least, bound)) for bound in (ratio.value, ratio.low, ratio.high))
    return Estimate(value=value, low=low, high=high, basis="fitted")


def _assume(value: float, *, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(
        value=value,
        low=value if low is None else low,
        high=value if high is None else high,
        basis="extrapolated",
    )
