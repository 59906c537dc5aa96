"""A small first bucket before equal ones: communication starts earlier, and the others pay no more latency."""

from __future__ import annotations

from advisor.replay import find_gap
from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.caps import find_best_first, find_best_uniform
from advisor.rules.words import find_rows, say_ms, say_value
from advisor.schema import Recommendation
from advisor.verdict import Analysis

RULE = "first_bucket"
CAVEATS = ("Gradient sums are added in another order, so results are not bit-identical.",)
SOURCES = ("torch/nn/parallel/distributed.py: bucket_cap_mb_list (torch 2.12), _DEFAULT_FIRST_BUCKET_BYTES",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes a first bucket of its own size where torch takes one, and where one cap for all is worse."""
    bench = open_bench(analysis)
    if bench is None or bench.find_guard({"bucket_cap_mb_list": (1.0,)}) is not None:
        return None
    today, changed = bench.today, find_best_first(bench)
    best, saving = changed.config, measure_saving(today, changed)
    if find_gap(bench.job, best) is not None:
        return None
    if not (bench.matters(saving) and bench.matters(measure_saving(find_best_uniform(bench), changed))):
        return None
    sizes = say_value("bucket_cap_mb_list", best.bucket_cap_mb_list)
    return Recommendation(
        rule=RULE,
        title=f"Set bucket_cap_mb_list to {sizes}: a first bucket of its own size",
        message=(
            "A small first bucket lets communication start earlier while the others stay large: replay predicts "
            f"{say_ms(saving.value)} less a step, more than any one cap saves. "
            "Set both sizes and measure them beside today's setting before you keep them."
        ),
        change={"bucket_cap_mb_list": best.bucket_cap_mb_list},
        saving_ns=saving,
        status="predicted",
        evidence=show_steps(today, changed, find_rows(analysis.steps)),
        caveats=CAVEATS,
        sources=SOURCES,
        prediction=bench.predict(best),
        acts_on_ns=bench.communication_ns,
    )
