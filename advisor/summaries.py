"""Timelines and schedules to the rows of a report, and the profiled setting as far as the traces tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from advisor.activity import Activity
from advisor.bucketing import MIB, assign_rebuilt, bucket_limits, find_distinct_caps, round_cap_mb
from advisor.collectives import Collective, MatchedCollective, count_bytes, measure_residuals
from advisor.exchange import classify_collective
from advisor.intervals import total
from advisor.observation import RankObservation, RunObservation
from advisor.powersgd import find_powersgd_rank, list_rounds, split_bucket
from advisor.schedule import StepSchedule
from advisor.schema import (
    POWERSGD,
    CollectiveSummary,
    DDPConfig,
    Estimate,
    RankSummary,
    StepProfile,
    StepSummary,
)
from advisor.statistics import median_estimate
from advisor.step_profile import find_compression
from advisor.stragglers import Waiting
from advisor.timeline import StepTimeline


def summarize_steps(
    observations: Sequence[RankObservation], schedules: Sequence[StepSchedule], waiting: Waiting
) -> tuple[StepSummary, ...]:
    """One row per rank and step; its phases add up to its duration exactly, and so does what ran and what idled."""
    schedule_of = {(schedule.rank, schedule.step): schedule for schedule in schedules}
    rows = []
    for observation in observations:
        for step, activity in zip(observation.steps, observation.step_activities, strict=True):
            schedule = schedule_of.get((observation.rank, step.number))
            rows.append(_summarize_step((observation.rank, step), schedule, activity, waiting))
    return tuple(rows)


def _summarize_step(
    rank_step: tuple[int, StepTimeline], schedule: StepSchedule | None, activity: Activity, waiting: Waiting
) -> StepSummary:
    rank, step = rank_step
    exchange = schedule.exchange if schedule else None
    blocking = exchange.blocking_ns if exchange else 0
    phases = {phase: step.sum_phase_ns(phase) for phase in ("data", "forward", "optimizer", "other")}
    duration = step.end_ns - step.start_ns
    row = StepSummary(
        rank=rank,
        step=step.number,
        start_ns=step.start_ns,
        duration_ns=duration,
        data_ns=phases["data"],
        forward_ns=phases["forward"],
        backward_ns=step.sum_phase_ns("backward") + step.sum_phase_ns("gradient_finish") - blocking,
        blocking_ns=blocking,
        optimizer_ns=phases["optimizer"],
        other_ns=phases["other"],
        compute_ns=activity.compute_ns,
        communication_ns=activity.communication_ns,
        overlap_ns=activity.overlap_ns,
        exposed_ns=activity.exposed_ns,
        host_bound_ns=step.host_bound_ns,
        num_syncs=exchange.num_syncs if exchange else 0,
        backward_start_ns=exchange.backward.start_ns - step.start_ns if exchange else None,
        backward_end_ns=exchange.backward.end_ns - step.start_ns if exchange else None,
        num_micro_steps=max(1, len(step.find_spans("backward"))),
        wait_ns=waiting.sum_wait_ns(rank, step.number),
        copy_ns=activity.copy_ns,
        idle_ns=duration - activity.compute_ns - activity.exposed_ns - activity.copy_ns,
        copy_back_ns=exchange.copy_back_ns if exchange else 0,
        num_copies_back=exchange.num_copies_back if exchange else 0,
    )
    assert sum(phases.values()) + row.backward_ns + blocking == duration
    assert row.overlap_ns + row.exposed_ns == row.communication_ns
    return row


def summarize_ranks(
    observations: Sequence[RankObservation], matched: Sequence[MatchedCollective], waiting: Waiting
) -> tuple[RankSummary, ...]:
    """One row per rank over its whole file: raw unions, how late it arrives at buckets, and who waits for whom."""
    lateness: dict[int, list[int]] = defaultdict(list)
    offsets: dict[int, list[int]] = defaultdict(list)
    for match in matched:
        for member, offset in zip(match.members, match.offsets_ns, strict=True):
            offsets[member.rank].append(offset)
        if match.complete and len(match.members) > 1 and classify_collective(match.members[0]) == "bucket":
            first = min(match.arrivals_ns)
            for member, arrival in zip(match.members, match.arrivals_ns, strict=True):
                lateness[member.rank].append(arrival - first)
    residuals = measure_residuals(matched)
    return tuple(
        RankSummary(
            rank=observation.rank,
            file=observation.file,
            host=observation.host,
            device_type=observation.device_type,
            num_events=observation.num_events,
            num_steps=len(observation.steps),
            communication_ns=observation.activity.communication_ns,
            compute_ns=observation.activity.compute_ns,
            overlap_ns=observation.activity.overlap_ns,
            num_communication_kernels=observation.num_communication_events,
            num_transients=min(1, observation.num_communication_events),
            mean_lateness_ns=float(np.mean(late)) if (late := lateness.get(observation.rank)) else None,
            wait_ns=_estimate_per_step([total(waits) for waits in waiting.list_waits(observation.rank)]),
            blame_ns=_estimate_per_step(waiting.list_blame_ns(observation.rank)),
            clock_offset_ns=next(iter(offsets[observation.rank]), None) if len(observations) > 1 else None,
            clock_residual_ns=residuals.get(observation.rank),
        )
        for observation in observations
    )


def _estimate_per_step(values: Sequence[int]) -> Estimate | None:
    return median_estimate(values) if values else None


def summarize_collectives(
    collectives: Sequence[Sequence[Collective]], matched: Sequence[MatchedCollective]
) -> tuple[CollectiveSummary, ...]:
    """One row per process group, kind, role, dtype and size; steady steps only."""
    match_of = {member: match for match in matched if match.complete for member in match.members}
    groups: dict[tuple[str, str, str, str, int, int], list[Collective]] = defaultdict(list)
    for own in collectives:
        for c in own:
            if c.step is not None:
                role = classify_collective(c)
                groups[c.process_group, str(c.kind), role, c.dtype, c.num_elements, c.num_bytes].append(c)
    num_rank_steps = max(1, len({(c.rank, c.step) for own in collectives for c in own if c.step is not None}))
    rows = []
    for (process_group, kind, _, dtype, num_elements, num_bytes), members in groups.items():
        seen = [match_of[c] for c in members if c in match_of]
        skews = [max(m.arrivals_ns) - min(m.arrivals_ns) for m in seen if len(m.members) > 1 and not m.transient]
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
                transfer_ns=median_estimate([match.transfer_ns for match in seen]) if seen else None,
                skew_ns=median_estimate(skews) if skews else None,
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
        comm_hook=_name_hook(schedules),
        find_unused_parameters=run.ranks[0].searches_unused_parameters,
    )
    return config if profile is None or not schedules else identify_caps(config, schedules[0], profile)


def _name_hook(schedules: Sequence[StepSchedule]) -> str:
    """PowerSGD shows in what it sends of the gradients; other hooks hardly, so none is named."""
    rank = find_compression(schedules[0].exchange) if schedules else None
    return "none" if rank is None else f"{POWERSGD}:{rank}"


def identify_caps(config: DDPConfig, schedule: StepSchedule, profile: StepProfile) -> DDPConfig:
    """`config` with the cap whose buckets are those observed; where no cap gives them, with their own sizes.

    It stays as it is where DDP's default gives them, where the gradients' sizes are unknown, or where the buckets of
    PowerSGD fit no cap. Today's rule is tried first, then the one before torch 2.4.
    """
    if not profile.sizes_known:
        return config
    gradients = profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    observed = [bucket.num_elements for bucket in schedule.buckets]
    elements = [g.num_bytes // count_bytes(1, g.dtype) for g in gradients]
    rank = find_powersgd_rank(config.comm_hook)

    def list_sent(buckets: list[list[int]]) -> list[float]:
        if rank is None:
            return [sum(elements[i] for i in bucket) for bucket in buckets]
        parts = [split_bucket([(elements[i], profile.shapes[i]) for i in bucket], rank) for bucket in buckets]
        rounds = list_rounds(parts, holds=config.backend != "gloo")
        return [each.num_bytes for each in rounds if each.num_bytes]

    def gives(cap_mb: float | None, caps_first_bucket: bool = True) -> bool:
        limits = bucket_limits(cap_mb, None, caps_first_bucket=caps_first_bucket)
        buckets = assign_rebuilt(sizes, keys, limits, range(len(sizes)))
        return list_sent(buckets) == observed

    if gives(None):
        return config
    for caps_first_bucket in (True, False):
        for low, high in find_distinct_caps(sizes, keys, caps_first_bucket=caps_first_bucket):
            cap_mb = round_cap_mb(low, high)
            if gives(cap_mb, caps_first_bucket):
                return replace(config, bucket_cap_mb=cap_mb, caps_first_bucket=caps_first_bucket)
    if rank is not None:
        return config
    return replace(config, bucket_cap_mb_list=tuple(bucket.num_bytes / MIB for bucket in schedule.buckets))
