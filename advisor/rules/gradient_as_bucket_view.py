"""`gradient_as_bucket_view=True`: gradients live in the buckets, so averages need not be copied back.

On CPU the copies lengthen the step, and replay leaves them out. On a GPU the host launches one copy for each parameter:
where it is late anyway, the time it spends on them is saved, at least what lies inside the copies' own calls, and at
most all between the first and the last of them, which is the profiler's own cost in part.
"""

from __future__ import annotations

from statistics import median

from advisor.rules.bench import Bench, measure_saving, open_bench
from advisor.rules.guards import apply_change
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Estimate, Evidence, Recommendation
from advisor.statistics import tie_fraction
from advisor.verdict import Analysis

RULE = "gradient_as_bucket_view"
CHANGE = {"gradient_as_bucket_view": True}
CAVEATS = (
    "Gradients are views of the buckets then: detach_() on them fails.",
    "With zero_grad(set_to_none=True), which is the default, the copies into the buckets stay.",
)
SOURCES = ("torch/nn/parallel/distributed.py: gradient_as_bucket_view", "torch/csrc/distributed/c10d/reducer.cpp")


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes views where the copies back cost time that the step waits for."""
    config = analysis.config
    copying = [step for step in analysis.steps if step.num_copies_back]
    if config is None or config.world_size < 2 or config.gradient_as_bucket_view or not copying:
        return None
    on_gpu = any(rank.device_type == "cuda" for rank in analysis.run.ranks)
    bench = None if on_gpu else open_bench(analysis)
    saving = _measure_on_host(analysis) if on_gpu else _replay(bench) if bench else None
    if saving is None:
        return None
    num_copies = round(median(step.num_copies_back for step in copying))
    copied_ns = median(step.copy_back_ns for step in copying)
    most_ns = saving.high if on_gpu else max(copied_ns, saving.value)
    rows = find_rows(analysis.steps, lambda step: step.num_copies_back > 0)
    return Recommendation(
        rule=RULE,
        title="Set gradient_as_bucket_view=True",
        message=(
            f"Every step copies averages back into gradients in {num_copies} pieces, which takes the "
            f"{'host' if on_gpu else 'rank'} {say_ms(copied_ns)} with the profiler on. "
            "Let the gradients be views of the buckets, and measure the step without the profiler."
        ),
        change=CHANGE,
        saving_ns=saving,
        status="predicted",
        evidence=(
            Evidence(name="copies back a step", value=num_copies, unit="", table="steps", rows=rows),
            Evidence(name="time for them", value=copied_ns / 1e6, unit="ms", table="steps", rows=rows),
        ),
        caveats=CAVEATS,
        sources=SOURCES,
        prediction=bench.predict(apply_change(config, CHANGE)) if bench else None,
        acts_on_ns=most_ns,
    )


def _measure_on_host(analysis: Analysis) -> Estimate | None:
    """From inside the copies alone to all of the time around them, while the device waits for the host."""
    alone = [e.copies_alone_ns for rank in analysis.run.ranks for e in rank.exchanges if e.num_copies_back]
    steps = [step for step in analysis.steps if step.num_copies_back]
    most = min(median(step.copy_back_ns for step in steps), median(step.host_bound_ns for step in steps))
    least = min(median(alone), most) if alone else 0.0
    baseline = analysis.baseline
    if baseline is None or least <= tie_fraction(baseline.noise_floor_fraction) * baseline.measured_ns.value:
        return None
    return Estimate(value=(least + most) / 2, low=least, high=most, basis="measured")


def _replay(bench: Bench) -> Estimate | None:
    saving = measure_saving(bench.today, bench.try_change(CHANGE))
    return saving if bench.matters(saving) else None
