"""What was measured: steps, buckets, collectives and ranks as the traces show them."""

from __future__ import annotations

from advisor.schema.base import CollectiveRole, DeviceType, Estimate, Phase, Struct


class StepSummary(Struct, frozen=True, kw_only=True):
    """One step on one rank. forward + backward + blocking + optimizer + data + other = duration, exactly."""

    rank: int
    step: int
    start_ns: int
    """On the trace's own clock."""
    duration_ns: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    """Backward without the blocking part."""
    blocking_ns: int
    optimizer_ns: int
    other_ns: int
    compute_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    host_bound_ns: int
    """GPU: the device idles because nothing was launched yet."""
    num_syncs: int
    """Backwards of this step that ended in a reduction of all buckets."""
    backward_start_ns: int | None = None
    """Where the step's last backward began, relative to the step's start; only the timeline chart needs it."""
    backward_end_ns: int | None = None
    """Where its compute ended."""
    num_micro_steps: int = 1
    """Backwards of this step."""
    wait_ns: int | None = None
    """Waiting for ranks that arrived later at a collective; None while a peer's trace is missing."""
    blocking_wait_ns: int | None = None
    """The part of blocking in which this rank waited for later ones."""
    copy_ns: int = 0
    """GPU: copies and fills with neither computation nor communication beside them."""
    idle_ns: int = 0
    """Neither computation nor communication nor copies. compute + exposed + copy + idle = duration, exactly."""
    copy_back_ns: int = 0
    """The host's time for copying averages out of the buckets into the gradients; none with gradients as views."""
    num_copies_back: int = 0


class BucketSummary(Struct, frozen=True, kw_only=True):
    """One bucket's all-reduce in one step on one rank; times relative to the step's start."""

    rank: int
    step: int
    bucket: int
    num_bytes: int
    num_elements: int
    dtype: str
    ready_host_ns: int | None
    ready_device_ns: int | None
    launch_ns: int | None
    start_ns: int
    end_ns: int
    queue_wait_ns: int
    peer_wait_ns: int | None
    """Unknown while a peer's trace is missing."""
    transfer_ns: int | None
    exposed_ns: int
    blocking_ns: int


class BucketContents(Struct, frozen=True, kw_only=True):
    """What one bucket holds, in launch order."""

    bucket: int
    num_bytes: int
    num_gradients: int
    parameters: tuple[str, ...] = ()
    """By name, where a manifest tells them."""


class CollectiveSummary(Struct, frozen=True, kw_only=True):
    """All collectives of one kind, role, dtype and size over all steps and ranks."""

    process_group: str
    kind: str
    role: CollectiveRole
    dtype: str
    num_elements: int
    num_bytes: int
    count_per_step: float
    duration_ns: Estimate
    transfer_ns: Estimate | None
    skew_ns: Estimate | None = None
    """From the first rank's arrival to the last one's; None while a peer's trace is missing."""


class RankSummary(Struct, frozen=True, kw_only=True):
    """One rank over its whole file: the raw unions, before any step is left out."""

    rank: int
    file: str
    host: str | None
    device_type: DeviceType
    num_events: int
    num_steps: int
    communication_ns: int
    compute_ns: int
    overlap_ns: int
    num_communication_kernels: int
    num_transients: int
    """First collectives after the profiler started, set aside."""
    mean_lateness_ns: float | None
    """How much later than the first rank this one arrives at a bucket."""
    wait_ns: Estimate | None = None
    """How long this rank waits for later ones in a step."""
    blame_ns: Estimate | None = None
    """What waiting for this rank alone costs the others in a step."""
    clock_offset_ns: int | None = None
    """Its clock minus the first rank's, as the ends of collectives tell it."""
    clock_residual_ns: int | None = None
    """How far apart nine in ten ends still are on aligned clocks: the uncertainty of who arrived when."""


class Straggler(Struct, frozen=True, kw_only=True):
    """The rank that the others wait for."""

    rank: int
    num_steps: int
    last_fraction: float
    """The share of the steps in which the others wait for this rank longer than for any other."""
    delay_ns: Estimate
    """What waiting for it alone costs the others in a step."""
    step_fraction: float
    phase: Phase | None
    """Where it works longer than the others; None where no phase explains half of the delay."""
    phase_excess_ns: int
