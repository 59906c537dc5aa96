"""Parameters registered in another order than they are used: without a rebuild, buckets wait for late gradients."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from advisor.replay import rebuilds
from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Recommendation
from advisor.verdict import Analysis

RULE = "parameter_order"
SOURCES = ("torch/csrc/distributed/c10d/reducer.cpp: compute_bucket_assignment_by_size, should_rebuild_buckets",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes the order of execution where buckets keep the order of registration."""
    bench = open_bench(analysis)
    if bench is None or rebuilds(bench.config) or not bench.job.profile.registered:
        return None
    ordered = replace(bench.job.profile, registered=())
    changed = dataclasses.replace(bench, job=dataclasses.replace(bench.job, profile=ordered)).today
    today = bench.today
    saving = measure_saving(today, changed)
    if not bench.matters(saving):
        return None
    return Recommendation(
        rule=RULE,
        title="Register the layers in the order in which they run",
        message=(
            "With find_unused_parameters DDP keeps its buckets in the order of registration, and here that makes them "
            f"wait for late gradients: in the order of execution replay predicts {say_ms(saving.value)} less a step. "
            "Create the layers in the order in which forward uses them, or let DDP rebuild its buckets."
        ),
        change={},
        saving_ns=saving,
        status="predicted",
        evidence=show_steps(today, changed, find_rows(analysis.steps)),
        caveats=("Another order of parameters makes old checkpoints of the optimizer unusable.",),
        sources=SOURCES,
        acts_on_ns=bench.communication_ns,
    )
