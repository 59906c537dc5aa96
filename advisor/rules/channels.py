"""NCCL's channels: each takes a part of the GPU from the computation beside it."""

from __future__ import annotations

import dataclasses

from advisor.rules.bench import open_bench, show_steps
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "channels"
NOTICEABLE = 1.05
"""Slow-downs that may be smaller than this are left alone."""
SOURCES = ("NCCL User Guide, Environment Variables: NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes fewer channels where computation beside communication was measured to be slower, and that matters."""
    bench = open_bench(analysis)
    if bench is None or bench.config.backend != "nccl":
        return None
    slowdown = bench.job.calibration.compute_slowdown
    if slowdown.basis == "extrapolated" or slowdown.low < NOTICEABLE:
        return None
    undisturbed = dataclasses.replace(
        bench, scenarios=tuple(dataclasses.replace(s, compute_slowdown=1.0) for s in bench.scenarios)
    )
    today, freed = bench.today, undisturbed.today
    tax_ns = float(today.steps_ns[0] - freed.steps_ns[0])
    if tax_ns <= bench.indifference_ns:
        return None
    return Recommendation(
        rule=RULE,
        title="Try fewer NCCL channels",
        message=(
            f"Computation runs {slowdown.value:.2g} times slower beside communication, which costs "
            f"{say_ms(tax_ns)} a step. Try half the channels that NCCL_DEBUG=INFO shows (NCCL_MAX_NCHANNELS), and keep "
            "that only if the step gets shorter."
        ),
        change={},
        saving_ns=None,
        status="predicted",
        evidence=(
            Evidence(name="slow-down beside communication", value=slowdown.value, unit="times", threshold=NOTICEABLE),
            *show_steps(today, freed, find_rows(analysis.steps)),
        ),
        caveats=("Fewer channels make communication slower, which can cost more than it gains.",),
        sources=SOURCES,
        acts_on_ns=tax_ns,
    )
