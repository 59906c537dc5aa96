"""Every micro-batch averages all gradients, where doing so once an update gives the same sum."""

from __future__ import annotations

from collections import Counter
from statistics import median

from advisor.alarms._base import find_mostly, find_rows, list_places, list_ranks, list_steps, list_updates
from advisor.schema import Alarm, Evidence
from advisor.updates import Update
from advisor.verdict import Analysis

CODE = """\
for x, y in micro_batches[:-1]:
    with model.no_sync():  # around forward too: around backward alone it does nothing
        (loss_fn(model(x), y) / len(micro_batches)).backward()
x, y = micro_batches[-1]
(loss_fn(model(x), y) / len(micro_batches)).backward()
optimizer.step()"""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where several backwards of one update reduce the same buckets.

    A no_sync() that is missing and one that is around backward alone leave the same trace: DDP decides at forward.
    """
    redundant = find_mostly(list_updates(analysis), lambda update: count_redundant(update) > 0)
    if not redundant:
        return None
    places = list_places(redundant)
    num_redundant = max(map(count_redundant, redundant))
    num_micro_steps = max(len(update.micro_steps) for update in redundant)
    rows = find_rows(analysis.steps, places)
    # What the last synchronisation of a step blocks, which the report knows, the others block likewise.
    blocked = [analysis.steps[row].blocking_ns for row in rows]
    cost_ms = num_redundant * median(blocked) / 1e6 if blocked else None
    cost = "" if cost_ms is None else f", about {cost_ms:.3g} ms a step"
    sizes = [[bucket.num_bytes for bucket in update.micro_steps[-1].buckets] for update in redundant]
    known = all(num_bytes >= 0 for of_update in sizes for num_bytes in of_update)
    sent = float(num_redundant * median(map(sum, sizes))) if known else None
    return Alarm(
        code="redundant_synchronization",
        severity="warning",
        message=(
            f"{num_redundant} of {num_redundant + 1} synchronisations of each update are waste{cost}: "
            "no_sync() is missing, or is around backward alone."
        ),
        fix="Put no_sync() around forward and backward of all micro-batches but the last one.",
        code_fix=CODE,
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(name="synchronisations too many", value=num_redundant, unit="an update", table="steps", rows=rows),
            Evidence(name="micro-batches", value=num_micro_steps, unit="an update", table="steps", rows=rows),
            Evidence(name="blocked by them, about", value=cost_ms, unit="ms", table="steps", rows=rows),
            Evidence(
                name="sent by them",
                value=sent,
                unit="bytes",
                table="buckets",
                rows=find_rows(analysis.buckets, places),
            ),
        ),
    )


def count_redundant(update: Update) -> int:
    """Backwards before the last one that reduce the same as it does."""
    if update.num_optimizer_steps != 1:
        return 0
    *others, last = (
        Counter((bucket.num_elements, bucket.dtype) for bucket in micro_step.buckets)
        for micro_step in update.micro_steps
    )
    return sum(other == last for other in others) if last else 0
