"""What the structs share: their base class, the estimate, and every closed set of words."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Basis = Literal["measured", "fitted", "extrapolated"]
Backend = Literal["gloo", "nccl", "unknown"]
Wrapper = Literal["bucketed", "torch", "unknown"]
DeviceType = Literal["cpu", "cuda"]
Parallelism = Literal["ddp", "fsdp", "deepspeed", "tensor_parallel", "hand_written", "unknown"]
Phase = Literal["data", "forward", "backward", "gradient_finish", "optimizer", "other"]
StepSource = Literal["profiler", "optimizer", "forward", "window"]
"""What told steps apart; a mere window did not."""
VerdictCode = Literal[
    "host_bound", "input_bound", "straggler", "compute_bound", "latency_bound", "bandwidth_bound", "balanced",
    "not_ddp", "single_rank", "unknown",
]  # fmt: skip
AlarmCode = Literal[
    "unsynced_last_micro_batch", "no_communication", "reduced_bytes_mismatch", "zero_grad_inside_accumulation",
    "redundant_synchronization", "bucket_plan_differs", "collective_count_differs", "uneven_loss_weighting",
    "harmful_environment", "cap_unit_suspect", "partial_synchronization",
]  # fmt: skip
Severity = Literal["error", "warning"]
Framework = Literal["torch", "hf-trainer", "accelerate", "lightning", "fabric", "mmengine"]
Quality = Literal["good", "usable", "unusable"]
FindingCode = Literal[
    "no_trace", "unreadable_files", "mixed_ranks", "unknown_ranks", "missing_ranks", "shared_path",
    "unknown_world_size", "single_rank", "damaged_files", "no_device_activity", "no_host_activity", "no_ddp",
    "no_communication", "no_steps", "no_step_marks", "step_not_called", "no_exchange", "one_step", "few_steps",
    "warm_up_recorded", "different_steps", "no_collective_sizes", "no_shapes", "unmatched_gradients",
    "harmful_environment", "stacks",
]  # fmt: skip
FindingSeverity = Literal["error", "warning", "hint"]
"""An error makes a recording unusable, a warning takes something from the answer, a hint takes nothing."""
CollectiveRole = Literal["bucket", "buffer", "unused_parameter_mark", "join", "sync_batch_norm", "other"]
RecommendationStatus = Literal["predicted", "confirmed", "refuted", "undecided"]


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything below: immutable, keyword-only, unknown fields of older writers ignored."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A number with its 95 % interval and where it comes from; the unit is in the name of the field that holds it."""

    value: float
    low: float
    high: float
    basis: Basis
