"""Weights are updated from gradients that were never averaged, so the replicas drift apart and nothing fails."""

from __future__ import annotations

from advisor.alarms._base import find_mostly, find_rows, list_places, list_ranks, list_steps, list_updates
from advisor.schema import Alarm, Evidence
from advisor.verdict import Analysis

CODE = """\
for i, (x, y) in enumerate(micro_batches):
    is_last = i == len(micro_batches) - 1
    with nullcontext() if is_last else model.no_sync():
        (loss_fn(model(x), y) / len(micro_batches)).backward()
optimizer.step()"""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where the last backward before the optimizer's step exchanges nothing.

    Whoever averages by hand, if only now and then as local SGD does, may mean it.
    """
    updates = list_updates(analysis)
    is_noop = analysis.config is not None and analysis.config.comm_hook == "noop"
    if is_noop or any(update.is_reduced_by_hand for update in updates):
        return None
    silent = find_mostly(updates, lambda update: update.ends_silent)
    if not silent:
        return None
    places, num_micro_steps = list_places(silent), max(len(update.micro_steps) for update in silent)
    rows = find_rows(analysis.steps, places)
    return Alarm(
        code="unsynced_last_micro_batch",
        severity="error",
        message=(
            "The last micro-batch before the optimizer's step is not synchronised, so every rank trains on gradients "
            "of its own and the replicas drift apart."
        ),
        fix="Leave no_sync() for the last micro-batch's forward and backward.",
        code_fix=CODE,
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(
                name="updates without an exchange in their last backward",
                value=float(len(silent)),
                unit="",
                table="steps",
                rows=rows,
            ),
            Evidence(name="micro-batches an update", value=float(num_micro_steps), unit="", table="steps", rows=rows),
        ),
    )
