"""The profiled setting, read back from the buckets that were seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from advisor.bucketing import MIB
from advisor.schedule import StepSchedule
from advisor.schema import BucketSummary
from advisor.summaries import identify_caps
from tests.builders import bucket_summary
from tests.job_builders import build_config, build_job


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
