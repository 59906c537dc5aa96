"""The ranks call collectives different numbers of times, so that some of them meet a partner they do not belong to."""

from __future__ import annotations

from collections import Counter, defaultdict

from advisor.alarms._base import MOSTLY, Place, find_rows, list_ranks, list_steps
from advisor.schema import Alarm, Evidence
from advisor.verdict import Analysis

FEWEST_STEPS = 2
"""One step alone may have lost an event."""

BETWEEN_TWO = "send_recv"
"""The kind that only some ranks call."""

Call = tuple[str, str]
"""Process group and kind."""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where a rank calls a kind of collective more or less often than most ranks do, step by step.

    Only what all ranks call in a step is compared: ranks may belong to different process groups. Kernels that do not
    tell their group may be of any.
    """
    if analysis.world_size == 1:
        return None
    counts = count_calls(analysis)
    other: dict[Call, dict[Place, int]] = defaultdict(dict)
    for step, of_rank in counts.items():
        shared = set.intersection(*(set(calls) for calls in of_rank.values()))
        shared = {call for call in shared if call[1] != BETWEEN_TWO}
        for call in shared:
            usual = Counter(calls[call] for calls in of_rank.values()).most_common(1)[0][0]
            other[call] |= {
                Place(rank, step): calls[call] - usual for rank, calls in of_rank.items() if calls[call] != usual
            }
    least = max(FEWEST_STEPS, MOSTLY * len(counts))
    lasting = {call: places for call, places in other.items() if len(list_steps(places)) >= least}
    if not lasting:
        return None
    places = frozenset().union(*lasting.values())
    ranks = list_ranks(places)
    return Alarm(
        code="collective_count_differs",
        severity="error",
        message=(
            f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} and the other ranks call collectives different "
            "numbers of times a step, so unrelated data are combined or the job hangs in the end."
        ),
        fix="Call every collective on all ranks of its process group: move it out of branches that depend on the rank.",
        ranks=ranks,
        steps=list_steps(places),
        evidence=tuple(
            Evidence(
                name=f"{kind} in process group {group or 'of unknown name'}, beside the other ranks",
                value=float(Counter(found.values()).most_common(1)[0][0]),
                unit="a step",
                table="steps",
                rows=find_rows(analysis.steps, frozenset(found)),
            )
            for (group, kind), found in lasting.items()
        ),
    )


def count_calls(analysis: Analysis) -> dict[int, dict[int, Counter[Call]]]:
    """By step and rank; only steps that several ranks recorded with a backward in them."""
    counts: dict[int, dict[int, Counter[Call]]] = defaultdict(dict)
    for rank in analysis.run.ranks:
        for step in rank.steps:
            if step.find_spans("backward"):
                counts[step.number][rank.rank] = Counter()
        for collective in rank.collectives:
            is_known = collective.process_group != "" or rank.device_type == "cpu"
            if is_known and collective.step in counts and rank.rank in counts[collective.step]:
                counts[collective.step][rank.rank][collective.process_group, str(collective.kind)] += 1
    return {step: of_rank for step, of_rank in counts.items() if len(of_rank) > 1}
