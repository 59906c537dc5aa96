"""A host that launches too late: outside of DDP, fewer or larger launches are what helps."""

from __future__ import annotations

from statistics import median

from advisor.rules.words import find_rows, say_fraction, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import HOST_OF_STEP, Analysis

RULE = "host_bound"
SOURCES = (
    "PyTorch Tutorials, Performance Tuning Guide",
    "PyTorch Blog, Accelerating PyTorch with CUDA Graphs (2021)",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Advises fewer launches where the device idles for want of them."""
    if analysis.world_size < 2 or not analysis.steps:
        return None
    idle_ns = median(step.host_bound_ns for step in analysis.steps)
    share = median(step.host_bound_ns / max(1, step.duration_ns) for step in analysis.steps)
    if share < HOST_OF_STEP:
        return None
    return Recommendation(
        rule=RULE,
        title="Give the host less to launch",
        message=(
            f"The device has nothing to do for {say_ms(idle_ns)} a step ({say_fraction(share)}), because the host "
            "launches late. Try torch.compile, CUDA graphs or a larger batch, and take out .item(), .cpu() and prints "
            "that make the host wait; profile again afterwards, because then communication may start to matter."
        ),
        change={},
        saving_ns=None,
        status="predicted",
        evidence=(
            Evidence(
                name="device idle for late launches",
                value=share,
                unit="of the step",
                threshold=HOST_OF_STEP,
                table="steps",
                rows=find_rows(analysis.steps),
            ),
        ),
        caveats=("The profiler slows the host down, so the idle time is shorter without it.",),
        sources=SOURCES,
        acts_on_ns=idle_ns,
    )
