"""Timelines and schedules to the rows of a report, and the profiled setting as far as the traces tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from advisor.bucketing import MIB, assign_rebuilt, bucket_limits, find_distinct_caps, round_cap_mb
from advisor.collectives import Collective, MatchedCollective, count_bytes
from advisor.exchange import classify_collective
from advisor.intervals import Intervals, clip, difference, intersection, total
from advisor.observation import RankObservation, RunObservation
from advisor.schedule import StepSchedule
from advisor.schema import (
    CollectiveSummary,
    DDPConfig,
    RankSummary,
    StepProfile,
    StepSummary,
)
from advisor.statistics import median_estimate


def summarize_steps(
    observations: Sequence[RankObservation], schedules: Sequence[StepSchedule]
) -> tuple[StepSummary, ...]:
    """One row per rank and step; its parts add up to its duration exactly."""
    schedule_of = {(schedule.rank, schedule.step): schedule for schedule in schedules}
    rows = []
    for observation in observations:
        overlap = intersection(observation.compute, observation.communication)
        bare = difference(observation.communication, observation.compute)
        for step in observation.steps:
            schedule = schedule_of.get((observation.rank, step.number))
            blocking = schedule.exchange.blocking_ns if schedule else 0
            duration = step.end_ns - step.start_ns
            parts = {phase: step.sum_phase_ns(phase) for phase in ("data", "forward", "optimizer")}
            backward = step.sum_phase_ns("backward") + step.sum_phase_ns("gradient_finish") - blocking

            def within(intervals: Intervals, start: int = step.start_ns, end: int = step.end_ns) -> int:
                return total(clip(intervals, start, end))

            rows.append(
                StepSummary(
                    rank=observation.rank,
                    step=step.number,
                    start_ns=step.start_ns,
                    duration_ns=duration,
                    data_ns=parts["data"],
                    forward_ns=parts["forward"],
                    backward_ns=backward,
                    blocking_ns=blocking,
                    backward_start_ns=schedule.exchange.backward.start_ns - step.start_ns if schedule else None,
                    backward_end_ns=schedule.exchange.backward.end_ns - step.start_ns if schedule else None,
                    optimizer_ns=parts["optimizer"],
                    other_ns=duration - sum(parts.values()) - backward - blocking,
                    compute_ns=within(observation.compute),
                    communication_ns=within(observation.communication),
                    overlap_ns=within(overlap),
                    exposed_ns=within(bare),
                    host_bound_ns=step.host_bound_ns,
                    num_syncs=schedule.exchange.num_syncs if schedule else 0,
                )
            )
    return tuple(rows)


def summarize_ranks(
    observations: Sequence[RankObservation], matched: Sequence[MatchedCollective]
) -> tuple[RankSummary, ...]:
    """One row per rank over its whole file: raw unions, and how late it arrives at buckets."""
    lateness: dict[int, list[int]] = defaultdict(list)
    for match in matched:
        if match.complete and len(match.members) > 1 and classify_collective(match.members[0]) == "bucket":
            arrivals = [m.start_ns - offset for m, offset in zip(match.members, match.offsets_ns, strict=True)]
            for member, arrival in zip(match.members, arrivals, strict=True):
                lateness[member.rank].append(arrival - min(arrivals))
    return tuple(
        RankSummary(
            rank=observation.rank,
            file=observation.file,
            host=observation.host,
            device_type=observation.device_type,
            num_events=observation.num_events,
            num_steps=len(observation.steps),
            communication_ns=total(observation.communication),
            compute_ns=total(observation.compute),
            overlap_ns=total(intersection(observation.compute, observation.communication)),
            num_communication_kernels=observation.num_communication_events,
            num_transients=min(1, observation.num_communication_events),
            mean_lateness_ns=float(np.mean(late)) if (late := lateness.get(observation.rank)) else None,
        )
        for observation in observations
    )


def summarize_collectives(
    collectives: Sequence[Sequence[Collective]], matched: Sequence[MatchedCollective]
) -> tuple[CollectiveSummary, ...]:
    """One row per process group, kind, role, dtype and size; steady steps only."""
    transfer_of = {member: match for match in matched if match.complete for member in match.members}
    groups: dict[tuple[str, str, str, str, int, int], list[Collective]] = defaultdict(list)
    for own in collectives:
        for c in own:
            if c.step is not None:
                role = classify_collective(c)
                groups[c.process_group, str(c.kind), role, c.dtype, c.num_elements, c.num_bytes].append(c)
    num_rank_steps = max(1, len({(c.rank, c.step) for own in collectives for c in own if c.step is not None}))
    rows = []
    for (process_group, kind, _, dtype, num_elements, num_bytes), members in groups.items():
        transfers = [transfer_of[c].transfer_ns for c in members if c in transfer_of]
        rows.append(
            CollectiveSummary(
                process_group=process_group,
                kind=kind,
                role=classify_collective(members[0]),
                dtype=dtype,
                num_elements=num_elements,
                num_bytes=num_bytes,
                count_per_step=len(members) / num_rank_steps,
                duration_ns=median_estimate([c.end_ns - c.start_ns for c in members]),
                transfer_ns=median_estimate(transfers) if transfers else None,
            )
        )
    return tuple(rows)


# ----------------------------------------------------------------------------------------------------- setting


def identify_config(
    run: RunObservation, schedules: Sequence[StepSchedule], profile: StepProfile | None
) -> DDPConfig | None:
    """The profiled setting: what the manifest says, else what the buckets give away; None without DDP."""
    if run.manifest is not None:
        return run.manifest.ddp
    if not run.is_ddp:
        return None
    config = DDPConfig(
        world_size=run.world_size,
        backend=run.backend,
        wrapper=run.ranks[0].wrapper,
        accumulation_steps=profile.num_micro_steps if profile else 1,
        find_unused_parameters=run.ranks[0].searches_unused_parameters,
    )
    return config if profile is None or not schedules else identify_caps(config, schedules[0], profile)


def identify_caps(config: DDPConfig, schedule: StepSchedule, profile: StepProfile) -> DDPConfig:
    """`config` with the cap whose buckets are those observed; where no cap gives them, with their own sizes.

    It stays as it is where DDP's default gives them, or where the gradients' sizes are unknown. Today's rule is tried
    first, then the one before torch 2.4.
    """
    if not profile.sizes_known:
        return config
    gradients = profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    observed = [bucket.num_elements for bucket in schedule.buckets]
    elements = [g.num_bytes // count_bytes(1, g.dtype) for g in gradients]

    def gives(cap_mb: float | None, caps_first_bucket: bool = True) -> bool:
        limits = bucket_limits(cap_mb, None, caps_first_bucket=caps_first_bucket)
        buckets = assign_rebuilt(sizes, keys, limits, range(len(sizes)))
        return [sum(elements[i] for i in bucket) for bucket in buckets] == observed

    if gives(None):
        return config
    for caps_first_bucket in (True, False):
        for low, high in find_distinct_caps(sizes, keys, caps_first_bucket=caps_first_bucket):
            cap_mb = round_cap_mb(low, high)
            if gives(cap_mb, caps_first_bucket):
                return replace(config, bucket_cap_mb=cap_mb, caps_first_bucket=caps_first_bucket)
    return replace(config, bucket_cap_mb_list=tuple(bucket.num_bytes / MIB for bucket in schedule.buckets))
