"""More micro-steps an optimizer step: one exchange of gradients for K batches instead of one for each.

A rank sends 2 P (R - 1) / R bytes an optimizer step for P bytes of gradients on R ranks, and K times that where
`no_sync` is forgotten. Only the last backward overlaps with communication, so only it hides some.
"""

from __future__ import annotations

from advisor.all_reduce import traffic_factor
from advisor.replay import count_wire_bytes, sum_copies_in
from advisor.rules.bench import Bench, Trial, measure_saving, open_bench, show_steps
from advisor.rules.words import find_rows, say_bytes, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "accumulation"
FACTORS = (2, 4, 8)
ENOUGH = 0.25
"""The least factor is taken that leaves at most this share of today's blocking for the same samples."""
WORTH_IT = 0.10
"""Of the step: a smaller saving is not worth another training."""
SOURCES = (
    "torch/nn/parallel/distributed.py: no_sync",
    "Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020), section 3.2.4",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes the fewest micro-steps that take most of the blocking away."""
    bench = open_bench(analysis)
    if bench is None:
        return None
    today, chosen = bench.today, choose_depth(bench)
    saving = measure_saving(today, chosen)
    if not bench.matters(saving) or saving.value < WORTH_IT * today.steps_ns[0]:
        return None
    config, steps = bench.config, chosen.config.accumulation_steps
    num_bytes = sum(count_wire_bytes(gradient, config) for gradient in bench.job.profile.slowest.gradients)
    sent = traffic_factor(config.world_size) * num_bytes
    optimizer_ns, copies_in_ns = _list_paid_once(bench)
    copying = f", copying into buckets {say_ms(copies_in_ns)}" if copies_in_ns else ""
    more = steps // config.accumulation_steps
    return Recommendation(
        rule=RULE,
        title=f"Accumulate gradients over {steps} micro-steps (today: {config.accumulation_steps})",
        message=(
            f"Communication costs {say_ms(bench.communication_ns)}{copying} and the optimizer {say_ms(optimizer_ns)} "
            f"a step; {steps} micro-steps pay that once, so that replay predicts {say_ms(saving.value)} less for the "
            f"samples of today's step. Put forward and backward of all but the last into no_sync, divide the loss by "
            f"{steps}, and retune the learning rate or cut the batch."
        ),
        change={"accumulation_steps": steps},
        saving_ns=saving,
        status="predicted",
        evidence=(
            *show_steps(today, chosen, find_rows(analysis.steps)),
            Evidence(name="sent by a rank an optimizer step, with no_sync", value=sent, unit="bytes"),
            Evidence(name="sent without no_sync", value=steps * sent, unit="bytes"),
        ),
        caveats=(
            f"The optimizer sees {more} times as many samples a step, which changes training; micro-batches cut to "
            "keep the batch as it is compute less efficiently, and that is not predicted.",
            f"Without no_sync around the forward too, a rank sends {say_bytes(steps * sent)} instead of "
            f"{say_bytes(sent)} and nothing is saved.",
            "Only the last backward hides communication.",
        ),
        sources=SOURCES,
        prediction=bench.predict(chosen.config),
        acts_on_ns=bench.communication_ns + optimizer_ns + copies_in_ns,
    )


def _list_paid_once(bench: Bench) -> tuple[float, float]:
    """The optimizer, and copying into buckets, which lengthens backward: in ns of today's predicted step."""
    job = bench.job
    corrected = 1 + job.calibration.baseline_residual_fraction.value
    return job.profile.slowest.optimizer_ns * corrected, sum_copies_in(job, job.profile.slowest) * corrected


def choose_depth(bench: Bench) -> Trial:
    """The fewest micro-steps that leave little blocking, else the most that are tried."""
    today = bench.today
    for factor in FACTORS:
        trial = bench.try_change({"accumulation_steps": factor * bench.config.accumulation_steps})
        if trial.blocking_ns / factor <= ENOUGH * today.blocking_ns * (1 + 1e-9):
            break
    return trial
