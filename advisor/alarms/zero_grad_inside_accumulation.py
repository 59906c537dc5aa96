"""Gradients are cleared between the micro-batches of one update, so all but the last ones are thrown away."""

from __future__ import annotations

from advisor.alarms._base import find_mostly, find_rows, list_places, list_ranks, list_steps, list_updates
from advisor.schema import Alarm, Evidence
from advisor.updates import Update
from advisor.verdict import Analysis

CODE = """\
optimizer.step()
optimizer.zero_grad()  # here, not before every backward"""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where `Optimizer.zero_grad` runs between two backwards and no update.

    With several optimizers it is not known whose gradients are cleared.
    """

    def clears(update: Update) -> bool:
        return update.num_optimizer_steps == 1 and bool(update.cleared_after)

    cleared = find_mostly(list_updates(analysis), clears)
    if not cleared:
        return None
    places = list_places(cleared)
    lost = max((update.cleared_after[-1] + 1) / len(update.micro_steps) for update in cleared)
    return Alarm(
        code="zero_grad_inside_accumulation",
        severity="error",
        message="zero_grad() runs between the micro-batches of one update, which throws the earlier gradients away.",
        fix="Call optimizer.zero_grad() once an update, right after optimizer.step().",
        code_fix=CODE,
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(
                name="micro-batches without effect",
                value=lost,
                unit="of the micro-batches",
                table="steps",
                rows=find_rows(analysis.steps, places),
            ),
        ),
    )
