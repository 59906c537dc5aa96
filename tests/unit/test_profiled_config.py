"""The profiled setting, read back from the buckets that were seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from advisor.bucketing import MIB
from advisor.observation import RunObservation
from advisor.profiled_config import identify_caps, identify_config, list_assumed
from advisor.schedule import StepSchedule
from advisor.schema import BucketSummary
from advisor.step_profile import build_step_profile
from tests.builders import bucket_summary
from tests.job_builders import build_config, build_job
from tests.trace_builders import RankTrace, lay_out


@dataclass(frozen=True)
class Seen:
    """All of a step's schedule that tells the setting."""

    buckets: tuple[BucketSummary, ...]


@pytest.mark.parametrize(
    ("seen_mib", "cap", "cap_list", "caps_first_bucket"),
    [
        ([1, 4], None, None, True),
        ([2, 2, 1], 2.0, None, True),
        ([1, 2, 2], 2.0, None, False),
        ([1, 1, 3], None, (1.0, 1.0, 3.0), True),
    ],
)
def test_the_setting_is_told_by_the_buckets(
    seen_mib: list[int], cap: float | None, cap_list: tuple[float, ...] | None, caps_first_bucket: bool
) -> None:
    """Five gradients of 1 MiB: the default, a cap of 2, the same before torch 2.4, and buckets of no cap."""
    profile = build_job([(1, MIB)] * 5, backward_ms=1).profile
    buckets = tuple(bucket_summary(num_bytes=mib * MIB, num_elements=mib * MIB // 4) for mib in seen_mib)
    found = identify_caps(build_config(), cast(StepSchedule, Seen(buckets)), profile)
    assert found == build_config(bucket_cap_mb=cap, bucket_cap_mb_list=cap_list, caps_first_bucket=caps_first_bucket)


def test_a_list_counts_the_gradients_that_a_hook_casts() -> None:
    """Of five gradients of 1 MiB buckets of 1, 1 and 3 MiB were sent as half as many bytes."""
    profile = build_job([(1, MIB)] * 5, backward_ms=1).profile
    buckets = tuple(bucket_summary(num_bytes=mib * MIB // 2, num_elements=mib * MIB // 4) for mib in (1, 1, 3))
    found = identify_caps(build_config(comm_hook="bf16"), cast(StepSchedule, Seen(buckets)), profile)
    assert found.bucket_cap_mb_list == (1.0, 1.0, 3.0)


FLOAT, DOUBLE, HALF, BFLOAT = "float", "double", "c10::Half", "c10::BFloat16"


@pytest.mark.parametrize(
    ("held", "sent", "elements", "hook"),
    [
        ((FLOAT, FLOAT), (FLOAT,), (128,), "none"),
        ((FLOAT, FLOAT), (HALF,), (128,), "fp16"),
        ((FLOAT, FLOAT), (BFLOAT,), (128,), "bf16"),
        ((BFLOAT, BFLOAT), (BFLOAT,), (128,), "none"),
        ((BFLOAT, BFLOAT), (HALF,), (128,), "fp16"),
        ((FLOAT, BFLOAT), (FLOAT, BFLOAT), (64, 64), "none"),
        ((FLOAT, BFLOAT), (BFLOAT, BFLOAT), (64, 64), "bf16"),
        ((FLOAT, FLOAT), (DOUBLE,), (128,), None),
        ((FLOAT, FLOAT), (FLOAT,), (100,), None),
        ((FLOAT, ""), (FLOAT,), (128,), None),
        ((), (FLOAT,), (128,), None),
        ((), (HALF,), (128,), None),
    ],
)
def test_the_hook_is_told_by_what_is_sent_beside_what_gradients_hold(
    held: tuple[str, ...], sent: tuple[str, ...], elements: tuple[int, ...], hook: str | None
) -> None:
    """Two gradients of 64 elements, or of unknown size; where they do not tell a hook, it is said to be assumed."""
    front = lay_out(*(_trace(rank, held, list(zip(sent, elements, strict=True))) for rank in range(2)))
    run = RunObservation(source="run", ranks=tuple(front.observations), manifest=None, notes=())
    profile = build_step_profile(front.observations, front.schedules, 1.0)
    config = identify_config(run, front.schedules, profile)
    assert config is not None
    assert config.comm_hook == (hook or "none")
    assert ("comm_hook" in list_assumed(run, front.schedules, profile)) == (hook is None)


def _trace(rank: int, held: tuple[str, ...], sent: list[tuple[str, int]]) -> RankTrace:
    one = RankTrace(rank)
    one.step(2, 0, 1000)
    one.forward(100, 200)
    one.node(200, 210)
    for place, dtype in enumerate(held or ("unknown", "unknown")):
        start = 220 + 20 * place
        if held and dtype:
            one.gradient(start, start + 10, 64, dtype)
        else:
            one.node(start, start + 10, "torch::autograd::AccumulateGrad")
    for place, (dtype, elements) in enumerate(sent):
        launch = 242 + 3 * place
        one.gloo(launch, launch + 2, 300 + place, elements, dtype=dtype, worker=place)
    one.optimizer(800, 900)
    return one
