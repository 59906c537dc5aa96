"""Who waits for whom: per rank and step, and the rank that the others wait for.

In a collective every rank waits from its own arrival to the last one. What the last rank alone is to blame for is the
time from the last arrival of the others to its own. The first collective that a profiler saw tells about the
profiler's start and is set aside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from advisor.collectives import MatchedCollective
from advisor.intervals import EMPTY, Intervals, build_intervals, clip, total
from advisor.observation import RankObservation
from advisor.schema import Phase, Straggler
from advisor.statistics import median_estimate
from advisor.timeline import StepTimeline

RankStep = tuple[int, int]
"""Rank and step."""

PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "other")
"""Where a rank can fall behind; the finish of the exchange is where the others wait for it."""
PHASE_EXPLAINS = 0.5
"""A phase is named where it explains this share of the delay."""


@dataclass(frozen=True)
class Waiting:
    """Who waited when, and for whom."""

    waits: Mapping[RankStep, Intervals]
    """When a rank waited for others, on its own clock; every rank and step with a complete collective is here."""
    blames: Mapping[RankStep, Intervals]
    """When all others had arrived and this rank had not, on the reference clock."""

    def sum_wait_ns(self, rank: int, step: int) -> int | None:
        """How long a rank waited in a step; None where a peer's trace is missing."""
        waits = self.waits.get((rank, step))
        return None if waits is None else total(waits)


def find_waiting(matched: Sequence[MatchedCollective]) -> Waiting:
    """Finds every wait in the complete collectives of the steps."""
    waits: dict[RankStep, list[tuple[int, int]]] = defaultdict(list)
    blames: dict[RankStep, list[tuple[int, int]]] = defaultdict(list)
    for match in matched:
        step = match.members[0].step
        if step is None or match.transient or not match.complete or len(match.members) < 2:
            continue
        arrivals = match.arrivals_ns
        *_, second, last = sorted(arrivals)
        for member, arrival in zip(match.members, arrivals, strict=True):
            waits[member.rank, step].append((member.start_ns, match.arrival_on_clock_of(member)))
            if arrival == last:
                blames[member.rank, step].append((second, last))
    return Waiting({key: _join(spans) for key, spans in waits.items()}, {key: _join(s) for key, s in blames.items()})


def find_straggler(observations: Sequence[RankObservation], waiting: Waiting) -> Straggler | None:
    """The rank that most steps wait for; None where nobody waits for a single rank."""
    steps = sorted({step for _, step in waiting.waits})
    ranks = sorted({rank for rank, _ in waiting.waits})
    blame_ns = {rank: [total(waiting.blames.get((rank, step), EMPTY)) for step in steps] for rank in ranks}
    if not any(map(any, blame_ns.values())):
        return None
    culprits = [ranks[of_ranks.index(max(of_ranks))] for of_ranks in zip(*blame_ns.values(), strict=True)]
    rank = max(ranks, key=lambda rank: (culprits.count(rank), sum(blame_ns[rank])))
    delay = median_estimate(blame_ns[rank])
    steps_of = {observation.rank: {step.number: step for step in observation.steps} for observation in observations}
    lengths = [steps_of[rank][step].end_ns - steps_of[rank][step].start_ns for step in steps if step in steps_of[rank]]
    phase, excess = _find_phase(rank, steps_of, waiting)
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
    rank: int, steps_of: Mapping[int, Mapping[int, StepTimeline]], waiting: Waiting
) -> tuple[Phase | None, int]:
    """The phase in which a rank works longer than the others, waiting excepted, and by how much in a typical step."""
    excesses: dict[Phase, list[int]] = defaultdict(list)
    for number, step in steps_of[rank].items():
        peers = [(peer, own[number]) for peer, own in steps_of.items() if peer != rank and number in own]
        for phase in PHASES if peers else ():
            own_ns = _measure_work(step, phase, waiting.waits.get((rank, number), EMPTY))
            others_ns = [_measure_work(o, phase, waiting.waits.get((p, number), EMPTY)) for p, o in peers]
            excesses[phase].append(own_ns - round(median(others_ns)))
    worst = max(excesses, key=lambda phase: median(excesses[phase]), default=None)
    return worst, round(median(excesses[worst])) if worst else 0


def _measure_work(step: StepTimeline, phase: Phase, waits: Intervals) -> int:
    """How long a phase took without waiting for other ranks."""
    spans = step.find_spans(phase)
    waited = sum(total(clip(waits, span.start_ns, span.end_ns)) for span in spans)
    return sum(span.end_ns - span.start_ns for span in spans) - waited


def _join(spans: Sequence[tuple[int, int]]) -> Intervals:
    return build_intervals([start for start, _ in spans], [end for _, end in spans])
