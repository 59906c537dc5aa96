"""An input that is late: the ranks wait for their data before they can compute."""

from __future__ import annotations

from statistics import median

from advisor.rules.words import find_rows, say_fraction, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import INPUT_OF_STEP, Analysis

RULE = "input_bound"
SOURCES = ("PyTorch documentation, torch.utils.data: num_workers, pin_memory, prefetch_factor, persistent_workers",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Advises on the input where the step waits for it."""
    if analysis.world_size < 2 or not analysis.steps:
        return None
    data_ns = median(step.data_ns for step in analysis.steps)
    share = median(step.data_ns / max(1, step.duration_ns) for step in analysis.steps)
    if share < INPUT_OF_STEP:
        return None
    return Recommendation(
        rule=RULE,
        title="Load the next batch while this one is computed",
        message=(
            f"A step waits {say_ms(data_ns)} for its data ({say_fraction(share)}). Give the DataLoader more "
            "num_workers with persistent_workers, pin_memory=True and a larger prefetch_factor, and copy to the "
            "device with non_blocking=True."
        ),
        change={},
        saving_ns=None,
        status="predicted",
        evidence=(
            Evidence(
                name="data",
                value=share,
                unit="of the step",
                threshold=INPUT_OF_STEP,
                table="steps",
                rows=find_rows(analysis.steps),
            ),
        ),
        caveats=("With enough workers the wait goes; reading faster than the storage allows is impossible.",),
        sources=SOURCES,
        acts_on_ns=data_ns,
    )
