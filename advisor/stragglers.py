"""Who waits for whom: per rank and step, and the rank that the others wait for.

In a collective every rank waits from its own arrival to the last one. What the last rank alone costs is found by
replaying the link: had it come with the others, how much earlier would the exchange have ended? Whoever came just when
an earlier collective ended had waited for the link, and would have come as soon as it was ready. A rank loses no more
than what sticks out beyond its computation, and nothing is lost to what the clocks cannot tell apart. The first
collective that a profiler saw tells about the profiler's start and is set aside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from advisor.collectives import Collective, MatchedCollective, measure_residuals
from advisor.intervals import EMPTY, Intervals, build_intervals, clip, difference, measure_exclusive_times, total
from advisor.observation import RankObservation
from advisor.schema import Phase, Straggler
from advisor.statistics import median_estimate
from advisor.timeline import StepTimeline

RankStep = tuple[int, int]
"""Rank and step."""
Spans = list[tuple[int, int]]

PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "other")
"""Where a rank can fall behind; the finish of the exchange is where the others wait for it."""
LINK_PAUSE_NS = 100_000
"""A pause between two transfers up to this is only that between two launches."""
PHASE_EXPLAINS = 0.5
"""A phase is named where it explains this share of the delay."""


@dataclass(frozen=True)
class Waiting:
    """Who waited when, and for whom."""

    waits: Mapping[RankStep, Intervals]
    """When a rank waited for others, on its own clock; every rank and step with a complete collective is here."""
    blame_ns: Mapping[RankStep, int]
    """What waiting for this rank alone cost the others, the median over them."""

    def sum_wait_ns(self, rank: int, step: int) -> int | None:
        """How long a rank waited in a step; None where a peer's trace is missing."""
        waits = self.waits.get((rank, step))
        return None if waits is None else total(waits)

    def list_waits(self, rank: int) -> list[Intervals]:
        """When a rank waited, by step."""
        return [self.waits[key] for key in self._steps_of[rank]]

    def list_blame_ns(self, rank: int) -> list[int]:
        """How long the others waited for it alone, by step."""
        return [self.blame_ns.get(key, 0) for key in self._steps_of[rank]]

    @cached_property
    def _steps_of(self) -> Mapping[int, Sequence[RankStep]]:
        steps_of: dict[int, list[RankStep]] = defaultdict(list)
        for key in self.waits:
            steps_of[key[0]].append(key)
        return steps_of


