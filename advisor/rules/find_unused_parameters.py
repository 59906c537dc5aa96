"""`find_unused_parameters=False` where every parameter is used: no search, no mark, and buckets that are rebuilt."""

from __future__ import annotations

from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.usage import count_used
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "find_unused_parameters"
CHANGE = {"find_unused_parameters": False}
SOURCES = ("torch/csrc/distributed/c10d/reducer.cpp: search_unused_parameters, all_reduce_local_used_map",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes to stop searching where each recorded backward gave every parameter its gradient.

    It promises what replay sees, which may be nothing: the search itself is part of the host's time.
    """
    bench, usage = open_bench(analysis), count_used(analysis)
    if bench is None or usage is None or not bench.config.find_unused_parameters or bench.config.static_graph:
        return None
    today, changed = bench.today, bench.try_change(CHANGE)
    saving = measure_saving(today, changed)
    if usage.fewest < usage.parameters or saving.value < -bench.indifference_ns:
        return None
    gain = f"{say_ms(saving.value)} less a step" if bench.matters(saving) else "no measurable effect by itself"
    return Recommendation(
        rule=RULE,
        title="Set find_unused_parameters=False",
        message=(
            f"All {usage.parameters} parameters got gradients in every recorded step, so the search finds nothing, "
            f"adds an all-reduce to each step and keeps buckets from being rebuilt; replay predicts {gain}. "
            "Turn it off if no branch of the model depends on its data, and profile again to choose a bucket size."
        ),
        change=CHANGE,
        saving_ns=saving,
        status="predicted",
        evidence=(
            Evidence(name="parameters with a gradient", value=usage.fewest, unit="", threshold=usage.parameters),
            *show_steps(today, changed, find_rows(analysis.steps)),
        ),
        caveats=("Where a parameter gets no gradient in some step, DDP stops with an error in the next one.",),
        sources=SOURCES,
        prediction=bench.predict(changed.config),
        acts_on_ns=max(bench.communication_ns, 0.0),
    )
