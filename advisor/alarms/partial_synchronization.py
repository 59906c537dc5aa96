"""An inner DDP module still averages its gradients while the outer one is silent."""

from __future__ import annotations

from collections import Counter
from statistics import median

from advisor.alarms._base import find_mostly, find_rows, list_places, list_ranks, list_steps, list_updates
from advisor.schema import Alarm, Evidence
from advisor.updates import MicroStep, Update
from advisor.verdict import Analysis

CODE = """\
with outer.no_sync(), inner.no_sync():
    loss_fn(outer(x), y).backward()"""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where earlier backwards of an update reduce a part of what its last one reduces."""
    partial = find_mostly(list_updates(analysis), lambda update: bool(find_partial(update)))
    if not partial:
        return None
    places = list_places(partial)
    shares = [
        one.num_reduced / update.micro_steps[-1].num_reduced for update in partial for one in find_partial(update)
    ]
    return Alarm(
        code="partial_synchronization",
        severity="warning",
        message="A part of the gradients is averaged in every micro-batch: an inner DDP module is not in no_sync().",
        fix="Enter no_sync() of every DDP module, or wrap the whole model in one.",
        code_fix=CODE,
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(
                name="reduced by the micro-batches that should be silent",
                value=median(shares),
                unit="of the gradients",
                table="steps",
                rows=find_rows(analysis.steps, places),
            ),
        ),
    )


def find_partial(update: Update) -> list[MicroStep]:
    """The micro-steps that reduce some of the last one's buckets, and not all."""
    if update.num_optimizer_steps != 1:
        return []
    *others, last = update.micro_steps
    whole = _count_sizes(last)
    return [one for one in others if one.buckets and _count_sizes(one) < whole and one.num_reduced > 0]


def _count_sizes(micro_step: MicroStep) -> Counter[int]:
    return Counter(bucket.num_elements for bucket in micro_step.buckets)
