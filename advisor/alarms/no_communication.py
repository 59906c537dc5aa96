"""Several ranks and not one collective in their traces: an alarm, never a zero."""

from __future__ import annotations

from advisor.alarms._base import find_rows, list_all_places, list_ranks, list_steps
from advisor.schema import Alarm, Evidence
from advisor.verdict import Analysis


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where the world size is above 1 and no step shows any communication.

    Without any step nobody knows. Where the traces show the backwards and that nothing was launched in them, another
    alarm says so more exactly.
    """
    if analysis.world_size == 1 or not analysis.steps or any(step.communication_ns for step in analysis.steps):
        return None
    if analysis.is_ddp and any(update.ends_silent for rank in analysis.run.ranks for update in rank.updates):
        return None
    places = list_all_places(analysis)
    return Alarm(
        code="no_communication",
        severity="error",
        message=(
            f"{analysis.world_size} ranks took part but no step shows a collective: either gradients are never "
            "exchanged, or the trace does not show it."
        ),
        fix="Check that forward goes through the DDP wrapper, and record with ProfilerActivity.CUDA on GPUs.",
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(
                name="communication in all steps",
                value=0.0,
                unit="ms",
                table="steps",
                rows=find_rows(analysis.steps, places),
            ),
        ),
    )
