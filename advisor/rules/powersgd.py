"""PowerSGD: gradients of matrices as products of thin ones, where even 16 bits leave most of the exchange blocking."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from advisor.rules.bench import open_bench, show_steps, summarize
from advisor.rules.words import find_rows, say_fraction, say_ms
from advisor.schema import Estimate, Evidence, ParameterInfo, Recommendation
from advisor.verdict import Analysis

RULE = "powersgd"
RANK = 2
FLOAT_BYTES = 4
STILL_BLOCKING = 1 / 3
"""Of the step under the 16-bit hook: below this, the simpler hook is enough."""
SOURCES = (
    "torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py",
    "Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization (NeurIPS 2019)",
    "Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems (MLSys 2022)",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes a trial where a manifest tells the shapes; what the products cost is unknown, so it may save nothing.

    A matrix of n rows and m columns sends 4 r (n + m) bytes.
    """
    bench, manifest = open_bench(analysis), analysis.run.manifest
    change = {"comm_hook": f"powersgd:{RANK}"}
    if bench is None or manifest is None or bench.config.backend != "nccl" or bench.find_guard(change) is not None:
        return None
    if bench.config.comm_hook.startswith("powersgd") or not manifest.parameters:
        return None
    halved = bench.try_change({"comm_hook": "bf16"})
    if halved.blocking_ns < STILL_BLOCKING * halved.steps_ns[0]:
        return None
    kept = sum(count_sent_bytes(p) for p in manifest.parameters) / sum(p.num_bytes for p in manifest.parameters)
    gradients = bench.job.profile.slowest.gradients
    today = bench.today
    changed = bench.with_gradients([replace(g, num_bytes=round(kept * g.num_bytes)) for g in gradients]).today
    most = summarize(today.steps_ns - changed.steps_ns)
    if not bench.matters(most):
        return None
    return Recommendation(
        rule=RULE,
        title=f"Try PowerSGD of rank {RANK}",
        message=(
            f"Even in 16 bits communication would block {say_fraction(halved.blocking_ns / halved.steps_ns[0])} of the "
            f"step, and PowerSGD sends {say_fraction(kept)} of the bytes, which saves {say_ms(most.value)} less "
            "its own computation. Try it after the 16-bit hook, and compare the loss curves."
        ),
        change=change,
        saving_ns=Estimate(value=most.value, low=min(0.0, most.low), high=most.high, basis="extrapolated"),
        status="predicted",
        evidence=(
            Evidence(name="bytes that stay", value=kept, unit="of the gradients"),
            *show_steps(today, changed, find_rows(analysis.steps)),
        ),
        caveats=(
            "Its products and orthogonalisation are not predicted, so it may save nothing.",
            "It changes the gradients and keeps its error for the next step, which takes as much memory as they do.",
            "It starts after start_powerSGD_iter steps (1000 by default), so a short profile sees no gain.",
        ),
        sources=SOURCES,
        acts_on_ns=bench.communication_ns,
    )


def count_sent_bytes(parameter: ParameterInfo) -> int:
    """Bytes that a parameter's gradient sends; vectors, and matrices that would not shrink to half, as they are."""
    if len(parameter.shape) < 2:
        return parameter.num_bytes
    rows = parameter.shape[0]
    compressed = FLOAT_BYTES * RANK * (rows + prod(parameter.shape[1:]))
    return compressed if 2 * compressed < parameter.num_bytes else parameter.num_bytes
