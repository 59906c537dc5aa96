"""One gradient that is large and ready last: buckets cannot cut it, so its transfer sticks out whatever their size."""

from __future__ import annotations

from msgspec.structs import replace

from advisor.rules.bench import Bench, measure_saving, open_bench, show_steps
from advisor.rules.caps import find_best_uniform
from advisor.rules.words import find_rows, say_bytes, say_fraction, say_ms
from advisor.schema import Estimate, Evidence, GradientReady, Recommendation
from advisor.verdict import Analysis

RULE = "indivisible_tail"
MOST_OF_BLOCKING = 0.5
SOURCES = (
    "torch/csrc/distributed/c10d/reducer.cpp: compute_bucket_assignment_by_size (tensors are never split)",
    "torch/distributed/optim/zero_redundancy_optimizer.py",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Names the gradient where its own transfer after backward is most of what the best cap would leave blocking.

    Half of its bytes, as 16 bits would have, is what it surely saves; all of them is the most.
    """
    bench = open_bench(analysis)
    if bench is None or not bench.job.profile.sizes_known:
        return None
    tail = max(bench.job.profile.slowest.gradients, key=lambda gradient: gradient.num_bytes)
    sticks_out_ns = _measure_tail(bench, tail)
    if sticks_out_ns <= bench.indifference_ns:
        return None
    left_ns = find_best_uniform(bench).blocking_ns
    if sticks_out_ns < MOST_OF_BLOCKING * left_ns:
        return None
    today, halved, gone = bench.today, *(_shrink(bench, tail, share).today for share in (0.5, 0.0))
    least, most = measure_saving(today, halved), measure_saving(today, gone)
    if not bench.matters(least):
        return None
    name, total = _name_gradient(analysis, tail), sum(g.num_bytes for g in bench.job.profile.slowest.gradients)
    return Recommendation(
        rule=RULE,
        title=f"{name[0].upper()}{name[1:]} is the tail that no bucket size cuts",
        message=(
            f"{name[0].upper()}{name[1:]} holds {say_bytes(tail.num_bytes)} ({say_fraction(tail.num_bytes / total)} of "
            f"all) and is ready last, so its transfer sticks out by {say_ms(sticks_out_ns)} whatever the bucket size. "
            "Untie it, shard it over the ranks, or send it in 16 bits."
        ),
        change={},
        saving_ns=Estimate(value=least.value, low=least.low, high=most.high, basis="extrapolated"),
        status="predicted",
        evidence=(
            Evidence(name="largest gradient", value=tail.num_bytes, unit="bytes"),
            Evidence(name="ready after", value=tail.ready_device_ns / 1e6, unit="ms of backward", table="buckets"),
            *show_steps(today, halved, find_rows(analysis.steps)),
        ),
        caveats=("An untied embedding has a late gradient too, unless it is sparse or small.",),
        sources=SOURCES,
        acts_on_ns=bench.communication_ns,
    )


def _measure_tail(bench: Bench, tail: GradientReady) -> float:
    """How long after the end of backward its transfer ends, if it starts as soon as the gradient is ready."""
    alone = float(bench.scenarios[0].transfer_ns(tail.num_bytes))  # type: ignore[arg-type]
    return tail.ready_device_ns + alone - bench.job.profile.slowest.backward_ns


def _shrink(bench: Bench, tail: GradientReady, share: float) -> Bench:
    gradients = bench.job.profile.slowest.gradients
    return bench.with_gradients(
        [replace(g, num_bytes=round(share * g.num_bytes)) if g is tail else g for g in gradients]
    )


def _name_gradient(analysis: Analysis, tail: GradientReady) -> str:
    """Its parameter, where the manifest tells the order of gradients."""
    manifest = analysis.run.manifest
    order = manifest.ready_order if manifest else ()
    if manifest is None or tail.index >= len(order):
        return "one gradient"
    parameter = manifest.parameters[order[tail.index]]
    return f"the gradient of {parameter.name}" if parameter.num_bytes == tail.num_bytes else "one gradient"