def find_waiting(observations: Sequence[RankObservation], matched: Sequence[MatchedCollective]) -> Waiting:
    """Finds every wait in the complete collectives of the steps."""
    overlap_of = {observation.rank: observation.overlap for observation in observations}
    ready_of = _find_ready(observations)
    residuals = measure_residuals(matched)
    steps: dict[int, list[MatchedCollective]] = defaultdict(list)
    for match in matched:
        step = match.members[0].step
        if step is not None and match.complete and len(match.members) > 1 and not match.transient:
            steps[step].append(match)
    waits: dict[RankStep, Spans] = defaultdict(list)
    costs_ns: dict[RankStep, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for step, matches in steps.items():
        for match in matches:
            for member in match.members:
                waits[member.rank, step].append((member.start_ns, match.arrival_on_clock_of(member)))
        for run in _split(matches):
            for (culprit, victim), cost_ns in _measure_costs(run, overlap_of, ready_of, residuals).items():
                costs_ns[culprit, step][victim] += cost_ns
    return Waiting(
        {key: build_intervals(*zip(*spans, strict=True)) for key, spans in waits.items()},
        {key: round(median(of_victims.values())) for key, of_victims in costs_ns.items()},
    )


def _find_ready(observations: Sequence[RankObservation]) -> dict[Collective, int]:
    """When each bucket could have come, had the link been free; on its own clock."""
    return {
        bucket.collective: min(bucket.collective.start_ns, max(bucket.collective.launch_ns, bucket.ready_device_ns))
        for observation in observations
        for exchange in observation.exchanges
        for bucket in exchange.buckets
        if bucket.ready_device_ns is not None
    }


def _split(matches: Sequence[MatchedCollective]) -> list[list[MatchedCollective]]:
    """Groups collectives, in the order of their last arrivals, between which the link pauses and nobody waits."""
    groups: list[list[MatchedCollective]] = []
    reached = 0
    for match in sorted(matches, key=lambda match: min(match.arrivals_ns)):
        if not groups or min(match.arrivals_ns) > reached + LINK_PAUSE_NS:
            groups.append([])
        groups[-1].append(match)
        reached = max(reached, match.last_arrival_ns + match.transfer_ns)
    return [sorted(group, key=lambda match: match.last_arrival_ns) for group in groups]


def _measure_costs(
    run: Sequence[MatchedCollective],
    overlap_of: Mapping[int, Intervals],
    ready_of: Mapping[Collective, int],
    residuals: Mapping[int, int],
) -> dict[tuple[int, int], int]:
    """What each rank that came last alone cost each other one, in ns."""
    sticks_out_ns = _measure_what_sticks_out(run, overlap_of)
    costs_ns: dict[tuple[int, int], int] = {}
    for culprit in {match.members[match.arrivals_ns.index(match.last_arrival_ns)].rank for match in run}:
        delay_ns = _measure_delay(run, culprit, ready_of)
        for victim in sticks_out_ns.keys() - {culprit}:
            told_apart = delay_ns > max(residuals.get(culprit, 0), residuals.get(victim, 0))
            costs_ns[culprit, victim] = min(delay_ns, sticks_out_ns[victim]) if told_apart else 0
    return costs_ns


def _measure_delay(run: Sequence[MatchedCollective], culprit: int, ready_of: Mapping[Collective, int]) -> int:
    """By how much a run of collectives ended later than it would have, had one rank never come after the others, in ns.

    Example: the others come at 0 and 2, the culprit at 3 and at 5, and each transfer takes 2. Without it they end at 2
    and 4, with it at 5 and 7: 3 later, although it was late twice.
    """
    transfers = [(match.last_arrival_ns, match.last_arrival_ns + match.transfer_ns) for match in run]
    over: list[int] = []
    free = 0
    for match, (_, end), work_ns in zip(run, transfers, measure_exclusive_times(transfers), strict=True):
        others = [member for member in match.members if member.rank != culprit]
        came = max(member.start_ns - match.offset_of[member.rank] for member in others)
        queued = bisect_left(over, came - LINK_PAUSE_NS) < bisect_right(over, came + LINK_PAUSE_NS)
        if queued:
            pause = max(0, came - over[-1])
            ready = max(ready_of.get(member, member.start_ns) - match.offset_of[member.rank] for member in others)
            came = max(ready, free + pause)
        free = max(came, free) + round(work_ns)
        insort(over, end)
    return max(0, over[-1] - free)


def _measure_what_sticks_out(run: Sequence[MatchedCollective], overlap_of: Mapping[int, Intervals]) -> dict[int, int]:
    """How long the collectives of a run go on without computation beside them, in ns by rank."""
    spans: dict[int, Spans] = defaultdict(list)
    for match in run:
        for member in match.members:
            spans[member.rank].append((member.start_ns, member.end_ns))
    return {
        rank: total(difference(build_intervals(*zip(*of_rank, strict=True)), overlap_of[rank]))
        for rank, of_rank in spans.items()
    }


def find_straggler(observations: Sequence[RankObservation], waiting: Waiting) -> Straggler | None:
    """The rank that costs most in a typical step, or else in all; None where nobody waits for a single rank."""
    steps = sorted({step for _, step in waiting.waits})
    ranks = sorted({rank for rank, _ in waiting.waits})
    blame_ns = {rank: [waiting.blame_ns.get((rank, step), 0) for step in steps] for rank in ranks}
    if not any(map(any, blame_ns.values())):
        return None
    rank = max(ranks, key=lambda rank: (median(blame_ns[rank]), sum(blame_ns[rank])))
    worst_ns = [max(of_ranks) for of_ranks in zip(*blame_ns.values(), strict=True)]
    num_last = sum(own_ns == most_ns > 0 for own_ns, most_ns in zip(blame_ns[rank], worst_ns, strict=True))
    delay = median_estimate(blame_ns[rank])
    steps_of = {observation.rank: {step.number: step for step in observation.steps} for observation in observations}
    lengths = [steps_of[rank][step].end_ns - steps_of[rank][step].start_ns for step in steps if step in steps_of[rank]]
    idle = {
        (own.rank, step): difference(waiting.waits.get((own.rank, step), EMPTY), own.overlap)
        for own in observations
        for step in steps
    }
    phase, excess = _find_phase(rank, steps_of, idle)
    return Straggler(
        rank=rank,
        num_steps=len(steps),
        last_fraction=num_last / len(steps),
        delay_ns=delay,
        step_fraction=delay.value / max(1.0, median(lengths)) if lengths else 0.0,
        phase=phase if excess >= PHASE_EXPLAINS * delay.value else None,
        phase_excess_ns=excess,
    )


def _find_phase(
    rank: int, steps_of: Mapping[int, Mapping[int, StepTimeline]], idle: Mapping[RankStep, Intervals]
) -> tuple[Phase | None, int]:
    """The phase in which a rank takes longer than the others, and by how much in a typical step.

    Time in which a rank does nothing but wait for others is not its own; waiting beside computation costs nothing.
    """
    excesses: dict[Phase, list[int]] = defaultdict(list)
    for number, step in steps_of[rank].items():
        peers = [(peer, own[number]) for peer, own in steps_of.items() if peer != rank and number in own]
        for phase in PHASES if peers else ():
            own_ns = _measure_work(step, phase, idle.get((rank, number), EMPTY))
            others_ns = [_measure_work(o, phase, idle.get((peer, number), EMPTY)) for peer, o in peers]
            excesses[phase].append(own_ns - round(median(others_ns)))
    worst = max(excesses, key=lambda phase: median(excesses[phase]), default=None)
    return worst, round(median(excesses[worst])) if worst else 0


def _measure_work(step: StepTimeline, phase: Phase, idle: Intervals) -> int:
    spans = step.find_spans(phase)
    waited = sum(total(clip(idle, span.start_ns, span.end_ns)) for span in spans)
    return sum(span.end_ns - span.start_ns for span in spans) - waited
