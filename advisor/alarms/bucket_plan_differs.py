"""The ranks cut their gradients into different buckets, so that an all-reduce adds up what does not belong together."""

from __future__ import annotations

from collections import Counter, defaultdict

from advisor.alarms._base import Place, find_rows, list_steps
from advisor.schema import Alarm, Evidence
from advisor.verdict import Analysis

Plan = tuple[int, ...]
"""Elements of each bucket, in launch order."""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where ranks launch other buckets than most ranks do, in every step.

    A plan with fewer elements in fewer buckets is no other plan: a bucket was not recorded.
    """
    plans = list_plans(analysis)
    if analysis.world_size == 1 or not analysis.is_ddp or len(plans) < 2:
        return None
    usual = Counter(plans.values()).most_common(1)[0][0]
    ranks = tuple(
        rank
        for rank, plan in sorted(plans.items())
        if plan != usual and (len(plan) == len(usual) or sum(plan) == sum(usual))
    )
    if not ranks:
        return None
    places = {Place(bucket.rank, bucket.step) for bucket in analysis.buckets}
    return Alarm(
        code="bucket_plan_differs",
        severity="error",
        message=(
            f"The buckets of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} are not those of the other "
            "ranks, so gradients are added up that do not belong together."
        ),
        fix="Give every rank the same model, the same order of layers and the same DDP settings.",
        ranks=ranks,
        steps=list_steps(place for place in places if place.rank in ranks),
        evidence=tuple(
            Evidence(
                name=f"buckets of rank {rank}",
                value=float(len(plan)),
                unit="a step",
                table="buckets",
                rows=find_rows(analysis.buckets, {place for place in places if place.rank == rank}),
            )
            for rank, plan in ((rank, plans[rank]) for rank in (*ranks, min(r for r in plans if plans[r] == usual)))
        ),
    )


def list_plans(analysis: Analysis) -> dict[int, Plan]:
    """By rank, where it is the same in all steps and the size of every bucket is known; else events were lost."""
    sizes: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for bucket in analysis.buckets:
        sizes[bucket.rank][bucket.step].append(bucket.num_elements)
    plans = {rank: {tuple(plan) for plan in by_step.values()} for rank, by_step in sizes.items()}
    return {rank: plan for rank, (plan, *others) in plans.items() if not others and min(plan) >= 0}
