"""What each bucket holds: the parameters that a manifest names, else the gradients whose sizes fill it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from advisor.schedule import StepSchedule
from advisor.schema import BucketContents, RunManifest
from advisor.step_profile import gradients_fill_buckets


def describe_contents(schedules: Sequence[StepSchedule], manifest: RunManifest | None) -> tuple[BucketContents, ...]:
    """The contents of the buckets of a typical step, in launch order; nothing where neither source fits them.

    Without a manifest the gradients, in the order in which they were ready, fill one bucket after the other.
    """
    sizes = [bucket.num_bytes for bucket in schedules[0].buckets] if schedules else []
    if manifest is not None and sizes == [bucket.num_bytes for bucket in manifest.buckets]:
        names = [parameter.name for parameter in manifest.parameters]
        return tuple(
            _describe(index, bucket.num_bytes, [names[i] for i in bucket.parameter_indices])
            for index, bucket in enumerate(manifest.buckets)
        )
    schedule = next((schedule for schedule in schedules if gradients_fill_buckets(schedule.exchange)), None)
    if schedule is None:
        return ()
    ends = {size: count for count, size in enumerate(accumulate(g.num_bytes for g in schedule.exchange.gradients), 1)}
    limits = [ends.get(size) for size in accumulate(bucket.num_bytes for bucket in schedule.buckets)]
    if None in limits:
        return ()  # filled in another order than this step's
    counts = [end - start for start, end in zip([0, *limits], limits, strict=False)]  # type: ignore[operator]
    return tuple(
        BucketContents(bucket=bucket.bucket, num_bytes=bucket.num_bytes, num_gradients=count)
        for bucket, count in zip(schedule.buckets, counts, strict=True)
    )


def _describe(index: int, num_bytes: int, parameters: Sequence[str]) -> BucketContents:
    return BucketContents(
        bucket=index, num_bytes=num_bytes, num_gradients=len(parameters), parameters=tuple(parameters)
    )
