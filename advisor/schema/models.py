"""Models of what was measured: communication, computation, and how they disturb each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from advisor.schema.base import DeviceType, Estimate, Struct

SampleSource = Literal["trace", "probe", "nccl_tests"]
"""Where a communication model's samples come from."""


class CommSample(Struct, frozen=True, kw_only=True):
    """One transfer: bytes and nanoseconds without waiting for peers."""

    num_bytes: int
    transfer_ns: int
    step: int
    """Of the training run, or the visit of a ladder."""
    source: SampleSource = "trace"


class CommSegment(Struct, frozen=True, kw_only=True):
    """alpha + beta · bytes, for from_bytes <= bytes < to_bytes (None: no upper end).

    Segments meet at their kinks, so only the first alpha is a latency; beyond a kink it is where the line would start.
    """

    alpha_ns: Estimate
    beta_ns_per_byte: Estimate
    from_bytes: int
    to_bytes: int | None


class CommDraw(Struct, frozen=True, kw_only=True, array_like=True):
    """One joint draw of all that a fit leaves uncertain: latency, slope and slow-down make up for each other."""

    alpha_ns: float
    communication_slowdown: float
    betas_ns_per_byte: tuple[float, ...]
    """By segment."""
    kinks_bytes: tuple[float, ...] = ()


class CommModel(Struct, frozen=True, kw_only=True):
    """Time of one collective over its bytes, for one process group, kind and dtype."""

    process_group: str
    kind: str
    dtype: str
    world_size: int
    segments: tuple[CommSegment, ...]
    samples: tuple[CommSample, ...]
    latency_known: bool
    """False where the samples cannot tell alpha from beta, being of one size or too few, or from waiting."""
    complete: bool
    """False where a peer's trace is missing: waiting for it may hide in these times, which are upper limits."""
    message: str
    draws: tuple[CommDraw, ...] = ()
    busbw_bytes_per_s: Estimate | None = None
    """Bus bandwidth of large messages as nccl-tests defines it; None for kinds that it does not define."""

    @property
    def kinks_bytes(self) -> tuple[int, ...]:
        """Where one segment ends and the next begins."""
        return tuple(segment.from_bytes for segment in self.segments[1:])

    @property
    def sources(self) -> tuple[SampleSource, ...]:
        """Where the samples come from, each once."""
        return tuple(dict.fromkeys(sample.source for sample in self.samples))

    def predict(self, num_bytes: float) -> Estimate:
        """Time of one collective of `num_bytes`, in ns; `extrapolated` beyond twice (or below half) the sampled sizes.

        The interval comes from the joint draws. A model without them takes alpha and beta at their ends together,
        which is wide on purpose.
        """
        segment = next((s for s in self.segments if s.to_bytes is None or num_bytes < s.to_bytes), self.segments[-1])
        alpha, beta = segment.alpha_ns, segment.beta_ns_per_byte
        value, low, high = (a + b * num_bytes for a, b in zip(_ends(alpha), _ends(beta), strict=True))
        if self.draws:
            times = sorted(broken_line(d.alpha_ns, d.betas_ns_per_byte, d.kinks_bytes)(num_bytes) for d in self.draws)
            tail = round(0.025 * (len(times) - 1))
            low, high = min(value, times[tail]), max(value, times[-1 - tail])
        sizes = [sample.num_bytes for sample in self.samples]
        inside = bool(sizes) and min(sizes) / 2 <= num_bytes <= 2 * max(sizes)
        return Estimate(value=value, low=low, high=high, basis="fitted" if inside else "extrapolated")


def broken_line(
    alpha_ns: float, betas_ns_per_byte: Sequence[float], kinks_bytes: Sequence[float]
) -> Callable[[float], float]:
    """The time over bytes that starts at alpha and rises by one beta after the other, changing at the kinks.

    Example: alpha 10, betas 1 and 3, a kink at 5: 12 at 2 bytes, 15 at 5, 21 at 7.
    """
    ends = (*kinks_bytes, math.inf)

    def time_ns(num_bytes: float) -> float:
        starts = (0.0, *kinks_bytes)
        parts = zip(betas_ns_per_byte, starts, ends, strict=True)
        return alpha_ns + sum(beta * (min(num_bytes, end) - start) for beta, start, end in parts if num_bytes > start)

    return time_ns


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


class GradientReady(Struct, frozen=True, kw_only=True):
    """When one gradient was ready, relative to the start of backward; `index` counts in ready order."""

    index: int
    num_bytes: int
    dtype: str
    ready_host_ns: int
    ready_device_ns: int
    idle_ns: int = 0
    """GPU: for how long of the time until then no kernel computed, because the host was late."""


class RankProfile(Struct, frozen=True, kw_only=True):
    """The compute timeline of one rank's typical step, free of communication."""

    rank: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int
    host_bound_fraction: float
    gradients: tuple[GradientReady, ...]


class StepProfile(Struct, frozen=True, kw_only=True):
    """All that replay needs to know of the computation."""

    device_type: DeviceType
    num_steps: int
    num_micro_steps: int
    sizes_known: bool
    """False where the trace has no gradient shapes, so that buckets are the smallest known units."""
    ranks: tuple[RankProfile, ...]
    slowest: RankProfile
    """What the exchange waits for: per step the last rank for each gradient, then the median over steps; rank -1."""
    registered: tuple[int, ...] = ()
    """The gradients' indices in the order in which their parameters were registered; empty where nobody tells."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The gradients' shapes by index; empty where the traces do not tell them."""


POWERSGD = "powersgd"
"""The name of the hook before its rank, and of what its computation costs with a rank that has no entry of its own."""
TWO_SHARE_THE_LINK = Estimate(value=2.0, low=2.0, high=2.0, basis="extrapolated")


class Calibration(Struct, frozen=True, kw_only=True):
    """How computation and communication disturb each other on this machine, and what bucketing itself costs."""

    concurrency: int
    compute_slowdown: Estimate
    """Compute's time per unit of work while communication runs, over its time alone (>= 1)."""
    communication_slowdown: Estimate
    copy_in_ns_per_byte: Estimate
    copy_out_ns_per_byte: Estimate
    launch_ns: Estimate
    hook_ns_per_byte: dict[str, Estimate] = {}
    """By hook, what its casts cost a byte of gradients, there and back; for PowerSGD, all that it computes."""
    hook_ns_per_matrix: dict[str, Estimate] = {}
    """By hook, what PowerSGD computes a matrix, beside its bytes."""
    two_in_flight: Estimate = TWO_SHARE_THE_LINK
    """The time of two collectives started together over that of one: 2 where they share the link."""
    host_tail_ns: Estimate
    """GPU: from the end of backward's compute to the host's launch of the first kernel after backward."""
    baseline_residual_fraction: Estimate
    assumed: tuple[str, ...] = ()
    """Terms that could not be calibrated, and what was taken instead."""


class Interference(Struct, frozen=True, kw_only=True):
    """How much slower the same work runs beside communication, which so is not free even where it is hidden."""

    slowdown: Estimate
    """Time of the same operators or kernels beside communication over their time alone."""
    tax_ns: Estimate
    """What that costs a step."""
    num_executions: int
    """Executions beside communication of work that also ran without any."""
    compared_fraction: float
    """Their share of the compute time beside communication."""
