"""A link that is slower inside the job than the same machines showed by themselves."""

from __future__ import annotations

import dataclasses
from statistics import median

from advisor.comm_model import fit_ladder
from advisor.rules.bench import build_bench, measure_saving, open_bench, show_steps
from advisor.rules.words import find_rows, say_ms
from advisor.schema import CommModel, Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "slow_link"
MUCH_SLOWER = 2.0
SOURCES = (
    "NCCL User Guide, Troubleshooting and Environment Variables: NCCL_DEBUG, NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
    "nccl-tests, doc/PERFORMANCE.md",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Asks for a look at the transport where a probe or nccl-tests was faster than the job by a factor.

    Only a ladder of the same backend on as many ranks counts.
    """
    bench = open_bench(analysis)
    if bench is None:
        return None
    own, config = bench.job.model, bench.config
    alone = [
        fit.model
        for ladder in analysis.run.ladders
        if (ladder.world_size, ladder.backend) == (config.world_size, config.backend)
        for fit in fit_ladder(ladder)
        if (fit.model.kind, fit.model.dtype) == (own.kind, own.dtype)
    ]
    if not alone or own.sources != ("trace",):
        return None
    ratio = compare_models(own, alone[0])
    if ratio is None or ratio < MUCH_SLOWER:
        return None
    faster = build_bench(dataclasses.replace(bench.job, model=alone[0]), config)
    today, changed = bench.today, faster.today
    saving = measure_saving(today, changed)
    if not bench.matters(saving):
        return None
    return Recommendation(
        rule=RULE,
        title="Find out why the link is slower inside the job",
        message=(
            f"All-reduces of the same sizes took {ratio:.2g} times as long in this run as measured alone on its "
            f"machines; as fast as alone, a step would take {say_ms(saving.value)} less. Look with NCCL_DEBUG=INFO "
            "which interface and transport each rank uses, and what else uses the network."
        ),
        change={},
        saving_ns=saving,
        status="predicted",
        evidence=(
            Evidence(name="time in the job over time alone", value=ratio, unit="times", threshold=MUCH_SLOWER),
            *show_steps(today, changed, find_rows(analysis.steps)),
        ),
        caveats=("A ladder that was measured on other machines, or on an empty network, promises too much.",),
        sources=SOURCES,
        acts_on_ns=bench.communication_ns,
    )


def compare_models(own: CommModel, alone: CommModel) -> float | None:
    """How many times longer the job's all-reduces took than alone, over its own sizes that were measured there too."""
    predicted = {sample.num_bytes: alone.predict(sample.num_bytes) for sample in own.samples}
    ratios = [
        own.predict(num_bytes).value / there.value
        for num_bytes, there in predicted.items()
        if there.basis != "extrapolated" and there.value > 0
    ]
    return median(ratios) if ratios else None
