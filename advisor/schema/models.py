"""Models of what was measured: communication, computation, and how they disturb each other."""

from __future__ import annotations

from advisor.schema.base import DeviceType, Estimate, Struct


class CommSample(Struct, frozen=True, kw_only=True):
    """One transfer: bytes and nanoseconds without waiting for peers."""

    num_bytes: int
    transfer_ns: int
    step: int


class CommSegment(Struct, frozen=True, kw_only=True):
    """alpha + beta · bytes, for from_bytes <= bytes < to_bytes (None: no upper end)."""

    alpha_ns: Estimate
    beta_ns_per_byte: Estimate
    from_bytes: int
    to_bytes: int | None


class CommModel(Struct, frozen=True, kw_only=True):
    """Time of one collective over its bytes, for one process group, kind and dtype."""

    process_group: str
    kind: str
    dtype: str
    world_size: int
    segments: tuple[CommSegment, ...]
    samples: tuple[CommSample, ...]
    latency_known: bool
    """False where one sampled size alone cannot tell alpha from beta."""
    complete: bool
    """False where a peer's trace is missing: waiting for it may hide in these times, which are upper limits."""
    message: str

    def predict(self, num_bytes: float) -> Estimate:
        """Time of one collective of `num_bytes`, in ns; `extrapolated` beyond twice (or below half) the sampled sizes.

        The interval takes alpha and beta at their ends together, which is wide on purpose.
        """
        segment = next((s for s in self.segments if s.to_bytes is None or num_bytes < s.to_bytes), self.segments[-1])
        alpha, beta = segment.alpha_ns, segment.beta_ns_per_byte
        sizes = [sample.num_bytes for sample in self.samples]
        inside = bool(sizes) and min(sizes) / 2 <= num_bytes <= 2 * max(sizes)
        return Estimate(
            value=alpha.value + beta.value * num_bytes,
            low=alpha.low + beta.low * num_bytes,
            high=alpha.high + beta.high * num_bytes,
            basis="fitted" if inside else "extrapolated",
        )


class GradientReady(Struct, frozen=True, kw_only=True):
    """When one gradient was ready, relative to the start of backward; `index` counts in ready order."""

    index: int
    num_bytes: int
    dtype: str
    ready_host_ns: int
    ready_device_ns: int


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
