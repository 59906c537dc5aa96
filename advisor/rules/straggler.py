"""A rank that the others wait for: its name, what it costs, and where it loses the time."""

from __future__ import annotations

from advisor.rules.words import find_rows, say_fraction, say_ms
from advisor.schema import Evidence, Phase, Recommendation
from advisor.verdict import STRAGGLER_ARRIVES_LAST, STRAGGLER_OF_STEP, Analysis

RULE = "straggler"
SOURCES = ("docs/numbers.md: waiting for late ranks",)
NEXT: dict[Phase, str] = {
    "data": "Look at how it loads its data: its disk, its workers, and whether its samples are longer",
    "forward": "Look at what it computes or waits for there: longer samples, a slower or throttled device, a busy host",
    "backward": "Look at what it computes: longer samples, a slower or throttled device, another process beside it",
    "gradient_finish": "Look at what runs on it after backward, and at its host's load",
    "optimizer": "Look at what only it does around the optimizer, such as logging or clipping",
    "other": "Look at what only it does between steps: checkpoints, evaluation, logging",
}


def propose(analysis: Analysis) -> Recommendation | None:
    """Names the straggler; that it matters is the verdict's to say."""
    late = analysis.straggler
    if late is None or analysis.world_size < 2:
        return None
    place = f" in {late.phase}" if late.phase in ("forward", "backward") else ""
    following = NEXT[late.phase] if late.phase else "Profile it beside another rank to see where it loses the time"
    ranks = find_rows(analysis.steps, lambda step: step.rank == late.rank)
    return Recommendation(
        rule=RULE,
        title=f"Find out why rank {late.rank} is late{place}",
        message=(
            f"The others wait for rank {late.rank} in {say_fraction(late.last_fraction)} of the steps, for "
            f"{say_ms(late.delay_ns.value)} each. {following}; no bucket size and no hook shortens that."
        ),
        change={},
        saving_ns=late.delay_ns,
        status="predicted",
        evidence=(
            Evidence(
                name=f"lost to rank {late.rank}",
                value=late.step_fraction,
                unit="of the step",
                threshold=STRAGGLER_OF_STEP,
                table="steps",
                rows=ranks,
            ),
            Evidence(
                name="that rank is the latest",
                value=late.last_fraction,
                unit="of the steps",
                threshold=STRAGGLER_ARRIVES_LAST,
                table="steps",
                rows=ranks,
            ),
        ),
        caveats=("The step shortens by this much only if no other rank is nearly as late.",),
        sources=SOURCES,
        acts_on_ns=late.delay_ns.high,
    )
