"""Timelines and schedules to the rows of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from advisor.activity import Activity
from advisor.collectives import Collective, MatchedCollective, measure_residuals
from advisor.exchange import StepExchange, classify_collective
from advisor.intervals import Intervals, intersection, total
from advisor.observation import RankObservation
from advisor.schedule import StepSchedule
from advisor.schema import CollectiveSummary, Estimate, RankSummary, StepSummary
from advisor.statistics import median_estimate
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
        blocking_wait_ns=_measure_blocking_wait(exchange, waiting.waits.get((rank, step.number))),
        copy_ns=activity.copy_ns,
        idle_ns=duration - activity.compute_ns - activity.exposed_ns - activity.copy_ns,
        copy_back_ns=exchange.copy_back_ns if exchange else 0,
        num_copies_back=exchange.num_copies_back if exchange else 0,
    )
    assert sum(phases.values()) + row.backward_ns + blocking == duration
    assert row.overlap_ns + row.exposed_ns == row.communication_ns
    return row


def _measure_blocking_wait(exchange: StepExchange | None, waits: Intervals | None) -> int | None:
    """How long of what blocked a rank waited for later ones; None without an exchange or while a trace is missing."""
    return None if exchange is None or waits is None else total(intersection(exchange.blocking, waits))


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
