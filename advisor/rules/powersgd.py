"""PowerSGD: gradients of matrices as products of thin ones, where even 16 bits leave most of the exchange blocking."""

from __future__ import annotations

from msgspec.structs import replace

from advisor.powersgd import split_bucket
from advisor.replay import find_gap
from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.guards import apply_change
from advisor.rules.words import find_rows, say_fraction, say_ms
from advisor.schema import POWERSGD, Evidence, Recommendation, StepProfile
from advisor.verdict import Analysis

RULE = "powersgd"
RANK = 2
STILL_BLOCKING = 1 / 3
"""Of the step under the 16-bit hook: below this, the simpler hook is enough."""
SOURCES = (
    "torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py",
    "Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization (NeurIPS 2019)",
    "Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems (MLSys 2022)",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes a trial where replay expects a saving; what the hook computes is assumed, so it may save nothing."""
    bench, change = open_bench(analysis), {"comm_hook": f"{POWERSGD}:{RANK}"}
    if bench is None or bench.config.backend != "nccl" or bench.find_guard(change) is not None:
        return None
    if bench.config.comm_hook.startswith(POWERSGD):
        return None
    halved = bench.try_change({"comm_hook": "bf16"})
    if halved.blocking_ns < STILL_BLOCKING * halved.steps_ns[0]:
        return None
    if find_gap(bench.job, apply_change(bench.config, change)) is not None:
        return None
    today, changed = bench.today, bench.try_change(change)
    saving = measure_saving(today, changed)
    if saving.value <= bench.indifference_ns:
        return None
    kept = measure_kept(bench.job.profile)
    prediction = bench.predict(changed.config)
    return Recommendation(
        rule=RULE,
        title=f"Try PowerSGD of rank {RANK}",
        message=(
            f"Even in 16 bits communication would block {say_fraction(halved.blocking_ns / halved.steps_ns[0])} of the "
            f"step, and PowerSGD sends {say_fraction(kept)} of the bytes: replay expects {say_ms(saving.value)} less. "
            "Try it after the 16-bit hook, and compare the loss curves."
        ),
        change=change,
        saving_ns=replace(saving, low=min(0.0, saving.low), basis="extrapolated"),
        status="predicted",
        evidence=(
            Evidence(name="bytes that stay", value=kept, unit="of the gradients"),
            *show_steps(today, changed, find_rows(analysis.steps)),
        ),
        caveats=(
            *(f"Assumed: {assumption}, so it may save nothing." for assumption in prediction.assumed),
            "torch's hook waits for the device at the end of each bucket, so that nothing of it hides behind backward.",
            "It changes the gradients and keeps its error for the next step, which takes as much memory as they do.",
            "It starts after start_powerSGD_iter steps (1000 by default), so a short profile sees no gain.",
        ),
        sources=SOURCES,
        prediction=prediction,
        acts_on_ns=bench.communication_ns,
    )


def measure_kept(profile: StepProfile) -> float:
    """The share of the gradients' bytes that is sent: P, Q and what is not worth compressing."""
    gradients = profile.slowest.gradients
    parts = split_bucket([(g.num_bytes, profile.shapes[g.index]) for g in gradients], RANK)
    return (parts.p_bytes + parts.q_bytes + parts.other_bytes) / sum(g.num_bytes for g in gradients)
