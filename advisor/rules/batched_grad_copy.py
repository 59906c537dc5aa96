"""`batched_grad_copy=True` (torch 2.12): one copy into each bucket instead of one for each parameter."""

from __future__ import annotations

from statistics import median

from advisor.rules.guards import find_guard, find_torch_version
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "batched_grad_copy"
CHANGE = {"batched_grad_copy": True}
MANY_GRADIENTS = 100
SOURCES = ("torch/nn/parallel/distributed.py: batched_grad_copy (torch 2.12)",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes fewer launches on a GPU whose host is late, where many gradients are copied one by one."""
    config, job = analysis.config, analysis.job
    if config is None or job is None or config.world_size < 2 or config.batched_grad_copy or not analysis.steps:
        return None
    if find_guard(config, CHANGE, find_torch_version(analysis.run.manifest)) is not None:
        return None
    num_gradients = len(job.profile.slowest.gradients)
    if job.profile.device_type != "cuda" or num_gradients < MANY_GRADIENTS or not job.profile.sizes_known:
        return None
    idle_ns = median(step.host_bound_ns for step in analysis.steps)
    return Recommendation(
        rule=RULE,
        title="Set batched_grad_copy=True",
        message=(
            f"The host is late by {say_ms(idle_ns)} a step and launches a copy into a bucket for each of "
            f"{num_gradients} gradients. Let DDP copy a bucket's gradients at once, and measure the step."
        ),
        change=CHANGE,
        saving_ns=None,
        status="predicted",
        evidence=(
            Evidence(name="gradients copied one by one", value=num_gradients, unit="", threshold=MANY_GRADIENTS),
            Evidence(
                name="device idle for late launches",
                value=idle_ns / 1e6,
                unit="ms",
                table="steps",
                rows=find_rows(analysis.steps),
            ),
        ),
        caveats=("The traces do not show what these copies alone cost the host.",),
        sources=SOURCES,
        acts_on_ns=idle_ns,
    )
