"""What every renderer shows, computed once from the Report: the median step of each rank, and a row for each bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from advisor.schema import BucketContents, BucketSummary, DDPConfig, Recommendation, Report, StepSummary
from advisor.schema.run import NOT_WRAPPER_ARGUMENTS
from reports.palette import PARTS
from reports.text import format_setting


@dataclass(frozen=True)
class RankStep:
    """The median step of one rank; the parts sum to the step."""

    rank: int
    step_ns: float
    parts_ns: dict[str, float]
    num_steps: int
    knows_blocking: bool = True
    """Without buckets nobody knows what blocked; backward then holds it."""

    def known_ns(self, part: str) -> float | None:
        """A part as it is shown."""
        return None if part == "blocking" and not self.knows_blocking else self.parts_ns[part]


@dataclass(frozen=True)
class BucketRow:
    """One bucket: the median over the steps of each rank, then the largest of the ranks; None where nobody knows."""

    bucket: int
    num_bytes: int
    num_gradients: int | None
    parameters: tuple[str, ...]
    dtype: str
    ready_ns: float | None
    launch_ns: float | None
    start_ns: float
    end_ns: float
    queue_wait_ns: float
    peer_wait_ns: float | None
    transfer_ns: float | None
    exposed_ns: float
    blocking_ns: float


def summarize_ranks(report: Report) -> tuple[RankStep, ...]:
    """The median step of each rank: the one in the middle by duration, or the mean of the two in the middle.

    Medians of single parts would not sum to the step; these do, and the step's duration is exactly the median.
    Example: durations 10, 30, 20 show the step of 20; 10, 20, 30, 60 the mean of the steps of 20 and 30.
    """
    steps_of: dict[int, list[StepSummary]] = defaultdict(list)
    for step in report.steps:
        steps_of[step.rank].append(step)
    return tuple(_median_step(rank, steps_of[rank], bool(report.buckets)) for rank in sorted(steps_of))


def slowest_ranks(ranks: Iterable[RankStep], limit: int) -> tuple[RankStep, ...]:
    """At most `limit` ranks, those with the longest median step, in order of rank."""
    by_duration = sorted(ranks, key=lambda rank: (-rank.step_ns, rank.rank))
    return tuple(sorted(by_duration[:limit], key=lambda rank: rank.rank))


def typical_step(report: Report) -> int | None:
    """The step whose slowest rank takes the median time, so that a timeline of it shows nothing exceptional."""
    slowest: dict[int, int] = defaultdict(int)
    for step in report.steps:
        slowest[step.step] = max(slowest[step.step], step.duration_ns)
    by_duration = sorted(slowest, key=lambda step: (slowest[step], step))
    return by_duration[(len(by_duration) - 1) // 2] if by_duration else None


def summarize_buckets(report: Report) -> tuple[BucketRow, ...]:
    """A row for each bucket, in launch order."""
    spans_of: dict[int, list[BucketSummary]] = defaultdict(list)
    for span in report.buckets:
        spans_of[span.bucket].append(span)
    contents = {held.bucket: held for held in report.bucket_contents}
    return tuple(_bucket_row(spans_of[bucket], contents.get(bucket)) for bucket in sorted(spans_of))


def ready_ns(span: BucketSummary) -> int | None:
    """When a bucket was ready: on the device where that is known, else on the host."""
    return span.ready_host_ns if span.ready_device_ns is None else span.ready_device_ns


def describe_changes(recommendation: Recommendation, config: DDPConfig | None) -> tuple[tuple[str, str, str], ...]:
    """What to change: (field, today's value, proposed value); today's is empty where the setting is unknown."""
    rows: list[tuple[str, str, str]] = []
    for name, proposed in recommendation.change.items():
        today = "" if config is None or not hasattr(config, name) else format_setting(name, getattr(config, name))
        rows.append((name, today, format_setting(name, proposed)))
    return tuple(rows)


def describe_equally_good(recommendation: Recommendation) -> tuple[str, ...]:
    """The range of values that cannot be told from the best, a line for each changed field that has one."""
    return tuple(
        f"{name}: {format_setting(name, min(values))} to {format_setting(name, max(values))} are equally good"
        for name, values in recommendation.equally_good.items()
        if len(values) > 1
    )


def describe_run(report: Report) -> tuple[tuple[str, str], ...]:
    """What ran, as (name, value) pairs: only what is known."""
    facts: list[tuple[str, Any]] = []
    if report.manifest is not None:
        preset = f" ({report.manifest.preset})" if report.manifest.preset else ""
        facts.append(("workload", f"{report.manifest.workload}{preset}"))
    if report.config is not None:
        config = report.config
        assumed = dict.fromkeys(report.assumed_settings, " (assumed)")
        facts += [
            ("ranks", f"{config.world_size}" + assumed.get("world_size", "")),
            ("backend", config.backend),
            ("wrapper", {"torch": "torch DDP", "bucketed": "BucketedDDP"}.get(config.wrapper, config.wrapper)),
            ("bucket_cap_mb", format_setting("bucket_cap_mb", config.bucket_cap_mb) + assumed.get("bucket_cap_mb", "")),
            ("comm_hook", config.comm_hook + assumed.get("comm_hook", "")),
        ]
        if config.bucket_cap_mb_list is not None:
            facts.append(("bucket_cap_mb_list", format_setting("bucket_cap_mb_list", config.bucket_cap_mb_list)))
        if config.accumulation_steps > 1:
            facts.append(("accumulation_steps", f"{config.accumulation_steps}"))
        facts += _list_changed_flags(config)
    if report.manifest is not None:
        facts.append(("device", ", ".join(sorted({device.device for device in report.manifest.devices}))))
        facts.append(("torch", report.manifest.versions.get("torch", "")))
    facts.append(("steps", f"{len({step.step for step in report.steps})}" if report.steps else ""))
    return tuple((name, value) for name, value in facts if value)


def _list_changed_flags(config: DDPConfig) -> Iterator[tuple[str, str]]:
    """The wrapper's switches that are not as DDP has them by default."""
    for field in msgspec.structs.fields(config):
        is_switch = isinstance(field.default, bool) and field.name not in NOT_WRAPPER_ARGUMENTS
        if is_switch and getattr(config, field.name) != field.default:
            yield field.name, format_setting(field.name, getattr(config, field.name))


def _median_step(rank: int, steps: list[StepSummary], knows_blocking: bool) -> RankStep:
    steps = sorted(steps, key=lambda step: (step.duration_ns, step.step))
    middle = steps[(len(steps) - 1) // 2 : len(steps) // 2 + 1]
    parts = {part: sum(getattr(step, f"{part}_ns") for step in middle) / len(middle) for part in PARTS}
    return RankStep(
        rank=rank,
        step_ns=sum(step.duration_ns for step in middle) / len(middle),
        parts_ns=parts,
        num_steps=len(steps),
        knows_blocking=knows_blocking,
    )


def _bucket_row(spans: list[BucketSummary], contents: BucketContents | None) -> BucketRow:
    first = spans[0]
    return BucketRow(
        bucket=first.bucket,
        num_bytes=first.num_bytes,
        num_gradients=contents.num_gradients if contents else None,
        parameters=contents.parameters if contents else (),
        dtype=first.dtype,
        ready_ns=_largest_median((span.rank, ready_ns(span)) for span in spans),
        launch_ns=_largest_median((span.rank, span.launch_ns) for span in spans),
        start_ns=_largest_median((span.rank, span.start_ns) for span in spans) or 0.0,
        end_ns=_largest_median((span.rank, span.end_ns) for span in spans) or 0.0,
        queue_wait_ns=_largest_median((span.rank, span.queue_wait_ns) for span in spans) or 0.0,
        peer_wait_ns=_largest_median((span.rank, span.peer_wait_ns) for span in spans),
        transfer_ns=_largest_median((span.rank, span.transfer_ns) for span in spans),
        exposed_ns=_largest_median((span.rank, span.exposed_ns) for span in spans) or 0.0,
        blocking_ns=_largest_median((span.rank, span.blocking_ns) for span in spans) or 0.0,
    )


def _largest_median(values: Iterable[tuple[int, int | None]]) -> float | None:
    """The median of each rank's known values, then the largest of them."""
    of_rank: dict[int, list[int]] = defaultdict(list)
    for rank, value in values:
        if value is not None:
            of_rank[rank].append(value)
    return max((float(median(known)) for known in of_rank.values()), default=None)
