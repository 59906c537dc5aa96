"""`forward_sync_buffers=False`: running statistics are not broadcast before every forward."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import numpy as np

from advisor.exchange import classify_collective
from advisor.rules.bench import open_bench
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Estimate, Evidence, Recommendation
from advisor.verdict import Analysis

RULE = "forward_sync_buffers"
SOURCES = ("torch/nn/parallel/distributed.py: forward_sync_buffers (broadcast_buffers before torch 2.13)",)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes to stop broadcasting buffers where that takes a part of the forward that matters."""
    bench = open_bench(analysis)
    by_rank = [times for rank in analysis.run.ranks if (times := _time_broadcasts(analysis, rank.rank))]
    if bench is None or not bench.config.forward_sync_buffers or not by_rank:
        return None
    # What other ranks take longer is waiting for this one.
    times = min(by_rank, key=median)
    low, high = np.quantile(times, [0.025, 0.975])
    saving = Estimate(value=median(times), low=float(low), high=float(high), basis="measured")
    if not bench.matters(saving):
        return None
    return Recommendation(
        rule=RULE,
        title="Set forward_sync_buffers=False (before torch 2.13: broadcast_buffers)",
        message=(
            f"Before every forward rank 0 broadcasts the model's buffers, which takes {say_ms(saving.value)} a step "
            "and is no bucket that a cap could change. Switch it off if running statistics may differ by rank, or if "
            "SyncBatchNorm keeps them equal anyway."
        ),
        change={"forward_sync_buffers": False},
        saving_ns=saving,
        status="predicted",
        evidence=(
            Evidence(
                name="broadcasts of buffers",
                value=saving.value / 1e6,
                unit="ms",
                table="steps",
                rows=find_rows(analysis.steps),
            ),
        ),
        caveats=("Every rank then normalises with statistics of its own; save and evaluate those of one rank.",),
        sources=SOURCES,
        acts_on_ns=saving.value,
    )


def _time_broadcasts(analysis: Analysis, rank: int) -> list[float]:
    """The time of one rank's broadcasts, by step."""
    by_step: defaultdict[int, float] = defaultdict(float)
    for observation in analysis.run.ranks:
        for collective in observation.collectives if observation.rank == rank else ():
            if collective.step is not None and classify_collective(collective) == "buffer":
                by_step[collective.step] += collective.end_ns - collective.start_ns
    return list(by_step.values())
