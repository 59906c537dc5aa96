"""Several ranks and not one collective in their traces: an alarm, never a zero."""

from __future__ import annotations

from advisor.schema import Alarm, Evidence
from advisor.verdict import Analysis


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where the world size is above 1 and no step shows any communication."""
    if analysis.world_size == 1 or any(step.communication_ns for step in analysis.steps):
        return None
    return Alarm(
        code="no_communication",
        severity="error",
        message=(
            f"{analysis.world_size} ranks took part but no collective was found in any step. Either gradients are "
            "never exchanged, or the trace does not show it."
        ),
        fix="Record with ProfilerActivity.CUDA on GPUs, and check that forward goes through the DDP wrapper.",
        ranks=tuple(sorted({step.rank for step in analysis.steps})),
        steps=tuple(sorted({step.step for step in analysis.steps})),
        evidence=(Evidence(name="communication in all steps", value=0.0, unit="ms", table="steps"),),
    )
