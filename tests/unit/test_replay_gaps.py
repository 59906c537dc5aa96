"""What a what-if refuses: settings that replay would otherwise answer with today's number, or with nonsense."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from advisor.replay import Job, find_gap, predict
from advisor.schema import Estimate
from tests.job_builders import MB, MS, build_config, build_job, exactly

MIB = 2**20
TODAY = build_config(bucket_cap_mb=10.0)


def unsized(device: str = "cpu") -> Job:
    """Buckets of 10 and 12 MiB, whose gradients nobody knows."""
    job = build_job([(10, 10 * MIB), (20, 12 * MIB)], backward_ms=20)
    profile = replace(job.profile, sizes_known=False, device_type=device)  # type: ignore[arg-type]
    return Job(profile, job.calibration, job.model, TODAY)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accumulation_steps": 0}, "accumulation_steps=0 cannot be meant"),
        ({"accumulation_steps": -2}, "1 micro-step or more"),
        ({"world_size": 64}, "keeps the 2 ranks of the run: ddp-advisor forecast --ranks 64 predicts"),
        ({"world_size": 1}, "forecast --ranks 1"),
        ({"bucket_cap_mb": 0.001}, "merged but not split: record with record_shapes=True"),
        ({"bucket_cap_mb": 9.0}, "merged but not split"),
        ({"bucket_cap_mb": None}, "merged but not split"),  # its first bucket is one of 1 MiB
        ({"bucket_cap_mb": None, "bucket_cap_mb_list": (40.0, 1.0)}, "merged but not split"),
        ({"backend": "gloo"}, "What backend does to this step is not replayed"),
        ({"wrapper": "bucketed"}, "What wrapper does"),
        ({"batched_grad_copy": True}, "What batched_grad_copy does"),
        ({"skip_all_reduce_unused_params": True}, "What skip_all_reduce_unused_params does"),
        ({"forward_sync_buffers": False}, "What forward_sync_buffers does"),
    ],
)
def test_a_setting_that_cannot_be_evaluated_is_one_sentence(changes: dict[str, object], said: str) -> None:
    gap = find_gap(unsized(), replace(TODAY, **changes))
    assert gap is not None
    assert said in gap
    assert gap.endswith(".") and "\n" not in gap


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulation_steps": 4},
        {"bucket_cap_mb": 40.0},
        {"bucket_cap_mb": None, "bucket_cap_mb_list": (10.0, 12.0)},
        {"bucket_cap_mb": 12.0},
        {"comm_hook": "noop"},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
    ],
)
def test_what_is_replayed_is_evaluated(changes: dict[str, object]) -> None:
    assert find_gap(unsized(), replace(TODAY, **changes)) is None


def test_buckets_whose_gradients_are_known_may_be_split() -> None:
    job = unsized()
    sized = dataclasses.replace(job, profile=replace(job.profile, sizes_known=True))
    assert find_gap(sized, replace(TODAY, bucket_cap_mb=0.001)) is None


def test_on_a_gpu_the_copies_back_are_part_of_what_follows_backward() -> None:
    gap = find_gap(unsized("cuda"), replace(TODAY, gradient_as_bucket_view=True))
    assert gap == (
        "What gradient_as_bucket_view does to this step is not replayed: measure it beside today's setting instead."
    )


def test_buckets_that_merge_whole_are_assumed_to() -> None:
    merged = predict(unsized(), replace(TODAY, bucket_cap_mb=40.0))
    assert merged.step_ns.basis == "extrapolated"
    assert "merge whole" in merged.assumed[0]
    assert not predict(unsized(), TODAY).assumed


def test_what_a_late_host_hides_does_not_block() -> None:
    """4 ms stick out behind a backward of 2 ms on a GPU whose host is late by 1, 4 or 9 ms."""
    for late_ms, blocking_ms in ((0, 4), (1, 3), (4, 0), (9, 0)):
        job = build_job([(2, 4 * MB)], backward_ms=2, host_tail_ns=exactly(late_ms * MS))
        prediction = predict(job, build_config())
        assert prediction.blocking_ns.value == blocking_ms * MS
        free = predict(job, build_config(comm_hook="noop"))
        assert prediction.step_ns.value - free.step_ns.value == blocking_ms * MS


@pytest.mark.parametrize(
    ("num_bytes", "low", "refused"), [(2 * MB, 0.0, False), (3 * MB, 0.0, True), (3 * MB, 0.5, False)]
)
def test_small_transfers_that_cost_nothing_a_byte_tell_nothing_of_large_ones(
    num_bytes: int, low: float, refused: bool
) -> None:
    """1 MB was timed: twice as much may be asked for, more only where a byte is known to cost something."""
    job = build_job([(10, num_bytes)], backward_ms=20)
    beta = Estimate(value=1.0, low=low, high=2.0, basis="fitted")
    segment = replace(job.model.segments[0], beta_ns_per_byte=beta)
    job = Job(job.profile, job.calibration, replace(job.model, segments=(segment,)), TODAY)
    gap = find_gap(job, build_config(bucket_cap_mb=25.0))
    assert (gap is not None and "Transfers of 977 KiB at most were timed" in gap) == refused
    assert find_gap(job, build_config(bucket_cap_mb=10.0, comm_hook="noop")) is None
