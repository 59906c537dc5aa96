"""Who waits for whom: per rank and step, and the rank that the others wait for.

In a collective every rank waits from its own arrival to the last one. What the last rank alone is to blame for is the
time from the last arrival of the others to its own. Waiting beside computation costs nothing, unless the link is busy
from then on until computation has run out: then it costs what sticks out. Collectives in flight together show the same
lateness again and again, so of them the largest count is taken. The first collective that a profiler saw tells about
the profiler's start and is set aside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from advisor.collectives import MatchedCollective
from advisor.intervals import EMPTY, Intervals, build_intervals, clip, difference, total, union
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
        for in_flight in _split(matches, lambda match: min(match.arrivals_ns), 0):
            for (culprit, victim), cost_ns in _measure_costs(in_flight, overlap_of).items():
                costs_ns[culprit, step][victim] += cost_ns
    return Waiting(
        {key: build_intervals(*zip(*spans, strict=True)) for key, spans in waits.items()},
        {key: round(median(of_victims.values())) for key, of_victims in costs_ns.items()},
    )


def _measure_costs(
    in_flight: Sequence[MatchedCollective], overlap_of: Mapping[int, Intervals]
) -> dict[tuple[int, int], int]:
    """What each late rank alone cost each other one, in ns, in collectives that show the same lateness."""
    exposed: dict[tuple[int, int], list[Intervals]] = defaultdict(list)
    hidden_ns: dict[tuple[int, int], int] = defaultdict(int)
    for run in _split(in_flight, lambda match: match.last_arrival_ns, LINK_PAUSE_NS):
        sticks_out_ns = _measure_what_sticks_out(run, overlap_of)
        for match in run:
            *_, second, last = sorted(match.arrivals_ns)
            culprit = match.members[match.arrivals_ns.index(last)].rank
            for member, offset in zip(match.members, match.offsets_ns, strict=True):
                if member.rank == culprit:
                    continue
                wait = build_intervals([second + offset], [match.arrival_on_clock_of(member)])
                exposed[culprit, member.rank].append(difference(wait, overlap_of[member.rank]))
                if match is run[0]:
                    cost_ns = min(total(wait), sticks_out_ns[member.rank])
                    hidden_ns[culprit, member.rank] = max(cost_ns, hidden_ns[culprit, member.rank])
    return {key: max(total(union(*parts)), hidden_ns[key]) for key, parts in exposed.items()}


def _split(
    matches: Sequence[MatchedCollective], start_ns: Callable[[MatchedCollective], int], pause_ns: int
) -> list[list[MatchedCollective]]:
    """Groups collectives whose spans, from `start_ns` to the end of the transfer, lie no further apart than a pause."""
    groups: list[list[MatchedCollective]] = []
    reached = 0
    for match in sorted(matches, key=start_ns):
        if not groups or start_ns(match) > reached + pause_ns:
            groups.append([])
        groups[-1].append(match)
        reached = max(reached, match.last_arrival_ns + match.transfer_ns)
    return groups


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
    """The rank that most steps wait for; None where nobody waits for a single rank."""
    steps = sorted({step for _, step in waiting.waits})
    ranks = sorted({rank for rank, _ in waiting.waits})
    blame_ns = {rank: [waiting.blame_ns.get((rank, step), 0) for step in steps] for rank in ranks}
    if not any(map(any, blame_ns.values())):
        return None
    culprits = [ranks[of_ranks.index(max(of_ranks))] for of_ranks in zip(*blame_ns.values(), strict=True)]
    rank = max(ranks, key=lambda rank: (culprits.count(rank), sum(blame_ns[rank])))
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
        last_fraction=culprits.count(rank) / len(steps),
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
