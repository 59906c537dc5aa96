"""Replay's inputs with round numbers: a job of a few gradients on a machine without noise."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.replay import Job
from advisor.schema import (
    Calibration,
    CommModel,
    CommSample,
    CommSegment,
    DDPConfig,
    Estimate,
    GradientReady,
    RankProfile,
    StepProfile,
)

MS = 1_000_000
MB = 1_000_000


def exactly(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, basis="measured")


def build_config(**changes: object) -> DDPConfig:
    settings: dict[str, object] = {"world_size": 2, "backend": "nccl", "wrapper": "torch", **changes}
    return DDPConfig(**settings)  # type: ignore[arg-type]


def build_comm_model(alpha_ns: float, beta_ns_per_byte: float, **changes: object) -> CommModel:
    fields: dict[str, object] = {
        "process_group": "0",
        "kind": "all_reduce",
        "dtype": "float32",
        "world_size": 2,
        "segments": (
            CommSegment(
                alpha_ns=exactly(alpha_ns), beta_ns_per_byte=exactly(beta_ns_per_byte), from_bytes=0, to_bytes=None
            ),
        ),
        "samples": (CommSample(num_bytes=MB, transfer_ns=round(alpha_ns + beta_ns_per_byte * MB), step=2),),
        "latency_known": True,
        "complete": True,
        "message": "",
        **changes,
    }
    return CommModel(**fields)  # type: ignore[arg-type]


def build_calibration(**changes: object) -> Calibration:
    fields: dict[str, object] = {
        "concurrency": 1,
        "compute_slowdown": exactly(1),
        "communication_slowdown": exactly(1),
        "copy_in_ns_per_byte": exactly(0),
        "copy_out_ns_per_byte": exactly(0),
        "launch_ns": exactly(0),
        "host_tail_ns": exactly(0),
        "baseline_residual_fraction": exactly(0),
        **changes,
    }
    return Calibration(**fields)  # type: ignore[arg-type]


def build_job(
    gradients: Sequence[tuple[float, int]],
    *,
    backward_ms: float,
    alpha_ns: float = 0,
    beta_ns_per_byte: float = 1,
    around_ms: tuple[float, float, float] = (0, 0, 0),
    **calibration: object,
) -> Job:
    """A job from (ready in ms, bytes) per gradient and (data, forward, optimizer) in ms."""
    data, forward, optimizer = (round(ms * MS) for ms in around_ms)
    slowest = RankProfile(
        rank=-1,
        data_ns=data,
        forward_ns=forward,
        backward_ns=round(backward_ms * MS),
        optimizer_ns=optimizer,
        other_ns=0,
        host_bound_fraction=0.0,
        gradients=tuple(
            GradientReady(
                index=index,
                num_bytes=num_bytes,
                dtype="float32",
                ready_host_ns=round(ms * MS),
                ready_device_ns=round(ms * MS),
            )
            for index, (ms, num_bytes) in enumerate(gradients)
        ),
    )
    profile = StepProfile(
        device_type="cpu", num_steps=8, num_micro_steps=1, sizes_known=True, ranks=(slowest,), slowest=slowest
    )
    return Job(profile, build_calibration(**calibration), build_comm_model(alpha_ns, beta_ns_per_byte))
