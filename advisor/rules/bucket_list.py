"""`bucket_cap_mb_list`: a size for each bucket, where that beats every uniform cap and every small first bucket."""

from __future__ import annotations

from advisor.best_settings import find_best_list
from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.caps import find_best_first, find_best_uniform
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Recommendation
from advisor.verdict import Analysis

RULE = "bucket_list"
MOST_GRADIENTS = 400
"""The search's time grows with their square."""
CAVEATS = (
    "Gradient sums are added in another order, so results are not bit-identical.",
    "The list fits this model on this machine: after a change of either, profile again.",
)
SOURCES = (
    "torch/nn/parallel/distributed.py: bucket_cap_mb_list (torch 2.12)",
    "docs/architecture.md: best buckets",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes the best list where torch takes one, and where simpler settings are worse beyond the noise."""
    bench = open_bench(analysis)
    if bench is None or bench.find_guard({"bucket_cap_mb_list": (1.0,)}) is not None:
        return None
    simpler = (bench.today, find_best_uniform(bench), find_best_first(bench))
    left_ns = min(float(trial.steps_ns[0]) for trial in simpler) - bench.ceiling_ns
    if left_ns <= bench.indifference_ns or len(bench.job.profile.slowest.gradients) > MOST_GRADIENTS:
        return None
    best = find_best_list(bench.job, bench.config)
    if best is None or best.bucket_cap_mb_list is None:
        return None
    today, listed = bench.today, bench.try_config(best)
    saving = measure_saving(today, listed)
    if not all(bench.matters(measure_saving(trial, listed)) for trial in simpler):
        return None
    return Recommendation(
        rule=RULE,
        title=f"Set bucket_cap_mb_list to {len(best.bucket_cap_mb_list)} sizes",
        message=(
            "Buckets of unequal size start as early as their gradients allow and end together with the backward: "
            f"replay predicts {say_ms(saving.value)} less a step, more than any one cap saves. "
            "Set the list and measure it beside today's setting before you keep it."
        ),
        change={"bucket_cap_mb_list": best.bucket_cap_mb_list},
        saving_ns=saving,
        status="predicted",
        evidence=show_steps(today, listed, find_rows(analysis.steps)),
        caveats=CAVEATS,
        sources=SOURCES,
        prediction=bench.predict(best),
        acts_on_ns=bench.communication_ns,
    )
