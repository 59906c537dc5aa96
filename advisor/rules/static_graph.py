"""`static_graph=True` where the same parameters stay unused: DDP searches once and rebuilds its buckets."""

from __future__ import annotations

from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.usage import count_used
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "static_graph"
CHANGE = {"static_graph": True}
SOURCES = ("torch/nn/parallel/distributed.py: static_graph", "pytorch#143580")


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes a static graph where unused parameters are searched for and are equally many in every step.

    Never with several micro-steps: torch asserts when the first backward is inside no_sync.
    """
    bench, usage = open_bench(analysis), count_used(analysis)
    if bench is None or usage is None or not bench.config.find_unused_parameters:
        return None
    if usage.most == usage.parameters or usage.fewest != usage.most or bench.find_guard(CHANGE) is not None:
        return None
    today, changed = bench.today, bench.try_change(CHANGE)
    saving = measure_saving(today, changed)
    if not bench.matters(saving):
        return None
    return Recommendation(
        rule=RULE,
        title="Set static_graph=True",
        message=(
            f"In every recorded step {usage.parameters - usage.most} of {usage.parameters} parameters stay unused, and "
            "searching for them keeps buckets from being rebuilt in the order of gradients: replay predicts "
            f"{say_ms(saving.value)} less a step. Set it if these are always the same ones and no control flow depends "
            "on the data."
        ),
        change=CHANGE,
        saving_ns=saving,
        status="predicted",
        evidence=(
            Evidence(name="parameters with a gradient", value=usage.most, unit="", threshold=usage.parameters),
            *show_steps(today, changed, find_rows(analysis.steps)),
        ),
        caveats=(
            "A graph that does change is not noticed at once: gradients then go wrong or DDP stops.",
            "Do not add no_sync afterwards: a first backward inside it fails with an internal assertion.",
        ),
        sources=SOURCES,
        prediction=bench.predict(changed.config),
        acts_on_ns=bench.communication_ns,
    )
