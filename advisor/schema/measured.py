"""What was measured: steps, buckets, collectives and ranks as the traces show them."""

from __future__ import annotations

from advisor.schema.base import CollectiveRole, DeviceType, Estimate, Struct


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
